"""A dense decoder on the fast path: embedding, equal layers, head. Llama and Qwen3 are this."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from truedraft.contract.specs import TargetSpec
from truedraft.kernels.ops import Ops
from truedraft.models.interface import LayerAttend
from truedraft.models.layers import DecoderStack, StackShape, empty_parameter
from truedraft.models.slots import Part, Slot


class DenseTarget(nn.Module):
    """Satisfies `models.interface.Target`; parameters are empty until `models.weights` fills them."""

    def __init__(
        self, spec: TargetSpec, ops: Ops, dtype: torch.dtype, device: torch.device | str = "cpu"
    ) -> None:
        super().__init__()
        self.spec = spec
        self.ops = ops
        self.dtype = dtype
        self.device = torch.device(device)
        self.embedding_VD = empty_parameter(dtype, spec.vocab_size, spec.hidden_size)
        self.stack = DecoderStack(_stack_shape(spec), ops, dtype, device)
        if not spec.tied_head:
            self.head_VD = empty_parameter(dtype, spec.vocab_size, spec.hidden_size)

    @property
    def num_attention_layers(self) -> int:
        return self.spec.num_layers

    def forward(
        self, ids_T: Tensor, positions_T: Tensor, attend: LayerAttend, capture_layers: tuple[int, ...] = ()
    ) -> tuple[Tensor, Tensor | None]:
        """See models.interface.Target."""
        x_TD = self.embed(ids_T)
        hidden_TD, streams = self.stack(x_TD, positions_T, attend, frozenset(capture_layers))
        return hidden_TD, concatenated(streams, capture_layers)

    def logits(self, hidden_RD: Tensor) -> Tensor:
        """→ logits_RV, float32."""
        return self.raw_logits(hidden_RD).float()

    def raw_logits(self, hidden_RD: Tensor) -> Tensor:
        """The head's product alone, in the model's dtype: what a drafter borrows."""
        return self.ops.linear(hidden_RD, self.head_weight, None)

    @property
    def head_weight(self) -> Tensor:
        """The head's weight, which may be the embedding's."""
        return self.embedding_VD if self.spec.tied_head else self.head_VD

    def embed(self, ids_T: Tensor) -> Tensor:
        """→ rows of the embedding table_TD."""
        return self.embedding_VD.index_select(0, ids_T)

    def slots(self) -> list[Slot]:
        """Names as transformers saves these families."""
        table = (self.spec.vocab_size, self.spec.hidden_size)
        slots = [Slot("embedding_VD", (Part("model.embed_tokens.weight", table),))]
        if not self.spec.tied_head:
            slots.append(Slot("head_VD", (Part("lm_head.weight", table),)))
        return slots + self.stack.slots("stack.", "model.")

    def surplus(self) -> frozenset[str]:
        """Tensors that a checkpoint may hold though nothing needs them: a copy of the tied head."""
        return frozenset({"lm_head.weight"}) if self.spec.tied_head else frozenset()


def concatenated(streams: Mapping[int, Tensor], capture_layers: tuple[int, ...]) -> Tensor | None:
    """captured_TX in the order asked for, None where nothing is asked for."""
    if not capture_layers:
        return None
    return torch.cat([streams[layer] for layer in capture_layers], dim=-1)


def _stack_shape(spec: TargetSpec) -> StackShape:
    return StackShape(
        num_layers=spec.num_layers,
        hidden_size=spec.hidden_size,
        mlp_size=spec.mlp_size,
        attention=spec.attention,
        causal=(True,) * spec.num_layers,
        rms_eps=spec.rms_eps,
        qk_norm=spec.qk_norm,
        attention_bias=spec.attention_bias,
        mlp_bias=spec.mlp_bias,
        max_position=spec.max_position,
    )
