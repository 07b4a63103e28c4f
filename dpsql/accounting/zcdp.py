"""From zero-concentrated differential privacy to (epsilon, delta) and back: of one mechanism, and of two releases.

One mechanism (`delta`, `epsilon`, `rho`) by the optimal conversion. For every order alpha > 1, rho-zCDP bounds the
Renyi divergence by alpha rho, and that gives delta = exp((alpha - 1)(alpha rho - epsilon)) / (alpha - 1)
(1 - 1/alpha)^alpha. Every alpha is valid, so an order that is not quite the best one costs accuracy, never privacy. The
logarithm is convex in alpha, so the best one is the only root of its derivative.

A thresholded release after another Gaussian one that chose its parameters (`composed_...`): first N(0, sigma_0^2) noise
on numbers that one unit moves, then, whatever came out, a release of which a unit's own keys stay hidden but for
probability threshold_delta, and that is otherwise a function of a Gaussian shift. `docs/proofs/auto.md` proves these.
"""

from __future__ import annotations

import math
from functools import lru_cache, partial

from dpsql.accounting import gaussian
from dpsql.accounting.profile import (
    largest_safe,
    least_epsilon,
    require_delta,
    require_finite,
    require_positive,
    smallest_safe,
    within_floats,
)
from dpsql.errors import CalibrationError


@within_floats
def delta(epsilon: float, rho: float) -> float:
    """Smallest delta that the optimal conversion proves for a rho-zCDP mechanism.

    Guarantee: rho-zCDP under adding or removing all rows of one unit implies (epsilon, delta) under the same
        relation.
    Source: Canonne, Kamath and Steinke 2020, Proposition 12 (arXiv version 4), infimum over alpha > 1.

    Args:
        epsilon: at least 0.
        rho: at least 0.
    Returns: a probability, rounded up (exactly 0 for rho 0).
    Raises: CalibrationError for inputs outside these ranges.
    Randomness: none.

    >>> round(delta(1.0, 0.02), 11)
    8.825e-08

    """
    require_finite("epsilon", epsilon, least=0.0)
    require_finite("rho", rho, least=0.0)
    if rho == 0.0:
        return 0.0
    # Delta falls with epsilon and rises with rho, so both limits are safe; they keep the order finite.
    epsilon, rho = min(epsilon, 1e100), max(rho, 1e-100)
    if rho - epsilon > 40.0:
        return 1.0

    def rises(order: float) -> bool:
        """The derivative (2 alpha - 1) rho - epsilon + log(1 - 1/alpha) at order = alpha - 1 is at least 0."""
        return (2.0 * order + 1.0) * rho - epsilon - math.log1p(1.0 / order) >= 0.0

    order = smallest_safe(rises, 1.0 + epsilon / (2.0 * rho))
    terms = (order * ((1.0 + order) * rho - epsilon), -math.log1p(order), -order * math.log1p(1.0 / order))
    # The first term is the difference of two products, each of which may carry a few roundings.
    error = 2.0**-48 * (1.0 + order * ((1.0 + order) * rho + epsilon) + abs(terms[1]))
    return gaussian.round_delta_up(math.fsum(terms) + error)


@lru_cache(maxsize=4096)
@within_floats
def epsilon(delta: float, rho: float) -> float:
    """Smallest epsilon that the optimal conversion proves for a rho-zCDP mechanism.

    Guarantee, Source: as `delta`, of which this is the inverse.

    Args:
        delta: strictly between 0 and 1.
        rho: at least 0.
    Returns: epsilon at least 0, rounded up: delta(epsilon, rho) <= delta.
    Raises: CalibrationError for inputs outside these ranges.
    Randomness: none.

    >>> round(epsilon(1e-6, 0.1), 4)
    2.1419

    """
    textbook = require_finite("rho", rho, least=0.0) + 2.0 * math.sqrt(rho * -math.log(require_delta(delta)))
    return least_epsilon(lambda loss: _delta(loss, rho), delta, textbook)


@lru_cache(maxsize=4096)
@within_floats
def rho(epsilon: float, delta: float) -> float:
    """Largest rho for which every rho-zCDP mechanism is (epsilon, delta)-differentially private.

    Guarantee, Source: as `delta`, of which this is the inverse.

    Args:
        epsilon: at least 0.
        delta: strictly between 0 and 1.
    Returns: rho above 0, rounded down: delta(epsilon, rho) <= delta.
    Raises: CalibrationError for inputs outside these ranges.
    Randomness: none.

    >>> round(rho(3.0, 5e-7), 4)
    0.1757

    """
    require_finite("epsilon", epsilon, least=0.0)
    require_delta(delta)
    log_inverse = -math.log(delta)
    textbook = (epsilon / (math.sqrt(epsilon + log_inverse) + math.sqrt(log_inverse))) ** 2
    return largest_safe(lambda price: _delta(epsilon, price) <= delta, max(textbook, delta * delta))


# The public name is shadowed by the argument `delta` of its inverses.
_delta = delta


@within_floats
def composed_delta(epsilon: float, *, rho: float, threshold_delta: float) -> float:
    """Delta of both releases together.

    Guarantee: (epsilon, delta) when all rows of one unit are added or removed, however the first release chose the
        second, if each choice has this threshold_delta and the zCDP levels of both add up to rho.
    Source: docs/proofs/auto.md, Theorem 1.
    Args: epsilon at least 0; rho above 0, zCDP of both Gaussian parts; threshold_delta from 0 to below 1.
    Returns: a probability, rounded up.
    Raises: CalibrationError for inputs outside these ranges.
    Randomness: none.

    >>> composed_delta(1.0, rho=0.02, threshold_delta=5e-7) < 1e-6
    True
    """
    require_finite("epsilon", epsilon, least=0.0)
    require_positive("rho", rho)
    if not 0.0 <= threshold_delta < 1.0:
        raise CalibrationError(f"threshold_delta must be from 0 to below 1, got {threshold_delta!r}")
    lost = -math.log1p(-threshold_delta)
    mu = math.sqrt(2.0 * rho) * (1.0 + 2.0**-50)
    rest = gaussian.round_delta_up(float(gaussian.log_delta_up(epsilon + lost * (1.0 - 2.0**-50), mu)))
    return min(1.0, (threshold_delta + rest) * (1.0 + 2.0**-50))


@lru_cache(maxsize=4096)
@within_floats
def composed_threshold_delta(epsilon: float, delta: float, *, rho: float) -> float:
    """Largest threshold_delta for which both together are (epsilon, delta)-private, rounded down.

    Raises: CalibrationError if the noise alone costs delta.
    """
    require_delta(delta)

    def is_safe(threshold_delta: float) -> bool:
        return threshold_delta < 1.0 and composed_delta(epsilon, rho=rho, threshold_delta=threshold_delta) <= delta

    if not composed_delta(epsilon, rho=rho, threshold_delta=0.0) < delta:
        raise CalibrationError(f"rho = {rho!r} is too large for epsilon = {epsilon!r}, delta = {delta!r}")
    return largest_safe(is_safe, delta / 2.0)


@lru_cache(maxsize=4096)
@within_floats
def composed_epsilon(delta: float, *, rho: float, threshold_delta: float) -> float:
    """Smallest epsilon for which both together are (epsilon, delta)-private, rounded up.

    Raises: CalibrationError if the threshold alone costs delta.
    """
    require_delta(delta)
    if not threshold_delta < delta:
        raise CalibrationError(f"the threshold alone costs delta = {threshold_delta:.6g}, no less than {delta:.6g}")
    return least_epsilon(partial(composed_delta, rho=rho, threshold_delta=threshold_delta), delta)
