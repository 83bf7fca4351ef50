"""Measures what a pass costs by rows, on this machine, with these weights: the policy's cost table."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

from truedraft.contract.request import SamplingParams
from truedraft.contract.step import Extend, StepPlan
from truedraft.engine.policy import CostCurve, CostTable
from truedraft.engine.step import StepRunner

CONTEXT_LEN = 32  # where the measured rows stand; attention adds little at short contexts
SCRATCH_LEN = CONTEXT_LEN + 272  # and the longest block or round behind it
REPEATS = 3
GREEDY = SamplingParams(temperature=0.0)


def measure_costs(
    runner: StepRunner, scratch_pages: tuple[int, ...], max_num_seqs: int, num_drafted: int
) -> CostTable:
    """Time verify passes by rows and draft passes by blocks.

    `scratch_pages` are free pages that no sequence holds, enough for SCRATCH_LEN positions.
    """
    most = max(2, max_num_seqs * (1 + num_drafted))
    row_counts = [rows for rows in (1, 2, 3, 4, 6, 8, 16, 32, 64) if rows <= most]
    verify = {rows: _time(partial(_verify, runner, scratch_pages, rows, num_drafted)) for rows in row_counts}
    draft = {0: 0.0}
    if runner.drafter is not None:
        block_counts = sorted({1, 2, min(4, max_num_seqs), min(8, max_num_seqs), min(16, max_num_seqs)})
        for blocks in block_counts:
            draft[blocks] = _time(partial(_draft, runner, scratch_pages, blocks))
    return CostTable(_monotone(verify), _monotone(draft))


def _time(work: Callable[[], None]) -> float:
    """Least seconds of a few runs after one warm-up: what else ran can only have added."""
    work()
    seconds = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - began)
    return min(seconds)


def _monotone(table: dict[int, float]) -> CostCurve:
    """Fewer rows never cost more than many: what does is noise."""
    lowest = float("inf")
    cleaned = {}
    for rows in sorted(table, reverse=True):
        lowest = min(lowest, table[rows])
        cleaned[rows] = lowest
    return CostCurve(cleaned)


def _verify(runner: StepRunner, pages: tuple[int, ...], rows: int, num_drafted: int) -> None:
    """A pass as in decoding, whole rounds first: rows have logits and features, and are chosen from."""
    extends: list[Extend] = []
    left = rows
    while left > 0:
        drafts = min(left - 1, num_drafted)
        extends.append(_extend(len(extends), CONTEXT_LEN, pages, drafts))
        left -= 1 + drafts
    runner.verify(StepPlan(0, tuple(extends)))


def _draft(runner: StepRunner, pages: tuple[int, ...], blocks: int) -> None:
    assert runner.drafter is not None
    most = runner.drafter.spec.num_drafted
    runner.draft(tuple(_extend(index, CONTEXT_LEN, pages, most) for index in range(blocks)))


def _extend(seq_id: int, start: int, pages: tuple[int, ...], num_drafted: int) -> Extend:
    return Extend(
        seq_id=seq_id,
        token_ids=(1,),
        start=start,
        num_drafted=num_drafted,
        samples=True,
        pages=pages,
        captures=True,
        sampling=GREEDY,
        seed=0,
        num_prompt_tokens=1,
        history=(1,),
    )
