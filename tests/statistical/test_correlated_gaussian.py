"""The joint law of noise with a common term, at fixed seeds: every check also has to catch the planted faults."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import special, stats

from dpsql.noise.correlated_gaussian import GRID_BITS, CorrelatedGaussian
from dpsql.noise.rounded_gaussian import RoundedGaussian
from tests.deterministic_entropy import SeededEntropy

pytestmark = pytest.mark.statistical

# in counts; on the grid, which is exact in float64
Draws = NDArray[np.float64]
Drawing = Callable[[CorrelatedGaussian, SeededEntropy], Draws]
GRID = 1 << GRID_BITS
RELEASES = 4_000
KEYS = 20
# The true law falls below this with probability 1e-4 per check; the planted faults fall far below it.
ACCEPTED = 1e-4
CAUGHT = 1e-9
MECHANISMS = [CorrelatedGaussian(0.4, 1.0), CorrelatedGaussian(3.0, 0.5), CorrelatedGaussian(50.0, 0.3)]


def as_it_is(mechanism: CorrelatedGaussian, entropy: SeededEntropy) -> Draws:
    return np.array([mechanism.draw(KEYS, entropy).values for _ in range(RELEASES)]) / GRID


def common_term_per_key(mechanism: CorrelatedGaussian, entropy: SeededEntropy) -> Draws:
    own = RoundedGaussian(mechanism.sigma * GRID).draw(RELEASES * KEYS, entropy)
    common = RoundedGaussian(mechanism.sigma * math.sqrt(mechanism.correlation) * GRID)
    return (own + common.draw(RELEASES * KEYS, entropy)).reshape(RELEASES, KEYS) / GRID


def three_percent_low(mechanism: CorrelatedGaussian, entropy: SeededEntropy) -> Draws:
    return as_it_is(CorrelatedGaussian(0.97 * mechanism.sigma, mechanism.correlation), entropy)


def on_whole_counts(mechanism: CorrelatedGaussian, entropy: SeededEntropy) -> Draws:
    own = RoundedGaussian(mechanism.sigma).draw(RELEASES * KEYS, entropy).reshape(RELEASES, KEYS)
    common = RoundedGaussian(mechanism.sigma * math.sqrt(mechanism.correlation)).draw(RELEASES, entropy)
    return (own + common[:, None]).astype(np.float64)


def marginal_p(draws: Draws, mechanism: CorrelatedGaussian) -> float:
    """Chi-square of the first key's noise against N(0, sigma^2 (1 + correlation)) in 40 bins of equal mass."""
    sigma = mechanism.sigma * math.sqrt(1 + mechanism.correlation)
    edges = sigma * special.ndtri(np.arange(1, 40) / 40)
    observed = np.bincount(np.searchsorted(edges, draws[:, 0]), minlength=40)
    return float(stats.chisquare(observed).pvalue)


def covariance_p(draws: Draws, mechanism: CorrelatedGaussian) -> float:
    """Compare the products of neighbouring keys with the variance of the common term."""
    return mean_p(draws[:, ::2] * draws[:, 1::2], mechanism.correlation * mechanism.sigma**2)


def contrast_p(draws: Draws, mechanism: CorrelatedGaussian) -> float:
    """Compare the squared differences of neighbouring keys, free of the common term, with twice the own variance."""
    return mean_p((draws[:, ::2] - draws[:, 1::2]) ** 2, 2 * mechanism.sigma**2)


def mean_p(values: Draws, expected: float) -> float:
    """Normal test of the mean; releases are independent, the keys of one release are not."""
    per_release = values.mean(axis=1)
    score = (per_release.mean() - expected) / per_release.std() * math.sqrt(RELEASES)
    return 2 * float(stats.norm.sf(abs(score)))


def law_p(draw: Drawing, mechanism: CorrelatedGaussian, seed: int = 11) -> float:
    draws = draw(mechanism, SeededEntropy(seed))
    return min(1.0, 3 * min(check(draws, mechanism) for check in (marginal_p, covariance_p, contrast_p)))


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_marginals_covariance_and_contrast_are_right(mechanism: CorrelatedGaussian) -> None:
    assert law_p(as_it_is, mechanism) > ACCEPTED


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_common_term_drawn_for_each_key_is_caught(mechanism: CorrelatedGaussian) -> None:
    assert law_p(common_term_per_key, mechanism) < CAUGHT


def test_three_percent_too_little_noise_is_caught() -> None:
    assert law_p(three_percent_low, MECHANISMS[1]) < CAUGHT


def test_rounding_to_whole_counts_is_caught() -> None:
    assert law_p(on_whole_counts, MECHANISMS[0]) < CAUGHT


def test_the_floor_is_free_of_its_counts_common_term() -> None:
    """Count plus floor has the variance of both own noises; a floor with noise of its own alone is caught."""
    mechanism, entropy = CorrelatedGaussian(3.0, 4.0, floor_correlation=0.5), SeededEntropy(5)
    sums: dict[str, list[float]] = {"with": [], "without": []}
    for _ in range(RELEASES):
        noise = mechanism.draw(1, entropy)
        sums["with"].append((noise.values[0] + noise.floor) / GRID)
        sums["without"].append((noise.values[0] + noise.floor + noise.common) / GRID)
    p_values = {
        name: float(stats.kstest(np.array(draws) / math.sqrt(9 * 1.5), "norm").pvalue) for name, draws in sums.items()
    }
    assert p_values["with"] > ACCEPTED
    assert p_values["without"] < CAUGHT
