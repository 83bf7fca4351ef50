"""Providers of Ops, and attention written as plainly as it can be, to hold them against."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from truedraft.kernels.ops import Ops, Spans


@dataclass
class AttendCase:
    """One paged batch: `rows` and `starts` of each span; pages are handed out in shuffled order."""

    q_TNH: Tensor
    k_pool_PWKH: Tensor
    v_pool_PWKH: Tensor
    spans: Spans
    k_BSKH: list[Tensor]
    v_BSKH: list[Tensor]
    rows: list[int]
    starts: list[int]


def build_case(
    rows: list[int],
    starts: list[int],
    *,
    page_len: int,
    heads: tuple[int, int] = (6, 2),
    head_dim: int = 64,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
    extra_kv: int = 0,
) -> AttendCase:
    generator = torch.Generator().manual_seed(seed)

    def rand(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(dtype)

    num_heads, num_kv_heads = heads
    kv_lens = [start + num + extra_kv for start, num in zip(starts, rows, strict=True)]
    counts = [-(-kv_len // page_len) for kv_len in kv_lens]
    num_pages = sum(counts) + 2
    order = torch.randperm(num_pages, generator=generator).tolist()
    table_BM = torch.zeros(len(rows), max(counts), dtype=torch.int32)
    k_pool = rand(num_pages, page_len, num_kv_heads, head_dim)
    v_pool = rand(num_pages, page_len, num_kv_heads, head_dim)
    keys, values = [], []
    for b, count in enumerate(counts):
        pages = [order.pop() for _ in range(count)]
        table_BM[b, :count] = torch.tensor(pages, dtype=torch.int32)
        keys.append(k_pool[pages].flatten(0, 1)[: kv_lens[b]].clone())
        values.append(v_pool[pages].flatten(0, 1)[: kv_lens[b]].clone())
    row_start = torch.tensor([0, *rows], dtype=torch.int32).cumsum(0).int()
    spans = Spans(
        row_start_B=row_start,
        position_start_B=torch.tensor(starts, dtype=torch.int32),
        kv_len_B=torch.tensor(kv_lens, dtype=torch.int32),
        page_table_BM=table_BM,
        page_len=page_len,
        max_rows=max(rows),
        max_kv_len=max(kv_lens),
    )
    q_TNH = rand(sum(rows), num_heads, head_dim)
    return AttendCase(q_TNH, k_pool, v_pool, spans, keys, values, rows, starts)


def naive_attend(
    case: AttendCase,
    *,
    scale: float,
    causal: bool = True,
    window: int | None = None,
    softcap: float | None = None,
) -> Tensor:
    """One row, one head, one key at a time in fp64."""
    out = torch.zeros(case.q_TNH.shape, dtype=torch.float64)
    group = case.q_TNH.shape[1] // case.k_pool_PWKH.shape[2]
    t = 0
    for b, (num_rows, start) in enumerate(zip(case.rows, case.starts, strict=True)):
        for p in range(start, start + num_rows):
            seen = [j for j in range(len(case.k_BSKH[b])) if _sees(p, j, causal, window)]
            for head in range(case.q_TNH.shape[1]):
                q_H = case.q_TNH[t, head].double()
                scores = [float(case.k_BSKH[b][j, head // group].double() @ q_H) * scale for j in seen]
                if softcap is not None:
                    scores = [softcap * math.tanh(score / softcap) for score in scores]
                weights = torch.tensor(scores, dtype=torch.float64).softmax(0)
                out[t, head] = weights @ case.v_BSKH[b][seen, head // group].double()
            t += 1
    return out


def _sees(row: int, key: int, causal: bool, window: int | None) -> bool:
    if causal and key > row:
        return False
    return window is None or abs(row - key) < window


def _torch_padded() -> Ops:
    """The reference with the attention that other devices use."""
    from dataclasses import replace

    from truedraft.kernels import reference, reference_attend, reference_layer

    def attend(q: Tensor, k: Tensor, v: Tensor, spans: Spans, *, scale: float, **rule: object) -> Tensor:
        full = {"causal": True, "window": None, "softcap": None, **rule}
        return reference_attend.attend_padded(q, k, v, spans, reference_attend.Rule(scale, **full))  # type: ignore[arg-type]

    return reference_layer.composed(replace(reference.torch_ops(), name="torch padded", attend=attend))


def _torch() -> Ops:
    from truedraft.kernels.reference import torch_ops

    return torch_ops()


def _native() -> Ops:
    from truedraft.kernels.native import native_ops

    build = native_ops()
    if build.ops is None:
        pytest.skip(build.reason)
    return build.ops


PROVIDERS: dict[str, Callable[[], Ops]] = {"torch": _torch, "torch padded": _torch_padded, "native": _native}


@pytest.fixture(params=list(PROVIDERS))
def ops(request: pytest.FixtureRequest) -> Ops:
    return PROVIDERS[request.param]()


@pytest.fixture
def native() -> Ops:
    return _native()


@pytest.fixture
def make_case() -> Callable[..., AttendCase]:
    return build_case


@pytest.fixture
def naive() -> Callable[..., Tensor]:
    return naive_attend
