"""What a plan is: an allow-list that no function slips through, hints that work, shares that add up, no data inside."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import replace

import duckdb
import pytest

import dpsql
from dpsql.errors import ParseError, SchemaError, UnsupportedQueryError
from dpsql.model.frame import PRESENCE
from dpsql.model.private_query import PrivateQuery
from dpsql.model.refusals import CODES, Refusals
from dpsql.operations.dialect import parse_statement, to_sql
from dpsql.operations.row_sql import total_sql
from dpsql.plan.aggregates.lattice import MOST_ROWS
from dpsql.sql.row_rules import FUNCTION_EXAMPLES, check_row_expression
from tests.sql.golden_records import Clinic, Record, new_session

LISTED = {re.match(r"\w+", example)[0] for example in FUNCTION_EXAMPLES}  # type: ignore[index]
OTHER_NAMES = {
    "+", "-", "@", "ceiling", "char_length", "character_length", "datetrunc", "lcase", "len", "log", "position", "pow",
    "substr", "ucase", "xor",
}  # fmt: skip
"""Names that DuckDB gives to listed functions and operators."""

ROW = (
    "SELECT -3.5::DOUBLE AS x, 2::DOUBLE AS y, 3 AS z, true AS c, DATE '2024-02-29' AS d, DATE '2025-01-01' AS e, "
    "'Ab ba' AS s, 'b' AS t, 'xy' AS u, TIMESTAMP '2024-02-29 13:14:15' AS ts"
)
OPERATORS = (
    "-2 ** 2", "-x ** 2", "2 ** 3 ** 2", "x ^ 2", "7 // 2", "-7 // 2", "-7 % 3", "7 / 2", "1 / 2 * 3", "1 - 2 - 3",
    "1 - (2 - 3)",
    "- - 2", "NOT c AND c", "NOT (c AND c)", "x BETWEEN -4 AND 2", "x NOT BETWEEN 1 AND 2", "NOT x BETWEEN 1 AND 2",
    "s NOT LIKE 'A%'", "s ILIKE 'a_ %'", "s ^@ 'A'", "c IS NOT TRUE", "x IS DISTINCT FROM y",
    "x IS NOT DISTINCT FROM y", "s || t || 1", "CAST(s AS VARCHAR(3))", "x::INT", "x::DECIMAL(10, 2)", "d + 5", "d - e",
    "d + INTERVAL 1 MONTH", "d - INTERVAL '2' DAY", "z & 1 | 4", "s IN ('Ab ba', 'b')",
    "s NOT IN ('b')",
    "extract('isodow' FROM d)", "extract(dow FROM d)", "log(y)", "log(2, y)", "CASE s WHEN 'b' THEN 1 ELSE 2 END",
    "trim(BOTH 'A' FROM s)", "substring(s FROM 2 FOR 2)", "position('b' IN s)", "x == y", "x <> y", "1_000",
    "'it''s'", "$$a$$",
)  # fmt: skip


@pytest.fixture(scope="module")
def clinic() -> Iterator[Clinic]:
    clinic = Clinic()
    yield clinic
    clinic.close()


@pytest.fixture(scope="module")
def sample() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as connection:
        connection.execute(f"CREATE TABLE t AS {ROW}")
        yield connection


def plan(clinic: Clinic, sql: str, **options: object) -> PrivateQuery:
    return clinic.plan(Record("", 0, "plan", sql, None, options, ()))


def is_allowed(text: str) -> bool:
    statement = f"SELECT {text} FROM t"
    try:
        expression = parse_statement(statement).expressions[0]
    except ParseError:
        return False
    refusals = Refusals(statement)
    check_row_expression(expression, refusals)
    return not refusals.found


@pytest.mark.thorough
def test_no_other_function_of_the_catalog_is_allowed() -> None:
    with duckdb.connect() as connection:
        rows = connection.execute("SELECT function_name FROM duckdb_functions()").fetchall()
    names = {str(row[0]) for row in rows}
    assert len(names) > 800
    times = ("'day', x", "'day', x, y", "x, '%Y'", "'UTC', x", "INTERVAL 1 DAY, x")
    calls = ("", "x", "x, y", "x, y, x", "x, 'a', 'b'", *times)
    allowed = {name for name in names if any(is_allowed(f"{name}({arguments})") for arguments in calls)}
    assert allowed <= LISTED | OTHER_NAMES
    assert names & LISTED <= allowed


@pytest.mark.parametrize("text", [*FUNCTION_EXAMPLES, *OPERATORS])
def test_allowed_expressions_mean_what_was_written(text: str, sample: duckdb.DuckDBPyConnection) -> None:
    assert is_allowed(text)
    text = text.replace("make_date(x, y, z)", "make_date(z, z, z)")
    normalised = to_sql(parse_statement(f"SELECT {text} FROM t").expressions[0])
    values = [
        sample.execute(f"SELECT typeof(v), v::VARCHAR FROM (SELECT {sql} AS v FROM t)").fetchall()
        for sql in (text, normalised, total_sql(normalised))
    ]
    assert values[0] == values[1] == values[2]


def test_a_table_that_is_not_protected_is_not_told_from_one_that_does_not_exist(clinic: Clinic) -> None:
    texts = []
    for name in ("drafts", "absent"):
        with pytest.raises(SchemaError) as caught:
            plan(clinic, f"SELECT count(*) FROM {name}")
        texts.append(str(caught.value).replace(name, "it"))
    assert texts[0] == texts[1]


def test_refusal_codes_are_a_closed_list() -> None:
    with pytest.raises(KeyError):
        Refusals("").add("new", None, "message", "hint")
    assert all(re.fullmatch(r"[a-z_]+", code) for code in CODES)


def test_shares_of_rho_add_to_one_whatever_the_order(clinic: Clinic) -> None:
    calls = [
        "count(*)",
        "sum(cost)",
        "avg(cost)",
        "count(city)",
        "dp_sum(fee, -3, 7, weight => 5)",
        "count(DISTINCT patient_id)",
    ]
    forwards, backwards = (
        plan(clinic, f"SELECT {', '.join(columns)} FROM visits") for columns in (calls, list(reversed(calls)))
    )
    assert math.fsum(forwards.first.weights) == pytest.approx(1.0, abs=1e-15)
    assert min(forwards.first.weights) > 0
    assert (forwards.first.statistics, forwards.first.weights) == (backwards.first.statistics, backwards.first.weights)
    assert forwards.first.statistics[0] == PRESENCE


def test_weights_are_relative(clinic: Clinic) -> None:
    plain = plan(clinic, "SELECT sum(cost), count(*) FROM visits")
    raised = plan(clinic, "SELECT sum(cost, weight => 3), count(*) FROM visits")
    place = next(i for i, statistic in enumerate(plain.first.statistics) if statistic.kind == "sum")
    ratio = [query.first.weights[place] / query.first.weights[0] for query in (plain, raised)]
    assert ratio[1] == pytest.approx(3 * ratio[0], rel=1e-12)


def test_aliases_of_aliases_do_not_unfold_without_end(clinic: Clinic) -> None:
    columns = ["count(*) AS a0", *(f"a{i} + a{i} AS a{i + 1}" for i in range(60))]
    with pytest.raises(ParseError):
        plan(clinic, f"SELECT {', '.join(columns)} FROM visits")
    assert len(plan(clinic, f"SELECT {', '.join(columns[:8])} FROM visits").first.finish.columns) == 8


def test_as_many_rows_as_may_be_asked_for_keep_sums_within_64_bits(clinic: Clinic) -> None:
    """Twice as many would let a few billion units push a group's sum out of a BIGINT, which fails aloud."""
    query = plan(clinic, f"SELECT count(*, contribution_bounds_per_group => (0, {MOST_ROWS})) FROM visits")
    assert query.first.statistics[1].radius_steps * 4 * 10**9 < 2**62
    with pytest.raises(UnsupportedQueryError):
        plan(clinic, f"SELECT count(*, contribution_bounds_per_group => (0, {MOST_ROWS + 1})) FROM visits")


