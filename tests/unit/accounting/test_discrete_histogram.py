"""The histogram with discrete noise: tails, losses and thresholds against sums over the whole lattice."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import partial, reduce
from typing import get_args

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.special import ndtr

from dpsql.accounting import discrete_histogram, zcdp
from dpsql.accounting.discrete_histogram import (
    DiscreteRoute,
    discrete_counts_delta,
    discrete_counts_epsilon,
    discrete_delta,
    discrete_rho,
    discrete_shown_probability,
    discrete_sigma,
    discrete_threshold,
)
from dpsql.accounting.gaussian import delta as gaussian_delta
from dpsql.accounting.profile import smallest_safe
from dpsql.errors import CalibrationError

Law = NDArray[np.float64]
ROUTES: tuple[DiscreteRoute, ...] = ("zcdp", "lattice")


def law(variance: float, reach: int) -> Law:
    points = np.arange(-reach, reach + 1)
    weights = np.exp(-(points.astype(float) ** 2) / (2 * variance))
    return np.asarray(weights / weights.sum())


def moved(masses: Law, steps: int) -> Law:
    """The law of x + steps on the same points; the reach is wide enough for what falls off."""
    return np.roll(masses, steps)


def hockey_stick(first: Law, second: Law, epsilon: float) -> float:
    return float(np.maximum(first - math.exp(epsilon) * second, 0).sum())


def lattice_sum(epsilon: float, variances: list[float]) -> float:
    """Delta of independent discrete Gaussians that all move by one step, over the whole lattice."""
    laws = [law(variance, math.ceil(10 * math.sqrt(variance)) + 3) for variance in variances]
    with_unit, without = (reduce(np.multiply.outer, [moved(one, step) for one in laws]) for step in (1, 0))
    return hockey_stick(with_unit, without, epsilon)


@pytest.mark.parametrize(
    ("epsilon", "k", "variance", "correlation"),
    [(0.3, 1, 2.0, 0.7), (0.0, 2, 1.3, 0.7), (1.0, 2, 0.6, 0.5), (0.5, 1, 2.0, 1.0), (3.0, 1, 1.0, 0.2)],
)
def test_the_lattice_delta_is_the_sum_over_the_lattice(
    epsilon: float, k: int, variance: float, correlation: float
) -> None:
    exact = lattice_sum(epsilon, [4 * variance] * k + [4 * variance * correlation])
    bound = discrete_histogram._lattice_delta(epsilon, k, variance, correlation)
    assert exact * (1 - 1e-12) <= bound <= exact * (1 + 1e-8)


@pytest.mark.parametrize("variance", [0.05, 0.1])
def test_the_sum_of_the_keys_noise_is_close_to_a_discrete_gaussian_as_claimed(variance: float) -> None:
    k, one = 4, law(4 * variance, 60)
    total = reduce(np.convolve, [one] * k)
    reference = law(4 * k * variance, 240)
    near = reference > 1e-9
    spread = np.abs(np.log(total[near] / reference[near])).max()
    claimed = discrete_histogram._spread(k, variance)
    assert 1e-6 < spread <= claimed
    assert discrete_histogram._lattice_delta(0.3, k, variance, 0.5) >= lattice_sum(
        0.3, [4 * variance] * 4 + [2 * variance]
    )


def test_without_a_bound_on_the_sum_the_lattice_delta_is_one() -> None:
    assert discrete_histogram._spread(2, 0.005) == 700
    assert discrete_histogram._spread(1, 0.005) == 0
    assert discrete_histogram._lattice_delta(0.3, 2, 0.005, 0.5) == 1


def continuous_delta(epsilon: float, k: int, sigma: float, correlation: float) -> float:
    return gaussian_delta(epsilon, math.sqrt(2 * discrete_rho(k, sigma**2, correlation)), 1.0)


def chance_of_loss(epsilon: float, k: int, sigma: float, correlation: float) -> float:
    """Chance that the continuous loss exceeds epsilon; rounding of the lattice delta is a share of it."""
    mu = math.sqrt(2 * discrete_rho(k, sigma**2, correlation))
    return float(ndtr(mu / 2 - epsilon / mu))


@pytest.mark.parametrize("sigma", [10.0, 1500.0])
@pytest.mark.parametrize("k", [1, 10, 1000])
def test_wide_noise_costs_what_continuous_noise_costs(k: int, sigma: float) -> None:
    correlation, epsilon = 1 / math.sqrt(k), math.sqrt(k) / sigma
    lattice = discrete_histogram._lattice_delta(epsilon, k, sigma**2, correlation)
    assert lattice == pytest.approx(continuous_delta(epsilon, k, sigma, correlation), rel=5e-2 / sigma)


@pytest.mark.parametrize("sigma", [5e3, 1e5, 1e6, 1e7])
@pytest.mark.parametrize("k", [1, 10, 1000])
def test_very_wide_noise_costs_at_most_what_a_slightly_smaller_epsilon_does(k: int, sigma: float) -> None:
    correlation = 1 / math.sqrt(k)
    shift = 2.0**-11 * k**0.25 / (2 * sigma)
    for share in (0.2, 1.0, 2.0):
        epsilon = share * math.sqrt(k) / sigma
        lattice = discrete_counts_delta(epsilon, k=k, variance=sigma**2, correlation=correlation)
        exact, shifted = (continuous_delta(place, k, sigma, correlation) for place in (epsilon, epsilon - shift))
        rounding = 5e-10 * chance_of_loss(epsilon, k, sigma, correlation)
        assert exact * (1 - 1e-6) <= lattice <= shifted * (1 + 1e-5) + rounding


@pytest.fixture
def laws_in_runs(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[float], None]]:
    """Set the standard deviation from which on laws are kept in runs."""
    caches = discrete_histogram._law, discrete_histogram._tails

    def from_deviation(wide: float) -> None:
        monkeypatch.setattr(discrete_histogram, "_WIDE", wide)
        for cache in caches:
            cache.cache_clear()

    yield from_deviation
    for cache in caches:
        cache.cache_clear()


@pytest.mark.parametrize("run", [3, 9, 51])
def test_runs_of_points_round_up_by_at_most_their_length(laws_in_runs: Callable[[float], None], run: int) -> None:
    k, variance, correlation, epsilon, tau = 3, 250_000.0, 0.6, 0.004, 2000.0
    common = 4 * variance * correlation

    def costs(epsilon: float, tau: float) -> tuple[float, float]:
        return (
            discrete_counts_delta(epsilon, k=k, variance=variance, correlation=correlation),
            discrete_shown_probability(k, variance, correlation, tau),
        )

    single = discrete_histogram._law(common)
    exact = costs(epsilon, tau)
    moved_on = costs(epsilon - 2 * (run - 1) / (8 * variance * correlation), tau - (run - 1) / 2)
    laws_in_runs(2 * math.sqrt(common) / (run - 1) - 1e-6)
    in_runs = discrete_histogram._law(common)
    assert (single.run, in_runs.run) == (1, run)
    shares = np.append(0.0, np.cumsum(single.masses))
    ends = np.searchsorted(single.points, np.append(in_runs.points[0] - run, in_runs.points), side="right")
    near = in_runs.masses > 1e-9
    assert in_runs.masses[near] == pytest.approx(np.diff(shares[ends])[near], rel=in_runs.error + 1e-6)
    carriers = 7 * chance_of_loss(epsilon, k, math.sqrt(variance), correlation), 3 * moved_on[1]
    for least, cost, most, carrier in zip(exact, costs(epsilon, tau), moved_on, carriers, strict=True):
        assert least < cost <= most * (1 + 1e-6) + in_runs.error * carrier


@pytest.mark.parametrize("sigma", [4096.0, 16384.5])
def test_the_formula_for_wide_tails_agrees_with_sums(sigma: float) -> None:
    reach = math.ceil(25 * sigma)
    summed = np.append(np.cumsum(law(sigma**2, reach)[::-1])[::-1], 0.0)
    bounds = np.floor(sigma * np.linspace(-20, 20, 81))
    wide = discrete_histogram._Tails(sigma**2)
    assert wide._sums is None
    assert wide.above(bounds) == pytest.approx(summed[bounds.astype(int) + reach + 1], rel=wide.error + 1e-10)


@pytest.mark.parametrize("variance", [0.3, 2.0, 50.0])
def test_tails_are_as_accurate_as_they_say(variance: float) -> None:
    tails = discrete_histogram._tails(variance)
    with mpmath.workdps(40):
        weights = {x: mpmath.exp(-(mpmath.mpf(x) ** 2) / (2 * mpmath.mpf(variance))) for x in range(-300, 301)}
        total = sum(weights.values())
        for bound in (-3, 0, 1, int(5 * math.sqrt(variance)), int(15 * math.sqrt(variance))):
            exact = sum(weight for x, weight in weights.items() if x > bound) / total
            assert abs(tails.above(np.array([float(bound)]))[0] / exact - 1) <= tails.error


@pytest.mark.parametrize(("k", "correlation", "tau"), [(1, 0.3, 0.0), (2, 0.3, 4.0), (3, 1.0, 7.3), (50, 0.2, 9.5)])
def test_the_chance_of_showing_is_exact_and_rounded_up(k: int, correlation: float, tau: float) -> None:
    variance, reach = 2.5, 60
    own, common = law(4 * variance, reach), law(4 * variance * correlation, reach)
    hidden = sum(
        chance * own[: max(0, min(2 * reach + 1, math.floor(2 * tau) - f + reach + 1))].sum() ** k
        for f, chance in zip(range(-reach, reach + 1), common, strict=True)
    )
    bound = discrete_shown_probability(k, variance, correlation, tau)
    assert 0 <= bound - (1 - hidden) <= 3e-11


def test_the_threshold_is_strict_and_in_half_counts() -> None:
    at_nine, below_it, above_it = (discrete_shown_probability(5, 4.0, 0.4, tau) for tau in (9.0, 8.999, 9.499))
    assert below_it > at_nine == above_it


def released(moves: tuple[int, ...], common: Law, own: Law, new: bool, tau_steps: int) -> Law:
    """Law of the common counts and of no new key being shown, by going through the common term."""
    reach = (common.size - 1) // 2
    total: Law | float = 0.0
    for f, chance in zip(range(-reach, reach + 1), common, strict=True):
        hidden = float(own[: max(0, tau_steps - f + reach + 1)].sum()) if new else 1.0
        total = total + chance * hidden * reduce(np.multiply.outer, [moved(own, 2 * move + f) for move in moves])
    return np.asarray(total)


@pytest.mark.parametrize("epsilon", [0.0, 0.4, 1.5])
@pytest.mark.parametrize(("moves", "new"), [((0,), True), ((1,), True), ((0, 1), False), ((1, 1), False)])
def test_no_pair_of_histograms_costs_more_than_the_delta(moves: tuple[int, ...], new: bool, epsilon: float) -> None:
    variance, correlation, tau = 1.5, 0.7, 2.5
    own, common = law(4 * variance, 40), law(4 * variance * correlation, 40)
    with_unit = released(moves, common, own, new, 5)
    without = released(tuple(0 for _ in moves), common, own, False, 5)
    lost = 1 - with_unit.sum()
    cost = max(lost + hockey_stick(with_unit, without, epsilon), hockey_stick(without, with_unit, epsilon))
    for route in get_args(DiscreteRoute):
        with_new = partial(discrete_delta, epsilon, k=len(moves) + new, tau=tau)
        public = partial(discrete_counts_delta, epsilon, k=len(moves))
        bound = (with_new if new else public)(variance=variance, correlation=correlation, route=route)
        assert cost <= bound


@settings(max_examples=30)
@given(st.integers(1, 200), st.floats(0.5, 400), st.floats(0.05, 2), st.floats(0, 3))
def test_the_lattice_route_is_never_worse(k: int, variance: float, correlation: float, epsilon: float) -> None:
    rho = discrete_rho(k, variance, correlation)
    assert rho == pytest.approx((k + 1 / correlation) / (8 * variance))
    assert discrete_sigma(rho, k=k, correlation=correlation) ** 2 >= variance
    by_zcdp, by_lattice = (
        discrete_counts_delta(epsilon, k=k, variance=variance, correlation=correlation, route=route) for route in ROUTES
    )
    assert by_zcdp == zcdp.delta(epsilon, rho)
    assert 0 < by_lattice <= by_zcdp


@pytest.mark.parametrize(("variance", "correlation"), [(1e-8, 0.5), (4.0, 1e-9), (1e17, 0.3), (4.0, 1e17)])
@pytest.mark.parametrize("epsilon", [0.0, 1.0, 1e300])
def test_where_nothing_is_drawn_the_lattice_route_is_the_zcdp_route(
    variance: float, correlation: float, epsilon: float
) -> None:
    by_zcdp, by_lattice = (
        discrete_counts_delta(epsilon, k=3, variance=variance, correlation=correlation, route=route) for route in ROUTES
    )
    assert by_lattice == by_zcdp
    with pytest.raises(CalibrationError, match="cannot be drawn"):
        discrete_shown_probability(3, variance, correlation, 5.0)


@pytest.mark.parametrize("variance", [2.0**-26, 4.0, 2.0**54])
@pytest.mark.parametrize("epsilon", [0.0, 2.0, 1e3, 1e300])
def test_wherever_noise_is_drawn_the_counts_have_a_delta(variance: float, epsilon: float) -> None:
    for k in (1, 10**6):
        assert 0 < discrete_counts_delta(epsilon, k=k, variance=variance, correlation=1.0) <= 1


@pytest.mark.parametrize("delta", [1e-12, 1e-6, 0.05, 0.95])
@pytest.mark.parametrize("sigma", [0.3, 2.0, 60.0])
def test_epsilon_is_the_smallest_that_is_safe(delta: float, sigma: float) -> None:
    cost = partial(discrete_counts_delta, k=7, variance=sigma**2, correlation=0.4)
    epsilon = discrete_counts_epsilon(delta, k=7, variance=sigma**2, correlation=0.4)
    assert cost(epsilon) <= delta
    assert epsilon == 0 or cost(epsilon * (1 - 1e-9)) > delta
    assert epsilon <= zcdp.epsilon(delta, discrete_rho(7, sigma**2, 0.4))


@pytest.mark.parametrize(
    ("k", "sigma"), [(10, 100.0), (10, 1e6), *(pytest.param(k, 1e6, marks=pytest.mark.long) for k in (1, 1000))]
)
def test_epsilon_at_large_noise_is_that_of_continuous_noise(k: int, sigma: float) -> None:
    correlation = 1 / math.sqrt(k)
    epsilon = discrete_counts_epsilon(1e-8, k=k, variance=sigma**2, correlation=correlation)
    continuous = smallest_safe(lambda loss: continuous_delta(loss, k, sigma, correlation) <= 1e-8, 1.0)
    assert epsilon == pytest.approx(continuous, rel=1e-3)


def test_sigma_is_rounded_up() -> None:
    for rho, k in itertools.product((1e-4, 0.02, 3.0), (1, 7, 5000)):
        sigma = discrete_sigma(rho, k=k, correlation=0.3)
        assert discrete_rho(k, Fraction(sigma) ** 2, 0.3) <= rho * (1 + 2.0**-39)
        exact = Fraction(k) + 1 / Fraction(0.3)
        assert exact / (8 * Fraction(sigma) ** 2) <= Fraction(rho)


@pytest.mark.parametrize("route", get_args(DiscreteRoute))
def test_the_threshold_is_the_smallest_that_is_safe(route: DiscreteRoute) -> None:
    threshold = partial(discrete_threshold, k=12, variance=500.0, correlation=0.3, route=route)
    delta = partial(discrete_delta, k=12, variance=500.0, correlation=0.3, route=route)
    tau = threshold(0.4, 1e-4)
    assert (2 * tau).is_integer()
    assert delta(0.4, tau=tau) <= 1e-4 < delta(0.4, tau=tau - 0.5)


def scanned(k: int, epsilon: float, delta: float, route: DiscreteRoute, start: float) -> float:
    """Least threshold over sigma in steps of 2 %."""
    found = []
    for step in range(20):
        variance = (start * 1.02**step) ** 2
        try:
            found.append(discrete_threshold(epsilon, delta, k=k, variance=variance, correlation=k**-0.5, route=route))
        except CalibrationError:
            continue
    return min(found)


@pytest.mark.parametrize(
    ("k", "epsilon", "delta", "route", "start", "tau"),
    [
        (10, 0.35, 1e-5, "zcdp", 17.0, 113.0),
        (10, 0.35, 1e-5, "lattice", 17.0, 103.5),
        (100, 1.0, 1e-5, "zcdp", 18.0, 122.5),
        (100, 1.0, 1e-5, "lattice", 18.0, 113.5),
        pytest.param(1000, 0.35, 1e-8, "zcdp", 215.0, 1674.5, marks=pytest.mark.long),
        pytest.param(1000, 0.35, 1e-8, "lattice", 205.0, 1580.0, marks=pytest.mark.long),
    ],
)
def test_best_thresholds(k: int, epsilon: float, delta: float, route: DiscreteRoute, start: float, tau: float) -> None:
    """A scan in steps may meet the best sigma more or less closely."""
    assert scanned(k, epsilon, delta, route, start) == pytest.approx(tau, abs=0.5, rel=3e-3)


def test_noise_that_is_too_small_is_refused() -> None:
    with pytest.raises(CalibrationError, match="too small"):
        discrete_threshold(0.35, 1e-5, k=10, variance=100.0, correlation=0.3)


@pytest.mark.parametrize(
    "wrong",
    [
        {"k": 0},
        {"variance": 0.0},
        {"variance": math.nan},
        {"correlation": 0.0},
        {"correlation": -1.0},
        {"tau": -0.5},
        {"tau": math.nan},
        {"route": "guess"},
        {"correlation": 1e18},
    ],
)
def test_wrong_inputs_are_refused(wrong: dict[str, float]) -> None:
    parts: dict[str, object] = {"k": 3, "variance": 4.0, "correlation": 0.5, "tau": 9.0}
    with pytest.raises(CalibrationError):
        discrete_delta(0.5, **(parts | wrong))  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [0.0, 1.0, math.nan])
def test_a_delta_outside_its_range_has_no_epsilon(wrong: float) -> None:
    with pytest.raises(CalibrationError):
        discrete_counts_epsilon(wrong, k=3, variance=4.0, correlation=0.5)
    with pytest.raises(CalibrationError):
        discrete_counts_delta(-abs(wrong) - 1, k=3, variance=4.0, correlation=0.5)


def test_delta_falls_with_tau_and_epsilon() -> None:
    delta = partial(discrete_delta, k=5, variance=30.0, correlation=0.45)
    deltas = [delta(0.5, tau=tau) for tau in (0.0, 5.0, 20.0, 60.0, 1000.0)]
    assert deltas == sorted(deltas, reverse=True)
    assert deltas[0] > 0.5
    assert deltas[-1] == pytest.approx(discrete_histogram._lattice_delta(0.5, 5, 30.0, 0.45))
    assert delta(1.0, tau=20.0) < deltas[2]
