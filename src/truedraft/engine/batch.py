"""StepPlan (integers) → tensors on the device: the only host-to-device copies of a step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from truedraft.contract.step import Extend, StepPlan
from truedraft.engine.scoring import wants_scores
from truedraft.kernels.ops import Spans


@dataclass(frozen=True, slots=True)
class TargetBatch:
    """Rows of the verify pass: every extend's own tokens, then its drafts (written in later).

    `draft_at_R` are the flat rows that drafted tokens go to; `logit_at_R` the rows whose logits are
    wanted, extend by extend; `capture_at_T` the rows whose features are kept (None: all of them,
    an empty tensor: none).
    """

    ids_T: Tensor
    positions_T: Tensor
    slots_T: Tensor
    spans: Spans
    draft_at_R: Tensor
    logit_at_R: Tensor
    capture_at_T: Tensor | None
    num_captured: int


@dataclass(frozen=True, slots=True)
class DraftBatch:
    """Rows of the draft pass: one block [anchor, mask, …] for every extend that drafts.

    `output_at_R` are the flat rows whose outputs are the drafts to verify, extend by extend.
    """

    ids_T: Tensor
    positions_T: Tensor
    slots_T: Tensor
    spans: Spans
    output_at_R: Tensor


@dataclass(frozen=True, slots=True)
class BlockLayout:
    """How a drafter's block is laid out: its length, mask token, and where its outputs stand."""

    block_len: int
    mask_token_id: int
    sample_from_anchor: bool


class Batcher:
    """Turns plans into batches for one device and page length."""

    def __init__(self, page_len: int, device: torch.device, layout: BlockLayout | None) -> None:
        self._page_len = page_len
        self._device = device
        self._layout = layout

    def target(self, plan: StepPlan) -> TargetBatch:
        ids: list[int] = []
        draft_at: list[int] = []
        logit_at: list[int] = []
        capture_at: list[int] = []
        for extend in plan.extends:
            first = len(ids)
            last = first + len(extend.token_ids) - 1
            ids.extend(extend.token_ids)
            ids.extend([0] * extend.num_drafted)
            draft_at.extend(range(last + 1, len(ids)))
            if wants_scores(extend):
                logit_at.extend(range(first, len(ids)))
            elif extend.samples:
                logit_at.extend(range(last, len(ids)))
            if extend.captures:
                capture_at.extend(range(first, len(ids)))
        starts = [extend.start for extend in plan.extends]
        lens = [extend.num_rows for extend in plan.extends]
        tables = [extend.pages for extend in plan.extends]
        every = len(capture_at) == len(ids)
        return TargetBatch(
            ids_T=self._long(ids),
            positions_T=self._long(_positions(starts, lens)),
            slots_T=self._long(self._slots(starts, lens, tables)),
            spans=self._spans(starts, lens, tables),
            draft_at_R=self._long(draft_at),
            logit_at_R=self._long(logit_at),
            capture_at_T=None if every else self._long(capture_at),
            num_captured=len(capture_at),
        )

    def draft(self, extends: Sequence[Extend]) -> DraftBatch:
        layout = self._layout
        assert layout is not None, "drafting without a drafter"
        ids: list[int] = []
        output_at: list[int] = []
        first_output = 0 if layout.sample_from_anchor else 1
        for extend in extends:
            first = len(ids) + first_output
            output_at.extend(range(first, first + extend.num_drafted))
            ids.append(extend.token_ids[-1])
            ids.extend([layout.mask_token_id] * (layout.block_len - 1))
        starts = [extend.start for extend in extends]
        lens = [layout.block_len] * len(extends)
        tables = [extend.pages for extend in extends]
        return DraftBatch(
            ids_T=self._long(ids),
            positions_T=self._long(_positions(starts, lens)),
            slots_T=self._long(self._slots(starts, lens, tables)),
            spans=self._spans(starts, lens, tables),
            output_at_R=self._long(output_at),
        )

    def _slots(
        self, starts: Iterable[int], lens: Iterable[int], tables: Iterable[Sequence[int]]
    ) -> list[int]:
        page_len = self._page_len
        return [
            pages[position // page_len] * page_len + position % page_len
            for start, length, pages in zip(starts, lens, tables, strict=True)
            for position in range(start, start + length)
        ]

    def _spans(self, starts: Sequence[int], lens: Sequence[int], tables: Sequence[Sequence[int]]) -> Spans:
        row_starts = [0]
        for length in lens:
            row_starts.append(row_starts[-1] + length)
        kv_lens = [start + length for start, length in zip(starts, lens, strict=True)]
        widest = max(map(len, tables))
        padded = [[*pages, *([0] * (widest - len(pages)))] for pages in tables]
        return Spans(
            row_start_B=self._int(row_starts),
            position_start_B=self._int(starts),
            kv_len_B=self._int(kv_lens),
            page_table_BM=self._int(padded),
            page_len=self._page_len,
            max_rows=max(lens),
            max_kv_len=max(kv_lens),
        )

    def _long(self, values: Sequence[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64, device=self._device)

    def _int(self, values: Sequence[int] | Sequence[Sequence[int]]) -> Tensor:
        return torch.tensor(values, dtype=torch.int32, device=self._device)


def _positions(starts: Iterable[int], lens: Iterable[int]) -> list[int]:
    return [
        position
        for start, length in zip(starts, lens, strict=True)
        for position in range(start, start + length)
    ]
