"""The state file as SQLite sees it: tables, format number, migrations, and connections that commit durably.

No other folder of the package imports sqlite3.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import sqlite3
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path

from dpsql.errors import StateError
from dpsql.state import auto_choice

# "dpsq" in ASCII: tells a state file from any other SQLite file.
APPLICATION_ID = 0x64707371

Migration = Callable[[sqlite3.Connection], None]

_SNAPSHOT = """
CREATE TABLE snapshot (
    frame_hash TEXT PRIMARY KEY REFERENCES frame(frame_hash), value_count INTEGER NOT NULL,
    floor INTEGER NOT NULL CHECK (floor >= 0), exact_values BLOB NOT NULL
) STRICT;
"""


def _add_shapes(connection: sqlite3.Connection) -> None:
    """Format 2: correlated noise, floors, frozen histograms, and the policy's least number of units per group."""
    connection.execute("ALTER TABLE protected_table ADD COLUMN min_units INTEGER")
    connection.execute("ALTER TABLE point ADD COLUMN correlation REAL NOT NULL DEFAULT 0.0")
    connection.execute("ALTER TABLE point ADD COLUMN floor_correlation REAL")
    connection.execute("ALTER TABLE point ADD COLUMN floor INTEGER NOT NULL DEFAULT 0")
    connection.execute(_SNAPSHOT)
    _forbid_changes(connection, "snapshot")


_CLEARANCES = """
CREATE TABLE analyst (name TEXT PRIMARY KEY, rho_limit INTEGER CHECK (rho_limit > 0)) STRICT;
CREATE TABLE remembered_table (name TEXT PRIMARY KEY, columns TEXT NOT NULL) STRICT;
CREATE TABLE link (
    name TEXT PRIMARY KEY REFERENCES protected_table(name), columns TEXT NOT NULL,
    parent TEXT NOT NULL REFERENCES protected_table(name), parent_columns TEXT NOT NULL
) STRICT;
"""


def _add_clearances(connection: sqlite3.Connection) -> None:
    """Format 3: analysts and what each was shown, windows and ceilings, tables that are gone, refreshes, links."""
    for column in ("rho_window_low", "rho_window_high", "rho_ceiling"):
        connection.execute(f"ALTER TABLE protected_table ADD COLUMN {column} INTEGER")
    connection.execute("ALTER TABLE frame ADD COLUMN base_hash TEXT")
    connection.execute("ALTER TABLE frame ADD COLUMN generation INTEGER NOT NULL DEFAULT 0")
    connection.execute("ALTER TABLE point ADD COLUMN source_rho INTEGER")
    connection.execute("ALTER TABLE release ADD COLUMN levels TEXT NOT NULL DEFAULT '[]'")
    # so far charged points only joined above all others, so what a point that stands alone was made of is the next one
    connection.execute(
        "UPDATE point SET source_rho = (SELECT min(above.rho_nano) FROM point AS above WHERE above.tau IS NOT NULL "
        "AND above.statistic_hash = point.statistic_hash AND above.rho_nano > point.rho_nano) "
        "WHERE tau IS NULL AND correlation > 0"
    )
    for statement in _CLEARANCES.split(";"):
        connection.execute(statement)


