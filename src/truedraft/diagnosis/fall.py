"""Finds where acceptance fell: over context, over time, or after hits of the prefix cache."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from truedraft.diagnosis.acceptance import MIN_ROUNDS, AcceptanceFacts, add_windows, inconsistencies
from truedraft.diagnosis.log_windows import Window, by_context
from truedraft.diagnosis.metrics import MetricsFacts, difference

FELL = 0.6  # accepted tokens below this share of the better window's are a fall
COLD, WARM = 0.01, 0.2  # share of prompt tokens that came from the prefix cache
LONGER = 3.0  # times the shorter prompts


@dataclass(frozen=True, slots=True)
class Fall:
    """Which kind of fall, and the two figures in words."""

    state: Literal["fell", "fell_with_context", "fell_after_hit"]
    said: str


def fall_over_windows(windows: Sequence[Window]) -> Fall | None:
    """→ a fall over the contexts that a log names, else over its time."""
    found = tuple(window for window in windows if not window.is_total)
    buckets = [(edge, tau) for edge, tau, count in by_context(found) if count >= 3]
    for edge, tau in buckets[1:]:
        start, before = buckets[0]
        if _fell(before, tau):
            said = f"τ {before:.2f} up to {start:,} tokens of context, {tau:.2f} up to {edge:,}"
            return Fall("fell_with_context", said)
    third = len(found) // 3
    if not third:
        return None
    first, last = (add_windows(one.acceptance for one in part) for part in (found[:third], found[-third:]))
    if first is None or last is None or not (_enough(first, third) and _enough(last, third)):
        return None
    if _fell(first.mean_committed, last.mean_committed):
        said = f"τ {first.mean_committed:.2f} in the first third of the log, {last.mean_committed:.2f} in the last"
        return Fall("fell", said)
    return None


def fall_over_readings(readings: Sequence[MetricsFacts]) -> Fall | None:
    """→ a fall between the stretches of three or more readings: after cache hits, or with longer prompts."""
    stretches = [difference(a, b) for a, b in itertools.pairwise(readings)] if len(readings) > 2 else []
    known = [(one, tau) for one in stretches if (tau := _tau(one)) is not None]
    for (one, better), (other, worse) in itertools.permutations(known, 2):
        if not _fell(better, worse):
            continue
        hits = _hit_share(one), _hit_share(other)
        if hits[0] is not None and hits[1] is not None and hits[0] < COLD and hits[1] > WARM:
            return Fall(
                "fell_after_hit",
                f"τ {better:.2f} where nothing came from the prefix cache, {worse:.2f} where {hits[1]:.0%} did",
            )
        lengths = _prompt_len(one), _prompt_len(other)
        if lengths[0] is not None and lengths[1] is not None and lengths[1] > LONGER * lengths[0]:
            return Fall(
                "fell_with_context",
                f"τ {better:.2f} with prompts of {lengths[0]:,.0f} tokens, {worse:.2f} with {lengths[1]:,.0f}",
            )
    return None


def _fell(before: float | None, after: float | None) -> bool:
    return before is not None and after is not None and after - 1 < FELL * (before - 1)


def _enough(facts: AcceptanceFacts, num_windows: int) -> bool:
    return num_windows >= 10 if facts.num_rounds is None else facts.num_rounds >= MIN_ROUNDS


def _tau(stretch: MetricsFacts) -> float | None:
    facts = stretch.acceptance()
    if facts is None or not facts.num_rounds or facts.num_rounds < MIN_ROUNDS or inconsistencies(facts):
        return None
    return facts.mean_committed


def _hit_share(stretch: MetricsFacts) -> float | None:
    queries, hits = stretch.values.get("cache_queries"), stretch.values.get("cache_hits")
    return None if not queries or hits is None else hits / queries


def _prompt_len(stretch: MetricsFacts) -> float | None:
    tokens, requests = stretch.values.get("prompt_tokens"), stretch.values.get("requests")
    return None if not tokens or not requests else tokens / requests
