"""The grid rule against exact arithmetic, rises included, and what the grid costs against brute force."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import special

from dpsql.accounting.gaussian import delta as gaussian_delta
from dpsql.errors import CalibrationError, ReleaseError
from dpsql.noise import correlated_gaussian
from dpsql.noise.correlated_gaussian import (
    GRID_ALLOWANCE,
    GRID_BITS,
    MOST_RISES,
    TAU_LOSS,
    CorrelatedGaussian,
    effective_sigma,
    effective_tau,
    threshold_to_compare,
)
from dpsql.noise.gaussian_laws import rise, towards
from dpsql.noise.rounded_gaussian import RoundedGaussian
from tests.deterministic_entropy import SeededEntropy

Law = NDArray[np.float64]
HALF = Fraction(1, 2)
STEP = Fraction(1, 1 << GRID_BITS)


def test_the_draw_is_the_sum_of_rounded_gaussians_on_the_grid() -> None:
    noise = CorrelatedGaussian(3.5, 0.25).draw(50, SeededEntropy(3))
    entropy = SeededEntropy(3)
    own = RoundedGaussian(3.5 * 2**GRID_BITS).draw(50, entropy)
    common = RoundedGaussian(1.75 * 2**GRID_BITS).draw(1, entropy)[0]
    assert noise.common == common
    assert noise.values.tolist() == [int(z) + int(common) for z in own]


def test_without_correlation_it_is_the_plain_rounded_gaussian_on_the_grid() -> None:
    noise = CorrelatedGaussian(3.5, 0.0).draw(50, SeededEntropy(3))
    assert noise.common == 0
    assert noise.values.tolist() == RoundedGaussian(3.5 * 2**GRID_BITS).draw(50, SeededEntropy(3)).tolist()


def test_nothing_is_rounded_to_whole_counts() -> None:
    values = CorrelatedGaussian(3.5, 0.25).draw(1000, SeededEntropy(3)).values
    assert np.unique(values % (1 << GRID_BITS)).size > 990


@pytest.mark.parametrize("correlation", [0.0, 0.25])
def test_the_floor_takes_the_common_term_away(correlation: float) -> None:
    noise = CorrelatedGaussian(3.5, correlation, floor_correlation=4.0).draw(3, SeededEntropy(3))
    entropy = SeededEntropy(3)
    without = CorrelatedGaussian(3.5, correlation).draw(3, entropy)
    own = RoundedGaussian(7.0 * 2**GRID_BITS).draw(1, entropy)[0]
    assert (noise.values.tolist(), noise.common) == (without.values.tolist(), without.common)
    assert noise.floor == own - noise.common
    assert without.floor == 0


@pytest.mark.parametrize("sigma", [0.0, -1.0, math.nan, math.inf, 2.0**25 * 1.01])
def test_a_wrong_scale_is_refused(sigma: float) -> None:
    with pytest.raises(CalibrationError):
        CorrelatedGaussian(sigma, 0.3)


@pytest.mark.parametrize("correlation", [-0.1, math.nan, math.inf, 1e60])
def test_a_wrong_correlation_is_refused(correlation: float) -> None:
    with pytest.raises(CalibrationError):
        CorrelatedGaussian(1.0, correlation)


@pytest.mark.parametrize("correlation", [0.0, -0.1, math.nan, math.inf])
def test_a_wrong_floor_correlation_is_refused(correlation: float) -> None:
    with pytest.raises(CalibrationError):
        CorrelatedGaussian(1.0, 0.3, correlation)
    with pytest.raises(CalibrationError):
        effective_sigma(1.0, k=3, correlation=0.3, floor_correlation=correlation)


def test_a_negative_count_is_refused() -> None:
    with pytest.raises(ReleaseError):
        CorrelatedGaussian(1.0, 0.3).draw(-1, SeededEntropy(1))


def test_the_rule_on_the_grid_is_at_least_as_strict_as_the_continuous_one() -> None:
    """All pairs of own and common noise on a lattice finer than a grid of 2 bits; thresholds on the grid and off it."""
    bits, points = 2, [Fraction(i, 48) for i in range(-60, 61)]
    step = Fraction(1, 1 << bits)
    nearest = dict.fromkeys((Fraction(0), Fraction(1, 3), Fraction(1, 2), Fraction(47, 48), Fraction(1)), Fraction(9))
    for own, common in itertools.product(points, points):
        value = step * sum(math.floor(term / step + HALF) for term in (own, common))
        for tau in nearest:
            if value > tau:
                assert own + common > tau - step
                nearest[tau] = min(nearest[tau], own + common - tau)
    # the loss of a whole step is needed: just above a threshold that lies just below the grid
    assert nearest[Fraction(47, 48)] == Fraction(1, 48) - step


# Twice 2**49 steps is more than a draw of own and common noise can be; quarters of a step are off the grid.
terms = st.integers(-(1 << 51), 1 << 51).map(lambda quarters: Fraction(quarters, 4))
releases = st.lists(
    st.tuples(terms, terms, st.integers(0, 1), st.integers(1, 10**10)), min_size=1, max_size=MOST_RISES + 1
)
Release = tuple[Fraction, Fraction, int, int]


def risen(drawn: list[Release]) -> tuple[int, Fraction]:
    """The count that rises through releases (own, common, exact, nano-rho), and its continuous average, in steps."""
    level, value, average = Fraction(0), 0, Fraction(0)
    for own, common, count, nano in drawn:
        higher = level + Fraction(nano, 10**9)
        exact = count << GRID_BITS
        fresh = exact + math.floor(own + HALF) + math.floor(common + HALF)
        weight = rise(level, higher).weight if level else Fraction(1)
        value = int(towards(np.array([value]), np.array([fresh]), weight)[0]) if level else fresh
        average += weight * (exact + own + common - average)
        level = higher
    return value, average


@given(releases)
def test_a_point_that_rose_hides_what_its_continuous_average_hides_but_for_the_roundings(drawn: list[Release]) -> None:
    value, average = risen(drawn)
    assert abs(value - average) <= Fraction(3, 2) * len(drawn)
    assert abs(value - average) * STEP < Fraction(TAU_LOSS)


def test_a_rise_loses_more_than_the_draws_alone() -> None:
    drawn: list[Release] = [(HALF, HALF, 0, 10**9), (Fraction(7, 2), HALF, 0, 10**9)]
    value, average = risen(drawn)
    assert value - average == Fraction(3, 2)


def test_the_loss_of_the_threshold_covers_all_rises() -> None:
    assert (MOST_RISES + 1) * Fraction(3, 2) * STEP < Fraction(TAU_LOSS)


@given(st.floats(TAU_LOSS, 2.0**40), st.just(0.0) | st.floats(1e-3, 10))
def test_the_threshold_is_rounded_down_and_scaled_with_the_noise(tau: float, correlation: float) -> None:
    exact = (Fraction(tau) - Fraction(TAU_LOSS)) / (Fraction(GRID_ALLOWANCE) if correlation else 1)
    assert exact * (1 - Fraction(1, 1 << 49)) <= Fraction(effective_tau(tau, correlation)) <= exact


@given(st.just(0.0) | st.floats(1e-6, 2.0**40), st.just(0.0) | st.floats(1e-3, 10))
def test_a_threshold_that_is_compared_with_covers_the_one_accounted_for(tau: float, correlation: float) -> None:
    compared = threshold_to_compare(tau, correlation)
    allowance = Fraction(GRID_ALLOWANCE) if correlation else 1
    assert effective_tau(compared, correlation) >= tau
    assert Fraction(compared) <= (Fraction(tau) * allowance + Fraction(TAU_LOSS)) * (1 + Fraction(1, 1 << 47))


@pytest.mark.parametrize("tau", [-1.0, -1e-9, math.nan, math.inf])
def test_a_wrong_threshold_is_refused(tau: float) -> None:
    with pytest.raises(CalibrationError):
        effective_tau(tau, 0.3)


def squared_distance(a: Fraction, changed: int, unchanged: int, common: Fraction, floor: Fraction) -> Fraction:
    """Squared distance if a of the move is put on the common noise; `floor` on the floor's (both are 1/variance)."""
    return changed * (1 - a) ** 2 + unchanged * a**2 + common * a**2 + floor * a**2


