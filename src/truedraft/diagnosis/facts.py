"""What rules look at: two readings, and the run that they are meant for."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from truedraft.contract.reading import DrafterReading, TargetReading

Engine = Literal["local", "vllm", "vllm-ascend", "sglang"]
Version = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """One kind of accelerator. `compute_capability` (9, 0) is Hopper; `driver` like "580.65.06"."""

    name: str
    memory_bytes: int
    compute_capability: tuple[int, int] | None = None
    count: int = 1
    driver: str | None = None


@dataclass(frozen=True, slots=True)
class RunFacts:
    """Engine, version, flags and environment, as far as they are known.

    `flags` holds command-line options by their long name without dashes ("max-num-seqs"), and the
    keys of the speculative config as "speculative.KEY". `modules` says which Python modules exist;
    `packages` their versions. `runner` is vLLM's model runner where known.
    """

    engine: Engine = "local"
    version: Version | None = None
    flags: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    modules: Mapping[str, bool] = field(default_factory=dict)
    packages: Mapping[str, str] = field(default_factory=dict)
    gpu: GpuFacts | None = None
    platform: Literal["cuda", "rocm", "npu", "cpu"] | None = None

    def flag_int(self, *names: str) -> int | None:
        """→ the first of these flags that is set to a whole number."""
        for name in names:
            value = self.flags.get(name)
            if type(value) is int:
                return value
            if isinstance(value, str) and value.strip().isdecimal() and len(value) < 12:
                return int(value)
        return None

    def flag_text(self, *names: str) -> str | None:
        """→ the first of these flags that is set, as lower-case text."""
        for name in names:
            if (value := self.flags.get(name)) is not None:
                return str(value).lower()
        return None


@dataclass(frozen=True, slots=True)
class PairFacts:
    """All that rules may look at. `target` None: only the drafter is known."""

    drafter: DrafterReading
    target: TargetReading | None = None
    run: RunFacts = field(default_factory=RunFacts)

    @property
    def engine(self) -> str:
        return self.run.engine

    def older(self, *version: int) -> bool:
        """Whether the engine's version is known and below `version`."""
        return self.run.version is not None and self.run.version < version

    def draft(self, name: str) -> Any:
        """→ a drafter value, or None."""
        return self.drafter.values.get(name)

    def targets(self, name: str) -> Any:
        """→ a target value, or None."""
        return None if self.target is None else self.target.values.get(name)

    def draft_said(self, name: str) -> str:
        return self.drafter.said(name)

    def target_said(self, name: str) -> str:
        assert self.target is not None
        return self.target.said(name)

    @property
    def served_len(self) -> int | None:
        """→ tokens that prompt and answer may have: the flag, else what the target allows."""
        said = self.run.flag_int("max-model-len", "context-length", "max-model-length")
        return said if said is not None else self.targets("max_position")

    @property
    def num_drafted(self) -> int | None:
        """→ tokens drafted a round: what the command says, else what the checkpoint was trained for."""
        said = self.run.flag_int("speculative.num_speculative_tokens", "spec-tokens")
        if said is not None:
            return said
        rows = self.run.flag_int("speculative-num-draft-tokens", "speculative-dflash-block-size")
        block_len = rows if rows is not None else self.draft("block_len")
        if block_len is None:
            return None
        return int(block_len) if self.draft("sample_from_anchor") and rows is None else int(block_len) - 1


def parse_version(text: str) -> Version | None:
    """`0.25.1`, `v0.26.0rc1+cu130` → (0, 25, 1), (0, 26, 0); None where there is no number."""
    match = re.match(r"\s*v?(\d{1,6}(?:\.\d{1,6}){0,3})", text)
    return tuple(int(part) for part in match[1].split(".")) if match else None


def show_version(version: Version | None) -> str:
    return "of unknown version" if version is None else ".".join(map(str, version))


def replace_run(facts: PairFacts, **changes: Any) -> PairFacts:
    """→ the same pair under another run."""
    return dataclasses.replace(facts, run=dataclasses.replace(facts.run, **changes))
