"""Runs prompts through a Backend, plain and with drafts in alternating order, and keeps the clock.

Knows the Backend protocol only: the same code measures our engine, a remote one or a scripted one.
"""

from __future__ import annotations

import asyncio
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from truedraft.bench.workload import WARM_UP_TEXTS, Prompt
from truedraft.contract.backend import Backend
from truedraft.contract.request import (
    FinishReason,
    GenerateRequest,
    SamplingParams,
    Speculation,
    Usage,
)
from truedraft.errors import BackendProtocolError

OnProgress = Callable[[int, int], None]
"""Takes answers done and answers in all."""


@dataclass(frozen=True, slots=True)
class Arm:
    """One way of decoding: its name in the report, and what every request of it asks for."""

    name: str
    speculation: Speculation


@dataclass(frozen=True, slots=True)
class BenchSettings:
    """What to run. `sampling.seed` plus the prompt's number seeds each request."""

    sampling: SamplingParams
    concurrencies: tuple[int, ...] = (1,)
    speculation: Speculation = "auto"  # of the DFlash arm

    @property
    def arms(self) -> tuple[Arm, Arm]:
        return Arm("plain", "off"), Arm("dflash", self.speculation)


@dataclass(frozen=True, slots=True)
class Answer:
    """One finished request, timed here, from before its submission to its last delta."""

    prompt: Prompt
    token_ids: tuple[int, ...]
    total_s: float
    finish_reason: FinishReason
    usage: Usage


@dataclass(frozen=True, slots=True)
class Group:
    """The same prompts under both arms, each arm running `concurrency` of them at a time."""

    concurrency: int
    plain: tuple[Answer, ...]
    plain_s: float
    dflash: tuple[Answer, ...]
    dflash_s: float


async def measure(
    backend: Backend,
    prompts: Sequence[Prompt],
    settings: BenchSettings,
    *,
    on_progress: OnProgress | None = None,
) -> list[Group]:
    """Run every prompt under both arms at every concurrency.

    One stream: a group is one prompt, so figures pair by prompt. c streams: a group is 2c prompts,
    worked off c at a time. Which arm goes first alternates from group to group. Raises BackendError
    where an answer fails.
    """
    plans = [(width, group) for width in settings.concurrencies for group in group_prompts(prompts, width)]
    num_answers = 2 * sum(len(group) for _, group in plans)
    num_done = 0

    def one_done() -> None:
        nonlocal num_done
        num_done += 1
        if on_progress is not None:
            on_progress(num_done, num_answers)

    groups: list[Group] = []
    warmed: set[int] = set()
    for index, (width, group) in enumerate(plans):
        if width not in warmed:
            await warm_up(backend, settings, width)
            warmed.add(width)
        order = settings.arms if index % 2 == 0 else settings.arms[::-1]
        runs = {arm.name: await _run_group(backend, group, settings, arm, width, one_done) for arm in order}
        (plain, plain_s), (dflash, dflash_s) = runs["plain"], runs["dflash"]
        groups.append(Group(width, plain, plain_s, dflash, dflash_s))
    return groups


def group_prompts(prompts: Sequence[Prompt], concurrency: int) -> list[tuple[Prompt, ...]]:
    """Prompts in groups of one (one stream) or of 2 × concurrency; a short last group joins its
    neighbour when it cannot fill the streams."""
    size = 1 if concurrency == 1 else 2 * concurrency
    groups = [tuple(prompts[start : start + size]) for start in range(0, len(prompts), size)]
    if len(groups) > 1 and len(groups[-1]) < concurrency:
        short = groups.pop()
        groups[-1] += short
    return groups


async def warm_up(backend: Backend, settings: BenchSettings, concurrency: int) -> None:
    """Two short answers an arm and stream, of prompts that are not measured."""
    sampling = replace(settings.sampling, max_tokens=min(16, settings.sampling.max_tokens or 16))
    short = replace(settings, sampling=sampling)
    texts = [WARM_UP_TEXTS[index % len(WARM_UP_TEXTS)] for index in range(2 * concurrency)]
    prompts = tuple(Prompt(f"warm-up-{index}", "warm-up", text) for index, text in enumerate(texts))
    for arm in settings.arms:
        await _run_group(backend, prompts, short, arm, concurrency, lambda: None)


async def _run_group(
    backend: Backend,
    prompts: Sequence[Prompt],
    settings: BenchSettings,
    arm: Arm,
    concurrency: int,
    one_done: Callable[[], None],
) -> tuple[tuple[Answer, ...], float]:
    """→ the answers in the prompts' order, and the wall time of all of them."""
    requests = [_request_for(backend, prompt, settings, arm) for prompt in prompts]
    answers: dict[int, Answer] = {}
    waiting = iter(range(len(prompts)))

    async def stream() -> None:
        for index in waiting:
            answers[index] = await run_answer(backend, prompts[index], requests[index])
            one_done()

    started_s = time.perf_counter()
    try:
        async with asyncio.TaskGroup() as streams:
            for _ in range(min(concurrency, len(prompts))):
                streams.create_task(stream())
    except ExceptionGroup as group:  # one failed answer ends the run; the first says why
        raise group.exceptions[0] from group
    wall_s = time.perf_counter() - started_s
    return tuple(answers[index] for index in range(len(prompts))), wall_s


def _request_for(backend: Backend, prompt: Prompt, settings: BenchSettings, arm: Arm) -> GenerateRequest:
    sampling = settings.sampling
    if sampling.seed is not None:
        offset = zlib.crc32(prompt.prompt_id.encode())  # the same in both arms
        sampling = replace(sampling, seed=sampling.seed + offset)
    return GenerateRequest(
        request_id=f"bench-{arm.name}-{prompt.prompt_id}-{time.monotonic_ns()}",
        prompt_token_ids=backend.encode_chat([{"role": "user", "content": prompt.text}]),
        sampling=sampling,
        speculation=arm.speculation,
    )


async def run_answer(backend: Backend, prompt: Prompt, request: GenerateRequest) -> Answer:
    """Generate one answer to its end. Raises BackendProtocolError where it fails or says no usage."""
    token_ids: list[int] = []
    started_s = time.perf_counter()
    async for delta in backend.generate(request):
        token_ids.extend(delta.token_ids)
        if delta.finish_reason is None:
            continue
        if delta.finish_reason in (FinishReason.ERROR, FinishReason.ABORT) or delta.usage is None:
            raise BackendProtocolError(
                f"The answer to {prompt.prompt_id} did not finish",
                seen=delta.error or f"finish reason {delta.finish_reason}",
            )
        total_s = time.perf_counter() - started_s
        return Answer(prompt, tuple(token_ids), total_s, delta.finish_reason, delta.usage)
    raise BackendProtocolError(f"The answer to {prompt.prompt_id} ended without a finish reason")