def test_what_fails_after_the_aggregation_was_refused_before_the_charge() -> None:
    """Each of these once took the price and then failed."""
    with new_session() as session:
        for tail in (
            "ORDER BY 3",
            "ORDER BY 0",
            "LIMIT 99999999999999999999",
            "OFFSET 99999999999999999999",
            "ORDER BY 'x'",
        ):
            with pytest.raises(UnsupportedQueryError):
                session.sql(f"SELECT city, count(*) FROM visits GROUP BY city {tail}")
        for tail in (
            "ORDER BY CAST(city AS INTEGER)",
            "HAVING city",
            "HAVING CAST(city AS INTEGER) > 0",
            "ORDER BY 1 // 0",
        ):
            assert session.sql(f"SELECT city, count(*) FROM visits GROUP BY city {tail}").columns == [
                "city",
                "count_star()",
            ]


def test_macros_of_the_database_change_no_private_query() -> None:
    sql = "SELECT city, dp_count(*) AS n, count(*) FILTER (WHERE abs(cost) > 1) FROM visits GROUP BY city"
    with new_session() as session:
        for macro in ("abs(x)", "dp_count(x)", "isfinite(x)", "round(x)", "hash(x)"):
            session.connection.execute(f"CREATE MACRO {macro} AS error('canary')")
        assert len(session.sql(sql)) == 3


def test_errors_of_every_kind_are_dpsql_errors() -> None:
    with new_session() as session:
        for arguments in (
            {"params": 5},
            {"params": "abc"},
            {"rho": 10**400},
            {"rho": "x"},
            {"max_groups_contributed": [1]},
        ):
            with pytest.raises(dpsql.QueryError):
                session.sql("SELECT city, count(*) FROM visits WHERE cost > ? GROUP BY city", **arguments)


def test_what_bounds_leave_out_of_a_count_does_not_depend_on_its_name(clinic: Clinic) -> None:
    rows = "count(*, contribution_bounds_per_group => (2, 2))"
    query = plan(clinic, f"SELECT count(DISTINCT patient_id), {rows} FROM visits")
    assert all(one.value.linears[0].statistic is None for one in query.first.estimates)
    for names in (("count(DISTINCT a)", "n"), ("n", "count(DISTINCT a)")):
        renamed = [replace(one, name=name) for one, name in zip(query.first.estimates, names, strict=True)]
        assert [one.covered and one.covered.kind for one in renamed] == ["presence", "rows"]
