"""Ranges of what a request may ask for: the one place where they stand. Pure; raises RequestError."""

from __future__ import annotations

import math
from collections.abc import Iterable

from truedraft.contract.backend import ModelInfo
from truedraft.contract.request import GenerateRequest, SamplingParams, Speculation
from truedraft.errors import PromptTooLongError, RequestError

MAX_TEMPERATURE = 2.0
MIN_TEMPERATURE = 1e-4  # below it, logits divided by the temperature leave float32
MAX_PENALTY = 2.0
MAX_REPETITION_PENALTY = 10.0
MAX_BIAS = 100.0
MAX_NUM_BIASES = 1024
MAX_NUM_STOPS = 16
MAX_STOP_CHARS = 1024
MAX_NUM_STOP_IDS = 256
MAX_LOGPROBS = 20
MIN_SEED, MAX_SEED = -(2**63), 2**64 - 1


def check_sampling(sampling: SamplingParams, *, vocab_size: int) -> None:
    """Raise RequestError, with `param` set, for the first field of `sampling` that is out of range."""
    _check_temperature(sampling.temperature)
    _number("top_p", sampling.top_p, low=0.0, high=1.0, open_low=True)
    _integer("top_k", sampling.top_k, low=0)
    _number("min_p", sampling.min_p, low=0.0, high=1.0)
    _number(
        "repetition_penalty", sampling.repetition_penalty, low=0.0, high=MAX_REPETITION_PENALTY, open_low=True
    )
    _number("presence_penalty", sampling.presence_penalty, low=-MAX_PENALTY, high=MAX_PENALTY)
    _number("frequency_penalty", sampling.frequency_penalty, low=-MAX_PENALTY, high=MAX_PENALTY)
    if sampling.seed is not None:
        _integer("seed", sampling.seed, low=MIN_SEED, high=MAX_SEED)
    for name in ("logprobs", "prompt_logprobs"):
        value = getattr(sampling, name)
        if value is not None:
            _integer(name, value, low=0, high=MAX_LOGPROBS)
    _check_lengths(sampling)
    _check_stops(sampling, vocab_size)
    _check_biases(sampling, vocab_size)


def check_request(request: GenerateRequest, info: ModelInfo) -> None:
    """Raise RequestError where `request` cannot be served by the model behind `info`."""
    check_sampling(request.sampling, vocab_size=info.vocab_size)
    check_speculation(request.speculation, num_drafted=info.num_drafted)
    prompt_len = len(request.prompt_token_ids)
    if not prompt_len:
        raise RequestError("The prompt has no tokens", param="prompt", remedy="Send at least one token")
    _check_ids("prompt", request.prompt_token_ids, info.vocab_size)
    check_prompt_len(prompt_len, request.sampling.max_tokens, max_model_len=info.max_model_len)


def check_prompt_len(prompt_len: int, max_tokens: int | None, *, max_model_len: int) -> None:
    """Raise PromptTooLongError unless prompt and answer (at least one token) fit the context."""
    if prompt_len + 1 > max_model_len:
        raise PromptTooLongError(
            f"The prompt has {prompt_len} tokens, but the context length is {max_model_len} tokens,"
            " prompt and answer together",
            param="prompt",
            remedy="Shorten the prompt",
        )
    if max_tokens is not None and prompt_len + max_tokens > max_model_len:
        raise PromptTooLongError(
            f"{prompt_len} prompt tokens and `max_tokens` = {max_tokens} are {prompt_len + max_tokens} tokens,"
            f" but the context length is {max_model_len} tokens",
            param="max_tokens",
            remedy=f"Ask for at most {max_model_len - prompt_len} tokens",
        )


def check_speculation(speculation: Speculation | None, *, num_drafted: int) -> None:
    """Raise RequestError unless `speculation` is None, "auto", "off" or 1 to `num_drafted`."""
    if speculation in (None, "auto", "off"):
        return
    allowed = f"auto, off, or 1 to {num_drafted}" if num_drafted else "auto or off (there is no drafter)"
    if isinstance(speculation, bool) or not isinstance(speculation, int):
        raise RequestError(
            "`speculation` is not a known choice", param="speculation", seen=speculation, allowed=allowed
        )
    if not 1 <= speculation <= num_drafted:
        raise RequestError(
            "`speculation` is out of range", param="speculation", seen=speculation, allowed=allowed
        )


