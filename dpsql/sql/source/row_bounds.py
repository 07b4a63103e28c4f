"""Bounds of the rows that joins, UNION ALL and groups make of the rows of tables.

A policy bounds the rows of a unit in one table. A join may keep their number, multiply it, or add to it. The rules here
choose the bounds of the rows that come of it (docs/sql-joins.md, *Bounds*). They choose numbers and prove nothing: a
release enforces the bounds that it has on the joined rows of each unit.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from sqlglot import exp

from dpsql.model.table_rules import LevelRules, TableRules
from dpsql.sql.options import MAX_GROUPS_LIMIT
from dpsql.sql.source.joins import FILTERING, FULL, INNER, LEFT, RIGHT, Joins
from dpsql.sql.source.relation import Owner
from dpsql.sql.source.row_growth import meet_one, own_columns_compared, unique_after, unique_of
from dpsql.sql.source.seen_columns import SeenColumn, columns_named, own_columns

MOST_JOINED = 1_000
"""Largest number of joined rows of one unit from sides that multiply."""

_ONE_ROW = "a unit has one row"
_Number = TypeVar("_Number", int, float)
_Rule = Callable[[float, float], float]


@dataclass(frozen=True, slots=True)
class Meeting:
    """The number of rows that meet in one join.

    Attributes:
        one_left: Each row of the right side meets one row of the left side at most.
        one_right: Each row of the left side meets one row of the right side at most.
        single_left: A unit has one row on the left side at most.
        single_right: A unit has one row on the right side at most.
        by_unit: The sides are compared by the unit alone.

    """

    one_left: bool
    one_right: bool
    single_left: bool
    single_right: bool
    by_unit: bool


def with_bounds(
    joins: Joins, owners: Sequence[Owner | None], *, multiplies: bool
) -> tuple[Owner | None, frozenset[frozenset[str]]]:
    """Return the owner of the joined rows with their bounds, and the sets of columns that are unique in them.

    Args:
        joins: the sides, and how they are joined.
        owners: the owner after each step.
        multiplies: public tables make several rows of some row.

    """
    bounded, unique = joins.parts[0].relation.owner, unique_of(joins, 0)
    for place in range(1, len(joins.parts)):
        if joins.steps[place].kind in FILTERING:
            continue
        left, right = owners[place - 1], joins.parts[place].relation.owner
        # where rows of both are one unit's, both hold it
        known = (left.always, right.always) if left and right else ((), ())
        if bounded and left and right:
            decided = _decided_at(joins, place)
            meet = meet_one(joins, place, unique, ({*known[0], *decided[0]}, {*known[1], *decided[1]}))
            singles = _has_one_row(unique, left), _has_one_row(joins.parts[place].relation.unique, right)
            by_unit = own_columns_compared(joins, place) <= right.names_unit
            bounded = bounds_after(joins.steps[place].kind, bounded, right, Meeting(*meet, *singles, by_unit))
        # a condition of WHERE keeps no columns of a join unique while it is computed
        one_left, one_right = meet_one(joins, place, unique, known)
        if bounded and not right and multiplies and not one_right:
            bounded = multiplied(bounded)
        if right and not bounded:
            bounded = multiplied(right) if multiplies and not one_left else right
        unique = unique_after(joins, place, unique, (one_left, one_right))
    owner = owners[-1]
    if owner and bounded:
        rules = with_levels_of(bounded.rules, owner.rules)
        owner = replace(owner, rules=rules, bounds_from=bounded.bounds_from, bounds_rule=bounded.bounds_rule)
    return owner, unique


def decided_columns(
    where: Sequence[exp.Expr], columns: Sequence[SeenColumn]
) -> Iterator[tuple[SeenColumn, frozenset[int]]]:
    """Yield columns that WHERE compares by ``=`` with an expression of other sides, with the places of these.

    Args:
        where: the conditions of WHERE that join no sides.
        columns: the columns of the joined rows.

    """

    def places(node: exp.Expr) -> set[int]:
        found = [columns_named(columns, one.name, one.table) for one in own_columns(node)]
        return {one.place for several in found for one in several} if all(len(one) == 1 for one in found) else {-1}

    for condition in where:
        if not isinstance(condition, exp.EQ) or condition.find(exp.Query):
            continue
        ends = condition.left.unnest(), condition.right.unnest()
        for end, other in (ends, ends[::-1]):
            found = columns_named(columns, end.name, end.table) if isinstance(end, exp.Column) else []
            beside = places(other)
            if len(found) == 1 and beside and not beside & {-1, found[0].place}:
                yield found[0], frozenset(beside)


def _decided_at(joins: Joins, place: int) -> tuple[set[str], set[str]]:
    """Return columns of the rows before a side that one of its rows decides, and the reverse."""
    before = {seen.output.name for seen, others in joins.decided if seen.place < place and others == {place}}
    own = {seen.name for seen, others in joins.decided if seen.place == place and max(others) < place}
    return before, own


def _has_one_row(unique: Iterable[Collection[str]], owner: Owner) -> bool:
    """Return whether a unit has one row at most, by the columns that are unique in its rows."""
    return any(owner.always >= set(names) for names in unique)


def bounds_after(kind: str, left: Owner, right: Owner, meeting: Meeting) -> Owner:
    """Return the left owner with the bounds of the rows that a join makes.

    A side of which at most one row meets each row of the other side leaves the other side's bounds as they are. If
    that holds for both sides, the larger bounds count. Two sides that multiply have the product of their bounds. An
    outer join adds the rows that meet none. A bound that one of two such tables does not name is left to AUTO. If the
    joined rows are one row of a unit, these are the bounds.

    Args:
        kind: the kind of the join. It is no SEMI or ANTI JOIN, which only filter.
        left: the owner of the rows before.
        right: the owner of the rows of the side that is joined.
        meeting: the number of rows that meet.

    """
    one_left, one_right = meeting.one_left, meeting.one_right
    if (kind in (INNER, LEFT) and one_right and meeting.single_left) or (
        kind in (INNER, RIGHT) and one_left and meeting.single_right
    ):
        return one_row(left)
    if not one_left and not one_right:
        return _with_bounds(left, (left, right), _product, f"the product of {{tables}}, at most {MOST_JOINED:,}")
    if kind == FULL:
        is_added = not (meeting.single_left and meeting.single_right and meeting.by_unit)
    else:
        is_added = (kind == LEFT and not (one_right or meeting.single_left)) or (
            kind == RIGHT and not (one_left or meeting.single_right)
        )
    if is_added:
        return added([left, right])
    if one_left and one_right and kind in (INNER, FULL):
        return _with_bounds(left, (left, right), max, "the larger of {tables}")
    return left if (one_right and kind != RIGHT) or not one_left else _with_bounds(left, (right,), max, "")


def added(owners: Iterable[Owner]) -> Owner:
    """Return the first owner with the bounds of the rows of all owners together, which are the sums of theirs."""
    first, *others = owners
    for other in others:
        first = _with_bounds(first, (first, other), _sum, "the sum of {tables}")
    return first


def one_row(owner: Owner) -> Owner:
    """Return the owner of rows of which a unit has one at most."""
    rules = owner.rules
    bounds = replace(
        rules,
        max_groups=1,
        max_rows_per_group=1,
        max_rows_norm=1.0 if rules.max_rows_norm else None,
        max_rows_per_unit=1 if rules.max_rows_per_unit else None,
    )
    return replace(owner, rules=bounds, bounds_from=(), bounds_rule=_ONE_ROW)


def multiplied(owner: Owner, rule: str = "public tables make several rows of one") -> Owner:
    """Return the owner of rows that a rule multiplies: a unit that had one row has some, and AUTO finds how many.

    Bounds that the policy names stay as they are.
    """
    if owner.bounds_rule != _ONE_ROW:
        return owner
    rules = replace(owner.rules, max_groups=None, max_rows_per_group=None, max_rows_norm=None, max_rows_per_unit=None)
    return replace(owner, rules=rules, bounds_rule=rule)


def declares_one_row(rules: TableRules) -> bool:
    """Return whether the policy counts one row of a unit in all, whatever a query groups by."""
    return rules.max_rows_per_unit == 1 or rules.max_groups == rules.max_rows_per_group == 1


def with_levels_of(one: TableRules, other: TableRules) -> TableRules:
    """Return the bounds of one table with the stricter levels, limits and minimum of both."""
    return replace(one, min_units=max(one.min_units, other.min_units), levels=_stricter(one.levels, other.levels))


def sentence_of(owner: Owner) -> str:
    """Return the bounds of joined rows and the tables that they are of, as a sentence of a receipt."""
    rules = owner.rules
    always = {"max_groups": rules.max_groups, "max_rows_per_group": rules.max_rows_per_group}
    others = {"max_rows_norm": rules.max_rows_norm, "max_rows_per_unit": rules.max_rows_per_unit}
    named = {name: value for name, value in {**always, **others}.items() if value is not None}
    listed = [
        f"{name} {f'{named[name]:,.9g}' if name in named else 'AUTO'}" for name in dict.fromkeys((*always, *named))
    ]
    *first, last = owner.bounds_from or ("",)
    tables = f"{', '.join(first)} and {last}" if first else last
    rule = owner.bounds_rule.format(tables=tables) if named or not tables else ""
    return f"bounds of the joined rows, unless the question names others: {', '.join(listed)} ({rule or tables})"


def _product(one: float, other: float) -> float:
    # no more rows of a unit than this are joined, and no bound falls below that of one table
    return max(one, other, min(one * other, MOST_JOINED))


def _sum(one: float, other: float) -> float:
    return one + other


def _with_bounds(owner: Owner, of: tuple[Owner, ...], rule: _Rule, name: str) -> Owner:
    """Return an owner with bounds that a rule makes of the bounds of others. A bound that one lacks is left to AUTO.

    Args:
        owner: the owner that gets the bounds.
        of: the owners whose bounds are taken, one or two.
        rule: makes one number of two.
        name: the rule in words, with a place for the tables; empty for the bounds of one table.

    """
    rules = [one.rules for one in of]

    def both(values: Iterable[_Number | None], kind: type[_Number], most: float) -> _Number | None:
        known = [value for value in values if value is not None]
        if len(known) < len(rules):
            return None
        return kind(min(known[0] if len(known) == 1 else rule(*known), most))

    bounds = replace(
        owner.rules,
        max_groups=both((one.max_groups for one in rules), int, MAX_GROUPS_LIMIT),
        max_rows_per_group=both((one.max_rows_per_group for one in rules), int, _MOST_ROWS),
        max_rows_norm=both((one.max_rows_norm for one in rules), float, _MOST_ROWS),
        max_rows_per_unit=both((one.max_rows_per_unit for one in rules), int, _MOST_ROWS),
    )
    tables = tuple(table for one in of for table in one.bounds_from)
    return replace(owner, rules=bounds, bounds_from=tables, bounds_rule=name or of[0].bounds_rule)


_MOST_ROWS = 10**9
"""Largest bound of rows that a policy can declare."""


def _stricter(one: LevelRules, other: LevelRules) -> LevelRules:
    return LevelRules(
        default_rho=_smallest(one.default_rho, other.default_rho),
        default_epsilon=_smallest(one.default_epsilon, other.default_epsilon),
        default_delta=min(one.default_delta, other.default_delta),
        window=one.window or other.window,
        ceiling=_smallest(one.ceiling, other.ceiling),
        limit=_smallest(one.limit, other.limit),
        coverage=one.coverage or other.coverage,
    )


def _smallest(*values: float | None) -> float | None:
    return min((value for value in values if value is not None), default=None)
