"""Columns that are written with the schema of their table, as in ``main.visits.city``.

DuckDB takes such a name for a column of the nearest source that is this table and has no alias. From here on the name
of the table alone tells the column apart, so both ways to write it give one query with one hash.
"""

from __future__ import annotations

from collections.abc import Iterable

from sqlglot import exp

from dpsql.model.environment import Environment
from dpsql.sql.clauses import qualifier_of, sources_of
from dpsql.sql.source.as_of import is_of_with


def shorten_qualifiers(columns: Iterable[exp.Column], environment: Environment) -> None:
    """Take schema and database out of the names of columns whose table stands in a FROM around them.

    Any other name keeps them. It is refused where names are resolved, after the sources are read.
    """
    for column in columns:
        source = _nearest_source(column)
        if source and _is_table(source, column, environment):
            column.set("db", None)
            column.set("catalog", None)


def _nearest_source(column: exp.Column) -> exp.Expr | None:
    """Return the nearest source that has the name of the column's table, or None if there is none."""
    query = column.find_ancestor(exp.Select)
    while query:
        for source in sources_of(query):
            if qualifier_of(source) == column.table.lower():
                return source
        query = query.find_ancestor(exp.Select)
    return None


def _is_table(source: exp.Expr, column: exp.Column, environment: Environment) -> bool:
    """Check that a source without an alias is the table that a column's name says."""
    if not isinstance(source, exp.Table) or source.args.get("alias"):
        return False
    written = [part.name for part in source.parts]
    if len(written) == 1 and is_of_with(source):
        return False
    table = environment.schemas.resolve(written)
    named = environment.schemas.resolve([part.name for part in column.parts[:-1]])
    return bool(table and named and table.canonical == named.canonical)
