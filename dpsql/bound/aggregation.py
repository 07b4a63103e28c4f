"""The bounded aggregation as one DuckDB query: exact, integer, and the same for any order of rows or threads.

    source     one row per source row: unit, keys, and per statistic its value and its flag; NULL where one fails
    rows       the same with every key in one spelling and every value on the lattice
    kept       at most max_groups groups per unit, by a salted hash priority: one row per (unit, group), per statistic
               one integer v inside its public interval, in one of several `formulations`; with weights more groups
    weights    where units in more groups have weights: one row per unit with its weight
    weighted   the same: kept, with the unit's weight
    scaled     where a norm bounds all that a unit adds: weighted, with what that leaves of v (`norms`)
    values_i   where distinct values are counted: at most c of them per (unit, group), by a salted hash priority
    counted_i  one row per group: how many distinct values the kept units have
    cells_i    where quantiles are asked for: one row per (unit, group, cell), rows beyond the cap scaled down to it
    binned_i   one row per group: how many rows the kept units have in each cell
    grouped    one row per group: distinct units, and per statistic the sum of v - centre
    result     grouped, without the private keys of fewer units than the policy's minimum; with top-k pre-processing
               less the (k+1)-th largest number of units, where something is left

Rows whose unit is NULL are dropped first. Every part of an expression that could fail on a row stands inside TRY, and
every TRY where no optimizer rule can lift a part of it out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from dpsql.bound.formulations import Formulation, kept_ctes, kept_sql, state_bytes
from dpsql.bound.norms import cut_rows_sql, needs_weights, scaled_ctes, square_sql
from dpsql.bound.value_counts import cell_sql, distinct_ctes, distinct_steps, histogram_ctes, matches
from dpsql.model.frame import PRESENCE, WEIGHT_BITS, Frame, Norm, Statistic
from dpsql.operations.row_sql import (
    computed_condition,
    one_spelling,
    shielded,
    total_condition_sql,
    with_salt,
    without_statistics,
)

LISTED_KEYS = "dpsql_listed_keys"
"""Name under which the engine offers keys, public ones or those of a frame, with columns key_0, key_1, …."""

SHARDS = 64
"""How many shards the units of any table fall into. Every sketch depends on it: another number is another normaliser
version, and a number that follows the size of a table is not private."""

_SATURATION = float(2**60)
"""Rows are clamped here, in lattice steps, before they are added: 2**60 steps of 2**60 rows fit a HUGEINT."""

_MOST_STEPS = 2**61 - 1
"""Sums over units are clamped to plus or minus this, in steps of the noise, so that with noise they fit a BIGINT
whatever the data are; numbers of units likewise.

