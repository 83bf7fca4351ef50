"""Building the native kernels: every failure is a reason, never an exception."""

from __future__ import annotations

import ctypes
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from truedraft.kernels import native, native_build
from truedraft.kernels.native_check import find_fault
from truedraft.kernels.ops import Ops
from truedraft.kernels.reference import torch_ops


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """An empty cache folder, and no build remembered."""
    monkeypatch.setenv("TRUEDRAFT_CACHE", str(tmp_path / "cache"))
    native.native_ops.cache_clear()
    yield tmp_path
    native.native_ops.cache_clear()


def _script(path: Path, body: str) -> str:
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return str(path)


def test_no_compiler(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "no-such-compiler -m64")
    build = native.native_ops()
    assert build.ops is None
    assert build.reason == "no native kernels: no C compiler: no-such-compiler -m64 not found"


def test_failing_compiler(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(
        "CC", _script(fresh / "badcc", "[ $1 = --version ] || { echo 'error: broken' >&2; exit 1; }")
    )
    build = native.native_ops()
    assert build.ops is None
    assert "badcc failed: error: broken" in build.reason
    assert list((fresh / "cache" / "native").iterdir()) == []


def test_compiler_that_cannot_be_read(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "gcc 'x")
    build = native.native_ops()
    assert build.ops is None
    assert "$CC cannot be read: gcc 'x" in build.reason


def test_compiler_that_speaks_no_utf8(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = r"[ $1 = --version ] || { printf 'error: \344rger\n' >&2; exit 1; }"
    monkeypatch.setenv("CC", _script(fresh / "latincc", body))
    assert "latincc failed: error: \ufffdrger" in native.native_ops().reason


def test_a_full_disk_is_seen_before_the_compiler_runs(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Each recipe is half a minute on a slow machine, and all would fail at their end.
    body = f"[ $1 = --version ] || {{ echo ran >> {fresh}/ran; exit 1; }}"
    monkeypatch.setenv("CC", _script(fresh / "cc", body))
    usage = shutil.disk_usage(fresh)._replace(free=1 << 20)
    monkeypatch.setattr(native_build.shutil, "disk_usage", lambda path: usage)
    build = native.native_ops()
    assert build.ops is None
    assert "1 MiB free, 4 MiB needed" in build.reason
    assert not (fresh / "ran").exists()


def test_compiler_that_makes_rubbish(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = 'while [ $# -gt 1 ]; do [ "$1" = -o ] && echo rubbish > "$2"; shift; done'
    monkeypatch.setenv("CC", _script(fresh / "rubbishcc", body))
    build = native.native_ops()
    assert build.ops is None
    assert "no native kernels: " in build.reason


def test_cache_that_cannot_be_written(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (fresh / "file").write_text("")
    monkeypatch.setenv("TRUEDRAFT_CACHE", str(fresh / "file"))
    build = native.native_ops()
    assert build.ops is None
    assert "cannot write to" in build.reason


def test_compiler_is_taken_from_the_environment(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = _script(fresh / "mycc", "true")
    monkeypatch.setenv("CC", f"{program} -O1")
    assert native_build.find_compiler() == (program, "-O1")


def test_builds_once_and_mends_a_broken_cache(
    native: Ops, fresh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From an empty cache, then from the cache, then over a damaged file."""
    native_build.load_library()
    (made,) = (fresh / "cache" / "native").iterdir()
    first = made.stat().st_mtime_ns
    native_build.load_library()
    assert made.stat().st_mtime_ns == first

    damaged = fresh / "damaged"
    monkeypatch.setenv("TRUEDRAFT_CACHE", str(damaged))
    (damaged / "native").mkdir(parents=True)
    (damaged / "native" / made.name).write_bytes(b"not a library")
    free, _, _ = native_build.load_library()
    assert isinstance(free, ctypes.CDLL)
    assert [path.name for path in (damaged / "native").iterdir()] == [made.name]


def test_one_thread_pool_in_the_process(native: Ops) -> None:
    """The kernels use the OpenMP runtime that torch brought, not a second one."""
    native.linear(torch.ones(64, 256), torch.ones(512, 256), None)
    maps = Path("/proc/self/maps")
    if not maps.exists():
        pytest.skip("no /proc")
    runtimes = {
        line.split()[-1] for line in maps.read_text().splitlines() if "gomp" in line or "libomp" in line
    }
    assert len(runtimes) == 1


def test_self_test_finds_a_wrong_operation() -> None:
    good = torch_ops()
    assert find_fault(good) is None
    assert find_fault(replace(good, linear=lambda x, w, b: x @ w.T + 0.01)) == "linear (float32)"
    assert find_fault(replace(good, silu_mul=lambda x: good.silu_mul(x).neg())) == "silu_mul (float32)"

    def acausal(*args: object, **rule: object) -> torch.Tensor:
        return good.attend(*args, **{**rule, "causal": False})  # type: ignore[arg-type]

    assert find_fault(replace(good, attend=acausal)) == "attend (float32)"
