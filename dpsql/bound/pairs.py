"""Pairs of a unit and a group, which the statements of one question share: one table, made of the rows once.

    source, rows   as in `aggregation`
    pairs          one row per (unit, group): of each statistic the number of rows that count (count_i), and of each sum
                   the total of their values in lattice steps (sum_i)

All of it precedes salts and clamps: whatever a statement bounds, chooses or weighs by its own salt, it does with these
numbers. They are whole numbers that are added up, so they depend neither on the order of rows nor on other units.

*Guarantee*: a statement over the pairs has the result of the statement over the rows, bit for bit
(tests/unit/bound/test_pairs.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from dpsql.bound.aggregation import (
    Ending,
    grouped_ctes,
    listed_join,
    listed_sql,
    rows_sql,
    selected_sql,
    source_sql,
)
from dpsql.bound.formulations import (
    Formulation,
    GroupNumbers,
    chosen_ctes,
    columns_of_group,
    numbers_of_rows,
    priority_column,
)
from dpsql.bound.value_steps import value_steps
from dpsql.model.frame import Frame, Statistic
from dpsql.model.rows import Rows
from dpsql.operations.row_sql import SALT

PAIRS = "dpsql_pairs"
"""Name of the temporary table."""

_OF_GROUPS = ("presence", "groups")
"""Kinds that are about the pairs themselves."""
_IN_VALUE_STEPS = ("sum_norm", "group_extremes")
"""Kinds that add up values before their bounds are known."""

CountKey = tuple[str, str]
"""Value and condition of the rows that are counted."""
SumKey = tuple[str, str, int | None, tuple[int, int] | None]
"""Value, condition, lattice and clamp of the rows that are added up; no lattice for steps of ``value_steps``."""


@dataclass(frozen=True, slots=True)
class Pairs:
    """A table of pairs.

    Attributes:
        frame: whose rows and keys these are.
        statistics: those whose numbers it has.

    """

    frame: Frame
    statistics: tuple[Statistic, ...]

    @classmethod
    def of(cls, frame: Frame, statistics: Sequence[Statistic]) -> Pairs | None:
        """Return the pairs of a frame with the numbers of statistics.

        Statistics that need rows are left out. Return None if a salt cuts its rows.
        """
        if not frame.rows_sql.relation or SALT in frame.rows_sql.relation:
            return None
        return cls(frame, tuple(dict.fromkeys(one for one in statistics if _count_key(one))))

    def serves(self, frame: Frame) -> bool:
        """Return whether the groups of a frame are made of these pairs, all of them or those of some keys."""
        bounding, own = frame.bounding, self.frame
        if bounding.finer or bounding.max_rows or frame.keys != own.keys or frame.public_keys != own.public_keys:
            return False
        return _all_rows(frame) == _all_rows(own)

    def has(self, statistic: Statistic) -> bool:
        """Return whether the numbers of a statistic are here."""
        if statistic.kind in _OF_GROUPS:
            return True
        key = _sum_key(statistic)
        return _count_key(statistic) in self._counts and (not key or key in self._sums)

    def numbers(self, statistic: Statistic) -> GroupNumbers:
        """Return the columns with the numbers of a statistic that is here."""
        count, key = f"count_{self._counts[_count_key(statistic)]}", _sum_key(statistic)
        return GroupNumbers(count, f"sum_{self._sums[key]}" if key else "0", f"CAST({count} > 0 AS TINYINT)")

    def relation(self, frame: Frame) -> str:
        """Return the pairs of a frame, whose rows may be those of the keys that are not listed."""
        table = f"temp.main.{PAIRS} AS pairs"
        return f"{table} {listed_join('pairs', frame.key_columns, frame, 'ANTI')}" if frame.rows_sql.all_rows else table

    def per_group(self, frame: Frame, others: Sequence[tuple[int, Statistic]], more: str = "") -> str:
        """Return the body of ``per_group``: one row per unit and group, with values of statistics, and more columns."""
        values = "".join(columns_of_group(i, one, self.numbers(one)) for i, one in others) + more
        return f"SELECT {', '.join(['unit', *frame.key_columns])}, 1 AS present{values} FROM {self.relation(frame)}"

    def bounded_sql(
        self,
        frame: Frame,
        statistics: tuple[Statistic, ...],
        salt: bytes,
        *,
        ending: Ending,
        formulation: Formulation,
    ) -> str:
        """Return SQL with the result of ``aggregation.bounded_sql``, over these pairs; the arguments are its."""
        others, keys = list(enumerate(statistics))[1:], frame.key_columns
        per_group = self.per_group(frame, others, priority_column(keys, salt) if formulation == "last_kept" else "")
        ctes = [
            chosen_ctes(per_group, frame, others, salt, formulation, is_read=not frame.rows_sql.all_rows),
            *grouped_ctes(frame, others, salt, "", formulation, ending),
        ]
        named = ",\n".join(ctes)
        return f"WITH {named}\n{selected_sql(frame, others, ending)}"

    def sql(self) -> str:
        """Return the SELECT that the table is made of."""
        numbered = list(enumerate(self.statistics, start=1))
        numbers = {i: _numbers_of_rows(i, statistic) for i, statistic in numbered}
        selected = "".join(f", {numbers[i].count} AS count_{i}" for i in self._counts.values())
        selected += "".join(f", {numbers[i].total} AS sum_{i}" for i in self._sums.values())
        group = ", ".join(["unit", *self.frame.key_columns])
        return (
            f"WITH source AS ({source_sql(self.frame, numbered, b'')}),\nrows AS ({rows_sql(self.frame, numbered)})\n"
            f"SELECT {group}{selected} FROM {listed_sql('rows', self.frame)} WHERE unit IS NOT NULL GROUP BY {group}"
        )

    @property
    def _counts(self) -> dict[CountKey | None, int]:
        """Numbers of the statistics that count rows, each way of counting once."""
        numbered = reversed(list(enumerate(self.statistics, start=1)))
        return {_count_key(statistic): i for i, statistic in numbered}

    @property
    def _sums(self) -> dict[SumKey | None, int]:
        """Numbers of the statistics that add up values, each way of adding once."""
        numbered = reversed(list(enumerate(self.statistics, start=1)))
        return {key: i for i, statistic in numbered if (key := _sum_key(statistic))}


def _all_rows(frame: Frame) -> tuple[Rows, str]:
    """Return which rows the pairs are of, and how they are read."""
    return replace(frame.rows, outside=""), frame.rows_sql.all_rows or frame.rows_sql.relation


def _count_key(statistic: Statistic) -> CountKey | None:
    """Return how a statistic counts rows, or None if it needs more than their number and sum."""
    is_number = statistic.kind in ("rows", "rows_norm", "sum", *_IN_VALUE_STEPS)
    if is_number or (statistic.kind == "units" and not statistic.value_sql):
        return statistic.value_sql, statistic.filter_sql
    return None


def _sum_key(statistic: Statistic) -> SumKey | None:
    """Return how a statistic adds up values, or None if it does not."""
    value, condition = statistic.value_sql, statistic.filter_sql
    if statistic.kind in _IN_VALUE_STEPS:
        return value, condition, None, None
    if statistic.kind == "sum":
        return value, condition, statistic.lattice_exponent, statistic.row_bounds_steps
    return None


def _numbers_of_rows(i: int, statistic: Statistic) -> GroupNumbers:
    """Return the aggregates of the rows of a pair."""
    numbers = numbers_of_rows(i, statistic)
    if statistic.kind not in _IN_VALUE_STEPS:
        return numbers
    # steps of NULL are not NULL
    condition = f"x_{i} IS NOT NULL" + f" AND f_{i}" * bool(statistic.filter_sql)
    return replace(numbers, total=f"sum({value_steps(f'x_{i}')}) FILTER (WHERE {condition})")
