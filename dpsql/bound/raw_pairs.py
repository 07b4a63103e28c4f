"""Rows of a unit in a group without any bound, as DuckDB queries, for the curator who compares bounds.

    source      as in `aggregation`
    rows        units and keys in one spelling, values as they are
    per_group   one row per (unit, group): its rows, and of each value their number, its sum, and sums of clamped values

The result holds raw rows. It is shown to the curator alone, and nothing of it is stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dpsql.bound.aggregation import listed_sql, source_sql
from dpsql.model.frame import Frame, Statistic
from dpsql.operations.row_sql import one_spelling

_NO_SALT = bytes(16)
_HASHES = 2**64


@dataclass(frozen=True, slots=True)
class RawValue:
    """A value whose sums are read.

    Attributes:
        column: its name.
        statistic: its sum as a plan has it.
        bounds: the bounds that are compared: each row is clamped to them.

    """

    column: str
    statistic: Statistic
    bounds: tuple[tuple[float, float], ...] = ()


def raw_pairs_sql(frame: Frame, values: Sequence[RawValue], share: float) -> str:
    """Return SQL for one row per (unit, group).

    Args:
        frame: the rows, the unit and the keys.
        values: the values.
        share: share of the units that is read, chosen by a hash.

    Returns:
        A SELECT with columns group_key (VARCHAR), groups (of the unit), most_rows (of the unit in any of its groups),
        row_count and, for value i and its bounds j, count_i, total_i and clamped_i_j.

    """
    columns = "".join(
        f", count_{i}, total_{i}" + "".join(f", clamped_{i}_{j}" for j in range(len(one.bounds)))
        for i, one in enumerate(values, start=1)
    )
    return (
        f"WITH {_per_group(frame, values, share)}\nSELECT {key_text(frame)} AS group_key, "
        "count(*) OVER (PARTITION BY unit) AS groups, max(row_count) OVER (PARTITION BY unit) AS most_rows, "
        f"row_count{columns} FROM per_group"
    )


def raw_totals_sql(frame: Frame, values: Sequence[RawValue]) -> str:
    """Return SQL for one row per group: group_key, people, row_count and, for value i, total_i."""
    totals = "".join(f", coalesce(sum(total_{i}), 0) AS total_{i}" for i in range(1, len(values) + 1))
    unbounded = [RawValue(one.column, one.statistic) for one in values]
    return (
        f"WITH {_per_group(frame, unbounded, 1.0)}\nSELECT {key_text(frame)} AS group_key, count(*) AS people, "
        f"sum(row_count) AS row_count{totals} FROM per_group GROUP BY ALL"
    )


def raw_values_sql(frame: Frame, value: RawValue, shares: Sequence[float], left_out: tuple[int, float]) -> str:
    """Return SQL for one row on the values of all rows.

    Args:
        frame: the rows and the unit.
        value: the value, and bounds that are compared.
        shares: the shares of the values below the quantiles.
        left_out: number of units with the largest values that usual_high leaves out, and share of all units if that is
            more; likewise of the smallest values and usual_low.

    Returns:
        A SELECT with columns counted, low, high, total, quantiles (DOUBLE[]), usual_low and usual_high (NULL if all
        units are left out), inside_j and clamped_j.

    """
    compared = "".join(
        f", count(*) FILTER (x_1 BETWEEN {low!r} AND {high!r}) AS inside_{j}, "
        f"coalesce(sum(abs(least(greatest(x_1, {low!r}), {high!r}))), 0) AS clamped_{j}"
        for j, (low, high) in enumerate(value.bounds)
    )
    listed, (number, share) = ", ".join(map(repr, shares)), left_out
    beyond = f"> greatest({number}, floor({share!r} * units))"
    return (
        f"WITH {_rows(frame, [value])},\ncounted AS (FROM rows WHERE unit IS NOT NULL AND x_1 IS NOT NULL),\n"
        "ends AS (SELECT min(x_1) AS low, max(x_1) AS high FROM counted GROUP BY unit),\n"
        "ranked AS (SELECT low, high, row_number() OVER (ORDER BY low) AS from_low, "
        "row_number() OVER (ORDER BY high DESC) AS from_high, count(*) OVER () AS units FROM ends),\n"
        f"usual AS (SELECT min(low) FILTER (from_low {beyond}) AS usual_low, "
        f"max(high) FILTER (from_high {beyond}) AS usual_high FROM ranked)\n"
        "SELECT count(x_1) AS counted, min(x_1) AS low, max(x_1) AS high, coalesce(sum(abs(x_1)), 0) AS total, "
        f"quantile_disc(x_1, [{listed}]) AS quantiles, any_value(usual_low) AS usual_low, "
        f"any_value(usual_high) AS usual_high{compared} FROM counted, usual"
    )


def key_text(frame: Frame) -> str:
    """Return SQL for the key of a group as one text."""
    texts = ", ".join(f"coalesce(CAST({key} AS VARCHAR), 'NULL')" for key in frame.key_columns)
    return f"concat_ws(' | ', {texts})"


def _per_group(frame: Frame, values: Sequence[RawValue], share: float) -> str:
    """Return the CTEs up to per_group."""
    sums = ""
    for i, one in enumerate(values, start=1):
        sums += f", count(x_{i}) AS count_{i}, coalesce(sum(x_{i}), 0) AS total_{i}"
        for j, (low, high) in enumerate(one.bounds):
            # greatest() and least() skip NULL
            clamped = f"sum(least(greatest(x_{i}, {low!r}), {high!r})) FILTER (x_{i} IS NOT NULL)"
            sums += f", coalesce({clamped}, 0) AS clamped_{i}_{j}"
    chosen = f" AND hash(hash(unit)) < {int(share * _HASHES)}" if share < 1.0 else ""
    keys = ", ".join(frame.key_columns)
    return (
        f"{_rows(frame, values)},\nper_group AS (SELECT unit, {keys}, count(*) AS row_count{sums} "
        f"FROM {listed_sql('rows', frame)} WHERE unit IS NOT NULL{chosen} GROUP BY unit, {keys})"
    )


def _rows(frame: Frame, values: Sequence[RawValue]) -> str:
    """Return the CTEs source and rows."""
    numbered = [(i, one.statistic) for i, one in enumerate(values, start=1)]
    columns = [f"{one_spelling('source.unit', frame.rows.unit_column.type)} AS unit"]
    columns += [f"{one_spelling(f'source.key_{i}', key.type)} AS key_{i}" for i, key in enumerate(frame.keys)]
    columns += [f"CAST(source.x_{i} AS DOUBLE) AS x_{i}" for i, _ in numbered]
    return f"source AS ({source_sql(frame, numbered, _NO_SALT)}),\nrows AS (SELECT {', '.join(columns)} FROM source)"
