"""What every calibration shares: refusing bad inputs, and a search that can only end on the safe side."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass
from functools import wraps
from numbers import Integral, Real
from typing import ParamSpec, TypeVar

import numpy as np
import scipy

from dpsql.errors import CalibrationError

# Two ends of a bracket closer than this (relative) are taken as one number.
RESOLUTION = 2.0**-47
# Smaller targets are met by no logarithm of a float that is not lost to underflow, and mean nothing.
LEAST_DELTA = 1e-280
# More groups per unit than this are a mistake, and arrays of that length would not fit.
MOST_GROUPS = 10**6
# The doubling search leaves the floating-point range after about this many steps.
MOST_STEPS = 2200
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
        if result is None or not all(math.isfinite(number) for number in _numbers(result)):
            raise CalibrationError(
                f"{function.__name__} leaves the floating-point range for these inputs: one of them is far too small, "
                "or too large"
            ) from None
        return result

    return guarded


def _numbers(result: object) -> list[float]:
    if is_dataclass(result):
        return [number for field in fields(result) for number in _numbers(getattr(result, field.name))]
    return [result] if isinstance(result, float) else []


def smallest_safe(is_safe: Callable[[float], bool], start: float) -> float:
    """Smallest positive number that passes ``is_safe``, which fails below some bound and passes above it.

    The number returned has itself been checked, so a rounding error inside ``is_safe`` costs accuracy only.

    >>> round(smallest_safe(lambda x: x * x >= 2.0, 10.0), 12)
    1.414213562373
    """
    return _boundary(is_safe, start, toward_safe=2.0)


def largest_safe(is_safe: Callable[[float], bool], start: float) -> float:
    """Largest positive number that passes ``is_safe``, which passes below some bound and fails above it."""
    return _boundary(is_safe, start, toward_safe=0.5)


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

    if excess(lowest) <= 0.0:
        return lowest
    unsafe, step = lowest, _FIRST_STEP
    while excess(safe := lowest * (1.0 + step)) > 0.0:
        unsafe, step = safe, 4.0 * step
        if not step < math.inf:
            raise CalibrationError("no number in the floating-point range meets the request")
    found: float = scipy.optimize.brentq(excess, unsafe, safe, xtol=sys.float_info.min, rtol=max(resolution, 2.0**-50))
    growth = resolution
    while excess(found) > 0.0:
        # The function may be rough below the resolution, so a step may have to grow.
        found, growth = found * (1.0 + growth), 2.0 * growth
    return min(found, safe)


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


def _boundary(is_safe: Callable[[float], bool], start: float, *, toward_safe: float) -> float:
    safe = start
    for _ in range(MOST_STEPS):
        if is_safe(safe):
            break
        safe *= toward_safe
        if not 0.0 < safe < math.inf:
            raise CalibrationError("no number in the floating-point range meets the request")
    unsafe = safe / toward_safe
    while 0.0 < unsafe < math.inf and is_safe(unsafe):
        safe, unsafe = unsafe, unsafe / toward_safe
    if not 0.0 < unsafe < math.inf:
        return safe
    return narrow(is_safe, unsafe, safe)
