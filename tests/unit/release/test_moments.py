"""Moments of noisy sums: exact values, numbers that are not known, derivatives, and Fieller's interval."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dpsql.model.estimates import Linear, Moments, PairFunction, PairValue, ValueBounds
from dpsql.model.frame import PRESENCE, Statistic
from dpsql.release import moments as module
from dpsql.release.moments import Floats, Noisy, covariance, moments_of

ROWS = Linear(Statistic("rows", 0, 6, -1), 1.5)
NAMES = ("x", "y", "xx", "yy", "xy")
SUMS = {name: Linear(Statistic("sum", -(2**25), 2**25, -15, name), 0.0) for name in NAMES}
X_BOUNDS, Y_BOUNDS = (2.0, 10.0), (-5.0, 1.0)
FUNCTIONS: dict[PairFunction, tuple[float, float]] = {
    "covar_pop": (-12.0, 12.0),
    "covar_samp": (-24.0, 24.0),
    "corr": (-1.0, 1.0),
    "regr_slope": (-np.inf, np.inf),
    "regr_intercept": (-np.inf, np.inf),
    "regr_r2": (0.0, 1.0),
}


def moments(function: PairFunction) -> Moments:
    """The number that a call reads, with the sums that it uses."""
    has_x, has_y = not function.startswith("covar"), function in ("corr", "regr_r2")
    y = PairValue("y", ValueBounds("row", Y_BOUNDS, None), SUMS["y"], SUMS["yy"] if has_y else None)
    x = PairValue("x", ValueBounds("row", X_BOUNDS, None), SUMS["x"], SUMS["xx"] if has_x else None)
    return Moments(FUNCTIONS[function], function, ROWS, y, x, SUMS["xy"])


def sums_of(x: Floats, y: Floats) -> dict[Linear, Floats]:
    """Exact sums of pairs, as one group."""
    a, b = x - np.mean(X_BOUNDS), y - np.mean(Y_BOUNDS)
    found = {"x": a.sum(), "y": b.sum(), "xx": (a**2 - 8.0).sum(), "yy": (b**2 - 4.5).sum(), "xy": (a * b).sum()}
    return {ROWS: np.array([float(len(x))])} | {SUMS[name]: np.array([value]) for name, value in found.items()}


def expected(function: PairFunction, x: Floats, y: Floats) -> float:
    """Return the number by numpy."""
    slope, intercept = np.polyfit(x, y, 1)
    correlation = np.corrcoef(x, y)[0, 1]
    numbers: dict[PairFunction, float] = {
        "covar_pop": np.cov(x, y, ddof=0)[0, 1],
        "covar_samp": np.cov(x, y)[0, 1],
        "corr": correlation,
        "regr_slope": slope,
        "regr_intercept": intercept,
        "regr_r2": correlation**2,
    }
    return numbers[function]


def noise_of(scale: float) -> dict[Statistic, Floats]:
    sigmas = {ROWS: 0.5, SUMS["x"]: 2.0, SUMS["y"]: 1.5, SUMS["xx"]: 4.0, SUMS["yy"]: 2.0, SUMS["xy"]: 6.0}
    found = {one.statistic: np.array([scale * sigma]) for one, sigma in sigmas.items() if one.statistic}
    return found | {PRESENCE: np.array([scale * 0.3])}


def pairs(seed: int, count: int = 40) -> tuple[Floats, Floats]:
    chance = np.random.default_rng(seed)
    x = chance.uniform(*X_BOUNDS, count)
    return x, np.clip(-2.0 + 0.5 * (x - 6.0) * chance.choice([-1.0, 1.0]) + chance.normal(size=count), *Y_BOUNDS)


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("seed", range(5))
def test_exact_sums_give_numpys_number(function: PairFunction, seed: int) -> None:
    x, y = pairs(seed)
    value, low, high = moments_of(moments(function), sums_of(x, y), noise_of(1e-9), 1.96)
    assert value[0] == pytest.approx(expected(function, x, y), rel=1e-9)
    assert (low[0], high[0]) == pytest.approx((value[0], value[0]), rel=1e-6)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_number_without_rows_or_variance_is_not_known(function: PairFunction) -> None:
    x, y = pairs(1)
    exact = sums_of(x, y)
    for rows in (2.0, 0.0, -7.0):
        value, low, high = moments_of(moments(function), exact | {ROWS: np.array([rows])}, noise_of(0.1), 1.96)
        assert np.isnan(value[0])
        assert (low[0], high[0]) == FUNCTIONS[function]
    for squares in (moments(function).x.squares, moments(function).y.squares):
        if squares:
            value, low, high = moments_of(moments(function), exact | {squares: np.array([-400.0])}, noise_of(0.1), 1.96)
            assert np.isnan(value[0])
            assert (low[0], high[0]) == FUNCTIONS[function]


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_number_that_is_hardly_known_has_all_of_its_bounds(function: PairFunction) -> None:
    _, low, high = moments_of(moments(function), sums_of(*pairs(2)), noise_of(30.0), 1.96)
    assert (low[0], high[0]) == FUNCTIONS[function]


@pytest.mark.parametrize("function", FUNCTIONS)
def test_derivatives_are_those_of_differences(function: PairFunction, monkeypatch: pytest.MonkeyPatch) -> None:
    parts: list[tuple[Noisy, Noisy]] = []
    quotient = module._quotient

    def kept(top: Noisy, bottom: Noisy, *others: Floats) -> tuple[Floats, Floats, Floats]:
        parts.append((top, bottom))
        return quotient(top, bottom, *others)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "_quotient", kept)
    exact = sums_of(*pairs(3))
    moments_of(moments(function), exact, noise_of(0.01), 1.96)
    for linear in moments(function).linears:
        assert linear.statistic
        step = 1e-5
        for sign in (1.0, -1.0):
            moments_of(moments(function), exact | {linear: exact[linear] + sign * step}, noise_of(0.01), 1.96)
        for side in (0, 1):
            difference = (parts[-2][side].value - parts[-1][side].value) / (2.0 * step)
            zero = np.zeros(1)
            assert parts[0][side].slopes.get(linear.statistic, zero) == pytest.approx(difference, rel=1e-5, abs=1e-6)
            # the number of rows is recentred by units, which have noise of their own
            if linear.centre:
                assert parts[0][side].slopes[PRESENCE] == pytest.approx(linear.centre * difference, rel=1e-5, abs=1e-6)


def test_variances_are_those_of_many_draws() -> None:
    chance = np.random.default_rng(5)
    exact, noise, count = sums_of(*pairs(4, 400)), noise_of(1.0), 200_000
    drawn = {one: exact[one] + chance.normal(size=count) * noise[one.statistic] for one in exact if one.statistic}
    drawn[ROWS] = drawn[ROWS] + 1.5 * chance.normal(size=count) * noise[PRESENCE]
    for function, bounds in FUNCTIONS.items():
        value, low, high = moments_of(moments(function), drawn, noise, 1.96)
        true = moments_of(moments(function), exact, noise, 1.96)[0]
        assert np.mean((low <= true) & (true <= high)) == pytest.approx(0.95, abs=0.004), function
        assert np.all((bounds[0] <= value) & (value <= bounds[1]))


def test_the_interval_holds_what_a_test_of_it_accepts() -> None:
    """Fieller's set: all t for which top - t * bottom is within so many standard deviations of 0."""
    noise = noise_of(1.0)
    one, other = SUMS["x"].statistic, SUMS["y"].statistic
    assert one
    assert other
    for top_value, bottom_value, slope in ((3.0, 20.0, 0.5), (-30.0, 12.0, -0.9), (0.5, 9.0, 0.0)):
        top = Noisy(np.array([top_value]), {one: np.ones(1), other: np.array([slope])})
        bottom = Noisy(np.array([bottom_value]), {other: np.ones(1)})
        _, low, high = module._quotient(top, bottom, noise, 1.96)
        grid = np.linspace(-8.0, 8.0, 160_001)
        parts = [covariance(a, b, noise)[0] for a, b in ((top, top), (top, bottom), (bottom, bottom))]
        spread = np.sqrt(parts[0] - 2.0 * grid * parts[1] + grid**2 * parts[2])
        accepted = grid[np.abs(top_value - grid * bottom_value) <= 1.96 * spread]
        assert (low[0], high[0]) == pytest.approx((accepted.min(), accepted.max()), abs=2e-4)


