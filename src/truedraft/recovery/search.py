"""Coordinate search by loss: one value after another, again and again until nothing changes.

Several values may be wrong at once. Each dimension is screened on few anchors; the best of it, and
what is held so far, meet again on more. Loss, not acceptance, guides: it still moves where every
draft is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from truedraft.recovery.candidate import Candidate
from truedraft.recovery.space import Dimension
from truedraft.recovery.verdict import mean_and_error

Loss = Callable[[Candidate, int], Mapping[int, float]]
"""(candidate, level) → mean log-loss by text; level 0 is quick, level 1 is closer."""

MAX_ROUNDS = 4
REVISITED = 8  # values of a long dimension that later rounds look at again: the best of the last round
KEPT = 3  # of a dimension, for the closer look
MARGIN = 0.002  # nats that another candidate must be better by, and by more than one standard error


class Search:
    """Remembers what was measured; `on_step` hears (done, about how many in all) steps."""

    def __init__(self, loss: Loss, on_step: Callable[[int, int], None] = lambda done, total: None) -> None:
        self._measure = loss
        self._known: dict[tuple[Candidate, int], Mapping[int, float]] = {}
        self._on_step = on_step
        self._total = 0
        self._promising: dict[str, list[int]] = {}  # dimension → places of its best options

    @property
    def num_measured(self) -> int:
        return len(self._known)

    def loss(self, candidate: Candidate, level: int) -> float:
        """→ the mean over texts."""
        by_text = self.by_text(candidate, level)
        return sum(by_text.values()) / len(by_text)

    def by_text(self, candidate: Candidate, level: int) -> Mapping[int, float]:
        key = (candidate, level)
        if key not in self._known:
            self._known[key] = self._measure(candidate, level)
            self._on_step(len(self._known), max(self._total, len(self._known)))
        return self._known[key]

    def ranked(self, candidates: Sequence[Candidate], level: int = 0) -> list[Candidate]:
        """Best first; equal losses keep their order."""
        return sorted(candidates, key=lambda one: self.loss(one, level))

    def best(self, held: Candidate, candidates: Sequence[Candidate]) -> Candidate:
        """→ the best of them on the closer look; `held` unless another is clearly better."""
        few = [one for one in self.ranked(candidates) if one != held][:KEPT]
        winner = min(few, key=lambda one: self.loss(one, 1), default=held)
        gain, error = mean_and_error(self.by_text(winner, 1), self.by_text(held, 1))
        return winner if gain > max(MARGIN, error) else held

    def run(self, starts: Sequence[Candidate], dimensions: Sequence[Dimension]) -> Candidate:
        """→ where no dimension gives anything better any more, or after MAX_ROUNDS rounds."""
        starts = list(dict.fromkeys(starts))
        held = starts[0]
        sizes = sum(len(dimension.options(held)) + KEPT for dimension in dimensions)
        self._total = len(starts) + sizes + sizes // 2
        held = self.best(held, starts)
        for _ in range(MAX_ROUNDS):
            before = held
            for dimension in dimensions:
                held = self.best(held, self._options(dimension, held))
            if held == before:
                break
            self._total = max(self._total, len(self._known) + sizes // 2)
        return held

    def _options(self, dimension: Dimension, held: Candidate) -> list[Candidate]:
        """All at first; of a long dimension, later, those that were best last time."""
        options = dimension.options(held)
        if not dimension.ordered or len(options) <= REVISITED:
            return options
        if dimension.name in self._promising:
            return [options[place] for place in self._promising[dimension.name]]
        ranked = sorted(range(len(options)), key=lambda place: self.loss(options[place], 0))
        self._promising[dimension.name] = ranked[:REVISITED]
        return options
