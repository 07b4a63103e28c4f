"""Bounds of quantiles and averages: predicted errors against sums over rows, choices against simulated releases."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest

from dpsql.features.auto_ratios import (
    AVERAGE,
    QUANTILE,
    People,
    RatioKind,
    RatioUse,
    _cut,
    _errors,
    _scaled,
    chosen_cuts,
    chosen_ratio_norm,
    coupled,
    supposed,
)

Floats = npt.NDArray[np.float64]
GROUPS = (1, 2, 3, 4, 5, 6, 7, 8, 10)
ROWS = (1, 2, 4, 8, 16)
RHO = 0.0072


def people(units: list[float], groups: list[float], rows: list[float]) -> People:
    return People(np.array(units), np.array(groups), np.array(rows))


def lognormal(units: int, groups: float) -> People:
    parts = 40
    rows = np.exp(1.0 + np.quantile(np.random.default_rng(1).standard_normal(10_000), (np.arange(parts) + 0.5) / parts))
    return People(np.full(parts, units / parts), np.full(parts, groups), np.maximum(1.0, rows))


def test_scaling_all_people_down_alike_changes_no_error() -> None:
    alike, use = people([1_000.0], [4.0], [8.0]), RatioUse(QUANTILE, RHO, 4)
    least = _errors(alike, *_cut(alike, 4, 1), use)
    assert least == pytest.approx(np.array([1.0, 2.0, 3.0, 4.0]) * least[0])
    assert _errors(alike, *_cut(alike, 4, 8), use) == pytest.approx(least)
    assert _errors(alike, *_scaled(alike, 2.0), use) == pytest.approx(least)
    # nobody has more: twice the noise for nothing
    assert _errors(alike, *_cut(alike, 4, 16), use) == pytest.approx(2.0 * least)


@pytest.mark.parametrize("most", [1, 2, 5])
def test_the_sampling_error_is_the_sum_over_rows(most: int) -> None:
    """Of 600 people in the one group: each weight less that in all rows, squared, of people and of their rows."""
    rows = np.repeat([1.0, 3.0, 10.0], [300, 200, 100])
    weights, all_rows = np.minimum(rows, most), rows.sum()
    of_people = np.square(weights / weights.sum() - rows / all_rows).sum()
    each = [np.square(w / n / weights.sum() - 1.0 / all_rows) for w, n in zip(weights, rows, strict=True)]
    of_rows = (np.array(each) * rows).sum()
    known = people([300.0, 200.0, 100.0], [1.0, 1.0, 1.0], [1.0, 3.0, 10.0])
    (found,) = _errors(known, *_cut(known, 1, most), RatioUse(RatioKind(0.0, 0.25, 0.0), 1.0, 1))
    assert found == pytest.approx(3.0 * math.sqrt(0.25 * (0.25 * of_people + 0.75 * of_rows)))


@pytest.mark.parametrize("most", [1, 2, 5])
def test_the_bias_is_the_share_of_weight_that_people_lose_to_others(most: int) -> None:
    known = people([300.0, 200.0, 100.0], [1.0, 1.0, 1.0], [1.0, 3.0, 10.0])
    rows = np.repeat([1.0, 3.0, 10.0], [300, 200, 100])
    weights = np.minimum(rows, most)
    lost = np.maximum(rows / rows.sum() - weights / weights.sum(), 0.0).sum()
    (found,) = _errors(known, *_cut(known, 1, most), RatioUse(RatioKind(0.0, 0.0, 0.1), 1.0, 1))
    assert found == pytest.approx(0.1 * lost)


def simulated(known: People, groups: int, rows: int, seed: int) -> float:
    """Return the mean error in ranks of noise, of sampling, and of people that differ, over the groups."""
    generator, kinds = np.random.default_rng(seed), np.repeat(np.arange(len(known.units)), known.units.astype(int))
    count = int(known.groups.max())
    errors = []
    counted, moved = np.minimum(known.rows, rows), rows * math.sqrt(groups)
    heavy = known.rows[kinds] > np.median(known.rows[kinds])
    for _ in range(20):
        order = generator.random((len(kinds), count)).argsort(axis=1)
        own = order < np.minimum(known.groups[kinds], groups)[:, None]
        ranks = generator.random(len(kinds)) + np.where(heavy, 0.05, -0.05)
        for group in range(count):
            kept = own[:, group]
            weights = counted[kinds][kept]
            truth = np.average(ranks < 0.5, weights=known.rows[kinds])
            noise = generator.normal(0.0, QUANTILE.noise * moved / math.sqrt(RHO) / weights.sum())
            found = np.average(ranks[kept] < 0.5, weights=weights) + noise
            errors.append(min(0.5, abs(found - truth)))
    return float(np.mean(errors))


POPULATIONS = {
    "alike": people([2_000.0], [8.0], [1.25]),
    "many rows": people([3_000.0], [3.0], [6.0]),
    "lognormal": lognormal(4_000, 4.0),
    "large": lognormal(60_000, 2.0),
}


@pytest.mark.parametrize("name", POPULATIONS)
def test_the_chosen_cuts_are_near_the_best_of_a_grid(name: str) -> None:
    known = POPULATIONS[name]
    count = int(known.groups.max())
    chosen = chosen_cuts(known, GROUPS, RatioUse(QUANTILE, RHO, count))
    grid = {(m, r): simulated(known, m, r, 1) for m in sorted({1, (1 + count) // 2, count}) for r in ROWS}
    assert simulated(known, *chosen, 2) <= 1.4 * min(grid.values())


@pytest.mark.parametrize(("name", "wrong"), [("lognormal", (4, 30)), ("large", (1, 1))])
def test_wrong_bounds_are_found_out(name: str, wrong: tuple[int, int]) -> None:
    """The planted faults: nearly all rows whatever their noise, and the least noise whatever the bias."""
    known = POPULATIONS[name]
    right = chosen_cuts(known, GROUPS, RatioUse(QUANTILE, RHO, int(known.groups.max())))
    assert simulated(known, *wrong, 2) > 1.4 * simulated(known, *right, 2)


def test_with_more_people_more_rows_count_and_one_row_if_nothing_is_known() -> None:
    few, many = lognormal(1_000, 2.0), lognormal(1_000_000, 2.0)
    use = RatioUse(QUANTILE, RHO, 2)
    assert chosen_cuts(few, GROUPS, use)[1] < chosen_cuts(many, GROUPS, use)[1]
    assert chosen_cuts(supposed(None, None), GROUPS, use) == (1, 1)


def test_the_largest_of_norms_alike_is_chosen() -> None:
    alike, use = people([1_000.0], [4.0], [8.0]), RatioUse(AVERAGE, RHO, None)
    assert chosen_ratio_norm(alike, use) == 16.0
    # noise for a few with a hundred times as much would leave no group of use
    assert chosen_ratio_norm(people([1_000.0, 10.0], [4.0, 4.0], [8.0, 800.0]), use) < 200.0


def test_people_in_more_groups_have_the_larger_norms() -> None:
    found = coupled((np.array([60.0, 40.0]), np.array([1.0, 4.0])), (np.array([3.0, 7.0]), np.array([1.0, 8.0])))
    assert found.units == pytest.approx([30.0, 30.0, 40.0])
    assert found.groups == pytest.approx([1.0, 1.0, 4.0])
    assert found.rows == pytest.approx([1.0, 8.0, 4.0])
    one_row = coupled((np.array([5.0]), np.array([3.0])), None)
    assert one_row.rows == pytest.approx([1.0])
