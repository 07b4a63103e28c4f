"""Choice of the groups that a unit keeps, and their numbers, in six formulations of one result.

Kept are the max_groups groups of a unit with the least priority, a hash of the unit, the key and the frame's salt,
ties by the key; each with one integer per statistic. Every formulation computes the priority from the real unit and the
real key, so all of them keep the same groups, and one unit's rows have no say in what another unit keeps. A hash of the
codes of a dictionary would give them one: codes depend on everybody's rows.

    groups_first  rows are grouped by unit and key; then a window over the groups
    few_choose    the same, and the window is over the groups of units with too many alone
    last_kept     rows are grouped by unit and key; then an aggregate in C (udfs/native/unit.c) tells the priority of
                  the last group that a unit keeps. It reads the upper half of priorities. A window is over the groups
                  of units where two upper halves are equal at the end of the choice
    rows_first    a window over the rows; then the rows that are left are grouped
    native        one pass with GROUP BY unit and an aggregate in C (udfs/native/keep.c), over codes of keys
                  that serve as names alone; they follow the order of the keys, so that they break ties as the keys do
    one_row       nothing is grouped by unit and nothing chosen (`one_row`), because no unit has two rows

A table of pairs (`pairs`) tells whether about half of the units, or fewer, have too many groups. The last one runs if a
constraint keeps the unit column unique. Speed decides which one of the others runs. No bit of a
result depends on it, but the time of a query does. So no choice is made at a number of rows, units or pairs that
somebody could know: thresholds are drawn (`drawn_factor`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from dpsql.bound.norms import KNOWN_WEIGHT, MOST_ROWS, known_norms, most_value, row_number, square_sql, weight_sql
from dpsql.bound.one_row import kept_rows_sql
from dpsql.model.frame import COUNT_LATTICE_EXPONENT, Frame, Norm, Statistic

Numbered = Sequence[tuple[int, Statistic]]
"""Statistics with their numbers in a statement."""
Formulation = Literal["groups_first", "few_choose", "last_kept", "rows_first", "native", "one_row"]

NATIVE_PROBE = (
    "SELECT unnest(dpsql_unit_2(1::INTEGER, p::UINTEGER, 2::HUGEINT, p::BIGINT)), "
    "unnest(dpsql_sums(p::BIGINT, (p + 5)::BIGINT)), "
    "unnest(dpsql_keep_1(1::INTEGER, 0::UBIGINT, 7::BIGINT, true, 5::BIGINT), recursive := true) "
    "FROM (VALUES (1), (3)) listed(p)",
    (2, 1, 4, 2, 2, 4, 14, 7, 2, 2, 10),
)
"""A query and its one row, where the library is the one that this module is written for."""

_CAPACITIES = (1, 2, 4, 8, 16, 32, 64)
_MOST_FLAGS = 4
MOST_SUMS = 4
"""Sums that an aggregate of the library adds up at most."""
_UP_TO_LAST = (
    "SELECT * EXCLUDE (is_kept) FROM (SELECT per_group.*, "
    "unnest(CASE WHEN per_group.priority <= units.last THEN [true] END) AS is_kept "
    "FROM per_group JOIN (SELECT unit, last FROM per_unit) AS units ON per_group.unit = units.unit)"
)
"""The groups of a unit up to the last one that priorities alone let it keep.

