"""The bounds are no larger than they need be: for every kind of statistic some unit attains them.

Without this, a sensitivity test would pass for bounds that are far too wide, and for data on which nothing happens.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest

from tests.unit.bound.exact_runs import Laboratory, is_unit, movements
from tests.unit.bound.planted_faults import values_of_dropped_groups
from tests.unit.bound.query_descriptions import Aggregate, Case, Expression, Field, Query, Value, above, column

MAX_GROUPS = 3
ROW_CAP = 4
KEY = Field("k", "INTEGER")
OPTIONAL = Field("x", "DOUBLE")
REQUIRED = Field("y", "INTEGER", required=True)
NUMBER = Field("n", "INTEGER")
# those first that most bounds are attained by
EXTREMES = (1e9, -1e9, 9.0, -8.0, 3.0, -3.0, 1.0, 0.0)


@pytest.fixture(scope="module")
def laboratory() -> Iterator[Laboratory]:
    opened = Laboratory()
    yield opened
    opened.close()


def _y(low: int) -> Expression:
    return above(column(REQUIRED), low)


def _number_plus(added: int) -> Expression:
    """The numbers of a unit's rows, all of one sign."""
    return Expression(f"({column(NUMBER).sql} + {added})", NUMBER.type, lambda row: int(row[NUMBER.name] or 0) + added)


_STATISTICS = {
    "presence": Aggregate("units"),
    "units with FILTER": Aggregate("units", condition=_y(0)),
    "rows by cap": Aggregate("rows"),
    "rows by cap, FILTER": Aggregate("rows", condition=_y(0)),
    "rows by cap, nullable": Aggregate("rows", column(OPTIONAL)),
    "distinct values": Aggregate("values", column(NUMBER), per_group=(0, 3)),
    "distinct values by cap, FILTER": Aggregate("values", column(NUMBER), _y(0)),
    "sum of distinct values": Aggregate("value_sum", _number_plus(1), per_row=(-0.5, 1)),
    "sum of distinct values, FILTER": Aggregate("value_sum", _number_plus(-100), _y(0), per_row=(-2, 1)),
    "rows by group bounds": Aggregate("rows", per_group=(0, 7)),
    "rows by group bounds, nullable": Aggregate("rows", column(OPTIONAL), per_group=(0, 7)),
    "sum per group, nullable": Aggregate("sum", column(OPTIONAL), per_group=(-3, 8)),
    "sum per group, NOT NULL": Aggregate("sum", column(REQUIRED), per_group=(2, 8)),
    "sum per row, nullable": Aggregate("sum", column(OPTIONAL), per_row=(0.1, 0.7)),
    "sum per row, NOT NULL": Aggregate("sum", column(REQUIRED), per_row=(-3, 8)),
    "sum per row, NOT NULL, above zero": Aggregate("sum", column(REQUIRED), per_row=(1, 8)),
    "sum per row, NOT NULL, below zero": Aggregate("sum", column(REQUIRED), per_row=(-100, -1)),
    "sum per row, FILTER": Aggregate("sum", column(REQUIRED), _y(0), per_row=(1, 8)),
    "sum both ways, nullable": Aggregate("sum", column(OPTIONAL), per_group=(-5, 500), per_row=(0, 40)),
    "sum both ways, NOT NULL": Aggregate("sum", column(REQUIRED), per_group=(-100, -1), per_row=(0, 10)),
}


def _table(value: float, rows_per_group: int) -> Case:
    """A unit with more groups than it may touch and equal values in all of them, among two quiet units."""
    crowd: list[tuple[Value, ...]] = [(unit, key, 1.0, 1, 0) for unit in (7, 8) for key in range(5)]
    heavy: list[tuple[Value, ...]] = [(1, key, value, int(value), n) for key in range(8) for n in range(rows_per_group)]
    fields = (Field("pid", "INTEGER"), KEY, OPTIONAL, REQUIRED, NUMBER)
    return Case(fields, tuple(crowd + heavy), Query((), ()), removed=1)


def _cases(aggregate: Aggregate) -> Iterator[Case]:
    query = Query((column(KEY),), (aggregate,), max_groups=MAX_GROUPS, row_cap=ROW_CAP)
    for value in EXTREMES:
        for rows_per_group in (ROW_CAP, 1, 9, 60):
            found = _table(value, rows_per_group)
            yield Case(found.fields, found.rows, query, found.removed)


@pytest.mark.parametrize("name", _STATISTICS)
def test_some_unit_attains_the_bound(laboratory: Laboratory, name: str) -> None:
    best_l0, best_linf, best_l2 = 0.0, 0.0, 0.0
    for case in _cases(_STATISTICS[name]):
        with laboratory.run(case) as run:
            after = laboratory.exact(run, without=is_unit(case, case.removed))
            moved = movements(laboratory.exact(run), after, len(run.claims))[-1]
            claim = run.claims[-1]
            assert moved.linf <= claim.linf
            best_l0 = max(best_l0, moved.l0 / run.max_groups)
            best_linf = max(best_linf, moved.linf / claim.linf)
            best_l2 = max(best_l2, moved.l2 / claim.l2)
        if min(best_l0, best_linf, best_l2) >= 1 - 1e-12:
            break
    assert best_l0 == 1.0
    assert 0.99 <= best_linf <= 1.0
    assert 0.99 <= best_l2 <= 1.0 + 1e-12


def test_the_claims_are_those_of_theory(laboratory: Laboratory) -> None:
    """Closed forms of the half-widths, so that a receipt that is merely generous is seen."""
    aggregates = (
        Aggregate("rows"),
        Aggregate("sum", column(OPTIONAL), per_group=(-3, 8)),
        Aggregate("sum", column(REQUIRED), per_row=(1, 8)),
        Aggregate("values", column(NUMBER), per_group=(0, 5)),
        Aggregate("value_sum", column(NUMBER), per_row=(-4, 2)),
    )
    case = _table(1.0, 2)
    query = Query((column(KEY),), aggregates, max_groups=MAX_GROUPS, row_cap=ROW_CAP)
    with laboratory.run(Case(case.fields, case.rows, query, 1)) as run:
        half_widths = ((ROW_CAP - 1) / 2, 11 / 2, (ROW_CAP * 8 - 1) / 2, ROW_CAP * 4, 5 / 2)
        for statistic, claim, expected in zip(run.query.first.statistics[1:], run.claims[1:], half_widths, strict=True):
            assert claim.linf * statistic.lattice == pytest.approx(expected, rel=1e-6)
            assert claim.l2 == pytest.approx(claim.linf * math.sqrt(MAX_GROUPS), rel=1e-12)


def test_values_in_dropped_groups_would_be_seen(laboratory: Laboratory) -> None:
    aggregate = _STATISTICS["distinct values"]
    table = _table(1.0, 9)
    query = Query((column(KEY),), (aggregate,), max_groups=MAX_GROUPS, row_cap=ROW_CAP)
    case = Case(table.fields, table.rows, query, table.removed)
    with laboratory.run(case) as run:
        tables = [
            laboratory.exact(run, without=without, rewrite=values_of_dropped_groups)
            for without in ("", is_unit(case, case.removed))
        ]
        assert movements(tables[0], tables[1], len(run.claims))[-1].l0 > run.max_groups
