"""Start the stock ``duckdb`` shell with dpsql in it, and put the extension where a shell finds it."""

from __future__ import annotations

import hashlib
import os
import re
import runpy
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from dpsql.assets import asset, native_library
from dpsql.errors import EngineError
from dpsql.frontends.shell.answering import STATE_VARIABLE
from dpsql.session import text_literal

HELPER_VARIABLE = "DPSQL_HELPER"
"""Environment variable that names the program which the extension starts; read by ``udfs/native/helper.c``."""

_MACRO = "CREATE OR REPLACE TEMP MACRO dp(query) AS TABLE FROM dp_query(query)"


def run_shell(database: str | None, state: Path | None, arguments: Sequence[str]) -> None:
    """Become the DuckDB shell, with the extension loaded; history, rc file and dot commands are its own.

    Raises:
        EngineError: there is no shell, or no extension for it.

    """
    shell = _found("duckdb", "there is no duckdb shell on this machine: pip install 'dpsql[shell]'")
    library = native_library()
    if library is None:
        raise _impossible("the extension for the shell is not built: dpsql install-extension (needs a C compiler)")
    environment = os.environ | {HELPER_VARIABLE: _program()}
    if state is not None:
        environment[STATE_VARIABLE] = str(state.absolute())
    started = ["-unsigned", "-cmd", f"LOAD {text_literal(str(library))}", "-cmd", _MACRO]
    sys.stdout.flush()
    os.execve(shell, [shell, *started, *([database] if database else []), *arguments], environment)  # noqa: S606


def install_extension(folder: Path) -> str:
    """Put the extension into a folder, built if need be; returns what to write into ``~/.duckdbrc``.

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
    """A folder's name for one installation: its environment's, and a digest of where its program is."""
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


def _program() -> str:
    """The command ``dpsql`` of the Python that runs."""
    return _found("dpsql", "there is no command dpsql beside this Python; install dpsql with pip")


def _found(name: str, otherwise: str) -> str:
    """A command beside the Python that runs, or else one on the path."""
    command = shutil.which(name, path=str(Path(sys.executable).parent)) or shutil.which(name)
    if command is None:
        raise _impossible(otherwise)
    return command
