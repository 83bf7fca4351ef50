"""What goes wrong while the real engine serves: bad requests, clients that leave, failing steps, shutdown."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from http_server import HttpServer, http_server
from local_http import HeldEngine, check_nothing_held, complete, ids_of, is_idle, local, until
from local_pair import local_backend

from truedraft.contract.step import StepPlan, StepResult
from truedraft.engine.step import StepRunner
from truedraft.errors import BackendError

IDS = {"return_token_ids": True}


@pytest.fixture
def own() -> Iterator[HttpServer]:
    """A server of one test's own: it may be broken."""
    with http_server(local_backend) as running:
        yield running


@pytest.fixture
def asker(own: HttpServer) -> Iterator[openai.OpenAI]:
    with own.client() as made:
        yield made


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"prompt": "x" * 600}, "prompt", "context_length_exceeded"),
        ({"prompt": "x" * 500, "max_tokens": 50}, "max_tokens", "context_length_exceeded"),
        ({"prompt": [264]}, "prompt", "invalid_value"),
        ({"prompt": [-1]}, "prompt", "invalid_value"),
        ({"prompt": []}, "prompt", "invalid_value"),
        ({"logit_bias": {"264": 1}}, "logit_bias", "invalid_value"),
        ({"extra_body": {"stop_token_ids": [264]}}, "stop_token_ids", "invalid_value"),
        ({"extra_body": {"speculation": 8}}, "speculation", "invalid_value"),
    ],
)
def test_requests_out_of_range_are_refused(
    server: HttpServer, client: openai.OpenAI, fields: dict[str, Any], param: str, code: str
) -> None:
    before = server.backend.stats()
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError) as caught:
            complete(client, **fields, stream=stream)
        assert caught.value.body["param"] == param
        assert caught.value.body["code"] == code
    assert server.backend.stats().num_requests == before.num_requests
    check_nothing_held(local(server))


def test_the_longest_prompt_and_answer_fit(client: openai.OpenAI) -> None:
    answer = complete(client, [5] * 511, max_tokens=1, extra_body=IDS)
    assert len(ids_of(answer)) == 1
    filled = complete(client, [5] * 470, max_tokens=42, extra_body=IDS)
    plain = complete(client, [5] * 470, max_tokens=42, extra_body=IDS | {"speculation": "off"})
    assert ids_of(filled) == ids_of(plain)
    assert len(ids_of(plain)) == 42
    assert filled.choices[0].finish_reason == "length"


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_frees_its_pages(server: HttpServer, stream: bool) -> None:
    until(lambda: is_idle(server))
    allocator = local(server)._pair.allocator
    data = {
        "prompt": "Leave",
        "stream": stream,
        "n": 3,
        "max_tokens": 480,
        "ignore_eos": True,
        "speculation": "off",
    }
    payload = json.dumps(data).encode()
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as sock:
        head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        sock.sendall(f"{head}Content-Length: {len(payload)}\r\n\r\n".encode() + payload)
        until(lambda: server.backend.stats().num_running == 3)
        assert allocator.num_free < allocator.num_pages
    until(lambda: allocator.num_free == allocator.num_pages, timeout_s=5.0)
    until(lambda: is_idle(server))
    check_nothing_held(local(server))


class FailsOnce:
    """Stands before a runner: the step after `arm` fails, once `num_seqs` sequences take part."""

    def __init__(self, runner: StepRunner, num_seqs: int) -> None:
        self._runner = runner
        self._num_seqs = num_seqs
        self.has_failed = False

    def run(self, plan: StepPlan) -> StepResult:
        if not self.has_failed and len(plan.extends) >= self._num_seqs:
            self.has_failed = True
            raise RuntimeError("no kernel for this step")
        return self._runner.run(plan)


def replace_runner(server: HttpServer, runner: Any) -> None:
    local(server)._loop._runner = runner


def test_a_failed_step_ends_what_ran_and_serves_what_comes(own: HttpServer, asker: openai.OpenAI) -> None:
    healthy = complete(asker, extra_body=IDS)
    runner = FailsOnce(local(own)._pair.runner, num_seqs=3)
    replace_runner(own, runner)
    held = HeldEngine(own)
    held.gate.clear()
    caught: list[openai.APIError] = []

    def ask(stream: bool) -> None:
        try:
            answer = complete(asker, "Long", max_tokens=400, stream=stream, extra_body={"speculation": "off"})
            if stream:
                list(answer)
        except openai.APIError as error:
            caught.append(error)

    threads = [threading.Thread(target=ask, args=(stream,)) for stream in (False, True, True)]
    for thread in threads:
        thread.start()
    until(lambda: own.backend.stats().num_requests == 4)
    held.gate.set()
    for thread in threads:
        thread.join(30)
    assert runner.has_failed
    assert len(caught) == 3
    for error in caught:
        assert error.body["type"] == "server_error"
        assert error.body["code"] == "backend_error"
        assert "no kernel for this step" in error.message
    until(lambda: is_idle(own))
    check_nothing_held(local(own))
    assert ids_of(complete(asker, extra_body=IDS)) == ids_of(healthy)
    assert httpx.get(f"{own.url}/health").status_code == 200


