"""The native attention: over a pool as it stands, or after this forward's k and v are written."""

from __future__ import annotations

import ctypes
from struct import Struct

import torch
from torch import Tensor

from truedraft.kernels.native_call import CODES, LONG_CALL, done, heads_of
from truedraft.kernels.ops import Attend, Spans, WriteAttend

_ROWS, _PLACES = Struct("@21q2d"), Struct("@8q")  # the two parts of attend_args_t


def bind_attend(free: ctypes.CDLL, held: ctypes.PyDLL) -> Attend:
    """See kernels.ops.Attend."""
    run = _Attend(free, held)

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
        pools = (k_pool_PWKH, v_pool_PWKH)
        return run(q_TNH, (0, 0, 0, 0, 0, 0, 0), *pools, spans, scale, causal, window, softcap)

    return attend


def bind_write_attend(free: ctypes.CDLL, held: ctypes.PyDLL) -> WriteAttend:
    """See kernels.ops.WriteAttend."""
    run = _Attend(free, held)

    def write_attend(
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
        k_TKH, v_TKH = heads_of(k_TKH), heads_of(v_TKH)
        assert k_TKH.shape == v_TKH.shape and k_TKH.shape[1:] == k_pool_PWKH.shape[2:]
        assert k_TKH.shape[0] == q_TNH.shape[0] == slots_T.shape[0]
        assert slots_T.is_contiguous() and slots_T.dtype is torch.int64
        assert k_TKH.dtype is v_TKH.dtype is q_TNH.dtype
        new = (*_placed(k_TKH), *_placed(v_TKH), slots_T.data_ptr())
        return run(q_TNH, new, k_pool_PWKH, v_pool_PWKH, spans, scale, causal, window, softcap)

    return write_attend


class _Attend:
    """The call itself. Keeps the packed places of the last spans: all layers of a forward share them."""

    def __init__(self, free: ctypes.CDLL, held: ctypes.PyDLL) -> None:
        self._brief, self._lengthy = held.td_attend, free.td_attend
        self._last: tuple[Spans | None, bytes] = (None, b"")

    def __call__(
        self,
        q_TNH: Tensor,
        new: tuple[int, ...],
        k_pool_PWKH: Tensor,
        v_pool_PWKH: Tensor,
        spans: Spans,
        scale: float,
        causal: bool,
        window: int | None,
        softcap: float | None,
    ) -> Tensor:
        """`new`: k and v to be written (address, strides of rows and heads; each) and the slots' address."""
        q_TNH = heads_of(q_TNH)
        (rows, heads, head_dim), dtype = q_TNH.shape, q_TNH.dtype
        assert k_pool_PWKH.is_contiguous() and v_pool_PWKH.is_contiguous()
        assert dtype is k_pool_PWKH.dtype is v_pool_PWKH.dtype
        o_TNH = q_TNH.new_empty((rows, heads, head_dim))
        last, places = self._last
        if last is not spans:
            places = _places(spans)
            self._last = (spans, places)
        packed = _ROWS.pack(
            *_placed(q_TNH), *new, k_pool_PWKH.data_ptr(), v_pool_PWKH.data_ptr(), o_TNH.data_ptr(),
            CODES[dtype], rows, heads, k_pool_PWKH.shape[2], head_dim, causal, window or 0,
            torch.get_num_threads(), scale, softcap or 0.0,
        )  # fmt: skip
        call = self._lengthy if rows * heads * head_dim * spans.max_kv_len > LONG_CALL else self._brief
        done(call(packed + places))
        return o_TNH


def _placed(x_TXH: Tensor) -> tuple[int, int, int]:
    return x_TXH.data_ptr(), x_TXH.stride(0), x_TXH.stride(1)


def _places(spans: Spans) -> bytes:
    """Where rows and keys stand."""
    pages_BM, starts_B = spans.page_table_BM, spans.position_start_B
    assert pages_BM.stride(1) == 1 and pages_BM.dtype is torch.int32 is starts_B.dtype
    return _PLACES.pack(
        spans.row_start_B.data_ptr(), starts_B.data_ptr(), spans.kv_len_B.data_ptr(), pages_BM.data_ptr(),
        pages_BM.stride(0), starts_B.shape[0], spans.max_kv_len, spans.page_len,
    )  # fmt: skip
