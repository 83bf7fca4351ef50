"""Opens what `truedraft diagnose` was given, and reads the pair's folders where there are some."""

from __future__ import annotations

import dataclasses
import json
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from truedraft.checkpoint.drafter import read_drafter_files
from truedraft.checkpoint.target import is_drafter_config, read_target_files
from truedraft.contract.finding import Finding
from truedraft.contract.reading import DrafterReading, TargetReading
from truedraft.diagnosis.evidence import Evidence, gather, run_of
from truedraft.diagnosis.facts import PairFacts, RunFacts, Version
from truedraft.diagnosis.intake import MAX_JSON_LEN, Intake, Sorter
from truedraft.diagnosis.pair import diagnose
from truedraft.errors import CheckpointError, ConfigError

Kinds = tuple[tuple[str, tuple[str, ...]], ...]
MAX_BYTES = 1024**3  # a pipe or a device may never end
MAX_LINE = MAX_JSON_LEN + 1
WEIGHTS = (".safetensors", ".gguf")


def read_sources(
    names: Sequence[str], *, version: Version | None = None, target_only_broken: bool | None = None
) -> tuple[Evidence, Kinds]:
    """→ the evidence of all sources, and which kinds each held.

    Raises ConfigError for a file that cannot be opened.
    """
    sorter, folders, notes = Sorter(), [], list[str]()
    for name in names:
        path = Path(name).expanduser()
        if name != "-" and (path.is_dir() or path.suffix in WEIGHTS):
            folders.append(path)
        elif name != "-" and path.name == "config.json" and path.is_file():
            folders.append(path.parent)
        else:
            _sort(sorter, name, path)
    intake = sorter.done()
    run, said = run_of(intake, RunFacts(version=version))
    notes += said
    folders += [one for one in _named_by(run) if not folders and not intake.configs]
    with tempfile.TemporaryDirectory(prefix="truedraft-configs-") as made:
        folders += _pasted(intake, Path(made))
        drafter, target = _pair(folders, notes)
        findings = _findings(drafter, target, run)
    layers = None if drafter is None else drafter.get("capture_layers")
    evidence = gather(
        intake,
        run,
        findings=findings,
        has_configs=drafter is not None,
        capture_layers=layers,
        target_only_broken=target_only_broken,
        notes=tuple(notes),
    )
    kinds = (*intake.kinds, *((str(one), ("model folder",)) for one in folders))
    return evidence, tuple((name, kind) for name, kind in kinds if not name.startswith(made))


def _sort(sorter: Sorter, name: str, path: Path) -> None:
    if name == "-":
        stream = getattr(sys.stdin, "buffer", None)
        sorter.text("stdin", _lines(stream) if stream is not None else iter(sys.stdin))
        return
    try:
        with path.open("rb") as file:
            sorter.text(name, _lines(file))
    except OSError as exc:
        raise ConfigError(f"Cannot read {name}", seen=exc.strerror or type(exc).__name__) from exc


def _lines(file: IO[bytes]) -> Iterator[str]:
    """→ lines of the first GiB as text, none longer than a JSON object may be; what is no UTF-8 becomes �."""
    num_bytes = 0
    while (chunk := file.readline(MAX_LINE)) and num_bytes < MAX_BYTES:
        yield chunk.decode("utf-8", errors="replace")
        num_bytes += len(chunk)
        while len(chunk) == MAX_LINE and not chunk.endswith(b"\n") and num_bytes < MAX_BYTES:
            chunk = file.readline(MAX_LINE)  # the rest of an absurd line
            num_bytes += len(chunk)


def _named_by(run: RunFacts) -> list[Path]:
    """→ folders of this machine that the command names."""
    names = ("speculative.model", "speculative-draft-model-path", "spec-model", "model")
    paths = [Path(value) for name in names if isinstance(value := run.flags.get(name), str)]
    return [path for path in paths if path.is_absolute() and (path / "config.json").is_file()]


def _pasted(intake: Intake, made: Path) -> list[Path]:
    found = []
    for index, (_, config) in enumerate(intake.configs):
        folder = made / f"pasted-{index}"
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
        found.append(folder)
    return found


def _pair(folders: Sequence[Path], notes: list[str]) -> tuple[DrafterReading | None, TargetReading | None]:
    drafter: DrafterReading | None = None
    target: TargetReading | None = None
    for folder in folders:
        try:
            if _is_drafter(folder):
                drafter = read_drafter_files(folder)
            else:
                target = read_target_files(folder)
        except CheckpointError as exc:
            notes.append(f"{folder}: {exc}")
    return drafter, target


def _is_drafter(folder: Path) -> bool:
    try:
        config: Any = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return folder.is_dir() and not list(folder.glob("*.gguf"))
    return isinstance(config, Mapping) and is_drafter_config(config)


def _findings(
    drafter: DrafterReading | None, target: TargetReading | None, run: RunFacts
) -> tuple[Finding, ...]:
    if drafter is None:
        return ()
    pasted = drafter.path.rpartition("/")[2].startswith("pasted-")
    found = diagnose(PairFacts(drafter, target, dataclasses.replace(run)))
    return tuple(one for one in found if not (pasted and one.rule == "file.no_weights"))
