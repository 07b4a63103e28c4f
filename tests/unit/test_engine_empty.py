"""The empty copies on which a query is tried: one of every table that it reads, faithful in types, and gone after."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import duckdb
import pyarrow as pa
import pytest

from dpsql.bound.formulations import Sizes
from dpsql.bound.statement import Bounded
from dpsql.engine import DuckDBEngine, trials
from dpsql.errors import SchemaError

TABLE = (
    'CREATE TABLE "s c"."odd ""name\'s" (u INTEGER PRIMARY KEY, m mood, ms mood[], d cents, w VARCHAR COLLATE nocase, '
    "h HUGEINT, t TIMESTAMP_S, o STRUCT(a INTEGER, b VARCHAR), k MAP(INTEGER, VARCHAR), e INTEGER NOT NULL, "
    "g INTEGER GENERATED ALWAYS AS (e + 1))"
)
ODD = '"memory"."s c"."odd ""name\'s"'
PLAIN = '"memory"."main"."plain"'
VIEW = '"memory"."main"."seen"'


@pytest.fixture
def connection() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as connection:
        connection.execute(
            "CREATE SCHEMA \"s c\"; CREATE TYPE mood AS ENUM ('a', 'b'); CREATE TYPE cents AS DECIMAL(9, 2)"
        )
        connection.execute(TABLE)
        connection.execute("CREATE TABLE plain (u INTEGER, w VARCHAR COLLATE nocase, z VARCHAR COLLATE noaccent)")
        connection.execute("INSERT INTO plain VALUES (1, 'a', 'a')")
        connection.execute("CREATE VIEW seen AS SELECT u, w, z, CAST(w AS INTEGER) AS n FROM plain")
        yield connection


@pytest.fixture
def engine(connection: duckdb.DuckDBPyConnection) -> DuckDBEngine:
    return DuckDBEngine(connection)


def fails(engine: DuckDBEngine, sql: str, listed: pa.Table | None = None) -> bool:
    try:
        engine.run_empty([sql], listed_keys=listed)
    except SchemaError:
        return True
    return False


@pytest.mark.parametrize("place", [ODD, PLAIN, VIEW])
def test_no_row_is_read(place: str, engine: DuckDBEngine) -> None:
    """A query that fails on any row passes, and one that fails without rows does not."""
    assert not fails(engine, f"SELECT CAST('x' || u AS INTEGER) FROM {place}")
    assert not fails(engine, f"SELECT u, error('a row') FROM {place}")
    assert fails(engine, f"SELECT TRY(strptime(w, '%Q')) FROM {place}")
    assert fails(engine, f"SELECT nothing FROM {place}")


@pytest.mark.parametrize(
    ("place", "column", "kind"),
    [
        (ODD, "m", "ENUM('a', 'b')"), (ODD, "ms", "ENUM('a', 'b')[]"), (ODD, "d", "DECIMAL(9,2)"),
        (ODD, "h", "HUGEINT"), (ODD, "t", "TIMESTAMP_S"), (ODD, "o", "STRUCT(a INTEGER, b VARCHAR)"),
        (ODD, "k", "MAP(INTEGER, VARCHAR)"), (ODD, "g", "INTEGER"), (VIEW, "n", "INTEGER"), (PLAIN, "w", "VARCHAR"),
    ],
)  # fmt: skip
def test_types_are_those_of_the_table(place: str, column: str, kind: str, engine: DuckDBEngine) -> None:
    """Whatever the copy is made of: a type that is another one fails aloud."""
    quoted = kind.replace("'", "''")
    check = f"SELECT CASE WHEN typeof(any_value({column})) <> '{quoted}' THEN error('of another type') END FROM {place}"
    assert not fails(engine, check)
    assert fails(engine, check.replace("<>", "="))


@pytest.mark.parametrize("place", [PLAIN, VIEW])
def test_collations_are_those_of_the_table(place: str, engine: DuckDBEngine) -> None:
    assert fails(engine, f"SELECT w = z FROM {place}")
    assert not fails(engine, f"SELECT w = 'x', z = 'x' FROM {place}")


def test_an_error_quotes_nothing(engine: DuckDBEngine) -> None:
    """DuckDB's own could quote a key."""
    keys = pa.table({"key_0": ["a key"]})
    with pytest.raises(SchemaError) as caught:
        engine.run_empty(["SELECT CAST(key_0 AS INTEGER) FROM temp.main.dpsql_listed_keys"], listed_keys=keys)
    assert str(caught.value) == "the database cannot run this query, on any rows."
    assert caught.value.__context__ is None


def test_keys_are_offered_with_their_values(engine: DuckDBEngine) -> None:
    keys = pa.table({"key_0": ["1", "2"]})
    sql = f"SELECT CAST(key_0 AS INTEGER) FROM temp.main.dpsql_listed_keys LEFT JOIN {PLAIN} ON w = key_0"
    assert not fails(engine, sql, keys)
    assert fails(engine, sql, pa.table({"key_0": ["1", "x"]}))


def test_a_name_in_a_text_is_a_text(engine: DuckDBEngine) -> None:
    text = PLAIN.replace("'", "''")
    check = f"SELECT CASE WHEN '{text}' <> concat('\"memory\".', '\"main\".\"plain\"') THEN error('changed') END"
    assert not fails(engine, f"{check}, count(*) FROM {PLAIN}")


