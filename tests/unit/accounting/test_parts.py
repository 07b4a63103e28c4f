"""A threshold on parts of any sizes, against vectors that a search makes as bad as it can."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import special

from dpsql.accounting.parts import delta_of_parts, threshold_of_parts
from dpsql.accounting.profile import smallest_threshold
from dpsql.accounting.sparse_histogram import WeightedProfile

DELTA = 1e-6


def passes(parts: list[float], tau: float, sigma: float) -> float:
    """Return the probability that one of the parts passes."""
    exponents = special.log_ndtr((1.0 + tau - np.array(parts)) / sigma)
    return -math.expm1(float(exponents.sum()))


def worst(parts: int, tau: float, sigma: float) -> float:
    """Return the largest probability over one large part, some of a second size, and equal small ones."""
    found = 0.0
    for large in np.linspace(0.0, 1.0, 201):
        left = 1.0 - large**2
        for others in {1, parts // 2, parts - 1} - {0}:
            found = max(found, passes([float(large), *[math.sqrt(left / others)] * others], tau, sigma))
    return found


@pytest.mark.parametrize("sigma", [0.3, 1.0, 1.6, 5.0])
@pytest.mark.parametrize("parts", [2, 8, 64])
def test_no_vector_passes_more_often(sigma: float, parts: int) -> None:
    tau = threshold_of_parts(DELTA, sigma, parts)
    stated = delta_of_parts(tau, sigma, parts)
    assert stated <= DELTA
    assert 0.45 * stated <= worst(parts, tau, sigma) <= stated


def test_one_part_is_exact_and_twice_that() -> None:
    """A single part counts in both sums of the bound, which is what is lost of it."""
    tau = threshold_of_parts(DELTA, 2.0, 1)
    assert passes([1.0], tau, 2.0) == pytest.approx(DELTA / 2.0, rel=1e-3)


def test_the_check_finds_a_threshold_for_equal_parts() -> None:
    sigma = 1.0 / math.sqrt(2.0 * 0.2)
    tau = smallest_threshold(WeightedProfile(max_groups=1, counted_groups=8, sigma=sigma), DELTA)
    assert worst(8, tau, sigma) > 1.2 * DELTA
