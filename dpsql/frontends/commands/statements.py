"""Commands that run one statement and show its result: query, explain, budget, releases and policy."""

from __future__ import annotations

import argparse
from typing import Any

from dpsql.frontends.commands.database_files import open_books, open_session, writable
from dpsql.frontends.outputs import progress, records, sections, short_hashes, show
from dpsql.session import Analyst, Session


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
    options = _privacy(arguments)
    text = f"FROM dp_explain($query{''.join(f', {name} := ${name}' for name in options)})"
    with writable(arguments), open_session(arguments) as session:
        show(_reader(session, arguments).sql(text, {"query": arguments.sql, **options}), arguments, listing=sections)


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


def policy(arguments: argparse.Namespace) -> None:
    """Show what is declared."""
    with writable(arguments), open_books(arguments) as session:
        show(session.sql("FROM dp_policy()"), arguments)


def _privacy(arguments: argparse.Namespace) -> dict[str, Any]:
    return {name: value for name in ("rho", "epsilon", "delta") if (value := getattr(arguments, name)) is not None}


def _reader(session: Session, arguments: argparse.Namespace) -> Session | Analyst:
    return session if arguments.analyst is None else session.as_analyst(arguments.analyst)