A comparison in WHERE would become a part of the join. A join on units alone takes a seventh of the time where they are
whole numbers close together, because DuckDB then looks up its rows by place. No unit is NULL.
"""


@dataclass(frozen=True)
class Sizes:
    """Approximate numbers of rows, units, keys, and pairs of both, of which the choice of a formulation is made."""

    rows: int
    units: int
    keys: int
    pairs: int


@dataclass(frozen=True, slots=True)
class GroupNumbers:
    """SQL for the numbers of a unit's rows in a group that a statistic is made of.

    Attributes:
        count: how many rows are counted.
        total: the sum of their values, NULL or 0 where there are none.
        is_any: 1 where any row fulfils the filter, else 0.

    """

    count: str
    total: str
    is_any: str


@dataclass
class _Arguments:
    """What the native aggregate is given, each expression once, with its place."""

    flags: dict[str, int] = field(default_factory=dict)
    sums: dict[str, int] = field(default_factory=dict)

    def flag(self, sql: str) -> str:
        """The column with the number of rows where the condition holds."""
        return f"true_{self.flags.setdefault(sql, len(self.flags))}"

    def summed(self, sql: str) -> tuple[str, str]:
        """The columns with number and sum of the values that are not NULL."""
        place = self.sums.setdefault(sql, len(self.sums))
        return f"count_{place}", f"sum_{place}"


def chooses_groups(frame: Frame) -> bool:
    """Whether groups are chosen at all, so that there is more than one formulation."""
    return bool(frame.keys) and frame.bounding.max_groups is not None


def few_choose(frame: Frame, formulation: Formulation) -> bool:
    """Return whether rows of ``kept`` have the weight of their unit."""
    return formulation == "few_choose" and bool(frame.keys) and frame.bounding.most_counted is not None


def drawn_factor(salt: bytes, text: str) -> float:
    """Return the factor of thresholds: between the root of 1/2 and the root of 2, uniform in its logarithm.

    The secret salt draws it. So d rows more move a choice at N rows with a probability of d / (N ln 2)
    (docs/time-and-failure.md). The same frame has the same factor.

    Args:
        salt: 128 secret bits.
        text: the query of the sizes, with all that the rows depend on.

    >>> [drawn_factor(b"salt", text) == drawn_factor(b"salt", "a") for text in ("a", "b")]
    [True, False]
    """
    drawn = hashlib.sha256(salt + text.encode()).digest()
    return float(2.0 ** (int.from_bytes(drawn[:8]) / 2**64 - 0.5))


def fastest_of_groups(frame: Frame, *, has_native: bool) -> Formulation:
    """Return the formulation that is fastest where all rows are grouped by unit and key in any case."""
    most = frame.bounding.most_counted
    has_state = has_native and chooses_groups(frame) and most is not None and most <= _CAPACITIES[-1]
    return "last_kept" if has_state else "groups_first"


def kept_ctes(
    frame: Frame, others: list[tuple[int, Statistic]], salt: bytes, per_row: str, formulation: Formulation
) -> str:
    """The common table expressions from ``rows`` to ``kept``, with the keys (or their codes) and v_1, v_2, ….

    The native one leaves a dictionary ``codes`` behind, which has the keys.
    """
    keys, most = frame.key_columns, frame.bounding.most_counted
    if formulation == "native":
        return _native(frame, others, salt, per_row)
    if formulation == "one_row":
        return f"kept AS ({kept_rows_sql(keys, others, per_row)})"
    values = "".join(columns_of_group(i, statistic, numbers_of_rows(i, statistic)) for i, statistic in others)
    if formulation == "last_kept":
        values += priority_column(keys, salt)
    selected = f"SELECT unit, {''.join(f'{key}, ' for key in keys)}1 AS present{values}"
    group_by = f"GROUP BY {', '.join(['unit', *keys])}"
    if formulation == "rows_first":
        order = f"{_priority(keys, salt)} ASC, {_in_order(keys)}"
        return (
            f"kept_rows AS (SELECT * FROM {per_row} WHERE unit IS NOT NULL "
            f"QUALIFY dense_rank() OVER (PARTITION BY unit ORDER BY {order}) <= {most}),\n"
            f"kept AS ({selected} FROM kept_rows {group_by})"
        )
    per_group = f"{selected} FROM {per_row} WHERE unit IS NOT NULL {group_by}"
    return chosen_ctes(per_group, frame, others, salt, formulation)


def chosen_ctes(
    per_group: str, frame: Frame, others: Numbered, salt: bytes, formulation: Formulation, *, is_read: bool = False
) -> str:
    """Return the expressions ``per_group``, whose body is given, and ``kept``.

    Args:
        per_group: the body.
        frame: what is grouped.
        others: numbered statistics that are added up.
        salt: the salt of the frame.
        formulation: one that groups rows first.
        is_read: whether the body reads a table as it is, so that it is read again sooner than held.

    """
    if formulation not in ("few_choose", "last_kept"):
        return f"per_group AS ({per_group}),\nkept AS ({kept_sql(frame, salt, formulation)})"
    held = "NOT MATERIALIZED" if is_read and formulation == "few_choose" else "MATERIALIZED"
    return (
        f"per_group AS {held} ({per_group}),\n"
        f"{per_unit_cte(frame, others, formulation)},\n"
        f"kept AS ({kept_sql(frame, salt, formulation, known_norms(frame, others))})"
    )


def per_unit_cte(frame: Frame, others: Numbered, formulation: Formulation) -> str:
    """Return the expression ``per_unit`` that ``few_choose`` or ``last_kept`` reads (`kept_sql`)."""
    most = frame.bounding.most_counted
    of_unit = "count(*) AS n" + "".join(f", {square_sql(i, one)}" for i, one in known_norms(frame, others))
    if formulation == "last_kept" and most:
        of_unit = f"{unit_aggregate(most)}.last AS last"
    return f"per_unit AS MATERIALIZED (SELECT unit, {of_unit} FROM per_group GROUP BY unit)"


def kept_sql(frame: Frame, salt: bytes, formulation: Formulation = "groups_first", normed: Numbered = ()) -> str:
    """Return the body of ``kept``, which reads ``per_group``, and ``per_unit`` if not all units choose by a window.

    ``per_unit`` has the number of the unit's groups n and the squares of some norms; or ``last``, where ``per_group``
    has a ``priority``. By ``few_choose`` the rows have the unit's weight, and the squares, of the groups that it keeps.
    """
    keys, most = frame.key_columns, frame.bounding.most_counted
    if not keys or most is None:
        return "SELECT * FROM per_group"
    if formulation == "few_choose":
        return _few_choose(frame, salt, normed, is_marked=False)
    per_group = "SELECT * FROM per_group"
    if formulation == "last_kept":
        # two upper halves of a unit are equal once in 2**32 pairs, by the salt: no row of a person brings this about
        per_group = f"{_UP_TO_LAST} UNION ALL SELECT * FROM ({_of_units('last IS NULL')})"
    return f"{per_group} QUALIFY {_place(keys, salt)} <= {most}"


def marked_sql(frame: Frame, salt: bytes, formulation: Formulation = "groups_first", normed: Numbered = ()) -> str:
    """Return a SELECT of ``per_group`` with the column ``is_kept``: whether ``kept_sql`` keeps the row.

    Groups are chosen in the frame.
    """
    chosen = f"{_place(frame.key_columns, salt)} <= {frame.bounding.most_counted} AS is_kept"
    if formulation == "few_choose":
        return _few_choose(frame, salt, normed, is_marked=True)
    if formulation == "last_kept":
        few = (
            "SELECT per_group.*, per_group.priority <= units.last AS is_kept FROM per_group "
            "JOIN (SELECT unit, last FROM per_unit WHERE last IS NOT NULL) AS units ON per_group.unit = units.unit"
        )
        return f"{few} UNION ALL SELECT *, {chosen} FROM ({_of_units('last IS NULL')})"
    return f"SELECT *, {chosen} FROM per_group"


def _few_choose(frame: Frame, salt: bytes, normed: Numbered, *, is_marked: bool) -> str:
    """Return the body of ``kept`` where units with too many groups choose: with the weight of each unit.

    A unit keeps all its groups, or as many as the frame counts. So a unit in few groups has its weight before the join,
    all others have one, and nothing but the squares of the latter is added up again.
    """
    most = frame.bounding.most_counted
    names = "".join(f", units.square_{i}" for i, _ in normed)
    few = weight_sql(frame.unit_groups, f"(SELECT * FROM per_unit WHERE n <= {most})", KNOWN_WEIGHT)
    few = (
        f"SELECT per_group.*{', true AS is_kept' * is_marked}, units.{KNOWN_WEIGHT}{names} FROM per_group "
        f"JOIN ({few}) AS units ON per_group.unit IS NOT DISTINCT FROM units.unit"
    )
    many, chosen = _of_units(f"n > {most}"), f"{_place(frame.key_columns, salt)} <= {most}"
    many = f"SELECT *, {chosen} AS is_kept FROM ({many})" if is_marked else f"SELECT * FROM ({many}) QUALIFY {chosen}"
    over = f"{' FILTER (WHERE is_kept)' * is_marked} OVER (PARTITION BY unit)"
    squares = "".join(f", {square_sql(i, one, over=over)}" for i, one in normed)
    weight = f"({weight_sql(frame.unit_groups, f'(SELECT {most}::BIGINT AS n)')})"
    return f"{few} UNION ALL SELECT *, {weight} AS {KNOWN_WEIGHT}{squares} FROM ({many})"


def _of_units(condition: str) -> str:
    """Return a SELECT of the groups of units for which a condition on ``per_unit`` holds."""
    return (
        f"SELECT per_group.* FROM per_group SEMI JOIN (SELECT unit FROM per_unit WHERE {condition}) AS units "
        "ON per_group.unit IS NOT DISTINCT FROM units.unit"
    )


def _place(keys: list[str], salt: bytes) -> str:
    """Return the place of a group among those of its unit, in the order in which they are kept."""
    return f"row_number() OVER (PARTITION BY unit ORDER BY {_priority(keys, salt)} ASC, {_in_order(keys)})"


def priority_column(keys: list[str], salt: bytes) -> str:
    """Return the upper half of a group's priority as a column of ``per_group``, which ``last_kept`` reads."""
    return f", CAST({_priority(keys, salt)} >> 32 AS UINTEGER) AS priority"