The clamp moves no two sums further apart, so the sensitivity holds; a cast that fails, or a check of size, would tell
of the exact sum. At 2**33 steps or fewer for a unit, no fewer than 2**29 units reach it.
"""


def bounded_sql(
    frame: Frame,
    statistics: tuple[Statistic, ...],
    salt: bytes,
    *,
    held_keys: bool = False,
    formulation: Formulation = "groups_first",
) -> str:
    """SQL for the exact per-group table of a frame, which bounds its own groups or adds up those of a finer one.

    Args:
        frame: what is grouped.
        statistics: the presence count first, then the others.
        salt: 128 secret bits of the frame that bounds units; decides which groups of a unit with too many are kept.
        held_keys: the keys are those that the frame holds already, offered as ``LISTED_KEYS``; nothing is left out
            and nothing subtracted.
        formulation: how it is computed; the result is the same. Only a frame that chooses groups has more than one for
            any rows; ``one_row`` is for rows of which no two have the same unit.

    Returns:
        A SELECT with columns key_0…, units (BIGINT), stat_1… (BIGINT, steps of ``frame.exact_exponent``, recentred; of
        a histogram stat_1_0…, one a cell) and, with top-k pre-processing, floor (BIGINT): what was subtracted from
        units. There the row whose units are NULL is no group; it tells the floor where no group is left. Rows have no
        defined order.

    """
    if finer := frame.bounding.finer:
        return _added_up_sql(frame, finer, statistics, bounded_sql(finer, statistics, salt, formulation=formulation))
    others = list(enumerate(statistics))[1:]
    added = [(i, statistic) for i, statistic in others if statistic.kind not in ("values", "histogram")]
    if formulation == "native" and not state_bytes(frame, others):
        formulation = "groups_first"
    per_row = listed_sql("rows", frame)
    # rows are read twice in the native formulation, and not to be held for it
    as_read = "AS NOT MATERIALIZED" if formulation == "native" else "AS"
    ctes = [f"source {as_read} ({source_sql(frame, others, salt)})", f"rows {as_read} ({rows_sql(frame, others)})"]
    if frame.bounding.max_rows and formulation != "one_row":
        ctes.append(f"read_rows AS ({cut_rows_sql(per_row, frame, others, salt, frame.bounding.max_rows)})")
        per_row = "read_rows"
    ctes.append(kept_ctes(frame, added, salt, per_row, formulation))
    ctes += grouped_ctes(frame, others, salt, per_row, formulation)
    named = ",\n".join(ctes)
    return f"WITH {named}\n{selected_sql(frame, others, held_keys=held_keys)}"


def grouped_ctes(
    frame: Frame, others: list[tuple[int, Statistic]], salt: bytes, per_row: str, formulation: Formulation
) -> list[str]:
    """Return the CTEs that follow ``kept``, up to ``grouped``."""
    keys, ctes = frame.key_columns, []
    added = [(i, statistic) for i, statistic in others if statistic.kind not in ("values", "histogram")]
    if frame.bounding.counted_groups:
        ctes += _weighted_ctes(frame, added, formulation)
    listed = "".join(f"{key}, " for key in keys)
    grouping = f" GROUP BY {', '.join(keys)}" if keys else ""
    aggregates = _aggregates(frame, added)
    if formulation == "native":
        grouped = (
            f"SELECT {', '.join([*keys, 'units', *_value_columns(others)])} FROM (SELECT code, {aggregates} "
            "GROUP BY code) AS coded JOIN codes ON coded.code = codes.code"
        )
    elif len(added) < len(others):
        has_one_row = formulation == "one_row"
        ctes += distinct_ctes(others, keys, per_row, salt, has_one_row=has_one_row)
        ctes += histogram_ctes(others, keys, per_row, has_one_row=has_one_row)
        ctes.append(f"summed AS (SELECT {listed}count(*) AS present, {aggregates}{grouping})")
        grouped = _joined(frame, others, keys)
    else:
        grouped = f"SELECT {listed}{aggregates}{grouping}"
    return [*ctes, f"grouped AS MATERIALIZED ({grouped})"]


def _value_columns(others: Sequence[tuple[int, Statistic]]) -> list[str]:
    """Return the names of all columns of the statistics beside the presence count."""
    return [name for i, one in others for name in cell_columns(i, one)]


def _weighted_ctes(frame: Frame, added: Sequence[tuple[int, Statistic]], formulation: Formulation) -> list[str]:
    """Return the CTEs that follow ``kept`` where units count with a weight: the weights, and what norms leave."""
    normed = [(i, statistic) for i, statistic in added if isinstance(statistic.limit, Norm)]
    has_one_row = formulation == "one_row"
    free = [(i, statistic) for i, statistic in normed if not needs_weights(statistic)]
    squares = "".join(f", {square_sql(i, statistic, has_one_row=has_one_row)}" for i, statistic in free)
    # a unit in one group has its whole weight
    ctes = [f"weighted AS (SELECT *, {2**WEIGHT_BITS}::BIGINT AS weight{squares} FROM kept)"]
    if not has_one_row:
        names = "".join(f", square_{i}" for i, _ in free)
        ctes = [
            f"weights AS ({_weights_sql(frame.unit_groups, squares)})",
            f"weighted AS (SELECT kept.*, weight{names} FROM kept "
            "JOIN weights ON kept.unit IS NOT DISTINCT FROM weights.unit)",
        ]
    return [*ctes, *([scaled_ctes(normed, has_one_row=has_one_row)] if normed else [])]


def _added_up_sql(frame: Frame, finer: Frame, statistics: tuple[Statistic, ...], finer_sql: str) -> str:
    """Sums over the groups of a finer frame, whose SQL this is.

    *Guarantee*: a unit moves the groups by no more than the finer frame's allow (docs/proofs/grouping-sets.md,
    Lemma 1): by no more than the sums of what it moves there, and the clamp brings no two of them further apart.
    """
    places = [finer.keys.index(key) for key in frame.keys]
    columns = [f"key_{place} AS key_{i}" for i, place in enumerate(places)]
    for i, statistic in enumerate(statistics):
        name = f"stat_{i}" if i else "units"
        columns.append(f"{_clamped(f'coalesce(sum({name}), 0)', statistic, frame)} AS {name}")
    grouping = f" GROUP BY {', '.join(f'key_{place}' for place in places)}" if places else ""
    return f"SELECT {', '.join(columns)} FROM ({finer_sql}){grouping}"


def cell_columns(i: int, statistic: Statistic) -> tuple[str, ...]:
    """Names of a statistic's columns in the result: one, or one a cell."""
    return (f"stat_{i}",) if statistic.cells == 1 else tuple(f"stat_{i}_{j}" for j in range(statistic.cells))


