"""Amounts as a reader with a limit sees them, and by which such a reader is refused.

A charge may follow from released numbers of others: where the steps of a question by relative error stopped, or which
bounds AUTO found. Such a reader sees none of these charges. What others may have spent is counted by texts and policy:

- a statistic counts once, at the highest level that any text asked for it, or at the cap of a question by steps,
- a question with AUTO counts once for each reader who asked it, with its claim,
- charges of the reader count as the reader was shown them.

The amounts are functions of texts, policy and what the reader was shown. They are meant to be no less than what was
charged. If they are less (a file of an older format, a killed process, a changed policy), the exact check beside them
refuses: no reader is granted more than the budget has.
"""

from __future__ import annotations

import json
import sqlite3
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from dpsql.errors import BudgetError
from dpsql.state.charges import ChargeItem, Spent, budget_of, left_of_part, open_charges, read_spent
from dpsql.state.policy import DELTA_UNITS_PER_ONE, NANO_PER_RHO, delta_units_up, folded_name

_MOST_RISES = 40
"""More draws of one statistic than a question by steps has."""

_SLACK_BITS = 30
"""One part of a delta in 2**30 covers the imprecision of draws at other levels."""

_RELEASES = """
SELECT analyst, statistics, levels, claim, reused, at FROM release WHERE EXISTS (
    SELECT 1 FROM json_each(release.statistics) AS asked
    JOIN charge ON charge.statistic_hash = asked.value AND charge.unit = ?
)
"""
_OPEN = """
SELECT analyst, statistic_hash, rho_nano, delta_units, coalesce(shown_rho, rho_nano), coalesce(shown_delta, delta_units)
FROM charge LEFT JOIN closed_charge ON charge_id = id WHERE unit = ? AND charge_id IS NULL
"""


def shown_items(
    connection: sqlite3.Connection, unit: str, items: Sequence[ChargeItem], analyst: str
) -> list[tuple[ChargeItem, list[int]]]:
    """Return the part of each item that is not paid yet, as the reader is shown it and as it is taken.

    Args:
        connection: in a transaction.
        unit: the privacy unit.
        items: what is asked for, as the reader is shown it.
        analyst: the reader, who has a limit.

    Returns:
        The parts, and the ids of the charges that pay for the rest.

    Raises:
        BudgetError: the parts exceed what is left of the unit's budget, or of the reader's part of it.

    """
    me, found = folded_name(analyst), []
    own = _own_open(connection, unit, me)
    for item in items:
        held, open_ids = open_charges(connection, unit, item.statistic_hash)
        taken = item.taken or Spent(item.rho_nano, item.delta_units)
        taken = Spent(max(0, taken.rho_nano - held.rho_nano), max(0, taken.delta_units - held.delta_units))
        paid = own[item.statistic_hash]
        rho_nano = max(taken.rho_nano, item.rho_nano - paid.rho_nano)
        delta_units = max(taken.delta_units, item.delta_units - paid.delta_units)
        found.append((replace(item, rho_nano=rho_nano, delta_units=delta_units, taken=taken), open_ids))
    price = Spent(sum(item.rho_nano for item, _ in found), sum(item.delta_units for item, _ in found))
    part = left_of_part(connection, unit, analyst)
    if part and (price.rho_nano > part.rho_nano or price.delta_units > part.delta_units):
        raise BudgetError(
            unit,
            analyst=analyst,
            requested_rho=price.rho_nano / NANO_PER_RHO,
            remaining_rho=part.rho_nano / NANO_PER_RHO,
            requested_delta=price.delta_units / DELTA_UNITS_PER_ONE,
            remaining_delta=part.delta_units / DELTA_UNITS_PER_ONE,
        )
    charges = [item.taken or Spent(item.rho_nano, item.delta_units) for item, _ in found]
    exact = Spent(sum(one.rho_nano for one in charges), sum(one.delta_units for one in charges))
    budget = budget_of(connection, unit)
    shown, true = spent_as_shown(connection, unit, analyst), read_spent(connection, unit)
    if _exceeds(price, budget, shown) or _exceeds(exact, budget, true):
        raise BudgetError.without_amounts(
            unit,
            requested_rho=price.rho_nano / NANO_PER_RHO,
            requested_delta=price.delta_units / DELTA_UNITS_PER_ONE,
            granted_delta=max(0, budget.delta_units - shown.delta_units) / DELTA_UNITS_PER_ONE,
        )
    return found


def _exceeds(price: Spent, budget: Spent, spent: Spent) -> bool:
    """Return whether a price is more than a budget has left."""
    left = Spent(budget.rho_nano - spent.rho_nano, budget.delta_units - spent.delta_units)
    return price.rho_nano > left.rho_nano or price.delta_units > left.delta_units


def spent_as_shown(connection: sqlite3.Connection, unit: str, analyst: str) -> Spent:
    """Return what all readers may have spent of a budget, as far as one reader with a limit may know it."""
    me = folded_name(analyst)
    rows = [_Shown.read(row, me) for row in connection.execute(_RELEASES, (unit,))]
    if all(row.is_own or not row.claim for row in rows):
        # all charges of others follow from texts, and the reader's own ones are as they were shown
        return read_spent(connection, unit)
    book = _Book()
    for row in rows:
        # a question of others that took nothing leaves no less for anybody
        if row.is_own or not (row.claim and row.is_reused):
            book.add(connection, unit, row)
    for reader, _, *taken, shown_rho, shown_delta in connection.execute(_OPEN, (unit,)):
        rho_nano, delta_units = (shown_rho, shown_delta) if folded_name(reader) == me else taken
        book.open.append(Spent(rho_nano, int(delta_units)))
    return book.spent


