"""Units by what they have: the exact histograms that AUTO asks for, of which no bound is known yet.

    source, rows   as in `aggregation`
    per_group      one row per (unit, group): what the unit has there, from its rows or from a table of `pairs`
    per_unit       one row per unit: number of groups, norm, or largest and smallest value
    result         one row per place: the number of units there

A unit stands in one place of each histogram, and which one depends on its own rows alone. Numbers of a unit are grouped
and joined; no window over all pairs is needed. Histograms of counts are read when a table of pairs is made.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from dpsql.bound.aggregation import listed_sql, rows_sql, source_sql
from dpsql.bound.formulations import Formulation
from dpsql.bound.norms import MOST_ROWS
from dpsql.bound.pairs import PAIRS, Pairs
from dpsql.bound.value_steps import VALUE_BITS, value_steps
from dpsql.model.frame import Frame, Statistic

NORM_STEPS_PER_DOUBLING = 4
"""Norms are told apart by a fourth root of 2 …"""
NORM_PLACES = NORM_STEPS_PER_DOUBLING * VALUE_BITS + 2
"""… from one step up to 2**VALUE_BITS of them; the first place is for norms of 0."""
_NORM_BITS = 20
"""Sums of a unit are squared in parts of 2**-20 of the largest, so that 2**80 of them fit a HUGEINT."""
_LARGEST_PART = 2**42
"""The largest part that only sums below 2**63 have, which fit a BIGINT."""


def unit_histogram_sql(
    frame: Frame,
    statistic: Statistic,
    salt: bytes,
    formulation: Formulation = "groups_first",
    pairs: Pairs | None = None,
) -> str:
    """Return SQL for the exact histogram of a statistic that AUTO asks for; nothing in it follows from rows.

    Args:
        frame: whose units are looked at.
        statistic: the statistic by which units are told apart.
        salt: that by which joins cut rows.
        formulation: ``one_row`` if no unit has two rows, so that nothing is grouped by unit.
        pairs: the table of the frame's pairs, if there is one.

    """
    has_one_row = formulation == "one_row"
    if statistic.kind == "groups":
        return group_counts_sql(frame, salt, has_one_row=has_one_row, pairs=pairs)
    sql = norms_sql if statistic.kind in ("rows_norm", "sum_norm") else extremes_sql
    return sql(frame, statistic, salt, has_one_row=has_one_row, pairs=pairs)


def histogram_keys(statistic: Statistic) -> tuple[str, ...]:
    """Return the columns of a histogram that name a place; the other one is units."""
    if statistic.kind == "groups":
        return ("groups",)
    return ("place",) if statistic.kind in ("rows_norm", "sum_norm") else ("upper", "place")


def group_counts_sql(frame: Frame, salt: bytes, *, has_one_row: bool = False, pairs: Pairs | None = None) -> str:
    """Return SQL for the number of units by their number of groups: columns groups and units (BIGINT), in no order.

    Args:
        frame: whose units are looked at.
        salt: that by which joins cut rows.
        has_one_row: no unit has two rows, so that nothing is grouped by unit.
        pairs: the table of the frame's pairs, if there is one.

    """
    keys, rows = ", ".join(frame.key_columns), listed_sql("rows", frame)
    ctes = [] if pairs else [f"source AS ({source_sql(frame, [], salt)})", f"rows AS ({rows_sql(frame, [])})"]
    if has_one_row:
        one_group = f"SELECT 1::BIGINT AS groups FROM {rows} WHERE unit IS NOT NULL"
        return f"WITH {_named(ctes)}\nSELECT groups, count(*) AS units FROM ({one_group}) GROUP BY groups"
    per_group = f"SELECT unit, {keys} FROM {rows} WHERE unit IS NOT NULL GROUP BY unit, {keys}"
    if pairs:
        per_group = f"SELECT unit FROM {pairs.relation(frame)}"
    ctes += [f"per_group AS ({per_group})", "per_unit AS (SELECT count(*) AS groups FROM per_group GROUP BY unit)"]
    return f"WITH {_named(ctes)}\nSELECT groups, count(*) AS units FROM per_unit GROUP BY groups"


@dataclass(frozen=True, slots=True)
class UnitCounts:
    """Numbers of units by what they have in a table of pairs.

    Attributes:
        groups: each number of groups, with the number of units in so many.
        norms: of statistics of kind ``rows_norm``, each place with the number of units there.

    """

    groups: tuple[tuple[int, int], ...]
    norms: Mapping[Statistic, tuple[tuple[int, int], ...]]

    @classmethod
    def of(cls, pairs: Pairs, rows: Iterable[tuple[int, int, int]]) -> UnitCounts:
        """Return what rows of ``unit_counts_sql`` say, of one table or of the tables of several parts."""
        found: Counter[tuple[int, int]] = Counter()
        for measure, place, units in rows:
            found[measure, place] += units
        counts = [
            tuple((place, units) for (one, place), units in found.items() if one == measure)
            for measure in range(1 + len(_rows_norms(pairs)))
        ]
        return cls(counts[0], dict(zip(_rows_norms(pairs), counts[1:], strict=True)))

    def histogram(self, statistic: Statistic) -> tuple[tuple[int, int], ...] | None:
        """Return the places of the histogram of a statistic with the units there, if it is among these."""
        return self.groups if statistic.kind == "groups" else self.norms.get(statistic)


def _rows_norms(pairs: Pairs) -> list[Statistic]:
    return [one for one in pairs.statistics if one.kind == "rows_norm"]


def unit_counts_sql(pairs: Pairs) -> str:
    """Return SQL for what ``UnitCounts`` says of a table of pairs: columns measure, place and units, in no order.

    Measure 0 is the number of groups; the others are the norms of rows, in the order of their statistics.
    """
    norms = _rows_norms(pairs)
    squares = [f", {_rows_square(pairs.numbers(one).count)} AS square_{i}" for i, one in enumerate(norms, start=1)]
    per_unit = f"SELECT count(*) AS n{''.join(squares)} FROM temp.main.{PAIRS} GROUP BY unit"
    selected = ["SELECT 0 AS measure, n AS place, count(*) AS units FROM per_unit GROUP BY n"]
    selected += [
        f"SELECT {i} AS measure, {_norm_place(f'square_{i}')} AS place, count(*) AS units "
        f"FROM per_unit WHERE square_{i} > 0 GROUP BY place"
        for i, _ in enumerate(norms, start=1)
    ]
    return f"WITH per_unit AS ({per_unit})\n{' UNION ALL '.join(selected)}"


def _rows_square(count: str) -> str:
    """Return the square of a unit's norm of rows, an aggregate of its groups; a BIGINT has that of one group."""
    return f"sum(least({count}, {MOST_ROWS}) * least({count}, {MOST_ROWS}))"


