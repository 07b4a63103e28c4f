"""The rule for what follows the first round of a query, by what AUTO's histograms say of its units.

`first_round` has the formula. Here it gets the numbers that it needs of the plan and of stored points.
"""

from __future__ import annotations

import math

from dpsql.cascade.reader import Reader
from dpsql.features.auto_histograms import Question
from dpsql.features.auto_norms import mean_norm
from dpsql.features.first_round import AfterFirst, Spread, spread_of
from dpsql.mechanism.registry import histogram_of
from dpsql.model.frame import PRESENCE, Statistic
from dpsql.model.private_query import AutoBounds, AutoGroups, FrameQuery
from dpsql.model.query_kinds import KeysFirst
from dpsql.release.number_threshold import hiding_statistic, scale_of
from dpsql.state import State


def after_first(
    asked: KeysFirst, state: State, first: float, second: float, numbers_rho: float, reader: Reader
) -> AfterFirst | None:
    """Return the rule for the step after the first round, by AUTO's histogram of groups; None without one."""
    numbers, selection = asked.parts
    groups = next(((one, level) for one, level in zip(numbers.auto, numbers.auto_levels, strict=False)), None)
    most_keys = selection.frame.bounding.counted_groups
    if groups is None or not isinstance(groups[0], AutoGroups) or not groups[1].is_stored or not most_keys:
        return None
    point = Question(groups[0]).point(state.side_table, groups[1].rho_nano)
    is_open, hiding = asked.may_hide and not reader.has_limit, hiding_statistic(numbers)
    spread = spread_of(point.noisy_values, point.sigma, groups[0].candidates, most_keys, numbers.frame.bounding)
    if not spread:
        return None
    per_unit = _per_unit(numbers, hiding, spread, state) if is_open and hiding else None
    size = math.sqrt(numbers.frame.unit_groups) / spread.in_numbers
    if per_unit is not None and math.isfinite(per_unit):
        size = per_unit
    return AfterFirst(spread, size, per_unit, first, second, numbers_rho, is_open)


def _per_unit(numbers: FrameQuery, hiding: Statistic, spread: Spread, state: State) -> float:
    """Return the l2 norm of a unit in a statistic over what it adds to a key on average, and the root of its share.

    A count of rows of norm v in g groups has v / sqrt(g) in each. Return infinity where AUTO's histogram does not tell
    its norms, so that a threshold takes the place of no rounds.
    """
    share = numbers.weights[numbers.statistics.index(hiding)]
    if hiding == PRESENCE:
        return math.sqrt(numbers.frame.unit_groups / share) / spread.in_numbers
    for asked, level in zip(numbers.auto, numbers.auto_levels, strict=True):
        if isinstance(asked, AutoBounds) and asked.statistic.kind == "rows_norm" and level.is_stored:
            point = Question(asked).point(state.side_table, level.rho_nano)
            norm = mean_norm(point.noisy_values, point.sigma)
            scale = scale_of(hiding, histogram_of(numbers.frame))
            return scale * math.sqrt(spread.groups / share) / norm if norm else math.inf
    return math.inf
