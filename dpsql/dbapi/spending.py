"""The cap of a connection: a share of each unit's budget that its questions may be charged.

A price is read from ``dp_explain`` before the question is asked. It follows from policy, text and past releases.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal

from dpsql.errors import AccessError, BudgetError, CalibrationError, PolicyError, QueryError
from dpsql.session import Receipt, Result

BEFORE_A_CHARGE = (QueryError, PolicyError, BudgetError, AccessError, CalibrationError)
"""Errors of questions that were refused, and not charged. After any other error a charge may stay."""
_OF_ALL_PARTS = "all parts of unit "
_MORE = re.compile(r"rho = (\S+) more\b")
"""The price of the row of other groups, which a plan states beside that of the groups."""
_SIX_DIGITS = Decimal("1.000001")
"""A plan states a delta with six digits."""


@dataclass(frozen=True, slots=True)
class Amounts:
    """A price, a charge or a budget of one unit.

    Attributes:
        level: rho, or epsilon of a pure unit.
        delta: threshold delta.
        name: ``rho`` or ``epsilon``.

    """

    level: Decimal
    delta: Decimal
    name: str = "rho"

    def __add__(self, other: Amounts) -> Amounts:
        return Amounts(self.level + other.level, self.delta + other.delta, self.name)

    def __sub__(self, other: Amounts) -> Amounts:
        return Amounts(self.level - other.level, self.delta - other.delta, self.name)

    def times(self, share: Decimal) -> Amounts:
        """Return a share of the amounts."""
        return Amounts(self.level * share, self.delta * share, self.name)

    def covers(self, price: Amounts) -> bool:
        """Return whether the amounts are at least a price; of what costs nothing, nothing is needed."""
        pairs = ((price.level, self.level), (price.delta, self.delta))
        return all(asked <= left * _SIX_DIGITS for asked, left in pairs if asked)


Price = Mapping[str, Amounts]
"""Maps each privacy unit to what it pays."""


class Cap:
    """A share of each unit's budget, and the charges of one connection; they are counted in memory.

    Args:
        share: from 0 to 1.

    """

    def __init__(self, share: float) -> None:
        self._share = Decimal(str(share))
        self._spent: dict[str, Amounts] = {}
        self._lock = threading.Lock()

    def reserve(self, price: Price, budgets: Price) -> None:
        """Count a price, or refuse it before anything is charged.

        Args:
            price: by unit.
            budgets: of all units, by unit.

        Raises:
            BudgetError: it is more than the cap leaves. Nothing is counted.

        """
        with self._lock:
            for unit, asked in price.items():
                none = Amounts(Decimal(0), Decimal(0), asked.name)
                left = budgets[unit].times(self._share) - self._spent.get(unit, none)
                if not left.covers(asked):
                    raise self._refusal(unit, asked, left)
            self._add(price)

    def settle(self, price: Price, charged: Price) -> None:
        """Replace a price that was counted by the charge."""
        with self._lock:
            for unit, amounts in price.items():
                self._spent[unit] -= amounts
            self._add(charged)

    def _add(self, price: Price) -> None:
        for unit, amounts in price.items():
            self._spent[unit] = self._spent[unit] + amounts if unit in self._spent else amounts

    def _refusal(self, unit: str, asked: Amounts, left: Amounts) -> BudgetError:
        """Return the error of a price above the cap, in words of this connection."""
        rest = Amounts(max(left.level, Decimal(0)), max(left.delta, Decimal(0)), left.name)
        error = BudgetError(
            unit,
            requested_rho=float(asked.level),
            remaining_rho=float(rest.level),
            requested_delta=float(asked.delta),
            remaining_delta=float(rest.delta),
            amount=asked.name,
        )
        return error.at_level(
            f"spend_at_most = {self._share} of this connection does not cover this query: it costs "
            f"{_shown(asked)} of unit {unit!r}, and {_shown(rest)} are left. Nothing was charged. Ask for less, repeat "
            "an earlier query, or open a connection with a larger spend_at_most."
        )


def _shown(amounts: Amounts) -> str:
    return f"{amounts.name} = {float(amounts.level):.6g} and threshold delta = {float(amounts.delta):.6g}"


def budgets_of(table: Result) -> Price:
    """Return the budget of each unit, from the table of ``dp_budget()``."""
    rows = [dict(zip(table.columns, row, strict=True)) for row in table]
    return {str(row["unit"]): _budget(row) for row in rows}


def _budget(row: Mapping[str, object]) -> Amounts:
    name = "epsilon" if row["rho_budget"] is None else "rho"
    return Amounts(_exact(row[f"{name}_budget"]), _exact(row["threshold_delta_budget"]), name)


def stated_price(plan: Result) -> Price:
    """Return what each payer pays, by the words that the plan has for it; empty if the question is free.

    Args:
        plan: the table of ``dp_explain(…)``.

    Raises:
        PolicyError: the plan states no price.

    """
    rows = [(str(section), str(name), str(value)) for section, name, value in plan]
    together = {section for section, _, _ in rows if section.startswith(_OF_ALL_PARTS)}
    if together:
        found = {one.removeprefix(_OF_ALL_PARTS): _amounts(rows, one) for one in together}
    else:
        payer = next((value for _, name, value in rows if name == "privacy unit"), "")
        more = [Decimal(told[1]) for _, name, value in rows if name == "price" and (told := _MORE.match(value))]
        found = {payer: _amounts(rows, "price") + Amounts(sum(more, Decimal(0)), Decimal(0))}
    return {payer: price for payer, price in found.items() if price.level or price.delta}


def price_by_unit(stated: Price, units: Iterable[str]) -> Price:
    """Return what each unit pays.

    Args:
        stated: prices by payer: a unit, or the sentence on a unit and its column.
        units: names of all units.

    Raises:
        PolicyError: a payer is no unit.

    """
    found: dict[str, Amounts] = {}
    for payer, price in stated.items():
        named = [unit for unit in units if payer == unit or payer.startswith(f"{unit}, by ")]
        if not named:
            raise _unread()
        unit = max(named, key=len)
        found[unit] = found[unit] + price if unit in found else price
    return found


def _amounts(rows: Iterable[tuple[str, str, str]], section: str) -> Amounts:
    """Return the price that a section of a plan states."""
    found = {name: value.partition(",")[0] for place, name, value in rows if place == section}
    name = "epsilon" if "epsilon" in found else "rho"
    try:
        return Amounts(Decimal(found[name]), Decimal(found.get("threshold delta", "0")), name)
    except (KeyError, ArithmeticError):
        pass
    raise _unread()


def _unread() -> PolicyError:
    return PolicyError("spend_at_most cannot be checked: the plan of this query states no price of a privacy unit")


def charge_of(receipt: Receipt | None, price: Price) -> Price:
    """Return the charge of an answer: that of its receipt, or the price if several units paid."""
    if receipt is None or receipt.reused:
        return {}
    if not price or (len(price) == 1 and receipt.unit in price):
        return {receipt.unit: Amounts(_exact(receipt.charged_rho), _exact(receipt.charged_delta), receipt.amount)}
    return price


def _exact(value: object) -> Decimal:
    return Decimal(str(value))
