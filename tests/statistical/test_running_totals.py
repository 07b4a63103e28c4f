"""The joint law of noisy running totals, at a fixed seed: every check also has to catch the planted faults."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats
from scipy.linalg import toeplitz

from dpsql.noise.rounded_gaussian import RoundedGaussian
from dpsql.noise.running_totals import FRACTION_BITS, FractionalSum
from tests.deterministic_entropy import SeededEntropy

pytestmark = pytest.mark.statistical

Draws = NDArray[np.float64]
Drawing = Callable[[FractionalSum, SeededEntropy], Draws]
BUCKETS, RELEASES = 16, 5_000
RHO, UNIT_GROUPS = 0.02, 3
EXACT = np.arange(BUCKETS, dtype=np.int64) ** 3 - 700
STEPS = 1 << FRACTION_BITS
# The true law falls below this with probability 1e-4 per check; the planted faults fall far below it.
ACCEPTED = 1e-4
CAUGHT = 1e-9
SUMS = [FractionalSum(BUCKETS), FractionalSum(BUCKETS, 5), FractionalSum(BUCKETS, 0)]


def noisy_totals(total: FractionalSum, sigma_steps: float, entropy: SeededEntropy) -> Draws:
    """One release a row, in counts."""
    noise = RoundedGaussian(sigma_steps).draw(RELEASES * BUCKETS, entropy).reshape(RELEASES, BUCKETS)
    return total.totals((total.transform(EXACT, FRACTION_BITS) + noise) / STEPS)


def declared(total: FractionalSum) -> float:
    return total.sensitivity_steps(1, UNIT_GROUPS, FRACTION_BITS) / math.sqrt(2 * RHO)


def as_it_is(total: FractionalSum, entropy: SeededEntropy) -> Draws:
    return noisy_totals(total, declared(total), entropy)


def for_the_last_buckets(total: FractionalSum, entropy: SeededEntropy) -> Draws:
    last = np.zeros(BUCKETS, dtype=np.int64)
    last[-UNIT_GROUPS:] = 1
    moved = float(np.linalg.norm(total.transform(last, FRACTION_BITS)))
    return noisy_totals(total, moved / math.sqrt(2 * RHO), entropy)


def three_percent_low(total: FractionalSum, entropy: SeededEntropy) -> Draws:
    return noisy_totals(total, 0.97 * declared(total), entropy)


def independent_totals(total: FractionalSum, entropy: SeededEntropy) -> Draws:
    """Each total has its own noise, of the right size."""
    noise = RoundedGaussian(declared(total)).draw(RELEASES * BUCKETS, entropy).reshape(RELEASES, BUCKETS)
    return np.cumsum(EXACT) + noise / STEPS * total.total_norms()


def one_bucket_late(total: FractionalSum, entropy: SeededEntropy) -> Draws:
    return np.roll(as_it_is(total, entropy), 1, axis=1)


def law_p(draw: Drawing, total: FractionalSum, seed: int = 7) -> float:
    """Least p-value of means and covariances, after the theory's covariance is taken away.

    The matrices are those of exact coefficients, in floating point; nothing of the mechanism is used but its power.
    """
    power = total.sixteenths / 16
    coefficients = np.cumprod([1.0, *((k - 1 + power) / k for k in range(1, BUCKETS))])
    fractional = toeplitz(coefficients, np.zeros(BUCKETS))
    # worst of all neighbours: the first buckets
    sigma = np.linalg.norm(fractional[:, :UNIT_GROUPS].sum(axis=1)) / math.sqrt(2 * RHO)
    errors = draw(total, SeededEntropy(seed)) - np.cumsum(EXACT)
    white = np.linalg.solve(np.tri(BUCKETS) @ np.linalg.inv(fractional) * sigma, errors.T)
    means = float((white.mean(axis=1) ** 2).sum()) * RELEASES
    products = white @ white.T / RELEASES - np.eye(BUCKETS)
    off_diagonal = float((np.triu(products, 1) ** 2).sum()) * RELEASES
    p_values = [
        stats.chi2.sf(means, BUCKETS),
        stats.chi2.sf(off_diagonal, BUCKETS * (BUCKETS - 1) // 2),
        2 * min(stats.chi2.cdf(size := float((white**2).sum()), white.size), stats.chi2.sf(size, white.size)),
    ]
    return min(1.0, 3 * float(min(p_values)))


@pytest.mark.parametrize("total", SUMS)
def test_means_and_covariances_are_right(total: FractionalSum) -> None:
    assert law_p(as_it_is, total) > ACCEPTED


@pytest.mark.parametrize("total", SUMS[:2])
def test_noise_for_the_last_buckets_is_caught(total: FractionalSum) -> None:
    assert law_p(for_the_last_buckets, total) < CAUGHT


@pytest.mark.parametrize("total", SUMS)
@pytest.mark.parametrize("fault", [three_percent_low, independent_totals, one_bucket_late])
def test_planted_faults_are_caught(fault: Drawing, total: FractionalSum) -> None:
    assert law_p(fault, total) < CAUGHT
