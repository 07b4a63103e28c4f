"""CALL dp_domain: what is publicly known of a column."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from typing import Any

from dpsql.engine import Engine, Sandbox
from dpsql.errors import PolicyError
from dpsql.model.environment import Column, TableSchema
from dpsql.plan.aggregates.source import is_number
from dpsql.plan.aggregates.times import TIMES
from dpsql.session.declarations.arguments import (
    IN_THE_CALL,
    Arguments,
    StateAccess,
    column_of,
    require_declared,
    split_name,
    table_of,
)
from dpsql.session.declarations.protection import looser, require_no_looser
from dpsql.state import Domain, checked

_NUMBER = re.compile(r"-?[\d.]+(?:[eE][-+]?\d+)?")


def declare_domain(arguments: Arguments, access: StateAccess, engine: Engine) -> str:
    """Declare bounds, keys or an order of a column, or change those that are named."""
    schema = table_of(split_name(arguments.names[0]), engine)
    column = column_of(schema, arguments.names[1])
    place = f"{schema.canonical}.{column.name}"
    require_declared(schema, access)
    before = access.read().policy().domain(schema.canonical, column.name)
    said: dict[str, Any] = {
        "bounds": arguments.pair("bounds"),
        "keys": arguments.literals("keys"),
        "keys_from": _keys_from(arguments, engine),
        "ordered": _members(schema, column, engine) if arguments.flag("ordered") else None,
    }
    parts = said | arguments.kept(before, {name: name for name in said}, _KEYS_INSTEAD)
    if all(part is None for part in parts.values()):
        if not before:
            raise PolicyError(f"the domain of {place} declares neither bounds nor keys nor an order")
        require_no_looser(place, looser(before, None), replace=arguments.flag("replace"))
        access.write().withdraw_domain(before)
        return f"the domain of {place} is not declared any more"
    after = checked(Domain(schema.canonical, column.name, **parts))
    if after != before:
        require_no_looser(place, looser(before, after), replace=arguments.flag("replace"))
        _require_types(after, before, column, engine)
        access.write().declare_domain(after)
    return f"the domain of {place} is declared"


def _keys_from(arguments: Arguments, engine: Engine) -> tuple[str, str] | None:
    source = arguments.read("keys_from", str)
    if source is None:
        return None
    *parts, key_column = split_name(source)
    if not parts:
        raise PolicyError("keys_from takes 'table.column'")
    listed = table_of(parts, engine)
    return listed.canonical, column_of(listed, key_column).name


def _members(schema: TableSchema, column: Column, engine: Engine) -> tuple[str, ...]:
    """Return the members of a column's ENUM type, which the curator declares public with their order."""
    members = engine.members(schema, column.name)
    if not members:
        raise PolicyError(f"{column.name!r} is {column.type}, and only an ENUM has an order; leave ordered out")
    return members


def _require_types(after: Domain, before: Domain | None, column: Column, engine: Engine) -> None:
    """Refuse bounds and keys that the column's type cannot have; what was declared before is left alone."""
    before = before or Domain(after.table, after.column, keys=("NULL",))
    if after.bounds and after.bounds != before.bounds and not is_number(column.type):
        cure = f"leave bounds out; {IN_THE_CALL}" if column.type in TIMES else "leave bounds out"
        raise PolicyError(f"{column.name!r} is {column.type}, and bounds are of numbers; {cure}")
    if after.keys and after.keys != before.keys:
        _require_one_kind(after.keys, column)
        # in a database without rows, as every cast for a plan
        with contextlib.closing(Sandbox()) as sandbox:
            key = sandbox.misfit(after.keys, column.type)
        if key:
            raise PolicyError(f"{column.name!r} is {column.type}, and its key {key} is no value of that type")
    if after.keys_from and after.keys_from != before.keys_from:
        # values of a public list that the type does not have would be no keys
        table, name = after.keys_from
        listed = engine.find(table)
        source = listed.column(name) if listed else None
        if listed and source and source.type != column.type:
            kept, values = (engine.column_values(listed, name, one) for one in (column.type, source.type))
            if len(kept) < len(values):
                raise PolicyError(
                    f"{column.name!r} is {column.type}, and not every value of {table}.{name}, which is "
                    f"{source.type}, is one of that type"
                )


def _require_one_kind(keys: Sequence[str], column: Column) -> None:
    """Refuse a number as the key of a text column, and a list of texts and numbers for any column."""
    number = next(filter(_NUMBER.fullmatch, keys), None)
    text = next((key for key in keys if key.startswith("'")), None)
    if number and column.type == "VARCHAR":
        raise PolicyError(f"{column.name!r} is VARCHAR, and its key {number} is a number. Write '{number}' in the list")
    if number and text:
        raise PolicyError(
            f"the keys of {column.name!r}, which is {column.type}, are texts and numbers, as {text} and {number}. "
            "Write all of them in one way"
        )


# Keys are listed or read from a table, and what is said takes the place of the other.
_KEYS_INSTEAD = {"keys": "keys_from", "keys_from": "keys"}
