"""Findings for people (a block each) and for programs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TextIO

from truedraft.cli.output import printable
from truedraft.contract.finding import Finding, Severity

_ORDER = (Severity.FAIL, Severity.WARN, Severity.INFO)


def findings_json(findings: Iterable[Finding]) -> list[dict[str, Any]]:
    """Findings as JSON objects, worst first."""
    return [
        {
            "rule": one.rule,
            "severity": one.severity.value,
            "title": one.title,
            "evidence": list(one.evidence),
            "cause": one.cause,
            "remedy": one.remedy,
            "report": one.report,
        }
        for one in worst_first(findings)
    ]


def print_findings(findings: Iterable[Finding], *, file: TextIO) -> None:
    """A block a finding, worst first: what, the values that show it, why, and what to do."""
    for one in worst_first(findings):
        lines = [f"{one.severity.value.upper()}  {one.title}  [{one.rule}]"]
        lines += [f"      seen:   {line}" for line in one.evidence]
        lines += [f"      cause:  {one.cause}", f"      remedy: {one.remedy}"]
        if one.report:
            lines.append(f"      report: {one.report}")
        print(printable("\n".join(lines)), file=file)  # a config must not drive the terminal


def worst_first(findings: Iterable[Finding]) -> list[Finding]:
    """`fail`, then `warn`, then `info`; order kept inside each."""
    return sorted(findings, key=lambda one: _ORDER.index(one.severity))
