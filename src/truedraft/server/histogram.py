"""A histogram that takes a weight: one round may stand for several tokens."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from prometheus_client.core import HistogramMetricFamily


class WeightedHistogram:
    """Counts of observed values, by upper bounds in ascending order. Used from one thread."""

    def __init__(self, name: str, documentation: str, bounds: Sequence[float]) -> None:
        self._name = name
        self._documentation = documentation
        self._bounds = tuple(bounds)
        self._counts = [0.0] * (len(self._bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float, weight: float = 1.0) -> None:
        self._counts[bisect_left(self._bounds, value)] += weight
        self._sum += value * weight

    def family(self) -> HistogramMetricFamily:
        """→ the metric as Prometheus wants it: cumulative counts."""
        buckets, total = [], 0.0
        for bound, count in zip((*map(str, self._bounds), "+Inf"), self._counts, strict=True):
            total += count
            buckets.append((bound, total))
        return HistogramMetricFamily(self._name, self._documentation, buckets=buckets, sum_value=self._sum)
