"""Sentences of a receipt about AUTO: what it chose, and which columns it found no bounds for."""

from __future__ import annotations

import math
from collections.abc import Iterator

from dpsql.model.auto_level import AutoLevel
from dpsql.model.estimates import NotFound, NoValue, Quantile, Ratio, Spread
from dpsql.model.private_query import AutoGroups, FrameQuery
from dpsql.receipts import phrases, weight_words, words
from dpsql.state import NANO_PER_RHO


def auto_notes(query: FrameQuery) -> Iterator[str]:
    """Yield a sentence for each choice of AUTO, and for each column that is NULL."""
    unit = query.frame.rows.unit
    for estimate in query.estimates:
        if isinstance(value := estimate.value, NoValue):
            yield phrases.without_bounds(estimate.name, unit, value.not_found.reason, value.cure)
    for asked, level in zip(query.auto, query.auto_levels, strict=True):
        if isinstance(asked, AutoGroups):
            yield words.AUTO_GROUPS.format(groups=query.frame.bounding.max_groups, level=_chosen_at(level))
        elif isinstance(asked.bounds, NotFound):
            yield words.AUTO_NO_BOUNDS.format(column=asked.name, level=_chosen_at(level))
            if asked.instead:
                yield phrases.one_row(asked.name, unit, asked.bounds.reason, asked.instead)
        elif asked.is_norm and not query.frame.bounding.by_norm:
            yield from _rows_notes(query, math.ceil(asked.bounds[1]), _chosen_at(level))
        elif asked.is_norm:
            yield words.AUTO_NORM.format(norm=asked.bounds[1], column=asked.name, level=_chosen_at(level))
        else:
            low, high = asked.bounds
            yield words.AUTO_BOUNDS.format(low=low, high=high, column=asked.name, level=_chosen_at(level))


def _rows_notes(query: FrameQuery, rows: int, level: str) -> Iterator[str]:
    """Yield how many rows of a unit count in a group, and of which columns that changes the weights of people."""
    yield words.AUTO_ROWS.format(rows=f"{rows:,} row{'' if rows == 1 else 's'}", level=level)
    columns = [
        one.name
        for one in query.estimates
        if isinstance(one.value, Quantile | Ratio | Spread)
        and any(linear.statistic and linear.statistic.row_cap for linear in one.value.linears)
    ]
    if columns and not query.has_one_row:
        yield weight_words.weights(columns, rows, query.frame.rows.unit, has_groups=bool(query.frame.keys))


def _chosen_at(level: AutoLevel) -> str:
    """Return the level of a histogram, and whether its choice lasts."""
    at = words.AUTO_LEVEL.format(rho=level.rho_nano / NANO_PER_RHO)
    return (words.AUTO_SURE if level.is_sure else words.AUTO_UNSURE).format(level=at)
