"""Runs pip to fetch one wheel, reporting progress by the size of what has arrived."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

from truedraft.contract.units import format_bytes

POLL_S = 0.2
REPORT_S = 2.0


def pip_command(requirement: str, folder: Path) -> list[str]:
    """→ the command line; newer pips resume a broken download themselves."""
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--no-deps",
        "--only-binary=:all:",
        "--progress-bar=off",
    ]
    command += ["--no-input", "--disable-pip-version-check", "--dest", str(folder)]
    try:
        major, minor = (int(part) for part in metadata.version("pip").split(".")[:2])
    except (metadata.PackageNotFoundError, ValueError):
        major = minor = 0
    if (major, minor) >= (25, 1):
        command += ["--resume-retries", "5"]
    return [*command, requirement]


def download_wheel(requirement: str, folder: Path, progress: Callable[[str], None]) -> str:
    """Run pip; → its output (the caller looks whether the file is there and right)."""
    with tempfile.TemporaryFile() as output:
        # pip collects the download in its temporary folder: inside ours, its size is the progress
        environment = {**os.environ, "TMPDIR": str(folder)}
        process = subprocess.Popen(
            pip_command(requirement, folder), stdout=output, stderr=subprocess.STDOUT, env=environment
        )
        try:
            _watch(process, folder, progress)
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait()
        output.seek(0)
        return output.read().decode("utf-8", errors="replace")


def _watch(process: subprocess.Popen[bytes], folder: Path, progress: Callable[[str], None]) -> None:
    reported, last = time.monotonic(), 0
    while process.poll() is None:
        time.sleep(POLL_S)
        if time.monotonic() - reported >= REPORT_S:
            reported, size = time.monotonic(), folder_bytes(folder)
            if size > last:
                progress(f"  {format_bytes(size)} so far")
                last = size


def folder_bytes(folder: Path) -> int:
    """→ bytes in all files below; files that vanish meanwhile do not count."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except OSError:
            continue
    return total
