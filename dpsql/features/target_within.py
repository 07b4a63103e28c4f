"""Which cells of an answer are within its relative error: by their noise, and by what bounds may leave out of them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from dpsql.answer.bound_effects import left_out_numbers
from dpsql.answer.left_out import LeftOut
from dpsql.answer.offer import Offer
from dpsql.features.target_rule import Step, measured, quantile_of, upper_quantile
from dpsql.model.private_query import FrameQuery
from dpsql.model.query_kinds import RelativeError
from dpsql.model.statistic_kinds import LEFT_OUT_KINDS
from dpsql.state import SideTable, to_arrow


def within_target(
    part: FrameQuery, offer: Offer, step: Step, target: RelativeError, side_table: SideTable
) -> Mapping[int, pa.Array]:
    """Return for each number that is asked for whether it is within the target, by the number of its estimate.

    Of a count or sum of which bounds may leave rows out, that is 1 if the interval of the whole number is within the
    target, else NULL. It is NULL as well if nothing is known of what they leave out. Of other numbers it is 1 or 0, by
    the interval of the noise.

    Args:
        part: the question.
        offer: how its last step is served.
        step: the last step.
        target: the rule.
        side_table: where points are stored.

    """
    left_out = left_out_numbers(offer, step.found.shown, side_table)
    numbers, known = measured(part), {one.level.statistic.covered for one in offer.servings}
    unknown = {one.covered for one in part.statistics if one.kind in LEFT_OUT_KINDS} - known
    found: dict[int, pa.Array] = {}
    for number in part.finish.within:
        covered = part.estimates[number].covered
        if number not in numbers:
            found[number] = to_arrow(np.zeros(step.groups, dtype=np.int64))
        elif covered in left_out:
            is_within = _is_within(numbers.index(number), left_out[covered], step, target)
            found[number] = to_arrow(np.where(is_within, 1.0, np.nan), nan_as_null=True)
        elif covered in unknown:
            found[number] = to_arrow(np.full(step.groups, np.nan), nan_as_null=True)
        else:
            column = step.columns(quantile_of(target))[numbers.index(number)]
            found[number] = to_arrow(column.within(target.error).astype(np.int64))
    return found


def _is_within(place: int, left_out: LeftOut, step: Step, target: RelativeError) -> np.typing.NDArray[np.bool_]:
    """Return which cells of a column are within the target, with what bounds may leave out of them."""
    low, high = (step.columns(quantile)[place] for quantile in (quantile_of(target), upper_quantile(target)))
    upper = left_out.upper_ends(high.values + high.half_widths) - high.values
    half_widths = np.maximum(low.half_widths, np.nan_to_num(upper, nan=np.inf))
    within: np.typing.NDArray[np.bool_] = low.known & (half_widths <= target.error * np.abs(low.values))
    return within
