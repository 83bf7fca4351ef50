"""Chooses how many drafted tokens each sequence verifies, so that tokens a second are highest.

The costs are measured at start (`engine.measure`), the gains are running acceptance. Speculation
that does not pay switches itself off, and is tried again now and then. The choice looks only at
past rounds, never at this round's outcome, so it cannot bias what is emitted.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass

from truedraft.contract.request import Speculation
from truedraft.engine.acceptance import AcceptanceEstimate, best_prefixes

FIRST_PROBE_TOKENS = 24  # plain tokens before speculation is tried again
MAX_PROBE_TOKENS = 192
PROFIT_FRAC = 1.02  # a draft pass must promise this much, or plain decoding stays


OBSERVATION_WEIGHT = 0.02  # how far one step moves the point it speaks of
SCALE_WEIGHT = 0.06  # and how far all points, of both curves: a machine that is slow is slow for all
MAX_SURPRISE = 2.0  # a step further off than this was disturbed by something else


class CostCurve:
    """Seconds by number of rows (or blocks): linear between points, extended by the last slope.

    Starts from measurements at load and follows the steps that are really run, so that longer
    contexts, or a machine that was busy at load, do not mislead for long.
    """

    def __init__(self, table: Mapping[int, float]) -> None:
        self._rows = sorted(table)
        self._seconds = [table[rows] for rows in self._rows]

    @property
    def points(self) -> tuple[tuple[int, float], ...]:
        return tuple(zip(self._rows, self._seconds, strict=True))

    def __call__(self, rows: int) -> float:
        xs, ys = self._rows, self._seconds
        if rows <= xs[0] or len(xs) == 1:
            return ys[0]
        low = min(bisect_left(xs, rows) - 1, len(xs) - 2)
        return max(ys[low] + (ys[low + 1] - ys[low]) * (rows - xs[low]) / (xs[low + 1] - xs[low]), ys[low])

    def surprise(self, rows: int, seconds: float) -> float:
        """How many times as long as expected a pass took, within bounds; 1 where nothing is known."""
        expected = self(rows)
        if expected <= 0 or seconds <= 0:
            return 1.0
        return min(max(seconds / expected, 1 / MAX_SURPRISE), MAX_SURPRISE)

    def scale(self, factor: float) -> None:
        """Multiply all points."""
        self._seconds = [seconds * factor for seconds in self._seconds]

    def move(self, rows: int, factor: float) -> None:
        """Multiply the point nearest to `rows`."""
        at = min(range(len(self._rows)), key=lambda index: abs(self._rows[index] - rows))
        self._seconds[at] *= factor


@dataclass(frozen=True, slots=True)
class CostTable:
    """`verify`: target pass, head and choice, by rows; `draft`: drafter pass by blocks."""

    verify: CostCurve
    draft: CostCurve

    def observe(self, rows: int, verify_s: float, blocks: int, draft_s: float) -> None:
        """Take in a step that held nothing but rounds.

        What it says of the machine moves both curves; what it says of its own size moves that point.
        Else plain steps, after a busy start, would grow cheap beside drafts that are never tried.
        """
        surprise = self.verify.surprise(rows, verify_s)
        draft_surprise = self.draft.surprise(blocks, draft_s) if blocks else 1.0
        for curve in (self.verify, self.draft):
            curve.scale(1 + SCALE_WEIGHT * (surprise - 1))
        self.verify.move(rows, 1 + OBSERVATION_WEIGHT * (surprise - 1))
        if blocks:
            self.draft.move(blocks, 1 + OBSERVATION_WEIGHT * (draft_surprise - 1))


@dataclass(slots=True)
class Probe:
    """When a sequence that decodes plainly tries a draft again."""

    plain_tokens: int = 0
    interval: int = FIRST_PROBE_TOKENS

    def due(self) -> bool:
        return self.plain_tokens >= self.interval

    def count_plain(self) -> None:
        self.plain_tokens += 1

    def count_round(self, paid: bool) -> None:
        self.interval = FIRST_PROBE_TOKENS if paid else min(self.interval * 2, MAX_PROBE_TOKENS)
        self.plain_tokens = 0


@dataclass(slots=True)
class Candidate:
    """One decoding sequence as the policy sees it."""

    speculation: Speculation
    acceptance: AcceptanceEstimate
    probe: Probe
    limit: int  # most drafts that may be verified now: block and room


class VerifyPolicy:
    """Spreads verified rows over the batch where they promise most."""

    def __init__(self, num_drafted: int, costs: CostTable | None) -> None:
        self._num_drafted = num_drafted
        self._costs = costs

    def choose(self, candidates: SequenceOf[Candidate]) -> list[int]:
        """→ drafts to verify for each candidate; 0 is plain decoding."""
        chosen = [self._fixed(candidate) for candidate in candidates]
        adaptive = [index for index, candidate in enumerate(candidates) if candidate.speculation == "auto"]
        if not adaptive or self._num_drafted == 0:
            return chosen
        if self._costs is None:
            for index in adaptive:
                chosen[index] = candidates[index].limit
            return chosen
        fixed_rows = len(candidates) + sum(chosen)
        fixed_blocks = sum(1 for count in chosen if count)
        picks = self._adapt([candidates[index] for index in adaptive], fixed_rows, fixed_blocks)
        for index, count in zip(adaptive, picks, strict=True):
            chosen[index] = count
        return chosen

    def observe(self, rows: int, verify_s: float, blocks: int, draft_s: float) -> None:
        """Let the costs follow a step that held nothing but rounds."""
        if self._costs is not None:
            self._costs.observe(rows, verify_s, blocks, draft_s)

    def _fixed(self, candidate: Candidate) -> int:
        if isinstance(candidate.speculation, int):
            return min(candidate.speculation, candidate.limit)
        return 0

    def _adapt(self, candidates: list[Candidate], fixed_rows: int, fixed_blocks: int) -> list[int]:
        costs = self._costs
        assert costs is not None
        survivals = [candidate.acceptance.survival() for candidate in candidates]
        gains = best_prefixes(survivals, [candidate.limit for candidate in candidates])
        tokens = float(len(candidates))
        draft_s = costs.draft(fixed_blocks) if fixed_blocks else 0.0
        best_rate = tokens / (costs.verify(fixed_rows) + draft_s) * PROFIT_FRAC
        best_count = 0
        drafting: set[int] = set()
        for count, (gain, index) in enumerate(gains, start=1):
            tokens += gain
            drafting.add(index)
            seconds = costs.verify(fixed_rows + count) + costs.draft(fixed_blocks + len(drafting))
            if tokens / seconds > best_rate:
                best_rate = tokens / seconds
                best_count = count
        picks = [0] * len(candidates)
        for _, index in gains[:best_count]:
            picks[index] += 1
        for index, candidate in enumerate(candidates):
            if picks[index] == 0 and candidate.limit > 0 and candidate.probe.due():
                picks[index] = min(candidate.limit, max(2, self._num_drafted // 2))
        return picks
