"""Attention of every provider against one row, one head, one key at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from truedraft.kernels.ops import Ops

Make = Callable[..., Any]

SHAPES = {
    "one decode row": ([1], [37], 64),
    "first token sees one key": ([1], [0], 16),
    "prefill from nothing": ([19], [0], 64),
    "verify block, one page": ([8], [50], 128),
    "verify block over pages": ([8], [50], 16),
    "chunk in mid-prompt": ([33], [70], 16),
    "ragged batch": ([1, 8, 5, 1], [90, 3, 0, 17], 16),
    "uniform batch": ([4, 4, 4], [10, 0, 61], 32),
    "odd page": ([3, 7], [20, 9], 7),
}
RULES = {
    "causal": {},
    "bidirectional": {"causal": False},
    "window": {"window": 9},
    "window of one": {"window": 1},
    "bidirectional window": {"causal": False, "window": 6},
    "softcap": {"softcap": 2.0},
    "softcap and window": {"softcap": 3.0, "window": 20},
}


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES.keys())
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
def test_equals_naive_loop(ops: Ops, make_case: Make, naive: Make, shape: tuple, rule: dict) -> None:
    rows, starts, page_len = shape
    case = make_case(rows, starts, page_len=page_len, heads=(6, 2), head_dim=32)
    got = ops.attend(case.q_TNH, case.k_pool_PWKH, case.v_pool_PWKH, case.spans, scale=0.2, **rule)
    torch.testing.assert_close(got.double(), naive(case, scale=0.2, **rule), atol=2e-6, rtol=2e-5)


@pytest.mark.parametrize("heads", [(1, 1), (4, 4), (9, 3), (8, 1), (14, 2)])
@pytest.mark.parametrize("head_dim", [16, 64, 80, 128])
def test_head_geometry(ops: Ops, make_case: Make, naive: Make, heads: tuple, head_dim: int) -> None:
    case = make_case([5, 1], [11, 30], page_len=16, heads=heads, head_dim=head_dim)
    got = ops.attend(case.q_TNH, case.k_pool_PWKH, case.v_pool_PWKH, case.spans, scale=0.1)
    torch.testing.assert_close(got.double(), naive(case, scale=0.1), atol=2e-6, rtol=2e-5)


def test_bfloat16(ops: Ops, make_case: Make, naive: Make) -> None:
    case = make_case([8, 1], [100, 130], page_len=32, dtype=torch.bfloat16)
    got = ops.attend(case.q_TNH, case.k_pool_PWKH, case.v_pool_PWKH, case.spans, scale=0.125)
    assert got.dtype == torch.bfloat16
    torch.testing.assert_close(got.double(), naive(case, scale=0.125), atol=1e-2, rtol=2e-2)


def test_query_may_be_a_slice_of_a_fused_product(ops: Ops, make_case: Make, naive: Make) -> None:
    case = make_case([8, 2], [20, 3], page_len=16)
    wide = torch.randn(10, 10, 64)
    wide[:, 2:8] = case.q_TNH
    got = ops.attend(wide[:, 2:8], case.k_pool_PWKH, case.v_pool_PWKH, case.spans, scale=0.125)
    torch.testing.assert_close(got.double(), naive(case, scale=0.125), atol=2e-6, rtol=2e-5)


def test_large_scores_do_not_overflow(ops: Ops, make_case: Make, naive: Make) -> None:
    case = make_case([8], [40], page_len=16)
    case.q_TNH.mul_(200)
    got = ops.attend(case.q_TNH, case.k_pool_PWKH, case.v_pool_PWKH, case.spans, scale=1.0)
    torch.testing.assert_close(got.double(), naive(case, scale=1.0), atol=1e-4, rtol=1e-3)


def test_static_cache_is_read_in_place() -> None:
    from truedraft.kernels.reference_attend import _gather

    pool_PWKH = torch.randn(2, 64, 3, 16)
    view = _gather(pool_PWKH, torch.tensor([1], dtype=torch.int32), 5, 40)
    assert view.data_ptr() == pool_PWKH[1, 5].data_ptr()
