"""Whatever lies in a checkpoint's folder: findings or one clear message, no traceback, no memory blow-up."""

from __future__ import annotations

import json
import os
import resource
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from checkpoint_files import (
    DRAFTER,
    TARGET,
    changed,
    drafter_shapes,
    target_shapes,
    write_checkpoint,
    write_raw,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from truedraft.cli import main

MB = 1024 * 1024


def sparse(path: Path, num_bytes: int) -> None:
    with path.open("wb") as file:
        file.truncate(num_bytes)


def config_text(text: str) -> Callable[[Path], None]:
    return lambda folder: (folder / "config.json").write_text(text)


def header(value: Any, num_data: int = 0) -> Callable[[Path], None]:
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    return lambda folder: write_raw(folder / "model.safetensors", data, num_data)


def replaced(name: str, make: Callable[[Path], Any]) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        make(folder / name)

    return change


TENSOR = {"dtype": "BF16", "shape": [4], "data_offsets": [0, 8]}
# What is done to a good folder → a word that the message (or a finding) must hold.
BAD: dict[str, tuple[Callable[[Path], Any], str]] = {
    "header length beyond the file": (
        lambda f: (f / "model.safetensors").write_bytes(b"\xff" * 8),
        "absurd length",
    ),
    "truncated header": (
        lambda f: (f / "model.safetensors").write_bytes(struct.pack("<Q", 1000) + b"{"),
        "truncated inside its header",
    ),
    "100 MB header": (
        lambda f: write_raw(f / "model.safetensors", b'{"a":' + b" " * (100 * MB) + b"1}", 0),
        "absurd length",
    ),
    "header is no JSON": (header(b"{nope"), "not valid JSON"),
    "header is a list": (header([1, 2]), "must hold a JSON object"),
    "overlapping tensors": (header({"a": TENSOR, "b": TENSOR}, 8), "overlaps"),
    "truncated weights": (header({"a": TENSOR}, 4), "truncated"),
    "absurd shape": (
        header({"a": {"dtype": "BF16", "shape": [2**62, 2**62], "data_offsets": [0, 8]}}, 8),
        "byte range does not fit",
    ),
    "negative shape": (
        header({"a": {"dtype": "BF16", "shape": [-4], "data_offsets": [0, 8]}}, 8),
        "impossible",
    ),
    "deep header": (header(b'{"a":' + b"[" * 100_000), "nested too deeply"),
    "empty weights": (replaced("model.safetensors", Path.touch), "ends inside its length field"),
    "weights are a folder": (replaced("model.safetensors", Path.mkdir), "not a regular file"),
    "weights are a pipe": (replaced("model.safetensors", os.mkfifo), "not a regular file"),
    "config is a cyclic link": (replaced("config.json", lambda p: p.symlink_to(p)), "config"),
    "config is a folder": (replaced("config.json", Path.mkdir), "config"),
    "config is a pipe": (replaced("config.json", os.mkfifo), "config"),
    "config is 100 MB": (replaced("config.json", lambda p: sparse(p, 100 * MB)), "too large"),
    "config is no JSON": (config_text("{'hidden_size': 64}"), "not valid JSON"),
    "config has NaN": (config_text(json.dumps(DRAFTER).replace("1e-06", "NaN")), "NaN"),
    "config is a list": (config_text("[]"), "must hold a JSON object"),
    "config is nested deeply": (config_text('{"a":' * 100_000), "nested too deeply"),
    "config is binary": (lambda f: (f / "config.json").write_bytes(b"\x80\x81" * 100), "not UTF-8"),
    "config is empty": (config_text(""), "not valid JSON"),
    "an integer of 10,000 digits": (
        config_text(json.dumps(DRAFTER).replace('"block_size": 8', f'"block_size": {"9" * 10_000}')),
        "config.json",
    ),
}
BAD_DRAFTER: dict[str, tuple[dict[str, Any], str]] = {
    "huge number": ({"hidden_size": 10**30}, "hidden_size"),
    "infinite number": ({"rope_theta": 1e308 * 10}, "rope_theta"),
    "negative": ({"num_hidden_layers": -1}, "num_hidden_layers"),
    "text for a number": ({"head_dim": "16"}, "head_dim"),
    "a list for a number": ({"block_size": [8]}, "block_size"),
    "true for a number": ({"num_attention_heads": True}, "num_attention_heads"),
    "a million layers": ({"num_hidden_layers": 10**6}, "num_hidden_layers"),
}


def checked(args: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """→ (exit code, all that was said), after the rules that hold for every input."""
    code = main.run(args)
    said = capsys.readouterr()
    assert code in (0, 2, 5), said.err
    assert "Traceback" not in said.out + said.err and "This is a bug" not in said.err
    assert len(said.err) < 3000 and len(said.err.splitlines()) <= 4
    return code, said.out + said.err


@pytest.mark.parametrize("name", BAD)
def test_a_bad_drafter(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = write_checkpoint(tmp_path / "t", TARGET, target_shapes())
    folder = write_checkpoint(tmp_path / "d", DRAFTER, drafter_shapes())
    change, word = BAD[name]
    change(folder)
    code, said = checked(["inspect", str(folder), "--target", str(target)], capsys)
    assert code == 5 and word in said
    assert len(said) < 30_000


@pytest.mark.parametrize("name", BAD)
def test_a_bad_target(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_checkpoint(tmp_path / "t", TARGET, target_shapes())
    drafter = write_checkpoint(tmp_path / "d", DRAFTER, drafter_shapes())
    BAD[name][0](folder)
    code, _ = checked(["inspect", str(drafter), "--target", str(folder)], capsys)
    assert code == 5


@pytest.mark.parametrize("name", BAD_DRAFTER)
def test_bad_values(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    changes, word = BAD_DRAFTER[name]
    text = json.dumps(changed(DRAFTER, **changes)).replace("Infinity", "1e999")
    folder = write_checkpoint(tmp_path / "d", text, drafter_shapes())
    code, said = checked(["inspect", str(folder)], capsys)
    assert code == 5 and word in said


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "generation_config.json"])
@pytest.mark.parametrize(
    "text", ["{", "[]", "null", '{"model": 5, "added_tokens": {"a": 1}}', '{"eos_token_id": "x"}']
)
def test_broken_side_files(name: str, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = write_checkpoint(tmp_path / "t", TARGET, target_shapes())
    drafter = write_checkpoint(tmp_path / "d", DRAFTER, drafter_shapes())
    for folder in (target, drafter):
        (folder / name).write_text(text)
    checked(["inspect", str(drafter), "--target", str(target)], capsys)


@pytest.mark.parametrize(
    "where", ["", " ", "a\nb", "\x1b[31m", "/dev/null", "/dev/zero", "no/such/folder", "x" * 5000]
)
def test_names_that_are_no_checkpoint(where: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, said = checked(["inspect", where, "--target", where], capsys)
    assert code in (2, 5) and "\x1b" not in said


def test_a_config_may_not_drive_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    evil = "\x1b]0;owned\x07"
    config = changed(
        DRAFTER, architectures=[evil], model_type=evil, layer_types=[evil, evil], rope_scaling={"type": evil}
    )
    shapes = drafter_shapes() | {evil: (4,)}
    assert (
        "\x1b" not in checked(["inspect", str(write_checkpoint(tmp_path / "d", config, shapes))], capsys)[1]
    )


def test_cyclic_folders(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    assert checked(["inspect", str(loop)], capsys)[0] == 5
    inside = write_checkpoint(tmp_path / "d", DRAFTER, drafter_shapes())
    (inside / "again").symlink_to(inside)
    assert checked(["inspect", str(inside)], capsys)[0] == 0


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_unreadable_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_checkpoint(tmp_path / "d", DRAFTER, drafter_shapes())
    (folder / "model.safetensors").chmod(0)
    assert "Permission denied" in checked(["inspect", str(folder)], capsys)[1]


def test_absurd_files_take_little_memory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    folder = write_checkpoint(tmp_path / "d", DRAFTER)
    for name in ("model.safetensors.index.json", "tokenizer.json", "config.json"):
        sparse(folder / name, 2000 * MB)
    checked(["inspect", str(folder)], capsys)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 * 1024


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_bytes_changed_anywhere_in_a_header(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_checkpoint(tmp_path_factory.mktemp("d"), DRAFTER, drafter_shapes())
    file = folder / "model.safetensors"
    size = int.from_bytes(file.read_bytes()[:8], "little") + 8
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, size - 1))
        with file.open("r+b") as opened:
            opened.seek(place)
            opened.write(bytes([data.draw(st.integers(0, 255))]))
    checked(["inspect", str(folder)], capsys)
