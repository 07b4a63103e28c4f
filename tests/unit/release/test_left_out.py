"""Tests of rows left out: the cut, the rule, the lower end and the interval, each against brute force.

The theorems are those of docs/proofs/left-out.md. Each statistical check has a planted fault that it catches.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
from scipy.stats import norm

from dpsql.release.left_out import CLEAR, HIGH, LOW, SHARE, SURE, LeftOut, cut_exponent

Floats = npt.NDArray[np.float64]
RELEASES = 8_000
FOUND = LeftOut(200.0, 50.0, 1_000.0, 40.0, 16.0, 10)


def _nearest(wanted: float) -> int:
    """Return the exponent of the power of two nearest to a number by distance, by trying all."""
    return min(range(-30, 61), key=lambda exponent: (abs(2.0**exponent - wanted), -exponent))


def _by_logarithm(wanted: float) -> int:
    return round(math.log2(wanted))


@pytest.mark.parametrize("rho", [0.0005, 0.02, 3.0])
def test_the_cut_is_the_power_of_two_nearest_to_a_share_of_the_shown_numbers(rho: float) -> None:
    planted = 0
    for shown in np.geomspace(1e2, 1e9, 400).tolist():
        found = cut_exponent(shown, 1.0, 1.0 / math.sqrt(2.0 * rho), SHARE, -30, 60)
        wanted = SHARE * shown * math.sqrt(2.0 * rho)
        assert found == _nearest(wanted)
        sigma = 2.0**found / math.sqrt(2.0 * rho)
        assert 2.0 / 3.0 * SHARE * shown < sigma * (1.0 + 1e-12)
        assert sigma <= 4.0 / 3.0 * SHARE * shown * (1.0 + 1e-12)
        planted += _by_logarithm(wanted) != found
    assert planted > 10, "another rule of rounding would not fail"


def test_the_cut_of_small_numbers_follows_from_their_noise() -> None:
    few = [cut_exponent(shown, 100.0, 5.0, SHARE, -30, 60) for shown in (-50.0, 0.0, 399.9, 400.0)]
    assert few == [cut_exponent(CLEAR * 100.0, 0.0, 5.0, SHARE, -30, 60)] * 4
    assert cut_exponent(40_000.0, 100.0, 5.0, SHARE, -30, 60) > few[0]


def test_the_cut_stays_between_its_ends() -> None:
    assert cut_exponent(1.0, 0.1, 707.1, SHARE, 0, 40) == 0
    assert cut_exponent(1e30, 0.1, 0.7, SHARE, 0, 40) == 40
    # no group is shown
    assert cut_exponent(0.0, 0.0, 5.0, SHARE, 0, 40) == 0


@pytest.mark.parametrize(
    ("found", "is_too_low"),
    [
        (FOUND, True),
        (replace(FOUND, value=150.0), False),
        (replace(FOUND, value=np.nextafter(150.0, 200.0)), True),
        (replace(FOUND, shown=160.0), True),
        (replace(FOUND, shown=np.nextafter(160.0, 0.0)), False),
        (replace(FOUND, shown=-1_000.0), False),
        (replace(FOUND, shown=0.0, shown_sigma=0.0), False),
    ],
)
def test_a_number_is_said_to_be_too_low_from_three_deviations_on(found: LeftOut, is_too_low: bool) -> None:
    values = np.array([-3.0, 0.0, 500.0])
    assert found.is_too_low == is_too_low
    expected = [-3.0, 0.0, 500.0 * (1.0 + found.value / found.shown)] if is_too_low else values
    assert found.estimated(values) == pytest.approx(expected)


def test_shown_numbers_below_their_noise_have_no_upper_end() -> None:
    unclear = replace(FOUND, shown=100.0)
    assert unclear.could_be is None
    assert math.isnan(unclear.high_factor)
    assert np.isnan(unclear.upper_ends(np.array([5.0, 100.0]))).all()


def test_ends_are_never_below_the_bounded_numbers() -> None:
    far_below = replace(FOUND, value=-500.0)
    assert far_below.least == 0.0
    assert far_below.could_be == 0.0
    assert far_below.upper_ends(np.array([-4.0, 70.0])) == pytest.approx([-4.0, 70.0])
    assert FOUND.upper_ends(np.array([-4.0, 70.0]))[0] == -4.0


def test_what_could_be_left_out_is_a_part_of_the_whole() -> None:
    most = 200.0 + HIGH * 50.0
    assert FOUND.could_be == pytest.approx(most / (1_000.0 + most))


def _releases(theta: float, seed: int) -> list[LeftOut]:
    """Return releases of a number that is `theta` standard deviations."""
    noise = np.random.default_rng(seed).standard_normal(RELEASES)
    return [replace(FOUND, value=50.0 * (theta + one), shown=3_000.0) for one in noise.tolist()]


def _share(releases: list[LeftOut], holds: Callable[[LeftOut], bool]) -> float:
    return sum(map(holds, releases)) / len(releases)


@pytest.mark.parametrize("theta", [0.0, 1.0, 2.0, 4.0])
def test_the_rule_fires_as_often_as_the_page_says(theta: float) -> None:
    """The page's table is Φ(theta − 3). A rule at 2.5 deviations is caught."""
    releases = _releases(theta, seed=1)
    chance = norm.cdf(theta - SURE)
    four_deviations = 4.0 * math.sqrt(chance * (1.0 - chance) / RELEASES)
    assert abs(_share(releases, lambda one: one.is_too_low) - chance) <= four_deviations
    assert abs(_share(releases, lambda one: one.value > 2.5 * one.sigma) - chance) > four_deviations


