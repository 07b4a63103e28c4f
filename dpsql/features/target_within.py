"""Cells of an answer that are within its relative error, by their noise and by what bounds may leave out of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import pyarrow as pa

from dpsql.features.target_facts import may_cut
from dpsql.features.target_missing import Missing
from dpsql.features.target_notes import alias_of
from dpsql.features.target_rule import Step, measured, quantile_of
from dpsql.model.private_query import FrameQuery
from dpsql.model.query_kinds import RelativeError
from dpsql.model.statistic_kinds import LEFT_OUT_KINDS
from dpsql.receipts.coverage_receipt import unit_name
from dpsql.receipts.left_out_words import lacks_people, may_cut_some, within_unknown
from dpsql.receipts.receipt import Receipt
from dpsql.state import to_arrow


def within_target(part: FrameQuery, step: Step, target: RelativeError, missing: Missing) -> Mapping[int, pa.Array]:
    """Return for each number that is asked for whether it is within the target, by the number of its estimate.

    If bounds cut nothing of a number for sure, that is 1 or 0, by the interval of the noise. Else it is 1 if noise and
    all that may be missing are within the target together, and NULL if that is not known. It is 0 if the noise alone is
    too large, except for counts and sums whose rows left out are measured.

    Args:
        part: the question.
        step: the last step.
        target: the rule.
        missing: what bounds may leave out of its groups.

    """
    numbers = measured(part)
    columns = step.columns(quantile_of(target))
    counted_out = {one.covered for one in part.statistics if one.kind in LEFT_OUT_KINDS}
    found: dict[int, pa.Array] = {}
    for number in part.finish.within:
        if number not in numbers:
            found[number] = to_arrow(np.zeros(step.groups, dtype=np.int64))
            continue
        column = columns[numbers.index(number)]
        by_noise = column.within(target.error)
        if not may_cut(part, number):
            found[number] = to_arrow(by_noise.astype(np.int64))
            continue
        is_within = by_noise & (missing.half_widths(number, step, target) <= target.error * np.abs(column.values))
        # too much noise says as little of a number that lacks rows as the rows do
        otherwise = np.nan if part.estimates[number].covered in counted_out else np.where(by_noise, np.nan, 0.0)
        found[number] = to_arrow(np.where(is_within, 1.0, otherwise), nan_as_null=True)
    return found


def why_unknown(
    part: FrameQuery, receipt: Receipt, within: Mapping[int, pa.Array], error: float, missing: Missing
) -> Iterator[str]:
    """Yield a sentence for each reason why truth values about the target are NULL.

    Args:
        part: the question.
        receipt: has the measured numbers of rows left out.
        within: the truth values, by the numbers of their estimates.
        error: the relative error that the question asks for.
        missing: what bounds may leave out of the groups.

    """
    unknown = {number: alias_of(part, number) for number, cells in within.items() if cells.null_count}
    counted_out = [one for one in receipt.left_out if set(one.columns) & set(unknown.values())]
    yield from (within_unknown(one, error) for one in counted_out)
    told = {name for one in counted_out for name in one.columns}
    others: dict[str, list[str]] = {}
    for number, name in unknown.items():
        if name in told:
            continue
        if missing.counts_people(number):
            yield lacks_people(name, missing.people, unit_name(part.frame), error)
        else:
            others.setdefault(may_cut(part, number), []).append(name)
    yield from (may_cut_some(cut, columns) for cut, columns in others.items())
