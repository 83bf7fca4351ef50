"""`truedraft inspect --fix`: a corrected copy of a drafter's config, where shapes leave one choice."""

from __future__ import annotations

import difflib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from truedraft.checkpoint.export import write_folder
from truedraft.checkpoint.fix import Correction, apply_corrections, certain_corrections
from truedraft.contract.reading import DrafterReading
from truedraft.errors import CheckpointError


@dataclass(frozen=True, slots=True)
class Fix:
    """What was corrected, the folder that holds it (None: nothing to correct), and the diff."""

    corrections: tuple[Correction, ...]
    folder: Path | None
    diff: str

    def to_json(self) -> dict[str, Any]:
        """→ plain values only."""
        return {
            "folder": None if self.folder is None else str(self.folder),
            "corrections": [
                {"key": one.key, "old": one.old, "new": one.new, "why": one.why} for one in self.corrections
            ],
            "diff": self.diff,
        }


def write_fix(drafter: DrafterReading, out: Path) -> Fix:
    """Write a corrected copy of `drafter` to the new folder `out`; nothing where nothing is certain.

    Raises CheckpointError where there is no config to correct, ConfigError where `out` exists.
    """
    if drafter.config_problem is not None:
        raise CheckpointError(
            f"There is no config to correct: {drafter.config_problem}",
            remedy="`truedraft recover DRAFT --target TARGET` measures what shapes do not say and writes a config",
        )
    corrections = certain_corrections(drafter)
    if not corrections:
        return Fix((), None, "")
    old = dict(drafter.config)
    new = apply_corrections(old, corrections)
    folder = write_folder(drafter, new, out)
    lines = difflib.unified_diff(
        _lines(old), _lines(new), fromfile="config.json", tofile=f"{out}/config.json", lineterm="", n=1
    )
    return Fix(corrections, folder, "\n".join(lines))


def _lines(config: dict[str, Any]) -> list[str]:
    return json.dumps(config, indent=2, ensure_ascii=False).splitlines()
