"""Opens what a user names without trusting it: bounded JSON, regular files, no pickles."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any, NoReturn

from truedraft.errors import CheckpointError

MAX_JSON_BYTES = 4 * 1024 * 1024  # configs are a few KB; parsed JSON takes many times its size
PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")


def refuse_pickle(path: Path) -> None:
    """Raise CheckpointError where the name says that loading would run code."""
    if path.suffix.lower() in PICKLE_SUFFIXES:
        raise CheckpointError(
            f"{path.name} is a pickle, and loading a pickle can run any code",
            allowed="safetensors and GGUF",
            remedy="Use the .safetensors files of this checkpoint, or convert it with a tool that you trust",
        )


def file_size(path: Path) -> int:
    """→ size in bytes of a regular file that exists. Raises CheckpointError."""
    try:
        status = path.stat()
    except OSError as exc:
        raise CheckpointError(f"Cannot open {path}", seen=_reason(exc)) from exc
    if not stat.S_ISREG(status.st_mode):
        raise CheckpointError(f"{path} is not a regular file")
    return status.st_size


def read_bytes(path: Path, *, limit: int, what: str) -> bytes:
    """→ the whole file, at most `limit` bytes. Raises CheckpointError."""
    size = file_size(path)
    if size > limit:
        raise CheckpointError(
            f"{path} is too large for {what}", seen=f"{size} bytes", allowed=f"{limit} bytes"
        )
    try:
        with path.open("rb") as file:
            return file.read(limit + 1)
    except OSError as exc:
        raise CheckpointError(f"Cannot read {path}", seen=_reason(exc)) from exc


def read_json_object(path: Path, *, limit: int = MAX_JSON_BYTES) -> dict[str, Any]:
    """→ the JSON object in a file. Raises CheckpointError for anything else, NaN and Infinity included."""
    return parse_json_object(read_bytes(path, limit=limit, what="a JSON file"), str(path))


def parse_json_object(data: bytes, where: str) -> dict[str, Any]:
    """→ the JSON object in `data`. Raises CheckpointError naming `where`."""

    def no_constant(name: str) -> NoReturn:
        raise ValueError(f"{name} is not a JSON value")

    try:
        value = json.loads(data.decode("utf-8"), parse_constant=no_constant)
    except UnicodeDecodeError as exc:
        raise CheckpointError(f"{where} is not UTF-8 text", seen=f"byte {exc.start}") from exc
    except RecursionError as exc:
        raise CheckpointError(f"{where} is nested too deeply") from exc
    except ValueError as exc:
        raise CheckpointError(f"{where} is not valid JSON", seen=str(exc)) from exc
    if not isinstance(value, dict):
        raise CheckpointError(f"{where} must hold a JSON object", seen=type(value).__name__)
    return value


def list_folder(folder: Path) -> list[str]:
    """→ sorted names in a folder. Raises CheckpointError."""
    try:
        return sorted(entry.name for entry in folder.iterdir())
    except OSError as exc:
        raise CheckpointError(f"Cannot list {folder}", seen=_reason(exc)) from exc


def _reason(exc: OSError) -> str:
    return exc.strerror or type(exc).__name__
