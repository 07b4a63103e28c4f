"""Marks of tables: what was seen of each version when it was first read. They are advice to the curator, no more."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from datetime import datetime

from dpsql.state.records import TableMark
from dpsql.state.schema import Database


def keep_marks(connection: sqlite3.Connection, marks: Sequence[TableMark], at: datetime) -> None:
    """Keep what is kept of no version yet; the first stays."""
    connection.executemany(
        "INSERT OR IGNORE INTO version_mark (table_name, version, part, value, at) VALUES (?, ?, ?, ?, ?)",
        [(mark.table, mark.version, part, value, at.isoformat()) for mark in marks for part, value in mark.parts],
    )


class Marks:
    """The marks of one state."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def differences(self, mark: TableMark) -> tuple[str, ...]:
        """Names of the parts in which a mark differs from what is kept of its version."""
        with self._database.read() as connection:
            kept = dict(
                connection.execute(
                    "SELECT part, value FROM version_mark WHERE table_name = ? AND version = ?",
                    (mark.table, mark.version),
                ).fetchall()
            )
        return tuple(part for part, value in mark.parts if kept.get(part, value) != value)
