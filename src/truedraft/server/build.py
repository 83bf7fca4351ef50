"""A checked body → SamplingParams and GenerateRequests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from truedraft.contract.limits import MAX_SEED, check_request, check_sampling
from truedraft.contract.request import GenerateRequest, Grammar, SamplingParams
from truedraft.errors import PromptTooLongError, RequestError
from truedraft.server.schema_sampling import SamplingBody
from truedraft.server.state import ServerState

Value = TypeVar("Value")


def sampling_of(
    body: SamplingBody,
    *,
    max_tokens: int | None,
    logprobs: int | None,
    grammar: Grammar | None,
    vocab_size: int,
) -> SamplingParams:
    """→ the parameters, ranges checked; null is the default. Raises RequestError."""
    top_k = _or(body.top_k, 0)
    stop = _or(body.stop, [])
    sampling = SamplingParams(
        temperature=_or(body.temperature, 1.0),
        top_p=_or(body.top_p, 1.0),
        top_k=0 if top_k == -1 else top_k,
        min_p=_or(body.min_p, 0.0),
        repetition_penalty=_or(body.repetition_penalty, 1.0),
        presence_penalty=_or(body.presence_penalty, 0.0),
        frequency_penalty=_or(body.frequency_penalty, 0.0),
        logit_bias=_biases(body),
        seed=body.seed,
        max_tokens=max_tokens,
        min_tokens=_or(body.min_tokens, 0),
        stop=(stop,) if isinstance(stop, str) else tuple(stop),
        stop_token_ids=tuple(_or(body.stop_token_ids, [])),
        ignore_eos=_or(body.ignore_eos, False),
        include_stop_str_in_output=_or(body.include_stop_str_in_output, False),
        skip_special_tokens=_or(body.skip_special_tokens, True),
        logprobs=logprobs,
        prompt_logprobs=body.prompt_logprobs,
        grammar=grammar,
    )
    if body.prompt_logprobs is not None and body.stream:
        raise RequestError(
            "`prompt_logprobs` cannot be streamed", param="prompt_logprobs", remedy="Leave `stream` out"
        )
    if body.stream_options is not None and not body.stream:
        raise RequestError("`stream_options` needs `stream`: true", param="stream_options")
    check_sampling(sampling, vocab_size=vocab_size)
    return sampling


def num_choices(body: SamplingBody, max_n: int) -> int:
    """→ n. Raises RequestError outside 1 to `max_n`."""
    n = _or(body.n, 1)
    if not 1 <= n <= max_n:
        raise RequestError("`n` is out of range", param="n", seen=n, allowed=f"1 to {max_n}")
    return n


def build_requests(
    state: ServerState,
    body: SamplingBody,
    prompts: Sequence[tuple[int, ...]],
    sampling: SamplingParams,
    *,
    request_id: str,
) -> list[GenerateRequest]:
    """→ n requests a prompt, in the order of OpenAI's choices. Raises RequestError.

    Choice i of a prompt uses seed + i, so that the choices differ and yet can be had again.
    """
    n = num_choices(body, state.config.max_n)
    info = state.backend.info
    requests: list[GenerateRequest] = []
    for prompt_ids in prompts:
        _check_prompt_len(len(prompt_ids), state.config.max_prompt_len)
        for choice in range(n):
            seed = sampling.seed
            if seed is not None and choice:
                seed = (seed + choice) % (MAX_SEED + 1)
            # Choices of one prompt share its scores: asking once is enough.
            scored = sampling.prompt_logprobs if choice == 0 else None
            requests.append(
                GenerateRequest(
                    request_id=f"{request_id}-{len(requests)}",
                    prompt_token_ids=prompt_ids,
                    sampling=replace(sampling, seed=seed, prompt_logprobs=scored),
                    speculation=body.speculation,
                )
            )
        check_request(requests[-1], info)
    return requests


def _check_prompt_len(prompt_len: int, max_prompt_len: int | None) -> None:
    if max_prompt_len is not None and prompt_len > max_prompt_len:
        raise PromptTooLongError(
            f"The prompt has {prompt_len} tokens, but this server takes at most {max_prompt_len}",
            param="prompt",
            remedy="Shorten the prompt",
        )


def _biases(body: SamplingBody) -> tuple[tuple[int, float], ...]:
    pairs = []
    for key, bias in (body.logit_bias or {}).items():
        if not key.isascii() or not key.isdecimal() or len(key) > 10:
            raise RequestError("`logit_bias` has a key that is not a token id", param="logit_bias", seen=key)
        pairs.append((int(key), float(bias)))
    return tuple(pairs)


def _or(value: Value | None, default: Value) -> Value:
    return default if value is None else value
