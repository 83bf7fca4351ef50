"""The decoder layer that targets and drafters share: RMSNorm, attention, gated MLP.

Written only against `kernels.ops.Ops`. Parameters are made without storage (device `meta`) and
get it when a checkpoint is loaded (`models.weights`), so a tensor that was forgotten cannot hide.
q, k and v are one matrix product, gate and up another. The modules inside a layer are called
without nn.Module's machinery for hooks: 0.3 ms a forward of 30 layers, a hundredth of a token.

Axes as in kernels.ops; L layers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from truedraft.contract.specs import AttentionSpec
from truedraft.kernels.ops import InputWeights, Ops, OutputWeights
from truedraft.models.interface import LayerAttend
from truedraft.models.rope import RopeTable
from truedraft.models.slots import Part, Slot


@dataclass(frozen=True, slots=True)
class StackShape:
    """What one stack of equal decoder layers is made of."""

    num_layers: int
    hidden_size: int
    mlp_size: int
    attention: AttentionSpec
    causal: tuple[bool, ...]
    rms_eps: float
    qk_norm: bool
    attention_bias: bool
    mlp_bias: bool
    max_position: int

    @property
    def q_size(self) -> int:
        return self.attention.num_heads * self.attention.head_dim

    @property
    def kv_size(self) -> int:
        return self.attention.num_kv_heads * self.attention.head_dim


def empty_parameter(dtype: torch.dtype, *shape: int) -> nn.Parameter:
    """A parameter without storage. Gradients are off until a trainer turns them on."""
    return nn.Parameter(torch.empty(shape, dtype=dtype, device="meta"), requires_grad=False)


class Linear(nn.Module):
    """weight_OD and perhaps bias_O; computed through the Ops."""

    bias: nn.Parameter | None

    def __init__(self, ops: Ops, num_in: int, num_out: int, bias: bool, dtype: torch.dtype) -> None:
        super().__init__()
        self._linear = ops.linear
        self.weight = empty_parameter(dtype, num_out, num_in)
        self.register_parameter("bias", empty_parameter(dtype, num_out) if bias else None)

    def forward(self, x_TD: Tensor) -> Tensor:
        return self._linear(x_TD, self.weight, self.bias)

    __call__ = forward  # see the module's docstring


class Attention(nn.Module):
    """What attention is made of: q, k and v as one product, norms of q's and k's heads, the output."""

    def __init__(self, shape: StackShape, ops: Ops, dtype: torch.dtype) -> None:
        super().__init__()
        spec = shape.attention
        bias = shape.attention_bias
        self.qkv = Linear(ops, shape.hidden_size, shape.q_size + 2 * shape.kv_size, bias, dtype)
        self.out = Linear(ops, shape.q_size, shape.hidden_size, bias, dtype)
        if shape.qk_norm:
            self.q_norm = empty_parameter(dtype, spec.head_dim)
            self.k_norm = empty_parameter(dtype, spec.head_dim)


class Mlp(nn.Module):
    """down(silu(gate(x)) · up(x)), gate and up in one product."""

    def __init__(self, shape: StackShape, ops: Ops, dtype: torch.dtype) -> None:
        super().__init__()
        self.gate_up = Linear(ops, shape.hidden_size, 2 * shape.mlp_size, shape.mlp_bias, dtype)
        self.down = Linear(ops, shape.mlp_size, shape.hidden_size, shape.mlp_bias, dtype)


def _held_by(module: nn.Module) -> dict[str, Tensor]:
    """Where nn.Module keeps parameters: always current, and read faster than as attributes."""
    return cast("dict[str, Tensor]", module._parameters)


class DecoderLayer(nn.Module):
    """One layer. The residual stream travels beside the last product, to be added while norming."""

    def __init__(self, shape: StackShape, layer: int, ops: Ops, dtype: torch.dtype) -> None:
        super().__init__()
        self.attention = Attention(shape, ops, dtype)
        self.mlp = Mlp(shape, ops, dtype)
        self.norm_before_attention = empty_parameter(dtype, shape.hidden_size)
        self.norm_before_mlp = empty_parameter(dtype, shape.hidden_size)
        self._ops = ops
        spec = shape.attention
        self._heads = (shape.rms_eps, spec.num_heads, spec.num_kv_heads, spec.head_dim)
        attention, mlp = self.attention, self.mlp
        self._inputs = tuple(map(_held_by, (self, attention.qkv, attention)))
        self._outputs = tuple(map(_held_by, (self, attention.out, mlp.gate_up, mlp.down)))
        self._index = layer
        self._scale, self._causal, self._window = (
            spec.head_dim**-0.5,
            shape.causal[layer],
            spec.windows[layer],
        )

    def forward(
        self, x_TD: Tensor, residual_TD: Tensor | None, cos_TH: Tensor, sin_TH: Tensor, attend: LayerAttend
    ) -> tuple[Tensor, Tensor, Tensor]:
        """→ (x_TD, residual_TD) for the next layer, and the residual stream that came in, x added."""
        ops = self._ops
        q_TNH, k_TKH, v_TKH, incoming_TD = ops.attention_inputs(
            x_TD, residual_TD, self.input_weights(), cos_TH, sin_TH
        )
        o_TNH = attend(
            self._index, q_TNH, k_TKH, v_TKH, scale=self._scale, causal=self._causal, window=self._window
        )
        x_TD, residual_TD = ops.attention_outputs(o_TNH, incoming_TD, self.output_weights())
        return x_TD, residual_TD, incoming_TD

    __call__ = forward  # see the module's docstring

    def input_weights(self) -> InputWeights:
        own, qkv, attention = self._inputs
        return InputWeights(
            own["norm_before_attention"],
            qkv["weight"],
            qkv["bias"],
            attention.get("q_norm"),
            attention.get("k_norm"),
            *self._heads,
        )

    def output_weights(self) -> OutputWeights:
        own, out, gate_up, down = self._outputs
        return OutputWeights(
            out["weight"],
            out["bias"],
            own["norm_before_mlp"],
            gate_up["weight"],
            gate_up["bias"],
            down["weight"],
            down["bias"],
            self._heads[0],
        )


class DecoderStack(nn.Module):
    """Layers and final norm: embedded rows in, normed rows and the wanted residual streams out."""

    def __init__(self, shape: StackShape, ops: Ops, dtype: torch.dtype, device: torch.device | str) -> None:
        super().__init__()
        self.shape = shape
        self._ops = ops
        self.in_order = tuple(DecoderLayer(shape, i, ops, dtype) for i in range(shape.num_layers))
        self.layers = nn.ModuleList(self.in_order)
        self.norm = empty_parameter(dtype, shape.hidden_size)
        self.rope = RopeTable(
            shape.attention.rope, shape.attention.head_dim, shape.max_position, dtype, device
        )

    def forward(
        self,
        x_TD: Tensor,
        positions_T: Tensor,
        attend: LayerAttend,
        wanted: frozenset[int] = frozenset(),
    ) -> tuple[Tensor, dict[int, Tensor]]:
        """→ (normed_TD, residual stream after each wanted layer; −1 is the input)."""
        cos_TH, sin_TH = self.rope(positions_T)
        streams: dict[int, Tensor] = {}
        residual_TD: Tensor | None = None
        for i, layer in enumerate(self.in_order):
            # The sum with the residual stream is made where it is normed for what comes next.
            x_TD, residual_TD, stream_TD = layer(x_TD, residual_TD, cos_TH, sin_TH, attend)
            if i - 1 in wanted:
                streams[i - 1] = stream_TD
        assert residual_TD is not None  # a stack has layers
        y_TD, stream_TD = self._ops.add_rms_norm(x_TD, residual_TD, self.norm, self.shape.rms_eps)
        if len(self.in_order) - 1 in wanted:
            streams[len(self.in_order) - 1] = stream_TD
        return y_TD, streams

    def slots(self, ours: str, theirs: str) -> list[Slot]:
        """Where parameters come from; `ours` and `theirs` are name prefixes ("stack.", "model.")."""
        slots = [Slot(f"{ours}norm", (Part(f"{theirs}norm.weight", (self.shape.hidden_size,)),))]
        for i in range(self.shape.num_layers):
            slots += _layer_slots(self.shape, f"{ours}layers.{i}.", f"{theirs}layers.{i}.")
        return slots


def _layer_slots(shape: StackShape, ours: str, theirs: str) -> list[Slot]:
    width, mlp, head_dim = shape.hidden_size, shape.mlp_size, shape.attention.head_dim
    q, kv = shape.q_size, shape.kv_size
    slots: list[Slot] = []

    def linear(name: str, room: str, outs: dict[str, int], num_in: int, bias: bool) -> None:
        parts = tuple(Part(f"{theirs}{room}.{out}.weight", (size, num_in)) for out, size in outs.items())
        slots.append(Slot(f"{ours}{name}.weight", parts))
        if bias:
            parts = tuple(Part(f"{theirs}{room}.{out}.bias", (size,)) for out, size in outs.items())
            slots.append(Slot(f"{ours}{name}.bias", parts))

    def norm(name: str, their_name: str, size: int) -> None:
        slots.append(Slot(f"{ours}{name}", (Part(f"{theirs}{their_name}.weight", (size,)),)))

    norm("norm_before_attention", "input_layernorm", width)
    norm("norm_before_mlp", "post_attention_layernorm", width)
    if shape.qk_norm:
        norm("attention.q_norm", "self_attn.q_norm", head_dim)
        norm("attention.k_norm", "self_attn.k_norm", head_dim)
    outs = {"q_proj": q, "k_proj": kv, "v_proj": kv}
    linear("attention.qkv", "self_attn", outs, width, shape.attention_bias)
    linear("attention.out", "self_attn", {"o_proj": width}, q, shape.attention_bias)
    linear("mlp.gate_up", "mlp", {"gate_proj": mlp, "up_proj": mlp}, width, shape.mlp_bias)
    linear("mlp.down", "mlp", {"down_proj": width}, mlp, shape.mlp_bias)
    return slots
