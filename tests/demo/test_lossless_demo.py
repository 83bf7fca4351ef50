"""The demo pair on real prompts: speculative answers are the plain ones, token for token."""

from __future__ import annotations

import pytest
import torch
from driver import Driver, ask

from truedraft.kernels.reference import torch_ops
from truedraft.models.registry import load_drafter, load_target

pytestmark = pytest.mark.demo


def load_pair(specs, ops, dtype):
    target = load_target(specs[0], ops, dtype)
    return target, load_drafter(specs[1], target, ops, dtype)


def spread(recorded: list[dict], count: int) -> list[tuple[int, ...]]:
    step = len(recorded) // count
    return [tuple(record["prompt_ids"]) for record in recorded[::step][:count]]


def check_lossless(pair, prompts, max_tokens: int) -> None:
    driver = Driver(*pair, num_pages=256, page_len=64, max_num_seqs=4)
    plain = driver.run([ask(prompt, max_tokens=max_tokens, speculation="off") for prompt in prompts])
    drafted = driver.run([ask(prompt, max_tokens=max_tokens, speculation=7) for prompt in prompts])
    for one, other in zip(plain, drafted, strict=True):
        assert other.token_ids == one.token_ids
    rounds = sum(answer.stats.num_rounds for answer in drafted)
    committed = sum(answer.stats.num_committed for answer in drafted)
    assert committed / rounds > 2.0


def test_in_float32(demo_specs, fast_ops, recorded):
    check_lossless(load_pair(demo_specs, fast_ops, torch.float32), spread(recorded, 12), 64)


def test_in_bfloat16_bit_for_bit(demo_specs, fast_ops, recorded):
    """Rows do not depend on the rows beside them, so that nothing forks even in bf16."""
    if not fast_ops.row_invariant:
        pytest.skip("torch's kernels are in use here: their rows depend on each other in bf16")
    check_lossless(load_pair(demo_specs, fast_ops, torch.bfloat16), spread(recorded, 4), 48)


@pytest.mark.full
@pytest.mark.timeout(3000)
def test_in_float32_at_length(demo_specs, fast_ops, recorded):
    check_lossless(load_pair(demo_specs, fast_ops, torch.float32), spread(recorded, 40), 128)


@pytest.mark.full
@pytest.mark.timeout(3000)
def test_in_float32_with_torchs_kernels(demo_specs, recorded):
    check_lossless(load_pair(demo_specs, torch_ops(), torch.float32), spread(recorded, 12), 64)
