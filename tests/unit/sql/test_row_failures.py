"""Whatever fails on a row is NULL there: no error, no message, no effect on any other row."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import pytest

from dpsql.bound.aggregation import bounded_sql
from dpsql.errors import QueryError
from dpsql.model.private_query import PrivateQuery
from dpsql.sql.row_rules import FUNCTION_EXAMPLES
from tests.unit.bound.exact_runs import SALT, ExactTable, Laboratory, read_exact

_NUMBERS = {
    "DOUBLE": ("0", "-0.0", "1e308", "-1e308", "5e-324", "nan", "inf", "-inf", "-1"),
    "BIGINT": ("0", "-1", "9223372036854775807", "-9223372036854775808"),
    "HUGEINT": ("0", "-1", "170141183460469231731687303715884105727", "-170141183460469231731687303715884105728"),
    "DECIMAL(38,0)": ("0", "-1", "9" * 38, "-" + "9" * 38),
}
_TEXTS = ("", "abc", "12", "-99999999999", "1e400", "nan", "\u00e9\u0301", "\U0001f600", "%_", "infinity", "it''s")
_DATES = ("infinity", "-infinity", "0001-01-01", "5874897-12-31", "2020-02-29", "290309-12-22 (BC)")
_STAMPS = ("infinity", "-infinity", "290309-12-22 (BC) 00:00:00", "294247-01-10 04:00:54.775806", "2020-02-29 23:59:59")
_FAILING = (
    "cast(s as integer)", "cast(s as date)", "cast(s as boolean)", "cast(x as tinyint)", "1 / x", "1 % x", "x // y",
    "x * x", "x * x * x", "x + x", "x - y - y", "-x", "abs(x)", "ln(x)", "sqrt(x)", "exp(x)", "power(x, 500)",
    "round(x, 400)", "make_date(x, y, z)", "left(s, x)", "substring(s, x, y)", "d + interval 999999 year",
    "date_diff('day', d, e)", "date_trunc('century', ts)", "x in (s, 1)", "x between s and t", "s > 5", "s and t",
    "not s", "case s when 1 then x else y end", "if(s, x, y)", "nullif(s, 5)", "s like t", "strftime(d, '%A %j')",
    "cast(cast(s as integer) + cast(t as integer) as tinyint)", "isfinite(x) and s", "x::decimal(18,3)",
)  # fmt: skip


@pytest.fixture(scope="module")
def laboratory() -> Iterator[Laboratory]:
    opened = Laboratory()
    yield opened
    opened.close()


def _create_hard(laboratory: Laboratory, number_type: str) -> str:
    """One row per value, every column running through its own, so that extremes also meet each other."""
    lists = {
        **dict.fromkeys("xyz", (number_type, _NUMBERS[number_type])),
        **dict.fromkeys("stu", ("VARCHAR", _TEXTS)),
        **dict.fromkeys("de", ("DATE", _DATES)),
        "ts": ("TIMESTAMP", _STAMPS),
        "c": ("BOOLEAN", ("true", "false")),
    }
    columns = []
    for place, (name, (kind, values)) in enumerate(lists.items()):
        listed = ", ".join(f"'{value}'" for value in values)
        index = f"1 + (i * {place + 1} + i // 7) % {len(values)}"
        columns.append(f"list_extract([{listed}], {index})::{kind} AS {name}")
    connection = laboratory.session.connection
    connection.execute(
        f"CREATE OR REPLACE TABLE hard AS SELECT i % 20 AS pid, {', '.join(columns)} FROM range(120) r(i)"
    )
    connection.execute("INSERT INTO hard (pid) VALUES (3)")
    _protect(laboratory, "hard")
    return "hard"


def _protect(laboratory: Laboratory, table: str, cap: int = 50) -> None:
    laboratory.session.sql(
        f"CALL dp_protect('{table}', coverage := FALSE, unit := 'u', privacy_unit_column := 'pid', "
        f"max_groups_contributed := 30, max_rows_per_group := {cap})"
    )


def _exact(laboratory: Laboratory, query: PrivateQuery) -> ExactTable:
    sql = bounded_sql(query.first.frame, query.first.statistics, SALT)
    table = laboratory.engine.aggregate(sql, listed_keys=None, timeout_seconds=None).reveal()
    return read_exact(table, len(query.first.frame.keys))


def _row_counts(exact: ExactTable, query: PrivateQuery) -> list[int]:
    """Row counts of a query without keys in the order of its text, centres added back."""
    ((units, *stats),) = exact.values()
    counts = []
    for estimate in query.first.estimates:
        statistic = estimate.value.linears[0].statistic
        assert statistic is not None
        counts.append((stats[query.first.statistics.index(statistic) - 1] + statistic.centre_steps * units) // 2)
    return counts


@pytest.mark.parametrize("number_type", _NUMBERS)
def test_no_expression_fails_aloud(laboratory: Laboratory, number_type: str) -> None:
    """Each expression twice in one query: what two parts share must not be computed outside TRY."""
    table = _create_hard(laboratory, number_type)
    ran = 0
    expressions = [*FUNCTION_EXAMPLES, *_FAILING]
    if number_type != "DOUBLE":
        # all others are the same for every type of numbers
        expressions = [expression for expression in expressions if re.search(r"\b[xyz]\b", expression)]
    for start in range(0, len(expressions), _TOGETHER):
        for several, query in _planned(laboratory, table, expressions[start : start + _TOGETHER]):
            ran += len(several)
            counts = _row_counts(_exact(laboratory, query), query)
            assert len(counts) == 2 * len(several)
            for place, expression in enumerate(several):
                assert sum(counts[2 * place : 2 * place + 2]) == 121, expression
    assert ran > len(expressions) / 2


_TOGETHER = 4


def _planned(
    laboratory: Laboratory, table: str, expressions: Sequence[str]
) -> Iterator[tuple[Sequence[str], PrivateQuery]]:
    """Yield one plan with all expressions or, if one of them does not take its type, a plan for each that does."""
    counts = (f"count(*) FILTER (WHERE ({one}) IS {is_null}NULL)" for one in expressions for is_null in ("", "NOT "))
    all_rows = (f"(({one}) IS NULL OR ({one}) = ({one}) OR true)" for one in expressions)
    try:
        yield expressions, laboratory.plan(f"SELECT {', '.join(counts)} FROM {table} WHERE {' AND '.join(all_rows)}")
    except QueryError:
        if len(expressions) > 1:
            for one in expressions:
                yield from _planned(laboratory, table, [one])


@pytest.mark.parametrize("number_type", _NUMBERS)
def test_failing_keys_are_the_null_key(laboratory: Laboratory, number_type: str) -> None:
    table = _create_hard(laboratory, number_type)
    for expression in ("cast(s as integer)", "x * x", "cast(x as tinyint)", "year(cast(s as date))"):
        exact = _exact(laboratory, laboratory.plan(f"SELECT count(*) FROM {table} GROUP BY {expression}"))
        assert (None,) in exact


@pytest.mark.parametrize(
    ("kind", "one", "other"),
    [
        ("BIGINT", "x * x > 1", "x * x < 5"),
        ("BIGINT", "cast(s as integer) + 1 > 2", "cast(s as integer) * 2 > 2"),
        ("DECIMAL(38,0)", "x > 0.5", "x < 2.5"),
        ("DECIMAL(38,0)", "x between 0.5 and 2", "x in (1.5, 2.5)"),
        ("HUGEINT", "-x > 1", "abs(x) > 1"),
    ],
)
def test_what_two_expressions_share_is_not_computed_aloud(
    laboratory: Laboratory, kind: str, one: str, other: str
) -> None:
    """The shared part may be a cast that DuckDB adds by itself; it is looked for in keys, values and filters."""
    table = _create_hard(laboratory, kind)
    text = (
        f"SELECT {one}, count(*) FILTER (WHERE {other}), count(*) FILTER (WHERE NOT {other}), "
        f"count(*) FILTER (WHERE ({other}) IS NULL) FROM {table} WHERE {one} OR {other} OR true GROUP BY {one}"
    )
    query = laboratory.plan(text)
    exact = _exact(laboratory, query)
    assert 1 < len(exact) <= 3
    assert all(len(stats) == 4 for stats in exact.values())


def test_other_rows_do_not_decide_what_a_row_counts(laboratory: Laboratory) -> None:
    """DuckDB folds an OR whose one side always holds in the table, and then the failing other side is not computed."""
    connection = laboratory.session.connection
    text = (
        "SELECT count(*) FILTER (WHERE cast(s as integer) > 5 OR n > 3), count(*) FILTER (WHERE n > 3 OR n * n > 5), "
        "count(case when cast(s as integer) > 5 AND n < 0 then 1 end) FROM folded WHERE cast(s as integer) > 5 OR n > 3"
    )
    found = []
    for others in ("", ", (2, 1, 'x'), (2, NULL, '7'), (2, -5, '')"):
        connection.execute("CREATE OR REPLACE TABLE folded (pid INTEGER, n INTEGER, s VARCHAR)")
        connection.execute(f"INSERT INTO folded VALUES (1, 2000000000, 'abc'){others}")
        _protect(laboratory, "folded")
        query = laboratory.plan(text)
        sql = bounded_sql(query.first.frame, query.first.statistics, SALT).replace(
            " WHERE true AND", " WHERE pid = 1 AND"
        )
        assert "pid = 1" in sql
        # the row of unit 1 alone, while the statistics are those of the whole table
        table = laboratory.engine.aggregate(sql, listed_keys=None, timeout_seconds=None).reveal()
        found.append(_row_counts(read_exact(table, 0), query))
    assert found[0] == found[1] == [1, 1, 0]


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("DOUBLE", "1e308"),
        ("DOUBLE", "inf"),
        ("DOUBLE", "nan"),
        ("FLOAT", "3e38"),
        ("BIGINT", str(2**63 - 1)),
        ("BIGINT", str(-(2**63))),
        ("HUGEINT", str(2**127 - 1)),
        ("UHUGEINT", str(2**128 - 1)),
        ("DECIMAL(38,0)", "9" * 38),
        ("DECIMAL(38,0)", "-" + "9" * 38),
        ("DECIMAL(38,37)", "9." + "9" * 37),
        ("BOOLEAN", "true"),
    ],
)
def test_huge_values_cannot_overflow(laboratory: Laboratory, kind: str, value: str) -> None:
    connection = laboratory.session.connection
    connection.execute(
        f"CREATE OR REPLACE TABLE huge AS SELECT i % 4 AS pid, '{value}'::{kind} AS x FROM range(40000) r(i)"
    )
    _protect(laboratory, "huge", cap=1_000_000)
    text = (
        "SELECT sum(x, contribution_bounds_per_group => (-1, 1)), avg(x, contribution_bounds_per_row => (-1, 1)), "
        "sum(x, contribution_bounds_per_group => (-1e30, 1e30), contribution_bounds_per_row => (-1e30, 1e30)), "
        "sum(x, contribution_bounds_per_row => (-1e-9, 1e-9)), count(x), count(*) FROM huge"
    )
    assert len(laboratory.session.sql(text, rho=0.1)) == 1
    query = laboratory.plan(text)
    statistic = query.first.estimates[0].value.linears[0].statistic
    assert statistic is not None
    # the interval is symmetric, so there is no centre to add back
    assert statistic.interval == (-1.0, 1.0)
    total = _exact(laboratory, query)[()][query.first.statistics.index(statistic)]
    sign = 0 if value in ("nan", "inf") else -1 if value.startswith("-") else 1
    assert total * statistic.lattice == 4 * sign, "four units, each at one bound"


def test_a_macro_in_the_database_changes_nothing(laboratory: Laboratory) -> None:
    connection = laboratory.session.connection
    connection.execute("CREATE OR REPLACE TABLE named AS SELECT i AS pid, 'Ab' AS s, -2 AS n FROM range(30) r(i)")
    _protect(laboratory, "named")
    for macro in ("lower(x) AS 'HACK'", "abs(x) AS 999", "count(x) AS 7", "least(x, y) AS 10**9", "round(x) AS 0"):
        connection.execute(f"CREATE OR REPLACE MACRO {macro}")
    try:
        query = laboratory.plan("SELECT lower(s), abs(n), count(*) FROM named GROUP BY ALL")
        assert set(_exact(laboratory, query)) == {("ab", 2)} or set(_exact(laboratory, query)) == {(2, "ab")}
        assert next(iter(_exact(laboratory, query).values()))[0] == 30
    finally:
        for macro in ("lower", "abs", "count", "least", "round"):
            connection.execute(f"DROP MACRO {macro}")


@pytest.mark.parametrize("order", ["ASC", "DESC"])
def test_a_collation_merges_no_keys_and_no_units(laboratory: Laboratory, order: str) -> None:
    connection = laboratory.session.connection
    connection.execute("CREATE OR REPLACE TABLE spelled (pid VARCHAR)")
    _protect(laboratory, "spelled")
    # a unit column with a collation is refused by dp_protect; this one gets its collation later
    connection.execute("CREATE OR REPLACE TABLE spelled (pid VARCHAR COLLATE NOCASE, k VARCHAR COLLATE NOCASE)")
    connection.execute(
        "INSERT INTO spelled SELECT ['A', 'a'][1 + i % 2] || i // 4, ['X', 'x'][1 + i // 2 % 2] "
        f"FROM range(80) r(i) ORDER BY i {order}"
    )
    exact = _exact(laboratory, laboratory.plan("SELECT k, count(DISTINCT pid) FROM spelled GROUP BY k"))
    assert exact == {("X",): (40,), ("x",): (40,)}
    lowered = _exact(laboratory, laboratory.plan("SELECT lower(k), count(DISTINCT pid) FROM spelled GROUP BY 1"))
    assert lowered == {("x",): (40,)}
