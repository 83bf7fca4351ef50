"""One chat completion, planned: what runs, and what the answer has to show."""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass
from typing import Any

from truedraft import __version__
from truedraft.contract.limits import MAX_LOGPROBS
from truedraft.contract.request import FinishReason, GenerateRequest, TokenDelta
from truedraft.errors import RequestError
from truedraft.server.build import build_requests, sampling_of
from truedraft.server.constraints import grammar_of
from truedraft.server.logprobs import chat_logprobs
from truedraft.server.messages import template_messages
from truedraft.server.schema_chat import ChatBody
from truedraft.server.state import ServerState
from truedraft.server.tool_choice import ToolPlan, plan_tools
from truedraft.server.usage import trace_body


@dataclass(frozen=True, slots=True)
class ChatCall:
    """Everything about one chat completion but its answers."""

    id: str
    created_s: int
    state: ServerState
    body: ChatBody
    tools: ToolPlan
    requests: list[GenerateRequest]

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.requests[0].prompt_token_ids)

    def frame(self, kind: str) -> dict[str, Any]:
        """The fields that every object of this answer has."""
        return {
            "id": self.id,
            "object": kind,
            "created": self.created_s,
            "model": self.state.model_name,
            "system_fingerprint": f"truedraft-{__version__}",
        }

    def logprobs_body(self, delta: TokenDelta) -> dict[str, Any] | None:
        if delta.logprobs is None:
            return None
        return chat_logprobs(delta.logprobs, self.state.token_text)

    def trace_body(self, delta: TokenDelta) -> dict[str, Any] | None:
        return trace_body(delta, self.state.token_text)

    def finish_reason(self, reason: FinishReason, *, called: bool) -> str:
        """OpenAI's word: a call ends in `tool_calls`, a named one in `stop`."""
        return "tool_calls" if called and reason == "stop" and self.tools.mode != "named" else str(reason)


def plan_chat(state: ServerState, body: ChatBody) -> ChatCall:
    """→ the plan. Raises RequestError for whatever cannot be served as asked."""
    state.check_model(body.model)
    tools = plan_tools(body)
    grammar = grammar_of(body)
    if tools.grammar is not None:
        if grammar is not None:
            raise RequestError(
                "`tool_choice` and another constraint both fix the form of the answer", param="tool_choice"
            )
        grammar = tools.grammar
    sampling = sampling_of(
        body,
        max_tokens=_max_tokens(body),
        logprobs=_num_logprobs(body),
        grammar=grammar,
        vocab_size=state.backend.info.vocab_size,
    )
    continues = bool(body.continue_final_message)
    adds_prompt = body.add_generation_prompt
    prompt_ids = state.backend.encode_chat(
        template_messages(body.messages),
        tools=tools.tools,
        add_generation_prompt=not continues if adds_prompt is None else adds_prompt,
        continue_final_message=continues,
        template_kwargs=body.chat_template_kwargs,
    )
    call_id = f"chatcmpl-{uuid.uuid4().hex}"
    requests = build_requests(state, body, [prompt_ids], sampling, request_id=call_id)
    return ChatCall(call_id, int(time.time()), state, body, tools, requests)


def _max_tokens(body: ChatBody) -> int | None:
    old, new = body.max_tokens, body.max_completion_tokens
    if old is not None and new is not None and old != new:
        raise RequestError(
            "`max_tokens` and `max_completion_tokens` differ",
            param="max_completion_tokens",
            seen=f"{old} and {new}",
            allowed="one of them",
        )
    return old if new is None else new


def _num_logprobs(body: ChatBody) -> int | None:
    if not body.logprobs:
        if body.top_logprobs:
            raise RequestError("`top_logprobs` needs `logprobs`: true", param="top_logprobs")
        return None
    num = body.top_logprobs or 0
    if not 0 <= num <= MAX_LOGPROBS:
        raise RequestError(
            "`top_logprobs` is out of range", param="top_logprobs", seen=num, allowed=f"0 to {MAX_LOGPROBS}"
        )
    return num
