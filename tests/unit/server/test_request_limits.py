"""Ranges of sampling parameters, speculation and prompt lengths."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from truedraft.contract.backend import ModelInfo
from truedraft.contract.limits import (
    MAX_NUM_STOP_IDS,
    MAX_NUM_STOPS,
    MAX_SEED,
    MIN_SEED,
    check_prompt_len,
    check_request,
    check_sampling,
    check_speculation,
)
from truedraft.contract.request import GenerateRequest, SamplingParams
from truedraft.errors import PromptTooLongError, RequestError

NAN, INF = float("nan"), float("inf")
INFO = ModelInfo("m", "scripted", 0, max_model_len=16, vocab_size=100, target="t", num_drafted=7)


@pytest.mark.parametrize(
    ("param", "value"),
    [
        ("temperature", 0.0),
        ("temperature", 2),
        ("temperature", 1e-4),
        ("top_p", 1.0),
        ("top_p", 1e-9),
        ("top_k", 10**6),
        ("min_p", 1.0),
        ("repetition_penalty", 0.5),
        ("presence_penalty", -2.0),
        ("seed", MIN_SEED),
        ("seed", MAX_SEED),
        ("logprobs", 0),
        ("prompt_logprobs", 20),
        ("stop", ("x",) * MAX_NUM_STOPS),
        ("stop_token_ids", (0, 99)),
        ("logit_bias", ((0, -100.0), (99, 100.0))),
        ("max_tokens", 1),
    ],
)
def test_values_at_the_edge_pass(param: str, value: Any) -> None:
    check_sampling(dataclasses.replace(SamplingParams(), **{param: value}), vocab_size=100)


@pytest.mark.parametrize(
    ("param", "value"),
    [
        ("temperature", NAN),
        ("temperature", INF),
        ("temperature", -0.01),
        ("temperature", 2.01),
        ("temperature", 1e-5),
        ("temperature", True),
        ("temperature", "1"),
        ("top_p", 0.0),
        ("top_p", 1.01),
        ("top_k", -1),
        ("top_k", 1.5),
        ("min_p", -0.1),
        ("repetition_penalty", 0.0),
        ("repetition_penalty", NAN),
        ("presence_penalty", 2.1),
        ("frequency_penalty", -INF),
        ("seed", MAX_SEED + 1),
        ("seed", MIN_SEED - 1),
        ("logprobs", 21),
        ("prompt_logprobs", -1),
        ("max_tokens", 0),
        ("min_tokens", -1),
        ("stop", ("x",) * (MAX_NUM_STOPS + 1)),
        ("stop", ("",)),
        ("stop", ("x" * 1025,)),
        ("stop_token_ids", (100,)),
        ("stop_token_ids", (0,) * (MAX_NUM_STOP_IDS + 1)),
        ("logit_bias", ((100, 0.0),)),
        ("logit_bias", ((0, NAN),)),
        ("logit_bias", ((0, 100.1),)),
        ("logit_bias", ((0, 1.0),) * 1025),
    ],
)
def test_values_outside_are_named(param: str, value: Any) -> None:
    with pytest.raises(RequestError) as caught:
        check_sampling(dataclasses.replace(SamplingParams(), **{param: value}), vocab_size=100)
    assert caught.value.param == param
    assert param in str(caught.value)


def test_min_tokens_above_max_tokens() -> None:
    with pytest.raises(RequestError, match="3 and 2"):
        check_sampling(SamplingParams(min_tokens=3, max_tokens=2), vocab_size=100)


def test_prompt_and_answer_have_to_fit() -> None:
    check_prompt_len(15, None, max_model_len=16)
    check_prompt_len(10, 6, max_model_len=16)
    with pytest.raises(PromptTooLongError, match=r"16 tokens.*16 tokens"):
        check_prompt_len(16, None, max_model_len=16)
    with pytest.raises(PromptTooLongError, match="at most 6 tokens") as caught:
        check_prompt_len(10, 7, max_model_len=16)
    assert caught.value.param == "max_tokens"


@pytest.mark.parametrize("speculation", [0, 8, -1, True, 1.0, "on"])
def test_speculation_outside(speculation: Any) -> None:
    with pytest.raises(RequestError) as caught:
        check_speculation(speculation, num_drafted=7)
    assert caught.value.param == "speculation"


def test_speculation_without_a_drafter() -> None:
    check_speculation("off", num_drafted=0)
    check_speculation("auto", num_drafted=0)
    with pytest.raises(RequestError, match="no drafter"):
        check_speculation(1, num_drafted=0)


def test_whole_requests() -> None:
    check_request(GenerateRequest("r", (0, 99)), INFO)
    for prompt in ((), (100,), (-1,)):
        with pytest.raises(RequestError) as caught:
            check_request(GenerateRequest("r", prompt), INFO)
        assert caught.value.param == "prompt"