def _aggregates(frame: Frame, added: Sequence[tuple[int, Statistic]]) -> str:
    """What is added up of the kept groups of units, from the number of units up to FROM."""
    is_weighted, sums = bool(frame.bounding.counted_groups), ""
    for i, statistic in added:
        value = f"v_{i} - {statistic.centre_steps}"
        if isinstance(statistic.limit, Norm):
            value = f"v_{i}"
        elif is_weighted:
            # a unit's value times its weight, rounded towards 0: 2**33 steps times 2**20 do not overflow, and whole
            # numbers are divided towards 0, which adds nothing to their size
            divisor = 2 ** (WEIGHT_BITS + statistic.noise_exponent - statistic.lattice_exponent)
            value = f"({value}) * weight // {divisor}"
        sums += f", {_clamped(f'coalesce(sum({value}), 0)', statistic, frame)} AS stat_{i}"
    if not is_weighted:
        return f"{_clamped('count(*)', PRESENCE, frame)} AS units{sums} FROM kept"
    # without keys there is a row even where there is no unit
    rows = "scaled" if any(isinstance(statistic.limit, Norm) for _, statistic in added) else "weighted"
    return f"{_clamped('coalesce(sum(weight), 0)', PRESENCE, frame)} AS units{sums} FROM {rows}"


def _joined(frame: Frame, others: Sequence[tuple[int, Statistic]], keys: list[str]) -> str:
    """What was added up, beside the distinct values and cells that were counted on rows of their own."""
    columns = [*(f"summed.{key}" for key in keys), "summed.units"]
    for i, statistic in others:
        if statistic.kind == "values":
            counts = [distinct_steps(i, statistic)]
        elif statistic.kind == "histogram":
            counts = [f"coalesce(binned_{i}.n_{j}, 0)" for j in range(statistic.cells)]
        else:
            columns.append(f"summed.stat_{i}")
            continue
        names = cell_columns(i, statistic)
        columns += [f"{_clamped(n, statistic, frame)} AS {name}" for n, name in zip(counts, names, strict=True)]
    apart = [f"counted_{i}" for i, one in others if one.kind == "values"]
    apart += [f"binned_{i}" for i, one in others if one.kind == "histogram"]
    # a group has at most one row of each, and keeps its own where it has none
    joins = "".join(f" LEFT JOIN {name} ON {matches('summed', name, keys)}" for name in apart)
    return f"SELECT {', '.join(columns)} FROM summed{joins}"


def approximate_sizes_sql(frame: Frame, salt: bytes, *, most_rows: int | None = None, one_in: int = 1) -> str:
    """Return SQL for the ``Sizes`` by which a formulation is chosen: one row of four numbers, in one pass.

    Args:
        frame: what is grouped.
        salt: as for ``bounded_sql``.
        most_rows: the number of rows that are looked at, if not all are.
        one_in: all rows of one unit in ``one_in`` are looked at.

    """
    keys = ", ".join(frame.key_columns)
    key = keys if len(frame.keys) == 1 else f"hash({keys})"
    part = "" if one_in == 1 else f" AND hash(hash(unit)) % {one_in} = 0"
    part += "" if most_rows is None else f" LIMIT {most_rows}"
    return (
        f"WITH source AS ({source_sql(frame, [], salt)}),\nrows AS ({rows_sql(frame, [])})\n"
        f"SELECT count(*), approx_count_distinct(unit), approx_count_distinct({key}), "
        f"approx_count_distinct(hash(unit, {keys})) "
        f"FROM (SELECT * FROM {listed_sql('rows', frame)} WHERE unit IS NOT NULL{part})"
    )


