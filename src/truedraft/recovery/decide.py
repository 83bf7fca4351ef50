"""After the search: every value against its nearest alternatives, on anchors that the search did not see."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from truedraft.recovery.candidate import Candidate
from truedraft.recovery.measure import Measurer
from truedraft.recovery.measured import Measured
from truedraft.recovery.search import Search
from truedraft.recovery.space import Space
from truedraft.recovery.start import Start
from truedraft.recovery.texts import Sample
from truedraft.recovery.verdict import Interval, Row, paired

NEAR = 0.1  # nats on the quick look: alternatives that may be alike
FEWEST, MOST = 2, 5  # alternatives compared of each value


@dataclass(frozen=True, slots=True)
class Aspect:
    """One row of the table: how to read its value, to set it, and what else there is."""

    name: str
    field: str  # of Candidate
    get: Callable[[Candidate], Any]
    put: Callable[[Candidate, Any], Candidate]
    options: Callable[[Candidate], list[Candidate]]


def aspects(space: Space, start: Candidate) -> list[Aspect]:
    """The rows in the order in which they are shown."""

    def plain(name: str, field: str, options: Callable[[Candidate], list[Candidate]]) -> Aspect:
        def put(candidate: Candidate, value: Any) -> Candidate:
            return replace(candidate, **{field: value})

        return Aspect(name, field, lambda candidate: getattr(candidate, field), put, options)

    by_name = {dimension.name: dimension.options for dimension in space.dimensions(start)}
    slots = [_slot(slot, by_name[f"capture_layers[{slot}]"]) for slot in range(len(start.capture_layers))]
    return [
        *slots,
        plain("mask token", "mask_token_id", space.with_masks),
        plain("anchor's slot predicts", "sample_from_anchor", by_name["sample_from_anchor"]),
        plain("block length", "block_len", space.with_block_lens),
        plain("sliding windows", "windows", by_name["sliding_window"]),
        plain("causal in the block", "causal", by_name["block causality"]),
        plain("rope theta", "theta", space.with_thetas),
        plain("rope interleaved", "interleaved", by_name["rope style"]),
        plain("embedding scale", "embedding_scale", space.with_scales),
    ]


def _slot(slot: int, options: Callable[[Candidate], list[Candidate]]) -> Aspect:
    return Aspect(
        f"capture layer, slot {slot}",
        "capture_layers",
        lambda candidate: candidate.capture_layers[slot],
        lambda candidate, value: candidate.with_layer(slot, value),
        options,
    )


class Judge:
    """Compares on one sample; remembers what it measured."""

    def __init__(self, measurer: Measurer, sample: Sample, few: Sample, search: Search) -> None:
        self._measurer, self._sample, self._few, self._search = measurer, sample, few, search
        self._losses: dict[Candidate, Measured] = {}
        self._drafts: dict[Candidate, Measured] = {}

    def loss(self, candidate: Candidate) -> Measured:
        if candidate not in self._losses:
            both = self._measurer.losses(candidate, self._sample)
            for layout, measured in both.items():
                self._losses[replace(candidate, sample_from_anchor=layout)] = measured
        return self._losses[candidate]

    def drafts(self, candidate: Candidate) -> Measured:
        if candidate not in self._drafts:
            self._drafts[candidate] = self._measurer.drafts(candidate, self._few)
        return self._drafts[candidate]

    def difference(self, best: Candidate, other: Candidate) -> Interval:
        """→ how much more the other loses, over the drafted tokens that both have."""
        shared = min(best.block_len, other.block_len) - 1
        mine, its = self.loss(best), self.loss(other)
        return paired(mine.loss_by_text(shared), its.loss_by_text(shared))

    def natural_layers(self, found: Candidate, lists: Sequence[tuple[int, ...]]) -> Candidate:
        """→ with the first of `lists` (likeliest first) that is not worse than what was found.

        One slot's neighbours may be too close to tell; a list that explains all slots at once is
        the better account of the same loss.
        """
        for layers in lists:
            other = replace(found, capture_layers=layers)
            if other == found:
                return found
            if self._search.loss(other, 0) > self._search.loss(found, 0) + NEAR:
                continue
            if self.difference(found, other).low <= 0:
                return other
        return found

    def row(self, aspect: Aspect, best: Candidate, start: Start) -> tuple[Row, Candidate]:
        """→ the row, and `best` with the value that the row settles on.

        Where alternatives are alike, the declared value stays, or the family's is taken; capture
        layers were settled as a list.
        """
        declared = aspect.get(start.candidate)
        was = aspect.put(best, declared)
        others = self._others(aspect, best, was)
        differences = {other: self.difference(best, other) for other in others}
        better = [other for other, found in differences.items() if found.high < 0]
        if better:  # on more anchors than the search had
            best = min(better, key=lambda other: differences[other].value)
            others = list(dict.fromkeys([*self._others(aspect, best, was), *others]))
            differences = {other: self.difference(best, other) for other in others if other != best}
        alike = [other for other, found in differences.items() if found.low <= 0]
        settled = self._settle(aspect, best, alike, was, start)
        alike = [one for one in dict.fromkeys([best, *alike]) if one != settled] if alike else []
        rest = [other for other in differences if other not in (settled, best)]
        against = was if was != settled else min(rest, key=lambda o: differences[o].value, default=None)
        row = Row(
            name=aspect.name,
            declared=declared,
            said=aspect.field in start.said,
            best=aspect.get(settled),
            against=None if against is None else aspect.get(against),
            loss=None if against is None else self.difference(settled, against),
            tau=None if against is None else self._tau(settled, against),
            alike=tuple(aspect.get(one) for one in alike),
        )
        return row, settled

    def _others(self, aspect: Aspect, best: Candidate, was: Candidate) -> list[Candidate]:
        """The nearest alternatives by the quick look, and the declared value."""
        options = [one for one in aspect.options(best) if one != best and aspect.get(one) != aspect.get(best)]
        if aspect.field == "block_len":
            ranked = sorted(options, key=lambda one: abs(one.block_len - best.block_len))
        else:
            ranked = self._search.ranked(options)
            limit = self._search.loss(best, 0) + NEAR
            num_near = sum(self._search.loss(one, 0) <= limit for one in ranked)
            ranked = ranked[: min(MOST, max(FEWEST, num_near))]
        return list(dict.fromkeys([*ranked[:MOST], *([was] if was != best else [])]))

    def _settle(
        self,
        aspect: Aspect,
        best: Candidate,
        alike: Sequence[Candidate],
        was: Candidate,
        start: Start,
    ) -> Candidate:
        if aspect.field == "capture_layers":
            return best  # chosen as a list: see natural_layers
        if aspect.field in start.said and was in alike:
            return was
        values = [one.mask_token_id for one in start.family] if aspect.field == "mask_token_id" else []
        return next((one for one in alike if aspect.get(one) in values), best)

    def _tau(self, best: Candidate, other: Candidate) -> Interval:
        """→ how many tokens a round fewer the other commits."""
        return paired(self.drafts(other).committed_by_text(), self.drafts(best).committed_by_text())


def window_note(candidate: Candidate, declared: Candidate, longest_context: int) -> str:
    """What the texts cannot show: a window that is longer than they are."""
    sizes = {window for window in candidate.windows if window is not None}
    if all(window < longest_context for window in sizes) and sizes:
        return ""
    if sizes or candidate.windows == declared.windows:
        return f"undecided past {longest_context} tokens: the texts are no longer"
    return f"undecided past {longest_context} tokens: none, or a longer window"
