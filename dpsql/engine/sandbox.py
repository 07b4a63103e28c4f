"""An empty DuckDB for planning and finishing, which never meets a raw row."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import re
import threading
from collections.abc import Sequence

import duckdb
import pyarrow as pa

from dpsql.engine.connection import SETTINGS, interrupt_after
from dpsql.errors import EngineError, SchemaError
from dpsql.model.environment import Column
from dpsql.operations.dialect import quote

_MOST_BOUND = 1024
_LONGEST_BOUND = 4_000
"""Characters of the longest texts whose types are kept, so that all of them together take little memory."""
_MOST_LISTED = 16
_SAMPLES = ("1", "2000-01-01", "00:00:00", "1 day", "00000000-0000-0000-0000-000000000001")
"""Texts, one of which every scalar type can be cast from."""
_NO_CAST = "Unimplemented type for cast"
_WRITTEN_NUMBER = re.compile(r"-?[0-9.]")
_EXACT = re.compile(r"(U?(TINYINT|SMALLINT|INTEGER|BIGINT|HUGEINT)|BOOLEAN|DECIMAL\(\d+,\d+\))$")
OF_A_CURSOR = (
    *(f"SET {name} = '{value}'" for name, value in SETTINGS),
    "SET python_enable_replacements = false",
    # whether a subquery has one row is a fact of an answer that is paid for: the others are left out, not an error
    "SET scalar_subquery_error_on_multiple_rows = false",
)
"""Every cursor of the database begins with these anew."""


_FREE: dict[int, list[duckdb.DuckDBPyConnection]] = {}
"""Databases of closed sandboxes by process. Opening one takes 20 ms of processor time, as much as a small question."""
_MOST_FREE = 2


def _free_database() -> duckdb.DuckDBPyConnection | None:
    """Return the database of a closed sandbox, or None if there is none that answers."""
    with contextlib.suppress(IndexError, duckdb.Error):
        free = _FREE.get(os.getpid(), []).pop()
        free.execute("SELECT 1")
        return free
    return None


def new_database(**settings: str) -> duckdb.DuckDBPyConnection:
    """Open an in-memory DuckDB that reads no file, with further settings."""
    database = duckdb.connect(
        ":memory:",
        config={
            "enable_external_access": "false",
            "autoload_known_extensions": "false",
            "autoinstall_known_extensions": "false",
            "threads": "1",
            **settings,
        },
    )
    for statement in OF_A_CURSOR:
        database.execute(statement)
    # shared parts of two TRY expressions would be computed once, outside TRY, and fail aloud
    database.execute("SET disabled_optimizers = 'common_subexpressions'")
    return database


class Sandbox:
    """An empty in-memory DuckDB without access to files: binds types and runs post-processing.

    It never meets a raw row: planning shows it empty tables, finishing shows it noisy ones. All tables are temporary
    and end with a cursor, so a closed sandbox leaves an empty database for the next one.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._connection = _free_database() or new_database()
        # types are a function of the texts alone, in a database that holds nothing, and asked for again and again
        self._kept_types = functools.lru_cache(maxsize=_MOST_BOUND)(self._bind)
        self.has_cast = functools.lru_cache(maxsize=_MOST_BOUND)(self._has_cast)
        self._kept_failures = functools.lru_cache(maxsize=_MOST_BOUND)(self._failed_conversions)
        # every plan reads the public lists of keys, and each may be long
        self.literals = functools.lru_cache(maxsize=_MOST_LISTED)(self._literals)

    def close(self) -> None:
        """Leave the in-memory database to the next sandbox of the process, or close it."""
        with self._lock:
            database, free = self._connection, _FREE.setdefault(os.getpid(), [])
            with contextlib.suppress(duckdb.Error):
                self._connection = database.cursor()
                self._connection.close()
                if len(free) < _MOST_FREE:
                    free.append(database)
                    return
            database.close()

    def describe(self, columns: Sequence[Column], expressions: Sequence[str]) -> list[str]:
        """Types of expressions over an empty table with these columns.

        Raises:
            SchemaError: an expression does not bind; the text comes from a database without rows.

        """
        if not expressions:
            return []
        listed = ", ".join(f"({expression})" for expression in expressions)
        # a table has a column
        against = tuple(columns) or (Column("nothing", "INTEGER", True),)
        return [kind for _, kind in self.bind("bound_against", against, f"SELECT {listed} FROM bound_against")]

    def bind(self, name: str, columns: tuple[Column, ...], sql: str) -> tuple[tuple[str, str], ...]:
        """Return names and types of a query that reads an empty table; those of a short one are kept.

        Args:
            name: the table.
            columns: its columns.
            sql: the query.

        Raises:
            SchemaError: it does not bind; the text comes from a database without rows.

        """
        read = self._kept_types if _is_short(columns, (sql,)) else self._bind
        return read(name, columns, sql)

    def failed_conversions(self, columns: tuple[Column, ...], expressions: tuple[str, ...]) -> tuple[int, ...]:
        """Return the places of expressions in which a conversion fails on one row of NULLs.

        What is found of short texts is kept.

        Args:
            columns: the columns of the row.
            expressions: the expressions.

        """
        read = self._kept_failures if _is_short(columns, expressions) else self._failed_conversions
        return read(columns, expressions)

    def _bind(self, name: str, columns: tuple[Column, ...], sql: str) -> tuple[tuple[str, str], ...]:
        """Names and types of a query that reads an empty table of this name and these columns.

        Raises:
            SchemaError: it does not bind; the text comes from a database without rows.

        """
        declared = ", ".join(f"{quote(column.name)} {column.type}" for column in columns)
        with self._lock:
            try:
                self._connection.execute(f"CREATE OR REPLACE TEMP TABLE {quote(name)} ({declared})")
                rows = self._connection.execute(f"DESCRIBE {sql}").fetchall()
                return tuple((str(row[0]), str(row[1])) for row in rows)
            except duckdb.Error as error:
                raise SchemaError(_first_line(error), hint="Check names, argument types and casts.") from None
            finally:
                self._connection.execute(f"DROP TABLE IF EXISTS {quote(name)}")

    def _has_cast(self, before: str, after: str) -> bool:
        """Whether there is a cast from one type to another; the binder takes any, and TRY_CAST makes NULL of it."""
        with self._lock:
            for sample in _SAMPLES:
                value = f"CAST('{sample}' AS {before})"
                try:
                    if self._connection.execute(f"SELECT TRY({value}) IS NULL").fetchall()[0][0]:
                        continue
                    self._connection.execute(f"SELECT CAST({value} AS {after})").fetchall()
                except duckdb.Error as error:
                    return _NO_CAST not in str(error)
                break
        return True

    def _failed_conversions(self, columns: tuple[Column, ...], expressions: tuple[str, ...]) -> tuple[int, ...]:
        """Return the places of expressions in which a conversion fails on one row of NULLs.

        The optimizer is off: it leaves out what a row of NULLs does not need.
        """
        with contextlib.suppress(duckdb.Error), contextlib.closing(self._connection.cursor()) as cursor:
            for statement in (*OF_A_CURSOR, "PRAGMA disable_optimizer"):
                cursor.execute(statement)
            declared = ", ".join(f"{quote(column.name)} {column.type}" for column in columns) or "nothing INTEGER"
            cursor.execute(f"CREATE TEMP TABLE bound_against ({declared})")
            cursor.execute("INSERT INTO bound_against DEFAULT VALUES")
            with contextlib.suppress(duckdb.Error):
                cursor.execute(_selected(expressions)).fetchall()
                return ()
            return tuple(place for place, one in enumerate(expressions) if _fails_to_convert(cursor, one))
        return ()

    def _literals(self, texts: tuple[str, ...], key_type: str) -> pa.Array:
        """Distinct values of SQL literals as ``key_type``, in the order given.

        Raises:
            SchemaError: a literal cannot be cast to the type.

        """
        listed = ", ".join(f"CAST({text} AS {key_type})" for text in texts)
        with self._lock:
            try:
                table = self._connection.sql(
                    f"SELECT key FROM (SELECT unnest([{listed}]) AS key, unnest(range({len(texts)})) AS place) "
                    "GROUP BY key ORDER BY min(place)"
                ).to_arrow_table()
            except duckdb.Error as error:
                raise SchemaError(_first_line(error), hint=f"Public keys must be {key_type} values.") from None
        return table.column("key").combine_chunks()

    def misfit(self, texts: Sequence[str], key_type: str) -> str | None:
        """The first of some SQL literals that is no value of a type; None where all are.

        A number that another number would have to stand for is none: 1.5 of an INTEGER, 2 of a BOOLEAN.
        """
        with self._lock:
            for some in (texts, *((text,) for text in texts)):
                faults = ", ".join(_misfits(text, key_type) for text in some)
                try:
                    ((found,),) = self._connection.execute(f"SELECT list_position([{faults}], true)").fetchall()
                except duckdb.Error:
                    # there is no cast between the types; which literal it is, is found one by one
                    found = 1 if len(some) == 1 else None
                    if found is None:
                        continue
                if found:
                    return some[int(found) - 1]
                if some is texts:
                    return None
        return None

    def run(self, sql: str, tables: dict[str, pa.Table]) -> pa.Table:
        """Run SQL over the given tables; nobody else waits for it.

        Raises:
            EngineError: the SQL failed.

        """
        with contextlib.suppress(Exception), contextlib.closing(self._connection.cursor()) as cursor:
            for statement in OF_A_CURSOR:
                cursor.execute(statement)
            with interrupt_after(None, cursor.interrupt):
                for name, table in tables.items():
                    cursor.register(name, table)
                return cursor.sql(sql).to_arrow_table()
        # outside a handler, as in DuckDBEngine.aggregate: exact tables pass through here when keys are lined up
        raise EngineError("post-processing failed")


