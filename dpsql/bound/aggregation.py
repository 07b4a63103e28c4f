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
    cells_i    where quantiles are asked for: one row per (unit, group, cell) that is kept, rows beyond the cap scaled
               down to it
    binned_i   one row per group: a map of the cells with the numbers of rows that the kept units have there
    grouped    one row per group: distinct units, and per statistic the sum of v - centre
    result     grouped, without the private keys of fewer units than the policy's minimum; with top-k pre-processing
               less the (k+1)-th largest number of units, where something is left

What precedes the totals of ``grouped`` treats each unit by itself, and the totals are whole numbers that are added up
over units (`_totals`). What follows needs all units: the clamp of a total (`_clamped`), the minimum, the floor, and the
keys that a frame holds (`selected_sql`). So totals may be read of parts of a table, each with whole units, and added
before the clamp (`partials`). Numbers of distinct values alone are no such totals: parts hand on the values.

Rows whose unit is NULL are dropped first. Every part of an expression that could fail on a row stands inside TRY, and
every TRY where no optimizer rule can lift a part of it out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from dpsql.bound.formulations import Formulation, Numbered, few_choose, kept_ctes, state_bytes
from dpsql.bound.norms import cut_rows_sql, weighted_ctes
from dpsql.bound.value_counts import (
    PRESENT,
    cell_numbers,
    cell_sql,
    distinct_ctes,
    distinct_steps,
    histogram_ctes,
    matches,
    row_steps,
    values_sql,
)
from dpsql.model.frame import PRESENCE, WEIGHT_BITS, Frame, Norm, Statistic
from dpsql.model.statistic_kinds import APART_KINDS, DISTINCT_KINDS
from dpsql.operations.row_sql import (
    computed_condition,
    one_spelling,
    shielded,
    total_condition_sql,
    with_salt,
    without_statistics,
)

Ending = Literal["chosen", "held", "partial"] | int
"""Rows that a statement has:

    chosen    the groups that are noised: those of enough units, less the floor
    held      those of the keys that the frame holds already, offered as ``LISTED_KEYS``: nothing is left out, and
              nothing subtracted
    partial   the totals of all groups on some units, before the clamp
    a number  the distinct values of the statistic of this number on some units, by group
"""

LISTED_KEYS = "dpsql_listed_keys"
"""Name under which the engine offers keys, public ones or those of a frame, with columns key_0, key_1, …."""

HELD_ROWS = "dpsql_rows"
"""Name of the temporary table that holds the rows of a frame."""

MOST_STEPS = 2**61 - 1
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
    ending: Ending = "chosen",
    formulation: Formulation = "groups_first",
    held_rows: bool = False,
) -> str:
    """SQL for the exact per-group table of a frame, which bounds its own groups or adds up those of a finer one.

    Args:
        frame: what is grouped.
        statistics: the presence count first, then the others.
        salt: 128 secret bits of the frame that bounds units; decides which groups of a unit with too many are kept.
        ending: which rows it has.
        formulation: how it is computed; the result is the same. Only a frame that chooses groups has more than one for
            any rows; ``one_row`` is for rows of which no two have the same unit.
        held_rows: the rows are those of the table that ``held_rows_sql`` made.

    Returns:
        A SELECT with columns key_0…, units (BIGINT), stat_1… (BIGINT, steps of ``frame.exact_exponent``, recentred; of
        a histogram stat_1_0…, one a cell) and, with top-k pre-processing, floor (BIGINT): what was subtracted from
        units. There the row whose units are NULL is no group; it tells the floor where no group is left. Rows have no
        defined order.

    """
    if finer := frame.bounding.finer:
        of_finer = "chosen" if ending == "held" else ending
        finest = bounded_sql(finer, statistics, salt, ending=of_finer, formulation=formulation, held_rows=held_rows)
        return added_up_sql(frame, finer, statistics, finest) if of_finer == "chosen" else finest
    others = list(enumerate(statistics))[1:]
    if formulation == "native" and not state_bytes(frame, others):
        formulation = "groups_first"
    source = held_source_sql(frame, others) if held_rows else source_sql(frame, others, salt)
    ctes, per_row = _unit_ctes(frame, others, salt, formulation, source)
    ctes += grouped_ctes(frame, others, salt, per_row, formulation, ending)
    named = ",\n".join(ctes)
    return f"WITH {named}\n{selected_sql(frame, others, ending, has_one_row=formulation == 'one_row')}"


