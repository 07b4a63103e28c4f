"""The ledger: what each privacy unit has paid; and the history: what releases were made by, and to whom.

Rows are added, never changed, never taken back. Those of the history are written with the release that they belong to,
once, so that the same question is answered alike again.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, field, replace
from datetime import UTC, datetime

from dpsql.errors import BudgetError, CalibrationError, PolicyError, ReleaseError, StateError
from dpsql.state.database import Database, insert_row
from dpsql.state.policy import DELTA_UNITS_PER_ONE, MAX_RHO_NANO, NANO_PER_RHO
from dpsql.state.records import Additions, Pin, Release, TableMark


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


def read_spent(connection: sqlite3.Connection, unit: str) -> Spent:
    """Add up all charges of ``unit`` inside the caller's transaction."""
    rows = connection.execute("SELECT rho_nano, delta_units FROM charge WHERE unit = ?", (unit,)).fetchall()
    return Spent(sum(rho_nano for rho_nano, _ in rows), sum(int(delta_units) for _, delta_units in rows))


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
    return Spent(sum(row[1] for row in rows), sum(int(row[2]) for row in rows)), [row[0] for row in rows]


def _affordable(
    connection: sqlite3.Connection, unit: str, items: Sequence[ChargeItem]
) -> list[tuple[ChargeItem, list[int]]]:
    """Of each item the part that is not paid yet, and the ids of the charges that pay for the rest.

    Raises:
        BudgetError: these parts exceed what is left.
        PolicyError: there is no such unit.

    """
    found: list[tuple[ChargeItem, list[int]]] = []
    for item in items:
        held, open_ids = _open_charges(connection, unit, item.statistic_hash)
        rho_nano = max(0, item.rho_nano - held.rho_nano)
        delta_units = max(0, item.delta_units - held.delta_units)
        found.append((ChargeItem(item.statistic_hash, rho_nano, delta_units), open_ids))
    new = Spent(sum(item.rho_nano for item, _ in found), sum(item.delta_units for item, _ in found))
    budget, spent = _budget(connection, unit), read_spent(connection, unit)
    left = Spent(budget.rho_nano - spent.rho_nano, budget.delta_units - spent.delta_units)
    if new.rho_nano > left.rho_nano or new.delta_units > left.delta_units:
        raise BudgetError(
            unit,
            requested_rho=new.rho_nano / NANO_PER_RHO,
            remaining_rho=left.rho_nano / NANO_PER_RHO,
            requested_delta=new.delta_units / DELTA_UNITS_PER_ONE,
            remaining_delta=left.delta_units / DELTA_UNITS_PER_ONE,
        )
    return found


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
        if len({item.statistic_hash for item in items}) < len(items):
            raise StateError("a charge lists a statistic twice")
        at = datetime.now(UTC)
        paid: dict[str, Charged] = {}
        with self._database.write() as connection:
            for item, charge_ids in _affordable(connection, unit, items):
                if item.rho_nano or item.delta_units:
                    row = {"unit": unit, **asdict(item), "analyst": analyst, "at": at}
                    charge_ids.append(insert_row(connection, "charge", row, "RETURNING id").fetchone()[0])
                paid[item.statistic_hash] = Charged(item.rho_nano, item.delta_units, tuple(charge_ids))
        return replace(sum(paid.values(), Charged()), by_statistic=paid)


# One row a release and statistic: who was shown it, up to which level, and of which of its independent releases.
_SHOWN = """
SELECT release.analyst, asked.value AS statistic_hash,
       coalesce(told.value ->> 0, max(release.rho_nano, coalesce((
           SELECT max(rho_nano) FROM point WHERE point.statistic_hash = asked.value AND tau IS NOT NULL), 0))
       ) AS rho_nano,
       coalesce(told.value ->> 1, 0) AS source
FROM release, json_each(release.statistics) AS asked
LEFT JOIN json_each(release.levels) AS told ON told.key = asked.key
"""

_LAST_LIST = (
    "SELECT digest FROM key_list WHERE table_name = ? AND column_name = ? AND key_type = ? ORDER BY id DESC LIMIT 1"
)


def record_release(connection: sqlite3.Connection, additions: Additions) -> None:
    """Record a release with what it was made by.

    Raises:
        ReleaseError: AUTO chose otherwise for the same reader and level meanwhile.

    """
    for choice in additions.choices:
        kept = _auto_level(connection, choice.statistic_hash, choice.analyst, choice.share_nano, choice.rho_limit)
        if kept is None:
            connection.execute(
                "INSERT INTO auto_choice (statistic_hash, analyst, share_low, share_high, rho_nano) "
                "VALUES (?1, ?2, ?3, ?3, ?4)",
                (choice.statistic_hash, choice.analyst, choice.share_nano, choice.rho_nano),
            )
        elif kept != choice.rho_nano:
            raise ReleaseError("AUTO chose for the same question of the same reader at this moment; ask again")
    release = additions.release
    if release is not None:
        insert_row(connection, "release", asdict(release))
        # the first mark of a version stays
        connection.executemany(
            "INSERT INTO version_mark (table_name, version, part, value, at) VALUES (?, ?, ?, ?, ?) "
            "ON CONFLICT DO NOTHING",
            [(one.table, one.version, *part, release.at.isoformat()) for one in additions.marks for part in one.parts],
        )
        for listed in additions.lists:
            place = (listed.table, listed.column, listed.key_type)
            if connection.execute(_LAST_LIST, place).fetchone() != (listed.digest,):
                connection.execute(
                    "INSERT INTO key_list (table_name, column_name, key_type, digest, at, keys) "
                    "VALUES (?, ?, ?, ?, ?, ?)",
                    (*place, listed.digest, datetime.now(UTC).isoformat(), listed.blob),
                )
    # what a reader was shown before for the same question stays
    connection.executemany(
        "INSERT INTO pin (analyst, statistic_hash, asked_rho, query_rho, own_release, served_rho, release_rho, "
        "has_threshold) VALUES (lower(?), ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
        map(astuple, additions.pins),
    )


