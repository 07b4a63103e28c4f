"""Intervals of rows that LIMIT picks: candidates and order against brute force, and the false coverage rate.

The theorems are those of docs/proofs/top-rows.md. The statistical test has a planted fault that it catches.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import duckdb
import numpy as np
import pytest
from scipy.stats import binom, norm

from dpsql.mechanism.correlated_gaussian import listed_histogram
from dpsql.mechanism.gaussian_measure import GAUSSIAN
from dpsql.model.estimates import UNITS, AnyUnit, Estimate, Linear, Ratio, RunningSum, RunningTotal, Sum
from dpsql.model.frame import PRESENCE, Ordering, Statistic
from dpsql.model.private_query import EachKey
from dpsql.model.top_rows import TopRows
from dpsql.release.estimates import COLUMNS, Floats, NoisyFrame, NoisyValues
from dpsql.release.top_rows import FAR, RowOrder, Selection, far_quantile, picked_places, selection_of, wider_of
from tests.histograms import independent
from tests.other_laws import LAPLACE

COSTS = Statistic("sum", -100 * 2**10, 100 * 2**10, -10)
COUNT = Estimate("n", UNITS, "BIGINT")
SCORE = Estimate("score", UNITS, "DOUBLE")
OWN = Estimate("own", Sum(Linear(COSTS, 0.0)), "DOUBLE")
CENTRED = Estimate("centred", Sum(Linear(COSTS, 50.0)), "DOUBLE")
MEAN = Estimate("mean", Ratio((0.0, 100.0), Linear(COSTS, 0.0), Linear(None, 1.0)), "DOUBLE")
RUNNING = Estimate(
    "running", RunningSum(Linear(None, 1.0), RunningTotal(Ordering(0, (8,), descending=False), None)), "BIGINT"
)
EVERYONE = slice(None)


def frame_of(units: Floats, sigma: float = 1.0, costs: Floats | None = None) -> NoisyFrame:
    """Return noisy numbers of units, and of sums if some are given."""
    values = {PRESENCE: NoisyValues(units, sigma)}
    if costs is not None:
        values[COSTS] = NoisyValues(costs, sigma)
    return NoisyFrame(values, independent(1), EachKey())


def of(rows: int, candidates: int, groups: int) -> Selection:
    """Return numbers of picked rows with Gaussian noise."""
    return Selection(rows, candidates, groups, GAUSSIAN)


def first(limit: int, offset: int = 0, *, largest: bool = True, nulls_first: bool = False) -> TopRows:
    return TopRows(0, largest, nulls_first, limit, offset)


@pytest.mark.parametrize("chance", [0.01, 0.05, 0.1])
@pytest.mark.parametrize(("rows", "candidates", "groups"), [(1, 2, 2), (5, 5, 300), (5, 300, 300), (10, 99, 10**6)])
def test_a_factor_is_the_ratio_of_two_quantiles(chance: float, rows: int, candidates: int, groups: int) -> None:
    wanted = norm.isf(0.9 * chance * rows / candidates / 2.0) / norm.isf(chance / 2.0)
    assert of(rows, candidates, groups).wider(chance) == pytest.approx(wanted, rel=1e-9)
    assert far_quantile(GAUSSIAN, groups, chance) == pytest.approx(norm.isf(0.1 * chance / groups), rel=1e-9)


def test_a_factor_is_that_of_the_law_of_the_noise() -> None:
    found = Selection(5, 300, 300, LAPLACE).wider()
    assert found == pytest.approx(math.log(0.9 * 0.05 * 5 / 300) / math.log(0.05))
    assert found > of(5, 300, 300).wider()


@pytest.mark.parametrize("selection", [of(0, 7, 7), of(7, 7, 7), of(0, 0, 0)])
def test_intervals_stay_plain_if_no_row_or_every_row_is_shown(selection: Selection) -> None:
    assert selection.wider() == 1.0


def counted(shown: Floats, values: Floats, sigma: float, top: TopRows) -> int:
    """Return the number of candidates by trying all groups."""
    ahead = sorted(shown, reverse=top.is_largest)
    below = ahead[top.offset + top.limit]
    reach = 2.0 * norm.isf(FAR * 0.05 / len(values)) * sigma
    return sum(one + reach >= below if top.is_largest else one - reach <= below for one in values)


@pytest.mark.parametrize("estimate", [COUNT, SCORE])
def test_candidates_are_those_that_reach_the_first_row_below(estimate: Estimate) -> None:
    random, found = np.random.default_rng(7), set()
    for _ in range(200):
        groups = int(random.integers(2, 12))
        limit = int(random.integers(1, groups))
        offset = int(random.integers(0, groups - limit))
        top = first(limit, offset, largest=bool(random.integers(2)))
        values, sigma = random.normal(0.0, 30.0, groups), float(random.choice([0.5, 3.0]))
        shown = np.rint(values) if estimate is COUNT else values
        rounded = math.hypot(sigma, math.sqrt(1 / 12)) if estimate is COUNT else sigma
        selection = selection_of(RowOrder(top, estimate), frame_of(values, sigma), EVERYONE)
        assert selection == of(limit, max(limit, counted(shown, values, rounded, top)), groups)
        found.add((top.is_largest, offset > 0, selection.candidates < groups))
    assert len(found) == 8


def test_only_shown_groups_are_candidates() -> None:
    order, frame = RowOrder(first(1), COUNT), frame_of(np.array([9.0, 9.0, 8.0, -90.0]))
    assert selection_of(order, frame, np.array([0, 1, 3])) == of(1, 2, 3)


@pytest.mark.parametrize(
    ("top", "rows"), [(first(4), 4), (first(9), 4), (first(0), 0), (first(3, 4), 0), (first(3, 2), 2)]
)
def test_an_end_of_the_groups_leaves_none_below(top: TopRows, rows: int) -> None:
    found = selection_of(RowOrder(top, COUNT), frame_of(np.array([90.0, 60.0, 30.0, 0.0])), EVERYONE)
    assert found == of(rows, 4, 4)
    # the last two of four are picked by their numbers, too
    assert (found.wider() > 1.0) == (0 < rows < 4)


def test_an_order_by_keys_picks_no_row_by_a_number() -> None:
    assert selection_of(None, frame_of(np.zeros(3)), EVERYONE) == of(0, 0, 0)
    assert wider_of(None, COUNT, of(1, 3, 3)) == 1.0


@pytest.mark.parametrize("nulls_first", [False, True])
@pytest.mark.parametrize("largest", [False, True])
@pytest.mark.parametrize("estimate", [COUNT, MEAN])
def test_rows_are_picked_as_sql_orders_them(estimate: Estimate, largest: bool, nulls_first: bool) -> None:
    random = np.random.default_rng(11)
    units, costs = random.integers(-2, 4, 40) + random.choice([-0.2, 0.2], 40), random.normal(0.0, 90.0, 40)
    frame, ties = frame_of(units, 1.0, costs), random.permutation(40)
    shown = COLUMNS[type(estimate.value)](estimate, estimate.value, frame).value
    shown = np.rint(shown) if estimate is COUNT else shown
    rows = [(i, None if math.isnan(one) else one, int(ties[i])) for i, one in enumerate(shown.tolist())]
    assert any(one is None for _, one, _ in rows) == (estimate is MEAN)
    with duckdb.connect() as connection:
        connection.execute("CREATE TABLE t (id INTEGER, y DOUBLE, tie INTEGER)")
        connection.executemany("INSERT INTO t VALUES (?, ?, ?)", rows)
        order = f"y {'DESC' if largest else 'ASC'} NULLS {'FIRST' if nulls_first else 'LAST'}, tie"
        for limit, offset in ((40, 0), (7, 0), (9, 5), (9, 35), (0, 0)):
            wanted = connection.execute(f"SELECT id FROM t ORDER BY {order} LIMIT {limit} OFFSET {offset}").fetchall()
            top = first(limit, offset, largest=largest, nulls_first=nulls_first)
            assert picked_places(RowOrder(top, estimate), frame, EVERYONE, ties).tolist() == [i for (i,) in wanted]


@pytest.mark.parametrize(("top", "candidates"), [(first(1), 4), (first(1, largest=False), 3), (first(5), 6)])
def test_an_average_of_which_nothing_is_known_is_a_candidate(top: TopRows, candidates: int) -> None:
    """Averages 90, 80, 20 and 10 are clear; one of 15 has too few units for an interval, and one is NULL."""
    units, costs = np.array([1e4, 1e4, 1e4, 1e4, 2.0, -3.0]), np.array([9e5, 8e5, 2e5, 1e5, 30.0, 30.0])
    found = selection_of(RowOrder(top, MEAN), frame_of(units, 1.0, costs), EVERYONE)
    assert found == of(top.limit, candidates, 6)


def test_a_common_part_of_the_noise_cancels_for_counts_alone() -> None:
    units, costs = np.array([1e4, 9e3, 8e3, 7e3]), np.array([9e5, 2e5, 1e5, 1e4])
    own = frame_of(units, 1.0, costs)
    common = replace(own, histogram=listed_histogram(4, 1, 0.5))
    for estimate, candidates in ((COUNT, 2), (MEAN, 4)):
        order = RowOrder(first(1), estimate)
        assert selection_of(order, own, EVERYONE) == of(1, 2, 4)
        assert selection_of(order, common, EVERYONE) == of(1, candidates, 4)
        assert selection_of(replace(order, is_independent=False), own, EVERYONE) == of(1, 4, 4)


def test_intervals_of_columns_that_share_noise_with_the_order_are_wider() -> None:
    rows, plain = of(1, 3, 8), 1.0
    any_unit = Estimate("any", AnyUnit(Linear(None, 1.0), truth=True), "BOOLEAN")
    for column, factor in (
        (COUNT, rows.wider()),
        (CENTRED, rows.wider()),
        (MEAN, rows.wider()),
        (RUNNING, of(1, 8, 8).wider()),
        (OWN, plain),
        (any_unit, plain),
    ):
        assert wider_of(RowOrder(first(1), COUNT), column, rows) == factor, column.name
    assert wider_of(RowOrder(first(1), OWN), COUNT, rows) == plain
    assert wider_of(RowOrder(first(1), OWN), CENTRED, rows) == rows.wider()


FALSE_ALARM, RATE, RELEASES = 1e-4, 0.0502, 600
"""If the rate holds, the check fails with at most the first probability."""
FLAT_TOP = np.repeat([1_000.0, 500.0], [200, 100])


def missed(wider: Callable[[Selection], float], correlation: float) -> int:
    """Return the number of releases in which the interval of one shown row, drawn at random, misses."""
    random, found = np.random.default_rng(51), 0
    order, groups = RowOrder(first(5), COUNT), len(FLAT_TOP)
    histogram = listed_histogram(groups, 1, correlation) if correlation else independent(1)
    for _ in range(RELEASES):
        noise = math.sqrt(1.0 - correlation) * random.standard_normal(groups)
        noise += math.sqrt(correlation) * random.standard_normal()
        frame = replace(frame_of(FLAT_TOP + 20.0 * noise, 20.0), histogram=histogram)
        frame = replace(frame, wider=wider(selection_of(order, frame, EVERYONE)))
        column = COLUMNS[type(UNITS)](COUNT, UNITS, frame)
        place = picked_places(order, frame, EVERYONE, np.arange(groups))[random.integers(5)]
        found += not column.low[place] <= FLAT_TOP[place] <= column.high[place]
    return found


@pytest.mark.parametrize("correlation", [0.0, 0.4])
def test_the_false_coverage_rate_holds_on_a_flat_top(correlation: float) -> None:
    assert missed(lambda rows: rows.wider(), correlation) <= binom.isf(FALSE_ALARM, RELEASES, RATE)


def test_the_check_fails_for_plain_intervals() -> None:
    """Planted fault: intervals of groups that are named beforehand."""
    assert missed(lambda _: 1.0, 0.0) > binom.isf(FALSE_ALARM, RELEASES, RATE)


def test_candidates_far_below_add_no_width() -> None:
    """The factor follows from the flat top: 200 of the 300 groups."""
    frame = frame_of(FLAT_TOP, 20.0)
    assert selection_of(RowOrder(first(5), COUNT), frame, EVERYONE) == of(5, 200, 300)
    assert norm.isf(0.025) * of(5, 200, 300).wider() == pytest.approx(norm.isf(0.045 * 5 / 400))
