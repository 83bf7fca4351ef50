"""The halves of a decoder layer around attention, as single operations one after another.

What a provider's own fused versions must equal bit for bit, and what providers without such use.
"""

from __future__ import annotations

from dataclasses import fields
from functools import partial

from torch import Tensor

from truedraft.kernels.ops import InputWeights, Ops, OutputWeights, SingleOps, Spans


def composed(single: SingleOps) -> Ops:
    """A provider's single operations (those of `single`) with every fused one made of them."""
    kept = {field.name: getattr(single, field.name) for field in fields(SingleOps)}
    return Ops(
        **kept,
        attention_inputs=partial(attention_inputs, single),
        write_attend=partial(write_attend, single),
        attention_outputs=partial(attention_outputs, single),
    )


def attention_inputs(
    ops: SingleOps,
    x_TD: Tensor,
    residual_TD: Tensor | None,
    weights: InputWeights,
    cos_TH: Tensor,
    sin_TH: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """See kernels.ops.Ops."""
    if residual_TD is None:
        normed_TD, residual_TD = ops.rms_norm(x_TD, weights.norm_D, weights.eps), x_TD
    else:
        normed_TD, residual_TD = ops.add_rms_norm(x_TD, residual_TD, weights.norm_D, weights.eps)
    qkv_TO = ops.linear(normed_TD, weights.qkv_OD, weights.qkv_bias_O)
    heads_TXH = qkv_TO.view(x_TD.shape[0], -1, weights.head_dim)
    sizes = (weights.num_heads, weights.num_kv_heads, weights.num_kv_heads)
    q_TNH, k_TKH, v_TKH = heads_TXH.split_with_sizes(sizes, dim=1)
    if weights.q_norm_H is not None:
        q_TNH = ops.rms_norm(q_TNH, weights.q_norm_H, weights.eps)
    if weights.k_norm_H is not None:
        k_TKH = ops.rms_norm(k_TKH, weights.k_norm_H, weights.eps)
    return ops.rope(q_TNH, cos_TH, sin_TH), ops.rope(k_TKH, cos_TH, sin_TH), v_TKH, residual_TD


def write_attend(
    ops: SingleOps,
    q_TNH: Tensor,
    k_TKH: Tensor,
    v_TKH: Tensor,
    k_pool_PWKH: Tensor,
    v_pool_PWKH: Tensor,
    slots_T: Tensor,
    spans: Spans,
    *,
    scale: float,
    causal: bool = True,
    window: int | None = None,
    softcap: float | None = None,
) -> Tensor:
    """See kernels.ops.WriteAttend."""
    ops.write_kv(k_pool_PWKH, slots_T, k_TKH)
    ops.write_kv(v_pool_PWKH, slots_T, v_TKH)
    return ops.attend(
        q_TNH, k_pool_PWKH, v_pool_PWKH, spans, scale=scale, causal=causal, window=window, softcap=softcap
    )


def attention_outputs(
    ops: SingleOps, o_TNH: Tensor, residual_TD: Tensor, weights: OutputWeights
) -> tuple[Tensor, Tensor]:
    """See kernels.ops.Ops."""
    x_TD = ops.linear(o_TNH.reshape(o_TNH.shape[0], -1), weights.out_DX, weights.out_bias_D)
    normed_TD, residual_TD = ops.add_rms_norm(x_TD, residual_TD, weights.norm_D, weights.eps)
    gated_TF = ops.silu_mul(ops.linear(normed_TD, weights.gate_up_2FD, weights.gate_up_bias_2F))
    return ops.linear(gated_TF, weights.down_DF, weights.down_bias_D), residual_TD
