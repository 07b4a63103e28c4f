"""Running totals: ``sum(count(*)) OVER (ORDER BY day)`` over public keys, read from the text.

They are estimates like others: sums of an aggregate along the values of one key, for each combination of the other
keys. The window stands for the order of the public list, so nothing about rows is in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NoReturn

from sqlglot import exp

from dpsql.model.combinations import Known
from dpsql.model.estimates import RunningSum, RunningTotal, Sum
from dpsql.model.frame import Ordering
from dpsql.model.refusals import refuse_combinations
from dpsql.model.rows import Key, PublicKeys
from dpsql.operations.dialect import to_sql, unquoted
from dpsql.plan.aggregates.arguments import Aggregate, read_aggregate
from dpsql.plan.aggregates.registry import BY_NAME
from dpsql.plan.aggregates.source import AggregateSource, RefusedCallError

LONGEST_SEQUENCE = 4096
"""Most values of the key along which totals run."""


def read_total(
    source: AggregateSource, node: exp.Expr, keys: Sequence[Key], public: PublicKeys | None, before: Iterable[Aggregate]
) -> Aggregate:
    """The running total that a window asks for.

    Args:
        source: what aggregates are of.
        node: the window.
        keys: those of the query.
        public: their public lists; None where something else was refused before they were read.
        before: aggregates that were read before, whose totals run along the same key.

    Raises:
        RefusedCallError: there is none; why is noted.

    """
    aggregate = read_aggregate(node.this.this, BY_NAME, source)
    if not isinstance(aggregate.estimate.value, Sum):
        _refuse_beside("averages, spreads or quantiles", node, source)
    if not public:
        raise RefusedCallError
    ordering = _ordering_along(node, keys, public, source)
    totals = [one.estimate.value.total for one in before if isinstance(one.estimate.value, RunningSum)]
    if any(total.ordering != ordering for total in totals):
        _refuse_beside("running totals along another key", node, source)
    spec = node.args.get("spec")
    start = spec and spec.args["start"]
    # a total reaches over so many values, its own included, or from the first
    span = min(int(start.name), LONGEST_SEQUENCE) + 1 if isinstance(start, exp.Literal) else None
    value = RunningSum(aggregate.estimate.value.linear, RunningTotal(ordering, span))
    return replace(aggregate, estimate=replace(aggregate.estimate, name=unquoted(node), value=value))


def _ordering_along(node: exp.Expr, keys: Sequence[Key], public: PublicKeys, source: AggregateSource) -> Ordering:
    if public.rows and len(keys) > 1:
        source.refuse(
            "running_total",
            node,
            "a running total runs along a list of keys, and these keys are a list of combinations.",
            "Group by one key of the list, or let the curator declare a list for each key.",
        )
    (term,) = node.args["order"].expressions
    axis = [key.sql for key in keys].index(to_sql(term.this))
    if not 1 <= public.lengths[axis] <= LONGEST_SEQUENCE:
        source.refuse(
            "running_total",
            node,
            f"a running total runs along 1 to {LONGEST_SEQUENCE:,} values.",
            "Group by a coarser key.",
        )
    with_null = public.with_null[axis]
    if with_null and term.args.get("nulls_first"):
        source.refuse("running_total", node, "a listed NULL comes last in a running total.", "Leave NULLS FIRST out.")
    return Ordering(axis, public.lengths, bool(term.args.get("desc")), with_null)


def _refuse_beside(other: Known, node: exp.Expr, source: AggregateSource) -> NoReturn:
    refuse_combinations({"running totals"}, {"running totals", other}, node, source.refusals)
    raise RefusedCallError
