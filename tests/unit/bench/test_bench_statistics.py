"""Medians and bootstrap intervals."""

import random
import statistics

import pytest

from truedraft.bench.statistics import median_spread, quantile, spread_of


def test_quantile_between_neighbours() -> None:
    assert quantile([1.0, 2.0, 4.0], 0.5) == 2.0
    assert quantile([1.0, 2.0, 4.0], 0.75) == 3.0
    assert quantile([7.0], 0.3) == 7.0


def test_no_samples_give_no_figure() -> None:
    assert median_spread([]) is None
    assert spread_of([1.0], lambda samples: None) is None


def test_one_sample_has_no_width() -> None:
    spread = median_spread([3.0])
    assert spread is not None
    assert (spread.value, spread.low, spread.high, spread.num) == (3.0, 3.0, 3.0, 1)


def test_same_samples_same_interval() -> None:
    samples = [random.Random(1).gauss(10, 2) for _ in range(20)]
    assert median_spread(samples) == median_spread(samples)


def test_interval_of_the_mean_covers_the_truth_about_as_often_as_it_says() -> None:
    draw = random.Random(7)
    covered = 0
    num_trials = 60
    for _ in range(num_trials):
        spread = spread_of([draw.gauss(5, 1) for _ in range(40)], statistics.fmean)
        assert spread is not None
        covered += spread.low <= 5 <= spread.high
    assert covered / num_trials > 0.85


def test_interval_narrows_with_more_samples() -> None:
    draw = random.Random(3)
    widths = []
    for num in (20, 500):
        spread = spread_of([draw.gauss(0, 1) for _ in range(num)], statistics.fmean)
        assert spread is not None
        widths.append(spread.high - spread.low)
    assert widths[1] == pytest.approx(widths[0] / 5, rel=0.5)
