"""A rule: a small pure function with all that a user needs to know about what it finds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from truedraft.contract.finding import Finding, Severity
from truedraft.diagnosis.facts import PairFacts

FAIL, WARN, INFO = Severity.FAIL, Severity.WARN, Severity.INFO


@dataclass(frozen=True, slots=True)
class Hit:
    """What a check saw. The other fields replace the rule's own where they are given."""

    evidence: tuple[str, ...]
    severity: Severity | None = None
    title: str | None = None
    cause: str | None = None
    remedy: str | None = None


Check = Callable[[PairFacts], Hit | tuple[str, ...] | None]


@dataclass(frozen=True, slots=True)
class Rule:
    """`check` returns evidence (or a Hit) where the rule applies, else nothing.

    `engines` empty: it holds for all. `covered_by`: rules whose finding says the same and more.
    `report` is the public issue behind the rule.
    """

    id: str
    severity: Severity
    title: str
    check: Check
    cause: str
    remedy: str
    report: str | None = None
    engines: tuple[str, ...] = ()
    covered_by: tuple[str, ...] = ()

    def run(self, facts: PairFacts) -> Finding | None:
        """→ the finding, or None. Rules never raise: what they need is either known or not."""
        if self.engines and facts.engine not in self.engines:
            return None
        seen = self.check(facts)
        if not seen:
            return None
        hit = seen if isinstance(seen, Hit) else Hit(seen)
        return Finding(
            rule=self.id,
            severity=hit.severity or self.severity,
            title=hit.title or self.title,
            evidence=hit.evidence,
            cause=hit.cause or self.cause,
            remedy=hit.remedy or self.remedy,
            report=self.report,
        )
