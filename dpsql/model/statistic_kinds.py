"""Kinds of statistics: numbers of groups, questions of AUTO, and what is released of bounds beside the numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

StatisticKind = Literal[
    "presence",
    "units",
    "rows",
    "sum",
    "values",
    "value_sum",
    "histogram",
    "groups",
    "group_extremes",
    "row_extremes",
    "rows_norm",
    "sum_norm",
    "presence_coverage",
    "rows_coverage",
    "sum_coverage",
    "rows_left_out",
    "sum_left_out",
]
"""The kinds. A unit adds the value v to a group.

- ``presence`` (v = 1, not recentred), ``units`` (present rows pass ``filter_sql``), ``rows``, ``sum``
- ``values`` (distinct values of a group; v is what the unit adds to those of all others) and ``value_sum`` (the sum of
  distinct values, each clamped; v is what the unit adds to that of all others; not recentred)
- ``histogram`` (rows in each of ``cells`` cells, not recentred; v is their number)
- questions of AUTO: ``groups``, ``group_extremes``, ``row_extremes``, ``rows_norm``, ``sum_norm``
  (`plan.features.auto`)
- ``presence_coverage``, ``rows_coverage``, ``sum_coverage``: units by what bounding leaves of them in such a statistic,
  over places that are the same for every table (`bound.coverage`)
- ``rows_left_out``, ``sum_left_out``: how much bounds leave out (`bound.left_out`)
"""

SUM_KINDS = ("sum", "value_sum")
"""Kinds of statistics that add up values, on a lattice of their own."""

DISTINCT_KINDS = ("values", "value_sum")
"""Kinds of statistics in which a value counts once, however many units have it."""

APART_KINDS = (*DISTINCT_KINDS, "histogram")
"""Kinds of statistics that are read from rows of their own, beside what each unit adds."""

COVERAGE_KINDS = ("presence_coverage", "rows_coverage", "sum_coverage")
"""Kinds of statistics that say what bounding leaves of another one, as histograms of units."""

LEFT_OUT_KINDS = ("rows_left_out", "sum_left_out")
"""Kinds of statistics that say how much bounds leave out of another one, as one number."""

BESIDE_KINDS = (*COVERAGE_KINDS, *LEFT_OUT_KINDS)
"""Kinds of statistics that one unit moves by at most 1, and that have no value for each key."""

COVERED_KINDS: Mapping[str, StatisticKind] = {
    "presence_coverage": "presence",
    "rows_coverage": "rows",
    "sum_coverage": "sum",
    "rows_left_out": "rows",
    "sum_left_out": "sum",
}
"""The kind of the bounded statistic, by the kind of the statistic that is about it."""
