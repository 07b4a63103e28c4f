"""Names of the columns of a result, as DuckDB gives them."""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp

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
