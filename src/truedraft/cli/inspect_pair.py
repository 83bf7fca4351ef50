"""Reads two checkpoints' headers and runs the rules: all that can be known before anything loads."""

from __future__ import annotations

import dataclasses
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from truedraft.checkpoint.drafter import read_drafter_files
from truedraft.checkpoint.target import read_target_files
from truedraft.cli.findings_view import findings_json
from truedraft.contract.finding import Finding, Severity
from truedraft.contract.reading import DrafterReading, Reading, TargetReading
from truedraft.contract.specs import Origin, TensorHeader
from truedraft.diagnosis.facts import PairFacts, RunFacts, show_version
from truedraft.diagnosis.memory import MemoryPlan, plan_memory
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

    @property
    def memory(self) -> MemoryPlan | None:
        """→ what the pair needs for the sequences asked for (one), where sizes are known."""
        num_seqs = self.run.flag_int("max-num-seqs", "max-running-requests") or 1
        return plan_memory(PairFacts(self.drafter, self.target, self.run), num_seqs=num_seqs)

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
            "memory": _memory_json(self.memory),
            "findings": findings_json(self.findings),
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


def _memory_json(plan: MemoryPlan | None) -> dict[str, Any] | None:
    if plan is None:
        return None
    return dataclasses.asdict(plan) | {"cache_bytes": plan.cache_bytes, "total_bytes": plan.total_bytes}
