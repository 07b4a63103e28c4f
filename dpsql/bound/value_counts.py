"""Distinct values of a group, and its rows in the cells of a public grid: CTEs beside the bounded query.

Both are counted on rows of their own; of the cells the bounded query has a column each.

Distinct values, of which one unit brings in no more than a public number:
*Guarantee*: with c values per unit and group, adding all rows of one unit raises n, the number of distinct values of a
group that the unit is kept in, by some whole number from 0 to c, and leaves all other groups as they are; and it
raises the number of present units, p, by 1. So n - (c/2) p moves by at most c/2 per group, and n itself by at most c.
*Proof*: which values of a unit are kept depends on the unit's own rows (and the salt) alone. So the kept triples
(unit, group, value) of all other units are the same with and without the unit, which adds at most c to each group that
it is kept in. n is the size of the union over units of the kept values of a group; a union with c more values grows by
0 to c. This holds for any notion of equal values, and whatever values other units share with the unit. ∎
*Neighbours*: add or remove all rows of one unit. *Assumes*: `bound` keeps at most max_groups groups of a unit.

Their sum, each clamped to public bounds (low, high) and rounded to the lattice:
*Guarantee*: adding all rows of one unit moves the sum of a group that the unit is kept in by c times the larger of
abs(low) and abs(high) at most, and leaves all other groups as they are.
*Proof*: the union grows by k values, 0 <= k <= c, by the proof above. Equal values are clamped to equal numbers, so the
sum is one over the union, and grows by k numbers between low and high. ∎
*Neighbours*: add or remove all rows of one unit. *Assumes*: `bound` keeps at most max_groups groups of a unit.

Rows of a unit in cells:
*Guarantee*: adding all rows of one unit raises the counts of a group's cells by numbers of at least 0 that add up to
``row_cap`` at most, in at most max_groups groups, and leaves all others as they are.
*Proof*: a row is in one cell. A unit's cell counts in a group are its rows', n of them, or where n > row_cap each of
them times row_cap / n, rounded down to the lattice; these add up to at most min(n, row_cap). ∎
*Neighbours*: add or remove all rows of one unit. *Assumes*: `bound` keeps at most max_groups groups of a unit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dpsql.model.cells import Cells
from dpsql.model.frame import COUNT_LATTICE_EXPONENT, Statistic
from dpsql.model.statistic_kinds import DISTINCT_KINDS

CELL_LATTICE_EXPONENT = -8
"""Counts of cells live on 1/256 of a row: many rows that are scaled down do not vanish one by one."""

PRESENT = "present"
"""Column of ``summed`` with the number of units of a group."""
_SATURATION = float(2**60)
"""Rows are clamped here, in lattice steps, before they are added: 2**60 steps of 2**60 rows fit a HUGEINT."""


def row_steps(value: str, statistic: Statistic) -> str:
    """One row's value in lattice steps, clamped, BIGINT; NULL where the value is NULL, as no comparison with it holds.

    Scaling by a power of two is exact in floating point and the bounds are small integers, so the clamp is exact, and
    NaN, which DuckDB orders last, is the upper one; rounding is round-half-away from zero. In place of CASE,
    least(greatest()) takes twice the time, and would need a case of its own for NULL, which both skip.
    """
    low, high = statistic.row_bounds_steps or (-_SATURATION, _SATURATION)
    scaled = f"CAST({value} AS DOUBLE) * {2.0**-statistic.lattice_exponent!r}::DOUBLE"
    low_sql, high_sql = f"{low!r}::DOUBLE", f"{high!r}::DOUBLE"
    outside = f"WHEN {scaled} < {low_sql} THEN {low_sql} WHEN {scaled} > {high_sql} THEN {high_sql}"
    return f"CAST(CASE {outside} ELSE round({scaled}) END AS BIGINT)"


def distinct_ctes(
    others: list[tuple[int, Statistic]], keys: list[str], rows: str, salt: bytes, *, has_one_row: bool = False
) -> list[str]:
    """Return the CTEs that number a unit's values, and count or add up what is kept of all units.

    Args:
        others: the numbered statistics, of which those of distinct values are counted or added up here.
        keys: names of the key columns.
        rows: what ``per_group`` reads.
        salt: the frame's; a value's priority is a hash of it with unit, group and value.
        has_one_row: no unit has two rows, so that all values are kept.

    """
    ctes: list[str] = []
    listed = "".join(f"{key}, " for key in keys)
    group = ", ".join(["unit", *keys])
    for i, statistic in others:
        if statistic.kind not in DISTINCT_KINDS:
            continue
        passing = f" AND f_{i}" if statistic.filter_sql else ""
        # equal priorities are told apart by the value, so that the choice never depends on the order of rows
        priority = f"hash(hash(unit, {listed}x, '{salt.hex()}')) ASC, x ASC NULLS LAST"
        place = f"row_number() OVER (PARTITION BY {group} ORDER BY {priority}) AS place"
        numbered = (
            f"SELECT {group}, x, {place} FROM (SELECT DISTINCT {group}, x_{i} AS x FROM {rows} "
            f"WHERE unit IS NOT NULL AND x_{i} IS NOT NULL{passing})"
        )
        grouping = f" GROUP BY {', '.join(keys)}" if keys else ""
        values = f"SELECT * FROM ({numbered}) WHERE place <= {statistic.values_kept}"
        if has_one_row:
            values = f"SELECT {listed}x_{i} AS x FROM {rows} WHERE unit IS NOT NULL{passing}"
        counted = f"SELECT {listed}count(DISTINCT x) AS n FROM {_of_kept(i, keys, has_one_row=has_one_row)}{grouping}"
        if statistic.kind == "value_sum":
            different = values_sql(i, keys, has_one_row=has_one_row)
            counted = f"SELECT {listed}sum({row_steps('x', statistic)}) AS n FROM ({different}){grouping}"
        ctes += [f"values_{i} AS ({values})", f"counted_{i} AS ({counted})"]
    return ctes


def _of_kept(i: int, keys: list[str], *, has_one_row: bool) -> str:
    """Return the rows of ``values_i`` of the groups that their units keep, as they stand after FROM."""
    kept = "" if has_one_row else f" SEMI JOIN kept ON {matches(f'values_{i}', 'kept', ['unit', *keys])}"
    return f"values_{i}{kept}"


def values_sql(i: int, keys: list[str], *, has_one_row: bool) -> str:
    """Return a SELECT of the distinct values of a statistic by group: keys, and the value x."""
    listed = "".join(f"{key}, " for key in keys)
    return f"SELECT DISTINCT {listed}x FROM {_of_kept(i, keys, has_one_row=has_one_row)}"


def distinct_steps(i: int, statistic: Statistic) -> str:
    """The recentred number, or sum, of a group's distinct values in lattice steps: of ``summed`` and ``counted_i``."""
    one = 1 if statistic.kind == "value_sum" else 2**-COUNT_LATTICE_EXPONENT
    n = f"CAST(coalesce(counted_{i}.n, 0) AS HUGEINT) * {one}"
    return f"{n} - CAST(summed.{PRESENT} AS HUGEINT) * {statistic.centre_steps}"


