"""Names of columns: of a result, as DuckDB gives them, and those that a query writes."""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp

from dpsql.model.environment import JoinedName, TableSchema, folded
from dpsql.model.similar_names import as_written, did_you_mean
from dpsql.operations.dialect import unquoted


def column_name(item: exp.Expr) -> str:
    """Return the name of a result column: its alias, the column's name, or DuckDB's name for a bare ``count(*)``."""
    if isinstance(item, exp.Alias | exp.Column):
        return str(item.name if isinstance(item, exp.Column) else item.alias)
    if isinstance(item, exp.Count) and isinstance(item.this, exp.Star) and not item.expressions:
        return "count_star()"
    return unquoted(item)


def distinct_names(names: Sequence[str]) -> list[str]:
    """Return column names made distinct as DuckDB does for a table: the second ``n`` is ``n_1``."""
    distinct: list[str] = []
    for name in names:
        taken = {other.lower() for other in distinct}
        candidates = (name if i == 0 else f"{name}_{i}" for i in range(len(names)))
        distinct.append(next(candidate for candidate in candidates if candidate.lower() not in taken))
    return distinct


def similar_columns(schema: TableSchema, name: str) -> str:
    """Return the question whether a similar column of these rows was meant; empty if there is none."""
    return did_you_mean(name, (as_written(one.declared) for one in schema.visible))


def named_columns(schema: TableSchema, node: exp.Column) -> list[JoinedName]:
    """Return the columns that a name with or without its table can mean; of one table, the one that DuckDB takes.

    A name that still has a schema means none of them: ``shorten_qualifiers`` found no table for it.
    """
    name, qualifier = node.name, node.table
    if node.args.get("db"):
        return []
    if not schema.names:
        column = schema.column(name)
        return [JoinedName("", column.name, column.name, False)] if column else []
    alike = [one for one in schema.names if folded(one.declared) == folded(name)]
    return [one for one in alike if (one.qualifier == qualifier.lower() if qualifier else not one.hidden)]
