"""Sentences of a receipt about AUTO: what it chose, and which columns it found no bounds for."""

from __future__ import annotations

from collections.abc import Iterator

from dpsql.answer import words
from dpsql.model.auto_level import AutoLevel
from dpsql.model.estimates import NotFound, NoValue
from dpsql.model.private_query import AutoGroups, FrameQuery
from dpsql.state import NANO_PER_RHO


def auto_notes(query: FrameQuery) -> Iterator[str]:
    """Yield a sentence for each choice of AUTO, and for each column that is NULL."""
    unit = query.frame.rows.unit
    for estimate in query.estimates:
        if isinstance(value := estimate.value, NoValue):
            yield words.without_bounds(estimate.name, unit, value.not_found.reason, value.cure)
    for asked, level in zip(query.auto, query.auto_levels, strict=True):
        if isinstance(asked, AutoGroups):
            yield (
                f"AUTO chose max_groups = {query.frame.bounding.max_groups} from a noisy histogram of units by their "
                f"number of groups, {_chosen_at(level)}"
            )
        elif isinstance(asked.bounds, NotFound):
            yield f"AUTO found no bounds for {asked.name}, {_chosen_at(level)}"
            if asked.instead:
                yield words.one_row(asked.name, unit, asked.bounds.reason, asked.instead)
        elif asked.is_norm and not query.frame.bounding.by_norm:
            yield words.rows_by_auto(asked.bounds[1], _chosen_at(level))
        elif asked.is_norm:
            yield (
                f"AUTO chose a norm of {asked.bounds[1]:.9g} for {asked.name} from a noisy histogram of units by the "
                f"norm of what they have in all groups, {_chosen_at(level)}; whoever has more is scaled down"
            )
        else:
            yield (
                f"AUTO found bounds [{asked.bounds[0]:.9g}, {asked.bounds[1]:.9g}] for {asked.name} in "
                f"noisy histograms of units by their largest and smallest values, {_chosen_at(level)}; what "
                "lies outside is clamped"
            )


def _chosen_at(level: AutoLevel) -> str:
    """Return the level of a histogram, and whether its choice lasts."""
    at = f"at rho = {level.rho_nano / NANO_PER_RHO:.9g}, which is part of rho"
    if level.is_sure:
        return f"{at} and paid once for this version of the table"
    return f"{at}; it is too noisy for a choice that lasts, so a query with more rho may get another"
