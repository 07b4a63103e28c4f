"""The tables and functions that the text of a view names, and the columns that its own may be made of."""

from __future__ import annotations

from dataclasses import dataclass

from sqlglot import exp

from dpsql.errors import DpsqlError
from dpsql.model.environment import folded
from dpsql.operations.dialect import parse_statement


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
    return tuple(map(_source, tree.find_all(exp.Table)))


def columns_behind(text: str, names: frozenset[str]) -> frozenset[str] | None:
    """Return the folded names of what columns of a view may be made of, with their own; None if the text hides it.

    Args:
        text: the statement that made the view.
        names: folded names of the columns, in the view or in a query inside it.

    """
    try:
        tree = parse_statement(text)
    except DpsqlError:
        return None
    # names by place: of the view, of a source, and of the first of several queries
    lists = [node.columns for node in tree.find_all(exp.TableAlias)]
    lists += [node.expressions for node in tree.find_all(exp.Schema)]
    if tree.find(exp.SetOperation) or any(folded(column.name) in names for columns in lists for column in columns):
        return None
    renamed = (node.this for node in tree.find_all(exp.Alias) if folded(node.alias) in names)
    return names.union(folded(name.name) for node in renamed for name in node.find_all(exp.Identifier))


def _source(table: exp.Table) -> ViewSource:
    """A table by its name, or what a function names."""
    if isinstance(table.this, exp.Identifier):
        return ViewSource(tuple(part.name for part in table.parts), (table.name,))
    return ViewSource((), tuple(literal.this for literal in table.find_all(exp.Literal) if literal.is_string))
