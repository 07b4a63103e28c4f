"""The command line ``dpsql``: it reads arguments, calls Session, and prints.

Exit codes: 0 answered; 1 the database, the engine or the state file failed; 2 the command, the query or the policy is
wrong; 3 the budget does not cover the price; 130 interrupted. An error is one message on stderr, never a traceback.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import logging
import os
import re
import shutil
import sys
import tempfile
import textwrap
import threading
import time
import webbrowser
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.compute as pc

import dpsql
from dpsql.errors import (
    AccessError,
    BudgetError,
    CalibrationError,
    DpsqlError,
    EngineError,
    PolicyError,
    QueryError,
)
from dpsql.frontends.copied import TEXT_FORMATS, copied
from dpsql.frontends.dbt.project import write_project_files
from dpsql.frontends.demo import run_demo
from dpsql.frontends.server.command import add_serve_arguments, add_token_arguments, make_token, run_server
from dpsql.frontends.shell import answering
from dpsql.frontends.shell.launch import install_extension, run_shell
from dpsql.session import Analyst, Result, Session, connect, state_beside

_EXIT_CODES: tuple[tuple[type[DpsqlError], int], ...] = (
    (BudgetError, 3),
    (QueryError, 2),
    (PolicyError, 2),
    (CalibrationError, 2),
    (AccessError, 2),
    (DpsqlError, 1),
)
_TICK_SECONDS = 1.0
_LOCK_HOLDER = re.compile(r"\(PID (\d+)\)")


class _CommandError(Exception):
    """What stands between a command and its session: no such file, a locked database."""

    def __init__(self, message: str, exit_code: int = 1) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code.

    Raises:
        SystemExit: argparse's own, for ``--help`` (0) and for arguments that make no sense (2).

    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # an answer that was paid for must not be lost to a terminal that lacks a letter
            stream.reconfigure(errors="backslashreplace")
    parser = _parser()
    arguments = parser.parse_args(argv)
    if getattr(arguments, "format", None) == "parquet" and arguments.output is None:
        parser.error("--format parquet needs --output FILE")
    is_server = arguments.run is _serve
    with _logging_to_stderr(arguments.verbose or is_server, times=is_server):
        try:
            run: Callable[[argparse.Namespace], None] = arguments.run
            run(arguments)
            sys.stdout.flush()
        except BrokenPipeError:
            # the reader (head, less) has seen enough; Python would complain once more when it closes stdout
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        except KeyboardInterrupt:
            return _complain("interrupted; a charge that was made stays and pays for asking the same again", 130)
        except _CommandError as error:
            return _complain(str(error), error.exit_code)
        except DpsqlError as error:
            return _complain(str(error), next(code for kind, code in _EXIT_CODES if isinstance(error, kind)))
        except duckdb.Error:
            return _complain(str(EngineError("the database engine failed")), 1)
        except OSError as error:
            return _complain(f"{error.filename or 'the operating system'}: {error.strerror}", 1)
    return 0


def _complain(message: str, exit_code: int) -> int:
    print(f"dpsql: {message}", file=sys.stderr)
    return exit_code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="dpsql", description="Differentially private GROUP BY for DuckDB.", allow_abbrev=False
    )
    parser.add_argument("--version", action="version", version=f"dpsql {dpsql.__version__}")
    parser.add_argument("-v", "--verbose", action="store_true", help="log to stderr what is being done")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    def command(name: str, run: Callable[[argparse.Namespace], None], summary: str) -> argparse.ArgumentParser:
        made = commands.add_parser(name, help=summary, description=f"{summary}.", allow_abbrev=False)
        made.add_argument("-v", "--verbose", action="store_true", default=argparse.SUPPRESS, help=argparse.SUPPRESS)
        made.set_defaults(run=run)
        return made

    demo = command("demo", _demo, "a tour on sample data in a temporary folder: counts, sums, intervals, prices")
    demo.add_argument("--open", action="store_true", help="also show its pictures in the browser")
    demo.add_argument("--html", type=Path, metavar="FILE", help="also write its pictures into this file")
    query = command("query", _query, "answer a private SELECT, or carry out a CALL dp_…(…) or FROM dp_…(…)")
    _add_database(query)
    query.add_argument("sql", metavar="SQL", help="one statement, in quotes")
    _add_privacy(query)
    query.add_argument("--timeout", type=float, metavar="SECONDS", help="limit on reading raw data; a charge stays")
    explain = command("explain", _explain, "mechanism, noise, threshold and price of a SELECT; spends nothing")
    _add_database(explain)
    explain.add_argument("sql", metavar="SQL", help="one SELECT, in quotes")
    _add_privacy(explain)
    budget = command("budget", _budget, "what each privacy unit may spend, has spent and has left")
    _add_database(budget)
    budget.add_argument("unit", nargs="?", metavar="UNIT", help="one privacy unit (default: all)")
    releases = command("releases", _releases, "what was released, to whom, at what price")
    _add_database(releases)
    policy = command("policy", _policy, "what the curator has declared")
    _add_database(policy)
    shell = command("shell", _shell, "the stock DuckDB shell, with dp_query, dp_explain, CALL dp_protect(…)")
    shell.add_argument("database", nargs="?", metavar="DB", help="a DuckDB file (default: in memory)")
    shell.add_argument("--state", type=Path, metavar="FILE", help="state file (default: DB.dpsql)")
    shell.add_argument("arguments", nargs=argparse.REMAINDER, metavar="…", help="passed on to duckdb, as -c 'SQL'")
    install = command("install-extension", _install, "put the extension in place, and say what to write in ~/.duckdbrc")
    install.add_argument("--folder", type=Path, default=Path("~/.duckdb/dpsql"), help="where (default: %(default)s)")
    command("helper", _helper, "the process that the extension starts by itself")
    serve = command("serve", _serve, "answer analysts over HTTP who must not see rows; see docs/server.md")
    _add_database(serve)
    add_serve_arguments(serve)
    add_token_arguments(command("token", make_token, "make a token for dpsql serve and print it, once"))
    for made in (query, explain, budget, releases):
        made.add_argument(
            "--analyst", metavar="NAME", help="ask in this analyst's name (a name in the books, not a lock)"
        )
    for made in (query, explain, budget, releases, policy):
        made.add_argument("--format", choices=("box", *TEXT_FORMATS, "parquet"), default="box")
        made.add_argument("--output", type=Path, metavar="FILE", help="write there instead of to the screen")
    dbt = command("dbt", _dbt_init, "what a dbt project needs: dpsql dbt init")
    dbt.add_argument("action", choices=("init",), help="write profiles.yml and packages.yml; overwrites nothing")
    dbt.add_argument("--project-dir", type=Path, default=Path(), metavar="DIR", help="folder with dbt_project.yml")
    dbt.add_argument("--database", default="warehouse.duckdb", metavar="DB", help="the DuckDB file of the project")
    return parser


def _add_database(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("database", type=Path, metavar="DB", help="a DuckDB file; it is opened read-only")
    parser.add_argument(
        "--state", type=Path, metavar="FILE", help="state file with policy, ledger and releases (default: DB.dpsql)"
    )


def _add_privacy(parser: argparse.ArgumentParser) -> None:
    level = parser.add_mutually_exclusive_group()
    level.add_argument("--rho", type=float, metavar="R", help="zCDP level of the query")
    level.add_argument("--epsilon", type=float, metavar="E", help="the same as epsilon, together with delta")
    parser.add_argument("--delta", type=float, metavar="D", help="delta of the query")


def _shell(arguments: argparse.Namespace) -> None:
    run_shell(arguments.database, arguments.state, arguments.arguments)


def _install(arguments: argparse.Namespace) -> None:
    print(install_extension(arguments.folder))
    print(
        "Write this line into ~/.duckdbrc, in place of an older one, and start the shell with: duckdb -unsigned",
        file=sys.stderr,
    )


def _helper(_: argparse.Namespace) -> None:
    answering.main()


def _dbt_init(arguments: argparse.Namespace) -> None:
    written = write_project_files(arguments.project_dir, arguments.database)
    print(f"wrote {' and '.join(map(str, written))}; now run: dbt deps")


def _demo(arguments: argparse.Namespace) -> None:
    page: Path | None = arguments.html
    if page is None and arguments.open:
        page = Path(tempfile.mkdtemp(prefix="dpsql-demo-"), "demo.html")
    run_demo(sys.stdout, page)
    if page is not None:
        shown = arguments.open and webbrowser.open(page.resolve().as_uri())
        print(f"\nThe pictures are {'shown, and ' if shown else ''}in {page}")


def _query(arguments: argparse.Namespace) -> None:
    with _writable(arguments), _session(arguments) as session:
        # how far the reading is follows the rows, which an analyst is not to know
        with _progress("answering", session.progress if arguments.analyst is None else None):
            result = _reader(session, arguments).sql(
                arguments.sql, timeout_seconds=arguments.timeout, **_privacy(arguments)
            )
        _show(result, arguments)


def _explain(arguments: argparse.Namespace) -> None:
    options = _privacy(arguments)
    text = f"FROM dp_explain($query{''.join(f', {name} := ${name}' for name in options)})"
    with _writable(arguments), _session(arguments) as session:
        result = _reader(session, arguments).sql(text, {"query": arguments.sql, **options})
        _show(result, arguments, listing=_sections)


def _budget(arguments: argparse.Namespace) -> None:
    unit = {} if arguments.unit is None else {"unit": arguments.unit}
    with _writable(arguments), _books(arguments) as session:
        result = _reader(session, arguments).sql(f"FROM dp_budget({'$unit' if unit else ''})", unit)
        _show(result, arguments, listing=_records)


def _releases(arguments: argparse.Namespace) -> None:
    with _writable(arguments), _books(arguments) as session:
        _show(_reader(session, arguments).sql("FROM dp_releases()"), arguments, listing=_short_hashes)


def _policy(arguments: argparse.Namespace) -> None:
    with _writable(arguments), _books(arguments) as session:
        _show(session.sql("FROM dp_policy()"), arguments)


def _serve(arguments: argparse.Namespace) -> None:
    _existing_database(arguments)
    _existing_state(arguments)
    with _session(arguments) as session:
        run_server(session, arguments)


def _privacy(arguments: argparse.Namespace) -> dict[str, Any]:
    asked = {name: getattr(arguments, name) for name in ("rho", "epsilon", "delta")}
    return {name: value for name, value in asked.items() if value is not None}


def _reader(session: Session, arguments: argparse.Namespace) -> Session | Analyst:
    return session if arguments.analyst is None else session.as_analyst(arguments.analyst)


def _state_path(arguments: argparse.Namespace) -> Path:
    given: Path | None = arguments.state or state_beside(arguments.database)
    if given is None:
        raise _CommandError("a database in memory has no state file")
    return given


@contextlib.contextmanager
def _session(arguments: argparse.Namespace) -> Iterator[Session]:
    """A session on the database, which must exist; declarations change the state file alone."""
    database = _existing_database(arguments)
    try:
        session = connect(database, state=_state_path(arguments), read_only=True)
    except duckdb.Error as error:
        raise _CommandError(_why_not_opened(database, str(error))) from None
    with session:
        yield session


def _why_not_opened(database: Path, engine_message: str) -> str:
    if "Could not set lock" not in engine_message:
        return f"{database} cannot be opened: it is damaged, or not of a format that this version of DuckDB reads"
    process = _LOCK_HOLDER.search(engine_message)
    holder = f" (process {process[1]})" if process else ""
    return f"{database} is open for writing in another program{holder}; close it there and ask again"


@contextlib.contextmanager
def _books(arguments: argparse.Namespace) -> Iterator[Session]:
    """A session on the state file alone, so that a database that is locked by another program does not matter."""
    _existing_database(arguments)
    with connect(":memory:", state=_existing_state(arguments)) as session:
        yield session


def _existing_state(arguments: argparse.Namespace) -> Path:
    state = _state_path(arguments)
    if not state.is_file():
        raise _CommandError(
            f"there is no state file {state}: nothing is protected yet. "
            "Declare a privacy unit with: dpsql query DB \"CALL dp_unit('patient', …)\""
        )
    return state


def _existing_database(arguments: argparse.Namespace) -> Path:
    database: Path = arguments.database
    if not database.is_file():
        found = "is not a file" if database.exists() else "does not exist"
        raise _CommandError(f"the database {database} {found}")
    with database.open("rb") as content:
        # asked before DuckDB is, which for some other formats would fetch an extension from the network
        if content.read(12)[8:] != b"DUCK":
            raise _CommandError(f"{database} is not a DuckDB database")
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
        raise _CommandError(f"--output {output} would overwrite the database or its state", 2)
    output.open("ab").close()
    try:
        yield
    except BaseException:
        if not existed:
            output.unlink(missing_ok=True)
        raise


def _show(result: Result, arguments: argparse.Namespace, *, listing: Callable[[Result], str] = str) -> None:
    """Print or write a result; what is not a box keeps its receipt apart, on stderr."""
    output: Path | None = arguments.output
    if arguments.format == "parquet":
        assert output is not None  # noqa: S101 — the arguments were checked
        result.to_parquet(output)
    else:
        text = listing(result) if arguments.format == "box" else copied(result, arguments.format).decode()
        if output is None:
            sys.stdout.write(text)
        else:
            output.write_text(text, encoding="utf-8", newline="")
    if arguments.format != "box" and result.receipt is not None:
        print(result.receipt, file=sys.stderr)


def _short_hashes(result: Result) -> str:
    """A box in which a query hash shows as many letters as tell queries apart."""
    table = result.arrow()
    place = table.schema.get_field_index("query_hash")
    short = pc.utf8_slice_codeunits(table.column(place), 0, 12)
    return str(Result(table.set_column(place, "query_hash", short)))


def _sections(result: Result) -> str:
    """Rows (section, name, value) as a list in the width of the screen."""
    return _listed([(section, name, value) for section, name, value in result.fetchall()])


def _records(result: Result) -> str:
    """Every row as a list of its columns, headed by the first one."""
    lines = []
    for head, *values in result.fetchall():
        for name, value in zip(result.columns[1:], values, strict=True):
            lines.append((str(head), name, f"{value:.9g}" if isinstance(value, float) else str(value)))
    return _listed(lines)


def _listed(lines: Sequence[tuple[str, str, str]]) -> str:
    width = max(60, min(shutil.get_terminal_size((100, 24)).columns, 120))
    first, second = (max((len(line[i]) for line in lines), default=0) + 2 for i in (0, 1))
    # a name as long as an expression stands on a line of its own
    second = min(second, width // 3)
    shown = []
    before = None
    for section, name, value in lines:
        head = f"{section if section != before else '':<{first}}{name:<{second}}"
        before = section
        if len(name) >= second:
            shown.append(head.rstrip())
            head = ""
        indent = " " * (first + second)
        shown += textwrap.wrap(value, width, initial_indent=head or indent, subsequent_indent=indent) or [head]
    return "".join(f"{line}\n" for line in shown)


@contextlib.contextmanager
def _logging_to_stderr(verbose: bool, *, times: bool) -> Iterator[None]:
    if not verbose:
        yield
        return
    logger = logging.getLogger("dpsql")
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter(f"{'%(asctime)s ' * times}%(name)s: %(message)s"))
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.setLevel(level)
        logger.removeHandler(handler)


@contextlib.contextmanager
def _progress(doing: str, share_done: Callable[[], float | None] | None) -> Iterator[None]:
    """A line on the terminal with the seconds so far, from the first second on, and how much is done where known."""
    if not sys.stderr.isatty():
        yield
        return
    done = threading.Event()
    began = time.monotonic()

    def tick() -> None:
        while not done.wait(_TICK_SECONDS):
            share = None if share_done is None else share_done()
            done_so_far = "" if share is None else f", {share:4.0%}"
            sys.stderr.write(f"\r{doing} … {time.monotonic() - began:.0f} s{done_so_far}\x1b[K ")
            sys.stderr.flush()

    ticker = threading.Thread(target=tick, daemon=True)
    ticker.start()
    try:
        yield
    finally:
        done.set()
        ticker.join()
        sys.stderr.write("\r\x1b[K")
        sys.stderr.flush()
