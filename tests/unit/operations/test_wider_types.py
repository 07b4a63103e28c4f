"""Arithmetic that cannot fail says what TRY of the same arithmetic says: the same values, NULLs and types."""

from __future__ import annotations

import time
from collections.abc import Iterator

import duckdb
import pytest

from dpsql.bound.aggregation import bounded_sql
from dpsql.operations.row_sql import total_sql, without_statistics
from dpsql.plan.planner import plan_query
from dpsql.sql.statements import SelectStatement, read_statement
from tests.end_to_end.bench import Bench

SIGNED = {"TINYINT": 8, "SMALLINT": 16, "INTEGER": 32, "BIGINT": 64, "HUGEINT": 128}
UNSIGNED = {"UTINYINT": 8, "USMALLINT": 16, "UINTEGER": 32, "UBIGINT": 64, "UHUGEINT": 128}
OTHERS = ("FLOAT", "DOUBLE", "DECIMAL(4,1)", "DECIMAL(18,2)", "DECIMAL(38,2)")


def values_of(kind: str) -> list[str]:
    """Values at the ends of a type and in its middle."""
    if kind in SIGNED:
        end = 2 ** (SIGNED[kind] - 1)
        return [f"'{value}'" for value in (-end, 1 - end, -2, -1, 0, 1, 2, 7, end - 1)] + ["NULL"]
    if kind in UNSIGNED:
        return [f"'{value}'" for value in (0, 1, 2, 7, 2 ** UNSIGNED[kind] - 1)] + ["NULL"]
    nines = {"DECIMAL(4,1)": "999.9", "DECIMAL(18,2)": "9" * 16 + ".99", "DECIMAL(38,2)": "9" * 36 + ".99"}
    extreme = [f"'{nines[kind]}'", f"'-{nines[kind]}'"] if kind in nines else ["'nan'", "'inf'", "-1e30", "'-0.0'"]
    return ["0", "1.5", "-1", *extreme, "NULL"]


@pytest.fixture(scope="module")
def connection() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect(config={"threads": "1"}) as opened:
        opened.execute("SET disabled_optimizers = 'common_subexpressions'")
        for kind in (*SIGNED, *UNSIGNED, *OTHERS):
            listed = ", ".join(f"(CAST({value} AS {kind}))" for value in values_of(kind))
            opened.execute(f'CREATE TABLE "{kind}" AS SELECT * FROM (VALUES {listed}) t(v)')
        yield opened


PAIRS = ("{a} + {b}", "{a} - {b}", "{a} * {b}", "{a} // {b}", "{a} % {b}")
CHAINS = (
    "({a} + {b}) * {a}", "-{a} - {b}", "abs({a}) + {b}", "({a} - {b}) // {b}", "{a} % ({b} + 1)",
    "coalesce({a}, {b}) + 1", "CASE WHEN {a} > 0 THEN {b} ELSE {a} END * 2", "greatest({a}, {b}) - 2",
    "nullif({a}, {b}) + 1", "{a} + 1 + {b}", "CASE WHEN {a} > 0 THEN 7 ELSE {b} END + {b}",
)  # fmt: skip
ALONE = (
    "round({a}, -1)", "round({a}, -2) + 1", "round({a})", "round({a} + 1, 2)",
    "-{a}", "abs({a})", "-(-{a})", "{a} + 1", "100 - {a}", "{a} * 300", "{a} * -1", "{a} + 70000", "{a} - 3000000000",
    "{a} * 9223372036854775807", "{a} + 9223372036854775808", "{a} + -2147483648", "{a} - 9223372036854775808",
    "-2147483648 - {a}",
    "{a} // 0", "{a} % 0", "{a} // -1", "{a} % -1", "7 // {a}", "7 % {a}", "1 + 1 + {a}", "{a} * 1.5", "{a} / 3 + 1",
    "CAST({a} AS INTEGER) + 1", "TRY_CAST({a} AS UTINYINT) * 2", "length({a}::VARCHAR) * {a}", "{a} & 3",
    "({a}) + (1)", "-(1) * {a}", "coalesce({a}, 300) * 2", "{a} + -9223372036854775808", "{a} + 2147483648",
    "{a} - 340282366920938463463374607431768211455", "{a} + 128", "{a} * 255",
    "{a} * -2147483648", "(-2147483648 + 1) * {a}", "-(-2147483648) + {a}", "coalesce({a}, -2147483648) * 2",
)  # fmt: skip


