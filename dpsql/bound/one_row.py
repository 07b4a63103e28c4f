"""What a unit with one row has in its one group: the values of `formulations` and `coverage`, without a grouping.

Where a constraint keeps the unit column unique, no unit has a second row. Nothing has to be grouped by unit then, no
group of a unit is one too many, and a sum over the rows of a unit in a group is its row's value.

*Guarantee*: on rows of which no two have the same unit, each value is that of the grouping, bit for bit.
*Assumes*: the constraint holds of the rows that are read (the engine reads both in one transaction), and it tells units
apart as GROUP BY does (``model.rows.TYPES_IN_CONSTRAINTS``).
"""

from __future__ import annotations

from collections.abc import Sequence

from dpsql.bound.norms import most_value, row_number
from dpsql.model.frame import COUNT_LATTICE_EXPONENT, Norm, Statistic


def kept_rows_sql(keys: Sequence[str], others: Sequence[tuple[int, Statistic]], per_row: str) -> str:
    """Return the body of ``kept``: unit, keys and values of each row that has a unit."""
    listed = "".join(f"{key}, " for key in keys)
    values = "".join(columns_of_row(i, statistic) for i, statistic in others)
    return f"SELECT unit, {listed}1 AS present{values} FROM {per_row} WHERE unit IS NOT NULL"


def columns_of_row(i: int, statistic: Statistic) -> str:
    """Return the value of a unit in its group, v_i, as a column of its row; with its number of rows for a norm."""
    counts = " AND ".join(_conditions(i, statistic))
    present, absent = _value(i, statistic), str(_clamp(0, *_ends(statistic)))
    value = f"CASE WHEN {counts} THEN {present} ELSE {absent} END" if counts and present != absent else present
    rows = f", CAST({counts or 'true'} AS BIGINT) AS {row_number(i)}" if isinstance(statistic.limit, Norm) else ""
    return f", CAST({value} AS BIGINT) AS v_{i}{rows}"


def whole_of_row(i: int, covered: Statistic, whole: int) -> str:
    """Return what a unit would add to its group were it not bounded, as a column of its row, in lattice steps.

    Args:
        i: number of the statistic.
        covered: the statistic.
        whole: number under which its row is read before it is clamped.

    """
    counts = " AND ".join(_conditions(i, covered))
    if covered.kind == "rows":
        one = 2**-COUNT_LATTICE_EXPONENT
        return f", CAST({f'CASE WHEN {counts} THEN {one} ELSE 0 END' if counts else one} AS BIGINT) AS whole_{i}"
    return f", CAST(CASE WHEN {counts} THEN x_{whole} ELSE 0 END AS BIGINT) AS whole_{i}"


def _conditions(i: int, statistic: Statistic) -> list[str]:
    """Return the conditions under which the row counts in a statistic."""
    is_known = [f"x_{i} IS NOT NULL"] if statistic.value_sql else []
    return [*is_known, *([f"f_{i}"] if statistic.filter_sql else [])]


def _ends(statistic: Statistic) -> tuple[int, int]:
    """Return the interval to which the value of a unit in a group is clamped in the end."""
    if isinstance(statistic.limit, Norm) and not statistic.group_bounds_steps:
        return -most_value(statistic), most_value(statistic)
    if statistic.kind == "rows" and statistic.low_steps < 0 and statistic.group_bounds_steps:
        # its interval has 0 in its middle
        return statistic.group_bounds_steps
    return statistic.low_steps, statistic.high_steps


def _value(i: int, statistic: Statistic) -> str:
    """Return the value of a row that counts."""
    low, high = _ends(statistic)
    if statistic.kind != "sum":
        return str(_clamp(2**-COUNT_LATTICE_EXPONENT, low, high))
    value = f"x_{i}"
    if statistic.group_bounds_steps:
        least, most = statistic.group_bounds_steps
        value = f"least(greatest({value}, {least}), {most})"
    return f"least(greatest({value}, {low}), {high})"


def _clamp(value: int, low: int, high: int) -> int:
    """Return a whole number clamped to an interval, as least(greatest(…)) does."""
    return min(max(value, low), high)
