"""CALL dp_domain: what is publicly known of a column's values."""

from __future__ import annotations

import contextlib

from dpsql.engine import Engine, Sandbox
from dpsql.errors import PolicyError
from dpsql.query.aggregate_source import is_number
from dpsql.query.environment import TableSchema
from dpsql.query.statements import FunctionCall
from dpsql.session.declarations.arguments import Arguments, Books
from dpsql.session.declarations.looser import looser_domain, require_no_looser
from dpsql.session.declarations.names import column_of, require_declared, split_name, table_of
from dpsql.state import Domain


def declare_domain(call: FunctionCall, books: Books, engine: Engine) -> str:
    """Declare bounds or keys of a column, or change those that are named."""
    arguments = Arguments(call, 2)
    schema = table_of(split_name(arguments.names[0]), engine)
    column = column_of(schema, arguments.names[1])
    place = f"{schema.canonical}.{column}"
    require_declared(schema, books)
    before = books.read().policy().domain(schema.canonical, column)
    after = _domain(arguments, schema, column, before, engine)
    if after is None:
        if before is None:
            raise PolicyError(f"the domain of {place} declares neither bounds nor keys")
        require_no_looser(place, looser_domain(before, None), replace=arguments.flag("replace"))
        books.write().withdraw_domain(before)
        return f"the domain of {place} is not declared any more"
    if after != before:
        require_no_looser(place, looser_domain(before, after), replace=arguments.flag("replace"))
        _require_types(after, before, schema, engine)
        books.write().declare_domain(after)
    return f"the domain of {place} is declared"


def _domain(
    arguments: Arguments, schema: TableSchema, column: str, before: Domain | None, engine: Engine
) -> Domain | None:
    """The domain as it shall be; None where nothing is left of it."""
    bounds, keys = arguments.pair("bounds"), arguments.literals("keys")
    keys_from = _keys_from(arguments, engine)
    if before is not None:
        if not arguments.names_any("bounds"):
            bounds = before.bounds
        # keys are listed or read from a table, and what is said takes the place of the other
        if not arguments.names_any("keys") and keys_from is None:
            keys = before.keys
        if not arguments.names_any("keys_from") and keys is None:
            keys_from = before.keys_from
    if bounds is None and keys is None and keys_from is None:
        return None
    return Domain(schema.canonical, column, bounds, keys, keys_from)


def _keys_from(arguments: Arguments, engine: Engine) -> tuple[str, str] | None:
    source = arguments.text("keys_from")
    if source is None:
        return None
    *parts, key_column = split_name(source)
    if not parts:
        raise PolicyError("keys_from takes 'table.column'")
    listed = table_of(parts, engine)
    return listed.canonical, column_of(listed, key_column)


def _require_types(after: Domain, before: Domain | None, schema: TableSchema, engine: Engine) -> None:
    """Refuse bounds and keys that the column's type cannot have; what was declared before is left alone."""
    column = schema.column(after.column)
    if column is None:
        raise PolicyError(f"table {schema.canonical!r} has no column {after.column!r}")
    before = before or Domain(after.table, after.column, keys=("NULL",))
    if after.bounds not in (None, before.bounds) and not is_number(column.type):
        raise PolicyError(f"{after.column!r} is {column.type}, and bounds are of numbers; leave bounds out")
    if after.keys not in (None, before.keys):
        _require_castable(after.keys or (), after.column, column.type)
    if after.keys_from is not None and after.keys_from != before.keys_from:
        _require_listed(after.keys_from, after.column, column.type, engine)


def _require_castable(keys: tuple[str, ...], column: str, key_type: str) -> None:
    """Refuse literals that are no values of the type: in a database without rows, as every cast for a plan."""
    with contextlib.closing(Sandbox()) as sandbox:
        key = sandbox.misfit(keys, key_type)
    if key is not None:
        raise PolicyError(f"{column!r} is {key_type}, and its key {key} is no value of that type")


def _require_listed(keys_from: tuple[str, str], column: str, key_type: str, engine: Engine) -> None:
    """Refuse a public list with values that the type does not have: they would be no keys."""
    table, name = keys_from
    listed = engine.find(table)
    source = None if listed is None else listed.column(name)
    if listed is None or source is None or source.type == key_type:
        return
    if len(engine.column_values(listed, name, key_type)) < len(engine.column_values(listed, name, source.type)):
        raise PolicyError(
            f"{column!r} is {key_type}, and not every value of {table}.{name}, which is {source.type}, is one of that "
            "type"
        )
