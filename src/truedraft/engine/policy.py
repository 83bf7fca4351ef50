"""Chooses how many drafted tokens each sequence verifies, so that tokens a second are highest.

The costs are measured at start (`engine.measure`), the gains are running acceptance. Speculation
that does not pay switches itself off, and is tried again now and then. The choice looks only at
past rounds, never at this round's outcome, so it cannot bias what is emitted.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence as SequenceOf
from dataclasses import dataclass

from truedraft.contract.request import Speculation
from truedraft.engine.acceptance import AcceptanceEstimate, best_prefixes

FIRST_PROBE_TOKENS = 24  # plain tokens before speculation is tried again
MAX_PROBE_TOKENS = 192
PROFIT_FRAC = 1.02  # a draft pass must promise this much, or plain decoding stays


@dataclass(frozen=True, slots=True)
class CostCurve:
    """Seconds by number of rows (or blocks), interpolated linearly, extended by the last slope."""

    points: tuple[tuple[int, float], ...]

    @staticmethod
    def of(table: Mapping[int, float]) -> CostCurve:
        return CostCurve(tuple(sorted(table.items())))

    def __call__(self, rows: int) -> float:
        points = self.points
        if len(points) == 1:
            return points[0][1]
        at = bisect_left(points, (rows, 0.0))
        low = min(max(at - 1, 0), len(points) - 2)
        (x0, y0), (x1, y1) = points[low], points[low + 1]
        if rows <= points[0][0]:
            return points[0][1]
        return max(y0 + (y1 - y0) * (rows - x0) / (x1 - x0), points[0][1] * 0.5)


@dataclass(frozen=True, slots=True)
class CostTable:
    """`verify`: target pass, head and choice, by rows; `draft`: drafter pass by blocks."""

    verify: CostCurve
    draft: CostCurve


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
