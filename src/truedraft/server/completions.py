"""POST /v1/completions."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from truedraft.contract.request import PositionLogprobs, TokenDelta, Usage
from truedraft.server import ignored_fields
from truedraft.server.answer import Answer, collect, usages_of
from truedraft.server.body import read_json
from truedraft.server.completion_call import CompletionCall, only_echoes, plan_completion
from truedraft.server.disconnect import until_disconnect
from truedraft.server.echo import without_answer
from truedraft.server.generation import Deltas, run
from truedraft.server.logprobs import CompletionLogprobs, prompt_logprobs
from truedraft.server.openapi import body_schema
from truedraft.server.schema_completion import CompletionBody
from truedraft.server.sse import DONE, EventStream, event
from truedraft.server.state import state_of
from truedraft.server.usage import running_usage, trace_body, usage_body
from truedraft.server.validation import parse_body

router = APIRouter()


@router.post("/v1/completions", openapi_extra=body_schema(CompletionBody), summary="Continue a prompt")
async def completions(request: Request) -> Response:
    """Continues one or several prompts, whole or as a stream of server-sent events."""
    state = state_of(request)
    state.admission.check_open()
    raw = await read_json(request, max_body_bytes=state.config.max_body_bytes)
    call = plan_completion(state, parse_body(CompletionBody, raw, ignored_fields.COMPLETION))
    deltas = run(state, call.requests)
    if only_echoes(call.body):
        deltas = without_answer(deltas)
    if not call.body.stream:
        answers = await until_disconnect(request.receive, collect(deltas, len(call.requests)))
        return JSONResponse(_whole(call, answers))
    # The first delta decides between an error status and a stream.
    first = await until_disconnect(request.receive, anext(deltas))
    return EventStream(_events(call, first, deltas), deltas)


def _whole(call: CompletionCall, answers: list[Answer]) -> dict[str, Any]:
    for index, answer in enumerate(answers):
        # Only the first choice of a prompt was asked to score it.
        answer.prompt_logprobs = answers[index - index % call.n].prompt_logprobs
    return call.frame() | {
        "choices": [_choice(call, index, answer) for index, answer in enumerate(answers)],
        "usage": usage_body(usages_of(answers), num_prompt_tokens=call.num_prompt_tokens),
    }


def _choice(call: CompletionCall, index: int, answer: Answer) -> dict[str, Any]:
    body, token_text = call.body, call.state.token_text
    choice: dict[str, Any] = {
        "index": index,
        "text": call.echoed(index) + answer.text,
        "logprobs": None,
        "finish_reason": answer.finish_reason,
        "stop_reason": answer.stop_reason,
    }
    if body.logprobs is not None:
        shaper = CompletionLogprobs(token_text)
        if body.echo:
            _add_prompt(shaper, call.requests[index].prompt_token_ids, answer.prompt_logprobs)
        for token_id, position in zip(answer.token_ids, answer.logprobs, strict=False):
            shaper.add(token_id, position)
        choice["logprobs"] = shaper.take()
    if body.prompt_logprobs is not None and answer.prompt_logprobs is not None:
        choice["prompt_logprobs"] = prompt_logprobs(answer.prompt_logprobs, token_text)
    if body.return_token_ids:
        choice["prompt_token_ids"] = list(call.requests[index].prompt_token_ids)
        choice["token_ids"] = answer.token_ids
    if body.speculation_trace:
        rounds = (trace_body(delta, token_text) for delta in answer.rounds)
        choice["speculation_trace"] = [entry for entry in rounds if entry is not None]
    return choice


def _add_prompt(
    shaper: CompletionLogprobs,
    prompt_ids: tuple[int, ...],
    scored: Any,
) -> None:
    positions: list[PositionLogprobs | None] = list(scored or [None] * len(prompt_ids))
    for token_id, position in zip(prompt_ids, positions, strict=True):
        shaper.add(token_id, position)


async def _events(
    call: CompletionCall, first: tuple[int, TokenDelta], deltas: Deltas
) -> AsyncGenerator[bytes, None]:
    """Yields the deltas, the usage where asked for, and `[DONE]`."""
    stream = _CompletionStream(call)
    for chunk in stream.advance(*first):
        yield event(chunk)
    async for index, delta in deltas:
        for chunk in stream.advance(index, delta):
            yield event(chunk)
    for chunk in stream.end():
        yield event(chunk)
    yield DONE


class _CompletionStream:
    """What a stream has to remember between two deltas."""

    def __init__(self, call: CompletionCall) -> None:
        self._call = call
        self._shapers = [CompletionLogprobs(call.state.token_text) for _ in call.requests]
        self._begun = [False] * len(call.requests)
        self._scores: dict[int, Any] = {}  # by prompt, from the choice that was asked to score
        self._waiting: dict[int, list[tuple[int, TokenDelta]]] = {}
        self._usages: list[Usage] = []
        self._num_tokens = 0
        options = call.body.stream_options
        self._tells_usage = options is not None and options.include_usage
        self._tells_running = options is not None and options.continuous_usage_stats

    def advance(self, index: int, delta: TokenDelta) -> list[dict[str, Any]]:
        """→ chunks to send. A choice that echoes scores waits for the one that brings them."""
        prompt = index // self._call.n
        needs_scores = bool(self._call.body.echo) and self._call.body.logprobs is not None
        if not needs_scores or prompt in self._scores:
            return self._chunks(index, delta)
        if delta.prompt_logprobs is None:
            self._waiting.setdefault(prompt, []).append((index, delta))
            return []
        self._scores[prompt] = delta.prompt_logprobs
        ready = [(index, delta), *self._waiting.pop(prompt, [])]
        return [chunk for entry in ready for chunk in self._chunks(*entry)]

    def end(self) -> list[dict[str, Any]]:
        if not self._tells_usage:
            return []
        usage = usage_body(self._usages, num_prompt_tokens=self._call.num_prompt_tokens)
        return [self._call.frame() | {"choices": [], "usage": usage}]

    def _chunks(self, index: int, delta: TokenDelta) -> list[dict[str, Any]]:
        self._num_tokens += len(delta.token_ids)
        if delta.usage is not None:
            self._usages.append(delta.usage)
        choice = self._choice(index, delta)
        plain = choice["text"] == "" and choice["logprobs"] is None and delta.finish_reason is None
        if plain and not choice.keys() & {"token_ids", "speculation"}:
            return []
        chunk = self._call.frame() | {"choices": [choice]}
        if self._tells_running:
            chunk["usage"] = running_usage(self._call.num_prompt_tokens, self._num_tokens)
        elif self._tells_usage:
            chunk["usage"] = None
        return [chunk]

    def _choice(self, index: int, delta: TokenDelta) -> dict[str, Any]:
        body, call = self._call.body, self._call
        is_first, self._begun[index] = not self._begun[index], True
        choice: dict[str, Any] = {
            "index": index,
            "text": (call.echoed(index) if is_first else "") + delta.text,
            "logprobs": None,
            "finish_reason": delta.finish_reason,
            "stop_reason": delta.stop_reason,
        }
        prompt_ids = call.requests[index].prompt_token_ids
        if body.logprobs is not None:
            shaper = self._shapers[index]
            if is_first and body.echo:
                _add_prompt(shaper, prompt_ids, self._scores.get(index // call.n))
            for token_id, position in zip(delta.token_ids, delta.logprobs or (), strict=False):
                shaper.add(token_id, position)
            choice["logprobs"] = shaper.take()
        if body.return_token_ids:
            if is_first:
                choice["prompt_token_ids"] = list(prompt_ids)
            choice["token_ids"] = list(delta.token_ids)
        trace = trace_body(delta, call.state.token_text) if body.speculation_trace else None
        return choice if trace is None else choice | {"speculation": trace}