def test_nothing_is_left(engine: DuckDBEngine, connection: duckdb.DuckDBPyConnection) -> None:
    """Neither copies nor a transaction, whether the query runs or not."""

    def temporary() -> list[tuple[Any, ...]]:
        return connection.execute("SELECT table_name FROM duckdb_tables() WHERE temporary").fetchall()

    connection.execute("BEGIN")
    connection.execute("CREATE TABLE mine (x INTEGER)")
    assert not fails(engine, f"SELECT * FROM {PLAIN}")
    assert fails(engine, f"SELECT nothing FROM {PLAIN}")
    assert temporary() == []
    connection.execute("COMMIT")
    assert connection.execute("SELECT count(*) FROM mine").fetchall() == [(0,)]


KEYS = pa.table({"key_0": ["1"]})
JOINED = f"SELECT w FROM {VIEW} SEMI JOIN temp.main.dpsql_listed_keys ON w = key_0"


@pytest.mark.parametrize(
    ("change", "sql", "keys", "times"),
    [
        ("INSERT INTO plain VALUES (2, 'b', 'b')", JOINED, KEYS, 1),
        ("SELECT 1", JOINED.replace("w = key_0", "w = key_0 AND w <> 'x'"), KEYS, 2),
        ("SELECT 1", JOINED, pa.table({"key_0": ["2"]}), 2),
        ("ALTER TABLE plain ADD COLUMN more INTEGER", JOINED, KEYS, 2),
        ("ALTER TABLE plain ALTER u TYPE BIGINT", f"SELECT u FROM {PLAIN}", None, 2),
        ("CREATE OR REPLACE VIEW seen AS SELECT u, w, z, 1 AS n FROM plain WHERE u > 0", JOINED, KEYS, 2),
    ],
)
def test_what_ran_is_tried_again_only_where_text_keys_or_definitions_changed(
    change: str, sql: str, keys: pa.Table | None, times: int, engine: DuckDBEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row more is no reason."""
    tried: list[str] = []
    run = trials.run_empty

    def counted(cursor: Any, queries: Any, copied: Any) -> None:
        tried.extend(queries)
        run(cursor, queries, copied)

    monkeypatch.setattr(trials, "run_empty", counted)
    first = (f"SELECT u FROM {PLAIN}", None) if keys is None else (JOINED, KEYS)
    assert not fails(engine, *first)
    with engine._connection.pinned() as cursor:
        cursor.rows(f"USE memory.main; {change}")
    assert not fails(engine, sql, keys)
    assert not fails(engine, sql, keys)
    assert len(tried) == times


def test_what_failed_is_tried_again(engine: DuckDBEngine, connection: duckdb.DuckDBPyConnection) -> None:
    """And what a view reads may change so that it fails."""
    assert not fails(engine, f"SELECT w = 'x' FROM {VIEW}")
    assert fails(engine, f"SELECT w = z FROM {VIEW}")
    connection.execute("CREATE OR REPLACE TABLE plain (u INTEGER, w VARCHAR COLLATE nocase, z VARCHAR COLLATE nocase)")
    assert not fails(engine, f"SELECT w = z FROM {VIEW}")
    connection.execute("CREATE OR REPLACE TABLE plain (u INTEGER, w VARCHAR COLLATE nocase, z VARCHAR COLLATE nfc)")
    assert fails(engine, f"SELECT w = z FROM {VIEW}")


def test_a_view_of_a_macro_that_changed_is_bound_again(
    engine: DuckDBEngine, connection: duckdb.DuckDBPyConnection
) -> None:
    connection.execute(
        "CREATE MACRO spelled(x) AS lower(x); CREATE OR REPLACE VIEW seen AS SELECT spelled('' || u) AS s, z FROM plain"
    )
    assert not fails(engine, f"SELECT s = z FROM {VIEW}")
    connection.execute("CREATE OR REPLACE MACRO spelled(x) AS lower(x) COLLATE nocase")
    assert fails(engine, f"SELECT s = z FROM {VIEW}")


def test_too_many_trials_are_forgotten(engine: DuckDBEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trials, "_MOST_TRIALS", 2)
    for number in range(3):
        assert not fails(engine, f"SELECT {number} FROM {PLAIN}")
    assert len(engine._trials._passed) == 1


class _Sized:
    """A statement that notes by which number of rows its sizes are written."""

    def __init__(self, place: str) -> None:
        self.seen: list[int | None] = []
        rows_sql = SimpleNamespace(relation=f"(SELECT * FROM {place})")
        self.frame = SimpleNamespace(bounding=SimpleNamespace(finer=None), rows_sql=rows_sql)

    def sizes_sql(self, salt: bytes, rows: int | None) -> str:
        self.seen.append(rows)
        return "SELECT 1, 2, 3, 4"


@pytest.mark.parametrize(("place", "rows"), [(PLAIN, 1), (ODD, None), (VIEW, None), (f"{PLAIN} JOIN {ODD}", 1)])
def test_the_number_of_rows_is_that_of_the_tables_that_are_read(
    place: str, rows: int | None, engine: DuckDBEngine
) -> None:
    bounded = _Sized(place)
    assert engine.sizes(cast("Bounded", bounded), b"salt", listed_keys=None, timeout_seconds=None) == Sizes(1, 2, 3, 4)
    assert bounded.seen == [rows]
