"""GROUPING SETS, ROLLUP and CUBE: which sets of keys a GROUP BY stands for, and what GROUPING() says of a row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from sqlglot import exp

from dpsql.query.aggregate_calls import is_aggregate_call
from dpsql.query.dialect import to_sql, unquoted
from dpsql.query.keys import Key
from dpsql.query.names import ResolvedSelect, map_tree
from dpsql.query.refusals import Refusals

_FLAGS = "dpsql"
"""Qualifier of the columns that say which keys a row's set leaves out; resolved columns of a query have none."""


@dataclass(frozen=True, slots=True)
class GroupedSelect:
    """A query whose GROUPING() calls are computed from flags.

    Attributes:
        select: the query, without GROUPING().
        flags: of each key, the column that is 1 in the rows of a set that leaves it out, else 0; none where there is
            one set only.

    """

    select: ResolvedSelect
    flags: tuple[exp.Expr, ...]

    @property
    def outer(self) -> ResolvedSelect:
        """The query by its keys and flags: what select list, HAVING and ORDER BY are computed from."""
        return replace(self.select, keys=(*self.select.keys, *self.flags))

    def flag_keys(self) -> tuple[Key, ...]:
        """The flags as columns of the answer."""
        return tuple(Key(to_sql(flag), "BIGINT") for flag in self.flags)

    def of_set(self, places: Sequence[int]) -> ResolvedSelect:
        """The query by the keys of one set; what is shown is not part of it."""
        return replace(
            self.select, keys=tuple(self.select.keys[place] for place in places), order=(), having=None, qualify=None
        )


def read_grouping(resolved: ResolvedSelect, refusals: Refusals) -> GroupedSelect:
    """Replace GROUPING() in what is shown; where there is one set, it is 0."""
    keys = {to_sql(key): place for place, key in enumerate(resolved.keys)}
    flags: tuple[exp.Expr, ...] = ()
    if len(resolved.sets) > 1:
        flags = tuple(exp.column(f"left_out_{place}", table=_FLAGS, quoted=True) for place in range(len(keys)))
    elif resolved.sets != (tuple(range(len(keys))),):
        raise AssertionError("a GROUP BY without grouping sets is one set of all its keys")

    def computed(call: exp.Expr) -> exp.Expr:
        written = call.expressions or list(resolved.keys)
        places = [keys.get(to_sql(part)) for part in written]
        for part, place in zip(written, places, strict=True):
            if place is None:
                refusals.add(
                    "not_grouped", part, f"GROUPING() takes grouping expressions, and {unquoted(part)} is none.",
                    "Write an expression of GROUP BY there, as it stands there.",
                )  # fmt: skip
        found = [place for place in places if place is not None]
        bits = [flags[place].copy() if flags else exp.Literal.number(0) for place in found]
        weights = [exp.Literal.number(2**power) for power in reversed(range(len(bits)))]
        terms = (exp.Mul(this=bit, expression=weight) for bit, weight in zip(bits, weights, strict=True))
        total: exp.Expr | None = None
        for term in terms:
            total = term if total is None else exp.Add(this=total, expression=term)
        return exp.cast(exp.paren(total or exp.Literal.number(0)), "BIGINT", dialect="duckdb")

    def visit(node: exp.Expr) -> exp.Expr:
        return computed(node) if isinstance(node, exp.Grouping | exp.GroupingId) else node

    def replaced(root: exp.Expr) -> exp.Expr:
        # inside of aggregates GROUPING() is refused as an aggregate
        return map_tree(root.copy(), visit, is_aggregate_call)

    having = None if resolved.having is None else replaced(resolved.having)
    qualify = None if resolved.qualify is None else replaced(resolved.qualify)
    items = tuple(replace(item, expression=replaced(item.expression)) for item in resolved.items)
    order = tuple(map(replaced, resolved.order))
    select = replace(resolved, items=items, having=having, qualify=qualify, order=order)
    return GroupedSelect(select, flags)
