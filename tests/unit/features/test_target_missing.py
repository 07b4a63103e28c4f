"""The ends of true numbers from what may be missing of them, on numbers whose noise is next to nothing."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from dpsql.features.target_missing import Missing
from dpsql.features.target_rule import upper_quantile
from dpsql.model.estimates import UNITS, Estimate, Linear, Ratio, Sum, ValueBounds
from dpsql.model.frame import NANO, PRESENCE, Bounding, Frame, Statistic
from dpsql.model.private_query import EachKey, Finish, FrameQuery, OutputColumn, Request
from dpsql.model.query_kinds import RelativeError
from dpsql.model.rows import Key, PublicKeys, Rows, RowsSql
from dpsql.release.left_out import HIGH, LeftOut
from tests.target_walks import COSTS, Groups

TARGET = RelativeError(0.1, 0.9, 0.95)
ROWS = Statistic("rows", 2, 10, -1, limit=5)
WITH_COST = replace(ROWS, low_steps=0, value_sql="cost")
MEAN = Estimate(
    "avg(cost)",
    Ratio((0.0, 100.0), Linear(COSTS, 0.0), Linear(WITH_COST, 0.0)),
    "DOUBLE",
    value_bounds=ValueBounds("row", (0.0, 100.0), None, hold_all=True),
)
ESTIMATES = (
    Estimate("count(DISTINCT unit)", UNITS, "BIGINT"),
    Estimate("rows", Sum(Linear(ROWS, 0.0)), "BIGINT"),
    MEAN,
)
PEOPLE, NUMBER, AVERAGE = range(3)
SIGMA = 1e-3
EXACT = {one: np.array([value]) for one, value in ((PRESENCE, 300.0), (ROWS, 400.0), (WITH_COST, 400.0), (COSTS, 16e3))}
STEP = Groups(ESTIMATES, EXACT, dict.fromkeys(EXACT, SIGMA)).exact_step(NANO)
FOUND = LeftOut(0.0, 10.0, 400.0, 1.0, 1.0, 1)
MOST = HIGH * 10.0
SHARE = MOST / (400.0 + MOST)


def missing(
    found: LeftOut | None = None,
    covered: Statistic = ROWS,
    people: float = math.inf,
    mean: Estimate = MEAN,
    *,
    one: bool = False,
) -> Missing:
    """Return what may be missing from a question with people, rows and an average."""
    frame = Frame(
        Rows("person", "t", "1", Key("unit", "BIGINT")),
        RowsSql("t"),
        Bounding(2),
        (Key("key", "BIGINT"),),
        PublicKeys((("t", "key"),), (3,), "", (False,)),
    )
    part = FrameQuery(
        frame=frame,
        alternatives=(),
        statistics=tuple(EXACT),
        weights=(0.25,) * 4,
        estimates=(*ESTIMATES[:AVERAGE], mean),
        finish=Finish(tuple(OutputColumn(f"n{i}", f"agg_{i}", one.type, i) for i, one in enumerate(ESTIMATES))),
        request=Request(1.0, None, 1e-6),
        groups=EachKey(),
        has_one_row_in_group=one,
    )
    return Missing(part, {covered: found} if found else {}, people)


def half_width(number: int, found: Missing) -> float:
    """Return the half width of the only group."""
    (width,) = found.half_widths(number, STEP, TARGET)
    return float(width)


def test_all_people_that_may_be_missing_are_put_into_each_group() -> None:
    noise = upper_quantile(TARGET) * math.hypot(SIGMA, math.sqrt(1.0 / 12.0))
    assert half_width(PEOPLE, missing(people=30.0)) == pytest.approx(30.0 + noise, rel=1e-6)
    assert math.isinf(half_width(PEOPLE, missing()))
    # rows are not bounded by people
    assert math.isinf(half_width(NUMBER, missing(people=30.0)))


def test_rows_left_out_are_those_of_groups_that_are_cut_alike_if_there_is_no_sign_of_any() -> None:
    assert half_width(NUMBER, missing(FOUND)) == pytest.approx(1.5 * MOST, rel=0.1)
    # a lower end above 0: one unit may lack far more than the cut
    assert math.isfinite(half_width(NUMBER, missing(replace(FOUND, value=16.4))))
    assert math.isinf(half_width(NUMBER, missing(replace(FOUND, value=16.5))))
    assert math.isinf(half_width(NUMBER, missing(replace(FOUND, shown=3.0))))


@pytest.mark.parametrize(
    "found",
    [
        missing(FOUND),
        missing(FOUND, WITH_COST),
        missing(FOUND, people=400.0, one=True),
        missing(people=MOST, one=True),
    ],
)
def test_an_average_has_the_missing_rows_at_the_further_end_of_its_bounds(found: Missing) -> None:
    """400 rows have the mean 40, so that the further end is 100."""
    assert half_width(AVERAGE, found) == pytest.approx(SHARE * 60.0, rel=1e-3)


@pytest.mark.parametrize(
    "found",
    [
        missing(),
        missing(people=MOST),
        missing(replace(FOUND, value=16.5)),
        missing(replace(FOUND, groups=2)),
        missing(replace(FOUND, is_of_shown=False)),
        missing(FOUND, replace(ROWS, limit=6)),
        missing(FOUND, replace(ROWS, filter_sql="urgent")),
        missing(FOUND, replace(ROWS, value_sql="age")),
        missing(FOUND, COSTS),
    ],
)
def test_an_average_whose_missing_rows_have_no_end_lies_between_its_bounds(found: Missing) -> None:
    assert half_width(AVERAGE, found) == pytest.approx(60.0)


def test_an_average_of_values_that_may_be_cut_has_no_end() -> None:
    for bounds in (None, ValueBounds("row", (0.0, 100.0), None)):
        assert math.isinf(half_width(AVERAGE, missing(FOUND, mean=replace(MEAN, value_bounds=bounds))))
