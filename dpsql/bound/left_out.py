"""Rows left out of each unit as one DuckDB query: its part of the listed groups, less what the numbers keep of it.

    per_group      one row per (unit, group): per statistic its bounded value, and its value before bounds
    kept           the same with is_kept: whether the group is one of those that the unit keeps, by the salt
    … scaled       as in `aggregation`: the weights and norms of the released numbers, which the kept groups make
    lost           in place of the values before bounds, what of them the numbers do not keep
    left_out       one row per unit: the sums of it over the listed groups
    result         one row: per statistic the sum over units, each cut

A shown number is a sum over units, recentred, and the centre times the presence count. What it keeps of a unit is the
unit's part of both, in whole numbers. Nothing is taken at a mean.
"""

from __future__ import annotations

from collections.abc import Sequence

from dpsql.bound.aggregation import MOST_STEPS, added_value, listed_join, listed_sql, source_sql
from dpsql.bound.coverage import whole_rows
from dpsql.bound.formulations import (
    Formulation,
    Numbered,
    chooses_groups,
    marked_sql,
    per_unit_cte,
    priority_column,
)
from dpsql.bound.norms import known_norms, weighted_ctes
from dpsql.bound.one_pass import per_group_of_pairs, per_group_of_rows
from dpsql.bound.one_row import columns_of_row, whole_of_row
from dpsql.bound.pairs import Pairs
from dpsql.bound.partials import partial_table
from dpsql.model.frame import WEIGHT_BITS, Frame, Norm, Statistic

PART_BITS = 20
"""What is left out of a unit is a multiple of 2**-20 of its cut, rounded down."""
_ROW_BITS = 40
"""Numbers of rows of a unit in a group are clamped here, in halves: with the bits of weights they fit a BIGINT."""
_SUM_BITS = 100
"""Sums of a unit in a group are clamped here, in lattice steps: with the bits of weights they fit a HUGEINT."""
_HUGEINT_BITS = 126
_ALL_KEPT = "SELECT *, true AS is_kept FROM per_group"


def left_out_sql(
    frame: Frame,
    measured: Sequence[tuple[Statistic, int]],
    salt: bytes,
    *,
    formulation: Formulation = "groups_first",
    pairs: Pairs | None = None,
    are_listed: bool = False,
    are_parts: bool = False,
) -> str:
    """Return SQL for the sums over units of what bounds leave out of them, each unit cut.

    What is left out of a unit is what it has in the listed groups before bounds, less what the numbers of these groups
    keep of it, and at least 0. It is cut at C, and counted in steps of C / 2**20, rounded down.

    *Guarantee*: one unit moves each column by at most 2**20, whatever all others have.
    *Source*: docs/proofs/left-out.md, Lemma 1.

    Args:
        frame: what is grouped, and how units are bounded; one of which it can be measured what bounding leaves.
        measured: bounded statistics of kind ``rows`` or ``sum``, each with the exponent of its cut: C is two to this
            power, in the units of the aggregate.
        salt: 128 secret bits of the frame, those of the numbers.
        formulation: ``groups_first``, ``few_choose``, ``last_kept`` or ``one_row``; the result is the same.
        pairs: the table that has the numbers of all that is read, if there is one.
        are_listed: whether the listed groups are those of the keys offered as ``LISTED_KEYS``, of a frame with private
            keys; else they are all groups.
        are_parts: whether the sums are those of some units, before the clamp.

    Returns:
        A SELECT of one row with columns left_1, left_2, … (BIGINT, at most `MOST_STEPS`).

    """
    asked = list(dict.fromkeys(one for one, _ in measured))
    numbered = list(enumerate(asked, start=1))
    has_one_row = formulation == "one_row"
    ctes = lost_ctes(frame, numbered, numbered, salt, formulation, pairs)
    cuts = [(asked.index(one) + 1, one, exponent) for one, exponent in measured]
    cut = cut_sql(frame, cuts, "lost", are_listed=are_listed, has_one_row=has_one_row, are_parts=are_parts)
    return f"WITH {ctes}\n{cut}"


