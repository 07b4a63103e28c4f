"""Coverage in a receipt: one sentence for each column that a bound can make smaller."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from dpsql.answer import phrases, words
from dpsql.answer.coverage import MUCH, Kept
from dpsql.answer.join_words import why_cut
from dpsql.answer.offer import Offer
from dpsql.answer.points import kept_shares
from dpsql.answer.receipt import CoverageReceipt, Receipt
from dpsql.model.estimates import RunningSum, Spread, Sum
from dpsql.model.frame import Frame, Statistic
from dpsql.model.private_query import FrameQuery
from dpsql.state import SideTable

_PLAIN_COUNT = re.compile(r"count\((\*|\w+)\)")


def with_coverage(receipt: Receipt, offer: Offer, side_table: SideTable, statements: int | None = None) -> Receipt:
    """Return the receipt with what bounding leaves, once that is stored.

    Args:
        receipt: of the offer.
        offer: how the query of one frame is served; all of it is stored.
        side_table: where points are stored.
        statements: number of histograms that the answer reads, if it has more than those of the offer.

    """
    query, shares = offer.query, kept_shares(offer, side_table, statements)
    lines = dict.fromkeys((*_unmeasured(query), *_raised(query)))
    for candidates in _by_column(query, shares):
        covered = min(candidates, key=lambda one: _known(shares[one]))
        lines[_line(covered, shares[covered], query)] = None
    return replace(receipt, coverage=tuple(lines))


def with_coverage_of_sets(receipt: Receipt, offers: Sequence[Offer], side_table: SideTable) -> Receipt:
    """Return the receipt of several grouping sets with what bounding leaves in each.

    Args:
        receipt: of all together, with one for each set.
        offers: how each set is served; all of it is stored.
        side_table: where points are stored.

    """
    if unknown := next((found for offer in offers if (found := _unmeasured(offer.query))), ()):
        return replace(receipt, coverage=unknown)
    statements = sum(len(offer.coverage) for offer in offers)
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


def _by_column(query: FrameQuery, shares: dict[Statistic, Kept | None]) -> Iterator[list[Statistic]]:
    """Yield the statistics whose coverage a column may show, a list for each column.

    Squared distances are none that a reader knows: what bounds take of them, they take of values.
    """
    rest = set(shares)
    for estimate in query.estimates:
        squares = estimate.value.squares.statistic if isinstance(estimate.value, Spread) else None
        rest -= {squares} if squares else set()
        parts = [part.statistic for part in estimate.value.linears]
        candidates = [estimate.covered] if estimate.covered else [one for one in parts if one and one != squares]
        if found := [one for one in candidates if one in shares]:
            rest -= set(found)
            yield found
    yield from ([one] for one in shares if one in rest)


def _known(kept: Kept | None) -> float:
    """Return the share that bounding leaves for sure, below 0 if it is unknown."""
    return kept.share.low if kept and kept.share else -1.0


def _line(covered: Statistic, kept: Kept | None, query: FrameQuery) -> CoverageReceipt:
    """Return what is known of one statistic."""
    name, unit = covered_name(covered, query), query.frame.rows.unit
    if not kept or not kept.share:
        return CoverageReceipt(name, unit, unknown=words.TOO_FEW if kept else words.COVERAGE_GONE)
    share = kept.share
    return CoverageReceipt(
        name,
        unit,
        share.value,
        share.low,
        share.high,
        share.size,
        # at least a number that is not whole, and at most one
        max(0, math.ceil(kept.least_beyond)),
        math.floor(kept.most_beyond),
        kept.part_beyond,
        kept.high_of_all,
        _advice(covered, kept, query),
        measured=_measured(covered),
    )


def _measured(covered: Statistic) -> str:
    """Return the noun of the size of a unit: its groups, rows, or the total of its values."""
    if covered.kind != "sum":
        return "groups" if covered.kind == "presence" else "rows"
    return "totals without signs" if covered.interval[0] < 0.0 else "totals"


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
