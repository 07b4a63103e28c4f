"""The ledger: what each privacy unit has paid. Rows are added, never changed, never taken back."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from dpsql.errors import BudgetError, CalibrationError, PolicyError, StateError
from dpsql.state.policy import DELTA_UNITS_PER_ONE, MAX_RHO_NANO, NANO_PER_RHO
from dpsql.state.schema import Database


@dataclass(frozen=True, slots=True)
class Spent:
    """What a unit has paid so far: rho in nano-rho, threshold delta in multiples of 2**-100."""

    rho_nano: int
    delta_units: int


@dataclass(frozen=True, slots=True)
class ChargeItem:
    """What one statistic asks for: rho in nano-rho, threshold delta in multiples of 2**-100.

    Raises:
        CalibrationError: the delta of its parts adds up to more than 1, or its rho to more than an amount holds.
        StateError: an amount is not a whole number from 0 up.

    """

    statistic_hash: str
    rho_nano: int
    delta_units: int

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


@dataclass(frozen=True, slots=True)
class Charged:
    """What a charge took from the budget, and every open charge that now pays for the statistics asked.

    Attributes:
        rho_nano, delta_units: what was taken.
        charge_ids: the charges that pay, new ones and those that were open.
        by_statistic: the same of each statistic that was asked for, by its hash.

    """

    rho_nano: int
    delta_units: int
    charge_ids: tuple[int, ...]
    by_statistic: Mapping[str, Charged] = field(default_factory=dict, compare=False)

    @classmethod
    def nothing(cls) -> Charged:
        """Where nothing was to be paid."""
        return cls(0, 0, ())

    def beside(self, other: Charged) -> Charged:
        """Two charges as one."""
        return Charged(
            self.rho_nano + other.rho_nano,
            self.delta_units + other.delta_units,
            (*self.charge_ids, *other.charge_ids),
            {**self.by_statistic, **other.by_statistic},
        )

    def part(self, items: Iterable[ChargeItem]) -> Charged:
        """What was charged for some of the statistics."""
        paid = {item.statistic_hash: self.by_statistic[item.statistic_hash] for item in items}
        return _together(paid)


def _together(paid: Mapping[str, Charged]) -> Charged:
    return Charged(
        sum(one.rho_nano for one in paid.values()),
        sum(one.delta_units for one in paid.values()),
        tuple(sorted(charge_id for one in paid.values() for charge_id in one.charge_ids)),
        paid,
    )


def read_spent(connection: sqlite3.Connection, unit: str) -> Spent:
    """Add up all charges of ``unit`` inside the caller's transaction."""
    rho_nano = delta_units = 0
    rows = connection.execute("SELECT rho_nano, delta_units FROM charge WHERE unit = ?", (unit,))
    for row_rho, row_delta in rows:
        rho_nano += row_rho
        delta_units += int(row_delta)
    return Spent(rho_nano, delta_units)


def _budget(connection: sqlite3.Connection, unit: str) -> Spent:
    row = connection.execute("SELECT rho_budget, delta_threshold FROM unit WHERE name = ?", (unit,)).fetchone()
    if row is None:
        raise PolicyError(f"there is no privacy unit {unit!r}")
    return Spent(row[0], int(row[1]))


def _open_charges(connection: sqlite3.Connection, unit: str, statistic_hash: str) -> tuple[Spent, list[int]]:
    """Return the sum and ids of what was charged for the statistic and never stored, hence never shown."""
    rows = connection.execute(
        "SELECT id, rho_nano, delta_units FROM charge LEFT JOIN closed_charge ON charge_id = id "
        "WHERE statistic_hash = ? AND unit = ? AND charge_id IS NULL ORDER BY id",
        (statistic_hash, unit),
    ).fetchall()
    total = Spent(sum(row[1] for row in rows), sum(int(row[2]) for row in rows))
    return total, [row[0] for row in rows]


class Ledger:
    """Charges against the budgets that the policy declares."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def spent(self, unit: str) -> Spent:
        """Return what ``unit`` has paid so far.

        Raises:
            PolicyError: there is no such unit.

        """
        with self._database.read() as connection:
            _budget(connection, unit)
            return read_spent(connection, unit)

    def require(self, unit: str, items: Sequence[ChargeItem]) -> None:
        """Refuse what could not be charged now; charges nothing.

        Raises:
            BudgetError: the part of the items that is not paid yet exceeds what is left.
            PolicyError: there is no such unit.

        """
        with self._database.read() as connection:
            _affordable(connection, unit, items)

    def charge(self, unit: str, items: Sequence[ChargeItem], analyst: str) -> Charged:
        """Charge ``unit`` for statistics that are about to be drawn; durable when this returns.

        What was charged for a statistic earlier and never stored is used up first, so only the missing part
        of rho and of delta is taken. The check against the budget and the rows are one transaction: of
        several processes that ask for the last of a budget, one gets it.

        Args:
            unit: name of the privacy unit.
            items: one per statistic; nano-rho and delta units, as asked before anything is used up.
            analyst: who asks.

        Raises:
            BudgetError: the missing part exceeds what is left; nothing was charged.
            PolicyError: there is no such unit.
            StateError: a statistic is listed twice, or the file could not be written.

        """
        hashes = [item.statistic_hash for item in items]
        if len(set(hashes)) != len(hashes):
            raise StateError("a charge lists a statistic twice")
        at = datetime.now(UTC).isoformat()
        with self._database.write() as connection:
            found = _affordable(connection, unit, items)
            for item, charge_ids in found:
                if not item.rho_nano and not item.delta_units:
                    continue
                cursor = connection.execute(
                    "INSERT INTO charge (unit, statistic_hash, rho_nano, delta_units, analyst, at) "
                    "VALUES (?, ?, ?, ?, ?, ?) RETURNING id",
                    (unit, item.statistic_hash, item.rho_nano, str(item.delta_units), analyst, at),
                )
                charge_ids.append(cursor.fetchone()[0])
        paid = {
            item.statistic_hash: Charged(item.rho_nano, item.delta_units, tuple(charge_ids))
            for item, charge_ids in found
        }
        return _together(paid)


def _affordable(
    connection: sqlite3.Connection, unit: str, items: Sequence[ChargeItem]
) -> list[tuple[ChargeItem, list[int]]]:
    """Of each item the missing part, and the ids of the charges that pay for the rest.

    Raises:
        BudgetError: the missing parts exceed what is left.

    """
    found: list[tuple[ChargeItem, list[int]]] = []
    for item in items:
        held, open_ids = _open_charges(connection, unit, item.statistic_hash)
        rho_nano = max(0, item.rho_nano - held.rho_nano)
        delta_units = max(0, item.delta_units - held.delta_units)
        found.append((ChargeItem(item.statistic_hash, rho_nano, delta_units), open_ids))
    missing = [item for item, _ in found]
    new = Spent(sum(item.rho_nano for item in missing), sum(item.delta_units for item in missing))
    _check_budget(unit, _budget(connection, unit), read_spent(connection, unit), new)
    return found


def _check_budget(unit: str, budget: Spent, spent: Spent, new: Spent) -> None:
    left = Spent(budget.rho_nano - spent.rho_nano, budget.delta_units - spent.delta_units)
    if new.rho_nano > left.rho_nano or new.delta_units > left.delta_units:
        raise BudgetError(
            unit,
            requested_rho=new.rho_nano / NANO_PER_RHO,
            remaining_rho=left.rho_nano / NANO_PER_RHO,
            requested_delta=new.delta_units / DELTA_UNITS_PER_ONE,
            remaining_delta=left.delta_units / DELTA_UNITS_PER_ONE,
        )
