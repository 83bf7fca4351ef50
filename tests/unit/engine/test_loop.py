"""The engine's thread: one terminal event a sequence, whatever happens."""

from __future__ import annotations

import threading
import time

import pytest

from truedraft.contract.request import FinishReason, GenerateRequest, SamplingParams
from truedraft.contract.step import Outcome, StepPlan, StepResult
from truedraft.engine.acceptance import AcceptanceEstimate
from truedraft.engine.loop import EngineLoop
from truedraft.engine.policy import VerifyPolicy
from truedraft.engine.scheduler import Scheduler, SchedulerLimits
from truedraft.engine.sequence import Sequence
from truedraft.kvcache.pages import PageAllocator


class CountingRunner:
    """Answers every sampling extend with its step's number; can fail, and can be held up."""

    def __init__(self) -> None:
        self.fail_next = False
        self.gate = threading.Event()
        self.gate.set()

    def run(self, plan: StepPlan) -> StepResult:
        assert self.gate.wait(10)
        if self.fail_next:
            self.fail_next = False
            raise RuntimeError("no such kernel")
        return StepResult(
            plan.step_id,
            tuple(Outcome(e.seq_id, (5,) if e.samples else ()) for e in plan.extends),
        )


class Ends:
    """Collects terminal events and waits for them."""

    def __init__(self) -> None:
        self.events = []
        self.changed = threading.Condition()

    def take(self, events) -> None:
        with self.changed:
            self.events += [event for event in events if event.finish_reason is not None]
            self.changed.notify_all()

    def wait_for(self, count: int) -> list:
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.events) >= count, timeout=10)
            return list(self.events)


def sequence(seq_id: int, max_tokens: int) -> Sequence:
    request = GenerateRequest(str(seq_id), (1, 2, 3), SamplingParams(max_tokens=max_tokens))
    return Sequence(seq_id, request, 0, 3 + max_tokens, frozenset(), None, AcceptanceEstimate(0))


@pytest.fixture
def engine():
    runner, ends = CountingRunner(), Ends()
    scheduler = Scheduler(SchedulerLimits(4, 8, 0, 0), PageAllocator(512, 4), VerifyPolicy(0, None))
    loop = EngineLoop(scheduler, runner, ends.take)
    loop.start()
    yield loop, runner, ends
    runner.gate.set()
    loop.close()
    assert not loop.is_alive


def test_finishes_what_is_submitted(engine):
    loop, _, ends = engine
    for seq_id in range(6):
        loop.submit(sequence(seq_id, max_tokens=seq_id + 1))
    done = ends.wait_for(6)
    assert {event.seq.seq_id for event in done} == set(range(6))
    assert all(event.finish_reason == FinishReason.LENGTH for event in done)
    assert all(event.seq.num_tokens == event.seq.seq_id + 1 for event in done)


def test_abort_ends_a_running_sequence_and_unknown_ids_do_not_matter(engine):
    loop, runner, ends = engine
    runner.gate.clear()
    loop.submit(sequence(1, max_tokens=1000))
    loop.abort(1)
    loop.abort(77)
    runner.gate.set()
    assert ends.wait_for(1)[0].finish_reason == FinishReason.ABORT


def test_a_failed_step_ends_its_sequences_and_the_engine_goes_on(engine):
    loop, runner, ends = engine
    runner.fail_next = True
    loop.submit(sequence(1, max_tokens=5))
    failed = ends.wait_for(1)[0]
    assert failed.finish_reason == FinishReason.ERROR
    assert "no such kernel" in failed.error
    loop.submit(sequence(2, max_tokens=5))
    assert ends.wait_for(2)[1].finish_reason == FinishReason.LENGTH


def test_close_ends_what_still_runs():
    runner, ends = CountingRunner(), Ends()
    scheduler = Scheduler(SchedulerLimits(4, 8, 0, 0), PageAllocator(512, 4), VerifyPolicy(0, None))
    loop = EngineLoop(scheduler, runner, ends.take)
    loop.start()
    loop.submit(sequence(1, max_tokens=2000))
    time.sleep(0.02)
    loop.close()
    ended = ends.wait_for(1)
    assert len(ended) == 1
    assert ended[0].finish_reason in (FinishReason.ABORT, FinishReason.LENGTH)


def test_a_broken_engine_ends_what_runs_and_what_waits_in_its_inbox(monkeypatch):
    runner, ends = CountingRunner(), Ends()
    scheduler = Scheduler(SchedulerLimits(4, 8, 0, 0), PageAllocator(512, 4), VerifyPolicy(0, None))
    loop = EngineLoop(scheduler, runner, ends.take)

    def abort(seq_id: int) -> None:
        raise KeyError("no such sequence")

    monkeypatch.setattr(scheduler, "abort", abort)
    loop.submit(sequence(1, max_tokens=2000))
    loop.abort(1)
    loop.submit(sequence(2, max_tokens=3))
    loop.start()
    ended = ends.wait_for(2)
    assert {event.seq.seq_id for event in ended} == {1, 2}
    assert all(event.finish_reason == FinishReason.ERROR for event in ended)
    assert all("engine stopped" in event.error for event in ended)
    loop.close()
    assert not loop.is_alive


def test_a_plan_that_fails_ends_its_sequences_and_the_engine_goes_on(engine, monkeypatch):
    loop, _, ends = engine
    scheduler = loop._scheduler
    whole = scheduler.plan
    plans = iter([RuntimeError("no plan")])

    def plan():
        if scheduler.is_idle:
            return None
        failure = next(plans, None)
        if failure is not None:
            raise failure
        return whole()

    monkeypatch.setattr(scheduler, "plan", plan)
    loop.submit(sequence(1, max_tokens=5))
    assert "no plan" in ends.wait_for(1)[0].error
    loop.submit(sequence(2, max_tokens=5))
    assert ends.wait_for(2)[1].finish_reason == FinishReason.LENGTH


class Outgrown:
    """A grammar that fails when it is moved on."""

    def masks(self, draft_ids):
        raise AssertionError("the runner of these tests asks for no masks")

    def commit(self, token_ids):
        raise RuntimeError("outgrown")


def test_a_sequence_that_cannot_be_committed_ends_alone(engine):
    loop, runner, ends = engine
    runner.gate.clear()
    loop.submit(sequence(1, max_tokens=4))
    failing = sequence(2, max_tokens=4)
    failing.constraint = Outgrown()
    loop.submit(failing)
    loop.submit(sequence(3, max_tokens=4))
    runner.gate.set()
    by_id = {event.seq.seq_id: event for event in ends.wait_for(3)}
    assert by_id[2].finish_reason == FinishReason.ERROR
    assert "outgrown" in by_id[2].error
    assert by_id[1].finish_reason == by_id[3].finish_reason == FinishReason.LENGTH
