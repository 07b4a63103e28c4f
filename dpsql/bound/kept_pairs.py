"""Pairs of a unit and a group after bounds, with one salt: a table that the numbers and what they leave out share.

What is left out is read after the numbers, because it follows from them which groups are listed. Both need the choice
of each unit's groups, its weight and its norm. They are found once, for the table.

    kept_pairs     one row per (unit, group), as ``lost`` in `left_out`: whether the unit keeps the group, its weight,
                   per statistic its value v_i as the number adds it up, and lost_i, what bounds leave out of it

*Guarantee*: a statement over the table has the result of the statement over the rows, bit for bit
(tests/unit/bound/test_left_out.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dpsql.bound.aggregation import Ending, grouped_sql, selected_sql
from dpsql.bound.coverage import unclamped
from dpsql.bound.formulations import Formulation
from dpsql.bound.left_out import cut_sql, is_measurable, lost_ctes
from dpsql.bound.pairs import Pairs
from dpsql.model.frame import PRESENCE, Frame, Statistic
from dpsql.model.statistic_kinds import APART_KINDS

KEPT_PAIRS = "dpsql_kept_pairs"
"""Name of the temporary table."""
LOST_PAIRS = "dpsql_lost_pairs"
"""Name of the temporary table of those of its pairs of which bounds leave something out; parts have one."""


@dataclass(frozen=True, slots=True)
class KeptPairs:
    """A table of pairs after bounds.

    Attributes:
        frame: what is grouped, and how units are bounded.
        statistics: those whose numbers it has, without the presence count, which it has in any case.
        measured: those among them of which it has what bounds leave out.
        salt: 128 secret bits of the frame.

    """

    frame: Frame
    statistics: tuple[Statistic, ...]
    measured: tuple[Statistic, ...]
    salt: bytes

    @classmethod
    def of(
        cls, frame: Frame, statistics: Sequence[Statistic], measured: Sequence[Statistic], salt: bytes
    ) -> KeptPairs | None:
        """Return the table for statistics of a frame, or None if there is none for them."""
        if not measured or not all(is_measurable(frame, one) for one in measured):
            return None
        read = tuple(dict.fromkeys(one for one in (*statistics, *measured) if one != PRESENCE))
        if any(one.kind in APART_KINDS for one in read):
            return None
        return cls(frame, read, tuple(dict.fromkeys(measured)), salt)

    @property
    def needed(self) -> tuple[Statistic, ...]:
        """Return the statistics whose numbers of rows the table is made of."""
        return (*self.statistics, *map(unclamped, self.measured))

    def serves(self, frame: Frame, statistics: Sequence[Statistic]) -> bool:
        """Return whether the table has all that a statement on a frame reads."""
        return frame == self.frame and {PRESENCE, *self.needed}.issuperset(statistics)

    def sql(self, formulation: Formulation, pairs: Pairs | None) -> str:
        """Return the SELECT that the table is made of, from the rows or from their pairs."""
        numbered = list(enumerate(self.statistics, start=1))
        measured = [(i, one) for i, one in numbered if one in self.measured]
        return f"WITH {lost_ctes(self.frame, numbered, measured, self.salt, formulation, pairs)}\nSELECT * FROM lost"

    def lost_sql(self) -> str:
        """Return the SELECT that the table of pairs of which bounds leave something out is made of, from this table."""
        lost = [f"lost_{self._number(one)}" for one in self.measured]
        columns = ", ".join(["unit", *self.frame.key_columns, *lost])
        is_any = " OR ".join(f"{one} IS NOT NULL" for one in lost)
        return f"SELECT {columns} FROM temp.main.{KEPT_PAIRS} WHERE {is_any}"

    def bounded_sql(self, statistics: tuple[Statistic, ...], *, ending: Ending) -> str:
        """Return SQL with the result of ``aggregation.bounded_sql``, over this table; the arguments are its."""
        others, frame = list(enumerate(statistics))[1:], self.frame
        columns = [*frame.key_columns, *(["weight"] if frame.bounding.counted_groups else [])]
        columns += [f"v_{self._number(one)} AS v_{i}" for i, one in others]
        kept = f"SELECT {', '.join(columns) or '1'} FROM temp.main.{KEPT_PAIRS} WHERE is_kept"
        grouped = f"kept AS ({kept}),\ngrouped AS MATERIALIZED ({grouped_sql(frame, others, 'kept', ending)})"
        return f"WITH {grouped}\n{selected_sql(frame, others, ending)}"

    def left_out_sql(
        self, measured: Sequence[tuple[Statistic, int]], *, are_listed: bool, are_parts: bool = False
    ) -> str:
        """Return SQL with the result of ``left_out.left_out_sql``, over this table; the arguments are its.

        A part reads the table of pairs of which bounds leave something out.
        """
        cuts = [(self._number(one), one, exponent) for one, exponent in measured]
        lost = f"temp.main.{LOST_PAIRS if are_parts else KEPT_PAIRS} AS lost"
        return cut_sql(self.frame, cuts, lost, are_listed=are_listed, are_parts=are_parts)

    def _number(self, statistic: Statistic) -> int:
        """Return the number of a statistic's columns."""
        return 1 + self.statistics.index(statistic)
