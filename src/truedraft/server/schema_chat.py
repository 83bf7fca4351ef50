"""The body of POST /v1/chat/completions."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from truedraft.server.schema_sampling import SamplingBody
from truedraft.server.validation import StrictModel


class ContentPart(StrictModel):
    """One part of a message. Only text is served."""

    type: Literal["text"]
    text: str


class CalledFunction(StrictModel):
    """Name and arguments (a JSON object as text) of a call that was made."""

    name: str
    arguments: str = "{}"


class ToolCall(StrictModel):
    """A call that the assistant made earlier."""

    id: str | None = None
    type: Literal["function"] = "function"
    index: int | None = None
    function: CalledFunction


class Message(StrictModel):
    """One message of the conversation. `developer` is read as `system`."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    # What the official client sends back when an answer of ours becomes history.
    refusal: None = None
    audio: None = None
    function_call: None = None
    annotations: list[Any] | None = Field(default=None, max_length=0)


class Function(StrictModel):
    """What the model may call. `parameters` is a JSON schema."""

    name: str = Field(min_length=1, max_length=128)
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(StrictModel):
    """A function that is offered."""

    type: Literal["function"]
    function: Function


class NamedFunction(StrictModel):
    """The function that has to be called."""

    name: str


class NamedToolChoice(StrictModel):
    """`tool_choice` for one certain function."""

    type: Literal["function"]
    function: NamedFunction


class ChatBody(SamplingBody):
    """OpenAI's chat completion request, vLLM's common extras, and `speculation`."""

    messages: list[Message] = Field(min_length=1)
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: list[Tool] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedToolChoice | None = None
    parallel_tool_calls: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
