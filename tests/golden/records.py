"""What golden records cost, and by which noise they are answered."""

from __future__ import annotations

import dpsql
from dpsql.model.private_query import PrivateQuery
from dpsql.state import State
from tests.golden.facts import Entry, of_answer, of_state
from tests.golden.fresh_session import FreshSession
from tests.golden.observed import observed
from tests.sql.golden_records import POLICY, TABLES, Clinic, Record

PLANNED = ("plan", "exact", "types")
"""Directives whose outcome is read from the plan, so that an answer is computed for the golden file alone."""


def fresh_session(rows: str = "") -> FreshSession:
    """Return a session on the tiny tables with their policy, and with more rows if SQL for them is given."""
    found = FreshSession(TABLES + rows)
    found.declare(POLICY)
    return found


def key_of(record: Record) -> str:
    """Return the name of a record in its golden file."""
    kind = "answer" if record.directive in PLANNED else record.directive
    settings = [f"{name} {value}" for name, value in (("params", record.params), ("options", record.options)) if value]
    return "\n".join([kind, *settings, record.sql])


def outcome(record: Record, clinic: Clinic, answers: FreshSession) -> tuple[tuple[str, ...], list[Entry]]:
    """Return what comes out of a record in the form of its expectation, and its entries in the golden file.

    Args:
        record: one of any directive.
        clinic: plans and answers it.
        answers: answers it if AUTO chooses something for it.

    """
    seen: list[Entry] = []
    if record.directive not in PLANNED:
        with observed() as watched:
            found = clinic.outcome(record)
        return found, watched

    def see(query: PrivateQuery, result: dpsql.Result, state: State) -> None:
        assert result.receipt is not None
        seen.append(of_answer(query, result.receipt, state) | of_state(state))

    found = clinic.outcome(record, see)
    return found, seen or answers.answer(record.sql, record.params, record.options)
