"""The state of one data owner: the policy that the curator declared, and the way to ledger and side table."""

from __future__ import annotations

import copy
import dataclasses
import json
import os
import sqlite3
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType

from dpsql.errors import PolicyError
from dpsql.state.key_lists import KeyLists
from dpsql.state.ledger import Ledger, read_spent
from dpsql.state.locks import Locks
from dpsql.state.marks import Marks
from dpsql.state.policy import (
    ClearedAnalyst,
    Domain,
    Link,
    Policy,
    ProtectedTable,
    PublicTable,
    RememberedTable,
    TableVersion,
    Unit,
)
from dpsql.state.schema import Database
from dpsql.state.side_table import SideTable
from dpsql.state.withdrawals import require_unread

_CURRENT_VERSION = "(SELECT version FROM table_version WHERE table_name = name ORDER BY number DESC LIMIT 1) AS version"
_PROTECTED = (
    "SELECT name, unit, privacy_unit_column, max_groups, max_rows_per_group, default_rho, default_epsilon, "
    f"default_delta, min_units, rho_window_low, rho_window_high, rho_ceiling, separate_people, {_CURRENT_VERSION} "
    "FROM protected_table"
)


def _read_units(connection: sqlite3.Connection) -> tuple[Unit, ...]:
    rows = connection.execute("SELECT name, rho_budget, delta_threshold, delta_conversion FROM unit ORDER BY name")
    return tuple(Unit(name, rho, int(threshold), conversion) for name, rho, threshold, conversion in rows)


def _read_protected(connection: sqlite3.Connection) -> tuple[ProtectedTable, ...]:
    found = []
    for *settings, low, high, ceiling, separate, version in connection.execute(f"{_PROTECTED} ORDER BY name"):
        window = None if low is None else (low, high)
        declared = ProtectedTable(*settings)
        found.append(
            dataclasses.replace(
                declared, rho_window=window, rho_ceiling=ceiling, version=version, separate_people=bool(separate)
            )
        )
    return tuple(found)


def _read_public(connection: sqlite3.Connection) -> tuple[PublicTable, ...]:
    rows = connection.execute(f"SELECT name, {_CURRENT_VERSION}, decision FROM public_table ORDER BY name")
    return tuple(PublicTable(*row) for row in rows)


def _read_domains(connection: sqlite3.Connection) -> tuple[Domain, ...]:
    rows = connection.execute(
        "SELECT table_name, column_name, low, high, keys, keys_from_table, keys_from_column "
        "FROM domain ORDER BY table_name, column_name"
    )
    return tuple(
        Domain(
            table,
            column,
            bounds=None if low is None else (low, high),
            keys=None if keys is None else tuple(json.loads(keys)),
            keys_from=None if from_table is None else (from_table, from_column),
        )
        for table, column, low, high, keys, from_table, from_column in rows
    )


def _read_policy(connection: sqlite3.Connection) -> Policy:
    return Policy(
        units=_read_units(connection),
        tables=_read_protected(connection),
        public=_read_public(connection),
        domains=_read_domains(connection),
        analysts=tuple(
            ClearedAnalyst(*row) for row in connection.execute("SELECT name, rho_limit FROM analyst ORDER BY name")
        ),
        links=tuple(
            Link(table, tuple(json.loads(columns)), parent, tuple(json.loads(parent_columns)))
            for table, columns, parent, parent_columns in connection.execute(
                "SELECT name, columns, parent, parent_columns FROM link ORDER BY name"
            )
        ),
        remembered=tuple(
            RememberedTable(name, tuple((column, kind, nullable) for column, kind, nullable in json.loads(columns)))
            for name, columns in connection.execute("SELECT name, columns FROM remembered_table ORDER BY name")
        ),
        versions=tuple(
            TableVersion(table, version, datetime.fromisoformat(at))
            for table, version, at in connection.execute(
                "SELECT table_name, version, at FROM table_version ORDER BY table_name, number"
            )
        ),
    )


