"""What every KV cache layout must do: pages of 1, 4 and 16 positions, and one page a sequence (static)."""

from __future__ import annotations

import pytest
import torch
from paged import PagedCache, Rows
from torch import Tensor

from truedraft.kernels.reference import torch_ops

LAYERS, HEADS, KV_HEADS, HEAD_DIM, MAX_LEN = 2, 4, 2, 8, 48
RULE = {"scale": HEAD_DIM**-0.5}


@pytest.fixture(params=[1, 4, 16, MAX_LEN], ids=["page-1", "page-4", "page-16", "static"])
def cache(request: pytest.FixtureRequest) -> PagedCache:
    """Room for four sequences of the greatest length."""
    torch.manual_seed(0)
    page_len: int = request.param
    return PagedCache(
        torch_ops(),
        num_layers=LAYERS,
        num_kv_heads=KV_HEADS,
        head_dim=HEAD_DIM,
        num_pages=4 * MAX_LEN // page_len,
        page_len=page_len,
    )


def kv(num_rows: int) -> tuple[Tensor, Tensor]:
    shape = (num_rows, KV_HEADS, HEAD_DIM)
    return torch.randn(shape), torch.randn(shape)


def dense(q_TNH: Tensor, k_SKH: Tensor, v_SKH: Tensor, start: int) -> Tensor:
    """Causal attention of rows from `start` on, written out."""
    group = HEADS // KV_HEADS
    k_SNH, v_SNH = k_SKH.repeat_interleave(group, 1), v_SKH.repeat_interleave(group, 1)
    scores_NTS = torch.einsum("tnh,snh->nts", q_TNH, k_SNH) * RULE["scale"]
    rows, keys = torch.arange(start, start + len(q_TNH)), torch.arange(len(k_SKH))
    scores_NTS = scores_NTS.masked_fill(keys[None] > rows[:, None], float("-inf"))
    return torch.einsum("nts,snh->tnh", scores_NTS.softmax(-1), v_SNH)


def test_what_is_written_is_attended_to(cache: PagedCache) -> None:
    """Three sequences, prefilled and extended side by side, each layer with its own values."""
    held = {(layer, b): (torch.empty(0, 2, 8), torch.empty(0, 2, 8)) for layer in (0, 1) for b in range(3)}
    lens = {0: 0, 1: 0, 2: 0}
    for sizes in ({0: 17, 1: 3, 2: 30}, {2: 1, 0: 8}, {1: 5, 0: 1, 2: 8}):
        rows = [Rows(b, lens[b], n) for b, n in sizes.items()]
        attend = cache.attend(*rows)
        for layer in range(LAYERS):
            q = torch.randn(sum(sizes.values()), HEADS, HEAD_DIM)
            k, v = kv(len(q))
            got = attend(layer, q, k, v, **RULE).split(list(sizes.values()))
            parts = zip(k.split(list(sizes.values())), v.split(list(sizes.values())), strict=True)
            for span, mine, part, (k_new, v_new) in zip(
                rows, got, q.split(list(sizes.values())), parts, strict=True
            ):
                k_old, v_old = held[layer, span.seq_id]
                whole = torch.cat([k_old, k_new]), torch.cat([v_old, v_new])
                held[layer, span.seq_id] = whole
                torch.testing.assert_close(mine, dense(part, *whole, span.start))
        for b, n in sizes.items():
            lens[b] += n


def test_rejected_rows_are_overwritten(cache: PagedCache) -> None:
    k, v = kv(20)
    attend = cache.attend(Rows(0, 0, 10))
    attend(0, torch.randn(10, HEADS, HEAD_DIM), k[:10], v[:10], **RULE)
    wrong_k, wrong_v = kv(8)
    wrong_k[:2], wrong_v[:2] = k[10:12], v[10:12]  # two of eight are kept
    cache.attend(Rows(0, 10, 8))(0, torch.randn(8, HEADS, HEAD_DIM), wrong_k, wrong_v, **RULE)
    cache.pages.commit(0, 12)
    q = torch.randn(8, HEADS, HEAD_DIM)
    got = cache.attend(Rows(0, 12, 8))(0, q, k[12:], v[12:], **RULE)
    torch.testing.assert_close(got, dense(q, k, v, 12))


def test_rows_past_the_length_change_no_bit(cache: PagedCache) -> None:
    """Whatever stands past a sequence's keys, or on others' pages, is finite and weighs nothing."""
    k, v = kv(11)
    q = torch.randn(11, HEADS, HEAD_DIM)
    clean = cache.attend(Rows(0, 0, 11))(0, q, k, v, **RULE)
    for pool in (cache.pool.k_LPWKH, cache.pool.v_LPWKH):
        pool.fill_(3e4)
    assert torch.equal(cache.attend(Rows(0, 0, 11))(0, q, k, v, **RULE), clean)


def test_pages_of_a_finished_sequence_serve_the_next(cache: PagedCache) -> None:
    for seq_id in range(6):
        k, v = kv(MAX_LEN)
        q = torch.randn(MAX_LEN, HEADS, HEAD_DIM)
        got = cache.attend(Rows(seq_id, 0, MAX_LEN))(1, q, k, v, **RULE)
        torch.testing.assert_close(got, dense(q, k, v, 0))
        cache.pages.release(seq_id)
        cache.pages.check()
    assert cache.pages.num_free == cache.pages.num_pages


def test_full_cache_refuses_and_recovers(cache: PagedCache) -> None:
    for seq_id in range(4):
        assert cache.pages.reserve(seq_id, MAX_LEN)
    assert not cache.pages.reserve(4, 1)
    cache.pages.release(2)
    assert cache.pages.reserve(4, MAX_LEN)
    cache.pages.check()


def test_pool_starts_as_zeros_and_hands_out_views(cache: PagedCache) -> None:
    pool = cache.pool
    assert not pool.k_LPWKH.any()
    assert not pool.v_LPWKH.any()
    k_PWKH, v_PWKH = pool.layer(1)
    assert k_PWKH.shape == (pool.num_pages, pool.page_len, KV_HEADS, HEAD_DIM)
    k_PWKH[0, 0] = 1.0
    assert pool.k_LPWKH[1, 0, 0].all()
    assert v_PWKH.data_ptr() == pool.v_LPWKH[1].data_ptr()
    assert pool.num_bytes == 2 * 4 * pool.k_LPWKH.numel()


def test_static_page_is_the_cache_itself() -> None:
    """With one page a sequence, its keys are a slice of the pool: no gather."""
    static = PagedCache(torch_ops(), num_layers=1, num_kv_heads=2, head_dim=8, num_pages=2, page_len=MAX_LEN)
    k, v = kv(9)
    static.attend(Rows(5, 0, 9))(0, torch.randn(9, HEADS, HEAD_DIM), k, v, **RULE)
    (page,) = static.pages.pages(5)
    k_PWKH, v_PWKH = static.pool.layer(0)
    assert torch.equal(k_PWKH[page][:9], k)
    assert torch.equal(v_PWKH[page][:9], v)
