"""The privacy profile of a release behind a threshold, its inverses, the searches for them, and checks of arguments.

A `Profile` says what a release costs at fixed noise; each mechanism's module states the theorem and gives its own. The
inverses are here, once for all of them, and in `best_point`. Every search ends at a number that was itself put through
the profile and passed: a rounding error in the profile's own computation costs accuracy, never privacy.
"""

from __future__ import annotations

import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache, partial, wraps
from numbers import Integral, Real
from typing import ClassVar, ParamSpec, TypeVar

import numpy as np
import scipy

from dpsql.errors import CalibrationError

# Two ends of a bracket closer than this (relative) are taken as one number.
RESOLUTION = 2.0**-47
# Smaller targets are met by no logarithm of a float that is not lost to underflow, and mean nothing.
LEAST_DELTA = 1e-280
# More groups per unit than this are a mistake, and arrays of that length would not fit.
MOST_GROUPS = 10**6
# Beyond this many standard deviations the tail, even of MOST_GROUPS keys, is below the floating-point range.
FAR = 40.0
# Raises a number by more than the few roundings that it is made with.
UP = 1.0 + 2.0**-40
# What stands for a probability below the floating-point range.
SMALLEST = math.nextafter(0.0, 1.0)
_FIRST_STEP = 2.0**-7
_GOLDEN = 0.5 * (math.sqrt(5.0) - 1.0)


def require_finite(name: str, value: object, *, least: float = -math.inf) -> float:
    """Return ``value`` as a float, or raise CalibrationError unless it is finite and at least ``least``."""
    if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value) or value < least:
        raise CalibrationError(f"{name} must be a finite number of at least {least:g}, got {value!r}")
    return float(value)


def require_positive(name: str, value: object) -> float:
    """Return ``value`` as a float, or raise CalibrationError unless it is finite and above 0."""
    number = require_finite(name, value)
    if number <= 0.0:
        raise CalibrationError(f"{name} must be above 0, got {value!r}")
    return number


def require_delta(value: object) -> float:
    """Return a target delta as a float, or raise CalibrationError unless it is at least 1e-280 and below 1."""
    number = require_positive("delta", value)
    if not LEAST_DELTA <= number < 1.0:
        raise CalibrationError(f"delta must be from {LEAST_DELTA:g} to below 1, got {value!r}")
    return number


def require_max_groups(value: object) -> int:
    """Return ``value`` as an int, or raise CalibrationError unless it is a whole number from 1 to 10^6."""
    if isinstance(value, bool) or not isinstance(value, Integral) or not 1 <= int(value) <= MOST_GROUPS:
        raise CalibrationError(f"max_groups must be a whole number from 1 to {MOST_GROUPS}, got {value!r}")
    return int(value)


P = ParamSpec("P")
T = TypeVar("T")


def within_floats(function: Callable[P, T]) -> Callable[P, T]:
    """Refuse, with a CalibrationError, a request whose computation leaves the floating-point range.

    Numbers that overflow to infinity or underflow to 0 on the way are no warnings: each formula is written so that they
    end on the safe side. A division by 0, and a result that is no finite number, are refused here.
    """

    @wraps(function)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            with np.errstate(all="ignore"):
                result = function(*args, **kwargs)
        except (ArithmeticError, ValueError):
            result = None
        if result is None or (isinstance(result, float) and not math.isfinite(result)):
            raise CalibrationError(
                f"{function.__name__} leaves the floating-point range for these inputs: one of them is far too small, "
                "or too large"
            ) from None
        return result

    return guarded


def smallest_safe(is_safe: Callable[[float], bool], start: float, *, toward_safe: float = 2.0) -> float:
    """Smallest positive number that passes ``is_safe``, which fails below some bound and passes above it.

    The number returned has itself been checked, so a rounding error inside ``is_safe`` costs accuracy only.

    Args:
        is_safe: the condition.
        start: where the search begins, above 0.
        toward_safe: factor that leads to safe numbers.

    >>> round(smallest_safe(lambda x: x * x >= 2.0, 10.0), 12)
    1.414213562373
    """
    safe = start
    while not is_safe(safe):
        safe *= toward_safe
        if not 0.0 < safe < math.inf:
            raise CalibrationError("no number in the floating-point range meets the request")
    unsafe = safe / toward_safe
    while 0.0 < unsafe < math.inf and is_safe(unsafe):
        safe, unsafe = unsafe, unsafe / toward_safe
    if not 0.0 < unsafe < math.inf:
        return safe
    return narrow(is_safe, unsafe, safe)


