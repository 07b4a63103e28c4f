"""The bounded aggregation and its coverage as one DuckDB query, which reads and groups the rows once.

    source, rows   as in `aggregation`, for all that either of them needs; with the values of `coverage` before a clamp
    per_group      one row per (unit, group), held: of each statistic its bounded value, and its size before bounds
    per_unit       as in `coverage`
    kept, grouped  as in `aggregation`, by the formulation that groups rows first
    result         the groups of `aggregation`, and beside them the rows of `coverage`

*Guarantee*: the rows of the result without a ``measure`` are those of ``bounded_sql``, the others those of
``coverage_sql``, bit for bit (tests/unit/bound/test_one_pass.py).
"""

from __future__ import annotations

from dataclasses import replace

from dpsql.bound.aggregation import Ending, grouped_ctes, listed_sql, selected_sql, source_sql
from dpsql.bound.coverage import histograms_sql, per_unit_sql, unclamped, whole_of_group, whole_of_rows, whole_rows
from dpsql.bound.formulations import (
    Formulation,
    GroupNumbers,
    Numbered,
    columns_of_group,
    kept_sql,
    numbers_of_rows,
    priority_column,
)
from dpsql.bound.pairs import Pairs
from dpsql.model.frame import Frame, Statistic
from dpsql.model.statistic_kinds import APART_KINDS


def one_pass_sql(
    frame: Frame,
    statistics: tuple[Statistic, ...],
    coverage: tuple[Statistic, ...],
    salt: bytes,
    *,
    ending: Ending = "chosen",
    formulation: Formulation = "groups_first",
    pairs: Pairs | None = None,
) -> str:
    """Return SQL for the exact per-group table of a frame and for its exact histograms of coverage.

    Args:
        frame: what is grouped; one of which it can be measured what bounding leaves.
        statistics: the presence count first, then the others.
        coverage: the statistics of coverage that are read.
        salt: 128 secret bits of the frame.
        ending: as for ``bounded_sql``.
        formulation: ``groups_first``, ``few_choose`` or ``last_kept``.
        pairs: the table that has the numbers of all that is read, if there is one.

    Returns:
        A SELECT with the columns of ``bounded_sql``, and measure and place. A row without a measure is a group. The
        others are those of ``coverage_sql``, with the number of units in the column units.

    """
    others = list(enumerate(statistics))[1:]
    covered = [one.covered for one in coverage if one.covered]
    asked = [*statistics, *(one for one in covered if one not in statistics)]
    read = list(enumerate(asked))[1:]
    numbered = [(measure, asked.index(one), one) for measure, one in enumerate(covered, start=1)]
    measured = [(i, one) for _, i, one in numbered if one.kind != "presence"]
    in_c = formulation == "last_kept"
    priority = priority_column(frame.key_columns, salt) if in_c else ""
    covered_columns = [(i, one) for _, i, one in numbered]
    per_unit = per_unit_sql(
        frame, covered_columns, has_one_row=False, most=frame.bounding.most_counted if in_c else None
    )
    per_row = "" if pairs else listed_sql("rows", frame)
    ctes = [
        *(
            per_group_of_pairs(pairs, frame, read, measured, priority)
            if pairs
            else per_group_of_rows(frame, read, measured, salt, priority, in_c=in_c)
        ),
        f"per_unit AS MATERIALIZED ({per_unit})",
        f"kept AS ({kept_sql(frame, salt, formulation)})",
        # the squares of `per_unit` are those of coverage
        *grouped_ctes(frame, others, salt, per_row, formulation, ending, knows_squares=False),
    ]
    named = ",\n".join(ctes)
    groups = selected_sql(frame, others, ending)
    if isinstance(ending, int):
        return f"WITH {named}\n{groups}"
    histograms = histograms_sql(frame, numbered, salt)
    return (
        f"WITH {named}\nSELECT *, NULL::INTEGER AS measure, NULL::INTEGER AS place FROM ({groups}) "
        f"UNION ALL BY NAME SELECT measure, place, units FROM ({histograms})"
    )


def per_group_of_rows(
    frame: Frame, read: Numbered, measured: Numbered, salt: bytes, more: str, *, in_c: bool
) -> list[str]:
    """Return the CTEs from the rows to ``per_group``.

    Args:
        frame: what is grouped.
        read: numbered statistics whose bounded values are read.
        measured: those among them that are also read before bounds.
        salt: the salt of the frame, by which joins cut rows.
        more: further columns.
        in_c: whether sums are added up by the aggregate in C.

    """
    rows, whole = whole_rows(frame, read, measured)
    sums = {i: _sums_in_c(i, one, whole[i]) for i, one in measured if i in whole and in_c}
    values = "".join(
        columns_of_group(i, one, sums[i][0] if i in sums else numbers_of_rows(i, one))
        for i, one in read
        if one.kind not in APART_KINDS
    )
    values += "".join(
        whole_of_group(i, one, sums[i][1]) if i in sums else whole_of_rows(i, one, whole.get(i, i))
        for i, one in measured
    )
    group = ", ".join(["unit", *frame.key_columns])
    return [
        f"source AS ({source_sql(frame, read, salt)})",
        f"rows AS ({rows})",
        f"per_group AS MATERIALIZED (SELECT {group}, 1 AS present{values}{more} FROM {listed_sql('rows', frame)} "
        f"WHERE unit IS NOT NULL GROUP BY {group})",
    ]


def _sums_in_c(i: int, statistic: Statistic, whole: int) -> tuple[GroupNumbers, GroupNumbers]:
    """Return the numbers of a sum's rows by the aggregate in C, with the total after and before clamps.

    Args:
        i: number of the statistic.
        statistic: a sum.
        whole: number of the column with the values before they are clamped.

    """
    numbers = numbers_of_rows(i, statistic)
    condition = numbers.total.removeprefix(f"sum(x_{i})")
    sums = f"dpsql_sums(x_{i}, x_{whole}){condition}"
    clamped = replace(numbers, count=f"({sums}).count", total=f"({sums}).clamped")
    return clamped, replace(clamped, total=f"({sums}).whole")


def per_group_of_pairs(pairs: Pairs, frame: Frame, read: Numbered, measured: Numbered, more: str) -> list[str]:
    """Return ``per_group`` over pairs; the arguments are those of ``per_group_of_rows``."""
    whole = "".join(whole_of_group(i, one, pairs.numbers(unclamped(one))) for i, one in measured)
    # the table is read again sooner than held
    held = "MATERIALIZED" if more or frame.rows_sql.all_rows else "NOT MATERIALIZED"
    return [f"per_group AS {held} ({pairs.per_group(frame, read, whole + more)})"]
