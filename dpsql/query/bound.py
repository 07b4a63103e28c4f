"""The bounded aggregation as one DuckDB query: exact, integer, and the same for any order of rows or threads.

    source     one row per source row: unit, keys, and per statistic its value and its flag; NULL where one fails
    rows       the same with every key in one spelling and every value on the lattice
    kept       at most max_groups groups per unit, by a salted hash priority: one row per (unit, group), per statistic
               one integer v inside its public interval; in one of three formulations (`kept`); with weights more groups
    weighted   where units in more groups have weights: kept, with the unit's weight
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

from dpsql.query.distinct_sql import distinct_ctes, distinct_steps, matches
from dpsql.query.frame import PRESENCE, WEIGHT_BITS, Frame, Statistic
from dpsql.query.histogram_sql import cell_columns, cell_sql, histogram_ctes
from dpsql.query.kept import Formulation, has_native_form, kept_ctes, sizes_sql
from dpsql.query.salt import with_salt
from dpsql.query.shielded import computed_condition, one_spelling, shielded, without_statistics
from dpsql.query.total import total_condition_sql

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
        A SELECT with columns key_0…, units (BIGINT), stat_1… (BIGINT, steps of ``frame.exact_exponent``, recentred; of
        a histogram stat_1_0…, one a cell) and, with top-k pre-processing, floor (BIGINT): what was subtracted from
        units. There the row whose units are NULL is no group; it is what tells the floor where no group is left. The
        result has no defined row order.

    """
    keys = [f"key_{i}" for i in range(len(frame.keys))]
    others = list(enumerate(statistics))[1:]
    distinct = [(i, statistic) for i, statistic in others if statistic.kind == "values"]
    added = [(i, statistic) for i, statistic in others if statistic.kind not in ("values", "histogram")]
    histograms = [(i, statistic) for i, statistic in others if statistic.kind == "histogram"]
    if formulation == "native" and not has_native_form(frame, others):
        formulation = "groups_first"
    selected = "".join(f"{key}, " for key in keys)
    values = [name for i, one in others for name in cell_columns(i, one)]
    sums = "".join(
        f", {_clamped(f'coalesce(sum({_added(i, statistic, frame)}), 0)', statistic, frame)} AS stat_{i}"
        for i, statistic in added
    )
    units, kept = f"least(count(*), {most_steps(frame, PRESENCE)})", "kept"
    ctes = [kept_ctes(frame, added, salt, _per_row(frame), formulation)]
    if frame.counted_groups is not None:
        ctes.append(f"weighted AS ({_weighted_sql(frame.unit_groups)})")
        # without keys there is a row even where there is no unit, and least() skips NULLs
        total = "coalesce(sum(weight), 0)"
        units, kept = f"CAST(least({total}, {most_steps(frame, PRESENCE)}) AS BIGINT)", "weighted"
    aggregates = f"{units} AS units{sums} FROM {kept}"
    grouping = f" GROUP BY {', '.join(keys)}" if keys else ""
    if formulation == "native":
        named = "".join(f", {name}" for name in values)
        grouped = (
            f"SELECT {selected}units{named} FROM (SELECT code, {aggregates} GROUP BY code) AS coded "
            "JOIN codes ON coded.code = codes.code"
        )
    elif distinct or histograms:
        ctes += [f"{name} AS ({body})" for name, body in distinct_ctes(distinct, keys, _per_row(frame), salt)]
        ctes += [f"{name} AS ({body})" for name, body in histogram_ctes(histograms, keys, _per_row(frame))]
        ctes.append(f"summed AS (SELECT {selected}count(*) AS present, {aggregates}{grouping})")
        columns = [
            *(f"summed.{key}" for key in keys),
            "summed.units",
            *(part for i, one in others for part in _grouped_columns(i, one, frame)),
        ]
        apart = [*(f"counted_{i}" for i, _ in distinct), *(f"binned_{i}" for i, _ in histograms)]
        # a group has at most one row of each, and keeps its own where it has none
        joins = "".join(f" LEFT JOIN {name} ON {matches('summed', name, keys)}" for name in apart)
        grouped = f"SELECT {', '.join(columns)} FROM summed{joins}"
    else:
        grouped = f"SELECT {selected}{aggregates}{grouping}"
    # rows are read twice in the native formulation, and not to be held for it
    as_read = "AS NOT MATERIALIZED" if formulation == "native" else "AS"
    listed = ",\n".join(ctes)
    return (
        f"WITH source {as_read} ({source_sql(frame, others, salt)}),\n"
        f"rows {as_read} ({rows_sql(frame, others)}),\n"
        f"{listed},\n"
        f"grouped AS MATERIALIZED ({grouped})\n"
        f"{_selected(frame, keys, values, held_keys=held_keys)}"
    )


