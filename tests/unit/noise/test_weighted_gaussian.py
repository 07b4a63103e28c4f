"""Draws of correlated noise with a deviation for each key: exact numbers, refusals, the joint law at fixed seeds."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import numpy.typing as npt
import pytest
from scipy import stats

from dpsql.errors import CalibrationError
from dpsql.noise.correlated_gaussian import GRID_BITS
from dpsql.noise.rounded_gaussian import RoundedGaussian
from dpsql.noise.weighted_gaussian import (
    MOST_SIGMA,
    VALUES_PER_DOUBLING,
    WeightedCorrelatedGaussian,
    with_few_values,
)
from tests.deterministic_entropy import SeededEntropy

Floats = npt.NDArray[np.float64]
Drawing = Callable[[WeightedCorrelatedGaussian, SeededEntropy], npt.NDArray[np.int64]]

GRID = 1 << GRID_BITS
RELEASES = 1_500
# The true law falls below this with probability 1e-4 per check; the planted faults fall far below it.
ACCEPTED = 1e-4
CAUGHT = 1e-9
LAW = WeightedCorrelatedGaussian(np.array([0.5, 2.0, 8.0, 2.0, 0.5]), 1.5)


def test_the_draw_is_the_sum_of_rounded_gaussians_on_the_grid() -> None:
    """Keys with one deviation are drawn together, the smallest deviation first, the common term last."""
    noise = WeightedCorrelatedGaussian(np.array([3.0, 1.5, 3.0]), 2.0).draw(3, SeededEntropy(3))
    entropy = SeededEntropy(3)
    (small,) = RoundedGaussian(1.5 * GRID).draw(1, entropy).tolist()
    large = RoundedGaussian(3.0 * GRID).draw(2, entropy).tolist()
    (common,) = RoundedGaussian(2.0 * GRID).draw(1, entropy).tolist()
    assert noise.tolist() == [large[0] + common, small + common, large[1] + common]


def test_nothing_is_rounded_to_whole_counts() -> None:
    noise = WeightedCorrelatedGaussian(np.full(1_000, 3.5), 1.0).draw(1_000, SeededEntropy(3))
    assert np.unique(noise % GRID).size > 990


def test_half_a_count_is_on_the_grid_so_that_a_shift_moves_the_rounded_common_term_exactly() -> None:
    """Theorem 2 in rationals: [c + m/2] - m/2 is [c]. A third of a count is not on the grid, and fails."""

    def rounded(value: Fraction) -> Fraction:
        return Fraction(math.floor(value * GRID + Fraction(1, 2)), GRID)

    rng = np.random.default_rng(5)
    terms = [Fraction(float(value)) for value in rng.normal(0.0, 3.0, 500)]
    for most in (1, 2, 3):
        shift = Fraction(most, 2)
        assert all(rounded(term + shift) - shift == rounded(term) for term in terms)
    assert any(rounded(term + Fraction(1, 3)) - Fraction(1, 3) != rounded(term) for term in terms)


@pytest.mark.parametrize("sigma", [0.0, -1.0, math.nan, math.inf, MOST_SIGMA * 1.01])
def test_a_wrong_scale_is_refused(sigma: float) -> None:
    with pytest.raises(CalibrationError):
        WeightedCorrelatedGaussian(np.array([1.0, sigma]), 1.0)
    with pytest.raises(CalibrationError):
        WeightedCorrelatedGaussian(np.array([1.0, 2.0]), sigma)


@pytest.mark.parametrize("count", [-1, 0, 1, 3])
def test_noise_for_another_number_of_keys_is_refused(count: int) -> None:
    with pytest.raises(CalibrationError):
        WeightedCorrelatedGaussian(np.array([1.0, 2.0]), 1.0).draw(count, SeededEntropy(1))


def test_the_largest_scale_is_drawn() -> None:
    noise = WeightedCorrelatedGaussian(np.full(20, MOST_SIGMA), MOST_SIGMA).draw(20, SeededEntropy(1))
    assert np.abs(noise).max() > MOST_SIGMA * GRID / 2


def test_few_values_are_near_and_few() -> None:
    sigmas = np.random.default_rng(2).uniform(1.0, 16.0, 5_000)
    near = with_few_values(sigmas)
    assert len(np.unique(near)) <= 4 * VALUES_PER_DOUBLING + 1
    assert np.abs(np.log2(near / sigmas)).max() <= 0.5 / VALUES_PER_DOUBLING * (1 + 1e-9)
    # doubled deviations have doubled values, to the last bit
    np.testing.assert_array_equal(with_few_values(2.0 * sigmas), 2.0 * near)


def as_it_is(law: WeightedCorrelatedGaussian, entropy: SeededEntropy) -> npt.NDArray[np.int64]:
    return law.draw(len(law.own), entropy)


def without_the_common_term(law: WeightedCorrelatedGaussian, entropy: SeededEntropy) -> npt.NDArray[np.int64]:
    return np.concatenate([RoundedGaussian(sigma * GRID).draw(1, entropy) for sigma in law.own.tolist()])


def a_common_term_for_each_key(law: WeightedCorrelatedGaussian, entropy: SeededEntropy) -> npt.NDArray[np.int64]:
    common = RoundedGaussian(law.common * GRID).draw(len(law.own), entropy)
    return without_the_common_term(law, entropy) + common


def deviations_of_the_wrong_keys(law: WeightedCorrelatedGaussian, entropy: SeededEntropy) -> npt.NDArray[np.int64]:
    return as_it_is(WeightedCorrelatedGaussian(np.roll(law.own, 1), law.common), entropy)


def ten_percent_low(law: WeightedCorrelatedGaussian, entropy: SeededEntropy) -> npt.NDArray[np.int64]:
    return as_it_is(WeightedCorrelatedGaussian(0.9 * law.own, 0.9 * law.common), entropy)


def law_p(draw: Drawing, law: WeightedCorrelatedGaussian = LAW) -> float:
    """Return the smallest p-value of five checks, times five.

    Draws are whitened by the covariance diag(own^2) + common^2. Then the sum of all squares has a chi-square law
    (small or large sums are both refused), the coordinates are independent with variance 1, and one coordinate is
    normal. The products of each pair of keys and the squares of each key have the means of the covariance.
    """
    entropy = SeededEntropy(11)
    draws = np.array([draw(law, entropy) for _ in range(RELEASES)]) / GRID
    keys = len(law.own)
    covariance = np.diag(law.own**2) + law.common**2
    white = np.linalg.solve(np.linalg.cholesky(covariance), draws.T)
    squares, degrees = float((white**2).sum()), white.size
    tails = 2.0 * min(stats.chi2.sf(squares, degrees), stats.chi2.cdf(squares, degrees))
    # means of squares and products over the releases; each is nearly normal with these variances
    means = white @ white.T / RELEASES
    diagonal = np.sqrt(RELEASES / 2.0) * (np.diag(means) - 1.0)
    beside = math.sqrt(RELEASES) * means[np.triu_indices(keys, 1)]
    first = float(stats.kstest(draws[:, 0] / math.sqrt(covariance[0, 0]), "norm").pvalue)
    last = float(stats.kstest(white[-1], "norm").pvalue)
    of_squares = float(stats.chi2.sf((diagonal**2).sum(), len(diagonal)))
    of_products = float(stats.chi2.sf((beside**2).sum(), len(beside)))
    return 5.0 * min(tails, of_squares, of_products, first, last)


def test_the_joint_law_is_that_of_the_covariance() -> None:
    assert law_p(as_it_is) > ACCEPTED


@pytest.mark.parametrize(
    "fault", [without_the_common_term, a_common_term_for_each_key, deviations_of_the_wrong_keys, ten_percent_low]
)
def test_a_wrong_law_is_caught(fault: Drawing) -> None:
    assert law_p(fault) < CAUGHT
