"""Writes the rules as a page of documentation; the page in docs/ is made by this and checked to be current."""

from __future__ import annotations

from collections.abc import Iterable

from truedraft.contract.finding import Severity
from truedraft.diagnosis.rule import Rule
from truedraft.diagnosis.table import RULES, TOPICS

INTRO = """# Rules

What `truedraft inspect` checks before anything is loaded, from configs, tensor headers, the launch command and the
environment. `fail` stops a load, `warn` costs acceptance, speed or safety, `info` is good to know. A rule for some
engines only names them. Each rule rests on facts of the formats or on a public report, which is linked.

This page is generated from the table of rules; do not edit it.
"""


def rules_markdown() -> str:
    """→ docs/rules.md: all rules by topic."""
    numbers = {level: sum(rule.severity is level for rule in RULES) for level in Severity}
    counts = ", ".join(f"{number} `{level.value}`" for level, number in numbers.items())
    parts = [INTRO, f"{len(RULES)} rules: {counts}.\n"]
    parts += [_topic(name, rules) for name, rules in TOPICS]
    return "\n".join(parts)


def _topic(name: str, rules: Iterable[Rule]) -> str:
    lines = [
        f"## {name}",
        "",
        "| rule | severity | finding | cause | remedy | report |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for rule in rules:
        engines = f" ({', '.join(rule.engines)})" if rule.engines else ""
        report = f"[{_report_name(rule.report)}]({rule.report})" if rule.report else ""
        cells = (
            f"`{rule.id}`",
            f"{rule.severity.value}{engines}",
            rule.title,
            rule.cause,
            rule.remedy,
            report,
        )
        lines.append(f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |")
    return "\n".join(lines) + "\n"


def _report_name(url: str) -> str:
    """`https://github.com/vllm-project/vllm/issues/50708` → `vllm#50708`."""
    parts = url.rstrip("/").split("/")
    return f"{parts[-3]}#{parts[-1]}"


def rules_json() -> list[dict[str, object]]:
    """→ the table for programs."""
    return [
        {
            "id": rule.id,
            "topic": name,
            "severity": rule.severity.value,
            "engines": list(rule.engines),
            "title": rule.title,
            "cause": rule.cause,
            "remedy": rule.remedy,
            "report": rule.report,
        }
        for name, rules in TOPICS
        for rule in rules
    ]
