"""Questions to the rows of a frame as records, and the DuckDB texts that answer them.

A text is written when it runs: with a salt, in a formulation, over rows or over pairs. All texts of a record with one
salt have one result. Texts for the parts of a table, and for their merge, have it together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

from dpsql.bound.aggregation import Ending, bounded_sql, held_rows_sql
from dpsql.bound.coverage import coverage_sql, numbers_of, unclamped
from dpsql.bound.formulations import Formulation
from dpsql.bound.kept_pairs import KeptPairs
from dpsql.bound.left_out import left_out_merged, left_out_sql
from dpsql.bound.one_pass import one_pass_sql
from dpsql.bound.pairs import Pairs
from dpsql.bound.partials import Partial, PartialRows, added, distinct_numbers, groups_partial
from dpsql.bound.row_sizes import approximate_sizes_sql
from dpsql.bound.shards import sketch_sql
from dpsql.bound.unit_histograms import histogram_keys, unit_histogram_sql
from dpsql.model.frame import PRESENCE, Frame, Statistic

Kind = Literal["groups", "covered_groups", "coverage", "shards"]
"""Kind of a statement, by its rows:

    groups           the groups of a frame with its statistics (`aggregation`)
    covered_groups   the same, and beside them the histograms of its coverage (`one_pass`)
    coverage         the histograms of its coverage alone (`coverage`)
    shards           the presence counts of one part of the units after the other (`shards`)
"""


class Statement(Protocol):
    """A question to the rows of a frame, in which each unit is bounded."""

    @property
    def frame(self) -> Frame:
        """Return the frame whose rows are read."""

    @property
    def measured(self) -> tuple[Statistic, ...]:
        """Return all statistics whose numbers of rows are read."""

    def sql(
        self, salt: bytes, formulation: Formulation = "groups_first", pairs: Pairs | KeptPairs | None = None
    ) -> str:
        """Return the text for a whole table; nothing in it follows from rows.

        Args:
            salt: 128 secret bits of the frame.
            formulation: how the answer is computed.
            pairs: the table that has the numbers of all that is measured, if there is one.

        """

    def partial(
        self, salt: bytes, formulation: Formulation = "groups_first", pairs: Pairs | KeptPairs | None = None
    ) -> Partial:
        """Return the texts for parts of a table, and that of their merge. The arguments are those of ``sql``."""


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
        held_rows: whether the rows are held in a table (``rows_sql``). For groups without coverage.

    """

    frame: Frame
    statistics: tuple[Statistic, ...]
    coverage: tuple[Statistic, ...] = ()
    kind: Kind = "groups"
    held_keys: bool = False
    held_rows: bool = False

    @property
    def measured(self) -> tuple[Statistic, ...]:
        """Return all statistics whose numbers of rows are read."""
        return numbers_of((*self.statistics, *self.coverage))

    def sql(
        self, salt: bytes, formulation: Formulation = "groups_first", pairs: Pairs | KeptPairs | None = None
    ) -> str:
        """Return the text for a whole table.

        If the formulation is ``one_row``, covered groups come without their coverage: nothing is grouped by unit then,
        so that nothing is saved where both are read at once. Coverage is read of no table after bounds.
        """
        return self._text(salt, formulation, pairs, "held" if self.held_keys else "chosen")

    def partial(
        self, salt: bytes, formulation: Formulation = "groups_first", pairs: Pairs | KeptPairs | None = None
    ) -> Partial:
        """Return the texts for parts of a table, and that of their merge."""
        if self.kind == "coverage":
            return added(self.sql(salt, formulation), ("measure", "place"), ("units",))
        if self.kind == "shards":
            raise AssertionError("the shards of a sketch are read of a whole table")
        endings: list[Ending] = ["partial", *distinct_numbers(self._asked)]
        texts = [self._text(salt, formulation, pairs, one) for one in endings]
        return groups_partial(
            self.frame,
            self._asked,
            "held" if self.held_keys else "chosen",
            texts,
            has_places=self.kind == "covered_groups" and formulation != "one_row",
        )

    @property
    def _asked(self) -> tuple[Statistic, ...]:
        """Return the statistics of groups, the presence count first."""
        return (PRESENCE, *(one for one in self.statistics if one != PRESENCE))

    def _text(self, salt: bytes, formulation: Formulation, pairs: Pairs | KeptPairs | None, ending: Ending) -> str:
        """Return the text with an ending, which groups alone have."""
        if self.kind == "shards":
            return sketch_sql(self.frame, salt)
        if self.kind == "coverage":
            return coverage_sql(self.frame, self.coverage, salt, has_one_row=formulation == "one_row")
        asked = self._asked
        if self.kind == "covered_groups" and formulation != "one_row":
            before = pairs if isinstance(pairs, Pairs) else None
            return one_pass_sql(
                self.frame, asked, self.coverage, salt, ending=ending, formulation=formulation, pairs=before
            )
        if isinstance(pairs, KeptPairs):
            return pairs.bounded_sql(asked, ending=ending)
        if pairs:
            return pairs.bounded_sql(self.frame, asked, salt, ending=ending, formulation=formulation)
        return bounded_sql(self.frame, asked, salt, ending=ending, formulation=formulation, held_rows=self.held_rows)

    def rows_sql(self, salt: bytes) -> str:
        """Return the SELECT of all rows, with all that the statement reads of them."""
        return held_rows_sql(self.frame, self._asked, salt)

    def sizes_sql(self, salt: bytes, rows: int | None) -> str:
        """Return SQL for the ``Sizes`` of the rows.

        Args:
            salt: as for ``sql``.
            rows: how many rows there are at most, or None if that is not known.

        """
        return approximate_sizes_sql(self.frame.bounding.finer or self.frame, salt, rows, held_rows=self.held_rows)


