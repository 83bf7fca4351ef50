"""Shows a diagnosis to people and to programs."""

from __future__ import annotations

import dataclasses
from typing import Any

from truedraft.cli.diagnose_sources import Kinds
from truedraft.cli.findings_view import findings_json
from truedraft.cli.output import counted, printable
from truedraft.contract.finding import Severity
from truedraft.diagnosis.acceptance import REFERENCE_CURVE
from truedraft.diagnosis.bench import speed_up
from truedraft.diagnosis.cause import Cause
from truedraft.diagnosis.evidence import Evidence
from truedraft.diagnosis.explain import Diagnosis
from truedraft.diagnosis.facts import show_version

SPEC = ("speculative", "spec-")
SHOWN_FLAGS = (
    "model",
    "max-num-batched-tokens",
    "max-num-seqs",
    "max-model-len",
    "tensor-parallel-size",
    "tp-size",
)


def diagnosis_json(diagnosis: Diagnosis, evidence: Evidence, kinds: Kinds) -> dict[str, Any]:
    """→ one object with plain values only."""
    log, facts = evidence.log, evidence.acceptance
    first = None if log is None else log.first_error
    return {
        "state": diagnosis.state,
        "headline": diagnosis.headline,
        "sources": [{"name": name, "kinds": list(found)} for name, found in kinds],
        "engine": _engine(evidence),
        "version": None if evidence.run.version is None else show_version(evidence.run.version),
        "flags": dict(evidence.run.flags),
        "phase": None if log is None else log.phase,
        "first_error": None
        if first is None
        else {"line": first.number, "text": first.text, "signature": first.signature.id},
        "unexplained_error": None if log is None else log.unexplained,
        "acceptance": None
        if facts is None
        else dataclasses.asdict(facts)
        | {"tau": facts.mean_committed, "from": evidence.acceptance_from, "discarded": evidence.discarded},
        "counters": None if evidence.metrics is None else dataclasses.asdict(evidence.metrics),
        "speed_up": None if (ratio := speed_up(evidence.benches)) is None else ratio[0],
        "advice": None if evidence.verdict is None else evidence.verdict.next_step,
        "causes": [_cause_json(cause) for cause in diagnosis.causes],
        "findings": findings_json(evidence.findings),
        "unknown": list(diagnosis.unknown),
    }


def _cause_json(cause: Cause) -> dict[str, Any]:
    return {
        "id": cause.id,
        "title": cause.title,
        "how_sure": cause.how_sure,
        "for": list(cause.evidence_for),
        "against": list(cause.evidence_against),
        "next_step": cause.next_step,
        "rules": list(cause.rules),
    }


def _engine(evidence: Evidence) -> str | None:
    if evidence.log is not None and evidence.log.engine is not None:
        return evidence.log.engine
    if evidence.run.engine != "local":
        return evidence.run.engine
    return None if evidence.metrics is None else evidence.metrics.engine


def print_diagnosis(diagnosis: Diagnosis, evidence: Evidence, kinds: Kinds) -> None:
    """What was read and seen, the state, the causes in order, and what is not known."""
    for name, found in kinds:
        print(printable(f"read: {name} ({', '.join(found) or 'nothing of use'})"))
    for line in _seen(evidence):
        print(printable(line))
    print(f"\n{printable(diagnosis.headline)}")
    if evidence.verdict is not None and diagnosis.state == evidence.verdict.kind:
        print(printable(f"first: {evidence.verdict.next_step}"))
    for number, cause in enumerate(diagnosis.causes, 1):
        print(printable(f"\n{number}. {cause.title} ({cause.how_sure})"))
        for line in cause.evidence_for:
            print(printable(f"   for:     {line}"))
        for line in cause.evidence_against:
            print(printable(f"   against: {line}"))
        print(printable(f"   next:    {cause.next_step}"))
    if diagnosis.unknown:
        print("\nnot known:")
        for line in diagnosis.unknown:
            print(printable(f"  {line}"))


def _seen(evidence: Evidence) -> list[str]:
    found = []
    if (engine := _engine(evidence)) is not None:
        version = "" if evidence.run.version is None else f" {show_version(evidence.run.version)}"
        found.append(f"engine: {engine}{version}")
    flags = evidence.run.flags
    said = [f"{name}={flags[name]}" for name in flags if name in SHOWN_FLAGS or name.startswith(SPEC)]
    if said:
        found.append(f"command: {' '.join(said)}")
    log = evidence.log
    if log is not None:
        found.append(f"phase reached: {log.phase or 'none that is known'}")
        if log.first_error is not None:
            found.append(f"first error: line {log.first_error.number}: {log.first_error.text[:300]}")
    found += _acceptance_lines(evidence)
    fails = sum(one.severity is Severity.FAIL for one in evidence.findings)
    warns = sum(one.severity is Severity.WARN for one in evidence.findings)
    if evidence.has_configs:
        found.append(
            f"configs: {counted(fails, 'failure')}, {counted(warns, 'warning')} (`truedraft inspect`)"
        )
    return found


def _acceptance_lines(evidence: Evidence) -> list[str]:
    facts, found = evidence.acceptance, list[str]()
    if facts is not None:
        tau = facts.mean_committed
        counts = (
            "" if facts.num_drafted is None else f", {facts.num_accepted} of {facts.num_drafted} drafts kept"
        )
        found.append(
            f"acceptance: τ = {'unknown' if tau is None else f'{tau:.2f}'}{counts}, from {evidence.acceptance_from}"
        )
        if facts.by_position:
            found.append(f"  by position: {_rates(facts.by_position)}")
            found.append(f"  for scale:   {_rates(REFERENCE_CURVE)} (a healthy pair, GSM8K, τ 6.5)")
        problems = (
            ()
            if evidence.verdict is None or evidence.verdict.kind != "inconsistent"
            else evidence.verdict.evidence
        )
        found += [f"  cannot be: {problem}" for problem in problems]
    if evidence.metrics is not None:
        found += [f"  cannot be: {problem}" for problem in evidence.metrics.problems]
    ratio = speed_up(evidence.benches)
    if ratio is not None:
        found.append(
            f"speed: {ratio[0]:.2f} times plain decoding ({ratio[1].tok_per_s:.1f} and {ratio[2].tok_per_s:.1f} tok/s)"
        )
    return found


def _rates(rates: tuple[float, ...]) -> str:
    more = "" if len(rates) <= 16 else f" … ({len(rates)})"
    return " ".join(f"{rate:.3f}" for rate in rates[:16]) + more
