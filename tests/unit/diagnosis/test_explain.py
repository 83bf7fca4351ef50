"""States and causes: the signatures of low acceptance, of failures, of hangs, of nothing at all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from diagnosis_cases import SERVING, diagnosis_of, evidence_of, vllm_line, vllm_metrics

from truedraft.contract.finding import Finding, Severity
from truedraft.diagnosis.cause_table import BROKEN_TARGET, CANDIDATES, HANG, OFF, SPEED
from truedraft.diagnosis.explain import Diagnosis
from truedraft.diagnosis.render_causes import STATES, diagnosis_markdown
from truedraft.diagnosis.table import RULES

HEALTHY = (0.929, 0.816, 0.684, 0.571, 0.490, 0.429, 0.357)
POOR = (0.600, 0.385, 0.215, 0.108, 0.062) + (0.0,) * 10
BENCH: dict[str, Any] = {
    "output_throughput": 100.0,
    "mean_tpot_ms": 9.0,
    "max_concurrency": 1,
    "completed": 10,
}
SPEC: dict[str, Any] = {"spec_decode_acceptance_length": 5.28, "spec_decode_num_drafts": 1000}
SPEC |= {"spec_decode_draft_tokens": 7000, "spec_decode_accepted_tokens": 4276}


def finding(rule: str, severity: Severity = Severity.FAIL) -> Finding:
    return Finding(rule, severity, f"title of {rule}", (f"evidence of {rule}",), "cause", "remedy")


def ids(diagnosis: Diagnosis) -> list[str]:
    return [cause.id for cause in diagnosis.causes]


# 4.18 T10: four lines of public reports.
def test_t10_poor_match() -> None:
    evidence = evidence_of(SERVING + vllm_line(65, POOR, accepted=89, tau=2.37))
    found = diagnosis_of(SERVING + vllm_line(65, POOR, accepted=89, tau=2.37))
    assert found.state == "poor_match" and ids(found)[0] == "variant"
    assert evidence.verdict is not None and "about 4 tokens" in evidence.verdict.next_step
    assert {"variant", "mode"} <= set(ids(found))


def test_t10_broken_head() -> None:
    found = diagnosis_of(vllm_metrics(20312, (8, *(0,) * 7), generated=20320, width=8))
    assert found.state == "dead" and ids(found)[0] == "head"
    assert any("/metrics" in line for line in found.unknown), "one reading mixes all traffic"


def test_t10_healthy() -> None:
    found = diagnosis_of(SERVING + vllm_line(1000, HEALTHY))
    assert found.state == "healthy" and found.causes == ()
    assert any("speed-up" in line for line in found.unknown)


@pytest.mark.parametrize(("broken", "state"), [(True, "not_speculation"), (False, "dead")])
def test_t10_the_target_by_itself(broken: bool, state: str) -> None:
    line = SERVING + vllm_line(131, (0.0,) * 7, accepted=0, tau=1.0)
    found = diagnosis_of(line, target_only_broken=broken)
    assert found.state == state
    assert (ids(found)[0] == "target") is broken


@pytest.mark.parametrize(
    "line", [vllm_line(100, (0.5, 0.6, 0.1)), vllm_line(100, (0.5, 0.4, 0.1), tau=3.5)], ids=["rises", "sum"]
)
def test_lines_that_contradict_themselves_are_discarded(line: str) -> None:
    alone = diagnosis_of(SERVING + line)
    assert alone.state == "inconsistent" and any("contradict" in said for said in alone.unknown)
    mixed = evidence_of(SERVING + line + vllm_line(1000, HEALTHY))
    assert mixed.discarded == 1 and mixed.verdict is not None and mixed.verdict.kind == "healthy"


# 4.19: a row each.
def test_the_drafts_counter_stands_still() -> None:
    before = vllm_metrics(10, (5,), generated=100, width=1)
    after = vllm_metrics(10, (5,), generated=900, width=1)
    found = diagnosis_of(before, after)
    assert found.state == "off" and "stands still" in found.headline and "fallback" in ids(found)


def test_no_drafts_counter_at_all() -> None:
    found = diagnosis_of(
        vllm_metrics(None, generated=1), vllm_metrics(None, generated=900), "vllm serve m --max-num-seqs 4"
    )
    assert found.state == "off" and ids(found)[0] == "command"
    assert "no speculative options" in found.causes[0].evidence_for[0]


def test_one_reading_without_drafts_says_it_too() -> None:
    assert diagnosis_of(vllm_metrics(None, generated=900)).state == "off"
    assert diagnosis_of(vllm_metrics(None, generated=0)).state == "unknown"


def test_engines_without_counters_are_not_judged_by_them() -> None:
    assert diagnosis_of("llamacpp:tokens_predicted_total 500\n").state == "unknown"
    assert (
        diagnosis_of("sglang:generation_tokens_total 500\nsglang:spec_accept_length 0.0\n").state == "unknown"
    )


def test_drafting_noise_with_a_named_cause() -> None:
    text = SERVING.replace("0.33.0", "0.24.0") + vllm_line(500, (0.002, 0.0, 0.0))
    padded = finding("head.padded_vocab")
    found = diagnosis_of(text, findings=(padded,), has_configs=True)
    assert found.state == "dead" and ids(found)[0] == "head" and found.causes[0].how_sure == "likely"
    assert found.causes[0].rules == ("head.padded_vocab",)
    other = diagnosis_of(text, findings=(finding("quant.packed_vllm"),), has_configs=True)
    assert ids(other)[0] == "packed"
    head = next(cause for cause in other.causes if cause.id == "head")
    assert head.weight < found.causes[0].weight


def test_one_layer_off() -> None:
    line = "INFO Using Eagle3 auxiliary layers from config: (1, 9, 17, 25, 33)\n"
    text = SERVING + line + vllm_line(500, (0.41, 0.25, 0.13))
    off = diagnosis_of(text, has_configs=True, capture_layers=(1, 9, 17, 25, 33))
    assert off.state == "misaligned" and ids(off)[0] == "capture" and off.causes[0].how_sure == "likely"
    right = diagnosis_of(text, has_configs=True, capture_layers=(0, 8, 16, 24, 32))
    assert ids(right)[0] != "capture", "the log shows that they are right"


def test_a_release_that_drafts_badly() -> None:
    found = diagnosis_of(SERVING.replace("0.33.0", "0.25.1") + vllm_line(500, (0.41, 0.25, 0.13)))
    assert "release" in ids(found)[:2] and "speculators#757" in str(found.causes)


def test_a_steep_decay() -> None:
    found = diagnosis_of(SERVING + vllm_line(500, (0.75, 0.30, 0.12, 0.05)))
    assert found.state == "decays" and ids(found)[:2] == ["weak", "rope"]


def test_random_prompts_are_named() -> None:
    bench = BENCH | {"dataset_name": "random", "spec_decode_num_drafts": 65}
    bench |= {"spec_decode_draft_tokens": 975, "spec_decode_accepted_tokens": 89}
    bench |= {"spec_decode_per_position_acceptance_rates": list(POOR)}
    found = diagnosis_of(json.dumps(bench))
    assert found.state == "poor_match" and ids(found)[0] == "prompts"


def test_acceptance_that_fell_over_time() -> None:
    early = "".join(vllm_line(100 + index, HEALTHY) for index in range(4))
    late = "".join(vllm_line(100 + index, (0.4, 0.2, 0.1, 0.05, 0.0, 0.0, 0.0)) for index in range(5))
    found = diagnosis_of(SERVING + early + late)
    assert found.state == "fell" and ids(found)[0] == "workload" and "restored" in ids(found)


def readings(*stretches: dict[str, float]) -> list[str]:
    """/metrics texts whose differences are these stretches; `first`, `second`: kept by position."""
    texts, sums = (
        [],
        dict.fromkeys(("rounds", "first", "second", "prompt", "requests", "queries", "hits"), 0.0),
    )
    for stretch in ({}, *stretches):
        for name, value in stretch.items():
            sums[name] += value
        more = {
            "prompt_tokens_total": sums["prompt"],
            "request_success_total": sums["requests"],
            "prefix_cache_queries_total": sums["queries"],
            "prefix_cache_hits_total": sums["hits"],
        }
        kept = (sums["first"], sums["second"])
        texts.append(vllm_metrics(sums["rounds"], kept, generated=sums["rounds"] * 2, width=2, **more))
    return texts


GOOD = {"rounds": 500.0, "first": 450.0, "second": 400.0, "requests": 10.0}
BAD = {"rounds": 500.0, "first": 150.0, "second": 50.0, "requests": 10.0}


def test_good_cold_and_bad_after_a_cache_hit() -> None:
    cold = GOOD | {"prompt": 10_000.0, "queries": 10_000.0}
    warm = BAD | {"prompt": 10_000.0, "queries": 10_000.0, "hits": 9_000.0}
    found = diagnosis_of(*readings(cold, warm))
    assert found.state == "fell_after_hit" and ids(found)[0] == "restored" and "90% did" in found.headline


def test_good_short_and_bad_long() -> None:
    found = diagnosis_of(*readings(GOOD | {"prompt": 5_000.0}, BAD | {"prompt": 80_000.0}))
    assert found.state == "fell_with_context" and ids(found)[0] == "window"
    assert "prompts of 500 tokens, 1.40 with 8,000" in found.headline
    assert diagnosis_of(*readings(GOOD | {"prompt": 5_000.0}, GOOD | {"prompt": 80_000.0})).state == "healthy"


def test_good_acceptance_and_no_speed() -> None:
    fast = BENCH | SPEC | {"max_concurrency": 32}
    plain = BENCH | {"max_concurrency": 32, "output_throughput": 120.0}
    eager = "WARNING draft attention (FLEX) does not support full CUDA graphs; running the draft eagerly\n"
    found = diagnosis_of(SERVING + eager, json.dumps(fast), json.dumps(plain))
    assert found.state == "slow" and "0.83 times" in found.headline
    assert {"concurrency", "eager"} == set(ids(found)[:2])
    assert diagnosis_of(json.dumps(fast), json.dumps(plain | {"output_throughput": 40.0})).state == "healthy"


def test_prefix_reuse_is_lost() -> None:
    cache = {"prefix_cache_queries_total": 1_045_583.0, "prefix_cache_hits_total": 0.0}
    zero = dict.fromkeys(cache, 0.0)
    before, after = (
        vllm_metrics(rounds, kept, generated=rounds * 5, width=1, **more)
        for rounds, kept, more in ((0, (0,), zero), (1000, (900,), cache))
    )
    evidence = evidence_of(before, after)
    assert evidence.metrics is not None and evidence.metrics.values["cache_hits"] == 0
    fast = json.dumps(BENCH | SPEC)
    found = diagnosis_of(before, after, fast, json.dumps(BENCH | {"output_throughput": 150.0}))
    assert found.state == "slow" and ids(found)[0] == "prefix"


def test_requests_run_and_no_token_comes() -> None:
    before = vllm_metrics(10, (5,), generated=100, width=1, num_requests_running=32)
    found = diagnosis_of(before, before)
    assert found.state == "hanging" and "32" in found.headline and {"graphs", "tables"} <= set(ids(found))
    line = "INFO [shm_broadcast.py:600] No available shared memory broadcast block found in 60 seconds.\n"
    assert ids(diagnosis_of(SERVING + line))[0] in ("graphs", "printed.hang.broadcast")


# Failures at start.
BUDGET = "ValueError: max_num_scheduled_tokens is set to -1792 based on the speculative decoding settings\n"


def test_a_printed_failure_confirmed_by_the_configs() -> None:
    found = diagnosis_of(BUDGET, findings=(finding("budget.too_small"),), has_configs=True)
    assert found.state == "failed" and ids(found)[0] == "printed.budget.none"
    assert "inspect foresees it (budget.too_small)" in found.causes[0].evidence_for[1]
    against = diagnosis_of(BUDGET, has_configs=True)
    assert "show no sign" in against.causes[0].evidence_against[0]


def test_an_error_that_nobody_knows_is_said_to_be_unknown() -> None:
    text = SERVING + '  File "/opt/x/worker.py", line 7, in step\nKeyError: "something new"\n'
    found = diagnosis_of(text)
    assert found.state == "failed" and found.causes == ()
    assert any(
        'not known here (at worker.py:7 in step): KeyError: "something new"' in said for said in found.unknown
    )
    helped = diagnosis_of(text, findings=(finding("pair.heads"),), has_configs=True)
    assert ids(helped) == ["rule.pair.heads"], "what inspect fails may be the reason"


def test_an_unknown_error_above_a_known_one_is_kept() -> None:
    found = diagnosis_of(
        "KeyError: first\ntorch.AcceleratorError: CUDA error: device-side assert triggered\n"
    )
    assert found.state == "failed" and any("KeyError: first" in said for said in found.unknown)


def test_an_error_that_the_server_survived_is_no_failed_start() -> None:
    error = "ERROR Failed to advance FSM for request cmpl-1 for tokens 12\n"
    line = vllm_line(1000, HEALTHY)
    survived = diagnosis_of(SERVING + line + error + line.replace("11-30", "12-01"))
    assert survived.state == "healthy" and ids(survived) == ["printed.grammar.fsm"]
    assert diagnosis_of(SERVING + line + error).state == "failed"


def test_exceptions_in_passing_are_no_failure() -> None:
    text = SERVING + "WARNING 11-30 [a.py:1] ImportError: no fast path, using the slow one\n"
    assert diagnosis_of(text).state == "unknown"


def test_a_start_that_stopped_without_a_word() -> None:
    found = diagnosis_of("INFO vLLM API server version 0.33.0\nINFO Starting to load model org/t...\n")
    assert found.state == "stopped" and "weights loading" in found.headline and "killed" in ids(found)


def test_configs_alone() -> None:
    found = diagnosis_of("vllm serve m", findings=(finding("pair.heads"),), has_configs=True)
    assert found.state == "foreseen" and ids(found) == ["rule.pair.heads"]


def test_nothing_known() -> None:
    found = diagnosis_of("hello\n")
    assert found.state == "unknown" and found.causes == () and len(found.unknown) >= 2


def test_candidates_name_rules_that_exist_and_next_steps() -> None:
    everything = (*CANDIDATES, *SPEED, *OFF, *HANG, *BROKEN_TARGET)
    for one in everything:
        for start in one.rules:
            assert any(rule.id.startswith(start) for rule in RULES), (one.id, start)
        assert one.title and one.next_step and one.patterns
    assert len({one.id for one in everything}) == len(everything)


def test_the_page_of_causes_is_current() -> None:
    page = Path(__file__).parents[3] / "docs" / "diagnosis.md"
    assert page.read_text(encoding="utf-8") == diagnosis_markdown(), "run `make docs`"
    states = {state for one in (*CANDIDATES, *SPEED, *OFF, *HANG, *BROKEN_TARGET) for state in one.patterns}
    assert states == set(STATES), "every state has a section"
