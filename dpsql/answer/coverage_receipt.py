"""What bounding leaves, in an answer's receipt: said of every number that a bound can make smaller."""

from __future__ import annotations

import math
from dataclasses import replace

from dpsql.answer.coverage import MUCH, UNKNOWN, Kept
from dpsql.answer.offer import Offer
from dpsql.answer.points import kept_shares
from dpsql.answer.result import CoverageReceipt, Receipt
from dpsql.answer.words import COVERAGE_GONE
from dpsql.model.frame import Statistic
from dpsql.model.private_query import FrameQuery
from dpsql.state import SideTable


def with_coverage(receipt: Receipt, offer: Offer, side_table: SideTable) -> Receipt:
    """The receipt with what bounding leaves, once that is stored; as it is where it was not asked for."""
    query, shares = offer.query, kept_shares(offer, side_table)
    found = [
        CoverageReceipt(
            covered_name(covered, query),
            query.frame.rows.unit,
            kept.share,
            kept.low,
            kept.high,
            kept.size,
            math.ceil(kept.beyond),
            kept.part_beyond,
            _advice(covered, kept, query),
        )
        for covered, kept in shares.items()
        if kept is not UNKNOWN
    ]
    notes = (*receipt.notes, *((COVERAGE_GONE,) if len(found) < len(shares) else ()))
    return replace(receipt, coverage=tuple(found), notes=notes)


def covered_name(covered: Statistic, query: FrameQuery) -> str:
    """What is counted or added up."""
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
    """What to write for more, and what it costs, where one bound alone leaves it out; else empty."""
    bounding, enough = query.frame.bounding, kept.enough
    if kept.share is None or not enough:
        return ""
    if kept.share >= MUCH:
        return "what bounds keep of that is not known" if kept.part_beyond > 1.0 - MUCH else ""
    groups = bounding.max_groups
    if covered.kind == "presence" and groups and groups < enough:
        return (
            f"OPTIONS (max_groups_contributed = {enough:.0f}) keeps 95 %, with {math.sqrt(enough / groups):.2g} times "
            "the noise"
        )
    if covered.kind == "rows" and not query.frame.keys and covered.row_cap and covered.row_cap < enough:
        return (
            f"contribution_bounds_per_group => (0, {enough:.0f}) keeps 95 %, with {enough / covered.row_cap:.2g} times "
            "the noise"
        )
    return "larger bounds keep more, with more noise"
