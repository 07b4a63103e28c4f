"""AUTO: the questions that are asked of the data first, and what may come of them.

For ``max_groups_contributed`` units are counted by the number of groups that they are in, for bounds by their largest
and by their smallest value, for a norm by that of all that they have, all over fixed grids. A unit is in one place of
each histogram, and they are released before the frame, or the lattice of a sum, is known that they decide.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from dpsql.bound.aggregation import listed_sql, rows_sql, source_sql
from dpsql.model.frame import Bounding, Frame, PublicKeys, Statistic
from dpsql.model.private_query import AutoGroups, FoundBounds, FrameQuery

MOST_GROUPS = 1024
"""Most groups that AUTO chooses for private keys: more need noise so wide that they should be named."""

_COUNTED = 2
"""With ``bounding = L2`` a unit counts in at most this many times max_groups groups: more would raise the threshold
for what is lost of very few units (docs/accuracy.md)."""
_STEPS_PER_DOUBLING = 4

VALUE_EXPONENT = -30
"""Values are told apart down to 2**-30 …"""
VALUE_BITS = 90
"""… and up to 2**60: sums of 2**36 rows of 2**90 steps fit a HUGEINT."""
LARGEST_VALUE = 2.0 ** (VALUE_BITS + VALUE_EXPONENT)

NORM_STEPS_PER_DOUBLING = 4
"""Norms are told apart by a fourth root of 2 …"""
NORM_PLACES = NORM_STEPS_PER_DOUBLING * VALUE_BITS + 2
"""… from one step up to 2**VALUE_BITS of them; the first place is for norms of 0."""
_NORM_BITS = 20
"""Sums of a unit are squared in parts of 2**-20 of the largest, so that 2**80 of them fit a HUGEINT."""

GROUPS = Statistic(kind="groups", low_steps=1, high_steps=1, lattice_exponent=0)
"""Units by the number of groups that they are in."""


def counted_groups(max_groups: int, public: PublicKeys | None) -> int | None:
    """Most groups in which a unit counts with a weight; None where it counts fully in all that it may have."""
    counted = _COUNTED * max_groups if public is None else min(_COUNTED * max_groups, public.count)
    return counted if counted > max_groups else None


def bounded_by_norm(bounding: Bounding, key_count: int | None, max_rows: int | None) -> Bounding:
    """The same where a norm bounds what a unit adds.

    Args:
        bounding: with a number of groups, or None where that is refused.
        key_count: how many keys there are at most; None for any number.
        max_rows: most rows of a unit that are read; None for any number.

    """
    if not (most := bounding.max_groups):
        return bounding
    most = min(most, max_rows or most)
    # also where all weights are 1, exact values are read in steps of the noise
    counted = min(one for one in (_COUNTED * most, key_count, max_rows) if one)
    return replace(bounding, max_groups=most, counted_groups=counted, by_norm=True, max_rows=max_rows)


@lru_cache(maxsize=64)
def candidates(most: int) -> tuple[int, ...]:
    """The numbers that AUTO chooses from, and the ends of the places of its histogram.

    >>> candidates(20)
    (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20)
    """
    found, step = [1], 1
    while found[-1] < most:
        if found[-1] >= 2 * _STEPS_PER_DOUBLING * step:
            step *= 2
        found.append(min(found[-1] + step, most))
    return tuple(found)


def asked_frame(frame: Frame) -> Frame:
    """The frame as AUTO asks of it: rows, keys, unit and version, and nothing that a query may still vary."""
    bounding = Bounding(max_groups=None, finer=frame.bounding.finer)
    return Frame(frame.rows, frame.rows_sql, bounding, frame.keys, frame.public_keys)


def auto_groups(frame: Frame, found: FoundBounds, *, weighted: bool) -> AutoGroups:
    """The question for a frame; with its answer where that decided how the text is planned."""
    most = MOST_GROUPS if frame.public_keys is None else min(MOST_GROUPS, frame.public_keys.count)
    groups = found.get(GROUPS)
    chosen = round(groups[1]) if isinstance(groups, tuple) else None
    return AutoGroups(asked_frame(frame), candidates(most), weighted, chosen)


def with_max_groups(query: FrameQuery, auto: AutoGroups, max_groups: int) -> FrameQuery:
    """The query on the frames that have this number of groups."""
    counted = counted_groups(max_groups, query.frame.public_keys) if auto.weighted else None
    frame, *others = (
        replace(frame, bounding=replace(frame.bounding, max_groups=max_groups, counted_groups=counted))
        for frame in (query.frame, *query.alternatives)
    )
    if frame.bounding.by_norm:
        frame = replace(frame, bounding=bounded_by_norm(frame.bounding, frame.key_count, frame.bounding.max_rows))
    return replace(query, frame=frame, alternatives=tuple(others))


def group_counts_sql(frame: Frame, salt: bytes, *, has_one_row: bool = False) -> str:
    """Return SQL for the number of units by their number of groups: columns groups and units (BIGINT), in no order.

    The salt is that by which joins cut rows. If ``has_one_row``, no unit has two rows, and nothing is grouped by unit;
    so it is with the other histograms here.
    """
    keys, rows = ", ".join(frame.key_columns), listed_sql("rows", frame)
    read = f"WITH source AS ({source_sql(frame, [], salt)}),\nrows AS ({rows_sql(frame, [])})"
    if has_one_row:
        one_group = f"SELECT 1::BIGINT AS groups FROM {rows} WHERE unit IS NOT NULL"
        return f"{read}\nSELECT groups, count(*) AS units FROM ({one_group}) GROUP BY groups"
    return (
        f"{read},\n"
        f"per_group AS (SELECT unit, {keys} FROM {rows} WHERE unit IS NOT NULL GROUP BY unit, {keys}),\n"
        "per_unit AS (SELECT count(*) AS groups FROM per_group GROUP BY unit)\n"
        "SELECT groups, count(*) AS units FROM per_unit GROUP BY groups"
    )


def extremes_sql(frame: Frame, statistic: Statistic, salt: bytes, *, has_one_row: bool = False) -> str:
    """Return SQL for the units by the places of their largest and smallest values, in no order.

    Its columns are upper, place and units (BIGINT). A value is a sum over a unit's rows in a group, or a row's. It is
    rounded to steps of 2**VALUE_EXPONENT and added up as a whole number, so that it does not depend on the order of
    rows. Place k > 0 has those of 2**(k-2) to 2**(k-1) steps (the first, from 0 to 1), -k their opposites.
    """
    value = _values_sql(frame, statistic, _VALUE_STEPS, "v")
    if statistic.kind == "group_extremes":
        value = _sums_sql(frame, statistic, _VALUE_STEPS, has_one_row=has_one_row)
    size = f"least(CAST(ceil(log2(CAST(greatest(abs(v), 1) AS DOUBLE))) AS INTEGER), {VALUE_BITS}) + 1"
    placed = (
        f"{_read_sql(frame, statistic, salt)},\n"
        f"valued AS ({value}),\n"
        f"placed AS (SELECT unit, CAST(sign(v) AS INTEGER) * ({size}) AS place FROM valued),\n"
    )
    if has_one_row:
        # the largest value is the smallest one
        return (
            f"{placed}counted AS (SELECT place, count(*) AS units FROM placed GROUP BY place)\n"
            "SELECT true AS upper, place, units FROM counted UNION ALL SELECT false, place, units FROM counted"
        )
    return (
        f"{placed}per_unit AS (SELECT max(place) AS highest, min(place) AS lowest FROM placed GROUP BY unit)\n"
        "SELECT true AS upper, highest AS place, count(*) AS units FROM per_unit GROUP BY highest UNION ALL "
        "SELECT false, lowest, count(*) FROM per_unit GROUP BY lowest"
    )


def norms_sql(frame: Frame, statistic: Statistic, salt: bytes, *, has_one_row: bool = False) -> str:
    """Return SQL for the units by the places of their norms: columns place and units (BIGINT), in no order.

    What a unit has in a group is a number of rows, or a sum in steps as in `extremes_sql`. Its squares are whole
    numbers, too, of parts of the largest one, so that neither they nor their sum depend on the order of rows. Place 0
    has norms of 0; place k > 0 those above 2**((k-2)/4) and up to 2**((k-1)/4) steps, the first from 0, the last all.
    """
    part = f"greatest({'abs(v)' if has_one_row else 'max(abs(v)) OVER (PARTITION BY unit)'} // {2**_NORM_BITS}, 1)"
    norm = "sqrt(CAST(squares AS DOUBLE)) * CAST(part AS DOUBLE)"
    place = f"least(CAST(ceil({NORM_STEPS_PER_DOUBLING} * log2({norm})) AS INTEGER), {NORM_PLACES - 2}) + 1"
    step = "1" if statistic.kind == "rows_norm" else _VALUE_STEPS
    per_unit = "SELECT any_value(part) AS part, sum(v * v) AS squares FROM parts GROUP BY unit"
    if has_one_row:
        per_unit = "SELECT part, v * v AS squares FROM parts"
    return (
        f"{_read_sql(frame, statistic, salt)},\n"
        f"per_group AS ({_sums_sql(frame, statistic, step, has_one_row=has_one_row)}),\n"
        f"parts AS (SELECT unit, {part} AS part, CAST(v AS HUGEINT) // {part} AS v FROM per_group),\n"
        f"per_unit AS ({per_unit})\n"
        f"SELECT CASE WHEN squares > 0 THEN {place} ELSE 0 END AS place, count(*) AS units FROM per_unit GROUP BY place"
    )


_MOST = float(2**VALUE_BITS)
_SCALED = f"CAST(x_1 AS DOUBLE) * {2.0**-VALUE_EXPONENT!r}::DOUBLE"
_VALUE_STEPS = f"CAST(round(least(greatest({_SCALED}, {-_MOST!r}::DOUBLE), {_MOST!r}::DOUBLE)) AS HUGEINT)"
"""A row's value in steps of 2**VALUE_EXPONENT."""


