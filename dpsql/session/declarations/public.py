"""CALL dp_public: tables that hold nothing about any unit, and what shows that a table is not one of them.

A table of people has a column that leads to a protected one: by its name and type, or by a FOREIGN KEY of the protected
table. Two tables may each call their own primary key `id`: that alone is no sign.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from dpsql.engine import Engine
from dpsql.errors import PolicyError
from dpsql.model.environment import TableSchema, folded
from dpsql.operations import blanks
from dpsql.operations.comparisons import compared_type
from dpsql.operations.dialect import text_literal
from dpsql.session.declarations.arguments import Arguments, StateAccess, split_name, table_of
from dpsql.session.declarations.sources import lends_unit, sources_of
from dpsql.session.declarations.undoing import reach_of
from dpsql.state import Policy, PublicTable

_NAME_OF_ROWS = "id"
"""A column that numbers the rows of its own table, and leads to no other one, whether or not it has a constraint."""


def declare_public(arguments: Arguments, access: StateAccess, engine: Engine) -> str:
    """Declare a table public, or, as long as nothing was released of it, that it is not."""
    arguments.require_kept("public")
    schema = table_of(split_name(arguments.names[0]), engine)
    policy = access.read().policy()
    before = policy.public_table(schema.canonical)
    if not arguments.flag("public", default=True):
        if arguments.names_any("version", "public_by_decision", "readable"):
            raise PolicyError("public := false goes with no other argument: it takes a declaration back")
        if before:
            access.write().withdraw_public(schema.canonical, reach_of(schema, policy, engine))
        return f"table {schema.canonical} is not public"
    if not engine.is_base_table(schema):
        raise PolicyError(
            f"{schema.canonical!r} is a view; a public table must be a base table, "
            "because a view may reach a protected one"
        )
    decision = arguments.read("public_by_decision", str)
    if decision is not None and not decision.strip():
        raise PolicyError("public_by_decision takes the reason, as in public_by_decision := 'a published register'")
    reach = None
    if policy.protected_table(schema.canonical):
        reach = reach_of(schema, policy, engine)
        access.read().require_unpaid(schema.canonical, reach)
        if not arguments.flag("replace"):
            raise PolicyError(
                f"table {schema.canonical!r} is protected; add replace := true if it holds nothing about any person"
            )
    if before and not arguments.names_any("public_by_decision"):
        decision = before.decision
    elif not decision:
        require_no_people(schema, policy, engine)
    was_readable = before is not None and before.readable and not arguments.names_any("readable")
    public = PublicTable(
        schema.canonical, arguments.version(), decision, readable=arguments.flag("readable", default=was_readable)
    )
    access.write().declare_public(public, reach)
    told = f"table {schema.canonical} is public"
    return f"{told}, and analysts may read its rows" if public.readable else told


def require_no_people(schema: TableSchema, policy: Policy, engine: Engine) -> None:
    """Refuse to make a table public that seems to tell of people.

    Raises:
        PolicyError: it does; says why, and what to write.

    """
    others = tuple(one for one in policy.tables if one.table != schema.canonical)
    for sign in _signs_of_people(schema, dataclasses.replace(policy, tables=others), engine):
        raise PolicyError(
            f"table {schema.canonical!r} {sign}. If it holds nothing about any person, say so with the reason: "
            "public_by_decision := 'a published register'"
        )


def _signs_of_people(schema: TableSchema, policy: Policy, engine: Engine) -> Iterator[str]:
    """Yield the reasons why a table seems to tell of people, each as the end of a sentence."""
    for table in policy.tables:
        link = policy.link(table.table)
        keys = ((link.table, link.columns), (link.parent, link.parent_columns)) if link else ()
        if not link and leads_to(schema, (table.privacy_unit_column,), table.table, engine):
            yield f"has a column {table.privacy_unit_column!r}, which is the unit column of {table.table!r}"
        for place, key in keys:
            if place != schema.canonical and leads_to(schema, key, place, engine):
                yield f"has {', '.join(map(repr, key))}, which leads to the unit of {place!r}"
        for place, key in keys[:1] or ((table.table, (table.privacy_unit_column,)),):
            owner = engine.find(place)
            if owner and engine.references(owner, key, schema):
                yield f"is the table that {', '.join(map(repr, key))} of the protected {place!r} refers to"
        read = sources_of(table.table, policy, engine)
        if read == {schema.canonical}:
            yield f"is what the protected {table.table!r} reads"
        elif schema.canonical in read and lends_unit(schema, table, engine):
            yield f"may lend its unit to the protected {table.table!r}, which reads it"


def leads_to(schema: TableSchema, key: Sequence[str], place: str, engine: Engine) -> bool:
    """Return True if the columns of a table lead to those of a protected one: they have their names and types.

    They do not if they are the primary key of this table and of the protected one: each numbers its own rows.

    Args:
        schema: the table.
        key: columns of the protected table that name its unit, or lead to it.
        place: identity of the protected table, which may be gone. Its types are not known then.
        engine: knows types and constraints.

    """
    owner = engine.find(place, views=True)
    for name in key:
        column, known = schema.column(name), owner.column(name) if owner else None
        if not column or (known and not compared_type(column.type, known.type)):
            return False
    named = {folded(name) for name in key}
    if named != set(map(folded, engine.primary_key(schema))):
        return True
    return named != {_NAME_OF_ROWS} and (not owner or named != set(map(folded, engine.primary_key(owner))))


def require_not_public(place: TableSchema, columns: Sequence[str], policy: Policy, engine: Engine) -> None:
    """Refuse to make a key tell people apart that leads to a public table, too.

    Args:
        place: the table that is to be protected.
        columns: its columns that name the unit, or lead to it.
        policy: what is declared.
        engine: knows tables.

    Raises:
        PolicyError: a public table, not declared so by decision, has these columns.

    """
    for public in policy.public:
        known = engine.find(public.table) if public.decision is None else None
        if known and known.canonical != place.canonical and leads_to(known, columns, place.canonical, engine):
            name = text_literal(public.table)
            raise PolicyError(
                f"table {public.table!r} is public and has {', '.join(map(repr, columns))}, too: its rows now "
                f"belong to people. First write CALL dp_public({name}, public := false), or CALL "
                f"dp_public({name}, public_by_decision := {blanks.REASON})"
            )
