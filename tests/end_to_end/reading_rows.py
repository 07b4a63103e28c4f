"""Statements that read rows, as a question runs them, and salts that follow from frames alone."""

from __future__ import annotations

import hashlib
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
