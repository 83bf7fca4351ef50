"""Structured answers of the real engine: valid, and the same with speculation on and off."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import openai
import pytest
from http_server import HttpServer
from local_http import chat, speculation_of

SCHEMA = {
    "type": "object",
    "properties": {
        "kind": {"enum": ["river", "lake"]},
        "depth": {"type": "integer", "minimum": 0, "maximum": 999},
        "salt": {"type": "boolean"},
        "name": {"type": "string", "maxLength": 6},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "minItems": 1, "maxItems": 3},
    },
    "required": ["kind", "depth", "salt", "name", "tags"],
    "additionalProperties": False,
}


def is_instance(text: str) -> bool:
    value = json.loads(text)
    return (
        set(value) == set(SCHEMA["required"])
        and value["kind"] in ("river", "lake")
        and type(value["depth"]) is int
        and 0 <= value["depth"] <= 999
        and type(value["salt"]) is bool
        and len(value["name"]) <= 6
        and 1 <= len(value["tags"]) <= 3
        and set(value["tags"]) <= {"a", "b"}
    )


PHONE = r"[0-9]{3}-[0-9]{4}( ext [0-9]{2})?"
CASES: dict[str, tuple[dict[str, Any], Callable[[str], Any]]] = {
    "json_schema": (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "water", "schema": SCHEMA}}},
        is_instance,
    ),
    "regex": ({"extra_body": {"structured_outputs": {"regex": PHONE}}}, re.compile(PHONE).fullmatch),
    "choice": (
        {"extra_body": {"guided_choice": ["north by northwest", "north", "south"]}},
        lambda text: text in ("north by northwest", "north", "south"),
    ),
    "lark": (
        {"extra_body": {"guided_grammar": 'start: "<" /[a-c]{2,5}/ ">"'}},
        re.compile("<[a-c]{2,5}>").fullmatch,
    ),
}


@pytest.fixture(autouse=True)
def no_blanks(server: HttpServer) -> None:
    """JSON may have blanks between its parts, and a toy model would write little else."""
    blanks = server.backend.encode(" \n\r\t", add_special_tokens=False)
    CASES["json_schema"][0]["logit_bias"] = {str(token_id): -100 for token_id in blanks}


def ask(client: openai.OpenAI, text: str, fields: dict[str, Any], **more: Any) -> Any:
    extra = {"ignore_eos": False} | fields.get("extra_body", {}) | more.pop("extra_body", {})
    return chat(client, text, **(fields | more | {"max_tokens": 250, "extra_body": extra}))


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("name", CASES)
def test_valid_and_the_same_with_speculation(client: openai.OpenAI, name: str, temperature: float) -> None:
    fields, is_valid = CASES[name]
    for prompt in ("one", "another"):
        texts = []
        for way in ("off", "auto", 3):
            more = {"temperature": temperature, "seed": 4, "extra_body": {"speculation": way}}
            answer = ask(client, prompt, fields, **more)
            texts.append(answer.choices[0].message.content)
            assert answer.choices[0].finish_reason == "stop", texts
            assert (speculation_of(answer)["rounds"] > 0) == (way != "off")
        assert is_valid(texts[0]), texts
        assert texts == [texts[0]] * 3


def test_streams_and_several_choices(client: openai.OpenAI) -> None:
    fields, is_valid = CASES["json_schema"]
    whole = ask(client, "n", fields, n=3, temperature=0.8, seed=1)
    texts = [choice.message.content for choice in whole.choices]
    assert all(map(is_valid, texts))
    pieces = ["", "", ""]
    for chunk in ask(client, "n", fields, n=3, temperature=0.8, seed=1, stream=True):
        for choice in chunk.choices:
            pieces[choice.index] += choice.delta.content or ""
    assert pieces == texts


def test_a_prefix_of_json_at_the_token_limit(client: openai.OpenAI) -> None:
    answers = [
        chat(
            client,
            response_format={"type": "json_object"},
            extra_body={"speculation": way, "ignore_eos": False},
        )
        for way in ("off", "auto")
    ]
    texts = [answer.choices[0].message.content for answer in answers]
    assert texts[0] == texts[1]
    assert texts[0].startswith("{")


@pytest.mark.parametrize(
    "extra",
    [
        {"guided_regex": "(unclosed"},
        {"guided_json": {"type": "no such type"}},
        {"guided_grammar": "start: missing_rule"},
        {"guided_choice": []},
        {"guided_choice": ["a"], "ignore_eos": True},
    ],
)
def test_grammars_that_cannot_be_used_are_refused(client: openai.OpenAI, extra: dict[str, Any]) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        chat(client, extra_body={"ignore_eos": False} | extra)
    assert caught.value.body["type"] == "invalid_request_error"
    assert "Traceback" not in str(caught.value)
