"""The sampling law at fixed seeds: every check below also has to catch the planted faults."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import special, stats

from dpsql.noise import rounded_gaussian
from dpsql.noise.rounded_gaussian import CumulativeTable, RoundedGaussian
from tests.deterministic_entropy import SeededEntropy

pytestmark = pytest.mark.statistical

Draws = NDArray[np.int64]
DRAWS = 400_000
# a shift by half a step, or a variance that differs by 1/12, is plain in so many
MANY_DRAWS = 1_000_000
# The true law falls below this with probability 1e-4 per seed; the planted faults fall far below it.
ACCEPTED = 1e-4
CAUGHT = 1e-9
SCALES = (0.4, 3.0, 31.9, 32.0, 63.0, 512.0, 1e5, 1e7, 1e10)


def chi_square_p(draws: Draws, sigma: float) -> float:
    edges = np.unique(np.floor(sigma * special.ndtri(np.arange(1, 100) / 100)))
    expected = np.diff(special.ndtr((edges + 0.5) / sigma), prepend=0.0, append=1.0)
    observed = np.bincount(np.searchsorted(edges, draws, side="left"), minlength=expected.size)
    return float(stats.chisquare(observed, expected * draws.size).pvalue)


def moments_p(draws: Draws, sigma: float) -> float:
    """Compare mean, mean size and mean square with the rounded law; the smallest p-value, times three."""
    if sigma < 2000:
        points = np.arange(-int(14 * sigma) - 2, int(14 * sigma) + 3)
        law = special.ndtr((points + 0.5) / sigma) - special.ndtr((points - 0.5) / sigma)
        mean_size, mean_square, mean_fourth = (float(np.abs(points.astype(float)) ** k @ law) for k in (1, 2, 4))
    else:
        mean_size, mean_square, mean_fourth = sigma * math.sqrt(2 / math.pi), sigma**2 + 1 / 12, 3 * sigma**4
    values = draws.astype(float)
    root = math.sqrt(draws.size)
    scores = (
        values.mean() / math.sqrt(mean_square) * root,
        (np.abs(values).mean() - mean_size) / math.sqrt(mean_square - mean_size**2) * root,
        ((values**2).mean() - mean_square) / math.sqrt(mean_fourth - mean_square**2) * root,
    )
    return min(1.0, 3 * min(2 * float(stats.norm.sf(abs(score))) for score in scores))


def law_p(draws: Draws, sigma: float) -> float:
    return min(1.0, 2 * min(chi_square_p(draws, sigma), moments_p(draws, sigma)))


def drawn(sigma: float, count: int = DRAWS) -> Draws:
    return RoundedGaussian(sigma).draw(count, SeededEntropy(20))


@pytest.mark.parametrize("sigma", SCALES)
def test_draws_follow_the_rounded_gaussian(sigma: float) -> None:
    assert law_p(drawn(sigma), sigma) > ACCEPTED


@pytest.mark.parametrize("sigma", [1e5, 1e10])
def test_draws_follow_the_continuous_law_between_the_bins(sigma: float) -> None:
    """Kolmogorov and Smirnov; the lattice itself moves the distance by no more than 0.2 / sigma."""
    assert stats.kstest(drawn(sigma) / sigma, "norm").pvalue > ACCEPTED
    assert stats.kstest(drawn(0.97 * sigma) / sigma, "norm").pvalue < CAUGHT


def low_bits_p(draws: Draws) -> float:
    return float(stats.chisquare(np.bincount(draws & 1023, minlength=1024)).pvalue)


@pytest.mark.parametrize("sigma", [1e5, 1e7, 1e10])
def test_low_bits_are_uniform(sigma: float) -> None:
    draws = drawn(sigma)
    assert low_bits_p(draws) > ACCEPTED
    # The planted fault: one bit of the place lost.
    assert low_bits_p(draws & ~1) < CAUGHT


@pytest.mark.parametrize("sigma", [0.5, 1.0, 3.0])
def test_variance_is_that_of_the_scale_and_of_rounding(sigma: float) -> None:
    variance = float(drawn(sigma, MANY_DRAWS).astype(float).var())
    # The tolerance is 4.5 standard errors (p = 7e-6), less than half of the 1/12 that rounding adds.
    tolerance = 4.5 * math.sqrt(2 / MANY_DRAWS) * (sigma**2 + 1 / 12)
    # At 0.5 the first term that the rule of 1/12 leaves out is 0.0012.
    left_out = 0.01 if sigma < 1 else 0.0
    assert abs(variance - sigma**2 - 1 / 12) < tolerance + left_out
    assert abs(variance - sigma**2) > tolerance + left_out


@pytest.mark.parametrize("sigma", SCALES)
def test_three_percent_too_little_noise_is_caught(sigma: float) -> None:
    assert law_p(drawn(0.97 * sigma), sigma) < CAUGHT


@pytest.mark.parametrize("sigma", SCALES)
def test_three_percent_too_much_noise_is_caught(sigma: float) -> None:
    assert law_p(drawn(1.03 * sigma), sigma) < CAUGHT


@pytest.mark.parametrize("sigma", [0.4, 3.0, 31.9, 32.0, 63.0])
def test_rounding_down_is_caught(sigma: float) -> None:
    fine = drawn(1024 * sigma, MANY_DRAWS)
    assert law_p(np.rint(fine / 1024).astype(np.int64), sigma) > ACCEPTED
    assert law_p(fine >> 10, sigma) < CAUGHT


def keep_all(_ratio: float, cell: Draws, *_others: object) -> NDArray[np.bool_]:
    return np.ones(cell.shape, dtype=np.bool_)


@pytest.mark.parametrize("sigma", [32.0, 512.0, 2.0**30])
def test_a_missing_rejection_is_caught(monkeypatch: pytest.MonkeyPatch, sigma: float) -> None:
    monkeypatch.setattr(rounded_gaussian, "_keep", keep_all)
    assert law_p(drawn(sigma, MANY_DRAWS), sigma) < CAUGHT


def table_with_edges_moved_by(cells: float) -> Callable[[float], CumulativeTable]:
    def table(ratio: float) -> CumulativeTable:
        below = np.cumsum(np.exp(-((np.arange(int(9 * ratio)) + cells) ** 2) / (2 * ratio**2)))
        return CumulativeTable(int(share * 2.0**60) << 68 for share in below[:-1] / below[-1] if share < 1)

    return table


@pytest.mark.parametrize("sigma", [32.0, 512.0, 2.0**30])
@pytest.mark.parametrize("cells", [0.5, 1.0])
def test_wrong_cell_edges_are_caught(monkeypatch: pytest.MonkeyPatch, sigma: float, cells: float) -> None:
    monkeypatch.setattr(rounded_gaussian, "cell_table", table_with_edges_moved_by(0.0))
    assert law_p(drawn(sigma), sigma) > ACCEPTED
    monkeypatch.setattr(rounded_gaussian, "cell_table", table_with_edges_moved_by(cells))
    assert law_p(drawn(sigma), sigma) < CAUGHT


def test_the_number_of_proposals_says_nothing_about_the_value() -> None:
    """A value after a rejection has the same law as any other; not so if only its place is drawn again."""
    ratio, count = 32.0, 1 << 20

    def after_rejection(redraw_cell: bool) -> Draws:
        words = SeededEntropy(7).words(3 * count).reshape(3, count)
        cell = rounded_gaussian.cell_table(ratio).outcomes(words[0], SeededEntropy(8))
        place = words[1] >> np.uint64(1)
        kept = rounded_gaussian._keep(ratio, cell, place, words[2], SeededEntropy(9))
        following = cell[1:] if redraw_cell else cell[:-1]
        return following[~kept[:-1] & kept[1:]]

    continuous = np.abs(drawn(2.0**30, count // 2)) >> 25
    assert stats.ks_2samp(after_rejection(redraw_cell=True), continuous, method="asymp").pvalue > ACCEPTED
    assert stats.ks_2samp(after_rejection(redraw_cell=False), continuous, method="asymp").pvalue < CAUGHT