def test_a_plan_that_fails_ends_what_ran_and_serves_what_comes(
    own: HttpServer, asker: openai.OpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduler = local(own)._pair.scheduler
    with monkeypatch.context() as patch:

        def choose(candidates: Any) -> list[int]:
            raise RuntimeError("no choice")

        patch.setattr(scheduler._policy, "choose", choose)
        with pytest.raises(openai.InternalServerError, match="no choice"):
            complete(asker)
    assert complete(asker).usage.completion_tokens == 32
    until(lambda: is_idle(own))
    check_nothing_held(local(own))


async def test_a_sequence_that_fails_leaves_those_beside_it_alone(own: HttpServer) -> None:
    """One grammar gives up in mid-answer while another request decodes beside it."""
    backend = local(own)
    compile_whole = backend._grammars.compile

    class GivesUp:
        def __init__(self, inner: Any) -> None:
            self._inner = inner
            self.num_left = 3

        def masks(self, draft_ids: Any) -> Any:
            return self._inner.masks(draft_ids)

        def commit(self, token_ids: list[int]) -> None:
            self.num_left -= 1
            if not self.num_left:
                raise BackendError("the grammar gave up")
            self._inner.commit(token_ids)

    backend._grammars.compile = lambda grammar: GivesUp(compile_whole(grammar))  # type: ignore[method-assign,assignment,return-value]
    async with own.async_client() as client:
        fields: dict[str, Any] = {"model": "toy", "temperature": 0.0, "max_tokens": 60}
        beside = client.completions.create(prompt="Beside", **fields, extra_body={"ignore_eos": True})
        failing = client.completions.create(
            prompt="Fail", **fields, extra_body={"guided_regex": "[a-z]{50}", "speculation": 1}
        )
        good, bad = await asyncio.gather(beside, failing, return_exceptions=True)
    assert isinstance(bad, openai.InternalServerError)
    assert "the grammar gave up" in bad.message
    assert not isinstance(good, BaseException)
    assert good.usage.completion_tokens == 60
    until(lambda: is_idle(own))
    check_nothing_held(backend)


def test_shutdown_lets_answers_end(own: HttpServer, asker: openai.OpenAI) -> None:
    expected = complete(asker, "Drain", max_tokens=200).choices[0].text
    held = HeldEngine(own)
    chunks = complete(asker, "Drain", max_tokens=200, stream=True)
    text = next(chunks).choices[0].text
    held.gate.clear()
    own.begin_stop()
    until(lambda: httpx.get(f"{own.url}/ready").json()["verdict"] == "shutting down")
    with pytest.raises(openai.InternalServerError) as caught:
        complete(asker)
    assert caught.value.status_code == 503
    held.gate.set()
    text += "".join(chunk.choices[0].text for chunk in chunks)
    assert text == expected
    assert own.stop() == 0
    check_nothing_held(local(own))


def test_shutdown_cuts_off_what_does_not_end_in_time() -> None:
    with http_server(lambda: local_backend(), drain_s=0.0) as running, running.client() as client:
        chunks = complete(client, max_tokens=500, stream=True, extra_body={"speculation": "off"})
        next(chunks)
        running.begin_stop()
        with pytest.raises(openai.APIError):
            list(chunks)
        assert running.stop() == 1
        check_nothing_held(local(running))
        assert not local(running)._loop.is_alive


def test_preemption_loses_no_request_and_no_token() -> None:
    """Four sequences where two fit: they give way to each other, and say what they say alone."""
    engine = {"num_pages": 34, "page_len": 4, "max_model_len": 120, "prefill_chunk_len": 16}
    with http_server(lambda: local_backend(**engine)) as running, running.client() as client:
        kinds: list[dict[str, Any]] = [
            {"speculation": "off"},
            {"speculation": "auto"},
            {"speculation": 3, "prompt_logprobs": 0},
            {"guided_regex": "[a-z]{70}", "ignore_eos": False},
        ]

        def ask(i: int) -> Any:
            fields = {"temperature": 0.8 * (i % 2), "seed": i, "max_tokens": 70, "logprobs": 0}
            return complete(client, f"Preempted {i}", **fields, extra_body=IDS | kinds[i])

        alone = [ask(i) for i in range(4)]
        assert running.backend.stats().num_preempted == 0
        held = HeldEngine(running)
        held.gate.clear()
        together: dict[int, Any] = {}
        threads = [threading.Thread(target=lambda i=i: together.update({i: ask(i)})) for i in range(4)]
        for thread in threads:
            thread.start()
        until(lambda: running.backend.stats().num_requests == 8)
        held.gate.set()
        for thread in threads:
            thread.join(60)
        assert running.backend.stats().num_preempted > 0
        for i, answer in enumerate(alone):
            assert ids_of(together[i]) == ids_of(answer)
            assert len(ids_of(answer)) == 70
            assert together[i].choices[0].logprobs.token_logprobs == pytest.approx(
                answer.choices[0].logprobs.token_logprobs, abs=1e-4
            )
        scored = [answer.choices[0].model_extra.get("prompt_logprobs") for answer in (alone[2], together[2])]
        assert len(scored[0]) == len(scored[1]) == alone[2].usage.prompt_tokens
        until(lambda: is_idle(running))
        check_nothing_held(local(running))


@pytest.mark.parametrize("name", ["chat_template", "tokenize", "add_generation_prompt", "tokenizer_kwargs"])
def test_a_request_brings_no_template_of_its_own(server: HttpServer, name: str) -> None:
    fields = {"messages": [{"role": "user", "content": "x"}], "chat_template_kwargs": {name: "{{ 1 }}"}}
    with server.http() as http:
        for path in ("/v1/chat/completions", "/tokenize"):
            answer = http.post(path, json=fields)
            assert answer.status_code == 400
            assert answer.json()["error"]["param"] == "chat_template_kwargs"
            assert "transformers" not in answer.text
        # The template's own variables pass.
        fields["chat_template_kwargs"] = {"enable_thinking": False}
        assert http.post("/tokenize", json=fields).status_code == 200
