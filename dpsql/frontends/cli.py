"""The command line ``dpsql``: a table of commands, their arguments, and the exit codes of errors.

Exit codes: 0 answered; 1 the database, the engine or the state file failed; 2 the command, the query or the policy is
wrong; 3 the budget does not cover the price; 130 interrupted. An error is one message on stderr, never a traceback.
With ``--format json`` or ``jsonl`` it is also a JSON document on stdout, where the answer would be.

A command's module is imported when the command is run, so that help needs no package of others.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import logging
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

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
from dpsql.frontends.command_arguments import DATABASE, OUTPUT, READER, SERVE, add_privacy, argument
from dpsql.frontends.text_formats import JSON_FORMATS

_EXIT_CODES: tuple[tuple[type[DpsqlError], int], ...] = (
    (BudgetError, 3),
    (QueryError, 2),
    (PolicyError, 2),
    (CalibrationError, 2),
    (AccessError, 2),
    (DpsqlError, 1),
)


@dataclass(frozen=True, slots=True)
class Command:
    """A command of the command line.

    Attributes:
        name: in the command line; the function of this name runs it, written with underscores.
        module: of the function.
        summary: sentence for the help.
        arguments: functions that add an argument each, in the order of the help.

    """

    name: str
    module: str
    summary: str
    arguments: Sequence[Callable[[argparse.ArgumentParser], object]] = ()

    def run(self, arguments: argparse.Namespace) -> None:
        """Import the command's module and run the command."""
        getattr(import_module(self.module), self.name.replace("-", "_"))(arguments)


COMMANDS = (
    Command(
        "demo",
        "dpsql.frontends.commands.tour",
        "one story on sample data in a temporary folder: counts, averages, intervals, prices",
        (
            argument("--open", action="store_true", help="also show its pictures in the browser"),
            argument("--html", type=Path, metavar="FILE", help="also write its pictures into this file"),
        ),
    ),
    Command(
        "query",
        "dpsql.frontends.commands.statements",
        "answer a private SELECT, or carry out a CALL dp_…(…) or FROM dp_…(…)",
        (
            *DATABASE,
            argument("sql", metavar="SQL", help="one statement, in quotes"),
            add_privacy,
            argument("--timeout", type=float, metavar="SECONDS", help="limit on reading raw data; a charge stays"),
            *READER,
            *OUTPUT,
            argument("--receipt", action="store_true", help="print price, privacy, keys, error and bounds in full"),
        ),
    ),
    Command(
        "explain",
        "dpsql.frontends.commands.statements",
        "mechanism, noise, threshold and price of a SELECT; spends nothing",
        (*DATABASE, argument("sql", metavar="SQL", help="one SELECT, in quotes"), add_privacy, *READER, *OUTPUT),
    ),
    Command(
        "budget",
        "dpsql.frontends.commands.statements",
        "what each privacy unit may spend, has spent and has left",
        (
            *DATABASE,
            argument("unit", nargs="?", metavar="UNIT", help="one privacy unit (default: all)"),
            *READER,
            *OUTPUT,
        ),
    ),
    Command(
        "releases",
        "dpsql.frontends.commands.statements",
        "what was released, to whom, at what price",
        (*DATABASE, *READER, *OUTPUT),
    ),
    Command(
        "check",
        "dpsql.frontends.commands.statements",
        "what the declared bounds of a table keep, and better bounds; reads raw rows, for the curator alone",
        (
            *DATABASE,
            argument("table", metavar="TABLE", help="a protected table"),
            argument(
                "--by", action="append", metavar="COLUMN", help="group by it (may be repeated; default: likely columns)"
            ),
            argument("--plot", action="store_true", help="also draw errors against the bounds on groups and rows"),
        ),
    ),
    Command("policy", "dpsql.frontends.commands.statements", "what the curator has declared", (*DATABASE, *OUTPUT)),
    Command(
        "shell",
        "dpsql.frontends.commands.duckdb_shell",
        "the stock DuckDB shell, with dp_query, dp_explain, CALL dp_protect(…)",
        (
            argument("database", nargs="?", metavar="DB", help="a DuckDB file (default: in memory)"),
            argument("--state", type=Path, metavar="FILE", help="state file (default: DB.dpsql)"),
            argument("arguments", nargs=argparse.REMAINDER, metavar="…", help="passed on to duckdb, as -c 'SQL'"),
        ),
    ),
    Command(
        "install-extension",
        "dpsql.frontends.commands.duckdb_shell",
        "put the extension in place, and say what to write in ~/.duckdbrc",
        (argument("--folder", type=Path, default=Path("~/.duckdb/dpsql"), help="where (default: %(default)s)"),),
    ),
    Command("helper", "dpsql.frontends.commands.duckdb_shell", "the process that the extension starts by itself"),
    Command(
        "serve",
        "dpsql.frontends.commands.service",
        "answer analysts over HTTP who must not see rows",
        (*DATABASE, *SERVE),
    ),
    Command(
        "token",
        "dpsql.frontends.commands.service",
        "make a token for dpsql serve and print it, once",
        (
            argument("name", metavar="NAME", help="the analyst, as in CALL dp_analyst(…); or curator"),
            argument(
                "--add-to",
                required=True,
                type=Path,
                metavar="FILE",
                help="file of tokens; it gets a hash, never the token",
            ),
        ),
    ),
    Command(
        "split",
        "dpsql.frontends.commands.parts",
        "write tables as a folder of parts, each a DuckDB file with whole privacy units",
        (
            argument("sources", nargs="*", type=Path, metavar="SOURCE", help="Parquet or CSV files, or a DuckDB file"),
            argument("--out", type=Path, metavar="FOLDER", help="the folder; a folder of parts gets a new version"),
            argument("--parts", type=int, default=16, metavar="N", help="number of parts (default %(default)s)"),
            argument("--by", action="append", default=[], metavar="COLUMN", help="unit column, or TABLE=COLUMN,…"),
            argument(
                "--table",
                action="append",
                default=[],
                metavar="TABLE",
                help="table of the DuckDB file (may be repeated; default: all that its state file declares)",
            ),
            argument(
                "--public",
                action="append",
                default=[],
                metavar="TABLE",
                help="public file, or public table of the DuckDB file; each part has all of it (may be repeated)",
            ),
            argument("--state", type=Path, metavar="FILE", help="state file of the DuckDB file (default: DB.dpsql)"),
            argument("--unit", metavar="UNIT", help="unit whose declared tables are split, if there are several"),
            argument("--check", type=Path, metavar="FOLDER", help="prove that no unit is in two parts of a folder"),
        ),
    ),
    Command(
        "dbt",
        "dpsql.frontends.commands.dbt_project",
        "what a dbt project needs: dpsql dbt init",
        (
            argument("action", choices=("init",), help="write profiles.yml and packages.yml; overwrites nothing"),
            argument("--project-dir", type=Path, default=Path(), metavar="DIR", help="folder with dbt_project.yml"),
            argument("--database", default="warehouse.duckdb", metavar="DB", help="the DuckDB file of the project"),
        ),
    ),
)


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
    command: Command = arguments.command
    is_server = command.name == "serve"
    with _logging_to_stderr(arguments.verbose or is_server, times=is_server):
        try:
            command.run(arguments)
            sys.stdout.flush()
        except BrokenPipeError:
            # the reader (head, less) has seen enough; Python would complain once more when it closes stdout
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        except KeyboardInterrupt:
            return _complain("interrupted; a charge that was made stays and pays for asking the same again", 130)
        except DpsqlError as error:
            return _refuse(error, arguments)
        except _engine_errors():
            return _refuse(EngineError("the database engine failed"), arguments)
        except OSError as error:
            return _complain(f"{error.filename or 'the operating system'}: {error.strerror}", 1)
    return 0