@dataclass(frozen=True, slots=True)
class UnitHistogram:
    """A question for the number of units by what they have, of which no bound is known yet (`unit_histograms`).

    Attributes:
        frame: whose units are looked at.
        statistic: the statistic by which units are told apart.

    """

    frame: Frame
    statistic: Statistic

    @property
    def measured(self) -> tuple[Statistic, ...]:
        """Return the statistic."""
        return (self.statistic,)

    def sql(
        self, salt: bytes, formulation: Formulation = "groups_first", pairs: Pairs | KeptPairs | None = None
    ) -> str:
        """Return the text for a whole table; nothing is read of a table after bounds."""
        before = pairs if isinstance(pairs, Pairs) else None
        return unit_histogram_sql(self.frame, self.statistic, salt, formulation, before)

    def partial(
        self, salt: bytes, formulation: Formulation = "groups_first", pairs: Pairs | KeptPairs | None = None
    ) -> Partial:
        """Return the texts for parts of a table, and that of their merge."""
        return added(self.sql(salt, formulation, pairs), histogram_keys(self.statistic), ("units",))


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A question for the sums over units of what bounds leave out of them, each unit cut (`left_out`).

    Attributes:
        frame: what is grouped, and how units are bounded. If its keys are private, the groups are those of the keys
            that are listed.
        cuts: bounded statistics, each with the exponent of its cut.

    """

    frame: Frame
    cuts: tuple[tuple[Statistic, int], ...]

    @property
    def measured(self) -> tuple[Statistic, ...]:
        """Return the statistics, and the same without the clamp of their rows."""
        statistics = [one for one, _ in self.cuts]
        return (*statistics, *map(unclamped, statistics))

    def sql(
        self, salt: bytes, formulation: Formulation = "groups_first", pairs: Pairs | KeptPairs | None = None
    ) -> str:
        """Return the text for a whole table."""
        return self._text(salt, formulation, pairs, are_parts=False)

    def partial(
        self, salt: bytes, formulation: Formulation = "groups_first", pairs: Pairs | KeptPairs | None = None
    ) -> Partial:
        """Return the texts for parts of a table, and that of their merge."""
        names, merged = left_out_merged(len(self.cuts))
        rows = PartialRows(self._text(salt, formulation, pairs, are_parts=True), (), names)
        return Partial((rows,), merged)

    def _text(self, salt: bytes, formulation: Formulation, pairs: Pairs | KeptPairs | None, *, are_parts: bool) -> str:
        are_listed = self.frame.has_private_keys
        if isinstance(pairs, KeptPairs):
            return pairs.left_out_sql(self.cuts, are_listed=are_listed, are_parts=are_parts)
        return left_out_sql(
            self.frame,
            self.cuts,
            salt,
            formulation=formulation,
            pairs=pairs,
            are_listed=are_listed,
            are_parts=are_parts,
        )