def source_sql(frame: Frame, others: Numbered, salt: bytes) -> str:
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


def held_rows_sql(frame: Frame, statistics: Sequence[Statistic], salt: bytes) -> str:
    """Return SQL for the rows of a frame, in no order, with all that ``bounded_sql`` reads of them."""
    source = source_sql(frame.bounding.finer or frame, list(enumerate(statistics))[1:], salt)
    return f"SELECT * FROM ({source}) AS source WHERE unit IS NOT NULL"


def held_source_sql(frame: Frame, others: list[tuple[int, Statistic]]) -> str:
    """Return the body of ``source`` over rows that are held. TRY passes no statistics of their table on."""
    names = ["unit", *frame.key_columns]
    names += [f"x_{i}" for i, statistic in others if statistic.value_sql]
    names += [f"f_{i}" for i, statistic in others if statistic.filter_sql]
    return f"SELECT {', '.join(f'TRY({name}) AS {name}' for name in names)} FROM temp.main.{HELD_ROWS}"


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
                value = row_steps(value, statistic)
            columns.append(f"{value} AS x_{i}")
        if statistic.filter_sql:
            columns.append(f"coalesce(source.f_{i}, false) AS f_{i}")
    return f"SELECT {', '.join(columns)} FROM source"


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


def _unit_ctes(
    frame: Frame, others: list[tuple[int, Statistic]], salt: bytes, formulation: Formulation, source: str
) -> tuple[list[str], str]:
    """Return the CTEs from the rows to ``kept``, which has what each unit adds; and the rows that it is made of."""
    per_row = listed_sql("rows", frame)
    # rows are read twice in the native formulation, and not to be held for it
    as_read = "AS NOT MATERIALIZED" if formulation == "native" else "AS"
    ctes = [f"source {as_read} ({source})", f"rows {as_read} ({rows_sql(frame, others)})"]
    if frame.bounding.max_rows and formulation != "one_row":
        ctes.append(f"read_rows AS ({cut_rows_sql(per_row, frame, others, salt, frame.bounding.max_rows)})")
        per_row = "read_rows"
    ctes.append(kept_ctes(frame, _added(others), salt, per_row, formulation))
    return ctes, per_row


def grouped_ctes(
    frame: Frame,
    others: list[tuple[int, Statistic]],
    salt: bytes,
    per_row: str,
    formulation: Formulation,
    ending: Ending,
    *,
    knows_squares: bool = True,
) -> list[str]:
    """Return the CTEs that follow ``kept``, up to ``grouped``: weights of units, totals of groups, and their clamp.

    Values of a part need no totals. By ``few_choose`` the rows of ``kept`` may have squares of norms.
    """
    if isinstance(ending, int):
        named = [(i, one) for i, one in others if i == ending]
        return distinct_ctes(named, frame.key_columns, per_row, salt, has_one_row=formulation == "one_row")
    keys, ctes, added, has_one_row = frame.key_columns, [], _added(others), formulation == "one_row"
    per_group = "kept"
    if frame.bounding.counted_groups:
        knows = few_choose(frame, formulation)
        ctes += weighted_ctes(frame, added, has_one_row=has_one_row, knows_weights=knows, knows_squares=knows_squares)
        per_group = "scaled" if any(isinstance(statistic.limit, Norm) for _, statistic in added) else "weighted"
    aggregates = f"{columns_sql(_totals(frame, added), frame, ending)} FROM {per_group}"
    if formulation == "native":
        grouped = (
            f"SELECT {', '.join([*keys, 'units', *_value_columns(others)])} FROM (SELECT code, {aggregates} "
            "GROUP BY code) AS coded JOIN codes ON coded.code = codes.code"
        )
    elif len(added) < len(others):
        ctes += distinct_ctes(others, keys, per_row, salt, has_one_row=has_one_row)
        binned = [(i, one) for i, one in others if one.kind == "histogram"]
        totals = {i: columns_sql([Total(one, "n", "sum(v)")], frame, ending) for i, one in binned}
        ctes += histogram_ctes(binned, keys, per_row, totals, has_one_row=has_one_row)
        ctes.append(f"summed AS ({grouped_sql(frame, added, per_group, ending, f'count(*) AS {PRESENT}, ')})")
        grouped = _joined(frame, others, keys, ending)
    else:
        grouped = grouped_sql(frame, added, per_group, ending)
    return [*ctes, f"grouped AS MATERIALIZED ({grouped})"]


