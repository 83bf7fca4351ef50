"""A real server on a free port, in a thread of this process: for tests of any Backend over HTTP.

with http_server(lambda: ScriptedBackend()) as server:
    client = server.client()
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx
import openai

from truedraft.config.schema import ServeConfig
from truedraft.contract.backend import Backend
from truedraft.server.serve import bind, serve_async

# Plain HTTP: loading certificates would be most of a test's time.
_CLIENT: dict[str, Any] = {"api_key": "none", "max_retries": 0, "timeout": 30.0}


@dataclass
class HttpServer:
    """A server that runs. `stop` ends it as SIGTERM would; leaving `http_server` does so as well."""

    url: str
    backend: Backend
    loop: asyncio.AbstractEventLoop
    _stop: asyncio.Event
    _thread: threading.Thread
    exit_codes: list[int] = field(default_factory=list)

    @property
    def base_url(self) -> str:
        return f"{self.url}/v1"

    def client(self, **options: Any) -> openai.OpenAI:
        options = {"http_client": openai.DefaultHttpxClient(verify=False)} | _CLIENT | options
        return openai.OpenAI(base_url=self.base_url, **options)

    def async_client(self, **options: Any) -> openai.AsyncOpenAI:
        options = {"http_client": openai.DefaultAsyncHttpxClient(verify=False)} | _CLIENT | options
        return openai.AsyncOpenAI(base_url=self.base_url, **options)

    def http(self, **options: Any) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=30.0, **options)

    def begin_stop(self) -> None:
        self.loop.call_soon_threadsafe(self._stop.set)

    def stop(self, timeout_s: float = 20.0) -> int:
        """→ the exit code. Asserts that the server ended in time."""
        with contextlib.suppress(RuntimeError):  # the loop has ended already
            self.begin_stop()
        self._thread.join(timeout_s)
        assert not self._thread.is_alive(), "the server did not stop"
        return self.exit_codes[0]

    def num_tasks(self) -> int:
        """Tasks of the server's loop, this look at them apart."""

        async def count() -> int:
            return len(asyncio.all_tasks()) - 1

        return asyncio.run_coroutine_threadsafe(count(), self.loop).result(10.0)


@contextlib.contextmanager
def http_server(make_backend: Callable[[], Backend], **settings: Any) -> Iterator[HttpServer]:
    """Serve what `make_backend` gives (called in the server's loop) until the block is left.

    `settings` are fields of ServeConfig; the port is free and the drain short unless said.
    """
    config = dataclasses.replace(ServeConfig(port=0, drain_s=5.0), **settings)
    sock = bind(config)
    started = threading.Event()
    parts: dict[str, Any] = {}
    codes: list[int] = []

    async def run() -> None:
        parts["loop"] = asyncio.get_running_loop()
        parts["stop"] = asyncio.Event()
        parts["backend"] = make_backend()

        def on_ready(url: str) -> None:
            parts["url"] = url
            started.set()

        codes.append(
            await serve_async(parts["backend"], config, sock=sock, on_ready=on_ready, stop=parts["stop"])
        )

    def target() -> None:
        try:
            asyncio.run(run())
        except BaseException as error:
            parts["error"] = error
        finally:
            sock.close()
            started.set()

    thread = threading.Thread(target=target, name="http-server", daemon=True)
    thread.start()
    assert started.wait(60.0), "the server did not start"
    if "error" in parts:
        raise parts["error"]
    server = HttpServer(parts["url"], parts["backend"], parts["loop"], parts["stop"], thread, codes)
    try:
        yield server
    finally:
        if thread.is_alive():
            server.stop()
        if "error" in parts:
            raise parts["error"]