def largest_safe(is_safe: Callable[[float], bool], start: float) -> float:
    """Largest positive number that passes ``is_safe``, which passes below some bound and fails above it."""
    return smallest_safe(is_safe, start, toward_safe=0.5)


def narrow(is_safe: Callable[[float], bool], unsafe: float, safe: float, resolution: float = RESOLUTION) -> float:
    """Shrink a bracket by bisection and return its safe end, which the caller has checked."""
    while abs(safe - unsafe) > resolution * abs(safe):
        middle = unsafe + 0.5 * (safe - unsafe)
        if middle in (unsafe, safe):
            break
        if is_safe(middle):
            safe = middle
        else:
            unsafe = middle
    return safe


def smallest_at_most(function: Callable[[float], float], target: float, lowest: float, resolution: float) -> float:
    """Smallest number from ``lowest`` > 0 on at which a falling positive function is at most ``target``, to resolution.

    As `smallest_safe`, with the function's values to go by and a number to start from that is most often close: for
    functions that are slow to compute.

    >>> round(smallest_at_most(lambda x: 1.0 / x**2, 0.5, 1.0, 1e-9), 6)
    1.414214
    """

    def excess(x: float) -> float:
        return math.log(max(function(x), sys.float_info.min)) - math.log(target)

    if function(lowest) <= target:
        return lowest
    unsafe, step = lowest, _FIRST_STEP
    while function(safe := lowest * (1.0 + step)) > target:
        unsafe, step = safe, 4.0 * step
        if not step < math.inf:
            raise CalibrationError("no number in the floating-point range meets the request")
    found: float = scipy.optimize.brentq(excess, unsafe, safe, xtol=sys.float_info.min, rtol=max(resolution, 2.0**-50))
    growth = resolution
    while function(found) > target:
        # The function may be rough below the resolution, so a step may have to grow.
        found, growth = found * (1.0 + growth), 2.0 * growth
    return min(found, safe)


def stepped_up(is_safe: Callable[[float], bool], near: float, *, step: float, scale: float) -> float:
    """First safe number from ``near`` on, by growing steps of a share of it and of ``scale``.

    A target near the end of the floating-point range may need a longer way than rounding alone.
    """
    while not is_safe(near):
        near = math.nextafter(near * (1.0 + step) + scale * step, math.inf)
        step *= 2.0
    return near


def least_epsilon(cost: Callable[[float], float], delta: float, start: float = 1.0) -> float:
    """Smallest epsilon, at least 0, at which a delta that falls with epsilon is at most ``delta``; rounded up."""
    require_delta(delta)
    return 0.0 if cost(0.0) <= delta else smallest_safe(lambda epsilon: cost(epsilon) <= delta, start)


def place_of_minimum(function: Callable[[float], float], grid: Sequence[float], tolerance: float) -> float:
    """Place of the least value near the best point of an ascending grid, by golden section.

    >>> round(place_of_minimum(lambda x: (x - 0.3) ** 2, [-1.0, 0.0, 1.0], 1e-9), 6)
    0.3
    """
    values = [function(place) for place in grid]
    best = min(range(len(grid)), key=values.__getitem__)
    low, high = grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)]
    inner = [(function(place), place) for place in (high - _GOLDEN * (high - low), low + _GOLDEN * (high - low))]
    while high - low > tolerance:
        if inner[0] < inner[1]:
            high, place = inner[1][1], inner[1][1] - _GOLDEN * (inner[1][1] - low)
            inner = [(function(place), place), inner[0]]
        else:
            low, place = inner[0][1], inner[0][1] + _GOLDEN * (high - inner[0][1])
            inner = [inner[1], (function(place), place)]
    return min(*inner, (values[best], grid[best]))[1]


