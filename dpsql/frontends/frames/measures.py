"""What is asked about each group, in the words of pandas, as SQL."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pandas as pd

from dpsql.errors import PolicyError, Refusal, UnsupportedQueryError
from dpsql.frontends.frames.rows import Frame, require_column
from dpsql.query.dialect import quote

Bounds = tuple[float, float] | str | None
"""Two numbers, ``"auto"``, or None for what policy and ``max_rows_per_group`` say."""

_PER_ROW = {"mean": "avg", "median": "median", "std": "stddev_samp", "var": "var_samp"}
_FUNCTIONS = ("size", "count", "nunique", "sum", *_PER_ROW)


@dataclass(frozen=True, slots=True)
class Measure:
    """One column of the answer.

    Attributes:
        name: of the column in the answer; empty for that of the unit column.
        column: of the frame; None for rows, or where distinct values are counted for units.
        function: as pandas calls it.
        bounds: of one unit in one group for sums and counts, of one row for the others.

    """

    name: str
    column: str | None
    function: str
    bounds: Bounds = None

    def of_units(self, owner: str) -> Measure:
        """With the unit column where distinct units are counted."""
        if self.function != "nunique" or self.column is not None:
            return self
        return Measure(self.name or owner, owner, self.function)


def read_measure(name: str, asked: object, frame: Frame) -> Measure:
    """Read one argument of ``agg``: (column, function) or (column, function, bounds).

    Raises:
        PolicyError: it has another form.
        SchemaError: there is no such column.
        UnsupportedQueryError: the function has no private form.

    """
    if isinstance(asked, pd.NamedAgg):
        asked = (asked.column, asked.aggfunc)
    if not isinstance(asked, tuple) or len(asked) not in (2, 3):
        raise PolicyError(f"write {name}=('column', 'sum', (0, 500)): column, function, and bounds where it takes them")
    column, function, *rest = asked
    if not isinstance(function, str) or function not in _FUNCTIONS:
        shown = repr(function) if isinstance(function, str) else "a function of Python"
        hint = "Take one of " + ", ".join(map(repr, _FUNCTIONS)) + "."
        if isinstance(function, str) and function in ("min", "max"):
            hint = "One row decides it: ask for 'median', or in SQL for quantile_cont(x, 0.01)."
        raise UnsupportedQueryError([Refusal("aggregate", f"{name}: {shown} has no private form.", hint)])
    if function == "size" and column is None:
        return Measure(name, None, function, _read_bounds(name, *rest))
    return Measure(name, require_column(frame, column, f"{name}:"), function, _read_bounds(name, *rest))


def _read_bounds(name: str, bounds: object = None) -> Bounds:
    if bounds is None or (isinstance(bounds, str) and bounds == "auto"):
        return bounds
    pair = tuple(bounds) if isinstance(bounds, Iterable) and not isinstance(bounds, str) else ()
    numbers = [float(end) for end in pair if _is_number(end)]
    if len(numbers) != 2 or len(pair) != 2 or not numbers[0] <= numbers[1]:
        raise PolicyError(f"{name}: bounds are two finite numbers, the lower first, as in bounds=(0, 500), or 'auto'")
    return numbers[0], numbers[1]


def _is_number(value: Any) -> bool:
    try:
        return not isinstance(value, str | bool) and math.isfinite(value)
    except (TypeError, ValueError, OverflowError):
        return False


def measure_sql(measure: Measure, column: str | None, *, is_unit: bool) -> str:
    """The aggregate, over a column as the source spells it."""
    name = "*" if column is None or measure.function == "size" else quote(column)
    bounds = measure.bounds
    written = "AUTO" if bounds == "auto" or isinstance(bounds, str) else "" if bounds is None else str(bounds)
    per = "row" if measure.function in _PER_ROW else "group"
    argument = f", contribution_bounds_per_{per} => {written}" if written else ""
    if measure.function == "nunique":
        return f"count(DISTINCT {name}{'' if is_unit else argument})"
    function = {"size": "count", "count": "count", "sum": "sum", **_PER_ROW}[measure.function]
    return f"{function}({name}{argument})"
