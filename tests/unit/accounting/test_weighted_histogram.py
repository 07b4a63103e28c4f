"""Weighted units: the formula against the mechanism itself, the plain mechanism on every scaled pair, and mpmath."""

from __future__ import annotations

import math
from functools import reduce
from typing import Any

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import norm

from dpsql.accounting.best_point import best_point
from dpsql.accounting.profile import smallest_epsilon, smallest_query_threshold, smallest_threshold
from dpsql.accounting.sparse_histogram import SparseProfile, WeightedProfile
from dpsql.errors import CalibrationError

Floats = NDArray[np.float64]


def mechanism_delta(
    epsilon: float, *, common: int, new: int, weight: float, sigma: float, tau: float, cells: int
) -> float:
    """Delta of the mechanism on one pair of neighbours, by adding up its output law over cells: never above the true.

    The unit adds ``weight`` to ``common`` keys of many units and to ``new`` keys that nobody else has.
    """
    count = 1.0 + tau + 10.0 * sigma
    edges = np.append(np.linspace(1.0 + tau, 1.0 + tau + 20.0 * sigma, cells), np.inf)

    def law(mean: float) -> Floats:
        return np.append(norm.cdf(1.0 + tau, mean, sigma), np.diff(norm.cdf(edges, mean, sigma)))

    shown = norm.sf(1.0 + tau, weight, sigma)
    with_unit = [law(count + weight)] * common + [np.array([1.0 - shown, shown])] * new
    without = [law(count)] * common + [np.array([1.0, 0.0])] * new
    p = reduce(np.multiply.outer, with_unit, np.array(1.0))
    q = reduce(np.multiply.outer, without, np.array(1.0))
    return float(
        max(np.maximum(p - math.exp(epsilon) * q, 0.0).sum(), np.maximum(q - math.exp(epsilon) * p, 0.0).sum())
    )


CELLS = {0: 2, 1: 4001, 2: 601, 3: 101}


@pytest.mark.parametrize(("epsilon", "sigma", "tau"), [(0.35, 2.0, 3.5), (0.0, 1.5, 2.0), (1.0, 1.2, 2.6)])
def test_the_formula_is_the_worst_pair_of_the_mechanism(epsilon: float, sigma: float, tau: float) -> None:
    law = {"sigma": sigma, "tau": tau}
    measured = max(
        mechanism_delta(epsilon, common=j, new=n - j, weight=min(1.0, math.sqrt(1 / n)), cells=CELLS[j], **law)
        for n in (1, 2, 3)
        for j in range(n + 1)
    )
    formula = WeightedProfile(max_groups=1, counted_groups=3, sigma=sigma).delta(epsilon, tau)
    assert measured <= formula * (1 + 1e-9)
    assert formula == pytest.approx(measured, rel=1e-2)
    # the broken twin: weights that leave the l1 norm of three full groups are caught by the same check
    broken = max(mechanism_delta(epsilon, common=j, new=3 - j, weight=1.0, cells=CELLS[j], **law) for j in range(4))
    assert broken > 1.2 * formula


@given(
    epsilon=st.floats(0.0, 3.0),
    max_groups=st.integers(1, 6),
    extra=st.integers(0, 20),
    scale=st.floats(0.3, 9.0),
    quantile=st.floats(0.5, 6.0),
    precision=st.floats(0.0, 2.0),
)
def test_no_scaled_pair_exceeds_the_bound_and_the_bound_is_close(
    *, epsilon: float, max_groups: int, extra: int, scale: float, quantile: float, precision: float
) -> None:
    sigma, tau = scale * math.sqrt(max_groups), quantile * scale * math.sqrt(max_groups)
    beside = precision / sigma**2
    exact = max(
        SparseProfile(
            max_groups=n, sigma=sigma * math.sqrt(n / max_groups), aggregate_precision=beside * max_groups / n
        ).delta(epsilon, (1.0 + tau) * math.sqrt(n / max_groups) - 1.0)
        for n in range(max_groups, max_groups + extra + 1)
    )
    bound = WeightedProfile(
        max_groups=max_groups, counted_groups=max_groups + extra, sigma=sigma, aggregate_precision=beside
    ).delta(epsilon, tau)
    assert exact * (1 - 1e-9) <= bound <= exact * 1.02 + 1e-300


def test_without_extra_groups_it_is_the_plain_mechanism() -> None:
    for m in (1, 8, 100):
        plain, weighted = (
            best_point(SparseProfile(max_groups=m, sigma=1.0), 1.0, 1e-6),
            best_point(WeightedProfile(max_groups=m, counted_groups=m, sigma=1.0), 1.0, 1e-6),
        )
        assert weighted.tau == pytest.approx(plain.tau, rel=1e-9)
        assert weighted.sigma == pytest.approx(plain.sigma, rel=1e-12)


@pytest.mark.parametrize(("m", "n", "sigma", "tau"), [(1, 4, 2.0, 9.0), (8, 32, 12.0, 64.0), (5, 5, 1.0, 7.5)])
def test_the_threshold_part_at_fifty_digits(m: int, n: int, sigma: float, tau: float) -> None:
    with mp.workdps(50):
        exact = max(1 - mp.ncdf((1 + mp.mpf(tau) - mp.sqrt(mp.mpf(m) / k)) / sigma) ** k for k in range(m, n + 1))
    found = WeightedProfile(max_groups=m, counted_groups=n, sigma=sigma).threshold_delta(tau)
    assert float(exact) <= found <= float(exact) * (1 + 1e-9)


