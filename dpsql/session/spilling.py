"""Rows that a database puts on disk because memory does not hold them: in a folder for the curator alone.

DuckDB's own choice is a folder beside the database, or the working folder, with the rights of any new file. It is
replaced where dpsql opens the database. A connection that the curator opened keeps the curator's setting.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import duckdb

from dpsql.operations.dialect import text_literal
from dpsql.state import TemporaryFolder

_PLACE = """
SELECT current_setting('temp_directory'), current_setting('temp_directory') = coalesce(path, '') || '.tmp'
FROM duckdb_databases() WHERE database_name = current_database()
"""
"""The folder of an open database for such rows, and whether it is DuckDB's own choice."""

_ACCESS = "SELECT current_setting('temp_directory'), current_setting('enable_external_access')"


@dataclass
class _Used:
    """A folder and how many sessions of this process use it: one file is one database, however often it is opened."""

    folder: TemporaryFolder
    sessions: int = 0


_FALSE = frozenset({"false", "f", "0", "no", "n"})
"""Values of a setting, in lower case, that DuckDB reads as false."""
_TURN = threading.RLock()
_IN_USE: dict[str, _Used] = {}
"""By the path that the database knows."""


def open_database(
    path: str, state_path: Path | None, *, read_only: bool = False, config: Mapping[str, str] | None = None
) -> tuple[duckdb.DuckDBPyConnection, Callable[[], None]]:
    """Open a database that puts rows on disk beside the state file only, unless ``config`` has another folder.

    Args:
        path: a file or ``:memory:``.
        state_path: the state file; None for a state in memory.
        read_only: whether nothing in it can be changed.
        config: settings of DuckDB.

    Returns:
        The connection, and a function that closes it and removes the folder with the last session of this process on
        the database.

    """
    settings = {name.lower(): value for name, value in (config or {}).items()}
    if "temp_directory" in settings:
        connection = duckdb.connect(path, read_only=read_only, config=dict(settings))
        return connection, connection.close
    if settings.get("enable_external_access", "").lower() not in _FALSE:
        connection = duckdb.connect(path, read_only=read_only, config=dict(settings))
        return connection, _spill_beside(state_path, connection)
    # without it the folder cannot be set, and with a folder among the settings the file could not be opened twice
    del settings["enable_external_access"]
    with _TURN:
        connection = duckdb.connect(path, read_only=read_only, config=dict(settings))
        _require_no_open_access(connection)
        close = _spill_beside(state_path, connection)
        connection.execute("SET enable_external_access = false")
    return connection, close


def _require_no_open_access(connection: duckdb.DuckDBPyConnection) -> None:
    """Close the connection if a session of this process has access to files on its database, which is one for all.

    Raises:
        duckdb.ConnectionException: one has, as DuckDB raises where settings differ.

    """
    ((place, is_open),) = connection.execute(_ACCESS).fetchall()
    if is_open and place in _IN_USE:
        connection.close()
        raise duckdb.ConnectionException(
            "this process has the database open with enable_external_access, which one database has for all of its "
            "connections: close the other sessions first"
        )


def _spill_beside(state_path: Path | None, connection: duckdb.DuckDBPyConnection) -> Callable[[], None]:
    """Set the folder of a database that was opened just now, and return what closes the connection.

    Nothing is set if somebody in this process chose another folder for this database or has used DuckDB's own already,
    and if no folder can be created beside the state file: then no state file can be written there, either.
    """
    with _TURN:
        _remove_unused()
        ((place, is_default),) = connection.execute(_PLACE).fetchall()
        used = _IN_USE.get(place)
        if used is None:
            folder = TemporaryFolder.beside(state_path) if is_default else None
            if folder is None:
                return connection.close
            try:
                connection.execute(f"SET temp_directory = {text_literal(str(folder.rows))}")
            except duckdb.Error:
                folder.remove()
                return connection.close
            used = _IN_USE[str(folder.rows)] = _Used(folder)
        used.sessions += 1
        # also called where a session is forgotten and never closed; its cursor is closed with the connection
        ended = weakref.finalize(connection, _end_session, used, connection.cursor())
        # the folder sees to the end of the process, where a fork has this session too
        ended.atexit = False  # type: ignore[misc]
        return functools.partial(_close, connection, ended)


def _close(connection: duckdb.DuckDBPyConnection, ended: Callable[[], object]) -> None:
    with _TURN:
        # does something when it is first called, and never again
        ended()
        connection.close()
        _remove_unused()


def _end_session(used: _Used, cursor: duckdb.DuckDBPyConnection) -> None:
    """Count a session less; the last one gives the folder back.

    The cursor is in no transaction of the session, and reads where the session's connection is gone.
    """
    with _TURN:
        if used.sessions == 1:
            # for connections of others that stay open; refused if rows were put there
            with contextlib.suppress(duckdb.Error):
                ((place, _),) = cursor.execute(_PLACE).fetchall()
                if place == str(used.folder.rows):
                    cursor.execute("RESET temp_directory")
        cursor.close()
        used.sessions -= 1
        _remove_unused()


def _remove_unused() -> None:
    for place, used in list(_IN_USE.items()):
        if used.sessions == 0 and used.folder.remove():
            # the collection of a forgotten session may come in between, and remove it first
            _IN_USE.pop(place, None)
