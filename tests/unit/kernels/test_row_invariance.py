"""Each output row of the native kernels is the same bits whatever stands beside it.

This is what makes verifying G rows equal G single steps, so that speculation changes no token.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from truedraft.kernels.ops import Ops

Make = Callable[..., Any]
DTYPES = st.sampled_from([torch.float32, torch.bfloat16])
FIXED = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def _rand(seed: int, *shape: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@FIXED
@given(
    dtype=DTYPES,
    rows=st.integers(1, 140),
    outs=st.integers(1, 200),
    width=st.sampled_from([1, 31, 32, 33, 64, 100, 576]),
    threads=st.sampled_from([1, 2]),
    data=st.data(),
)
def test_linear(
    native: Ops, dtype: torch.dtype, rows: int, outs: int, width: int, threads: int, data: st.DataObject
) -> None:
    x, w = _rand(rows, rows, width, dtype=dtype), _rand(outs, outs, width, dtype=dtype)
    first = data.draw(st.integers(0, rows - 1))
    last = data.draw(st.integers(first + 1, rows))
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        whole = native.linear(x, w, None)
        torch.set_num_threads(1)
        part = native.linear(x[first:last].clone(), w, None)
    finally:
        torch.set_num_threads(before)
    assert torch.equal(whole[first:last], part)


def test_linear_of_one_output_equals_its_column(native: Ops) -> None:
    x, w = _rand(0, 9, 576, dtype=torch.bfloat16), _rand(1, 50, 576, dtype=torch.bfloat16)
    whole = native.linear(x, w, None)
    for out in (0, 7, 48, 49):
        assert torch.equal(whole[:, out : out + 1], native.linear(x, w[out : out + 1], None))


@FIXED
@given(
    dtype=DTYPES,
    rows=st.integers(1, 70),
    start=st.integers(0, 300),
    page_len=st.sampled_from([5, 16, 512]),
    window=st.sampled_from([None, 1, 7, 64]),
    softcap=st.sampled_from([None, 5.0]),
    heads=st.sampled_from([(9, 3), (4, 4), (8, 1)]),
    head_dim=st.sampled_from([40, 64]),
)
def test_causal_block_equals_single_steps(
    native: Ops,
    make_case: Make,
    dtype: torch.dtype,
    rows: int,
    start: int,
    page_len: int,
    window: int | None,
    softcap: float | None,
    heads: tuple[int, int],
    head_dim: int,
) -> None:
    """A row at p sees p+1 keys: the same bits with kv_len p+1 as inside a block or a prefill."""
    case = make_case([rows], [start], page_len=page_len, heads=heads, head_dim=head_dim, dtype=dtype)
    rule = {"scale": head_dim**-0.5, "window": window, "softcap": softcap}
    block = native.attend(case.q_TNH, case.k_pool_PWKH, case.v_pool_PWKH, case.spans, **rule)
    assert not block.isnan().any()
    for i in {0, rows // 2, rows - 1}:
        one = replace(
            case.spans,
            row_start_B=torch.tensor([0, 1], dtype=torch.int32),
            position_start_B=torch.tensor([start + i], dtype=torch.int32),
            kv_len_B=torch.tensor([start + i + 1], dtype=torch.int32),
            max_rows=1,
            max_kv_len=start + i + 1,
        )
        alone = native.attend(case.q_TNH[i : i + 1], case.k_pool_PWKH, case.v_pool_PWKH, one, **rule)
        assert torch.equal(block[i : i + 1], alone)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_span_in_a_batch_equals_the_span_alone(
    native: Ops, make_case: Make, dtype: torch.dtype, causal: bool
) -> None:
    rows, starts = [4, 1, 33, 8], [100, 40, 0, 611]
    case = make_case(rows, starts, page_len=16, heads=(9, 3), dtype=dtype)
    pools = case.k_pool_PWKH, case.v_pool_PWKH
    batch = native.attend(case.q_TNH, *pools, case.spans, scale=0.125, causal=causal)
    begin = 0
    for b, num in enumerate(rows):
        one = replace(
            case.spans,
            row_start_B=torch.tensor([0, num], dtype=torch.int32),
            position_start_B=case.spans.position_start_B[b : b + 1],
            kv_len_B=case.spans.kv_len_B[b : b + 1],
            page_table_BM=case.spans.page_table_BM[b : b + 1],
            max_rows=num,
            max_kv_len=starts[b] + num,
        )
        alone = native.attend(case.q_TNH[begin : begin + num], *pools, one, scale=0.125, causal=causal)
        assert torch.equal(batch[begin : begin + num], alone)
        begin += num


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_row_operations(native: Ops, dtype: torch.dtype) -> None:
    x, residual = _rand(0, 300, 576, dtype=dtype), _rand(1, 300, 576, dtype=dtype)
    w, angles = _rand(2, 576, dtype=dtype), _rand(3, 300, 64, dtype=torch.float32)
    heads = x.view(300, 9, 64)
    normed, total = native.add_rms_norm(x, residual, w, 1e-5)
    for i in (0, 1, 149, 150, 299):
        row = slice(i, i + 1)
        one_normed, one_total = native.add_rms_norm(x[row].clone(), residual[row].clone(), w, 1e-5)
        assert torch.equal(normed[row], one_normed)
        assert torch.equal(total[row], one_total)
        assert torch.equal(native.rms_norm(x, w, 1e-5)[row], native.rms_norm(x[row].clone(), w, 1e-5))
        assert torch.equal(native.silu_mul(x)[row], native.silu_mul(x[row].clone()))
        turned = native.rope(heads[row].clone(), angles[row].cos(), angles[row].sin())
        assert torch.equal(native.rope(heads, angles.cos(), angles.sin())[row], turned)
