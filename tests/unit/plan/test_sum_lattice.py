"""The lattice of a sum: fine against its interval, in steps few enough to be drawn and held, whatever the data are."""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from dpsql.bound.aggregation import bounded_sql
from dpsql.errors import UnsupportedQueryError
from dpsql.model.frame import PRESENCE, Statistic
from dpsql.plan.aggregates.lattice import Bounds, SumSteps, representable, representable_together, sum_steps
from dpsql.state.rules import MAX_ROWS_PER_GROUP
from tests.unit.bound.exact_runs import SALT, Laboratory

MOST_STEPS = 2**61 - 1


@pytest.fixture(scope="module")
def laboratory() -> Iterator[Laboratory]:
    opened = Laboratory()
    opened.session.connection.execute("CREATE TABLE wide (pid INTEGER, x DOUBLE, low DOUBLE NOT NULL)")
    opened.session.sql(
        "CALL dp_protect('wide', coverage := FALSE, "
        "unit := 'u', privacy_unit_column := 'pid', max_rows_per_group := 256, "
        "max_groups_contributed := 2)"
    )
    yield opened
    opened.close()


@st.composite
def bounds(draw: st.DrawFn) -> Bounds:
    """Bounds of every size, and often as far from 0 as their width allows."""
    width = draw(st.floats(1, 2, exclude_max=True)) * 2.0 ** draw(st.integers(-62, 101))
    distance = draw(st.sampled_from([0.0, -0.5, -1.0, 1.0, 2.0**10, 2.0**19, 2.0**20 - 1]) | st.floats(-(2**20), 2**20))
    pair = (width * distance, width * distance + width)
    assume(representable(pair))
    return pair


CAPS = st.sampled_from([1, 2, 3, 255, 256, 257, 10**6, MAX_ROWS_PER_GROUP]) | st.integers(1, MAX_ROWS_PER_GROUP)


def final_interval(pair: Bounds, cap: int, *, missing: bool) -> tuple[Fraction, Fraction]:
    low, high = Fraction(pair[0]), Fraction(pair[1])
    low, high = min(low, cap * low), max(high, cap * high)
    return (min(low, Fraction(0)), max(high, Fraction(0))) if missing else (low, high)


def check_steps(steps: SumSteps, low: Fraction, high: Fraction, cap: int) -> None:
    step = Fraction(2) ** steps.exponent
    finer = 24 + min(8, math.ceil(math.log2(cap)))
    assert 2**finer * (1 - Fraction(1, 2**50)) <= (high - low) / step <= 2 ** (finer + 1)
    assert abs(steps.low - low / step) <= Fraction(cap, 2)
    assert abs(steps.high - high / step) <= Fraction(cap, 2)
    statistic = Statistic("sum", steps.low, steps.high, steps.exponent)
    assert 0 < statistic.radius_steps <= 2**33
    listed = [steps.low, steps.high, *(steps.row or ()), *(steps.group or ())]
    assert max(map(abs, listed)) < 2**53


@settings(derandomize=True, database=None, max_examples=300)
@given(pair=bounds(), cap=CAPS, missing=st.booleans())
def test_rows_under_a_cap(pair: Bounds, cap: int, *, missing: bool) -> None:
    steps = sum_steps(None, pair, cap, missing=missing)
    assert steps.group is None
    check_steps(steps, *final_interval(pair, cap, missing=missing), cap)


@settings(derandomize=True, database=None, max_examples=300)
@given(pair=bounds(), rows=st.none() | bounds(), cap=CAPS, missing=st.booleans())
def test_totals_need_no_cap(pair: Bounds, rows: Bounds | None, cap: int, *, missing: bool) -> None:
    assume(rows is None or representable_together(pair, rows))
    steps = sum_steps(pair, rows, cap, missing=missing)
    assert steps == sum_steps(pair, rows, None, missing=missing)
    check_steps(steps, *final_interval(pair, 1, missing=missing), 1)


def test_the_lattice_follows_the_final_interval() -> None:
    """One unit adds up to 256 rows of 2**20 or nothing, so what 1.99 between the bounds of a row is does not matter."""
    steps = sum_steps(None, (1048576.0, 1048577.99), 256, missing=True)
    assert steps == SumSteps(-4, 0, 256 * (2**24 + 32), (2**24, 2**24 + 32), None)
    # a lattice of 2**24 steps over the row alone would reach 2**52 steps and more
    assert Fraction(256 * 2**20) / (Fraction(2) ** (0 - 24)) == 2**52


