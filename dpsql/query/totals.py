"""Running totals: ``sum(count(*)) OVER (ORDER BY day)`` over public keys, read from the text.

They are estimates like others: sums of an aggregate along the values of one key, for each combination of the other
keys. The window stands for the order of the public list, so nothing about rows is in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sqlglot import exp

from dpsql.query.aggregate_source import Aggregate
from dpsql.query.aggregates import AggregateReader
from dpsql.query.dialect import to_sql, unquoted
from dpsql.query.keys import Key, Ordering, PublicKeys
from dpsql.query.private_query import RunningTotal
from dpsql.query.refusals import Refusals

LONGEST_SEQUENCE = 4096
"""Most values of the key along which totals run."""


def _span(node: exp.Expr) -> int | None:
    """Values that a total reaches over, its own included; None from the first."""
    frame = node.args.get("spec")
    start = None if frame is None else frame.args["start"]
    return min(int(start.name), LONGEST_SEQUENCE) + 1 if isinstance(start, exp.Literal) else None


class TotalsReader:
    """Reads running totals over one source and its keys."""

    def __init__(
        self, reader: AggregateReader, keys: Sequence[Key], public: PublicKeys | None, refusals: Refusals
    ) -> None:
        self._reader = reader
        self._keys = [key.sql for key in keys]
        self._public = public
        self._refusals = refusals
        self._ordering: Ordering | None = None

    def read(self, node: exp.Expr) -> Aggregate | None:
        """The aggregate that a window asks for; None after noting why there is none."""
        aggregate = self._reader.read(node.this.this)
        if aggregate is None:
            return None
        if aggregate.estimate.denominator is not None or aggregate.estimate.quantile is not None:
            self._refuse(
                node, "a running total of averages, spreads or quantiles is none.", "Take the total of sum and count."
            )
            return None
        ordering = self._along(node)
        if ordering is None:
            return None
        if self._ordering not in (None, ordering):
            self._refuse(node, "two running totals of one query run along different keys.", "Ask them apart.")
            return None
        self._ordering = ordering
        estimate = replace(aggregate.estimate, name=unquoted(node), total=RunningTotal(ordering, _span(node)))
        return replace(aggregate, estimate=estimate)

    def _along(self, node: exp.Expr) -> Ordering | None:
        if self._public is None:
            # something else was refused before the keys were read
            return None
        (term,) = node.args["order"].expressions
        axis = self._keys.index(to_sql(term.this))
        if not 1 <= self._public.lengths[axis] <= LONGEST_SEQUENCE:
            self._refuse(
                node, f"a running total runs along 1 to {LONGEST_SEQUENCE:,} values.", "Group by a coarser key.",
            )  # fmt: skip
            return None
        with_null = self._public.with_null[axis]
        if with_null and term.args.get("nulls_first"):
            self._refuse(node, "a listed NULL comes last in a running total.", "Leave NULLS FIRST out.")
            return None
        return Ordering(axis, self._public.lengths, bool(term.args.get("desc")), with_null)

    def _refuse(self, node: exp.Expr, message: str, hint: str) -> None:
        self._refusals.add("running_total", node, message, hint)
