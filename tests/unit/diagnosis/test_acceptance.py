"""Acceptance windows from public reports, and figures that cannot be."""

from __future__ import annotations

import pytest

from truedraft.diagnosis.acceptance import AcceptanceFacts, inconsistencies, judge_acceptance, parse_vllm_line

POOR = (
    "INFO metrics.py: SpecDecoding metrics: Mean acceptance length: 2.37, Accepted throughput: 8.90 tokens/s, "
    "Drafted throughput: 97.50 tokens/s, Accepted: 89 tokens, Drafted: 975 tokens, Per-position acceptance rate: "
    "0.600, 0.385, 0.215, 0.108, 0.062, 0.000, 0.000, 0.000, 0.000, 0.000, 0.000, 0.000, 0.000, 0.000, 0.000, "
    "Avg Draft acceptance rate: 9.1%"
)


def test_poor_match() -> None:
    facts = parse_vllm_line(POOR)
    assert facts is not None and (facts.num_rounds, facts.num_drafted, facts.num_accepted) == (65, 975, 89)
    assert facts.mean_committed == pytest.approx(2.37, abs=0.005) and len(facts.by_position) == 15
    verdict = judge_acceptance(facts)
    assert verdict.kind == "poor_match" and "about 4 tokens" in verdict.next_step
    assert "thinking mode" in verdict.next_step and "variant" in verdict.next_step


def test_broken_head() -> None:
    verdict = judge_acceptance(AcceptanceFacts(20312, 162496, 8))
    assert verdict.kind == "dead" and "head" in verdict.causes[0]


def test_healthy() -> None:
    rates = (0.929, 0.816, 0.684, 0.571, 0.490, 0.429, 0.357)
    facts = AcceptanceFacts(1000, 7000, 4276, rates, 5.28)
    assert judge_acceptance(facts).kind == "healthy"


def test_the_target_itself_is_broken() -> None:
    assert judge_acceptance(AcceptanceFacts(None, 916, 0, target_only_broken=True)).kind == "not_speculation"


@pytest.mark.parametrize(
    ("facts", "word"),
    [
        (AcceptanceFacts(100, 300, 150, (0.5, 0.6, 0.4)), "rise"),
        (AcceptanceFacts(100, 300, 150, (0.9, 0.8, 0.7), 2.5), "sum"),
        (AcceptanceFacts(100, 300, 301), "301 accepted of 300"),
        (AcceptanceFacts(100, 300, 150, (1.2, 0.2, 0.1)), "outside"),
    ],
)
def test_figures_that_cannot_be(facts: AcceptanceFacts, word: str) -> None:
    assert any(word in line for line in inconsistencies(facts))
    assert judge_acceptance(facts).kind == "inconsistent"


@pytest.mark.parametrize(
    ("facts", "kind"),
    [
        (AcceptanceFacts(0, 0, 0), "off"),
        (AcceptanceFacts(10, 70, 30, (1.0, 0.6, 0.5, 0.4, 0.3, 0.1, 0.1)), "too_few"),
        (AcceptanceFacts(500, 1500, 395, (0.41, 0.25, 0.13)), "misaligned"),
        (AcceptanceFacts(500, 2000, 610, (0.75, 0.30, 0.12, 0.05)), "decays"),
        (AcceptanceFacts(500, 3500, 1218, (0.757, 0.532, 0.385, 0.281, 0.207, 0.150, 0.113)), "healthy"),
    ],
)
def test_kinds(facts: AcceptanceFacts, kind: str) -> None:
    verdict = judge_acceptance(facts)
    assert verdict.kind == kind and verdict.evidence and verdict.next_step


@pytest.mark.parametrize(
    "line", ["", "INFO: other", "SpecDecoding metrics: nothing", "SpecDecoding metrics: Accepted: x tokens"]
)
def test_other_lines(line: str) -> None:
    assert parse_vllm_line(line) is None
