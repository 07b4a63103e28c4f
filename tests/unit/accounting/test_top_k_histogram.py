"""Top-k histograms with a released floor: the accounting against data, against the mechanism, and planted faults."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import log_ndtr

from dpsql.accounting import gaussian
from dpsql.accounting.best_point import Point, best_point
from dpsql.accounting.correlated_histogram import (
    CorrelatedProfile,
    TopKProfile,
    quietest_correlation,
    quietest_top_k_correlation,
)
from dpsql.accounting.exceedance import shown_probability
from dpsql.accounting.profile import smallest_epsilon, smallest_query_threshold, smallest_sigma
from dpsql.errors import CalibrationError
from tests.unit.accounting.csh_brute_force import COMMON, deltas, renyi
from tests.unit.accounting.top_k_brute_force import Mechanism, Neighbours, all_neighbours, squared_distance, top_k

# `make test` checks the figures of the profiles; these searches take longer
pytestmark = pytest.mark.thorough

# correlation, floor_correlation, aggregate_precision, all at sigma = 1
NOISES = [(0.7, 0.7, 0.0), (0.0, 0.5, 0.0), (4.0, 0.1, 0.3), (0.2, 3.0, 0.05), (0.5, 0.5, 1.0), (0.0, 0.4, 1.0)]
RhoOf = Callable[..., float]


@cache
def data(k: int) -> list[Neighbours]:
    return list(all_neighbours(k, k + 2, (0, 1, 2, 3)))


def steps(pair: Neighbours) -> list[int]:
    return [after - before for before, after in zip(pair.before, pair.after, strict=True)]


# --- which counts move ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("least", [0, 1, 2])
@pytest.mark.parametrize("k", [1, 2, 3])
def test_a_unit_raises_counts_of_its_keys_or_lowers_those_of_the_others(k: int, least: int) -> None:
    cases = set()
    for pair in all_neighbours(k, k + 2, range(least + 4), least):
        touched = sum(pair.unit)
        assert sum(count > 0 for count in pair.after) <= k
        assert pair.floor_after - pair.floor_before in {0, 1}
        if pair.rises:
            assert steps(pair) == [-(b > 0 and not has) for b, has in zip(pair.before, pair.unit, strict=True)]
            # Raising the floor takes one key of the unit that is not shown.
            assert pair.own <= touched - 1
        else:
            assert steps(pair) == [int(a > 0 and has) for a, has in zip(pair.after, pair.unit, strict=True)]
            assert pair.own + pair.lost <= touched
        cases.add((pair.rises, len(pair.common), pair.own, pair.lost, touched))
    reached = {(rises, j, q, n) for rises, j, q, n, _ in cases}
    possible = {
        (rises, j, q, n)
        for rises in (False, True)
        for j in range(k + 1)
        for q in range(j + 1)
        for n in range(k - j + 1)
    }
    assert reached == possible
    # A unit with a single key can take all k keys of the others out of the histogram, and lower all k counts.
    assert (True, 0, 0, k, 1) in cases
    assert (True, k, 0, 0, 1) in cases


def test_batches_that_are_cut_one_after_the_other_move_in_the_same_two_ways() -> None:
    """Misra and Gries: add a batch, subtract its (k+1)-th largest count; every unit is in one batch."""
    generator = np.random.default_rng(5)
    seen = set()
    for _ in range(3000):
        k, keys, batches = generator.integers(1, 4), 6, generator.integers(1, 5)
        added = generator.integers(0, 3, (batches, keys)) * generator.integers(0, 2, (batches, keys))
        unit = generator.integers(0, 2, keys)
        states = []
        for extra in (0, unit):
            left, floor = (0,) * keys, 0
            for place, batch in enumerate(added):
                total = np.array(left) + batch + (extra if place == 0 else 0)
                left, cut = top_k(total.tolist(), int(k))
                floor += cut
            states.append((np.array(left), floor))
        (before, floor_before), (after, floor_after) = states
        move = floor_after - floor_before
        assert move in {0, 1}
        assert set((after - before).tolist()) <= ({0, -1} if move else {0, 1})
        seen.add((move, bool((after != before).any()), bool(((after != before) & (unit == 0)).any())))
    # After more batches counts that the unit has no part in rise as well: max_groups is no bound there.
    assert (0, True, True) in seen
    assert (1, True, True) in seen


# --- how far they move ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("correlation", "floor_correlation", "precision"), NOISES)
@pytest.mark.parametrize("k", [1, 2, 3])
def test_the_closed_distances_are_those_of_the_covariance(
    k: int, correlation: float, floor_correlation: float, precision: float
) -> None:
    a, b = 1.0 / floor_correlation, 1.0 / max(correlation, 1e-12)
    for pair in data(k):
        j, q = len(pair.common), pair.own
        closed = (j - q + a) * (q + b) / (j + a + b) if pair.rises else q * (j - q + a + b) / (j + a + b)
        actual = squared_distance(
            pair, correlation=correlation, floor_correlation=floor_correlation, aggregate_precision=precision
        )
        assert actual == pytest.approx(closed + q * precision, rel=1e-9, abs=1e-9)


def rho_of(**parameters: Any) -> float:
    return TopKProfile(**parameters).rho


def check_rho(
    level_of: RhoOf,
    *,
    k: int,
    correlation: float,
    floor_correlation: float,
    precision: float,
    floor_sign: float = -1.0,
) -> None:
    """Whatever a unit touches, rho is half the largest distance over all data sets."""
    for max_groups in (1, 2, k, k + 1, None):
        largest = max(
            squared_distance(
                pair,
                correlation=correlation,
                floor_correlation=floor_correlation,
                aggregate_precision=precision,
                floor_sign=floor_sign,
            )
            for pair in data(k)
            if max_groups is None or sum(pair.unit) <= max_groups
        )
        rho = level_of(
            k=k,
            sigma=1.0,
            correlation=correlation,
            floor_correlation=floor_correlation,
            max_groups=max_groups,
            aggregate_precision=precision,
        )
        assert 0.5 * largest * (1 - 1e-12) <= rho <= 0.5 * largest * (1 + 1e-9)


@pytest.mark.parametrize(("correlation", "floor_correlation", "precision"), NOISES)
@pytest.mark.parametrize("k", [1, 2, 3])
def test_rho_is_half_the_largest_distance_over_all_data(
    k: int, correlation: float, floor_correlation: float, precision: float
) -> None:
    check_rho(rho_of, k=k, correlation=correlation, floor_correlation=floor_correlation, precision=precision)


def rho_with_sums_on_changed_counts(
    *,
    k: int,
    max_groups: int | None,
    correlation: float,
    floor_correlation: float,
    aggregate_precision: float,
    **_: float,
) -> float:
    """Planted fault: where the floor rises, sums are counted on the counts that fall."""
    a, b, c = 1.0 / floor_correlation, 1.0 / correlation, k + 1 if max_groups is None else max_groups
    stays = [q * (k - q + a + b) / (k + a + b) + q * aggregate_precision for q in range(min(k, c) + 1)]
    rises = [(k - q + a) * (q + b) / (k + a + b) + (k - q) * aggregate_precision for q in range(min(k, c - 1) + 1)]
    return 0.5 * max(stays + rises)


def rho_of_counts_alone(*, floor_correlation: float, **rest: Any) -> float:
    """Planted fault: what the histogram costs whose floor is not released."""
    return CorrelatedProfile(**rest).rho


@pytest.mark.parametrize("fault", [rho_with_sums_on_changed_counts, rho_of_counts_alone])
def test_sums_on_changed_counts_only_and_a_floor_for_free_are_caught(fault: RhoOf) -> None:
    with pytest.raises(AssertionError):
        check_rho(fault, k=2, correlation=4.0, floor_correlation=0.1, precision=0.3)


def test_a_floor_that_adds_the_common_noise_is_caught() -> None:
    """The floor takes F away. One that added it would tell more: 5 times the distance at k = 3."""
    with pytest.raises(AssertionError):
        check_rho(rho_of, k=3, correlation=0.7, floor_correlation=0.7, precision=0.0, floor_sign=1.0)


@settings(max_examples=60)
@given(
    k=st.integers(1, 40),
    max_groups=st.one_of(st.none(), st.integers(1, 45)),
    correlation=st.one_of(st.just(0.0), st.floats(1e-9, 50.0)),
    floor_correlation=st.floats(1e-9, 1e9),
    precision=st.one_of(st.just(0.0), st.just(1.0), st.floats(0.0, 5.0)),
)
def test_the_worst_number_of_keys_is_found(
    *, k: int, max_groups: int | None, correlation: float, floor_correlation: float, precision: float
) -> None:
    f, c = floor_correlation, correlation
    own = k + 1 if max_groups is None else max_groups
    whole = c + f + c * f * k
    stays = [q * (c + f + c * f * (k - q)) / whole + q * precision for q in range(min(k, own) + 1)]
    rises = [(1 + f * (k - q)) * (1 + c * q) / whole + q * precision for q in range(min(k, own - 1) + 1)]
    rho = TopKProfile(
        k=k, sigma=1.0, correlation=c, floor_correlation=f, max_groups=max_groups, aggregate_precision=precision
    ).rho
    assert 2.0 * rho == pytest.approx(max(stays + rises), rel=1e-10)
    assert 2.0 * rho >= max(stays + rises) * (1 - 1e-15)


def test_published_distances() -> None:
    """k + 2 sqrt(k) over 4, against k + 5 sqrt(k) over 4 for a floor with noise of its own (the paper's remark)."""
    for k in (16, 100, 10000):
        assert 2.0 * TopKProfile(k=k, sigma=1.0).rho == pytest.approx((k + 2 * math.sqrt(k)) / 4, rel=1e-9)
        # F kept out of the floor: the floor is a coordinate of its own, 1/floor_correlation away.
        apart = 2.0 * CorrelatedProfile(k=k, sigma=1.0).rho + math.sqrt(k)
        assert apart == pytest.approx((k + 5 * math.sqrt(k)) / 4, rel=0.02)


# --- delta ---------------------------------------------------------------------------------------------------------

# epsilon, sigma, tau / sigma, correlation, floor_correlation
POINTS = [
    (0.35, 2.0, 3.5, None, None),
    (0.0, 1.5, 2.0, 0.5, 0.25),
    (1.0, 1.2, 2.6, 0.4, 2.0),
    (0.05, 3.0, 5.0, 4.0, 4.0),
    (0.5, 2.0, 3.0, 0.0, 0.5),
]


@pytest.mark.parametrize(("epsilon", "sigma", "quantile", "correlation", "floor_correlation"), POINTS)
@pytest.mark.parametrize("max_groups", [1, 2, None])
@pytest.mark.parametrize("k", [1, 2, 3])
def test_delta_is_the_largest_bound_over_all_data(
    *,
    k: int,
    max_groups: int | None,
    epsilon: float,
    sigma: float,
    quantile: float,
    correlation: float | None,
    floor_correlation: float | None,
) -> None:
    ratio, floor = (k**-0.5 if value is None else value for value in (correlation, floor_correlation))
    bounds = {
        (pair.lost, squared_distance(pair, correlation=ratio, floor_correlation=floor))
        for pair in data(k)
        if max_groups is None or sum(pair.unit) <= max_groups
    }
    worst = max(
        shown_probability(lost, quantile, ratio) + gaussian.delta(epsilon, math.sqrt(squared), sigma)
        for lost, squared in bounds
    )
    value = TopKProfile(
        k=k, sigma=sigma, correlation=correlation, floor_correlation=floor_correlation, max_groups=max_groups
    ).delta(epsilon, quantile * sigma)
    assert min(1.0, worst) * (1 - 1e-9) <= value <= worst * (1 + 1e-4)


@pytest.mark.parametrize(("epsilon", "sigma", "quantile", "correlation", "floor_correlation"), POINTS)
@pytest.mark.parametrize("k", [1, 2])
def test_no_data_make_the_mechanism_exceed_delta(
    k: int, epsilon: float, sigma: float, quantile: float, correlation: float | None, floor_correlation: float | None
) -> None:
    ratio, floor = (k**-0.5 if value is None else value for value in (correlation, floor_correlation))
    tau = quantile * sigma
    large = math.ceil(2.0 + tau + 6.0 * sigma * (1.0 + math.sqrt(ratio)))
    mechanism = Mechanism(sigma, tau, ratio, floor, cells=31 if k == 1 else 17)
    law = cache(partial(mechanism.law, largest=large))
    worst: dict[int, float] = {}
    for pair in all_neighbours(k, k + 1, (0, 1, 2, large)):
        shown = [i for i in range(k + 1) if max(pair.before[i], pair.after[i]) > 0] or [0]
        laws = [
            law(tuple(left[i] for i in shown), rise)
            for left, rise in ((pair.before, 0), (pair.after, pair.floor_after - pair.floor_before))
        ]
        touched = sum(pair.unit)
        worst[touched] = max(worst.get(touched, 0.0), *deltas(laws[0], laws[1], epsilon))
    value = partial(TopKProfile, k=k, sigma=sigma, correlation=correlation, floor_correlation=floor_correlation)
    for touched, measured in worst.items():
        assert 0.0 < measured <= value(max_groups=touched).delta(epsilon, tau) * (1 + 1e-9) + 1e-13
    # The bound is within a fifth here, cells and all: with two thirds of the noise it is refused.
    assert max(worst.values()) > TopKProfile(
        k=k, sigma=1.5 * sigma, correlation=correlation, floor_correlation=floor_correlation
    ).delta(epsilon, 1.5 * tau)


@pytest.mark.parametrize("k", [2, 50])
def test_lost_keys_bounded_by_max_groups_are_caught(k: int) -> None:
    """A unit with one key, not one of the k keys with one unit each, raises the floor to 1: all k are gone."""
    counts = [1] * k + [0]
    before, _ = top_k(counts, k)
    after, floor = top_k([*counts[:-1], 1], k)
    assert (sum(before), sum(after), floor) == (k, 0, 1)
    sigma, quantile = 30.0, 4.0
    generator = np.random.default_rng(3)
    draws = 100_000 if k == 2 else 40_000
    common = generator.normal(0.0, math.sqrt(k**-0.5), (draws, 1))
    largest = generator.normal(0.0, 1.0, (draws, k)).max(axis=1, keepdims=True) + common
    measured = float((largest > 2.5).mean())
    for max_groups in (1, None):
        assert TopKProfile(k=k, sigma=sigma, max_groups=max_groups).delta(0.35, 2.5 * sigma) > measured * 0.98
    assert CorrelatedProfile(k=k, sigma=sigma, max_groups=1).threshold_delta(2.5 * sigma) < 0.8 * measured
    # The ledger's part does not know max_groups at all.
    exact = TopKProfile(k=k, sigma=sigma).threshold_delta(quantile * sigma)
    assert exact == CorrelatedProfile(k=k, sigma=sigma).threshold_delta(quantile * sigma)


# --- approximate zCDP ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tilted", [True, False])
@pytest.mark.parametrize(
    ("sigma", "quantile", "correlation", "floor_correlation"),
    [(1.5, 0.3, 1.0, 1.0), (0.8, 1.0, 0.5, 0.3), (2.0, 2.5, 3.0, 1.0), (1.0, 0.0, 0.0, 0.5)],
)
@pytest.mark.parametrize(
    ("rises", "common", "own", "new"),
    [(False, 1, 1, 1), (False, 1, 1, 30), (True, 1, 0, 30), (True, 1, 1, 3), (True, 2, 1, 2), (True, 1, 0, 0)],
)
def test_given_that_no_lost_key_is_shown_it_is_zcdp(
    *,
    rises: bool,
    common: int,
    own: int,
    new: int,
    sigma: float,
    quantile: float,
    correlation: float,
    floor_correlation: float,
    tilted: bool,
) -> None:
    tau = quantile * sigma
    count = math.ceil(1.0 + tau + 8.0 * sigma * (1.0 + math.sqrt(correlation)))
    mechanism = Mechanism(sigma, tau, correlation, floor_correlation, cells=201 if common == 1 else 47)
    law = partial(mechanism.law, largest=count)
    changed = common - own if rises else own
    larger = (count + 1,) * changed + (count,) * (common - changed)
    noise = COMMON * sigma * math.sqrt(correlation)
    whole = correlation + floor_correlation + common * correlation * floor_correlation
    # What the common noise hides of the change; the proof tilts the smaller histogram's law by it.
    share = correlation * (changed * floor_correlation + rises) / whole
    hidden = [np.exp(new * log_ndtr((tau + moved - noise) / sigma)) for moved in (0.0, share)]
    p = law(larger, 0, hidden_weight=hidden[0])
    q = law((count,) * common, int(rises), hidden_weight=hidden[1] if tilted else np.ones_like(noise))
    likely = min(float(p.sum()), float(q.sum()))
    p, q = p / p.sum(), q / q.sum()
    rho = TopKProfile(k=common + new, sigma=sigma, correlation=correlation, floor_correlation=floor_correlation).rho
    pair = Neighbours((count,) * common, (count,) * common, 0, int(rises), (True,) * own + (False,) * (common - own))
    if rises:
        moved = (count,) * own + (count - 1,) * (common - own)
    else:
        moved = (count + 1,) * own + (count,) * (common - own)
    pair = Neighbours((count,) * common, moved, 0, int(rises), pair.unit)
    mine = 0.5 * squared_distance(pair, correlation=correlation, floor_correlation=floor_correlation) / sigma**2
    assert mine <= rho * (1 + 1e-9)
    largest = max(max(renyi(p, q, order), renyi(q, p, order)) / order for order in (1.01, 1.5, 2.0, 4.0))
    if tilted:
        lost = TopKProfile(k=common + new, sigma=sigma, correlation=correlation).threshold_delta(tau)
        assert likely >= 1.0 - lost - 1e-12
        assert largest <= mine * (1 + 1e-9) + 1e-12
        if new == 0:
            # Without lost keys rho is reached; noise three percent low is refused.
            assert largest > 0.97**2 * mine * (1 + 1e-9)
    elif new == 30 and correlation >= 1.0 and quantile < 1.0:
        # Without the event on the other side too the divergence is larger: the tilt does the work.
        assert largest > 1.02 * mine


# --- order, limits, inverses ---------------------------------------------------------------------------------------


@settings(max_examples=25)
@given(
    epsilon=st.floats(0.0, 3.0),
    k=st.integers(1, 6),
    max_groups=st.one_of(st.none(), st.integers(1, 7)),
    sigma=st.floats(0.5, 30.0),
    quantile=st.floats(0.0, 7.0),
    correlation=st.one_of(st.none(), st.just(0.0), st.floats(0.01, 30.0)),
    precision=st.sampled_from([0.0, 0.01, 1.0]),
)
def test_it_costs_more_than_the_histogram_without_a_floor(
    *,
    epsilon: float,
    k: int,
    max_groups: int | None,
    sigma: float,
    quantile: float,
    correlation: float | None,
    precision: float,
) -> None:
    value = partial(
        TopKProfile,
        k=k,
        sigma=sigma,
        correlation=correlation,
        aggregate_precision=precision / sigma**2,
    )
    plain = CorrelatedProfile(
        k=k, sigma=sigma, correlation=correlation, max_groups=max_groups, aggregate_precision=precision / sigma**2
    ).delta(epsilon, quantile * sigma)
    bounded = value(max_groups=max_groups).delta(epsilon, quantile * sigma)
    assert plain <= bounded * (1 + 3e-6)
    any_number = value(max_groups=None).delta(epsilon, quantile * sigma)
    assert bounded <= any_number * (1 + 3e-6)
    assert value(max_groups=k + 1).delta(epsilon, quantile * sigma) == any_number


@pytest.mark.parametrize("correlation", [0.0, 0.3, 2.0])
@pytest.mark.parametrize("k", [1, 5, 40])
def test_a_floor_too_noisy_to_tell_leaves_the_histogram_without_one(k: int, correlation: float) -> None:
    rho = TopKProfile(k=k, sigma=3.0, correlation=correlation, floor_correlation=1e12).rho
    assert rho == pytest.approx(CorrelatedProfile(k=k, sigma=3.0, correlation=correlation).rho, rel=1e-9)
    # Sums stay on the unit's keys, whose counts do not move where the floor rises: the bound maximises over both.
    joint = TopKProfile(
        k=k, sigma=3.0, correlation=correlation, floor_correlation=1e12, max_groups=2, aggregate_precision=0.1
    ).rho
    both = [
        (changed * (1 + correlation * (k - changed)) / (1 + correlation * k) / 9.0 + sums * 0.1)
        for q in range(min(k, 2) + 1)
        for changed, sums in ((q, q), *([(k - q, q)] if q < 2 else []))
    ]
    assert 2.0 * joint == pytest.approx(max(both), rel=1e-9)


def test_independent_noise_needs_all_k_counts_and_the_floor() -> None:
    """correlation = 0: a unit with one key lowers k counts by 1 and raises the floor by 1."""
    for k in (1, 7, 300):
        rho = TopKProfile(k=k, sigma=2.0, correlation=0.0, floor_correlation=0.25, max_groups=1).rho
        assert 2.0 * rho == pytest.approx((k + 4.0) / 4.0, rel=1e-9)
        value = TopKProfile(k=k, sigma=50.0, correlation=0.0, floor_correlation=0.25, max_groups=1).delta(0.35, 4000.0)
        assert value == pytest.approx(gaussian.delta(0.35, math.sqrt(k + 4.0), 50.0), rel=1e-9)


@pytest.mark.parametrize(("k", "max_groups"), [(1, None), (2, 1), (10, None), (20, 6)])
def test_inverses_are_safe_and_smallest(k: int, max_groups: int | None) -> None:
    sigma = 1.1 * best_point(TopKProfile(k=k, max_groups=max_groups, sigma=1.0), 0.35, 1e-5).sigma
    release: dict[str, Any] = {"k": k, "sigma": sigma, "max_groups": max_groups}
    tau = smallest_query_threshold(TopKProfile(**release), 0.35, 1e-5)
    assert TopKProfile(**release).delta(0.35, tau) <= 1e-5
    assert TopKProfile(**release).delta(0.35, tau * (1 - 1e-5)) > 1e-5
    epsilon = smallest_epsilon(TopKProfile(**release), 1.1e-5, tau)
    assert TopKProfile(**release).delta(epsilon, tau) <= 1.1e-5
    assert TopKProfile(**release).delta(epsilon * (1 - 1e-6), tau) > 1.1e-5
    needed = smallest_sigma(TopKProfile(k=k, max_groups=max_groups, sigma=1.0), 0.02)
    assert 0.02 * (1 - 1e-9) <= TopKProfile(k=k, sigma=needed, max_groups=max_groups).rho <= 0.02
    assert smallest_epsilon(TopKProfile(**release), 0.9999, tau) == 0.0
    with pytest.raises(CalibrationError):
        smallest_epsilon(TopKProfile(**release), 1e-5, 0.9 * tau)
    with pytest.raises(CalibrationError):
        smallest_query_threshold(TopKProfile(**{**release, "sigma": 0.8 * sigma}), 0.35, 1e-5)


def check_best_point(k: int, max_groups: int | None, delta: float, least: float = 0.98, step: float = 0.99) -> None:
    """A point spends at least this part of delta, and a threshold smaller by this factor is refused."""
    for share in (1.0, 0.3):
        point = best_point(TopKProfile(k=k, max_groups=max_groups, sigma=1.0), 0.35, delta, share)
        precision = 2.0 * point.rho * (1.0 - share) / min(max_groups or k, k)
        release: dict[str, Any] = {"k": k, "sigma": point.sigma, "max_groups": max_groups}
        value = TopKProfile(aggregate_precision=precision, **release).delta(0.35, point.tau)
        assert least * delta <= value == point.delta <= delta
        assert TopKProfile(**release).rho <= share * point.rho
        joint = TopKProfile(aggregate_precision=precision, **release).rho
        assert joint <= point.rho * (1 + 2**-38)
        # A little less threshold is refused, and so is a little less of everything.
        assert TopKProfile(aggregate_precision=precision, **release).delta(0.35, step * point.tau) > delta
        release["sigma"] = step * point.sigma
        assert TopKProfile(aggregate_precision=precision / step**2, **release).delta(0.35, step * point.tau) > delta


@pytest.mark.parametrize("k", [1, 2, 10, 51914])
def test_the_best_point_is_certified_and_leaves_little(k: int) -> None:
    check_best_point(k, None, 1e-5)
    if k <= 10:
        check_best_point(k, 3, 1e-5)


@pytest.mark.long
@pytest.mark.parametrize("delta", [1e-5, 1e-8])
@pytest.mark.parametrize("max_groups", [None, 3])
@pytest.mark.parametrize("k", [100, 1000, 51914])
def test_the_best_point_with_many_keys_is_certified_and_leaves_little(
    k: int, max_groups: int | None, delta: float
) -> None:
    if max_groups is None:
        check_best_point(k, max_groups, delta)
    else:
        # common keys far fewer than lost ones: the search takes coarse steps, since GSHM is the better choice there
        check_best_point(k, max_groups, delta, least=0.6, step=0.95)


@pytest.mark.parametrize("epsilon", [0.0, 5.0])
@pytest.mark.parametrize("delta", [0.3, 1e-12])
@pytest.mark.parametrize("k", [1, 12])
def test_a_point_is_found_far_from_the_usual(epsilon: float, delta: float, k: int) -> None:
    for correlation, floor in ((None, None), (0.0, None), (20.0, 5.0)):
        point = best_point(
            TopKProfile(k=k, correlation=correlation, floor_correlation=floor, sigma=1.0), epsilon, delta
        )
        assert 0.4 * delta <= point.delta <= delta


# --- the quietest correlation --------------------------------------------------------------------------------------


def test_no_correlation_of_public_keys_is_quieter() -> None:
    def variance(k: int, max_groups: int | None, correlation: float) -> float:
        profile = CorrelatedProfile(k=k, sigma=1.0, correlation=correlation, max_groups=max_groups)
        return profile.rho * (1.0 + correlation)

    for k, max_groups in ((2, None), (3, None), (10, None), (100, 20), (51914, 811)):
        scanned = min(variance(k, max_groups, correlation) for correlation in np.geomspace(1e-4, 1e2, 601).tolist())
        assert variance(k, max_groups, quietest_correlation(k, max_groups)) <= scanned * (1 + 1e-9)
    assert quietest_correlation(51914) == pytest.approx(51914**-0.5, rel=1e-3)
    assert quietest_correlation(100, 1) == 0.0


@pytest.mark.parametrize("max_groups", [1, 2, 7, None])
@pytest.mark.parametrize("k", [1, 3, 10, 500])
def test_no_correlation_of_keys_and_floor_is_quieter(k: int, max_groups: int | None) -> None:
    def variance(correlation: float) -> float:
        rho = TopKProfile(
            k=k, sigma=1.0, correlation=correlation, floor_correlation=correlation, max_groups=max_groups
        ).rho
        return rho * (1.0 + correlation)

    best = quietest_top_k_correlation(k, max_groups)
    assert variance(best) <= min(map(variance, np.geomspace(1e-3, 1e3, 601).tolist())) * (1 + 1e-9)


def total_sigma(point: Point) -> float:
    """Standard deviation of a shown count with the floor added back: the common noise cancels."""
    assert isinstance(point.profile, TopKProfile)
    return point.sigma * math.sqrt(1.0 + point.profile.noise.floor_correlation)


def test_with_many_keys_the_quietest_correlation_of_keys_and_floor_is_the_root_of_2_over_k() -> None:
    for k in (10, 100, 51914):
        assert quietest_top_k_correlation(k) == pytest.approx(math.sqrt(2.0 / k), rel=1e-2)
        best = best_point(
            TopKProfile(
                k=k,
                correlation=quietest_top_k_correlation(k),
                floor_correlation=quietest_top_k_correlation(k),
                sigma=1.0,
            ),
            0.35,
            1e-5,
        )
        plain = best_point(TopKProfile(k=k, sigma=1.0), 0.35, 1e-5)
        assert total_sigma(best) < total_sigma(plain)
        assert best.tau < plain.tau
        expected = (math.sqrt(k) + math.sqrt(2.0)) / 2.0 / math.sqrt(2.0 * best.rho)
        assert total_sigma(best) == pytest.approx(expected, rel=5e-3)


# --- bad inputs ----------------------------------------------------------------------------------------------------


def test_extremes_stay_on_the_safe_side() -> None:
    assert TopKProfile(k=5, sigma=1e-200).delta(1.0, 1.0) == 1.0
    assert TopKProfile(k=5, sigma=3.0, aggregate_precision=1e308).delta(1.0, 10.0) == 1.0
    assert TopKProfile(k=5, sigma=3.0, correlation=0.0, floor_correlation=1e-320).delta(1.0, 10.0) == 1.0
    assert TopKProfile(k=5, sigma=3.0, correlation=1e-300, floor_correlation=1e-300).delta(1.0, 10.0) == 1.0
    assert TopKProfile(k=5, sigma=1e9, correlation=0.0).delta(1.0, 0.0) == pytest.approx(1.0 - 0.5**5)
    assert 0.0 < TopKProfile(k=5, sigma=1e3).delta(1.0, 1e308) < 1e-300
    with pytest.raises(CalibrationError):
        rho_of(k=5, sigma=1e-200)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -1.0])
