"""Fields that chat completions and completions share."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from truedraft.server.validation import StrictModel


class StreamOptions(StrictModel):
    """What a stream tells besides the answer."""

    include_usage: bool = False
    continuous_usage_stats: bool = False
    include_obfuscation: Literal[False] = False


class JsonSchemaFormat(StrictModel):
    """OpenAI's wrapper around a JSON schema."""

    name: str | None = None
    description: str | None = None
    schema_: dict[str, Any] = Field(alias="schema")
    strict: bool | None = None


class ResponseFormat(StrictModel):
    """The form of the answer: free, any JSON object, or JSON after a schema."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaFormat | None = None


class StructuredOutputs(StrictModel):
    """vLLM's field: exactly one of these."""

    json_: dict[str, Any] | str | None = Field(default=None, alias="json")
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None


class SamplingBody(StrictModel):
    """How tokens are chosen, when to stop, and what to report. null means the default."""

    model: str | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = Field(default=None, description="0 or -1: off")
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = Field(default=None, description="token id → added to its logit")
    seed: int | None = Field(default=None, description="choice i of n uses seed + i")
    n: int | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    prompt_logprobs: int | None = None
    return_token_ids: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    response_format: ResponseFormat | None = None
    guided_json: dict[str, Any] | str | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    structured_outputs: StructuredOutputs | None = None
    speculation: Literal["auto", "off"] | Annotated[int, Field(ge=1)] | None = Field(
        default=None, description='"auto", "off", or the number of tokens drafted every round'
    )
    speculation_trace: bool | None = Field(
        default=None, description="tell for every token whether it was drafted, and at which position"
    )
