"""The policy takes what pays, leaves what does not, and tries again now and then."""

from __future__ import annotations

import pytest

from truedraft.engine.acceptance import AcceptanceEstimate
from truedraft.engine.policy import (
    FIRST_PROBE_TOKENS,
    MAX_PROBE_TOKENS,
    Candidate,
    CostCurve,
    CostTable,
    Probe,
    VerifyPolicy,
)

FLAT = CostTable(verify=CostCurve({1: 1.0, 64: 1.0}), draft=CostCurve({0: 0.0, 1: 0.2, 8: 0.2}))
STEEP = CostTable(verify=CostCurve({1: 1.0, 64: 64.0}), draft=CostCurve({0: 0.0, 1: 0.2, 8: 0.2}))


def estimate(num_drafted: int, rounds: list[int]) -> AcceptanceEstimate:
    acceptance = AcceptanceEstimate(num_drafted)
    for accepted in rounds:
        acceptance.observe(num_drafted, accepted)
    return acceptance


def candidate(speculation="auto", rounds=(), limit=7, plain_tokens=0) -> Candidate:
    return Candidate(speculation, estimate(7, list(rounds)), Probe(plain_tokens=plain_tokens), limit)


def test_free_rows_are_all_taken():
    assert VerifyPolicy(7, FLAT).choose([candidate(rounds=[7] * 20)]) == [7]


def test_rows_that_cost_as_much_as_they_bring_are_left():
    assert VerifyPolicy(7, STEEP).choose([candidate(rounds=[3] * 20)]) == [0]


def test_drafts_that_are_never_kept_are_left():
    assert VerifyPolicy(7, FLAT).choose([candidate(rounds=[0] * 60)]) == [0]


def test_rows_go_to_the_sequence_that_keeps_more():
    costs = CostTable(CostCurve({2: 1.0, 9: 1.0, 16: 3.0}), CostCurve({0: 0.0, 1: 0.1, 2: 0.1}))
    good, bad = VerifyPolicy(7, costs).choose([candidate(rounds=[7] * 40), candidate(rounds=[0] * 40)])
    assert good == 7
    assert bad == 0


def test_fixed_off_and_limit_are_obeyed():
    policy = VerifyPolicy(7, STEEP)
    chosen = policy.choose([candidate("off"), candidate(3), candidate(5, limit=2), candidate(7, limit=0)])
    assert chosen == [0, 3, 2, 0]


def test_without_costs_auto_takes_the_whole_block():
    assert VerifyPolicy(7, None).choose([candidate(), candidate("off")]) == [7, 0]


def test_speculation_that_does_not_pay_is_tried_again():
    policy = VerifyPolicy(7, STEEP)
    assert policy.choose([candidate(rounds=[0] * 60, plain_tokens=FIRST_PROBE_TOKENS - 1)]) == [0]
    assert policy.choose([candidate(rounds=[0] * 60, plain_tokens=FIRST_PROBE_TOKENS)])[0] > 0


def test_probes_grow_rare_and_recover():
    probe = Probe()
    for _ in range(20):
        probe.count_round(paid=False)
    assert probe.interval == MAX_PROBE_TOKENS
    probe.count_round(paid=True)
    assert probe.interval == FIRST_PROBE_TOKENS


def test_conditional_acceptance_is_learnt_by_position():
    acceptance = estimate(3, [1] * 400)  # the first is always kept, the second never
    assert acceptance.conditional(0) > 0.8
    assert acceptance.conditional(1) < 0.2
    survival = acceptance.survival()
    assert survival == sorted(survival, reverse=True)
    assert acceptance.expected_committed(3) == pytest.approx(1 + sum(survival))


def test_a_new_sequence_starts_from_the_engines_experience():
    engine_wide = estimate(3, [0] * 200)
    assert AcceptanceEstimate(3, engine_wide).conditional(0) < 0.15
    assert AcceptanceEstimate(3).conditional(0) > 0.5


def test_cost_curve_interpolates_and_extends():
    curve = CostCurve({1: 1.0, 3: 2.0, 5: 6.0})
    assert curve(1) == 1.0
    assert curve(2) == pytest.approx(1.5)
    assert curve(4) == pytest.approx(4.0)
    assert curve(7) == pytest.approx(10.0)
    assert curve(0) == 1.0
    assert CostCurve({1: 2.0})(9) == 2.0


def table() -> CostTable:
    return CostTable(CostCurve({1: 1.0, 8: 2.0}), CostCurve({0: 0.0, 1: 0.5}))


def test_a_step_moves_the_point_it_speaks_of():
    costs = table()
    for _ in range(400):
        costs.observe(8, 3.0, 0, 0.0)
        costs.observe(1, 1.0, 0, 0.0)
    assert costs.verify(8) == pytest.approx(3.0, rel=0.15)
    assert costs.verify(1) == pytest.approx(1.0, rel=0.15)


def test_plain_steps_tell_of_the_machine_too():
    """A table measured on a busy machine: plain decoding alone must bring all of it down."""
    costs = table()
    for _ in range(60):
        costs.observe(1, 0.5, 0, 0.0)
    assert costs.verify(1) == pytest.approx(0.5, rel=0.1)
    assert costs.verify(8) < 1.4
    assert costs.draft(1) < 0.35


def test_a_disturbed_step_moves_little():
    costs = table()
    costs.observe(1, 1000.0, 1, 1000.0)
    assert costs.verify(1) < 1.15
    assert costs.draft(1) < 0.6
