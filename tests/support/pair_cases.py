"""Pairs for rules: a clean one, and changes to it that a rule must see or must let pass."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from checkpoint_files import DRAFTER, TARGET, changed, drafter_shapes, target_shapes, write_checkpoint

from truedraft.checkpoint.drafter import read_drafter_files
from truedraft.checkpoint.target import read_target_files
from truedraft.diagnosis.facts import PairFacts, RunFacts


@dataclass(frozen=True)
class Setup:
    """Changes to the clean pair. `draft` and `target` change config keys (`...` removes), `add` and
    `drop` change the drafter's tensors, `vocab` gives both tokenizers' tokens."""

    draft: dict[str, Any] = field(default_factory=dict)
    target: dict[str, Any] = field(default_factory=dict)
    add: dict[str, Any] = field(default_factory=dict)
    drop: tuple[str, ...] = ()
    shapes: dict[str, Any] | None = field(default_factory=drafter_shapes)
    target_add: dict[str, Any] = field(default_factory=dict)
    run: RunFacts = field(default_factory=RunFacts)
    raw_config: str | None = None
    draft_base: dict[str, Any] = field(default_factory=lambda: DRAFTER)
    draft_tokens: tuple[str, ...] = ()
    target_tokens: tuple[str, ...] = ()
    no_target: bool = False


@dataclass(frozen=True)
class Case:
    """A rule, a setup in which it must speak, and a near one in which it must not."""

    rule: str
    seen: Setup
    clean: Setup = field(default_factory=Setup)

    def __str__(self) -> str:
        return self.rule


def facts_of(folder: Path, setup: Setup) -> PairFacts:
    """Write the pair's files and read them back."""
    shapes = setup.shapes
    if shapes is not None:
        shapes = {name: shape for name, shape in (shapes | setup.add).items() if name not in setup.drop}
    config = setup.raw_config if setup.raw_config is not None else changed(setup.draft_base, **setup.draft)
    drafter = write_checkpoint(folder / "drafter", config, shapes)
    _write_tokenizer(drafter, setup.draft_tokens)
    if setup.no_target:
        return PairFacts(read_drafter_files(drafter), None, setup.run)
    said = changed(TARGET, **setup.target)
    target_tensors = target_shapes(layers=min(int(said.get("num_hidden_layers", 8)), 8)) | setup.target_add
    needs_shapes = not setup.target or setup.target_add
    target = write_checkpoint(folder / "target", said, target_tensors if needs_shapes else None)
    _write_tokenizer(target, setup.target_tokens)
    return PairFacts(read_drafter_files(drafter), read_target_files(target), setup.run)


def _write_tokenizer(folder: Path, tokens: tuple[str, ...]) -> None:
    if tokens:
        vocab = {token: index for index, token in enumerate(tokens)}
        (folder / "tokenizer.json").write_text(json.dumps({"model": {"vocab": vocab}}))
