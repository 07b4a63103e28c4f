"""Running totals: ``sum(count(*)) OVER (ORDER BY day)`` over public keys, read from the text.

They are estimates like others: sums of an aggregate along the values of one key, for each combination of the other
keys. The window stands for the order of the public list, so nothing about rows is in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sqlglot import exp

from dpsql.query.aggregate_calls import is_aggregate_call
from dpsql.query.aggregate_source import Aggregate
from dpsql.query.aggregates import AggregateReader
from dpsql.query.dialect import to_sql, unquoted
from dpsql.query.private_query import Key, Ordering, PublicKeys, RunningTotal
from dpsql.query.refusals import Refusals

LONGEST_SEQUENCE = 4096
"""Most values of the key along which totals run."""


def is_running_total(node: exp.Expr) -> bool:
    """Whether a node is the sum of a private aggregate over a window."""
    return isinstance(node, exp.Window) and isinstance(node.this, exp.Sum) and is_aggregate_call(node.this.this)


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
        ordering, span = self._along(node), self._span(node)
        if ordering is None or span == 0:
            return None
        if self._ordering not in (None, ordering):
            self._refuse(node, "two running totals of one query run along different keys.", "Ask them apart.")
            return None
        self._ordering = ordering
        estimate = replace(aggregate.estimate, name=unquoted(node), total=RunningTotal(ordering, span))
        return replace(aggregate, estimate=estimate)

    def _along(self, node: exp.Expr) -> Ordering | None:
        if self._public is None:
            self._refuse(
                node, "groups behind a threshold are not all shown, so they have no running total.",
                "Declare the keys with CALL dp_domain('table', 'column', keys := [...]).",
            )  # fmt: skip
            return None
        order = node.args.get("order")
        terms = order.expressions if order is not None else []
        along = to_sql(terms[0].this) if len(terms) == 1 else ""
        parts = sorted(to_sql(part) for part in node.args.get("partition_by") or [])
        if along not in self._keys or parts != sorted(key for key in self._keys if key != along):
            self._refuse(
                node, "a running total runs along one key, for each combination of the others.",
                "Write sum(…) OVER (ORDER BY one_key), with all other keys in PARTITION BY.",
            )  # fmt: skip
            return None
        axis = self._keys.index(along)
        if not 1 <= self._public.lengths[axis] <= LONGEST_SEQUENCE:
            self._refuse(
                node, f"a running total runs along 1 to {LONGEST_SEQUENCE:,} values.", "Group by a coarser key.",
            )  # fmt: skip
            return None
        with_null = self._public.with_null[axis]
        if with_null and terms[0].args.get("nulls_first"):
            self._refuse(node, "a listed NULL comes last in a running total.", "Leave NULLS FIRST out.")
            return None
        return Ordering(axis, self._public.lengths, bool(terms[0].args.get("desc")), with_null)

    def _span(self, node: exp.Expr) -> int | None:
        """Values that a total reaches over, its own included; None from the first, 0 where it was refused."""
        frame = node.args.get("spec")
        if frame is None:
            return None
        start, side = frame.args.get("start"), frame.args.get("start_side")
        ends_here = frame.args.get("end") in (None, "CURRENT ROW") and not frame.args.get("exclude")
        if ends_here and start == "UNBOUNDED" and side == "PRECEDING":
            return None
        rows = start.name if isinstance(start, exp.Literal) and not start.is_string else ""
        if ends_here and side == "PRECEDING" and frame.args.get("kind") == "ROWS" and rows.isdigit():
            return min(int(rows), LONGEST_SEQUENCE) + 1
        self._refuse(
            node, "this frame of a window has no private form.",
            "Leave it out, or write ROWS BETWEEN 6 PRECEDING AND CURRENT ROW, counted in listed keys.",
        )  # fmt: skip
        return 0

    def _refuse(self, node: exp.Expr, message: str, hint: str) -> None:
        self._refusals.add("running_total", node, message, hint)
