"""The operations on rows of every provider against their formulas."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from truedraft.kernels.ops import Ops

DTYPES = [torch.float32, torch.bfloat16]
TIGHT = {"atol": 2e-6, "rtol": 1e-5}
LOOSE = {"atol": 2e-2, "rtol": 1.6e-2}  # two units in the last place of bf16


def _tolerance(dtype: torch.dtype) -> dict[str, float]:
    return TIGHT if dtype == torch.float32 else LOOSE


@pytest.fixture(params=DTYPES, ids=["fp32", "bf16"])
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    return request.param


def _rand(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("out_in", [(96, 64), (1, 1), (37, 33), (7, 576), (130, 100), (576, 1536)])
@pytest.mark.parametrize("rows", [1, 2, 3, 5, 8, 13, 40])
def test_linear(ops: Ops, dtype: torch.dtype, rows: int, out_in: tuple[int, int], bias: bool) -> None:
    x, w = _rand(rows, out_in[1], dtype=dtype), _rand(*out_in, dtype=dtype, seed=1) * out_in[1] ** -0.5
    b = _rand(out_in[0], dtype=dtype, seed=2) if bias else None
    want = x.double() @ w.double().T + (0 if b is None else b.double())
    got = ops.linear(x, w, b)
    assert got.dtype == dtype
    torch.testing.assert_close(got.double(), want, **_tolerance(dtype))


def test_linear_of_no_rows(ops: Ops, dtype: torch.dtype) -> None:
    assert ops.linear(_rand(0, 64, dtype=dtype), _rand(32, 64, dtype=dtype), None).shape == (0, 32)


def test_linear_reads_strided_rows(ops: Ops, dtype: torch.dtype) -> None:
    x, w = _rand(6, 200, dtype=dtype)[:, 40:136], _rand(50, 96, dtype=dtype, seed=1) * 0.1
    torch.testing.assert_close(ops.linear(x, w, None), ops.linear(x.contiguous(), w, None), atol=0, rtol=0)


@pytest.mark.parametrize("shape", [(1, 576), (9, 64), (3, 5, 64), (4, 33), (2, 3, 128)])
def test_rms_norm(ops: Ops, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    x, w = _rand(*shape, dtype=dtype) * 3, _rand(shape[-1], dtype=dtype, seed=1)
    wide = x.double()
    want = wide / (wide.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    want = want.to(dtype).double() * w.double()
    torch.testing.assert_close(ops.rms_norm(x, w, 1e-5).double(), want, **_tolerance(dtype))


def test_rms_norm_of_a_slice(ops: Ops, dtype: torch.dtype) -> None:
    wide, w = _rand(4, 9, 32, dtype=dtype), _rand(32, dtype=dtype, seed=1)
    part = wide[:, 2:6]
    torch.testing.assert_close(
        ops.rms_norm(part, w, 1e-6), ops.rms_norm(part.contiguous(), w, 1e-6), atol=0, rtol=0
    )


def test_add_rms_norm(ops: Ops, dtype: torch.dtype) -> None:
    x, residual = _rand(5, 96, dtype=dtype), _rand(5, 96, dtype=dtype, seed=1)
    w = _rand(96, dtype=dtype, seed=2)
    before = residual.clone()
    normed, total = ops.add_rms_norm(x, residual, w, 1e-5)
    assert torch.equal(total, residual + x)
    assert torch.equal(residual, before)
    torch.testing.assert_close(normed, ops.rms_norm(total, w, 1e-5), atol=0, rtol=0)


@pytest.mark.parametrize("wide_angles", [False, True])
@pytest.mark.parametrize("rotary_len", [64, 16])
def test_rope(ops: Ops, dtype: torch.dtype, rotary_len: int, wide_angles: bool) -> None:
    x = _rand(6, 5, 64, dtype=dtype)
    angles = torch.rand(6, rotary_len // 2, generator=torch.Generator().manual_seed(3)) * 6
    angles = torch.cat((angles, angles), -1)
    kind = torch.float32 if wide_angles else dtype
    got = ops.rope(x, angles.cos().to(kind), angles.sin().to(kind))
    want = x.double().clone()
    half = rotary_len // 2
    cos, sin = angles.cos().to(kind).double()[:, None, :half], angles.sin().to(kind).double()[:, None, :half]
    first, second = x.double()[..., :half], x.double()[..., half:rotary_len]
    want[..., :half] = first * cos - second * sin
    want[..., half:rotary_len] = second * cos + first * sin
    assert got.dtype == dtype
    assert got.is_contiguous()
    torch.testing.assert_close(got.double(), want, **_tolerance(dtype))


def test_rope_of_a_slice(ops: Ops, dtype: torch.dtype) -> None:
    wide, angles = _rand(3, 9, 32, dtype=dtype), _rand(3, 32)
    part = wide[:, 1:4]
    got = ops.rope(part, angles.cos(), angles.sin())
    assert torch.equal(got, ops.rope(part.contiguous(), angles.cos(), angles.sin()))


def test_silu_mul(ops: Ops, dtype: torch.dtype) -> None:
    x = _rand(3, 2 * 77, dtype=dtype) * 8
    gate, up = x.double().chunk(2, -1)
    tolerance = {"atol": 1e-5, "rtol": 1e-5} if dtype == torch.float32 else LOOSE
    torch.testing.assert_close(ops.silu_mul(x).double(), gate * gate.sigmoid() * up, **tolerance)


def test_silu_mul_far_out(ops: Ops) -> None:
    x = torch.tensor([[-200.0, -90.0, 0.0, 90.0, 200.0] + [1.0] * 5])
    want = torch.tensor([[0.0, 0.0, 0.0, 90.0, 200.0]])
    torch.testing.assert_close(ops.silu_mul(x), want, atol=1e-30, rtol=1e-6)


def test_write_kv(ops: Ops, dtype: torch.dtype) -> None:
    pool, wide = torch.zeros(3, 4, 2, 16, dtype=dtype), _rand(5, 6, 16, dtype=dtype)
    slots = torch.tensor([11, 0, 7, 3, 4])
    assert ops.write_kv(pool, slots, wide[:, 2:4]) is None
    flat = pool.view(12, 2, 16)
    assert torch.equal(flat[slots], wide[:, 2:4])
    assert not flat[[1, 2, 5, 6, 8, 9, 10]].any()
