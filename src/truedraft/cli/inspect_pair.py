"""Reads two checkpoints' headers and runs the rules: all that can be known before anything loads."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from truedraft.checkpoint.drafter import read_drafter_files
from truedraft.checkpoint.target import read_target_files
from truedraft.contract.finding import Finding, Severity
from truedraft.contract.reading import DrafterReading, Reading, TargetReading
from truedraft.contract.specs import Origin, TensorHeader
from truedraft.diagnosis.facts import PairFacts, RunFacts, show_version
from truedraft.diagnosis.pair import diagnose


@dataclass(frozen=True, slots=True)
class Inspection:
    """Two readings, the run that they were judged for, and what the rules found, worst first."""

    drafter: DrafterReading
    target: TargetReading | None
    run: RunFacts
    findings: tuple[Finding, ...]

    @property
    def fits(self) -> bool:
        """Whether no rule failed."""
        return all(finding.severity is not Severity.FAIL for finding in self.findings)

    def to_json(self) -> dict[str, Any]:
        """→ plain values only; every spec field with where it came from."""
        return {
            "fits": self.fits,
            "engine": {
                "name": self.run.engine,
                "version": None if self.run.version is None else show_version(self.run.version),
            },
            "target": None if self.target is None else reading_json(self.target),
            "drafter": _drafter_json(self.drafter),
            "findings": [_finding_json(finding) for finding in self.findings],
        }


def inspect(draft: str | Path, target: str | Path | None = None, run: RunFacts | None = None) -> Inspection:
    """→ what the drafter, with or without its target, is found to be; no weight is read.

    Raises CheckpointError where files are missing or corrupt. Gaps and contradictions in a readable
    config are findings.
    """
    drafter = read_drafter_files(draft)
    read = None if target is None else read_target_files(target)
    facts = PairFacts(drafter, read, run or RunFacts())
    return Inspection(drafter, read, facts.run, diagnose(facts))


def tensor_summary(tensors: tuple[TensorHeader, ...]) -> dict[str, Any]:
    """→ how many tensors, values and bytes, and bytes by dtype."""
    by_dtype: Counter[str] = Counter()
    num_values = 0
    for tensor in tensors:
        by_dtype[tensor.dtype] += tensor.end - tensor.start
        count = 1
        for length in tensor.shape:
            count *= length
        num_values += count
    return {
        "num_tensors": len(tensors),
        "num_values": num_values,
        "num_bytes": sum(by_dtype.values()),
        "bytes_by_dtype": dict(by_dtype.most_common()),
    }


def _drafter_json(drafter: DrafterReading) -> dict[str, Any]:
    return reading_json(drafter) | {
        "extras": list(drafter.extras),
        "unexpected_tensors": list(drafter.unexpected),
        "absent_tensors": list(drafter.absent),
        "num_captured": drafter.num_captured,
        "config_problem": drafter.config_problem,
    }


def reading_json(reading: Reading) -> dict[str, Any]:
    """→ one reading as plain values."""
    return {
        "source": reading.source,
        "path": reading.path,
        "format": reading.format,
        "values": {
            name: {"value": _plain(value), "from": _origin_json(reading.origins.get(name))}
            for name, value in sorted(reading.values.items())
        },
        "missing": list(reading.missing),
        "conflicts": [
            {
                "name": conflict.name,
                "used": _plain(conflict.used),
                "used_from": _origin_json(conflict.used_from),
                "other": _plain(conflict.other),
                "other_from": _origin_json(conflict.other_from),
                "hard": conflict.hard,
            }
            for conflict in reading.conflicts
        ],
        "tensors": tensor_summary(reading.tensors),
    }


def _origin_json(origin: Origin | None) -> dict[str, str] | None:
    return None if origin is None else {"kind": origin.kind, "where": origin.where}


def _plain(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value


def _finding_json(finding: Finding) -> dict[str, Any]:
    return {
        "rule": finding.rule,
        "severity": finding.severity.value,
        "title": finding.title,
        "evidence": list(finding.evidence),
        "cause": finding.cause,
        "remedy": finding.remedy,
        "report": finding.report,
    }
