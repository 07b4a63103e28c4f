"""Coverage as one DuckDB query: units by the size of what they have, and by how much of it bounding leaves.

    source, rows   as in `aggregation`; of sums also every row's value before it is clamped
    per_group      one row per (unit, group): per statistic the value that is bounded, and the size of what is there
    per_unit       one row per unit: per statistic its size, and how much of it is left. If no unit has two rows, it is
                   per_group with other columns, and nothing is grouped
    placed         the same as places: a bucket of sizes, and in it one of three corners
    result         one row per statistic and place: the number of units there

The groups of a unit with too many are taken at their mean, not as they are chosen, so that no window is needed: what is
left is what bounding leaves on average over the secret that chooses.

*Guarantee*: a unit stands in at most one place of each statistic, and which one depends on its own rows and the salt
alone. *Source*: docs/proofs/coverage.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from dpsql.bound.aggregation import listed_sql, rows_sql, source_sql
from dpsql.bound.formulations import MOST_SUMS, GroupNumbers, columns_of_group, numbers_of_rows, unit_aggregate
from dpsql.bound.norms import row_number
from dpsql.bound.one_row import columns_of_row, whole_of_row
from dpsql.model.frame import COUNT_LATTICE_EXPONENT, Frame, Norm, Statistic

BUCKETS = 16
"""Sizes are told apart by powers of two, of which there are so many; larger ones have one place together."""
CORNERS = 4
"""Places of a bucket: a size of 0 or of its end (1 more), and nothing or the most left (2 more). A unit stands in each
with a probability of which its size, and what is left of it, are the mean (docs/proofs/coverage.md, Lemma 1)."""
PLACES = CORNERS * BUCKETS + 1
"""Places of a histogram; the same for every table."""
_BELOW = 5
"""A sum's sizes are told apart from this many doublings below what one unit adds to a group at most."""
_BELOW_NORM = 8


def first_end(covered: Statistic) -> float:
    """Size at which the first bucket ends: one group, one row, or a part of what one unit adds to a sum at most.

    Sums are in the units of the aggregate.
    """
    if covered.kind != "sum":
        return 1.0
    if isinstance(covered.limit, Norm):
        most, below = covered.radius, _BELOW_NORM
    else:
        most, below = max(abs(bound) for bound in covered.interval), _BELOW
    exponent = 0
    while 2.0**exponent < most:
        exponent += 1
    while 2.0**exponent >= 2.0 * most:
        exponent -= 1
    return float(2.0 ** (exponent - below))


def most_left(covered: Statistic, frame: Frame) -> float:
    """What bounding leaves of any unit at most, in groups, rows or the units of the aggregate; it may be infinite."""
    bounding = frame.bounding
    groups: float = 1
    if frame.keys:
        groups = min(one or math.inf for one in (bounding.most_counted, frame.key_count))
        if bounding.counted_groups:
            groups = math.sqrt(groups * frame.unit_groups)
    if covered.kind == "presence":
        return groups
    if not isinstance(covered.limit, Norm):
        return max(abs(bound) for bound in covered.interval) * groups
    # by Cauchy and Schwarz, over the groups in which a unit counts
    return math.inf if covered.centre_steps else covered.radius * math.sqrt(bounding.counted_groups or 1)


def coverage_sql(frame: Frame, statistics: Sequence[Statistic], salt: bytes, *, has_one_row: bool = False) -> str:
    """Return SQL for the exact histograms of a frame.

    Args:
        frame: what is grouped, and how units are bounded.
        statistics: those of coverage that are read.
        salt: 128 secret bits of the frame; they cut rows of joins, and say in which place of several a unit stands.
        has_one_row: no unit has two rows, so that nothing is grouped. The result is the same.

    Returns:
        A SELECT with columns measure (number of the statistic), place and units (BIGINT), in no order.

    """
    covered = [(i, one.covered) for i, one in enumerate(statistics, start=1) if one.covered]
    measured = [(i, one) for i, one in covered if one.kind != "presence"]
    rows, whole = whole_rows(frame, measured, measured)
    keys = frame.key_columns
    listed = "".join(f", {key}" for key in keys)
    if has_one_row:
        values = "".join(columns_of_row(i, one) + whole_of_row(i, one, whole.get(i, i)) for i, one in measured)
    else:
        values = "".join(
            columns_of_group(i, one, numbers_of_rows(i, one)) + whole_of_rows(i, one, whole.get(i, i))
            for i, one in measured
        )
    grouping = "" if has_one_row else f" GROUP BY unit{listed}"
    # groups are held, and rows that are not grouped are read again
    held = "NOT MATERIALIZED" if has_one_row else "MATERIALIZED"
    ctes = [
        f"source AS NOT MATERIALIZED ({source_sql(frame, measured, salt)})",
        f"rows AS NOT MATERIALIZED ({rows})",
        f"per_group AS NOT MATERIALIZED (SELECT unit{listed}{values} FROM {listed_sql('rows', frame)} "
        f"WHERE unit IS NOT NULL{grouping})",
        f"per_unit AS {held} ({per_unit_sql(frame, covered, has_one_row=has_one_row)})",
    ]
    named = ",\n".join(ctes)
    return f"WITH {named}\n{histograms_sql(frame, [(i, i, one) for i, one in covered], salt)}"


