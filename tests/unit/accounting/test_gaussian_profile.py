from __future__ import annotations

import math
from collections.abc import Callable

import mpmath as mp
import numpy as np
import pytest
from dp_accounting import gaussian_mechanism
from dp_accounting.pld.privacy_loss_mechanism import GaussianPrivacyLoss
from hypothesis import given
from hypothesis import strategies as st

from dpsql.accounting import gaussian
from dpsql.errors import CalibrationError

EPSILONS = (0.0, 1e-6, 1e-3, 0.1, 0.35, 1.0, 3.0, 10.0, 50.0)
MUS = tuple(float(mu) for mu in np.geomspace(1e-6, 60.0, 45))


def exact_delta(epsilon: float, mu: float) -> mp.mpf:
    """Balle-Wang with 60 digits, and as many more as the two terms cancel."""
    with mp.workdps(90):
        e, m = mp.mpf(epsilon), mp.mpf(mu)

        def upper_tail(x: mp.mpf) -> mp.mpf:
            return mp.erfc(x / mp.sqrt(2)) / 2

        return upper_tail(e / m - m / 2) - mp.exp(e) * upper_tail(e / m + m / 2)


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_delta_is_the_exact_one_rounded_up(epsilon: float) -> None:
    checked = 0
    for mu in MUS:
        exact = exact_delta(epsilon, mu)
        value = gaussian.delta(epsilon, mu, 1.0)
        assert value >= exact
        if exact >= mp.mpf("1e-60"):
            assert value <= exact * (1 + mp.mpf("2e-12")) + mp.mpf("5e-324")
            checked += 1
    assert checked >= 5


@pytest.mark.parametrize("epsilon", [-30.0, -1.0, -0.1, -1e-8])
def test_log_delta_at_negative_epsilon(epsilon: float) -> None:
    for mu in MUS:
        exact = mp.log(exact_delta(epsilon, mu))
        error = abs(float(gaussian.log_delta(epsilon, mu)) - exact)
        assert error <= float(gaussian.log_delta_error(epsilon, mu))


def test_log_delta_broadcasts_and_knows_the_limits() -> None:
    table = gaussian.log_delta(np.array([[0.5], [-0.5]]), np.array([0.0, 1e-300, 0.7, 80.0]))
    assert table.shape == (2, 4)
    assert table[0, 0] == -math.inf
    assert table[0, 1] == -math.inf
    assert table[1, 0] == pytest.approx(math.log(-math.expm1(-0.5)), abs=1e-15)
    assert table[0, 3] == pytest.approx(0.0, abs=1e-12)
    assert table[0, 2] == pytest.approx(float(mp.log(exact_delta(0.5, 0.7))), abs=1e-13)


@pytest.mark.parametrize("epsilon", [0.0, 0.1, 0.35, 1.0, 5.0, 20.0, 50.0])
@pytest.mark.parametrize("delta", [0.3, 1e-5, 1e-9, 1e-15, 1e-30])
def test_sigma_is_safe_and_smallest(epsilon: float, delta: float) -> None:
    sigma = gaussian.sigma(epsilon, delta, 7.0)
    assert gaussian.delta(epsilon, 7.0, sigma) <= delta
    assert exact_delta(epsilon, 7.0 / sigma) <= mp.mpf(delta)
    assert exact_delta(epsilon, 7.0 / (sigma * (1 - 1e-11))) > mp.mpf(delta)


@given(sigma=st.floats(0.05, 1e4), log_delta=st.floats(-69.0, -0.5))
def test_epsilon_is_safe_and_smallest(sigma: float, log_delta: float) -> None:
    delta = math.exp(log_delta)
    epsilon = gaussian.epsilon(delta, 1.0, sigma)
    assert gaussian.delta(epsilon, 1.0, sigma) <= delta
    if epsilon > 0.0:
        assert exact_delta(epsilon * (1 - 1e-9) - 1e-12, 1.0 / sigma) > mp.mpf(delta)


@pytest.mark.parametrize(("epsilon", "delta"), [(0.1, 1e-6), (1.0, 1e-5), (4.0, 1e-9)])
def test_dp_accounting_agrees(epsilon: float, delta: float) -> None:
    theirs = gaussian_mechanism.get_sigma_gaussian(epsilon, delta)
    assert gaussian.sigma(epsilon, delta, 1.0) == pytest.approx(theirs, rel=1e-6)
    profile = GaussianPrivacyLoss(standard_deviation=theirs)
    assert gaussian.delta(epsilon, 1.0, theirs) == pytest.approx(profile.get_delta_for_epsilon(epsilon), rel=1e-7)
    assert gaussian.epsilon(delta, 1.0, theirs) == pytest.approx(epsilon, rel=1e-6)


def textbook_sigma(epsilon: float, delta: float) -> float:
    return math.sqrt(2.0 * math.log(1.25 / delta)) / epsilon


@pytest.mark.parametrize(
    ("calibrate", "private"),
    [
        (lambda epsilon, delta: gaussian.sigma(epsilon, delta, 1.0), True),
        (textbook_sigma, False),
        (lambda epsilon, delta: gaussian.sigma(epsilon, delta, 1.0) * (1 - 1e-6), False),
    ],
    ids=["ours", "textbook", "a millionth too little"],
)
def test_a_calibration_that_is_not_private_is_caught(calibrate: Callable[[float, float], float], private: bool) -> None:
    cases = [(1.0, 1e-5), (5.0, 1e-5), (10.0, 1e-5), (20.0, 1e-9)]
    held = all(exact_delta(epsilon, 1.0 / calibrate(epsilon, delta)) <= delta for epsilon, delta in cases)
    assert held is private


def test_extremes_stay_on_the_safe_side() -> None:
    assert gaussian.delta(1.0, 0.0, 1.0) == 0.0
    assert 0.0 < gaussian.delta(1.0, 1e-300, 1.0) < 1e-300
    assert 0.0 < gaussian.delta(1.0, 1e-300, 1e300) < 1e-300
    assert gaussian.delta(1.0, 1e300, 1e-300) == 1.0
    assert gaussian.delta(0.0, 1e9, 1.0) == 1.0
    assert gaussian.epsilon(0.5, 0.1, 1.0) == 0.0
    assert gaussian.epsilon(0.5, 0.0, 1.0) == 0.0
    assert gaussian.round_delta_up(math.nan) == 1.0


@pytest.mark.parametrize("bad", [math.nan, math.inf, -1.0])
def test_bad_inputs_raise(bad: float) -> None:
    for call in (
        lambda: gaussian.delta(bad, 1.0, 1.0),
        lambda: gaussian.delta(1.0, bad, 1.0),
        lambda: gaussian.delta(1.0, 1.0, bad),
        lambda: gaussian.delta(1.0, 1.0, 0.0),
        lambda: gaussian.sigma(bad, 1e-5, 1.0),
        lambda: gaussian.sigma(1.0, bad, 1.0),
        lambda: gaussian.sigma(1.0, 1e-5, bad),
        lambda: gaussian.sigma(1.0, 1e-5, 0.0),
        lambda: gaussian.epsilon(bad, 1.0, 1.0),
        lambda: gaussian.epsilon(1e-5, bad, 1.0),
        lambda: gaussian.epsilon(1e-5, 1.0, bad),
        lambda: gaussian.log_delta(1.0, bad),
    ):
        with pytest.raises(CalibrationError):
            call()
    with pytest.raises(CalibrationError):
        gaussian.log_delta(math.nan, 1.0)