def falling_distance(a: Fraction, changed: int, unchanged: int, common: Fraction, floor: Fraction) -> Fraction:
    """The same where the floor moves, and with it all counts but the changed ones."""
    return changed * (1 - a) ** 2 + unchanged * a**2 + common * a**2 + floor * (1 - a) ** 2


INVERSES = [Fraction(1, 3), Fraction(1), Fraction(7, 2), Fraction(31)]


@pytest.mark.parametrize("with_floor", [False, True])
@pytest.mark.parametrize("bits", [3, 6])
def test_the_excess_of_the_best_grid_shift_is_within_the_bound(with_floor: bool, bits: int) -> None:
    grid, pairs = 1 << bits, 0
    floors = INVERSES if with_floor else [Fraction(0)]
    for common, floor, keys in itertools.product(INVERSES, floors, (1, 2, 5, 9)):
        spread = correlated_gaussian._spread(keys, float(1 / common), float(1 / floor) if floor else None)
        for total, law in itertools.product(range(keys + 1), (squared_distance, falling_distance)):
            for changed in range(total + 1):
                weight = total + common + floor
                best = (changed + (floor if law is falling_distance else 0)) / weight
                least = law(best, changed, total - changed, common, floor)
                on_grid = min(
                    law(Fraction(i, grid), changed, total - changed, common, floor)
                    for i in (math.floor(best * grid), math.floor(best * grid) + 1)
                )
                assert 0 <= on_grid - least <= weight / (4 * grid**2)
                assert on_grid <= least * (1 + Fraction(spread) * (1 + Fraction(1, 1 << 40)) / (4 * grid**2))
                pairs += on_grid > least
    assert pairs > 20


