"""When AUTO's histograms are sure: seldom by noise alone, and not by what stands out of a few units."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from dpsql.features.auto_choices import (
    EXTREMES_L2,
    PLACES,
    found_bounds,
    holds_most,
    sure_bounds,
    sure_groups,
    sure_places,
)
from dpsql.features.auto_histograms import MEASURE, auto_sigma
from dpsql.plan.features.auto import candidates
from dpsql.release.points import noisy_places
from tests.noise_sources import seeded_noise

RHO_NANO = 10_000_000
ENDS = candidates(1024)


def _passing(scale: float) -> int:
    """Of 2,000 histograms of noise alone, those with a place that surely holds units, at probability 0.2."""
    source, sigma = seeded_noise(6), auto_sigma(RHO_NANO, 1.0)
    empty = np.zeros(2000 * len(ENDS), dtype=np.int64)
    noisy = noisy_places(empty, sigma, MEASURE, source).reshape(2000, -1) * 2.0**-20
    return sum(bool(sure_places(one, sigma * scale, len(ENDS), 0.2).any()) for one in noisy)


@pytest.mark.statistical
def test_noise_alone_makes_a_place_sure_as_seldom_as_is_stated() -> None:
    # fails with probability 1e-4 per seed; a sigma that is stated 10 % too low is caught
    assert stats.binomtest(_passing(1.0), 2000, 0.2).pvalue > 1e-4
    assert stats.binomtest(_passing(0.9), 2000, 0.2).pvalue < 1e-7


def test_noise_alone_is_not_sure() -> None:
    source = seeded_noise(7)
    for places, l2, sure in ((len(ENDS), 1.0, sure_groups), (2 * PLACES, EXTREMES_L2, sure_bounds)):
        for _ in range(50):
            drawn = noisy_places(np.zeros(places, dtype=np.int64), auto_sigma(RHO_NANO, l2), MEASURE, source)
            assert not sure(drawn.astype(np.float64) * 2.0**-20, auto_sigma(RHO_NANO, l2))


def test_the_number_of_groups_is_sure_where_most_units_stand_out() -> None:
    """One place stands out of a flat rest at a tiny level; that is no reason for a choice that lasts."""
    units = np.full(len(ENDS), 20.0)
    units[0] = 700.0
    assert not sure_groups(units, 50.0)
    assert sure_groups(units, 3.0)
    units[0] = 5000.0
    assert sure_groups(units, 50.0)


@pytest.mark.parametrize("side", ["upper", "lower"])
def test_bounds_are_sure_where_they_hold_most_extremes_on_both_sides(side: str) -> None:
    noisy = np.zeros(2 * PLACES)
    upper, lower = noisy[:PLACES], noisy[PLACES:]
    upper[120] = lower[110] = 1000.0
    assert sure_bounds(noisy, 10.0)
    # bounds are found, but a third of the values, none of which stands out, lies beyond
    (upper if side == "upper" else lower)[slice(130, 140) if side == "upper" else slice(90, 100)] = 50.0
    assert found_bounds(noisy, 10.0) is not None
    assert not sure_bounds(noisy, 10.0)
    # half the noise, and they stand out: other bounds
    assert sure_bounds(noisy, 5.0)
    assert found_bounds(noisy, 5.0) != found_bounds(noisy, 10.0)


def test_three_quarters_at_the_boundary() -> None:
    assert holds_most(np.array([300.0]), np.array([99.0]), 1.0)
    assert holds_most(np.array([303.0]), np.array([100.0]), 1.0)
    assert not holds_most(np.array([300.0]), np.array([100.0]), 1.0)
    # noise below 0 is no sign that nobody is left out
    assert not holds_most(np.array([20.0]), np.full(100, -50.0), 1.0)
    assert holds_most(np.array([20.0]), np.array([]), 1.0)
