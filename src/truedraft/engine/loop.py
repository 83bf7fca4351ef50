"""The engine's thread: takes in requests, plans, steps, commits, and hands events out.

Everything that touches the scheduler happens on this one thread. Callers speak to it through an
inbox and hear back through `on_events`, which must not block.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from queue import Empty, SimpleQueue
from typing import Protocol

from truedraft.contract.request import FinishReason
from truedraft.contract.step import StepPlan, StepResult
from truedraft.engine.scheduler import Scheduler
from truedraft.engine.sequence import SeqEvent, Sequence

logger = logging.getLogger(__name__)

IDLE_TURN_S = 1.0  # an idle loop turns this often, so that a stuck one can be told from it


class Runner(Protocol):
    """engine.step.StepRunner, or a stand-in of tests."""

    def run(self, plan: StepPlan) -> StepResult: ...


class EngineLoop:
    """Runs `scheduler` on `runner` until closed. Every submitted sequence gets one terminal event."""

    def __init__(
        self,
        scheduler: Scheduler,
        runner: Runner,
        on_events: Callable[[SequenceOf[SeqEvent]], None],
    ) -> None:
        self._scheduler = scheduler
        self._runner = runner
        self._on_events = on_events
        self._inbox: SimpleQueue[Sequence | int | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._turn_until_closed, name="truedraft-engine", daemon=True)
        self.last_turn_s = time.monotonic()
        self.num_steps = 0

    def start(self) -> None:
        self._thread.start()

    def submit(self, seq: Sequence) -> None:
        self._inbox.put(seq)

    def abort(self, seq_id: int) -> None:
        """End a sequence before its next step. Unknown or ended ids are ignored."""
        self._inbox.put(seq_id)

    def close(self) -> None:
        """Abort what still runs and stop the thread. Blocks until the current step is done."""
        self._inbox.put(None)
        if self._thread.ident is not None:
            self._thread.join()

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def _turn_until_closed(self) -> None:
        reason, error = FinishReason.ABORT, None
        try:
            while self._take_in():
                self._turn()
        except Exception as failure:  # not a step: the engine itself is wrong, and stops
            logger.exception("the engine's thread failed")
            reason, error = FinishReason.ERROR, f"the engine stopped: {failure}"
        self._take_rest()
        self._deliver(self._scheduler.end_all(reason, error))

    def _take_rest(self) -> None:
        """Sequences that came after the end: they get their terminal event as well."""
        while not self._inbox.empty():
            message = self._inbox.get_nowait()
            if isinstance(message, Sequence):
                self._scheduler.add(message)

    def _take_in(self) -> bool:
        """Empty the inbox; wait for it while there is nothing to run. → False once closed."""
        self.last_turn_s = time.monotonic()
        block = self._scheduler.is_idle
        while True:
            try:
                message = self._inbox.get(timeout=IDLE_TURN_S) if block else self._inbox.get_nowait()
            except Empty:
                return True
            block = False
            if message is None:
                return False
            if isinstance(message, Sequence):
                self._scheduler.add(message)
            elif (event := self._scheduler.abort(message)) is not None:
                self._deliver([event])

    def _turn(self) -> None:
        """Plan and run one step, if there is anything to run."""
        try:
            plan = self._scheduler.plan()
            if plan is None:
                return
            result = self._runner.run(plan)
            self.num_steps += 1
            events = self._scheduler.commit(plan, result)
        except Exception as error:
            # A failed step leaves no sequence in a known state: end them all, serve the next ones.
            logger.exception("an engine step failed")
            events = self._scheduler.end_all(FinishReason.ERROR, f"the engine's step failed: {error}")
        self._deliver(events)

    def _deliver(self, events: SequenceOf[SeqEvent]) -> None:
        if events:
            self._on_events(events)
