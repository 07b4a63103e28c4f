from __future__ import annotations

import math
from collections.abc import Callable

import mpmath as mp
import numpy as np
import pytest
from dp_accounting.rdp import rdp_privacy_accountant
from hypothesis import given
from hypothesis import strategies as st

from dpsql.accounting import gaussian, zcdp
from dpsql.errors import CalibrationError

CASES = [
    (0.0, 1e-4),
    (0.1, 1e-5),
    (0.5, 1e-3),
    (1.0, 0.02),
    (3.0, 0.15),
    (10.0, 0.1),
    (2.0, 3.0),
    (50.0, 5.0),
]


def log_bound(epsilon: float, rho: float, alpha: mp.mpf) -> mp.mpf:
    """Logarithm of the conversion at one order, as printed in the paper."""
    return (alpha - 1) * (alpha * rho - epsilon) - mp.log(alpha - 1) + alpha * mp.log(1 - 1 / alpha)


def best_on_grid(epsilon: float, rho: float) -> mp.mpf:
    """Smallest bound over 4001 orders, at 40 digits."""
    with mp.workdps(40):
        centre = 1.0 + (epsilon + 1.0) / (2.0 * rho)
        orders = np.geomspace(1e-4, 100.0 * centre, 4001)
        return min(mp.mpf(0), *(log_bound(epsilon, rho, 1 + mp.mpf(float(order))) for order in orders))


@pytest.mark.parametrize(("epsilon", "rho"), CASES)
def test_delta_is_the_infimum_over_alpha_rounded_up(epsilon: float, rho: float) -> None:
    ours, grid = mp.log(mp.mpf(zcdp.delta(epsilon, rho))), best_on_grid(epsilon, rho)
    # No order on the grid does better, and the best of them is as good but for the grid's step.
    assert grid - 1e-4 + grid * mp.mpf("1e-5") <= ours <= grid + mp.mpf("1e-12")


@pytest.mark.parametrize(("epsilon", "rho"), CASES)
def test_delta_is_not_below_the_true_infimum(epsilon: float, rho: float) -> None:
    with mp.workdps(50):

        def slope(alpha: mp.mpf) -> mp.mpf:
            return (2 * alpha - 1) * rho - epsilon + mp.log(1 - 1 / alpha)

        low, high = 1 + mp.mpf("1e-30"), 3 + (epsilon + 60) / mp.mpf(rho)
        for _ in range(250):
            middle = (low + high) / 2
            low, high = (low, middle) if slope(middle) > 0 else (middle, high)
        infimum = min(mp.mpf(1), mp.exp(log_bound(epsilon, rho, low)))
        assert infimum <= mp.mpf(zcdp.delta(epsilon, rho)) <= infimum * (1 + mp.mpf("1e-10"))


@given(epsilon=st.floats(0.0, 50.0), log_delta=st.floats(-69.0, -0.7))
def test_rho_is_safe_and_largest(epsilon: float, log_delta: float) -> None:
    delta = math.exp(log_delta)
    rho = zcdp.rho(epsilon, delta)
    assert zcdp.delta(epsilon, rho) <= delta
    assert zcdp.delta(epsilon, rho * (1 + 1e-9)) > delta


@given(log_rho=st.floats(-20.0, 4.0), log_delta=st.floats(-69.0, -0.7))
def test_epsilon_is_safe_smallest_and_beats_the_textbook(log_rho: float, log_delta: float) -> None:
    rho, delta = math.exp(log_rho), math.exp(log_delta)
    epsilon = zcdp.epsilon(delta, rho)
    assert zcdp.delta(epsilon, rho) <= delta
    assert epsilon == 0.0 or zcdp.delta(epsilon * (1 - 1e-9), rho) > delta
    assert epsilon < rho + 2.0 * math.sqrt(rho * math.log(1.0 / delta))


@pytest.mark.parametrize(("rho", "delta"), [(0.01, 1e-6), (0.1, 1e-6), (0.5, 1e-9)])
def test_dp_accounting_agrees_and_the_gaussian_itself_is_better(rho: float, delta: float) -> None:
    orders = 1.0 + np.geomspace(1e-2, 1e4, 20000)
    theirs, _ = rdp_privacy_accountant.compute_epsilon(orders, rho * orders, delta)
    epsilon = zcdp.epsilon(delta, rho)
    assert epsilon == pytest.approx(theirs, rel=1e-5)
    assert gaussian.epsilon(delta, math.sqrt(2.0 * rho), 1.0) < epsilon


def test_the_gain_over_the_textbook_is_what_was_measured() -> None:
    textbook = 0.1 + 2.0 * math.sqrt(0.1 * math.log(1e6))
    assert zcdp.epsilon(1e-6, 0.1) == pytest.approx(2.1419389, rel=1e-7)
    assert textbook == pytest.approx(2.4508, rel=1e-4)


def test_limits() -> None:
    assert zcdp.delta(1.0, 0.0) == 0.0
    assert zcdp.epsilon(1e-6, 0.0) == 0.0
    assert zcdp.delta(0.0, 1e6) == 1.0
    assert 0.0 < zcdp.delta(1.0, 1e-12) < 1e-300
    assert 0.0 < zcdp.delta(1.0, 5e-324) < 1e-300
    assert 0.0 < zcdp.delta(1e300, 1e-300) < 1e-300
    assert 0.0 < zcdp.delta(1e300, 1e90) < 1e-300
    assert zcdp.delta(1.0, 1e308) == 1.0
    assert 1.0 - 1e-15 < zcdp.delta(1.0, 40.5) <= 1.0
    assert zcdp.rho(0.0, 1e-6) > 0.0


@pytest.mark.parametrize("bad", [math.nan, math.inf, -1.0])
def test_bad_inputs_raise(bad: float) -> None:
    calls: list[Callable[[], float]] = [
        lambda: zcdp.delta(bad, 0.1),
        lambda: zcdp.delta(1.0, bad),
        lambda: zcdp.epsilon(bad, 0.1),
        lambda: zcdp.epsilon(1e-5, bad),
        lambda: zcdp.epsilon(0.0, 0.1),
        lambda: zcdp.rho(bad, 1e-5),
        lambda: zcdp.rho(1.0, bad),
        lambda: zcdp.rho(1.0, 1.0),
    ]
    for call in calls:
        with pytest.raises(CalibrationError):
            call()
