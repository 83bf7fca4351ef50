"""Log excerpts of reported failures are recognised; any text at all is survived."""

from __future__ import annotations

import time
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from truedraft.diagnosis.logs import read_log
from truedraft.diagnosis.signatures import SIGNATURES
from truedraft.diagnosis.table import RULES

FAILURES = Path(__file__).parents[2] / "fixtures" / "logs" / "failures.txt"


class Failure(NamedTuple):
    """A section of the fixture: a reported failure and what must be seen in its log."""

    report: str
    engine: str | None
    signature: str
    phase: str | None
    lines: list[str]


def failures() -> list[Failure]:
    found = []
    for section in FAILURES.read_text(encoding="utf-8").split("\n### ")[1:]:
        head, *lines = section.strip().splitlines()
        report, engine, name, phase = (part.strip() for part in head.split("|"))
        found.append(Failure(report, engine.strip("-") or None, name, phase.strip("-") or None, lines))
    return found


FAILED_START = """INFO 12-01 vLLM API server version 0.26.0
INFO 12-01 non-default args: {'model_tag': 'org/target'}
INFO 12-01 Resolved architecture: Qwen3ForCausalLM
ERROR 12-01 [core.py] EngineCore failed to start.
ERROR 12-01 [core.py] Traceback (most recent call last):
ERROR 12-01 [core.py]   File "scheduler.py", line 10, in __init__
ERROR 12-01 [core.py] ValueError: max_num_scheduled_tokens is set to -1792 based on the settings
Traceback (most recent call last):
RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}
""".splitlines()
RUNNING = """INFO Initializing a V1 LLM engine (v0.33.0) with config: model='m'
INFO Using V2 Model Runner
INFO Using FLASH_ATTN attention backend out of potential backends
INFO Model loading took 15.3 GiB memory
INFO Using Eagle3 auxiliary layers from config: (2, 10, 18, 26, 34)
INFO Starting vLLM server on http://0.0.0.0:8000
INFO SpecDecoding metrics: Mean acceptance length: 3.00, Accepted: 200 tokens, Drafted: 300 tokens, Per-position acceptance rate: 0.800, 0.700, 0.500, Avg Draft acceptance rate: 66.7%
""".splitlines()
SGLANG = """[2026-12-01] sglang 0.5.23 server_args=ServerArgs(model_path='m')
[2026-12-01] Load weight begin. avail mem=79 GB
[2026-12-01] Load weight end. type=Qwen3ForCausalLM
[2026-12-01] DFLASH draft runner ready. mask_token_id=151669
""".splitlines()


@pytest.mark.parametrize("failure", failures(), ids=lambda one: f"{one.report} {one.signature}")
def test_a_printed_failure_is_recognised(failure: Failure) -> None:
    found = read_log(failure.lines)
    first = found.first_error or found.others[0]
    assert first.signature.id == failure.signature
    assert (found.engine, found.phase) == (failure.engine, failure.phase)
    assert found.unexplained is None, "the cause is what is seen first"


def test_every_signature_has_a_sample_and_a_known_rule() -> None:
    assert {signature.id for signature in SIGNATURES} == {failure.signature for failure in failures()}
    rules = {rule.id for rule in RULES}
    assert {signature.rule for signature in SIGNATURES if signature.rule} <= rules
    assert len({signature.id for signature in SIGNATURES}) == len(SIGNATURES)


def test_the_first_real_error_not_its_wrapper() -> None:
    found = read_log(FAILED_START)
    assert (found.engine, found.version, found.phase) == ("vllm", (0, 26, 0), "config resolved")
    assert found.first_error is not None and found.first_error.number == 7
    assert found.first_error.signature.rule == "budget.too_small" and found.unexplained is None


def test_a_running_server() -> None:
    found = read_log(RUNNING)
    assert (found.engine, found.version, found.phase) == ("vllm", (0, 33, 0), "serving")
    assert found.boundary_ids == (2, 10, 18, 26, 34) and found.uses_v2_runner and found.first_error is None
    assert [window.num_rounds for window in found.windows] == [100]


def test_sglang() -> None:
    found = read_log(SGLANG)
    assert (found.engine, found.version, found.phase) == ("sglang", (0, 5, 23), "drafter set up")


def test_what_is_not_known_is_said_to_be_unexplained() -> None:
    found = read_log(
        ["INFO fine", "Traceback (most recent call last):", "KeyError: 'something new'", "ValueError: later"]
    )
    assert (
        found.first_error is None and found.unexplained == "KeyError: 'something new'" and found.phase is None
    )


@settings(max_examples=200, deadline=None)
@given(st.lists(st.text(max_size=80), max_size=20))
def test_any_text(lines: list[str]) -> None:
    read_log(lines)


@pytest.mark.parametrize(
    "text",
    ["SpecDecoding metrics: " + "0.5, " * 3000, "Model architectures [" * 1000, "((((" * 2000, "a" * 100_000],
)
def test_long_lines_take_no_time(text: str) -> None:
    started = time.perf_counter()
    read_log([text] * 5)
    assert time.perf_counter() - started < 5