def _norm_place(squares: str, part: str = "1") -> str:
    """Return the place of a unit by the square of its norm in parts."""
    norm = f"sqrt(CAST({squares} AS DOUBLE)) * CAST({part} AS DOUBLE)"
    place = f"least(CAST(ceil({NORM_STEPS_PER_DOUBLING} * log2({norm})) AS INTEGER), {NORM_PLACES - 2}) + 1"
    return f"CASE WHEN {squares} > 0 THEN {place} ELSE 0 END"


def extremes_sql(
    frame: Frame, statistic: Statistic, salt: bytes, *, has_one_row: bool = False, pairs: Pairs | None = None
) -> str:
    """Return SQL for the units by the places of their largest and smallest values, in no order.

    Its columns are upper, place and units (BIGINT). A value is a sum over a unit's rows in a group, or a row's. It is
    rounded to steps of 2**VALUE_EXPONENT and added up as a whole number, so that it does not depend on the order of
    rows. Place k > 0 has those of 2**(k-2) to 2**(k-1) steps (the first, from 0 to 1), -k their opposites.

    The arguments are those of `group_counts_sql`, and the statistic.
    """
    ctes = _read_ctes(frame, statistic, salt, pairs)
    if statistic.kind == "group_extremes":
        value = _sums_sql(frame, statistic, has_one_row=has_one_row, pairs=pairs)
    else:
        value = _values_sql(frame, statistic, "v")
    size = f"least(CAST(ceil(log2(CAST(greatest(abs(v), 1) AS DOUBLE))) AS INTEGER), {VALUE_BITS}) + 1"
    ctes += [
        f"valued AS ({value})",
        f"placed AS (SELECT unit, CAST(sign(v) AS INTEGER) * ({size}) AS place FROM valued)",
    ]
    if has_one_row:
        # the largest value is the smallest one
        ctes.append("counted AS (SELECT place, count(*) AS units FROM placed GROUP BY place)")
        selected = "SELECT true AS upper, place, units FROM counted UNION ALL SELECT false, place, units FROM counted"
    else:
        ctes.append("per_unit AS (SELECT max(place) AS highest, min(place) AS lowest FROM placed GROUP BY unit)")
        selected = (
            "SELECT true AS upper, highest AS place, count(*) AS units FROM per_unit GROUP BY highest UNION ALL "
            "SELECT false, lowest, count(*) FROM per_unit GROUP BY lowest"
        )
    return f"WITH {_named(ctes)}\n{selected}"


