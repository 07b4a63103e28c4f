"""The table of pairs that the readings of one question share: who makes it, when, and what reads it.

A question that reads its rows several times (AUTO's histograms, rounds of keys, numbers) asks for one before its first
reading. The first reading makes it, which follows a durable charge; so nothing is made where nothing is due. A later
reading follows a charge of its own, and reads numbers that no salt, clamp or noise has touched (`bound.pairs`). All
readings of the question on these rows run in one transaction, which ends with the question, and the table with it.

A question that reads what its numbers leave out (`bound.left_out`) asks for a table after bounds as well. The numbers
make it, from the pairs if there are any, and both statements read it (`bound.kept_pairs`).
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Mapping, Sequence

import pyarrow as pa

from dpsql.bound.formulations import Formulation, chooses_groups, drawn_factor, fastest_of_groups
from dpsql.bound.kept_pairs import KeptPairs
from dpsql.bound.pairs import Pairs
from dpsql.bound.statement import Statement, UnitHistogram
from dpsql.bound.unit_histograms import UnitCounts, histogram_keys
from dpsql.engine import Engine, ExactTable, Mark, Transaction, seconds_left
from dpsql.model.frame import Frame, Statistic
from dpsql.release.formulation import MOST_CHOSEN

_FEW = 2
"""If at most about one unit in this many has too many groups, groups are chosen for these units alone."""


class HeldPairs:
    """The pairs of one question, from its first reading to its end."""

    def __init__(self, pairs: Pairs, listed: pa.Table | None, engine: Engine) -> None:
        self._pairs = pairs
        self._engine = engine
        self._listed = listed
        self._until_end = contextlib.ExitStack()
        self._transaction: Transaction | None = None
        self._has_one_row = False
        self._kept: KeptPairs | None = None
        self._has_kept = False
        # before there is a table it is None
        self._counts: UnitCounts | None = None
        # no share of units with many groups is known to change the statements
        self._factor = drawn_factor(secrets.token_bytes(16), "")
        self._marks: Mapping[str, Mark] = {}

    def close(self) -> None:
        """End the transaction, and its tables."""
        self._until_end.close()
        self._transaction, self._counts, self._has_kept = None, None, False

    @property
    def marks(self) -> Mapping[str, Mark]:
        """Marks of the tables as they were when the pairs were made; none before."""
        return self._marks

    def serves(self, frame: Frame) -> bool:
        """Return whether a frame reads these rows by these keys."""
        return self._pairs.serves(frame)

    def keep(self, kept: KeptPairs) -> None:
        """Let readings of a frame share its pairs after bounds; reads nothing."""
        self._kept = kept

    def read(
        self, statement: Statement, salt: bytes, listed_keys: pa.Table | None, timeout_seconds: float | None
    ) -> ExactTable:
        """Return the exact rows of a statement, over the pairs if they have all its numbers.

        Args:
            statement: what is asked of the rows.
            salt: 128 secret bits of the frame.
            listed_keys: keys that it is about, if they are known before it.
            timeout_seconds: limit of time.

        Raises:
            EngineError: it failed or ran out of time; the message is constant.

        """
        deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        frame, statistics = statement.frame, statement.measured
        kept = self._kept if self._kept and self._kept.serves(frame, statistics) else None
        transaction = self._transaction or self._begin(deadline, kept)
        formulation: Formulation = "groups_first"
        pairs: Pairs | KeptPairs | None = None
        if self._has_one_row:
            formulation = "one_row"
        elif kept:
            self._make_kept(transaction, kept, deadline)
            pairs = kept
        else:
            counts = self._make_pairs(transaction, deadline)
            if isinstance(statement, UnitHistogram) and not frame.rows_sql.all_rows:
                places = counts.histogram(statement.statistic)
                if places is not None:
                    return _histogram(statement.statistic, places)
            formulation = self._formulation(frame, counts)
            pairs = self._pairs if all(map(self._pairs.has, statistics)) else None
        return transaction.exact(
            statement, salt, formulation, pairs, listed_keys=listed_keys, timeout_seconds=seconds_left(deadline)
        )

    def _begin(self, deadline: float | None, kept: KeptPairs | None) -> Transaction:
        """Begin the transaction, and make the first table unless a constraint keeps the unit column unique."""
        transaction = self._until_end.enter_context(self._engine.transaction(seconds_left(deadline)))
        self._has_one_row = transaction.has_one_row(self._pairs.frame.rows_sql.stored_unit, seconds_left(deadline))
        if kept and not self._has_one_row:
            self._make_kept(transaction, kept, deadline)
        elif not self._has_one_row:
            self._make_pairs(transaction, deadline)
        # on a cursor of their own: a table that cannot be counted would end the transaction
        self._marks = self._engine.marks([table for table, _ in self._pairs.frame.rows.table_versions])
        self._transaction = transaction
        return transaction

    def _make_pairs(self, transaction: Transaction, deadline: float | None) -> UnitCounts:
        """Make the table of pairs if there is none; return the numbers of its units."""
        if self._counts is None:
            self._counts = transaction.make_pairs(
                self._pairs, listed_keys=self._listed, timeout_seconds=seconds_left(deadline)
            )
        return self._counts

    def _make_kept(self, transaction: Transaction, kept: KeptPairs, deadline: float | None) -> None:
        """Make the table of pairs after bounds if there is none, from the pairs if they are there."""
        if self._has_kept:
            return
        # over rows the state in C takes longer than a window if it has room for many groups
        few = (kept.frame.bounding.most_counted or 0) <= MOST_CHOSEN
        if self._counts:
            pairs = self._pairs if all(map(self._pairs.has, kept.needed)) else None
            formulation = self._formulation(kept.frame, self._counts, may_be_in_c=few or pairs is not None)
        else:
            formulation, pairs = fastest_of_groups(kept.frame, has_native=self._engine.has_native and few), None
        transaction.make_kept_pairs(
            kept, formulation, pairs, listed_keys=self._listed, timeout_seconds=seconds_left(deadline)
        )
        self._has_kept = True

    def _formulation(self, frame: Frame, counts: UnitCounts, *, may_be_in_c: bool = True) -> Formulation:
        """Return the formulation of a frame's statement that is about the fastest; all of them have one result.

        The largest number of groups of a unit decides nothing: it may follow from one unit.

        Args:
            frame: what is grouped.
            counts: numbers of units.
            may_be_in_c: whether the aggregate in C may choose groups.

        """
        most = frame.bounding.most_counted
        if most is None or not chooses_groups(frame):
            return "groups_first"
        too_many = sum(units for groups, units in counts.groups if groups > most)
        if self._factor * _FEW * too_many <= sum(units for _, units in counts.groups):
            return "few_choose"
        return fastest_of_groups(frame, has_native=self._engine.has_native and may_be_in_c)


def _histogram(statistic: Statistic, places: Sequence[tuple[int, int]]) -> ExactTable:
    """Return the table of an exact histogram."""
    names = (*histogram_keys(statistic), "units")
    columns = [pa.array([row[i] for row in places], pa.int64()) for i in range(len(names))]
    return ExactTable(pa.table(columns, names))
