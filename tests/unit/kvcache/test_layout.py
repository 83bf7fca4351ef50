"""Bytes of a cached token, and pages of a memory budget."""

from __future__ import annotations

import pytest
import torch

from truedraft.errors import CapacityError
from truedraft.kvcache.layout import kv_bytes_per_token, num_pages_in
from truedraft.kvcache.pool import KVPool


def test_bytes_per_token_are_those_of_the_pool() -> None:
    # SmolLM2-135M in bf16: 2 · 30 layers · 3 heads · 64 · 2 bytes.
    assert kv_bytes_per_token(30, 3, 64, 2) == 23040
    pool = KVPool(3, num_pages=5, page_len=4, num_kv_heads=2, head_dim=8, dtype=torch.bfloat16)
    assert pool.num_bytes == 5 * 4 * kv_bytes_per_token(3, 2, 8, 2)


def test_pages_that_fit() -> None:
    assert num_pages_in(1000, bytes_per_token=10, page_len=16) == 6
    with pytest.raises(CapacityError, match="no room for one page: got 100 B; allowed: at least 160 B"):
        num_pages_in(100, bytes_per_token=10, page_len=16)