@pytest.mark.parametrize("theta", [0.0, 0.5, 1.5, 3.0, 10.0])
def test_the_lower_end_is_too_high_in_a_twentieth_of_releases_at_most(theta: float) -> None:
    """Theorem 5. If the noise is taken to be a fifth smaller, the lower end is too high in 9 %."""
    releases = _releases(theta, seed=2)
    most = 0.05 + 4.0 * math.sqrt(0.05 * 0.95 / RELEASES)
    assert _share(releases, lambda one: one.least > 50.0 * theta) <= most
    smaller = [replace(one, sigma=0.8 * one.sigma) for one in releases]
    assert _share(smaller, lambda one: one.value - LOW * one.sigma > 50.0 * theta) > most
    # printed and wrong: what the rule silences is never wrong
    printed = _share(releases, lambda one: one.is_too_low and one.least > 50.0 * theta)
    assert printed <= norm.cdf(-max(LOW, SURE - theta)) + (most - 0.05)


def _misses(groups: int, times_noise: float, left_out: float, *, has_margin: bool = True) -> float:
    """Return how often an interval is said that does not hold the whole number, over releases of equal groups.

    Args:
        groups: number of groups, each with noise of standard deviation 1.
        times_noise: the numbers together, in standard deviations of their noise.
        left_out: what is left out of them, as a part of them.
        has_margin: whether the upper end has the margins of the page.

    """
    random, shown_sigma = np.random.default_rng(groups), math.sqrt(groups)
    kept = times_noise * shown_sigma
    rho, missed = 0.001, 0
    first, others, beside = random.standard_normal((3, RELEASES // 2)).tolist()
    for own, rest, noise in zip(first, others, beside, strict=True):
        number = kept / groups + own
        shown = kept + own + math.sqrt(groups - 1) * rest
        cut = 2.0 ** cut_exponent(shown, shown_sigma, 1.0 / math.sqrt(2.0 * rho), SHARE, -30, 60)
        sigma = cut / math.sqrt(2.0 * rho)
        found = LeftOut(left_out * kept + sigma * noise, sigma, shown, shown_sigma, cut, groups)
        high = float(found.upper_ends(np.array([number + HIGH]))[0])
        if not has_margin:
            high = (number + HIGH) * (1.0 + found.value / shown)
        missed += found.is_clear and not number - 1.96 <= kept / groups * (1.0 + left_out) <= high
    return missed / (RELEASES // 2)


@pytest.mark.parametrize(
    ("groups", "times_noise", "left_out"),
    [(1, 4.0, 0.0), (1, 8.0, 1.5), (5, 5.0, 0.3), (40, 2.7, 5.0), (40, 10.0, 0.0), (40, 200.0, 0.5)],
)
def test_an_interval_holds_the_whole_number_as_often_as_theorem_6_says(
    groups: int, times_noise: float, left_out: float
) -> None:
    most = 0.05 + norm.cdf(-times_noise / 2.0)
    assert _misses(groups, times_noise, left_out) <= most + 4.0 * math.sqrt(most / (RELEASES // 2))


def test_an_upper_end_without_margins_misses() -> None:
    assert _misses(1, 200.0, 1.5, has_margin=False) > 0.2
