from __future__ import annotations

import math
import time
from functools import reduce

import mpmath as mp
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import norm

from dpsql.accounting import gaussian
from dpsql.accounting.best_point import best_point
from dpsql.accounting.profile import smallest_epsilon, smallest_query_threshold, smallest_threshold
from dpsql.accounting.sparse_histogram import SparseProfile, _candidate_splits, _log_split_deltas
from dpsql.errors import CalibrationError
from tests.unit.accounting.added_deltas import AddedDeltasProfile

Floats = NDArray[np.float64]


def key_law(count: float, shift: float, *, sigma: float, tau: float, noise_a: float, cells: int) -> Floats:
    """Law of what one key shows: hidden, or its noisy count (and one noisy aggregate at ``shift``) in a cell.

    A partition of the outputs can only lose privacy loss, so hockey-sticks of such laws never exceed the true
    one and reach it as the cells shrink. The cells are the same for both neighbours: they do not depend on
    count and shift.
    """
    edges = np.append(np.linspace(1.0 + tau, 1.0 + tau + 20.0 * sigma, cells), np.inf)
    shown = np.diff(norm.cdf(edges, count, sigma))
    if noise_a > 0.0:
        inner = np.linspace(-8.0 * noise_a, 8.0 * noise_a, cells)
        aggregate = np.diff(norm.cdf(np.concatenate([[-np.inf], inner, [np.inf]]), shift, noise_a))
        shown = np.outer(shown, aggregate).ravel()
    hidden = norm.cdf(1.0 + tau, count, sigma)
    return np.append(hidden, shown)


def mechanism_delta(
    epsilon: float,
    *,
    common: int,
    new: int,
    sigma: float,
    tau: float,
    count: float,
    noise_a: float = 0.0,
    cells: int,
) -> tuple[float, float]:
    """Deltas with the unit against without, and the reverse, of the real mechanism on one pair of neighbours.

    The unit adds 1 to the count and to the aggregate of ``common`` keys that already have ``count`` units,
    and brings ``new`` keys, of which the neighbour shows nothing.
    """
    law = {"sigma": sigma, "tau": tau, "noise_a": noise_a}
    with_unit = [key_law(count + 1.0, 1.0, cells=cells, **law)] * common
    without = [key_law(count, 0.0, cells=cells, **law)] * common
    hidden = norm.cdf(tau / sigma)
    with_unit += [np.array([hidden, 1.0 - hidden])] * new
    without += [np.array([1.0, 0.0])] * new
    p = reduce(np.multiply.outer, with_unit, np.array(1.0))
    q = reduce(np.multiply.outer, without, np.array(1.0))
    factor = math.exp(epsilon)
    return float(np.maximum(p - factor * q, 0.0).sum()), float(np.maximum(q - factor * p, 0.0).sum())


CELLS = {0: 2, 1: 20001, 2: 1501, 3: 201}
POINTS = [(0.35, 2.0, 3.5), (0.0, 1.5, 2.0), (1.0, 1.2, 2.6), (0.7, 3.0, 9.0)]


@pytest.mark.parametrize(("epsilon", "sigma", "tau"), POINTS)
@pytest.mark.parametrize("max_groups", [1, 2, 3])
def test_every_split_equals_the_brute_force_mechanism(
    epsilon: float, sigma: float, tau: float, max_groups: int
) -> None:
    count = 1.0 + tau + 10.0 * sigma
    measured = [
        mechanism_delta(
            epsilon,
            common=common,
            new=max_groups - common,
            sigma=sigma,
            tau=tau,
            count=count,
            cells=CELLS[common],
        )
        for common in range(max_groups + 1)
    ]
    splits = np.arange(max_groups + 1, dtype=float)
    formula = np.exp(_log_split_deltas(epsilon, splits, max_groups, tau / sigma, sigma**-2)).T
    assert np.all(measured <= formula * (1 + 1e-9) + 1e-13)
    assert np.all(measured >= formula * (1 - 6e-3) - 1e-13)
    worst = float(np.max(measured))
    assert SparseProfile(max_groups=max_groups, sigma=sigma).delta(epsilon, tau) == pytest.approx(worst, rel=6e-3)
    # The same check refuses the looser analysis, so it can tell two formulas apart.
    summed = AddedDeltasProfile(max_groups=max_groups, sigma=sigma).delta(epsilon, tau)
    assert summed > 1.05 * worst


