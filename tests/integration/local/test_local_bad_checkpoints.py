"""Checkpoints that cannot be served, through the command line: one clear message, the right code, no mess."""

from __future__ import annotations

import errno
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from local_pair import copy_pair
from safetensors.torch import load_file, save_file
from toy_files import PairPaths

from truedraft.checkpoint import demo
from truedraft.cli import main
from truedraft.models.weights import FolderSource

ENGINE = ("--device", "cpu", "--dtype", "float32", "--kernels", "torch", "--max-model-len", "128")
Damage = Callable[[PairPaths], object]


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str

    @property
    def errors(self) -> list[str]:
        return [line for line in self.err.splitlines() if line.startswith("error: ")]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("TRUEDRAFT_CACHE", str(folder))
    monkeypatch.delenv("TRUEDRAFT_DEBUG", raising=False)
    return folder


@pytest.fixture
def truedraft(capsys: pytest.CaptureFixture[str], cache: Path) -> Callable[..., Ran]:
    def call(*args: str) -> Ran:
        code = main.run(args)
        captured = capsys.readouterr()
        return Ran(code, captured.out, captured.err)

    return call


@pytest.fixture
def pair(tmp_path: Path) -> PairPaths:
    return copy_pair(tmp_path)


@pytest.fixture
def no_weights_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: FolderSource) -> FolderSource:
        raise AssertionError("weights are read")

    monkeypatch.setattr(FolderSource, "__enter__", refuse)


def files_below(folder: Path) -> dict[str, int]:
    return {
        str(path.relative_to(folder)): path.stat().st_size for path in folder.rglob("*") if path.is_file()
    }


def generate(truedraft: Callable[..., Ran], pair: PairPaths, *more: str) -> Ran:
    before = files_below(pair.target.parent)
    ran = truedraft(
        "generate",
        str(pair.target),
        "--draft",
        str(pair.drafter),
        *ENGINE,
        "--prompt",
        "x",
        "--max-tokens",
        "4",
        *more,
    )
    assert files_below(pair.target.parent) == before, "something was written"
    return ran


def check_refused(ran: Ran, *parts: str, code: int = 5) -> None:
    assert ran.code == code, ran.err
    assert ran.out == ""
    assert "Traceback" not in ran.err
    assert "This is a bug" not in ran.err
    assert len(ran.errors) == 1, ran.err
    for part in parts:
        assert part in ran.err, ran.err


def edit_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def edit_tensors(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    path = folder / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path, metadata={"format": "pt"})


def cut(path: Path, num_bytes: int) -> None:
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - num_bytes)


def weights(pair: PairPaths, which: str) -> Path:
    return getattr(pair, which) / "model.safetensors"


