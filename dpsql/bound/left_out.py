"""What bounds leave out of each unit as one DuckDB query: its part of the shown groups less what the numbers keep of it.

    per_group      one row per (unit, group), held: per statistic its bounded value, and its value before bounds
    kept … scaled  as in `aggregation`, with the same salt: the groups, weights and norms of the released numbers
    wholes         one row per unit: what it has in the groups that are listed, before bounds
    keeps          one row per unit: what the numbers of these groups keep of it
    result         one row: per statistic the sum over units of the difference, cut at its cut

What a number keeps of a unit is the answer for this unit alone: the sums of ``aggregation``, with the centre times its
presence. So nothing is taken at a mean.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dpsql.bound.aggregation import MOST_STEPS, added_value, listed_join, listed_sql, source_sql
from dpsql.bound.coverage import whole_rows
from dpsql.bound.formulations import Formulation, chooses_groups, kept_sql, priority_column, unit_aggregate
from dpsql.bound.norms import weighted_ctes
from dpsql.bound.one_pass import Numbered, per_group_of_pairs, per_group_of_rows
from dpsql.bound.one_row import columns_of_row, whole_of_row
from dpsql.bound.pairs import Pairs
from dpsql.model.frame import WEIGHT_BITS, Frame, Norm, Statistic

PART_BITS = 20
"""What is left out of a unit is a multiple of 2**-20 of its cut, rounded down."""
_WHOLE_BITS = 100
"""What a unit has is clamped here, in lattice steps: 2**20 parts of these fit a HUGEINT."""
_HUGEINT_BITS = 126


def left_out_sql(
    frame: Frame,
    measured: Sequence[tuple[Statistic, int]],
    salt: bytes,
    *,
    formulation: Formulation = "groups_first",
    pairs: Pairs | None = None,
    are_listed: bool = False,
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

    Returns:
        A SELECT of one row with columns left_1, left_2, … (BIGINT, at most `MOST_STEPS`).

    """
    asked = list(dict.fromkeys(one for one, _ in measured))
    numbered = list(enumerate(asked, start=1))
    _require_measurable(frame, asked)
    has_one_row, in_c = formulation == "one_row", formulation == "last_kept"
    if has_one_row:
        ctes = _per_group_of_one_row(frame, numbered, salt)
    else:
        more = priority_column(frame.key_columns, salt) if in_c else ""
        ctes = (
            per_group_of_pairs(pairs, frame, numbered, numbered, more)
            if pairs
            else per_group_of_rows(frame, numbered, numbered, salt, more, in_c=in_c)
        )
    ctes += _unit_ctes(frame, numbered, salt, formulation, are_listed=are_listed)
    columns = [
        f"CAST(least(coalesce(sum({_cut_sql(frame, asked.index(one) + 1, one, exponent)}), 0), {MOST_STEPS}) AS BIGINT) "
        f"AS left_{place}"
        for place, (one, exponent) in enumerate(measured, start=1)
    ]
    named = ",\n".join(ctes)
    return f"WITH {named}\nSELECT {', '.join(columns)} FROM left_out"


def _require_measurable(frame: Frame, asked: Sequence[Statistic]) -> None:
    """Check that what bounds leave out of these statistics is what this module computes."""
    if not frame.is_measured:
        raise AssertionError("of this frame it is not measured what bounds leave out")
    for one in asked:
        if one.kind not in ("rows", "sum") or one.is_raised:
            raise AssertionError("what is left out is that of counts of rows and sums, whose bounds raise nothing")
        if isinstance(one.limit, Norm) and one.centre_steps:
            raise AssertionError("what is left out is that of norms without a centre")


def _per_group_of_one_row(frame: Frame, numbered: Numbered, salt: bytes) -> list[str]:
    """Return the CTEs from the rows to ``per_group``, where no unit has two rows."""
    rows, whole = whole_rows(frame, numbered, numbered)
    values = "".join(columns_of_row(i, one) + whole_of_row(i, one, whole.get(i, i)) for i, one in numbered)
    columns = ", ".join(["unit", *frame.key_columns])
    return [
        f"source AS NOT MATERIALIZED ({source_sql(frame, numbered, salt)})",
        f"rows AS NOT MATERIALIZED ({rows})",
        f"per_group AS NOT MATERIALIZED (SELECT {columns}, 1 AS present{values} FROM {listed_sql('rows', frame)} "
        "WHERE unit IS NOT NULL)",
    ]


