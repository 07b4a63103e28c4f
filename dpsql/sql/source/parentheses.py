"""Parentheses around the tables of a FROM clause: left out if the joins mean the same without them.

DuckDB stores the joins of a view in parentheses, as in ``FROM (a INNER JOIN b ON (a.k = b.k))``. Joins bind from left
to right, so parentheses around the first ones say nothing. Other parentheses hold joins that come first: the joined
rows are one side of the joins around them, and their tables keep their names.
"""

from __future__ import annotations

from collections.abc import Iterable

from sqlglot import exp

from dpsql.sql.clauses import JOINED_FIRST
from dpsql.sql.source.joins import FULL, RIGHT, is_apart, kind_of

_Sources = list[tuple[exp.Expr, exp.Join | None]]


def flatten_parentheses(query: exp.Expr) -> None:
    """Rewrite every FROM clause of a query so that no source of it is a parenthesis around tables."""
    for node in list(query.find_all(exp.Subquery)):
        if is_parenthesis(node) and node.args.get("alias"):
            _name_rows(node)
    for select in list(query.find_all(exp.Select)):
        first = select.args.get("from_")
        if first:
            sources = _flattened([(first.this, None), *((join.this, join) for join in select.args.get("joins") or ())])
            _set_sources(select, sources)


def is_parenthesis(node: exp.Expr) -> bool:
    """Check that a source is a parenthesis around tables, and not around a query."""
    if not isinstance(node, exp.Subquery) or any(
        value for name, value in node.args.items() if name not in ("this", "alias", "joins")
    ):
        return False
    inner = node.this
    if isinstance(inner, exp.Subquery):
        return bool(inner.args.get("joins")) or is_parenthesis(inner)
    return not isinstance(inner, exp.Query)


def _name_rows(node: exp.Subquery) -> None:
    """Turn a parenthesis with an alias into the query that DuckDB reads it as, or into the one table that it holds."""
    inner = node.this
    if isinstance(inner, exp.Table) and not inner.args.get("alias") and not inner.args.get("joins"):
        inner.set("alias", node.args["alias"])
        inner.set("joins", node.args.get("joins"))
        node.replace(inner)
        return
    star = exp.Star()
    named = inner.find(exp.Identifier)
    if named:
        star.update_positions(named)
    node.set("this", exp.Select(expressions=[star], from_=exp.From(this=exp.Subquery(this=inner))))


def _flattened(sources: _Sources) -> _Sources:
    """Return the sources of a FROM clause, in the order of the text, without parentheses that can be left out."""
    found: _Sources = []
    for node, join in sources:
        inner = _sources_inside(node)
        if not inner:
            found.append((node, join))
            continue
        (first, _), *others = inner = _flattened(inner)
        if not found or not others or (join and is_apart(join) and all(_can_follow(other) for _, other in others)):
            found += [(first, join), *others]
        else:
            found.append((_side(inner), join))
    return found


def _sources_inside(node: exp.Expr) -> _Sources:
    """Return the sources in a parenthesis, or those joined before a condition; none if the source is one by itself."""
    first, joins = node, list(node.args.get("joins") or ())
    if is_parenthesis(node):
        first = node.this
        joins = [*(first.args.get("joins") or ()), *joins]
    elif not joins:
        return []
    first.set("joins", None)
    if isinstance(first, exp.Table) and isinstance(first.this, exp.Values):
        # behind a parenthesis, VALUES is parsed as the name of a table
        first.this.set("alias", first.args.get("alias"))
        first = first.this
    return [(first, None), *((join.this, join) for join in joins)]


def _can_follow(join: exp.Join | None) -> bool:
    """Check that a join means the same if sources that it does not name are joined before it."""
    if join is None or join.args.get("using") or join.args.get("method") or kind_of(join) in (RIGHT, FULL):
        return False
    condition = join.args.get("on")
    return condition is None or all(column.table for column in condition.find_all(exp.Column))


def _side(sources: _Sources) -> exp.Subquery:
    """Return joins as one source, which is read before those around it."""
    select = exp.Select(expressions=[exp.Star()], from_=exp.From())
    select.meta[JOINED_FIRST] = True
    _set_sources(select, sources)
    return exp.Subquery(this=select)


def _set_sources(select: exp.Select, sources: Iterable[tuple[exp.Expr, exp.Join | None]]) -> None:
    joins = []
    for node, join in sources:
        (join or select.args["from_"]).set("this", node)
        joins += [join] if join else []
    if joins or select.args.get("joins"):
        select.set("joins", joins)
