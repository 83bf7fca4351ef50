"""Our C kernels for CPUs as a provider of Ops: weights are read once for all rows of a call, and each
output row is the same bits whatever rows are beside it.

float32 and bfloat16 on the CPU only; last dimensions contiguous, other strides free where a model
splits one fused product (q, k and v). No autograd.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

import torch
from torch import Tensor

from truedraft.kernels.native_attend import bind_attend, bind_write_attend
from truedraft.kernels.native_build import BuildError, load_library
from truedraft.kernels.native_call import CODES, LONG_CALL, declare, done, heads_of, rows_of
from truedraft.kernels.native_check import find_fault
from truedraft.kernels.native_layer import bind_attention_inputs, bind_attention_outputs
from truedraft.kernels.ops import Ops, SingleOps
from truedraft.kernels.reference_layer import composed


@dataclass(frozen=True, slots=True)
class NativeBuild:
    """`ops`, or None and the reason why there are none. With ops, `reason` says what was built."""

    ops: Ops | None
    reason: str


@cache
def native_ops() -> NativeBuild:
    """Builds (first time on a machine: some seconds), loads and checks the kernels. Never raises."""
    try:
        free, held, note = load_library()
        declare(free)
        declare(held)
    except (BuildError, AttributeError) as error:
        return NativeBuild(None, f"no native kernels: {error}")
    ops = _bind(free, held)
    if fault := find_fault(ops):
        return NativeBuild(None, f"no native kernels: self-test failed in {fault}")
    return NativeBuild(ops, f"native kernels ({note})")


def _bind(free: ctypes.CDLL, held: ctypes.PyDLL) -> Ops:
    single = SingleOps(
        name="native",
        row_invariant=True,
        linear=_bind_linear(free, held),
        rms_norm=_bind_rms_norm(held),
        add_rms_norm=_bind_add_rms_norm(held),
        rope=_bind_rope(held),
        silu_mul=_bind_silu_mul(held),
        write_kv=_bind_write_kv(held),
        attend=bind_attend(free, held),
    )
    return replace(
        composed(single),
        attention_inputs=bind_attention_inputs(free, held, single),
        write_attend=bind_write_attend(free, held),
        attention_outputs=bind_attention_outputs(free, held, single),
    )


def _bind_linear(free: ctypes.CDLL, held: ctypes.PyDLL) -> Callable[[Tensor, Tensor, Tensor | None], Tensor]:
    brief, lengthy = held.td_linear, free.td_linear

    def linear(x_TD: Tensor, w_OD: Tensor, bias_O: Tensor | None) -> Tensor:
        rows_TD = rows_of(x_TD)
        rows, (outs, width) = rows_TD.shape[0], w_OD.shape
        assert w_OD.stride(1) == 1 and rows_TD.shape[1] == width
        y_TO = rows_TD.new_empty((rows, outs))
        has_bias = bias_O is not None and bias_O.is_contiguous()
        assert has_bias or bias_O is None
        call = lengthy if rows * outs * width > LONG_CALL else brief
        code = call(
            rows_TD.data_ptr(), rows_TD.stride(0), CODES[rows_TD.dtype],
            w_OD.data_ptr(), w_OD.stride(0), CODES[w_OD.dtype],
            bias_O.data_ptr() if bias_O is not None else None, CODES[bias_O.dtype] if bias_O is not None else 0,
            y_TO.data_ptr(), rows, outs, width, torch.get_num_threads(),
        )  # fmt: skip
        done(code)
        return y_TO if x_TD.dim() == 2 else y_TO.view(*x_TD.shape[:-1], outs)

    return linear


def _bind_rms_norm(held: ctypes.PyDLL) -> Callable[[Tensor, Tensor, float], Tensor]:
    call = held.td_rms_norm

    def rms_norm(x_TD: Tensor, w_D: Tensor, eps: float) -> Tensor:
        x_TXH = x_TD if x_TD.dim() == 3 and x_TD.stride(2) == 1 else rows_of(x_TD).unsqueeze(1)
        rows, heads, width = x_TXH.shape
        assert w_D.is_contiguous() and w_D.shape[0] == width
        y_TD = x_TD.new_empty(x_TD.shape)
        code = call(
            x_TXH.data_ptr(), x_TXH.stride(0), x_TXH.stride(1), heads, CODES[x_TD.dtype],
            w_D.data_ptr(), CODES[w_D.dtype], y_TD.data_ptr(), rows * heads, width, eps, torch.get_num_threads(),
        )  # fmt: skip
        done(code)
        return y_TD

    return rms_norm


def _bind_add_rms_norm(
    held: ctypes.PyDLL,
) -> Callable[[Tensor, Tensor, Tensor, float], tuple[Tensor, Tensor]]:
    call = held.td_add_rms_norm

    def add_rms_norm(x_TD: Tensor, residual_TD: Tensor, w_D: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        rows_TD, others_TD = rows_of(x_TD), rows_of(residual_TD)
        rows, width = rows_TD.shape
        assert w_D.is_contiguous() and w_D.shape[0] == width and x_TD.dtype == residual_TD.dtype
        assert x_TD.shape == residual_TD.shape
        y_TD, total_TD = x_TD.new_empty(x_TD.shape), x_TD.new_empty(x_TD.shape)
        code = call(
            rows_TD.data_ptr(), rows_TD.stride(0), others_TD.data_ptr(), others_TD.stride(0), CODES[x_TD.dtype],
            w_D.data_ptr(), CODES[w_D.dtype], y_TD.data_ptr(), total_TD.data_ptr(), rows, width, eps,
            torch.get_num_threads(),
        )  # fmt: skip
        done(code)
        return y_TD, total_TD

    return add_rms_norm


def _bind_rope(held: ctypes.PyDLL) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    call = held.td_rope

    def rope(x_TXH: Tensor, cos_TH: Tensor, sin_TH: Tensor) -> Tensor:
        x_TXH = heads_of(x_TXH)
        rows, heads, width = x_TXH.shape
        rotary = cos_TH.shape[1]
        assert (
            cos_TH.stride(1) == 1
            and sin_TH.stride(1) == 1
            and cos_TH.dtype == sin_TH.dtype
            and rotary <= width
        )
        y_TXH = x_TXH.new_empty((rows, heads, width))
        code = call(
            x_TXH.data_ptr(), x_TXH.stride(0), x_TXH.stride(1), CODES[x_TXH.dtype],
            cos_TH.data_ptr(), cos_TH.stride(0), sin_TH.data_ptr(), sin_TH.stride(0), CODES[cos_TH.dtype],
            y_TXH.data_ptr(), rows, heads, width, rotary, torch.get_num_threads(),
        )  # fmt: skip
        done(code)
        return y_TXH

    return rope


def _bind_silu_mul(held: ctypes.PyDLL) -> Callable[[Tensor], Tensor]:
    call = held.td_silu_mul

    def silu_mul(gate_up_T2F: Tensor) -> Tensor:
        rows_T2F = rows_of(gate_up_T2F)
        rows, width = rows_T2F.shape[0], rows_T2F.shape[1] // 2
        y_TF = rows_T2F.new_empty((rows, width))
        code = call(
            rows_T2F.data_ptr(), rows_T2F.stride(0), CODES[rows_T2F.dtype], y_TF.data_ptr(), rows, width,
            torch.get_num_threads(),
        )  # fmt: skip
        done(code)
        return y_TF if gate_up_T2F.dim() == 2 else y_TF.view(*gate_up_T2F.shape[:-1], width)

    return silu_mul


def _bind_write_kv(held: ctypes.PyDLL) -> Callable[[Tensor, Tensor, Tensor], None]:
    call = held.td_write_kv

    def write_kv(pool_PWKH: Tensor, slots_T: Tensor, x_TKH: Tensor) -> None:
        x_TKH = heads_of(x_TKH)
        rows, heads, width = x_TKH.shape
        assert pool_PWKH.is_contiguous() and pool_PWKH.dtype == x_TKH.dtype
        assert slots_T.is_contiguous() and slots_T.dtype == torch.int64 and slots_T.shape[0] == rows
        code = call(
            pool_PWKH.data_ptr(), slots_T.data_ptr(), x_TKH.data_ptr(), x_TKH.stride(0), x_TKH.stride(1),
            CODES[x_TKH.dtype], rows, heads, width, torch.get_num_threads(),
        )  # fmt: skip
        done(code)

    return write_kv
