"""From flags to GenerateRequest: one prompt, one answer."""

from __future__ import annotations

import sys
import uuid
from dataclasses import dataclass
from typing import Annotated

import typer

from truedraft.contract.backend import Backend
from truedraft.contract.request import GenerateRequest, SamplingParams, Speculation
from truedraft.errors import ConfigError, RequestError

_SAMPLING = "Sampling"
_ANY_VOCAB_SIZE = 2**31


@dataclass(frozen=True, slots=True)
class SamplingOptions:
    """How the answer is drawn. Checked by `contract.limits.check_sampling`, like the server's."""

    max_tokens: Annotated[
        int | None,
        typer.Option(metavar="N", help="Longest answer. Default: the context.", rich_help_panel=_SAMPLING),
    ] = None
    temperature: Annotated[
        float, typer.Option(metavar="T", help="0 is greedy.", rich_help_panel=_SAMPLING)
    ] = 0.0
    top_p: Annotated[
        float,
        typer.Option(
            metavar="P", help="Keep the likeliest tokens up to this mass.", rich_help_panel=_SAMPLING
        ),
    ] = 1.0
    top_k: Annotated[
        int, typer.Option(metavar="K", help="Keep the K likeliest tokens; 0: all.", rich_help_panel=_SAMPLING)
    ] = 0
    stop: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TEXT", help="End before this text; may be repeated.", rich_help_panel=_SAMPLING
        ),
    ] = None

    def sampling_params(self, seed: int | None) -> SamplingParams:
        """→ SamplingParams, checked before anything is loaded. Raises RequestError naming the field."""
        from truedraft.contract.limits import check_sampling

        params = SamplingParams(
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            max_tokens=self.max_tokens,
            stop=tuple(self.stop or ()),
            seed=seed,
        )
        check_sampling(params, vocab_size=_ANY_VOCAB_SIZE)  # no option here names a token
        return params


def read_prompt(prompt: str | None) -> str:
    """The prompt's text; `-` reads stdin. Raises ConfigError without one, RequestError for bad UTF-8."""
    if prompt is None:
        raise ConfigError("No prompt", remedy='Give --prompt "…", or --prompt - and write it to stdin')
    if prompt != "-":
        return prompt
    try:
        text = sys.stdin.buffer.read().decode("utf-8")
    except UnicodeDecodeError as error:
        raise RequestError("The prompt on stdin is not UTF-8", seen=str(error)) from error
    if not text.strip():
        raise RequestError("The prompt on stdin is empty")
    return text


def build_request(
    backend: Backend,
    prompt: str,
    sampling: SamplingParams,
    speculation: Speculation,
    *,
    system: str | None = None,
    raw: bool = False,
) -> GenerateRequest:
    """The request for one prompt, through the chat template unless `raw`."""
    if raw:
        prompt_token_ids = backend.encode(prompt)
    else:
        messages = [{"role": "system", "content": system}] if system is not None else []
        prompt_token_ids = backend.encode_chat([*messages, {"role": "user", "content": prompt}])
    return GenerateRequest(
        request_id=new_request_id(),
        prompt_token_ids=prompt_token_ids,
        sampling=sampling,
        speculation=speculation,
    )


def new_request_id() -> str:
    """An id that no other request has."""
    return f"cli-{uuid.uuid4().hex[:12]}"
