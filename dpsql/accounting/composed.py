"""A thresholded release after another Gaussian one that chose its parameters: their joint delta, threshold and epsilon.

First N(0, sigma_0^2) noise on numbers that one unit moves, then, whatever came out, a release of which a unit's own
keys stay hidden but for probability threshold_delta, and that is otherwise a function of a Gaussian shift.
`docs/proofs/auto.md` proves the statements below.
"""

from __future__ import annotations

import math
from functools import lru_cache

from dpsql.accounting import gaussian
from dpsql.accounting.calibration import (
    largest_safe,
    require_delta,
    require_finite,
    require_positive,
    smallest_safe,
    within_floats,
)
from dpsql.accounting.gaussian import log_delta_up, round_delta_up
from dpsql.errors import CalibrationError


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
    rest = round_delta_up(float(log_delta_up(epsilon + lost * (1.0 - 2.0**-50), mu)))
    return min(1.0, (threshold_delta + rest) * (1.0 + 2.0**-50))


@lru_cache(maxsize=4096)
@within_floats
def composed_rho(epsilon: float, delta: float) -> float:
    """Largest zCDP level of both Gaussian parts that costs delta without a threshold, rounded down.

    >>> round(composed_rho(1.0, 5e-7), 4)
    0.0266
    """
    return 0.5 / gaussian.sigma(epsilon, delta, 1.0) ** 2 * (1.0 - 2.0**-40)


@lru_cache(maxsize=4096)
@within_floats
def composed_threshold_delta(epsilon: float, delta: float, *, rho: float) -> float:
    """Largest threshold_delta for which both together are (epsilon, delta)-private, rounded down.

    Raises: CalibrationError if the noise alone costs delta.
    """
    require_delta(delta)

    def is_safe(threshold_delta: float) -> bool:
        within = threshold_delta < 1.0
        return within and composed_delta(epsilon, rho=rho, threshold_delta=threshold_delta) <= delta

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

    def is_safe(epsilon: float) -> bool:
        return composed_delta(epsilon, rho=rho, threshold_delta=threshold_delta) <= delta

    return 0.0 if is_safe(0.0) else smallest_safe(is_safe, 1.0)
