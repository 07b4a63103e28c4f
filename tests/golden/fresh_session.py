"""A session that forgets every answer before the next one: an entry depends on its own text, in whatever order."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from typing import Any
from unittest import mock

import dpsql
from tests.golden.facts import Entry, of_state
from tests.golden.observed import observed


class FreshSession:
    """A session on some tables, each of whose answers is given on a copy of what is declared.

    Args:
        tables: SQL that makes the tables.

    """

    def __init__(self, tables: str) -> None:
        self._declared: set[str] = set()
        self._session = dpsql.connect(threads=1)
        self._session.connection.execute(tables)

    def declare(self, statements: Iterable[str]) -> None:
        """Declare what was not declared last."""
        wanted = list(statements)
        for statement in wanted:
            if statement not in self._declared:
                self._session.sql(statement)
        self._declared = set(wanted)

    def answer(self, text: str, params: Any = None, options: Mapping[str, Any] | None = None) -> list[Entry]:
        """Return the entry of a text that is asked when nothing is stored yet; none if it is refused."""
        with contextlib.closing(self._session._access.copied()) as forgotten, observed() as seen:
            with (
                mock.patch.object(self._session._runner, "access", forgotten),
                contextlib.suppress(dpsql.DpsqlError),
            ):
                self._session.sql(text, params, **(options or {}))
            written = of_state(forgotten.read())
        return [entry | _of_draw(entry, written) if "calibrations" in entry else entry | written for entry in seen]

    def close(self) -> None:
        """Close the session."""
        self._session.close()


def _of_draw(plan: Entry, written: Entry) -> Entry:
    """Return what was written for AUTO, which draws first; its noise decides on everything else."""
    return {name: lines[: len(plan["charges"])] for name, lines in written.items()}