def _read_sql(frame: Frame, statistic: Statistic, salt: bytes) -> str:
    """The start of a query: the rows that it reads, and those that take part."""
    numbered = [(1, statistic)]
    return f"WITH source AS ({source_sql(frame, numbered, salt)}),\nrows AS ({rows_sql(frame, numbered)})"


def _values_sql(frame: Frame, statistic: Statistic, step: str, name: str) -> str:
    """A SELECT of each row that counts: unit, keys, and what it adds."""
    counts = " AND x_1 IS NOT NULL" * bool(statistic.value_sql) + " AND f_1" * bool(statistic.filter_sql)
    columns = "".join(f", {key}" for key in frame.key_columns)
    rows = listed_sql("rows", frame)
    return f"SELECT unit{columns}, {step} AS {name} FROM {rows} WHERE unit IS NOT NULL{counts}"


def _sums_sql(frame: Frame, statistic: Statistic, step: str, *, has_one_row: bool) -> str:
    """Return a SELECT of each unit's sum in each of its groups, as v."""
    if has_one_row:
        return _values_sql(frame, statistic, step, "v")
    columns = "".join(f", {key}" for key in frame.key_columns)
    return f"SELECT unit, sum(step) AS v FROM ({_values_sql(frame, statistic, step, 'step')}) GROUP BY unit{columns}"
