"""The state of one data owner: the policy that the curator declared, and the way to ledger and side table."""

from __future__ import annotations

import copy
import os
import sqlite3
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from dpsql.errors import PolicyError
from dpsql.state.age import Age
from dpsql.state.charges import read_spent
from dpsql.state.database import Database, Locks, select_rows
from dpsql.state.history import ReleaseHistory
from dpsql.state.ledger import Ledger
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
from dpsql.state.policy_rows import declare_row, named_row, record, write_row
from dpsql.state.side_table import SideTable
from dpsql.state.stamps import SecondPlace
from dpsql.state.table_declarations import declare_protected, declare_public, unprotect
from dpsql.state.table_definitions import LAST_DECLARED, LAST_UNDONE
from dpsql.state.temporary_folder import remove_abandoned
from dpsql.state.undone import (
    Reach,
    require_current,
    require_fixed_terms,
    require_not_archived,
    require_unpaid,
    withdraw_domains,
    withdraw_public,
)
from dpsql.state.versions import add_version, versions_of


def _domain(low: float | None, high: float, from_table: str | None, from_column: str, **row: Any) -> Domain:
    """A domain of its columns, of which two are NULL together."""
    return Domain(
        bounds=None if low is None else (low, high),
        keys_from=None if from_table is None else (from_table, from_column),
        **row,
    )


_CURRENT_VERSION = "(SELECT version FROM table_version WHERE table_name = name ORDER BY number DESC LIMIT 1) AS version"
# What makes each part of a policy, and the rows that it is made of.
_PARTS: Mapping[str, tuple[Callable[..., object], str]] = {
    "units": (
        Unit,
        "SELECT name, rho_budget, delta_threshold, delta_conversion, composition, thresholds FROM unit ORDER BY name",
    ),
    "tables": (
        ProtectedTable,
        'SELECT name AS "table", unit, privacy_unit_column, max_groups, max_rows_per_group, default_rho, '
        "default_epsilon, default_delta, min_units, iif(rho_window_low IS NULL, NULL, json_array(rho_window_low, "
        f"rho_window_high)) AS rho_window, rho_ceiling, {_CURRENT_VERSION}, separate_people, max_rows_norm, "
        "max_rows_per_unit, coverage, time_zone, archived FROM protected_table ORDER BY name",
    ),
    "public": (
        PublicTable,
        f'SELECT name AS "table", {_CURRENT_VERSION}, decision, readable FROM public_table ORDER BY name',
    ),
    "domains": (
        _domain,
        'SELECT table_name AS "table", column_name AS "column", low, high, keys, keys_from_table AS from_table, '
        "keys_from_column AS from_column, ordered FROM domain ORDER BY table_name, column_name",
    ),
    "analysts": (ClearedAnalyst, "SELECT name, rho_limit, budget_part FROM analyst ORDER BY name"),
    "links": (Link, 'SELECT name AS "table", columns, parent, parent_columns FROM link ORDER BY name'),
    "remembered": (RememberedTable, 'SELECT name AS "table", columns FROM remembered_table ORDER BY name'),
    "versions": (
        TableVersion,
        'SELECT table_name AS "table", version, at FROM table_version ORDER BY table_name, number',
    ),
}


def _read_policy(connection: sqlite3.Connection) -> Policy:
    parts: dict[str, Any] = {
        part: tuple(made_of(**row) for row in select_rows(connection, query))
        for part, (made_of, query) in _PARTS.items()
    }
    undone, last = (connection.execute(number).fetchone()[0] for number in (LAST_UNDONE, LAST_DECLARED))
    return Policy(**parts, undone=undone, last=last)