def grouped_sql(
    frame: Frame, added: Sequence[tuple[int, Statistic]], per_group: str, ending: Ending, more: str = ""
) -> str:
    """Return a SELECT of the groups of ``kept``, ``weighted`` or ``scaled``, with their totals and more columns."""
    keys = frame.key_columns
    grouping = f" GROUP BY {', '.join(keys)}" if keys else ""
    listed = "".join(f"{key}, " for key in keys)
    return f"SELECT {listed}{more}{columns_sql(_totals(frame, added), frame, ending)} FROM {per_group}{grouping}"


def _added(others: Sequence[tuple[int, Statistic]]) -> list[tuple[int, Statistic]]:
    """Return the statistics that are sums of what each unit has in ``kept``."""
    return [(i, statistic) for i, statistic in others if statistic.kind not in APART_KINDS]


class Total(NamedTuple):
    """Return SQL for the sum over the units of a group before the clamp, an aggregate of whole numbers.

    Attributes:
        statistic: whose total it is.
        name: the name of its column.
        sql: the total.

    """

    statistic: Statistic
    name: str
    sql: str


def _totals(frame: Frame, added: Sequence[tuple[int, Statistic]]) -> list[Total]:
    """Return the totals of a group over its units in ``kept``, ``weighted`` or ``scaled``.

    *Guarantee*: the total of all units is the sum of the totals of any parts of them.
    """
    # without keys there is a row even where there is no unit
    totals = [Total(PRESENCE, "units", "coalesce(sum(weight), 0)" if frame.bounding.counted_groups else "count(*)")]
    totals += [
        Total(statistic, f"stat_{i}", f"coalesce(sum({added_value(frame, i, statistic)}), 0)") for i, statistic in added
    ]
    return totals


def added_value(frame: Frame, i: int, statistic: Statistic) -> str:
    """Return what a unit adds to a group, recentred, in the steps of exact sums: of ``kept`` or what follows it."""
    if isinstance(statistic.limit, Norm):
        return f"v_{i}"
    value = f"v_{i} - {statistic.centre_steps}"
    if not frame.bounding.counted_groups:
        return value
    # a unit's value times its weight, rounded towards 0: 2**33 steps times 2**20 do not overflow, and whole numbers
    # are divided towards 0, which adds nothing to their size
    divisor = 2 ** (WEIGHT_BITS + statistic.noise_exponent - statistic.lattice_exponent)
    return f"({value}) * weight // {divisor}"


def columns_sql(totals: Sequence[Total], frame: Frame, ending: Ending) -> str:
    """Return totals as columns; those of all units are clamped, each in the steps in which it is added up."""
    if ending == "partial":
        return ", ".join(f"{one.sql} AS {one.name}" for one in totals)
    columns = []
    for statistic, name, total in totals:
        most = MOST_STEPS >> (frame.exact_exponent(statistic) - statistic.noise_exponent)
        columns.append(f"CAST(least(greatest({total}, {-most}), {most}) AS BIGINT) AS {name}")
    return ", ".join(columns)


