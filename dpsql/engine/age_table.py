"""The stamp of a state file in the database that it belongs to: one row of a table that no listing shows.

The table is in a schema of its own, so no statement about the curator's schemas meets it. The catalog leaves the schema
out (`engine/catalog.py`), so no declaration or query finds it. Each statement is a transaction of its own cursor: an
open transaction of the curator neither holds it up nor takes it back.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections.abc import Callable
from pathlib import Path

import duckdb

from dpsql.engine.catalog import HIDDEN_SCHEMA
from dpsql.engine.connection import Connection, Cursor, MainDatabase
from dpsql.errors import EngineError
from dpsql.operations.dialect import quote, text_literal

_TABLE = "state_file"
_COLUMNS = "database_id VARCHAR, state_id VARCHAR, charge BIGINT, mark VARCHAR"
_IS_THERE = (
    f"SELECT 1 FROM system.main.duckdb_tables() WHERE (schema_name, table_name) = ('{HIDDEN_SCHEMA}', '{_TABLE}') "
    "AND database_name = ?"
)
_VALUES = "database_id::VARCHAR, state_id::VARCHAR, charge::BIGINT, mark::VARCHAR"
_IS_STAMP = "database_id IS NOT NULL AND state_id IS NOT NULL AND charge IS NOT NULL"
_FIRST_BLOCK = 4096
_ATTEMPTS = 8
_PAUSE_SECONDS = 0.002


class AgeTable:
    """The stamp in the main database of a session."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def home(self) -> MainDatabase:
        """Return the main database.

        Raises:
            EngineError: the database could not be read.

        """
        with contextlib.suppress(duckdb.Error):
            return self._connection.main_database()
        # outside the handler, so that no text of DuckDB travels along
        raise EngineError("the database could not be read", charged=False)

    def read(self, home: MainDatabase) -> tuple[str, str, int, str | None] | None:
        """Return ids of database and state file, number and moment of a charge. Return None if there is no stamp.

        Raises:
            EngineError: the database could not be read.

        """
        name, path, *_ = home
        if path is None:
            return None
        with contextlib.suppress(duckdb.Error), self._connection.plain() as cursor:
            if not cursor.rows(_IS_THERE, [name]):
                return None
            # a table that the curator altered has no stamp
            with contextlib.suppress(duckdb.BinderException, duckdb.ConversionException):
                return next(iter(cursor.rows(f"SELECT {_VALUES} FROM {_place(name)} WHERE {_IS_STAMP}")), None)
            return None
        # outside the handler, so that no text of DuckDB travels along
        raise EngineError("the database could not be read", charged=False)

    def fingerprint(self, home: MainDatabase) -> str | None:
        """Return a text that tells a database without a stamp from others. Return None if there is none.

        It follows from the place of the file on its disk, and from its first block. DuckDB writes that block once, and
        in new formats it differs from file to file.
        """
        path = home[1]
        if path is None:
            return None
        with contextlib.suppress(OSError), Path(path).open("rb") as file:
            status = os.fstat(file.fileno())
            block = hashlib.sha256(file.read(_FIRST_BLOCK)).hexdigest()
            return f"{status.st_dev}-{status.st_ino}-{block}"
        return None

    def replace(self, home: MainDatabase, database_id: str, state_id: str, charge: int, mark: str | None) -> bool:
        """Write a stamp in place of any other one. Return False if the database cannot be written."""
        name, path, is_read_only = home
        if path is None or is_read_only:
            return False

        def write(cursor: Cursor) -> None:
            place = _place(name)
            cursor.rows("BEGIN TRANSACTION")
            try:
                cursor.rows(f"CREATE SCHEMA IF NOT EXISTS {quote(name)}.{HIDDEN_SCHEMA}")
                cursor.rows(f"CREATE OR REPLACE TABLE {place} ({_COLUMNS})")
                ids = ", ".join(map(text_literal, (database_id, state_id)))
                cursor.rows(f"INSERT INTO {place} VALUES ({ids}, {charge:d}, {_text(mark)})")
                cursor.rows("COMMIT")
            except duckdb.Error:
                with contextlib.suppress(duckdb.Error):
                    cursor.rows("ROLLBACK")
                raise

        return self._write(write)

    def raise_to(self, home: MainDatabase, state_id: str, charge: int, mark: str | None) -> bool:
        """Raise the stamp of a state file to a charge.

        Return False if the database cannot be written, if it has a later charge by now, or the stamp of another file.
        """
        text = (
            f"UPDATE {_place(home[0])} SET charge = {charge:d}, mark = {_text(mark)} "
            f"WHERE state_id = {text_literal(state_id)} AND charge < {charge:d}"
        )
        found: list[tuple[object, ...]] = []

        def write(cursor: Cursor) -> None:
            found[:] = cursor.rows(text)

        return self._write(write) and found == [(1,)]

    def _write(self, write: Callable[[Cursor], object]) -> bool:
        """Write, again where other threads write the same row at this moment. Return False if it fails."""
        for attempt in range(_ATTEMPTS):
            with contextlib.suppress(duckdb.Error), self._connection.plain() as cursor:
                write(cursor)
                return True
            time.sleep(_PAUSE_SECONDS * attempt)
        return False


def _place(name: str) -> str:
    return f"{quote(name)}.{HIDDEN_SCHEMA}.{_TABLE}"


def _text(value: str | None) -> str:
    return "NULL" if value is None else text_literal(value)
