"""Rows of a unit in the cells of a public grid: CTEs beside the bounded query, and one column of it a cell.

*Guarantee*: adding all rows of one unit raises the counts of a group's cells by numbers of at least 0 that add up to
``row_cap`` at most, in at most max_groups groups, and leaves all others as they are.
*Proof*: a row is in one cell. A unit's cell counts in a group are its rows', n of them, or where n > row_cap each of
them times row_cap / n, rounded down to the lattice; these add up to at most min(n, row_cap). ∎
*Neighbours*: add or remove all rows of one unit. *Assumes*: `bound` keeps at most max_groups groups of a unit.
"""

from __future__ import annotations

from dpsql.query.distinct_sql import matches
from dpsql.query.frame import Statistic

CELL_LATTICE_EXPONENT = -8
"""Counts of cells live on 1/256 of a row: many rows that are scaled down do not vanish one by one."""


def cell_sql(value: str, statistic: Statistic) -> str:
    """The cell that a row is in; NULL where it has no value. What is beyond the bounds is in the first or last cell."""
    low, high = statistic.cell_bounds or (0.0, 1.0)
    place = f"floor((CAST({value} AS DOUBLE) - {low!r}::DOUBLE) * {statistic.cells / (high - low)!r}::DOUBLE)"
    clamped = f"CAST(least(greatest({place}, 0), {statistic.cells - 1}) AS INTEGER)"
    # least and greatest skip NULLs
    return f"CASE WHEN {value} IS NOT NULL THEN {clamped} END"


def cell_columns(i: int, statistic: Statistic) -> tuple[str, ...]:
    """Names of a statistic's columns in the result: one, or one a cell."""
    return (f"stat_{i}",) if statistic.cells == 1 else tuple(f"stat_{i}_{j}" for j in range(statistic.cells))


def histogram_ctes(histograms: list[tuple[int, Statistic]], keys: list[str], rows: str) -> tuple[tuple[str, str], ...]:
    """Name and body of the CTEs that count a unit's rows in each cell, and add up what the kept units have.

    Args:
        histograms: the numbered statistics of kind ``histogram``.
        keys: names of the key columns.
        rows: what ``per_group`` reads.

    """
    ctes: list[tuple[str, str]] = []
    listed, group = "".join(f"{key}, " for key in keys), ", ".join(["unit", *keys])
    grouping = f" GROUP BY {', '.join(keys)}" if keys else ""
    for i, statistic in histograms:
        passing = f" AND f_{i}" if statistic.filter_sql else ""
        counted = (
            f"SELECT {group}, x_{i} AS cell, CAST(count(*) AS HUGEINT) AS c FROM {rows} "
            f"WHERE unit IS NOT NULL AND x_{i} IS NOT NULL{passing} GROUP BY {group}, x_{i}"
        )
        scaled = (
            f"CAST(CASE WHEN n > {statistic.row_cap} THEN c * {statistic.high_steps} // n "
            f"ELSE c * {2**-statistic.lattice_exponent} END AS BIGINT)"
        )
        sums = ", ".join(f"sum(v) FILTER (WHERE cell = {j}) AS n_{j}" for j in range(statistic.cells))
        ctes += [
            (
                f"cells_{i}",
                f"SELECT {group}, cell, {scaled} AS v FROM "
                f"(SELECT *, sum(c) OVER (PARTITION BY {group}) AS n FROM ({counted}))",
            ),
            (
                f"binned_{i}",
                f"SELECT {listed}{sums} FROM cells_{i} SEMI JOIN kept "
                f"ON {matches(f'cells_{i}', 'kept', ['unit', *keys])}{grouping}",
            ),
        ]
    return tuple(ctes)
