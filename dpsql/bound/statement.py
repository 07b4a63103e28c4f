"""Questions to the rows of a frame as records, and the DuckDB text that answers them.

The text is written when it runs: with a salt, in a formulation, over rows or over pairs. All texts of a record with one
salt have one result.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dpsql.bound.aggregation import approximate_sizes_sql, bounded_sql, held_rows_sql
from dpsql.bound.coverage import coverage_sql, numbers_of
from dpsql.bound.formulations import Formulation
from dpsql.bound.kept_pairs import KeptPairs
from dpsql.bound.one_pass import one_pass_sql
from dpsql.bound.pairs import Pairs
from dpsql.bound.shards import sketch_sql
from dpsql.model.frame import PRESENCE, Frame, Statistic

Kind = Literal["groups", "covered_groups", "coverage", "shards"]
"""Kind of a statement, by its rows:

    groups           the groups of a frame with its statistics (`aggregation`)
    covered_groups   the same, and beside them the histograms of its coverage (`one_pass`)
    coverage         the histograms of its coverage alone (`coverage`)
    shards           the presence counts of one part of the units after the other (`shards`)
"""


@dataclass(frozen=True, slots=True)
class Bounded:
    """A question to the rows of a frame, in which each unit is bounded.

    Attributes:
        frame: what is grouped, and how units are bounded.
        statistics: what is read of groups; their presence counts are read in any case.
        coverage: the statistics of coverage that are read.
        kind: which rows the answer has.
        held_keys: whether groups are those of the keys that the frame holds already; then nothing is left out and
            nothing subtracted.

    """

    frame: Frame
    statistics: tuple[Statistic, ...]
    coverage: tuple[Statistic, ...] = ()
    kind: Kind = "groups"
    held_keys: bool = False

    @property
    def measured(self) -> tuple[Statistic, ...]:
        """Return all statistics whose numbers of rows are read."""
        return numbers_of((*self.statistics, *self.coverage))

    def sql(
        self,
        salt: bytes,
        formulation: Formulation = "groups_first",
        pairs: Pairs | KeptPairs | None = None,
        *,
        held_rows: bool = False,
    ) -> str:
        """Return the statement; nothing in it follows from rows.

        Args:
            salt: 128 secret bits of the frame.
            formulation: how the answer is computed. If it is ``one_row``, covered groups come without their coverage:
                nothing is grouped by unit then, so that nothing is saved where both are read at once.
            pairs: the table that has the numbers of all that is measured, if there is one. Coverage is read of no
                table after bounds.
            held_rows: the rows are held in a table (``rows_sql``). For groups without coverage.

        """
        if self.kind == "shards":
            return sketch_sql(self.frame, salt)
        if self.kind == "coverage":
            return coverage_sql(self.frame, self.coverage, salt, has_one_row=formulation == "one_row")
        held, asked = self.held_keys, (PRESENCE, *(one for one in self.statistics if one != PRESENCE))
        if self.kind == "covered_groups" and formulation != "one_row":
            before = pairs if isinstance(pairs, Pairs) else None
            return one_pass_sql(
                self.frame, asked, self.coverage, salt, held_keys=held, formulation=formulation, pairs=before
            )
        if isinstance(pairs, KeptPairs):
            return pairs.bounded_sql(asked, held_keys=held)
        if pairs:
            return pairs.bounded_sql(self.frame, asked, salt, held_keys=held, formulation=formulation)
        return bounded_sql(self.frame, asked, salt, held_keys=held, formulation=formulation, held_rows=held_rows)

    def rows_sql(self, salt: bytes) -> str:
        """Return the SELECT of all rows, with all that the statement reads of them."""
        asked = (PRESENCE, *(one for one in self.statistics if one != PRESENCE))
        return held_rows_sql(self.frame, asked, salt)

    def sizes_sql(self, salt: bytes, rows: int | None, *, held_rows: bool = False) -> str:
        """Return SQL for the ``Sizes`` of the rows.

        Args:
            salt: as for ``sql``.
            rows: how many rows there are at most, or None if that is not known.
            held_rows: as for ``sql``.

        """
        return approximate_sizes_sql(self.frame.bounding.finer or self.frame, salt, rows, held_rows=held_rows)
