"""The search and the verdicts on losses whose truth is known, without any model."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import numpy as np
import pytest

from truedraft.recovery.candidate import Candidate
from truedraft.recovery.measured import Measured, tau_of, walk
from truedraft.recovery.search import Search
from truedraft.recovery.space import build_space, capture_starts, swaps
from truedraft.recovery.texts import Text, draw_anchors, every_anchor
from truedraft.recovery.verdict import Row, mean_and_error, paired

TRUTH = Candidate(
    capture_layers=(1, 9, 17),
    mask_token_id=7,
    sample_from_anchor=False,
    windows=(32, 32, None),
    causal=(True, True, False),
    theta=1e6,
    interleaved=False,
    embedding_scale=1.0,
    block_len=8,
)


def synthetic_loss(candidate: Candidate, level: int) -> dict[int, float]:
    """Each wrong value adds; while mask or layout are wrong, the others are hard to see."""
    hidden = sum(
        0.05 * min(3, abs(mine - right))
        for mine, right in zip(candidate.capture_layers, TRUTH.capture_layers, strict=True)
    )
    hidden += 0.3 * abs(math.log10(candidate.theta / TRUTH.theta))
    hidden += 0.2 * sum(a != b for a, b in zip(candidate.windows, TRUTH.windows, strict=True))
    hidden += 0.3 * sum(a != b for a, b in zip(candidate.causal, TRUTH.causal, strict=True))
    hidden += 0.5 * abs(math.log2(candidate.embedding_scale))
    hidden += 2.0 * candidate.interleaved
    blind = (candidate.mask_token_id != TRUTH.mask_token_id) + candidate.sample_from_anchor
    loss = 2.0 + 3.0 * blind + hidden * 0.2**blind
    noise = random.Random(repr((candidate, level)))
    return {text: loss + noise.gauss(0, 0.02 if level == 0 else 0.002) for text in range(12)}


def space_for(declared: Candidate):
    return build_space(
        num_target_layers=24,
        hidden_size=256,
        vocab_size=1000,
        longest_context=200,
        target_theta=1e5,
        special_ids=range(10),
        family=(),
        declared=declared,
        lists=capture_starts(declared.capture_layers, 24, 3, ()),
    )


def find(declared: Candidate) -> tuple[Candidate, Search]:
    search = Search(synthetic_loss)
    space = space_for(declared)
    return search.run(space.with_lists(declared), space.dimensions(declared)), search


@pytest.mark.parametrize(
    "wrong",
    [
        {"capture_layers": (2, 10, 18)},
        {"capture_layers": (17, 1, 9)},
        {"capture_layers": (5, 6, 22)},
        {"mask_token_id": 3},
        {"sample_from_anchor": True},
        {"theta": 1e4},
        {"windows": (None,) * 3, "causal": (False,) * 3},
        {"interleaved": True},
        {"embedding_scale": 16.0},
        {"capture_layers": (4, 12, 20), "mask_token_id": 0, "theta": 1e4},
        {"mask_token_id": 0, "sample_from_anchor": True, "windows": (None,) * 3, "causal": (False,) * 3},
        {},
    ],
)
def test_finds_the_truth(wrong):
    found, _ = find(replace(TRUTH, **wrong))
    assert found == TRUTH


def test_keeps_what_it_holds_where_nothing_is_better():
    search = Search(lambda candidate, level: dict.fromkeys(range(4), 1.0))
    declared = replace(TRUTH, mask_token_id=5)
    assert search.run([declared], space_for(declared).dimensions(declared)) == declared


def test_later_rounds_look_at_few_layers_again():
    _, search = find(replace(TRUTH, capture_layers=(5, 6, 22), mask_token_id=3))
    layers = {one.capture_layers for one, level in search._known if level == 0}
    assert len(layers) < 3 * 25 + 2 * 3 * 25


def test_starts_have_the_declared_list_first_then_shifts_order_and_formula():
    starts = capture_starts((17, 1, 9), 24, 3, ())
    assert starts[0] == (17, 1, 9)
    assert {(16, 0, 8), (18, 2, 10), (1, 9, 17), (1, 11, 21), (0, 10, 20), (2, 12, 22)} <= set(starts)
    assert all(-1 <= layer < 24 for start in starts for layer in start)
    assert capture_starts(None, 24, 3, ())[0] == (1, 11, 21)


def test_swaps_exchange_every_pair():
    assert {one.capture_layers for one in swaps(TRUTH)} == {(1, 9, 17), (9, 1, 17), (17, 9, 1), (1, 17, 9)}


def test_paired_differences():
    best = {0: 1.0, 1: 2.0, 2: 3.0}
    found = paired(best, {text: loss + 0.5 for text, loss in best.items()})
    assert (found.value, found.low, found.high) == pytest.approx((0.5, 0.5, 0.5))
    mixed = paired(best, {0: 2.0, 1: 1.0, 2: 3.0})
    assert mixed.low < 0 < mixed.high
    assert mean_and_error(best, {0: 2.0, 1: 1.0, 2: 3.0}) == pytest.approx((0.0, 1 / math.sqrt(3)))


def test_a_row_is_undecided_where_something_is_alike():
    assert Row("x", 1, True, 1).verdict == "confirmed"
    assert Row("x", 1, True, 2).verdict == "corrected"
    assert Row("x", 1, False, 2).verdict == "found"
    assert Row("x", 1, True, 1, alike=(2,)).verdict == "undecided"
    assert Row("x", 1, True, 2, note="undecided past 100 tokens").verdict == "undecided"


def test_walk_counts_only_tokens_that_the_text_has():
    text = Text(tuple(range(9)), 2)  # anchors 2 … 7; 6 tokens behind the first
    hits = np.zeros((6, 3), dtype=bool)
    hits[0, :2] = True  # anchor 2: two of three → 3 committed, next anchor 5
    hits[3] = True  # anchor 5: all three → 4, but only 3 are left
    measured = Measured(np.arange(2, 8), np.zeros(6, dtype=np.int64), np.zeros((6, 3), np.float32), hits)
    assert walk(measured, [text]) == {0: (6, 2)}
    assert tau_of({0: (6, 2), 1: (2, 2)}) == 2.0


def test_anchors_leave_room_behind_and_before_them():
    texts = [Text(tuple(range(40)), 10), Text(tuple(range(30)), 0), Text((1, 2, 3), 2)]
    drawn = draw_anchors(texts, 20, tail_len=8, seed=0)
    assert set(drawn) == {0, 1}
    assert all(10 <= anchor < 32 for anchor in drawn[0])
    assert every_anchor(texts)[0] == list(range(10, 39))
    assert 2 not in every_anchor(texts)