def approximate_sizes_sql(frame: Frame, salt: bytes, most_rows: int | None = None) -> str:
    """SQL for the ``Sizes`` by which a formulation is chosen, of at most so many rows: one row of four numbers."""
    return (
        f"WITH source AS ({source_sql(frame, [], salt)}),\nrows AS ({rows_sql(frame, [])})\n"
        f"{sizes_sql(frame, _per_row(frame), most_rows)}"
    )


def _per_row(frame: Frame) -> str:
    """The rows that take part."""
    return "rows" if frame.public_keys is None else listed_sql("rows", frame)


def _grouped_columns(i: int, statistic: Statistic, frame: Frame) -> list[str]:
    if statistic.kind == "values":
        return [f"{_clamped(distinct_steps(i, statistic), statistic, frame)} AS stat_{i}"]
    if statistic.kind == "histogram":
        cells = enumerate(cell_columns(i, statistic))
        return [f"{_clamped(f'coalesce(binned_{i}.n_{j}, 0)', statistic, frame)} AS {name}" for j, name in cells]
    return [f"summed.stat_{i}"]


def _clamped(total: str, statistic: Statistic, frame: Frame) -> str:
    return f"CAST(least(greatest({total}, {-most_steps(frame, statistic)}), {most_steps(frame, statistic)}) AS BIGINT)"


def most_steps(frame: Frame, statistic: Statistic) -> int:
    """The clamp of a statistic's sum over units, in the steps in which it is added up."""
    return _MOST_STEPS >> (frame.exact_exponent(statistic) - statistic.noise_exponent)


def _added(i: int, statistic: Statistic, frame: Frame) -> str:
    """What one unit adds to one group: its value less the centre, times its weight, rounded towards 0."""
    value = f"v_{i} - {statistic.centre_steps}"
    if frame.counted_groups is None:
        return value
    # 2**33 steps times 2**20 do not overflow; whole numbers are divided towards 0, which adds nothing to their size
    divisor = 2 ** (WEIGHT_BITS + statistic.noise_exponent - statistic.lattice_exponent)
    return f"({value}) * weight // {divisor}"


def _weighted_sql(max_groups: int) -> str:
    """``kept`` with the weight sqrt(max_groups / n) of a unit in n groups, in steps of 2**-WEIGHT_BITS, rounded down.

    What a floating-point root makes too large by rounding is taken back: n weight**2 <= max_groups holds in integers.
    """
    squared = max_groups << 2 * WEIGHT_BITS
    root = (
        f"CASE WHEN n <= {max_groups} THEN {2**WEIGHT_BITS} ELSE CAST(floor(sqrt({squared}::DOUBLE / n)) AS BIGINT) END"
    )
    return (
        f"SELECT * EXCLUDE (n, root), root - CAST(root * root * n > {squared} AS BIGINT) AS weight FROM ("
        f"SELECT *, {root} AS root FROM (SELECT *, count(*) OVER (PARTITION BY unit) AS n FROM kept))"
    )


def listed_sql(rows: str, frame: Frame) -> str:
    """The rows whose keys are listed."""
    return f"{rows} {listed_join(rows, [f'key_{i}' for i in range(len(frame.keys))], frame, 'SEMI')}"