def unit_aggregate(max_groups: int, sums: Sequence[int] = ()) -> str:
    """Return a call of the aggregate in C over a unit's groups.

    Its members are groups, the number of groups, and last, the priority of the last group that is kept. That one is
    NULL where the group after it has the same, and the largest number there is where no group comes after it. Members
    size_k and lost_k belong to the k-th of `sums`: the sums of abs(whole_i) and of abs(whole_i - v_i).
    """
    given = "".join(f", whole_{i}, v_{i}" for i in sums)
    return f"dpsql_unit_{_capacity(max_groups)}({max_groups}::INTEGER, priority{given})"


def _native(frame: Frame, others: list[tuple[int, Statistic]], salt: bytes, per_row: str) -> str:
    keys = frame.key_columns
    listed = ", ".join(keys)
    matches = " AND ".join(f"listed_rows.{key} IS NOT DISTINCT FROM codes.{key}" for key in keys)
    values, arguments = _native_values(others)
    names = [f"listed_rows.{key}" for key in keys]
    most = frame.bounding.most_counted or 1
    given = ", ".join([f"{most}::INTEGER", _priority(names, salt), "codes.code", *arguments.flags, *arguments.sums])
    return (
        f"listed_rows AS NOT MATERIALIZED (SELECT * FROM {per_row} WHERE unit IS NOT NULL),\n"
        f"codes AS MATERIALIZED (SELECT {listed}, row_number() OVER (ORDER BY {_in_order(keys)}) AS code "
        f"FROM (SELECT DISTINCT {listed} FROM listed_rows)),\n"
        f"members AS (SELECT unit, unnest(dpsql_keep_{_capacity(most)}({given}), recursive := true) "
        f"FROM listed_rows JOIN codes ON {matches} GROUP BY unit),\n"
        f"kept AS (SELECT unit, code{values} FROM members)"
    )


