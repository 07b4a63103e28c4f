"""Charges of a unit in a state file, as the ledger and the amounts of readers add them up inside a transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass

from dpsql.errors import CalibrationError, PolicyError, StateError
from dpsql.state.policy import DELTA_UNITS_PER_ONE, MAX_RHO_NANO, ClearedAnalyst, Composition, folded_name


@dataclass(frozen=True, slots=True)
class Spent:
    """Amounts that a unit has paid: rho in nano-rho, threshold delta in multiples of 2**-100."""

    rho_nano: int
    delta_units: int

    def times(self, price: Spent) -> int:
        """Return how often a price can be paid from this amount; 0 if the price is nothing.

        >>> rest = Spent(rho_nano=100, delta_units=7)
        >>> [rest.times(Spent(30, units)) for units in (0, 4, 8)], Spent(-1, 7).times(Spent(30, 4))
        ([3, 1, 0], 0)
        """
        amounts = ((self.rho_nano, price.rho_nano), (self.delta_units, price.delta_units))
        return min((max(left, 0) // each for left, each in amounts if each), default=0)


@dataclass(frozen=True, slots=True)
class ChargeItem:
    """Price of one statistic: rho in nano-rho, threshold delta in multiples of 2**-100.

    Attributes:
        statistic_hash: of the statistic.
        rho_nano, delta_units: the amounts.
        composition: how its noise adds up, as the unit's composition needs.
        taken: what the ledger takes, if less than the amounts, which a reader with a limit is shown; None if all of it.
        cap_nano: highest level in nano-rho that the question could have reached for the statistic, if released numbers
            choose the level; None if the level follows from text and policy alone.

    Raises:
        CalibrationError: the delta of its parts adds up to more than 1, or its rho to more than an amount holds.
        StateError: an amount is not a whole number from 0 up.

    """

    statistic_hash: str
    rho_nano: int
    delta_units: int
    composition: Composition = "gaussian"
    cap_nano: int | None = None
    taken: Spent | None = None

    def __post_init__(self) -> None:
        for amount, most in ((self.rho_nano, MAX_RHO_NANO), (self.delta_units, DELTA_UNITS_PER_ONE)):
            # Exactly int: a float, a bool or a NaN must not reach a sum.
            if type(amount) is not int or amount < 0:
                raise StateError("a charge is counted in whole units, from 0 up")
            if amount > most:
                raise CalibrationError(
                    "threshold and finite precision of the noise would cost a delta above 1 together, or the noise a "
                    "rho beyond all budgets: ask for less epsilon or rho, or for less delta"
                )


def read_spent(connection: sqlite3.Connection, unit: str) -> Spent:
    """Add up all charges of ``unit`` inside the caller's transaction."""
    return _sum(connection.execute("SELECT rho_nano, delta_units FROM charge WHERE unit = ?", (unit,)))


def _sum(rows: Iterable[tuple[int, str]]) -> Spent:
    """Add up amounts as the state file holds them: delta is decimal text."""
    found = [(rho_nano, int(delta_units)) for rho_nano, delta_units in rows]
    return Spent(sum(rho_nano for rho_nano, _ in found), sum(delta_units for _, delta_units in found))


def budget_of(connection: sqlite3.Connection, unit: str) -> Spent:
    """Return the budget of ``unit`` inside the caller's transaction."""
    row = connection.execute("SELECT rho_budget, delta_threshold FROM unit WHERE name = ?", (unit,)).fetchone()
    if row is None:
        raise PolicyError(f"there is no privacy unit {unit!r}")
    return Spent(row[0], int(row[1]))


def left_of_part(connection: sqlite3.Connection, unit: str, analyst: str) -> Spent | None:
    """Return what is left of the part of the budget that ``analyst`` may spend, or None if no part is declared.

    Charges count by the name of who asked, in any spelling, and whether or not their release was stored.
    """
    rows = connection.execute("SELECT name, rho_limit, budget_part FROM analyst WHERE budget_part IS NOT NULL")
    name = folded_name(analyst)
    declared = [one for one in (ClearedAnalyst(*row) for row in rows) if folded_name(one.name) == name]
    if not declared:
        return None
    budget, spent = budget_of(connection, unit), spent_by(connection, unit, name)
    return Spent(
        max(0, min(one.part_of(budget.rho_nano) for one in declared) - spent.rho_nano),
        max(0, min(one.part_of(budget.delta_units) for one in declared) - spent.delta_units),
    )


def spent_by(connection: sqlite3.Connection, unit: str, name: str) -> Spent:
    """Add up the charges of ``unit`` by one analyst, whose name is folded, as they were shown to the analyst."""
    readers = connection.execute("SELECT DISTINCT analyst FROM charge WHERE unit = ?", (unit,)).fetchall()
    return _sum(
        row
        for (reader,) in readers
        if folded_name(reader) == name
        for row in connection.execute(
            "SELECT coalesce(shown_rho, rho_nano), coalesce(shown_delta, delta_units) FROM charge "
            "WHERE unit = ? AND analyst = ?",
            (unit, reader),
        )
    )


def open_charges(connection: sqlite3.Connection, unit: str, statistic_hash: str) -> tuple[Spent, list[int]]:
    """Return the sum and ids of what was charged for the statistic and never stored, hence never shown."""
    rows = connection.execute(
        "SELECT id, rho_nano, delta_units FROM charge LEFT JOIN closed_charge ON charge_id = id "
        "WHERE statistic_hash = ? AND unit = ? AND charge_id IS NULL ORDER BY id",
        (statistic_hash, unit),
    ).fetchall()
    return Spent(sum(row[1] for row in rows), sum(int(row[2]) for row in rows)), [row[0] for row in rows]
