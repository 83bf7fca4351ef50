"""A paged cache to run models on in tests: pages, pool and the LayerAttend that joins them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from truedraft.kernels.ops import Ops, Spans
from truedraft.kvcache.pages import PageAllocator
from truedraft.kvcache.pool import KVPool
from truedraft.models.interface import LayerAttend

# Models this small lose more by sharing their work between threads than they gain.
torch.set_num_threads(1)


@dataclass(frozen=True)
class Rows:
    """`num_rows` rows of one sequence from position `start` on."""

    seq_id: int
    start: int
    num_rows: int


class PagedCache:
    """Pages are reserved as rows come; nothing is ever committed, since positions say it all."""

    def __init__(
        self,
        ops: Ops,
        *,
        num_layers: int,
        num_kv_heads: int,
        head_dim: int,
        num_pages: int = 128,
        page_len: int = 4,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.ops = ops
        self.pages = PageAllocator(num_pages, page_len)
        self.pool = KVPool(num_layers, num_pages, page_len, num_kv_heads, head_dim, dtype)

    def slots(self, rows: Sequence[Rows]) -> Tensor:
        """int64 slots_T of these rows; reserves what is missing."""
        page_len, slots = self.pages.page_len, []
        for span in rows:
            assert self.pages.reserve(span.seq_id, span.start + span.num_rows), "test cache too small"
            pages = self.pages.pages(span.seq_id)
            positions = range(span.start, span.start + span.num_rows)
            slots += [pages[p // page_len] * page_len + p % page_len for p in positions]
        return torch.tensor(slots, dtype=torch.int64)

    def spans(self, rows: Sequence[Rows]) -> Spans:
        lens = [span.start + span.num_rows for span in rows]
        tables = [self.pages.pages(span.seq_id) for span in rows]
        most = max(map(len, tables))
        starts = [0]
        for span in rows:
            starts.append(starts[-1] + span.num_rows)
        int32 = torch.int32
        return Spans(
            row_start_B=torch.tensor(starts, dtype=int32),
            position_start_B=torch.tensor([span.start for span in rows], dtype=int32),
            kv_len_B=torch.tensor(lens, dtype=int32),
            page_table_BM=torch.tensor([t + (0,) * (most - len(t)) for t in tables], dtype=int32),
            page_len=self.pages.page_len,
            max_rows=max(span.num_rows for span in rows),
            max_kv_len=max(lens),
        )

    def attend(self, *rows: Rows) -> LayerAttend:
        """Writes k and v of these rows, then attends over all positions up to their ends."""
        slots_T, spans = self.slots(rows), self.spans(rows)

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor, **rule: object) -> Tensor:
            k_pool, v_pool = self.pool.layer(layer)
            self.ops.write_kv(k_pool, slots_T, k)
            self.ops.write_kv(v_pool, slots_T, v)
            return self.ops.attend(q, k_pool, v_pool, spans, **rule)  # type: ignore[arg-type]

        return attend

    def write(self, span: Rows, k_LTKH: Tensor, v_LTKH: Tensor) -> None:
        """Puts context rows of all layers in place."""
        slots_T = self.slots([span])
        for layer in range(self.pool.num_layers):
            k_pool, v_pool = self.pool.layer(layer)
            self.ops.write_kv(k_pool, slots_T, k_LTKH[layer])
            self.ops.write_kv(v_pool, slots_T, v_LTKH[layer])


def positions(*rows: Rows) -> Tensor:
    """int64 positions_T of these rows."""
    return torch.cat([torch.arange(span.start, span.start + span.num_rows) for span in rows])
