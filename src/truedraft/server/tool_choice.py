"""`tools` and `tool_choice` → what the template sees, what the grammar enforces, who parses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from truedraft.contract.request import Grammar
from truedraft.errors import RequestError, UnsupportedError
from truedraft.server.constraints import schema_grammar
from truedraft.server.messages import template_tools
from truedraft.server.schema_chat import ChatBody, NamedToolChoice, Tool
from truedraft.server.tools import AutoParser, NamedParser, RequiredParser, ToolParser


@dataclass(frozen=True, slots=True)
class ToolPlan:
    """How tools take part in one request. `mode` none: they do not."""

    mode: Literal["none", "auto", "required", "named"] = "none"
    tools: list[dict[str, Any]] | None = None  # for the template
    names: frozenset[str] = frozenset()
    named: str = ""
    grammar: Grammar | None = None

    def parser(self) -> ToolParser | None:
        """A fresh parser for one choice; None where the answer is only text."""
        if self.mode == "auto":
            return AutoParser(self.names)
        if self.mode == "required":
            return RequiredParser(self.names)
        return NamedParser(self.named) if self.mode == "named" else None


def plan_tools(body: ChatBody) -> ToolPlan:
    """→ the plan. Raises RequestError for a choice without its tool, or a promise we cannot keep."""
    choice = body.tool_choice
    if not body.tools:
        if choice not in (None, "none", "auto"):
            raise RequestError("`tool_choice` asks for a call, but there are no `tools`", param="tool_choice")
        return ToolPlan()
    names = _check_names(body.tools)
    if choice == "none":
        # As OpenAI's API does: the model is not told about tools that it must not call.
        return ToolPlan()
    tools = template_tools(body.tools)
    if isinstance(choice, NamedToolChoice):
        return _named(body.tools, tools, names, choice.function.name)
    if choice == "required":
        schema = _calls_schema(body.tools, one=body.parallel_tool_calls is False)
        return ToolPlan("required", tools, names, grammar=schema_grammar(schema))
    _check_auto(body)
    return ToolPlan("auto", tools, names)


def _check_names(tools: Sequence[Tool]) -> frozenset[str]:
    names = [tool.function.name for tool in tools]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise RequestError("Two tools have one name", param="tools", seen=twice)
    return frozenset(names)


def _check_auto(body: ChatBody) -> None:
    remedy = 'Use "tool_choice": "required", which is enforced, or leave it out'
    if body.parallel_tool_calls is False:
        raise UnsupportedError(
            "`parallel_tool_calls` false is not enforced where the model is free to call",
            param="parallel_tool_calls",
            remedy=remedy,
        )
    for index, tool in enumerate(body.tools or ()):
        if tool.function.strict:
            raise UnsupportedError(
                "`strict` is not enforced where the model is free to call",
                param=f"tools.{index}.function.strict",
                remedy=remedy,
            )


def _named(
    tools: Sequence[Tool], shown: list[dict[str, Any]] | None, names: frozenset[str], name: str
) -> ToolPlan:
    for tool in tools:
        if tool.function.name == name:
            schema = _parameters(tool)
            return ToolPlan("named", shown, names, named=name, grammar=schema_grammar(schema))
    raise RequestError(
        "`tool_choice` names a function that is not among the `tools`",
        param="tool_choice",
        seen=name,
        allowed=", ".join(sorted(names)),
    )


def _parameters(tool: Tool) -> dict[str, Any]:
    return tool.function.parameters or {"type": "object", "properties": {}, "additionalProperties": False}


def _calls_schema(tools: Sequence[Tool], *, one: bool) -> dict[str, Any]:
    """A schema for arrays of calls. Definitions move to the root, where their references point."""
    definitions: dict[str, dict[str, Any]] = {"$defs": {}, "definitions": {}}
    calls = []
    for tool in tools:
        parameters = dict(_parameters(tool))
        for key, known in definitions.items():
            found = parameters.pop(key, {})
            if not isinstance(found, dict):
                raise RequestError(f"`{key}` of a schema must be an object", param="tools", seen=found)
            for name, value in found.items():
                if known.setdefault(name, value) != value:
                    raise RequestError("Two tools define one name differently", param="tools", seen=name)
        calls.append(
            {
                "type": "object",
                "properties": {"name": {"const": tool.function.name}, "parameters": parameters},
                "required": ["name", "parameters"],
                "additionalProperties": False,
            }
        )
    schema: dict[str, Any] = {"type": "array", "minItems": 1, "items": {"anyOf": calls}}
    if one:
        schema["maxItems"] = 1
    return schema | {key: value for key, value in definitions.items() if value}
