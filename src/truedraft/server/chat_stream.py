"""Deltas of a chat completion → server-sent events."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Any

from truedraft.contract.request import TokenDelta, Usage
from truedraft.server.chat_call import ChatCall
from truedraft.server.generation import Deltas
from truedraft.server.sse import DONE, event
from truedraft.server.tools import Call, Piece, Text, ToolParser
from truedraft.server.usage import running_usage, usage_body


async def chat_events(
    call: ChatCall, first: tuple[int, TokenDelta], deltas: Deltas
) -> AsyncGenerator[bytes, None]:
    """Yields the role of every choice, its deltas, the usage where asked for, and `[DONE]`."""
    stream = _ChatStream(call)
    for chunk in stream.begin():
        yield event(chunk)
    for chunk in stream.advance(*first):
        yield event(chunk)
    async for index, delta in deltas:
        for chunk in stream.advance(index, delta):
            yield event(chunk)
    for chunk in stream.end():
        yield event(chunk)
    yield DONE


class _ChatStream:
    """What a stream has to remember between two deltas."""

    def __init__(self, call: ChatCall) -> None:
        self._call = call
        self._parsers: list[ToolParser | None] = [call.tools.parser() for _ in call.requests]
        self._called = [False] * len(call.requests)
        self._usages: list[Usage] = []
        self._num_tokens = 0
        options = call.body.stream_options
        self._tells_usage = options is not None and options.include_usage
        self._tells_running = options is not None and options.continuous_usage_stats

    def begin(self) -> list[dict[str, Any]]:
        chunks = []
        for index in range(len(self._call.requests)):
            chunk = self._chunk(index, {"role": "assistant", "content": ""})
            if index == 0 and self._call.body.return_token_ids:
                chunk["prompt_token_ids"] = list(self._call.requests[0].prompt_token_ids)
            chunks.append(chunk)
        return chunks

    def advance(self, index: int, delta: TokenDelta) -> list[dict[str, Any]]:
        """→ at most one chunk: nothing is sent where there is nothing to tell."""
        self._num_tokens += len(delta.token_ids)
        if delta.usage is not None:
            self._usages.append(delta.usage)
        said = self._said(index, delta)
        chunk = self._chunk(index, said)
        choice = chunk["choices"][0]
        choice["logprobs"] = self._call.logprobs_body(delta)
        if self._call.body.return_token_ids and delta.token_ids:
            choice["token_ids"] = list(delta.token_ids)
        if self._call.body.speculation_trace:
            trace = self._call.trace_body(delta)
            if trace is not None:
                choice["speculation"] = trace
        if delta.finish_reason is not None:
            choice["finish_reason"] = self._call.finish_reason(
                delta.finish_reason, called=self._called[index]
            )
            choice["stop_reason"] = delta.stop_reason
        tells = (
            said or delta.finish_reason or choice["logprobs"] or choice.keys() & {"token_ids", "speculation"}
        )
        return [chunk] if tells else []

    def end(self) -> list[dict[str, Any]]:
        if not self._tells_usage:
            return []
        usage = usage_body(self._usages, num_prompt_tokens=self._call.num_prompt_tokens)
        return [self._call.frame("chat.completion.chunk") | {"choices": [], "usage": usage}]

    def _said(self, index: int, delta: TokenDelta) -> dict[str, Any]:
        parser = self._parsers[index]
        if parser is None:
            return {"content": delta.text} if delta.text else {}
        pieces = parser.feed(delta.text)
        if delta.finish_reason is not None:
            pieces += parser.finish()
        return self._shape(index, pieces)

    def _shape(self, index: int, pieces: Sequence[Piece]) -> dict[str, Any]:
        said: dict[str, Any] = {}
        text = "".join(piece.text for piece in pieces if isinstance(piece, Text))
        if text:
            said["content"] = text
        calls = [_call_delta(piece) for piece in pieces if isinstance(piece, Call)]
        if calls:
            self._called[index] = True
            said["tool_calls"] = calls
        return said

    def _chunk(self, index: int, said: dict[str, Any]) -> dict[str, Any]:
        choice = {"index": index, "delta": said, "logprobs": None, "finish_reason": None}
        chunk = self._call.frame("chat.completion.chunk") | {"choices": [choice]}
        if self._tells_running:
            chunk["usage"] = running_usage(self._call.num_prompt_tokens, self._num_tokens)
        elif self._tells_usage:
            chunk["usage"] = None
        return chunk


def _call_delta(call: Call) -> dict[str, Any]:
    if call.call_id is None:
        return {"index": call.index, "function": {"arguments": call.arguments}}
    function = {"name": call.name, "arguments": call.arguments}
    return {"index": call.index, "id": call.call_id, "type": "function", "function": function}
