"""Bodies of POST /tokenize and /detokenize."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from truedraft.server.schema_chat import Message, Tool
from truedraft.server.validation import StrictModel


class TokenizeBody(StrictModel):
    """Either `prompt` or `messages`."""

    model: str | None = None
    prompt: str | None = None
    messages: list[Message] | None = Field(default=None, min_length=1)
    tools: list[Tool] | None = None
    add_special_tokens: bool | None = Field(default=None, description="for `prompt`; default true")
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    return_token_strs: bool | None = None


class DetokenizeBody(StrictModel):
    """Token ids to turn into text."""

    model: str | None = None
    tokens: list[int]
