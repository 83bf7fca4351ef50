"""POST /v1/chat/completions."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from truedraft.server import ignored_fields
from truedraft.server.answer import Answer, collect, usages_of
from truedraft.server.body import read_json
from truedraft.server.chat_call import ChatCall, plan_chat
from truedraft.server.chat_stream import chat_events
from truedraft.server.disconnect import until_disconnect
from truedraft.server.generation import run
from truedraft.server.logprobs import chat_logprobs, prompt_logprobs
from truedraft.server.openapi import body_schema
from truedraft.server.schema_chat import ChatBody
from truedraft.server.sse import EventStream
from truedraft.server.state import state_of
from truedraft.server.tools import Call, Text
from truedraft.server.usage import usage_body
from truedraft.server.validation import parse_body

router = APIRouter()


@router.post("/v1/chat/completions", openapi_extra=body_schema(ChatBody), summary="Answer a conversation")
async def chat_completions(request: Request) -> Response:
    """Answers a conversation, whole or as a stream of server-sent events."""
    state = state_of(request)
    state.admission.check_open()
    raw = await read_json(request, max_body_bytes=state.config.max_body_bytes)
    call = plan_chat(state, parse_body(ChatBody, raw, ignored_fields.CHAT))
    deltas = run(state, call.requests)
    if not call.body.stream:
        answers = await until_disconnect(request.receive, collect(deltas, len(call.requests)))
        return JSONResponse(_whole(call, answers))
    # The first delta decides between an error status and a stream.
    first = await until_disconnect(request.receive, anext(deltas))
    return EventStream(chat_events(call, first, deltas), deltas)


def _whole(call: ChatCall, answers: list[Answer]) -> dict[str, Any]:
    body = call.frame("chat.completion") | {
        "choices": [_choice(call, index, answer) for index, answer in enumerate(answers)],
        "usage": usage_body(usages_of(answers), num_prompt_tokens=call.num_prompt_tokens),
    }
    if answers[0].prompt_logprobs is not None:
        body["prompt_logprobs"] = prompt_logprobs(answers[0].prompt_logprobs, call.state.token_text)
    if call.body.return_token_ids:
        body["prompt_token_ids"] = list(call.requests[0].prompt_token_ids)
    return body


def _choice(call: ChatCall, index: int, answer: Answer) -> dict[str, Any]:
    assert answer.finish_reason is not None
    message = _message(call, answer.text)
    choice: dict[str, Any] = {
        "index": index,
        "message": message,
        "logprobs": None,
        "finish_reason": call.finish_reason(answer.finish_reason, called="tool_calls" in message),
        "stop_reason": answer.stop_reason,
    }
    if call.body.logprobs:
        choice["logprobs"] = chat_logprobs(answer.logprobs, call.state.token_text)
    if call.body.return_token_ids:
        choice["token_ids"] = answer.token_ids
    if call.body.speculation_trace:
        rounds = (call.trace_body(delta) for delta in answer.rounds)
        choice["speculation_trace"] = [entry for entry in rounds if entry is not None]
    return choice


def _message(call: ChatCall, text: str) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None}
    parser = call.tools.parser()
    if parser is None:
        return message
    pieces = [*parser.feed(text), *parser.finish()]
    message["content"] = "".join(piece.text for piece in pieces if isinstance(piece, Text)) or None
    calls = [
        {
            "id": piece.call_id,
            "type": "function",
            "function": {"name": piece.name, "arguments": piece.arguments},
        }
        for piece in pieces
        if isinstance(piece, Call)
    ]
    if calls:
        message["tool_calls"] = calls
    elif message["content"] is None:
        message["content"] = ""
    return message
