"""Recovery from end to end on toy pairs whose truth is known: texts say what the right config drafts."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from toy import toy_drafter, toy_target
from toy_files import FILE_VOCAB, save_pair

from truedraft.checkpoint.drafter import read_drafter, read_drafter_files
from truedraft.checkpoint.target import read_target
from truedraft.errors import ConfigError, PairingError
from truedraft.recovery import recover as recovering
from truedraft.recovery.calibration import read_calibration
from truedraft.recovery.candidate import Candidate
from truedraft.recovery.measure import Measurer
from truedraft.recovery.recover import load_measured_drafter, recover
from truedraft.recovery.start import Start, find_start
from truedraft.recovery.states import StateCache, capture_states
from truedraft.recovery.texts import Text
from truedraft.recovery.write import config_diff, corrected_config, write_corrected


@pytest.fixture
def told(monkeypatch):
    """Make texts say, behind every anchor, what `truth` drafts there; → a setter of that truth."""
    held: dict[str, Candidate] = {}
    plain_labels = Measurer._labels

    def labels(self, sample, num_labels):
        truth = held["truth"]
        hidden = self._hidden(truth, sample)
        ids = self._drafter.logits(hidden.flatten(0, 1)).argmax(-1).view(hidden.shape[:2])
        ids = ids if truth.sample_from_anchor else ids[:, 1:]
        found = plain_labels(self, sample, num_labels)
        width = min(num_labels, ids.shape[1])
        known = found[:, :width] >= 0
        found[:, :width] = torch.where(known, ids[:, :width], found[:, :width])
        return found

    monkeypatch.setattr(Measurer, "_labels", labels)
    return lambda truth: held.__setitem__("truth", truth)


def toy_measured():
    target = toy_target("qwen3", seed=11, num_layers=6)
    drafter = toy_drafter(target, seed=12, block_len=6, capture_layers=(1, 4))
    draw = torch.Generator().manual_seed(0)
    texts = [Text(tuple(torch.randint(4, 97, (60,), generator=draw).tolist()), 6) for _ in range(8)]
    states = capture_states(
        target,
        texts,
        ops=target.ops,
        device=torch.device("cpu"),
        cache=StateCache(None),
        on_step=lambda done, total: None,
    )
    return target, drafter, texts, states


SAID = frozenset(Candidate.__slots__)


@pytest.mark.parametrize(
    "wrong",
    [
        {"capture_layers": (2, 5)},
        {"mask_token_id": 8, "capture_layers": (0, 3), "theta": 1e6},
        {"sample_from_anchor": True},
        {"windows": (16, None), "causal": (True, False)},
    ],
)
def test_recovers_the_truth(told, wrong):
    target, drafter, texts, states = toy_measured()
    truth = replace(Candidate.of(drafter.spec), theta=1e4)  # among the values that are tried
    told(truth)
    start = Start(drafter.spec, replace(truth, **wrong), SAID, ())
    heard = []
    found = recover(
        start,
        drafter,
        target,
        texts,
        states,
        special_ids=range(12),
        on_progress=lambda stage, done, total: heard.append(stage),
    )
    assert found.final == truth
    assert found.changed and found.usable
    assert found.tau > 5.8, "the truth drafts what the texts say, to the last token of a block"
    assert found.declared_tau < found.tau - 1
    corrected = {row.name for row in found.rows if row.changed}
    assert corrected
    assert all(row.loss is None or row.loss.low > -1e-3 for row in found.rows)
    assert list(dict.fromkeys(heard)) == ["searching", "judging", "decoding"]


def test_nothing_to_correct_where_the_config_is_right(told):
    target, drafter, texts, states = toy_measured()
    truth = Candidate.of(drafter.spec)
    told(truth)
    found = recover(Start(drafter.spec, truth, SAID, ()), drafter, target, texts, states)
    assert not found.changed
    assert found.tau == found.declared_tau
    window = next(row for row in found.rows if row.name == "sliding windows")
    assert window.verdict == "undecided" and "texts are no longer" in window.note


def test_a_window_longer_than_the_texts_is_undecided_and_stays(told):
    target, drafter, texts, states = toy_measured()
    truth = Candidate.of(drafter.spec)
    told(truth)
    declared = replace(truth, windows=(128, 128))
    found = recover(Start(drafter.spec, declared, SAID, ()), drafter, target, texts, states)
    assert found.final == declared
    window = next(row for row in found.rows if row.name == "sliding windows")
    assert window.verdict == "undecided" and (None, None) in window.alike


def test_equal_masks_are_undecided_and_the_declared_one_stays(told):
    target, drafter, texts, states = toy_measured()
    target.embedding_VD[9] = target.embedding_VD[3]
    truth = Candidate.of(drafter.spec)
    told(truth)
    declared = replace(truth, mask_token_id=9)
    found = recover(
        Start(drafter.spec, declared, SAID, ()), drafter, target, texts, states, special_ids=range(12)
    )
    row = next(row for row in found.rows if row.name == "mask token")
    assert row.best == 9 and row.verdict == "undecided" and 3 in row.alike


def test_a_drafter_for_nothing_is_unusable():
    """Random texts: nothing predicts them, and that is said, not a best guess."""
    target, drafter, texts, states = toy_measured()
    start = Start(drafter.spec, Candidate.of(drafter.spec), SAID, ())
    found = recover(start, drafter, target, texts, states)
    assert not found.usable and found.tau < recovering.USELESS_TAU


def test_too_little_text_is_said():
    target, drafter, texts, states = toy_measured()
    start = Start(drafter.spec, Candidate.of(drafter.spec), SAID, ())
    with pytest.raises(ConfigError, match="too short"):
        recover(start, drafter, target, [Text(texts[0].token_ids[:14], 6)], states[:14])


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    target = toy_target("qwen3", seed=1, vocab_size=FILE_VOCAB)
    drafter = toy_drafter(target, seed=2, block_len=6, window=32)
    return save_pair(tmp_path_factory.mktemp("pair"), target, drafter)


def without_config(saved, folder: Path, config: dict | str | None = None) -> Path:
    folder.mkdir()
    (folder / "model.safetensors").symlink_to(saved.drafter / "model.safetensors")
    if config is not None:
        text = config if isinstance(config, str) else json.dumps(config)
        (folder / "config.json").write_text(text)
    return folder


@pytest.mark.parametrize("config", [None, "not json"])
def test_starts_from_shapes_without_a_config(saved, tmp_path, config):
    target = read_target(saved.target)
    start = find_start(read_drafter_files(without_config(saved, tmp_path / "bare", config)), target, [3])
    right = read_drafter(saved.drafter)
    assert not start.said
    for field in ("num_layers", "hidden_size", "mlp_size", "vocab_size", "target_hidden_size"):
        assert getattr(start.spec, field) == getattr(right, field)
    assert start.spec.attention.num_kv_heads == right.attention.num_kv_heads
    assert len(start.candidate.capture_layers) == 2
    assert start.candidate.mask_token_id == 3
    loaded = toy_target("qwen3", seed=1, vocab_size=FILE_VOCAB)
    load_measured_drafter(start.spec, loaded, torch.float32, torch.device("cpu"))


def test_starts_from_what_the_config_says(saved):
    start = find_start(read_drafter_files(saved.drafter), read_target(saved.target))
    assert start.candidate == Candidate.of(read_drafter(saved.drafter))
    assert {"capture_layers", "mask_token_id", "theta", "block_len", "windows"} <= start.said


def test_a_list_of_the_wrong_length_is_not_believed(saved, tmp_path):
    config = json.loads((saved.drafter / "config.json").read_text())
    config["dflash_config"]["target_layer_ids"] = [0, 1, 2]
    folder = without_config(saved, tmp_path / "three", config)
    start = find_start(read_drafter_files(folder), read_target(saved.target))
    assert "capture_layers" not in start.said
    assert len(start.candidate.capture_layers) == 2


def test_a_drafter_of_another_width_does_not_fit(saved):
    target = replace(read_target(saved.target), hidden_size=24)
    with pytest.raises(PairingError, match="fc does not take"):
        find_start(read_drafter_files(saved.drafter), target)


def test_other_kinds_cannot_be_measured(saved):
    reading = replace(read_drafter_files(saved.drafter), extras=("markov_head",))
    with pytest.raises(ConfigError, match="only plain DFlash"):
        find_start(reading, read_target(saved.target))


def test_the_corrected_config_is_read_as_what_was_found(told, saved, tmp_path):
    target, drafter, texts, states = toy_measured()
    told(Candidate.of(drafter.spec))
    found = recover(Start(drafter.spec, Candidate.of(drafter.spec), SAID, ()), drafter, target, texts, states)
    folder = without_config(saved, tmp_path / "bare")
    reading = read_drafter_files(folder)
    start = find_start(reading, read_target(saved.target), [3])
    final = replace(start.candidate, capture_layers=(3, 0), theta=1e6, mask_token_id=5, block_len=4)
    config = corrected_config(reading, start, replace(found, final=final))
    assert config["truedraft"]["capture_layers"] == [3, 0]
    assert config["truedraft"]["boundary_ids"] == [4, 1]
    assert any("target_layer_ids" in line for line in config_diff({}, config))
    written = write_corrected(reading, config, tmp_path / "out")
    assert Candidate.of(read_drafter(written)) == final
    assert (written / "model.safetensors").is_symlink()
    with pytest.raises(ConfigError, match="exists already"):
        write_corrected(reading, config, tmp_path / "out")


def encode(text: str) -> tuple[int, ...]:
    return tuple(text.encode())


def test_calibration_files(tmp_path):
    def read(name: str, text: str):
        file = tmp_path / name
        file.write_text(text)
        return read_calibration(
            file, vocab_size=300, encode=encode, encode_prompt=lambda text: (1, *encode(text))
        )

    found = read("a.jsonl", '{"prompt": "hi"}\n\n{"token_ids": [5, 6, 7], "num_prompt_tokens": 1}\n')
    assert found.prompts == ((1, 104, 105),)
    assert found.texts == (Text((5, 6, 7), 1),)
    assert [len(text.token_ids) for text in read("b.txt", "x" * 400).texts] == [384, 16]
    for text, said in (
        ("nonsense", "not JSON"),
        ("[1]", "neither a prompt nor token ids"),
        ('{"token_ids": [1, 300]}', "outside the vocabulary"),
        ('{"token_ids": [1, 2], "num_prompt_tokens": 2}', "num_prompt_tokens"),
        (" ", "empty"),
    ):
        with pytest.raises(ConfigError, match=said):
            read("c.jsonl", text)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_calibration(tmp_path / "none", vocab_size=300, encode=encode, encode_prompt=encode)
