"""The state file: its tables, the number of their format, migrations from older ones, and the file itself on disk.

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

# "dpsq" in ASCII: tells a state file from any other SQLite file.
APPLICATION_ID = 0x64707371

Migration = Callable[[sqlite3.Connection], None]

_SNAPSHOT = """
CREATE TABLE snapshot (
    frame_hash TEXT PRIMARY KEY REFERENCES frame(frame_hash), value_count INTEGER NOT NULL,
    floor INTEGER NOT NULL CHECK (floor >= 0), exact_values BLOB NOT NULL
) STRICT;
"""

# Correlated noise, floors, frozen histograms, and the policy's least number of units per group.
_FORMAT_2 = f"""
ALTER TABLE protected_table ADD COLUMN min_units INTEGER;
ALTER TABLE point ADD COLUMN correlation REAL NOT NULL DEFAULT 0.0;
ALTER TABLE point ADD COLUMN floor_correlation REAL;
ALTER TABLE point ADD COLUMN floor INTEGER NOT NULL DEFAULT 0;
{_SNAPSHOT}
"""

_CLEARANCES = """
CREATE TABLE analyst (name TEXT PRIMARY KEY, rho_limit INTEGER CHECK (rho_limit > 0)) STRICT;
CREATE TABLE remembered_table (name TEXT PRIMARY KEY, columns TEXT NOT NULL) STRICT;
CREATE TABLE link (
    name TEXT PRIMARY KEY REFERENCES protected_table(name), columns TEXT NOT NULL,
    parent TEXT NOT NULL REFERENCES protected_table(name), parent_columns TEXT NOT NULL
) STRICT;
"""

# Analysts and what each was shown, windows and ceilings, tables that are gone, refreshes, links. So far charged points
# only joined above all others, so what a point that stands alone was made of is the next one.
_FORMAT_3 = f"""
ALTER TABLE protected_table ADD COLUMN rho_window_low INTEGER;
ALTER TABLE protected_table ADD COLUMN rho_window_high INTEGER;
ALTER TABLE protected_table ADD COLUMN rho_ceiling INTEGER;
ALTER TABLE frame ADD COLUMN base_hash TEXT;
ALTER TABLE frame ADD COLUMN generation INTEGER NOT NULL DEFAULT 0;
ALTER TABLE point ADD COLUMN source_rho INTEGER;
ALTER TABLE release ADD COLUMN levels TEXT NOT NULL DEFAULT '[]';
UPDATE point SET source_rho = (
    SELECT min(above.rho_nano) FROM point AS above WHERE above.tau IS NOT NULL
    AND above.statistic_hash = point.statistic_hash AND above.rho_nano > point.rho_nano
) WHERE tau IS NULL AND correlation > 0;
{_CLEARANCES}
"""

_LASTING_ANSWERS = """
CREATE TABLE auto_choice (
    id INTEGER PRIMARY KEY, statistic_hash TEXT NOT NULL, analyst TEXT NOT NULL COLLATE NOCASE,
    share_low INTEGER NOT NULL, share_high INTEGER NOT NULL, rho_nano INTEGER NOT NULL,
    FOREIGN KEY (statistic_hash, rho_nano) REFERENCES point(statistic_hash, rho_nano)
) STRICT;
CREATE INDEX auto_choice_of_reader ON auto_choice (statistic_hash, analyst);
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
_LASTING_APPEND_ONLY = ("lowered_point", "pin", "auto_choice", "version_mark", "key_list")

# Before choices were kept one histogram chose for all levels. Its reader keeps it where they asked, and a little above:
# beside k shares of 1/32 for AUTO statistics have 32 - k, and twice what was shown over 32 - k is more than a share.
OLD_CHOICES = """
INSERT INTO auto_choice (statistic_hash, analyst, share_low, share_high, rho_nano)
SELECT statistic_hash, analyst, 1, max(2 * (shown / (32 - asked_count))), rho_nano FROM (
    SELECT asked.value AS statistic_hash, release.analyst, release.rho_nano AS shown, point.rho_nano AS rho_nano,
           count(*) OVER (PARTITION BY release.id) AS asked_count
    FROM release, json_each(release.statistics) AS asked
    JOIN point ON point.statistic_hash = asked.value AND point.frame_hash = point.statistic_hash
) GROUP BY statistic_hash, lower(analyst) ORDER BY statistic_hash, lower(analyst)
"""

