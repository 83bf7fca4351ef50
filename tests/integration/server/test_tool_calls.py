"""Tools over HTTP: both families parsed, choices enforced, streams equal to whole answers."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest

WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
ANY_NAME = "scripted"


def ask(client: openai.OpenAI, text: str, **fields: Any) -> Any:
    messages = [{"role": "user", "content": text}]
    fields = {"tools": [WEATHER], "temperature": 0.0} | fields
    return client.chat.completions.create(model=ANY_NAME, messages=messages, **fields)


def gathered(chunks: Any) -> tuple[str, list[dict[str, str]], str | None]:
    """What a client puts together from a stream: text, calls, finish reason."""
    text, calls, reason = "", [], None
    for chunk in chunks:
        choice = chunk.choices[0]
        text += choice.delta.content or ""
        reason = choice.finish_reason or reason
        for call in choice.delta.tool_calls or []:
            if call.index == len(calls):
                assert call.id.startswith("call_")
                calls.append({"name": call.function.name, "arguments": ""})
            calls[call.index]["arguments"] += call.function.arguments
    return text, calls, reason


@pytest.mark.parametrize(("text", "content", "num"), [("HERMES", "I will look.\n", 2), ("LLAMA", None, 1)])
def test_calls_of_both_families(client: openai.OpenAI, text: str, content: str | None, num: int) -> None:
    choice = ask(client, text).choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == content
    assert [call.function.name for call in choice.message.tool_calls] == ["weather"] * num
    assert json.loads(choice.message.tool_calls[0].function.arguments) == {"city": "Zürich"}
    assert len({call.id for call in choice.message.tool_calls}) == num
    said, calls, reason = gathered(ask(client, text, stream=True))
    assert (said or None, reason) == (content, "tool_calls")
    assert [call["arguments"] for call in calls] == [
        call.function.arguments for call in choice.message.tool_calls
    ]


def test_text_stays_text_where_tools_are_offered(client: openai.OpenAI) -> None:
    choice = ask(client, "Just talk").choices[0]
    assert choice.finish_reason == "stop"
    assert choice.message.tool_calls is None
    assert gathered(ask(client, "Just talk", stream=True)) == (choice.message.content, [], "stop")


def test_required_is_enforced_by_a_grammar(client: openai.OpenAI) -> None:
    choice = ask(client, "x", tool_choice="required").choices[0]
    assert choice.finish_reason == "tool_calls"
    cities = [json.loads(call.function.arguments)["city"] for call in choice.message.tool_calls]
    assert cities == ["Bern", "Genf"]
    said, calls, reason = gathered(ask(client, "x", tool_choice="required", stream=True))
    assert (said, len(calls), reason) == ("", 2, "tool_calls")


def test_a_named_function_gets_the_whole_answer(client: openai.OpenAI) -> None:
    named = {"type": "function", "function": {"name": "weather"}}
    choice = ask(client, "x", tool_choice=named).choices[0]
    assert choice.finish_reason == "stop"
    assert choice.message.tool_calls[0].function.arguments == '{"city": "Bern"}'
    said, calls, reason = gathered(ask(client, "x", tool_choice=named, stream=True))
    assert (said, calls, reason) == ("", [{"name": "weather", "arguments": '{"city": "Bern"}'}], "stop")


def test_none_hides_the_tools(client: openai.OpenAI) -> None:
    extra = {"return_token_ids": True}
    hidden = ask(client, "HERMES", tool_choice="none", extra_body=extra, max_tokens=400)
    assert "<tool_call>" in hidden.choices[0].message.content
    prompt = bytes(i for i in hidden.model_extra["prompt_token_ids"] if i < 256)
    assert b"The weather of a city" not in prompt
    shown = ask(client, "HERMES", extra_body=extra)
    prompt = bytes(i for i in shown.model_extra["prompt_token_ids"] if i < 256)
    assert b"The weather of a city" in prompt


def test_a_cut_off_call_comes_as_text(client: openai.OpenAI) -> None:
    choice = ask(client, "HERMES", max_tokens=30).choices[0]
    assert choice.finish_reason == "length"
    assert choice.message.tool_calls is None
    assert choice.message.content.startswith("I will look.\n<tool_call>")
    assert gathered(ask(client, "HERMES", max_tokens=30, stream=True))[0] == choice.message.content


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [], "tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "other"}}}, "tool_choice"),
        ({"tools": [WEATHER, WEATHER]}, "tools"),
        ({"parallel_tool_calls": False}, "parallel_tool_calls"),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "strict": True}}]},
            "tools.0.function.strict",
        ),
        ({"tool_choice": "required", "response_format": {"type": "json_object"}}, "tool_choice"),
        ({"functions": [{"name": "f"}]}, "functions"),
    ],
)
def test_promises_that_cannot_be_kept_are_refused(
    client: openai.OpenAI, fields: dict[str, Any], param: str
) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, "x", **fields)
    assert caught.value.param == param
