"""From zero-concentrated differential privacy to (epsilon, delta) and back, by the optimal conversion.

For every order alpha > 1, rho-zCDP bounds the Renyi divergence by alpha rho, and that gives
delta = exp((alpha - 1)(alpha rho - epsilon)) / (alpha - 1) (1 - 1/alpha)^alpha. Every alpha is valid, so an
order that is not quite the best one costs accuracy, never privacy. The logarithm is convex in alpha, so the
best one is the only root of its derivative.
"""

from __future__ import annotations

import math
from functools import lru_cache

from dpsql.accounting.calibration import (
    largest_safe,
    require_delta,
    require_finite,
    smallest_safe,
    within_floats,
)
from dpsql.accounting.gaussian import round_delta_up


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
    order = _best_order(epsilon, rho)
    terms = (order * ((1.0 + order) * rho - epsilon), -math.log1p(order), -order * math.log1p(1.0 / order))
    # The first term is the difference of two products, each of which may carry a few roundings.
    error = 2.0**-48 * (1.0 + order * ((1.0 + order) * rho + epsilon) + abs(terms[1]))
    return round_delta_up(math.fsum(terms) + error)


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
    require_delta(delta)
    if _delta(0.0, rho) <= delta:
        return 0.0
    textbook = rho + 2.0 * math.sqrt(rho * -math.log(delta))
    return smallest_safe(lambda loss: _delta(loss, rho) <= delta, textbook)


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


def _best_order(epsilon: float, rho: float) -> float:
    """Order alpha - 1 at which the derivative (2 alpha - 1) rho - epsilon + log(1 - 1/alpha) vanishes."""

    def rises(order: float) -> bool:
        return (2.0 * order + 1.0) * rho - epsilon - math.log1p(1.0 / order) >= 0.0

    return smallest_safe(rises, 1.0 + epsilon / (2.0 * rho))
