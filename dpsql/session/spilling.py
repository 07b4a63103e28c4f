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
    # without it the folder cannot be set, and with a folder among the settings the file could not be opened twice
    is_closed_off = settings.get("enable_external_access", "").lower() in _FALSE
    if is_closed_off:
        del settings["enable_external_access"]
    connection = duckdb.connect(path, read_only=read_only, config=dict(settings))
    close = _spill_beside(state_path, connection)
    if is_closed_off:
        connection.execute("SET enable_external_access = false")
    return connection, close


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
        # also called where a session is forgotten and never closed
        ended = weakref.finalize(connection, _end_session, used)
        return functools.partial(_close, connection, used, ended)


def _close(connection: duckdb.DuckDBPyConnection, used: _Used, ended: Callable[[], object]) -> None:
    with _TURN:
        if used.sessions == 1:
            # for connections of others that stay open; refused if rows were put there
            with contextlib.suppress(duckdb.Error):
                ((place, _),) = connection.execute(_PLACE).fetchall()
                if place == str(used.folder.rows):
                    connection.execute("RESET temp_directory")
        connection.close()
        # does something when it is first called, and never again
        ended()


def _end_session(used: _Used) -> None:
    with _TURN:
        used.sessions -= 1
        _remove_unused()


def _remove_unused() -> None:
    for place, used in list(_IN_USE.items()):
        if used.sessions == 0 and used.folder.remove():
            del _IN_USE[place]
