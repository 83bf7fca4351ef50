"""What the scripted backend says in HTTP tests: the last user message decides."""

from __future__ import annotations

import json

from truedraft.backends.scripted import Answer, Script, ScriptedBackend, default_script
from truedraft.contract.request import GenerateRequest

WEATHER_CALL = '{"name": "weather", "arguments": {"city": "Zürich"}}'


def script(prompt: str, request: GenerateRequest) -> Answer | str:
    """Keywords: FAIL, HANG, SLOW, HERMES, LLAMA, CALLS, ARGUMENTS, JSON."""
    if "FAIL AT ONCE" in prompt:
        return Answer("never said", fail_after=0)
    if "FAIL" in prompt:
        return Answer("This ends badly, and it says so.", fail_after=3)
    if "HANG AT ONCE" in prompt:
        return Answer("never said", hang_after=0)
    if "HANG" in prompt:
        return Answer("This hangs, and it says so.", hang_after=3)
    if "SLOW" in prompt:
        return Answer("A slow answer. " * 40, delay_s=0.02)
    if "HERMES" in prompt:
        return f"I will look.\n<tool_call>\n{WEATHER_CALL}\n</tool_call>\n<tool_call>\n{WEATHER_CALL}\n</tool_call>"
    if "LLAMA" in prompt:
        return '{"name": "weather", "parameters": {"city": "Zürich"}}'
    if request.sampling.grammar is not None and request.sampling.grammar.kind == "json_schema":
        return _instance(json.loads(request.sampling.grammar.source))
    return default_script(prompt, request)


def scripted_backend(chosen: Script = script, **options: object) -> ScriptedBackend:
    """A ScriptedBackend with this script."""
    return ScriptedBackend(chosen, **options)  # type: ignore[arg-type]


def _instance(schema: dict[str, object]) -> str:
    """A text that the two schemas used in these tests allow."""
    if schema.get("type") == "array":
        return '[{"name": "weather", "parameters": {"city": "Bern"}}, {"name": "weather", "parameters": {"city": "Genf"}}]'
    return '{"city": "Bern"}'