def _native_values(others: list[tuple[int, Statistic]]) -> tuple[str, _Arguments]:
    arguments = _Arguments()
    values = ""
    for i, statistic in others:
        count = total = "0"
        counted = [f"x_{i} IS NOT NULL"] if statistic.value_sql else []
        conditions = [*counted, *([f"f_{i}"] if statistic.filter_sql else [])]
        if statistic.kind == "sum":
            value = f"CASE WHEN f_{i} THEN x_{i} END" if statistic.filter_sql else f"x_{i}"
            count, total = arguments.summed(value)
        elif statistic.kind == "rows":
            count = arguments.flag(" AND ".join(conditions) or "true")
        else:
            count = arguments.flag(f"f_{i}")
        values += columns_of_group(i, statistic, GroupNumbers(count, total, f"CAST({count} > 0 AS TINYINT)"))
    return values, arguments


def state_bytes(frame: Frame, others: list[tuple[int, Statistic]]) -> int:
    """Size of the native state of one unit; 0 where the library has none for it."""
    bounding = frame.bounding
    most = bounding.most_counted
    plain = all(statistic.kind in ("units", "rows", "sum") for _, statistic in others)
    if not plain or bounding.max_rows or most is None or most > _CAPACITIES[-1]:
        return 0
    arguments = _native_values(others)[1]
    flags, sums = len(arguments.flags), len(arguments.sums)
    if flags > _MOST_FLAGS or sums > MOST_SUMS:
        return 0
    return 16 + _capacity(most) * (16 + 8 * flags + 24 * sums)


