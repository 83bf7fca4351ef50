"""Speculation changes nothing but speed: token for token, on random toy pairs in fp32."""

from __future__ import annotations

import random

import pytest
import torch
from driver import Driver, ask
from toy import VOCAB, toy_pair, toy_target

from truedraft.engine.policy import CostCurve, CostTable

torch.set_num_threads(1)
ADAPTIVE = CostTable(CostCurve({1: 1.0, 8: 1.3, 64: 6.0}), CostCurve({0: 0.0, 1: 0.25, 8: 0.8}))


def prompt(length: int, seed: int = 0) -> list[int]:
    return random.Random(seed).choices(range(4, VOCAB), k=length)


def both(pair, *, length: int = 9, max_tokens: int = 40, speculation=None, **driver_options):
    """(plain answer, speculative answer) of the same prompt, alone."""
    driver = Driver(*pair, **driver_options)
    count = driver.num_drafted if speculation is None else speculation
    plain = driver.run_one(ask(prompt(length), max_tokens=max_tokens, speculation="off"))
    drafted = driver.run_one(ask(prompt(length), max_tokens=max_tokens, speculation=count))
    return plain, drafted


@pytest.mark.parametrize("block_len", range(2, 17))
@pytest.mark.parametrize("agreement", ["none", "mixed", "all"])
def test_every_block_length_and_acceptance(block_len, agreement):
    plain, drafted = both(toy_pair("llama", block_len=block_len, agreement=agreement))
    assert drafted.token_ids == plain.token_ids
    stats = drafted.stats
    assert stats.num_rounds > 0
    if agreement == "all":
        assert stats.tau > 0.8 * block_len or stats.num_rounds <= 40 // block_len + 1
    if agreement == "none":
        assert stats.tau < 1.5


def test_a_block_of_one_drafts_nothing_from_masks_but_one_from_the_anchor():
    plain, drafted = both(toy_pair("llama", block_len=1, sample_from_anchor=True, agreement="mixed"))
    assert drafted.token_ids == plain.token_ids
    assert drafted.stats.num_drafted > 0
    driver = Driver(*toy_pair("llama", block_len=1))
    assert driver.num_drafted == 0
    answer = driver.run_one(ask(prompt(5), speculation="auto"))
    assert answer.stats.num_rounds == 0
    assert answer.stats.num_plain_steps == 23  # the first token comes from prefill


@pytest.mark.parametrize("family", ["llama", "qwen3"])
@pytest.mark.parametrize("page_len", [1, 4, 600])
@pytest.mark.parametrize("chunk_len", [1, 7, 512])
def test_families_pages_and_prefill_chunks(family, page_len, chunk_len):
    num_pages = 400 if page_len == 1 else 40 if page_len == 4 else 2
    plain, drafted = both(
        toy_pair(family, agreement="mixed"),
        length=53,
        num_pages=num_pages,
        page_len=page_len,
        prefill_chunk_len=chunk_len,
    )
    assert drafted.token_ids == plain.token_ids
    assert len(set(plain.token_ids)) > 1


@pytest.mark.parametrize("window", [3, 5, 16])
def test_sliding_drafter_layers_several_windows_long(window):
    plain, drafted = both(
        toy_pair("qwen3", window=window, agreement="mixed"), length=20, max_tokens=6 * window + 40
    )
    assert drafted.token_ids == plain.token_ids


def test_sliding_target_layers():
    target = toy_target("qwen3", window=6, agreement="mixed")
    _, drafter = toy_pair("qwen3")
    from toy import toy_drafter

    drafter = toy_drafter(target)
    plain, drafted = both((target, drafter), length=30, max_tokens=60)
    assert drafted.token_ids == plain.token_ids


@pytest.mark.parametrize("sample_from_anchor", [False, True])
@pytest.mark.parametrize("head_size", [None, 40, VOCAB])
def test_both_block_layouts_and_own_heads(sample_from_anchor, head_size):
    pair = toy_pair(
        "llama", block_len=5, sample_from_anchor=sample_from_anchor, head_size=head_size, agreement="mixed"
    )
    assert pair[1].spec.num_drafted == (5 if sample_from_anchor else 4)
    plain, drafted = both(pair)
    assert drafted.token_ids == plain.token_ids


def test_mixed_lengths_joins_and_speculations_in_one_batch():
    pair = toy_pair("qwen3", agreement="mixed", window=8)
    requests = [
        ask(prompt(length, seed=length), max_tokens=tokens, speculation=speculation)
        for length, tokens, speculation in [
            (1, 30, 7),
            (80, 25, "auto"),
            (17, 41, "off"),
            (3, 2, 3),
            (150, 12, 7),
            (33, 33, "auto"),
        ]
    ]
    alone = [Driver(*pair).run_one(request) for request in requests]
    together = Driver(*pair, prefill_chunk_len=16, max_num_seqs=4, costs=ADAPTIVE)
    answers = together.run(requests, joins=[0, 0, 3, 4, 9, 20])
    assert [answer.token_ids for answer in answers] == [answer.token_ids for answer in alone]