_FORMAT_4_TABLES = f"""
{auto_choice.TABLES}
CREATE TABLE version_mark (
    table_name TEXT NOT NULL, version TEXT NOT NULL, part TEXT NOT NULL, value TEXT NOT NULL, at TEXT NOT NULL,
    PRIMARY KEY (table_name, version, part)
) STRICT;
CREATE TABLE key_list (
    id INTEGER PRIMARY KEY AUTOINCREMENT, table_name TEXT NOT NULL, column_name TEXT NOT NULL, key_type TEXT NOT NULL,
    digest TEXT NOT NULL, at TEXT NOT NULL, keys BLOB NOT NULL
) STRICT;
CREATE INDEX list_of_column ON key_list (table_name, column_name, key_type);
CREATE TABLE version_columns (
    table_name TEXT NOT NULL, version TEXT NOT NULL, columns TEXT NOT NULL, PRIMARY KEY (table_name, version)
) STRICT;
CREATE TABLE lowered_point (
    id INTEGER PRIMARY KEY,
    statistic_hash TEXT NOT NULL, rho_nano INTEGER NOT NULL CHECK (rho_nano > 0),
    release_rho INTEGER NOT NULL CHECK (release_rho > rho_nano),
    frame_hash TEXT NOT NULL REFERENCES frame(frame_hash), value_count INTEGER NOT NULL,
    lattice_exponent INTEGER NOT NULL, sigma REAL NOT NULL,
    created_at TEXT NOT NULL, noisy_values BLOB NOT NULL,
    correlation REAL NOT NULL, floor_correlation REAL, floor INTEGER NOT NULL,
    UNIQUE (statistic_hash, rho_nano, release_rho)
) STRICT;
CREATE TABLE pin (
    analyst TEXT NOT NULL, statistic_hash TEXT NOT NULL,
    asked_rho INTEGER NOT NULL, query_rho INTEGER NOT NULL, own_release INTEGER NOT NULL,
    served_rho INTEGER NOT NULL, release_rho INTEGER NOT NULL, has_threshold INTEGER NOT NULL,
    PRIMARY KEY (statistic_hash, analyst, asked_rho, query_rho, own_release)
) STRICT;
"""

_FORMAT_4_COLUMNS: tuple[str, ...] = (
    "ALTER TABLE protected_table ADD COLUMN separate_people INTEGER NOT NULL DEFAULT 0",
    "ALTER TABLE public_table ADD COLUMN decision TEXT",
    "ALTER TABLE release ADD COLUMN changed TEXT NOT NULL DEFAULT '[]'",
)
"""Columns that format 4 adds to tables of format 3, as ALTER TABLE statements."""


def _add_lasting_answers(connection: sqlite3.Connection) -> None:
    """Format 4."""
    for statement in (*_FORMAT_4_COLUMNS, *_FORMAT_4_TABLES.split(";")):
        connection.execute(statement)
    connection.execute(auto_choice.OLD_CHOICES)
    for table in _FORMAT_4_APPEND_ONLY:
        _forbid_changes(connection, table)


# MIGRATIONS[i] lifts format i + 1 to i + 2 in its caller's transaction; TABLES is always the newest format.
MIGRATIONS: tuple[Migration, ...] = (_add_shapes, _add_clearances, _add_lasting_answers)

