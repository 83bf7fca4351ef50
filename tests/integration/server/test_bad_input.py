"""Bad input gets a clear message in OpenAI's shape, whatever it is; and the server goes on."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from http_script import scripted_backend
from http_server import HttpServer, http_server

MESSAGES = [{"role": "user", "content": "hi"}]
JSON = {"Content-Type": "application/json"}


def refusal(response: httpx.Response, status: int) -> dict[str, Any]:
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    assert "Traceback" not in response.text
    return error


def chat(http: httpx.Client, **fields: Any) -> httpx.Response:
    return http.post("/v1/chat/completions", json={"messages": MESSAGES} | fields)


def complete(http: httpx.Client, **fields: Any) -> httpx.Response:
    return http.post("/v1/completions", json={"prompt": "hi"} | fields)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temprature": 1}, "temprature"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": 2.5}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"min_p": 1.5}, "min_p"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"presence_penalty": 3}, "presence_penalty"),
        ({"frequency_penalty": -3}, "frequency_penalty"),
        ({"n": 0}, "n"),
        ({"n": 17}, "n"),
        ({"n": 1.5}, "n"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 10**9}, "max_tokens"),
        ({"max_tokens": 5, "max_completion_tokens": 6}, "max_completion_tokens"),
        ({"max_tokens": 2, "min_tokens": 3}, "min_tokens"),
        ({"stop": ["x"] * 17}, "stop"),
        ({"stop": ""}, "stop"),
        ({"stop": 3}, "stop"),
        ({"stop": [3]}, "stop.0"),
        ({"stop_token_ids": [259]}, "stop_token_ids"),
        ({"logit_bias": {"259": 1}}, "logit_bias"),
        ({"logit_bias": {"hello": 1}}, "logit_bias"),
        ({"logit_bias": {"1": 101}}, "logit_bias"),
        ({"seed": 2**65}, "seed"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"speculation": 8}, "speculation"),
        ({"speculation": "fast"}, "speculation"),
        ({"store": True}, "store"),
        ({"reasoning_effort": "high"}, "reasoning_effort"),
        ({"use_beam_search": True}, "use_beam_search"),
        ({"best_of": 2}, "best_of"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"response_format": {"type": "json_object"}, "guided_regex": "a"}, "response_format"),
        ({"guided_choice": []}, "guided_choice"),
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": [{"role": "bob", "content": "x"}]}, "messages.0.role"),
        ({"messages": [{"role": "user"}]}, "messages.0.content"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
            "messages.0.content.0.type",
        ),
        ({"continue_final_message": True, "add_generation_prompt": True}, "continue_final_message"),
    ],
)
def test_fields_are_refused_by_name(http: httpx.Client, fields: dict[str, Any], param: str) -> None:
    assert refusal(chat(http, **fields), 400)["param"] == param


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"suffix": "x"}, "suffix"),
        ({"best_of": 3}, "best_of"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [1, 259]}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": [1, "a"]}, "prompt.1"),
        ({"prompt": {"a": 1}}, "prompt"),
        ({"logprobs": 21}, "logprobs"),
        ({"logprobs": True}, "logprobs"),
    ],
)
def test_completion_fields_are_refused_by_name(
    http: httpx.Client, fields: dict[str, Any], param: str
) -> None:
    assert refusal(complete(http, **fields), 400)["param"] == param


def test_fields_without_an_effect_are_accepted(http: httpx.Client) -> None:
    harmless = {
        "user": "me",
        "metadata": {"a": "b"},
        "store": False,
        "service_tier": "auto",
        "best_of": 1,
        "length_penalty": 1.0,
        "bad_words": [],
        "top_k": -1,
        "logit_bias": {},
        "stop": None,
        "temperature": None,
        "reasoning_effort": None,
        "parallel_tool_calls": True,
    }
    assert chat(http, **harmless, max_tokens=1).status_code == 200


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b'{"messages": [], "temperature": NaN}', "NaN"),
        (b'{"messages": [], "temperature": -Infinity}', "Infinity"),
        (b'{"messages": [{"role": "user", "content": "x"}], "temperature": 1e999}', "finite"),
        (b"\xff\xfe{}", "UTF-8"),
        (b'{"messages": [{"role": "user", "content": "\xc3\x28"}]}', "UTF-8"),
        (b'{"messages": [{"role": "user", "content": "\\ud800"}]}', "surrogate"),
        (b'{"messages": ', "not valid JSON"),
        (b"", "empty"),
        (b"[]", "object"),
        (b'{"seed": ' + b"9" * 5000 + b"}", "digits"),
        (b'{"a":' * 100 + b"1" + b"}" * 100, "nested"),
        (b"[" * 200_000, "nested"),
        (b'{"messages": [], "seed": 1, "seed": 2}', "twice: got seed"),
        (b'{"messages": [{"role": "user", "role": "system", "content": "x"}]}', "twice: got role"),
        (b'{"\\ud800": 1, "\\ud800": 2}', "twice: got ?"),
    ],
)
def test_bodies_that_are_not_sound_json(http: httpx.Client, body: bytes, words: str) -> None:
    response = http.post("/v1/chat/completions", content=body, headers=JSON)
    assert words in refusal(response, 400)["message"]


def test_content_types(http: httpx.Client) -> None:
    for headers in ({"Content-Type": "text/plain"}, {}, JSON | {"Content-Encoding": "gzip"}):
        refusal(http.post("/v1/chat/completions", content=b"{}", headers=headers), 415)
    odd = {"Content-Type": "Application/JSON; charset=utf-8"}
    body = json.dumps({"messages": MESSAGES, "max_tokens": 1}).encode()
    assert http.post("/v1/chat/completions", content=body, headers=odd).status_code == 200


def test_large_bodies_with_and_without_length(http: httpx.Client) -> None:
    body = b'{"messages": "' + b"x" * 10_000_000 + b'"}'
    message = refusal(http.post("/v1/chat/completions", content=body, headers=JSON), 413)["message"]
    assert "8388608" in message

    def pieces() -> Iterator[bytes]:
        for start in range(0, len(body), 1 << 20):
            yield body[start : start + (1 << 20)]

    refusal(http.post("/v1/chat/completions", content=pieces(), headers=JSON), 413)


def test_a_far_too_large_body_is_not_read(server: HttpServer) -> None:
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as sock:
        sock.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b"Content-Length: 100000000000\r\n\r\n"
        )
        assert sock.recv(64).startswith(b"HTTP/1.1 413")


def test_long_prompts_name_both_numbers(http: httpx.Client) -> None:
    error = refusal(complete(http, prompt="x" * 5000), 400)
    assert error["code"] == "context_length_exceeded"
    assert "5001" in error["message"]
    assert "4096" in error["message"]
    error = refusal(complete(http, prompt="x" * 99, max_tokens=4000), 400)
    assert "4100" in error["message"]
    assert error["param"] == "max_tokens"


def test_paths_and_methods(http: httpx.Client) -> None:
    assert "/v1/completions" in refusal(http.post("/v1/completion", json={}), 404)["message"]
    refusal(http.get("/v1/chat/completions"), 405)
    refusal(chat(http, model="other"), 404)


def test_tokenize_and_back(http: httpx.Client) -> None:
    answer = http.post("/tokenize", json={"prompt": "Grüße", "return_token_strs": True}).json()
    assert answer["count"] == len(answer["tokens"]) == len(answer["token_strs"]) == 8
    assert answer["max_model_len"] == 4096
    bare = http.post("/tokenize", json={"prompt": "Grüße", "add_special_tokens": False}).json()["tokens"]
    assert http.post("/detokenize", json={"tokens": bare}).json() == {"prompt": "Grüße"}
    chatted = http.post("/tokenize", json={"messages": MESSAGES}).json()
    assert chatted["count"] > 8
    refusal(http.post("/tokenize", json={}), 400)
    refusal(http.post("/tokenize", json={"prompt": "x", "messages": MESSAGES}), 400)
    assert refusal(http.post("/detokenize", json={"tokens": [999]}), 400)["param"] == "tokens"


def test_limits_of_the_config() -> None:
    with (
        http_server(scripted_backend, max_prompt_len=20, max_n=2, max_body_bytes=2048) as server,
        server.http() as http,
    ):
        message = refusal(complete(http, prompt="x" * 30), 400)["message"]
        assert "31" in message
        assert "20" in message
        assert refusal(complete(http, n=3), 400)["param"] == "n"
        refusal(complete(http, prompt="x" * 3000), 413)
        assert complete(http, n=2).status_code == 200


def test_a_slow_body_does_not_hold_the_others_up(server: HttpServer, http: httpx.Client) -> None:
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as sock:
        sock.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b'Content-Length: 50\r\n\r\n{"pro'
        )
        start_s = time.monotonic()
        assert complete(http).status_code == 200
        assert time.monotonic() - start_s < 5


def test_a_connection_that_brings_no_request_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("truedraft.server.protocol.HEAD_TIMEOUT_S", 0.3)
    with http_server(scripted_backend) as server, server.http() as http:
        host, port = server.url.removeprefix("http://").split(":")
        with (
            socket.create_connection((host, int(port)), timeout=10) as silent,
            socket.create_connection((host, int(port)), timeout=10) as slow,
        ):
            slow.sendall(b"POST /v1/completions HTTP/1.1\r\nHost:")
            assert complete(http).status_code == 200
            assert silent.recv(1) == slow.recv(1) == b""
        # One that brought a request stays, for the next one.
        time.sleep(0.5)
        assert complete(http).status_code == 200


def test_a_field_name_is_not_sent_back_at_any_length(http: httpx.Client) -> None:
    message = refusal(chat(http, **{"x" * 100_000: 1}), 400)
    assert len(message["param"]) < 300 and len(message["message"]) < 600