def norms_sql(
    frame: Frame, statistic: Statistic, salt: bytes, *, has_one_row: bool = False, pairs: Pairs | None = None
) -> str:
    """Return SQL for the units by the places of their norms: columns place and units (BIGINT), in no order.

    What a unit has in a group is a number of rows, at most `MOST_ROWS`, or a sum in steps as in `extremes_sql`. Squares
    of sums are whole numbers, too, of parts of the largest one, so that neither they nor their sum depend on the order
    of rows. Place 0 has norms of 0; place k > 0 those above 2**((k-2)/4) and up to 2**((k-1)/4) steps, the first from
    0, the last all.

    The arguments are those of `group_counts_sql`, and the statistic.
    """
    in_parts = (
        "CASE WHEN part = 1 THEN CAST(v AS BIGINT) "
        f"WHEN part <= {_LARGEST_PART} THEN CAST(v AS BIGINT) // CAST(part AS BIGINT) "
        "ELSE CAST(v // part AS BIGINT) END"
    )
    # a number of parts is at most 2**21, so that its square fits a BIGINT
    ctes = [
        *_read_ctes(frame, statistic, salt, pairs),
        f"per_group AS MATERIALIZED ({_sums_sql(frame, statistic, has_one_row=has_one_row, pairs=pairs)})",
    ]
    if statistic.kind == "rows_norm":
        squares, grouping = ("v", "") if has_one_row else (_rows_square("v"), " GROUP BY unit")
        ctes.append(f"per_unit AS (SELECT 1 AS part, {squares} AS squares FROM per_group{grouping})")
    elif has_one_row:
        # a HUGEINT is divided in seven times the time of a BIGINT
        part = (
            f"CASE WHEN abs(v) <= {2**62} THEN CAST(greatest(abs(CAST(v AS BIGINT)) // {2**_NORM_BITS}, 1) AS HUGEINT) "
            f"ELSE greatest(abs(v) // {2**_NORM_BITS}, 1) END"
        )
        ctes.append(
            f"per_unit AS (SELECT part, {in_parts} AS parts, parts * parts AS squares "
            f"FROM (SELECT v, {part} AS part FROM per_group))"
        )
    else:
        part = f"greatest(max(abs(v)) // {2**_NORM_BITS}, 1)"
        ctes += [
            f"largest AS (SELECT unit, {part} AS part FROM per_group GROUP BY unit)",
            f"parts AS (SELECT largest.unit, part, {in_parts} AS parts FROM per_group JOIN largest "
            "ON per_group.unit IS NOT DISTINCT FROM largest.unit)",
            "per_unit AS (SELECT any_value(part) AS part, sum(parts * parts) AS squares FROM parts GROUP BY unit)",
        ]
    placed = f"SELECT {_norm_place('squares', 'part')} AS place, count(*) AS units FROM per_unit GROUP BY place"
    return f"WITH {_named(ctes)}\n{placed}"


def _named(ctes: list[str]) -> str:
    return ",\n".join(ctes)


def _read_ctes(frame: Frame, statistic: Statistic, salt: bytes, pairs: Pairs | None) -> list[str]:
    """Return the CTEs of the rows, or none if a table of pairs has the unit's sums in its groups."""
    if pairs:
        return []
    numbered = [(1, statistic)]
    return [f"source AS ({source_sql(frame, numbered, salt)})", f"rows AS ({rows_sql(frame, numbered)})"]


def _values_sql(frame: Frame, statistic: Statistic, name: str) -> str:
    """Return a SELECT of each row that counts: unit, keys, and what it adds."""
    step = "1" if statistic.kind == "rows_norm" else value_steps("x_1")
    counts = " AND x_1 IS NOT NULL" * bool(statistic.value_sql) + " AND f_1" * bool(statistic.filter_sql)
    columns = "".join(f", {key}" for key in frame.key_columns)
    rows = listed_sql("rows", frame)
    return f"SELECT unit{columns}, {step} AS {name} FROM {rows} WHERE unit IS NOT NULL{counts}"


def _sums_sql(frame: Frame, statistic: Statistic, *, has_one_row: bool, pairs: Pairs | None) -> str:
    """Return a SELECT of each unit's sum in each of its groups, as v."""
    if pairs:
        numbers = pairs.numbers(statistic)
        value = numbers.count if statistic.kind == "rows_norm" else numbers.total
        return f"SELECT unit, {value} AS v FROM {pairs.relation(frame)} WHERE {numbers.count} > 0"
    if has_one_row:
        return _values_sql(frame, statistic, "v")
    columns = "".join(f", {key}" for key in frame.key_columns)
    return f"SELECT unit, sum(step) AS v FROM ({_values_sql(frame, statistic, 'step')}) GROUP BY unit{columns}"
