"""Spreads of noisy sums: exact values, and intervals that are the extremes over boxes of rows, sum and squares."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from dpsql.mechanism.gaussian_measure import GAUSSIAN
from dpsql.mechanism.measure import Term
from dpsql.model.estimates import Linear, Ratio, Spread
from dpsql.model.frame import PRESENCE, Statistic
from dpsql.release.estimates import combined_noises
from dpsql.release.spreads import MISS_JOINTLY, spread_interval, spread_value

ROWS = Statistic("rows", 0, 6, -1)
SUM = Statistic("sum", 0, 2**25, -15)
VALUES = np.array([3.0, 8.0, 8.0, 1.5, 10.0])


def spread(*, is_sample: bool = False, is_root: bool = False, middle: float = 5.0) -> Spread:
    average = Ratio((0.0, 10.0), Linear(SUM, SUM.centre), Linear(ROWS, ROWS.centre))
    return Spread((0.0, 1e9), average, Linear(SUM, SUM.centre), middle, is_sample, is_root)


@pytest.mark.parametrize("is_sample", [False, True])
@pytest.mark.parametrize("is_root", [False, True])
@pytest.mark.parametrize("middle", [5.0, -100.0])
def test_the_value_is_numpys(*, is_sample: bool, is_root: bool, middle: float) -> None:
    sums = (np.array([5.0]), np.array([VALUES.sum()]), np.array([((VALUES - middle) ** 2).sum()]))
    found = spread_value(spread(is_sample=is_sample, is_root=is_root, middle=middle), *sums, 100.0)
    expected = VALUES.std(ddof=is_sample) if is_root else VALUES.var(ddof=is_sample)
    assert found[0] == pytest.approx(expected, rel=1e-9)


def test_noise_leaves_it_within_its_bounds_or_without_a_value() -> None:
    rows = np.array([10.0, 10.0, 0.0, -2.0, 1.0])
    total, squares = np.array([50.0] * 5), np.array([-40.0, 1e9, 1.0, 1.0, 1.0])
    assert spread_value(spread(), rows, total, squares, 25.0)[:2][1] == 25.0
    # no value where squares are too few, or rows
    assert np.isnan(spread_value(spread(), rows, total, squares, 25.0)).tolist() == [True, False, True, True, True]
    one = spread_value(spread(is_sample=True), rows, total, squares, 50.0)
    assert np.isnan(one).tolist() == [True, False, True, True, True]


def test_three_intervals_miss_together_with_a_twentieth() -> None:
    missed = 3 * 2 * stats.norm.sf(float(GAUSSIAN.half_width([Term(1.0)], 0, MISS_JOINTLY)))
    assert missed == pytest.approx(0.05, rel=1e-12)
    assert missed <= 0.05 * (1 + 1e-12)


@pytest.mark.parametrize("is_sample", [False, True])
def test_the_interval_is_the_extremes_over_the_box(*, is_sample: bool) -> None:
    """Random boxes on a grid of points: none leaves the interval, and the corners reach it."""
    chance = np.random.default_rng(3)
    for _ in range(200):
        n, a, q = chance.uniform(0.5, 30), chance.uniform(-60, 60), chance.uniform(-20, 200)
        widths = chance.uniform(0.02, 12, 3)
        box = [np.linspace(x - h, x + h, 41) for x, h in zip((n, a, q), widths, strict=True)]
        rows_, recentred_, squares_ = ((np.array([x]), np.array([h])) for x, h in zip((n, a, q), widths, strict=True))
        ends = spread_interval(spread(is_sample=is_sample), rows_, recentred_, squares_, 1e9)
        low, high = (float(end[0]) for end in ends)
        if box[0][0] <= is_sample + 1e-5:
            assert (low, high) == (0.0, 1e9)
            continue
        rows, recentred, squares = np.meshgrid(*box)
        grid = np.maximum((squares - recentred**2 / rows) / (rows - is_sample), 0.0)
        slack = 1e-9 * (1.0 + grid.max())
        assert low <= grid.min() + slack
        assert grid.max() <= high + slack
        if not is_sample:
            assert high <= grid.max() * 1.05 + slack, "it is hardly wider than the box asks"


def test_noise_that_two_parts_share_is_counted_once() -> None:
    noise = {PRESENCE: 2.0, ROWS: 3.0, SUM: 5.0}
    parts = [(1.0, Linear(SUM, 10.0)), (-4.0, Linear(ROWS, 1.5))]
    assert np.hypot.reduce(combined_noises(parts, noise)) == pytest.approx(
        np.sqrt(25.0 + (4 * 3.0) ** 2 + (2.0 * (10 - 6)) ** 2)
    )
    assert set(combined_noises([(1.0, Linear(ROWS, 1.5)), (-1.0, Linear(ROWS, 1.5))], noise)) == {0.0}
    assert combined_noises([(2.0, Linear(None, 3.0))], noise) == pytest.approx([12.0])
