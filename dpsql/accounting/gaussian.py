"""The analytic Gaussian mechanism: its exact delta, and the smallest noise or epsilon for a target.

All of it rests on one function of two numbers, D(mu, epsilon) = Phi(mu/2 - epsilon/mu) -
exp(epsilon) Phi(-mu/2 - epsilon/mu), where mu = sensitivity_l2 / sigma (Balle and Wang 2018, Theorem 8). The
two terms nearly cancel for small mu, so D is computed from the Mills ratio M(x) = Phi(-x) / phi(x) instead:
with a = epsilon/mu - mu/2 and b = a + mu, exp(epsilon) phi(b) = phi(a), hence D = phi(a) (M(a) - M(b)).

Accuracy against mpmath: relative error below 1e-12 for delta >= 1e-60 and epsilon in [0, 50]; every delta
that is returned is raised by more than its own error (`log_delta_error`).
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

from dpsql.accounting.profile import (
    SMALLEST,
    UP,
    least_epsilon,
    require_delta,
    require_finite,
    require_positive,
    smallest_safe,
    within_floats,
)
from dpsql.errors import CalibrationError

Floats = NDArray[np.float64]

_HALF_LOG_TWO_PI = 0.5 * math.log(2.0 * math.pi)
# Below this mu the two Mills ratios agree in too many digits, and their difference is integrated instead.
_SMALL_MU = 0.5
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(7)
_NODES, _WEIGHTS = 0.5 * (_NODES + 1.0), 0.5 * _WEIGHTS
# From here on D itself is below the floating-point range, and the error of its logarithm no longer matters.
_UNDERFLOW = 40.0
# 1 - x M(x) = x^-2 (1 - 3 x^-2 + 15 x^-4 - ...): below 16 the left side loses few digits, above 16 these
# terms suffice.
_SERIES_FROM = 16.0
_SERIES = np.array([float((-1) ** n * math.prod(range(1, 2 * n + 2, 2))) for n in range(11)])


def log_delta(epsilon: ArrayLike, mu: ArrayLike) -> Floats:
    """Logarithm of the exact delta of a Gaussian shift, element by element.

    Guarantee: N(0, 1) and N(mu, 1) are (epsilon, exp(log_delta))-indistinguishable and no smaller delta will
        do; with mu = sensitivity_l2 / sigma this is the Gaussian mechanism when all rows of one unit are
        added or removed.
    Source: Balle and Wang 2018, Theorem 8.
    Symbols: mu is the paper's Delta / sigma.

    Args:
        epsilon: any finite reals (a negative one arises when part of the mass is already lost).
        mu: finite, at least 0.
    Shapes: broadcast against each other.
    Returns: natural logarithms, -inf for delta 0; nearest, not rounded (see `log_delta_error`).
    Raises: CalibrationError for NaN, infinite or negative mu.
    Randomness: none.

    >>> float(np.exp(log_delta(1.0, 1.0)).round(6))
    0.126937

    """
    size, width = np.broadcast_arrays(np.asarray(epsilon, dtype=float), np.asarray(mu, dtype=float))
    if not (np.isfinite(size).all() and np.isfinite(width).all() and (width >= 0.0).all()):
        raise CalibrationError("epsilon must be finite, and mu finite and at least 0")
    result = np.full(size.shape, -np.inf)
    small, large = (width > 0.0) & (width < _SMALL_MU), width >= _SMALL_MU
    with np.errstate(over="ignore", under="ignore", divide="ignore", invalid="ignore"):
        all_a = np.abs(size) / width - 0.5 * width
        a, mu_small = all_a[small], width[small]
        slope = _mills_slope(a[..., None] + mu_small[..., None] * _NODES) @ _WEIGHTS
        result[small] = -0.5 * a * a - _HALF_LOG_TWO_PI + np.log(mu_small) + np.log(slope)
        a = all_a[large]
        result[large] = scipy.special.log_ndtr(-a) + np.log1p(-(_mills(a + width[large]) / _mills(a)))
        negative = size < 0.0
        # D(mu, -e) = 1 - exp(-e) + exp(-e) D(mu, e): put-call parity, a sum of positive terms.
        below = size[negative]
        result[negative] = np.logaddexp(np.log(-np.expm1(below)), below + result[negative])
    return result


def log_delta_error(epsilon: ArrayLike, mu: ArrayLike) -> Floats:
    """Bound on the absolute error of `log_delta`, which grows in the far tail as a and b are rounded.

    Args: as `log_delta`.
    Returns: natural logarithms, at least 2^-41; a bound wherever delta is in the floating-point range.
    """
    size, width = np.abs(np.asarray(epsilon, dtype=float)), np.asarray(mu, dtype=float)
    with np.errstate(over="ignore", under="ignore", divide="ignore", invalid="ignore"):
        ratio = np.where(width > 0.0, size / width, 0.0)
        tail = np.maximum(ratio - 0.5 * width, 0.0) + 1.0
        error = 2.0**-41 + 2.0**-50 * tail * (ratio + width)
    return np.asarray(np.where(tail > _UNDERFLOW, 2.0**-41, error))


def log_delta_up(epsilon: ArrayLike, mu: ArrayLike) -> Floats:
    """Logarithm of a delta that is no smaller than the exact one: `log_delta` raised by its error bound."""
    return log_delta(epsilon, mu) + log_delta_error(epsilon, mu)


def round_delta_up(log_value: float) -> float:
    """Turn the raised logarithm of a delta into a probability that is no smaller than it.

    A delta below the floating-point range becomes its smallest number, not 0. Nothing exceeds 1; NaN means 1.
    """
    if math.isnan(log_value) or log_value >= 0.0:
        return 1.0
    return min(1.0, math.nextafter(math.exp(log_value), math.inf))


def shift_deltas(epsilon: float, squared: Floats) -> Floats:
    """Deltas of Gaussian shifts of these squared lengths in standard deviations, rounded up; NaN and inf cost 1."""
    measured = np.isfinite(squared)
    log_values = log_delta_up(epsilon, np.sqrt(np.where(measured, squared, 0.0)))
    return np.where(measured, np.minimum(1.0, np.exp(np.minimum(log_values, 0.0)) * UP), 1.0)


@within_floats
def delta(epsilon: float, sensitivity_l2: float, sigma: float) -> float:
    """Smallest delta for which Gaussian noise gives (epsilon, delta)-differential privacy.

    Guarantee: adding N(0, sigma^2) to each coordinate of a query is (epsilon, delta)-private when all rows of
        one unit are added or removed.
    Source: Balle and Wang 2018, Theorem 8.
    Symbols: sensitivity_l2 is Delta.

    Args:
        epsilon: at least 0.
        sensitivity_l2: most that one unit moves the query in Euclidean norm, at least 0, in the query's unit.
        sigma: standard deviation per coordinate, above 0, in the query's unit.
    Returns: a probability, rounded up (exactly 0 for sensitivity 0).
    Raises: CalibrationError for inputs outside these ranges.
    Assumes: the noise is continuous, or a rounding of it on a fixed lattice.
    Randomness: none.

    >>> round(delta(1.0, 1.0, 1.0), 6)
    0.126937

    """
    require_finite("epsilon", epsilon, least=0.0)
    require_finite("sensitivity_l2", sensitivity_l2, least=0.0)
    require_positive("sigma", sigma)
    if sensitivity_l2 == 0.0:
        return 0.0
    mu = sensitivity_l2 / sigma
    if not math.isfinite(mu):
        return 1.0
    # A quotient that underflows to 0 still stands for a mechanism that is not perfectly private.
    return round_delta_up(float(log_delta_up(epsilon, max(mu, SMALLEST))))


@lru_cache(maxsize=4096)
@within_floats
def sigma(epsilon: float, delta: float, sensitivity_l2: float) -> float:
    """Smallest Gaussian noise that is (epsilon, delta)-differentially private.

    Guarantee, Source, Symbols, Assumes: as `delta`, of which this is the inverse.

    Args:
        epsilon: at least 0.
        delta: strictly between 0 and 1.
        sensitivity_l2: above 0, in the query's unit.
    Returns: standard deviation in the query's unit, rounded up so that `delta` of it is at most delta.
    Raises: CalibrationError for inputs outside these ranges.
    Randomness: none.

    >>> round(sigma(1.0, 1e-5, 1.0), 5)
    3.73063

    """
    require_finite("epsilon", epsilon, least=0.0)
    require_delta(delta)
    require_positive("sensitivity_l2", sensitivity_l2)
    return smallest_safe(lambda noise: _delta(epsilon, sensitivity_l2, noise) <= delta, sensitivity_l2)


@lru_cache(maxsize=4096)
@within_floats
def epsilon(delta: float, sensitivity_l2: float, sigma: float) -> float:
    """Smallest epsilon for which Gaussian noise is (epsilon, delta)-differentially private.

    Guarantee, Source, Symbols, Assumes: as `delta`, of which this is the inverse.

    Args:
        delta: strictly between 0 and 1.
        sensitivity_l2: at least 0, in the query's unit.
        sigma: standard deviation per coordinate, above 0, in the query's unit.
    Returns: epsilon at least 0, rounded up: delta(epsilon, sensitivity_l2, sigma) <= delta.
    Raises: CalibrationError for inputs outside these ranges.
    Randomness: none.

    >>> round(epsilon(1e-5, 1.0, 3.7306318), 6)
    1.0

    """
    return least_epsilon(lambda loss: _delta(loss, sensitivity_l2, sigma), delta)


# The public name is shadowed by the argument `delta` of its inverses.
_delta = delta


def _mills(x: Floats) -> Floats:
    return np.asarray(math.sqrt(0.5 * math.pi) * scipy.special.erfcx(x * math.sqrt(0.5)))


def _mills_slope(x: Floats) -> Floats:
    """Value of -M'(x) = 1 - x M(x), positive and decreasing; the caller ignores what overflows in the other form."""
    inverse_square = 1.0 / (x * x)
    series = inverse_square * np.polynomial.polynomial.polyval(inverse_square, _SERIES)
    return np.where(x > _SERIES_FROM, series, 1.0 - x * _mills(x))