def _clamped(total: str, statistic: Statistic, frame: Frame) -> str:
    """A statistic's sum over units, clamped in the steps in which it is added up."""
    most = _MOST_STEPS >> (frame.exact_exponent(statistic) - statistic.noise_exponent)
    return f"CAST(least(greatest({total}, {-most}), {most}) AS BIGINT)"


def _weights_sql(max_groups: int, squares: str) -> str:
    """Return a SELECT of the weight sqrt(max_groups / n) of each unit of ``kept`` in n groups, with its ``squares``.

    It is in steps of 2**-WEIGHT_BITS, rounded down. What a floating-point root makes too large by rounding is taken
    back: n weight**2 <= max_groups holds in integers.
    """
    squared = max_groups << 2 * WEIGHT_BITS
    root = (
        f"CASE WHEN n <= {max_groups} THEN {2**WEIGHT_BITS} ELSE CAST(floor(sqrt({squared}::DOUBLE / n)) AS BIGINT) END"
    )
    return (
        f"SELECT * EXCLUDE (n, root), root - CAST(root * root * n > {squared} AS BIGINT) AS weight FROM ("
        f"SELECT *, {root} AS root FROM (SELECT unit, count(*) AS n{squares} FROM kept GROUP BY unit))"
    )


def listed_sql(rows: str, frame: Frame) -> str:
    """The rows that take part: those whose keys are listed, or all where keys are private."""
    return f"{rows} {listed_join(rows, frame.key_columns, frame, 'SEMI')}" if frame.public_keys else rows


def listed_join(rows: str, columns: Sequence[str], frame: Frame, kind: Literal["SEMI", "ANTI"]) -> str:
    """What follows the rows to keep those whose keys are listed, or those whose keys are not.

    The listed side is cast to the keys' types. Arrow has no HUGEINT; left alone, DuckDB would cast the raw side to
    what Arrow made of it, outside TRY, and fail aloud on a key that fits no such type.
    """
    typed = ", ".join(f"CAST(key_{i} AS {key.type}) AS key_{i}" for i, key in enumerate(frame.keys))
    matches = " AND ".join(f"{rows}.{name} IS NOT DISTINCT FROM listed.key_{i}" for i, name in enumerate(columns))
    return f"{kind} JOIN (SELECT {typed} FROM temp.main.{LISTED_KEYS}) AS listed ON {matches}"


def selected_sql(frame: Frame, others: Sequence[tuple[int, Statistic]], *, held_keys: bool) -> str:
    """Return a SELECT of the groups that are noised: all of them, or those that are left after a subtraction."""
    keys, values = frame.key_columns, _value_columns(others)
    minimum, sparsity = frame.bounding.minimum_units, frame.bounding.sparsity
    if held_keys:
        return f"SELECT * FROM grouped {listed_join('grouped', keys, frame, 'SEMI')}"
    if not sparsity and minimum == 1:
        return "SELECT * FROM grouped"
    if not sparsity:
        # so that whole numbers of units stay what they are; a weight is at most 1, so fewer units never pass
        left_out = (minimum - 1) << (PRESENCE.lattice_exponent - frame.exact_exponent(PRESENCE))
        return f"SELECT * REPLACE (units - {left_out} AS units) FROM grouped WHERE units > {left_out}"
    largest = f"SELECT units FROM grouped ORDER BY units DESC LIMIT 1 OFFSET {sparsity.k}"
    columns = "".join(f"{name}, " for name in (*keys, *values))
    return (
        f"SELECT {columns}units - floor AS units, floor FROM "
        f"(SELECT greatest(coalesce(({largest}), 0), {minimum - 1}) AS floor) LEFT JOIN grouped ON units > floor"
    )


