"""Where truedraft keeps files between runs."""

from __future__ import annotations

import os
from pathlib import Path


def cache_dir() -> Path:
    """The cache folder: $TRUEDRAFT_CACHE, else $XDG_CACHE_HOME/truedraft, else ~/.cache/truedraft.

    Not created here. Empty variables count as unset.
    """
    if own := os.environ.get("TRUEDRAFT_CACHE"):
        return Path(own).expanduser()
    if base := os.environ.get("XDG_CACHE_HOME"):
        return Path(base).expanduser() / "truedraft"
    return Path("~/.cache/truedraft").expanduser()
