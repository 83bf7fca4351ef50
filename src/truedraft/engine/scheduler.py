"""Decides what every step runs and takes in what it gave. Plain integers; no torch.

One step holds a round of every decoding sequence and, in what is left of the row budget, the next
chunk of prompts that are being prefilled. Pages are reserved before a step and committed after it;
when they run out, the sequence that came last gives its pages back and starts again later.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace

from truedraft.contract.request import FinishReason, PositionLogprobs, RoundTrace
from truedraft.contract.step import Extend, Outcome, StepPlan, StepResult
from truedraft.engine.policy import Candidate, Probe, VerifyPolicy
from truedraft.engine.sequence import Counters, SeqEvent, Sequence
from truedraft.kvcache.pages import PageAllocator

logger = logging.getLogger(__name__)


STREAMING_SHARE = 4  # while others stream, a prompt gets this part of a chunk: they wait a shorter time


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    """What a step may hold. `block_len` rows past the committed length are scratch for drafting."""

    max_num_seqs: int
    prefill_chunk_len: int  # prompt tokens a step; a part of it while others decode
    block_len: int  # 0 without a drafter
    num_drafted: int


class Scheduler:
    """Owns every sequence between `add` and its one terminal event."""

    def __init__(
        self,
        limits: SchedulerLimits,
        allocator: PageAllocator,
        policy: VerifyPolicy,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._limits = limits
        self._allocator = allocator
        self._policy = policy
        self._clock = clock
        self._waiting: deque[Sequence] = deque()
        self._running: list[Sequence] = []
        self._probes: dict[int, Probe] = {}
        self._next_step_id = 0
        self.totals = Counters()
        self.num_preempted = 0
        self.mean_verify_len = 1.0

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def is_idle(self) -> bool:
        return not self._waiting and not self._running

    def add(self, seq: Sequence) -> None:
        self._waiting.append(seq)

    def abort(self, seq_id: int) -> SeqEvent | None:
        """Drop a sequence at once; None if it has ended already."""
        for seq in (*self._running, *self._waiting):
            if seq.seq_id == seq_id:
                return self._finish(seq, FinishReason.ABORT)
        return None

    def end_all(self, reason: FinishReason, error: str | None = None) -> list[SeqEvent]:
        """End every sequence: the engine failed, or is shut down."""
        return [self._finish(seq, reason, error=error) for seq in (*self._running, *self._waiting)]

    def plan(self) -> StepPlan | None:
        """The next step, or None when there is nothing to run."""
        self._admit()
        extends = self._plan_rounds()
        extends += self._plan_prefill()
        if not extends:
            return None
        self._next_step_id += 1
        return StepPlan(self._next_step_id, tuple(extends))

    def commit(self, plan: StepPlan, result: StepResult) -> list[SeqEvent]:
        """Take in a step's outcomes. → one event for each sequence with new tokens."""
        by_id = {seq.seq_id: seq for seq in self._running}
        events = []
        for extend, outcome in zip(plan.extends, result.outcomes, strict=True):
            seq = by_id[extend.seq_id]
            try:
                event = self._commit_one(seq, extend, outcome)
            except Exception as error:
                # A grammar past its limits, say: the end of one sequence, not of those beside it.
                logger.exception("sequence %d cannot go on", seq.seq_id)
                event = self._finish(seq, FinishReason.ERROR, error=f"the sequence cannot go on: {error}")
            if event is not None:
                events.append(event)
        if all(extend.start >= extend.num_prompt_tokens for extend in plan.extends):
            blocks = sum(extend.num_drafted > 0 for extend in plan.extends)
            self._policy.observe(plan.num_rows, result.verify_s, blocks, result.draft_s)
        return events

    def _commit_one(self, seq: Sequence, extend: Extend, outcome: Outcome) -> SeqEvent | None:
        if outcome.error is not None:
            return self._finish(seq, FinishReason.ERROR, error=outcome.error)
        seq.cached_len += len(extend.token_ids) + outcome.num_accepted
        self._allocator.commit(seq.seq_id, seq.cached_len)
        if outcome.prompt_logprobs:
            seq.prompt_logprobs.extend(outcome.prompt_logprobs)
        return self._emit(seq, extend, outcome) if extend.samples else None

    def _admit(self) -> None:
        while self._waiting and len(self._running) < self._limits.max_num_seqs:
            seq = self._waiting[0]
            if not self._allocator.reserve(seq.seq_id, self._scratch_len(len(seq.token_ids))):
                return
            self._waiting.popleft()
            self._running.append(seq)
            self._probes.setdefault(seq.seq_id, Probe())
            if seq.started_s is None:
                seq.started_s = self._clock()

    def _scratch_len(self, cached_len: int) -> int:
        return cached_len + max(self._limits.block_len, 1 + self._limits.num_drafted)

    def _plan_rounds(self) -> list[Extend]:
        for seq in [seq for seq in self._running if seq.is_decoding]:
            while seq in self._running and not self._allocator.reserve(
                seq.seq_id, self._scratch_len(seq.cached_len)
            ):
                self._preempt_last()
        decoding = [seq for seq in self._running if seq.is_decoding]
        if not decoding:
            return []
        candidates = [self._candidate(seq) for seq in decoding]
        drafts = self._policy.choose(candidates)
        rows = sum(drafts) + len(drafts)
        self.mean_verify_len += 0.05 * (rows / len(drafts) - self.mean_verify_len)
        return [
            self._extend(seq, seq.cached_len, len(seq.token_ids), num_drafted, samples=True)
            for seq, num_drafted in zip(decoding, drafts, strict=True)
        ]

    def _candidate(self, seq: Sequence) -> Candidate:
        limit = max(0, min(self._limits.num_drafted, seq.room_len - 1))
        speculation = seq.request.speculation or "auto"
        return Candidate(speculation, seq.acceptance, self._probes[seq.seq_id], limit)

    def _plan_prefill(self) -> list[Extend]:
        budget = self._limits.prefill_chunk_len
        if any(seq.is_decoding for seq in self._running):
            budget = max(1, budget // STREAMING_SHARE)
        extends: list[Extend] = []
        for seq in self._running:
            if seq.is_decoding or budget <= 0:
                continue
            count = min(seq.num_uncached, budget)
            budget -= count
            end = seq.cached_len + count
            extends.append(self._extend(seq, seq.cached_len, end, 0, samples=end == len(seq.token_ids)))
        return extends

    def _extend(self, seq: Sequence, start: int, end: int, num_drafted: int, *, samples: bool) -> Extend:
        return Extend(
            seq_id=seq.seq_id,
            token_ids=tuple(seq.token_ids[start:end]),
            start=start,
            num_drafted=num_drafted,
            samples=samples,
            pages=self._allocator.pages(seq.seq_id),
            captures=self._limits.num_drafted > 0 and seq.request.speculation != "off",
            sampling=seq.request.sampling,
            seed=seq.seed,
            num_prompt_tokens=seq.num_prompt_tokens,
            history=seq.token_ids,
            constraint=seq.constraint,
        )

    def _preempt_last(self) -> None:
        """Give back the pages of the youngest sequence; it is prefilled again when there is room."""
        seq = self._running.pop()
        self._allocator.release(seq.seq_id)
        seq.cached_len = 0
        seq.prompt_logprobs.clear()
        self._waiting.appendleft(seq)
        self.num_preempted += 1

    def _emit(self, seq: Sequence, extend: Extend, outcome: Outcome) -> SeqEvent:
        emitted: list[int] = []
        ended = None
        for token_id in outcome.token_ids:
            seq.token_ids.append(token_id)
            emitted.append(token_id)
            ended = seq.stop_at(token_id)
            if ended is not None:
                break
        scored = None
        if seq.first_token_s is None:
            seq.first_token_s = self._clock()
            if seq.request.sampling.prompt_logprobs is not None:
                # A copy: a sequence that is preempted scores its prompt again.
                scored = tuple(seq.prompt_logprobs)
        self._count(seq, extend, outcome, len(emitted))
        if seq.constraint is not None:
            seq.constraint.commit(emitted)
        trace = RoundTrace(outcome.draft_ids, min(outcome.num_accepted, len(emitted)))
        logprobs = outcome.logprobs[: len(emitted)] if outcome.logprobs is not None else None
        if ended is None:
            # A stop string may end the answer in the caller's thread, while this one goes on.
            stats = seq.counters.snapshot() if seq.request.sampling.stop else None
            return SeqEvent(seq, tuple(emitted), trace, logprobs, scored, stats=stats)
        event = self._finish(seq, ended[0], ended[1], tuple(emitted), trace, logprobs)
        return replace(event, prompt_logprobs=scored)

    def _count(self, seq: Sequence, extend: Extend, outcome: Outcome, num_emitted: int) -> None:
        probe = self._probes[seq.seq_id]
        if extend.num_drafted > 0:
            num_kept = min(outcome.num_accepted, num_emitted)
            seq.acceptance.observe(extend.num_drafted, outcome.num_accepted)
            seq.counters.count_round(extend.num_drafted, num_kept, num_emitted)
            self.totals.count_round(extend.num_drafted, num_kept, num_emitted)
            probe.count_round(paid=outcome.num_accepted > 0)
        elif extend.start >= seq.num_prompt_tokens:
            seq.counters.num_plain_steps += 1
            self.totals.num_plain_steps += 1
            probe.count_plain()

    def _finish(
        self,
        seq: Sequence,
        reason: FinishReason,
        stop_reason: str | int | None = None,
        token_ids: tuple[int, ...] = (),
        trace: RoundTrace | None = None,
        logprobs: tuple[PositionLogprobs, ...] | None = None,
        error: str | None = None,
    ) -> SeqEvent:
        if seq in self._running:  # only running sequences hold pages
            self._running.remove(seq)
            self._allocator.release(seq.seq_id)
        else:
            self._waiting.remove(seq)
        self._probes.pop(seq.seq_id, None)
        stats = seq.counters.snapshot()
        return SeqEvent(seq, token_ids, trace, logprobs, None, reason, stop_reason, error, stats)