_IN_RANGE: dict[str, Callable[[object], float]] = {
    "sigma": partial(require_positive, "sigma"),
    "aggregate_precision": partial(require_finite, "aggregate_precision", least=0.0),
    "beside": partial(require_finite, "beside", least=0.0),
    "max_groups": require_max_groups,
    "counted_groups": require_max_groups,
    "k": require_max_groups,
    "correlation": partial(require_finite, "correlation", least=0.0),
    "floor_correlation": partial(require_positive, "floor_correlation"),
}
"""Checks of the parameters of profiles, by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile(ABC):
    """Privacy of noisy counts, aggregates beside them, and a threshold that hides keys, at fixed noise.

    *Guarantee*: (epsilon, `delta`) when all rows of one unit are added or removed, for counts, aggregates and the set
    of shown keys together; and `threshold_delta`-approximate `rho`-zCDP (Bun and Steinke 2016, Definition 8.1) under
    the same relation, which is what the ledger adds up. *Source*: each implementation names its theorem.
    *Assumes*: continuous noise, or noise rounded on a lattice at tau + half a lattice step.
    *Raises*: CalibrationError for arguments out of range, NaN and infinity included. *Randomness*: none.

    Attributes:
        sigma: standard deviation of the noise that each key's count has of its own, above 0, in units.
        aggregate_precision: sum over the aggregates of (sensitivity_l2 per key / their noise)^2, at least 0.
        beside: sum of (sensitivity_l2 / noise)^2 over what is released with Gaussian noise whichever keys are shown, at
            least 0 (docs/proofs/coverage.md, Theorem 2).
        resolution: share of a number to which inverses are found by interpolation, for deltas that are slow to compute;
            None for bisection up to `RESOLUTION`.
        has_beside: whether `delta` covers what is beside; `rho` does in any case.
        slacks: shares of delta that `best_point` leaves for mixed neighbours, tried in turn; at 1/2 the sum of both
            pure cases bounds every pair.

    """

    sigma: float
    aggregate_precision: float = 0.0
    beside: float = 0.0
    resolution: ClassVar[float | None] = None
    has_beside: ClassVar[bool] = False
    slacks: ClassVar[tuple[float, ...]] = tuple(2.0**-power for power in (40, 30, 20, 10, 7, 5, 4, 3, 2, 1))

    def __post_init__(self) -> None:
        """Refuse parameters out of range; what is left at its default is in range."""
        for field in fields(self):
            if (value := getattr(self, field.name)) is not field.default and field.name in _IN_RANGE:
                _IN_RANGE[field.name](value)

    @within_floats
    def delta(self, epsilon: float, tau: float) -> float:
        """Smallest delta that is proved for the whole release, rounded up; it falls with epsilon and with tau.

        Args: epsilon at least 0; tau at least 0, in units: a key is shown if its noisy count exceeds 1 + tau.
        """
        require_finite("epsilon", epsilon, least=0.0)
        if self.beside and not self.has_beside:
            raise CalibrationError("this profile has a common term, and nothing is released beside its keys")
        return self._delta(epsilon, require_finite("tau", tau, least=0.0))

    @within_floats
    def threshold_delta(self, tau: float) -> float:
        """Probability that keys which only one of two neighbours has are shown, at most; rounded up, falls with tau."""
        return self._threshold_delta(require_finite("tau", tau, least=0.0))

    @property
    @within_floats
    def rho(self) -> float:
        """Level of zCDP, half the largest squared distance of the means; rounded up."""
        return 0.5 * (self._squared_distance() + self.beside) * (1.0 + 2.0**-50 * (self.beside > 0.0))

    @property
    @abstractmethod
    def unit_groups(self) -> int:
        """Most shown keys over which one unit's part of the aggregates is spread."""

    @property
    def highest_threshold(self) -> float:
        """Tau from which on keys hide for sure, so that only the noise costs."""
        return 1.1 * FAR * self.sigma

    @abstractmethod
    def own_threshold(self, delta: float) -> float:
        """Smallest tau, at least 0, whose `threshold_delta` is at most ``delta``; rounded up, unchecked."""

    def threshold_share(self, epsilon: float, delta: float, slack: float = 0.0) -> float:  # noqa: ARG002
        """Most that `threshold_delta` may be in a release that costs (1 - slack) delta; 0 or less for no threshold."""
        return delta * (1.0 - slack)

    def least_epsilon(self, delta: float) -> float:  # noqa: ARG002
        """Bound from below on any epsilon at delta, near which interpolation begins."""
        return 0.0

    @abstractmethod
    def _delta(self, epsilon: float, tau: float) -> float:
        """`delta` of arguments in range."""

    @abstractmethod
    def _threshold_delta(self, tau: float) -> float:
        """`threshold_delta` of a tau in range."""

    @abstractmethod
    def _squared_distance(self) -> float:
        """Largest squared distance of two neighbours' means, in standard deviations, rounded up."""


