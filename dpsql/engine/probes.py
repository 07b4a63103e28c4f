"""Facts of DuckDB on which privacy rests, each with a probe that tries it on the installed DuckDB.

`FACTS` lists them. `python -m dpsql.engine.check` prints them, the tests require each of them, and a session
tries them if the version of DuckDB was not tested. A probe runs in a database of its own.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from dataclasses import dataclass

import duckdb

from dpsql.engine.connection import PINNED
from dpsql.engine.database import DuckDBEngine
from dpsql.engine.sandbox import Sandbox
from dpsql.errors import DpsqlError
from dpsql.model.environment import Column
from dpsql.operations.row_sql import total_sql, without_statistics

logger = logging.getLogger("dpsql")

FIRST_TESTED, NOT_TESTED = (2, 0), (2, 1)
"""Versions of DuckDB that were tested: from the first one to below the second one, as pyproject.toml declares them."""

TESTED_RANGE = f">={'.'.join(map(str, FIRST_TESTED))},<{'.'.join(map(str, NOT_TESTED))}"

_HASHES = (
    12561829011207016135,
    4717996019076358352,
    6250315044274023003,
    17454128189442973562,
    3044828828311488314,
    13787848793156543929,
    3692349012117518599,
    1706605666616485939,
)

_TABLES = (
    "CREATE TABLE people (u INTEGER, s VARCHAR, n BIGINT, d DATE)",
    "INSERT INTO people VALUES (1, '7', 1, '2020-01-01'), (2, 'x', 9223372036854775807, '5881580-07-10')",
    # one value in all rows, which the optimizer knows from its statistics
    "CREATE TABLE alike AS SELECT 1 AS x FROM range(5000)",
    "CREATE TABLE numbers (t TINYINT, i INTEGER, b BIGINT, u UTINYINT)",
    "INSERT INTO numbers VALUES (1, 1, 1, 1), (-128, -2147483648, -9223372036854775808, 0), "
    "(127, 2147483647, 9223372036854775807, 255)",
    "CREATE TABLE names (folded VARCHAR COLLATE nocase, accents VARCHAR COLLATE noaccent, plain VARCHAR)",
    "INSERT INTO names VALUES ('a', 'a', 'a')",
    'CREATE VIEW spelled AS SELECT lower(folded) COLLATE "binary" AS one, CAST(folded AS VARCHAR) AS other FROM names',
)


@dataclass(frozen=True, slots=True)
class Fact:
    """A fact of DuckDB.

    Attributes:
        subject: the part of DuckDB that it is about.
        sentence: the fact.
        holds: its probe. It gets a connection to a database with the tables of this module.

    """

    subject: str
    sentence: str
    holds: Callable[[duckdb.DuckDBPyConnection], bool]


def _gives(sql: str, *rows: tuple[object, ...]) -> Callable[[duckdb.DuckDBPyConnection], bool]:
    """Return a probe that a query returns these rows."""
    return lambda connection: connection.execute(sql).fetchall() == list(rows)


def _hides_statistics(connection: duckdb.DuckDBPyConnection) -> bool:
    """Check that a condition which the statistics of a column decide is computed if the column is read in TRY."""
    relation = without_statistics("alike", ['"x" + 1'])
    ((_, plan),) = connection.execute(f"EXPLAIN SELECT count(*) FROM {relation} WHERE x + 1 = 3").fetchall()
    return "filter" in str(plan).lower()


def _computes_alike(connection: duckdb.DuckDBPyConnection) -> bool:
    """Check that arithmetic as dpsql writes it has the types and values of arithmetic as DuckDB reads it, in TRY."""
    types = (("t", "TINYINT"), ("i", "INTEGER"), ("b", "BIGINT"), ("u", "UTINYINT"))
    literals = (-(2**63), 1 - 2**31, -(2**31), -129, -128, -1, 127, 128, 2**31 - 1, 2**31, 2**63 - 1)
    texts = [f'"{name}" {sign} {literal}' for name, _ in types for sign in "+-*" for literal in literals]
    rows = without_statistics("numbers", texts)
    for text in (*texts, '"t" + "i"', '"u" + "t"', '"u" * "u"', '"b" * "b"', '-"t"', 'abs("i")', '"i" // "t"'):
        sql = f"SELECT typeof({{0}}), TRY({{0}}) FROM {rows}"
        expected, found = (connection.execute(sql.format(one)).fetchall() for one in (text, total_sql(text, types)))
        if expected != found:
            return False
    return True


def _tells_missing_casts(_: duckdb.DuckDBPyConnection) -> bool:
    """Check that the sandbox can tell a cast that is missing from one that fails on a value."""
    sandbox = Sandbox()
    try:
        return sandbox.has_cast("VARCHAR", "INTEGER") and not sandbox.has_cast("TIMESTAMP", "INTEGER")
    finally:
        sandbox.close()


def _tries_literals(_: duckdb.DuckDBPyConnection) -> bool:
    """Check that the sandbox finds literals that cannot be cast, in every place that a row of NULLs could skip."""
    columns = (Column("d", "DATE", True), Column("n", "BIGINT", True))
    right = ("d > '2025-01-31'", "n IN ('1', 2)", "n < 300000000000", "coalesce(n, '1') = 1")
    wrong = ("d > '2025-13-01'", "n IN (1, 'x')", "n BETWEEN 1 AND 'x'", "coalesce(n, 'x') = 1", "CAST(300 AS TINYINT)")
    sandbox = Sandbox()
    try:
        return sandbox.failed_conversions(columns, (*right, *wrong)) == tuple(range(len(right), len(right + wrong)))
    finally:
        sandbox.close()


def _runs_empty(connection: duckdb.DuckDBPyConnection, sql: str) -> bool:
    try:
        DuckDBEngine(connection).run_empty([sql], listed_keys=None)
    except DpsqlError:
        return False
    return True


def _reads_no_row(connection: duckdb.DuckDBPyConnection) -> bool:
    """Check that an empty copy has no row to fail on, and has the types of its table."""
    place = '"memory"."main"."people"'
    other_type = "CASE WHEN typeof(any_value(n)) <> 'BIGINT' THEN error('another type') END"
    return (
        _runs_empty(connection, f"SELECT error('a row: ' || s) FROM {place}")
        and _runs_empty(connection, f"SELECT {other_type} FROM {place}")
        and not _runs_empty(connection, f"SELECT {other_type.replace('<>', '=')} FROM {place}")
    )


def _finds_what_always_fails(connection: duckdb.DuckDBPyConnection) -> bool:
    """Check that a text which fails on these rows, whatever they are, fails on empty copies too."""
    failing = []
    for value in ("TRY(strptime(s, '%Q'))", "TRY(date_part('no part', d))", "TRY(strftime(d, '%Q'))"):
        try:
            connection.execute(f"SELECT {value} FROM people").fetchall()
        except duckdb.Error:
            failing.append(value)
    place = '"memory"."main"."people"'
    return bool(failing) and not any(_runs_empty(connection, f"SELECT {value} FROM {place}") for value in failing)


def _finds_collations(connection: duckdb.DuckDBPyConnection) -> bool:
    """Check that the collation of a column is found, in a table and through a view."""
    engine, found = DuckDBEngine(connection), []
    for table, column in (("names", "folded"), ("names", "plain"), ("spelled", "one"), ("spelled", "other")):
        schema = engine.resolve([table])
        found.append(schema is not None and engine.collation(schema, column))
    return found == ["nocase", None, None, "nocase"]


def _keeps_every_subset(connection: duckdb.DuckDBPyConnection) -> bool:
    """Check that salts order ten groups of a unit so that each of the 120 ways to keep three of them occurs."""
    places = (
        "SELECT salt, k, row_number() OVER (PARTITION BY salt ORDER BY hash(hash('a unit', k, salt))) AS place "
        "FROM range(4000) a(salt), range(10) b(k)"
    )
    kept = f"SELECT list(k ORDER BY k) AS k FROM ({places}) WHERE place <= 3 GROUP BY salt"
    return connection.execute(f"SELECT count(DISTINCT k) FROM ({kept})").fetchall() == [(120,)]


def _refuses_two_collations(connection: duckdb.DuckDBPyConnection) -> bool:
    try:
        connection.execute("SELECT folded = accents FROM names").fetchall()
    except duckdb.BinderException:
        return True
    return False


def _reads_constraints_with_rows(connection: duckdb.DuckDBPyConnection) -> bool:
    """Try that a unique column refuses a value twice, and that a transaction sees constraint and rows of one moment."""
    connection.execute("CREATE TABLE single (u INTEGER UNIQUE); INSERT INTO single VALUES (1), (NULL), (NULL)")
    try:
        connection.execute("INSERT INTO single VALUES (1)")
    except duckdb.ConstraintException:
        reader = connection.cursor()
        reader.execute("BEGIN TRANSACTION")
        found = reader.execute("SELECT constraint_column_names FROM duckdb_constraints()").fetchall()
        connection.execute("CREATE OR REPLACE TABLE single AS SELECT 1 AS u FROM range(9)")
        rows = reader.execute("SELECT u FROM single WHERE u IS NOT NULL").fetchall()
        reader.execute("ROLLBACK")
        return (["u"],) in found and rows == [(1,)]
    return False


def _pins_settings(connection: duckdb.DuckDBPyConnection) -> bool:
    """Check that a pinned cursor has its settings, and the connection that it came from keeps its own."""
    connection.execute("SET TimeZone = 'Asia/Tokyo'")
    cursor = connection.cursor()
    for statement in PINNED:
        cursor.execute(statement)
    zones = [one.execute("SELECT current_setting('TimeZone')").fetchall() for one in (cursor, connection)]
    cursor.close()
    return zones == [[("UTC",)], [("Asia/Tokyo",)]]


FACTS: tuple[Fact, ...] = (
    Fact(
        "TRY",
        "TRY makes NULL of a value that fails, and of no other",
        _gives(
            "SELECT TRY(CAST(s AS INTEGER)), TRY(n + n), TRY(-n) FROM people ORDER BY u",
            (7, 2, -1),
            (None, None, 1 - 2**63),
        ),
    ),
    Fact(
        "TRY",
        "TRY makes NULL of a date that is out of range",
        _gives("SELECT TRY(CAST(d AS TIMESTAMP)) IS NULL FROM people ORDER BY u", (False,), (True,)),
    ),
    Fact(
        "TRY",
        "what two expressions share is computed inside TRY, if each of them is in a CASE",
        _gives(
            "SELECT CASE WHEN u IS NOT NULL THEN TRY(CAST(s AS INTEGER) + 1) END, "
            "CASE WHEN u IS NOT NULL THEN TRY(CAST(s AS INTEGER) + 2) END FROM people ORDER BY u",
            (8, 9),
            (None, None),
        ),
    ),
    Fact("optimizers", "statistics of a column decide nothing if the column is read in TRY", _hides_statistics),
    Fact("arithmetic", "whole numbers have the types and values that dpsql expects", _computes_alike),
    Fact("empty copies", "an empty copy of a table has its types and no row", _reads_no_row),
    Fact("empty copies", "a text that fails on any rows fails on empty copies", _finds_what_always_fails),
    Fact(
        "casts",
        "TRY_CAST makes NULL of a value that a type cannot hold",
        _gives(
            "SELECT TRY_CAST('x' AS INTEGER), TRY_CAST(300 AS TINYINT), TRY_CAST('nan'::DOUBLE AS BIGINT), "
            "TRY_CAST(1e30 AS INTEGER), TRY_CAST('2020-02-30' AS DATE)",
            (None, None, None, None, None),
        ),
    ),
    Fact("casts", "the error of a missing cast differs from that of a value that cannot be cast", _tells_missing_casts),
    Fact("casts", "a literal that cannot be cast fails on a row of NULLs", _tries_literals),
    Fact(
        "sums",
        "a sum of BIGINT is a HUGEINT",
        _gives("SELECT typeof(sum(n)), CAST(sum(n) AS VARCHAR) FROM people", ("HUGEINT", str(2**63))),
    ),
    Fact(
        "hash",
        "hash returns the numbers by which DuckDB 2.0.0 chose the rows that a unit keeps",
        _gives(
            "SELECT hash('a'), hash(1), hash('a', 1), hash(hash(1::BIGINT, 'Lund', 'salt')), hash(DATE '2020-01-01'), "
            "hash(NULL::VARCHAR), hash('00000000-0000-0000-0000-000000000001'::UUID), hash(1.5::DOUBLE)",
            _HASHES,
        ),
    ),
    Fact("hash", "a hash of a hash orders the groups of a unit in every way", _keeps_every_subset),
    Fact("collations", "the collation of a column is found, through a view too", _finds_collations),
    Fact("collations", "columns under two collations cannot be compared", _refuses_two_collations),
    Fact(
        "collations",
        "the collation binary compares bytes",
        _gives("SELECT folded = 'A', folded COLLATE \"binary\" = 'A' FROM names", (True, False)),
    ),
    Fact("constraints", "a unique column holds a value once in what a transaction reads", _reads_constraints_with_rows),
    Fact("settings", "the settings that a cursor pins are its own", _pins_settings),
)
"""Every fact, in the order in which it is printed."""


def holds(fact: Fact) -> bool:
    """Return the outcome of the probe of a fact, in a new database; an error means that the fact does not hold."""
    with duckdb.connect(config={"threads": "1"}) as connection:
        try:
            for statement in _TABLES:
                connection.execute(statement)
            return fact.holds(connection)
        except Exception:
            return False


def is_tested(version: str) -> bool:
    """Check that a version of DuckDB lies in the tested range; a development version after it does not.

    >>> is_tested("2.0.7"), is_tested("2.1.0.dev12"), is_tested("1.5.6"), is_tested("unknown")
    (True, False, False, False)
    """
    try:
        release = tuple(int(part) for part in version.split(".")[:2])
    except ValueError:
        return False
    return FIRST_TESTED <= release < NOT_TESTED


@functools.cache
def warn_if_untested() -> None:
    """Warn, once in a process, if the installed DuckDB was not tested with dpsql; say which facts do not hold."""
    if is_tested(duckdb.__version__):
        return
    failed = [fact.sentence for fact in FACTS if not holds(fact)]
    found = (
        f"privacy is at risk, because here it is not true that {'; nor that '.join(failed)}"
        if failed
        else "all facts of DuckDB on which privacy rests were tried and hold"
    )
    logger.warning(
        "dpsql was tested with DuckDB %s and not with %s: %s (python -m dpsql.engine.check)",
        TESTED_RANGE,
        duckdb.__version__,
        found,
    )
