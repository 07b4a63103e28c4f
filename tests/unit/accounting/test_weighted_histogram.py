"""Weighted units: the formula against the mechanism itself, the plain mechanism on every scaled pair, and mpmath."""

from __future__ import annotations

import math
from functools import reduce

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import norm

from dpsql.accounting.sparse_histogram import best_gshm, gshm_delta
from dpsql.accounting.weighted_histogram import (
    best_weighted,
    weighted_delta,
    weighted_epsilon,
    weighted_query_threshold,
    weighted_threshold,
    weighted_threshold_delta,
)
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
    formula = weighted_delta(epsilon, max_groups=1, counted_groups=3, **law)
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
        gshm_delta(
            epsilon,
            max_groups=n,
            sigma=sigma * math.sqrt(n / max_groups),
            tau=(1.0 + tau) * math.sqrt(n / max_groups) - 1.0,
            aggregate_precision=beside * max_groups / n,
        )
        for n in range(max_groups, max_groups + extra + 1)
    )
    bound = weighted_delta(
        epsilon,
        max_groups=max_groups,
        counted_groups=max_groups + extra,
        sigma=sigma,
        tau=tau,
        aggregate_precision=beside,
    )
    assert exact * (1 - 1e-9) <= bound <= exact * 1.02 + 1e-300


def test_without_extra_groups_it_is_the_plain_mechanism() -> None:
    for m in (1, 8, 100):
        plain, weighted = best_gshm(1.0, 1e-6, max_groups=m), best_weighted(1.0, 1e-6, max_groups=m, counted_groups=m)
        assert weighted.tau == pytest.approx(plain.tau, rel=1e-9)
        assert weighted.sigma == pytest.approx(plain.sigma, rel=1e-12)


@pytest.mark.parametrize(("m", "n", "sigma", "tau"), [(1, 4, 2.0, 9.0), (8, 32, 12.0, 64.0), (5, 5, 1.0, 7.5)])
def test_the_threshold_part_at_fifty_digits(m: int, n: int, sigma: float, tau: float) -> None:
    with mp.workdps(50):
        exact = max(1 - mp.ncdf((1 + mp.mpf(tau) - mp.sqrt(mp.mpf(m) / k)) / sigma) ** k for k in range(m, n + 1))
    found = weighted_threshold_delta(max_groups=m, counted_groups=n, sigma=sigma, tau=tau)
    assert float(exact) <= found <= float(exact) * (1 + 1e-9)


@pytest.mark.parametrize(("m", "n"), [(1, 4), (8, 32), (1000, 100_000)])
def test_inverses_end_on_the_safe_side(m: int, n: int) -> None:
    sigma = 4.0 * math.sqrt(m)
    groups = {"max_groups": m, "counted_groups": n}
    tau = weighted_threshold(1e-6, sigma=sigma, **groups)
    assert weighted_threshold_delta(sigma=sigma, tau=tau, **groups) <= 1e-6
    assert weighted_threshold_delta(sigma=sigma, tau=tau * (1 - 1e-6), **groups) > 1e-6
    point = best_weighted(1.0, 1e-6, presence_share=0.5, **groups)
    precision = point.sigma**-2
    assert point.delta <= 1e-6
    law = {"sigma": point.sigma, "aggregate_precision": precision, **groups}
    assert weighted_query_threshold(1.0, 1e-6, **law) <= point.tau * (1 + 1e-9)
    epsilon = weighted_epsilon(1e-6, tau=point.tau, **law)
    assert 0.999 <= epsilon <= 1.0 + 1e-9


@pytest.mark.parametrize("wrong", [{"counted_groups": 3}, {"sigma": 0.0}, {"tau": -1.0}, {"epsilon": -1.0}])
def test_bad_inputs_are_refused(wrong: dict[str, float]) -> None:
    given_ = {"epsilon": 1.0, "max_groups": 4, "counted_groups": 8, "sigma": 3.0, "tau": 9.0, **wrong}
    with pytest.raises(CalibrationError):
        weighted_delta(**given_)  # type: ignore[arg-type]
