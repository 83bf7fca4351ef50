"""A finding: what a rule saw, why it matters, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    """`fail` stops a load; `warn` costs acceptance, speed or safety; `info` is good to know."""

    FAIL = "fail"
    WARN = "warn"
    INFO = "info"


@dataclass(frozen=True, slots=True)
class Finding:
    """One misfit, with the values that show it and where they stand."""

    rule: str  # stable id, "pair.hidden_size"
    severity: Severity
    title: str
    evidence: tuple[str, ...]  # "target config.json: hidden_size = 4096"
    cause: str
    remedy: str
    report: str | None = None  # public issue behind the rule
