"""Our C kernels for CPUs as a provider of Ops: weights are read once for all rows of a call, and each
output row is the same bits whatever rows are beside it.

float32 and bfloat16 on the CPU only; last dimensions contiguous, other strides free where a model
splits one fused product (q, k and v). No autograd.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from truedraft.errors import CapacityError
from truedraft.kernels.native_build import BuildError, load_library
from truedraft.kernels.native_check import find_fault
from truedraft.kernels.ops import Ops, Spans

_POINTER, _LONG, _INT, _FLOAT = ctypes.c_void_p, ctypes.c_long, ctypes.c_int, ctypes.c_float
_TYPES = {"p": _POINTER, "l": _LONG, "i": _INT, "f": _FLOAT}
_SIGNATURES = {
    "td_linear": "pli pli pi p lll i",
    "td_rms_norm": "plll i pi p ll f i",
    "td_add_rms_norm": "pl pl i pi pp ll f i",
    "td_rope": "plli pl pl i p llll i",
    "td_silu_mul": "pli p ll i",
    "td_write_kv": "pp plli lll i",
    "td_attend": "pll pp i p pppp l ll lll l f i l f i",
}
_CODES = {torch.float32: 0, torch.bfloat16: 1}
# A call that may take longer than about a millisecond lets other Python threads run; shorter ones
# keep the interpreter lock, which could take 5 ms to come back.
_LONG_CALL = 20_000_000  # multiply-adds


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
        _declare(free)
        _declare(held)
    except (BuildError, AttributeError) as error:
        return NativeBuild(None, f"no native kernels: {error}")
    ops = _bind(free, held)
    if fault := find_fault(ops):
        return NativeBuild(None, f"no native kernels: self-test failed in {fault}")
    return NativeBuild(ops, f"native kernels ({note})")


def _declare(library: ctypes.CDLL) -> None:
    for name, signature in _SIGNATURES.items():
        function = getattr(library, name)
        function.argtypes = [_TYPES[letter] for letter in signature.replace(" ", "")]
        function.restype = _INT


def _bind(free: ctypes.CDLL, held: ctypes.PyDLL) -> Ops:
    return Ops(
        name="native",
        row_invariant=True,
        linear=_bind_linear(free, held),
        rms_norm=_bind_rms_norm(held),
        add_rms_norm=_bind_add_rms_norm(held),
        rope=_bind_rope(held),
        silu_mul=_bind_silu_mul(held),
        write_kv=_bind_write_kv(held),
        attend=_bind_attend(free, held),
    )


def _done(code: int) -> None:
    if code:
        raise CapacityError(
            "No memory for a kernel's buffers", remedy="Use a shorter context or fewer threads"
        )


def _rows_of(x_TD: Tensor) -> Tensor:
    """x as rows whose elements are contiguous; a view wherever torch can give one."""
    rows_TD = x_TD if x_TD.dim() == 2 else x_TD.reshape(-1, x_TD.shape[-1])
    return rows_TD if rows_TD.stride(1) == 1 else rows_TD.contiguous()


def _heads_of(x_TXH: Tensor) -> Tensor:
    return x_TXH if x_TXH.stride(2) == 1 else x_TXH.contiguous()


def _bind_linear(free: ctypes.CDLL, held: ctypes.PyDLL) -> Callable[[Tensor, Tensor, Tensor | None], Tensor]:
    brief, lengthy = held.td_linear, free.td_linear

    def linear(x_TD: Tensor, w_OD: Tensor, bias_O: Tensor | None) -> Tensor:
        rows_TD = _rows_of(x_TD)
        rows, (outs, width) = rows_TD.shape[0], w_OD.shape
        assert w_OD.stride(1) == 1 and rows_TD.shape[1] == width
        y_TO = rows_TD.new_empty((rows, outs))
        has_bias = bias_O is not None and bias_O.is_contiguous()
        assert has_bias or bias_O is None
        call = lengthy if rows * outs * width > _LONG_CALL else brief
        code = call(
            rows_TD.data_ptr(), rows_TD.stride(0), _CODES[rows_TD.dtype],
            w_OD.data_ptr(), w_OD.stride(0), _CODES[w_OD.dtype],
            bias_O.data_ptr() if bias_O is not None else None, _CODES[bias_O.dtype] if bias_O is not None else 0,
            y_TO.data_ptr(), rows, outs, width, torch.get_num_threads(),
        )  # fmt: skip
        _done(code)
        return y_TO if x_TD.dim() == 2 else y_TO.view(*x_TD.shape[:-1], outs)

    return linear


def _bind_rms_norm(held: ctypes.PyDLL) -> Callable[[Tensor, Tensor, float], Tensor]:
    call = held.td_rms_norm

    def rms_norm(x_TD: Tensor, w_D: Tensor, eps: float) -> Tensor:
        x_TXH = x_TD if x_TD.dim() == 3 and x_TD.stride(2) == 1 else _rows_of(x_TD).unsqueeze(1)
        rows, heads, width = x_TXH.shape
        assert w_D.is_contiguous() and w_D.shape[0] == width
        y_TD = x_TD.new_empty(x_TD.shape)
        code = call(
            x_TXH.data_ptr(), x_TXH.stride(0), x_TXH.stride(1), heads, _CODES[x_TD.dtype],
            w_D.data_ptr(), _CODES[w_D.dtype], y_TD.data_ptr(), rows * heads, width, eps, torch.get_num_threads(),
        )  # fmt: skip
        _done(code)
        return y_TD

    return rms_norm


def _bind_add_rms_norm(
    held: ctypes.PyDLL,
) -> Callable[[Tensor, Tensor, Tensor, float], tuple[Tensor, Tensor]]:
    call = held.td_add_rms_norm

    def add_rms_norm(x_TD: Tensor, residual_TD: Tensor, w_D: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        rows_TD, others_TD = _rows_of(x_TD), _rows_of(residual_TD)
        rows, width = rows_TD.shape
        assert w_D.is_contiguous() and w_D.shape[0] == width and x_TD.dtype == residual_TD.dtype
        assert x_TD.shape == residual_TD.shape
        y_TD, total_TD = x_TD.new_empty(x_TD.shape), x_TD.new_empty(x_TD.shape)
        code = call(
            rows_TD.data_ptr(), rows_TD.stride(0), others_TD.data_ptr(), others_TD.stride(0), _CODES[x_TD.dtype],
            w_D.data_ptr(), _CODES[w_D.dtype], y_TD.data_ptr(), total_TD.data_ptr(), rows, width, eps,
            torch.get_num_threads(),
        )  # fmt: skip
        _done(code)
        return y_TD, total_TD

    return add_rms_norm


def _bind_rope(held: ctypes.PyDLL) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    call = held.td_rope

    def rope(x_TXH: Tensor, cos_TH: Tensor, sin_TH: Tensor) -> Tensor:
        x_TXH = _heads_of(x_TXH)
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
            x_TXH.data_ptr(), x_TXH.stride(0), x_TXH.stride(1), _CODES[x_TXH.dtype],
            cos_TH.data_ptr(), cos_TH.stride(0), sin_TH.data_ptr(), sin_TH.stride(0), _CODES[cos_TH.dtype],
            y_TXH.data_ptr(), rows, heads, width, rotary, torch.get_num_threads(),
        )  # fmt: skip
        _done(code)
        return y_TXH

    return rope


def _bind_silu_mul(held: ctypes.PyDLL) -> Callable[[Tensor], Tensor]:
    call = held.td_silu_mul

    def silu_mul(gate_up_T2F: Tensor) -> Tensor:
        rows_T2F = _rows_of(gate_up_T2F)
        rows, width = rows_T2F.shape[0], rows_T2F.shape[1] // 2
        y_TF = rows_T2F.new_empty((rows, width))
        code = call(
            rows_T2F.data_ptr(), rows_T2F.stride(0), _CODES[rows_T2F.dtype], y_TF.data_ptr(), rows, width,
            torch.get_num_threads(),
        )  # fmt: skip
        _done(code)
        return y_TF if gate_up_T2F.dim() == 2 else y_TF.view(*gate_up_T2F.shape[:-1], width)

    return silu_mul


def _bind_write_kv(held: ctypes.PyDLL) -> Callable[[Tensor, Tensor, Tensor], None]:
    call = held.td_write_kv

    def write_kv(pool_PWKH: Tensor, slots_T: Tensor, x_TKH: Tensor) -> None:
        x_TKH = _heads_of(x_TKH)
        rows, heads, width = x_TKH.shape
        assert pool_PWKH.is_contiguous() and pool_PWKH.dtype == x_TKH.dtype
        assert slots_T.is_contiguous() and slots_T.dtype == torch.int64 and slots_T.shape[0] == rows
        code = call(
            pool_PWKH.data_ptr(), slots_T.data_ptr(), x_TKH.data_ptr(), x_TKH.stride(0), x_TKH.stride(1),
            _CODES[x_TKH.dtype], rows, heads, width, torch.get_num_threads(),
        )  # fmt: skip
        _done(code)

    return write_kv


def _bind_attend(free: ctypes.CDLL, held: ctypes.PyDLL) -> Callable[..., Tensor]:
    brief, lengthy = held.td_attend, free.td_attend

    def attend(
        q_TNH: Tensor,
        k_pool_PWKH: Tensor,
        v_pool_PWKH: Tensor,
        spans: Spans,
        *,
        scale: float,
        causal: bool = True,
        window: int | None = None,
        softcap: float | None = None,
    ) -> Tensor:
        q_TNH = _heads_of(q_TNH)
        rows, heads, head_dim = q_TNH.shape
        assert k_pool_PWKH.is_contiguous() and v_pool_PWKH.is_contiguous()
        assert q_TNH.dtype == k_pool_PWKH.dtype == v_pool_PWKH.dtype
        pages_BM, starts_B = spans.page_table_BM, spans.position_start_B
        assert pages_BM.stride(1) == 1 and pages_BM.dtype == torch.int32 == starts_B.dtype
        o_TNH = q_TNH.new_empty((rows, heads, head_dim))
        call = lengthy if rows * heads * head_dim * spans.max_kv_len > _LONG_CALL else brief
        code = call(
            q_TNH.data_ptr(), q_TNH.stride(0), q_TNH.stride(1), k_pool_PWKH.data_ptr(), v_pool_PWKH.data_ptr(),
            _CODES[q_TNH.dtype], o_TNH.data_ptr(),
            spans.row_start_B.data_ptr(), starts_B.data_ptr(), spans.kv_len_B.data_ptr(), pages_BM.data_ptr(),
            pages_BM.stride(0), starts_B.shape[0], spans.max_kv_len,
            heads, k_pool_PWKH.shape[2], head_dim, spans.page_len,
            scale, causal, window or 0, softcap or 0.0, torch.get_num_threads(),
        )  # fmt: skip
        _done(code)
        return o_TNH

    return attend
