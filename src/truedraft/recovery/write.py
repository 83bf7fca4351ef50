"""The corrected config: written in the drafter's own format, shown as a diff."""

from __future__ import annotations

import difflib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from truedraft.checkpoint.export import ExportFormat, export_config, write_folder
from truedraft.contract.reading import DrafterReading
from truedraft.recovery.recover import Recovery
from truedraft.recovery.start import Start

# Keys without a say in how the drafter runs, kept as they were.
_KEPT = (
    "attention_dropout",
    "auto_map",
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
    "initializer_range",
    "transformers_version",
    "use_cache",
)


def corrected_config(reading: DrafterReading, start: Start, found: Recovery) -> dict[str, Any]:
    """→ config.json that says what was found, with both numberings of the capture layers.

    Raises CheckpointError where the format has no key for it.
    """
    spec = found.final.applied(start.spec)
    to: ExportFormat = "speculators" if reading.format == "speculators" else "zlab"
    values = dict(reading.values)
    values.setdefault("embedding_vocab_size", reading.embedding_rows or spec.vocab_size)
    config = export_config(replace(reading, spec=spec, values=values), to)
    config = {key: reading.config[key] for key in _KEPT if key in reading.config} | config
    if found.final.interleaved:
        config["rope_is_neox_style"] = False
    note = config["truedraft"]
    del note["converted_from"]
    note["recovered"] = {
        "tau": round(found.tau, 3),
        "num_texts": found.num_texts,
        "undecided": [row.name for row in found.rows if row.verdict == "undecided"],
    }
    return config


def write_corrected(reading: DrafterReading, config: dict[str, Any], out: Path) -> Path:
    """→ the new folder: the config, and links to the weights. Raises ConfigError where it exists."""
    return write_folder(reading, config, out)


def config_diff(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """→ lines of a unified diff, keys in order."""
    before, after = (json.dumps(one, indent=2, sort_keys=True).splitlines() for one in (old, new))
    return list(
        difflib.unified_diff(before, after, "config.json", "config.json (recovered)", n=0, lineterm="")
    )
