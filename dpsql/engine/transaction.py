"""One transaction in which several statements of a question read rows, with temporary tables that end with it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, TypeVar

import pyarrow as pa

from dpsql.engine.catalog import unique_by
from dpsql.engine.connection import Connection, Cursor

_T = TypeVar("_T")


class RunOn(Protocol):
    """Runs a reading on a cursor, within a limit of time; whatever fails has one message."""

    def __call__(
        self, read: Callable[[Cursor], _T], listed_keys: pa.Table | None, timeout_seconds: float | None, opened: Cursor
    ) -> _T:
        """Return what was read."""


class Transaction:
    """A transaction on a cursor of its own. All its statements see the rows as they were at its begin."""

    def __init__(self, cursor: Cursor, run_on: RunOn) -> None:
        self._cursor = cursor
        self._run_on = run_on

    def run(self, read: Callable[[Cursor], _T], *, listed_keys: pa.Table | None, timeout_seconds: float | None) -> _T:
        """Run a reading on the cursor.

        Args:
            read: reads.
            listed_keys: keys that it is about, if there are any.
            timeout_seconds: limit of time.

        Raises:
            EngineError: it failed or ran out of time; the message is constant.

        """
        return self._run_on(read, listed_keys, timeout_seconds, self._cursor)

    def has_one_row(self, stored_unit: Sequence[str], timeout_seconds: float | None) -> bool:
        """Return whether a constraint keeps the column of the unit unique."""
        return bool(stored_unit) and self.run(
            lambda cursor: bool(unique_by(cursor, stored_unit)), listed_keys=None, timeout_seconds=timeout_seconds
        )


@contextlib.contextmanager
def transaction_of(
    connection: Connection,
    begun: Callable[[Cursor], contextlib.AbstractContextManager[None]],
    run_on: RunOn,
    timeout_seconds: float | None,
) -> Iterator[Transaction]:
    """Open a transaction; it ends without a commit, and its temporary tables end with it.

    Args:
        connection: the database.
        begun: holds a transaction on a cursor.
        run_on: runs each reading.
        timeout_seconds: limit of time of its begin.

    Raises:
        EngineError: it could not begin, or not in time; the message is constant.

    """
    with connection.pinned() as cursor, contextlib.ExitStack() as held:
        run_on(lambda opened: held.enter_context(begun(opened)), None, timeout_seconds, cursor)
        yield Transaction(cursor, run_on)