def _auto_level(
    connection: sqlite3.Connection, statistic_hash: str, analyst: str, share_nano: int, rho_limit: int | None
) -> int | None:
    row = connection.execute(
        "SELECT rho_nano FROM auto_choice WHERE statistic_hash = ?1 AND analyst = ?2 "
        "AND ?3 BETWEEN share_low AND share_high AND (?4 IS NULL OR rho_nano <= ?4) ORDER BY id LIMIT 1",
        (statistic_hash, analyst, share_nano, rho_limit),
    ).fetchone()
    return None if row is None else int(row[0])


class ReleaseHistory:
    """The releases of one state, and what they were made by."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def releases(self, analyst: str | None = None) -> tuple[Release, ...]:
        """Return the releases to one analyst, or to all, oldest first."""
        rows = self._database.rows(
            "SELECT analyst, query_hash, at, statistics, levels, mechanism, rho_nano, epsilon, delta, "
            "charged_rho_nano, charged_delta_units, reused, table_versions, changed FROM release "
            "WHERE ?1 IS NULL OR lower(trim(analyst)) = lower(?1) ORDER BY id",
            analyst,
        )
        return tuple(Release(**row) for row in rows)

    def held(self, unit: str, analysts: Sequence[str] | None = None) -> int:
        """Return what some analysts together, or all, were shown of a unit, in nano-rho.

        Of one statistic they hold the highest level that any of them was shown, of several the sum; and of independent
        releases of one statistic likewise. A release that was recorded before levels were counts for each of its
        statistics with its whole rho, or the highest level that keys of it were shown at.
        """
        (row,) = self._database.rows(
            # IN is looked up; a join of two tables without an index would compare each row with each
            f"SELECT coalesce(sum(highest), 0) AS total FROM (SELECT max(rho_nano) AS highest FROM ({_SHOWN}) "
            "WHERE statistic_hash IN (SELECT statistic_hash FROM charge WHERE unit = ?1) "
            "AND (?2 IS NULL OR lower(trim(analyst)) IN (SELECT lower(value) FROM json_each(?2))) "
            "GROUP BY statistic_hash, source)",
            unit,
            None if analysts is None else json.dumps(list(analysts)),
        )
        return int(row["total"])

    def releases_held(self, statistic_hash: str, analyst: str) -> dict[int, int]:
        """Return the highest level that an analyst was shown of each independent release of a statistic."""
        rows = self._database.rows(
            f"SELECT source, max(rho_nano) AS highest FROM ({_SHOWN}) WHERE statistic_hash = ? "
            "AND lower(trim(analyst)) = lower(?) GROUP BY source",
            statistic_hash,
            analyst,
        )
        return {row["source"]: row["highest"] for row in rows}

    def pins(self, statistic_hash: str, analyst: str) -> tuple[Pin, ...]:
        """Return which points of a statistic an analyst was shown, by what was asked for.

        Letters A to Z in names are the same in either case.
        """
        rows = self._database.rows(
            "SELECT analyst, statistic_hash, asked_rho AS asked_rho_nano, query_rho AS query_rho_nano, own_release, "
            "served_rho AS rho_nano, release_rho AS release_rho_nano, has_threshold FROM pin "
            "WHERE statistic_hash = ? AND analyst = lower(?)",
            statistic_hash,
            analyst,
        )
        return tuple(Pin(**row) for row in rows)

    def auto_level(self, statistic_hash: str, analyst: str, share_nano: int, rho_limit: int | None) -> int | None:
        """Return the level of the histogram that AUTO chose by when it answered this reader at this level first.

        Args:
            statistic_hash: the histogram's.
            analyst: who asks.
            share_nano: what the query leaves for the histogram.
            rho_limit: highest level that may choose for the reader; None for any.

        """
        with self._database.read() as connection:
            return _auto_level(connection, statistic_hash, analyst, share_nano, rho_limit)

    def differences(self, mark: TableMark) -> tuple[str, ...]:
        """Names of the parts in which a mark differs from what is kept of its version."""
        rows = self._database.rows(
            "SELECT part, value FROM version_mark WHERE table_name = ? AND version = ?", mark.table, mark.version
        )
        kept = {row["part"]: row["value"] for row in rows}
        return tuple(part for part, value in mark.parts if kept.get(part, value) != value)

    def is_last_list(self, table: str, column: str, key_type: str, digest: str) -> bool:
        """Whether this is the public list of keys that was kept last of a column."""
        return self._database.rows(_LAST_LIST, table, column, key_type) == [{"digest": digest}]

    def list_at(self, table: str, column: str, key_type: str, moment: datetime) -> bytes | None:
        """Return the public list that releases were made by at a moment, as Arrow; None where none was by then."""
        with self._database.read() as connection:
            rows = connection.execute(
                "SELECT at, keys FROM key_list WHERE table_name = ? AND column_name = ? AND key_type = ? "
                "ORDER BY id DESC",
                (table, column, key_type),
            )
            return next((bytes(keys) for at, keys in rows if datetime.fromisoformat(at) <= moment), None)

    def columns_of(self, table: str, version: str) -> tuple[tuple[str, str, bool], ...]:
        """Return the columns (name, type, nullable) that a version had when it was declared last; empty if unknown."""
        rows = self._database.rows(
            "SELECT columns FROM version_columns WHERE table_name = ? AND version = ?", table, version
        )
        return next((row["columns"] for row in rows), ())
