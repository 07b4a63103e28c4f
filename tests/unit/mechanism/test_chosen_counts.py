"""Counts that a first release chooses: the choice of keys and variances, and the estimate of both releases."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.chosen_intervals import by_zipf, fixed, returned
from dpsql.accounting.weighted_gaussian import Variances, equal_variance, most_keys, with_best_common
from dpsql.mechanism.chosen_counts import (
    MARGIN,
    ROOM,
    Goal,
    choose_keys,
    estimated,
    largest_keys,
    smallest_rho,
)
from dpsql.noise.weighted_gaussian import WeightedCorrelatedGaussian

Floats = npt.NDArray[np.float64]

SIGMAS = 19.6
counts = st.lists(st.floats(-100.0, 1e5), min_size=1, max_size=40).map(np.array)
levels = st.floats(1e-3, 10.0)
limits = st.none() | st.integers(1, 5)


def first_release(keys: int, rho: float) -> Variances:
    """Return equal variances that cost rho."""
    return with_best_common(np.full(keys, equal_variance(keys, rho))).at(rho)


@given(counts, levels, limits, st.integers(1, 3))
def test_a_choice_takes_the_largest_keys_and_costs_what_it_may(
    released: Floats, rho: float, limit: int | None, most: int
) -> None:
    variances, goal = first_release(len(released), rho / 3), Goal(SIGMAS, limit, most)
    choice = choose_keys(released, variances, goal, rho)
    if choice is None:
        assert (released <= MARGIN * np.sqrt(variances.total)).all()
        return
    keys = choice.keys
    assert len(set(keys.tolist())) == len(keys) == len(choice.variances.own)
    assert limit is None or len(keys) <= limit
    assert (released[keys] - MARGIN * np.sqrt(variances.total[keys]) > 0.0).all()
    others = np.delete(released, keys)
    assert len(others) == 0 or released[keys].min() >= others.max()
    assert rho * (1 - 1e-9) <= choice.variances.rho(most) <= rho
    # an own deviation is one of few, and the largest count has the largest
    assert (np.diff(choice.variances.own) <= 1e-9 * choice.variances.own.max()).all()
    WeightedCorrelatedGaussian(np.sqrt(choice.variances.own), choice.variances.common**0.5)


def test_a_key_whose_count_less_the_margin_is_not_above_zero_is_never_chosen() -> None:
    variances = Variances(np.full(4, 3.0), 1.0)
    released = np.array([0.0, MARGIN * 2.0, 1.0 + 1e-9, 1e9])
    keys, sizes = largest_keys(released, variances, Goal(SIGMAS))
    assert keys.tolist() == [3, 2]
    assert (sizes > 0.0).all()
    # a level that pays for anything changes nothing
    choice = choose_keys(released, variances, Goal(SIGMAS), 1e30)
    assert choice is not None
    assert choice.keys.tolist() == [3, 2]
    assert choose_keys(np.array([-5.0, 1.0, 0.0, -1.0]), variances, Goal(SIGMAS), 1e30) is None


def test_equal_counts_are_taken_in_the_order_of_the_keys() -> None:
    choice = choose_keys(np.full(50, 1000.0), first_release(50, 1.0), Goal(SIGMAS, limit=3), 1.0)
    assert choice is not None
    assert choice.keys.tolist() == [0, 1, 2]


@given(counts, levels, st.integers(1, 3))
def test_the_smallest_level_pays_for_one_key_and_a_little_less_does_not(
    released: Floats, rho: float, most: int
) -> None:
    variances, goal = first_release(len(released), rho), Goal(SIGMAS, None, most)
    least, choice = smallest_rho(released, variances, goal), choose_keys(released, variances, goal, 1.0)
    if least is None:
        assert choice is None
        return
    size = float(released.max() - MARGIN * np.sqrt(variances.total[0]))
    allowed = np.array([(size / (ROOM * SIGMAS)) ** 2])
    assert (most_keys(allowed, least, most), most_keys(allowed, least * (1 - 1e-9), most)) == (1, 0)
    at_least = choose_keys(released, variances, goal, least)
    assert at_least is not None
    assert at_least.variances.total[0] <= allowed[0] * (1 + 1e-3)


def test_a_level_that_pays_for_no_key_is_spent_on_the_largest() -> None:
    released = np.array([10.0, 400.0, 300.0])
    variances = first_release(3, 0.5)
    least = smallest_rho(released, variances, Goal(SIGMAS))
    assert least is not None
    choice = choose_keys(released, variances, Goal(SIGMAS), least / 10)
    assert choice is not None
    assert choice.keys.tolist() == [1]
    assert choice.variances.rho() == pytest.approx(least / 10, rel=1e-9)


def test_as_many_keys_are_chosen_as_brute_force_finds() -> None:
    rng = np.random.default_rng(8)
    for _ in range(50):
        released, rho = rng.exponential(200.0, 30), rng.uniform(0.01, 1.0)
        variances = first_release(30, rho)
        sizes = np.sort(released)[::-1] - MARGIN * np.sqrt(variances.total)
        allowed = (sizes[sizes > 0] / (ROOM * SIGMAS)) ** 2
        paid = sum(with_best_common(allowed[:keys]).rho() <= rho for keys in range(1, len(allowed) + 1))
        choice = choose_keys(released, variances, Goal(SIGMAS), rho)
        assert paid == most_keys(allowed, rho)
        assert choice is not None
        assert len(choice.keys) == max(1, paid)


def test_counts_of_billions_beside_small_ones_have_noise_that_can_be_drawn() -> None:
    for seed in range(20):
        rng = np.random.default_rng(seed)
        released = np.concatenate([rng.uniform(1e9, 1e11, 50), rng.uniform(300, 3_000, 50)])
        choice = choose_keys(released, first_release(100, 0.1), Goal(SIGMAS), 0.3)
        assert choice is not None
        WeightedCorrelatedGaussian(np.sqrt(choice.variances.own), choice.variances.common**0.5)


def dense(first: Floats, of_first: Variances, second: Floats, of_second: Variances) -> tuple[Floats, Floats]:
    """Return the estimate and its deviations by the inverses of dense matrices."""
    one, two = (np.linalg.inv(np.diag(law.own) + law.common) for law in (of_first, of_second))
    covariance = np.linalg.inv(one + two)
    return covariance @ (one @ first + two @ second), np.sqrt(np.diag(covariance))


def random_releases(rng: np.random.Generator, keys: int) -> tuple[Floats, Variances, Floats, Variances]:
    """Return two releases of keys, with variances from 0.01 to 100."""
    laws = [Variances(10.0 ** rng.uniform(-2, 2, keys), 10.0 ** rng.uniform(-2, 2)) for _ in range(2)]
    first, second = rng.normal(100.0, 30.0, (2, keys))
    return first, laws[0], second, laws[1]


@pytest.mark.parametrize("keys", [1, 2, 3, 20, 60])
def test_the_estimate_is_that_of_dense_matrices(keys: int) -> None:
    rng = np.random.default_rng(keys)
    for _ in range(10):
        releases = random_releases(rng, keys)
        for found, expected in zip(estimated(*releases), dense(*releases), strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-9)


def test_variances_of_the_wrong_keys_give_another_estimate() -> None:
    first, of_first, second, of_second = random_releases(np.random.default_rng(1), 20)
    permuted = Variances(np.roll(of_second.own, 1), of_second.common)
    found, _ = estimated(first, of_first, second, permuted)
    expected, deviations = dense(first, of_first, second, of_second)
    assert (np.abs(found - expected) > 0.1 * deviations).sum() > 10


def test_keys_that_were_not_chosen_tell_nothing_of_the_others() -> None:
    """Least squares over all keys, with one unknown count each, have the estimates of the chosen keys alone."""
    rng = np.random.default_rng(6)
    first, of_first, second, of_second = random_releases(rng, 8)
    chosen = 5
    design = np.concatenate([np.eye(8), np.eye(8)[:chosen]])
    of_chosen = Variances(of_second.own[:chosen], of_second.common)
    covariance = np.zeros((8 + chosen, 8 + chosen))
    covariance[:8, :8] = np.diag(of_first.own) + of_first.common
    covariance[8:, 8:] = np.diag(of_chosen.own) + of_chosen.common
    weights = np.linalg.inv(covariance)
    values = np.concatenate([first, second[:chosen]])
    everything = np.linalg.solve(design.T @ weights @ design, design.T @ weights @ values)[:chosen]
    of_first_chosen = Variances(of_first.own[:chosen], of_first.common)
    estimates, _ = estimated(first[:chosen], of_first_chosen, second[:chosen], of_chosen)
    np.testing.assert_allclose(estimates, everything, rtol=1e-9)


def test_intervals_after_the_choice_cover_as_the_page_says() -> None:
    """Zipf's law, where few keys are near the last one chosen; and equal counts, of which 20 are picked by noise."""
    by_law = returned(by_zipf(16_000), None, 100)
    assert by_law.coverage() > 0.93
    assert by_law.within() > 0.97
    picked = returned(fixed((300, 300.0)), 20, 300)
    assert 0.86 < picked.coverage() < 0.93
    assert picked.coverage(2.4) > 0.93
