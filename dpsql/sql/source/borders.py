"""Borders around the tables of a side: its rows are joined with each other before those of other sides."""

from __future__ import annotations

from sqlglot import exp

from dpsql.model.environment import Environment, TableSchema
from dpsql.sql.source.relation import Relation, query_of_view

_OTHER_ROWS = (exp.Join, exp.Lateral, exp.Values, exp.Unnest, exp.Anonymous)
"""Parts of a view that bring rows beside those of its table; an unknown function may be a macro that reads a table."""


def bordered(text: str) -> str:
    """Return rows as SQL that the optimizer computes by themselves."""
    # not OFFSET 0, which is such a border, too: DuckDB 2.0 never ends where windows are joined under a limit
    return f"(WITH side AS MATERIALIZED (SELECT * FROM {text}) SELECT * FROM side)"


def hides_joins(relation: Relation, environment: Environment) -> bool:
    """Return True if a relation is a protected view of more than one table."""
    is_protected = bool(relation.schema.relation and relation.is_table and relation.owner)
    return is_protected and not _is_one_table(relation.schema, environment)


def _is_one_table(schema: TableSchema, environment: Environment) -> bool:
    """Return whether a name means a base table, or a view of one base table and nothing else."""
    if environment.schemas.is_base_table(schema):
        return True
    view = query_of_view(schema, environment)
    tables = list(view[0].find_all(exp.Table)) if view else []
    if not view or len(tables) != 1 or not isinstance(tables[0].this, exp.Identifier):
        return False
    if len(list(view[0].find_all(exp.Select))) != 1 or view[0].find(*_OTHER_ROWS):
        return False
    inner = environment.schemas.resolve([part.name for part in tables[0].parts])
    return inner is not None and environment.schemas.is_base_table(inner)