@pytest.mark.parametrize("max_groups", [1, 2])
def test_an_aggregate_adds_its_precision(max_groups: int) -> None:
    sigma, tau, noise_a, epsilon = 2.0, 4.0, 1.7, 0.5
    measured = mechanism_delta(
        epsilon,
        common=1,
        new=max_groups - 1,
        sigma=sigma,
        tau=tau,
        count=1.0 + tau + 10.0 * sigma,
        noise_a=noise_a,
        cells=801,
    )
    precision = sigma**-2 + noise_a**-2
    ways = _log_split_deltas(epsilon, np.array([1.0]), max_groups, tau / sigma, precision)
    for value, formula in zip(measured, np.exp(np.concatenate(ways)), strict=True):
        assert formula * (1 - 2e-3) <= value <= formula
    whole = SparseProfile(max_groups=max_groups, sigma=sigma, aggregate_precision=noise_a**-2).delta(epsilon, tau)
    assert whole >= max(measured)
    assert whole > SparseProfile(max_groups=max_groups, sigma=sigma).delta(epsilon, tau)


@given(
    epsilon=st.floats(0.0, 2.0),
    sigma=st.floats(0.5, 5.0),
    quantile=st.floats(0.0, 4.0),
    common=st.integers(0, 2),
    new=st.integers(0, 2),
    count=st.integers(1, 30),
)
def test_no_pair_of_neighbours_exceeds_the_formula(
    *, epsilon: float, sigma: float, quantile: float, common: int, new: int, count: int
) -> None:
    tau = quantile * sigma
    measured = mechanism_delta(epsilon, common=common, new=new, sigma=sigma, tau=tau, count=float(count), cells=201)
    value = SparseProfile(max_groups=max(1, common + new), sigma=sigma).delta(epsilon, tau)
    assert max(measured) <= value * (1 + 1e-9) + 1e-13


def shown_probability(max_groups: int, sigma: float, tau: float) -> mp.mpf:
    """Exact probability that at least one of max_groups keys of one unit is shown, at 50 digits."""
    with mp.workdps(50):
        tail = mp.erfc(mp.mpf(tau) / mp.mpf(sigma) / mp.sqrt(2)) / 2
        return 1 - (1 - tail) ** max_groups


@pytest.mark.parametrize("max_groups", range(1, 51))
def test_a_group_of_one_unit_is_shown_with_probability_at_most_delta(max_groups: int) -> None:
    for epsilon, delta in ((0.35, 1e-5), (1.0, 1e-9), (0.05, 1e-12)):
        point = best_point(SparseProfile(max_groups=max_groups, sigma=1.0), epsilon, delta)
        exact = shown_probability(max_groups, point.sigma, point.tau)
        assert exact <= point.threshold_delta <= point.delta <= delta
        assert exact >= delta * (1 - 1e-9)
        # A threshold 1 % lower is not private; nor is noise a thousandth smaller.
        assert shown_probability(max_groups, point.sigma, 0.99 * point.tau) > delta
        low = SparseProfile(max_groups=max_groups, sigma=point.sigma).delta(epsilon, 0.99 * point.tau)
        assert low > delta
        assert SparseProfile(max_groups=max_groups, sigma=0.999 * point.sigma).delta(epsilon, point.tau) > delta


def shown_on_lattice(max_groups: int, sigma: float, tau: float, step: float, *, strictly: bool) -> float:
    """The same probability for noise rounded to multiples of ``step``, summed over the points shown."""
    first = round(tau / step) + (1 if strictly else 0)
    points = np.arange(first, first + int(12 * sigma / step)) * step
    tail = float(np.sum(norm.sf((points - step / 2) / sigma) - norm.sf((points + step / 2) / sigma)))
    return -math.expm1(max_groups * math.log1p(-tail))


@pytest.mark.parametrize("step", [1.0, 0.25])
@pytest.mark.parametrize("max_groups", [1, 4, 50])
def test_on_the_lattice_only_the_strict_rule_is_private(max_groups: int, step: float) -> None:
    """Smallest lattice tau with tau + step/2 at least the calibrated one: > keeps delta, >= exceeds it."""
    delta = 1e-5
    point = best_point(SparseProfile(max_groups=max_groups, sigma=1.0), 0.35, delta)
    tau = math.ceil((point.tau - step / 2) / step) * step
    continuous = SparseProfile(max_groups=max_groups, sigma=point.sigma).threshold_delta(tau + step / 2)
    strict = shown_on_lattice(max_groups, point.sigma, tau, step, strictly=True)
    assert strict == pytest.approx(continuous, rel=1e-9)
    assert strict <= delta
    assert shown_on_lattice(max_groups, point.sigma, tau, step, strictly=False) > delta


