"""Discrete Laplace noise on whole steps: deviations, levels that are drawn, half widths and sensitivities."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from random import Random
from typing import Any

import mpmath
import numpy as np
import pytest

from dpsql.errors import CalibrationError
from dpsql.mechanism.calibrate import level_of
from dpsql.mechanism.laplace import (
    LAPLACE_MEASURE,
    LaplaceHistogram,
    deviation_of,
    epsilon_of,
    step_epsilon,
    sum_half_width,
    whole_half_width,
)
from dpsql.mechanism.measure import FLOAT_SLACK, Grid, Level, RatioTerm, Term
from dpsql.model.frame import COUNT_LATTICE_EXPONENT, NANO, NOISE_GRID_EXPONENT, PRESENCE, Statistic
from tests.noise_sources import seeded_noise

_LEVELS = np.geomspace(1e-9, 60.0, 200)
_MISSES = (0.05, 0.01, 0.5)
_ROWS = Statistic(kind="rows", low_steps=2, high_steps=6, lattice_exponent=COUNT_LATTICE_EXPONENT)
_SUM = Statistic(kind="sum", low_steps=0, high_steps=20, lattice_exponent=-1)


def _histogram(groups: int) -> LaplaceHistogram:
    return LaplaceHistogram(name="laplace", unit_groups=groups, draws=0, sum_draws=0)


def _levels(*nanos: int) -> tuple[Level, ...]:
    return tuple(Level(PRESENCE, nano, 1.0, 0.0) for nano in nanos)


def _tail(epsilon: float, steps: float) -> float:
    """Return the probability that discrete noise is more than so many steps from 0, from its exact law."""
    ratio = mpmath.exp(-mpmath.mpf(epsilon))
    return float(2 * ratio ** (math.floor(steps) + 1) / (1 + ratio))


def test_deviations_and_levels_are_inverse() -> None:
    with mpmath.workdps(60):
        for epsilon in _LEVELS:
            ratio = mpmath.exp(-mpmath.mpf(float(epsilon)))
            exact = mpmath.sqrt(2 * ratio) / (1 - ratio)
            assert deviation_of(float(epsilon)) == pytest.approx(float(exact), rel=1e-14)
            assert float(epsilon_of(np.array(float(exact)))) == pytest.approx(float(epsilon), rel=1e-13)


def test_the_epsilon_that_is_drawn_is_at_most_that_of_the_level() -> None:
    chance = Random(1)
    for _ in range(1_500):
        nano, groups = round(NANO * 10.0 ** chance.uniform(-6, 2.5)), chance.choice((1, 2, 3, 7, 50, 1_000))
        radius = chance.choice((1, 2, 5, 10, 2**24 - 1, chance.randint(1, 2**20)))
        statistic = Statistic("sum", -radius, radius, lattice_exponent=chance.randint(-30, 3))
        drawn = _drawn_epsilon(statistic, nano, groups)
        most = Fraction(nano, NANO) / (groups * radius)
        assert drawn <= most
        assert drawn >= min(Fraction(64), most) * (1 - Fraction(1, 10**10))


def _drawn_epsilon(statistic: Statistic, nano: int, groups: int) -> Fraction:
    grid = Grid(statistic.noise_exponent, statistic.lattice_exponent)
    return step_epsilon(grid, _histogram(groups).sum_sigma(statistic, nano / NANO))


def test_a_deviation_that_is_not_rounded_up_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpsql.mechanism.laplace.FLOAT_SLACK", 1.0 / FLOAT_SLACK)
    with pytest.raises(AssertionError):
        test_the_epsilon_that_is_drawn_is_at_most_that_of_the_level()


@pytest.mark.parametrize("miss", _MISSES)
@pytest.mark.parametrize("step", [1.0, 0.5, 3.0])
def test_the_half_width_of_a_draw_is_the_smallest_that_covers(step: float, miss: float) -> None:
    for epsilon in np.geomspace(1e-3, 60.0, 300):
        sigma = step * deviation_of(float(epsilon)) * FLOAT_SLACK
        steps = float(whole_half_width(Term(sigma, step), miss)) / step
        assert steps == math.floor(steps)
        assert _tail(epsilon, steps) <= miss
        assert steps == 0 or _tail(epsilon, steps - 1) > miss


def test_the_half_widths_of_many_draws_are_those_of_each() -> None:
    sigmas = np.array([deviation_of(one) for one in (0.1, 1.0, 4.0)])
    many = LAPLACE_MEASURE.half_width([Term(sigmas, 1.0)])
    assert many.tolist() == [float(LAPLACE_MEASURE.half_width([Term(one, 1.0)])) for one in sigmas]


@pytest.mark.parametrize("sigma", [0.7, 1.41421356, 5.0])
def test_half_widths_cover_what_rounding_to_whole_numbers_adds(sigma: float) -> None:
    """A whole number and noise of fine steps, shown as a whole number."""
    half_width = float(LAPLACE_MEASURE.half_width([Term(sigma, 2.0**-24)], roundings=1))
    # the shown number is more than the half width away if the noise is more than the next half
    from_here = math.floor(half_width) + 0.5
    assert math.exp(-from_here * math.sqrt(2.0) / sigma) <= 0.05
    whole = [Term(deviation_of(1.0), 1.0)]
    assert LAPLACE_MEASURE.half_width(whole, roundings=1) == LAPLACE_MEASURE.half_width(whole), "nothing is rounded"


def _convolved(scales: Sequence[float], size: float) -> float:
    """Return the probability that a sum of Laplace noises is larger than a size, by convolution on a fine lattice."""
    width = min(scales) / 60.0
    places = np.arange(-(1 << 15), (1 << 15)) * width
    found = np.zeros(len(places))
    found[len(places) // 2] = 1.0
    for scale in scales:
        mass = np.exp(-np.abs(places) / scale) * math.tanh(width / 2.0 / scale)
        turned = np.fft.rfft(np.fft.ifftshift(mass))
        found = np.fft.fftshift(np.fft.irfft(np.fft.rfft(np.fft.ifftshift(found)) * turned, len(places)))
    beyond = np.abs(places) > size
    return float(found[beyond].sum())


_SCALES = [
    (1.0, 1.0),
    (1.0, 1.0005),
    (1.0, 3.0),
    (0.02, 1.0),
    (1.0, 1.0, 1.0),
    (1.0, 1.0, 2.5),
    (0.5, 2.0, 2.001),
    (0.3, 1.0, 4.0),
]


@pytest.mark.parametrize("scales", _SCALES)
@pytest.mark.parametrize("miss", _MISSES)
def test_half_widths_of_sums_are_quantiles_and_no_less(scales: tuple[float, ...], miss: float) -> None:
    found = float(sum_half_width([np.array(one) for one in scales], miss))
    assert _convolved(scales, found) == pytest.approx(miss, rel=0.02)
    assert _quantile(scales, miss) * (1 - 1e-9) <= found <= _quantile(scales, miss) * 1.003


def _quantile(scales: Sequence[float], miss: float) -> float:
    """Return the exact quantile; equal scales are a limit, which high precision takes."""
    with mpmath.workdps(80):
        apart = [mpmath.mpf(one) * (1 + mpmath.mpf(10) ** -20 * place) for place, one in enumerate(scales)]
        squares = [one**2 for one in apart]
        weights = [
            mpmath.fprod(one / (one - other) for j, other in enumerate(squares) if j != i)
            for i, one in enumerate(squares)
        ]
        low, high = mpmath.mpf(0), mpmath.mpf(100) * max(apart)
        for _ in range(80):
            middle = (low + high) / 2
            tail = mpmath.fsum(weight * mpmath.exp(-middle / one) for weight, one in zip(weights, apart, strict=True))
            low, high = (middle, high) if tail > miss else (low, middle)
        return float(high)


def test_one_array_may_have_draws_that_are_of_no_number() -> None:
    scales = [np.array([1.0, 0.0, 1.0]), np.array([0.0, 2.0, 2.0])]
    one, other, both = sum_half_width(scales, 0.05)
    assert one == pytest.approx(-math.log(0.05))
    assert other == pytest.approx(-2.0 * math.log(0.05))
    assert both > other


def _exact_miss(terms: Sequence[tuple[float, float]], size: float) -> float:
    """Return the probability that a sum of discrete draws, (epsilon, weight) each, is larger than a size."""
    sums: Any = np.zeros(1)
    mass: Any = np.ones(1)
    for epsilon, weight in terms:
        most = min(4_000, int(25.0 / epsilon) + 2)
        places = np.arange(-most, most + 1)
        own = math.tanh(epsilon / 2.0) * np.exp(-epsilon * np.abs(places))
        sums, found = np.unique(np.round((sums[:, None] + places * weight).ravel() * 2), return_inverse=True)
        mass, sums = np.bincount(found, (mass[:, None] * own).ravel()), sums / 2
    return float(mass[np.abs(sums) > size].sum()) + (1.0 - float(mass.sum()))


@pytest.mark.parametrize("epsilon", [0.05, 0.3, 1.0, 2.5, 3.0, 5.0])
@pytest.mark.parametrize("weights", [(1.0, 1.0), (1.0, 1.5), (0.5, 3.0), (1.0, 1.5, 3.0)])
@pytest.mark.parametrize("share", [1.0, 0.4])
def test_half_widths_of_sums_with_steps_cover(epsilon: float, weights: tuple[float, ...], share: float) -> None:
    if epsilon < 0.1 and len(weights) > 2:
        epsilon = 0.2
    terms = [(epsilon * (share if place else 1.0), weight) for place, weight in enumerate(weights)]
    noises = [Term(deviation_of(one) * weight * FLOAT_SLACK, weight) for one, weight in terms]
    half_width = float(LAPLACE_MEASURE.half_width(noises))
    assert _exact_miss(terms, half_width) <= 0.05
    # and are no union of two intervals
    if epsilon <= 1.0:
        assert half_width < 1.3 * sum(float(whole_half_width(one, 0.05)) for one in noises)


def _fine(scale: float) -> tuple[float, float]:
    return scale * math.sqrt(2.0), 2.0**-20


@pytest.mark.parametrize("epsilon", [0.3, 1.0, 2.0, 2.5, 3.0, 3.5])
@pytest.mark.parametrize("scale", [0.1, 0.5, 2.0])
def test_half_widths_of_coarse_and_fine_draws_cover(epsilon: float, scale: float) -> None:
    """A count times the half of an interval, beside a sum."""
    weight, scale = 5.0, scale * 5.0 / epsilon
    noises = [Term(*_fine(scale)), Term(weight * deviation_of(epsilon) * FLOAT_SLACK, weight)]
    half_width = float(LAPLACE_MEASURE.half_width(noises))
    assert _coarse_and_fine_miss(scale, weight, epsilon, half_width) <= 0.0501
    assert half_width < 1.6 * sum(float(LAPLACE_MEASURE.half_width([one])) for one in noises)
    for size, is_beyond in ((half_width * 1.001, True), (half_width * 0.999, False)):
        assert bool(LAPLACE_MEASURE.is_beyond(noises, np.array(size))) == is_beyond


def _coarse_and_fine_miss(scale: float, weight: float, epsilon: float, size: float) -> float:
    places: Any = np.arange(-500, 501)
    mass: Any = math.tanh(epsilon / 2.0) * np.exp(-epsilon * np.abs(places))

    def above(ends: Any) -> Any:
        beyond = 0.5 * np.exp(-np.abs(ends) / scale)
        return np.asarray(np.where(ends > 0.0, beyond, 1.0 - beyond))

    return float((mass * (above(size - weight * places) + above(size + weight * places))).sum())


@pytest.mark.parametrize("wider", [1.3, 1.94, 3.0])
@pytest.mark.parametrize("epsilon", [0.5, 2.5, 3.0])
def test_wider_intervals_cover_as_often_as_quantiles_say(wider: float, epsilon: float) -> None:
    """A factor of half widths is a ratio of quantiles, and steps are whole at every size."""
    miss = 2.0 * float(LAPLACE_MEASURE.tail(wider * LAPLACE_MEASURE.quantile(0.025)))
    whole = LAPLACE_MEASURE.half_width([Term(deviation_of(epsilon) * FLOAT_SLACK, 1.0)], wider=wider)
    assert _tail(epsilon, float(whole)) <= miss < _tail(epsilon, float(whole) - 1)
    fine = [Term(*_fine(1.0)), Term(deviation_of(epsilon) * FLOAT_SLACK, 1.0)]
    several = LAPLACE_MEASURE.half_width(fine, wider=np.array([1.0, wider]))
    for size, most in zip(several, (0.05, miss), strict=True):
        assert _coarse_and_fine_miss(1.0, 1.0, epsilon, float(size)) <= most * 1.002


@pytest.mark.parametrize("epsilon", [0.7, 2.5, 3.0])
@pytest.mark.parametrize("quotient", [0.0, 3.0, 10.0])
def test_intervals_of_quotients_cover(epsilon: float, quotient: float) -> None:
    """A mean of 0 to 10 of 300 rows: coarse noise of a count, of weight 5 in the top, beside that of a sum."""
    draws, chance = 20_000, np.random.default_rng(3)
    ratio = math.exp(-epsilon)
    count: Any = chance.geometric(1.0 - ratio, draws) - chance.geometric(1.0 - ratio, draws)
    total: Any = chance.laplace(0.0, 1.0, draws)
    sigma = deviation_of(epsilon)
    ends = LAPLACE_MEASURE.ratio_interval(
        (300.0 * quotient + total + 5.0 * count, 300.0 + count),
        [RatioTerm(math.sqrt(2.0), 0.0, 1e-7), RatioTerm(5.0 * sigma, sigma, 1.0 / sigma)],
        (0.0, 10.0),
    )
    assert ((ends[0] <= quotient) & (quotient <= ends[1])).mean() >= 0.945


def test_noise_that_cannot_be_drawn_is_refused() -> None:
    grid = Grid(-20, 0)
    LAPLACE_MEASURE.require(grid, deviation_of(2.0**-43))
    LAPLACE_MEASURE.require(grid, deviation_of(60.0))
    # noise of a larger epsilon is that of the largest
    LAPLACE_MEASURE.require(grid, deviation_of(500.0))
    with pytest.raises(CalibrationError):
        LAPLACE_MEASURE.require(grid, deviation_of(2.0**-45))
    wide = Statistic("sum", 0, 2**30, lattice_exponent=-20)
    with pytest.raises(CalibrationError, match=r"epsilon = 1e-05 for one statistic with max_groups = 9 needs more"):
        level_of(wide, 10_000, _histogram(9))


def test_the_guarantee_is_the_sum_of_levels_and_no_less() -> None:
    chance = Random(2)
    for _ in range(500):
        nanos = [chance.randint(1, 5 * NANO) for _ in range(chance.randint(1, 4))]
        auto = chance.choice((0, chance.randint(1, NANO)))
        epsilon, delta = _histogram(1).guarantee(_levels(*nanos), None, 0.0, auto)
        exact = Fraction(sum(nanos) + auto, NANO)
        assert delta == 0.0
        assert Fraction(epsilon) >= exact
        assert Fraction(math.nextafter(epsilon, 0.0)) < exact
    assert _histogram(1).guarantee(_levels(1_000_000_000), None, 1e-6, 0) == (1.0, 0.0)


@pytest.mark.parametrize(
    ("statistic", "most"),
    [
        (PRESENCE, 1),
        (Statistic("units", 0, 1, lattice_exponent=0), 1),
        # a unit with one to three rows is one row from the middle, in halves of a row
        (_ROWS, 2),
        # values of 0 to 10 in halves are at most 10 halves from their middle
        (_SUM, 10),
        (Statistic("sum", -3, 12, lattice_exponent=0), 8),
    ],
)
@pytest.mark.parametrize("groups", [1, 4])
def test_noise_is_for_the_most_that_one_unit_moves(statistic: Statistic, most: int, groups: int) -> None:
    assert statistic.radius_steps == most
    values = range(statistic.low_steps, statistic.high_steps + 1)
    assert max(abs(value - statistic.centre_steps) for value in values) == most
    assert float(_drawn_epsilon(statistic, 2 * NANO, groups)) == pytest.approx(2.0 / most / groups, rel=1e-9)


@pytest.mark.parametrize("statistic", [PRESENCE, _ROWS, _SUM])
def test_draws_are_whole_steps_of_the_values(statistic: Statistic) -> None:
    grid = Grid(statistic.noise_exponent, statistic.lattice_exponent)
    drawn = LAPLACE_MEASURE.draw(grid, 3.0, 5_000, seeded_noise(1))
    assert drawn.floor == 0
    assert statistic.noise_exponent in (NOISE_GRID_EXPONENT, statistic.lattice_exponent)
    assert not (drawn.values % 2**grid.shift).any()
    assert drawn.values.std() * 2.0**statistic.noise_exponent == pytest.approx(3.0, rel=0.1)


def test_quantiles_are_those_of_tails() -> None:
    for miss in (0.025, 0.05, 0.2, 1e-9):
        assert float(LAPLACE_MEASURE.tail(LAPLACE_MEASURE.quantile(miss))) == pytest.approx(miss)
    assert LAPLACE_MEASURE.tail(np.array([-1.0, 1.0])).sum() == pytest.approx(1.0)
    # the mean of what is above 0 is half the mean size, b / 2 with b = 1 / sqrt(2)
    assert float(LAPLACE_MEASURE.mean_above(0.0)) == pytest.approx(math.sqrt(2.0) / 4.0, rel=1e-4)
