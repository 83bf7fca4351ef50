"""Chat over HTTP: against our own server, and against servers that misbehave."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from typing import Any

import pytest

from truedraft.backends.scripted import Answer, Script, ScriptedBackend
from truedraft.cli.chat_remote import RemoteSource
from truedraft.cli.chat_turn import Origin, Piece, TurnStats
from truedraft.config.schema import ServeConfig
from truedraft.contract.request import SamplingParams
from truedraft.errors import BackendError, BackendProtocolError, ConfigError, RequestError
from truedraft.server.serve import bind, serve_async

GREEDY = SamplingParams(temperature=0.0, max_tokens=64)


@contextmanager
def running(script: Script | None = None, **config: Any) -> Iterator[str]:
    """Our server on a thread of its own; → its URL."""
    settings = ServeConfig(port=0, **config)
    sock = bind(settings)
    url: list[str] = []
    started = Event()
    stop: list[Any] = []

    async def go() -> None:
        stopping = asyncio.Event()
        stop.append((asyncio.get_running_loop(), stopping))

        def ready(where: str) -> None:
            url.append(where)
            started.set()

        await serve_async(ScriptedBackend(script), settings, sock=sock, on_ready=ready, stop=stopping)

    thread = Thread(target=lambda: asyncio.run(go()))
    thread.start()
    assert started.wait(20)
    try:
        yield url[0]
    finally:
        loop, stopping = stop[0]
        loop.call_soon_threadsafe(stopping.set)
        thread.join(20)
        sock.close()
    assert not thread.is_alive()


async def answer(url: str, key: str | None = None, speculation: Any = "auto") -> list[Piece | TurnStats]:
    source = await RemoteSource.connect(url, key)
    try:
        return [part async for part in source.stream([{"role": "user", "content": "x"}], GREEDY, speculation)]
    finally:
        await source.close()


def test_text_origins_and_figures_arrive() -> None:
    text = "An answer with an ü in it, long enough for rounds."
    with running(lambda prompt, request: text) as url:
        parts = asyncio.run(answer(url + "/v1/"))
    pieces, stats = parts[:-1], parts[-1]
    assert "".join(piece.text for piece in pieces) == text
    assert {piece.origin for piece in pieces} == {Origin.DRAFTED, Origin.OWN, Origin.PLAIN}
    assert stats.num_committed == stats.num_tokens - 1
    assert 0 < stats.num_drafted_kept < stats.num_tokens
    assert stats.finish_reason == "stop"


def test_plain_is_plain() -> None:
    with running() as url:
        parts = asyncio.run(answer(url, speculation="off"))
    assert {part.origin for part in parts[:-1]} == {Origin.PLAIN}
    assert parts[-1].num_rounds == 0


def test_key_is_sent_and_a_wrong_one_is_said() -> None:
    with running(api_keys=("secret",)) as url:
        assert asyncio.run(answer(url, "secret"))
        with pytest.raises(RequestError, match="key"):
            asyncio.run(answer(url, "wrong"))


def test_failure_in_mid_stream_is_an_error_not_an_answer() -> None:
    with (
        running(lambda prompt, request: Answer("some words", fail_after=1)) as url,
        pytest.raises(BackendError),
    ):
        asyncio.run(answer(url))


def test_refusal_carries_the_servers_words() -> None:
    refuse = Answer("", refuse=RequestError("Nothing about parrots"))
    with running(lambda prompt, request: refuse) as url, pytest.raises(RequestError, match="parrots"):
        asyncio.run(answer(url))


def test_chat_command_over_url(truedraft: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRUEDRAFT_API_KEY", raising=False)
    monkeypatch.setattr("sys.stdin", io.StringIO("hello\n/quit\n"))
    with running(lambda prompt, request: "Hello to you too.") as url:
        ran = truedraft("chat", "--url", url)
    assert ran.code == 0
    assert "Hello to you too." in ran.out
    assert "drafted]" in ran.out


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://x", ""])
def test_not_a_url_is_code_2(truedraft: Any, url: str) -> None:
    assert truedraft("chat", "--url", url).code == 2


def test_nobody_there_is_code_6(truedraft: Any) -> None:
    sock = bind(ServeConfig(port=0))
    port = sock.getsockname()[1]
    sock.close()
    ran = truedraft("chat", "--url", f"http://127.0.0.1:{port}")
    assert ran.code == 6
    assert "truedraft serve" in ran.err


@contextmanager
def odd_server(models: bytes, stream: bytes) -> Iterator[str]:
    """A server that says what it is told to."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._send(models)

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self._send(stream)

        def _send(self, body: bytes) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


MODELS = b'{"data": [{"id": "m"}]}'


@pytest.mark.parametrize("models", [b"<html>", b"{}", b'{"data": []}', b"[]"])
def test_a_server_of_another_kind_is_named(models: bytes) -> None:
    with odd_server(models, b"") as url, pytest.raises(BackendProtocolError, match="no model"):
        asyncio.run(answer(url))


@pytest.mark.parametrize(
    "stream",
    [b"", b"data: [DONE]\n\n", b"data: not json\n\n", b"data: [1]\n\n", b'data: {"choices": [3]}\n\n'],
)
def test_broken_streams_are_protocol_errors(stream: bytes) -> None:
    with odd_server(MODELS, stream) as url, pytest.raises(BackendProtocolError):
        asyncio.run(answer(url))


def test_a_server_without_traces_still_shows_text() -> None:
    stream = (
        b'data: {"choices": [{"delta": {"content": "Hi"}, "finish_reason": "stop"}]}\n\n'
        b'data: {"choices": [], "usage": {"completion_tokens": 1}}\n\ndata: [DONE]\n\n'
    )
    with odd_server(MODELS, stream) as url:
        pieces = asyncio.run(answer(url))
    assert pieces[0] == Piece("Hi", Origin.UNKNOWN)
    assert pieces[1].num_tokens == 1


def test_bad_urls_raise_config_errors() -> None:
    with pytest.raises(ConfigError):
        asyncio.run(RemoteSource.connect("nonsense", None))
