"""Start the stock ``duckdb`` shell with dpsql in it, and put the extension where a shell finds it."""

from __future__ import annotations

import hashlib
import json
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from dpsql.assets import asset, native_library
from dpsql.errors import DpsqlError, EngineError
from dpsql.frontends.shell.answering import STATE_VARIABLE
from dpsql.session import SHELL_STORAGE_VERSION, is_parts_folder, text_literal

HELPER_VARIABLE = "DPSQL_HELPER"
"""Environment variable that names the program which the extension starts; read by ``udfs/native/helper.c``."""

_TOO_NEW = "created with a newer version of DuckDB"
"""Words of the shell about a file whose format is newer than itself."""

_MACRO = "CREATE OR REPLACE TEMP MACRO dp(query) AS TABLE FROM dp_query(query)"


class FormatError(DpsqlError):
    """A database file whose format is newer than the shell."""


def run_shell(database: str | None, state: Path | None, arguments: Sequence[str]) -> None:
    """Become the DuckDB shell, with the extension loaded; history, rc file and dot commands are its own.

    Raises:
        EngineError: there is no shell, or no extension for it.
        FormatError: the shell does not read the format of the database.

    """
    if database and is_parts_folder(Path(database)):
        raise _impossible(f'the shell reads no folder of parts: dpsql query {database} "SELECT …"')
    shell = _found("duckdb", "there is no duckdb shell on this machine: pip install 'dpsql[shell]'")
    library = native_library()
    if library is None:
        raise _impossible("the extension for the shell is not built: dpsql install-extension (needs a C compiler)")
    if database and Path(database).is_file():
        _check_format(shell, Path(database))
    environment = os.environ | {HELPER_VARIABLE: _program()}
    if state is not None:
        environment[STATE_VARIABLE] = str(state.absolute())
    started = ["-unsigned", "-cmd", f"LOAD {text_literal(str(library))}", "-cmd", _MACRO]
    sys.stdout.flush()
    os.execve(shell, [shell, *started, *([database] if database else []), *arguments], environment)  # noqa: S606


def install_extension(folder: Path) -> str:
    """Put the extension into a folder, built if need be, and return the line for ``~/.duckdbrc``.

    Each installation of dpsql has a folder of its own there, which the line names: the library, and beside it the
    program that it starts. So another environment does not change what this line loads.

    Raises:
        EngineError: it is not built, and cannot be.

    """
    built = native_library() or _built()
    program = _program()
    folder = folder.expanduser().absolute() / _installation(program)
    folder.mkdir(parents=True, exist_ok=True)
    library = folder / built.name
    fresh = folder / f"{built.name}.new"
    shutil.copyfile(built, fresh)
    # in one step, so that no shell loads half a library
    fresh.replace(library)
    Path(f"{library}.helper").write_text(f"{program}\n", encoding="utf-8")
    return f"LOAD {text_literal(str(library))}; {_MACRO};"


def _installation(program: str) -> str:
    """Return a folder's name for one installation: its environment's, and a digest of its program's place."""
    bin_folder = Path(program).absolute().parent
    environments = (part.name for part in bin_folder.parents if part.name and not part.name.startswith("."))
    name = re.sub(r"[^A-Za-z0-9_-]+", "_", next(environments, "dpsql"))
    return f"{name}-{hashlib.sha256(os.fsencode(bin_folder)).hexdigest()[:8]}"


def _built() -> Path:
    try:
        runpy.run_path(str(asset("udfs", "native", "build.py")), run_name="__main__")
    except SystemExit as refusal:
        raise _impossible(str(refusal.code)) from None
    library = native_library()
    if library is None:
        raise _impossible("the extension could not be built")
    return library


def _impossible(reason: str) -> EngineError:
    return EngineError(reason, withheld=False, charged=False)


def _check_format(shell: str, database: Path) -> None:
    """Raise FormatError if the shell is too old for the format of a database file.

    The shell is asked, because only it knows what it reads. It reads no file of the user's settings.
    """
    asked = subprocess.run(  # noqa: S603
        [shell, "-init", os.devnull, "-readonly", str(database), "-c", ""],
        capture_output=True,
        text=True,
        check=False,
        errors="replace",
    )
    if asked.returncode and _TOO_NEW in asked.stderr:
        raise FormatError(
            f"{database} has a format that this shell, {shell}, does not read; copy it once into an older format with: "
            f"{_copying(database)}"
        )


def _copying(database: Path) -> str:
    """Return the command line that copies a database into the format of `SHELL_STORAGE_VERSION`.

    The copy takes the place of the file, so that its state file lies beside it. The file stays under another name.
    """
    file = str(database.resolve())
    former, copy = f"{file}.former", f"{file}.copy"
    statements = (
        f"ATTACH $${file}$$ AS former",
        f"ATTACH $${copy}$$ AS fresh (STORAGE_VERSION $${SHELL_STORAGE_VERSION}$$)",
        "COPY FROM DATABASE former TO fresh",
        "DETACH former",
        "DETACH fresh",
    )
    program = f"import duckdb; duckdb.sql({json.dumps('; '.join(statements), ensure_ascii=False)})"
    return (
        f"{shlex.join([sys.executable, '-c', program])} && {shlex.join(['mv', file, former])} && "
        f"{shlex.join(['mv', copy, file])}"
    )


def _program() -> str:
    """Return the command ``dpsql`` of the Python that runs."""
    return _found("dpsql", "there is no command dpsql beside this Python; install dpsql with pip")


def _found(name: str, otherwise: str) -> str:
    """Return a command beside the Python that runs, or else one on the path."""
    command = shutil.which(name, path=str(Path(sys.executable).parent)) or shutil.which(name)
    if command is None:
        raise _impossible(otherwise)
    return command
