"""What a norm leaves of a unit: its values in all its groups, scaled down together; and which of its rows are read.

    weighted   one row per (unit, group): the unit's weight, per statistic its value v, beside a sum that follows the
               unit's rows their number n
    recentred  the same with y, v less the centre times the weight, in steps of the noise
    measured   the same with the square of the norm over the unit's groups, of y or of n
    scaled     the same with y where the norm is at most the bound, else y times the bound over the norm

*Guarantee*: what is left of one unit has, over all groups, at most the norm ``Norm.l2_steps`` of its statistic, and
depends on no other unit. *Source*: docs/proofs/norm.md, Theorem 1.
"""

from __future__ import annotations

from collections.abc import Sequence

from dpsql.model.frame import COUNT_LATTICE_EXPONENT, NOISE_GRID_EXPONENT, WEIGHT_BITS, Frame, Norm, Statistic

_MOST_BITS = 50
"""Values are clamped to 2**50 steps of the noise, far above the norms of people: the squares of 2**21 of them, and each
times a bound, fit a HUGEINT."""
MOST_ROWS = 2**30
"""Of more rows in a group than this a sum that follows them counts so many; it is clamped to what they can have."""
_ROOT_UP = 1.0 + 2.0**-46
"""Makes more of a root in floating point than its three roundings take from it."""
_ROW_BITS = COUNT_LATTICE_EXPONENT - NOISE_GRID_EXPONENT


def most_value(statistic: Statistic) -> int:
    """The size, in lattice steps, to which what one unit has in one group is clamped before it is recentred."""
    most: int = 2**_MOST_BITS >> (statistic.lattice_exponent - statistic.noise_exponent)
    if isinstance(statistic.limit, Norm) and statistic.limit.row_steps and statistic.row_bounds_steps:
        most = min(most, statistic.row_bounds_steps[1] * MOST_ROWS)
    return most


def row_number(i: int) -> str:
    """Name of the number of rows that a sum follows, in whole rows."""
    return f"n_{i}"


def scaled_ctes(normed: Sequence[tuple[int, Statistic]], *, has_one_row: bool = False) -> str:
    """Return the expressions from ``weighted`` to ``scaled``, whose v of these statistics is what is left of y.

    If ``has_one_row``, no unit has two rows, and the square of its row is that of its norm.
    """
    shifted, measured, scaled = "", "", []
    for i, statistic in normed:
        norm = statistic.limit
        if not isinstance(norm, Norm):
            raise AssertionError("these statistics have a norm")
        shift = statistic.lattice_exponent - statistic.noise_exponent
        value = f"CAST(v_{i} AS HUGEINT) * {2**shift}"
        if norm.centre_steps:
            # rounded towards 0 once for all groups of the unit
            value += f" - {norm.centre_steps}::HUGEINT * weight * {2**shift} // {2**WEIGHT_BITS}"
        shifted += f", {value} AS y_{i}"
        size, most = f"y_{i}", norm.l2_steps << shift
        if norm.row_steps:
            size, most = f"{row_number(i)} * {2**-NOISE_GRID_EXPONENT}::HUGEINT", norm.row_steps << _ROW_BITS
        square = f"({size}) * ({size})" if has_one_row else f"sum({size} * {size}) OVER (PARTITION BY unit)"
        measured += f", {square} AS square_{i}"
        root = f"CAST(ceil(sqrt(CAST(square_{i} AS DOUBLE)) * {_ROOT_UP!r}::DOUBLE) AS HUGEINT)"
        left = f"CASE WHEN square_{i} <= {most**2}::HUGEINT THEN y_{i} ELSE y_{i} * {most} // {root} END"
        scaled.append(f"CAST({left} AS BIGINT) AS v_{i}")
    return (
        f"recentred AS (SELECT *{shifted} FROM weighted),\n"
        f"measured AS (SELECT *{measured} FROM recentred),\n"
        f"scaled AS (SELECT * REPLACE ({', '.join(scaled)}) FROM measured)"
    )


def cut_rows_sql(rows: str, frame: Frame, others: Sequence[tuple[int, Statistic]], salt: bytes, most: int) -> str:
    """At most so many rows of each unit: those with the least hash of the unit, the key and the row's number there.

    Rows of a unit in a group are numbered in the order of what is measured of them, so that equal ones need no order.
    How many of them are left in which groups depends on their numbers alone, whatever else is measured.
    """
    keys = ", ".join(frame.key_columns)
    listed = f", {keys}" if keys else ""
    measured = [f"x_{i} IS NULL" if one.kind == "rows" else f"x_{i}" for i, one in others if one.value_sql]
    measured += [f"f_{i}" for i, one in others if one.filter_sql]
    order = ", ".join(f"{name} ASC NULLS LAST" for name in measured)
    ordered = f" ORDER BY {order}" if order else ""
    priority = f"hash(hash(unit{listed}, nth, '{salt.hex()}'))"
    ties = ", ".join(f"{name} ASC NULLS LAST" for name in (*frame.key_columns, "nth"))
    return (
        f"SELECT * EXCLUDE (nth) FROM (SELECT *, row_number() OVER (PARTITION BY unit{listed}{ordered}) AS nth "
        f"FROM {rows} WHERE unit IS NOT NULL) "
        f"QUALIFY row_number() OVER (PARTITION BY unit ORDER BY {priority} ASC, {ties}) <= {most}"
    )