def test_pages_that_run_out_cost_time_but_no_token():
    pair = toy_pair("llama", agreement="mixed", block_len=4)
    requests = [ask(prompt(10, seed=n), max_tokens=30, speculation=3) for n in range(5)]
    alone = [Driver(*pair).run_one(request) for request in requests]
    tight = Driver(*pair, num_pages=24, page_len=4)
    answers = tight.run(requests)
    assert tight.scheduler.num_preempted > 0
    assert [answer.token_ids for answer in answers] == [answer.token_ids for answer in alone]


def test_aborts_in_mid_flight_leave_the_others_alone():
    pair = toy_pair("llama", agreement="mixed")
    survivor = ask(prompt(12, seed=1), max_tokens=50, speculation=7)
    alone = Driver(*pair).run_one(survivor)
    driver = Driver(*pair, page_len=2, num_pages=200)
    doomed = [driver.add(ask(prompt(20, seed=n), max_tokens=60, speculation=7)) for n in range(3)]
    seq = driver.add(survivor)
    tokens: list[int] = []
    for step in range(200):
        if step in (2, 5, 7):
            event = driver.scheduler.abort(doomed.pop().seq_id)
            assert event is not None
        for event in driver.step():
            if event.seq is seq:
                tokens.extend(event.token_ids)
        if driver.scheduler.is_idle:
            break
    assert tokens == alone.token_ids
    assert driver.allocator.num_free == 200


@pytest.mark.parametrize("temperature", [0.7, 1.3])
def test_sampling_with_a_seed_is_the_same_with_and_without_drafts(temperature):
    driver = Driver(*toy_pair("qwen3", agreement="mixed"))
    options = {"max_tokens": 60, "temperature": temperature, "seed": 11, "top_k": 20, "top_p": 0.95}
    plain = driver.run_one(ask(prompt(9), speculation="off", **options))
    drafted = driver.run_one(ask(prompt(9), speculation=7, **options))
    assert drafted.token_ids == plain.token_ids
    assert drafted.stats.num_accepted > 0
    other = driver.run_one(ask(prompt(9), speculation=7, **{**options, "seed": 12}))
    assert other.token_ids != plain.token_ids


@pytest.mark.parametrize(
    "shaping",
    [
        {"repetition_penalty": 1.4},
        {"presence_penalty": 0.8, "frequency_penalty": 0.5},
        {"logit_bias": ((41, -8.0), (17, 4.0))},
        {"min_tokens": 20, "ignore_eos": False, "logit_bias": ((2, 20.0),)},
        {"stop_token_ids": (41, 42), "min_tokens": 10},
    ],
)
def test_penalties_bias_and_min_tokens_see_the_drafted_prefix(shaping):
    driver = Driver(*toy_pair("llama", agreement="mixed"))
    plain = driver.run_one(ask(prompt(9), max_tokens=40, speculation="off", **shaping))
    drafted = driver.run_one(ask(prompt(9), max_tokens=40, speculation=7, **shaping))
    assert drafted.token_ids == plain.token_ids
    assert drafted.finish_reason == plain.finish_reason
    if "min_tokens" in shaping:
        assert len(plain.token_ids) >= shaping["min_tokens"]


def test_logprobs_are_those_of_plain_decoding_and_of_scoring():
    driver = Driver(*toy_pair("qwen3", agreement="mixed"), prefill_chunk_len=5)
    plain = driver.run_one(ask(prompt(13), max_tokens=30, speculation="off", logprobs=3))
    drafted = driver.run_one(ask(prompt(13), max_tokens=30, speculation=7, logprobs=3))
    assert len(drafted.logprobs) == len(drafted.token_ids) == 30
    for one, other in zip(plain.logprobs, drafted.logprobs, strict=True):
        assert other.chosen.token_id == one.chosen.token_id
        assert other.chosen.logprob == pytest.approx(one.chosen.logprob, abs=1e-4)
        assert other.chosen.rank == 1
        assert len(other.top) == 3
    whole = prompt(13) + plain.token_ids
    scored = driver.run_one(ask(whole, max_tokens=1, speculation="off", prompt_logprobs=1))
    assert len(scored.prompt_logprobs) == len(whole) - 1
    for one, other in zip(plain.logprobs, scored.prompt_logprobs[12:], strict=True):
        assert other.chosen.token_id == one.chosen.token_id
        assert other.chosen.logprob == pytest.approx(one.chosen.logprob, abs=1e-4)


def test_a_row_without_a_token_ends_its_sequence_only():
    pair = toy_pair("llama", agreement="mixed")
    driver = Driver(*pair)
    doomed = ask(prompt(5), max_tokens=9, logit_bias=tuple((token, float("-inf")) for token in range(VOCAB)))
    healthy = ask(prompt(5, seed=3), max_tokens=9, speculation=7)
    bad, good = driver.run([doomed, healthy])
    assert bad.error is not None and "ruled out" in bad.error
    assert good.token_ids == Driver(*pair).run_one(healthy).token_ids
