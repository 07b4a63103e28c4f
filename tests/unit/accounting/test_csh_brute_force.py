"""The accounting against the mechanism itself, and against mechanisms with a planted fault."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest
from scipy.special import log_ndtr
from scipy.stats import norm

from dpsql.accounting import gaussian
from dpsql.accounting.best_point import Point, best_point
from dpsql.accounting.correlated_histogram import CorrelatedProfile
from dpsql.accounting.worst_pair import CommonKeys, Noise
from tests.unit.accounting.csh_brute_force import Floats, deltas, monotone_pairs, output_law

# `make test` checks the figures of the profiles; these searches take longer
pytestmark = pytest.mark.thorough

# epsilon, sigma, tau / sigma, correlation (None: 1/sqrt(k))
POINTS = [(0.35, 2.0, 3.5, None), (0.0, 1.5, 2.0, None), (1.0, 1.2, 2.6, 0.4), (0.05, 3.0, 6.0, 4.0)]


def cells(tau: float, sigma: float, correlation: float, count: float, number: int) -> Floats:
    span = (8.0 + 8.0 * math.sqrt(correlation)) * sigma
    return np.append(1.0 + tau, np.linspace(max(1.0 + tau, count - span), count + 1.0 + span, number)[1:])


@pytest.mark.parametrize(("epsilon", "sigma", "quantile", "correlation"), POINTS)
@pytest.mark.parametrize(("k", "unit_keys"), [(1, 1), (2, 2), (2, 1), (3, 3), (3, 2), (3, 1)])
def test_no_pair_of_neighbours_with_small_counts_exceeds_the_exact_delta(
    *, epsilon: float, sigma: float, quantile: float, correlation: float | None, k: int, unit_keys: int
) -> None:
    ratio = k**-0.5 if correlation is None else correlation
    tau = quantile * sigma
    law = partial(output_law, sigma=sigma, tau=tau, correlation=ratio, edges=[cells(tau, sigma, ratio, 5.0, 17)] * k)
    values = (0, 1, 2, 9) if k < 3 else (0, 1, 5)
    worst = max(
        max(deltas(law(with_unit), law(without), epsilon))
        for with_unit, without in monotone_pairs(k, unit_keys, values)
    )
    exact = CorrelatedProfile(k=k, sigma=sigma, correlation=correlation, max_groups=unit_keys).delta(epsilon, tau)
    assert 0.0 < worst <= exact * (1 + 1e-9) + 1e-13


def pair_deltas(
    epsilon: float,
    common: int,
    new: int,
    changed: int,
    *,
    sigma: float,
    tau: float,
    correlation: float,
    shared: bool = True,
) -> tuple[float, float]:
    """Both deltas of one pair of the real mechanism, its common counts so large that they are always shown."""
    count = math.ceil(1.0 + tau + (10.0 + 9.0 * math.sqrt(correlation)) * sigma)
    number = {0: 2, 1: 1201, 2: 241, 3: 81}[common]
    # Whatever a new key shows gives the unit away, so one cell is enough for it; keys with many cells come last.
    edges = [np.array([1.0 + tau])] * new + [cells(tau, sigma, correlation, count, number)] * common
    law = partial(output_law, sigma=sigma, tau=tau, correlation=correlation, edges=edges, shared=shared)
    with_unit = (1,) * new + (count + 1,) * changed + (count,) * (common - changed)
    return deltas(law(with_unit), law((0,) * new + (count,) * common), epsilon)


@pytest.mark.parametrize(("epsilon", "sigma", "quantile", "correlation"), POINTS)
@pytest.mark.parametrize("k", [1, 2, 3])
def test_the_exact_delta_is_attained(
    epsilon: float, sigma: float, quantile: float, correlation: float | None, k: int
) -> None:
    ratio, tau = (k**-0.5 if correlation is None else correlation), quantile * sigma
    found = {
        (common, changed): max(
            pair_deltas(epsilon, common, k - common, changed, sigma=sigma, tau=tau, correlation=ratio)
        )
        for common in range(k + 1)
        for changed in range(common + 1)
        if changed or common < k
    }
    exact = CorrelatedProfile(k=k, sigma=sigma, correlation=correlation).delta(epsilon, tau)
    assert max(found.values()) <= exact * (1 + 1e-9)
    assert max(found.values()) >= exact * (1 - 0.02)
    # The same check refuses the looser analyses of the paper.
    looser = CorrelatedProfile(k=k, sigma=sigma, correlation=correlation, analysis="add-the-deltas").delta(epsilon, tau)
    assert max(found.values()) < looser * (1 - 0.02)


@pytest.mark.parametrize(
    ("epsilon", "sigma", "quantile", "correlation"),
    [(0.35, 2.0, 3.0, 0.7), (0.1, 3.0, 3.0, 5.0), (0.05, 4.0, 3.0, 10.0), (0.2, 2.5, 3.5, 0.2), (0.3, 2.0, 3.0, 0.0)],
)
@pytest.mark.parametrize(("common", "new", "changed"), [(1, 1, 1), (2, 1, 1), (2, 1, 2), (1, 2, 1)])
def test_a_mixed_pair_equals_the_mechanism(
    *, epsilon: float, sigma: float, quantile: float, correlation: float, common: int, new: int, changed: int
) -> None:
    measured = pair_deltas(epsilon, common, new, changed, sigma=sigma, tau=quantile * sigma, correlation=correlation)
    pairs = CommonKeys(
        common=common,
        new=new,
        most_changed=common,
        x=quantile,
        noise=Noise(sigma, correlation),
        least=1e-6,
        nodes=1024,
    )
    value = pairs.delta_above(epsilon, changed)
    assert value * (1 - 0.01) <= max(measured) <= value * (1 + 1e-9)


def test_the_fourth_term_of_theorem_3_5_is_no_bound() -> None:
    """Keys disappear: one common key that does not change, one new key. The common noise, seen, gives it away."""
    k, epsilon, sigma, tau = 2, 0.35, 20.0, 60.0
    log_psi = 2.0 * log_ndtr(tau / ((1.0 + k**-0.25) * sigma))
    gamma = 0.5 * math.sqrt(1.0 + math.sqrt(k))
    term = float(np.exp(gaussian.log_delta(epsilon + log_psi, min(1.0, gamma) / sigma)))
    _, measured = pair_deltas(epsilon, 1, 1, 0, sigma=sigma, tau=tau, correlation=k**-0.5)
    assert measured == pytest.approx(3.15e-7, rel=1e-2)
    assert term == pytest.approx(1.1e-12, rel=1e-2)
    assert CorrelatedProfile(k=k, sigma=sigma).delta(epsilon, tau) > measured


def test_an_aggregate_adds_to_the_distance() -> None:
    """k = 1 is one Gaussian whose noise is both terms together; an aggregate is a second coordinate."""
    sigma, correlation, precision = 3.0, 0.5, 0.04
    value = CorrelatedProfile(k=1, sigma=sigma, correlation=correlation, aggregate_precision=precision).delta(0.3, 60.0)
    distance = math.sqrt(1.0 / (sigma**2 * (1.0 + correlation)) + precision)
    assert value == pytest.approx(gaussian.delta(0.3, distance, 1.0), rel=1e-9)
    # In a mixed pair it adds to what is left once the counts' common part is known.
    noise = Noise(sigma, correlation, precision)
    pairs = CommonKeys(common=2, new=1, most_changed=2, x=3.0, noise=noise, least=1e-6, nodes=1024)
    plain = CommonKeys(common=2, new=1, most_changed=2, x=3.0, noise=Noise(sigma, correlation), least=1e-6, nodes=1024)
    edges = [np.array([10.0])] + [cells(9.0, sigma, correlation, 70, 151)] * 2
    counts = [
        output_law(keys, sigma=sigma, tau=9.0, correlation=correlation, edges=edges)
        for keys in ((1, 71, 70), (0, 70, 70))
    ]
    bounds = np.concatenate([[-np.inf], np.linspace(-6.0, 7.0, 50), [np.inf]])
    tables = [
        np.outer(table, np.diff(norm.cdf(bounds, shift))).ravel()
        for table, shift in zip(counts, (math.sqrt(precision), 0.0), strict=True)
    ]
    measured = max(deltas(tables[0], tables[1], 0.3))
    value = pairs.delta_above(0.3, 1)
    assert value * (1 - 0.02) <= measured <= value
    assert measured > 1.05 * plain.delta_above(0.3, 1)


def certified(k: int, delta: float) -> Point:
    return best_point(CorrelatedProfile(k=k, sigma=1.0), 0.35, delta)


@pytest.mark.parametrize("k", [2, 3])
def test_a_threshold_one_percent_low_is_caught(k: int) -> None:
    point = certified(k, 1e-5)
    alone = partial(pair_deltas, 0.35, 0, k, 0, sigma=point.sigma, correlation=k**-0.5)
    assert max(alone(tau=point.tau)) <= 1e-5
    assert max(alone(tau=0.99 * point.tau)) > 1e-5
    assert CorrelatedProfile(k=k, sigma=point.sigma).delta(0.35, 0.99 * point.tau) > 1e-5


@pytest.mark.parametrize("k", [2, 3])
def test_noise_three_percent_low_is_caught(k: int) -> None:
    point = certified(k, 1e-2)
    most = k // 2 + 1
    for factor, private in ((1.0, True), (0.97, False)):
        sigma = factor * point.sigma
        measured = pair_deltas(0.35, k, 0, most, sigma=sigma, tau=point.tau, correlation=k**-0.5)
        assert (max(measured) <= 1e-2) is private
        assert (CorrelatedProfile(k=k, sigma=sigma).delta(0.35, point.tau) <= 1e-2) is private


@pytest.mark.parametrize("k", [2, 3])
def test_common_noise_drawn_per_key_is_caught(k: int) -> None:
    point = certified(k, 1e-2)
    measured = partial(pair_deltas, 0.35, k, 0, k, sigma=point.sigma, tau=point.tau, correlation=k**-0.5)
    assert max(measured()) <= 1e-2
    assert max(measured(shared=False)) > 1e-2


def shown_on_lattice(k: int, point: Point, tau: float, step: float, *, strictly: bool) -> float:
    """Probability that any of k new keys is shown when the sum of both noises is rounded to multiples of ``step``."""
    common, width = np.linspace(-9.0, 9.0, 1001, retstep=True)
    first = round(tau / step) + (1 if strictly else 0)
    points = np.arange(first, first + int(9 * point.sigma * math.sqrt(1.0 + k**-0.5) / step)) * step
    centre = point.sigma * math.sqrt(k**-0.5) * common[:, None]
    upper, lower = (norm.sf((points + side * step / 2 - centre) / point.sigma) for side in (1, -1))
    tail = (lower - upper).sum(axis=1)
    return float(np.sum(norm.pdf(common) * width * -np.expm1(k * np.log1p(-tail))))


@pytest.mark.parametrize("step", [1.0, 0.25])
@pytest.mark.parametrize("k", [2, 50])
def test_at_least_in_place_of_above_is_caught_on_the_lattice(k: int, step: float) -> None:
    """Smallest lattice tau with tau + step/2 at least the calibrated one: > keeps delta, >= exceeds it."""
    point = certified(k, 1e-5)
    tau = math.ceil((point.tau - step / 2) / step) * step
    continuous = CorrelatedProfile(k=k, sigma=point.sigma).threshold_delta(tau + step / 2)
    strict = shown_on_lattice(k, point, tau, step, strictly=True)
    assert strict == pytest.approx(continuous, rel=1e-5)
    assert strict <= 1e-5
    assert shown_on_lattice(k, point, tau, step, strictly=False) > 1e-5