def source_sql(frame: Frame, others: list[tuple[int, Statistic]], salt: bytes) -> str:
    """Body of ``source``; ``others`` are the numbered statistics beside the presence count.

    The one place where the rows of a frame are read: the salt that joins cut rows by comes into them here.
    """
    unit = frame.rows.unit_column.sql
    columns = [f"{unit} AS unit"]
    columns += [f"{shielded(key.sql, unit, frame.rows_sql.types)} AS key_{i}" for i, key in enumerate(frame.keys)]
    for i, statistic in others:
        if statistic.value_sql:
            columns.append(f"{shielded(statistic.value_sql, unit, frame.rows_sql.types)} AS x_{i}")
        if statistic.filter_sql:
            columns.append(f"{computed_condition(statistic.filter_sql, unit, frame.rows_sql.types)} AS f_{i}")
    expressions = [*frame.rows.filters, *(key.sql for key in frame.keys)]
    expressions += [sql for _, statistic in others for sql in (statistic.value_sql, statistic.filter_sql) if sql]
    where = "".join(f" AND {total_condition_sql(sql, frame.rows_sql.types)}" for sql in frame.rows.filters)
    relation = without_statistics(with_salt(frame.rows_sql.relation, salt), expressions)
    return f"SELECT {', '.join(columns)} FROM {relation} WHERE true{where}"


def rows_sql(frame: Frame, others: list[tuple[int, Statistic]]) -> str:
    """Body of ``rows``, which reads ``source``."""
    columns = [f"{one_spelling('source.unit', frame.rows.unit_column.type)} AS unit"]
    columns += [f"{one_spelling(f'source.key_{i}', key.type)} AS key_{i}" for i, key in enumerate(frame.keys)]
    for i, statistic in others:
        if statistic.value_sql:
            value = f"source.x_{i}"
            if statistic.histogram:
                value = cell_sql(value, statistic.histogram)
            elif statistic.kind == "sum":
                value = _row_steps(value, statistic)
            columns.append(f"{value} AS x_{i}")
        if statistic.filter_sql:
            columns.append(f"coalesce(source.f_{i}, false) AS f_{i}")
    return f"SELECT {', '.join(columns)} FROM source"


def _row_steps(value: str, statistic: Statistic) -> str:
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


def sketch_sql(frame: Frame, salt: bytes) -> str:
    """SQL for the exact presence counts of one shard of units after the other: what a sketch is made of.

    One unit's rows stand in one shard, and no unit's shard depends on another unit: it is a hash of the unit and the
    salt modulo a constant. Borders that follow the data (so many rows, so many units, so much memory to a batch) would
    move when a unit is removed; other units would then change batches, and the sketches of neighbouring tables would
    differ by more than a unit. One ordered scan serves all shards: a scan for each needs less memory, and many times
    the time.

    Args:
        frame: what is grouped; its keys are private.
        salt: the frame's 128 secret bits; decides which groups of a unit with too many are kept, and its shard.

    Returns:
        A SELECT with columns shard (UTINYINT, ascending), key_0… and units (BIGINT). A shard without a group has no
        row; within a shard the rows have no defined order.

    Raises:
        ValueError: the keys are public, or there are none: then all of them can be counted.

    """
    if not frame.has_private_keys:
        raise ValueError("only private keys are sketched")
    keys = ", ".join(frame.key_columns)
    # as for the priority of groups, one hash of two arguments would mix them weakly
    shard = f"CAST(hash(hash(unit, '{salt.hex()}')) % {SHARDS} AS UTINYINT)"
    return (
        f"WITH source AS ({source_sql(frame, [], salt)}),\n"
        f"rows AS ({rows_sql(frame, [])}),\n"
        f"per_group AS (SELECT unit, {keys} FROM rows WHERE unit IS NOT NULL GROUP BY unit, {keys}),\n"
        f"kept AS ({kept_sql(frame.key_columns, frame.bounding.max_groups, salt)})\n"
        # the order is written out, because the curator may have set another default
        f"SELECT {shard} AS shard, {keys}, count(*) AS units FROM kept GROUP BY shard, {keys} ORDER BY shard ASC"
    )
