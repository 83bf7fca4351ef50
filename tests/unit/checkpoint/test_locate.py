"""What a user may name, and what a wrong name is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from checkpoint_files import DRAFTER, TARGET, drafter_shapes, write_checkpoint

from truedraft.checkpoint import locate as locate_module
from truedraft.checkpoint.drafter import read_drafter_files
from truedraft.checkpoint.hub import HUB_FILES, SMALL_FILES, fetch_snapshot, remote_tensor_headers
from truedraft.checkpoint.locate import locate
from truedraft.errors import CapacityError, CheckpointError


def test_folder_and_files(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "m", TARGET, {"a": (1,)})
    assert locate(folder, role="target").kind == "folder"
    assert locate(str(folder / "model.safetensors"), role="target").kind == "safetensors"
    (folder / "x.gguf").write_bytes(b"")
    assert locate(folder / "x.gguf", role="target").kind == "gguf"
    assert locate(folder, role="target").kind == "folder", "safetensors win over a GGUF beside them"


def test_home_is_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    write_checkpoint(tmp_path / "m", TARGET)
    assert locate("~/m", role="target").path == tmp_path / "m"


def test_near_names(tmp_path: Path) -> None:
    (tmp_path / "smollm2-bf16").mkdir()
    with pytest.raises(CheckpointError, match=r"no drafter at .*smollm2-bf61.*smollm2-bf16"):
        locate(tmp_path / "smollm2-bf61", role="drafter")
    with pytest.raises(CheckpointError, match="does not exist either"):
        locate(tmp_path / "nowhere" / "x", role="drafter")


@pytest.mark.parametrize(
    "name", ["", "  ", "a\0b", "plain-name", "x" * 5000, "./org/name", "model.gguf", "a/b/c"]
)
def test_names_that_are_neither_path_nor_hub_id(name: str) -> None:
    with pytest.raises(CheckpointError):
        locate(name, role="target")


@pytest.mark.parametrize("name", ["weights.bin", "weights.pt"])
def test_pickles(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"x")
    with pytest.raises(CheckpointError, match="pickle"):
        locate(tmp_path / name, role="target")


def test_other_files(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(CheckpointError, match="neither a folder nor a checkpoint file"):
        locate(tmp_path / "notes.txt", role="target")


def test_hub_id_with_revision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def fetch(repo: str, revision: str | None, role: str, *, headers_only: bool) -> Path:
        asked.append((repo, revision, role))
        return tmp_path

    monkeypatch.setattr(locate_module, "fetch_snapshot", fetch)
    assert locate("org/name", role="target").path == tmp_path
    assert locate("org/name@v1.0", role="drafter").source == "org/name@v1.0"
    assert asked == [("org/name", None, "target"), ("org/name", "v1.0", "drafter")]


def test_hub_files_are_no_code_and_no_pickles() -> None:
    assert not [name for name in HUB_FILES if name.endswith((".py", ".bin", ".pt", "*"))]


def test_without_a_network_it_says_what_to_bring(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import huggingface_hub

    def offline(*_: Any, **__: Any) -> str:
        raise huggingface_hub.errors.LocalEntryNotFoundError("no")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", offline)
    with pytest.raises(CheckpointError, match=r"hf download org/name --revision abc --local-dir FOLDER"):
        locate("org/name@abc", role="drafter")


def test_a_full_disk_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    def full(*_: Any, **__: Any) -> str:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", full)
    with pytest.raises(CapacityError, match="disk of the hub cache is full"):
        fetch_snapshot("org/name", None, "target")


def test_inspecting_a_hub_id_leaves_the_weights_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import huggingface_hub
    from huggingface_hub.utils import SafetensorsFileMetadata, SafetensorsRepoMetadata, TensorInfo

    asked: list[Any] = []

    def download(repo: str, *, revision: str | None, allow_patterns: list[str]) -> str:
        asked.append(allow_patterns)
        return str(write_checkpoint(tmp_path / "snapshot", DRAFTER))

    def metadata(_: Any, repo: str, *, revision: str | None) -> SafetensorsRepoMetadata:
        tensors = {
            name: TensorInfo(dtype="BF16", shape=list(shape), data_offsets=(0, 2))
            for name, shape in drafter_shapes(mlp=96).items()
        }
        file = SafetensorsFileMetadata(metadata={}, tensors=tensors)
        names = dict.fromkeys(tensors, "model.safetensors")
        return SafetensorsRepoMetadata(None, False, names, {"model.safetensors": file})

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    monkeypatch.setattr(huggingface_hub.HfApi, "get_safetensors_metadata", metadata)
    reading = read_drafter_files("org/draft@main")
    assert asked == [list(SMALL_FILES)] and "*.safetensors" not in asked[0]
    assert [conflict.name for conflict in reading.conflicts] == ["mlp_size"] and len(reading.tensors) == 25


def test_a_hub_that_cannot_tell_gives_no_headers(monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    def refuse(*_: Any, **__: Any) -> Any:
        raise huggingface_hub.errors.NotASafetensorsRepoError("no")

    monkeypatch.setattr(huggingface_hub.HfApi, "get_safetensors_metadata", refuse)
    assert remote_tensor_headers("org/draft", None) == ()


def test_unreadable_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "m").mkdir()

    def refuse(_: Path) -> Any:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "iterdir", refuse)
    with pytest.raises(CheckpointError, match="Permission denied"):
        locate(tmp_path / "m", role="target")
