"""Statements that read rows, as a question runs them, and salts that follow from frames alone."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from typing import Any

import pytest

from dpsql.engine import connection
from dpsql.state import SideTable


def fix_salts(patched: pytest.MonkeyPatch) -> None:
    """Give each frame the same salt in every state file."""
    frame_salt = SideTable.frame_salt

    def salted(self: SideTable, frame: str, *of: Any) -> bytes:
        frame_salt(self, frame, *of)
        return hashlib.sha256(frame.encode()).digest()[:16]

    patched.setattr(SideTable, "frame_salt", salted)


def watch_statements(patched: pytest.MonkeyPatch, is_listed: Callable[[str], bool]) -> list[str]:
    """Return the list of the statements of some kind, as they are run."""
    texts: list[str] = []

    def watched(run: Callable[..., Any]) -> Callable[..., Any]:
        def watching(self: Any, sql: str, *of: Any) -> Any:
            if is_listed(sql):
                texts.append(sql)
            return run(self, sql, *of)

        return watching

    for name in ("rows", "table"):
        patched.setattr(connection._LocalCursor, name, watched(getattr(connection._LocalCursor, name)))
    return texts


_MADE_BY_ITSELF = re.compile(
    r"(SELECT|WITH|DESCRIBE|EXPLAIN|BEGIN|ROLLBACK|RESET|SET (?!GLOBAL)|CREATE (OR REPLACE )?TEMP TABLE temp\.main\.)"
)
"""The beginnings of statements that change nothing beyond their own connection."""


def watch_transactions(patched: pytest.MonkeyPatch) -> list[str]:
    """Return the list of things that are made on other connections while a transaction reads rows, as they are made.

    A transaction may not see what another connection made after its begin: functions of a library, tables, settings.
    """
    made: list[str] = []
    reading: set[int] = set()
    load = connection.LocalConnection.load_native

    def loading(self: connection.LocalConnection) -> None:
        if reading:
            made.append("the native library")
        load(self)

    def watched(run: Callable[..., Any]) -> Callable[..., Any]:
        def watching(self: Any, sql: str, *of: Any) -> Any:
            if reading - {id(self._cursor)} and not _MADE_BY_ITSELF.match(sql):
                made.append(sql)
            if sql == "ROLLBACK":
                reading.discard(id(self._cursor))
            found = run(self, sql, *of)
            if sql == "BEGIN TRANSACTION":
                reading.add(id(self._cursor))
            return found

        return watching

    patched.setattr(connection.LocalConnection, "load_native", loading)
    for name in ("rows", "table"):
        patched.setattr(connection._LocalCursor, name, watched(getattr(connection._LocalCursor, name)))
    return made
