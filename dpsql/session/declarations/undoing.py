"""CALL dp_unprotect, and the reach of a declaration that is undone or replaced."""

from __future__ import annotations

import contextlib

from dpsql.engine import Engine, identity
from dpsql.errors import PolicyError, SchemaError
from dpsql.model.environment import TableSchema, folded
from dpsql.operations.dialect import text_literal
from dpsql.plan.environment.links import linked
from dpsql.session.declarations.arguments import Arguments, StateAccess, remember, split_name, table_of
from dpsql.session.declarations.sources import reads_rows_of
from dpsql.state import Link, Policy, ProtectedTable, Reach


def declare_unprotected(arguments: Arguments, access: StateAccess, engine: Engine) -> str:
    """Undo that a table is protected; once an answer was paid for, archive it."""
    parts = split_name(arguments.names[0])
    policy = access.read().policy()
    schema, canonical = _protected(parts, policy, engine)
    table = policy.protected_table(canonical)
    if policy.public_table(canonical):
        raise PolicyError(
            f"table {canonical!r} is public; CALL dp_public({text_literal(canonical)}, public := false) takes that back"
        )
    if not table:
        return f"table {canonical} is not protected"
    # a table that was dropped is read by no view any more
    reach = reach_of(schema, policy, engine) if schema else Reach((table.unit,), folded(parts[-1]), policy.last)
    state = access.write()
    if schema and not table.archived:
        with contextlib.suppress(SchemaError):
            # an archived table is planned by its columns once it is dropped
            remember(linked(schema, policy, engine), state)
    if not state.unprotect(canonical, reach):
        return (
            f"table {canonical} is archived: its stored answers are served, and nothing new can be asked of it. Its "
            "own declaration with replace := true ends that"
        )
    left = access.read().policy()
    gone = "" if left.unit(table.unit) else f", and its unit {table.unit} is not declared any more"
    return f"table {canonical} is not protected{gone}"


def _protected(parts: list[str], policy: Policy, engine: Engine) -> tuple[TableSchema | None, str]:
    """Return a table and its identity; no table if it is protected and was dropped.

    Raises:
        PolicyError: there is no such table, and none was protected.

    """
    if len(parts) < 3 and not engine.resolve(parts):
        dropped = identity(parts if len(parts) == 2 else ("main", *parts))
        if policy.protected_table(dropped):
            return None, dropped
    schema = table_of(parts, engine)
    return schema, schema.canonical


def reach_of(schema: TableSchema, policy: Policy, engine: Engine) -> Reach:
    """Return the units whose answers may have been made of the rows of a table or view.

    These are its own unit, and those of tables that are linked to it or read it in a view.
    """
    units = dict.fromkeys(
        table.unit
        for table in policy.tables
        if _is_linked(policy.link(table.table), schema) or reads_rows_of(table.table, schema, engine)
    )
    return Reach(tuple(units), folded(schema.catalog_name[2]), policy.last)


def _is_linked(link: Link | None, schema: TableSchema) -> bool:
    return link is not None and schema.canonical in (link.table, link.parent)


def require_replaced(arguments: Arguments, schema: TableSchema, access: StateAccess, engine: Engine) -> None:
    """Refuse to protect a public table if nobody says so, or if answers used it.

    Raises:
        PolicyError: says which.

    """
    state = access.read()
    state.require_unpaid(schema.canonical, reach_of(schema, state.policy(), engine))
    if not arguments.flag("replace"):
        raise PolicyError(f"table {schema.canonical!r} is public; add replace := true if it holds rows of people")


def fact_changes(
    before: ProtectedTable | None, after: ProtectedTable, link: Link | None, new_link: Link | None
) -> list[str]:
    """Return the facts of a protected table that change: its unit, its unit column, its link; each as a text.

    Args:
        before: as it is declared; None if it is not.
        after: as it shall be.
        link: how its rows find their unit, if they do so through another table.
        new_link: how they shall find it.

    """
    if not before:
        return []
    changes = []
    if before.unit != after.unit:
        changes.append(f"unit from {before.unit} to {after.unit}")
    if link != new_link:
        changes.append(f"linked_by from {_text(link)} to {_text(new_link)}")
    elif not link and folded(before.privacy_unit_column) != folded(after.privacy_unit_column):
        changes.append(f"privacy_unit_column from {before.privacy_unit_column} to {after.privacy_unit_column}")
    return changes


def _text(link: Link | None) -> str:
    if not link:
        return "none"
    return ", ".join(f"{own} = {link.parent}.{key}" for own, key in zip(link.columns, link.parent_columns, strict=True))
