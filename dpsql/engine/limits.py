"""Statements over released numbers and public rows, with limits of their own.

Nobody pays for what such a statement computes. So each runs by itself in an empty DuckDB that has one thread and no
files, and limits on time, memory and rows.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from enum import Enum

import duckdb
import pyarrow as pa

from dpsql.engine.connection import interrupt_after
from dpsql.engine.sandbox import OF_A_CURSOR, new_database

MOST_SECONDS = 20.0
MOST_ROWS = 1_000_000
"""Rows of a result, unless the statement reads more."""
MOST_MEMORY = 10**9
"""Bytes of memory, beside those for the rows that the statement reads."""
_MEMORY_OF_ROWS = 4
"""Bytes of memory for each byte that is read: a sort has a copy of the rows, and their keys."""
_PIECE = 100_000
_FREE: dict[int, list[duckdb.DuckDBPyConnection]] = {}
"""Databases by process in which no statement runs. Opening one takes 20 ms of processor time."""
_MOST_FREE = 2


class Failure(Enum):
    """Reasons why a statement has no result, in words, with hints."""

    VALUE = "fails on a value (a cast, an overflow, an argument)", "Write TRY_CAST for a cast."
    SECONDS = f"takes more than {MOST_SECONDS:g} s", "Join or group fewer rows."
    MEMORY = f"needs more than {MOST_MEMORY // 10**9} GB of memory", "Join or group fewer rows."
    ROWS = f"has more than {MOST_ROWS:,} rows", "Group them, or add LIMIT."

    @property
    def reason(self) -> str:
        """The reason, after the name of the statement."""
        return self.value[0]

    @property
    def hint(self) -> str:
        """Return the text that may be written instead."""
        return self.value[1]


def run_limited(sql: str, tables: Mapping[str, pa.Table]) -> pa.Table | Failure:
    """Return the rows of a statement, or the reason why it has none.

    Args:
        sql: the statement.
        tables: released numbers and public rows that it reads, by name.

    """
    free = _FREE.setdefault(os.getpid(), [])
    database = free.pop() if free else new_database(temp_directory="")
    found: pa.Table | Failure = Failure.VALUE
    try:
        found = _run(database, sql, tables)
    finally:
        # a statement that failed may leave memory behind
        if isinstance(found, Failure) or len(free) >= _MOST_FREE:
            database.close()
        else:
            free.append(database)
    return found


def _run(database: duckdb.DuckDBPyConnection, sql: str, tables: Mapping[str, pa.Table]) -> pa.Table | Failure:
    most_rows = max(MOST_ROWS, sum(table.num_rows for table in tables.values()))
    most_bytes = MOST_MEMORY + _MEMORY_OF_ROWS * sum(table.nbytes for table in tables.values())
    with (
        contextlib.closing(database.cursor()) as cursor,
        interrupt_after(MOST_SECONDS, cursor.interrupt) as expired,
    ):
        try:
            for statement in (*OF_A_CURSOR, f"SET memory_limit = '{most_bytes}B'"):
                cursor.execute(statement)
            for name, table in tables.items():
                cursor.register(name, table)
            return _rows(cursor.sql(sql).to_arrow_reader(_PIECE), most_rows, most_bytes)
        except Exception as error:
            # a reader of Arrow hides the type of DuckDB's error
            is_memory = "Out of Memory" in str(error)
            return Failure.SECONDS if expired.is_set() else Failure.MEMORY if is_memory else Failure.VALUE


def _rows(reader: pa.RecordBatchReader, most_rows: int, most_bytes: int) -> pa.Table | Failure:
    """Return all rows of a reader. The reading ends where they are too many."""
    batches, rows, size = [], 0, 0
    for batch in reader:
        batches.append(batch)
        rows += batch.num_rows
        size += batch.nbytes
        if rows > most_rows or size > most_bytes:
            return Failure.ROWS if rows > most_rows else Failure.MEMORY
    return pa.Table.from_batches(batches, reader.schema)
