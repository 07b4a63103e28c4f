"""The bounded aggregation as one DuckDB query: exact, integer, and the same for any order of rows or threads.

    source     one row per source row: unit, keys, and per statistic its value and its flag; NULL where one fails
    rows       the same with every key in one spelling and every value on the lattice
    kept       at most max_groups groups per unit, by a salted hash priority: one row per (unit, group), per statistic
               one integer v inside its public interval; in one of three formulations (`kept`)
    grouped    one row per group: distinct units, and per statistic the sum of v - centre
    result     grouped, without the private keys of fewer units than the policy's minimum; with top-k pre-processing
               less the (k+1)-th largest number of units, where something is left

Rows whose unit is NULL are dropped first. Every part of an expression that could fail on a row stands inside TRY, and
every TRY where no optimizer rule can lift a part of it out.
"""

from __future__ import annotations

import re

from dpsql.query.dialect import quote
from dpsql.query.kept import Formulation, kept_ctes, sizes_sql
from dpsql.query.private_query import PRESENCE, Frame, Statistic
from dpsql.query.total import columns_of, total_condition_sql, total_sql

LISTED_KEYS = "dpsql_listed_keys"
"""Name under which the engine offers keys, public ones or those of a frame, with columns key_0, key_1, …."""

_SATURATION = float(2**60)
"""Rows are clamped here, in lattice steps, before they are added: 2**60 steps of 2**60 rows fit a HUGEINT."""

_MOST_STEPS = 2**61 - 1
"""Sums over units are clamped to plus or minus this, in steps of the noise, so that with noise they fit a BIGINT
whatever the data are; numbers of units likewise.

The clamp moves no two sums further apart, so the sensitivity holds; a cast that fails, or a check of size, would tell
of the exact sum. At 2**33 steps or fewer for a unit, no fewer than 2**29 units reach it.
"""

_PLAIN_COLUMN = re.compile(r'^"(?:[^"]|"")*"$')
_NESTED_TYPE = re.compile(r"^(.*)\[\d*\]$")


def bounded_sql(
    frame: Frame,
    statistics: tuple[Statistic, ...],
    salt: bytes,
    *,
    held_keys: bool = False,
    formulation: Formulation = "groups_first",
) -> str:
    """SQL for the exact per-group table.

    Args:
        frame: what is grouped.
        statistics: the presence count first, then the others.
        salt: the frame's 128 secret bits; decides which groups of a unit with too many are kept.
        held_keys: the keys are those that the frame holds already, offered as ``LISTED_KEYS``; nothing is left out
            and nothing subtracted.
        formulation: how it is computed; the result is the same. Only a frame that chooses groups has more than one.

    Returns:
        A SELECT with columns key_0…, units (BIGINT), stat_1… (BIGINT, lattice steps, recentred) and, with top-k
        pre-processing, floor (BIGINT): what was subtracted from units. There the row whose units are NULL is no
        group; it is what tells the floor where no group is left. The result has no defined row order.

    """
    keys = [f"key_{i}" for i in range(len(frame.keys))]
    others = list(enumerate(statistics))[1:]
    selected = "".join(f"{key}, " for key in keys)
    values = [f"stat_{i}" for i, _ in others]
    sums = "".join(
        f", CAST(least(greatest(coalesce(sum(v_{i} - {statistic.centre_steps}), 0), {-_most(statistic)}), "
        f"{_most(statistic)}) AS BIGINT) AS stat_{i}"
        for i, statistic in others
    )
    aggregates = f"least(count(*), {_most(PRESENCE)}) AS units{sums} FROM kept"
    # rows are read twice in the native formulation, and not to be held for it
    as_read = "AS NOT MATERIALIZED" if formulation == "native" else "AS"
    if formulation == "native":
        named = "".join(f", {name}" for name in values)
        grouped = (
            f"SELECT {selected}units{named} FROM (SELECT code, {aggregates} GROUP BY code) AS coded "
            "JOIN codes ON coded.code = codes.code"
        )
    else:
        grouping = f" GROUP BY {', '.join(keys)}" if keys else ""
        grouped = f"SELECT {selected}{aggregates}{grouping}"
    return (
        f"WITH source {as_read} ({source_sql(frame, others)}),\n"
        f"rows {as_read} ({rows_sql(frame, others)}),\n"
        f"{kept_ctes(frame, others, salt, _per_row(frame), formulation)},\n"
        f"grouped AS MATERIALIZED ({grouped})\n"
        f"{_selected(frame, keys, values, held_keys=held_keys)}"
    )