@pytest.mark.parametrize("root", [1.0, 0.1, 0.01])
@pytest.mark.parametrize("k", [1, 10, 1000, 100_000])
def test_the_allowance_holds_wherever_the_project_goes(k: int, root: float) -> None:
    for correlation in (root / math.sqrt(k), 1.0):
        for floor_correlation in (None, correlation, 1.0):
            accounted = effective_sigma(12.5, k=k, correlation=correlation, floor_correlation=floor_correlation)
            spread = Fraction(correlated_gaussian._spread(k, correlation, floor_correlation))
            assert accounted <= 12.5
            assert (Fraction(12.5) / Fraction(accounted)) ** 2 >= 1 + spread / 4 ** (GRID_BITS + 1)


def test_without_correlation_nothing_is_allowed_for() -> None:
    assert effective_sigma(12.5, k=10, correlation=0.0) == 12.5
    assert effective_tau(96.0, 0.0) == pytest.approx(96.0 - TAU_LOSS, rel=1e-14)


@pytest.mark.parametrize(
    ("k", "correlation", "floor_correlation"),
    [(10, 1e-7, None), (10, 1e6, None), (10, 5e-324, None), (10, 0.3, 1e-7), (10, 1e-4, 1e3), (10, 0.3, 1e7)],
)
def test_beyond_the_proof_it_is_refused(k: int, correlation: float, floor_correlation: float | None) -> None:
    with pytest.raises(CalibrationError, match="too coarse"):
        effective_sigma(1.0, k=k, correlation=correlation, floor_correlation=floor_correlation)


def interval(low: Law, high: Law) -> Law:
    return np.asarray(special.ndtr(high) - special.ndtr(low))


def joint_law(means: tuple[int, int], new: bool, sigma: float, common_sigma: float, bits: int, tau: float) -> Law:
    """Law of two noisy counts on the grid and of no new key being shown, by summing over the common term."""
    grid = 1 << bits
    common = np.arange(-14 * int(common_sigma * grid + 1), 14 * int(common_sigma * grid + 1) + 1)
    weight = interval((common - 0.5) / grid / common_sigma, (common + 0.5) / grid / common_sigma)
    edge = (np.arange(-30 * grid, 32 * grid) - 0.5 - common[:, None]) / grid
    counts = [interval((edge[:, :-1] - mean) / sigma, (edge[:, 1:] - mean) / sigma) for mean in means]
    if new:
        # hidden: own and common steps add up to at most tau
        weight = weight * special.ndtr((math.floor(tau * grid) - common + 0.5) / grid / sigma)
    return np.asarray((weight[:, None] * counts[0]).T @ counts[1])


@pytest.mark.parametrize("tau", [2.0, 1.9])
@pytest.mark.parametrize("bits", [0, 1, 3])
@pytest.mark.parametrize("new", [False, True])
@pytest.mark.parametrize("moved", [(1, 0), (1, 1)])
def test_the_output_law_costs_no_more_than_distance_and_new_key(
    moved: tuple[int, int], new: bool, bits: int, tau: float
) -> None:
    sigma, common_sigma = 1.0, 1.3
    inverse = Fraction(sigma / common_sigma) ** 2
    squared = min(
        squared_distance(Fraction(i, 1 << bits), sum(moved), 2 - sum(moved), inverse, Fraction(0))
        for i in range((1 << bits) + 1)
    )
    with_unit = joint_law(moved, new, sigma, common_sigma, bits, tau)
    without = joint_law((0, 0), False, sigma, common_sigma, bits, tau)
    assert without.sum() == pytest.approx(1, abs=1e-12)
    shown = float(special.ndtr(-(tau - 2.0**-bits) / math.hypot(sigma, common_sigma))) if new else 0.0
    assert 1 - with_unit.sum() <= shown + 1e-12
    for epsilon in (0.0, 0.5, 1.0, 2.0):
        bound = shown + gaussian_delta(epsilon, math.sqrt(squared), sigma) + 1e-12
        kept = np.maximum(with_unit - math.exp(epsilon) * without, 0).sum() + 1 - with_unit.sum()
        back = np.maximum(without - math.exp(epsilon) * with_unit, 0).sum()
        assert max(kept, back) <= bound


def test_a_common_term_on_whole_counts_costs_more_than_the_analysis_says() -> None:
    """The grid is no formality: this is rounding both terms to whole counts."""
    sigma, common_sigma = 0.3, 3.0
    continuous = gaussian_delta(0.0, math.sqrt(1 - 1 / (2 + (sigma / common_sigma) ** 2)) / sigma, 1.0)

    def cost(bits: int) -> float:
        with_unit, without = (joint_law(means, False, sigma, common_sigma, bits, 0.0) for means in ((1, 0), (0, 0)))
        return float(np.maximum(with_unit - without, 0).sum())

    assert cost(0) > 1.05 * continuous
    assert cost(4) < continuous
