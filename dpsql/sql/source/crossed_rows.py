"""Joins of each row with each row of another side: with a list of values, or with few public rows.

A join that compares by ``<=``, or by anything else than ``=``, is such a join with a condition in WHERE, as in
``visits v JOIN days d ON v.seen <= d.day``. One side is public, so each row belongs to the same unit as before. Each
row meets all public rows before the condition is computed. So all of them are counted (docs/proofs/relations.md,
*Crossed rows*).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from sqlglot import exp

from dpsql.sql.source.seen_columns import Part, holders, own_columns


def is_with_list(parts: Sequence[Part], place: int) -> bool:
    """Return whether one side of a join reads no table, so that each row may meet each row of a list of values."""
    return any(all(part.relation.is_listed for part in side) for side in _sides(parts, place))


def is_compared_with_public(conditions: Sequence[exp.Expr], parts: Sequence[Part], place: int) -> bool:
    """Return whether one side of a join is public, and a condition compares both sides by something else than columns.

    Args:
        conditions: those of ON or of WHERE.
        parts: the sources of the FROM clause.
        place: the place of the source that is joined.

    """
    if not any(all(part.relation.owner is None for part in side) for side in _sides(parts, place)):
        return False
    return any(_names_both(condition, parts, place) for condition in conditions)


def crossed_places(crossed: Collection[int], parts: Sequence[Part]) -> set[int]:
    """Return the places of the public sides that are joined with every row of the other side.

    Args:
        crossed: places of the sides that are joined so with all sides before them.
        parts: the sources of the FROM clause.

    """
    found = {place for place in crossed if not parts[place].relation.owner}
    return found | {before for place in crossed if place not in found for before in range(place)}


def _sides(parts: Sequence[Part], place: int) -> tuple[Sequence[Part], Sequence[Part]]:
    return parts[place : place + 1], parts[:place]


def _names_both(condition: exp.Expr, parts: Sequence[Part], place: int) -> bool:
    """Return whether a condition is about a side and sides before it, and is no equality of columns alone."""
    is_equality = isinstance(condition, exp.EQ) and all(
        isinstance(side.unnest(), exp.Column) for side in (condition.left, condition.right)
    )
    if is_equality or condition.find(exp.Query):
        return False
    named = {one for column in own_columns(condition) for one in holders(column, parts)}
    return place in named and any(one < place for one in named)
