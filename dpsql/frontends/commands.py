"""The commands of ``dpsql``: each finds its database and state file, calls a session, and shows what comes of it."""

from __future__ import annotations

import argparse
import contextlib
import re
import sys
import tempfile
import webbrowser
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb

from dpsql.access.tokens import add_token
from dpsql.errors import DpsqlError, PolicyError
from dpsql.frontends.dbt.project import write_project_files
from dpsql.frontends.demo import run_demo
from dpsql.frontends.outputs import progress, records, sections, short_hashes, show
from dpsql.frontends.server.settings import Settings, Urls, doors_of
from dpsql.frontends.shell import answering
from dpsql.frontends.shell.launch import install_extension, run_shell
from dpsql.session import Analyst, Session, connect, state_beside


class CommandError(DpsqlError):
    """What stands between a command and its session: no such file, a locked database."""


def shell(arguments: argparse.Namespace) -> None:
    """Become the DuckDB shell."""
    run_shell(arguments.database, arguments.state, arguments.arguments)


def install(arguments: argparse.Namespace) -> None:
    """Put the extension in place, and say how a shell loads it."""
    print(install_extension(arguments.folder))
    print(
        "Write this line into ~/.duckdbrc, in place of an older one, and start the shell with: duckdb -unsigned",
        file=sys.stderr,
    )


def helper(_: argparse.Namespace) -> None:
    """Answer the extension that started this process."""
    answering.main()


def dbt_init(arguments: argparse.Namespace) -> None:
    """Write the files that a dbt project needs."""
    profiles, packages = write_project_files(arguments.project_dir, arguments.database)
    print(f"wrote {profiles} and {packages}; now run: dbt deps")


def demo(arguments: argparse.Namespace) -> None:
    """Show the tour, and its pictures where these are asked for."""
    page: Path | None = arguments.html
    if page is None and arguments.open:
        page = Path(tempfile.mkdtemp(prefix="dpsql-demo-"), "demo.html")
    run_demo(page)
    if page is not None:
        shown = arguments.open and webbrowser.open(page.resolve().as_uri())
        print(f"\nThe pictures are {'shown, and ' if shown else ''}in {page}")


def query(arguments: argparse.Namespace) -> None:
    """Run one statement, and show its answer."""
    with _writable(arguments), _session(arguments) as session:
        # how far the reading is follows the rows, which an analyst is not to know
        with progress("answering", session.progress if arguments.analyst is None else None):
            result = _reader(session, arguments).sql(
                arguments.sql, timeout_seconds=arguments.timeout, **_privacy(arguments)
            )
        show(result, arguments)


def explain(arguments: argparse.Namespace) -> None:
    """Show the plan of a SELECT."""
    options = _privacy(arguments)
    text = f"FROM dp_explain($query{''.join(f', {name} := ${name}' for name in options)})"
    with _writable(arguments), _session(arguments) as session:
        show(_reader(session, arguments).sql(text, {"query": arguments.sql, **options}), arguments, listing=sections)


def budget(arguments: argparse.Namespace) -> None:
    """Show budgets."""
    unit = {} if arguments.unit is None else {"unit": arguments.unit}
    with _writable(arguments), _books(arguments) as session:
        show(
            _reader(session, arguments).sql(f"FROM dp_budget({'$unit' if unit else ''})", unit),
            arguments,
            listing=records,
        )


def releases(arguments: argparse.Namespace) -> None:
    """Show what was released."""
    with _writable(arguments), _books(arguments) as session:
        show(_reader(session, arguments).sql("FROM dp_releases()"), arguments, listing=short_hashes)


def policy(arguments: argparse.Namespace) -> None:
    """Show what is declared."""
    with _writable(arguments), _books(arguments) as session:
        show(session.sql("FROM dp_policy()"), arguments)


