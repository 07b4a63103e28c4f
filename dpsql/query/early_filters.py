"""Conditions of WHERE that rows of one side have to fulfil before a join cuts them.

Of a person with many rows a join keeps some; so that those are among them which the query is about, rows that WHERE
would drop are dropped first. Nothing else changes: the rows that are left are those of that one side which pass.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

from sqlglot import exp

from dpsql.query.clauses import conjuncts
from dpsql.query.environment import folded
from dpsql.query.joins import FULL, INNER, RIGHT, Joins, own_columns


def early_filters(
    where: exp.Expr | None, joins: Joins, places: Collection[int]
) -> tuple[exp.Expr | None, Mapping[int, Sequence[exp.Expr]]]:
    """What is left of WHERE, and of some sides the conditions that are about their own rows alone.

    Args:
        where: the condition, without what joins the sides.
        joins: the sides.
        places: of those whose rows are cut.

    """
    early: dict[int, list[exp.Expr]] = defaultdict(list)
    # where a join may leave the side out, a condition is about what is there then
    kept = not any(step.kind in (RIGHT, FULL) for step in joins.steps)
    always = {place for place in places if kept and joins.steps[place].kind in ("", INNER)}
    left = []
    for condition in conjuncts(where):
        place = _only_place(condition, joins)
        if place in always:
            early[place].append(condition)
        else:
            left.append(condition)
    if not early:
        return where, {}
    return (exp.and_(*left, copy=True) if left else None), early


def _only_place(condition: exp.Expr, joins: Joins) -> int:
    """The one side whose columns a condition names; -1 where it names others, or asks a subquery."""
    columns = own_columns(condition)
    if not columns or condition.find(exp.Query) is not None:
        return -1
    places = set()
    for column in columns:
        qualifier = column.table.lower()
        found = {
            seen.place
            for seen in joins.columns
            if seen.shown and folded(seen.declared) == folded(column.name)
            if (seen.qualifier == qualifier if qualifier else not seen.hidden)
        }
        places |= found if len(found) == 1 and not column.args.get("db") else {-1}
    return places.pop() if len(places) == 1 else -1
