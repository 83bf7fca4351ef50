"""Keys, queues, failures, clients that leave, and shutdown."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from http_script import scripted_backend
from http_server import HttpServer, http_server

from truedraft.backends.scripted import Answer
from truedraft.config.schema import ServeConfig
from truedraft.contract.backend import ReadyReport
from truedraft.errors import CapacityError, ConfigError
from truedraft.server.serve import bind


def body(text: str, **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], "temperature": 0.0} | fields


def until(condition: Callable[[], bool], timeout_s: float = 5.0) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s, "it did not come to pass"
        time.sleep(0.01)


def idle(server: HttpServer) -> bool:
    stats = server.backend.stats()
    return not stats.num_running and not stats.num_waiting


def events_of(response: httpx.Response) -> list[Any]:
    lines = [line.removeprefix("data: ") for line in response.iter_lines() if line]
    return [line if line == "[DONE]" else json.loads(line) for line in lines]


def test_keys_are_asked_for_everywhere_but_health() -> None:
    with (
        http_server(scripted_backend, api_keys=("first", "zweiter-schlüssel")) as server,
        server.http() as http,
    ):
        assert http.get("/health").status_code == 200
        for path in ("/v1/models", "/metrics", "/ready", "/docs", "/openapi.json"):
            response = http.get(path)
            assert response.status_code == 401
            assert response.headers["www-authenticate"] == "Bearer"
            assert response.json()["error"]["code"] == "invalid_api_key"
        for header in ("Bearer wrong", "Bearer", "Basic first", "first", "Bearer first2"):
            assert http.get("/v1/models", headers={"Authorization": header}).status_code == 401
        assert http.get("/v1/models", headers={"Authorization": "bearer first"}).status_code == 200
        umlaut = b"Bearer " + "zweiter-schlüssel".encode()
        assert http.get("/v1/models", headers={b"Authorization": umlaut}).status_code == 200
        with server.client(api_key="nope") as client, pytest.raises(openai.AuthenticationError):
            client.models.list()


def test_health_ready_and_version(http: httpx.Client) -> None:
    assert http.get("/health").json() == {"status": "ok"}
    ready = http.get("/ready")
    assert ready.status_code == 200
    assert ready.json()["verdict"] == "proven"
    assert "tau" in ready.json()["speculation"]
    assert http.get("/version").json()["engine"] == "scripted"


def test_ready_says_no_with_the_same_figures() -> None:
    with http_server(lambda: scripted_backend(ready=False)) as server, server.http() as http:
        assert http.get("/health").status_code == 200
        response = http.get("/ready")
        assert response.status_code == 503
        assert response.json()["verdict"] == "broken"
        assert response.json()["checks"]
    assert isinstance(server.backend.ready(), ReadyReport)


def test_headers_keep_browsers_careful(http: httpx.Client) -> None:
    response = http.get("/docs", headers={"Origin": "https://example.org", "X-Request-ID": "abc"})
    assert response.headers["x-content-type-options"] == "nosniff"
    assert response.headers["x-frame-options"] == "DENY"
    assert "access-control-allow-origin" not in response.headers
    assert response.headers["x-request-id"] == "abc"
    assert "server" not in response.headers
    # No outside host: neither scripts, nor styles, nor pictures.
    assert "src=" not in response.text
    assert "http://" not in response.text
    assert "https://" not in response.text
    assert "speculation_trace" in response.text


def test_cors_only_where_configured() -> None:
    with http_server(scripted_backend, cors_origins=("https://a.example",), api_keys=("k",)) as server:
        asked = {
            "Origin": "https://a.example",
            "Access-Control-Request-Method": "POST",
            "Access-Control-Request-Headers": "authorization,content-type",
        }
        allowed = httpx.options(f"{server.base_url}/chat/completions", headers=asked)
        assert allowed.headers["access-control-allow-origin"] == "https://a.example"
        other = httpx.options(f"{server.base_url}/chat/completions", headers=asked | {"Origin": "https://b"})
        assert "access-control-allow-origin" not in other.headers


def test_openapi_describes_the_bodies(http: httpx.Client) -> None:
    document = http.get("/openapi.json").json()
    schemas = document["components"]["schemas"]
    assert "speculation" in schemas["ChatBody"]["properties"]
    text = json.dumps(document)
    for reference in {part.split('"')[0] for part in text.split("#/components/schemas/")[1:]}:
        assert reference in schemas


def test_metrics_tell_what_happened() -> None:
    with http_server(scripted_backend) as server, server.http() as http:
        for text in ("one", "two"):
            http.post("/v1/chat/completions", json=body(text, max_tokens=20))
        http.post("/v1/chat/completions", json=body("x", n=99))
        lines = dict(
            line.rsplit(" ", 1) for line in http.get("/metrics").text.splitlines() if not line.startswith("#")
        )
        stats = server.backend.stats()
        assert float(lines["truedraft_generation_tokens_total"]) == 40
        assert float(lines["truedraft_spec_rounds_total"]) == stats.speculation.num_rounds > 0
        assert float(lines["truedraft_spec_tau"]) == pytest.approx(stats.speculation.tau)
        by_position = stats.speculation.accepted_by_position
        assert [
            float(lines[f'truedraft_spec_accepted_by_position_total{{position="{i}"}}'])
            for i in range(1, len(by_position) + 1)
        ] == list(by_position)
        assert float(lines['truedraft_requests_finished_total{finish_reason="length"}']) == 2
        assert float(lines['truedraft_http_errors_total{status="400"}']) == 1
        assert float(lines["truedraft_time_to_first_token_seconds_count"]) == 2
        # The first token of each answer has no time between tokens.
        assert float(lines["truedraft_inter_token_latency_seconds_count"]) == 38
        assert float(lines["truedraft_requests_running"]) == 0


def test_failures_before_and_after_the_stream_began(http: httpx.Client) -> None:
    for stream in (False, True):
        response = http.post("/v1/chat/completions", json=body("FAIL AT ONCE", stream=stream))
        assert response.status_code == 500
        assert response.json()["error"]["code"] == "backend_error"
    assert http.post("/v1/chat/completions", json=body("FAIL")).status_code == 500
    with http.stream("POST", "/v1/chat/completions", json=body("FAIL", stream=True)) as response:
        assert response.status_code == 200
        events = events_of(response)
    assert events[0]["choices"][0]["delta"]["role"] == "assistant"
    assert events[-1]["error"]["type"] == "server_error"
    assert "[DONE]" not in events


def test_the_client_raises_for_a_failure_in_mid_stream(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model="scripted", messages=[{"role": "user", "content": "FAIL"}], stream=True
    )
    with pytest.raises(openai.APIError, match="told to fail"):
        list(stream)


def test_a_failure_among_n_choices_ends_all(server: HttpServer, http: httpx.Client) -> None:
    assert http.post("/v1/chat/completions", json=body("FAIL", n=4)).status_code == 500
    until(lambda: idle(server))


@pytest.mark.parametrize("path", ["chat/completions", "completions"])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("text", ["HANG", "HANG AT ONCE", "SLOW"])
def test_a_client_that_leaves_frees_its_place(server: HttpServer, path: str, stream: bool, text: str) -> None:
    until(lambda: idle(server))
    data = body(text, stream=stream, n=2)
    if path == "completions":
        data = {"prompt": text, "stream": stream, "n": 2, "max_tokens": 500}
    payload = json.dumps(data).encode()
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as sock:
        head = f"POST /v1/{path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        sock.sendall(f"{head}Content-Length: {len(payload)}\r\n\r\n".encode() + payload)
        until(lambda: server.backend.stats().num_running == 2)
        if stream and text != "HANG AT ONCE":
            assert sock.recv(1000).startswith(b"HTTP/1.1 200")
    until(lambda: idle(server), timeout_s=2.0)


def test_a_full_queue_says_when_to_come_again() -> None:
    with (
        http_server(lambda: scripted_backend(max_running=1), max_queue_len=2) as server,
        server.http() as http,
    ):
        hold = [
            threading.Thread(target=_post_quietly, args=(server, body("SLOW", max_tokens=60)))
            for _ in range(3)
        ]
        for thread in hold:
            thread.start()
        until(lambda: server.backend.stats().num_waiting == 2)
        response = http.post("/v1/chat/completions", json=body("x"))
        assert response.status_code == 429
        assert int(response.headers["retry-after"]) >= 1
        assert response.json()["error"]["code"] == "queue_full"
        too_many = http.post("/v1/chat/completions", json=body("x", n=3))
        assert too_many.status_code == 400
        for thread in hold:
            thread.join()
        assert http.post("/v1/chat/completions", json=body("x")).status_code == 200


def test_a_backend_without_room_is_429() -> None:
    def full(prompt: str, request: object) -> Answer:
        return Answer("", refuse=CapacityError("No pages are left", remedy="Try again later"))

    with http_server(lambda: scripted_backend(full)) as server, server.http() as http:
        response = http.post("/v1/chat/completions", json=body("x", stream=True))
        assert response.status_code == 429
        assert "No pages are left" in response.json()["error"]["message"]
        # What was refused is no sequence that ended.
        assert 'finished_total{finish_reason="error"} 0.0' in http.get("/metrics").text


def test_prompts_and_answers_are_logged_only_when_asked(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="truedraft.server")
    for log_requests in (False, True):
        with http_server(scripted_backend, log_requests=log_requests) as server:
            answer = _post(server, body("a private matter", max_tokens=1)).json()
        said = answer["choices"][0]["message"]["content"]
        assert ("a private matter" in caplog.text) is log_requests
        assert (f": {said!r}" in caplog.text) is log_requests


def test_an_answer_that_takes_too_long_ends() -> None:
    with http_server(scripted_backend, request_timeout_s=0.3) as server, server.http() as http:
        assert http.post("/v1/chat/completions", json=body("HANG")).status_code == 504
        with http.stream("POST", "/v1/chat/completions", json=body("HANG", stream=True)) as response:
            assert events_of(response)[-1]["error"]["code"] == "backend_timeout"
        until(lambda: idle(server))


def test_unexpected_errors_show_nothing_of_the_inside(caplog: pytest.LogCaptureFixture) -> None:
    def broken(prompt: str, request: object) -> Answer:
        raise ZeroDivisionError("secret detail")

    with http_server(lambda: scripted_backend(broken)) as server, server.http() as http:
        response = http.post("/v1/chat/completions", json=body("x"))
        assert response.status_code == 500
        assert "secret" not in response.text
        assert response.json()["error"]["code"] == "internal_error"
    assert "secret detail" in caplog.text


def test_shutdown_lets_running_answers_end() -> None:
    with http_server(scripted_backend, drain_s=10.0) as server:
        answers: list[httpx.Response] = []
        data = body("SLOW", max_tokens=60)
        thread = threading.Thread(target=lambda: answers.append(_post(server, data)))
        thread.start()
        until(lambda: server.backend.stats().num_running == 1)
        server.begin_stop()
        with server.http() as http:
            until(lambda: http.get("/ready").status_code == 503)
            refused = http.post("/v1/chat/completions", json=body("x"))
            assert refused.status_code == 503
            assert refused.headers["retry-after"]
        thread.join(10)
        assert answers[0].status_code == 200
        assert answers[0].json()["usage"]["completion_tokens"] == 60
        assert server.stop() == 0


def test_shutdown_ends_what_does_not_end_by_itself() -> None:
    with http_server(scripted_backend, drain_s=0.3) as server:
        seen: list[Any] = []

        def read() -> None:
            with (
                server.http() as http,
                http.stream("POST", "/v1/chat/completions", json=body("HANG", stream=True)) as r,
            ):
                seen.extend(events_of(r))

        thread = threading.Thread(target=read)
        thread.start()
        until(lambda: server.backend.stats().num_running == 1)
        start_s = time.monotonic()
        assert server.stop() == 1
        assert time.monotonic() - start_s < 4
        thread.join(5)
        assert seen[-1]["error"]["code"] == "shutting_down"


def test_a_taken_port_is_named_with_a_remedy(server: HttpServer) -> None:
    port = int(server.url.rsplit(":", 1)[1])
    with pytest.raises(ConfigError, match=f"Port {port} is taken.*--port"):
        bind(ServeConfig(port=port))


def test_unknown_hosts_are_refused() -> None:
    with pytest.raises(ConfigError, match="cannot be used"):
        bind(ServeConfig(host="192.0.2.1", port=0))


_SUPPORT = Path(__file__).parents[2] / "support"
_PROGRAM = """
import sys
from http_script import scripted_backend
from truedraft.config.schema import ServeConfig
from truedraft.server.serve import serve
sys.exit(serve(scripted_backend(), ServeConfig(port=0, drain_s=20.0), on_ready=lambda url: print(url, flush=True)))
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_stop_the_process(number: int) -> None:
    with subprocess.Popen(
        [sys.executable, "-W", "error", "-c", _PROGRAM],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={"PYTHONPATH": str(_SUPPORT)},
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        url = process.stdout.readline().strip()
        assert httpx.get(f"{url}/health").status_code == 200
        process.send_signal(number)
        assert process.wait(10) == 0
        assert process.stderr.read() == ""


def test_a_second_signal_does_not_wait() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _PROGRAM],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={"PYTHONPATH": str(_SUPPORT)},
        text=True,
    ) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        thread = threading.Thread(target=_hang, args=(url,))
        thread.start()
        until(lambda: "truedraft_requests_running 1.0" in httpx.get(f"{url}/metrics").text)
        process.send_signal(signal.SIGTERM)
        time.sleep(0.3)
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 1
        thread.join(5)


def _post(server: HttpServer, data: dict[str, Any]) -> httpx.Response:
    return httpx.post(f"{server.base_url}/chat/completions", json=data, timeout=30.0)


def _post_quietly(server: HttpServer, data: dict[str, Any]) -> None:
    with contextlib.suppress(httpx.HTTPError):
        _post(server, data)


def _hang(url: str) -> None:
    with contextlib.suppress(httpx.HTTPError):
        httpx.post(f"{url}/v1/chat/completions", json=body("HANG"), timeout=20.0)
