"""How sure a value is: differences between two candidates on the same anchors, text by text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

NUM_RESAMPLES = 2000
TAIL = 0.025


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean over texts and its 95 % interval (percentile bootstrap over texts)."""

    value: float
    low: float
    high: float

    def to_json(self) -> dict[str, float]:
        return {"value": self.value, "low": self.low, "high": self.high}


@dataclass(frozen=True, slots=True)
class Row:
    """One value of the config: what it said, what fits best, and by how much.

    `against` is the nearest alternative (the declared value where it lost); the differences say how
    much worse it is: `loss` in nats a token, `tau` in committed tokens a round (positive: the
    alternative commits fewer). `alike`: alternatives that the texts do not tell from the best.
    """

    name: str
    declared: Any
    said: bool  # whether the config says it (else `declared` is what was assumed)
    best: Any
    against: Any = None
    loss: Interval | None = None
    tau: Interval | None = None
    alike: tuple[Any, ...] = ()
    note: str = ""

    @property
    def changed(self) -> bool:
        return bool(self.best != self.declared)

    @property
    def verdict(self) -> str:
        """`undecided` wherever an alternative cannot be told apart."""
        if self.alike or self.note.startswith("undecided"):
            return "undecided"
        if not self.said:
            return "found"
        return "corrected" if self.changed else "confirmed"

    def to_json(self) -> dict[str, Any]:
        return {
            "what": self.name,
            "declared": _plain(self.declared) if self.said else None,
            "best": _plain(self.best),
            "verdict": self.verdict,
            "against": _plain(self.against),
            "delta_loss": None if self.loss is None else self.loss.to_json(),
            "delta_tau": None if self.tau is None else self.tau.to_json(),
            "alike": [_plain(one) for one in self.alike],
            "note": self.note,
        }


def paired(best: Mapping[int, float], other: Mapping[int, float]) -> Interval:
    """→ the mean of other − best over texts. The same figures give the same interval."""
    texts = sorted(best.keys() & other.keys())
    differences = np.array([other[text] - best[text] for text in texts], dtype=np.float64)
    return interval(differences[~np.isnan(differences)])


def mean_and_error(best: Mapping[int, float], other: Mapping[int, float]) -> tuple[float, float]:
    """→ the mean of other − best over texts, and its standard error (0 for one text)."""
    texts = sorted(best.keys() & other.keys())
    differences = np.array([other[text] - best[text] for text in texts], dtype=np.float64)
    if len(differences) < 2:
        return float(differences.sum()), 0.0
    return float(differences.mean()), float(differences.std(ddof=1) / np.sqrt(len(differences)))


def interval(values: np.ndarray[Any, np.dtype[np.float64]]) -> Interval:
    """→ mean and bootstrap interval; without values all is 0 wide and says nothing."""
    if not len(values):
        return Interval(0.0, 0.0, 0.0)
    draws = np.random.default_rng(0).integers(0, len(values), size=(NUM_RESAMPLES, len(values)))
    means = values[draws].mean(axis=1)
    low, high = np.quantile(means, [TAIL, 1 - TAIL])
    return Interval(float(values.mean()), float(low), float(high))


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
