"""What the curator declares, as frozen values, and the integers in which it is counted; `rules` says what it may be.

rho is counted in nano-rho (1e-9), delta in multiples of 2**-100 (``delta_units``). Sums of floats drift, sums
of integers do not: a budget can be used to its last unit, and never beyond it.
"""

from __future__ import annotations

import math
import string
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from fractions import Fraction
from typing import Literal

from dpsql.errors import CalibrationError, DpsqlError, PolicyError, StateError

NANO_PER_RHO = 10**9
DELTA_UNITS_PER_ONE = 2**100
# What a signed 64-bit column of the state file holds.
MAX_RHO_NANO = 2**63 - 1


def _units(amount: float | Decimal, noun: str, per_one: int, most: int, error: type[DpsqlError]) -> Fraction:
    """Count an amount in units, by the shortest decimal that names it: 0.3 is three tenths, not the float beside it.

    A budget of 0.3 then pays for a query at 0.3.
    """
    decimal = amount if isinstance(amount, Decimal) else Decimal(repr(float(amount)))
    if not decimal.is_finite() or decimal < 0:
        raise error(f"{noun} must be a finite number that is not negative")
    units = Fraction(decimal) * per_one
    if units > most:
        raise error(f"{noun} must not exceed {most // per_one}")
    return units


def rho_nano_down(rho: float | Decimal) -> int:
    """Return the budget ``rho`` in nano-rho, rounded down.

    >>> rho_nano_down(0.3), rho_nano_down(1e-12)
    (300000000, 0)
    """
    return math.floor(_units(rho, "rho", NANO_PER_RHO, MAX_RHO_NANO, PolicyError))


def delta_units_up(delta: float | Decimal) -> int:
    """Return the price of ``delta`` in multiples of 2**-100, rounded up."""
    return math.ceil(_units(delta, "delta", DELTA_UNITS_PER_ONE, DELTA_UNITS_PER_ONE, CalibrationError))


def delta_units_down(delta: float | Decimal) -> int:
    """Return the budget ``delta`` in multiples of 2**-100, rounded down."""
    return math.floor(_units(delta, "delta", DELTA_UNITS_PER_ONE, DELTA_UNITS_PER_ONE, PolicyError))


def _float_not_above(exact: Fraction) -> float:
    nearest = float(exact)
    return nearest if Fraction(nearest) <= exact else math.nextafter(nearest, 0.0)


def rho_from_nano(rho_nano: int) -> float:
    """Return the largest float that does not exceed the charge: the rho from which noise is calibrated."""
    return _float_not_above(Fraction(rho_nano, NANO_PER_RHO))


def delta_from_units(delta_units: int) -> float:
    """Return the largest float that does not exceed the charge: the delta for which a threshold is set."""
    return _float_not_above(Fraction(delta_units, DELTA_UNITS_PER_ONE))


ASCII_LOWER = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)


def folded_name(name: str) -> str:
    """Return a name of a unit or an analyst as it is compared: spaces around it and the case of A to Z do not count."""
    return name.strip().translate(ASCII_LOWER)


Composition = Literal["gaussian", "zcdp", "pure"]
"""A way in which releases of a unit add up: exactly, as Gaussian noise, or as any noise of which zCDP is known."""


def amount_of(composition: Composition | None) -> str:
    """Return the name of the amounts that a unit counts, as texts have it: rho or epsilon.

    Its nano-rho are nano-epsilons then, in all fields and columns.
    """
    return "epsilon" if composition == "pure" else "rho"


