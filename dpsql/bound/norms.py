"""What a norm leaves of a unit: its values in all its groups, scaled down together; and which of its rows are read.

    weights    one row per unit: its weight
    weighted   one row per (unit, group): the unit's weight, per statistic its value v, beside a sum that follows the
               unit's rows their number n
    recentred  the same with y, v less the centre times the weight, in steps of the noise
    unit_norms one row per unit: the square of the norm of y over the unit's groups; that of n, or of y without a
               centre, comes with the weight
    measured   recentred with the squares
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
KNOWN_WEIGHT = "known_weight"
"""Column of ``kept``, where units with few groups keep them all: the weight of the unit."""
MOST_ROWS = 2**30
"""Of more rows in a group than this a sum that follows them counts so many; it is clamped to what they can have."""
_ROOT_UP = 1.0 + 2.0**-46
"""Makes more of a root in floating point than its three roundings take from it."""
_BITS = 63
"""Bits of a BIGINT without its sign."""
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


def norm_of(statistic: Statistic) -> Norm:
    """Return the norm that bounds a statistic."""
    if not isinstance(statistic.limit, Norm):
        raise AssertionError("this statistic has a norm")
    return statistic.limit


def needs_weights(statistic: Statistic) -> bool:
    """Return whether the norm of a unit is that of values less a centre, which the weight of the unit multiplies."""
    norm = norm_of(statistic)
    return bool(norm.centre_steps) and not norm.row_steps


def free_norms(frame: Frame, added: Sequence[tuple[int, Statistic]]) -> list[tuple[int, Statistic]]:
    """Return the statistics whose norms bound what units add, and follow from their values without a weight."""
    normed = [(i, one) for i, one in added if isinstance(one.limit, Norm)] if frame.bounding.counted_groups else []
    return [(i, one) for i, one in normed if not needs_weights(one)]


def known_norms(frame: Frame, added: Sequence[tuple[int, Statistic]]) -> list[tuple[int, Statistic]]:
    """Return the same if squares of any number of groups of a unit fit their type; else none."""
    free = free_norms(frame, added)
    return free if all(norm_of(one).row_steps or 2 * (_MOST_BITS - _shift(one)) < _BITS for _, one in free) else []


def square_sql(i: int, statistic: Statistic, *, has_one_row: bool = False, over: str = "") -> str:
    """Return the square of a unit's norm as an aggregate of its groups, or as a column of its one row.

    What is put after the aggregate makes it one of a window.
    """
    norm, shift = norm_of(statistic), _shift(statistic)
    size, steps = f"CAST(y_{i} AS HUGEINT)", 1
    if norm.row_steps:
        size, steps = row_number(i), 2 ** (-2 * NOISE_GRID_EXPONENT)
    elif not norm.centre_steps:
        size, steps = f"v_{i}", 2 ** (2 * shift)
        if 2 * (_MOST_BITS - shift) >= _BITS:
            # only the square of a smaller v fits a BIGINT, whose product takes a tenth of the time
            size = f"CAST(v_{i} AS HUGEINT)"
    square = f"{size} * {size}" if has_one_row else f"sum({size} * {size}){over}"
    return f"CAST({square} AS HUGEINT) * {steps}::HUGEINT AS square_{i}"


def _scaled_ctes(normed: Sequence[tuple[int, Statistic]], *, has_one_row: bool, is_marked: bool) -> str:
    """Return the expressions from ``weighted`` to ``scaled``, whose v of these statistics is what is left of y.

    Args:
        normed: numbered statistics; ``weighted`` has the squares of those whose norm needs no weights.
        has_one_row: no unit has two rows, and the square of its row is that of its norm.
        is_marked: as for ``weighted_ctes``.

    """
    shifted = "".join(f", {_recentred(i, one)} AS y_{i}" for i, one in normed)
    scaled = ", ".join(f"{_left_sql(i, one)} AS v_{i}" for i, one in normed)
    squares = [(i, square_sql(i, one, has_one_row=has_one_row)) for i, one in normed if needs_weights(one)]
    listed, names = "".join(f", {square}" for _, square in squares), "".join(f", square_{i}" for i, _ in squares)
    left = f"scaled AS (SELECT * REPLACE ({scaled}) FROM {{}})"
    if has_one_row or not squares:
        recentred = f"recentred AS (SELECT *{shifted} FROM weighted)"
        return f"{recentred},\nmeasured AS (SELECT *{listed} FROM recentred),\n{left.format('measured')}"
    return (
        f"recentred AS MATERIALIZED (SELECT *{shifted} FROM weighted),\n"
        f"unit_norms AS (SELECT unit{listed} FROM recentred{' WHERE is_kept' * is_marked} GROUP BY unit),\n"
        f"measured AS (SELECT recentred.*{names} FROM recentred "
        f"JOIN unit_norms ON recentred.unit IS NOT DISTINCT FROM unit_norms.unit),\n{left.format('measured')}"
    )


def _shift(statistic: Statistic) -> int:
    """Return the bits between steps of the lattice and of the noise."""
    return statistic.lattice_exponent - statistic.noise_exponent


def _recentred(i: int, statistic: Statistic) -> str:
    """Return y, a value less the centre times the weight, in steps of the noise."""
    centre, factor = norm_of(statistic).centre_steps, 2 ** _shift(statistic)
    if not centre:
        return f"v_{i} * {factor}"
    # rounded towards 0 once for all groups of the unit
    taken = f"{centre}::HUGEINT * weight * {factor} // {2**WEIGHT_BITS}"
    return f"CAST(CAST(v_{i} AS HUGEINT) * {factor} - {taken} AS BIGINT)"


def _left_sql(i: int, statistic: Statistic) -> str:
    """Return y where the norm is at most the bound, else y times the bound over the norm."""
    norm = norm_of(statistic)
    most = norm.row_steps << _ROW_BITS if norm.row_steps else norm.l2_steps << _shift(statistic)
    root = f"CAST(ceil(sqrt(CAST(square_{i} AS DOUBLE)) * {_ROOT_UP!r}::DOUBLE) AS HUGEINT)"
    over = f"CAST(CAST(y_{i} AS HUGEINT) * {most} // {root} AS BIGINT)"
    return f"CASE WHEN square_{i} <= {most**2}::HUGEINT THEN y_{i} ELSE {over} END"


def weighted_ctes(
    frame: Frame,
    added: Sequence[tuple[int, Statistic]],
    *,
    has_one_row: bool,
    is_marked: bool = False,
    knows_weights: bool = False,
    knows_squares: bool = True,
) -> list[str]:
    """Return the CTEs that follow ``kept`` where units count with a weight: the weights, and what norms leave.

    Args:
        frame: what is grouped.
        added: numbered statistics that are added up.
        has_one_row: no unit has two rows, so that each has its whole weight.
        is_marked: whether ``kept`` has all groups of each unit, those that the unit keeps by its column is_kept.
        knows_weights: whether ``kept`` has the weights of units, as `KNOWN_WEIGHT`.
        knows_squares: whether it has the squares of ``known_norms`` then.

    """
    normed = [(i, statistic) for i, statistic in added if isinstance(statistic.limit, Norm)]
    free = free_norms(frame, normed)
    squares = "".join(f", {square_sql(i, statistic, has_one_row=has_one_row)}" for i, statistic in free)
    # a unit in one group has its whole weight
    ctes = [f"weighted AS (SELECT *, {2**WEIGHT_BITS}::BIGINT AS weight{squares} FROM kept)"]
    if knows_weights and (not free or (knows_squares and known_norms(frame, normed))):
        ctes = [f"weighted AS (SELECT * RENAME ({KNOWN_WEIGHT} AS weight) FROM kept)"]
    elif not has_one_row:
        names = "".join(f", square_{i}" for i, _ in free)
        counted = f"SELECT unit, count(*) AS n{squares} FROM kept{' WHERE is_kept' * is_marked} GROUP BY unit"
        ctes = [
            f"weights AS ({weight_sql(frame.unit_groups, f'({counted})')})",
            # by = the time would tell whether all units are whole numbers close together
            f"weighted AS (SELECT kept.*, weight{names} FROM kept "
            "JOIN weights ON kept.unit IS NOT DISTINCT FROM weights.unit)",
        ]
    return [*ctes, *([_scaled_ctes(normed, has_one_row=has_one_row, is_marked=is_marked)] if normed else [])]


def weight_sql(max_groups: int, relation: str, name: str = "weight") -> str:
    """Return a SELECT of a relation with the weight sqrt(max_groups / n) of a unit in n groups, in place of n.

    It is in steps of 2**-WEIGHT_BITS, rounded down. What a floating-point root makes too large by rounding is taken
    back: n weight**2 <= max_groups holds in integers.
    """
    squared = max_groups << 2 * WEIGHT_BITS
    root = (
        f"CASE WHEN n <= {max_groups} THEN {2**WEIGHT_BITS} ELSE CAST(floor(sqrt({squared}::DOUBLE / n)) AS BIGINT) END"
    )
    return (
        f"SELECT * EXCLUDE (n, root), root - CAST(root * root * n > {squared} AS BIGINT) AS {name} "
        f"FROM (SELECT *, {root} AS root FROM {relation})"
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
