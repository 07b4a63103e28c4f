"""Declarations that are undone or replaced: allowed until an answer was paid for, refused or archived after that.

The facts of a table are its unit, its unit column, its link, and whether it is public. An answer is private under the
facts of its time alone. So a fact may change only if no answer can have been made of the rows: no unit that the rows
belong to has a charge, and no answer used a table that is public. The check and the change are one transaction, as the
charge is. A charge for a plan from before the change is refused by `Ledger.charge`.

The terms of a unit's budget are fixed by its first charge (docs/proofs/ledger.md, section 4).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass, replace

from dpsql.errors import PolicyError
from dpsql.state.policy import ASCII_LOWER, Link, Policy, ProtectedTable, Unit, folded_name
from dpsql.state.policy_rows import record

# Find out if answers were made of a table, or of one that had a column whose keys it lists.
_WAS_READ = """
WITH listing(name) AS (
    SELECT ?1 UNION SELECT json_extract(declaration, '$.table') FROM policy_log
    WHERE noun = 'Domain' AND json_extract(declaration, '$.keys_from[0]') = ?1
)
SELECT EXISTS (
    SELECT 1 FROM frame, json_each(frame.tables) AS one WHERE one.value IN listing
) OR EXISTS (
    SELECT 1 FROM release, json_each(release.table_versions) AS one WHERE json_extract(one.value, '$[0]') IN listing
)
"""

# Find out since when a table is public: a later declaration may name another decision, and is no new beginning.
_PUBLIC_SINCE = """
WITH declared AS (SELECT * FROM policy_log WHERE noun = 'PublicTable' AND json_extract(declaration, '$.table') = ?)
SELECT min(at) FROM declared
WHERE id > (SELECT coalesce(max(id), 0) FROM declared WHERE json_extract(declaration, '$.withdrawn'))
"""


@dataclass(frozen=True, slots=True)
class Reach:
    """Units whose answers may have been made of the rows of a table.

    Attributes:
        units: the unit of the table, and of each table that is linked to it or read with it in a view.
        own_unit: name of the unit that ``dp_protect`` makes for the table alone if it names no other one.
        last: `Policy.last` of the policy that they were found in.

    """

    units: tuple[str, ...]
    own_unit: str
    last: int


_OTHER_REACH = "SELECT 1 FROM policy_log WHERE id > ? AND noun IN ('ProtectedTable', 'Link', 'PublicTable') LIMIT 1"


def require_current(connection: sqlite3.Connection, last: int) -> None:
    """Refuse to go by a policy if a table was declared since: it may have another unit, which may have paid.

    Args:
        connection: inside the transaction that goes by the policy.
        last: `Policy.last` of that policy.

    Raises:
        PolicyError: a table was declared, undone or replaced.

    """
    if connection.execute(_OTHER_REACH, (last,)).fetchone():
        raise PolicyError("the policy was changed meanwhile; ask again")


def facts_of(protected: ProtectedTable, link: Link | None) -> tuple[object, ...]:
    """Return what says whose rows a table holds, in a form that is equal where it is the same."""
    own = None if link else protected.privacy_unit_column.translate(ASCII_LOWER)
    return protected.unit, own, link


def charged_units(connection: sqlite3.Connection, reach: Reach, since: str = "") -> list[str]:
    """Return the units of a reach that have paid for an answer, at a moment or after it."""
    charges = "SELECT 1 FROM charge WHERE unit = ? AND at >= ? LIMIT 1"
    return [unit for unit in reach.units if connection.execute(charges, (unit, since)).fetchone()]


def _public_since(connection: sqlite3.Connection, policy: Policy, table: str) -> str:
    """Return since when a table is public, as the state file writes moments; an empty text if it is not public.

    Answers from before were made under other facts, so they do not rest on this one.
    """
    if policy.public_table(table) is None:
        return ""
    return connection.execute(_PUBLIC_SINCE, (table,)).fetchone()[0] or ""


def require_unpaid(connection: sqlite3.Connection, policy: Policy, table: str, reach: Reach) -> None:
    """Refuse to change the facts of a table if an answer was paid for, or if another declaration rests on them.

    Raises:
        PolicyError: says what can be done instead.

    """
    charged = charged_units(connection, reach, _public_since(connection, policy, table))
    if charged:
        paid = f"unit {charged[0]!r} has paid for answers that may have read table {table!r}"
        if policy.public_table(table):
            raise PolicyError(f"{paid}: it stays public")
        raise PolicyError(f"{paid}: {_stays(policy, table)}")
    if policy.public_table(table):
        _require_unused(connection, policy, table)
    for child in linked_to(policy, table):
        if child.archived:
            raise PolicyError(f"the archived table {child.table!r} is linked to {table!r}: {_stays(policy, table)}")
        raise PolicyError(_has_child(table, child))


def linked_to(policy: Policy, table: str) -> Iterator[ProtectedTable]:
    """Yield the tables that are linked to a table, archived ones, too."""
    for link in policy.links:
        child = policy.protected_table(link.table) if link.parent == table else None
        if child:
            yield child


def withdraw_public(connection: sqlite3.Connection, policy: Policy, table: str, reach: Reach) -> None:
    """Declare that a public table is not public; what is declared of its columns stays, but for a list of its own.

    Raises:
        PolicyError: an answer was made of it, or it lists the keys of a column.

    """
    public = policy.public_table(table)
    if public is None:
        return
    require_unpaid(connection, policy, table, reach)
    connection.execute("DELETE FROM domain WHERE table_name = ? AND keys_from_table = table_name", (table,))
    connection.execute("DELETE FROM public_table WHERE name = ?", (table,))
    record(connection, public, withdrawn=True)


def withdraw_facts(connection: sqlite3.Connection, policy: Policy, table: str, reach: Reach) -> None:
    """Record that the facts of a protected table hold no longer, and remove its link; its row stays to be changed.

    Raises:
        PolicyError: an answer was made of it, or another table is linked to it.

    """
    before, link = policy.protected_table(table), policy.link(table)
    if before is None:
        return
    require_unpaid(connection, policy, table, reach)
    if link is not None:
        connection.execute("DELETE FROM link WHERE name = ?", (table,))
        record(connection, link, withdrawn=True)
    record(connection, before, withdrawn=True)


def withdraw_protected(connection: sqlite3.Connection, policy: Policy, table: str, reach: Reach) -> None:
    """Undo all that protects a table; what is declared of its columns stays.

    Raises:
        PolicyError: an answer was made of it, or another table is linked to it.

    """
    withdraw_facts(connection, policy, table, reach)
    connection.execute("DELETE FROM remembered_table WHERE name = ?", (table,))
    connection.execute("DELETE FROM protected_table WHERE name = ?", (table,))


def withdraw_domains(connection: sqlite3.Connection, policy: Policy, table: str) -> None:
    """Undo all that is declared of the columns of a table."""
    for domain in policy.domains:
        if domain.table == table:
            record(connection, domain, withdrawn=True)
    connection.execute("DELETE FROM domain WHERE table_name = ?", (table,))


def withdraw_own_unit(connection: sqlite3.Connection, policy: Policy, reach: Reach) -> None:
    """Undo the unit that a table had for itself, if no table has it now and nothing was paid or stored under it."""
    unit = policy.unit(reach.own_unit)
    if unit is None or folded_name(unit.name) not in map(folded_name, reach.units):
        return
    for used in ("protected_table", "charge", "frame"):
        if connection.execute(f"SELECT 1 FROM {used} WHERE unit = ? LIMIT 1", (unit.name,)).fetchone():
            return
    connection.execute("DELETE FROM unit WHERE name = ?", (unit.name,))
    record(connection, unit, withdrawn=True)


def archive(connection: sqlite3.Connection, policy: Policy, before: ProtectedTable) -> None:
    """Archive a protected table: stored answers stay, and nothing new is drawn from its rows.

    Raises:
        PolicyError: another table is linked to it, whose answers need its rows.

    """
    for child in linked_to(policy, before.table):
        if not child.archived:
            raise PolicyError(_has_child(before.table, child))
    connection.execute("UPDATE protected_table SET archived = 1 WHERE name = ?", (before.table,))
    record(connection, replace(before, archived=True), withdrawn=True)


def require_not_archived(policy: Policy, table: str) -> None:
    """Refuse a new version of an archived table: no answer could be made of it, and stored ones would be hidden.

    Raises:
        PolicyError: it is archived.

    """
    if policy.is_archived(table):
        raise PolicyError(
            f"table {table!r} is archived: its stored answers stay, so it gets no new version. "
            f"{_end_of_archive(policy, table)}"
        )


def require_fixed_terms(connection: sqlite3.Connection, before: Unit, after: Unit) -> None:
    """Refuse what would choose a budget by its history: after the first charge, some changes of a unit.

    These are another composition, other thresholds, and an amount that rises while another one falls.
    """
    changes = [f"composition is {before.composition!r}"] if before.composition != after.composition else []
    if before.thresholds != after.thresholds and not (changes and "pure" in (before.composition, after.composition)):
        # thresholds of a pure unit follow from its delta_budget
        is_pure = before.composition == "pure"
        told = f"delta_budget is {before.delta_budget:.3g}" if is_pure else f"thresholds is {before.thresholds}".lower()
        changes.append(told)
    rises = [old < new for old, new in zip(_amounts(before), _amounts(after), strict=False) if old != new]
    if not changes and len(set(rises)) < 2:
        return
    if not connection.execute("SELECT 1 FROM charge WHERE unit = ? LIMIT 1", (before.name,)).fetchone():
        return
    if changes:
        raise PolicyError(
            f"unit {before.name!r} has paid for answers, which fixes how its budget adds up: {', '.join(changes)}; "
            "leave that out of the declaration"
        )
    raise PolicyError(
        f"unit {before.name!r} has paid for answers, so no amount of its budget (rho and delta) may rise while another "
        "one falls; name a budget in which none falls, or none rises"
    )


def _require_unused(connection: sqlite3.Connection, policy: Policy, table: str) -> None:
    """Refuse to take back that a table is public if answers used it, or if it lists the keys of a column."""
    if connection.execute(_WAS_READ, (table,)).fetchone() != (0,):
        raise PolicyError(f"answers that used table {table!r} have revealed its rows: it stays public")
    for domain in policy.domains:
        if domain.keys_from is not None and domain.keys_from[0] == table and domain.table != table:
            raise PolicyError(
                f"table {table!r} lists the keys of {domain.table}.{domain.column}; first CALL "
                f"dp_domain({_literal(domain.table)}, '{domain.column}', keys_from := NULL)"
            )


def _stays(policy: Policy, table: str) -> str:
    facts = f"unit, unit column and link of {table!r} stay as they are, and it stays protected"
    if policy.is_archived(table):
        return f"{facts}. It is archived; {_end_of_archive(policy, table)}"
    return f"{facts}. CALL dp_unprotect({_literal(table)}) archives it"


def _end_of_archive(policy: Policy, table: str) -> str:
    """Return how a table is declared again as it was."""
    link = policy.link(table)
    if link is None:
        return f"CALL dp_protect({_literal(table)}, replace := true) ends that"
    columns = ", ".join(map(_literal, link.columns))
    columns = columns if len(link.columns) == 1 else f"[{columns}]"
    return f"CALL dp_link({_literal(table)}, {columns}, replace := true) ends that"


def _has_child(table: str, child: ProtectedTable) -> str:
    return f"table {child.table!r} is linked to {table!r}; first CALL dp_unprotect({_literal(child.table)})"


def _literal(table: str) -> str:
    """Return the name of a table as a text in SQL."""
    return "'" + table.replace("'", "''") + "'"


def _amounts(unit: Unit) -> tuple[float, ...]:
    """Return rho and the parts of delta of a unit; without thresholds, the parts follow from the whole delta."""
    if not unit.thresholds:
        return unit.rho_budget, unit.delta_budget
    return unit.rho_budget, unit.delta_threshold, unit.delta_conversion
