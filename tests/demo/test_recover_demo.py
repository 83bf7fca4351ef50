"""Recovery on the demo pair, from configs that are wrong in every way that has been reported."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

from truedraft.checkpoint.demo import demo_drafter_path
from truedraft.checkpoint.drafter import read_drafter_files
from truedraft.checkpoint.target import read_target
from truedraft.checkpoint.tokenizer import read_tokenizer_facts
from truedraft.cli.demo_files import demo_target
from truedraft.models.registry import load_target
from truedraft.recovery.candidate import Candidate
from truedraft.recovery.measure import Measurer
from truedraft.recovery.measured import tau_of, walk
from truedraft.recovery.recover import load_measured_drafter, recover
from truedraft.recovery.search import Search
from truedraft.recovery.space import build_space, capture_starts
from truedraft.recovery.start import find_start
from truedraft.recovery.states import StateCache, capture_states
from truedraft.recovery.texts import Text, build_sample, draw_anchors, every_anchor

pytestmark = pytest.mark.demo
CPU = torch.device("cpu")
ANSWER_LEN = 96
# Embedding rows that training of the target never touched: as masks they are one and the same.
ALIKE_MASKS = {5, *range(7, 17)}
WRONG = {
    "shifted by one": {"target_layer_ids": [2, 9, 15, 21, 28]},
    "evenly to the last layer": {"target_layer_ids": [1, 8, 15, 22, 29]},
    "permuted": {"target_layer_ids": [20, 1, 27, 8, 14]},
    "absent": {"target_layer_ids": None},
    "theta": {"rope_theta": 1e6},
    "mask": {"mask_token_id": 0},
    "layout": {"sample_from_anchor": True},
    "window": {
        "layer_types": ["sliding_attention"] * 3,
        "sliding_window": 32,
        "use_sliding_window": True,
    },
    "three at once": {"target_layer_ids": [2, 9, 15, 21, 28], "rope_theta": 1e6, "mask_token_id": 0},
    "three others": {
        "target_layer_ids": [27, 20, 14, 8, 1],
        "sample_from_anchor": True,
        "layer_types": ["sliding_attention"] * 3,
        "sliding_window": 32,
        "use_sliding_window": True,
    },
    "no config": None,
}


class Pair:
    """The demo target, its states over recorded answers, and what the true config reaches."""

    def __init__(self, recorded, ops, num_texts: int) -> None:
        self.target_spec = read_target(demo_target())
        self.target = load_target(self.target_spec, ops, torch.bfloat16)
        self.texts = [
            Text((*record["prompt_ids"], *record["greedy_ids"][:ANSWER_LEN]), len(record["prompt_ids"]))
            for record in recorded[:: len(recorded) // num_texts][:num_texts]
        ]
        self.states = capture_states(
            self.target,
            self.texts,
            ops=ops,
            device=CPU,
            cache=StateCache(None),
            on_step=lambda done, total: None,
        )
        facts = read_tokenizer_facts(demo_target())
        assert facts is not None
        self.special_ids = sorted(facts.special_ids.values())
        self.true = find_start(read_drafter_files(demo_drafter_path()), self.target_spec).candidate

    def loaded(self, start):
        return load_measured_drafter(start.spec, self.target, torch.float32, CPU)

    def measurer(self, start) -> Measurer:
        return Measurer(self.loaded(start), self.target, self.texts, self.states)


def wrong_start(folder, pair: Pair, changes: dict | None):
    """A folder with the demo drafter's weights and a config with `changes` (None: no config)."""
    folder.mkdir()
    (folder / "model.safetensors").symlink_to(demo_drafter_path() / "model.safetensors")
    if changes is not None:
        config = json.loads((demo_drafter_path() / "config.json").read_text())
        for key, value in changes.items():
            place = config["dflash_config"] if key in config["dflash_config"] else config
            place[key] = value
            if value is None:
                del place[key]
        (folder / "config.json").write_text(json.dumps(config))
    start = find_start(read_drafter_files(folder), pair.target_spec, pair.special_ids)
    # The demo drafter is itself in the list of known ones: found by measurement, not by name.
    return replace(start, family=())


