"""The calibration text: the target's own greedy answers, written by our engine in one batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from truedraft.contract.request import GenerateRequest, SamplingParams
from truedraft.engine.acceptance import AcceptanceEstimate
from truedraft.engine.policy import VerifyPolicy
from truedraft.engine.scheduler import Scheduler, SchedulerLimits
from truedraft.engine.sequence import Sequence as EngineSequence
from truedraft.engine.step import StepRunner
from truedraft.errors import BackendError
from truedraft.kernels.ops import Ops
from truedraft.kvcache.pages import PageAllocator
from truedraft.kvcache.pool import KVPool
from truedraft.models.interface import Target
from truedraft.recovery.texts import Text

PAGE_LEN = 16
CHUNK_LEN = 512

OnStep = Callable[[int, int], None]
"""Hears (done, in all)."""


def write_answers(
    target: Target,
    prompts: Sequence[tuple[int, ...]],
    *,
    num_tokens: int,
    ops: Ops,
    device: torch.device,
    on_step: OnStep,
) -> list[Text]:
    """→ each prompt with up to `num_tokens` greedy tokens behind it; all run at once, no speculation.

    Raises BackendError where a step gives no token.
    """
    longest = max(map(len, prompts)) + num_tokens
    allocator = PageAllocator(len(prompts) * -(-(longest + 1) // PAGE_LEN), PAGE_LEN)
    limits = SchedulerLimits(len(prompts), CHUNK_LEN, 0, 0)
    scheduler = Scheduler(limits, allocator, VerifyPolicy(0, None))
    runner = StepRunner(target, pool_for(target, allocator.num_pages, PAGE_LEN, device), ops, device)
    answers: dict[int, list[int]] = {}
    for index, prompt in enumerate(prompts):
        answers[index] = []
        scheduler.add(_sequence(index, prompt, num_tokens, frozenset(target.spec.eos_ids)))
    while (plan := scheduler.plan()) is not None:
        for event in scheduler.commit(plan, runner.run(plan)):
            answers[event.seq.seq_id].extend(event.token_ids)
            if event.error is not None:
                raise BackendError("The target could not write the calibration text", seen=event.error)
        on_step(sum(map(len, answers.values())), len(prompts) * num_tokens)
    return [Text((*prompt, *answers[index]), len(prompt)) for index, prompt in enumerate(prompts)]


def pool_for(target: Target, num_pages: int, page_len: int, device: torch.device) -> KVPool:
    """→ an empty cache for this target."""
    attention = target.spec.attention
    return KVPool(
        target.num_attention_layers,
        num_pages,
        page_len,
        attention.num_kv_heads,
        attention.head_dim,
        target.dtype,  # type: ignore[attr-defined] # all of ours have it
        device,
    )


def _sequence(
    index: int, prompt: tuple[int, ...], num_tokens: int, eos_ids: frozenset[int]
) -> EngineSequence:
    request = GenerateRequest(
        "calibration", prompt, SamplingParams(temperature=0.0, max_tokens=num_tokens), "off"
    )
    return EngineSequence(
        seq_id=index,
        request=request,
        seed=0,
        max_len=len(prompt) + num_tokens,
        eos_ids=eos_ids,
        constraint=None,
        acceptance=AcceptanceEstimate(0),
    )
