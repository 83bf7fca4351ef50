"""Llama: the dense decoder without norms on q and k."""

from __future__ import annotations

import torch

from truedraft.contract.specs import TargetSpec
from truedraft.errors import CheckpointError
from truedraft.kernels.ops import Ops
from truedraft.models.decoder import DenseTarget


class LlamaTarget(DenseTarget):
    """`LlamaForCausalLM`: grouped queries, optional biases, plain or scaled rope, tied head or not."""

    def __init__(
        self, spec: TargetSpec, ops: Ops, dtype: torch.dtype, device: torch.device | str = "cpu"
    ) -> None:
        if spec.qk_norm:
            raise CheckpointError("A Llama has no norms on q and k", seen=spec.source)
        super().__init__(spec, ops, dtype, device)
