"""Medians, pooled ratios, and their intervals by bootstrap. Standard library only."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

Sample = TypeVar("Sample")

LEVEL = 0.95
NUM_RESAMPLES = 1000


@dataclass(frozen=True, slots=True)
class Spread:
    """A figure with its 95 % interval (percentile bootstrap over `num` samples)."""

    value: float
    low: float
    high: float
    num: int


def spread_of(
    samples: Sequence[Sample], figure: Callable[[Sequence[Sample]], float | None], *, seed: int = 0
) -> Spread | None:
    """`figure` of `samples`, and the interval that resampling them with replacement gives it.

    None where the figure is None (nothing to measure). The same samples give the same interval.
    """
    value = figure(samples) if samples else None
    if value is None:
        return None
    draw = random.Random(seed)  # noqa: S311 (not for secrets)
    resampled = (figure(draw.choices(samples, k=len(samples))) for _ in range(NUM_RESAMPLES))
    values = sorted(one for one in resampled if one is not None)
    tail = (1 - LEVEL) / 2
    return Spread(value, quantile(values, tail), quantile(values, 1 - tail), len(samples))


def median_spread(samples: Sequence[float]) -> Spread | None:
    """The median with its interval; None without samples."""
    return spread_of(samples, statistics.median)


def quantile(ordered: Sequence[float], frac: float) -> float:
    """The value `frac` of the way through ascending `ordered`, between neighbours in proportion."""
    place = frac * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)
