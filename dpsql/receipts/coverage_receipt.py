"""Coverage in a receipt: one sentence for each column that a bound can make smaller."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from dpsql.model.estimates import RunningSum, Sum
from dpsql.model.frame import Frame, Statistic
from dpsql.model.private_query import FrameQuery
from dpsql.receipts import column_words, phrases, words
from dpsql.receipts.coverage_lines import CoverageReceipt
from dpsql.receipts.covered_columns import Column, columns_of
from dpsql.receipts.join_words import why_cut
from dpsql.receipts.receipt import Receipt
from dpsql.release.coverage import MUCH, Kept
from dpsql.release.cut_values import most_cut
from dpsql.release.left_out import LeftOut, LeftOutReceipt
from dpsql.release.noisy_table import kept_shares, left_out_numbers
from dpsql.release.offer import Offer
from dpsql.release.points import shown_ids
from dpsql.state import SideTable

_PLAIN_COUNT = re.compile(r"count\((\*|\w+)\)")


def with_coverage(
    receipt: Receipt,
    offer: Offer,
    side_table: SideTable,
    statements: int | None = None,
    *,
    selected: npt.NDArray[np.intp] | None = None,
) -> Receipt:
    """Return the receipt with what bounds keep and leave out, once that is stored.

    Args:
        receipt: of the offer.
        offer: how the query of one frame is served; all of it is stored.
        side_table: where points are stored.
        statements: number of histograms that the answer reads, if it has more than those of the offer.
        selected: ids of the keys that another release has selected.

    """
    query = offer.query
    columns = columns_of(query)
    statements = statements or statements_of(offer)
    shares = kept_shares(offer, side_table, statements)
    lines = dict.fromkeys((*_unmeasured(query), *_raised(query)))
    lines |= dict.fromkeys(_line(one, shares[one], query) for one in _numbers(query, shares, columns))
    if query.request.coverage and query.frame.is_measured:
        lines |= dict.fromkeys(_column_lines(query, columns, shares, side_table, statements))
    left_out: tuple[LeftOutReceipt, ...] = ()
    if offer.left_out:
        found = left_out_numbers(offer, shown_ids(offer, side_table, selected), side_table)
        order = [one.covered for one in query.estimates]
        left_out = tuple(_left_out(one, found[one], query) for one in sorted(found, key=order.index))
    return replace(receipt, coverage=tuple(lines), left_out=left_out)


def statements_of(offer: Offer) -> int:
    """Return the number of histograms that coverage of an offer is read from."""
    chosen = {one.bounds.asked for one in columns_of(offer.query) if one.may_cut and one.bounds.asked}
    return len(offer.coverage) + len(chosen)


def with_coverage_of_sets(receipt: Receipt, offers: Sequence[Offer], side_table: SideTable) -> Receipt:
    """Return the receipt of several grouping sets with what bounding leaves in each.

    Args:
        receipt: of all together, with one for each set.
        offers: how each set is served; all of it is stored.
        side_table: where points are stored.

    """
    if unknown := next((found for offer in offers if (found := _unmeasured(offer.query))), ()):
        return replace(receipt, coverage=unknown)
    statements = sum(map(statements_of, offers))
    return replace(
        receipt,
        sets=tuple(
            replace(one, receipt=with_coverage(one.receipt, offer, side_table, statements))
            for one, offer in zip(receipt.sets, offers, strict=True)
        ),
    )


def _unmeasured(query: FrameQuery) -> tuple[CoverageReceipt, ...]:
    """Return the line that says why coverage of an answer cannot be measured; empty if it is measured or not wanted."""
    wanted = query.request.coverage
    if not query.estimates or wanted is None or (wanted and query.frame.is_measured):
        return ()
    why = words.COVERAGE_OFF if wanted is False else _why_unmeasured(query.frame)
    return (CoverageReceipt("all rows", query.frame.rows.unit, unknown=why),)


def _why_unmeasured(frame: Frame) -> str:
    """Return why coverage of a frame is not measured, and the cure."""
    if frame.bounding.finer:
        return words.COVERAGE_OF_SETS
    if frame.bounding.sparsity:
        return words.COVERAGE_OF_LARGEST
    if frame.ceiling is not None:
        return words.COVERAGE_AT_CEILING
    return why_cut(frame.rows_sql.cuts) if frame.rows_sql.cuts else words.COVERAGE_OF_CUT_UNITS


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
            why = words.BOUNDS_RAISE.format(form=form, high=math.ldexp(high, statistic.lattice_exponent))
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


def _numbers(
    query: FrameQuery, shares: Mapping[Statistic, Kept | None], columns: Sequence[Column]
) -> Iterator[Statistic]:
    """Yield the statistics whose coverage has a line of its own: those of counts, and of sums of values from 0 on."""
    named = dict.fromkeys(one.covered for one in query.estimates if one.covered)
    of_columns = {part for column in columns for part in column.parts}
    yield from (one for one in named if one in shares and not one.is_signed)
    yield from (one for one in shares if one not in named and one not in of_columns)


def _column_lines(
    query: FrameQuery,
    columns: Sequence[Column],
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
            line = replace(line, unknown=column_words.ROWS_UNMEASURED)
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
        missing = words.COVERAGE_OF_LEVELS if has_rows else words.COVERAGE_GONE
        return replace(line, unknown=words.TOO_FEW if kept else missing)
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
        return phrases.more_groups(round(enough), math.sqrt(enough / groups))
    count = next((one for one in query.estimates if one.covered == covered), None)
    plain = _PLAIN_COUNT.fullmatch(count.name) if count else None
    if plain and not query.frame.keys and covered.row_cap and covered.row_cap < enough:
        return phrases.more_rows(plain[1], round(enough), enough / covered.row_cap)
    return words.LARGER_BOUNDS