def left_out_merged(cuts: int) -> tuple[tuple[str, ...], str]:
    """Return the columns of sums of parts, and a SELECT with the result of ``left_out_sql``, of their rows.

    Args:
        cuts: number of the columns.

    """
    names = tuple(f"left_{place}" for place in range(1, cuts + 1))
    columns = ", ".join(f"{_clamped(name)} AS {name}" for name in names)
    return names, f"SELECT {columns} FROM temp.main.{partial_table(0)}"


def lost_ctes(
    frame: Frame, read: Numbered, measured: Numbered, salt: bytes, formulation: Formulation, pairs: Pairs | None
) -> str:
    """Return the CTEs up to ``lost``.

    Args:
        frame: what is grouped.
        read: numbered statistics whose values v_i are read.
        measured: those among them of which lost_i is read.
        salt: the salt of the frame.
        formulation: as for ``left_out_sql``.
        pairs: as for ``left_out_sql``.

    """
    if not all(is_measurable(frame, one) for _, one in measured):
        raise AssertionError("what is left out is that of counts of rows and sums, whose bounds raise nothing")
    has_one_row, in_c, few = (formulation == name for name in ("one_row", "last_kept", "few_choose"))
    most = frame.bounding.most_counted if chooses_groups(frame) and not has_one_row else None
    if has_one_row:
        ctes = _per_group_of_one_row(frame, read, measured, salt)
    else:
        more = priority_column(frame.key_columns, salt) if in_c else ""
        ctes = (
            per_group_of_pairs(pairs, frame, read, measured, more)
            if pairs
            else per_group_of_rows(frame, read, measured, salt, more, in_c=in_c)
        )
    if most and formulation in ("few_choose", "last_kept"):
        ctes.append(per_unit_cte(frame, read, formulation))
    normed = known_norms(frame, read) if few else []
    ctes.append(f"kept AS ({marked_sql(frame, salt, formulation, normed) if most else _ALL_KEPT})")
    last = "kept"
    if frame.bounding.counted_groups:
        is_marked = most is not None
        ctes += weighted_ctes(
            frame, read, has_one_row=has_one_row, is_marked=is_marked, knows_weights=is_marked and few
        )
        last = "scaled" if any(isinstance(one.limit, Norm) for _, one in read) else "weighted"
    columns = ["unit", *frame.key_columns, "is_kept", *(f"v_{i}" for i, _ in read)]
    columns += ["weight"] if frame.bounding.counted_groups else []
    for i, one in measured:
        whole, keep = _whole_and_keep(frame, i, one)
        # of most groups nothing is lost, and NULL is added up in no time
        lost = f"CASE WHEN NOT is_kept THEN {whole} WHEN {whole} <> {keep} THEN {whole} - {keep} END"
        columns.append(f"{lost} AS lost_{i}")
    ctes.append(f"lost AS (SELECT {', '.join(columns)} FROM {last})")
    return ",\n".join(ctes)


def is_measurable(frame: Frame, statistic: Statistic) -> bool:
    """Return whether what bounds leave out of a statistic is what this module computes."""
    has_centre = isinstance(statistic.limit, Norm) and statistic.centre_steps
    return frame.is_measured and statistic.kind in ("rows", "sum") and not (statistic.is_raised or has_centre)


def _per_group_of_one_row(frame: Frame, read: Numbered, measured: Numbered, salt: bytes) -> list[str]:
    """Return the CTEs from the rows to ``per_group``, where no unit has two rows."""
    rows, whole = whole_rows(frame, read, measured)
    values = "".join(columns_of_row(i, one) for i, one in read)
    values += "".join(whole_of_row(i, one, whole.get(i, i)) for i, one in measured)
    columns = ", ".join(["unit", *frame.key_columns])
    return [
        f"source AS NOT MATERIALIZED ({source_sql(frame, read, salt)})",
        f"rows AS NOT MATERIALIZED ({rows})",
        f"per_group AS NOT MATERIALIZED (SELECT {columns}, 1 AS present{values} FROM {listed_sql('rows', frame)} "
        "WHERE unit IS NOT NULL)",
    ]