@pytest.mark.parametrize(("m", "n"), [(1, 4), (8, 32), (1000, 100_000)])
def test_inverses_end_on_the_safe_side(m: int, n: int) -> None:
    sigma = 4.0 * math.sqrt(m)
    groups: dict[str, Any] = {"max_groups": m, "counted_groups": n}
    tau = smallest_threshold(WeightedProfile(sigma=sigma, **groups), 1e-6)
    assert WeightedProfile(sigma=sigma, **groups).threshold_delta(tau) <= 1e-6
    assert WeightedProfile(sigma=sigma, **groups).threshold_delta(tau * (1 - 1e-6)) > 1e-6
    point = best_point(WeightedProfile(sigma=1.0, **groups), 1.0, 1e-6, 0.5)
    precision = point.sigma**-2
    assert point.delta <= 1e-6
    law: dict[str, Any] = {"sigma": point.sigma, "aggregate_precision": precision, **groups}
    assert smallest_query_threshold(WeightedProfile(**law), 1.0, 1e-6) <= point.tau * (1 + 1e-9)
    epsilon = smallest_epsilon(WeightedProfile(**law), 1e-6, point.tau)
    assert 0.999 <= epsilon <= 1.0 + 1e-9


@pytest.mark.parametrize("wrong", [{"counted_groups": 3}, {"sigma": 0.0}, {"tau": -1.0}, {"epsilon": -1.0}])
def test_bad_inputs_are_refused(wrong: dict[str, float]) -> None:
    law: dict[str, Any] = {"max_groups": 4, "counted_groups": 8, "sigma": 3.0, **wrong}
    asked = {name: law.pop(name, usual) for name, usual in (("epsilon", 1.0), ("tau", 9.0))}
    with pytest.raises(CalibrationError):
        WeightedProfile(**law).delta(**asked)


def concentrated_delta(epsilon: float, *, new: int, weight: float, sigma: float, tau: float, shift: float) -> float:
    """Delta on one pair, of which one key is common, and on it all that the unit adds to an aggregate."""
    count, sides = 1.0 + tau + 10.0 * sigma, np.linspace(-9.0, 9.0 + shift, 1201)

    def law(mean: float) -> Floats:
        edges = np.append(np.linspace(1.0 + tau, 1.0 + tau + 20.0 * sigma, 1201), np.inf)
        return np.append(norm.cdf(1.0 + tau, mean, sigma), np.diff(norm.cdf(edges, mean, sigma)))

    def beside(mean: float) -> Floats:
        return np.diff(norm.cdf(np.concatenate([[-np.inf], sides, [np.inf]]), mean))

    hidden = norm.cdf(1.0 + tau, weight, sigma) ** new
    p = hidden * np.outer(law(count + weight), beside(shift))
    q = np.outer(law(count), beside(0.0))
    with_unit = 1.0 - hidden + float(np.maximum(p - math.exp(epsilon) * q, 0.0).sum())
    return max(with_unit, float(np.maximum(q - math.exp(epsilon) * p, 0.0).sum()))


@pytest.mark.parametrize(("epsilon", "sigma", "tau", "shift"), [(0.2, 3.0, 4.0, 1.0), (0.5, 6.0, 12.0, 1.5)])
def test_all_of_an_aggregate_may_lie_in_one_common_key(epsilon: float, sigma: float, tau: float, shift: float) -> None:
    m, most = 4, 6
    measured = max(
        concentrated_delta(epsilon, new=n - 1, weight=min(1.0, math.sqrt(m / n)), sigma=sigma, tau=tau, shift=shift)
        for n in range(1, most + 1)
    )
    law: dict[str, Any] = {"max_groups": m, "counted_groups": most, "sigma": sigma, "aggregate_precision": shift**2 / m}
    bound = WeightedProfile(concentrated=True, **law)
    assert measured <= bound.delta(epsilon, tau) * (1 + 1e-9)
    # the twin: an aggregate that spreads over the keys as the counts do is charged less than what this pair costs
    spread = WeightedProfile(**law)
    assert measured > 1.04 * spread.delta(epsilon, tau)
    assert measured == pytest.approx(bound.delta(epsilon, tau), rel=0.05)
    assert bound.rho == spread.rho
    assert bound.threshold_delta(tau) == spread.threshold_delta(tau)


@given(epsilon=st.floats(0.0, 3.0), share=st.floats(0.05, 0.95), quantile=st.floats(1.0, 6.0))
def test_what_lies_in_one_key_costs_no_less_than_what_spreads(epsilon: float, share: float, quantile: float) -> None:
    law: dict[str, Any] = {"max_groups": 8, "counted_groups": 16, "sigma": 9.0, "aggregate_precision": share / 81.0}
    one, other = WeightedProfile(concentrated=True, **law), WeightedProfile(**law)
    assert one.delta(epsilon, 9.0 * quantile) >= other.delta(epsilon, 9.0 * quantile)
    with_all_common = max(other.delta(epsilon, 9.0 * quantile), other.threshold_delta(9.0 * quantile))
    # the two pure cases bound the mixed ones
    assert one.delta(epsilon, 9.0 * quantile) <= 2.0 * with_all_common
