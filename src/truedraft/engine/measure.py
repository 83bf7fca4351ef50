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
MAX_SWEEPS = 5
BUDGET_S = 1.2  # no new sweep after this
GREEDY = SamplingParams(temperature=0.0)


def measure_costs(
    runner: StepRunner, scratch_pages: tuple[int, ...], max_num_seqs: int, num_drafted: int
) -> CostTable:
    """Time verify passes by rows and draft passes by blocks.

    `scratch_pages` are free pages that no sequence holds, enough for SCRATCH_LEN positions.
    """
    most = min(64, max(2, max_num_seqs * (1 + num_drafted)))
    row_counts = sorted({rows for rows in (1, 2, 3, 4, 6, 8, 16) if rows < most} | {most})
    passes: dict[tuple[str, int], Callable[[], None]] = {
        ("verify", rows): partial(_verify, runner, scratch_pages, rows, num_drafted) for rows in row_counts
    }
    if runner.drafter is not None:
        for blocks in sorted({1, 2, min(8, max_num_seqs)}):
            passes["draft", blocks] = partial(_draft, runner, scratch_pages, blocks)
    least = _least_seconds(passes)
    verify = {count: seconds for (kind, count), seconds in least.items() if kind == "verify"}
    draft = {count: seconds for (kind, count), seconds in least.items() if kind == "draft"}
    return CostTable(_monotone(verify), _monotone({0: 0.0, **draft}))


def _least_seconds(passes: dict[tuple[str, int], Callable[[], None]]) -> dict[tuple[str, int], float]:
    """Least seconds of each pass over a few sweeps: what else ran on the machine can only have added.

    Sweeps, not repeats, so that a disturbance does not fall on one pass alone.
    """
    least = dict.fromkeys(passes, float("inf"))
    began = time.perf_counter()
    for sweep in range(MAX_SWEEPS):
        for key, work in passes.items():
            start = time.perf_counter()
            work()
            least[key] = min(least[key], time.perf_counter() - start)
        if sweep > 0 and time.perf_counter() - began > BUDGET_S:
            break
    return least


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
    most = runner.drafter.spec.num_drafted // 2 + 1  # outputs, as a typical round wants them
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
