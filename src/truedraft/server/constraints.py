"""`response_format`, vLLM's guided fields and `structured_outputs` → one Grammar, or none."""

from __future__ import annotations

import json
from typing import Any

from truedraft.contract.request import Grammar
from truedraft.errors import RequestError
from truedraft.server.schema_sampling import ResponseFormat, SamplingBody, StructuredOutputs


def grammar_of(body: SamplingBody) -> Grammar | None:
    """→ the constraint that the body asks for. Raises RequestError where it asks for two."""
    found: dict[str, Grammar] = {}
    if body.response_format is not None and body.response_format.type != "text":
        found["response_format"] = _from_response_format(body.response_format)
    if body.guided_json is not None:
        found["guided_json"] = _from_schema("guided_json", body.guided_json)
    if body.guided_regex is not None:
        found["guided_regex"] = Grammar("regex", body.guided_regex)
    if body.guided_choice is not None:
        found["guided_choice"] = _from_choices("guided_choice", body.guided_choice)
    if body.guided_grammar is not None:
        found["guided_grammar"] = Grammar("lark", body.guided_grammar)
    if body.structured_outputs is not None:
        found["structured_outputs"] = _from_structured_outputs(body.structured_outputs)
    if len(found) > 1:
        names = " and ".join(f"`{name}`" for name in found)
        raise RequestError(
            f"{names} each constrain the answer", param=next(iter(found)), allowed="one of them"
        )
    return next(iter(found.values()), None)


def schema_grammar(schema: dict[str, Any]) -> Grammar:
    """A grammar of the JSON texts that `schema` allows."""
    return Grammar("json_schema", json.dumps(schema, ensure_ascii=False))


def _from_response_format(wanted: ResponseFormat) -> Grammar:
    if wanted.type == "json_object":
        return Grammar("json_object")
    if wanted.json_schema is None:
        raise RequestError(
            "`response_format` of type json_schema has no schema",
            param="response_format.json_schema",
            allowed='{"type": "json_schema", "json_schema": {"name": …, "schema": {…}}}',
        )
    return schema_grammar(wanted.json_schema.schema_)


def _from_structured_outputs(wanted: StructuredOutputs) -> Grammar:
    name = "structured_outputs"
    found = [field for field in StructuredOutputs.model_fields if getattr(wanted, field)]
    if len(found) != 1:
        raise RequestError(
            f"`{name}` must have exactly one constraint",
            param=name,
            seen=found or "none",
            allowed="json, regex, choice, grammar or json_object",
        )
    if wanted.json_ is not None:
        return _from_schema(f"{name}.json", wanted.json_)
    if wanted.choice is not None:
        return _from_choices(f"{name}.choice", wanted.choice)
    if wanted.regex is not None:
        return Grammar("regex", wanted.regex)
    if wanted.grammar is not None:
        return Grammar("lark", wanted.grammar)
    return Grammar("json_object")


def _from_schema(param: str, schema: dict[str, Any] | str) -> Grammar:
    if isinstance(schema, str):
        try:
            schema = json.loads(schema)
        except (ValueError, RecursionError):
            raise RequestError(f"`{param}` is text, but not JSON", param=param, seen=schema) from None
        if not isinstance(schema, dict):
            raise RequestError(f"`{param}` must be a JSON schema", param=param, seen=schema)
    return schema_grammar(schema)


def _from_choices(param: str, choices: list[str]) -> Grammar:
    if not choices or not all(choices):
        raise RequestError(
            f"`{param}` needs at least one choice, and none of them empty", param=param, seen=choices
        )
    return Grammar("choice", json.dumps(choices, ensure_ascii=False))