def _bits(frame: Frame, statistic: Statistic) -> int:
    """Return the bits between lattice steps and those of lost_i, in which weights and norms leave whole numbers."""
    if isinstance(statistic.limit, Norm):
        return statistic.lattice_exponent - statistic.noise_exponent
    return WEIGHT_BITS if frame.bounding.counted_groups else 0


def _whole_and_keep(frame: Frame, i: int, statistic: Statistic) -> tuple[str, str]:
    """Return what a unit has in a group before bounds, and what its number keeps of it, in the steps of lost_i."""
    bits, whole = _bits(frame, statistic), f"whole_{i}"
    if bits and statistic.kind == "rows":
        whole = f"least({whole}, {2**_ROW_BITS}) * {2**bits}"
    elif bits:
        most = f"{2**_SUM_BITS}::HUGEINT"
        whole = f"least(greatest(CAST({whole} AS HUGEINT), -{most}), {most}) * {2**bits}::HUGEINT"
    if not frame.bounding.counted_groups:
        return whole, f"v_{i}"
    added = added_value(frame, i, statistic)
    if isinstance(statistic.limit, Norm):
        return whole, added
    # the centre comes back with the presence count, which is a sum of weights
    to_steps = 2 ** (bits - statistic.lattice_exponent + statistic.noise_exponent)
    return whole, f"({added} * {to_steps} + {statistic.centre_steps} * weight)"


def cut_sql(
    frame: Frame,
    cuts: Sequence[tuple[int, Statistic, int]],
    relation: str,
    *,
    are_listed: bool,
    has_one_row: bool = False,
    are_parts: bool = False,
) -> str:
    """Return a SELECT of the result from ``lost``.

    Args:
        frame: what is grouped.
        cuts: of each column the number of its statistic, the statistic, and the exponent of its cut.
        relation: the rows of ``lost``, under this name.
        are_listed: as for ``left_out_sql``.
        has_one_row: whether no unit has two rows.
        are_parts: as for ``left_out_sql``.

    """
    sums = [_cut(frame, i, one, exponent) for i, one, exponent in cuts]
    totals = [f"coalesce(sum({one}), 0)" if are_parts else _clamped(one) for one in sums]
    columns = [f"{total} AS left_{place}" for place, total in enumerate(totals, start=1)]
    numbers = sorted({i for i, _, _ in cuts})
    of_units = ", ".join(
        f"{f'CAST(lost_{i} AS HUGEINT)' if has_one_row else f'sum(lost_{i})'} AS lost_{i}" for i in numbers
    )
    join = listed_join("lost", frame.key_columns, frame, "SEMI") if are_listed else ""
    is_any = " OR ".join(f"lost_{i} IS NOT NULL" for i in numbers)
    grouping = "" if has_one_row else " GROUP BY unit"
    return f"SELECT {', '.join(columns)} FROM (SELECT {of_units} FROM {relation} {join} WHERE {is_any}{grouping})"


def _clamped(value: str) -> str:
    """Return the clamped sum of a column over units."""
    return f"CAST(least(coalesce(sum({value}), 0), {MOST_STEPS}) AS BIGINT)"


def _cut(frame: Frame, i: int, statistic: Statistic, exponent: int) -> str:
    """Return what is left out of a unit, cut, in steps of 2**-PART_BITS of the cut."""
    left = f"greatest(lost_{i}, 0)"
    # the exponent of the cut, and of one part of it, in the steps of lost_i
    cut = exponent - statistic.lattice_exponent + _bits(frame, statistic)
    part = cut - PART_BITS
    if part >= 0:
        return f"least({left} // {2 ** min(part, _HUGEINT_BITS)}::HUGEINT, {2**PART_BITS})"
    # a cut below one step is reached by one step
    return f"least({left}, {2 ** max(cut, 0)}) * {2 ** min(-part, PART_BITS)}"
