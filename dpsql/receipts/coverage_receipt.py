"""Coverage in a receipt: one sentence for each column that a bound can make smaller."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from dpsql.mechanism.registry import histogram_of
from dpsql.model.estimates import Estimate, GeometricMean, Linear, Moments, Ratio, RunningSum, Spread, Sum, ValueBounds
from dpsql.model.frame import COUNT_LATTICE_EXPONENT, Frame, Statistic
from dpsql.model.private_query import FrameQuery
from dpsql.receipts import coverage_words, phrases
from dpsql.receipts.coverage_lines import CoverageReceipt
from dpsql.receipts.receipt import Receipt
from dpsql.release.coverage import MUCH, Kept
from dpsql.release.cut_values import most_cut
from dpsql.release.left_out import LeftOut, LeftOutReceipt
from dpsql.release.noisy_table import kept_shares, left_out_numbers
from dpsql.release.offer import Offer
from dpsql.release.points import ShownFrame
from dpsql.state import SideTable

_PLAIN_COUNT = re.compile(r"count\((\*|\w+)\)")
_NO_BOUNDS = ValueBounds("norm", (0.0, 0.0), None, hold_all=True)
"""Bounds of a sum whose norm policy or text say: its share says what they leave."""


@dataclass(frozen=True, slots=True)
class _Column:
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
            return coverage_words.SCALED_DOWN.format()
        return coverage_words.CUT_AT.format(bounds=self._interval)

    @property
    def declared(self) -> str:
        """Return the bounds of the values of an average that lie within them by policy or type; empty for others."""
        return self._interval if self.measured == "rows" and self.bounds.hold_all else ""

    @property
    def _interval(self) -> str:
        return phrases.interval_of(self.bounds.bounds, are_times=False)


def with_coverage(
    receipt: Receipt, offer: Offer, found: ShownFrame, side_table: SideTable, statements: int | None = None
) -> Receipt:
    """Return the receipt with what bounds keep and leave out, once that is stored.

    Args:
        receipt: of the offer.
        offer: how the query of one frame is served; all of it is stored.
        found: its shown groups.
        side_table: where points are stored.
        statements: number of histograms that the answer reads, if it has more than those of the offer.

    """
    query = offer.query
    columns = _columns_of(query)
    statements = statements or statements_of(offer)
    shares = kept_shares(offer, side_table, statements)
    lines = dict.fromkeys((*_unmeasured(query), *_raised(query)))
    lines |= dict.fromkeys(_line(one, shares[one], query) for one in _numbers(query, shares, columns))
    if query.request.coverage and query.frame.is_measured:
        lines |= dict.fromkeys(_column_lines(query, columns, shares, side_table, statements))
    left_out: tuple[LeftOutReceipt, ...] = ()
    if offer.left_out:
        numbers = left_out_numbers(offer, found.shown, side_table)
        order = [one.covered for one in query.estimates]
        left_out = tuple(_left_out(one, numbers[one], query) for one in sorted(numbers, key=order.index))
    return replace(receipt, coverage=tuple(lines), left_out=left_out)


def statements_of(offer: Offer) -> int:
    """Return the number of histograms that coverage of an offer is read from."""
    chosen = {one.bounds.asked for one in _columns_of(offer.query) if one.may_cut and one.bounds.asked}
    return len(offer.coverage) + len(chosen)


def with_coverage_of_sets(
    receipt: Receipt, offers: Sequence[Offer], found: Sequence[ShownFrame], side_table: SideTable
) -> Receipt:
    """Return the receipt of several grouping sets with what bounding leaves in each.

    Args:
        receipt: of all together, with one for each set.
        offers: how each set is served; all of it is stored.
        found: the shown groups of each set.
        side_table: where points are stored.

    """
    if unknown := next((line for offer in offers if (line := _unmeasured(offer.query))), ()):
        return replace(receipt, coverage=unknown)
    statements = sum(map(statements_of, offers))
    return replace(
        receipt,
        sets=tuple(
            replace(one, receipt=with_coverage(one.receipt, offer, shown, side_table, statements))
            for one, offer, shown in zip(receipt.sets, offers, found, strict=True)
        ),
    )


def _unmeasured(query: FrameQuery) -> tuple[CoverageReceipt, ...]:
    """Return the line that says why coverage of an answer cannot be measured; empty if it is measured or not wanted."""
    wanted = query.request.coverage
    if not query.estimates or wanted is None or (wanted and query.frame.is_measured):
        return ()
    why = coverage_words.COVERAGE_OFF if wanted is False else why_unmeasured(query.frame)
    if histogram_of(query.frame).measure.amount == "epsilon":
        why = coverage_words.COVERAGE_OF_PURE
    return (CoverageReceipt("all rows", query.frame.rows.unit, unknown=why),)


def why_unmeasured(frame: Frame) -> str:
    """Return why coverage of a frame is not measured, and the cure."""
    if frame.bounding.finer:
        return coverage_words.COVERAGE_OF_SETS
    if frame.bounding.sparsity:
        return coverage_words.COVERAGE_OF_LARGEST
    if frame.ceiling is not None:
        return coverage_words.COVERAGE_AT_CEILING
    return _why_cut(frame.rows_sql.cuts) if frame.rows_sql.cuts else coverage_words.COVERAGE_OF_CUT_UNITS


def _why_cut(cuts: Sequence[str]) -> str:
    """Say why coverage of a join is not measured, and the cure if a constraint may be one.

    >>> _why_cut(["of one unit a join keeps at most 31 rows of main.visits; which ones is chosen by a secret hash"])
    'a join keeps a limited number of rows of a unit'
    """
    key = "; if the compared columns are unique in a table, declare its PRIMARY KEY: then the join drops no row"
    return f"a join keeps a limited number of rows of a unit{key if any('PRIMARY KEY' in cut for cut in cuts) else ''}"


def _raised(query: FrameQuery) -> Iterator[CoverageReceipt]:
    """Yield a line for each count or sum that has no share, because its bounds make more of what a unit has."""
    if not (query.request.coverage and query.frame.is_measured):
        return
    for estimate in query.estimates:
        value = estimate.value
        statistic = value.linear.statistic if isinstance(value, Sum | RunningSum) else None
        if statistic and statistic.is_raised:
            form = "group" if statistic.group_bounds_steps else "row"
            _, high = statistic.group_bounds_steps or statistic.row_bounds_steps or (0, 0)
            why = coverage_words.BOUNDS_RAISE.format(form=form, high=math.ldexp(high, statistic.lattice_exponent))
            yield CoverageReceipt(estimate.name, query.frame.rows.unit, unknown=why)


def _left_out(covered: Statistic, found: LeftOut, query: FrameQuery) -> LeftOutReceipt:
    """Return what bounds leave out of one count or sum."""
    numbers = [number for number, one in enumerate(query.estimates) if one.covered == covered]
    columns = tuple(one.name for one in query.finish.columns if one.estimate in numbers)
    of = covered_name(covered, query)
    return LeftOutReceipt(columns, of, unit_name(query.frame), found, is_amount=covered.kind == "sum")


def unit_name(frame: Frame) -> str:
    """Return the name of a frame's unit; ``unit`` if it has none of its own, but that of its table."""
    unit = frame.rows.unit
    return "unit" if unit == frame.rows.table.rpartition(".")[2] else unit


