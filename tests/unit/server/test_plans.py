"""Whatever the fields: a request is planned, or refused with a reason. Nothing else happens."""

from __future__ import annotations

import string
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from truedraft.backends.scripted import ScriptedBackend
from truedraft.config.schema import ServeConfig
from truedraft.contract.limits import check_request
from truedraft.errors import RequestError
from truedraft.server import ignored_fields
from truedraft.server.chat_call import plan_chat
from truedraft.server.completion_call import plan_completion
from truedraft.server.schema_chat import ChatBody
from truedraft.server.schema_completion import CompletionBody
from truedraft.server.state import ServerState, make_state
from truedraft.server.validation import parse_body

texts = st.text(alphabet=string.ascii_letters + '<|>{}"\\ é\n', max_size=20)
numbers = st.sampled_from([None, 0, 1, 2, 3, 7, 8, 20, 21, -1, -2, 0.5, 1.0, 1e-9, 2**63, 10**30, True, "1"])
schemas = st.sampled_from(
    [
        {},
        {"type": "object"},
        {"$defs": {"A": 1}},
        {"$defs": None},
        {"definitions": [1]},
        {"properties": 3},
        "{}",
        "[",
    ]
)
tools = st.fixed_dictionaries(
    {
        "type": st.just("function"),
        "function": st.fixed_dictionaries(
            {"name": st.sampled_from(["f", "g", ""])},
            optional={"parameters": schemas, "strict": st.booleans()},
        ),
    }
)
calls = st.fixed_dictionaries(
    {"function": st.fixed_dictionaries({"name": texts, "arguments": st.sampled_from(["{}", "", "[", "3"])})},
    optional={"id": texts, "type": st.just("function")},
)
messages = st.fixed_dictionaries(
    {
        "role": st.sampled_from(["system", "developer", "user", "assistant", "tool"]),
        "content": texts
        | texts
        | st.lists(st.fixed_dictionaries({"type": st.just("text"), "text": texts}), max_size=2)
        | st.none(),
    },
    optional={"tool_calls": st.lists(calls, max_size=1), "name": texts},
)
switches = st.sampled_from([None, False, True, True, 1])
shared = {
    **dict.fromkeys(
        (
            *("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "seed"),
            *("max_tokens", "min_tokens", "prompt_logprobs", "logprobs", "top_logprobs", "speculation"),
            *("max_completion_tokens", "best_of", "frequency_penalty", "n"),
        ),
        numbers,
    ),
    **dict.fromkeys(
        (
            *("stream", "speculation_trace", "continue_final_message", "add_generation_prompt"),
            *("echo", "parallel_tool_calls", "ignore_eos"),
        ),
        switches,
    ),
    "stop": st.none() | texts | st.lists(texts, max_size=3),
    "stop_token_ids": st.lists(st.integers(-1, 300), max_size=3),
    "logit_bias": st.dictionaries(st.sampled_from(["1", "258", "259", "-1", "x", "٣"]), numbers, max_size=2),
    "guided_json": schemas,
    "guided_choice": st.lists(texts, max_size=2),
    "structured_outputs": st.dictionaries(st.sampled_from(["json", "regex", "choice"]), texts, max_size=2),
    "response_format": st.sampled_from(
        [{"type": "text"}, {"type": "json_schema", "json_schema": {"schema": {}}}]
    ),
    "chat_template_kwargs": st.dictionaries(texts, numbers, max_size=2),
}
chat_only = {
    "tools": st.lists(tools, max_size=2),
    "tool_choice": st.sampled_from(
        ["none", "auto", "required", {"type": "function", "function": {"name": "f"}}]
    ),
}
prompts = st.one_of(
    texts,
    st.lists(texts, max_size=3),
    st.lists(st.integers(-1, 300), max_size=5),
    st.lists(st.lists(st.integers(0, 258), max_size=3), max_size=3),
)


@pytest.fixture(scope="module")
def state() -> ServerState:
    return make_state(ScriptedBackend(), ServeConfig())


def some_of(fields: dict[str, st.SearchStrategy[Any]]) -> st.SearchStrategy[dict[str, Any]]:
    """Up to four of the fields: with more, nearly every request is refused for the first."""
    chosen = st.lists(st.sampled_from(sorted(fields)), max_size=4, unique=True)
    return chosen.flatmap(lambda names: st.fixed_dictionaries({name: fields[name] for name in names}))


@settings(max_examples=300, deadline=None)
@given(fields=some_of(shared | chat_only), said=st.lists(messages, min_size=1, max_size=3))
def test_chats(state: ServerState, fields: dict[str, Any], said: list[dict[str, Any]]) -> None:
    try:
        call = plan_chat(state, parse_body(ChatBody, {"messages": said} | fields, ignored_fields.CHAT))
    except RequestError as error:
        assert str(error)
        return
    assert len(call.requests) == (fields.get("n") or 1)
    for request in call.requests:
        check_request(request, state.backend.info)
    assert len({request.sampling.seed for request in call.requests} - {None}) in (0, len(call.requests))


@settings(max_examples=300, deadline=None)
@given(fields=some_of(shared), prompt=prompts)
def test_completions(state: ServerState, fields: dict[str, Any], prompt: Any) -> None:
    try:
        raw = {"prompt": prompt} | fields
        call = plan_completion(state, parse_body(CompletionBody, raw, ignored_fields.COMPLETION))
    except RequestError as error:
        assert str(error)
        return
    assert len(call.requests) % call.n == 0
    for request in call.requests:
        check_request(request, state.backend.info)
    assert call.num_prompt_tokens >= 1