# Amounts of delta are integers up to 2**100, more than an INTEGER holds: decimal text, added in Python.
TABLES = (
    """
CREATE TABLE unit (
    name TEXT PRIMARY KEY,
    rho_budget INTEGER NOT NULL, delta_threshold TEXT NOT NULL, delta_conversion REAL NOT NULL
) STRICT;
CREATE TABLE protected_table (
    name TEXT PRIMARY KEY, unit TEXT NOT NULL REFERENCES unit(name), privacy_unit_column TEXT NOT NULL,
    max_groups INTEGER, max_rows_per_group INTEGER,
    default_rho INTEGER, default_epsilon REAL, default_delta REAL, min_units INTEGER,
    rho_window_low INTEGER, rho_window_high INTEGER, rho_ceiling INTEGER,
    separate_people INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE TABLE public_table (name TEXT PRIMARY KEY, decision TEXT) STRICT;
CREATE TABLE table_version (
    table_name TEXT NOT NULL, number INTEGER NOT NULL, version TEXT NOT NULL, at TEXT NOT NULL,
    PRIMARY KEY (table_name, number), UNIQUE (table_name, version)
) STRICT;
CREATE TABLE domain (
    table_name TEXT NOT NULL, column_name TEXT NOT NULL,
    low REAL, high REAL,
    keys TEXT, keys_from_table TEXT REFERENCES public_table(name), keys_from_column TEXT,
    PRIMARY KEY (table_name, column_name)
) STRICT;
CREATE TABLE policy_log (
    id INTEGER PRIMARY KEY AUTOINCREMENT, at TEXT NOT NULL, noun TEXT NOT NULL, declaration TEXT NOT NULL
) STRICT;
CREATE TABLE charge (
    id INTEGER PRIMARY KEY AUTOINCREMENT, unit TEXT NOT NULL REFERENCES unit(name),
    statistic_hash TEXT NOT NULL, rho_nano INTEGER NOT NULL CHECK (rho_nano >= 0), delta_units TEXT NOT NULL,
    analyst TEXT NOT NULL, at TEXT NOT NULL
) STRICT;
CREATE INDEX charge_of_unit ON charge (unit, rho_nano, delta_units);
CREATE INDEX charge_of_statistic ON charge (statistic_hash, unit);
CREATE TABLE frame (
    frame_hash TEXT PRIMARY KEY, unit TEXT NOT NULL REFERENCES unit(name), tables TEXT NOT NULL,
    salt BLOB NOT NULL CHECK (length(salt) = 16),
    base_hash TEXT, generation INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE TABLE key_chunk (
    frame_hash TEXT NOT NULL REFERENCES frame(frame_hash), number INTEGER NOT NULL,
    row_count INTEGER NOT NULL, keys BLOB NOT NULL,
    PRIMARY KEY (frame_hash, number)
) STRICT;
CREATE TABLE point (
    id INTEGER PRIMARY KEY,
    statistic_hash TEXT NOT NULL, rho_nano INTEGER NOT NULL CHECK (rho_nano > 0),
    frame_hash TEXT NOT NULL REFERENCES frame(frame_hash), value_count INTEGER NOT NULL,
    lattice_exponent INTEGER NOT NULL, sigma REAL NOT NULL,
    tau REAL, threshold_delta_units TEXT NOT NULL,
    created_at TEXT NOT NULL, noisy_values BLOB NOT NULL,
    correlation REAL NOT NULL DEFAULT 0.0, floor_correlation REAL, floor INTEGER NOT NULL DEFAULT 0,
    source_rho INTEGER,
    UNIQUE (statistic_hash, rho_nano)
) STRICT;
CREATE TABLE closed_charge (
    charge_id INTEGER PRIMARY KEY REFERENCES charge(id), point_id INTEGER NOT NULL REFERENCES point(id)
) STRICT;
CREATE TABLE release (
    id INTEGER PRIMARY KEY AUTOINCREMENT, analyst TEXT NOT NULL, query_hash TEXT NOT NULL, at TEXT NOT NULL,
    statistics TEXT NOT NULL, mechanism TEXT NOT NULL,
    rho_nano INTEGER NOT NULL, epsilon REAL NOT NULL, delta REAL NOT NULL,
    charged_rho_nano INTEGER NOT NULL, charged_delta_units TEXT NOT NULL,
    reused INTEGER NOT NULL, table_versions TEXT NOT NULL, levels TEXT NOT NULL DEFAULT '[]',
    changed TEXT NOT NULL DEFAULT '[]'
) STRICT;
"""
    + _SNAPSHOT
    + _CLEARANCES
    + _FORMAT_4_TABLES
)

# Rows of these are written once; the file itself refuses to change or remove them, whatever the program says.
_FORMAT_4_APPEND_ONLY = ("lowered_point", "pin", "auto_choice", "version_mark", "key_list")
APPEND_ONLY = (
    "table_version", "policy_log", "charge", "closed_charge", "frame", "key_chunk", "release", "snapshot",
    *_FORMAT_4_APPEND_ONLY,
)  # fmt: skip


@contextmanager
def _state_errors(place: str) -> Iterator[None]:
    """Turn SQLite's errors into ours; their texts name tables and columns, never values."""
    try:
        yield
    except sqlite3.Error as error:
        raise StateError(f"{place}: {error}") from error


def _connect(target: str, busy_timeout_seconds: float) -> sqlite3.Connection:
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


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    return int(connection.execute(f"PRAGMA {name}").fetchone()[0])


