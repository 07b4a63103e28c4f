"""The law of the discrete Gaussian at fixed seeds, against its exact probabilities, with planted faults."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from dpsql.noise import discrete_gaussian
from dpsql.noise.discrete_gaussian import (
    DiscreteCorrelatedGaussian,
    DiscreteGaussian,
    discrete_laplace,
    rational_variance,
)
from dpsql.noise.entropy import Entropy
from tests.deterministic_entropy import SeededEntropy

pytestmark = pytest.mark.statistical

Draws = NDArray[np.int64]
DRAWS = 150_000
# The true law falls below this with probability 1e-4 per check; the planted faults fall far below it.
ACCEPTED = 1e-4
CAUGHT = 1e-9
VARIANCES = [
    Fraction(1, 10),
    Fraction(3, 10),
    Fraction(10),
    rational_variance(12.34),
    Fraction(10**4),
    Fraction(10**9),
    rational_variance(2.0**25.3),
]


def law_of(variance: Fraction) -> tuple[Draws, NDArray[np.float64]]:
    """Points and probabilities, or bins of equal width where there are too many points."""
    sigma = math.sqrt(variance)
    reach = math.ceil(9 * sigma) + 2
    step = max(1, reach // 100_000)
    points = np.arange(-(reach // step), reach // step + 1) * step
    weights = np.exp(-(points.astype(float) ** 2) / (2 * float(variance)))
    return points, weights / weights.sum()


def chi_square_p(draws: Draws, variance: Fraction) -> float:
    """About 60 bins of equal chance (fewer where points are heavier); a bin takes whole points."""
    points, law = law_of(variance)
    step = int(points[1] - points[0])
    shares = np.cumsum(law)
    ends = np.unique(np.searchsorted(shares, np.arange(1, 60) / 60).clip(0, points.size - 2))
    if step == 1:
        ends = ends[(np.diff(shares[ends], prepend=0.0) * draws.size > 5) & ((1 - shares[ends]) * draws.size > 5)]
    # A wide step stands for the numbers around it; a point on the border belongs to either half.
    borders = points[ends] + step // 2
    observed = np.bincount(np.searchsorted(borders, draws, side="left"), minlength=borders.size + 1)
    expected = np.diff(shares[ends], prepend=0.0, append=1.0)
    return float(stats.chisquare(observed, expected * draws.size).pvalue)


def moments_p(draws: Draws, variance: Fraction) -> float:
    points, law = law_of(variance)
    values, exact = draws.astype(float), points.astype(float)
    scores = []
    for power in (1, 2):
        mean, square = float(exact**power @ law), float(exact ** (2 * power) @ law)
        scores.append((float((values**power).mean()) - mean) / math.sqrt(square - mean**2) * math.sqrt(values.size))
    return min(1.0, 2 * min(2 * float(stats.norm.sf(abs(score))) for score in scores))


def law_p(draws: Draws, variance: Fraction) -> float:
    return min(1.0, 2 * min(chi_square_p(draws, variance), moments_p(draws, variance)))


def drawn(variance: Fraction, seed: int = 21, count: int = DRAWS) -> Draws:
    return DiscreteGaussian(variance).draw(count, SeededEntropy(seed))


@pytest.mark.parametrize("variance", VARIANCES)
def test_draws_follow_the_discrete_gaussian(variance: Fraction) -> None:
    draws = drawn(variance)
    assert law_p(draws, variance) > ACCEPTED


@pytest.mark.parametrize("variance", [Fraction(3, 10), Fraction(10**9)])
def test_a_variance_three_percent_low_is_caught(variance: Fraction) -> None:
    assert law_p(drawn(variance * Fraction(97, 100), count=2 * DRAWS), variance) < CAUGHT


def zero_twice(scale: int, count: int, entropy: Entropy) -> Draws:
    draws = discrete_laplace(scale, count, entropy)
    return np.concatenate([draws, draws[draws == 0]])


@pytest.mark.parametrize("variance", [Fraction(3, 10), Fraction(10)])
def test_counting_zero_twice_is_caught(monkeypatch: pytest.MonkeyPatch, variance: Fraction) -> None:
    monkeypatch.setattr(discrete_gaussian, "discrete_laplace", zero_twice)
    assert law_p(drawn(variance), variance) < CAUGHT


def test_proposals_kept_without_a_coin_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discrete_gaussian, "bernoulli_exp_of_sum", lambda count, *_: np.ones(count, dtype=np.bool_))
    assert law_p(drawn(Fraction(100)), Fraction(100)) < CAUGHT


@pytest.mark.parametrize("scale", [1, 2, 5, 1000])
def test_laplace_proposals_have_their_law(scale: int) -> None:
    draws = discrete_laplace(scale, DRAWS, SeededEntropy(3))
    reach = math.ceil(-scale * math.log(20 / draws.size))
    points = np.arange(-reach, reach + 1)
    law = np.exp(-np.abs(points) / scale) * math.tanh(0.5 / scale)
    width = max(1, reach // 20)
    binned = np.add.reduceat(law, np.arange(0, points.size, width))
    edges = points[::width][1:]
    tail = 0.5 * (1 - law.sum())
    binned[0] += tail
    binned[-1] += tail
    observed = np.bincount(np.searchsorted(edges, draws, side="right"), minlength=binned.size)
    assert stats.chisquare(observed, binned / binned.sum() * draws.size).pvalue > ACCEPTED


def test_the_way_for_far_proposals_has_the_same_law(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discrete_gaussian, "_MOST_SCALES", 0)
    draws = drawn(rational_variance(1.7), count=4000)
    assert law_p(draws, rational_variance(1.7)) > ACCEPTED


def test_low_bits_are_uniform() -> None:
    draws = drawn(Fraction(10**9))
    assert stats.chisquare(np.bincount(draws & 255, minlength=256)).pvalue > ACCEPTED
    assert stats.chisquare(np.bincount(draws & ~1 & 255, minlength=256)).pvalue < CAUGHT


def test_keys_share_the_common_integer_and_nothing_else() -> None:
    """Mean product of two keys; a common term of their own for each key is caught."""
    mechanism, entropy, releases = DiscreteCorrelatedGaussian(Fraction(4), Fraction(1, 2)), SeededEntropy(9), 300
    draws = np.array([mechanism.draw(60, entropy).values for _ in range(releases)])
    apart = draws.ravel()[np.random.Generator(np.random.Philox(1)).permutation(draws.size)].reshape(draws.shape)

    def covariance_p(values: Draws) -> float:
        products = (values[:, ::2] * values[:, 1::2]).mean(axis=1)
        return 2 * float(stats.norm.sf(abs((products.mean() - 8) / products.std() * math.sqrt(releases))))

    assert covariance_p(draws) > ACCEPTED
    assert covariance_p(apart) < CAUGHT