@dataclass(frozen=True, slots=True)
class _Shown:
    """A release as one reader may know it."""

    is_own: bool
    statistics: tuple[str, ...]
    levels: tuple[Sequence[Any], ...]
    claim: tuple[Any, ...]
    is_reused: bool
    at: str

    @classmethod
    def read(cls, row: tuple[str, str, str, str, int, str], me: str) -> _Shown:
        analyst, statistics, levels, claim, reused, at = row
        return cls(
            folded_name(analyst) == me,
            tuple(json.loads(statistics)),
            tuple(json.loads(levels)),
            tuple(json.loads(claim)),
            bool(reused),
            at,
        )


@dataclass(slots=True)
class _Book:
    """Amounts by statistic and question."""

    levels: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    alone: dict[tuple[str, int], int] = field(default_factory=dict)
    draws: dict[tuple[str, int], int] = field(default_factory=lambda: defaultdict(int))
    cuts: dict[tuple[str, int], int] = field(default_factory=lambda: defaultdict(int))
    claims: dict[str, Spent] = field(default_factory=dict)
    open: list[Spent] = field(default_factory=list)

    def add(self, connection: sqlite3.Connection, unit: str, row: _Shown) -> None:
        """Add what a release may have cost."""
        if not row.is_own and len(row.claim) > 1:
            question, rho_nano, delta_units = row.claim[1:]
            before = self.claims.get(question, Spent(0, 0))
            self.claims[question] = Spent(max(rho_nano, before.rho_nano), max(delta_units, before.delta_units))
            return
        for place, (statistic, level) in enumerate(zip(row.statistics, row.levels, strict=False)):
            if len(level) > 2:
                self._add_level(row, statistic, level)
                # the presence count, which has the threshold, is the first
                if not place:
                    self._add_cut(row, statistic, level)
            elif row.is_own and row.claim:
                # a histogram of AUTO
                self.levels[statistic] = max(self.levels[statistic], level[0])
            else:
                self._add_old(connection, unit, statistic, row.at)

    def _add_level(self, row: _Shown, statistic: str, entry: Sequence[Any]) -> None:
        """Add the level that could be charged for a statistic, and the precision of its draws."""
        level, source = _level_of(row, entry), entry[1]
        if source:
            self.alone[statistic, source] = source
        else:
            self.levels[statistic] = max(self.levels[statistic], level)
        times = _MOST_RISES if row.claim else 1
        at = (statistic, level)
        self.draws[at] = max(self.draws[at], times * delta_units_up(entry[3]))

    def _add_cut(self, row: _Shown, statistic: str, entry: Sequence[Any]) -> None:
        """Add the threshold that could be charged; a window has one for all levels."""
        delta, has_window = entry[4:]
        at = (statistic, 0 if has_window else _level_of(row, entry))
        self.cuts[at] = max(self.cuts[at], delta_units_up(delta))

    def _add_old(self, connection: sqlite3.Connection, unit: str, statistic: str, at: str) -> None:
        """Add the charges of a statistic up to a release that an older program recorded."""
        rows = connection.execute(
            "SELECT rho_nano, delta_units FROM charge WHERE statistic_hash = ? AND unit = ? AND at <= ?",
            (statistic, unit, at),
        ).fetchall()
        self.levels[statistic] = max(self.levels[statistic], sum(rho_nano for rho_nano, _ in rows))
        self.cuts[statistic, 0] = max(self.cuts[statistic, 0], sum(int(delta_units) for _, delta_units in rows))

    @property
    def spent(self) -> Spent:
        """Return both amounts together."""
        others = (*self.claims.values(), *self.open)
        rho_nano = sum(self.levels.values()) + sum(self.alone.values()) + sum(one.rho_nano for one in others)
        delta_units = sum(self.draws.values()) + sum(self.cuts.values()) + sum(one.delta_units for one in others)
        # at the level of a stored point a threshold may cost a little more than at the level that was asked for
        return Spent(rho_nano, delta_units + (delta_units >> _SLACK_BITS))


def _level_of(row: _Shown, entry: Sequence[Any]) -> int:
    """Return the level of a statistic that counts: where the reader's own steps led to, else what could be charged."""
    return int(entry[0] if row.is_own and row.claim else entry[2])


def _own_open(connection: sqlite3.Connection, unit: str, me: str) -> dict[str, Spent]:
    """Return what a reader was shown of charges for statistics of which nothing was stored with that charge."""
    found: dict[str, Spent] = defaultdict(lambda: Spent(0, 0))
    for reader, statistic, _, _, rho_nano, delta_units in connection.execute(_OPEN, (unit,)):
        if folded_name(reader) == me:
            before = found[statistic]
            found[statistic] = Spent(before.rho_nano + rho_nano, before.delta_units + int(delta_units))
    return found
