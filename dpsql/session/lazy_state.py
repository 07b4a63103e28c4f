"""The state behind a session, which is opened as late as it can be."""

from __future__ import annotations

import functools
import logging
import threading
from pathlib import Path

from dpsql.state import SecondPlace, State

logger = logging.getLogger("dpsql")


@functools.cache
def _say_that_the_budget_ends() -> None:
    logger.warning("the budget of a database in memory ends with this process; name a state file to keep it")


class LazyState:
    """The state behind a session: opened when it exists, created by the first declaration.

    A missing state file means that nothing is protected, so nothing can be queried.
    """

    def __init__(self, path: Path | None = None, beside: SecondPlace | None = None) -> None:
        self._path = path
        self._beside = beside
        self._lock = threading.Lock()
        self._state: State | None = None
        self._nothing: State | None = None

    def read(self) -> State:
        """The state for reading; an empty one in memory where no file exists yet."""
        with self._lock:
            if not self._state and not (self._path and self._path.exists()):
                self._nothing = self._nothing or State.open(None, create=True)
                return self._nothing
            return self._open()

    def write(self) -> State:
        """The state for declarations; creates the file."""
        with self._lock:
            return self._open()

    def _open(self) -> State:
        if self._state is None:
            self._state = State.open(self._path, create=True, beside=self._beside)
            if self._path is None:
                self._say_that_it_ends()
        return self._state

    def _say_that_it_ends(self) -> None:
        _say_that_the_budget_ends()

    def copied(self) -> LazyState:
        """A state in memory that says what this one says now."""
        copy = LazyState()
        copy._state = self.read().copied()
        return copy

    def close(self) -> None:
        """Close what was opened."""
        with self._lock:
            for state in filter(None, (self._state, self._nothing)):
                state.close()
            self._state = self._nothing = None