def test_a_sum_without_bounds_has_no_lattice() -> None:
    with pytest.raises(ValueError, match="bounds"):
        sum_steps(None, None, 3, missing=True)


@pytest.mark.parametrize(
    "pair", [(0, 1e31), (0, 1e-19), (1e6, 1e6 + 0.9), (-1e6 - 0.9, -1e6), (5, 5), (1e-30, 2e-30)], ids=str
)
@pytest.mark.parametrize("form", ["group", "row"])
def test_extreme_bounds_are_refused(laboratory: Laboratory, pair: Bounds, form: str) -> None:
    with pytest.raises(UnsupportedQueryError) as refused:
        laboratory.plan(f"SELECT sum(x, contribution_bounds_per_{form} => ({pair[0]!r}, {pair[1]!r})) FROM wide")
    assert [refusal.code for refusal in refused.value.refusals] == ["bounds_invalid"]


def test_rows_too_wide_for_their_group_are_refused(laboratory: Laboratory) -> None:
    """Their steps left a BIGINT, and the cast failed for some data only."""
    text = "SELECT sum(x, contribution_bounds_per_group => (0, 1), contribution_bounds_per_row => (0, {})) FROM wide"
    with pytest.raises(UnsupportedQueryError, match="that of the group"):
        laboratory.plan(text.format(2**28 + 1))
    laboratory.plan(text.format(2**28))


LAST_BEFORE_REFUSAL = (
    "sum({}, contribution_bounds_per_row => (1048576, 1048577.99))",
    "sum({}, contribution_bounds_per_row => (-1048577.99, -1048576))",
    "sum({}, contribution_bounds_per_row => (-1.26e30, 1.26e30))",
    "sum({}, contribution_bounds_per_group => (-1.26e30, 1.26e30))",
    "sum({}, contribution_bounds_per_group => (0, 1e-18))",
    "sum({}, contribution_bounds_per_group => (0, 1), contribution_bounds_per_row => (-268435456, 268435456))",
    "avg({}, contribution_bounds_per_row => (1048576, 1048577.99))",
    "count({}, contribution_bounds_per_group => (0, 1_000_000_000))",
)


@pytest.mark.parametrize("value", ["1e308", "-1e308", "'nan'::DOUBLE", "'inf'::DOUBLE", "0", "NULL"])
def test_no_value_makes_the_exact_table_fail(laboratory: Laboratory, value: str) -> None:
    connection = laboratory.session.connection
    connection.execute("DELETE FROM wide")
    connection.execute(f"INSERT INTO wide SELECT u // 300, {value}, coalesce({value}, 0) FROM range(9000) r(u)")
    texts = [text.format(column) for text in LAST_BEFORE_REFUSAL for column in ("x", "low", "1e308 * low")]
    query = laboratory.plan(f"SELECT {', '.join(texts)} FROM wide")
    assert max(statistic.radius_steps for statistic in query.first.statistics) <= 2**33
    sql = bounded_sql(query.first.frame, query.first.statistics, SALT)
    table = laboratory.engine.aggregate(sql, listed_keys=None, timeout_seconds=None).reveal()
    units, *stats = (column.to_pylist()[0] for column in table.columns)
    assert units == 30
    for statistic, stat in zip(query.first.statistics[1:], stats, strict=True):
        assert abs(stat) <= 30 * statistic.radius_steps


@pytest.mark.parametrize("sign", [1, -1])
def test_sums_over_units_saturate(laboratory: Laboratory, sign: int) -> None:
    """Units of 2**59 steps stand for the 2**29 units that it takes otherwise; 4 and more of them reach 2**61."""
    connection = laboratory.session.connection
    most = 2**60
    huge = Statistic("sum", 0, most, 0, value_sql='"x"', group_bounds_steps=(0, most))
    value = float(most) if sign > 0 else 0.0
    frame = laboratory.plan("SELECT count(DISTINCT pid) FROM wide").first.frame
    sql = bounded_sql(frame, (PRESENCE, huge), SALT)
    found = []
    for units in (3, 4, 5, 15, 16, 17, 40):
        connection.execute("DELETE FROM wide")
        connection.execute(f"INSERT INTO wide SELECT u, {value!r}, 0 FROM range({units}) r(u)")
        table = laboratory.engine.aggregate(sql, listed_keys=None, timeout_seconds=None).reveal()
        found.append(table.column("stat_1").to_pylist()[0])
    assert found == [sign * min(units * 2**59, MOST_STEPS) for units in (3, 4, 5, 15, 16, 17, 40)]