@lru_cache(maxsize=4096)
@within_floats
def smallest_epsilon(profile: Profile, delta: float, tau: float) -> float:
    """Smallest epsilon for which a release with the threshold tau is (epsilon, delta)-private.

    Args: delta from `LEAST_DELTA` to below 1; tau as `Profile.delta`.
    Returns: epsilon at least 0, rounded up: profile.delta(epsilon, tau) <= delta.
    Raises: CalibrationError for arguments out of range, and if the threshold alone costs more than delta.
    """
    require_delta(delta)
    lost = profile.threshold_delta(tau)
    if lost > delta:
        raise CalibrationError(f"the threshold alone costs delta = {lost:.6g}, more than {delta:.6g}")
    cost = partial(profile.delta, tau=tau)
    if cost(0.0) <= delta:
        return 0.0
    if profile.resolution is None:
        return smallest_safe(lambda epsilon: cost(epsilon) <= delta, 1.0)
    return smallest_at_most(cost, delta, max(profile.least_epsilon(delta), profile.resolution), profile.resolution)


@lru_cache(maxsize=4096)
@within_floats
def smallest_threshold(profile: Profile, delta: float) -> float:
    """Smallest tau whose own part, what the ledger adds beside rho, is at most delta.

    Args: delta from `LEAST_DELTA` to below 1.
    Returns: tau at least 0, in units, rounded up: profile.threshold_delta(tau) <= delta.
    Raises: CalibrationError for arguments out of range.
    """
    return profile.own_threshold(require_delta(delta))


@lru_cache(maxsize=4096)
@within_floats
def smallest_query_threshold(profile: Profile, epsilon: float, delta: float) -> float:
    """Smallest tau for which the whole release is (epsilon, delta)-private.

    Args: epsilon at least 0; delta from `LEAST_DELTA` to below 1.
    Returns: tau at least 0, in units, rounded up: profile.delta(epsilon, tau) <= delta.
    Raises: CalibrationError for arguments out of range, and if the noise alone costs more than delta.
    """
    require_delta(delta)
    cost = partial(profile.delta, epsilon)
    left = profile.threshold_share(epsilon, delta)
    lowest = profile.own_threshold(left) if left > 0.0 else 0.0
    if cost(lowest) <= delta:
        return lowest
    if cost(profile.highest_threshold) > delta:
        raise CalibrationError(f"sigma = {profile.sigma!r} is too small for epsilon = {epsilon!r}, delta = {delta!r}")
    if profile.resolution is None:
        return narrow(lambda tau: cost(tau) <= delta, lowest, profile.highest_threshold)
    return smallest_at_most(cost, delta, max(lowest, profile.sigma * profile.resolution), profile.resolution)


@lru_cache(maxsize=4096)
@within_floats
def smallest_sigma(profile: Profile, rho: float) -> float:
    """Smallest noise of the counts, without aggregates, that spends at most rho; the profile's own does not matter.

    Args: rho above 0.
    Returns: standard deviation of each key's own noise, in units, rounded up: the profile's `rho` at it is at most rho.
    Raises: CalibrationError for arguments out of range.
    """
    require_positive("rho", rho)
    return math.sqrt(replace(profile, sigma=1.0, aggregate_precision=0.0, beside=0.0).rho / rho) * UP