def _capacity(most: int) -> int:
    """The least capacity of the library that holds so many groups."""
    return next(capacity for capacity in _CAPACITIES if capacity >= most)


def _priority(keys: list[str], salt: bytes) -> str:
    # in some orders hash() mixes its arguments so weakly that most subsets of a unit's groups never occur;
    # hashing the hash again makes every subset equally likely in any order
    return f"hash(hash(unit, {', '.join(keys)}, '{salt.hex()}'))"


def _in_order(keys: list[str]) -> str:
    # the order is written out, because the curator may have set another default
    return ", ".join(f"{key} ASC NULLS LAST" for key in keys)


def numbers_of_rows(i: int, statistic: Statistic) -> GroupNumbers:
    """Return the numbers of a statistic as aggregates of a unit's rows in a group."""
    condition = f" FILTER (WHERE f_{i})" if statistic.filter_sql else ""
    return GroupNumbers(
        count=f"count({f'x_{i}' if statistic.value_sql else '*'}){condition}",
        total=f"sum(x_{i}){condition}",
        is_any=f"coalesce(max(CAST(f_{i} AS TINYINT)), 0)",
    )


def columns_of_group(i: int, statistic: Statistic, numbers: GroupNumbers) -> str:
    """Return the value of a unit in a group, v_i, as a column; with what a norm needs beside."""
    value = _group_value(statistic, numbers)
    has_norm = isinstance(statistic.limit, Norm)
    rows = f", least({numbers.count}, {MOST_ROWS}) AS {row_number(i)}" if has_norm else ""
    return f", {value} AS v_{i}{rows}"


def _group_value(statistic: Statistic, numbers: GroupNumbers) -> str:
    """Return one integer per (unit, group), inside [low_steps, high_steps] whatever the rows are."""
    scale, count, total = 2**-COUNT_LATTICE_EXPONENT, numbers.count, numbers.total
    if statistic.kind == "rows" and statistic.low_steps >= 0:
        value = f"{scale} * {count}"
    elif statistic.kind == "units":
        value = f"{scale} * {numbers.is_any}"
    elif statistic.kind == "rows":
        # its interval has 0 in its middle, so that the bounds of a group alone say the least
        least, _ = statistic.group_bounds_steps or (0, 0)
        value = f"greatest({scale} * {count}, {least})" if least > 0 else f"{scale} * {count}"
    elif isinstance(statistic.limit, Norm) and not statistic.group_bounds_steps:
        value = f"coalesce({total}, 0)"
    elif statistic.group_bounds_steps:
        low, high = statistic.group_bounds_steps
        value = f"CASE WHEN {count} = 0 THEN 0 ELSE least(greatest({total}, {low}), {high}) END"
    else:
        # more rows than the cap are scaled down to it: the same bound as a sample of them, and no chance in it
        cap = statistic.row_cap
        value = f"CASE WHEN {count} > {cap} THEN {total} * {cap} // {count} ELSE {total} END"
        value = f"CASE WHEN {count} = 0 THEN 0 ELSE {value} END"
    low, high = statistic.low_steps, statistic.high_steps
    if isinstance(statistic.limit, Norm) and not statistic.group_bounds_steps:
        low, high = -most_value(statistic), most_value(statistic)
    # for most values the last clamp changes nothing; it holds the bound where the schema's promise (NOT NULL) fails
    return f"CAST(least(greatest({value}, {low}), {high}) AS BIGINT)"