def _engine_errors() -> type[Exception] | tuple[()]:
    """Return the class of DuckDB's errors, or no class if DuckDB was not imported."""
    duckdb: Any = sys.modules.get("duckdb")
    errors: type[Exception] | tuple[()] = () if duckdb is None else duckdb.Error
    return errors


def _refuse(error: DpsqlError, arguments: argparse.Namespace) -> int:
    """Print an error, with ``--format json`` or ``jsonl`` also as a document on stdout, and return its exit code."""
    chosen = getattr(arguments, "format", None)
    if chosen in JSON_FORMATS:
        from dpsql.frontends.outputs import refused  # noqa: PLC0415 — few errors are written as JSON

        with contextlib.suppress(BrokenPipeError):
            sys.stdout.write(refused(error, chosen))
            sys.stdout.flush()
    return _complain(str(error), next(code for kind, code in _EXIT_CODES if isinstance(error, kind)))


def _complain(message: str, exit_code: int) -> int:
    print(f"dpsql: {message}", file=sys.stderr)
    return exit_code


class _Version(argparse.Action):
    """Option that prints the version, which is looked up for this alone."""

    def __call__(self, *_: object) -> None:
        """Print the version and end.

        Raises:
            SystemExit: always.

        """
        print(f"dpsql {dpsql.__version__}")
        raise SystemExit(0)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="dpsql", description="Differentially private GROUP BY for DuckDB.", allow_abbrev=False
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="show program's version number and exit")
    parser.add_argument("-v", "--verbose", action="store_true", help="log to stderr what is being done")
    made = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in COMMANDS:
        one = made.add_parser(command.name, help=command.summary, description=f"{command.summary}.", allow_abbrev=False)
        one.add_argument("-v", "--verbose", action="store_true", default=argparse.SUPPRESS, help=argparse.SUPPRESS)
        one.set_defaults(command=command)
        for add in command.arguments:
            add(one)
    return parser


@contextlib.contextmanager
def _logging_to_stderr(verbose: bool, *, times: bool) -> Iterator[None]:
    logger = logging.getLogger("dpsql")
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter(f"{'%(asctime)s ' * times}%(name)s: %(message)s"))
    level = logger.level
    if verbose:
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.setLevel(level)
        logger.removeHandler(handler)