def whole_rows(
    frame: Frame, read: Sequence[tuple[int, Statistic]], measured: Sequence[tuple[int, Statistic]]
) -> tuple[str, dict[int, int]]:
    """Return the body of ``rows`` with the values of sums before they are clamped, and the numbers of these columns.

    Args:
        frame: what is grouped.
        read: numbered statistics that the rows are read for.
        measured: those among them of which coverage is measured.

    """
    last = max((i for i, _ in read), default=0)
    whole = {i: last + i for i, one in measured if one.kind == "sum"}
    wide = [(whole[i], replace(unclamped(one), filter_sql="")) for i, one in measured if i in whole]
    rows = rows_sql(frame, [*read, *wide])
    for i, number in whole.items():
        # both are of one column, which is computed once
        rows = rows.replace(f"source.x_{number}", f"source.x_{i}")
    return rows, whole


def histograms_sql(frame: Frame, covered: Sequence[tuple[int, int, Statistic]], salt: bytes) -> str:
    """Return a SELECT of the histograms of ``per_unit``.

    Args:
        frame: what is grouped.
        covered: of each histogram its number, the number of its columns, and the statistic that it is about.
        salt: as for ``coverage_sql``.

    """
    placed = [
        f"SELECT {measure} AS measure, place, count(*) AS units FROM ({_placed(measure, i, one, frame, salt)}) "
        "GROUP BY place"
        for measure, i, one in covered
    ]
    return " UNION ALL ".join(placed)


def whole_of_rows(i: int, covered: Statistic, whole: int) -> str:
    """Return what a unit would add to a group were it not bounded, as a column of rows that are grouped.

    Args:
        i: number of the statistic.
        covered: the statistic.
        whole: number under which its rows are read before they are clamped.

    """
    numbers = numbers_of_rows(i, covered)
    return whole_of_group(i, covered, replace(numbers, total=numbers.total.replace(f"x_{i}", f"x_{whole}")))


def whole_of_group(i: int, covered: Statistic, numbers: GroupNumbers) -> str:
    """Return what a unit would add to a group were it not bounded, in lattice steps, as a column.

    Args:
        i: number of the statistic.
        covered: the statistic.
        numbers: numbers of its rows, the total before they are clamped.

    """
    if covered.kind == "rows":
        return f", CAST({2**-COUNT_LATTICE_EXPONENT} * {numbers.count} AS BIGINT) AS whole_{i}"
    return f", coalesce({numbers.total}, 0) AS whole_{i}"


def unclamped(covered: Statistic) -> Statistic:
    """Return a statistic without the clamp of its rows."""
    return replace(covered, row_bounds_steps=None)


def numbers_of(statistics: Sequence[Statistic]) -> tuple[Statistic, ...]:
    """Return the statistics whose numbers of rows a reading of these needs, of coverage those that it is about."""
    covered = [one.covered for one in statistics if one.covered]
    return (*(one for one in statistics if not one.covered), *covered, *map(unclamped, covered))


def per_unit_sql(
    frame: Frame, covered: Sequence[tuple[int, Statistic]], *, has_one_row: bool, most: int | None = None
) -> str:
    """Return a SELECT of the sums over a unit's groups, and what is left of them.

    Args:
        frame: what is grouped, and how units are bounded.
        covered: numbered statistics that coverage is about.
        has_one_row: no unit has two rows, so that nothing is grouped.
        most: number of groups that the aggregate in C chooses, or None without it. Its choice is the column last.

    """
    bounding = frame.bounding
    total = "" if has_one_row else "sum"
    sums = "1::BIGINT AS n" if has_one_row else "count(*) AS n"
    in_c = [i for i, one in covered if one.kind != "presence"][: MOST_SUMS if most else 0]
    aggregate = unit_aggregate(most, in_c) if most else ""
    if aggregate:
        sums = f"{aggregate}.groups AS n, {aggregate}.last AS last"
    for i, one in covered:
        if one.kind == "presence":
            continue
        # of most groups nothing is lost, and NULL is added up in no time
        lost = f"{total}(CASE WHEN whole_{i} <> v_{i} THEN abs(whole_{i} - v_{i}) END)"
        size = f"{total}({f'whole_{i}' if one.kind == 'rows' else f'abs(whole_{i})'})"
        if i in in_c:
            size, lost = (f"{aggregate}.{member}_{in_c.index(i)}" for member in ("size", "lost"))
        sums += f", CAST({size} AS DOUBLE) AS size_{i}, coalesce(CAST({lost} AS DOUBLE), 0.0::DOUBLE) AS lost_{i}"
        if isinstance(one.limit, Norm):
            # up to 2**31 rows, or 2**38 parts of a sum, squared, in any number of groups: they fit a HUGEINT
            v = row_number(i) if one.limit.row_steps else f"v_{i} // {_part(one)}"
            square, part = f"{total}(CAST({v} AS HUGEINT) * ({v}))", 1 if one.limit.row_steps else _part(one)
            sums += (
                f", CAST({square} AS DOUBLE) * {float(part**2)!r}::DOUBLE AS square_{i}"
                f", CAST({total}(v_{i}) AS DOUBLE) AS total_{i}"
                f", CAST({total}(abs(v_{i} - {one.limit.centre_steps})) AS DOUBLE) AS far_{i}"
            )
    counted = bounding.most_counted
    if not frame.keys or counted is None:
        shares = "1.0::DOUBLE AS kept, 1.0::DOUBLE AS weight"
    else:
        weight = f"least(1.0::DOUBLE, sqrt({frame.unit_groups}::DOUBLE / least(n, {counted})))"
        shares = (
            f"least(1.0::DOUBLE, {counted}::DOUBLE / n) AS kept, "
            f"{weight if bounding.counted_groups else '1.0::DOUBLE'} AS weight"
        )
    grouping = "" if has_one_row else " GROUP BY unit"
    return f"SELECT *, {shares} FROM (SELECT unit, {sums} FROM per_group{grouping})"


