"""From a spec to a loaded model: architecture name → class, imported when it is used."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import torch
from torch import nn

from truedraft.contract.specs import DrafterSpec, TargetSpec
from truedraft.errors import CheckpointError
from truedraft.kernels.ops import Ops
from truedraft.models.interface import Drafter, Target
from truedraft.models.weights import FolderSource, fill

_FAST_TARGETS = {
    "LlamaForCausalLM": "truedraft.models.llama:LlamaTarget",
    "Qwen3ForCausalLM": "truedraft.models.qwen3:Qwen3Target",
}
_DRAFTERS = {"dflash": "truedraft.models.drafter:DFlashDrafter"}
_FALLBACK = "truedraft.models.fallback:load_fallback"


def is_fast(architecture: str) -> bool:
    """Whether a target of this architecture runs on our own modules."""
    return architecture in _FAST_TARGETS


def load_target(spec: TargetSpec, ops: Ops, dtype: torch.dtype, device: torch.device | str = "cpu") -> Target:
    """The target with its weights, ready to run.

    Families without a module of ours run on transformers' modelling code. Raises CheckpointError.
    """
    if spec.format != "safetensors":
        raise CheckpointError(
            "A GGUF target is converted before it is loaded", seen=spec.path, remedy="See models.gguf"
        )
    dotted = _FAST_TARGETS.get(spec.architecture)
    if dotted is None:
        return _imported(_FALLBACK)(spec, ops, dtype, device)
    _refuse_other_activation(Path(spec.path))
    target: nn.Module = _imported(dotted)(spec, ops, dtype, device)
    with FolderSource(spec.path) as source:
        fill(target, source, device)
    return target  # type: ignore[return-value]


def load_drafter(
    spec: DrafterSpec,
    target: Target,
    ops: Ops,
    dtype: torch.dtype,
    device: torch.device | str = "cpu",
) -> Drafter:
    """The drafter with its weights, bound to the target it borrows from.

    Raises CheckpointError, PairingError where it does not fit the target.
    """
    dotted = _DRAFTERS.get(spec.algorithm)
    if dotted is None:
        raise CheckpointError(
            f"Drafters of the kind {spec.algorithm!r} are not supported",
            seen=spec.source,
            allowed=", ".join(_DRAFTERS),
        )
    drafter: nn.Module = _imported(dotted)(spec, target, ops, dtype, device)
    _refuse_other_activation(Path(spec.path))
    with FolderSource(spec.path) as source:
        fill(drafter, source, device)
    return drafter  # type: ignore[return-value]


def _imported(dotted: str) -> Any:
    module, name = dotted.split(":")
    return getattr(importlib.import_module(module), name)


def _refuse_other_activation(folder: Path) -> None:
    """The fast path has one activation; a config that names another must not run on it unnoticed."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{folder / 'config.json'} cannot be read: {error}") from error
    nested = config.get("transformer_layer_config") or config
    activation = nested.get("hidden_act", "silu")
    if activation not in ("silu", "swish"):
        raise CheckpointError("This activation is not supported", seen=activation, allowed="silu")
