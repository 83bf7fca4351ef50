"""One completion request, planned: prompts, what runs, and what each choice has to show."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from truedraft import __version__
from truedraft.contract.limits import check_sampling
from truedraft.contract.request import GenerateRequest, SamplingParams
from truedraft.errors import RequestError, UnsupportedError
from truedraft.server.build import build_requests, num_choices, sampling_of
from truedraft.server.constraints import grammar_of
from truedraft.server.schema_completion import CompletionBody
from truedraft.server.state import ServerState

_DEFAULT_MAX_TOKENS = 16  # OpenAI's, for this endpoint only


@dataclass(frozen=True, slots=True)
class CompletionCall:
    """Everything about one completion request but its answers. Choice i is of prompt i // n."""

    id: str
    created_s: int
    state: ServerState
    body: CompletionBody
    n: int
    prompt_texts: list[str]  # filled where they are echoed
    requests: list[GenerateRequest]

    @property
    def num_prompt_tokens(self) -> int:
        return sum(len(request.prompt_token_ids) for request in self.requests[:: self.n])

    def frame(self) -> dict[str, Any]:
        """The fields that every object of this answer has."""
        return {
            "id": self.id,
            "object": "text_completion",
            "created": self.created_s,
            "model": self.state.model_name,
            "system_fingerprint": f"truedraft-{__version__}",
        }

    def echoed(self, index: int) -> str:
        """The prompt of choice `index`, where the answer begins with it."""
        return self.prompt_texts[index // self.n] if self.body.echo else ""


def plan_completion(state: ServerState, body: CompletionBody) -> CompletionCall:
    """→ the plan. Raises RequestError for whatever cannot be served as asked."""
    state.check_model(body.model)
    n = num_choices(body, state.config.max_n)
    if body.best_of is not None and body.best_of != n:
        raise UnsupportedError(
            "`best_of` is not supported", param="best_of", seen=body.best_of, allowed=f"leave it out, or {n}"
        )
    sampling = _sampling(state, body)
    prompts = _prompts(body)
    ids = [_encode(state, body, prompt) for prompt in prompts]
    call_id = f"cmpl-{uuid.uuid4().hex}"
    requests = build_requests(state, body, ids, sampling, request_id=call_id)
    # After the ids have been checked: a decoder need not take what is outside the vocabulary.
    texts = [
        prompt if isinstance(prompt, str) else state.backend.decode(prompt, skip_special_tokens=False)
        for prompt in (prompts if body.echo else [])
    ]
    return CompletionCall(call_id, int(time.time()), state, body, n, texts, requests)


def _sampling(state: ServerState, body: CompletionBody) -> SamplingParams:
    vocab_size = state.backend.info.vocab_size
    sampling = sampling_of(
        body,
        max_tokens=_max_tokens(body),
        logprobs=body.logprobs,
        grammar=grammar_of(body),
        vocab_size=vocab_size,
    )
    if body.echo and body.logprobs is not None:
        # The echoed prompt is scored as well.
        wanted = max(body.logprobs, body.prompt_logprobs or 0)
        sampling = replace(sampling, prompt_logprobs=wanted)
        check_sampling(sampling, vocab_size=vocab_size)
    return sampling


def _max_tokens(body: CompletionBody) -> int:
    if only_echoes(body):
        return 1  # dropped again by `echo.without_answer`
    return _DEFAULT_MAX_TOKENS if body.max_tokens is None else body.max_tokens


def only_echoes(body: CompletionBody) -> bool:
    """Whether nothing but the prompt is asked for."""
    return bool(body.echo) and body.max_tokens == 0


def _prompts(body: CompletionBody) -> Sequence[str | list[int]]:
    prompt = body.prompt
    if isinstance(prompt, str):
        return [prompt]
    if not prompt:
        raise RequestError("`prompt` is an empty list", param="prompt")
    if isinstance(prompt[0], int):
        return [prompt]  # one prompt as ids: pydantic keeps lists uniform
    return prompt


def _encode(state: ServerState, body: CompletionBody, prompt: str | list[int]) -> tuple[int, ...]:
    if not isinstance(prompt, str):
        return tuple(prompt)
    specials = True if body.add_special_tokens is None else body.add_special_tokens
    return state.backend.encode(prompt, add_special_tokens=specials)
