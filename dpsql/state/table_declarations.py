"""Declarations of tables inside a transaction: protected, public, or neither again."""

from __future__ import annotations

import sqlite3
from dataclasses import replace

from dpsql.errors import PolicyError
from dpsql.state.policy import Link, Policy, ProtectedTable, PublicTable
from dpsql.state.policy_rows import declare_row, named_row
from dpsql.state.undone import (
    Reach,
    archive,
    charged_units,
    facts_of,
    linked_to,
    require_current,
    withdraw_domains,
    withdraw_facts,
    withdraw_own_unit,
    withdraw_protected,
    withdraw_public,
)
from dpsql.state.versions import settle_version


def declare_protected(
    connection: sqlite3.Connection,
    policy: Policy,
    protected: ProtectedTable,
    link: Link | None,
    reach: Reach | None,
    seen: int | None,
) -> None:
    """Make a table a member of a privacy unit, or change its settings; see `State.declare_protected`.

    Raises:
        PolicyError: as `State.declare_protected`.

    """
    table = protected.table
    if seen is not None:
        require_current(connection, seen)
    if policy.unit(protected.unit) is None:
        raise PolicyError(f"there is no privacy unit {protected.unit!r}")
    if link is not None:
        parent = policy.protected_table(link.parent)
        if parent is None or parent.archived:
            state = "archived" if parent else "not protected"
            raise PolicyError(f"table {link.parent!r} is {state}, so no table can be linked to it")
    public, before = policy.public_table(table), policy.protected_table(table)
    same_facts = before is not None and facts_of(before, policy.link(table)) == facts_of(protected, link)
    if reach is None and (public or (before and not same_facts)):
        raise PolicyError(
            f"whose rows table {table!r} holds is declared otherwise; add replace := true if that is meant"
        )
    if reach is not None:
        require_current(connection, reach.last)
        withdraw_public(connection, policy, table, reach)
        if not same_facts:
            withdraw_facts(connection, policy, table, reach)
    version = settle_version(connection, table, protected.version, is_new=not (before or public))
    after = replace(protected, version=version)
    if same_facts and after == before:
        return
    row = named_row(after)
    del row["version"]
    row["rho_window_low"], row["rho_window_high"] = row.pop("rho_window") or (None, None)
    declare_row(connection, "protected_table", row, after)
    if link is not None and not same_facts:
        declare_row(connection, "link", named_row(link), link)
    if reach is not None:
        withdraw_own_unit(connection, policy, reach)


def unprotect(connection: sqlite3.Connection, policy: Policy, table: str, reach: Reach) -> bool:
    """Undo that a table is protected, or archive it; see `State.unprotect`.

    Raises:
        PolicyError: as `State.unprotect`.

    """
    before = policy.protected_table(table)
    if before is None:
        return True
    require_current(connection, reach.last)
    if charged_units(connection, reach) or any(child.archived for child in linked_to(policy, table)):
        if not before.archived:
            archive(connection, policy, before)
        return False
    withdraw_protected(connection, policy, table, reach)
    withdraw_domains(connection, policy, table)
    withdraw_own_unit(connection, policy, reach)
    return True


def declare_public(connection: sqlite3.Connection, policy: Policy, public: PublicTable, reach: Reach | None) -> None:
    """Declare that a table holds nothing about any unit; see `State.declare_public`.

    Raises:
        PolicyError: as `State.declare_public`.

    """
    protected, before = policy.protected_table(public.table), policy.public_table(public.table)
    if protected is not None:
        if reach is None:
            raise PolicyError(
                f"table {public.table!r} is protected; add replace := true if it holds nothing about any person"
            )
        require_current(connection, reach.last)
        withdraw_protected(connection, policy, public.table, reach)
        withdraw_own_unit(connection, policy, reach)
    version = settle_version(connection, public.table, public.version, is_new=not (before or protected))
    after = replace(public, version=version)
    if before != after:
        row = {"name": public.table, "decision": public.decision, "readable": public.readable}
        declare_row(connection, "public_table", row, after)