@pytest.mark.parametrize(
    ("max_groups", "tau"),
    [(1, 41.604), (2, 60.938), (10, 146.63), (100, 507.19), (1000, 1731.2), (51914, 13913.5)],
)
def test_published_thresholds(max_groups: int, tau: float) -> None:
    assert best_point(SparseProfile(max_groups=max_groups, sigma=1.0), 0.35, 1e-5).tau == pytest.approx(tau, rel=5e-4)


@pytest.mark.parametrize("share", [1.0, 0.5, 0.1])
@pytest.mark.parametrize(("epsilon", "delta"), [(0.0, 1e-3), (0.35, 1e-5), (3.0, 1e-9), (0.01, 0.3)])
@pytest.mark.parametrize("max_groups", [1, 7, 400])
def test_no_rho_gives_a_smaller_threshold(max_groups: int, epsilon: float, delta: float, share: float) -> None:
    point = best_point(SparseProfile(max_groups=max_groups, sigma=1.0), epsilon, delta, share)
    found = []
    for factor in np.append(np.geomspace(0.2, 5.0, 20), 1.0 - np.geomspace(1e-6, 1e-2, 5)):
        rho = point.rho * float(factor)
        sigma = math.sqrt(max_groups / (2.0 * share * rho))
        rest = 2.0 * rho * (1.0 - share) / max_groups
        try:
            tau = smallest_query_threshold(
                SparseProfile(max_groups=max_groups, sigma=sigma, aggregate_precision=rest), epsilon, delta
            )
        except CalibrationError:
            assert factor >= 1.0 - 1e-9
        else:
            found.append(tau)
    assert len(found) >= 10
    assert point.tau <= 1.001 * min(found)


@given(
    epsilon=st.one_of(st.just(0.0), st.floats(1e-6, 50.0)),
    log_delta=st.floats(-69.0, -0.2),
    max_groups=st.integers(1, 3000),
    share=st.floats(0.01, 1.0),
)
def test_the_best_point_is_certified_and_spends_what_it_says(
    epsilon: float, log_delta: float, max_groups: int, share: float
) -> None:
    delta = math.exp(log_delta)
    point = best_point(SparseProfile(max_groups=max_groups, sigma=1.0), epsilon, delta, share)
    rest = 2.0 * point.rho * (1.0 - share) / max_groups
    certified = SparseProfile(max_groups=max_groups, sigma=point.sigma, aggregate_precision=rest).delta(
        epsilon, point.tau
    )
    assert certified == point.delta <= delta
    assert max_groups * (point.sigma**-2 + rest) / 2.0 <= point.rho * (1 + 1e-15)
    # Both limits that no mechanism of the family can pass are reached, so nothing smaller exists.
    alone = gaussian.delta(epsilon, math.sqrt(2.0 * point.rho), 1.0)
    assert alone >= delta * (1 - 1e-9)
    assert point.tau == 0.0 or point.threshold_delta >= delta * (1 - 1e-9)


@given(delta=st.floats(1e-30, 0.9), max_groups=st.integers(1, 10**5), sigma=st.floats(1e-3, 1e6))
@example(delta=0.5, max_groups=1, sigma=1.0)
def test_threshold_is_safe_and_smallest(delta: float, max_groups: int, sigma: float) -> None:
    tau = smallest_threshold(SparseProfile(max_groups=max_groups, sigma=sigma), delta)
    assert SparseProfile(max_groups=max_groups, sigma=sigma).threshold_delta(tau) <= delta
    assert shown_probability(max_groups, sigma, tau) <= delta
    # Near 0 only the absolute distance counts: at delta = 1/2 one key needs tau = 0, up to rounding.
    smaller = tau - 1e-6 * max(tau, sigma)
    assert smaller <= 0.0 or shown_probability(max_groups, sigma, smaller) > delta