@dataclass(frozen=True, slots=True)
class Unit:
    """A privacy unit and its budget.

    Attributes:
        name: how the curator calls it.
        rho_budget: zCDP in nano-rho, at least 1; in a unit with composition 'pure' nano-epsilons.
        delta_threshold: delta for thresholds, and for the imprecision of draws, in multiples of 2**-100, less than one.
        delta_conversion: the delta at which rho is shown as epsilon, in (0, 1); it is never spent.
        composition: how its releases add up; fixed by the first charge.
        thresholds: whether its tables answer by private keys; fixed by the first charge.

    """

    name: str
    rho_budget: int
    delta_threshold: int
    delta_conversion: float
    composition: Composition = "gaussian"
    thresholds: bool = True

    @property
    def delta_budget(self) -> float:
        """The whole delta as it was declared: for thresholds, or for imprecise draws, and for the conversion."""
        if self.delta_threshold == delta_units_down(self.delta_conversion):
            return 2.0 * self.delta_conversion
        # one part was rounded to units, the other one to a float: the sum has 15 sure digits
        return float(f"{self.delta_threshold / DELTA_UNITS_PER_ONE + self.delta_conversion:.15g}")

    @property
    def default_delta(self) -> float:
        """Delta of a question that names none: a hundredth of the delta for thresholds, or of all without them."""
        if self.thresholds:
            return delta_from_units(self.delta_threshold // 100)
        return self.delta_budget / 100.0


@dataclass(frozen=True, slots=True)
class ProtectedTable:
    """A table that holds rows of a privacy unit, with the defaults of queries on it.

    Attributes:
        table: canonical name.
        unit: name of its privacy unit.
        privacy_unit_column: the column that names the unit's members.
        max_groups: most groups one member may touch, None if every query must say so.
        max_rows_per_group: most rows one member adds to a group, None if every query must say so.
        default_rho: nano-rho; a table has this or ``default_epsilon``, not both.
        default_epsilon: positive and finite.
        default_delta: in (0, 1).
        min_units: private keys of fewer units are never shown, public keys only if their noisy count exceeds it; None
            for no such rule.
        rho_window: lowest and highest level in nano-rho of the window that queries with private keys have.
        rho_ceiling: level in nano-rho at which every statistic is drawn, once; None for no ceiling.
        version: empty in a declaration that leaves the version as it is (the first one is '1').
        separate_people: the curator said that these are not the people of another unit.
        max_rows_norm: most l2 norm of one member's numbers of rows over its groups, None if queries say so.
        max_rows_per_unit: most rows of one member that are read where a norm bounds what it adds; None for any number.
        coverage: whether queries measure what bounds leave, where they do not say.
        time_zone: whose clock days and hours of timestamps with a zone are read on; None for UTC.
        archived: whether its stored answers are all that is served.

    """

    table: str
    unit: str
    privacy_unit_column: str
    max_groups: int | None = None
    max_rows_per_group: int | None = None
    default_rho: int | None = None
    default_epsilon: float | None = None
    default_delta: float | None = None
    min_units: int | None = None
    rho_window: tuple[int, int] | None = None
    rho_ceiling: int | None = None
    version: str = ""
    separate_people: bool = False
    max_rows_norm: float | None = None
    max_rows_per_unit: int | None = None
    coverage: bool = False
    time_zone: str | None = None
    archived: bool = False


@dataclass(frozen=True, slots=True)
class Link:
    """How rows of a table find their unit: each belongs to the row of the parent that has its key.

    Attributes:
        table: canonical name; a protected table whose privacy unit column is that at the end of the chain.
        columns: its columns that hold the parent's key.
        parent: canonical name of another protected table of the same unit.
        parent_columns: the parent's key, unique there.

    """

    table: str
    columns: tuple[str, ...]
    parent: str
    parent_columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ClearedAnalyst:
    """An analyst, what they may be shown, and how much they may spend.

    Attributes:
        name: how the curator calls them.
        rho_limit: highest level in nano-rho of anything that they are shown; None for any level.
        budget_part: most that they may spend of each amount of a unit's budget, in (0, 1]; None for all of it.

    """

    name: str
    rho_limit: int | None
    budget_part: float | None = None

    def part_of(self, amount: int) -> int:
        """Return the most that they may spend of an amount of a budget, rounded down.

        The part is the shortest decimal that names it: 0.3 is three tenths, not the float beside it.

        >>> ClearedAnalyst("ana", None, 0.3).part_of(10), ClearedAnalyst("bob", None).part_of(10)
        (3, 10)
        """
        if self.budget_part is None:
            return amount
        return math.floor(Fraction(repr(self.budget_part)) * amount)


@dataclass(frozen=True, slots=True)
class RememberedTable:
    """The columns (name, type, nullable) of a protected table when it was last declared: it may be dropped since."""

    table: str
    columns: tuple[tuple[str, str, bool], ...]


@dataclass(frozen=True, slots=True)
class TableVersion:
    """A version that a table has or had, and since when."""

    table: str
    version: str
    at: datetime


@dataclass(frozen=True, slots=True)
class PublicTable:
    """A table that holds nothing about any unit; its current version is part of what a query hash covers.

    Attributes:
        decision: why it holds nothing about people, where the curator said so although it looks as if it did.
        readable: whether analysts may see its rows; without it they are only joined.

    """

    table: str
    version: str = ""
    decision: str | None = None
    readable: bool = False


@dataclass(frozen=True, slots=True)
class Domain:
    """What is publicly known of a column.

    Attributes:
        table: canonical name.
        column: its name.
        bounds: lowest and highest value.
        keys: SQL literals of its keys.
        keys_from: the public table and column that list its keys.
        ordered: the members of its ENUM type, in the order in which the curator declared them public.

    """

    table: str
    column: str
    bounds: tuple[float, float] | None = None
    keys: tuple[str, ...] | None = None
    keys_from: tuple[str, str] | None = None
    ordered: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Policy:
    """Everything that is declared, at one moment; each part sorted by name, versions by age.

    ``undone`` is the number of the last declaration of a unit or table that was undone or replaced, and ``last``
    that of the last declaration of any kind; at first 0.
    """

    units: tuple[Unit, ...] = ()
    tables: tuple[ProtectedTable, ...] = ()
    public: tuple[PublicTable, ...] = ()
    domains: tuple[Domain, ...] = ()
    analysts: tuple[ClearedAnalyst, ...] = ()
    links: tuple[Link, ...] = ()
    remembered: tuple[RememberedTable, ...] = ()
    versions: tuple[TableVersion, ...] = ()
    undone: int = 0
    last: int = field(default=0, compare=False)

    def unit(self, name: str) -> Unit | None:
        """Return the privacy unit of this name, None if there is none; names are compared as those of analysts."""
        exact = (unit for unit in self.units if unit.name == name)
        return next(exact, None) or next(
            (unit for unit in self.units if folded_name(unit.name) == folded_name(name)), None
        )

    def declared_unit(self, name: str) -> Unit:
        """Return the privacy unit of a table.

        Raises:
            StateError: there is no such unit.

        """
        found = self.unit(name)
        if found is None:
            raise StateError(f"the privacy unit {name!r} is missing from the state file")
        return found

    def protected_table(self, table: str) -> ProtectedTable | None:
        """Return the protected table of this name, None if there is none."""
        return next((protected for protected in self.tables if protected.table == table), None)

    def is_archived(self, table: str) -> bool:
        """Return True if a table is protected and its stored answers are all that is served."""
        return any(protected.table == table and protected.archived for protected in self.tables)

    def public_table(self, table: str) -> PublicTable | None:
        """Return the public table of this name, None if there is none."""
        return next((public for public in self.public if public.table == table), None)

    def domain(self, table: str, column: str) -> Domain | None:
        """Return what is declared of this column, None if nothing is."""
        return next((domain for domain in self.domains if (domain.table, domain.column) == (table, column)), None)

    def link(self, table: str) -> Link | None:
        """Return how a table is linked, None if it names its unit itself."""
        return next((link for link in self.links if link.table == table), None)

    def analyst(self, name: str) -> ClearedAnalyst | None:
        """Return what is declared of an analyst, None if nothing is.

        Spaces around a name and the case of the letters A to Z do not matter. Of several spellings in an old file the
        one with the lowest limit counts.
        """
        alike = [analyst for analyst in self.analysts if folded_name(analyst.name) == folded_name(name)]
        return min(alike, key=lambda one: MAX_RHO_NANO if one.rho_limit is None else one.rho_limit, default=None)

    def versions_of(self, table: str) -> tuple[TableVersion, ...]:
        """Return all versions of a table, oldest first."""
        return tuple(version for version in self.versions if version.table == table)
