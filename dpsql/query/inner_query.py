"""A private query inside another one: where it stands, and both taken apart."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sqlglot import exp

from dpsql.query.environment import folded

RESULT = "dpsql_result"
"""Name under which a query over an answer reads it."""


@dataclass(frozen=True, slots=True)
class PrivateInside:
    """A subquery that groups rows of several units, which is a private query by itself.

    Attributes:
        node: its SELECT.
        queries: the queries that WITH names where it stands.

    """

    node: exp.Select
    queries: Mapping[str, exp.CTE]


def split(tree: exp.Select, inside: PrivateInside) -> tuple[exp.Select, exp.Select] | None:
    """The private query and what stands around it; None where it does not stand in this text, as in a view."""
    if inside.node is tree or inside.node.root() is not tree.root():
        return None
    inner = inside.node.copy()
    needed = _needed(inner, inside.queries)
    if needed:
        own = inner.args.get("with_")
        inner.set("with_", exp.With(expressions=[*needed, *(own.expressions if own is not None else [])]))
    if tree.args.get("hint") is not None and inner.args.get("hint") is None:
        inner.set("hint", tree.args["hint"].copy())
    # marked, so that it is found in the copy
    inside.node.meta["private"] = True
    outer = tree.copy()
    del inside.node.meta["private"]
    place = next(node for node in outer.find_all(exp.Select) if node.meta.get("private"))
    place.replace(exp.select("*").from_(exp.table_(RESULT, quoted=True)))
    outer.set("hint", None)
    _drop_unused(outer)
    return inner, outer


def _needed(node: exp.Expr, queries: Mapping[str, exp.CTE]) -> list[exp.CTE]:
    """Copies of the named queries that a query reads, through others too, in the order in which they were named."""
    wanted: set[str] = set()
    found = tables_of(node)
    while found:
        names = {folded(table.name) for table in found if len(table.parts) == 1} & set(queries)
        found = [table for name in names - wanted for table in tables_of(queries[name])]
        wanted |= names
    return [cte.copy() for name, cte in queries.items() if name in wanted]


def tables_of(node: exp.Expr) -> list[exp.Table]:
    """The tables that a tree names, and the named queries."""
    return list(node.find_all(exp.Table))


def _drop_unused(outer: exp.Select) -> None:
    with_ = outer.args.get("with_")
    for cte in reversed(list(with_.expressions) if with_ is not None else []):
        used = {folded(table.name) for table in tables_of(outer) if table.find_ancestor(exp.CTE) is not cte}
        if folded(cte.alias) not in used:
            cte.pop()
    if with_ is not None and not with_.expressions:
        outer.set("with_", None)
