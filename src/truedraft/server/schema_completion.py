"""The body of POST /v1/completions."""

from __future__ import annotations

from pydantic import Field

from truedraft.server.schema_sampling import SamplingBody


class CompletionBody(SamplingBody):
    """OpenAI's completion request, vLLM's common extras, and `speculation`."""

    prompt: str | list[str] | list[int] | list[list[int]] = Field(
        description="text, token ids, or several of either"
    )
    best_of: int | None = None
    echo: bool | None = None
    logprobs: int | None = None
    add_special_tokens: bool | None = None
