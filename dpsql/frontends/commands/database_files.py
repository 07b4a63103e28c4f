"""Files that a command names: the database, its state file and the output; and sessions on them."""

from __future__ import annotations

import argparse
import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

import duckdb

from dpsql.errors import DpsqlError, PolicyError
from dpsql.session import Session, connect, is_parts_folder, state_beside


class CommandError(DpsqlError):
    """An obstacle before the session of a command opens: a missing file or a locked database."""


def open_session(arguments: argparse.Namespace) -> Session:
    """Open a session on the database, which must exist; declarations change the state file alone.

    Raises:
        CommandError: the database cannot be opened.

    """
    database = _existing_database(arguments)
    try:
        return connect(database, state=_state_path(arguments), read_only=True)
    except duckdb.Error as error:
        raise CommandError(_why_not_opened(database, str(error))) from None


def open_books(arguments: argparse.Namespace) -> Session:
    """Open a session on the state file alone, so that a database locked by another program does not matter.

    Raises:
        CommandError: the database or the state file does not exist.

    """
    return connect(":memory:", state=existing_state(arguments))


def existing_state(arguments: argparse.Namespace) -> Path:
    """Return the path of the state file.

    Raises:
        CommandError: the database or the state file does not exist.

    """
    _existing_database(arguments)
    state = _state_path(arguments)
    if not state.is_file():
        raise CommandError(
            f"there is no state file {state}: nothing is protected yet. "
            "Declare a privacy unit with: dpsql query DB \"CALL dp_unit('patient', …)\""
        )
    return state


@contextlib.contextmanager
def writable(arguments: argparse.Namespace) -> Iterator[None]:
    """Find out before anything is charged that the output can be written; leave no empty file behind an error.

    Raises:
        PolicyError: the output is the database or its state file.

    """
    output: Path | None = arguments.output
    if output is None:
        yield
        return
    existed = output.exists()
    if existed and any(
        path.exists() and output.samefile(path) for path in (*_files_of(arguments.database), _state_path(arguments))
    ):
        raise PolicyError(f"--output {output} would overwrite the database or its state")
    output.open("ab").close()
    try:
        yield
    except BaseException:
        if not existed:
            output.unlink(missing_ok=True)
        raise


def _files_of(database: Path) -> tuple[Path, ...]:
    return tuple(database.iterdir()) if is_parts_folder(database) else (database,)


def _state_path(arguments: argparse.Namespace) -> Path:
    given: Path | None = arguments.state or state_beside(arguments.database)
    if given is None:
        raise CommandError("a database in memory has no state file")
    return given


def _why_not_opened(database: Path, engine_message: str) -> str:
    if "Could not set lock" not in engine_message:
        return f"{database} cannot be opened: it is damaged, or not of a format that this version of DuckDB reads"
    process = re.search(r"\(PID (\d+)\)", engine_message)
    holder = f" (process {process[1]})" if process else ""
    return f"{database} is open for writing in another program{holder}; close it there and ask again"


def _existing_database(arguments: argparse.Namespace) -> Path:
    database: Path = arguments.database
    if is_parts_folder(database):
        return database
    if not database.is_file():
        if database.is_dir():
            raise CommandError(f"{database} is a folder without parts.json, so no folder of parts")
        raise CommandError(f"the database {database} {'is not a file' if database.exists() else 'does not exist'}")
    with database.open("rb") as content:
        # asked before DuckDB is, which for some other formats would fetch an extension from the network
        if content.read(12)[8:] != b"DUCK":
            raise CommandError(f"{database} is not a DuckDB database")
    return database