def _joined(frame: Frame, others: Sequence[tuple[int, Statistic]], keys: list[str], ending: Ending) -> str:
    """Return the body of ``grouped`` where distinct values or cells are counted on rows of their own.

    Numbers of rows in cells are totals like those of ``summed``, clamped before they are joined. Numbers of distinct
    values are not: two units may have one value. A part has the number of units in their place, which a centre is
    subtracted for.
    """
    columns = [*(f"summed.{key}" for key in keys), "summed.units"]
    if ending == "partial":
        columns.append(f"summed.{PRESENT}")
        others = [(i, one) for i, one in others if one.kind not in DISTINCT_KINDS]
    for i, statistic in others:
        names = cell_columns(i, statistic)
        if statistic.kind in DISTINCT_KINDS:
            total = Total(statistic, f"stat_{i}", distinct_steps(i, statistic))
            columns.append(columns_sql([total], frame, ending))
        elif statistic.kind == "histogram":
            # a join of as many columns would take longer
            numbers = cell_numbers(i, statistic)
            columns += [f"{n} AS {name}" for name, n in zip(names, numbers, strict=True)]
        else:
            columns += [f"summed.{name}" for name in names]
    apart = [f"counted_{i}" for i, one in others if one.kind in DISTINCT_KINDS]
    apart += [f"binned_{i}" for i, one in others if one.kind == "histogram"]
    # a group has at most one row of each, and keeps its own where it has none
    joins = "".join(f" LEFT JOIN {name} ON {matches('summed', name, keys)}" for name in apart)
    return f"SELECT {', '.join(columns)} FROM summed{joins}"


def added_up_sql(frame: Frame, finer: Frame, statistics: tuple[Statistic, ...], finer_sql: str) -> str:
    """Return SQL that adds up the groups of a finer frame, whose SQL is given.

    *Guarantee*: a unit moves the groups by no more than the finer frame's allow (docs/proofs/grouping-sets.md,
    Lemma 1): by no more than the sums of what it moves there, and the clamp brings no two of them further apart.
    """
    places = [finer.keys.index(key) for key in frame.keys]
    names = [f"stat_{i}" if i else "units" for i in range(len(statistics))]
    totals = [Total(one, name, f"coalesce(sum({name}), 0)") for one, name in zip(statistics, names, strict=True)]
    columns = [*(f"key_{place} AS key_{i}" for i, place in enumerate(places)), columns_sql(totals, frame, "chosen")]
    grouping = f" GROUP BY {', '.join(f'key_{place}' for place in places)}" if places else ""
    return f"SELECT {', '.join(columns)} FROM ({finer_sql}){grouping}"


def selected_sql(
    frame: Frame, others: Sequence[tuple[int, Statistic]], ending: Ending, *, has_one_row: bool = False
) -> str:
    """Return a SELECT of the rows of an ending.

    Args:
        frame: what is grouped.
        others: numbered statistics.
        ending: which rows; of chosen groups all, or those that are left after a subtraction.
        has_one_row: no unit has two rows.

    """
    minimum, sparsity = frame.bounding.minimum_units, frame.bounding.sparsity
    if isinstance(ending, int):
        return values_sql(ending, frame.key_columns, has_one_row=has_one_row)
    if ending == "held":
        return f"SELECT * FROM grouped {listed_join('grouped', frame.key_columns, frame, 'SEMI')}"
    if ending == "partial" or (not sparsity and minimum == 1):
        return "SELECT * FROM grouped"
    if not sparsity:
        # so that whole numbers of units stay what they are; a weight is at most 1, so fewer units never pass
        left_out = (minimum - 1) << (PRESENCE.lattice_exponent - frame.exact_exponent(PRESENCE))
        return f"SELECT * REPLACE (units - {left_out} AS units) FROM grouped WHERE units > {left_out}"
    largest = f"SELECT units FROM grouped ORDER BY units DESC LIMIT 1 OFFSET {sparsity.k}"
    columns = "".join(f"{name}, " for name in (*frame.key_columns, *_value_columns(others)))
    return (
        f"SELECT {columns}units - floor AS units, floor FROM "
        f"(SELECT greatest(coalesce(({largest}), 0), {minimum - 1}) AS floor) LEFT JOIN grouped ON units > floor"
    )


def cell_columns(i: int, statistic: Statistic) -> tuple[str, ...]:
    """Names of a statistic's columns in the result: one, or one a cell."""
    return (f"stat_{i}",) if statistic.cells == 1 else tuple(f"stat_{i}_{j}" for j in range(statistic.cells))


def _value_columns(others: Sequence[tuple[int, Statistic]]) -> list[str]:
    """Return the names of all columns of the statistics beside the presence count."""
    return [name for i, one in others for name in cell_columns(i, one)]
