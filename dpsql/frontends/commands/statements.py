"""Commands that run one statement and show its result: query, explain, budget, releases, check and policy."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from dpsql.frontends.commands.database_files import open_books, open_session, writable
from dpsql.frontends.outputs import progress, records, sections, short_hashes, show
from dpsql.session import TARGET_OPTIONS, Analyst, Session, text_literal

_PRIVACY = ("rho", "epsilon", "delta", *TARGET_OPTIONS)
"""Options of a query that the command line has, too."""


def query(arguments: argparse.Namespace) -> None:
    """Run one statement, and show its answer."""
    with writable(arguments), open_session(arguments) as session:
        # how far the reading is follows the rows, which an analyst is not to know
        with progress("answering", session.progress if arguments.analyst is None else None):
            result = _reader(session, arguments).sql(
                arguments.sql, timeout_seconds=arguments.timeout, **_privacy(arguments)
            )
        show(result, arguments)


def explain(arguments: argparse.Namespace) -> None:
    """Show the plan of a SELECT."""
    parameters: dict[str, Any] = {"query": arguments.sql}
    options = [f", {name} := {_written(name, value, parameters)}" for name, value in _privacy(arguments).items()]
    text = f"FROM dp_explain($query{''.join(options)})"
    with writable(arguments), open_session(arguments) as session:
        show(_reader(session, arguments).sql(text, parameters), arguments, listing=sections)


def budget(arguments: argparse.Namespace) -> None:
    """Show budgets."""
    unit = {} if arguments.unit is None else {"unit": arguments.unit}
    with writable(arguments), open_books(arguments) as session:
        show(
            _reader(session, arguments).sql(f"FROM dp_budget({'$unit' if unit else ''})", unit),
            arguments,
            listing=records,
        )


def releases(arguments: argparse.Namespace) -> None:
    """Show what was released."""
    with writable(arguments), open_books(arguments) as session:
        show(_reader(session, arguments).sql("FROM dp_releases()"), arguments, listing=short_hashes)


def check(arguments: argparse.Namespace) -> None:
    """Show what the bounds of a table keep of its raw rows, and better bounds."""
    by = [text_literal(column) for column in arguments.by or ()]
    options = [f", by := [{', '.join(by)}]"] * bool(by) + [", plot := true"] * bool(arguments.plot)
    with open_session(arguments) as session, progress("checking", None):
        result = session.sql(f"FROM dp_check({text_literal(arguments.table)}{''.join(options)})")
    print(sections(result), end="")


def policy(arguments: argparse.Namespace) -> None:
    """Show what is declared."""
    with writable(arguments), open_books(arguments) as session:
        show(session.sql("FROM dp_policy()"), arguments)


def _privacy(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the options that say how private or how exact the answer shall be."""
    return {name: value for name in _PRIVACY if (value := getattr(arguments, name)) is not None}


def _written(name: str, value: float | Mapping[str, float], parameters: dict[str, Any]) -> str:
    """Return the SQL of a number, or of numbers by column, and add the numbers to the parameters."""
    if isinstance(value, Mapping):
        members = [
            f"{text_literal(column)}: {_written(f'{name}_{place}', number, parameters)}"
            for place, (column, number) in enumerate(value.items())
        ]
        return f"{{{', '.join(members)}}}"
    parameters[name] = value
    return f"${name}"


def _reader(session: Session, arguments: argparse.Namespace) -> Session | Analyst:
    return session if arguments.analyst is None else session.as_analyst(arguments.analyst)
