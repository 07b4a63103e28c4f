"""Queries around private ones: nodes that they may have, and the queries of WITH that they read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from sqlglot import exp

from dpsql.model.environment import folded
from dpsql.operations.dialect import CALLED_BY_NAME
from dpsql.sql.windows import RESULT_FUNCTIONS

_MOST = 2
"""Arguments of a quantile: a value and a share."""

Query = TypeVar("Query", bound=exp.Query)
QUERY_PARTS: tuple[type, ...] = (
    exp.Select,
    exp.From,
    exp.Where,
    exp.Group,
    exp.Having,
    exp.Qualify,
    exp.Order,
    exp.Ordered,
    exp.Limit,
    exp.Offset,
    exp.Subquery,
    exp.With,
    exp.CTE,
    exp.Table,
    exp.TableAlias,
    exp.Alias,
    exp.Star,
    exp.Distinct,
    exp.Window,
    exp.WindowSpec,
    exp.Filter,
    exp.Union,
    *RESULT_FUNCTIONS,
    exp.AnyValue,
    exp.ApproxDistinct,
    exp.ArgMax,
    exp.ArgMin,
    exp.ArrayAgg,
    exp.Corr,
    exp.CovarPop,
    exp.CovarSamp,
    exp.GroupConcat,
    exp.IgnoreNulls,
    exp.Mode,
    exp.PercentileCont,
    exp.PercentileDisc,
    exp.Stddev,
    exp.StddevPop,
    exp.StddevSamp,
    exp.Variance,
    exp.VariancePop,
    exp.WithinGroup,
)


def is_quantile(node: exp.Expr) -> bool:
    """Return True if a node calls median() or another quantile, which the parser reads as calls by name."""
    return isinstance(node, exp.Anonymous) and node.name.lower() in CALLED_BY_NAME and len(node.expressions) <= _MOST


def with_needed(query: Query, queries: Mapping[str, exp.CTE]) -> Query:
    """Return a copy of a query with all of the named queries that it reads, before those that it names itself."""
    tree: Query = query.copy()
    needed = _needed(tree, queries)
    if needed:
        own = tree.args.get("with_") or exp.With(expressions=[])
        tree.set("with_", exp.With(expressions=[*needed, *own.expressions]))
    return tree


def _needed(node: exp.Expr, queries: Mapping[str, exp.CTE]) -> list[exp.CTE]:
    """Copies of the named queries that a query reads, through others too, in the order in which they were named."""
    wanted: set[str] = set()
    found = list(node.find_all(exp.Table))
    while found:
        names = {folded(table.name) for table in found if len(table.parts) == 1} & set(queries)
        found = [table for name in names - wanted for table in queries[name].find_all(exp.Table)]
        wanted |= names
    return [cte.copy() for name, cte in queries.items() if name in wanted]


def drop_unused(outer: exp.Select) -> None:
    """Leave out the queries of WITH that nothing in a SELECT reads, in place."""
    with_ = outer.args.get("with_") or exp.With(expressions=[])
    for cte in reversed(list(with_.expressions)):
        used = {folded(table.name) for table in outer.find_all(exp.Table) if table.find_ancestor(exp.CTE) is not cte}
        if folded(cte.alias) not in used:
            cte.pop()
    if not with_.expressions:
        outer.set("with_", None)
