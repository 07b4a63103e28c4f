"""When a noisy histogram of units says enough for a choice that later queries keep; docs/proofs/auto.md."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from dpsql.accounting.sparse_histogram import threshold

Floats = npt.NDArray[np.float64]

FALSE_POSITIVE = 1e-6
"""Probability that noise alone makes any place without units count as one that surely holds some."""
_MOST_LEFT_OUT = 0.25


def sure_places(noisy: Floats, sigma: float, places: int, probability: float = FALSE_POSITIVE) -> npt.NDArray[np.bool_]:
    """Which places surely hold units: of so many empty ones, any is among them with at most the probability."""
    passed: npt.NDArray[np.bool_] = noisy > threshold(probability, max_groups=places, sigma=sigma)
    return passed


def holds_most(inside: Floats, outside: Floats, sigma: float) -> bool:
    """Whether places inside a choice hold three quarters of the units, by noisy counts.

    What lies outside is taken one standard deviation of its noise higher than it seems.
    """
    most_outside = max(float(outside.sum()), 0.0) + sigma * math.sqrt(len(outside))
    return (1.0 - _MOST_LEFT_OUT) * most_outside <= _MOST_LEFT_OUT * float(inside.sum())