def differences(
    connection: duckdb.DuckDBPyConnection, templates: tuple[str, ...], kinds: tuple[str, ...]
) -> tuple[int, list[str]]:
    """How many of the templates bind on columns of these types, and which of them say something else than TRY."""
    tables = ", ".join(f'"{kind}" t{i}(c{i})' for i, kind in enumerate(kinds))
    named = {name: f'"c{i}"' for i, name in enumerate("ab"[: len(kinds)])}
    types = tuple((f"c{i}", kind) for i, kind in enumerate(kinds))
    rows = without_statistics(f"(SELECT c0{', c1' if len(kinds) > 1 else ''} FROM {tables})", ['"c0" + 1'])
    compared, found = 0, []
    for template in templates:
        text = template.format(**named)
        try:
            expected = connection.sql(f"SELECT typeof({text}), TRY({text})::VARCHAR FROM {rows}").fetchall()
        except duckdb.BinderException:
            continue
        total = total_sql(text, types)
        shown = connection.sql(f"SELECT typeof({total}), ({total})::VARCHAR FROM {rows}").fetchall()
        compared += 1
        if "%" in template:
            # the remainder of the least number by -1, of which DuckDB makes an error
            zeros = [(kind, "0") if value is None else (kind, value) for kind, value in expected]
            shown = [old if new == zero else new for old, zero, new in zip(expected, zeros, shown, strict=True)]
        if shown != expected:
            found.append(f"{text} of {kinds}: {total}")
    return compared, found


def test_arithmetic_with_literals_says_what_try_says(connection: duckdb.DuckDBPyConnection) -> None:
    for kind in ("TINYINT", "INTEGER", "BIGINT", "UBIGINT", "DOUBLE"):
        compared, found = differences(connection, ALONE, (kind,))
        assert found == []
        assert compared > 25


@pytest.mark.parametrize(
    "kinds",
    [
        ("TINYINT", "TINYINT"), ("INTEGER", "INTEGER"), ("BIGINT", "BIGINT"), ("UINTEGER", "UINTEGER"),
        ("UBIGINT", "UBIGINT"), ("INTEGER", "UINTEGER"), ("UBIGINT", "BIGINT"), ("TINYINT", "HUGEINT"),
        ("UTINYINT", "TINYINT"), ("INTEGER", "DECIMAL(18,2)"), ("DOUBLE", "SMALLINT"),
    ],
)  # fmt: skip
def test_arithmetic_of_two_columns_says_what_try_says(
    connection: duckdb.DuckDBPyConnection, kinds: tuple[str, str]
) -> None:
    compared, found = differences(connection, (*PAIRS, *CHAINS), kinds)
    assert found == []
    assert compared > 8


@pytest.mark.long
@pytest.mark.parametrize("first", [*SIGNED, *UNSIGNED, *OTHERS])
def test_arithmetic_of_any_types_says_what_try_says(connection: duckdb.DuckDBPyConnection, first: str) -> None:
    for second in (*SIGNED, *UNSIGNED, *OTHERS):
        assert differences(connection, (*PAIRS, *CHAINS), (first, second))[1] == []
    assert differences(connection, ALONE, (first,))[1] == []