def _part(covered: Statistic) -> int:
    """Lattice steps in a part of a sum's value: a norm has 2**20 of them."""
    return 2**12 if covered.kind == "sum" else 1


def _left(i: int, covered: Statistic) -> tuple[str, str]:
    """A unit's size and what is left of it, in groups, rows or the units of the aggregate."""
    if covered.kind == "presence":
        return "CAST(n AS DOUBLE)", "n * kept * weight"
    left = f"CASE WHEN size_{i} > lost_{i} THEN size_{i} - lost_{i} ELSE 0.0::DOUBLE END"
    if isinstance(covered.limit, Norm):
        norm = covered.limit
        most, c = norm.row_steps, 0
        if most is None:
            most, c = norm.l2_steps, norm.centre_steps
        # row numbers are whole, their bound is in halves
        most_here = most * 2.0**COUNT_LATTICE_EXPONENT if norm.row_steps else float(most)
        square = f"square_{i} - 2.0 * {c}::DOUBLE * weight * total_{i}"
        square = f"greatest(kept * ({square} + {c}::DOUBLE * {c} * weight * weight * n), 0.0)"
        scale = f"least(1.0::DOUBLE, {most_here!r}::DOUBLE / greatest(sqrt({square}), 1e-300))"
        left = f"greatest(size_{i} - lost_{i} - (1.0 - {scale}) * far_{i}, 0.0)"
    step = f"{covered.lattice!r}::DOUBLE"
    # what a norm bounds is not weighted: what the weight takes of the centre, the presence count gives back
    weight = "" if isinstance(covered.limit, Norm) else " * weight"
    return f"size_{i} * {step}", f"{left} * {step} * kept{weight}"


def _placed(measure: int, i: int, covered: Statistic, frame: Frame, salt: bytes) -> str:
    """Units with the place of each; those that have nothing have none.

    *Randomness*: a hash of the unit and the salt, which no other unit has a part in.
    """
    size, left = _left(i, covered)
    end, most = first_end(covered), most_left(covered, frame)
    first = f"{end!r}::DOUBLE"
    # a number from 0 to 1 that is drawn once for each unit
    drawn = f"hash(hash(unit, 'coverage {measure} {salt.hex()}')) / 18446744073709551616.0::DOUBLE"
    # CASE takes half the time of least and greatest, and a shift a tenth of that of a power
    bucket = (
        f"CASE WHEN size <= {first} THEN 0 WHEN size > {end * 2.0**BUCKETS!r}::DOUBLE THEN {BUCKETS} "
        f"ELSE CAST(ceil(log2(size / {first})) AS INTEGER) END"
    )
    left_end = "end_here"
    if math.isfinite(most):
        left_end = f"CASE WHEN end_here < {most!r}::DOUBLE THEN end_here ELSE {most!r}::DOUBLE END"
    corner = f"CAST(drawn * end_here < size AS INTEGER) + 2 * CAST(drawn * {left_end} < remaining AS INTEGER)"
    return (
        f"SELECT CASE WHEN bucket >= {BUCKETS} THEN {PLACES - 1} ELSE {CORNERS} * bucket + {corner} END AS place FROM ("
        f"SELECT *, {first} * (1 << bucket) AS end_here FROM (SELECT *, {bucket} AS bucket FROM ("
        f"SELECT {size} AS size, {left} AS remaining, {drawn} AS drawn FROM per_unit) WHERE size > 0))"
    )
