"""A likely cause with its evidence, and the candidates that a pattern of acceptance or speed leaves."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from truedraft.diagnosis.evidence import Evidence

Weighed = tuple[float, str]
"""(weight, what was seen): above 0 speaks for the cause, below against it."""
Look = Callable[[Evidence], list[Weighed]]

LIKELY, POSSIBLE = 5.0, 2.5


@dataclass(frozen=True, slots=True)
class Cause:
    """`weight` orders causes; `next_step` is the measurement or change that decides."""

    id: str
    title: str
    weight: float
    evidence_for: tuple[str, ...]
    evidence_against: tuple[str, ...]
    next_step: str
    rules: tuple[str, ...] = ()

    @property
    def how_sure(self) -> str:
        """→ "likely", "possible" or "not excluded"."""
        return (
            "likely" if self.weight >= LIKELY else "possible" if self.weight >= POSSIBLE else "not excluded"
        )


@dataclass(frozen=True, slots=True)
class Candidate:
    """`patterns`: pattern → how much it speaks for this cause by itself.

    `rules` and `signatures` are beginnings of ids that support it when they are found.
    """

    id: str
    title: str
    patterns: Mapping[str, float]
    next_step: str
    rules: tuple[str, ...] = ()
    signatures: tuple[str, ...] = ()
    look: Look | None = None
