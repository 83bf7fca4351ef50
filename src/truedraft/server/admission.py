"""Who may come in: counts sequences in flight, bounds the queue, and drains at shutdown."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from truedraft.errors import RequestError
from truedraft.server.http_errors import DrainingError, QueueFullError


class Ticket:
    """Places of one HTTP request; `release` may be called more than once."""

    def __init__(self, admission: Admission, num_seqs: int) -> None:
        self._admission = admission
        self._num_seqs = num_seqs

    def release(self) -> None:
        self._admission.leave(self._num_seqs)
        self._num_seqs = 0


class Admission:
    """`num_running` tells how many sequences the backend has at work; the rest of those in flight wait."""

    def __init__(self, *, max_queue_len: int, num_running: Callable[[], int]) -> None:
        self._max_queue_len = max_queue_len
        self._num_running = num_running
        self._in_flight = 0
        self._draining = False

    @property
    def in_flight(self) -> int:
        return self._in_flight

    @property
    def draining(self) -> bool:
        return self._draining

    def enter(self, num_seqs: int) -> Ticket:
        """Take places for `num_seqs` sequences.

        Raises DrainingError at shutdown, QueueFullError where too many wait, and RequestError where
        the request alone is longer than the queue.
        """
        self.check_open()
        # A request finds its place at once where nothing waits: one sequence passes any queue length.
        if num_seqs > max(self._max_queue_len, 1):
            raise RequestError(
                f"The request asks for {num_seqs} sequences, but the queue takes {self._max_queue_len}",
                param="n",
                remedy="Send fewer prompts, or a smaller n, in one request",
            )
        waiting = max(0, self._in_flight - self._num_running())
        if waiting and waiting + num_seqs > self._max_queue_len:
            raise QueueFullError(
                f"{waiting} sequences wait already, and the queue takes {self._max_queue_len}",
                remedy="Try again in a moment",
            )
        self._in_flight += num_seqs
        return Ticket(self, num_seqs)

    def leave(self, num_seqs: int) -> None:
        self._in_flight -= num_seqs
        assert self._in_flight >= 0

    def check_open(self) -> None:
        """Raise DrainingError once shutdown has begun."""
        if self._draining:
            raise DrainingError("The server is shutting down", remedy="Send the request to another server")

    def start_drain(self) -> None:
        self._draining = True

    async def wait_idle(self, timeout_s: float) -> bool:
        """→ whether everything in flight ended within `timeout_s` seconds."""
        deadline_s = time.monotonic() + timeout_s
        while self._in_flight and time.monotonic() < deadline_s:
            await asyncio.sleep(0.02)
        return not self._in_flight
