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