def serve(arguments: argparse.Namespace) -> None:
    """Answer analysts until a signal.

    Raises:
        PolicyError: an argument makes no sense, or the extra ``server`` is not installed.

    """
    _existing_state(arguments)
    with _session(arguments) as session:
        settings = Settings(
            workers=arguments.workers,
            at_once=arguments.at_once,
            waiting=arguments.waiting,
            timeout_seconds=arguments.timeout,
            first_answer_seconds=arguments.first_answer,
            ask_by_get=arguments.ask_by_get,
        )
        doors = doors_of(arguments)
        try:
            from dpsql.frontends.server.running import run_until_signalled  # noqa: PLC0415 — an extra's packages
        except ImportError as error:
            raise PolicyError(f"dpsql serve needs {error.name}: pip install 'dpsql[server]'") from None
        run_until_signalled(session, doors, settings, _announce)


def _announce(urls: Urls) -> None:
    print(f"analysts: {urls.analysts}", flush=True)
    if urls.curator is not None:
        print(f"curator:  {urls.curator}", flush=True)


def token(arguments: argparse.Namespace) -> None:
    """Print a new token, once."""
    print(add_token(arguments.add_to, arguments.name))


def _privacy(arguments: argparse.Namespace) -> dict[str, Any]:
    return {name: value for name in ("rho", "epsilon", "delta") if (value := getattr(arguments, name)) is not None}


def _reader(session: Session, arguments: argparse.Namespace) -> Session | Analyst:
    return session if arguments.analyst is None else session.as_analyst(arguments.analyst)


def _state_path(arguments: argparse.Namespace) -> Path:
    given: Path | None = arguments.state or state_beside(arguments.database)
    if given is None:
        raise CommandError("a database in memory has no state file")
    return given


def _session(arguments: argparse.Namespace) -> Session:
    """A session on the database, which must exist; declarations change the state file alone."""
    database = _existing_database(arguments)
    try:
        return connect(database, state=_state_path(arguments), read_only=True)
    except duckdb.Error as error:
        raise CommandError(_why_not_opened(database, str(error))) from None


def _why_not_opened(database: Path, engine_message: str) -> str:
    if "Could not set lock" not in engine_message:
        return f"{database} cannot be opened: it is damaged, or not of a format that this version of DuckDB reads"
    process = re.search(r"\(PID (\d+)\)", engine_message)
    holder = f" (process {process[1]})" if process else ""
    return f"{database} is open for writing in another program{holder}; close it there and ask again"


def _books(arguments: argparse.Namespace) -> Session:
    """A session on the state file alone, so that a database that is locked by another program does not matter."""
    return connect(":memory:", state=_existing_state(arguments))


def _existing_state(arguments: argparse.Namespace) -> Path:
    """The state file of the database; both must exist."""
    _existing_database(arguments)
    state = _state_path(arguments)
    if not state.is_file():
        raise CommandError(
            f"there is no state file {state}: nothing is protected yet. "
            "Declare a privacy unit with: dpsql query DB \"CALL dp_unit('patient', …)\""
        )
    return state


def _existing_database(arguments: argparse.Namespace) -> Path:
    database: Path = arguments.database
    if not database.is_file():
        raise CommandError(f"the database {database} {'is not a file' if database.exists() else 'does not exist'}")
    with database.open("rb") as content:
        # asked before DuckDB is, which for some other formats would fetch an extension from the network
        if content.read(12)[8:] != b"DUCK":
            raise CommandError(f"{database} is not a DuckDB database")
    return database


@contextlib.contextmanager
def _writable(arguments: argparse.Namespace) -> Iterator[None]:
    """Find out before anything is charged that the output can be written; leave no empty file behind an error."""
    output: Path | None = arguments.output
    if output is None:
        yield
        return
    existed = output.exists()
    if existed and any(
        path.exists() and output.samefile(path) for path in (arguments.database, _state_path(arguments))
    ):
        raise PolicyError(f"--output {output} would overwrite the database or its state")
    output.open("ab").close()
    try:
        yield
    except BaseException:
        if not existed:
            output.unlink(missing_ok=True)
        raise
