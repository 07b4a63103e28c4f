"""Expected errors under bounds: brute force over choices of groups, and numbers on a fine grid."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest

from dpsql.mechanism.gaussian_measure import GAUSSIAN
from dpsql.receipts.bound_words import percent
from dpsql.release.bound_errors import (
    PEOPLE,
    ROWS,
    Grouping,
    Kept,
    Noise,
    Pairs,
    bounded_sums,
    kept,
    kept_share,
    mean_error,
    total_error,
)
from dpsql.release.bound_grid import Grid, best_choice, bounds_of, factor
from dpsql.release.raw_groups import QUANTILES, ValueSpread
from tests.other_laws import LAPLACE

# the groups of each unit, with its rows in each
UNITS = ({0: 3, 1: 1, 2: 5}, {0: 1}, {1: 2, 2: 2}, {0: 9, 1: 1, 2: 1})
COST = (0.0, 10.0)


def pairs_of_units() -> Pairs:
    places = [(unit, key, rows) for unit in UNITS for key, rows in unit.items()]
    sums = np.array([4.0 * rows for _, _, rows in places])
    return Pairs(
        key=np.array([key for _, key, _ in places]),
        groups=np.array([len(unit) for unit, _, _ in places]),
        most_rows=np.array([max(unit.values()) for unit, _, _ in places]),
        rows=np.array([rows for _, _, rows in places]),
        counts={"cost": np.array([rows for _, _, rows in places])},
        totals={"cost": sums},
        clamped={("cost", COST): sums},
        names=("a", "b", "c"),
    )


def kept_by_brute_force(max_groups: int, max_rows: int) -> tuple[list[float], list[float]]:
    """Return mean and variance of the rows that each group keeps over all choices of groups of each unit."""
    means, variances = np.zeros(3), np.zeros(3)
    for unit in UNITS:
        choices = list(itertools.combinations(unit, min(max_groups, len(unit))))
        rows = np.array([[min(unit[key], max_rows) * (key in one) if key in unit else 0 for key in range(3)]
                         for one in choices])  # fmt: skip
        # units choose apart from each other
        means += rows.mean(0)
        variances += rows.var(0)
    return means.tolist(), variances.tolist()


@pytest.mark.parametrize("max_groups", [1, 2, 3])
@pytest.mark.parametrize("max_rows", [1, 2, 10])
def test_kept_rows_are_the_mean_over_all_choices_of_groups(max_groups: int, max_rows: int) -> None:
    pairs = pairs_of_units()
    found = kept(pairs, np.minimum(pairs.rows, max_rows), kept_share(pairs.groups, max_groups))
    means, variances = kept_by_brute_force(max_groups, max_rows)
    assert found.mean == pytest.approx(means)
    assert found.variance == pytest.approx(variances)


def test_sums_of_more_rows_are_scaled_down_to_the_cap() -> None:
    assert bounded_sums(pairs_of_units(), "cost", COST, 2).max() == 8.0
    assert bounded_sums(pairs_of_units(), "cost", COST, None).max() == 36.0


@pytest.mark.parametrize("floor", [-math.inf, 0.0, 4.0, 30.0])
@pytest.mark.parametrize(("true", "mean", "sigma"), [(0.0, 0.0, 3.0), (10.0, 7.0, 5.0), (10.0, 12.0, 0.5), (2, -9, 4)])
def test_the_mean_error_is_that_of_a_fine_grid(true: float, mean: float, sigma: float, floor: float) -> None:
    x = np.linspace(mean - 12 * sigma, mean + 12 * sigma, 400_001)
    density = np.exp(-0.5 * ((x - mean) / sigma) ** 2) / sigma / math.sqrt(2.0 * math.pi)
    shown = np.where(x > floor, x, 0.0)
    expected = float((np.abs(shown - true) * density).sum() * (x[1] - x[0]))
    found = mean_error(np.array([true]), np.array([mean]), np.array([sigma]), GAUSSIAN, floor)[0]
    assert found == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("floor", [-math.inf, 0.0, 4.0])
def test_the_mean_error_is_that_of_the_law_of_the_noise(floor: float) -> None:
    true, mean, sigma = np.array([10.0]), np.array([7.0]), np.array([5.0])
    x = np.linspace(-200.0, 200.0, 400_001)
    density = np.exp(-math.sqrt(2.0) * np.abs(x - mean) / sigma) / sigma / math.sqrt(2.0)
    expected = float((np.abs(np.where(x > floor, x, 0.0) - true) * density).sum() * (x[1] - x[0]))
    assert mean_error(true, mean, sigma, LAPLACE, floor)[0] == pytest.approx(expected, rel=1e-4)
    assert mean_error(true, mean, sigma, GAUSSIAN, floor)[0] != pytest.approx(expected, rel=1e-2)


def test_a_group_below_the_threshold_lacks_all_of_its_number() -> None:
    true, people = np.array([1000.0, 50.0]), Kept(np.array([100.0, 5.0]), np.zeros(2))
    number = Kept(true, np.zeros(2))
    error = total_error(true, number, Noise(1.0, GAUSSIAN, threshold=50.0, count_sigma=5.0), people, is_positive=True)
    assert error == pytest.approx(math.sqrt(2.0 / math.pi) + 50.0, rel=1e-6)


def test_listed_keys_without_rows_add_their_noise() -> None:
    pairs = pairs_of_units()
    none, four = (
        Grouping(("city",), Pairs(**{one: getattr(pairs, one) for one in pairs.__slots__} | {"empty": empty}), {}, 1.0,
                 is_listed=True).error(ROWS, 3, 10, (0.0, 0.0), Noise(6.0, GAUSSIAN))
        for empty in (0, 4)
    )  # fmt: skip
    # below 0 nothing is shown, so half of the mean size of the noise is left
    assert (four - none) * pairs.rows.sum() == pytest.approx(4 * 6.0 * math.sqrt(2.0 / math.pi) / 2.0)


def test_quantiles_count_each_unit_once() -> None:
    pairs = pairs_of_units()
    assert [pairs.unit_quantile(pairs.groups, share) for share in (0.25, 0.26, 0.5, 0.51, 1.0)] == [1, 2, 2, 3, 3]
    assert pairs.unit_quantile(pairs.most_rows, 0.99) == 9


def test_bounds_never_are_those_of_one_value() -> None:
    quantiles = tuple(float(index) for index in range(-3, len(QUANTILES) - 3))
    spread = ValueSpread(10**6, -1e9, 1e9, quantiles, (-9.0, 9.0), {}, {})
    listed = bounds_of(spread)
    assert {low for low, _ in listed} == {-5.0, -1.0, 0.0}
    assert {high for _, high in listed} == {2.0, 5.0, 10.0}
    assert all(low < high for low, high in listed)
    of_few = {bound for bounds in bounds_of(replace(spread, usual=(-1.0, 2.0))) for bound in bounds}
    assert of_few == {-1.0, 0.0, 2.0}


def test_ten_units_or_one_in_a_thousand_are_left_out_of_the_grid() -> None:
    for units, left_out in ((5, 4), (500, 10), (50_000, 50)):
        # a unit of each number, in one group
        numbers = np.arange(1, units + 1)
        one = np.ones(units, dtype=np.int64)
        pairs = Pairs(0 * one, one, numbers, numbers, {}, {}, {}, ("a",))
        assert pairs.usual_number(numbers) == units - left_out


def test_the_best_of_a_grid_has_the_least_geometric_mean() -> None:
    grid = Grid((1, 2, 5), (1, 2), {"cost": ((0.0, 5.0), (0.0, 10.0))})

    def error(place: int, groups: int, rows: int, number: str, bounds: tuple[float, float]) -> float:
        size = {PEOPLE: 1.0, ROWS: 1.0 + (rows - 2) ** 2}.get(number, 1.0 + abs(bounds[1] - 10.0))
        return size * (1.0 + (groups - 2 - place) ** 2)

    best = best_choice(grid, 1, error)
    assert (best.max_groups, best.max_rows, best.values) == (2, 2, (("cost", (0.0, 10.0)),))
    assert factor([4.0, 1.0, None], [1.0, 1.0, 1.0]) == pytest.approx(2.0)
    assert percent(0.4236) == "42 %"
