"""Counts that a first release chooses: keys and variances, the estimate, and the rows that are within the error."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.chosen_intervals import Setting, by_zipf, fixed, most_missed, noised, quantile_of, returned
from dpsql.accounting.weighted_gaussian import Variances, equal_variance, most_keys, with_best_common
from dpsql.mechanism.chosen_counts import (
    CLEAR,
    FIRST_PART,
    MARGIN,
    ROOM,
    Choice,
    Flags,
    Goal,
    choice_of,
    choose_keys,
    estimated,
    largest_keys,
    least_count,
    rows_within,
    smallest_level,
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
        assert len(largest_keys(released, variances, goal)[0]) == 0
        return
    keys = choice.keys
    assert len(set(keys.tolist())) == len(keys) == len(choice.variances.own)
    assert limit is None or len(keys) <= limit
    assert set(keys.tolist()) <= set(largest_keys(released, variances, goal)[0].tolist())
    others = np.delete(released, keys)
    assert len(others) == 0 or released[keys].min() >= others.max()
    clear = others.max(initial=-math.inf) + CLEAR * math.sqrt(variances.own[0])
    assert choice.is_clear.tolist() == [bool(released[key] >= clear) for key in keys]
    again = choice_of(len(keys), released, variances, goal, rho)
    assert again.keys.tolist() == keys.tolist()
    assert again.is_clear.tolist() == choice.is_clear.tolist()
    assert again.variances.own.tolist() == choice.variances.own.tolist()
    assert rho * (1 - 1e-9) <= choice.variances.rho(most) <= rho
    # an own deviation is one of few, and the largest count has the largest
    assert (np.diff(choice.variances.own) <= 1e-9 * choice.variances.own.max()).all()
    WeightedCorrelatedGaussian(np.sqrt(choice.variances.own), choice.variances.common**0.5)


def test_a_key_whose_count_less_the_margin_is_not_above_zero_is_never_chosen() -> None:
    variances = Variances(np.full(4, 3.0), 1.0)
    released = np.array([0.0, MARGIN * 2.0 - 0.01, MARGIN * 2.0 + 0.01, 1e9])
    keys, sizes = largest_keys(released, variances, Goal(SIGMAS))
    assert keys.tolist() == [3, 2]
    assert (sizes > 0.0).all()
    # a level that pays for anything changes nothing
    choice = choose_keys(released, variances, Goal(SIGMAS), 1e30)
    assert choice is not None
    assert choice.keys.tolist() == [3, 2]
    assert choose_keys(np.array([-5.0, 1.0, 0.0, -1.0]), variances, Goal(SIGMAS), 1e30) is None


def test_sizes_are_drawn_to_the_mean_as_far_as_noise_explains_the_spread() -> None:
    variances = Variances(np.full(4, 9.0), 2.0)
    released = np.array([10.0, 20.0, 30.0, 40.0])
    keys, sizes = largest_keys(released, variances, Goal(SIGMAS))
    kept = 1.0 - 9.0 / 125.0
    margin = MARGIN * math.sqrt(9.0 * kept + 2.0)
    assert keys.tolist() == [3, 2, 1, 0]
    np.testing.assert_allclose(sizes, [25.0 + kept * (one - 25.0) - margin for one in (40.0, 30.0, 20.0, 10.0)])
    # a count far from the bulk of all is not drawn
    far = np.array([0.0, 3.0, -3.0, 0.0, 1.0, 40.0])
    _, sizes = largest_keys(far, Variances(np.full(6, 9.0), 2.0), Goal(SIGMAS))
    assert sizes[0] == pytest.approx(40.0 - MARGIN * math.sqrt(11.0))
    # noise explains all of a small spread, so that all sizes are the mean less the margin of the common term
    keys, sizes = largest_keys(np.array([29.0, 31.0, 30.0, 30.0]), variances, Goal(SIGMAS))
    assert keys.tolist() == [1, 2, 3, 0]
    np.testing.assert_allclose(sizes, 30.0 - MARGIN * math.sqrt(2.0))


def test_the_largest_of_equal_counts_are_not_taken_to_be_as_large_as_their_noise() -> None:
    rng, variances, rho = np.random.default_rng(3), first_release(300, 0.34), 1.01
    deviation = math.sqrt(variances.own[0])
    largest, taken, chosen = [], [], []
    for _ in range(30):
        released = noised(np.full(300, 50.0), variances, rng)
        largest.append(released.max())
        taken.append(largest_keys(released, variances, Goal(SIGMAS))[1][0])
        choice = choose_keys(released, variances, Goal(SIGMAS), rho)
        assert choice is not None
        chosen.append(len(choice.keys))
    assert np.mean(largest) > 50.0 + 2.5 * deviation
    assert np.mean(taken) < 50.0 + 0.5 * deviation
    # not many more than the level pays for if the counts were known
    known = most_keys(np.full(300, (50.0 / (ROOM * SIGMAS)) ** 2), rho)
    assert 0.5 * known < np.mean(chosen) < 1.2 * known


def test_equal_counts_are_taken_in_the_order_of_the_keys() -> None:
    choice = choose_keys(np.full(50, 1000.0), first_release(50, 1.0), Goal(SIGMAS, limit=3), 1.0)
    assert choice is not None
    assert choice.keys.tolist() == [0, 1, 2]


@pytest.mark.parametrize(("rows", "keys", "most"), [(1, 300, 1), (10, 300, 1), (10, 3_000, 3), (100, 300, 1)])
def test_counts_as_large_as_a_forecast_says_are_mostly_returned(rows: int, keys: int, most: int) -> None:
    level, goal, rng = 0.2, Goal(SIGMAS, rows, most, 12**-0.5), np.random.default_rng(3)
    first_rho = level / FIRST_PART
    first, chosen = with_best_common(np.full(keys, equal_variance(keys, first_rho, most))), []
    least = least_count(rows, keys, level, goal)
    truth = np.where(np.arange(keys) < rows, np.ceil(least), 0.0)
    for _ in range(40):
        released = truth + rng.normal(0.0, np.sqrt(first.own)) + rng.normal(0.0, first.common**0.5)
        choice = choose_keys(released, first, goal, level - first_rho)
        if choice:
            are_exact = choice.variances.total[: len(choice.keys)] ** 0.5 * SIGMAS <= least
            chosen.append(int(np.count_nonzero(choice.keys[are_exact] < rows)))
        else:
            chosen.append(0)
    assert np.mean(chosen) > 0.75 * rows
    assert smallest_level(least, keys, goal) == pytest.approx(level, rel=0.05) or rows > 1


def test_a_level_that_pays_for_no_key_is_spent_on_the_largest() -> None:
    released = np.array([10.0, 400.0, 300.0])
    variances = first_release(3, 0.5)
    _, sizes = largest_keys(released, variances, Goal(SIGMAS))
    least = with_best_common((sizes[:1] / (ROOM * SIGMAS)) ** 2).rho()
    choice = choose_keys(released, variances, Goal(SIGMAS), least / 10)
    assert choice is not None
    assert choice.keys.tolist() == [1]
    assert choice.variances.rho() == pytest.approx(least / 10, rel=1e-9)


def test_as_many_keys_are_chosen_as_brute_force_finds() -> None:
    rng = np.random.default_rng(8)
    for _ in range(50):
        released, rho = rng.exponential(200.0, 30), rng.uniform(0.01, 1.0)
        variances = first_release(30, rho)
        _, sizes = largest_keys(released, variances, Goal(SIGMAS))
        allowed = (sizes / (ROOM * SIGMAS)) ** 2
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


Releases = tuple[Floats, Variances, Floats, Choice]


def dense(first: Floats, of_first: Variances, second: Floats, choice: Choice) -> tuple[Floats, Floats]:
    """Return the estimate and its deviations by the inverses of dense matrices."""
    clear, of_second = np.flatnonzero(choice.is_clear), choice.variances
    one = np.zeros((len(first), len(first)))
    one[np.ix_(clear, clear)] = np.linalg.inv(np.diag(of_first.own[clear]) + of_first.common)
    two = np.linalg.inv(np.diag(of_second.own) + of_second.common)
    covariance = np.linalg.inv(one + two)
    return covariance @ (one @ first + two @ second), np.sqrt(np.diag(covariance))


def random_releases(rng: np.random.Generator, is_clear: Flags) -> Releases:
    """Return two releases of keys, with variances from 0.01 to 100."""
    keys = len(is_clear)
    laws = [Variances(10.0 ** rng.uniform(-2, 2, keys), 10.0 ** rng.uniform(-2, 2)) for _ in range(2)]
    first, second = rng.normal(100.0, 30.0, (2, keys))
    return first, laws[0], second, Choice(np.arange(keys), laws[1], is_clear)


@pytest.mark.parametrize("keys", [1, 2, 3, 20, 60])
@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_the_estimate_is_that_of_dense_matrices_with_the_first_release_of_clear_keys(keys: int, share: float) -> None:
    rng = np.random.default_rng(keys)
    for _ in range(5):
        releases = random_releases(rng, rng.uniform(size=keys) < share)
        for found, expected in zip(estimated(*releases), dense(*releases), strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-9)


def test_without_clear_keys_the_estimate_is_the_second_release() -> None:
    first, of_first, second, choice = random_releases(np.random.default_rng(2), np.zeros(30, dtype=np.bool_))
    estimates, deviations = estimated(first, of_first, second, choice)
    np.testing.assert_allclose(estimates, second, rtol=1e-12)
    np.testing.assert_allclose(deviations, np.sqrt(choice.variances.total), rtol=1e-12)
    # and near keys beside clear ones do not read their own first numbers
    choice.is_clear[:10] = True
    other = first + np.where(choice.is_clear, 0.0, 1e6)
    for found, same in zip(
        estimated(other, of_first, second, choice), estimated(first, of_first, second, choice), strict=True
    ):
        np.testing.assert_array_equal(found, same)


def test_variances_of_the_wrong_keys_give_another_estimate() -> None:
    first, of_first, second, choice = random_releases(np.random.default_rng(1), np.ones(20, dtype=np.bool_))
    permuted = Variances(np.roll(choice.variances.own, 1), choice.variances.common)
    found, _ = estimated(first, of_first, second, Choice(choice.keys, permuted, choice.is_clear))
    expected, deviations = dense(first, of_first, second, choice)
    assert (np.abs(found - expected) > 0.1 * deviations).sum() > 10


def test_keys_that_were_not_chosen_tell_nothing_of_the_others() -> None:
    """Least squares over all keys, with one unknown count each, have the estimates of the chosen keys alone."""
    first, of_first, second, choice = random_releases(np.random.default_rng(6), np.ones(8, dtype=np.bool_))
    chosen = 5
    design = np.concatenate([np.eye(8), np.eye(8)[:chosen]])
    of_chosen = Variances(choice.variances.own[:chosen], choice.variances.common)
    covariance = np.zeros((8 + chosen, 8 + chosen))
    covariance[:8, :8] = np.diag(of_first.own) + of_first.common
    covariance[8:, 8:] = np.diag(of_chosen.own) + of_chosen.common
    weights = np.linalg.inv(covariance)
    values = np.concatenate([first, second[:chosen]])
    everything = np.linalg.solve(design.T @ weights @ design, design.T @ weights @ values)[:chosen]
    of_first_chosen = Variances(of_first.own[:chosen], of_first.common)
    five = Choice(np.arange(chosen), of_chosen, choice.is_clear[:chosen])
    estimates, _ = estimated(first[:chosen], of_first_chosen, second[:chosen], five)
    np.testing.assert_allclose(estimates, everything, rtol=1e-9)


@given(st.lists(st.floats(-2.0, 6.0), max_size=30).map(np.array), st.sampled_from([0.01, 0.05, 0.5]))
def test_rows_are_the_most_whose_intervals_allow_for_picking_them(allowed: Floats, miss: float) -> None:
    keys, fits = len(allowed), [0]
    for rows in range(1, keys + 1):
        quantile = quantile_of(miss * rows / (2 * keys))
        if sum(one >= quantile for one in allowed) >= rows:
            fits.append(rows)
    found = rows_within(allowed, miss, quantile_of)
    assert found == max(fits)
    # rows are all those that have the quantile, so that no tie decides
    if found:
        assert sum(one >= quantile_of(miss * found / (2 * keys)) for one in allowed) == found


def test_the_quantile_is_enough_at_the_boundary() -> None:
    least = quantile_of(0.05 * 2 / (2 * 4))
    assert rows_within(np.array([9.0, least, 0.0, 0.0]), 0.05, quantile_of) == 2
    assert rows_within(np.array([9.0, np.nextafter(least, 0.0), 0.0, 0.0]), 0.05, quantile_of) == 1
    assert rows_within(np.zeros(0), 0.05, quantile_of) == 0


@pytest.mark.parametrize("limit", [None, 20])
def test_intervals_of_equal_counts_cover_and_plain_ones_do_not(limit: int | None) -> None:
    """Noise alone chooses among equal counts, so that intervals that read it for all keys are too high."""
    setting = Setting(fixed((300, 50.0)))
    assert returned(setting, limit, 300).is_covered.mean() >= 0.93
    # planted fault: both releases in all estimates, and 1.96 deviations
    assert returned(setting, limit, 300, plain=True).is_covered.mean() < 0.92


def test_intervals_by_zipf_cover_and_most_rows_are_within() -> None:
    by_law = returned(Setting(by_zipf(16_000)), None, 100)
    assert by_law.is_covered.mean() > 0.935
    assert by_law.is_within.mean() > 0.975


@pytest.mark.parametrize("keys", [1, 2, 34, 200])
def test_a_common_term_costs_less_than_a_tenth_of_the_missed_rows(keys: int) -> None:
    assert 0.05 - 1e-6 <= most_missed(keys) <= (0.05 + 1e-6 if keys == 1 else 0.055)