def matches(left: str, right: str, columns: list[str]) -> str:
    """A condition that rows of two relations agree on some columns, NULL being equal to NULL."""
    return " AND ".join(f"{left}.{name} IS NOT DISTINCT FROM {right}.{name}" for name in columns) or "true"


def cell_sql(value: str, cells: Cells) -> str:
    """The cell that a row is in; NULL where it has no value. What is beyond the bounds is in the first or last cell."""
    found = _halved(f"CAST({value} AS DOUBLE)", cells.edges, 0, cells.count)
    return f"CAST(CASE WHEN {value} IS NOT NULL THEN {found} END AS INTEGER)"


def _halved(number: str, edges: Sequence[float], first: int, end: int) -> str:
    """The cell of a number among those from the first up to the end, compared as often as these can be halved."""
    if end - first == 1:
        return str(first)
    middle = (first + end) // 2
    below, above = (_halved(number, edges, *part) for part in ((first, middle), (middle, end)))
    return f"CASE WHEN {number} < {edges[middle]!r}::DOUBLE THEN {below} ELSE {above} END"


def histogram_ctes(
    binned: list[tuple[int, Statistic]],
    keys: list[str],
    rows: str,
    totals: Mapping[int, str],
    *,
    has_one_row: bool = False,
) -> list[str]:
    """Return the CTEs that count a unit's rows in each cell, and add up what the kept units have.

    Args:
        binned: numbered statistics of kind ``histogram``.
        keys: names of the key columns.
        rows: what ``per_group`` reads.
        totals: of each of them the number n of a group in a cell, an aggregate of the values v of units.
        has_one_row: no unit has two rows, so that all rows count in full.

    """
    ctes: list[str] = []
    listed, group = "".join(f"{key}, " for key in keys), ", ".join(["unit", *keys])
    grouping = f" GROUP BY {', '.join(keys)}" if keys else ""
    for i, statistic in binned:
        passing = f" AND f_{i}" if statistic.filter_sql else ""
        read = f"FROM {rows} WHERE unit IS NOT NULL AND x_{i} IS NOT NULL{passing}"
        # other groups of a unit are left out before anything is counted
        of_kept = (
            f"SELECT read.* FROM (SELECT {group}, x_{i} AS cell {read}) AS read "
            f"SEMI JOIN kept ON {matches('read', 'kept', ['unit', *keys])}"
        )
        counted = f"SELECT *, CAST(count(*) AS HUGEINT) AS c FROM ({of_kept}) GROUP BY ALL"
        scaled = (
            f"CAST(CASE WHEN n > {statistic.row_cap} THEN c * {statistic.high_steps} // n "
            f"ELSE c * {2**-statistic.lattice_exponent} END AS BIGINT)"
        )
        cells = (
            f"SELECT {listed}cell, {scaled} AS v FROM "
            f"(SELECT *, sum(c) OVER (PARTITION BY {group}) AS n FROM ({counted}))"
        )
        if has_one_row:
            cells = f"SELECT {listed}x_{i} AS cell, {2**-statistic.lattice_exponent}::BIGINT AS v {read}"
        # a map, since as many sums with a filter each would look at every row as often
        ctes += [
            f"cells_{i} AS ({cells})",
            f"binned_{i} AS (SELECT {listed}map_from_entries(list((cell, n))) AS by_cell "
            f"FROM (SELECT {listed}cell, {totals[i]} FROM cells_{i} GROUP BY {listed}cell){grouping})",
        ]
    return ctes


def cell_numbers(i: int, statistic: Statistic) -> list[str]:
    """Return the number of a group in each cell: of ``binned_i``, joined to the groups."""
    return [f"coalesce(binned_{i}.by_cell[{j}], 0)" for j in range(statistic.cells)]
