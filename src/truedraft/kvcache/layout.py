"""How many bytes a cached token takes, and how many pages fit a memory budget."""

from __future__ import annotations

from truedraft.contract.units import format_bytes
from truedraft.errors import CapacityError


def kv_bytes_per_token(num_layers: int, num_kv_heads: int, head_dim: int, dtype_bytes: int) -> int:
    """Bytes of k and v of one position over all layers of one model."""
    return 2 * num_layers * num_kv_heads * head_dim * dtype_bytes


def num_pages_in(memory_bytes: int, bytes_per_token: int, page_len: int) -> int:
    """Pages that fit `memory_bytes`, where `bytes_per_token` adds up all pools that share the pages.

    Raises CapacityError where not even one fits.
    """
    page_bytes = bytes_per_token * page_len
    num_pages = memory_bytes // page_bytes
    if num_pages < 1:
        raise CapacityError(
            "The KV cache has no room for one page",
            seen=format_bytes(memory_bytes),
            allowed=f"at least {format_bytes(page_bytes)}",
            remedy="Give the cache more memory, or shorten its pages",
        )
    return num_pages
