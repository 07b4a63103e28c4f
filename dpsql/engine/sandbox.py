"""An empty DuckDB for planning and finishing, which never meets a raw row."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import threading
from collections.abc import Sequence

import duckdb
import pyarrow as pa

from dpsql.engine.interrupts import interrupt_after
from dpsql.engine.settings import SETTINGS
from dpsql.errors import EngineError, SchemaError
from dpsql.query.dialect import quote
from dpsql.query.environment import Column

_MOST_BOUND = 1024


class Sandbox:
    """An empty in-memory DuckDB without access to files: binds types and runs post-processing.

    It never meets a raw row: planning shows it empty tables, finishing shows it noisy ones.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._connection = duckdb.connect(
            ":memory:",
            config={
                "enable_external_access": "false",
                "autoload_known_extensions": "false",
                "autoinstall_known_extensions": "false",
                "threads": "1",
            },
        )
        for name, value in SETTINGS:
            self._connection.execute(f"SET {name} = '{value}'")
        self._connection.execute("SET python_enable_replacements = false")
        # whether a subquery has one row is a fact of an answer that is paid for: the others are left out, not an error
        self._connection.execute("SET scalar_subquery_error_on_multiple_rows = false")
        # shared parts of two TRY expressions would be computed once, outside TRY, and fail aloud
        self._connection.execute("SET disabled_optimizers = 'common_subexpressions'")
        # types are a function of the texts alone, in a database that holds nothing, and asked for again and again
        self._bound = functools.lru_cache(maxsize=_MOST_BOUND)(self._bind)

    def close(self) -> None:
        """Close the in-memory database."""
        with self._lock:
            self._connection.close()

    def describe(self, columns: Sequence[Column], expressions: Sequence[str]) -> list[str]:
        """Types of expressions over an empty table with these columns.

        Raises:
            SchemaError: an expression does not bind; the text comes from a database without rows.

        """
        if not expressions:
            return []
        listed = ", ".join(f"({expression})" for expression in expressions)
        # a table has a column
        columns = columns or (Column("nothing", "INTEGER", True),)
        return [kind for _, kind in self.bind("bound_against", columns, f"SELECT {listed} FROM bound_against")]

    def bind(self, name: str, columns: Sequence[Column], sql: str) -> list[tuple[str, str]]:
        """Names and types of a query that reads an empty table of this name and these columns.

        Raises:
            SchemaError: it does not bind; the text comes from a database without rows.

        """
        declared = ", ".join(f"{quote(column.name)} {column.type}" for column in columns)
        return list(self._bound(name, declared, sql))

    def _bind(self, name: str, declared: str, sql: str) -> tuple[tuple[str, str], ...]:
        with self._lock:
            try:
                self._connection.execute(f"CREATE OR REPLACE TEMP TABLE {quote(name)} ({declared})")
                rows = self._connection.execute(f"DESCRIBE {sql}").fetchall()
                return tuple((str(row[0]), str(row[1])) for row in rows)
            except duckdb.Error as error:
                raise SchemaError(_first_line(error), hint="Check names, argument types and casts.") from None
            finally:
                self._connection.execute(f"DROP TABLE IF EXISTS {quote(name)}")

    def literals(self, texts: Sequence[str], key_type: str) -> pa.Array:
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

    def run(self, sql: str, tables: dict[str, pa.Table], *, seconds: float | None = None) -> pa.Table:
        """Run SQL over the given tables, for no longer than this: what runs here keeps all others waiting.

        Raises:
            EngineError: the SQL failed, or ran out of time.

        """
        with self._lock, interrupt_after(seconds, self._connection.interrupt):
            try:
                with contextlib.suppress(Exception):
                    for name, table in tables.items():
                        self._connection.register(name, table)
                    return self._connection.sql(sql).to_arrow_table()
            finally:
                for name in tables:
                    self._connection.unregister(name)
        # outside a handler, as in DuckDBEngine.aggregate: exact tables pass through here when keys are lined up
        raise EngineError("post-processing failed")


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