def _is_short(columns: Sequence[Column], texts: Sequence[str]) -> bool:
    """Check that texts and the types of columns, which list the members of an ENUM, are short enough to be kept."""
    return sum(map(len, texts)) + sum(len(one.name) + len(one.type) for one in columns) <= _LONGEST_BOUND


def _misfits(text: str, key_type: str) -> str:
    """Whether a literal is no value of a type, as SQL."""
    cast = f"TRY_CAST({text} AS {key_type})"
    misfits = f"{cast} IS NULL AND {text} IS NOT NULL"
    if _WRITTEN_NUMBER.match(text) and _EXACT.match(key_type):
        misfits = f"({misfits}) OR coalesce(CAST({cast} AS DOUBLE) <> CAST({text} AS DOUBLE), false)"
    return f"({misfits})"


def _selected(expressions: Sequence[str]) -> str:
    return f"SELECT {', '.join(f'({one})' for one in expressions)} FROM bound_against"


def _fails_to_convert(cursor: duckdb.DuckDBPyConnection, expression: str) -> bool:
    try:
        cursor.execute(_selected([expression])).fetchall()
    except duckdb.ConversionException:
        return True
    except duckdb.Error:
        # something else is wrong with it, which is said where it is looked for
        return False
    return False


def digest(values: pa.Table) -> str:
    """A digest of a table's content, for hashes."""
    try:
        content = values.to_pydict()
    except (OverflowError, ValueError):
        # dates that Python cannot hold
        with duckdb.connect(":memory:") as connection:
            names = ", ".join(f"CAST({quote(name)} AS VARCHAR) AS {quote(name)}" for name in values.column_names)
            content = connection.from_arrow(values).project(names).to_arrow_table().to_pydict()
    return hashlib.sha256(repr(content).encode()).hexdigest()


def _first_line(error: duckdb.Error) -> str:
    return str(error).partition("\n")[0].partition("LINE 1:")[0].strip().rstrip(".") + "."
