"""Averages, spreads and sums of both signs, with the statistics and the bounds that their coverage is about."""

from __future__ import annotations

from dataclasses import dataclass, replace

from dpsql.model.estimates import Estimate, Linear, Ratio, RunningSum, Spread, Sum, ValueBounds
from dpsql.model.frame import COUNT_LATTICE_EXPONENT, Statistic
from dpsql.model.private_query import FrameQuery
from dpsql.receipts import column_words, phrases

NO_BOUNDS = ValueBounds("norm", (0.0, 0.0), None, hold_all=True)
"""Bounds of a sum whose norm policy or text say: its share says what they leave."""


@dataclass(frozen=True, slots=True)
class Column:
    """Columns of an answer whose coverage is the same.

    Attributes:
        name: their names.
        measured: noun of what is counted, as in `CoverageReceipt`: ``rows``, or totals of a sum.
        values: noun of what the bounds cut, likewise.
        bounds: the bounds of these.
        counted: the statistic whose share says what is counted: rows of an average, totals of a sum. None if a
            constraint makes sure that all rows are.
        summed: of an average the sum of its values, if it is not of their distances from a middle.
        parts: all statistics of the columns.

    """

    name: str
    measured: str
    values: str
    bounds: ValueBounds
    counted: Statistic | None
    summed: Statistic | None
    parts: frozenset[Statistic]

    @property
    def may_cut(self) -> bool:
        """Return True if bounds may change values and no share says how much."""
        return not self.bounds.hold_all and (self.measured == "rows" or self.bounds.asked is not None)

    @property
    def cut(self) -> str:
        """Return how bounds change a value outside of them."""
        if self.bounds.form == "norm":
            return column_words.SCALED_DOWN.format()
        return column_words.CUT_AT.format(bounds=self._interval)

    @property
    def declared(self) -> str:
        """Return the bounds of the values of an average that lie within them by policy or type; empty for others."""
        return self._interval if self.measured == "rows" and self.bounds.hold_all else ""

    @property
    def _interval(self) -> str:
        return phrases.interval_of(self.bounds.bounds, are_times=False)


def columns_of(query: FrameQuery) -> tuple[Column, ...]:
    """Return the averages, spreads and sums of both signs of a query; those with equal coverage are one."""
    found: dict[tuple[object, ...], Column] = {}
    for estimate in query.estimates:
        if column := _column(estimate, query):
            same = (column.measured, column.bounds, column.counted)
            if before := found.get(same):
                column = replace(before, name=f"{before.name}, {column.name}", parts=before.parts | column.parts)
            found[same] = column
    return tuple(found.values())


def _column(estimate: Estimate, query: FrameQuery) -> Column | None:
    """Return the column of an average, a spread or a sum of both signs. Return None for others."""
    value, bounds = estimate.value, estimate.value_bounds or NO_BOUNDS
    parts = frozenset(part.statistic for part in value.linears if part.statistic)
    if isinstance(value, Ratio | Spread):
        ratio = value.average if isinstance(value, Spread) else value
        summed = ratio.numerator.statistic
        if ratio.offset or (summed and summed.is_signed):
            summed = None
        counted = None if query.has_one_row else _rows(ratio.denominator)
        return Column(estimate.name, "rows", "values", bounds, counted, summed, parts)
    if isinstance(value, Sum | RunningSum) and estimate.covered and estimate.covered.is_signed:
        totals = "totals in a group" if query.frame.keys else "totals"
        values = "values" if bounds.form == "row" else totals
        return Column(estimate.name, totals, values, bounds, estimate.covered, None, parts)
    return None


def _rows(denominator: Linear) -> Statistic:
    """Return the statistic of the number of rows of an average."""
    if denominator.statistic:
        return denominator.statistic
    # each present unit has one row in a group, or so many
    steps = round(denominator.centre) << -COUNT_LATTICE_EXPONENT
    return Statistic("rows", steps, steps, COUNT_LATTICE_EXPONENT, limit=round(denominator.centre))
