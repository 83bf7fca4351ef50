"""Where the converted demo target is cached, sealed with a manifest of sizes and checksums."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

from truedraft.checkpoint.demo import GGUF_SHA256, demo_folder, sha256_of
from truedraft.checkpoint.files import read_json_object
from truedraft.errors import CheckpointError

CONVERTER_VERSION = 1  # raise it when the conversion writes something else
MANIFEST = "truedraft-manifest.json"


def demo_target_dir(dtype_name: str) -> Path:
    """→ the folder of the demo target converted to `float32` or `bfloat16`; it may not exist yet."""
    return demo_folder() / f"smollm2-135m-instruct-{dtype_name}-{GGUF_SHA256[:8]}-v{CONVERTER_VERSION}"


def publish_converted(made: Path, final: Path) -> Path:
    """Seal a freshly written folder with its manifest and rename it into place; → `final`.

    `made` must lie on the same disk. Another process that was faster wins.
    """
    manifest: dict[str, Any] = {
        "gguf_sha256": GGUF_SHA256,
        "converter_version": CONVERTER_VERSION,
        "files": {},
    }
    for path in sorted(made.iterdir()):
        if path.is_file() and path.name != MANIFEST:
            status = path.stat()
            entry = {"bytes": status.st_size, "mtime_ns": status.st_mtime_ns, "sha256": sha256_of(path)}
            manifest["files"][path.name] = entry
    if not manifest["files"]:
        raise CheckpointError(f"{made} is empty: nothing was converted")
    (made / MANIFEST).write_text(json.dumps(manifest, indent=1), encoding="utf-8")
    if final.exists():
        if verify_converted(final):
            shutil.rmtree(made)
            return final
        shutil.rmtree(final)
    final.parent.mkdir(parents=True, exist_ok=True)
    os.replace(made, final)  # noqa: PTH105 - a folder, atomically
    return final


def verify_converted(folder: Path) -> bool:
    """Whether a converted folder is whole: every file has its size, and its checksum where its time of
    change is not the recorded one (so a normal start reads no weights)."""
    if not (folder / MANIFEST).is_file():
        return False
    try:
        manifest = read_json_object(folder / MANIFEST)
        files = manifest["files"]
        if manifest["gguf_sha256"] != GGUF_SHA256 or manifest["converter_version"] != CONVERTER_VERSION:
            return False
        return bool(files) and all(_is_whole(folder / name, entry) for name, entry in files.items())
    except (CheckpointError, KeyError, TypeError, AttributeError, OSError):
        return False


def _is_whole(path: Path, entry: dict[str, Any]) -> bool:
    status = path.stat()
    if status.st_size != entry["bytes"]:
        return False
    return bool(status.st_mtime_ns == entry["mtime_ns"]) or sha256_of(path) == str(entry["sha256"])