def _columns_of(query: FrameQuery) -> tuple[_Column, ...]:
    """Return the averages, spreads and sums of both signs of a query; those with equal coverage are one."""
    found: dict[tuple[object, ...], _Column] = {}
    for estimate in query.estimates:
        for column in _columns_of_estimate(estimate, query):
            same = (column.measured, column.values, column.bounds, column.counted)
            found[same] = _together(found[same], column) if same in found else column
    return tuple(found.values())


def _together(one: _Column, other: _Column) -> _Column:
    """Return two columns with equal coverage as one."""
    return replace(one, name=f"{one.name}, {other.name}", parts=one.parts | other.parts)


def _columns_of_estimate(estimate: Estimate, query: FrameQuery) -> Iterator[_Column]:
    """Yield the column of an average, a spread or a sum of both signs; of pairs of values one for each value."""
    value, bounds = estimate.value, estimate.value_bounds or _NO_BOUNDS
    parts = frozenset(part.statistic for part in value.linears if part.statistic)
    if isinstance(value, Moments):
        # the rows are the same, and named once
        counted = None if query.has_one_row else _rows(value.rows)
        for one, of_rows in ((value.y, counted), (value.x, None)):
            yield _Column(estimate.name, "rows", f"values of {one.name}", one.value_bounds, of_rows, None, parts)
    if isinstance(value, Ratio | Spread | GeometricMean):
        ratio = value.average if isinstance(value, Spread) else value
        ratio = ratio.logarithm if isinstance(ratio, GeometricMean) else ratio
        summed = ratio.numerator.statistic
        if ratio.offset or (summed and summed.is_signed):
            summed = None
        counted = None if query.has_one_row else _rows(ratio.denominator)
        yield _Column(estimate.name, "rows", "values", bounds, counted, summed, parts)
    if isinstance(value, Sum | RunningSum) and estimate.covered and estimate.covered.is_signed:
        totals = "totals in a group" if query.frame.keys else "totals"
        values = "values" if bounds.form == "row" else totals
        yield _Column(estimate.name, totals, values, bounds, estimate.covered, None, parts)


def _rows(denominator: Linear) -> Statistic:
    """Return the statistic of the number of rows of an average."""
    if denominator.statistic:
        return denominator.statistic
    # each present unit has one row in a group, or so many
    steps = round(denominator.centre) << -COUNT_LATTICE_EXPONENT
    return Statistic("rows", steps, steps, COUNT_LATTICE_EXPONENT, limit=round(denominator.centre))


