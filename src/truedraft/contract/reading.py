"""What reading a checkpoint gave, before anyone judges it: values, origins, gaps, contradictions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from truedraft.contract.specs import DrafterSpec, Origin, TargetSpec, TensorHeader


@dataclass(frozen=True, slots=True)
class Conflict:
    """Two places say different things about one value.

    `used` is the one that went into the spec. `hard`: the weights cannot be loaded as the config
    describes them; else it is a matter of acceptance or of care.
    """

    name: str  # field of the spec
    used: object
    used_from: Origin
    other: object
    other_from: Origin
    hard: bool


@dataclass(frozen=True, slots=True)
class TokenizerFacts:
    """What tokenizer files say. `num_tokens`: highest id + 1, added tokens included."""

    num_tokens: int | None
    special_ids: Mapping[str, int] = field(default_factory=dict)  # "<mask>" -> 4
    vocab_sha256: str | None = None  # over the sorted vocabulary; equal means the same tokens
    has_chat_template: bool = False


@dataclass(frozen=True, slots=True)
class Reading:
    """What both kinds of checkpoint have in common.

    `values` holds every field of the spec that could be found, also where `spec` is None because
    some of `missing` could not. `config` is the config file as it stands.
    """

    source: str
    path: str
    format: str
    config: Mapping[str, Any]
    config_file: str  # how findings name it: "drafter config.json"
    values: Mapping[str, Any]
    origins: Mapping[str, Origin]
    missing: tuple[str, ...]
    conflicts: tuple[Conflict, ...]
    tensors: tuple[TensorHeader, ...]
    tokenizer: TokenizerFacts | None = None

    def get(self, name: str) -> Any:
        """→ the value of a spec field, or None where the checkpoint does not say."""
        return self.values.get(name)

    def said(self, name: str) -> str:
        """→ evidence line: `drafter config.json: block_size = 16`."""
        origin = self.origins.get(name)
        value = self.values.get(name)
        shown = list(value) if isinstance(value, tuple) else value
        if origin is None:
            return f"{self.config_file}: {name} = {'absent' if value is None else shown}"
        owner = self.config_file.split(" ", 1)[0]
        if origin.kind == "key":
            return f"{owner} {origin.where} = {shown}"
        why = origin.where if origin.kind == "shape" else f"by default: {origin.where}"
        return f"{owner} {name} = {shown} ({why})"


@dataclass(frozen=True, slots=True)
class TargetReading(Reading):
    """A target as far as its files describe it."""

    spec: TargetSpec | None = None
    layer_types: tuple[str, ...] = ()  # "full_attention", "sliding_attention", "linear_attention" …
    quantisation: str | None = None  # "fp8", "nvfp4", "awq", a GGUF type …


@dataclass(frozen=True, slots=True)
class DrafterReading(Reading):
    """A drafter as far as its files describe it.

    `unexpected` are tensors that the format does not have, `absent` those that it must have.
    `extras` names parts that the plain DFlash graph lacks ("markov_head", "candidate_selector" …).
    """

    spec: DrafterSpec | None = None
    layer_types: tuple[str, ...] = ()
    unexpected: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()
    extras: tuple[str, ...] = ()
    num_captured: int | None = None  # width of fc / target hidden size
    layout_said: Literal["anchor", "masks"] | None = None  # None: no key says which layout it is
    quantisation: str | None = None
    config_problem: str | None = None  # why there is no usable config.json
    embedding_rows: int | None = None
    head_rows: int | None = None
    d2t_len: int | None = None
