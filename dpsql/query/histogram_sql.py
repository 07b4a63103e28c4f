"""Rows of a unit in the cells of a public grid: expressions of the bounded query, one column a cell.

*Guarantee*: adding all rows of one unit raises the counts of a group's cells by numbers of at least 0 that add up to
``row_cap`` at most, in at most max_groups groups, and leaves all others as they are.
*Proof*: a row is in one cell. A unit's cell counts in a group are its rows', n of them, or where n > row_cap each of
them times row_cap / n, rounded down to the lattice; these add up to at most min(n, row_cap). ∎
*Neighbours*: add or remove all rows of one unit. *Assumes*: `bound` keeps at most max_groups groups of a unit.
"""

from __future__ import annotations

from dpsql.query.private_query import Statistic

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


def unit_cells(i: int, statistic: Statistic) -> str:
    """Columns of ``per_group``: a unit's rows in each cell, scaled down to the cap, in lattice steps."""
    condition = f" AND f_{i}" if statistic.filter_sql else ""
    rows = f"count(x_{i})" + (f" FILTER (WHERE f_{i})" if statistic.filter_sql else "")
    columns = []
    for j in range(statistic.cells):
        count = f"CAST(count(*) FILTER (WHERE x_{i} = {j}{condition}) AS HUGEINT)"
        columns.append(
            f", CAST(CASE WHEN {rows} > {statistic.row_cap} THEN {count} * {statistic.high_steps} // {rows} "
            f"ELSE {count} * {2**-statistic.lattice_exponent} END AS BIGINT) AS v_{i}_{j}"
        )
    return "".join(columns)
