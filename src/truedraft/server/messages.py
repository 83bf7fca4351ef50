"""Messages and tools as chat templates want them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from truedraft.errors import RequestError
from truedraft.server.schema_chat import Message, Tool, ToolCall


def template_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """→ plain dicts: text parts joined by newlines, arguments of calls as objects.

    `developer` becomes `system`: the templates of the families we serve know no other name for it.
    """
    plain = []
    for index, message in enumerate(messages):
        role = "system" if message.role == "developer" else message.role
        content = message.content
        if isinstance(content, list):
            content = "\n".join(part.text for part in content)
        if content is None and not (role == "assistant" and message.tool_calls):
            raise RequestError("The message has no content", param=f"messages.{index}.content")
        entry: dict[str, Any] = {"role": role, "content": content or ""}
        for name in ("name", "tool_call_id", "reasoning_content"):
            value = getattr(message, name)
            if value is not None:
                entry[name] = value
        if message.tool_calls:
            entry["tool_calls"] = [_plain_call(call, index) for call in message.tool_calls]
        plain.append(entry)
    return plain


def template_tools(tools: Sequence[Tool] | None) -> list[dict[str, Any]] | None:
    """→ the tools as sent, without what was not said."""
    if not tools:
        return None
    return [
        {"type": "function", "function": tool.function.model_dump(exclude_none=True, exclude={"strict"})}
        for tool in tools
    ]


def _plain_call(call: ToolCall, index: int) -> dict[str, Any]:
    try:
        arguments = json.loads(call.function.arguments or "{}")
    except (ValueError, RecursionError):
        raise RequestError(
            "The arguments of a tool call are not JSON",
            param=f"messages.{index}.tool_calls",
            seen=call.function.arguments,
        ) from None
    plain: dict[str, Any] = {
        "type": "function",
        "function": {"name": call.function.name, "arguments": arguments},
    }
    if call.id is not None:
        plain["id"] = call.id
    return plain
