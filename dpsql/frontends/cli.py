"""The command line ``dpsql``: a table of commands, their arguments, and the exit codes of errors.

Exit codes: 0 answered; 1 the database, the engine or the state file failed; 2 the command, the query or the policy is
wrong; 3 the budget does not cover the price; 130 interrupted. An error is one message on stderr, never a traceback.

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
from dpsql.frontends.server.settings import Settings
from dpsql.frontends.text_formats import TEXT_FORMATS

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


def _argument(*names: str, **settings: Any) -> Callable[[argparse.ArgumentParser], object]:
    return lambda parser: parser.add_argument(*names, **settings)


def _half_widths(text: str) -> float | dict[str, float]:
    """Return the half width of a text, or half widths by column.

    >>> _half_widths("50"), _half_widths("visits=50,cost=5e3")
    (50.0, {'visits': 50.0, 'cost': 5000.0})

    Raises:
        ValueError: a half width is no number, or a column stands twice.

    """
    if "=" not in text:
        return float(text)
    named = [one.rpartition("=") for one in text.split(",")]
    widths = {name: float(width) for name, _, width in named}
    if len(widths) < len(named):
        raise ValueError(text)
    return widths


def _add_privacy(parser: argparse.ArgumentParser) -> None:
    level = parser.add_mutually_exclusive_group()
    level.add_argument("--rho", type=float, metavar="R", help="zCDP level of the query")
    level.add_argument("--epsilon", type=float, metavar="E", help="the same as epsilon, together with delta")
    level.add_argument(
        "--target-half-width",
        type=_half_widths,
        metavar="W",
        help="half width of counts and sums in place of a level: 50, or by column visits=50,cost=5000",
    )
    level.add_argument(
        "--target-relative-error",
        type=float,
        metavar="A",
        help="relative error of counts, sums and averages in place of a level: 0.1; needs --max-rho or --max-epsilon",
    )
    parser.add_argument("--delta", type=float, metavar="D", help="delta of the query")
    parser.add_argument("--at-least", type=float, metavar="S", help="share of the groups within the relative error")
    parser.add_argument(
        "--method",
        metavar="M",
        help="CORRELATED: as many of the largest counts within the relative error as the level buys",
    )
    parser.add_argument("--confidence", type=float, metavar="C", help="confidence of a target: 0.9, 0.95 or 0.99")
    parser.add_argument("--max-rho", type=float, metavar="R", help="the highest rho that a target may take")
    parser.add_argument("--max-epsilon", type=float, metavar="E", help="the highest epsilon that a target may take")


_DATABASE = (
    _argument("database", type=Path, metavar="DB", help="a DuckDB file; it is opened read-only"),
    _argument(
        "--state", type=Path, metavar="FILE", help="state file with policy, ledger and releases (default: DB.dpsql)"
    ),
)
_READER = (_argument("--analyst", metavar="NAME", help="ask in this analyst's name (a name in the books, not a lock)"),)
_OUTPUT = (
    _argument("--format", choices=("box", *TEXT_FORMATS, "parquet"), default="box"),
    _argument("--output", type=Path, metavar="FILE", help="write there instead of to the screen"),
)
_SETTINGS = Settings()
_SERVE = (
    _argument("--listen", required=True, metavar="HOST:PORT", help="where analysts connect; port 0: any free"),
    _argument("--analysts", required=True, type=Path, metavar="FILE", help="tokens, made by dpsql token"),
    _argument("--certificate", type=Path, metavar="PEM", help="TLS certificate chain"),
    _argument("--key", type=Path, metavar="PEM", help="its private key"),
    _argument("--plain-http", action="store_true", help="no TLS, though other machines can connect"),
    _argument("--curator-listen", metavar="HOST:PORT", help="where the curator sees metrics and all releases"),
    _argument("--curator-tokens", type=Path, metavar="FILE", help="tokens of the name curator"),
    _argument("--ask-by-get", action="store_true", help="let GET /v1/result.parquet?sql=… ask, and charge"),
    _argument(
        "--workers",
        type=int,
        default=_SETTINGS.workers,
        metavar="N",
        help="questions worked on at a time (default %(default)s)",
    ),
    _argument(
        "--at-once",
        type=int,
        default=_SETTINGS.at_once,
        metavar="N",
        help="the same of one analyst; more than 1 lets them time one question by another (default %(default)s)",
    ),
    _argument(
        "--waiting",
        type=int,
        default=_SETTINGS.waiting,
        metavar="N",
        help="questions of one analyst that may wait (default %(default)s)",
    ),
    _argument(
        "--timeout",
        type=float,
        default=_SETTINGS.timeout_seconds,
        metavar="SECONDS",
        help="most time until an answer (default %(default)s)",
    ),
    _argument(
        "--first-answer",
        type=float,
        default=_SETTINGS.first_answer_seconds,
        metavar="SECONDS",
        help="answers are shown after this time, or 2, 4, 8 … times it; 0: at once (default %(default)s)",
    ),
)

COMMANDS = (
    Command(
        "demo",
        "dpsql.frontends.commands.tour",
        "one story on sample data in a temporary folder: counts, averages, intervals, prices",
        (
            _argument("--open", action="store_true", help="also show its pictures in the browser"),
            _argument("--html", type=Path, metavar="FILE", help="also write its pictures into this file"),
        ),
    ),
    Command(
        "query",
        "dpsql.frontends.commands.statements",
        "answer a private SELECT, or carry out a CALL dp_…(…) or FROM dp_…(…)",
        (
            *_DATABASE,
            _argument("sql", metavar="SQL", help="one statement, in quotes"),
            _add_privacy,
            _argument("--timeout", type=float, metavar="SECONDS", help="limit on reading raw data; a charge stays"),
            *_READER,
            *_OUTPUT,
            _argument("--receipt", action="store_true", help="print price, privacy, keys, error and bounds in full"),
        ),
    ),
    Command(
        "explain",
        "dpsql.frontends.commands.statements",
        "mechanism, noise, threshold and price of a SELECT; spends nothing",
        (*_DATABASE, _argument("sql", metavar="SQL", help="one SELECT, in quotes"), _add_privacy, *_READER, *_OUTPUT),
    ),
    Command(
        "budget",
        "dpsql.frontends.commands.statements",
        "what each privacy unit may spend, has spent and has left",
        (
            *_DATABASE,
            _argument("unit", nargs="?", metavar="UNIT", help="one privacy unit (default: all)"),
            *_READER,
            *_OUTPUT,
        ),
    ),
    Command(
        "releases",
        "dpsql.frontends.commands.statements",
        "what was released, to whom, at what price",
        (*_DATABASE, *_READER, *_OUTPUT),
    ),
    Command(
        "check",
        "dpsql.frontends.commands.statements",
        "what the declared bounds of a table keep, and better bounds; reads raw rows, for the curator alone",
        (
            *_DATABASE,
            _argument("table", metavar="TABLE", help="a protected table"),
            _argument(
                "--by", action="append", metavar="COLUMN", help="group by it (may be repeated; default: likely columns)"
            ),
            _argument("--plot", action="store_true", help="also draw errors against the bounds on groups and rows"),
        ),
    ),
    Command("policy", "dpsql.frontends.commands.statements", "what the curator has declared", (*_DATABASE, *_OUTPUT)),
    Command(
        "shell",
        "dpsql.frontends.commands.duckdb_shell",
        "the stock DuckDB shell, with dp_query, dp_explain, CALL dp_protect(…)",
        (
            _argument("database", nargs="?", metavar="DB", help="a DuckDB file (default: in memory)"),
            _argument("--state", type=Path, metavar="FILE", help="state file (default: DB.dpsql)"),
            _argument("arguments", nargs=argparse.REMAINDER, metavar="…", help="passed on to duckdb, as -c 'SQL'"),
        ),
    ),
    Command(
        "install-extension",
        "dpsql.frontends.commands.duckdb_shell",
        "put the extension in place, and say what to write in ~/.duckdbrc",
        (_argument("--folder", type=Path, default=Path("~/.duckdb/dpsql"), help="where (default: %(default)s)"),),
    ),
    Command("helper", "dpsql.frontends.commands.duckdb_shell", "the process that the extension starts by itself"),
    Command(
        "serve",
        "dpsql.frontends.commands.service",
        "answer analysts over HTTP who must not see rows",
        (*_DATABASE, *_SERVE),
    ),
    Command(
        "token",
        "dpsql.frontends.commands.service",
        "make a token for dpsql serve and print it, once",
        (
            _argument("name", metavar="NAME", help="the analyst, as in CALL dp_analyst(…); or curator"),
            _argument(
                "--add-to",
                required=True,
                type=Path,
                metavar="FILE",
                help="file of tokens; it gets a hash, never the token",
            ),
        ),
    ),
    Command(
        "dbt",
        "dpsql.frontends.commands.dbt_project",
        "what a dbt project needs: dpsql dbt init",
        (
            _argument("action", choices=("init",), help="write profiles.yml and packages.yml; overwrites nothing"),
            _argument("--project-dir", type=Path, default=Path(), metavar="DIR", help="folder with dbt_project.yml"),
            _argument("--database", default="warehouse.duckdb", metavar="DB", help="the DuckDB file of the project"),
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
            return _complain(str(error), next(code for kind, code in _EXIT_CODES if isinstance(error, kind)))
        except _engine_errors():
            return _complain(str(EngineError("the database engine failed")), 1)
        except OSError as error:
            return _complain(f"{error.filename or 'the operating system'}: {error.strerror}", 1)
    return 0


def _engine_errors() -> type[Exception] | tuple[()]:
    """Return the class of DuckDB's errors, or no class if DuckDB was not imported."""
    duckdb: Any = sys.modules.get("duckdb")
    errors: type[Exception] | tuple[()] = () if duckdb is None else duckdb.Error
    return errors


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