@pytest.mark.parametrize("kind", [SparseProfile, AddedDeltasProfile])
@pytest.mark.parametrize("max_groups", [1, 10, 3000])
def test_gshm_threshold_is_safe_and_smallest(max_groups: int, kind: type[SparseProfile]) -> None:
    sigma = 1.1 * best_point(SparseProfile(max_groups=max_groups, sigma=1.0), 0.35, 1e-5).sigma
    tau = smallest_query_threshold(kind(max_groups=max_groups, sigma=sigma), 0.35, 1e-5)
    for factor, private in ((1.0, True), (1.0 - 1e-6, False)):
        value = kind(max_groups=max_groups, sigma=sigma).delta(0.35, tau * factor)
        assert (value <= 1e-5) is private
    exact = smallest_query_threshold(SparseProfile(max_groups=max_groups, sigma=sigma), 0.35, 1e-5)
    assert (tau > exact) is (kind is AddedDeltasProfile)


@pytest.mark.parametrize("max_groups", [1, 10, 3000])
def test_gshm_epsilon_is_safe_smallest_and_refuses_a_threshold_that_costs_more(max_groups: int) -> None:
    point = best_point(SparseProfile(max_groups=max_groups, sigma=1.0), 0.35, 1e-5)
    sigma, tau = point.sigma, 1.01 * point.tau
    epsilon = smallest_epsilon(SparseProfile(max_groups=max_groups, sigma=sigma), 1e-5, tau)
    assert epsilon == pytest.approx(0.35, rel=1e-6)
    assert SparseProfile(max_groups=max_groups, sigma=sigma).delta(epsilon, tau) <= 1e-5
    assert SparseProfile(max_groups=max_groups, sigma=sigma).delta(epsilon * (1 - 1e-6), tau) > 1e-5
    with pytest.raises(CalibrationError):
        smallest_epsilon(SparseProfile(max_groups=max_groups, sigma=sigma), 1e-5, 0.99 * point.tau)
    lost = SparseProfile(max_groups=max_groups, sigma=sigma).threshold_delta(tau)
    limit = smallest_epsilon(SparseProfile(max_groups=max_groups, sigma=sigma), lost, tau)
    assert SparseProfile(max_groups=max_groups, sigma=sigma).delta(limit, tau) == lost
    assert smallest_epsilon(SparseProfile(max_groups=max_groups, sigma=sigma), 0.999, tau) == 0.0


@given(
    max_groups=st.integers(1030, 12000),
    epsilon=st.one_of(st.just(0.0), st.floats(0.0, 5.0)),
    spread=st.floats(0.1, 20.0),
    quantile=st.floats(0.0, 8.0),
)
def test_leaving_blocks_out_changes_nothing(max_groups: int, epsilon: float, spread: float, quantile: float) -> None:
    precision = 1.0 / (max_groups * spread**2)
    alone = math.log(SparseProfile(max_groups=max_groups, sigma=1.0).threshold_delta(quantile))

    def worst(splits: Floats) -> float:
        ways = _log_split_deltas(epsilon, splits, max_groups, quantile, precision)
        return max(alone, float(np.max(ways)))

    every = np.arange(max_groups + 1.0)
    some = _candidate_splits(epsilon, max_groups, quantile, precision)
    assert worst(some) == pytest.approx(worst(every), abs=1e-12)


@given(
    epsilon=st.one_of(st.just(0.0), st.floats(0.0, 20.0)),
    sigma=st.floats(0.05, 50.0),
    quantile=st.floats(-0.5, 8.0),
    max_groups=st.integers(1, 60),
)
def test_the_reverse_direction_never_rules(epsilon: float, sigma: float, quantile: float, max_groups: int) -> None:
    splits = np.arange(max_groups + 1.0)
    lost, gained = _log_split_deltas(epsilon, splits, max_groups, quantile, sigma**-2)
    assert np.all(np.exp(gained) <= np.exp(lost) * (1 + 1e-9))


def test_delta_falls_with_tau_sigma_and_epsilon_and_rises_with_max_groups() -> None:
    def value(epsilon: float = 0.5, max_groups: int = 5, sigma: float = 6.0, tau: float = 20.0) -> float:
        return SparseProfile(max_groups=max_groups, sigma=sigma).delta(epsilon, tau)

    # Here the threshold part rules, there the noise part; each argument matters where its part does.
    middle = value(tau=14.0)
    assert value(tau=13.0) > middle > value(tau=15.0)
    assert value(tau=14.0, max_groups=6) > middle > value(tau=14.0, max_groups=4)
    assert value(epsilon=0.6, tau=14.0) == middle
    noise = value(tau=40.0)
    assert value(epsilon=0.4, tau=40.0) > noise > value(epsilon=0.6, tau=40.0)
    assert value(sigma=5.0, tau=40.0) > noise > value(sigma=7.0, tau=40.0)
    assert value(tau=41.0) == noise


