"""Purposes of a query, by which AUTO chooses: counts, or ratios of counts of rows.

Which estimates a text asks for is public, so one text has one purpose. The bounds of quantiles, averages and spreads
are chosen together from both histograms of units, by groups and by norms of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from dpsql.features.auto_choices import held_groups
from dpsql.features.auto_histograms import Question
from dpsql.features.auto_norms import USUAL_ROWS_PLACES, on_row_lattice
from dpsql.features.auto_ratios import (
    AVERAGE,
    QUANTILE,
    People,
    RatioKind,
    RatioUse,
    chosen_cuts,
    chosen_ratio_norm,
    coupled,
    held_norms,
    supposed,
)
from dpsql.mechanism.calibrate import AUTO_PARTS
from dpsql.model.estimates import UNITS, NoValue, Quantile, Ratio, Spread
from dpsql.model.frame import NANO
from dpsql.model.private_query import AutoBounds, AutoGroups, AutoQuestion, FrameQuery
from dpsql.state import Point, SideTable


def ratio_kind(query: FrameQuery) -> RatioKind | None:
    """Return the kind of ratio that the rows of a query are counted for; None if a count or a sum needs them, too.

    A query with a quantile is one of quantiles. Numbers of units do not depend on how many rows a unit has.
    """
    of_rows = [
        one.value.instead if isinstance(one.value, NoValue) else one.value
        for one in query.estimates
        if one.value != UNITS or one.counts_rows
    ]
    if not of_rows or not all(isinstance(one, Ratio | Spread | Quantile) for one in of_rows):
        return None
    return QUANTILE if any(isinstance(one, Quantile) for one in of_rows) else AVERAGE


def groups_for_ratios(query: FrameQuery, asked: AutoGroups) -> bool:
    """Return whether a number of groups is chosen by the error of ratios alone.

    With a norm or with weights, rows of a unit are scaled down over all its groups, whose number hardly matters.
    """
    counts_units = any(one.value == UNITS for one in query.estimates)
    return not (asked.weighted or query.frame.bounding.by_norm or counts_units) and ratio_kind(query) is not None


def ratio_groups(query: FrameQuery, asked: AutoGroups, side_table: SideTable) -> int:
    """Return the number of groups that stored histograms choose for ratios; all of them are stored."""
    rows = next((one for one in query.auto if isinstance(one, AutoBounds) and one.statistic.kind == "rows_norm"), None)
    use, people = _use_and_people(query, rows, side_table)
    return chosen_cuts(people, asked.candidates, use)[0]


def ratio_norm(
    query: FrameQuery, asked: AutoBounds, most_groups: Callable[[AutoGroups], int], side_table: SideTable
) -> float | None:
    """Return the norm of rows that stored histograms choose for ratios; None if one of them is not stored yet.

    Without ``bounding = NORM`` it bounds a unit's rows in each of its groups.

    Args:
        query: the query, at its reader's levels.
        asked: the question.
        most_groups: the number of groups that AUTO chooses.
        side_table: where histograms are stored.

    """
    first = query.auto[0]
    if isinstance(first, AutoGroups) and not query.auto_levels[0].is_stored:
        return None
    use, people = _use_and_people(query, asked, side_table)
    if query.frame.bounding.by_norm:
        return on_row_lattice(chosen_ratio_norm(people, use))
    if not isinstance(first, AutoGroups):
        groups: Sequence[int] = (query.frame.bounding.max_groups or 1,)
    elif first.chosen or not groups_for_ratios(query, first):
        groups = (first.chosen or most_groups(first),)
    else:
        groups = first.candidates
    return float(chosen_cuts(people, groups, use)[1])


def _use_and_people(query: FrameQuery, rows: AutoBounds | None, side_table: SideTable) -> tuple[RatioUse, People]:
    """Return how bounds will be used, and what stored histograms tell of units."""
    kind, frame, first = ratio_kind(query), query.frame, query.auto[0]
    if kind is None:
        raise AssertionError("a query of ratios")
    levels = {
        Question(one).statistic_hash: level.rho_nano for one, level in zip(query.auto, query.auto_levels, strict=True)
    }
    by_rows = _point(rows, levels, side_table) if rows else None
    by_groups = _point(first, levels, side_table) if isinstance(first, AutoGroups) else None
    norms = held_norms(by_rows.noisy_values, by_rows.sigma, USUAL_ROWS_PLACES) if by_rows else None
    held = None
    if isinstance(first, AutoGroups) and by_groups:
        held = held_groups(by_groups.noisy_values, by_groups.sigma, first.candidates)
    most = first.candidates[-1] if isinstance(first, AutoGroups) else frame.bounding.max_groups
    known = [one for one in (most, frame.key_count) if one]
    people = coupled(held, norms) if held else supposed(norms, min(known, default=None))
    # what a query that leaves these levels for its questions has for its statistics
    own_nano = max(one.rho_nano for one in (by_rows, by_groups) if one) * len(query.auto)
    rho = own_nano * (AUTO_PARTS - 1) / NANO
    return RatioUse(kind, rho, frame.key_count), people


def _point(asked: AutoQuestion, levels: Mapping[str, int], side_table: SideTable) -> Point:
    """Return the stored histogram of a question at its reader's level."""
    question = Question(asked)
    return question.point(side_table, levels[question.statistic_hash])