class State:
    """The policy, ledger and side table of one data owner, in one file or in memory; threads share it.

    Attributes:
        ledger: what each privacy unit has paid.
        side_table: frames, keys, points.
        history: what releases were made by, and to whom.
        locks: one release of a frame at a time.
        age: what a second place knows of the state file; None in memory.

    """

    def __init__(self, database: Database, *, lock_timeout_seconds: float, beside: SecondPlace | None = None) -> None:
        self._database = database
        self._lock_timeout_seconds = lock_timeout_seconds
        self._terms: Callable[[Policy], Policy] | None = None
        folder, self.age = None, None
        if database.path is not None:
            folder = database.path.with_name(f"{database.path.name}-locks")
            self.age = Age(database, database.path, folder, beside)
        self.ledger = Ledger(database, self.age)
        self.side_table = SideTable(database)
        self.history = ReleaseHistory(database)
        self.locks = Locks(folder, timeout_seconds=lock_timeout_seconds)

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str] | None,
        *,
        create: bool,
        busy_timeout_seconds: float = 30.0,
        lock_timeout_seconds: float = 600.0,
        beside: SecondPlace | None = None,
    ) -> State:
        """Open the state; an older format is migrated after a backup beside the file.

        Temporary folders of processes that have ended are removed.

        Args:
            path: the file, or None for a state in memory that ends with the process.
            create: whether a missing file is created.
            busy_timeout_seconds: how long a write waits for the writes of others.
            lock_timeout_seconds: how long a release waits for another one of the same frame.
            beside: the database whose charges it counts, for a stamp of its age.

        Raises:
            StateError: the file is missing, of a newer format, not a state file, or damaged.

        """
        named = None if path is None else Path(path)
        database = Database.open(named, create=create, busy_timeout_seconds=busy_timeout_seconds)
        if named is not None:
            remove_abandoned(named)
        return cls(database, lock_timeout_seconds=lock_timeout_seconds, beside=beside)

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
            PolicyError: the new budget is below what the unit has paid, or its composition or thresholds are others
                than at its first charge, or after a charge one amount rises while another one falls.

        """
        with self._database.write() as connection:
            before = _read_policy(connection).unit(unit.name)
            if before is not None:
                # another process may have declared it in another spelling since
                unit = replace(unit, name=before.name)
                if before == unit:
                    return
                require_fixed_terms(connection, before, unit)
            spent = read_spent(connection, unit.name)
            if unit.rho_budget < spent.rho_nano or unit.delta_threshold < spent.delta_units:
                raise PolicyError(f"the budget of unit {unit.name!r} cannot be less than what it has paid")
            declare_row(connection, "unit", {**asdict(unit), "delta_conversion": float(unit.delta_conversion)}, unit)

    def declare_protected(
        self,
        protected: ProtectedTable,
        link: Link | None = None,
        reach: Reach | None = None,
        seen: int | None = None,
    ) -> None:
        """Make a table a member of a privacy unit, or change its settings.

        Args:
            protected: the table with all of its settings.
            link: how its rows find their unit, if they do so through another table.
            reach: units that must have paid for nothing; None if unit, unit column and link stay as they are, and the
                table is not public.
            seen: `Policy.last` of the policy in which no other table had the same people; None if nobody looked.

        Raises:
            PolicyError: there is no such unit, a fact would change that may not, the reach is old, another table was
                declared since that policy, or the version is neither empty nor the current one.

        """
        with self._database.write() as connection:
            declare_protected(connection, _read_policy(connection), protected, link, reach, seen)

    def unprotect(self, table: str, reach: Reach) -> bool:
        """Undo that a table is protected, with its domains; archive it if it or a child has a paid answer.

        Returns:
            True if it is undone, False if the table is archived.

        Raises:
            PolicyError: another table is linked to it, or the reach is old.

        """
        with self._database.write() as connection:
            return unprotect(connection, _read_policy(connection), table, reach)

    def require_unpaid(self, table: str, reach: Reach) -> None:
        """Refuse to change whose rows a table holds if an answer was paid for, as the change itself would.

        Raises:
            PolicyError: an answer was made of the table, or another declaration needs it.

        """
        with self._database.read() as connection:
            require_unpaid(connection, _read_policy(connection), table, reach)

    def declare_analyst(self, analyst: ClearedAnalyst) -> None:
        """Declare what an analyst may be shown, from now on."""
        with self._database.write() as connection:
            policy = _read_policy(connection)
            before = policy.analyst(analyst.name)
            if before is not None:
                analyst = replace(analyst, name=before.name)
            if before == analyst:
                return
            for other in policy.analysts:
                # an old file may hold one name in several spellings
                if other != before and policy.analyst(other.name) == before:
                    connection.execute("DELETE FROM analyst WHERE name = ?", (other.name,))
            declare_row(connection, "analyst", asdict(analyst), analyst)

    def remember(self, table: RememberedTable) -> None:
        """Remember the columns of a protected table in its current version, for plans once they are gone."""
        with self._database.write() as connection:
            write_row(connection, "remembered_table", named_row(table))
            version = versions_of(connection, table.table)[-1]
            row = {"table_name": table.table, "version": version, "columns": table.columns}
            write_row(connection, "version_columns", row)

    def declare_public(self, public: PublicTable, reach: Reach | None = None) -> None:
        """Declare that a table holds nothing about any unit.

        Args:
            public: the table.
            reach: units that must have paid for nothing if it is protected; None if it is not.

        Raises:
            PolicyError: the table is protected and must stay so, the reach is old, or the version is neither empty nor
                the current one.

        """
        with self._database.write() as connection:
            declare_public(connection, _read_policy(connection), public, reach)

    def withdraw_public(self, table: str, reach: Reach) -> None:
        """Declare that a table is not public, with what is declared of its columns.

        Raises:
            PolicyError: an answer was made of it, it lists the keys of a column, or the reach is old.

        """
        with self._database.write() as connection:
            policy = _read_policy(connection)
            if policy.public_table(table) is not None:
                require_current(connection, reach.last)
                require_unpaid(connection, policy, table, reach)
                withdraw_domains(connection, policy, table)
                withdraw_public(connection, policy, table, reach)

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
            low, high = map(float, domain.bounds) if domain.bounds else (None, None)
            from_table, from_column = domain.keys_from or (None, None)
            row = {
                "table_name": domain.table,
                "column_name": domain.column,
                "low": low,
                "high": high,
                "keys": domain.keys,
                "keys_from_table": from_table,
                "keys_from_column": from_column,
                "ordered": domain.ordered,
            }
            declare_row(connection, "domain", row, domain)

    def withdraw_domain(self, domain: Domain) -> None:
        """Declare that nothing is known of a column."""
        with self._database.write() as connection:
            connection.execute(
                "DELETE FROM domain WHERE (table_name, column_name) = (?, ?)", (domain.table, domain.column)
            )
            record(connection, domain, withdrawn=True)

    def new_version(self, table: str, version: str | None = None) -> str:
        """Declare that the contents of a table changed; return the version, a running number by default.

        Raises:
            PolicyError: the table is neither protected nor public, is archived, or had this version before.

        """
        with self._database.write() as connection:
            policy = _read_policy(connection)
            if policy.protected_table(table) is None and policy.public_table(table) is None:
                raise PolicyError(f"table {table!r} is neither protected nor public")
            require_not_archived(policy, table)
            return add_version(connection, table, version)

    def close(self) -> None:
        """Close the state; a state in memory is gone."""
        self._database.close()

    def __enter__(self) -> State:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
