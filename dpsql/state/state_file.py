"""The state file: the number of its format, migrations from older ones, and the file itself on disk.

It is created, opened, backed up and lifted to a newer format durably.
"""

from __future__ import annotations

import itertools
import os
import sqlite3
import tempfile
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from functools import partial
from pathlib import Path

from dpsql.errors import StateError
from dpsql.state.table_definitions import (
    APPEND_ONLY,
    FORMAT_2,
    FORMAT_3,
    FORMAT_4,
    FORMAT_6,
    FORMAT_7,
    FORMAT_8,
    FORMAT_9,
    FORMAT_11,
    FORMAT_12,
    FORMAT_15,
    FORMAT_16,
    IDENTITY,
    LASTING_APPEND_ONLY,
    LATER_KEYS,
    MEASURED_GROUPS,
    STOPS,
    TABLES,
)

# "dpsq" in ASCII: tells a state file from any other SQLite file.
APPLICATION_ID = 0x64707371

Migration = Callable[[sqlite3.Connection], None]


def _change_tables(connection: sqlite3.Connection, statements: str, append_only: Sequence[str]) -> None:
    """Carry out statements in the caller's transaction, and guard the rows of the tables that they make."""
    for statement in statements.split(";"):
        connection.execute(statement)
    for table in append_only:
        for event in ("UPDATE", "DELETE"):
            connection.execute(
                f"CREATE TRIGGER {table}_no_{event.lower()} BEFORE {event} ON {table} "
                f"BEGIN SELECT RAISE(ABORT, 'rows of {table} are never changed'); END"
            )


# MIGRATIONS[i] lifts format i + 1 to i + 2 in its caller's transaction; TABLES is always the newest format.
MIGRATIONS: tuple[Migration, ...] = (
    partial(_change_tables, statements=FORMAT_2, append_only=("snapshot",)),
    partial(_change_tables, statements=FORMAT_3, append_only=()),
    partial(_change_tables, statements=FORMAT_4, append_only=LASTING_APPEND_ONLY),
    partial(_change_tables, statements=LATER_KEYS, append_only=("point_tail",)),
    partial(_change_tables, statements=FORMAT_6, append_only=()),
    partial(_change_tables, statements=FORMAT_7, append_only=()),
    partial(_change_tables, statements=FORMAT_8, append_only=()),
    partial(_change_tables, statements=FORMAT_9, append_only=()),
    partial(_change_tables, statements=STOPS, append_only=("stop",)),
    partial(_change_tables, statements=FORMAT_11, append_only=()),
    partial(_change_tables, statements=FORMAT_12, append_only=()),
    partial(_change_tables, statements=IDENTITY, append_only=("identity",)),
    partial(_change_tables, statements=MEASURED_GROUPS, append_only=("measured_groups",)),
    partial(_change_tables, statements=FORMAT_15, append_only=()),
    partial(_change_tables, statements=FORMAT_16, append_only=()),
)


def write_tables(connection: sqlite3.Connection, format_number: int) -> None:
    """Make the tables of an empty state, and commit."""
    connection.execute("BEGIN IMMEDIATE")
    _change_tables(connection, TABLES, APPEND_ONLY)
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {format_number}")
    connection.execute("COMMIT")


def connect(target: str, busy_timeout_seconds: float) -> sqlite3.Connection:
    """A connection whose commits are durable and whose references are checked."""
    connection = sqlite3.connect(
        target, uri=True, timeout=busy_timeout_seconds, isolation_level=None, check_same_thread=False
    )
    try:
        # recursive_triggers: INSERT OR REPLACE must not slip past the triggers on DELETE.
        for setting in (
            "foreign_keys = ON",
            "recursive_triggers = ON",
            "trusted_schema = OFF",
            "synchronous = FULL",
            "fullfsync = ON",
        ):
            connection.execute(f"PRAGMA {setting}")
    except BaseException:
        connection.close()
        raise
    return connection


def _sync_folder(folder: Path) -> None:
    # Some systems cannot open a folder; there, its entries need no fsync of their own.
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def uri(path: Path) -> str:
    """What `connect` opens a file by."""
    # mode=rw: SQLite itself never creates the file, so that it never has other permissions than ours.
    return f"{path.as_uri()}?mode=rw"