def _forbid_changes(connection: sqlite3.Connection, table: str) -> None:
    for event in ("UPDATE", "DELETE"):
        connection.execute(
            f"CREATE TRIGGER {table}_no_{event.lower()} BEFORE {event} ON {table} "
            f"BEGIN SELECT RAISE(ABORT, 'rows of {table} are never changed'); END"
        )


def _write_tables(connection: sqlite3.Connection, format_number: int) -> None:
    connection.execute("BEGIN IMMEDIATE")
    for statement in TABLES.split(";"):
        connection.execute(statement)
    for table in APPEND_ONLY:
        _forbid_changes(connection, table)
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {format_number}")
    connection.execute("COMMIT")


def _sync_folder(folder: Path) -> None:
    # Some systems cannot open a folder; there, its entries need no fsync of their own.
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _uri(path: Path) -> str:
    # mode=rw: SQLite itself never creates the file, so that it never has other permissions than ours.
    return f"{path.as_uri()}?mode=rw"


def _create_file(path: Path, format_number: int) -> None:
    """Put a complete, empty state file at ``path``; does nothing if another process was faster."""
    descriptor, name = tempfile.mkstemp(prefix=f"{path.name}-new-", dir=path.parent)
    os.close(descriptor)
    draft = Path(name)
    try:
        with closing(_connect(_uri(draft), 0.0)) as connection:
            mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
            if mode != "wal":
                raise StateError(f"{path}: this file system does not support SQLite's write-ahead log")
            _write_tables(connection, format_number)
        with suppress(FileExistsError):
            os.link(draft, path)
        _sync_folder(path.parent)
    finally:
        draft.unlink()


def _check_format(connection: sqlite3.Connection, path: Path, newest: int) -> int:
    if _pragma(connection, "application_id") != APPLICATION_ID:
        raise StateError(f"{path} is not a dpsql state file")
    found = _pragma(connection, "user_version")
    if found > newest:
        raise StateError(f"{path} has state format {found}; this version of dpsql reads up to format {newest}")
    if found < 1:
        raise StateError(f"{path} is damaged: state format {found} does not exist")
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
        with closing(_connect(_uri(path), 0.0)) as source, closing(_connect(_uri(backup), 0.0)) as target:
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
                    raise StateError(f"{path}: a migration ended its transaction; restore {backup}")
            if connection.execute("PRAGMA foreign_key_check").fetchone() is not None:
                raise StateError(f"{path}: a migration from format {found} broke a reference; nothing was changed")
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


@dataclass(slots=True)
class _Pool:
    """Connections that this process opened; each serves one thread at a time."""

    process_id: int = field(default_factory=os.getpid)
    lock: threading.Lock = field(default_factory=threading.Lock)
    opened: list[sqlite3.Connection] = field(default_factory=list)
    idle: list[sqlite3.Connection] = field(default_factory=list)


