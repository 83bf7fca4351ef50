"""What tests of the local backend over HTTP share: asking, waiting, and looking for what is left behind."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any, cast

import openai
from http_server import HttpServer
from local_pair import NAME

from truedraft.backends.local import LocalBackend
from truedraft.contract.step import StepPlan, StepResult


def complete(client: openai.OpenAI, prompt: Any = "Hello", **fields: Any) -> Any:
    """A greedy completion of 32 tokens that no end-of-sequence token ends; `fields` override."""
    extra = {"ignore_eos": True} | fields.pop("extra_body", {})
    said = {"model": NAME, "prompt": prompt, "temperature": 0.0, "max_tokens": 32}
    return client.completions.create(**(said | fields), extra_body=extra)


def chat(client: openai.OpenAI, text: str = "Hello", **fields: Any) -> Any:
    """As `complete`, for the chat endpoint."""
    extra = {"ignore_eos": True} | fields.pop("extra_body", {})
    said = {
        "model": NAME,
        "messages": [{"role": "user", "content": text}],
        "temperature": 0.0,
        "max_tokens": 32,
    }
    return client.chat.completions.create(**(said | fields), extra_body=extra)


def ids_of(answer: Any, choice: int = 0) -> list[int]:
    """Token ids of a completion that was asked for with `return_token_ids`."""
    return list(answer.choices[choice].model_extra["token_ids"])


def speculation_of(answer: Any) -> dict[str, Any]:
    return cast(dict[str, Any], answer.usage.model_extra["speculation"])


def until(condition: Callable[[], bool], timeout_s: float = 10.0) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s, "it did not come to pass"
        time.sleep(0.005)


async def until_async(condition: Callable[[], bool], timeout_s: float = 10.0) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s, "it did not come to pass"
        await asyncio.sleep(0.01)


def local(server: HttpServer) -> LocalBackend:
    assert isinstance(server.backend, LocalBackend)
    return server.backend


class HeldEngine:
    """Steps wait while `gate` is clear: what comes meanwhile runs together, whatever the machine does."""

    def __init__(self, server: HttpServer) -> None:
        self.gate = threading.Event()
        self.gate.set()
        loop = local(server)._loop
        self._runner = loop._runner
        loop._runner = self

    def run(self, plan: StepPlan) -> StepResult:
        assert self.gate.wait(60.0)
        return self._runner.run(plan)


def is_idle(server: HttpServer) -> bool:
    stats = server.backend.stats()
    return not stats.num_running and not stats.num_waiting and stats.num_requests == stats.num_finished


def check_nothing_held(backend: LocalBackend) -> None:
    """No stream, sequence or page is left; every request that was taken has ended."""
    stats = backend.stats()
    assert stats.num_requests == stats.num_finished
    assert (stats.num_running, stats.num_waiting, stats.kv_used_frac) == (0, 0, 0.0)
    assert not backend._streams
    assert backend._pair.scheduler.is_idle
    assert not backend._pair.scheduler._probes
    allocator = backend._pair.allocator
    allocator.check()
    assert allocator.num_free == allocator.num_pages
    assert allocator.seq_ids == ()
