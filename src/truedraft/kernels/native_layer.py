"""What a decoder layer does before and after attention, each as one native call.

Bit for bit what the single operations give. Where types are mixed or a layout is unusual, those are
called instead.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from struct import Struct

import torch
from torch import Tensor

from truedraft.kernels import reference_layer
from truedraft.kernels.native_call import CODES, LONG_CALL, done, pointer
from truedraft.kernels.ops import InputWeights, OutputWeights, SingleOps

_INPUTS, _OUTPUTS = Struct("@22qd"), Struct("@17qd")  # inputs_args_t, outputs_args_t


def bind_attention_inputs(
    free: ctypes.CDLL, held: ctypes.PyDLL, single: SingleOps
) -> Callable[[Tensor, Tensor | None, InputWeights, Tensor, Tensor], tuple[Tensor, Tensor, Tensor, Tensor]]:
    """See kernels.ops.Ops."""
    brief, lengthy, pack = held.td_attention_inputs, free.td_attention_inputs, _INPUTS.pack

    def attention_inputs(
        x_TD: Tensor, residual_TD: Tensor | None, weights: InputWeights, cos_TH: Tensor, sin_TH: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        norm_D, qkv_OD, bias_O, q_norm_H, k_norm_H, eps, heads, kv_heads, head_dim = weights
        (rows, width), outs, dtype = x_TD.shape, (heads + 2 * kv_heads) * head_dim, x_TD.dtype
        assert qkv_OD.shape == (outs, width) and norm_D.shape[0] == width
        assert cos_TH.shape[0] == rows and cos_TH.shape[1] <= head_dim
        assert residual_TD is None or residual_TD.shape == x_TD.shape
        plain = _is_plain(dtype, x_TD, residual_TD, norm_D, qkv_OD) and _is_plain(
            dtype, bias_O, q_norm_H, k_norm_H
        )
        if not (plain and _are_angles(cos_TH, sin_TH) and (q_norm_H is None) == (k_norm_H is None)):
            return reference_layer.attention_inputs(single, x_TD, residual_TD, weights, cos_TH, sin_TH)
        heads_TXH = x_TD.new_empty((rows, heads + 2 * kv_heads, head_dim))
        total_TD = x_TD if residual_TD is None else x_TD.new_empty((rows, width))
        packed = pack(
            x_TD.data_ptr(), pointer(residual_TD), total_TD.data_ptr(), heads_TXH.data_ptr(),
            norm_D.data_ptr(), qkv_OD.data_ptr(), pointer(bias_O), pointer(q_norm_H), pointer(k_norm_H),
            cos_TH.data_ptr(), sin_TH.data_ptr(), cos_TH.stride(0), sin_TH.stride(0), CODES[cos_TH.dtype],
            cos_TH.shape[1], CODES[dtype], rows, width, heads, kv_heads, head_dim, torch.get_num_threads(), eps,
        )  # fmt: skip
        done(lengthy(packed) if rows * outs * width > LONG_CALL else brief(packed))
        q_TNH, k_TKH, v_TKH = heads_TXH.split_with_sizes((heads, kv_heads, kv_heads), 1)
        return q_TNH, k_TKH, v_TKH, total_TD

    return attention_inputs


def bind_attention_outputs(
    free: ctypes.CDLL, held: ctypes.PyDLL, single: SingleOps
) -> Callable[[Tensor, Tensor, OutputWeights], tuple[Tensor, Tensor]]:
    """See kernels.ops.Ops."""
    brief, lengthy, pack = held.td_attention_outputs, free.td_attention_outputs, _OUTPUTS.pack

    def attention_outputs(
        o_TNH: Tensor, residual_TD: Tensor, weights: OutputWeights
    ) -> tuple[Tensor, Tensor]:
        out_DX, out_bias_D, norm_D, gate_up_2FD, gate_up_bias_2F, down_DF, down_bias_D, eps = weights
        (rows, width), heads_width, mlp = residual_TD.shape, out_DX.shape[1], down_DF.shape[1]
        dtype = residual_TD.dtype
        assert out_DX.shape[0] == width == norm_D.shape[0] and o_TNH.shape[0] == rows
        assert o_TNH.shape[1] * o_TNH.shape[2] == heads_width
        assert gate_up_2FD.shape == (2 * mlp, width) and down_DF.shape[0] == width
        plain = _is_plain(dtype, residual_TD, o_TNH, out_DX, norm_D) and _is_plain(
            dtype, gate_up_2FD, down_DF, out_bias_D
        )
        if not (plain and _is_plain(dtype, gate_up_bias_2F, down_bias_D)):
            return reference_layer.attention_outputs(single, o_TNH, residual_TD, weights)
        total_TD, y_TD = residual_TD.new_empty((rows, width)), residual_TD.new_empty((rows, width))
        packed = pack(
            o_TNH.data_ptr(), residual_TD.data_ptr(), total_TD.data_ptr(), y_TD.data_ptr(),
            out_DX.data_ptr(), pointer(out_bias_D), norm_D.data_ptr(), gate_up_2FD.data_ptr(),
            pointer(gate_up_bias_2F), down_DF.data_ptr(), pointer(down_bias_D),
            CODES[dtype], rows, heads_width, width, mlp, torch.get_num_threads(), eps,
        )  # fmt: skip
        done(lengthy(packed) if rows * width * (heads_width + 3 * mlp) > LONG_CALL else brief(packed))
        return y_TD, total_TD

    return attention_outputs


def _is_plain(
    dtype: torch.dtype,
    a: Tensor | None,
    b: Tensor | None = None,
    c: Tensor | None = None,
    d: Tensor | None = None,
) -> bool:
    """Whether all are contiguous and of this type. Written out: it runs some hundred times a pass."""
    return (
        (a is None or (a.dtype is dtype and a.is_contiguous()))
        and (b is None or (b.dtype is dtype and b.is_contiguous()))
        and (c is None or (c.dtype is dtype and c.is_contiguous()))
        and (d is None or (d.dtype is dtype and d.is_contiguous()))
    )


def _are_angles(cos_TH: Tensor, sin_TH: Tensor) -> bool:
    return cos_TH.stride(1) == 1 == sin_TH.stride(1) and cos_TH.dtype == sin_TH.dtype