def _numbers(
    query: FrameQuery, shares: Mapping[Statistic, Kept | None], columns: Sequence[_Column]
) -> Iterator[Statistic]:
    """Yield the statistics whose coverage has a line of its own: those of counts, and of sums of values from 0 on."""
    named = dict.fromkeys(one.covered for one in query.estimates if one.covered)
    of_columns = {part for column in columns for part in column.parts}
    yield from (one for one in named if one in shares and not one.is_signed)
    yield from (one for one in shares if one not in named and one not in of_columns)


def _column_lines(
    query: FrameQuery,
    columns: Sequence[_Column],
    shares: Mapping[Statistic, Kept | None],
    side_table: SideTable,
    statements: int,
) -> Iterator[CoverageReceipt]:
    """Yield a line for each average, spread and sum of both signs of which bounds may leave something out."""
    named = {one.covered for one in query.estimates if one.covered}
    for column in columns:
        line = CoverageReceipt(
            column.name,
            query.frame.rows.unit,
            measured=column.measured,
            values=column.values,
            declared=column.declared,
        )
        counted, is_sum = column.counted, column.measured != "rows"
        if counted and counted in shares:
            # rows that are counted have a line of their own
            if is_sum or counted not in named:
                line = _with_share(line, counted, shares[counted], query)
        elif counted is not None and counted not in column.parts:
            line = replace(line, unknown=coverage_words.ROWS_UNMEASURED)
        if column.may_cut:
            asked = column.bounds.asked is not None
            cut = most_cut(query, column.bounds, side_table, statements) if asked else None
            line = replace(
                line, cut=column.cut, most_cut=1.0 if cut is None else cut, cut_is_hidden=asked and cut is None
            )
        # of rows that are cut as well their own line says more
        summed = shares.get(column.summed) if column.summed and line.high_of_all > phrases.TOLD_HIGH else None
        if summed and summed.share:
            line = replace(line, high_of_sum=summed.high_of_all)
        # where one row a unit is sure, the declared bounds are trusted
        is_told = line.share is not None or line.unknown or line.cut or (line.declared and not query.has_one_row)
        if is_told or line.high_of_sum <= phrases.TOLD_HIGH:
            yield line


def _line(covered: Statistic, kept: Kept | None, query: FrameQuery) -> CoverageReceipt:
    """Return what is known of one statistic."""
    measured = {"presence": "groups", "rows": "rows"}.get(covered.kind, "totals")
    line = CoverageReceipt(covered_name(covered, query), query.frame.rows.unit, measured=measured)
    return _with_share(line, covered, kept, query)


def _with_share(line: CoverageReceipt, covered: Statistic, kept: Kept | None, query: FrameQuery) -> CoverageReceipt:
    """Return a line with the share that bounding leaves of a statistic, or with the reason why it is unknown."""
    if not kept or not kept.share:
        has_rows = bool(query.frame.rows_sql.relation)
        missing = coverage_words.COVERAGE_OF_LEVELS if has_rows else coverage_words.COVERAGE_GONE
        return replace(line, unknown=coverage_words.TOO_FEW if kept else missing)
    share = kept.share
    return replace(
        line,
        share=share.value,
        low=share.low,
        high=share.high,
        size=share.size,
        # at least a number that is not whole, and at most one
        least_beyond=max(0, math.ceil(kept.least_beyond)),
        beyond=math.floor(kept.most_beyond),
        part_beyond=kept.part_beyond,
        high_of_all=kept.high_of_all,
        advice=_advice(covered, kept, query),
    )


def covered_name(covered: Statistic, query: FrameQuery) -> str:
    """Return what is counted or added up."""
    if covered.kind == "presence":
        return "groups"
    if covered.kind == "rows" and not covered.value_sql and not covered.filter_sql:
        return "rows"
    for estimate in query.estimates:
        if estimate.covered == covered:
            return estimate.name
    parts = [one.name for one in query.estimates if covered in {part.statistic for part in one.value.linears}]
    return f"{'rows' if covered.kind == 'rows' else 'values'} of {', '.join(parts)}"


def _advice(covered: Statistic, kept: Kept, query: FrameQuery) -> str:
    """Return what to write for more, and what it costs, if one bound alone leaves much out; else empty."""
    bounding, enough = query.frame.bounding, kept.enough
    if not kept.ratio or kept.ratio.value >= MUCH or not enough:
        return ""
    groups = bounding.max_groups
    # a bound that is nearly as large keeps nearly as much
    if covered.kind == "presence" and groups and 1.5 * groups <= enough:
        keeps = coverage_words.KEEPS_MUCH.format(noise=math.sqrt(enough / groups))
        return coverage_words.MORE_GROUPS.format(groups=round(enough), keeps=keeps)
    count = next((one for one in query.estimates if one.covered == covered), None)
    plain = _PLAIN_COUNT.fullmatch(count.name) if count else None
    if plain and not query.frame.keys and covered.row_cap and covered.row_cap < enough:
        keeps = coverage_words.KEEPS_MUCH.format(noise=enough / covered.row_cap)
        return coverage_words.MORE_ROWS.format(counted=plain[1], rows=round(enough), keeps=keeps)
    return coverage_words.LARGER_BOUNDS