def _write_row(connection: sqlite3.Connection, table: str, row: dict[str, object]) -> None:
    """Insert the row or update the one with its primary key; a REPLACE would break references to it."""
    names = ", ".join(row)
    marks = ", ".join("?" for _ in row)
    updates = ", ".join(f"{name} = excluded.{name}" for name in row)
    connection.execute(
        f"INSERT INTO {table} ({names}) VALUES ({marks}) ON CONFLICT DO UPDATE SET {updates}",
        tuple(row.values()),
    )


def _record(
    connection: sqlite3.Connection,
    declaration: Unit | ProtectedTable | PublicTable | Domain | ClearedAnalyst | Link,
    **more: bool,
) -> None:
    """Add to the history of declarations."""
    connection.execute(
        "INSERT INTO policy_log (at, noun, declaration) VALUES (?, ?, ?)",
        (
            datetime.now(UTC).isoformat(),
            type(declaration).__name__,
            json.dumps({**dataclasses.asdict(declaration), **more}),
        ),
    )


def _versions(connection: sqlite3.Connection, table: str) -> list[str]:
    """Return all versions that the table ever had, oldest first."""
    rows = connection.execute("SELECT version FROM table_version WHERE table_name = ? ORDER BY number", (table,))
    return [row[0] for row in rows]


def _add_version(connection: sqlite3.Connection, table: str, version: str | None) -> str:
    used = _versions(connection, table)
    if version is None:
        number = len(used) + 1
        while str(number) in used:
            number += 1
        version = str(number)
    if not version:
        raise PolicyError(f"a version of table {table!r} needs a name")
    if version in used:
        raise PolicyError(f"table {table!r} had version {version!r} before; answers to it are stored under that name")
    connection.execute(
        "INSERT INTO table_version (table_name, number, version, at) VALUES (?, ?, ?, ?)",
        (table, len(used) + 1, version, datetime.now(UTC).isoformat()),
    )
    return version


def _settle_version(connection: sqlite3.Connection, table: str, declared: str) -> str:
    """Return the version under which a declaration is stored; only ``new_version`` moves an existing one."""
    used = _versions(connection, table)
    if not used:
        return _add_version(connection, table, declared or None)
    if declared not in ("", used[-1]):
        raise PolicyError(f"table {table!r} is at version {used[-1]!r}; declare {declared!r} as a new version of it")
    return used[-1]


