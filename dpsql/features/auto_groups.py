"""The number of groups that AUTO chooses for a query, by a stored histogram of units by theirs."""

from __future__ import annotations

import math

from dpsql.features.auto_choices import TYPICAL_GROUPS, Expected, chosen_groups
from dpsql.features.auto_histograms import Question
from dpsql.features.auto_norms import FEW_KEYS
from dpsql.features.auto_purposes import groups_for_ratios, ratio_groups
from dpsql.mechanism.calibrate import AUTO_PARTS
from dpsql.mechanism.histogram import count_sigma
from dpsql.mechanism.registry import choose_frame, histogram_of
from dpsql.model.frame import KEYS_FIRST, NANO
from dpsql.model.private_query import AutoGroups, FrameQuery
from dpsql.plan.features.auto import with_max_groups
from dpsql.state import State

_REFERENCE_DELTA = 1e-6
"""Thresholds are predicted at this delta whatever a query asks for, so that every query of a frame has one choice."""
_FOUND = 4.0
"""A key is taken to be selected in rounds where it has so many times the noise of a count of units in that many."""


def most_groups(query: FrameQuery, asked: AutoGroups, state: State, selected: int | None = None) -> int:
    """Return the number of groups that a stored histogram chooses for a query.

    Args:
        query: the plan, with the levels of what it leaves to AUTO.
        asked: the question for the number of groups.
        state: the state file.
        selected: number of private keys, if a first round found nearly all.

    """
    if groups_for_ratios(query, asked):
        return ratio_groups(query, asked, state.side_table)
    point = Question(asked).point(state.side_table, query.auto_levels[0].rho_nano)
    # what a query that leaves this level for AUTO has for its statistics
    rho = point.rho_nano * (AUTO_PARTS - 1) / NANO

    def expected(max_groups: int) -> Expected:
        frame = choose_frame(with_max_groups(query, asked, max_groups)).frame
        histogram = histogram_of(frame)
        sigma = histogram.sigma(rho)
        if frame.mechanism == KEYS_FIRST:
            # which keys are found is not for this number to decide
            return Expected(count_sigma(histogram, sigma), _FOUND * math.sqrt(TYPICAL_GROUPS / (2.0 * rho)))
        tau = histogram.threshold(_REFERENCE_DELTA, sigma)
        return Expected(count_sigma(histogram, sigma), None if tau is None else frame.bounding.minimum_units + tau)

    public, few = query.frame.public_keys, selected if selected and selected <= FEW_KEYS else None
    return chosen_groups(
        point.noisy_values,
        point.sigma,
        asked.candidates,
        expected,
        key_count=few if public is None else public.count,
        weighted=asked.weighted,
    )
