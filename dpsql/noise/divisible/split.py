"""The best split of epsilon between coarse and fine noise, for many spacings at once."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]

_GOLDEN = (math.sqrt(5) - 1) / 2
_STEPS = 48
_MARGIN = 1e-6


def least_splits(epsilon: float, variance: Callable[[Numbers], Numbers], count: int) -> Numbers:
    """Return the part of epsilon for fine noise that makes each of `count` variances least.

    *Args*: `variance` of the parts, shape (count,), convex in each; parts are between 0 and epsilon.
    *Returns*: golden-section search; a part that is off by 1e-8 changes a variance by a share of about 1e-15.
    """
    low, high = np.full(count, _MARGIN * epsilon), np.full(count, (1 - _MARGIN) * epsilon)
    for _ in range(_STEPS):
        width = _GOLDEN * (high - low)
        left, right = high - width, low + width
        falls = variance(left) > variance(right)
        low, high = np.where(falls, left, low), np.where(falls, high, right)
    splits: Numbers = (low + high) / 2
    return splits


def squares_to(scales: Numbers) -> Numbers:
    """Return 1 + 4 + 9 + … + scales^2."""
    return scales * (scales + 1) * (2 * scales + 1) / 6


def discrete_variance(decay: Numbers) -> Numbers:
    """Return the variances of discrete Laplace noise with P(x) proportional to exp(-decay |x|)."""
    variances: Numbers = 1 / (2 * np.sinh(decay / 2) ** 2)
    return variances
