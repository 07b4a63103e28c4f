"""The order in which sources beside each other in a FROM clause are joined, by the equalities of WHERE."""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp

from dpsql.operations.dialect import to_sql
from dpsql.sql.clauses import conjuncts
from dpsql.sql.source.seen_columns import Part, holders, own_columns

Apart = frozenset[frozenset[int]]
"""Pairs of parts, by the ids of their nodes, whose equalities stay in WHERE."""


def in_reach(parts: Sequence[Part], where: Sequence[exp.Expr], apart: Apart) -> list[int]:
    """Return places of parts side by side, in an order in which each is joined to one before it, if there is one."""
    edges = []
    for condition in [*where, *(shared for part in where for shared in shared_conditions(part))]:
        if isinstance(condition, exp.EQ) and all(isinstance(side, exp.Column) for side in sides_of(condition)):
            ends = [holders(side, parts) for side in sides_of(condition)]
            edges += [{*ends[0], *ends[1]}] if len(ends[0]) == len(ends[1]) == 1 else []
    edges = [edge for edge in edges if frozenset(id(parts[place].node) for place in edge) not in apart]
    loose = _computed_edges(parts, where)
    order, left = [0], list(range(1, len(parts)))
    while left:
        reached = [
            place
            for known in (edges, loose)
            for place in left
            if any(place in edge and edge & set(order) for edge in known)
        ]
        place = reached[0] if reached else left[0]
        order.append(place)
        left.remove(place)
    return order


def _computed_edges(parts: Sequence[Part], where: Sequence[exp.Expr]) -> list[set[int]]:
    """Return pairs of places that an equality compares by expressions, each of columns of one part."""
    found = []
    for condition in where:
        if isinstance(condition, exp.EQ) and not condition.find(exp.Query):
            ends = [{tuple(holders(one, parts)) for one in own_columns(side)} for side in sides_of(condition)]
            if all(len(end) == 1 and len(min(end)) == 1 for end in ends):
                found.append({place for end in ends for places in end for place in places})
    return found


def shared_conditions(condition: exp.Expr) -> list[exp.Expr]:
    """What has to hold in every branch of an OR."""
    if not isinstance(condition, exp.Or):
        return []
    branches = [{to_sql(part): part for part in conjuncts(branch)} for branch in condition.flatten()]
    return [part for text, part in branches[0].items() if all(text in other for other in branches[1:])]


def sides_of(node: exp.Binary) -> list[exp.Expr]:
    """Return the left and the right side of an operator, without parentheses."""
    return [node.left.unnest(), node.right.unnest()]