def test_bad_inputs_raise(bad: float) -> None:
    for call in (
        lambda: TopKProfile(k=3, sigma=5.0).delta(bad, 20.0),
        lambda: TopKProfile(k=3, sigma=bad).delta(1.0, 20.0),
        lambda: TopKProfile(k=3, sigma=5.0).delta(1.0, bad),
        lambda: TopKProfile(k=3, sigma=5.0, correlation=bad).delta(1.0, 20.0),
        lambda: TopKProfile(k=3, sigma=5.0, floor_correlation=bad).delta(1.0, 20.0),
        lambda: TopKProfile(k=3, sigma=5.0, floor_correlation=0.0).delta(1.0, 20.0),
        lambda: TopKProfile(k=3, sigma=5.0, aggregate_precision=bad).delta(1.0, 20.0),
        lambda: TopKProfile(k=0, sigma=5.0).delta(1.0, 20.0),
        lambda: TopKProfile(k=3, sigma=5.0, max_groups=0).delta(1.0, 20.0),
        lambda: smallest_query_threshold(TopKProfile(k=3, sigma=5.0), bad, 1e-5),
        lambda: smallest_query_threshold(TopKProfile(k=3, sigma=5.0), 1.0, bad),
        lambda: smallest_epsilon(TopKProfile(k=3, sigma=5.0), bad, 20.0),
        lambda: TopKProfile(k=3, sigma=5.0).threshold_delta(bad),
        lambda: TopKProfile(k=3, sigma=bad).rho,
        lambda: smallest_sigma(TopKProfile(k=3, sigma=1.0), bad),
        lambda: best_point(TopKProfile(k=3, sigma=1.0), bad, 1e-5),
        lambda: best_point(TopKProfile(k=3, sigma=1.0), 1.0, bad),
        lambda: best_point(TopKProfile(k=0, sigma=1.0), 1.0, 1e-5),
        lambda: best_point(TopKProfile(k=3, max_groups=0, sigma=1.0), 1.0, 1e-5),
        lambda: best_point(TopKProfile(k=3, floor_correlation=bad, sigma=1.0), 1.0, 1e-5),
        lambda: best_point(TopKProfile(k=3, sigma=1.0), 1.0, 1e-5, bad),
        lambda: best_point(TopKProfile(k=3, sigma=1.0), 1.0, 1e-5, 1.1),
        lambda: quietest_correlation(0),
        lambda: quietest_correlation(3, 0),
        lambda: quietest_top_k_correlation(0),
        lambda: quietest_top_k_correlation(3, 0),
    ):
        with pytest.raises(CalibrationError):
            call()
