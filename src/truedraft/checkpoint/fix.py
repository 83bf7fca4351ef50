"""Corrects a drafter's config where the remedy is certain: shapes and tensor names leave one choice."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

from truedraft.checkpoint.export import DTYPE_NAMES
from truedraft.contract.reading import DrafterReading

SIZE_KEYS = {
    "num_layers": "num_hidden_layers",
    "hidden_size": "hidden_size",
    "mlp_size": "intermediate_size",
    "num_heads": "num_attention_heads",
    "num_kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
}


@dataclass(frozen=True, slots=True)
class Correction:
    """One changed key. `old` None: it was absent or null."""

    key: str
    old: object
    new: object
    why: str


def certain_corrections(drafter: DrafterReading) -> tuple[Correction, ...]:
    """→ what can be corrected without measuring. Capture layers, layout, windows and rope are never guessed."""
    if drafter.config_problem is not None:
        return ()
    return (*_sizes(drafter), *_dtype(drafter), *_architecture(drafter), *_anchor(drafter))


def apply_corrections(config: dict[str, Any], corrections: tuple[Correction, ...]) -> dict[str, Any]:
    """→ a corrected copy. Keys with a dot reach into a nested object."""
    fixed = copy.deepcopy(config)
    for correction in corrections:
        scope, _, key = correction.key.rpartition(".")
        if scope and not isinstance(fixed.get(scope), dict):
            fixed[scope] = {}
        place = fixed[scope] if scope else fixed
        place[key] = correction.new
    return fixed


def _prefix(drafter: DrafterReading) -> str:
    return "transformer_layer_config." if drafter.format == "speculators" else ""


def _sizes(drafter: DrafterReading) -> list[Correction]:
    found = []
    for conflict in drafter.conflicts:
        is_size = (
            conflict.name in SIZE_KEYS and conflict.other_from.kind == "shape" and type(conflict.other) is int
        )
        if conflict.hard and is_size:
            key = _prefix(drafter) + SIZE_KEYS[conflict.name]
            found.append(Correction(key, conflict.used, conflict.other, conflict.other_from.where))
    for name, key in SIZE_KEYS.items():
        origin = drafter.origins.get(name)
        if origin is not None and origin.kind == "shape":
            found.append(Correction(_prefix(drafter) + key, None, drafter.values[name], origin.where))
    return found


def _dtype(drafter: DrafterReading) -> list[Correction]:
    found = [c for c in drafter.conflicts if c.name == "dtype" and c.other in DTYPE_NAMES]
    key = "torch_dtype" if "torch_dtype" in drafter.config and "dtype" not in drafter.config else "dtype"
    return [
        Correction(key, drafter.config.get(key), DTYPE_NAMES[str(c.other)], c.other_from.where) for c in found
    ]


def _architecture(drafter: DrafterReading) -> list[Correction]:
    names = drafter.config.get("architectures")
    if names != ["Qwen3DFlashDraftModel"] or drafter.values.get("algorithm") != "dflash":
        return []
    return [Correction("architectures", names, ["DFlashDraftModel"], "the name that engines have registered")]


def _anchor(drafter: DrafterReading) -> list[Correction]:
    if drafter.layout_said is not None or "markov_head" not in drafter.extras:
        return []
    return [Correction("sample_from_anchor", None, True, "DSpark's anchor slot predicts a token")]
