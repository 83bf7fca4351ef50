"""The fused halves of a decoder layer: the bits of the single operations, row by row the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from truedraft.kernels.ops import InputWeights, Ops, OutputWeights
from truedraft.kernels.reference import torch_ops
from truedraft.kernels.reference_layer import composed

Make = Callable[..., Any]
FIXED = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
ROWS = st.one_of(st.integers(1, 20), st.sampled_from([33, 100, 300, 530]))
DTYPES = st.sampled_from([torch.float32, torch.bfloat16])


class Rand:
    """Normal tensors of one dtype, each from the next seed."""

    def __init__(self, dtype: torch.dtype, seed: int = 0) -> None:
        self.dtype = dtype
        self.generator = torch.Generator().manual_seed(seed)

    def __call__(self, *shape: int, scale: float = 1.0) -> Tensor:
        return (torch.randn(shape, generator=self.generator) * scale).to(self.dtype)


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def _input_weights(
    rand: Rand, width: int, heads: tuple[int, int], head_dim: int, bias: bool, norm: bool
) -> InputWeights:
    outs = (heads[0] + 2 * heads[1]) * head_dim
    return InputWeights(
        norm_D=rand(width),
        qkv_OD=rand(outs, width, scale=width**-0.5),
        qkv_bias_O=rand(outs) if bias else None,
        q_norm_H=rand(head_dim) if norm else None,
        k_norm_H=rand(head_dim) if norm else None,
        eps=1e-5,
        num_heads=heads[0],
        num_kv_heads=heads[1],
        head_dim=head_dim,
    )


def _output_weights(rand: Rand, heads_width: int, width: int, mlp: int, bias: bool) -> OutputWeights:
    return OutputWeights(
        out_DX=rand(width, heads_width, scale=heads_width**-0.5),
        out_bias_D=rand(width) if bias else None,
        norm_D=rand(width),
        gate_up_2FD=rand(2 * mlp, width, scale=width**-0.5),
        gate_up_bias_2F=rand(2 * mlp) if bias else None,
        down_DF=rand(width, mlp, scale=mlp**-0.5),
        down_bias_D=rand(width) if bias else None,
        eps=1e-5,
    )


def _assert_same(gots: tuple[Tensor, ...], wants: tuple[Tensor, ...]) -> None:
    for got, want in zip(gots, wants, strict=True):
        assert got.dtype == want.dtype
        assert torch.equal(got, want)


@FIXED
@given(
    dtype=DTYPES,
    rows=ROWS,
    threads=st.sampled_from([1, 2, 3]),
    width=st.sampled_from([64, 100, 576]),
    heads=st.sampled_from([(9, 3), (4, 4), (2, 1)]),
    head_dim=st.sampled_from([40, 64]),
    bias=st.booleans(),
    norm=st.booleans(),
    first=st.booleans(),
    partial=st.booleans(),
    data=st.data(),
)
def test_attention_inputs(
    native: Ops,
    dtype: torch.dtype,
    rows: int,
    threads: int,
    width: int,
    heads: tuple[int, int],
    head_dim: int,
    bias: bool,
    norm: bool,
    first: bool,
    partial: bool,
    data: st.DataObject,
) -> None:
    rand = Rand(dtype, rows)
    weights = _input_weights(rand, width, heads, head_dim, bias, norm)
    x, residual = rand(rows, width), None if first else rand(rows, width)
    angles = Rand(torch.float32, 1)(rows, head_dim // (2 if partial else 1))
    cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
    torch.set_num_threads(threads)
    gots = native.attention_inputs(x, residual, weights, cos, sin)
    _assert_same(gots, composed(native).attention_inputs(x, residual, weights, cos, sin))
    begin = data.draw(st.integers(0, rows - 1))
    part = slice(begin, data.draw(st.integers(begin + 1, rows)))
    beside = None if residual is None else residual[part]
    alone = native.attention_inputs(x[part], beside, weights, cos[part], sin[part])
    _assert_same(alone, tuple(got[part] for got in gots))


@FIXED
@given(
    dtype=DTYPES,
    rows=ROWS,
    threads=st.sampled_from([1, 2, 3]),
    sizes=st.sampled_from([(576, 576, 1536), (128, 100, 200), (80, 64, 33)]),
    bias=st.booleans(),
    data=st.data(),
)
def test_attention_outputs(
    native: Ops,
    dtype: torch.dtype,
    rows: int,
    threads: int,
    sizes: tuple[int, int, int],
    bias: bool,
    data: st.DataObject,
) -> None:
    rand = Rand(dtype, rows)
    weights = _output_weights(rand, *sizes, bias)
    o, residual = rand(rows, 2, sizes[0] // 2), rand(rows, sizes[1])
    torch.set_num_threads(threads)
    gots = native.attention_outputs(o, residual, weights)
    _assert_same(gots, composed(native).attention_outputs(o, residual, weights))
    begin = data.draw(st.integers(0, rows - 1))
    part = slice(begin, data.draw(st.integers(begin + 1, rows)))
    _assert_same(native.attention_outputs(o[part], residual[part], weights), tuple(got[part] for got in gots))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("rows", [[1], [8], [3, 1, 40], [530]])
@pytest.mark.parametrize("rule", [{}, {"causal": False, "window": 9}, {"softcap": 4.0}])
def test_write_attend(
    native: Ops, make_case: Make, dtype: torch.dtype, threads: int, rows: list[int], rule: dict[str, Any]
) -> None:
    """As writing k and v, then attending; through strided q, k and v as one product leaves them."""
    starts = [70, 5, 30][: len(rows)]
    case = make_case(rows, starts, page_len=16, heads=(9, 3), head_dim=64, dtype=dtype)
    slots: list[int] = []
    for b, (num, start) in enumerate(zip(rows, starts, strict=True)):
        pages = case.spans.page_table_BM[b].tolist()
        slots += [pages[p // 16] * 16 + p % 16 for p in range(start, start + num)]
    slots_T, heads = torch.tensor(slots), Rand(dtype, 3)(sum(rows), 15, 64)
    q, k, v = heads.split([9, 3, 3], dim=1)
    torch.set_num_threads(threads)
    results = []
    for ops in (native, composed(native)):
        pools = case.k_pool_PWKH.clone(), case.v_pool_PWKH.clone()
        o = ops.write_attend(q, k, v, *pools, slots_T, case.spans, scale=0.125, **rule)
        results.append((o, *pools))
    _assert_same(results[0], results[1])
    assert not torch.equal(results[0][1], case.k_pool_PWKH)


@pytest.mark.parametrize("rows", [1, 3, 8, 40])
def test_native_is_near_the_reference(native: Ops, rows: int) -> None:
    rand = Rand(torch.float32)
    inputs = _input_weights(rand, 576, (9, 3), 64, bias=True, norm=True)
    outputs = _output_weights(rand, 576, 576, 1536, bias=True)
    x, residual, angles = rand(rows, 576), rand(rows, 576), rand(rows, 64)
    for ops in (native, torch_ops()):
        q, k, v, total = ops.attention_inputs(x, residual, inputs, angles.cos(), angles.sin())
        y, after = ops.attention_outputs(q, total, outputs)
        if ops is native:
            gots = (q, k, v, total, y, after)
    for got, want in zip(gots, (q, k, v, total, y, after), strict=True):
        torch.testing.assert_close(got, want, atol=2e-4, rtol=1e-4)


def test_mixed_types_and_strides_take_the_single_operations(native: Ops) -> None:
    """float32 norms beside bfloat16 weights, and rows that are part of wider ones."""
    rand, wide = Rand(torch.bfloat16), Rand(torch.float32)
    inputs = _input_weights(rand, 64, (2, 1), 32, bias=False, norm=False)._replace(norm_D=wide(64))
    outputs = _output_weights(rand, 64, 64, 96, bias=False)._replace(norm_D=wide(64))
    x, residual, angles = rand(5, 100)[:, :64], rand(5, 64), wide(5, 32)
    cos, sin = angles.cos(), angles.sin()
    single = composed(native)
    gots = native.attention_inputs(x, residual, inputs, cos, sin)
    _assert_same(gots, single.attention_inputs(x, residual, inputs, cos, sin))
    o = gots[0]
    _assert_same(
        native.attention_outputs(o, residual, outputs), single.attention_outputs(o, residual, outputs)
    )


def test_composed_uses_what_it_is_given() -> None:
    calls: list[str] = []

    def linear(x: Tensor, w: Tensor, bias: Tensor | None) -> Tensor:
        calls.append("linear")
        return torch_ops().linear(x, w, bias)

    rand = Rand(torch.float32)
    weights = _output_weights(rand, 64, 64, 96, bias=False)
    composed(replace(torch_ops(), linear=linear)).attention_outputs(rand(2, 2, 32), rand(2, 64), weights)
    assert calls == ["linear"] * 3