def _create_file(path: Path, format_number: int) -> None:
    """Put a complete, empty state file at ``path``; does nothing if another process was faster."""
    descriptor, name = tempfile.mkstemp(prefix=f"{path.name}-new-", dir=path.parent)
    os.close(descriptor)
    draft = Path(name)
    try:
        with closing(connect(uri(draft), 0.0)) as connection:
            if connection.execute("PRAGMA journal_mode = WAL").fetchone() != ("wal",):
                raise StateError.of_file(path, ": this file system does not support SQLite's write-ahead log")
            write_tables(connection, format_number)
        with suppress(FileExistsError):
            os.link(draft, path)
        _sync_folder(path.parent)
    finally:
        draft.unlink()


def _check_format(connection: sqlite3.Connection, path: Path, newest: int) -> int:
    if connection.execute("PRAGMA application_id").fetchone() != (APPLICATION_ID,):
        raise StateError.of_file(path, " is not a dpsql state file")
    found: int = connection.execute("PRAGMA user_version").fetchone()[0]
    if found > newest:
        raise StateError.of_file(path, f" has state format {found}; this version of dpsql reads up to format {newest}")
    if found < 1:
        raise StateError.of_file(path, f" is damaged: state format {found} does not exist")
    return found


def _write_backup(path: Path, old_format: int) -> Path:
    """Copy the committed contents of ``path`` beside it, never over an earlier backup."""
    for attempt in itertools.count():
        backup = path.with_name(f"{path.name}.backup-{old_format}" + (f".{attempt}" if attempt else ""))
        try:
            descriptor = os.open(backup, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
        except FileExistsError:
            continue
        break
    try:
        with closing(connect(uri(path), 0.0)) as source, closing(connect(uri(backup), 0.0)) as target:
            source.backup(target)
        os.fsync(descriptor)
    except BaseException:
        backup.unlink()
        raise
    finally:
        os.close(descriptor)
    _sync_folder(path.parent)
    return backup


def _migrate(connection: sqlite3.Connection, path: Path, migrations: Sequence[Migration]) -> None:
    """Lift the file to the newest format in one transaction, after a backup that a failure removes again."""
    newest = 1 + len(migrations)
    # A table is rebuilt by dropping it; the references are checked as a whole before the commit.
    connection.execute("PRAGMA foreign_keys = OFF")
    connection.execute("BEGIN IMMEDIATE")
    backup: Path | None = None
    try:
        found = _check_format(connection, path, newest)
        if found < newest:
            backup = _write_backup(path, found)
            for migration in migrations[found - 1 :]:
                migration(connection)
                if not connection.in_transaction:
                    ending = backup.name.removeprefix(path.name)
                    raise StateError.of_file(
                        path, f": a migration ended its transaction; restore the copy beside it that ends in {ending}"
                    )
            if connection.execute("PRAGMA foreign_key_check").fetchone() is not None:
                raise StateError.of_file(
                    path, f": a migration from format {found} broke a reference; nothing was changed"
                )
            connection.execute(f"PRAGMA user_version = {newest}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
            if backup is not None:
                backup.unlink()
        raise
    finally:
        connection.execute("PRAGMA foreign_keys = ON")


def open_file(
    path: Path, *, create: bool, busy_timeout_seconds: float, migrations: Sequence[Migration]
) -> sqlite3.Connection:
    """Open the file at a resolved path, creating or migrating it as needed.

    Raises:
        StateError: the file is missing, of a newer format, not ours, or damaged.

    """
    newest = 1 + len(migrations)
    try:
        if not path.exists():
            if not create:
                raise StateError.of_file(path, " is missing, so nothing is protected")
            _create_file(path, newest)
        # The file is raw data; tightening fails for all but its owner, who then decides who reads it.
        if path.stat().st_mode & 0o077:
            with suppress(PermissionError):
                path.chmod(0o600)
        connection = connect(uri(path), busy_timeout_seconds)
        try:
            if _check_format(connection, path, newest) < newest:
                _migrate(connection, path, migrations)
        except BaseException:
            connection.close()
            raise
    except OSError as error:
        raise StateError.of_file(path, f": {error.strerror}") from error
    except sqlite3.Error as error:
        raise StateError.of_file(path, f": {error}") from error
    return connection