def poke_header(path: Path, text: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(8)
        file.write(text)


BEFORE_WEIGHTS: dict[str, tuple[Damage, tuple[str, ...]]] = {
    "missing folder": (lambda p: shutil.rmtree(p.target), ("target",)),
    "missing drafter folder": (lambda p: shutil.rmtree(p.drafter), ("drafter",)),
    "empty folder": (lambda p: (shutil.rmtree(p.target), p.target.mkdir()), ("config.json",)),
    "no weights": (lambda p: weights(p, "target").unlink(), ("safetensors",)),
    "no drafter weights": (lambda p: weights(p, "drafter").unlink(), ("safetensors",)),
    "pickle only": (
        lambda p: weights(p, "target").rename(p.target / "pytorch_model.bin"),
        ("pytorch_model.bin",),
    ),
    "config is no JSON": (lambda p: (p.target / "config.json").write_text("{"), ("config.json",)),
    "config is a list": (lambda p: (p.drafter / "config.json").write_text("[]"), ("config.json",)),
    "garbage header": (
        lambda p: poke_header(weights(p, "target"), b"\xff\xfe\x00garbage"),
        ("model.safetensors",),
    ),
    "garbage drafter header": (lambda p: poke_header(weights(p, "drafter"), b"]]]"), ("model.safetensors",)),
    "absurd header length": (lambda p: weights(p, "target").write_bytes(b"\xff" * 64), ("absurd length",)),
    "empty weights": (lambda p: weights(p, "target").write_bytes(b""), ("model.safetensors",)),
    "truncated data": (lambda p: cut(weights(p, "target"), 100), ("truncated",)),
    "truncated drafter": (lambda p: cut(weights(p, "drafter"), 100), ("truncated",)),
    "truncated in the header": (
        lambda p: cut(weights(p, "target"), weights(p, "target").stat().st_size - 100),
        ("truncated",),
    ),
    "no tokenizer": (
        lambda p: [path.unlink() for path in p.target.glob("tokenizer*")],
        ("tokenizer", "tokenizer.json"),
    ),
    "tokenizer is no JSON": (lambda p: (p.target / "tokenizer.json").write_text("{]"), ("tokenizer",)),
    "target of another width": (lambda p: edit_config(p.drafter, hidden_size=48), ("hidden",)),
    "target with fewer layers": (lambda p: edit_config(p.drafter, num_target_layers=9), ("layers",)),
    "drafter as target": (
        lambda p: (shutil.rmtree(p.target), shutil.copytree(p.drafter, p.target)),
        (),
    ),
    "target as drafter": (
        lambda p: (shutil.rmtree(p.drafter), shutil.copytree(p.target, p.drafter)),
        (),
    ),
    "missing drafter tensor": (
        lambda p: edit_tensors(p.drafter, lambda t: t.pop("fc.weight")),
        ("fc.weight",),
    ),
}


@pytest.mark.usefixtures("no_weights_read")
@pytest.mark.parametrize("name", BEFORE_WEIGHTS)
def test_refused_before_a_weight_is_read(name: str, pair: PairPaths, truedraft: Any, cache: Path) -> None:
    damage, parts = BEFORE_WEIGHTS[name]
    damage(pair)
    check_refused(generate(truedraft, pair), *parts)
    assert not cache.exists()


@pytest.mark.parametrize(
    "name", ["missing folder", "truncated data", "target of another width", "no tokenizer"]
)
def test_serve_refuses_the_same_way(name: str, pair: PairPaths, truedraft: Any) -> None:
    damage, parts = BEFORE_WEIGHTS[name]
    damage(pair)
    named = (str(pair.target), "--draft", str(pair.drafter), *ENGINE, "--port", "0")
    check_refused(truedraft("serve", *named), *parts)
    told = truedraft("serve", *named, "--json")
    assert told.code == 5
    assert json.loads(told.out)["error"]["exit_code"] == 5


def test_a_drafter_for_another_target_is_one_finding_and_torch_stays_out(
    pair: PairPaths, cache: Path
) -> None:
    """In a process of its own: without torch, nothing can have read a weight."""
    edit_config(pair.target, hidden_size=64)
    edit_tensors(pair.target, widen)
    code = (
        "import sys; from truedraft.cli import main; code = main.run(sys.argv[1:]);"
        " print('torch' in sys.modules); sys.exit(code)"
    )
    args = ["generate", str(pair.target), "--draft", str(pair.drafter), "--prompt", "x"]
    ran = subprocess.run(
        [sys.executable, "-c", code, *args], capture_output=True, text=True, check=False, timeout=60
    )
    assert ran.returncode == 5, ran.stderr
    assert ran.stdout == "False\n"
    assert "Traceback" not in ran.stderr
    assert ran.stderr.count("FAIL") == 1, ran.stderr
    assert "64" in ran.stderr
    assert "32" in ran.stderr


def widen(tensors: dict[str, torch.Tensor]) -> None:
    """The target's tensors at twice the hidden size, heads and all else as they were."""
    for name, tensor in tensors.items():
        shape = list(tensor.shape)
        if not name.endswith(("q_norm.weight", "k_norm.weight")):
            shape[0 if name.endswith(("o_proj.weight", "down_proj.weight")) else -1] *= 2
        tensors[name] = torch.zeros(shape)


AT_LOADING: dict[str, tuple[Damage, tuple[str, ...]]] = {
    "missing tensor": (
        lambda p: edit_tensors(p.target, lambda t: t.pop("model.layers.1.mlp.up_proj.weight")),
        ("missing", "model.layers.1.mlp.up_proj.weight"),
    ),
    "unexpected tensor": (
        lambda p: edit_tensors(p.target, lambda t: t.update({"model.extra.weight": torch.zeros(3)})),
        ("unexpected", "model.extra.weight"),
    ),
    "a tensor of another shape": (
        lambda p: edit_tensors(
            p.target, lambda t: t.update({"model.layers.0.mlp.up_proj.weight": torch.zeros(3, 3)})
        ),
        ("another shape", "model.layers.0.mlp.up_proj.weight"),
    ),
    "a tensor of integers": (
        lambda p: edit_tensors(
            p.target, lambda t: t.update({"model.norm.weight": torch.zeros(32, dtype=torch.int32)})
        ),
        ("model.norm.weight",),
    ),
}


@pytest.mark.parametrize("name", AT_LOADING)
def test_tensors_that_are_not_those_of_the_config(name: str, pair: PairPaths, truedraft: Any) -> None:
    damage, parts = AT_LOADING[name]
    damage(pair)
    check_refused(generate(truedraft, pair), *parts)


def with_nan(folder: Path) -> None:
    edit_tensors(folder, lambda tensors: tensors["model.norm.weight"].fill_(float("nan")))


def test_weights_that_are_no_numbers_are_said_by_request_and_by_the_self_check(
    pair: PairPaths, truedraft: Any
) -> None:
    with_nan(pair.target)
    check_refused(generate(truedraft, pair, "--temperature", "0.8"), "finite", code=6)
    named = (str(pair.target), "--draft", str(pair.drafter), *ENGINE, "--port", "0")
    served = truedraft("serve", *named, "--json")
    assert served.code == 4, served.err
    told = json.loads(served.out)
    assert told["verdict"] == "broken"
    assert told["url"] is None
    assert "finite" in str(told["checks"]["alive"]["errors"])
    assert "Traceback" not in served.err


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"GG",
        b"GGUF",
        b"GGUF\x03\x00\x00\x00",
        b"not a gguf file at all" * 9,
        b"GGUF\x03\x00\x00\x00" + b"\xff" * 64,
    ],
)
def test_a_corrupt_gguf(content: bytes, pair: PairPaths, truedraft: Any, cache: Path) -> None:
    file = pair.target.parent / "model.gguf"
    file.write_bytes(content)
    check_refused(generate(truedraft, PairPaths(file, pair.drafter)), "model.gguf")
    check_refused(truedraft("generate", str(file), "--prompt", "x", *ENGINE), "model.gguf")
    assert not cache.exists() or not files_below(cache)


def test_a_full_disk_while_the_demo_pair_is_fetched(
    truedraft: Any, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(cache.parent)
    monkeypatch.setattr(demo, "_installed_gguf", lambda: None)
    monkeypatch.delenv(demo.WHEEL_VARIABLE, raising=False)
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1000))
        check_refused(truedraft("demo-pair", "fetch"), "room", "TRUEDRAFT_CACHE", code=6)
        check_refused(truedraft("generate", "--demo", "--prompt", "x"), "room", code=6)

    def full(requirement: str, folder: Path, progress: Any) -> str:
        (folder / "half").write_bytes(b"half a wheel")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(demo, "download_wheel", full)
    check_refused(truedraft("demo-pair", "fetch"), "full", code=6)
    assert files_below(cache) == {}
