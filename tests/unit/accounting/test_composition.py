"""A release whose parameters an earlier one chose: the bound against the worst adaptive choice, integrated."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import norm

from dpsql.accounting import gaussian
from dpsql.accounting.composition import gaussian_rho
from dpsql.accounting.gaussian import log_delta
from dpsql.accounting.zcdp import composed_delta, composed_epsilon, composed_threshold_delta
from dpsql.errors import CalibrationError


def adaptive_deltas(epsilon: float, rho_0: float, rho_1: float, threshold_delta: float) -> tuple[float, float]:
    """Both directions for the worst fraction of common keys after each output of the first release."""
    mu = math.sqrt(2.0 * rho_0)
    a = np.linspace(-9.0, 9.0 + mu, 6001)[:, None]
    p, q = norm.pdf(a, mu), norm.pdf(a)
    loss = mu * a - mu * mu / 2.0
    f = np.linspace(0.0, 1.0, 41)[None, :]
    lost = -np.log1p(-threshold_delta) * (1.0 - f)
    shift = np.sqrt(2.0 * rho_1 * f)
    psi = np.exp(-lost)
    forward = 1.0 - psi + psi * np.exp(log_delta(epsilon - loss + lost, shift))
    # (q0 q - e^eps p0 psi p)+ = q0 (q - e^(eps + loss) psi p)+
    backward = np.exp(log_delta(epsilon + loss - lost, shift))
    step = float(a[1, 0] - a[0, 0])
    return (
        float((p[:, 0] * forward.max(axis=1)).sum() * step),
        float((q[:, 0] * backward.max(axis=1)).sum() * step),
    )


CASES = [(1.0, 0.05, 0.4, 0.01), (0.3, 0.2, 0.2, 0.05), (0.0, 0.02, 0.3, 0.1), (2.0, 0.5, 0.5, 1e-3)]


@pytest.mark.parametrize(("epsilon", "rho_0", "rho_1", "threshold_delta"), CASES)
def test_no_adaptive_choice_exceeds_the_bound(
    epsilon: float, rho_0: float, rho_1: float, threshold_delta: float
) -> None:
    worst = max(adaptive_deltas(epsilon, rho_0, rho_1, threshold_delta))
    bound = composed_delta(epsilon, rho=rho_0 + rho_1, threshold_delta=threshold_delta)
    assert worst <= bound * (1.0 + 1e-6)
    assert bound <= 1.5 * worst
    # the broken twins: the threshold forgotten, and, where it weighs, the first release
    assert worst > composed_delta(epsilon, rho=rho_0 + rho_1, threshold_delta=0.0)
    if rho_0 >= rho_1 / 8:
        assert worst > composed_delta(epsilon, rho=rho_1, threshold_delta=threshold_delta)


def test_without_a_threshold_it_is_one_gaussian() -> None:
    rho = 0.03
    assert composed_epsilon(1e-6, rho=rho, threshold_delta=0.0) == pytest.approx(
        gaussian.epsilon(1e-6, math.sqrt(2.0 * rho), 1.0), rel=1e-9
    )


@pytest.mark.parametrize(("epsilon", "delta"), [(1.0, 1e-6), (0.1, 1e-9), (8.0, 1e-5)])
def test_inverses_end_on_the_safe_side(epsilon: float, delta: float) -> None:
    rho = gaussian_rho(epsilon, delta / 2.0)
    shown = composed_threshold_delta(epsilon, delta, rho=rho)
    assert composed_delta(epsilon, rho=rho, threshold_delta=shown) <= delta
    assert composed_delta(epsilon, rho=rho, threshold_delta=shown * 1.001) > delta
    assert shown == pytest.approx(delta / 2.0, rel=1e-3)
    assert composed_epsilon(delta, rho=rho, threshold_delta=shown) == pytest.approx(epsilon, rel=1e-9)


def test_what_cannot_be_met_is_refused() -> None:
    with pytest.raises(CalibrationError):
        composed_epsilon(1e-6, rho=0.1, threshold_delta=1e-6)
    with pytest.raises(CalibrationError):
        composed_threshold_delta(0.1, 1e-9, rho=1.0)
    with pytest.raises(CalibrationError):
        composed_delta(1.0, rho=0.1, threshold_delta=1.0)
