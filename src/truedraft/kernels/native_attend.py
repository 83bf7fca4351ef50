"""The native attention: over a pool as it stands, or after this forward's k and v are written."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from truedraft.kernels.native_call import CODES, LONG_CALL, done, heads_of
from truedraft.kernels.ops import Attend, Spans, WriteAttend


def bind_attend(free: ctypes.CDLL, held: ctypes.PyDLL) -> Attend:
    """See kernels.ops.Attend."""
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
        q_TNH = heads_of(q_TNH)
        rows, heads, head_dim = q_TNH.shape
        o_TNH = q_TNH.new_empty((rows, heads, head_dim))
        call = lengthy if rows * heads * head_dim * spans.max_kv_len > LONG_CALL else brief
        code = call(
            q_TNH.data_ptr(), q_TNH.stride(0), q_TNH.stride(1), None, 0, 0, None, 0, 0, None,
            *_pools(q_TNH, k_pool_PWKH, v_pool_PWKH), o_TNH.data_ptr(), *_places(spans),
            heads, k_pool_PWKH.shape[2], head_dim, spans.page_len,
            scale, causal, window or 0, softcap or 0.0, rows, torch.get_num_threads(),
        )  # fmt: skip
        done(code)
        return o_TNH

    return attend


def bind_write_attend(free: ctypes.CDLL, held: ctypes.PyDLL) -> WriteAttend:
    """See kernels.ops.WriteAttend."""
    brief, lengthy = held.td_attend, free.td_attend

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
        q_TNH, k_TKH, v_TKH = heads_of(q_TNH), heads_of(k_TKH), heads_of(v_TKH)
        rows, heads, head_dim = q_TNH.shape
        kv_heads = k_pool_PWKH.shape[2]
        assert k_TKH.shape == v_TKH.shape == (rows, kv_heads, head_dim)
        assert slots_T.is_contiguous() and slots_T.dtype == torch.int64 and slots_T.shape[0] == rows
        assert k_TKH.dtype == v_TKH.dtype == q_TNH.dtype
        o_TNH = q_TNH.new_empty((rows, heads, head_dim))
        call = lengthy if rows * heads * head_dim * spans.max_kv_len > LONG_CALL else brief
        code = call(
            q_TNH.data_ptr(), q_TNH.stride(0), q_TNH.stride(1),
            k_TKH.data_ptr(), k_TKH.stride(0), k_TKH.stride(1),
            v_TKH.data_ptr(), v_TKH.stride(0), v_TKH.stride(1), slots_T.data_ptr(),
            *_pools(q_TNH, k_pool_PWKH, v_pool_PWKH), o_TNH.data_ptr(), *_places(spans),
            heads, kv_heads, head_dim, spans.page_len,
            scale, causal, window or 0, softcap or 0.0, rows, torch.get_num_threads(),
        )  # fmt: skip
        done(code)
        return o_TNH

    return write_attend


def _pools(q_TNH: Tensor, k_pool_PWKH: Tensor, v_pool_PWKH: Tensor) -> tuple[int, int, int]:
    """Arguments: both pools and the type of all."""
    assert k_pool_PWKH.is_contiguous() and v_pool_PWKH.is_contiguous()
    assert q_TNH.dtype == k_pool_PWKH.dtype == v_pool_PWKH.dtype
    return k_pool_PWKH.data_ptr(), v_pool_PWKH.data_ptr(), CODES[q_TNH.dtype]


def _places(spans: Spans) -> tuple[int, ...]:
    """Arguments: where rows and keys stand."""
    pages_BM, starts_B = spans.page_table_BM, spans.position_start_B
    assert pages_BM.stride(1) == 1 and pages_BM.dtype == torch.int32 == starts_B.dtype
    return (
        spans.row_start_B.data_ptr(), starts_B.data_ptr(), spans.kv_len_B.data_ptr(), pages_BM.data_ptr(),
        pages_BM.stride(0), starts_B.shape[0], spans.max_kv_len,
    )  # fmt: skip
