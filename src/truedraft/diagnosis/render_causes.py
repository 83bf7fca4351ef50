"""Writes what `truedraft diagnose` knows as a page: patterns and their causes, printed lines and theirs."""

from __future__ import annotations

from collections.abc import Iterable

from truedraft.diagnosis.cause_table import BROKEN_TARGET, CANDIDATES, HANG, OFF, SPEED
from truedraft.diagnosis.signature import Signature
from truedraft.diagnosis.signatures import SIGNATURES

INTRO = """# Diagnosis

What `truedraft diagnose` knows. It takes logs, `/metrics` texts, benchmark JSON, launch commands and model folders in
any mix, and finds a state; each state leaves causes, which evidence for and against puts in order: findings of
`truedraft inspect`, printed lines, the release, the command, the counters. The last column says what to measure next.

Bring `/metrics` twice, some requests apart: one reading mixes all traffic since the start. Three or more readings show
where acceptance falls: send short prompts between two of them, long ones between the next, one prompt twice after that.

This page is generated from the tables of causes and signatures; do not edit it.
"""
STATES = {
    "dead": "Drafts are noise: τ about 1, position 0 near 0",
    "misaligned": "Position 0 at 0.3 to 0.5, then a smooth decay",
    "poor_match": "Works, but position 0 is under 0.7 and half of the positions bring nothing",
    "decays": "Position 0 at 0.7 or more, then a steep decay",
    "fell_with_context": "Good on short contexts, bad on long ones",
    "fell_after_hit": "Good cold, bad after hits of the prefix cache",
    "fell": "Acceptance fell while the server ran",
    "slow": "Acceptance is good, and speed is not",
    "off": "Tokens come, drafts do not",
    "hanging": "Requests run, no token comes, health says 200",
    "stopped": "The log ends before serving, without an error",
    "not_speculation": "Answers are broken without the drafter too",
}


def diagnosis_markdown() -> str:
    """→ docs/diagnosis.md."""
    parts = [INTRO, *(_state(name, title) for name, title in STATES.items())]
    printed = _printed(one for one in SIGNATURES if one.is_error)
    warned = _printed(one for one in SIGNATURES if not one.is_error)
    parts += [
        f"## Printed errors\n\nThe first of these in a log is the cause; wrappers around it are passed over.\n\n{printed}"
    ]
    parts += [f"## Printed warnings\n\nThey explain low acceptance or speed and stop nothing.\n\n{warned}"]
    return "\n".join(parts)


def _state(name: str, title: str) -> str:
    everything = (*CANDIDATES, *SPEED, *OFF, *HANG, *BROKEN_TARGET)
    found = sorted((one for one in everything if name in one.patterns), key=lambda one: -one.patterns[name])
    rows = [f"| {one.title} | {one.next_step} |" for one in found]
    return "\n".join([f"## {title}", "", "| cause | measure next |", "| --- | --- |", *rows, ""])


def _printed(signatures: Iterable[Signature]) -> str:
    rows = ["| what is seen | causes | remedy | rule that foresees it |", "| --- | --- | --- | --- |"]
    for one in sorted(signatures, key=lambda signature: signature.id):
        rule = f"`{one.rule}`" if one.rule else ""
        cells = (one.title, "; ".join(one.causes), one.remedy, rule)
        rows.append(f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |")
    return "\n".join(rows) + "\n"
