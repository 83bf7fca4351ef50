"""The proof that a server gives of itself at start: alive, sane, lossless, effective, faster.

A few prompts, greedy, each decoded plainly and with speculation. It takes seconds, not minutes:
`truedraft bench` measures, this only refuses to call a broken pair ready.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from truedraft.contract.backend import ModelInfo, ReadyReport
from truedraft.contract.request import (
    FinishReason,
    GenerateRequest,
    PositionLogprobs,
    SamplingParams,
    Speculation,
    SpeculationStats,
)
from truedraft.errors import RequestError

PROMPTS = (
    "Write a Python function that returns the n-th Fibonacci number.",
    "What is the capital of France, and what is it known for?",
    "A box holds 12 pencils. How many pencils are in 7 boxes? Explain step by step.",
)
NUM_TOKENS = 32
MARGIN_TOP = 8  # likeliest tokens that a fork is looked for in
TOLERANCE = {"float32": 1e-3, "bfloat16": 0.25}  # how near a tie may be, in natural log units


class Generator(Protocol):
    """What the check needs of a backend."""

    @property
    def info(self) -> ModelInfo: ...

    def generate(self, request: GenerateRequest) -> Any: ...

    def encode(self, text: str, *, add_special_tokens: bool = True) -> tuple[int, ...]: ...

    def encode_chat(self, messages: Sequence[dict[str, Any]]) -> tuple[int, ...]: ...


@dataclass(frozen=True, slots=True)
class Answer:
    """One greedy answer and how it came about."""

    token_ids: tuple[int, ...]
    logprobs: tuple[PositionLogprobs, ...]
    decode_s: float  # from the first token to the last
    finish_reason: FinishReason
    speculation: SpeculationStats
    error: str | None


def not_checked() -> ReadyReport:
    """What `ready` says before the self-check, or without one."""
    return ReadyReport(ready=False, verdict="not checked", checks={})


async def run_self_check(backend: Generator, dtype_name: str, row_invariant: bool) -> ReadyReport:
    """Decode the prompts both ways and judge. Never raises for a broken pair: it says so."""
    prompts = [_encode(backend, text) for text in PROMPTS]
    room = backend.info.max_model_len - max(map(len, prompts))
    num_tokens = min(NUM_TOKENS, room)
    plain, drafted = [], []
    await _answer(backend, "warm-up", prompts[0], min(4, num_tokens), "off")
    for index, prompt in enumerate(prompts):
        plain.append(await _answer(backend, f"plain-{index}", prompt, num_tokens, "off"))
        if backend.info.num_drafted:
            drafted.append(await _answer(backend, f"dflash-{index}", prompt, num_tokens, "auto"))
    checks: dict[str, Any] = {"alive": _alive(plain + drafted), "sane": _sane(plain, len(set(prompts)))}
    if drafted:
        if sum(answer.speculation.num_rounds for answer in drafted) == 0:
            most = backend.info.num_drafted
            drafted = [
                await _answer(backend, f"forced-{index}", prompt, num_tokens, most)
                for index, prompt in enumerate(prompts)
            ]
        tolerance = 0.0 if row_invariant else TOLERANCE[dtype_name]
        checks["lossless"] = await _lossless(backend, prompts, plain, drafted, tolerance)
        checks["effective"] = _effective(drafted)
        checks["faster"] = _faster(plain, drafted)
    else:
        checks["faster"] = {"ok": True, "plain_tok_per_s": _rate(plain)}
    return _judge(checks, has_drafter=bool(drafted))


def _judge(checks: dict[str, Any], *, has_drafter: bool) -> ReadyReport:
    must = [name for name in ("alive", "sane", "lossless") if name in checks]
    if not all(checks[name]["ok"] for name in must):
        return ReadyReport(ready=False, verdict="broken", checks=checks)
    if not has_drafter:
        return ReadyReport(ready=True, verdict="plain", checks=checks)
    proven = checks["effective"]["ok"] and checks["faster"]["ok"]
    return ReadyReport(ready=True, verdict="proven" if proven else "unprofitable", checks=checks)


def _encode(backend: Generator, text: str) -> tuple[int, ...]:
    try:
        ids = backend.encode_chat([{"role": "user", "content": text}])
    except RequestError:
        ids = backend.encode(text)
    return ids[-(backend.info.max_model_len // 2) :]  # a toy context may be shorter than the prompt


async def _answer(
    backend: Generator,
    name: str,
    prompt: tuple[int, ...],
    num_tokens: int,
    speculation: Speculation,
    num_top: int | None = None,
) -> Answer:
    sampling = SamplingParams(temperature=0.0, max_tokens=num_tokens, ignore_eos=True, logprobs=num_top)
    request = GenerateRequest(f"self-check-{name}", prompt, sampling, speculation)
    token_ids: list[int] = []
    logprobs: list[PositionLogprobs] = []
    first_s = last_s = time.perf_counter()
    async for delta in backend.generate(request):
        last_s = time.perf_counter()
        if not token_ids:
            first_s = last_s
        token_ids.extend(delta.token_ids)
        logprobs.extend(delta.logprobs or ())
    stats = delta.usage.speculation if delta.usage is not None else SpeculationStats()
    return Answer(
        tuple(token_ids), tuple(logprobs), last_s - first_s, delta.finish_reason, stats, delta.error
    )


def _alive(answers: Sequence[Answer]) -> dict[str, Any]:
    failed = [answer.error for answer in answers if answer.finish_reason == FinishReason.ERROR]
    num_tokens = sum(len(answer.token_ids) for answer in answers)
    return {"ok": not failed and num_tokens > 0, "num_tokens": num_tokens, "errors": failed}


def _sane(answers: Sequence[Answer], num_prompts: int) -> dict[str, Any]:
    """No answer is one token over and over, and not all prompts get the same answer.

    In a very short context what is left of the prompts may be the same: `num_prompts` different ones.
    """
    stuck = sum(len(set(answer.token_ids)) <= 2 < len(answer.token_ids) for answer in answers)
    distinct = len({answer.token_ids for answer in answers})
    ok = stuck < len(answers) and (distinct > 1 or num_prompts == 1)
    return {"ok": ok, "num_stuck": stuck, "num_distinct": distinct}


async def _lossless(
    backend: Generator,
    prompts: Sequence[tuple[int, ...]],
    plain: Sequence[Answer],
    drafted: Sequence[Answer],
    tolerance: float,
) -> dict[str, Any]:
    """Every token equal, or forked at a near-tie that rounding explains.

    `tolerance` 0: each row's bits do not depend on the rows beside it, so nothing explains a fork.
    """
    num_equal, num_near_ties, faults = 0, 0, []
    for index, (one, other) in enumerate(zip(plain, drafted, strict=True)):
        fork = _first_difference(one.token_ids, other.token_ids)
        if fork is None:
            num_equal += 1
            continue
        margin = await _margin(backend, prompts[index], other.token_ids, fork)
        if margin is not None and margin < tolerance:
            num_near_ties += 1
        else:
            faults.append({"prompt": index, "position": fork, "margin": margin})
    return {
        "ok": not faults,
        "num_prompts": len(plain),
        "num_equal": num_equal,
        "num_near_ties": num_near_ties,
        "tolerance": tolerance,
        "faults": faults,
    }


def _first_difference(one: Sequence[int], other: Sequence[int]) -> int | None:
    for position, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return position
    return None if len(one) == len(other) else min(len(one), len(other))


async def _margin(
    backend: Generator, prompt: tuple[int, ...], drafted: tuple[int, ...], position: int
) -> float | None:
    """By how much plain decoding prefers its own token at `position` of the answer to the one that
    stands in `drafted`, in log-probability; None where that one is not even among the likeliest."""
    if position >= len(drafted):
        return None
    answer = await _answer(backend, "margin", prompt, position + 1, "off", num_top=MARGIN_TOP)
    if len(answer.logprobs) <= position:
        return None
    scored = answer.logprobs[position]
    for entry in scored.top:
        if entry.token_id == drafted[position]:
            return scored.chosen.logprob - entry.logprob
    return None


def _effective(drafted: Sequence[Answer]) -> dict[str, Any]:
    rounds = sum(answer.speculation.num_rounds for answer in drafted)
    committed = sum(answer.speculation.num_committed for answer in drafted)
    accepted = sum(answer.speculation.num_accepted for answer in drafted)
    tau = committed / rounds if rounds else None
    return {"ok": accepted > 0, "tau": tau, "num_rounds": rounds, "num_accepted": accepted}


def _faster(plain: Sequence[Answer], drafted: Sequence[Answer]) -> dict[str, Any]:
    """Speeds, and the median over prompts of DFlash's speed in plain decoding's right before it.

    A machine that is busy for a moment slows one pair of answers, not one arm of all.
    """
    pairs = [
        (slow, fast)
        for one, other in zip(plain, drafted, strict=True)
        if (slow := _speed(one)) is not None and (fast := _speed(other)) is not None
    ]
    ratio = statistics.median(fast / slow for slow, fast in pairs) if pairs else None
    return {
        "ok": ratio is not None and ratio > 1.0,
        "plain_tok_per_s": _rate(plain),
        "dflash_tok_per_s": _rate(drafted),
        "ratio": ratio,
    }


def _speed(answer: Answer) -> float | None:
    """Tokens a second of decoding, the first token apart."""
    if answer.decode_s <= 0 or len(answer.token_ids) < 2:
        return None
    return (len(answer.token_ids) - 1) / answer.decode_s


def _rate(answers: Sequence[Answer]) -> float | None:
    """Median decoding speed, in tokens a second."""
    speeds = [speed for answer in answers if (speed := _speed(answer)) is not None]
    return statistics.median(speeds) if speeds else None