def approximate_sizes_sql(frame: Frame) -> str:
    """SQL for the ``Sizes`` by which a formulation is chosen: one row of four numbers."""
    return (
        f"WITH source AS ({source_sql(frame, [])}),\nrows AS ({rows_sql(frame, [])})\n"
        f"{sizes_sql(frame, _per_row(frame))}"
    )


def _per_row(frame: Frame) -> str:
    """The rows that take part."""
    return "rows" if frame.public_keys is None else _listed("rows", frame)


def _most(statistic: Statistic) -> int:
    """The clamp of a statistic's sum, in its own lattice steps."""
    return _MOST_STEPS >> (statistic.lattice_exponent - statistic.noise_exponent)


def _listed(rows: str, frame: Frame) -> str:
    """The rows whose keys are listed.

    The listed side is cast to the keys' types. Arrow has no HUGEINT; left alone, DuckDB would cast the raw side to
    what Arrow made of it, outside TRY, and fail aloud on a key that fits no such type.
    """
    typed = ", ".join(f"CAST(key_{i} AS {key.type}) AS key_{i}" for i, key in enumerate(frame.keys))
    matches = " AND ".join(f"{rows}.key_{i} IS NOT DISTINCT FROM listed.key_{i}" for i in range(len(frame.keys)))
    return f"{rows} SEMI JOIN (SELECT {typed} FROM temp.main.{LISTED_KEYS}) AS listed ON {matches}"


def _selected(frame: Frame, keys: list[str], values: list[str], *, held_keys: bool) -> str:
    """The groups that are noised: all of them, or those that are left when something is subtracted."""
    minimum = frame.minimum_units
    if held_keys:
        return f"SELECT * FROM {_listed('grouped', frame)}"
    if frame.sparsity is None and minimum == 1:
        return "SELECT * FROM grouped"
    if frame.sparsity is None:
        return f"SELECT * REPLACE (units - {minimum - 1} AS units) FROM grouped WHERE units >= {minimum}"
    largest = f"SELECT units FROM grouped ORDER BY units DESC LIMIT 1 OFFSET {frame.sparsity.k}"
    columns = "".join(f"{name}, " for name in (*keys, *values))
    return (
        f"SELECT {columns}units - floor AS units, floor FROM "
        f"(SELECT greatest(coalesce(({largest}), 0), {minimum - 1}) AS floor) LEFT JOIN grouped ON units > floor"
    )


def guarded(sql: str) -> str:
    """An expression that becomes NULL where it would fail on a row."""
    return sql if _PLAIN_COLUMN.match(sql) else f"TRY({sql})"


def source_sql(frame: Frame, others: list[tuple[int, Statistic]]) -> str:
    """Body of ``source``; ``others`` are the numbered statistics beside the presence count."""
    unit = frame.unit_column.sql
    columns = [f"{unit} AS unit"]
    columns += [f"{_shielded(key.sql, unit)} AS key_{i}" for i, key in enumerate(frame.keys)]
    for i, statistic in others:
        if statistic.value_sql:
            columns.append(f"{_shielded(statistic.value_sql, unit)} AS x_{i}")
        if statistic.filter_sql:
            condition = total_condition_sql(statistic.filter_sql)
            columns.append(f"CASE WHEN {unit} IS NOT NULL THEN {condition} END AS f_{i}")
    where = "".join(f" AND {total_condition_sql(sql)}" for sql in frame.filters)
    return f"SELECT {', '.join(columns)} FROM {_without_statistics(frame, others)} WHERE true{where}"