def _unit_ctes(
    frame: Frame, numbered: Numbered, salt: bytes, formulation: Formulation, *, are_listed: bool
) -> list[str]:
    """Return the CTEs that follow ``per_group``, up to ``left_out``: per unit whole_i and keep_i, and its weights."""
    has_one_row = formulation == "one_row"
    cuts_groups = chooses_groups(frame) and not has_one_row
    most, ctes = frame.bounding.most_counted, []
    if cuts_groups and most and formulation in ("few_choose", "last_kept"):
        of_unit = "count(*) AS n" if formulation == "few_choose" else f"{unit_aggregate(most)}.last AS last"
        ctes.append(f"per_unit AS MATERIALIZED (SELECT unit, {of_unit} FROM per_group GROUP BY unit)")
    chosen = kept_sql(frame.key_columns, most, salt, formulation) if cuts_groups else "SELECT * FROM per_group"
    ctes.append(f"kept AS ({chosen})")
    last = "kept"
    if frame.bounding.counted_groups:
        ctes += weighted_ctes(frame, numbered, has_one_row=has_one_row)
        last = "scaled" if any(isinstance(one.limit, Norm) for _, one in numbered) else "weighted"

    def by_unit(name: str, columns: Sequence[str]) -> str:
        listed = f" {listed_join(name, frame.key_columns, frame, 'SEMI')}" if are_listed else ""
        return f"SELECT unit, {', '.join(columns)} FROM {name}{listed}{'' if has_one_row else ' GROUP BY unit'}"

    def total(value: str) -> str:
        return f"CAST({value} AS HUGEINT)" if has_one_row else f"sum({value})"

    wholes = [f"{total(f'whole_{i}')} AS whole_{i}" for i, _ in numbered]
    keeps = _keeps(frame, numbered, total)
    if not cuts_groups:
        return [*ctes, f"left_out AS ({by_unit(last, [*wholes, *keeps])})"]
    return [
        *ctes,
        f"wholes AS ({by_unit('per_group', wholes)})",
        f"keeps AS ({by_unit(last, keeps)})",
        "left_out AS (SELECT * FROM wholes LEFT JOIN keeps USING (unit))",
    ]


def _keeps(frame: Frame, numbered: Numbered, total: Callable[[str], str]) -> list[str]:
    """Return what the numbers keep of a unit as columns: keep_i, recentred, and its presence, with which centres come."""
    keeps = [f"{total(added_value(frame, i, one))} AS keep_{i}" for i, one in numbered]
    return [f"{total('weight' if frame.bounding.counted_groups else '1')} AS presence", *keeps]


def _cut_sql(frame: Frame, i: int, statistic: Statistic, cut_exponent: int) -> str:
    """Return what is left out of a unit, cut, in steps of 2**-PART_BITS of the cut.

    All is counted in steps of 2**-bits of the lattice, in which weights and norms leave whole numbers.
    """
    to_noise, bits = statistic.lattice_exponent - statistic.noise_exponent, 0
    keep = f"coalesce(keep_{i}, 0)"
    if isinstance(statistic.limit, Norm):
        bits = to_noise
    elif frame.bounding.counted_groups:
        bits = WEIGHT_BITS
        keep = f"{keep} * {2 ** (bits - to_noise)}::HUGEINT"
    if statistic.centre_steps:
        keep = f"({keep} + coalesce(presence, 0) * {statistic.centre_steps}::HUGEINT)"
    largest = f"{2**_WHOLE_BITS}::HUGEINT"
    whole = f"least(greatest(whole_{i}, -{largest}), {largest}) * {2**bits}::HUGEINT"
    left = f"greatest({whole} - {keep}, 0)"
    # the exponent of the cut, and of one part of it, in these steps
    cut = cut_exponent - statistic.lattice_exponent + bits
    part = cut - PART_BITS
    if part >= 0:
        return f"least({left} // {2 ** min(part, _HUGEINT_BITS)}::HUGEINT, {2**PART_BITS})"
    # a cut below one step is reached by one step
    return f"least({left}, {2 ** max(cut, 0)}) * {2 ** min(-part, PART_BITS)}"
