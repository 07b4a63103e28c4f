"""Public lists of keys as they were when something was released by them: for ``as_of``, once a list is another."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from datetime import UTC, datetime

from dpsql.state.records import KeyList
from dpsql.state.schema import Database

_LAST = "SELECT digest FROM key_list WHERE table_name = ? AND column_name = ? AND key_type = ? ORDER BY id DESC LIMIT 1"


def keep_lists(connection: sqlite3.Connection, lists: Sequence[KeyList]) -> None:
    """Keep lists that are others than the last that were kept of the same columns."""
    now = datetime.now(UTC).isoformat()
    for one in lists:
        place = (one.table, one.column, one.key_type)
        if connection.execute(_LAST, place).fetchone() != (one.digest,):
            connection.execute(
                "INSERT INTO key_list (table_name, column_name, key_type, digest, at, keys) VALUES (?, ?, ?, ?, ?, ?)",
                (*place, one.digest, now, one.blob),
            )


class KeyLists:
    """The lists of one state."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def is_last(self, table: str, column: str, key_type: str, digest: str) -> bool:
        """Whether this is the list that was kept last of a column."""
        with self._database.read() as connection:
            return bool(connection.execute(_LAST, (table, column, key_type)).fetchone() == (digest,))

    def at(self, table: str, column: str, key_type: str, moment: datetime) -> bytes | None:
        """The list of a column at a moment, as it was kept; None where none was by then."""
        with self._database.read() as connection:
            rows = connection.execute(
                "SELECT at, keys FROM key_list WHERE table_name = ? AND column_name = ? AND key_type = ? "
                "ORDER BY id DESC",
                (table, column, key_type),
            )
            return next((bytes(keys) for at, keys in rows if datetime.fromisoformat(at) <= moment), None)