def _without_statistics(frame: Frame, others: list[tuple[int, Statistic]]) -> str:
    """The relation, with every column that an expression uses read through TRY.

    What the optimizer knows of a column (its least and greatest value, whether it holds NULL) would otherwise decide
    what it computes while it plans, where no TRY catches an error: the rows of others would decide whether a query
    fails. TRY passes no such knowledge on.
    """
    expressions = [*frame.filters, *(key.sql for key in frame.keys)]
    for _, statistic in others:
        expressions += [sql for sql in (statistic.value_sql, statistic.filter_sql) if sql]
    used = {name for sql in expressions if not _PLAIN_COLUMN.match(sql) for name in columns_of(sql)}
    if not used:
        return frame.relation
    replaced = ", ".join(f"TRY({quote(name)}) AS {quote(name)}" for name in sorted(used))
    return f"(SELECT * REPLACE ({replaced}) FROM {frame.relation})"


def _shielded(sql: str, unit: str) -> str:
    """A total expression of which nothing is computed outside TRY.

    Two expressions that share a part (a cast that DuckDB adds by itself, say) would have it computed once, before and
    outside TRY, where it fails aloud; the optimizer does not look for shared parts inside CASE. Rows without a unit are
    dropped anyway.
    """
    return sql if _PLAIN_COLUMN.match(sql) else f"CASE WHEN {unit} IS NOT NULL THEN {total_sql(sql)} END"


def as_condition(sql: str) -> str:
    """A condition as BOOLEAN: one of another type would be cast where it is used, outside TRY."""
    return f"CAST({sql} AS BOOLEAN)"


def rows_sql(frame: Frame, others: list[tuple[int, Statistic]]) -> str:
    """Body of ``rows``, which reads ``source``."""
    columns = [f"{_one_spelling('source.unit', frame.unit_column.type)} AS unit"]
    columns += [f"{_one_spelling(f'source.key_{i}', key.type)} AS key_{i}" for i, key in enumerate(frame.keys)]
    for i, statistic in others:
        if statistic.value_sql:
            value = f"source.x_{i}"
            columns.append(f"{_row_steps(value, statistic) if statistic.kind == 'sum' else value} AS x_{i}")
        if statistic.filter_sql:
            columns.append(f"coalesce(source.f_{i}, false) AS f_{i}")
    return f"SELECT {', '.join(columns)} FROM source"


def _one_spelling(value: str, value_type: str, depth: int = 0) -> str:
    """The value, spelled the same for all values that GROUP BY holds equal.

    GROUP BY shows the spelling of whichever row came first, which would tell of rows without noise: -0.0 and 0.0,
    NaNs of several bit patterns, 30 days and 1 month, texts under a collation.
    """
    if value_type == "VARCHAR":
        return f'{value} COLLATE "binary"'
    if value_type in ("FLOAT", "DOUBLE"):
        return f"CASE WHEN isnan({value}) THEN 'nan'::{value_type} WHEN {value} = 0 THEN 0 ELSE {value} END"
    if value_type == "INTERVAL":
        normal = f"normalized_interval({value})"
        # of a negative interval the opposite is normalised, so that -5 days are not -1 month and 25 days
        opposite = f"TRY(-normalized_interval(-{normal}))"
        return f"CASE WHEN {normal} < INTERVAL 0 DAY THEN coalesce({opposite}, {normal}) ELSE {normal} END"
    nested = _NESTED_TYPE.match(value_type)
    if nested:
        element = f"element_{depth}"
        inner = _one_spelling(element, nested[1], depth + 1)
        return f"CAST(list_transform({value}, lambda {element}: {inner}) AS {value_type})"
    return value


def _row_steps(value: str, statistic: Statistic) -> str:
    """One row's value in lattice steps, clamped, BIGINT; NULL where the value is NULL (greatest() would skip it).

    Scaling by a power of two is exact in floating point and the bounds are small integers, so the clamp is exact;
    rounding is round-half-away from zero.
    """
    low, high = statistic.row_bounds_steps or (-_SATURATION, _SATURATION)
    scaled = f"CAST({value} AS DOUBLE) * {2.0**-statistic.lattice_exponent!r}::DOUBLE"
    clamped = f"CAST(round(least(greatest({scaled}, {low!r}::DOUBLE), {high!r}::DOUBLE)) AS BIGINT)"
    return f"CASE WHEN {value} IS NOT NULL THEN {clamped} END"