_LATER_KEYS = """
CREATE TABLE point_tail (
    point_id INTEGER NOT NULL REFERENCES point(id), number INTEGER NOT NULL,
    value_count INTEGER NOT NULL, noisy_values BLOB NOT NULL,
    PRIMARY KEY (point_id, number)
) STRICT;
"""

_FORMAT_4 = f"""
ALTER TABLE protected_table ADD COLUMN separate_people INTEGER NOT NULL DEFAULT 0;
ALTER TABLE public_table ADD COLUMN decision TEXT;
ALTER TABLE release ADD COLUMN changed TEXT NOT NULL DEFAULT '[]';
{_LASTING_ANSWERS}
{OLD_CHOICES}
"""

_FORMAT_6 = """
ALTER TABLE protected_table ADD COLUMN max_rows_norm REAL;
ALTER TABLE protected_table ADD COLUMN max_rows_per_unit INTEGER
"""

_FORMAT_7 = "ALTER TABLE protected_table ADD COLUMN coverage INTEGER NOT NULL DEFAULT 0"
# Amounts of delta are integers up to 2**100, more than an INTEGER holds: decimal text, added in Python.
DELTA_COLUMNS = frozenset({"delta_threshold", "delta_units", "threshold_delta_units", "charged_delta_units"})

_TABLES = (
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
    separate_people INTEGER NOT NULL DEFAULT 0, max_rows_norm REAL, max_rows_per_unit INTEGER,
    coverage INTEGER NOT NULL DEFAULT 0
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
    + _LASTING_ANSWERS
    + _LATER_KEYS
)

# Rows of these are written once; the file itself refuses to change or remove them, whatever the program says.
APPEND_ONLY = (
    "table_version", "policy_log", "charge", "closed_charge", "frame", "key_chunk", "release", "snapshot",
    "point_tail", *_LASTING_APPEND_ONLY,
)  # fmt: skip


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


# MIGRATIONS[i] lifts format i + 1 to i + 2 in its caller's transaction; _TABLES is always the newest format.
MIGRATIONS: tuple[Migration, ...] = (
    partial(_change_tables, statements=_FORMAT_2, append_only=("snapshot",)),
    partial(_change_tables, statements=_FORMAT_3, append_only=()),
    partial(_change_tables, statements=_FORMAT_4, append_only=_LASTING_APPEND_ONLY),
    partial(_change_tables, statements=_LATER_KEYS, append_only=("point_tail",)),
    partial(_change_tables, statements=_FORMAT_6, append_only=()),
    partial(_change_tables, statements=_FORMAT_7, append_only=()),
)


def write_tables(connection: sqlite3.Connection, format_number: int) -> None:
    """Make the tables of an empty state, and commit."""
    connection.execute("BEGIN IMMEDIATE")
    _change_tables(connection, _TABLES, APPEND_ONLY)
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
                raise StateError(f"{path}: this file system does not support SQLite's write-ahead log")
            write_tables(connection, format_number)
        with suppress(FileExistsError):
            os.link(draft, path)
        _sync_folder(path.parent)
    finally:
        draft.unlink()


def _check_format(connection: sqlite3.Connection, path: Path, newest: int) -> int:
    if connection.execute("PRAGMA application_id").fetchone() != (APPLICATION_ID,):
        raise StateError(f"{path} is not a dpsql state file")
    found: int = connection.execute("PRAGMA user_version").fetchone()[0]
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
                raise StateError(f"there is no state file {path}, so nothing is protected")
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
        raise StateError(f"{path}: {error.strerror}") from error
    except sqlite3.Error as error:
        raise StateError(f"{path}: {error}") from error
    return connection