class State:
    """The policy, ledger and side table of one data owner, in one file or in memory; threads share it.

    Attributes:
        ledger: what each privacy unit has paid.
        side_table: frames, keys, points, releases.
        key_lists: public lists of keys that releases were made by.
        marks: what was seen of tables when their versions were first read.
        locks: one release of a frame at a time.

    """

    def __init__(self, database: Database, *, lock_timeout_seconds: float) -> None:
        self._database = database
        self._lock_timeout_seconds = lock_timeout_seconds
        self._terms: Callable[[Policy], Policy] | None = None
        folder = None if database.path is None else database.path.with_name(f"{database.path.name}-locks")
        self.ledger = Ledger(database)
        self.side_table = SideTable(database)
        self.marks = Marks(database)
        self.key_lists = KeyLists(database)
        self.locks = Locks(folder, timeout_seconds=lock_timeout_seconds)

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str] | None,
        *,
        create: bool,
        busy_timeout_seconds: float = 30.0,
        lock_timeout_seconds: float = 600.0,
    ) -> State:
        """Open the state; an older format is migrated after a backup beside the file.

        Args:
            path: the file, or None for a state in memory that ends with the process.
            create: whether a missing file is created.
            busy_timeout_seconds: how long a write waits for the writes of others.
            lock_timeout_seconds: how long a release waits for another one of the same frame.

        Raises:
            StateError: the file is missing, of a newer format, not a state file, or damaged.

        """
        database = Database.open(
            None if path is None else Path(path), create=create, busy_timeout_seconds=busy_timeout_seconds
        )
        return cls(database, lock_timeout_seconds=lock_timeout_seconds)

    def copied(self) -> State:
        """A copy in memory: what is declared or charged in it happens nowhere else."""
        return State(self._database.copied(), lock_timeout_seconds=self._lock_timeout_seconds)

    @property
    def path(self) -> Path | None:
        """The state file, None in memory."""
        return self._database.path

    def policy(self) -> Policy:
        """Return everything that is declared now."""
        with self._database.read() as connection:
            policy = _read_policy(connection)
        return policy if self._terms is None else self._terms(policy)

    def with_terms(self, terms: Callable[[Policy], Policy]) -> State:
        """The same state, whose policy is read with what one query says in addition; declarations do not see it."""
        state = copy.copy(self)
        state._terms = terms
        return state

    def declare_unit(self, unit: Unit) -> None:
        """Declare a privacy unit or change its budget; the same declaration again does nothing.

        Raises:
            PolicyError: the new budget is below what the unit has paid.

        """
        with self._database.write() as connection:
            if _read_policy(connection).unit(unit.name) == unit:
                return
            spent = read_spent(connection, unit.name)
            if unit.rho_budget < spent.rho_nano or unit.delta_threshold < spent.delta_units:
                raise PolicyError(f"the budget of unit {unit.name!r} cannot be less than what it has paid")
            _write_row(
                connection,
                "unit",
                {
                    "name": unit.name,
                    "rho_budget": unit.rho_budget,
                    "delta_threshold": str(unit.delta_threshold),
                    "delta_conversion": float(unit.delta_conversion),
                },
            )
            _record(connection, unit)

    def declare_protected(self, protected: ProtectedTable, link: Link | None = None) -> None:
        """Make a table a member of a privacy unit, or change its settings (all but unit, version and link).

        Raises:
            PolicyError: there is no such unit, the table belongs to another unit or is public, its link is another one
                than before, or the version is neither empty nor the current one.

        """
        with self._database.write() as connection:
            policy = _read_policy(connection)
            if policy.unit(protected.unit) is None:
                raise PolicyError(f"there is no privacy unit {protected.unit!r}")
            if policy.public_table(protected.table) is not None:
                raise PolicyError(f"table {protected.table!r} is public; what was public cannot be protected")
            before = policy.protected_table(protected.table)
            if before is not None and before.unit != protected.unit:
                raise PolicyError(
                    f"table {protected.table!r} belongs to unit {before.unit!r}, which never changes under "
                    "the same name"
                )
            if link is not None and policy.protected_table(link.parent) is None:
                raise PolicyError(f"table {link.parent!r} is not protected, so no table can be linked to it")
            if before is not None and policy.link(protected.table) != link:
                raise PolicyError(
                    f"how rows of table {protected.table!r} find their unit is declared already and never changes "
                    "under the same name"
                )
            version = _settle_version(connection, protected.table, protected.version)
            after = dataclasses.replace(protected, version=version)
            if after == before:
                return
            row = dataclasses.asdict(after)
            del row["version"]
            row["rho_window_low"], row["rho_window_high"] = row.pop("rho_window") or (None, None)
            _write_row(connection, "protected_table", {"name": row.pop("table"), **row})
            _record(connection, after)
            if link is not None and before is None:
                columns, parent_columns = json.dumps(link.columns), json.dumps(link.parent_columns)
                _write_row(
                    connection,
                    "link",
                    {
                        "name": link.table,
                        "columns": columns,
                        "parent": link.parent,
                        "parent_columns": parent_columns,
                    },
                )
                _record(connection, link)

    def declare_analyst(self, analyst: ClearedAnalyst) -> None:
        """Declare what an analyst may be shown, from now on."""
        with self._database.write() as connection:
            policy = _read_policy(connection)
            before = policy.analyst(analyst.name)
            if before is not None:
                analyst = dataclasses.replace(analyst, name=before.name)
            if before == analyst:
                return
            for other in policy.analysts:
                # an old file may hold one name in several spellings
                if other != before and policy.analyst(other.name) == before:
                    connection.execute("DELETE FROM analyst WHERE name = ?", (other.name,))
            _write_row(connection, "analyst", dataclasses.asdict(analyst))
            _record(connection, analyst)

    def remember(self, table: RememberedTable) -> None:
        """Remember the columns of a protected table in its current version, for plans once they are gone."""
        columns = json.dumps(table.columns)
        with self._database.write() as connection:
            _write_row(connection, "remembered_table", {"name": table.table, "columns": columns})
            version = _versions(connection, table.table)[-1]
            _write_row(
                connection, "version_columns", {"table_name": table.table, "version": version, "columns": columns}
            )

    def list_at(self, table: str, column: str, key_type: str, moment: datetime) -> bytes | None:
        """Return the public list of a column that releases were made by at a moment, as Arrow."""
        return self.key_lists.at(table, column, key_type, moment)

    def columns_of(self, table: str, version: str) -> tuple[tuple[str, str, bool], ...]:
        """Return the columns (name, type, nullable) that a version had when it was declared last; empty if unknown."""
        with self._database.read() as connection:
            row = connection.execute(
                "SELECT columns FROM version_columns WHERE table_name = ? AND version = ?", (table, version)
            ).fetchone()
        return () if row is None else tuple((name, kind, nullable) for name, kind, nullable in json.loads(row[0]))

    def declare_public(self, public: PublicTable) -> None:
        """Declare that a table holds nothing about any unit.

        Raises:
            PolicyError: the table is protected, or the version is neither empty nor the current one.

        """
        with self._database.write() as connection:
            policy = _read_policy(connection)
            if policy.protected_table(public.table) is not None:
                raise PolicyError(f"table {public.table!r} is protected and cannot become public")
            version = _settle_version(connection, public.table, public.version)
            after = dataclasses.replace(public, version=version)
            if policy.public_table(public.table) != after:
                _write_row(connection, "public_table", {"name": public.table, "decision": public.decision})
                _record(connection, after)

    def withdraw_public(self, table: str) -> None:
        """Declare that a table is not public, with what is declared of its columns.

        Raises:
            PolicyError: an answer was made of it, or it lists the keys of a column.

        """
        with self._database.write() as connection:
            policy = _read_policy(connection)
            public = policy.public_table(table)
            if public is None:
                return
            require_unread(connection, table, policy)
            connection.execute("DELETE FROM domain WHERE table_name = ?", (table,))
            connection.execute("DELETE FROM public_table WHERE name = ?", (table,))
            _record(connection, public, withdrawn=True)

    def declare_domain(self, domain: Domain) -> None:
        """Declare bounds and keys of a column, all that is known of it.

        Raises:
            PolicyError: the table is not declared, or the keys come from a table that is not public.

        """
        with self._database.write() as connection:
            policy = _read_policy(connection)
            if policy.protected_table(domain.table) is None and policy.public_table(domain.table) is None:
                raise PolicyError(f"table {domain.table!r} is neither protected nor public")
            if domain.keys_from is not None and policy.public_table(domain.keys_from[0]) is None:
                raise PolicyError(f"keys can only come from a public table, and {domain.keys_from[0]!r} is none")
            if domain == policy.domain(domain.table, domain.column):
                return
            low, high = domain.bounds or (None, None)
            from_table, from_column = domain.keys_from or (None, None)
            _write_row(
                connection,
                "domain",
                {
                    "table_name": domain.table,
                    "column_name": domain.column,
                    "low": None if low is None else float(low),
                    "high": None if high is None else float(high),
                    "keys": None if domain.keys is None else json.dumps(domain.keys),
                    "keys_from_table": from_table,
                    "keys_from_column": from_column,
                },
            )
            _record(connection, domain)

    def withdraw_domain(self, domain: Domain) -> None:
        """Declare that nothing is known of a column."""
        with self._database.write() as connection:
            connection.execute(
                "DELETE FROM domain WHERE (table_name, column_name) = (?, ?)", (domain.table, domain.column)
            )
            _record(connection, domain, withdrawn=True)

    def new_version(self, table: str, version: str | None = None) -> str:
        """Declare that the contents of a table changed; return the version, a running number by default.

        Raises:
            PolicyError: the table is neither protected nor public, or had this version before.

        """
        with self._database.write() as connection:
            policy = _read_policy(connection)
            if policy.protected_table(table) is None and policy.public_table(table) is None:
                raise PolicyError(f"table {table!r} is neither protected nor public")
            return _add_version(connection, table, version)

    def close(self) -> None:
        """Close the state; a state in memory is gone."""
        self._database.close()

    def __enter__(self) -> State:
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