@pytest.fixture(scope="module")
def rows(connection: duckdb.DuckDBPyConnection) -> duckdb.DuckDBPyConnection:
    """100,000 rows, and the same with 500 more of one person, at the ends of their types, among all others."""
    plain = "i % 50 AS n, i % 60 AS m, i % 40 AS big, i % 9 AS small"
    person = (
        "([-2147483648, 2147483647, 0])[1 + i % 3], ([-1, 2147483647, 0])[1 + i % 3], "
        "([-9223372036854775808, 9223372036854775807])[1 + i % 2], -128"
    )
    types = "n::INTEGER AS n, m::INTEGER AS m, big::BIGINT AS big, small::TINYINT AS small"
    connection.execute(
        f"CREATE TABLE mixed AS SELECT is_person, {types} FROM (SELECT hash(i) AS place, false AS is_person, {plain} "
        f"FROM range(100_000) t(i) UNION ALL SELECT hash(-i), true, {person} FROM range(500) t(i)) ORDER BY place"
    )
    connection.execute("CREATE TABLE clean AS FROM mixed WHERE NOT is_person")
    return connection


def seconds(connection: duckdb.DuckDBPyConnection, expression: str, table: str) -> float:
    relation = without_statistics(table, ['"n" + "m" + "big" + "small"'])
    least = []
    for _ in range(4):
        began = time.thread_time()
        connection.execute(f"SELECT count(e) FROM (SELECT {expression} AS e FROM {relation})").fetchall()
        least.append(time.thread_time() - began)
    return min(least)


COLUMNS = (("n", "INTEGER"), ("m", "INTEGER"), ("big", "BIGINT"), ("small", "TINYINT"))


@pytest.mark.parametrize(
    "text",
    [
        '"n" + "m"', '"n" - 1', '"n" * "m"', '"n" // "m"', '"n" % "m"', 'mod("n", "m")', '-"n"', 'abs("small")',
        '"big" + 1', '"big" * "n"', '-"big"', '"n" // "m" + "big"', '("n" + 1) * "m" - "small"',
        'coalesce("n", 0) + 1', 'CASE WHEN "m" > 3 THEN "n" ELSE 0 END - 1', '10.5 // "m"', 'round("n", -1)',
    ],
)  # fmt: skip
def test_rows_that_overflow_cost_nothing_on_the_rows_beside_them(rows: duckdb.DuckDBPyConnection, text: str) -> None:
    total = total_sql(text, COLUMNS)
    assert seconds(rows, total, "mixed") < 3 * seconds(rows, total, "clean") + 0.005


def test_without_types_they_cost_much(rows: duckdb.DuckDBPyConnection) -> None:
    """The planted fault."""
    total = total_sql('"n" + "m"')
    assert seconds(rows, total, "mixed") > 3 * seconds(rows, total, "clean") + 0.005


@pytest.mark.parametrize(
    "text",
    [
        "SELECT sum(n + 7, contribution_bounds_per_group => (0, 10)) AS c FROM t",
        "SELECT n + 7 AS k, count(*) AS c FROM t GROUP BY k",
        "SELECT count(*) AS c FROM t WHERE n + 7 > 3",
        "SELECT count(*) FILTER (WHERE n + 7 > 3) AS c FROM t",
        "SELECT k, count(*) AS c FROM (SELECT n + 7 AS k FROM t) GROUP BY k",
        "SELECT n, count(*) AS c FROM (SELECT n FROM t WHERE n + 7 > 3) GROUP BY n",
        "SELECT k, count(*) AS c FROM (SELECT pid, sum(n + 7) AS k FROM t GROUP BY pid) GROUP BY k",
    ],
)
def test_every_place_of_a_query_knows_the_types_of_its_columns(text: str) -> None:
    bench = Bench()
    statement = read_statement(text)
    assert isinstance(statement, SelectStatement)
    query = plan_query(statement, bench.environment, {"rho": 1.0, "delta": 1e-6})
    sql = bounded_sql(query.first.frame, query.first.statistics, bytes(16))
    assert 'TRY_CAST(TRY_CAST("n" AS BIGINT) + 7 AS INT)' in sql
    bench.session.close()
