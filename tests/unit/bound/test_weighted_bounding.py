"""bounding = L2: deleting a unit moves nothing beyond its l2 norm, and the exact tables equal a plain reference."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

import dpsql
from dpsql.bound.aggregation import bounded_sql
from dpsql.cascade.reader import CURATOR
from dpsql.model.frame import PRESENCE
from dpsql.sql.statements import SelectStatement, read_statement
from tests.unit.bound.exact_runs import ExactTable, Laboratory, Rewrite, Run, is_unit, movements, unchanged
from tests.unit.bound.query_descriptions import Aggregate, Case, Field, Query, Value, column
from tests.unit.bound.random_cases import cases

_SHORT = settings(
    max_examples=10, derandomize=True, database=None, suppress_health_check=list(HealthCheck), phases=(Phase.generate,)
)


@st.composite
def weighted_cases(draw: st.DrawFn) -> Case:
    case = draw(cases().filter(lambda case: case.removed is not None))
    # what has no weight is refused
    aggregates = tuple(one for one in case.query.aggregates if one.kind in ("units", "rows", "sum", "avg"))
    query = replace(
        case.query,
        aggregates=aggregates or (Aggregate("rows", per_group=(0, 3)),),
        max_groups=draw(st.integers(1, 2)),
        option_in_text=True,
        bounding="L2",
    )
    return replace(case, query=query)


@pytest.fixture(scope="module")
def laboratory() -> Iterator[Laboratory]:
    opened = Laboratory()
    yield opened
    opened.close()


def _check(laboratory: Laboratory, run: Run, rewrite: Rewrite = unchanged) -> ExactTable:
    before = laboratory.exact(run, rewrite=rewrite)
    after = laboratory.exact(run, without=is_unit(run.case, run.case.removed), rewrite=rewrite)
    for moved, claim in zip(movements(before, after, len(run.claims)), run.claims, strict=True):
        assert moved.l0 <= run.max_groups, "l0"
        assert moved.linf <= claim.linf, "linf"
        assert moved.l2 <= claim.l2 * (1 + 1e-12), "l2"
    return before


def _check_against_both(laboratory: Laboratory, case: Case) -> None:
    with laboratory.run(case) as run:
        exact = _check(laboratory, run)
        if run.query.first.frame.bounding.counted_groups is not None:
            assert exact == laboratory.weighted_reference(run)


@settings(_SHORT)
@given(case=weighted_cases())
def test_a_unit_moves_no_more_than_its_l2_norm(laboratory: Laboratory, case: Case) -> None:
    _check_against_both(laboratory, case)


@pytest.mark.long
@settings(max_examples=2000, suppress_health_check=list(HealthCheck))
@given(case=weighted_cases())
def test_a_unit_moves_no_more_than_its_l2_norm_over_many_cases(laboratory: Laboratory, case: Case) -> None:
    _check_against_both(laboratory, case)


_FAULTS = {
    "weights of one": lambda sql: sql.replace("- CAST(root * root * n", "- 0 * CAST(root * root * n").replace(
        "CAST(floor(sqrt(", "1048576 + 0 * CAST(floor(sqrt("
    ),
    "rounded up": lambda sql: sql.replace("CAST(floor(sqrt(", "1 + CAST(floor(sqrt(").replace(
        "- CAST(root * root * n", "- 0 * CAST(root * root * n"
    ),
    "weights on units alone": lambda sql: sql.replace(") * weight //", ") * 1048576 //"),
}


@pytest.mark.parametrize("fault", _FAULTS)
def test_the_check_catches_a_planted_fault(laboratory: Laboratory, fault: str) -> None:
    rewrite = _FAULTS[fault]

    @settings(_SHORT, max_examples=150, derandomize=False)
    @seed(3)
    @given(case=weighted_cases())
    def look(case: Case) -> None:
        with laboratory.run(case) as run:
            _check(laboratory, run, rewrite)

    with pytest.raises(AssertionError, match="l2"):
        look()


def test_the_only_unit_of_a_query_without_keys_moves_its_count_by_one() -> None:
    """Where no unit is left, there still is a row, and its sum of weights is that of nothing: NULL in SQL."""
    with dpsql.connect() as session:
        session.connection.execute("CREATE TABLE t AS SELECT 1 AS who")
        session.sql(
            "CALL dp_protect('t', coverage := FALSE, "
            "privacy_unit_column := 'who', max_rows_per_group := 1, default_rho := 1.0, "
            "epsilon_budget := 3, delta_budget := 1e-6)"
        )
        statement = read_statement("SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (bounding = L2) count(*) FROM t")
        assert isinstance(statement, SelectStatement)
        query, _, _ = session._runner.plan(statement, {}, CURATOR)
        sql = bounded_sql(query.first.frame, query.first.statistics, bytes(16))
        (present,) = session.connection.sql(sql).fetchall()
        session.connection.execute("DELETE FROM t")
        (absent,) = session.connection.sql(sql).fetchall()
    assert absent == (0,)
    assert present[0] == 2 ** (PRESENCE.lattice_exponent - query.first.frame.exact_exponent(PRESENCE))


@pytest.mark.parametrize("groups", [1, 2, 3, 5, 8, 12, 20])
def test_a_unit_attains_the_norm_in_any_number_of_groups(laboratory: Laboratory, groups: int) -> None:
    """Within the rounding of its weights, from max_groups to counted_groups, and not beyond."""
    key, value = Field("k", "INTEGER"), Field("x", "DOUBLE")
    rows: list[tuple[Value, ...]] = [(2, 0, 1.0)]
    rows += [(1, k, 8.0) for k in range(groups)]
    total = Aggregate("sum", column(value), per_group=(0, 8))
    query = Query((column(key),), (total,), max_groups=3, row_cap=2, option_in_text=True, bounding="L2")
    case = Case((Field("pid", "INTEGER"), key, value), tuple(rows), query, removed=1)
    with laboratory.run(case) as run:
        after = laboratory.exact(run, without=is_unit(case, 1))
        moved = movements(laboratory.exact(run), after, len(run.claims))
        for movement, claim in zip(moved, run.claims, strict=True):
            assert movement.l0 == min(groups, 6)
            assert movement.l2 == pytest.approx(claim.l2 * math.sqrt(min(groups / 3, 1.0)), rel=1e-5)
