"""Counters of several engines, differences of two readings, and what cannot be."""

from __future__ import annotations

import pytest
from diagnosis_cases import vllm_metrics
from hypothesis import example, given, settings
from hypothesis import strategies as st

from truedraft.diagnosis.acceptance import judge_acceptance
from truedraft.diagnosis.metrics import difference, is_metrics_line, read_metrics

BEFORE = vllm_metrics(1000, (600, 300), generated=1900, width=2)
AFTER = vllm_metrics(1500, (1000, 500), generated=3000, width=2, num_requests_running=3)


def test_one_reading() -> None:
    [facts] = read_metrics(BEFORE.splitlines())
    assert facts.engine == "vllm" and facts.speculates and not facts.is_delta
    assert (
        facts.values["rounds"] == 1000
        and facts.values["drafted"] == 2000
        and facts.values["generated"] == 1900
    )
    assert facts.by_position == (600, 300)


def test_the_difference_of_two_in_one_text() -> None:
    before, after = read_metrics((BEFORE + AFTER).splitlines())
    delta = difference(before, after)
    assert delta.is_delta and delta.problems == ()
    assert (delta.values["rounds"], delta.values["generated"], delta.values["running"]) == (500, 1100, 3)
    acceptance = delta.acceptance()
    assert acceptance is not None and acceptance.by_position == (0.8, 0.4)
    assert acceptance.mean_committed == pytest.approx(2.2)


def test_ranks_are_summed() -> None:
    two = BEFORE + BEFORE.replace('engine="0"', 'engine="1"')
    [facts] = read_metrics(two.splitlines())
    assert facts.values["rounds"] == 2000 and facts.by_position == (1200, 600)


def test_a_restart_and_broken_sums_are_problems() -> None:
    [before], [after] = (read_metrics(text.splitlines()) for text in (AFTER, BEFORE))
    assert any("restart" in problem for problem in difference(before, after).problems)
    text = vllm_metrics(100, (120, 50), generated=9, width=1).replace("tokens_total{engine", "x{engine")
    [broken] = read_metrics(text.splitlines())
    found = difference(read_metrics(["vllm:spec_decode_num_drafts_total 0"])[0], broken).problems
    assert any("position 0 kept 120 of 100 rounds" in problem for problem in found)


def test_20312_rounds_and_8_kept_drafts() -> None:
    text = vllm_metrics(20312, (8, 0, 0, 0, 0, 0, 0, 0), generated=20320, width=8)
    facts = read_metrics(text.splitlines())[0].acceptance()
    assert facts is not None and (facts.num_drafted, facts.num_accepted) == (162496, 8)
    assert judge_acceptance(facts).kind == "dead"


def test_sglang_has_a_mean_only() -> None:
    text = 'sglang:spec_accept_length{tp_rank="0"} 3.5\nsglang:spec_verify_calls_total 400\nsglang:num_running_reqs 2'
    [facts] = read_metrics(text.splitlines())
    acceptance = facts.acceptance()
    assert facts.engine == "sglang" and acceptance is not None
    assert (acceptance.tau, acceptance.num_drafted, acceptance.num_rounds) == (3.5, None, 400)
    assert judge_acceptance(acceptance).kind == "healthy"


def test_our_own_and_llama_cpp() -> None:
    text = (
        "truedraft_spec_rounds_total 100\ntruedraft_spec_drafted_tokens_total 700\n"
        'truedraft_spec_accepted_tokens_total 200\ntruedraft_spec_accepted_by_position_total{position="0"} 90\n'
        "truedraft_spec_tau NaN"
    )
    [ours] = read_metrics(text.splitlines())
    assert ours.engine == "local" and ours.values["accepted"] == 200 and ours.by_position == (90,)
    [other] = read_metrics(["llamacpp:tokens_predicted_total 10", "llamacpp:requests_processing 1"])
    assert other.engine == "llama.cpp" and not other.speculates and other.acceptance() is None


@pytest.mark.parametrize(
    ("line", "is_it"),
    [
        ("# HELP vllm:x Something", True),
        ('vllm:x{a="b"} 1.5e+03', True),
        ("vllm:x NaN", True),
        ("INFO 12-01 something 5", False),
        ("Traceback (most recent call last):", False),
        ("", False),
    ],
)
def test_lines_are_known_by_their_form(line: str, is_it: bool) -> None:
    assert is_metrics_line(line) is is_it


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.builds(
            lambda name, labels, value: f"{name}{labels} {value}",
            st.sampled_from(["vllm:spec_decode_num_drafts_total", "vllm:generation_tokens_total", "x", ""]),
            st.sampled_from(["", "{}", '{position="9999999"}', '{position="3"}', "{"]),
            st.one_of(st.floats(), st.integers(), st.text(max_size=5)),
        ),
        max_size=20,
    )
)
@example(
    [
        "vllm:generation_tokens_total 0",
        "vllm:generation_tokens_total 0",
        "vllm:spec_decode_num_drafts_total -1",
    ]
)
def test_any_samples(lines: list[str]) -> None:
    found = read_metrics(lines)
    for facts in found:
        difference(found[0], facts)
        facts.acceptance()
