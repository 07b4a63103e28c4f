"""What golden records cost, and by which noise they are answered."""

from __future__ import annotations

from pathlib import Path

from tests.golden.fresh_session import FreshSession
from tests.golden.observed import Entry, observed
from tests.sql.golden_records import POLICY, TABLES, Clinic, Record

_PLANNED = ("plan", "exact", "types")
"""Directives whose outcome is read from the plan, so that nothing is answered for it."""


def fresh_session(folder: Path, rows: str = "") -> FreshSession:
    """A session on the tiny tables with their policy, and with more rows if SQL for them is given."""
    found = FreshSession(folder / "clinic.dpsql", TABLES + rows)
    found.declare(POLICY)
    return found


def key_of(record: Record) -> str:
    """How the golden file names what a record asks."""
    kind = "answer" if record.directive in _PLANNED else record.directive
    settings = [f"{name} {value}" for name, value in (("params", record.params), ("options", record.options)) if value]
    return "\n".join([kind, *settings, record.sql])


def outcome(record: Record, clinic: Clinic, answers: FreshSession) -> tuple[tuple[str, ...], list[Entry]]:
    """What comes out of a record in the form of its expectation, and what its golden file should hold."""
    with observed() as seen:
        found = clinic.outcome(record)
    if record.directive in _PLANNED:
        seen = answers.answer(record.sql, record.params, record.options)
    for entry in seen:
        if entry["asked"] == record.sql:
            # the key has it
            for name in ("asked", "params", "options"):
                entry.pop(name, None)
    return found, seen
