"""Drives a pair through the real scheduler and step, in the test's own thread.

driver = Driver(target, drafter, page_len=4)
answers = driver.run([ask([1, 5, 9], max_tokens=20, speculation=3)])
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from truedraft.contract.request import (
    FinishReason,
    GenerateRequest,
    PositionLogprobs,
    SamplingParams,
    Speculation,
    SpeculationStats,
)
from truedraft.engine.acceptance import AcceptanceEstimate
from truedraft.engine.policy import CostTable, VerifyPolicy
from truedraft.engine.scheduler import Scheduler, SchedulerLimits
from truedraft.engine.sequence import Sequence as EngineSequence
from truedraft.engine.step import StepRunner
from truedraft.kvcache.pages import PageAllocator
from truedraft.kvcache.pool import KVPool


@dataclass
class Answer:
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[PositionLogprobs] = field(default_factory=list)
    prompt_logprobs: list[PositionLogprobs] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    stats: SpeculationStats | None = None
    error: str | None = None


def ask(
    prompt: Sequence[int],
    *,
    max_tokens: int = 24,
    speculation: Speculation = "auto",
    temperature: float = 0.0,
    ignore_eos: bool = True,
    **sampling,
) -> GenerateRequest:
    params = SamplingParams(temperature=temperature, max_tokens=max_tokens, ignore_eos=ignore_eos, **sampling)
    return GenerateRequest("toy", tuple(prompt), params, speculation)


class Driver:
    def __init__(
        self,
        target,
        drafter=None,
        *,
        num_pages: int = 256,
        page_len: int = 4,
        max_num_seqs: int = 8,
        prefill_chunk_len: int = 64,
        costs: CostTable | None = None,
        constraint_of=None,
    ) -> None:
        spec = target.spec
        self.allocator = PageAllocator(num_pages, page_len)
        pools = [self._pool(model.spec, target) for model in (target, drafter) if model is not None]
        self.runner = StepRunner(
            target, pools[0], target.ops, torch.device("cpu"), drafter, pools[1] if drafter else None
        )
        self.num_drafted = drafter.spec.num_drafted if drafter else 0
        block_len = drafter.spec.block_len if drafter else 0
        limits = SchedulerLimits(max_num_seqs, prefill_chunk_len, block_len, self.num_drafted)
        self.scheduler = Scheduler(limits, self.allocator, VerifyPolicy(self.num_drafted, costs))
        self.max_position = spec.max_position
        self._constraint_of = constraint_of
        self._next_id = 0

    def _pool(self, spec, target) -> KVPool:
        attention = spec.attention
        return KVPool(
            spec.num_layers,
            self.allocator.num_pages,
            self.allocator.page_len,
            attention.num_kv_heads,
            attention.head_dim,
            target.dtype,
        )

    def add(self, request: GenerateRequest) -> EngineSequence:
        self._next_id += 1
        sampling = request.sampling
        constraint = self._constraint_of(sampling.grammar) if sampling.grammar else None
        seq = EngineSequence(
            seq_id=self._next_id,
            request=request,
            seed=sampling.seed or 0,
            max_len=len(request.prompt_token_ids) + sampling.max_tokens,
            eos_ids=frozenset(self.runner.target.spec.eos_ids),
            constraint=constraint,
            acceptance=AcceptanceEstimate(self.num_drafted),
        )
        self.scheduler.add(seq)
        return seq

    def step(self) -> list:
        plan = self.scheduler.plan()
        if plan is None:
            return []
        events = self.scheduler.commit(plan, self.runner.run(plan))
        self.allocator.check()
        return events

    def run(self, requests: Sequence[GenerateRequest], joins: Sequence[int] | None = None) -> list[Answer]:
        """All requests to their end; request i joins before step joins[i] (default: all at once)."""
        joins = joins or [0] * len(requests)
        answers: dict[int, Answer] = {}
        order: dict[int, int] = {}
        step = 0
        while step <= max(joins) or not self.scheduler.is_idle:
            for index, (request, join) in enumerate(zip(requests, joins, strict=True)):
                if join == step:
                    seq = self.add(request)
                    order[seq.seq_id] = index
                    answers[index] = Answer()
            for event in self.step():
                answer = answers[order[event.seq.seq_id]]
                answer.token_ids.extend(event.token_ids)
                answer.logprobs.extend(event.logprobs or ())
                if event.finish_reason is not None:
                    answer.finish_reason = event.finish_reason
                    answer.stats = event.stats
                    answer.error = event.error
                    answer.prompt_logprobs = event.seq.prompt_logprobs
            step += 1
        assert self.allocator.num_free == self.allocator.num_pages
        return [answers[index] for index in range(len(requests))]

    def run_one(self, request: GenerateRequest) -> Answer:
        return self.run([request])[0]