def _check_temperature(temperature: float) -> None:
    _number("temperature", temperature, low=0.0, high=MAX_TEMPERATURE)
    if 0.0 < temperature < MIN_TEMPERATURE:
        raise RequestError(
            "`temperature` is too small to sample with",
            param="temperature",
            seen=temperature,
            allowed=f"0 (greedy) or {MIN_TEMPERATURE:g} to {MAX_TEMPERATURE:g}",
        )


def _check_lengths(sampling: SamplingParams) -> None:
    if sampling.max_tokens is not None:
        _integer("max_tokens", sampling.max_tokens, low=1)
    _integer("min_tokens", sampling.min_tokens, low=0)
    if sampling.max_tokens is not None and sampling.min_tokens > sampling.max_tokens:
        raise RequestError(
            "`min_tokens` is larger than `max_tokens`",
            param="min_tokens",
            seen=f"{sampling.min_tokens} and {sampling.max_tokens}",
        )


def _check_stops(sampling: SamplingParams, vocab_size: int) -> None:
    if len(sampling.stop) > MAX_NUM_STOPS:
        raise RequestError(
            "`stop` has too many strings", param="stop", seen=len(sampling.stop), allowed=f"{MAX_NUM_STOPS}"
        )
    for text in sampling.stop:
        if not isinstance(text, str) or not 1 <= len(text) <= MAX_STOP_CHARS:
            raise RequestError(
                "`stop` has a string of a length that cannot be used",
                param="stop",
                seen=text,
                allowed=f"1 to {MAX_STOP_CHARS} characters",
            )
    if len(sampling.stop_token_ids) > MAX_NUM_STOP_IDS:
        raise RequestError(
            "`stop_token_ids` has too many ids",
            param="stop_token_ids",
            seen=len(sampling.stop_token_ids),
            allowed=f"{MAX_NUM_STOP_IDS}",
        )
    _check_ids("stop_token_ids", sampling.stop_token_ids, vocab_size)


def _check_biases(sampling: SamplingParams, vocab_size: int) -> None:
    if len(sampling.logit_bias) > MAX_NUM_BIASES:
        raise RequestError(
            "`logit_bias` has too many entries",
            param="logit_bias",
            seen=len(sampling.logit_bias),
            allowed=f"{MAX_NUM_BIASES}",
        )
    _check_ids("logit_bias", (token_id for token_id, _ in sampling.logit_bias), vocab_size)
    for _, bias in sampling.logit_bias:
        _number("logit_bias", bias, low=-MAX_BIAS, high=MAX_BIAS)


def _check_ids(param: str, token_ids: Iterable[int], vocab_size: int) -> None:
    for token_id in token_ids:
        if isinstance(token_id, bool) or not isinstance(token_id, int) or not 0 <= token_id < vocab_size:
            raise RequestError(
                f"`{param}` has a token id outside the vocabulary",
                param=param,
                seen=token_id,
                allowed=f"0 to {vocab_size - 1}",
            )


def _number(name: str, value: object, *, low: float, high: float, open_low: bool = False) -> None:
    allowed = f"{'above ' if open_low else ''}{low:g} to {high:g}"
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise RequestError(f"`{name}` must be a finite number", param=name, seen=value, allowed=allowed)
    if not low <= value <= high or (open_low and value <= low):
        raise RequestError(f"`{name}` is out of range", param=name, seen=value, allowed=allowed)


def _integer(name: str, value: object, *, low: int, high: int | None = None) -> None:
    allowed = f"a whole number from {low}" + (f" to {high}" if high is not None else " up")
    if isinstance(value, bool) or not isinstance(value, int):
        raise RequestError(f"`{name}` must be a whole number", param=name, seen=value, allowed=allowed)
    if value < low or (high is not None and value > high):
        raise RequestError(f"`{name}` is out of range", param=name, seen=value, allowed=allowed)