def listed_join(rows: str, columns: Sequence[str], frame: Frame, kind: Literal["SEMI", "ANTI"]) -> str:
    """What follows the rows to keep those whose keys are listed, or those whose keys are not.

    The listed side is cast to the keys' types. Arrow has no HUGEINT; left alone, DuckDB would cast the raw side to
    what Arrow made of it, outside TRY, and fail aloud on a key that fits no such type.
    """
    typed = ", ".join(f"CAST(key_{i} AS {key.type}) AS key_{i}" for i, key in enumerate(frame.keys))
    matches = " AND ".join(f"{rows}.{name} IS NOT DISTINCT FROM listed.key_{i}" for i, name in enumerate(columns))
    return f"{kind} JOIN (SELECT {typed} FROM temp.main.{LISTED_KEYS}) AS listed ON {matches}"


def _selected(frame: Frame, keys: list[str], values: list[str], *, held_keys: bool) -> str:
    """The groups that are noised: all of them, or those that are left when something is subtracted."""
    minimum = frame.minimum_units
    if held_keys:
        return f"SELECT * FROM {listed_sql('grouped', frame)}"
    if frame.sparsity is None and minimum == 1:
        return "SELECT * FROM grouped"
    if frame.sparsity is None:
        # so that whole numbers of units stay what they are; a weight is at most 1, so fewer units never pass
        left_out = (minimum - 1) << (PRESENCE.lattice_exponent - frame.exact_exponent(PRESENCE))
        return f"SELECT * REPLACE (units - {left_out} AS units) FROM grouped WHERE units > {left_out}"
    largest = f"SELECT units FROM grouped ORDER BY units DESC LIMIT 1 OFFSET {frame.sparsity.k}"
    columns = "".join(f"{name}, " for name in (*keys, *values))
    return (
        f"SELECT {columns}units - floor AS units, floor FROM "
        f"(SELECT greatest(coalesce(({largest}), 0), {minimum - 1}) AS floor) LEFT JOIN grouped ON units > floor"
    )


def source_sql(frame: Frame, others: list[tuple[int, Statistic]], salt: bytes) -> str:
    """Body of ``source``; ``others`` are the numbered statistics beside the presence count.

    The one place where the rows of a frame are read: the salt that joins cut rows by comes into them here.
    """
    unit = frame.unit_column.sql
    columns = [f"{unit} AS unit"]
    columns += [f"{shielded(key.sql, unit, frame.types)} AS key_{i}" for i, key in enumerate(frame.keys)]
    for i, statistic in others:
        if statistic.value_sql:
            columns.append(f"{shielded(statistic.value_sql, unit, frame.types)} AS x_{i}")
        if statistic.filter_sql:
            columns.append(f"{computed_condition(statistic.filter_sql, unit, frame.types)} AS f_{i}")
    expressions = [*frame.filters, *(key.sql for key in frame.keys)]
    expressions += [sql for _, statistic in others for sql in (statistic.value_sql, statistic.filter_sql) if sql]
    where = "".join(f" AND {total_condition_sql(sql, frame.types)}" for sql in frame.filters)
    relation = without_statistics(with_salt(frame.relation, salt), expressions)
    return f"SELECT {', '.join(columns)} FROM {relation} WHERE true{where}"


def rows_sql(frame: Frame, others: list[tuple[int, Statistic]]) -> str:
    """Body of ``rows``, which reads ``source``."""
    columns = [f"{one_spelling('source.unit', frame.unit_column.type)} AS unit"]
    columns += [f"{one_spelling(f'source.key_{i}', key.type)} AS key_{i}" for i, key in enumerate(frame.keys)]
    for i, statistic in others:
        if statistic.value_sql:
            value = f"source.x_{i}"
            columns.append(f"{_row_value(value, statistic)} AS x_{i}")
        if statistic.filter_sql:
            columns.append(f"coalesce(source.f_{i}, false) AS f_{i}")
    return f"SELECT {', '.join(columns)} FROM source"


def _row_value(value: str, statistic: Statistic) -> str:
    if statistic.kind == "histogram":
        return cell_sql(value, statistic)
    return _row_steps(value, statistic) if statistic.kind == "sum" else value


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
