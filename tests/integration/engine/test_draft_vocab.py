"""Leaving rare tokens out of the drafts costs acceptance, never the text."""

from __future__ import annotations

import torch
from driver import Driver, ask
from toy import EOS, FAVOURITES, VOCAB, toy_pair

torch.set_num_threads(1)
PROMPT = [5, 9, 30, 12]


def answer(num_first: int, more_ids=()):
    target, drafter = toy_pair("llama", agreement="mixed")
    left = drafter.limit_drafts(num_first, more_ids)
    driver = Driver(target, drafter)
    plain = driver.run_one(ask(PROMPT, max_tokens=60, speculation="off"))
    drafted = driver.run_one(ask(PROMPT, max_tokens=60, speculation=7))
    assert drafted.token_ids == plain.token_ids
    return left, drafted.stats


def test_the_text_does_not_change_but_acceptance_does():
    _, whole = answer(VOCAB)
    left, short = answer(min(FAVOURITES))  # the target's favourites cannot be drafted
    assert left == min(FAVOURITES)
    assert whole.num_accepted > 5 * max(1, short.num_accepted)


def test_named_tokens_stay():
    left, stats = answer(min(FAVOURITES), (*FAVOURITES, EOS))
    assert left == min(FAVOURITES) + 2
    _, whole = answer(VOCAB)
    assert stats.num_accepted == whole.num_accepted  # nothing else is ever said


def test_an_own_head_is_left_alone():
    _, drafter = toy_pair("llama", head_size=40)
    assert drafter.limit_drafts(10) == 0
    _, drafter = toy_pair("llama")
    assert drafter.limit_drafts(VOCAB) == 0
