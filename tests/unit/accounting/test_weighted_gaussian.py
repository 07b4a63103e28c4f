"""The cost of correlated noise with a variance for each key, against the worst subset of keys that one unit moves."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpsql.accounting.weighted_gaussian import Variances, equal_variance, most_keys, with_best_common
from dpsql.errors import CalibrationError

Floats = npt.NDArray[np.float64]
Truths = npt.NDArray[np.bool_]
Rule = Callable[[Floats, Floats], float]

CASES = 1_000
FEW, MANY, MOST = 10, 40, 300
TIGHT = 1e-6
NEAR = 5e-4
"""A sum of weights this near a half has a squared distance within a quarter of TIGHT of the bound."""
positive = st.floats(1e-6, 1e6)
totals_of_keys = st.lists(positive, min_size=1, max_size=12).map(np.array)


def random_totals(rng: np.random.Generator, keys: int) -> Floats:
    """Return variances of keys; most of them differ by a factor between 2 and 1,000."""
    return np.asarray(np.exp(rng.normal(0.0, rng.uniform(0.5, 2.0), keys)) * 10.0 ** rng.uniform(-3, 6))


def distance(moves: Floats, variances: Variances) -> float:
    """Return the squared distance of moves by the dense covariance matrix."""
    covariance = np.diag(variances.own) + variances.common
    return float(moves @ np.linalg.solve(covariance, moves))


def worst_of_all(variances: Variances) -> float:
    """Return the largest squared distance over all subsets of moved keys, each moved by 1."""
    keys = len(variances.own)
    subsets = ((np.arange(1 << keys)[:, None] >> np.arange(keys)) & 1).astype(np.float64)
    inverse = np.linalg.inv(np.diag(variances.own) + variances.common)
    return float(((subsets @ inverse) * subsets).sum(axis=1).max())


def of_subset(taken: Truths, variances: Variances) -> float:
    """Return the squared distance of a move of these keys by 1, as Theorem 1 has it."""
    weights = 1.0 / variances.own
    moved = float(weights[taken].sum())
    return moved - moved**2 / float(weights.sum() + 1.0 / variances.common)


def near_half(variances: Variances, rng: np.random.Generator) -> Truths:
    """Return keys whose weights add up to nearly a half: the largest that fit, then a change of two keys."""
    weights = 1.0 / variances.own
    half = float(weights.sum() + 1.0 / variances.common) / 2.0
    best, least = np.zeros(len(weights), dtype=bool), half
    for attempt in range(20):
        taken, rest = np.zeros(len(weights), dtype=bool), half
        for place in np.argsort(-weights * np.exp(0.1 * attempt * rng.normal(size=len(weights)))):
            if weights[place] <= rest:
                taken[place], rest = True, rest - weights[place]
        signed = np.where(taken, -weights, weights)
        changes = np.abs(rest - np.add.outer(signed, signed)) + np.diag(np.full(len(weights), half))
        if changes.min() < rest:
            taken[list(np.unravel_index(changes.argmin(), changes.shape))] ^= True
        rest = abs(half - float(weights[taken].sum()))
        if rest < least:
            best, least = taken, rest
        if least <= NEAR * half:
            break
    return best


@cache
def cases() -> list[tuple[Floats, Floats, float]]:
    """Return variances of random keys, those of as many other keys, and the squared distance of the worst subset."""
    rng, drawn = np.random.default_rng(57), []
    for case in range(CASES):
        keys = int(rng.integers(1, FEW + 1) if case % 2 else rng.integers(MANY, MOST + 1))
        totals, others = random_totals(rng, 2 * keys).reshape(2, keys)
        variances = with_best_common(totals)
        worst = worst_of_all(variances) if keys <= FEW else of_subset(near_half(variances, rng), variances)
        drawn.append((totals, others, worst))
    return drawn


def faults(charged: Rule) -> tuple[int, int]:
    """Return in how many random cases a charge is below the worst subset, and above it by more than TIGHT.

    Args:
        charged: the squared distance by the variances of the noise, and those of as many keys that have none of it.

    """
    too_low = too_high = 0
    for totals, others, found in cases():
        price = charged(totals, others)
        too_low += found > price * (1.0 + 1e-9)
        too_high += len(totals) >= MANY and found < price * (1.0 - TIGHT)
    return too_low, too_high


def test_the_bound_is_that_of_the_worst_subset_of_moved_keys() -> None:
    assert faults(lambda totals, others: 2.0 * with_best_common(totals).rho()) == (0, 0)


def test_the_distance_of_a_subset_is_that_of_the_dense_covariance() -> None:
    rng = np.random.default_rng(4)
    for keys in (1, 2, 7, 50):
        variances = with_best_common(random_totals(rng, keys))
        for taken in rng.random((20, keys)) < 0.5:
            assert of_subset(taken, variances) == pytest.approx(distance(taken.astype(np.float64), variances), rel=1e-9)


def test_a_bound_without_the_common_term_is_caught() -> None:
    too_low, _ = faults(lambda totals, others: float((1.0 / with_best_common(totals).own).sum()) / 4.0)
    assert too_low > CASES // 2


def test_a_charge_for_the_variances_of_other_keys_is_caught() -> None:
    too_low, too_high = faults(lambda totals, others: 2.0 * with_best_common(others).rho())
    assert min(too_low, too_high) > CASES // 10


def test_the_order_of_the_variances_changes_no_cost() -> None:
    """A release with permuted variances misleads a reader, and costs as much."""
    rng = np.random.default_rng(3)
    variances = with_best_common(random_totals(rng, FEW))
    permuted = Variances(rng.permutation(variances.own), variances.common)
    assert permuted.rho() == pytest.approx(variances.rho(), rel=1e-12)
    assert worst_of_all(permuted) == pytest.approx(worst_of_all(variances), rel=1e-9)


@pytest.mark.parametrize("most", [1, 2, 3])
def test_moves_up_to_the_most_cost_no_more_than_a_shift_by_half_of_it(most: int) -> None:
    rng = np.random.default_rng(most)
    for keys in (1, 2, 5, 30):
        variances = with_best_common(random_totals(rng, keys))
        for moves in rng.integers(0, most + 1, (50, keys)).astype(np.float64):
            shifted = ((moves - most / 2) ** 2 / variances.own).sum() + most**2 / 4 / variances.common
            assert distance(moves, variances) <= shifted * (1 + 1e-9)
            assert shifted <= 2 * variances.rho(most)


def test_moves_of_both_signs_cost_up_to_nearly_four_times_the_bound() -> None:
    """Lowering half of the counts and raising the others leaves nothing to the common term."""
    variances = with_best_common(np.full(4, 4.0))
    moves = np.array([1.0, 1.0, -1.0, -1.0])
    assert distance(moves, variances) / (2 * variances.rho()) == pytest.approx(8 / 3)
    many = with_best_common(np.full(1_500, 4.0))
    # the moves add up to 0, so that the common term has no part in their distance
    assert (1.0 / many.own).sum() / (2 * many.rho()) == pytest.approx(3.9, abs=0.01)


@pytest.mark.parametrize("keys", [1, 2, 3, 10])
def test_few_keys_pay_a_few_per_cent_too_much(keys: int) -> None:
    """The bound is exact for one key, and for few keys near the worst subset."""
    rng = np.random.default_rng(keys)
    excesses = []
    for _ in range(100):
        variances = with_best_common(random_totals(rng, keys))
        excesses.append(2 * variances.rho() / worst_of_all(variances) - 1)
    assert max(excesses) < (1e-9 if keys == 1 else 0.031)


@given(totals_of_keys)
@settings(max_examples=50)
def test_the_best_common_term_is_the_best_of_a_fine_grid(totals: Floats) -> None:
    grid = totals.min() * np.linspace(0.0, 1.0, 2_001)[1:-1]
    costs = ((1.0 / (totals - grid[:, None])).sum(axis=1) + 1.0 / grid) / 8.0
    best = with_best_common(totals)
    assert best.rho() <= costs.min() * (1 + 1e-9)
    np.testing.assert_allclose(best.total, totals, rtol=1e-15)
    # the derivative is zero there
    assert ((best.common / best.own) ** 2).sum() == pytest.approx(1.0, rel=1e-6)


@pytest.mark.parametrize("keys", [1, 2, 9, 300])
def test_equal_variances_have_the_cost_of_the_paper(keys: int) -> None:
    split = with_best_common(np.full(keys, 7.0))
    assert split.common == pytest.approx(7.0 / (1 + math.sqrt(keys)))
    assert split.rho() == pytest.approx((math.sqrt(keys) + 1) ** 2 / (8 * 7.0))
    assert equal_variance(keys, split.rho(3), 3) == pytest.approx(7.0)


@pytest.mark.parametrize("totals", [[], [0.0], [-1.0], [1.0, math.nan], [1.0, math.inf]])
def test_wrong_variances_are_refused(totals: list[float]) -> None:
    with pytest.raises(CalibrationError):
        with_best_common(np.array(totals))


@given(st.lists(positive, max_size=12).map(np.array), st.floats(1e-6, 1e3), st.integers(1, 3))
def test_the_largest_number_of_keys_is_that_of_brute_force(totals: Floats, rho: float, most: int) -> None:
    costs = [with_best_common(totals[:keys]).rho(most) for keys in range(1, len(totals) + 1)]
    assert costs == sorted(costs)
    assert most_keys(totals, rho, most) == sum(cost <= rho for cost in costs)


@given(totals_of_keys, st.floats(1e-6, 1e3), st.integers(1, 3))
def test_scaled_variances_cost_rho_and_never_more(totals: Floats, rho: float, most: int) -> None:
    variances = with_best_common(totals).at(rho, most)
    assert rho * (1 - 1e-9) <= variances.rho(most) <= rho
    ratios = variances.total / totals
    np.testing.assert_allclose(ratios, ratios[0], rtol=1e-12)


@pytest.mark.parametrize("rho", [0.0, -1.0, math.nan, math.inf])
def test_a_wrong_level_is_refused(rho: float) -> None:
    with pytest.raises(CalibrationError):
        with_best_common(np.array([1.0])).at(rho)
