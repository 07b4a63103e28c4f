"""What the text of a view reads: tables by their names, and files by theirs."""

from __future__ import annotations

from dataclasses import dataclass

from sqlglot import exp

from dpsql.errors import DpsqlError
from dpsql.query.dialect import parse_statement


@dataclass(frozen=True, slots=True)
class ViewSource:
    """One source of a view.

    Attributes:
        names: of a table, with schema and database as far as they are written; empty for a function.
        texts: what may name files: the same in one, or texts among the arguments of a function.

    """

    names: tuple[str, ...]
    texts: tuple[str, ...]


def view_sources(text: str) -> tuple[ViewSource, ...]:
    """The sources of a view; none where its text cannot be read."""
    try:
        tree = parse_statement(text)
    except DpsqlError:
        return ()
    return tuple(_source(table) for table in tree.find_all(exp.Table))


def _source(table: exp.Table) -> ViewSource:
    if isinstance(table.this, exp.Identifier):
        return ViewSource(tuple(part.name for part in table.parts), (table.name,))
    return ViewSource((), tuple(literal.this for literal in table.find_all(exp.Literal) if literal.is_string))
