"""`truedraft recover` from the command line, on toy pairs in files."""

from __future__ import annotations

import json
import re

import pytest
from toy import toy_pair
from toy_files import FILE_VOCAB, save_pair

from truedraft.checkpoint.drafter import read_drafter
from truedraft.cli.main import run

SMALL = ("--num-prompts", "6", "--num-tokens", "24", "--threads", "1", "--device", "cpu")


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    """The states' alone: compiled kernels stay where they are."""
    monkeypatch.setattr("truedraft.cli.recover_run.cache_dir", lambda: tmp_path / "cache")


def saved(folder, agreement: str):
    return save_pair(
        folder, *toy_pair("llama", agreement=agreement, vocab_size=FILE_VOCAB, block_len=6, seed=1)
    )


def test_a_pair_that_agrees_whatever_is_tried(tmp_path, capsys):
    """Every row of both models says the same token: τ is the whole block under any config."""
    pair = saved(tmp_path / "pair", "all")
    assert run(["recover", str(pair.drafter), "--target", str(pair.target), *SMALL]) == 0
    told = capsys.readouterr()
    assert "undecided between" in told.out
    taus = re.search(r"declared: τ ([\d.]+); best: τ ([\d.]+), over 6 texts", told.out)
    assert taus is not None and 5 < float(taus[1]) <= float(taus[2])
    assert "of memory" in told.err


def test_writes_what_a_missing_config_should_say(tmp_path, capsys):
    pair = saved(tmp_path / "pair", "all")
    (pair.drafter / "config.json").unlink()
    out = tmp_path / "out"
    command = ["recover", str(pair.drafter), "--target", str(pair.target), *SMALL, "--json"]
    assert run([*command, "--out", str(out)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["usable"] and found["changed"] and found["declared_tau"] is None
    assert found["boundary_ids"] == [layer + 1 for layer in found["capture_layers"]]
    spec = read_drafter(out)
    assert list(spec.capture_layers) == found["capture_layers"]
    assert spec.block_len == found["config"]["block_size"]
    kept = list((tmp_path / "cache" / "recovery").glob("*/states-*.safetensors"))
    assert len(kept) == 6
    assert run([*command, "--out", str(out)]) == 2, "an existing folder is left alone"


def test_a_drafter_of_another_target_is_said_to_be_useless(tmp_path, capsys):
    pair = saved(tmp_path / "pair", "none")
    command = ["recover", str(pair.drafter), "-t", str(pair.target), *SMALL, "--json", "--no-cache"]
    assert run([*command, "--out", str(tmp_path / "out")]) == 5
    found = json.loads(capsys.readouterr().out)
    assert not found["usable"] and found["written"] is None
    assert not (tmp_path / "out").exists()
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ([], "No pair was named"),
        (["somewhere"], "No pair was named"),
        (["--demo", "--target", "x"], "brings its own target"),
        (["one", "--draft", "two", "--target", "x"], "named twice"),
    ],
)
def test_wrong_use(args, said, capsys):
    assert run(["recover", *args]) == 2
    assert said in capsys.readouterr().err
