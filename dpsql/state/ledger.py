"""The ledger: what each privacy unit has paid, and what is left for each reader.

Rows are added, never changed, never taken back.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from dpsql.errors import BudgetError, ReleaseError, StateError
from dpsql.state.age import Age
from dpsql.state.charges import ChargeItem, Spent, budget_of, left_of_part, open_charges, read_spent, spent_by
from dpsql.state.database import Database, insert_row
from dpsql.state.policy import DELTA_UNITS_PER_ONE, NANO_PER_RHO, amount_of, folded_name
from dpsql.state.table_definitions import LAST_UNDONE


@dataclass(frozen=True, slots=True)
class Charged:
    """What a charge took from the budget, and every open charge that now pays for the statistics asked; at first none.

    Attributes:
        rho_nano, delta_units: what was taken.
        charge_ids: the charges that pay, new ones and those that were open.
        by_statistic: the same of each statistic that was asked for, by its hash.

    """

    rho_nano: int = 0
    delta_units: int = 0
    charge_ids: tuple[int, ...] = ()
    by_statistic: Mapping[str, Charged] = field(default_factory=dict, compare=False)

    def __add__(self, other: Charged) -> Charged:
        """Two charges as one, which is no longer told apart by statistics."""
        rho_nano, delta_units = self.rho_nano + other.rho_nano, self.delta_units + other.delta_units
        return Charged(rho_nano, delta_units, tuple(sorted((*self.charge_ids, *other.charge_ids))))

    def part(self, items: Iterable[ChargeItem]) -> Charged:
        """What was charged for some of the statistics."""
        return sum((self.by_statistic[item.statistic_hash] for item in items), Charged())


_HAS_LIMIT = "SELECT 1 FROM analyst WHERE name = ? AND rho_limit IS NOT NULL"


def _left_of_unit(connection: sqlite3.Connection, unit: str) -> Spent:
    """Return what is left of the budget of ``unit`` for all readers together."""
    budget, spent = budget_of(connection, unit), read_spent(connection, unit)
    return Spent(budget.rho_nano - spent.rho_nano, budget.delta_units - spent.delta_units)


def _tighter(left: Spent, part: Spent | None) -> Spent:
    """Return the smaller of two rests, for rho and for delta by itself."""
    if part is None:
        return left
    return Spent(min(left.rho_nano, part.rho_nano), min(left.delta_units, part.delta_units))


HOLDS_FOR: Mapping[str, frozenset[str]] = {
    "gaussian": frozenset({"gaussian"}),
    "zcdp": frozenset({"gaussian", "zcdp"}),
    "pure": frozenset({"pure"}),
}
"""Noise that the budget of a unit can pay for, by the composition of the unit."""


def _affordable(
    connection: sqlite3.Connection, unit: str, items: Sequence[ChargeItem], analyst: str
) -> list[tuple[ChargeItem, list[int]]]:
    """Of each item the part that is not paid yet, and the ids of the charges that pay for the rest.

    Raises:
        BudgetError: these parts exceed what is left of the unit's budget, or of what the analyst may spend of it.
        PolicyError: there is no such unit.
        ReleaseError: the unit's composition does not hold for the noise of an item.

    """
    (own,) = connection.execute("SELECT composition FROM unit WHERE name = ?", (unit,)).fetchone() or (None,)
    if own and not HOLDS_FOR[own].issuperset(item.composition for item in items):
        # a plan says this before, but another process may have changed the unit since
        raise ReleaseError(
            f"the budget of unit {unit!r} became {own!r}, which does not hold for the noise of this question, while it "
            "was asked; nothing was charged. Leave mechanism out, and ask again"
        )
    if connection.execute(_HAS_LIMIT, (analyst,)).fetchone():
        from dpsql.state.shown_amounts import shown_items  # noqa: PLC0415 — few readers have a limit

        return shown_items(connection, unit, items, analyst)
    found: list[tuple[ChargeItem, list[int]]] = []
    for item in items:
        held, open_ids = open_charges(connection, unit, item.statistic_hash)
        rho_nano = max(0, item.rho_nano - held.rho_nano)
        delta_units = max(0, item.delta_units - held.delta_units)
        found.append((replace(item, rho_nano=rho_nano, delta_units=delta_units), open_ids))
    new = Spent(sum(item.rho_nano for item, _ in found), sum(item.delta_units for item, _ in found))
    whole, part = _left_of_unit(connection, unit), left_of_part(connection, unit, analyst)
    left = _tighter(whole, part)
    if new.rho_nano > left.rho_nano or new.delta_units > left.delta_units:
        by_part = (new.rho_nano > left.rho_nano and left.rho_nano < whole.rho_nano) or (
            new.delta_units > left.delta_units and left.delta_units < whole.delta_units
        )
        raise BudgetError(
            unit,
            analyst=analyst if by_part else None,
            requested_rho=new.rho_nano / NANO_PER_RHO,
            remaining_rho=left.rho_nano / NANO_PER_RHO,
            requested_delta=new.delta_units / DELTA_UNITS_PER_ONE,
            remaining_delta=left.delta_units / DELTA_UNITS_PER_ONE,
            amount=amount_of(own),
        )
    return found


class Ledger:
    """Charges against the budgets that the policy declares."""

    def __init__(self, database: Database, age: Age | None) -> None:
        self._database = database
        self._age = age

    def spent(self, unit: str) -> Spent:
        """Return what ``unit`` has paid so far.

        Raises:
            PolicyError: there is no such unit.

        """
        with self._database.read() as connection:
            budget_of(connection, unit)
            return read_spent(connection, unit)

    def left(self, unit: str, analyst: str | None) -> Spent:
        """Return what is left of the budget of ``unit`` for one reader, never less than 0.

        Args:
            unit: name of the privacy unit.
            analyst: the reader, whose part of the budget may be used up before the budget is; None for no part.

        Raises:
            PolicyError: there is no such unit.

        """
        with self._database.read() as connection:
            part = None if analyst is None else left_of_part(connection, unit, analyst)
            return _tighter(_left_of_unit(connection, unit), part)

    def own(self, unit: str, analyst: str) -> tuple[Spent, Spent | None]:
        """Return what one reader was shown of their charges, and what is left of their part; None for no part."""
        with self._database.read() as connection:
            spent = spent_by(connection, unit, folded_name(analyst))
            return spent, left_of_part(connection, unit, analyst)

    def unused(self, unit: str, statistic_hash: str) -> Spent:
        """Return what ``unit`` was charged for a statistic of which nothing was stored with that charge."""
        with self._database.read() as connection:
            return open_charges(connection, unit, statistic_hash)[0]

    def caps_beside(self, unit: str, statistic_hash: str) -> tuple[tuple[int, str, int], ...]:
        """Return caps of a statistic, each with a statistic that was charged together with it, and the cap of that."""
        with self._database.read() as connection:
            rows = connection.execute(
                "SELECT DISTINCT own.cap_nano, other.statistic_hash, other.cap_nano FROM charge AS own "
                "JOIN charge AS other ON (other.unit, other.analyst, other.at) = (own.unit, own.analyst, own.at) "
                "WHERE own.statistic_hash = ? AND own.unit = ? AND own.cap_nano IS NOT NULL "
                "AND other.cap_nano IS NOT NULL",
                (statistic_hash, unit),
            ).fetchall()
        return tuple(rows)

    def require(self, unit: str, items: Sequence[ChargeItem], analyst: str) -> None:
        """Refuse what ``analyst`` could not be charged for now; charges nothing.

        Raises:
            BudgetError: the part of the items that is not paid yet exceeds what is left.
            PolicyError: there is no such unit.
            ReleaseError: the unit's composition does not hold for the noise of an item.

        """
        with self._database.read() as connection:
            _affordable(connection, unit, items, analyst)

    def charge(
        self,
        unit: str,
        items: Sequence[ChargeItem],
        analyst: str,
        planned_at: int | None = None,
        *,
        beside: Mapping[str, Sequence[ChargeItem]] | None = None,
    ) -> Charged:
        """Charge for statistics that are about to be drawn, after what was charged and not stored; durable at the end.

        Args:
            unit: name of the privacy unit.
            items: one per statistic, as asked before anything is used up.
            analyst: who asks.
            planned_at: `Policy.undone` of the plan; None for a charge without a plan.
            beside: items of other units by their names; all units are charged, or none.

        Raises:
            BudgetError, PolicyError: as `require`; nothing was charged.
            ReleaseError: as `require`, or a declaration was undone since the query was planned.
            StateError: a statistic is listed twice, the file could not be written, or the curator has to accept it.
            EngineError: the charge stays, and could not be recorded beside the file.

        """
        asked = {unit: items, **(beside or {})}
        if len({item.statistic_hash for due in asked.values() for item in due}) < sum(map(len, asked.values())):
            raise StateError("a charge lists a statistic twice")
        if self._age:
            self._age.require()
        at = datetime.now(UTC)
        paid: dict[str, Charged] = {}
        last = 0
        with self._database.write() as connection:
            if planned_at not in (None, connection.execute(LAST_UNDONE).fetchone()[0]):
                raise ReleaseError(
                    "the curator undid or replaced a declaration while this question was asked; nothing was charged. "
                    "Ask again"
                )
            due = [(name, *one) for name, due in asked.items() for one in _affordable(connection, name, due, analyst)]
            for name, item, charge_ids in due:
                if item.rho_nano or item.delta_units:
                    row = {
                        "unit": name,
                        "statistic_hash": item.statistic_hash,
                        "rho_nano": item.rho_nano,
                        "delta_units": item.delta_units,
                        "analyst": analyst,
                        "at": at,
                        "cap_nano": item.cap_nano,
                    }
                    if item.taken:
                        row |= {"shown_rho": item.rho_nano, "shown_delta": item.delta_units}
                        row |= {"rho_nano": item.taken.rho_nano, "delta_units": item.taken.delta_units}
                    last = insert_row(connection, "charge", row, "RETURNING id").fetchone()[0]
                    charge_ids.append(last)
                paid[item.statistic_hash] = Charged(item.rho_nano, item.delta_units, tuple(charge_ids))
        if self._age and last:
            self._age.tell(last, at)
        return replace(sum(paid.values(), Charged()), by_statistic=paid)