def same(found: Candidate, true: Candidate) -> bool:
    return found.mask_token_id in ALIKE_MASKS and replace(found, mask_token_id=true.mask_token_id) == true


@pytest.fixture(scope="module")
def small(recorded, fast_ops):
    return Pair(recorded, fast_ops, num_texts=6)


def test_three_wrong_values_are_found_at_once(small, tmp_path):
    """The quick one: fewer texts, and only the values that are wrong are searched."""
    start = wrong_start(tmp_path / "wrong", small, WRONG["three at once"])
    measurer = small.measurer(start)
    levels = [
        build_sample(small.texts, draw_anchors(small.texts, count, tail_len=8, seed=count))
        for count in (12, 36)
    ]

    def loss(candidate, level):
        return measurer.losses(candidate, levels[level])[candidate.sample_from_anchor].loss_by_text()

    held = start.candidate
    space = build_space(
        num_target_layers=30,
        hidden_size=576,
        vocab_size=49152,
        longest_context=100,
        target_theta=1e5,
        special_ids=small.special_ids,
        family=(),
        declared=held,
        lists=capture_starts(held.capture_layers, 30, 5, ()),
    )
    wanted = ("mask_token_id", "rope_theta", "capture lists")
    dimensions = [one for one in space.dimensions(held) if one.name in wanted]
    found = Search(loss).run(space.with_lists(held), dimensions)
    assert same(found, small.true)


def test_tau_is_that_of_the_recorded_rounds(small, recorded, tmp_path):
    """All anchors at once and a walk over them: the same τ as round after round in a decode loop."""
    start = find_start(read_drafter_files(demo_drafter_path()), small.target_spec)
    whole = [record for record in recorded if len(record["greedy_ids"]) <= ANSWER_LEN][:3]
    assert len(whole) == 3
    texts = [Text((*r["prompt_ids"], *r["greedy_ids"]), len(r["prompt_ids"])) for r in whole]
    states = capture_states(
        small.target,
        texts,
        ops=small.target.ops,
        device=CPU,
        cache=StateCache(None),
        on_step=lambda done, total: None,
    )
    measurer = Measurer(small.loaded(start), small.target, texts, states)
    walked = walk(measurer.drafts(start.candidate, build_sample(texts, every_anchor(texts))), texts)
    kept = [record["rounds"]["8"] for record in whole]
    recorded_tau = sum(one["tokens"] for one in kept) / sum(one["rounds"] for one in kept)
    assert sum(tokens for tokens, _ in walked.values()) == sum(one["tokens"] for one in kept)
    assert tau_of(walked) == pytest.approx(recorded_tau, rel=0.05)


@pytest.fixture(scope="module")
def pair(recorded, fast_ops):
    return Pair(recorded, fast_ops, num_texts=16)


@pytest.fixture(scope="module")
def true_tau(pair):
    start = find_start(read_drafter_files(demo_drafter_path()), pair.target_spec)
    measurer = pair.measurer(start)
    sample = build_sample(pair.texts, every_anchor(pair.texts))
    return tau_of(walk(measurer.drafts(start.candidate, sample), pair.texts))


@pytest.mark.full
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("case", WRONG)
def test_recovers_the_true_values(pair, true_tau, tmp_path, case):
    start = wrong_start(tmp_path / "wrong", pair, WRONG[case])
    found = recover(
        start, pair.loaded(start), pair.target, pair.texts, pair.states, special_ids=pair.special_ids
    )
    assert same(found.final, pair.true)
    assert found.tau == pytest.approx(true_tau, rel=0.01)
    assert found.changed and found.usable
    by_name = {row.name: row for row in found.rows}
    assert by_name["sliding windows"].verdict == "undecided"
    assert by_name["mask token"].verdict == "undecided"
    if start.said:
        assert found.declared_tau is not None and found.declared_tau < found.tau


@pytest.mark.full
@pytest.mark.timeout(1800)
def test_the_true_config_stays_as_it_is(pair, true_tau, tmp_path):
    start = wrong_start(tmp_path / "right", pair, {})
    found = recover(
        start, pair.loaded(start), pair.target, pair.texts, pair.states, special_ids=pair.special_ids
    )
    assert found.final == pair.true and not found.changed
    assert found.tau == found.declared_tau == true_tau
