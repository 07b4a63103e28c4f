"""A session that forgets every answer before the next one: what comes of a text is then its own, in whatever order."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import dpsql
from tests.golden.observed import Entry, asks_auto, observed, stored, without_clock

_OF_ANSWERS = (
    "closed_charge", "auto_choice", "pin", "lowered_point", "snapshot", "point", "key_chunk", "frame", "charge",
    "release",
)  # fmt: skip
"""Tables of the state file that answers write, each before those that it refers to."""


class FreshSession:
    """A session with a state file of its own.

    Args:
        path: of the state file, which does not exist yet.
        tables: SQL that makes the tables.

    """

    def __init__(self, path: Path, tables: str) -> None:
        self._path = path
        self._declared: set[str] = set()
        self._session = dpsql.connect(state=path, threads=1)
        self._session.connection.execute(tables)

    def declare(self, statements: Iterable[str]) -> None:
        """Declare what was not declared last."""
        wanted = list(statements)
        for statement in wanted:
            if statement not in self._declared:
                self._session.sql(statement)
        self._declared = set(wanted)

    def answer(self, text: str, params: Any = None, options: Mapping[str, Any] | None = None) -> list[Entry]:
        """What comes of a text that is asked when nothing is stored yet."""
        self._forget()
        options = options or {}
        with observed() as seen, contextlib.suppress(dpsql.DpsqlError):
            self._session.sql(text, params, **options)
        written = stored(self._path)
        if asks_auto(text, options):
            # what is drawn for AUTO comes first, and decides on everything else
            written = {"charges": written["charges"][:1]}
        return [without_clock(entry | written) for entry in seen]

    def _forget(self) -> None:
        with self._file() as connection:
            for table in _OF_ANSWERS:
                for event in ("update", "delete"):
                    connection.execute(f"DROP TRIGGER IF EXISTS {table}_no_{event}")
                connection.execute(f"DELETE FROM {table}")

    @contextlib.contextmanager
    def _file(self) -> Iterator[sqlite3.Connection]:
        with contextlib.closing(sqlite3.connect(self._path)) as connection, connection:
            connection.execute("PRAGMA synchronous = OFF")
            yield connection

    def close(self) -> None:
        self._session.close()
