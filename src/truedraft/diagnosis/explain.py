"""From evidence to a diagnosis: what state the deployment is in, causes in order, what is not known."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from truedraft.contract.finding import Finding, Severity
from truedraft.diagnosis.bench import speed_up, unfair
from truedraft.diagnosis.cause import Candidate, Cause
from truedraft.diagnosis.cause_table import BROKEN_TARGET, CANDIDATES, HANG, OFF, SPEED
from truedraft.diagnosis.evidence import Evidence
from truedraft.diagnosis.logs import SeenLine
from truedraft.diagnosis.metrics import MetricsFacts

MAX_CAUSES = 6
RULE_WEIGHT = {Severity.FAIL: 4.0, Severity.WARN: 2.0, Severity.INFO: 0.3}
PRINTED_WEIGHT = 3.5
NO_SIGN = -1.0
WORTH_IT = 1.1  # speed-up below which speculation does not pay


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """`state` in one word, `headline` in a sentence; causes most likely first.

    `unknown`: what could not be told, and what to bring for it.
    """

    state: str
    headline: str
    causes: tuple[Cause, ...]
    unknown: tuple[str, ...]


def explain(evidence: Evidence) -> Diagnosis:
    """→ the diagnosis; "unknown" where the sources do not carry one."""
    state, headline = _state(evidence)
    causes = [*_printed(evidence), *_by_pattern(evidence, state)]
    named = {rule for cause in causes for rule in cause.rules if cause.evidence_for}
    causes += [cause for cause in _foreseen(evidence, state) if not named & set(cause.rules)]
    seen: dict[str, Cause] = {}
    for cause in sorted(causes, key=lambda one: -one.weight):
        seen.setdefault(cause.id, cause)
    return Diagnosis(state, headline, tuple(seen.values())[:MAX_CAUSES], _unknown(evidence, state))


def _state(evidence: Evidence) -> tuple[str, str]:
    log, metrics, verdict = evidence.log, evidence.metrics, evidence.verdict
    if log is not None and log.first_error is not None and not log.went_on:
        return "failed", f"It failed: {log.first_error.signature.title}"
    if log is not None and log.unexplained is not None and not log.went_on:
        return "failed", "It failed with an error that is in no list here"
    if metrics is not None and (said := _of_counters(metrics)) is not None:
        return said
    if log is not None and any(line.signature.id == "hang.broadcast" for line in log.others):
        return "hanging", "Workers stopped answering: it hangs"
    if verdict is not None:
        return _of_acceptance(evidence, verdict.kind, verdict.title)
    if log is not None and any(line.signature.id == "draft.fallback" for line in log.others):
        return "off", "The drafter was dropped: plain decoding goes on"
    if log is not None and log.phase is not None and not log.serves:
        return "stopped", f"The log ends at “{log.phase}”, before serving and without an error"
    if any(finding.severity is Severity.FAIL for finding in evidence.findings):
        return "foreseen", "Nothing has run yet, and the configs will not work as they are"
    return "unknown", "These sources do not say what is wrong, or whether anything is"


def _of_counters(metrics: MetricsFacts) -> tuple[str, str] | None:
    """→ a hang, or tokens without drafts; only where the engine would count them."""
    values = metrics.values
    if metrics.is_delta and values.get("running", 0) > 0 and values.get("generated") == 0:
        return "hanging", f"Requests run ({values['running']:.0f}) and no token comes: it hangs"
    if values.get("generated", 0) <= 0 or metrics.engine not in ("vllm", "local"):
        return None
    if not metrics.speculates:
        return "off", "Tokens are generated, and the server counts no drafts: speculation is off"
    if values.get("rounds") == 0:
        return "off", "Tokens are generated, and the drafts counter stands still: speculation is off"
    return None


def _of_acceptance(evidence: Evidence, kind: str, title: str) -> tuple[str, str]:
    if evidence.fall is not None and kind not in (
        "inconsistent",
        "too_few",
        "off",
        "not_speculation",
        "dead",
    ):
        return evidence.fall.state, f"Acceptance fell: {evidence.fall.said}"
    ratio = speed_up(evidence.benches)
    if ratio is not None and ratio[0] < WORTH_IT and kind in ("healthy", "decays", "poor_match"):
        return "slow", f"{title}, and it is still {ratio[0]:.2f} times plain decoding"
    return kind, title


def _printed(evidence: Evidence) -> list[Cause]:
    """→ the first error as a cause; other errors, and warnings that explain, after it."""
    if evidence.log is None:
        return []
    found = []
    first = evidence.log.first_error
    if first is not None:
        found.append(_of_line(first, evidence, 3.0 if evidence.log.went_on else 10.0))
    found += [
        _of_line(line, evidence, 2.0 if line.signature.is_error else 1.5) for line in evidence.log.others
    ]
    return found


def _of_line(line: SeenLine, evidence: Evidence, weight: float) -> Cause:
    signature = line.signature
    speaks_for = [f"log line {line.number}: {line.text[:300]}"]
    against: list[str] = []
    for finding in evidence.findings:
        if finding.rule == signature.rule:
            speaks_for += [f"inspect foresees it ({finding.rule}): {item}" for item in finding.evidence]
            weight += RULE_WEIGHT[finding.severity]
    if evidence.has_configs and signature.rule is not None and len(speaks_for) == 1:
        against.append(f"the configs given show no sign of it ({signature.rule})")
        weight += NO_SIGN
    return Cause(
        f"printed.{signature.id}",
        f"{signature.title}: {' / '.join(signature.causes)}",
        weight,
        tuple(speaks_for),
        tuple(against),
        signature.remedy,
        (signature.rule,) if signature.rule else (),
    )


def _by_pattern(evidence: Evidence, state: str) -> list[Cause]:
    if state in ("failed", "healthy", "unknown", "foreseen"):
        return []
    found = [
        _weigh(one, evidence, one.patterns[state], _pattern(evidence, state))
        for one in (*CANDIDATES, *SPEED, *OFF, *HANG, *BROKEN_TARGET)
        if state in one.patterns
    ]
    return [cause for cause in found if cause.weight > 0]


def _pattern(evidence: Evidence, state: str) -> tuple[str, ...]:
    """→ the figures that the pattern consists of, for acceptance; other states say it in the headline."""
    facts = evidence.acceptance
    if facts is None or evidence.verdict is None or state in ("off", "hanging", "stopped"):
        return ()
    if evidence.fall is not None and state == evidence.fall.state:
        return (evidence.fall.said,)
    rates, tau = facts.by_position, facts.mean_committed
    shown = "" if tau is None else f"τ {tau:.2f}"
    if rates:
        shown += f"{', ' if shown else ''}position 0 at {rates[0]:.3f}, the last at {rates[-1]:.3f}"
    return (shown,) if shown else ()


def _weigh(candidate: Candidate, evidence: Evidence, weight: float, pattern: tuple[str, ...]) -> Cause:
    speaks_for: list[str] = []
    against: list[str] = []
    rules: list[str] = []
    for finding in evidence.findings:
        if finding.rule.startswith(candidate.rules) and candidate.rules:
            weight += RULE_WEIGHT[finding.severity]
            rules.append(finding.rule)
            speaks_for.append(f"{finding.rule}: {'; '.join(finding.evidence[:2])}")
    for line in _lines(evidence):
        if candidate.signatures and line.signature.id.startswith(candidate.signatures):
            weight += PRINTED_WEIGHT
            speaks_for.append(f"log line {line.number}: {line.text[:200]}")
    for change, seen in candidate.look(evidence) if candidate.look is not None else ():
        weight += change
        (speaks_for if change > 0 else against).append(seen)
    if candidate.rules and evidence.has_configs and not speaks_for:
        weight += NO_SIGN
        against.append("configs and headers show no sign of it")
    return Cause(
        candidate.id,
        candidate.title,
        weight,
        (*speaks_for, *pattern),
        tuple(against),
        candidate.next_step,
        tuple(rules),
    )


def _lines(evidence: Evidence) -> Iterable[SeenLine]:
    if evidence.log is None:
        return ()
    first = evidence.log.first_error
    return (first, *evidence.log.others) if first is not None else evidence.log.others


def _foreseen(evidence: Evidence, state: str) -> list[Cause]:
    """→ what inspect fails, where no pattern took it up."""
    if state == "healthy":
        return []
    fails = [finding for finding in evidence.findings if finding.severity is Severity.FAIL]
    return [_of_finding(finding, 6.0 if state == "foreseen" else 4.0) for finding in fails]


def _of_finding(finding: Finding, weight: float) -> Cause:
    return Cause(
        f"rule.{finding.rule}",
        finding.title,
        weight,
        finding.evidence,
        (),
        finding.remedy,
        (finding.rule,),
    )


def _unknown(evidence: Evidence, state: str) -> tuple[str, ...]:
    found = list(evidence.notes)
    log, metrics = evidence.log, evidence.metrics
    if log is not None and log.unexplained is not None:
        place = f" (at {log.unexplained_place})" if log.unexplained_place else ""
        found.append(f"this error is not known here{place}: {log.unexplained[:300]}")
    if evidence.run.version is None and evidence.run.engine != "local":
        found.append("the engine's release: add --engine-version, or the log's first lines")
    if evidence.acceptance is None and state not in ("failed", "off", "hanging", "stopped", "foreseen"):
        found.append("acceptance: bring /metrics read twice, some requests apart")
    elif metrics is not None and not metrics.is_delta and metrics.speculates:
        found.append("only one reading of /metrics: it mixes all traffic since the start; bring two")
    if evidence.acceptance is not None and not evidence.acceptance.by_position and state != "not_speculation":
        found.append("acceptance by position: this source has only the mean")
    if not evidence.has_configs and state not in ("healthy",):
        found.append(
            "the pair's configs: add the drafter's and the target's folder, so that rules can check them"
        )
    if evidence.discarded:
        found.append(f"{evidence.discarded} acceptance lines contradict themselves and were not used")
    if state in ("healthy", "slow", "poor_match", "decays"):
        ratio = speed_up(evidence.benches)
        if ratio is None:
            found.append("the speed-up: bring a benchmark with and one without the drafter, same flags")
        else:
            found += [f"the comparison is unfair: {why}" for why in unfair(ratio[1], ratio[2])]
    if evidence.target_only_broken is None and state in ("dead", "misaligned"):
        found.append("whether the target's answers are right without the drafter (--plain fine|broken)")
    return tuple(found)
