"""The demo pair drafts as it did when it was recorded: τ within 2 % for blocks of 4, 6 and 8.

The walk follows the recorded answers, so that a near-tie which rounds another way on this machine
does not fork the text. The drafter's context is written once from the target's features; a round
then needs a draft pass alone, and puts back what the block overwrote.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from driver import Driver, ask

from truedraft.contract.step import Extend
from truedraft.models.registry import load_drafter, load_target

pytestmark = pytest.mark.demo
PAGE_LEN = 512  # one page a sequence
BATCH = 16


class Walk:
    """One recorded answer, followed with drafts of our own."""

    def __init__(self, record: dict, page: int) -> None:
        self.tokens = record["prompt_ids"] + record["greedy_ids"]
        self.at = len(record["prompt_ids"])  # position of the anchor
        self.page = page
        self.num_rounds = 0
        self.num_committed = 0

    @property
    def is_done(self) -> bool:
        return self.at + 1 >= len(self.tokens)

    def take(self, draft_ids: tuple[int, ...]) -> None:
        rest = self.tokens[self.at + 1 :]
        accepted = 0
        while accepted < min(len(draft_ids), len(rest)) and draft_ids[accepted] == rest[accepted]:
            accepted += 1
        committed = min(accepted + 1, len(rest))
        self.num_rounds += 1
        self.num_committed += committed
        self.at += committed


def follow(target, drafter, records: list[dict]) -> tuple[int, int]:
    """→ (tokens committed, rounds) over all records."""
    driver = Driver(target, drafter, num_pages=BATCH + 1, page_len=PAGE_LEN, prefill_chunk_len=PAGE_LEN)
    walks = [Walk(record, page) for page, record in enumerate(records)]
    pools = driver.runner._drafter_pool
    for walk in walks:
        driver.runner.run(_plan([_extend(walk, 0, walk.tokens, 0)]))
    k_context, v_context = pools.k_LPWKH.clone(), pools.v_LPWKH.clone()
    running = list(walks)
    while running := [walk for walk in running if not walk.is_done]:
        most = drafter.spec.num_drafted
        flat = driver.runner.draft([_extend(walk, walk.at, [walk.tokens[walk.at]], most) for walk in running])
        for index, walk in enumerate(running):
            block = slice(walk.at, walk.at + drafter.spec.block_len)
            pools.k_LPWKH[:, walk.page, block] = k_context[:, walk.page, block]
            pools.v_LPWKH[:, walk.page, block] = v_context[:, walk.page, block]
            walk.take(flat[index * most : (index + 1) * most])
    return sum(walk.num_committed for walk in walks), sum(walk.num_rounds for walk in walks)


def _plan(extends):
    from truedraft.contract.step import StepPlan

    return StepPlan(0, tuple(extends))


def _extend(walk: Walk, start: int, tokens, num_drafted: int) -> Extend:
    request = ask(walk.tokens[:1])
    return Extend(
        seq_id=walk.page,
        token_ids=tuple(tokens),
        start=start,
        num_drafted=num_drafted,
        samples=num_drafted > 0,
        pages=(walk.page,),
        captures=True,
        sampling=request.sampling,
        seed=0,
        num_prompt_tokens=1,
        history=walk.tokens,
    )


@pytest.fixture(scope="module")
def demo_target_model(demo_specs, fast_ops):
    return load_target(demo_specs[0], fast_ops, torch.bfloat16)


def check_tau(demo_specs, target, ops, records: list[dict], block_len: int) -> None:
    spec = replace(demo_specs[1], block_len=block_len)
    drafter = load_drafter(spec, target, ops, torch.bfloat16)
    committed = rounds = 0
    for first in range(0, len(records), BATCH):
        more_committed, more_rounds = follow(target, drafter, records[first : first + BATCH])
        committed += more_committed
        rounds += more_rounds
    kept = [record["rounds"][str(block_len)] for record in records]
    recorded_tau = sum(entry["tokens"] for entry in kept) / sum(entry["rounds"] for entry in kept)
    assert committed == sum(entry["tokens"] for entry in kept)
    assert committed / rounds == pytest.approx(recorded_tau, rel=0.02)


@pytest.mark.parametrize("block_len", [4, 8])
def test_tau_of_some_prompts(demo_specs, demo_target_model, fast_ops, recorded, block_len):
    check_tau(demo_specs, demo_target_model, fast_ops, recorded[2::8], block_len)


@pytest.mark.full
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("block_len", [4, 6, 8])
def test_tau_of_all_prompts(demo_specs, demo_target_model, fast_ops, recorded, block_len):
    check_tau(demo_specs, demo_target_model, fast_ops, recorded, block_len)