def test_extremes_stay_on_the_safe_side() -> None:
    assert SparseProfile(max_groups=5, sigma=1e-200).delta(1.0, 1.0) == 1.0
    assert SparseProfile(max_groups=5, sigma=1e9).delta(1.0, 0.0) == pytest.approx(1.0 - 0.5**5)
    assert 0.0 < SparseProfile(max_groups=1, sigma=1.0).threshold_delta(1e6) < 1e-300
    assert SparseProfile(max_groups=5, sigma=3.0, aggregate_precision=1e308).delta(1.0, 10.0) == 1.0
    assert SparseProfile(max_groups=5, sigma=1e-3).delta(1.0, 1e300) == 1.0
    assert 0.0 < SparseProfile(max_groups=5, sigma=1e3).delta(1.0, 1e308) < 1e-300
    with pytest.raises(CalibrationError):
        smallest_query_threshold(SparseProfile(max_groups=10, sigma=20.0), 0.35, 1e-5)


@pytest.mark.long
def test_large_and_small_calibrations_are_fast() -> None:
    point = best_point(SparseProfile(max_groups=10**5, sigma=1.0), 0.35, 1e-5)

    def best_of_three(max_groups: int, start: int) -> float:
        times = []
        for offset in range(3):
            began = time.process_time()
            best_point(SparseProfile(max_groups=max_groups, sigma=1.0), 0.35 + 1e-6 * (start + offset), 1e-5)
            times.append(time.process_time() - began)
        return min(times)

    assert best_of_three(1000, 1) < 0.5
    began = time.process_time()
    SparseProfile(max_groups=10**5, sigma=point.sigma).delta(0.35, point.tau)
    assert time.process_time() - began < 1.0


@pytest.mark.parametrize("bad", [math.nan, math.inf, -1.0])
def test_bad_inputs_raise(bad: float) -> None:
    for call in (
        lambda: SparseProfile(max_groups=3, sigma=5.0).delta(bad, 20.0),
        lambda: SparseProfile(max_groups=3, sigma=bad).delta(1.0, 20.0),
        lambda: SparseProfile(max_groups=3, sigma=5.0).delta(1.0, bad),
        lambda: SparseProfile(max_groups=3, aggregate_precision=bad, sigma=5.0).delta(1.0, 20.0),
        lambda: SparseProfile(max_groups=0, sigma=5.0).delta(1.0, 20.0),
        lambda: SparseProfile(max_groups=0, sigma=5.0).threshold_delta(20.0),
        lambda: SparseProfile(max_groups=3, sigma=bad).threshold_delta(1.0),
        lambda: smallest_threshold(SparseProfile(max_groups=3, sigma=1.0), bad),
        lambda: smallest_threshold(SparseProfile(max_groups=3, sigma=bad), 1e-5),
        lambda: smallest_query_threshold(SparseProfile(max_groups=3, sigma=5.0), bad, 1e-5),
        lambda: smallest_query_threshold(SparseProfile(max_groups=3, sigma=5.0), 1.0, bad),
        lambda: smallest_epsilon(SparseProfile(max_groups=3, sigma=5.0), bad, 20.0),
        lambda: smallest_epsilon(SparseProfile(max_groups=3, sigma=5.0), 1e-5, bad),
        lambda: best_point(SparseProfile(max_groups=3, sigma=1.0), bad, 1e-5),
        lambda: best_point(SparseProfile(max_groups=3, sigma=1.0), 1.0, bad),
        lambda: best_point(SparseProfile(max_groups=0, sigma=1.0), 1.0, 1e-5),
        lambda: best_point(SparseProfile(max_groups=3, sigma=1.0), 1.0, 1e-5, bad),
        lambda: best_point(SparseProfile(max_groups=3, sigma=1.0), 1.0, 1e-5, 1.1),
    ):
        with pytest.raises(CalibrationError):
            call()
