"""EXISTS of a public query that compares one of its columns with a column of the rows around it."""

from __future__ import annotations

from sqlglot import exp

from dpsql.model.environment import folded
from dpsql.sql.clauses import conjuncts, sources_of


def as_test(query: exp.Query) -> exp.In | None:
    """Return ``x IN (SELECT y …)`` for ``EXISTS (SELECT … WHERE y = x …)``, in which x is of the rows around it.

    The list leaves NULL out. Return None if the query reads no other query's columns, or more than in one equality.

    Args:
        query: the query in EXISTS, which is not changed; columns of other queries name their tables.

    """
    where = query.args.get("where")
    plain = {"expressions", "from_", "joins", "where", "with_", "distinct"}
    if not isinstance(query, exp.Select) or not where or any(v for k, v in query.args.items() if k not in plain):
        return None
    own = {folded(source.alias_or_name) for source in sources_of(query)}
    conditions = conjuncts(where.this)
    around = [one for one in conditions if _is_of_others(one, own)]
    if len(around) != 1 or not isinstance(around[0], exp.EQ):
        return None
    sides = [around[0].left, around[0].right]
    outside = [side for side in sides if _is_all_of_others(side, own)]
    inside = [side for side in sides if not _is_of_others(side, own)]
    if len(outside) != 1 or len(inside) != 1:
        return None
    listed = query.copy()
    listed.set("expressions", [inside[0].copy()])
    known = exp.Not(this=exp.Is(this=inside[0].copy(), expression=exp.Null()))
    others = [one.copy() for one in conditions if one is not around[0]]
    listed.set("where", exp.Where(this=exp.and_(*others, known, copy=False)))
    return exp.In(this=outside[0].copy(), query=exp.Subquery(this=listed))


def _is_of_others(node: exp.Expr, own: set[str]) -> bool:
    """Check that an expression names a column of another query."""
    return any(column.table and folded(column.table) not in own for column in node.find_all(exp.Column))


def _is_all_of_others(node: exp.Expr, own: set[str]) -> bool:
    """Check that an expression names columns of other queries alone."""
    columns = list(node.find_all(exp.Column))
    return bool(columns) and all(column.table and folded(column.table) not in own for column in columns)