def test_a_value_with_itself_has_a_correlation_without_noise() -> None:
    """Both parts of the quotient come from the same statistics, whose covariance is known."""
    found = moments("corr")
    same = replace(found, y=replace(found.x), products=SUMS["xy"])
    x, _ = pairs(6, 400)
    a = x - 6.0
    sums = {ROWS: np.array([400.0]), SUMS["x"]: np.array([a.sum()]), SUMS["xx"]: np.array([(a**2 - 8.0).sum()])}
    noise = noise_of(1.0) | {SUMS["xy"].statistic: np.array([1e-9]), SUMS["xx"].statistic: np.array([1e-9])}
    value, low, high = moments_of(same, sums | {SUMS["xy"]: np.array([(a * a).sum()])}, noise, 1.96)  # type: ignore[arg-type]
    assert value[0] == pytest.approx(1.0)
    assert high[0] - low[0] < 0.02


def test_an_interval_beyond_the_bounds_is_moved_to_end_at_them() -> None:
    low, high = module._moved(np.array([1.2, -3.0, -0.5, 0.9]), np.array([1.5, -2.5, 0.5, 1.4]), (-1.0, 1.0))
    assert low.tolist() == pytest.approx([0.7, -1.0, -0.5, 0.9])
    assert high.tolist() == pytest.approx([1.0, -0.5, 0.5, 1.4])
