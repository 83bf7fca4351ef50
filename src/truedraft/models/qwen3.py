"""Qwen3 (dense): the decoder with an RMSNorm on each head of q and k."""

from __future__ import annotations

import torch

from truedraft.contract.specs import TargetSpec
from truedraft.errors import CheckpointError
from truedraft.kernels.ops import Ops
from truedraft.models.decoder import DenseTarget


class Qwen3Target(DenseTarget):
    """`Qwen3ForCausalLM`: head_dim apart from hidden_size / num_heads, windows on some layers."""

    def __init__(
        self, spec: TargetSpec, ops: Ops, dtype: torch.dtype, device: torch.device | str = "cpu"
    ) -> None:
        if not spec.qk_norm or spec.mlp_bias:
            raise CheckpointError("A Qwen3 has norms on q and k, and no MLP biases", seen=spec.source)
        super().__init__(spec, ops, dtype, device)
