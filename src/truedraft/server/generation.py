"""Runs the sequences of one HTTP request and turns them into one stream of (choice, delta)."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import cast

from truedraft.contract.backend import Backend
from truedraft.contract.request import FinishReason, GenerateRequest, TokenDelta
from truedraft.errors import (
    BackendError,
    BackendProtocolError,
    BackendTimeoutError,
    CapacityError,
    RequestError,
)
from truedraft.server.http_errors import DrainingError
from truedraft.server.metrics import ServerMetrics
from truedraft.server.state import ServerState

log = logging.getLogger("truedraft.server")
Deltas = AsyncGenerator[tuple[int, TokenDelta], None]
_NO_ENDING = "The backend ended a sequence without saying why"


async def run(state: ServerState, requests: Sequence[GenerateRequest]) -> Deltas:
    """Yields every delta of every request, each with its index, until all have ended.

    Raises what `Admission.enter` and the backend raise, BackendError where an engine failed or gave
    up, BackendTimeoutError after `request_timeout_s`. Closing it aborts what still runs, at once.
    """
    ticket = state.admission.enter(len(requests))
    for request in requests:
        _log_prompt(state, request)
    clocks = [_Clock(state.metrics) for _ in requests]
    deadline_s = asyncio.get_running_loop().time() + state.config.request_timeout_s
    outcome: FinishReason | None = FinishReason.ABORT
    source = _one(state.backend, requests[0]) if len(requests) == 1 else _merged(state.backend, requests)
    try:
        async with aclosing(source) as deltas:
            open_seqs = len(requests)
            while open_seqs:
                index, delta = await _next(deltas, deadline_s, state.config.request_timeout_s)
                _log_delta(state, requests[index], delta)
                clocks[index].tick(delta)
                _check_ending(state, delta)
                open_seqs -= delta.finish_reason is not None
                yield index, delta
    except (RequestError, CapacityError):
        outcome = None
        raise
    except Exception:
        outcome = FinishReason.ERROR
        raise
    finally:
        ticket.release()
        for clock in clocks:
            clock.close(outcome)


async def _next(deltas: Deltas, deadline_s: float, timeout_s: float) -> tuple[int, TokenDelta]:
    # The timeout covers one wait only: a generator must not hold one across a yield.
    try:
        async with asyncio.timeout_at(deadline_s):
            return await anext(deltas)
    except TimeoutError:
        raise BackendTimeoutError(f"The answer was not complete within {timeout_s:g} s") from None
    except StopAsyncIteration:
        raise BackendProtocolError(_NO_ENDING) from None


async def _one(backend: Backend, request: GenerateRequest) -> Deltas:
    async with aclosing(_generate(backend, request)) as deltas:
        async for delta in deltas:
            yield 0, delta


async def _merged(backend: Backend, requests: Sequence[GenerateRequest]) -> Deltas:
    queue: asyncio.Queue[tuple[int, TokenDelta] | Exception] = asyncio.Queue(maxsize=2 * len(requests))

    async def pump(index: int, request: GenerateRequest) -> None:
        try:
            async with aclosing(_generate(backend, request)) as deltas:
                ended = False
                async for delta in deltas:
                    ended = delta.finish_reason is not None
                    await queue.put((index, delta))
            if not ended:
                raise BackendProtocolError(_NO_ENDING)
        except Exception as error:
            await queue.put(error)

    tasks = [asyncio.create_task(pump(index, request)) for index, request in enumerate(requests)]
    try:
        while True:  # the reader knows when all have ended
            item = await queue.get()
            if isinstance(item, Exception):
                raise item
            yield item
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _generate(backend: Backend, request: GenerateRequest) -> AsyncGenerator[TokenDelta, None]:
    # The protocol promises an iterator that can be closed.
    return cast(AsyncGenerator[TokenDelta, None], backend.generate(request))


def _check_ending(state: ServerState, delta: TokenDelta) -> None:
    """Raise where the backend ended a sequence that the client still waits for."""
    if delta.finish_reason not in (FinishReason.ABORT, FinishReason.ERROR):
        return
    if state.admission.draining:
        raise DrainingError("The server shut down before the answer was complete")
    if delta.finish_reason is FinishReason.ERROR:
        raise BackendError(delta.error or "The engine failed")
    raise BackendError("The engine gave the answer up")


def _log_prompt(state: ServerState, request: GenerateRequest) -> None:
    if state.config.log_requests:
        prompt = state.backend.decode(request.prompt_token_ids, skip_special_tokens=False)
        log.info("%s: prompt %r", request.request_id, prompt)


def _log_delta(state: ServerState, request: GenerateRequest, delta: TokenDelta) -> None:
    if state.config.log_requests:
        log.info("%s: %r %s", request.request_id, delta.text, delta.finish_reason or "")


class _Clock:
    """Times one sequence, and counts its end exactly once."""

    def __init__(self, metrics: ServerMetrics) -> None:
        self._metrics = metrics
        self._start_s = time.monotonic()
        self._last_s: float | None = None
        self._ended = False

    def tick(self, delta: TokenDelta) -> None:
        now_s = time.monotonic()
        if delta.token_ids:
            if self._last_s is None:
                self._metrics.ttft_s.observe(now_s - self._start_s)
            else:
                num = len(delta.token_ids)
                self._metrics.token_s.observe((now_s - self._last_s) / num, weight=num)
            self._last_s = now_s
        if delta.finish_reason is not None:
            self.stop(delta.finish_reason)

    def close(self, reason: FinishReason | None) -> None:
        """`reason` is of sequences that have not ended. None: those that never began were refused,
        and count as no sequence at all."""
        if reason is not None or self._last_s is not None:
            self.stop(reason or FinishReason.ABORT)

    def stop(self, reason: FinishReason) -> None:
        if not self._ended:
            self._ended = True
            self._metrics.count_finished(reason)
            self._metrics.total_s.observe(time.monotonic() - self._start_s)
