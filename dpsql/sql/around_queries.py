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

_TRUTHS: dict[type[exp.Expr], str] = {exp.LogicalAnd: "bool_and", exp.LogicalOr: "bool_or"}
_BY_NAME = (*CALLED_BY_NAME, *_TRUTHS.values())

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
    exp.Bracket,
    exp.Corr,
    exp.CountIf,
    exp.CovarPop,
    exp.CovarSamp,
    exp.First,
    exp.GroupConcat,
    exp.IgnoreNulls,
    exp.Last,
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


def is_called_by_name(node: exp.Expr) -> bool:
    """Return True if a node calls an aggregate that the parser reads as a call by name, such as median()."""
    return isinstance(node, exp.Anonymous) and node.name.lower() in _BY_NAME and len(node.expressions) <= _MOST


def name_truths(outer: exp.Expr) -> None:
    """Call bool_and and bool_or by name, in place: written from their nodes, their values would have casts."""
    for node in list(outer.find_all(*_TRUTHS)):
        node.replace(exp.Anonymous(this=_TRUTHS[type(node)], expressions=[node.this]))


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
