"""Transactions and locks on the state file, or on a state in memory, and rows by the names of their columns.

No other room of the package imports sqlite3.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import datetime
from functools import partialmethod
from pathlib import Path
from typing import Any

from filelock import BaseFileLock, FileLock, Timeout

from dpsql.errors import StateError
from dpsql.state import state_file
from dpsql.state.table_definitions import DELTA_COLUMNS

_POLL_SECONDS = 0.01


def tuples(text: str) -> tuple[Any, ...]:
    """A stored JSON list, with the lists in it, as tuples."""
    return tuple(tuple(one) if isinstance(one, list) else one for one in json.loads(text))


# How columns that hold something else than they say are written and read, by their names; what else is called keys
# (Arrow) is read under another name.
_FORMS: Mapping[str, tuple[Callable[[Any], object], Callable[[Any], object]]] = {
    **dict.fromkeys(("at", "created_at"), (datetime.isoformat, datetime.fromisoformat)),
    **dict.fromkeys(("statistics", "levels", "table_versions", "changed", "claim"), (json.dumps, tuples)),
    **dict.fromkeys(("columns", "parent_columns", "rho_window", "keys", "ordered"), (json.dumps, tuples)),
    **dict.fromkeys(("databases", "accepted"), (json.dumps, tuples)),
    **dict.fromkeys(DELTA_COLUMNS, (str, int)),
    **dict.fromkeys(("reused", "separate_people", "coverage", "thresholds", "archived", "readable"), (bool, bool)),
    **dict.fromkeys(("own_release", "by_half_width", "has_threshold"), (bool, bool)),
}


def insert_row(
    connection: sqlite3.Connection, table: str, row: Mapping[str, object], ending: str = ""
) -> sqlite3.Cursor:
    """Insert a row by the names of its columns: tuples as JSON, moments in ISO format, delta as decimal text.

    Args:
        connection: in a transaction.
        table: its name.
        row: values of all columns that have no default.
        ending: what follows the values: ON CONFLICT, RETURNING.

    """
    return connection.execute(
        f"INSERT INTO {table} ({', '.join(row)}) VALUES ({', '.join('?' * len(row))}) {ending}",
        [_FORMS[name][0](value) if name in _FORMS and value is not None else value for name, value in row.items()],
    )


def select_rows(connection: sqlite3.Connection, query: str, values: Sequence[object] = ()) -> list[dict[str, Any]]:
    """Rows of a query by the names of their columns, read as `insert_row` wrote them."""
    cursor = connection.execute(query, values)
    names = [column[0] for column in cursor.description]
    return [
        {
            name: _FORMS[name][1](value) if name in _FORMS and value is not None else value
            for name, value in zip(names, row, strict=True)
        }
        for row in cursor
    ]


def _never_freed(objects: Iterable[object]) -> None:
    """Keep what a fork copied alive: freeing it would act on what belongs to the parent."""
    for one in objects:
        # one reference that nobody gives back
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(one))


@dataclass(slots=True)
class _Pool:
    """Connections that this process opened; each serves one thread at a time."""

    opened: list[sqlite3.Connection]
    idle: list[sqlite3.Connection]
    process_id: int = field(default_factory=os.getpid)
    lock: threading.Lock = field(default_factory=threading.Lock)


class Database:
    """One SQLite file, or one in memory (path None), and transactions on it; threads share it."""

    def __init__(
        self, path: Path | None, connection: sqlite3.Connection, *, busy_timeout_seconds: float, format_number: int
    ) -> None:
        self.path = path
        self._busy_timeout_seconds = busy_timeout_seconds
        self._format_number = format_number
        # In memory there is one connection, so transactions take turns.
        self._turn: AbstractContextManager[object] = threading.RLock() if path is None else nullcontext()
        self._pool = _Pool([connection], [connection])
        self._closed = False

    @classmethod
    def open(
        cls,
        path: Path | None,
        *,
        create: bool,
        busy_timeout_seconds: float,
        migrations: Sequence[state_file.Migration] | None = None,
    ) -> Database:
        """Open the state, creating or migrating it as needed.

        Args:
            path: the file, or None for a state in memory that ends with the process.
            create: whether a missing file is created; in memory there is nothing to miss.
            busy_timeout_seconds: how long a write waits for the writes of others.
            migrations: the chain that leads to the newest format, `state_file.MIGRATIONS` unless a test brings its own.

        Raises:
            StateError: the file is missing, of a newer format, not ours, or damaged.

        """
        chain = state_file.MIGRATIONS if migrations is None else migrations
        newest = 1 + len(chain)
        if path is None:
            connection = state_file.connect(":memory:", busy_timeout_seconds)
            state_file.write_tables(connection, newest)
        else:
            # One file has one name, whatever links lead to it: the names of its log and its locks hang on it.
            path = path.resolve()
            connection = state_file.open_file(
                path, create=create, busy_timeout_seconds=busy_timeout_seconds, migrations=chain
            )
        return cls(path, connection, busy_timeout_seconds=busy_timeout_seconds, format_number=newest)

    @contextmanager
    def _lent_connection(self) -> Iterator[sqlite3.Connection]:
        """A connection of this process that serves nobody else meanwhile; its transaction ends with the block."""
        if self._pool.process_id != os.getpid():
            if self.path is None:
                raise StateError("a state in memory cannot be used after a fork: its budget would be there twice")
            # SQLite forbids even to close a connection on the other side of a fork, and the interpreter closes
            # what it frees, also at its end.
            _never_freed(self._pool.opened)
            self._pool = _Pool([], [])
        pool = self._pool
        with self._turn:
            with pool.lock:
                if self._closed:
                    raise self._error(" is closed")
                connection = pool.idle.pop() if pool.idle else None
            if connection is None:
                if self.path is None:
                    raise StateError("a transaction on a state in memory cannot contain another one")
                connection = state_file.connect(state_file.uri(self.path), self._busy_timeout_seconds)
                with pool.lock:
                    pool.opened.append(connection)
            try:
                # commits, or undoes what an exception left open
                with connection:
                    yield connection
            finally:
                with pool.lock:
                    if self._closed or connection.in_transaction:
                        pool.opened.remove(connection)
                        connection.close()
                    else:
                        pool.idle.append(connection)

    @contextmanager
    def _transaction(self, begin: str) -> Iterator[sqlite3.Connection]:
        try:
            with self._lent_connection() as connection:
                connection.execute(begin)
                found = connection.execute("PRAGMA user_version").fetchone()[0]
                if found != self._format_number:
                    raise self._error(
                        f" now has state format {found}, no longer {self._format_number}: "
                        "another process upgraded it; start again with that version of dpsql"
                    )
                yield connection
        except sqlite3.Error as error:
            # SQLite's texts name tables and columns, never values
            raise self._error(f": {error}") from error

    def _error(self, message: str) -> StateError:
        """Return the error about this state; the message follows its name."""
        return StateError.of_file(self.path, message) if self.path else StateError(f"the state in memory{message}")

    # A transaction that sees one moment of the state.
    read = partialmethod(_transaction, "BEGIN")
    # A transaction that is alone in writing; what it wrote is on disk when it ends.
    write = partialmethod(_transaction, "BEGIN IMMEDIATE")

    def rows(self, query: str, *values: object) -> list[dict[str, Any]]:
        """Rows of one query, as `select_rows`, in a transaction of its own."""
        with self.read() as connection:
            return select_rows(connection, query, values)

    def copied(self) -> Database:
        """A copy in memory of this moment of the state, which ends with the process."""
        connection = state_file.connect(":memory:", self._busy_timeout_seconds)
        with self.read() as source:
            source.backup(connection)
        return Database(
            None, connection, busy_timeout_seconds=self._busy_timeout_seconds, format_number=self._format_number
        )

    def close(self) -> None:
        """Close all idle connections, and those in use as they come back."""
        pool = self._pool
        if pool.process_id != os.getpid():
            return
        with pool.lock:
            self._closed = True
            for connection in pool.idle:
                pool.opened.remove(connection)
                connection.close()
            pool.idle.clear()


@dataclass(frozen=True, slots=True)
class _Shards:
    """Those of 256 locks that this process has used; behind the thread lock of a state file is one of the system."""

    process_id: int = field(default_factory=os.getpid)
    lock: threading.Lock = field(default_factory=threading.Lock)
    by_name: dict[str, tuple[threading.RLock, BaseFileLock | None]] = field(default_factory=dict)


class Locks:
    """Locks that let one release of a frame happen at a time; processes meet in ``folder``, None for a state in memory.

    The operating system frees a lock when its process ends, however it ends. Frames share 256 locks, so a
    thread may enter a lock that it holds: two frames that it nests may be the same lock.
    """

    def __init__(self, folder: Path | None, *, timeout_seconds: float) -> None:
        self._folder = folder
        self._timeout_seconds = timeout_seconds
        self._shards = _Shards()

    def _shard(self, name: str) -> tuple[threading.RLock, BaseFileLock | None]:
        shards = self._shards
        if shards.process_id != os.getpid():
            # Freeing an inherited file lock would unlock the parent's.
            _never_freed(file_lock for _, file_lock in shards.by_name.values())
            self._shards = shards = _Shards()
        with shards.lock:
            if name not in shards.by_name:
                file_lock = None
                if self._folder is not None:
                    self._folder.mkdir(mode=0o700, exist_ok=True)
                    file_lock = FileLock(self._folder / f"{name}.lock", mode=0o600, thread_local=False)
                shards.by_name[name] = (threading.RLock(), file_lock)
            return shards.by_name[name]

    @contextmanager
    def exclusive(self, *frame_hashes: str) -> Iterator[None]:
        """Hold the locks of frames: nobody else releases from them meanwhile.

        They are taken in one order by everybody, so that no two wait for each other.

        Raises:
            StateError: others held one of them for longer than the timeout, or the lock folder cannot be used.

        """
        busy = "another query on the same data is still running; ask again when it has finished"
        process_id = os.getpid()
        with ExitStack() as held:
            try:
                for name in sorted({hashlib.sha256(one.encode()).hexdigest()[:2] for one in frame_hashes}):
                    deadline = time.monotonic() + self._timeout_seconds
                    thread_lock, file_lock = self._shard(name)
                    if not thread_lock.acquire(timeout=self._timeout_seconds):
                        raise StateError(busy)
                    held.callback(thread_lock.release)
                    if file_lock is not None:
                        left = max(0.0, deadline - time.monotonic())
                        file_lock.acquire(timeout=left, poll_interval=_POLL_SECONDS)
                        held.callback(file_lock.release)
            except Timeout as error:
                raise StateError(busy) from error
            except OSError as error:
                raise StateError.of_file(self._folder, f": {error.strerror}") from error
            try:
                yield
            finally:
                # A child that was forked inside the block leaves it without touching what belongs to its parent.
                if os.getpid() != process_id:
                    held.pop_all()
