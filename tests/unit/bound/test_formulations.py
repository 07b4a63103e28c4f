"""One bounded result in every formulation, bit for bit: groups first, rows first, and native where it has been built.

The other tests of bounding run every formulation too (`exact_runs.Laboratory.exact`); here are the types and texts that
could come apart between them, and the choice.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import dpsql
from dpsql.assets import native_library
from dpsql.bound import formulations
from dpsql.bound.aggregation import bounded_sql
from dpsql.bound.formulations import Sizes, chooses_groups, drawn_factor
from dpsql.bound.row_sizes import approximate_sizes_sql
from dpsql.engine import DuckDBEngine, connection
from dpsql.errors import EngineError
from dpsql.model.frame import PRESENCE
from dpsql.model.private_query import PrivateQuery
from dpsql.release.formulation import fastest
from tests.frames import with_bounding, with_relation
from tests.unit.bound.exact_runs import SALT, Laboratory, needs_native

Described = tuple[str, str, list[str], list[str]]
"""Types of the columns, the keys of the query, rows as SQL, and the aggregates of the query."""

UNITS = {
    "BIGINT": ("1", "2", "-9223372036854775808", "NULL", "7"),
    "VARCHAR": ("'a'", "'A'", "''", "NULL", "'a '", "'ä'"),
    "UUID": ("'00000000-0000-0000-0000-000000000001'", "'ffffffff-ffff-ffff-ffff-ffffffffffff'", "NULL"),
    "HUGEINT": ("1", "170141183460469231731687303715884105727", "NULL", "-1"),
    "DOUBLE": ("0.0", "-0.0", "'nan'", "NULL", "'inf'", "1e308"),
    "DATE": ("'2026-01-01'", "'0044-03-15 (BC)'", "NULL", "'infinity'"),
}
KEYS = {
    "VARCHAR": (
        "'a'", "'A'", "''", "' '", "NULL", "'NULL'", "chr(0)", "'a' || chr(0)", "'ä'", "'a' || chr(776)", "'🜂'",
        "'a rather long key, longer than what is kept in place'", "'a rather long key, longer than what is kept in p'",
        "'it''s'", "'\"'",
    ),
    "DOUBLE": ("0.0", "-0.0", "'nan'", "-('nan'::DOUBLE)", "NULL", "'inf'", "5e-324", "0.1"),
    "FLOAT": ("0.0", "-0.0", "'nan'", "NULL", "1.5"),
    "INTEGER": ("0", "1", "2", "-2147483648", "2147483647", "NULL"),
    "HUGEINT": ("0", "-170141183460469231731687303715884105728", "170141183460469231731687303715884105727", "NULL"),
    "INTERVAL": ("'30 days'", "'1 month'", "'-1 month'", "'24 hours'", "'1 day'", "NULL"),
    "INTEGER[]": ("[]", "[1]", "[1, NULL]", "[NULL]", "NULL", "[1, 2]"),
    "BOOLEAN": ("true", "false", "NULL"),
    "TIMESTAMP": ("'2026-01-01'", "'9999-12-31'", "NULL", "'1969-12-31 23:59:59.999999'"),
}  # fmt: skip
VALUES = ("0", "1", "-3.5", "NULL", "'nan'", "1e308", "-1e308", "'inf'", "0.1", "499")
SELECTED = (
    "count(DISTINCT pid)", "count(*)", "count(x)", "count(*) FILTER (WHERE x > 0)",
    "count(DISTINCT pid) FILTER (WHERE x > 0)", "sum(x, contribution_bounds_per_row => (-1, 2))",
    "sum(x, contribution_bounds_per_group => (-5, 500))", "avg(x, contribution_bounds_per_row => (0.1, 0.7))",
    "sum(x, contribution_bounds_per_row => (0, 9)) FILTER (WHERE y > 1)",
)  # fmt: skip


@pytest.fixture(scope="module")
def laboratory() -> Iterator[Laboratory]:
    opened = Laboratory()
    yield opened
    opened.close()


@st.composite
def tables(draw: st.DrawFn) -> Described:
    """A table with a unit, two keys and two values, and a query on it."""
    unit = draw(st.sampled_from(sorted(UNITS)))
    key, other = (draw(st.sampled_from(sorted(KEYS))) for _ in range(2))
    row = st.tuples(
        st.sampled_from(UNITS[unit]).map(lambda value: f"({value})::{unit}"),
        st.sampled_from(KEYS[key]).map(lambda value: f"({value})::{key}"),
        st.sampled_from(KEYS[other][:3]).map(lambda value: f"({value})::{other}"),
        st.sampled_from(VALUES).map(lambda value: f"({value})::DOUBLE"),
        st.integers(0, 3).map(str),
    )
    rows = draw(st.lists(row, max_size=60))
    types = f"pid {unit}, k {key}, other {other}, x DOUBLE, y INTEGER"
    keys = draw(st.sampled_from(("k", "k, other")))
    aggregates = draw(st.lists(st.sampled_from(SELECTED), min_size=1, max_size=4, unique=True))
    return types, keys, [f"({', '.join(values)})" for values in rows], aggregates


def results(laboratory: Laboratory, query: PrivateQuery) -> list[list[str]]:
    """The rows of the exact table by every formulation, in one order."""
    tables = []
    for formulation in laboratory.formulations(query.first.frame):
        sql = bounded_sql(query.first.frame, query.first.statistics, SALT, formulation=formulation)
        table = laboratory.engine.aggregate(sql, listed_keys=None, timeout_seconds=None).reveal()
        tables.append(sorted(map(repr, table.to_pylist())))
    return tables


def check_one_result(laboratory: Laboratory, described: Described, max_groups: int, threads: int) -> None:
    """Equal tables by every formulation, in two orders of the rows."""
    types, keys, rows, aggregates = described
    connection = laboratory.session.connection
    connection.execute(f"CREATE OR REPLACE TABLE odd ({types}); SET threads = {threads}")
    if rows:
        connection.execute(f"INSERT INTO odd VALUES {', '.join(rows)}")
    try:
        laboratory.session.sql(
            "CALL dp_protect('odd', coverage := FALSE, "
            "unit := 'u', privacy_unit_column := 'pid', max_rows_per_group := 3)"
        )
        text = f"SELECT {keys}, {', '.join(aggregates)} FROM odd GROUP BY {keys}"
        query = laboratory.plan(text, max_groups_contributed=max_groups)
        found = results(laboratory, query)
        shuffled = f"(SELECT * FROM {query.first.frame.rows_sql.relation} ORDER BY hash(rowid, 'shuffle'))"
        again = query.mapped(lambda part: replace(part, frame=with_relation(part.frame, shuffled)))
        found += results(laboratory, again)
        assert all(table == found[0] for table in found[1:])
    finally:
        connection.execute("RESET threads")


_SHORT = settings(
    max_examples=12,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.generate,),
)
_RUN = {"described": tables(), "max_groups": st.integers(1, 5), "threads": st.sampled_from((1, 2, 4))}


@settings(_SHORT)
@given(**_RUN)
def test_every_formulation_has_one_result(
    laboratory: Laboratory, described: Described, max_groups: int, threads: int
) -> None:
    check_one_result(laboratory, described, max_groups, threads)


@pytest.mark.long
@settings(max_examples=500, deadline=None, suppress_health_check=list(HealthCheck))
@given(**_RUN)
def test_every_formulation_has_one_result_over_many_tables(
    laboratory: Laboratory, described: Described, max_groups: int, threads: int
) -> None:
    check_one_result(laboratory, described, max_groups, threads)


@pytest.mark.parametrize(("max_groups", "threads"), [(1, 4), (3, 1), (8, 2), (9, 4), (64, 2)])
def test_many_units_and_threads(laboratory: Laboratory, max_groups: int, threads: int) -> None:
    """Enough units that states of several threads and partitions are combined."""
    connection = laboratory.session.connection
    connection.execute(
        "CREATE TABLE IF NOT EXISTS many AS SELECT (hash(i) % 30000)::INTEGER AS pid, hash(i, 1) % 90 AS k, "
        "(hash(i, 2) % 1000)::DOUBLE AS x, 1 AS y FROM range(120000) r(i)"
    )
    laboratory.session.sql(
        "CALL dp_protect('many', coverage := FALSE, unit := 'u', privacy_unit_column := 'pid', max_rows_per_group := 2)"
    )
    query = laboratory.plan(
        "SELECT k, count(*), sum(x, contribution_bounds_per_row => (0, 900)) FROM many GROUP BY k",
        max_groups_contributed=max_groups,
    )
    connection.execute(f"SET threads = {threads}")
    try:
        found = results(laboratory, query)
    finally:
        connection.execute("RESET threads")
    assert all(table == found[0] for table in found[1:])
    expected = connection.execute(
        "SELECT sum(least(n, ?)) FROM (SELECT count(DISTINCT k) AS n FROM many GROUP BY pid)", [max_groups]
    ).fetchall()[0][0]
    units = [int(row.partition("'units': ")[2].partition(",")[0]) for row in found[0]]
    assert sum(units) == expected


def _planned(laboratory: Laboratory, selected: str, max_groups: int) -> PrivateQuery:
    laboratory.session.connection.execute("CREATE OR REPLACE TABLE planned (pid INTEGER, k VARCHAR, x DOUBLE)")
    laboratory.session.sql(
        "CALL dp_protect('planned', coverage := FALSE, "
        "unit := 'u', privacy_unit_column := 'pid', max_rows_per_group := 2)"
    )
    return laboratory.plan(f"SELECT k, {selected} FROM planned GROUP BY k", max_groups_contributed=max_groups)


@pytest.mark.parametrize(
    ("max_groups", "sizes", "has_native", "expected"),
    [
        (8, Sizes(20_000_000, 1_000_000, 100_000, 18_000_000), False, "rows_first"),
        (8, Sizes(20_000_000, 100_000, 30, 3_000_000), False, "groups_first"),
        (8, Sizes(20_000_000, 1_000_000, 100_000, 18_000_000), True, "native"),
        (8, Sizes(20_000_000, 100_000, 30, 3_000_000), True, "native"),
        # a dictionary as long as the table, states larger than it, and more groups than the library keeps
        (8, Sizes(20_000_000, 1_000_000, 19_000_000, 20_000_000), True, "rows_first"),
        (8, Sizes(20_000_000, 19_000_000, 1_000, 20_000_000), True, "rows_first"),
        (65, Sizes(20_000_000, 100_000, 1_000, 3_000_000), True, "groups_first"),
        (8, Sizes(0, 0, 0, 0), False, "groups_first"),
    ],
)
def test_the_fastest_is_chosen(
    laboratory: Laboratory, max_groups: int, sizes: Sizes, has_native: bool, expected: str
) -> None:
    query = _planned(laboratory, "count(*), sum(x, contribution_bounds_per_row => (0, 9))", max_groups)
    assert chooses_groups(query.first.frame)
    assert fastest(query.first.frame, query.first.statistics[1:], sizes, 1.0, has_native=has_native) == expected


def test_without_keys_or_bounds_there_is_nothing_to_choose(laboratory: Laboratory) -> None:
    frame = _planned(laboratory, "count(*)", 3).first.frame
    assert not chooses_groups(with_bounding(frame, max_groups=None))
    assert not chooses_groups(replace(frame, keys=()))


def test_sizes_are_about_right(laboratory: Laboratory) -> None:
    laboratory.session.connection.execute(
        "CREATE OR REPLACE TABLE sized AS SELECT CASE WHEN i % 10 > 0 THEN i % 500 END AS pid, 'k' || i % 40 AS k "
        "FROM range(20000) r(i)"
    )
    laboratory.session.sql("CALL dp_protect('sized', coverage := FALSE, unit := 'u', privacy_unit_column := 'pid')")
    frame = laboratory.plan("SELECT k, count(DISTINCT pid) FROM sized GROUP BY k", max_groups_contributed=2).first.frame
    found = _sizes(laboratory, approximate_sizes_sql(frame, SALT, 20_000))
    assert found.rows == 18_000
    assert found.units == pytest.approx(450, rel=0.15)
    assert found.keys == pytest.approx(36, abs=5)
    assert found.pairs == pytest.approx(900, rel=0.15)
    # a unit has 40 rows, and all of them are looked at or none
    part = _sizes(laboratory, approximate_sizes_sql(frame, SALT, 400_000))
    assert part.rows % 40 == 0
    assert part.rows == pytest.approx(4_500, rel=0.3)
    assert part.rows / part.units == pytest.approx(40, rel=0.15)


def _sizes(laboratory: Laboratory, sql: str) -> Sizes:
    (row,) = laboratory.engine.aggregate(sql, listed_keys=None, timeout_seconds=None).reveal().to_pylist()
    return Sizes(*row.values())


def test_thresholds_are_drawn_by_the_salt_over_a_factor_of_two() -> None:
    factors = sorted(drawn_factor(i.to_bytes(16), "a text") for i in range(2_000))
    assert math.sqrt(0.5) <= factors[0] < 0.71
    assert 1.41 < factors[-1] <= math.sqrt(2.0)
    # uniform in the logarithm: 6e-9 is the probability that the largest distance of 2,000 draws is beyond 0.07
    assert max(abs(math.log2(one) + 0.5 - i / 2_000) for i, one in enumerate(factors)) < 0.07


def test_sizes_are_looked_at_once_for_a_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """If rows change in place, no time tells: nobody looks again before the next version."""
    seen: list[str] = []
    whole = connection._LocalCursor.rows

    def watched(self: connection._LocalCursor, sql: str, parameters: Sequence[str] = ()) -> list[tuple[Any, ...]]:
        seen.extend([sql] if "approx_count_distinct" in sql else [])
        return whole(self, sql, parameters)

    monkeypatch.setattr(connection._LocalCursor, "rows", watched)
    monkeypatch.setattr("dpsql.bound.row_sizes._ROWS_COUNTED", 500)
    with dpsql.connect() as session:
        session.connection.execute("CREATE TABLE t AS SELECT i % 50 AS pid, i % 4 AS k FROM range(2000) r(i)")
        session.sql("CALL dp_unit('u', epsilon_budget := 10, delta_budget := 0.1)")
        session.sql(
            "CALL dp_protect('t', coverage := FALSE, unit := 'u', privacy_unit_column := 'pid', "
            "max_groups_contributed := 2, max_rows_per_group := 9)"
        )
        text = "SELECT k, {} FROM t GROUP BY k"
        for change, asked, readings in (
            ("SELECT 1", "count(DISTINCT pid)", 1),
            ("INSERT INTO t FROM t", "count(*)", 0),
            ("CALL dp_new_version('t')", "count(*)", 1),
        ):
            seen.clear()
            session.sql(change) if "dp_" in change else session.connection.execute(change)
            session.sql(text.format(asked), rho=0.1, delta=1e-6)
            assert len(seen) == readings
    # an eighth of the units by now
    assert f"<= {2**64 // 8}" in seen[0]


def _sql_of_a_release(monkeypatch: pytest.MonkeyPatch, *, unsigned: bool = False, coverage: bool = False) -> str:
    seen: list[str] = []
    whole = DuckDBEngine.aggregate

    def watched(self: DuckDBEngine, sql: str, **arguments: object) -> object:
        seen.append(sql)
        return whole(self, sql, **arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(DuckDBEngine, "aggregate", watched)
    with dpsql.connect(allow_unsigned_extensions=unsigned) as session:
        session.connection.execute("CREATE TABLE t AS SELECT i % 50 AS pid, i % 4 AS k FROM range(5000) r(i)")
        session.sql("CALL dp_unit('u', rho_budget := 10, delta_threshold := 0.5, delta_conversion := 1e-6)")
        session.sql(
            f"CALL dp_protect('t', coverage := {coverage}, "
            "unit := 'u', privacy_unit_column := 'pid', max_groups_contributed := 2)"
        )
        # what a declaration reads is no release
        seen.clear()
        result = session.sql("SELECT k, count(DISTINCT pid) AS n FROM t GROUP BY k", rho=5.0, delta=0.1)
        assert len(result) > 0
    (sql,) = seen
    return sql


@needs_native
def test_threads_may_load_the_library_at_once() -> None:
    """The environment that tells it to bring its aggregate alone is one for all threads."""
    connections = [duckdb.connect(config={"allow_unsigned_extensions": True}) for _ in range(8)]
    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(lambda one: DuckDBEngine(one, native_library()).has_native, connections))
    for one in connections:
        assert not one.execute("FROM duckdb_functions() WHERE function_name = 'dp_query'").fetchall()
        one.close()


@needs_native
def test_the_library_is_used_where_the_connection_allows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "dpsql_keep_2(2::INTEGER" in _sql_of_a_release(monkeypatch, unsigned=True)
    assert "dpsql_keep" not in _sql_of_a_release(monkeypatch)
    assert "dpsql_unit_2(2::INTEGER" in _sql_of_a_release(monkeypatch, unsigned=True, coverage=True)
    assert "dpsql_unit" not in _sql_of_a_release(monkeypatch, coverage=True)


def test_a_failure_of_the_sizes_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: object, **__: object) -> tuple[int, ...]:
        raise EngineError

    monkeypatch.setattr(DuckDBEngine, "sizes", failing)
    assert "QUALIFY row_number()" in _sql_of_a_release(monkeypatch)


def test_what_is_no_library_is_as_good_as_none(tmp_path: Path) -> None:
    broken = tmp_path / "dpsql_native.duckdb_extension"
    broken.write_bytes(b"nothing")
    with duckdb.connect(config={"allow_unsigned_extensions": True}) as connection:
        assert not DuckDBEngine(connection, broken).has_native
        assert not DuckDBEngine(connection, tmp_path / "missing").has_native
        assert not DuckDBEngine(connection).has_native
    with duckdb.connect() as connection:
        assert not DuckDBEngine(connection, native_library()).has_native


def test_equal_priorities_are_told_apart_by_keys(laboratory: Laboratory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of equal priorities, or of priorities whose upper halves are equal, the least keys are kept."""
    connection = laboratory.session.connection
    connection.execute(
        "CREATE TABLE IF NOT EXISTS equal AS SELECT (hash(i) % 300)::INTEGER AS pid, hash(i, 1) % 20 AS k, 1.0 AS x "
        "FROM range(3000) r(i)"
    )
    laboratory.session.sql("CALL dp_protect('equal', coverage := FALSE, unit := 'u', privacy_unit_column := 'pid')")
    query = laboratory.plan("SELECT k, count(*) FROM equal GROUP BY k", max_groups_contributed=4)
    whole, plain = formulations._priority, results(laboratory, query)
    for kept in ("% 3", "% 4294967296", "& 13835058055282163712"):
        monkeypatch.setattr(formulations, "_priority", lambda keys, salt, kept=kept: f"({whole(keys, salt)} {kept})")
        found = results(laboratory, query)
        assert all(table == found[0] for table in found[1:]), kept
        assert found[0] != plain[0]


def test_presence_alone_needs_no_arguments(laboratory: Laboratory) -> None:
    query = _planned(laboratory, "count(DISTINCT pid)", 4)
    sql = bounded_sql(query.first.frame, (PRESENCE,), SALT, formulation="native")
    assert "dpsql_keep_4(4::INTEGER, hash(hash(unit, listed_rows.key_0, '" in sql
    assert "codes.code)" in sql