class Database:
    """One SQLite file, or one in memory (path None), and transactions on it; threads share it."""

    def __init__(self, path: Path | None, *, busy_timeout_seconds: float, format_number: int) -> None:
        self.path = path
        self._place = "the state in memory" if path is None else str(path)
        self._busy_timeout_seconds = busy_timeout_seconds
        self._format_number = format_number
        # In memory there is one connection, so transactions take turns.
        self._turn: AbstractContextManager[object] = threading.RLock() if path is None else nullcontext()
        self._pool = _Pool()
        self._closed = False

    @classmethod
    def open(
        cls,
        path: Path | None,
        *,
        create: bool,
        busy_timeout_seconds: float,
        migrations: Sequence[Migration] | None = None,
    ) -> Database:
        """Open the state, creating or migrating it as needed.

        Args:
            path: the file, or None for a state in memory that ends with the process.
            create: whether a missing file is created; in memory there is nothing to miss.
            busy_timeout_seconds: how long a write waits for the writes of others.
            migrations: the chain that leads to the newest format, MIGRATIONS unless a test brings its own.

        Raises:
            StateError: the file is missing, of a newer format, not ours, or damaged.

        """
        chain = MIGRATIONS if migrations is None else migrations
        newest = 1 + len(chain)
        if path is None:
            database = cls(None, busy_timeout_seconds=busy_timeout_seconds, format_number=newest)
            connection = _connect(":memory:", busy_timeout_seconds)
            _write_tables(connection, newest)
            database._keep(connection)
            return database
        # One file has one name, whatever links lead to it: the names of its log and its locks hang on it.
        path = path.resolve()
        try:
            with _state_errors(str(path)):
                if not path.exists():
                    if not create:
                        raise StateError(f"there is no state file {path}, so nothing is protected")
                    _create_file(path, newest)
                # The file is raw data; tightening fails for all but its owner, who then decides who reads it.
                if path.stat().st_mode & 0o077:
                    with suppress(PermissionError):
                        path.chmod(0o600)
                connection = _connect(_uri(path), busy_timeout_seconds)
                try:
                    if _check_format(connection, path, newest) < newest:
                        _migrate(connection, path, chain)
                except BaseException:
                    connection.close()
                    raise
        except OSError as error:
            raise StateError(f"{path}: {error.strerror}") from error
        database = cls(path, busy_timeout_seconds=busy_timeout_seconds, format_number=newest)
        database._keep(connection)
        return database

    def _keep(self, connection: sqlite3.Connection) -> None:
        self._pool.opened.append(connection)
        self._pool.idle.append(connection)

    def _pool_of_this_process(self) -> _Pool:
        pool = self._pool
        if pool.process_id == os.getpid():
            return pool
        if self.path is None:
            raise StateError("a state in memory cannot be used after a fork: its budget would be there twice")
        # SQLite forbids even to close a connection on the other side of a fork, and the interpreter closes
        # what it frees, also at its end. One reference that nobody gives back keeps these alive.
        for connection in pool.opened:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))
        self._pool = fresh = _Pool()
        return fresh

    def _borrow(self, pool: _Pool) -> sqlite3.Connection:
        with pool.lock:
            if self._closed:
                raise StateError(f"{self._place} is closed")
            if pool.idle:
                return pool.idle.pop()
        if self.path is None:
            raise StateError("a transaction on a state in memory cannot contain another one")
        connection = _connect(_uri(self.path), self._busy_timeout_seconds)
        with pool.lock:
            pool.opened.append(connection)
        return connection

    def _give_back(self, pool: _Pool, connection: sqlite3.Connection) -> None:
        with pool.lock:
            if self._closed or connection.in_transaction:
                pool.opened.remove(connection)
                connection.close()
            else:
                pool.idle.append(connection)

    @contextmanager
    def _transaction(self, begin: str) -> Iterator[sqlite3.Connection]:
        pool = self._pool_of_this_process()
        with self._turn, _state_errors(self._place):
            connection = self._borrow(pool)
            try:
                connection.execute(begin)
                found = _pragma(connection, "user_version")
                if found != self._format_number:
                    raise StateError(
                        f"{self._place} now has state format {found}, no longer {self._format_number}: "
                        "another process upgraded it; start again with that version of dpsql"
                    )
                yield connection
                connection.execute("COMMIT")
            finally:
                try:
                    if connection.in_transaction:
                        connection.execute("ROLLBACK")
                finally:
                    self._give_back(pool, connection)

    def read(self) -> AbstractContextManager[sqlite3.Connection]:
        """Open a transaction that sees one moment of the state."""
        return self._transaction("BEGIN")

    def write(self) -> AbstractContextManager[sqlite3.Connection]:
        """Open a transaction that is alone in writing; what it wrote is on disk when it ends."""
        return self._transaction("BEGIN IMMEDIATE")

    def copied(self) -> Database:
        """A copy in memory of this moment of the state, which ends with the process."""
        database = Database(None, busy_timeout_seconds=self._busy_timeout_seconds, format_number=self._format_number)
        connection = _connect(":memory:", self._busy_timeout_seconds)
        database._keep(connection)
        with self.read() as source:
            source.backup(connection)
        return database

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
