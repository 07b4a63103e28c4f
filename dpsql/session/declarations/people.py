"""Are these the same people under two budgets, or people in a public table? Both are said explicitly, or refused.

What can be seen of it: a column that is called like the column of a privacy unit, and a table or view whose rows are
those of a protected one. A copy of a protected table under other names looks like any table.
"""

from __future__ import annotations

import contextlib
import glob
import os
import re
from collections.abc import Iterable, Iterator

from dpsql.engine import Engine
from dpsql.errors import EngineError, PolicyError
from dpsql.query.environment import TableSchema, folded
from dpsql.query.view_sources import view_sources
from dpsql.session.declarations.names import split_name
from dpsql.state import Policy, ProtectedTable

_FILE_URL = re.compile(r"file:(//(localhost(?=/))?)?", re.IGNORECASE)


def same_column(columns: Iterable[str], table: str, unit: str, policy: Policy) -> ProtectedTable | None:
    """A table of another unit whose unit column is called like one of these; None where there is none.

    None, too, for a unit that other tables have: it is told apart from all others by its name.
    """
    if any(one.unit == unit and one.table != table for one in policy.tables):
        return None
    named = {folded(column) for column in columns}
    others = (one for one in policy.tables if one.unit != unit and policy.link(one.table) is None)
    return next((one for one in others if folded(one.privacy_unit_column) in named), None)


def _same_rows(schema: TableSchema, unit: str, policy: Policy, engine: Engine) -> tuple[ProtectedTable, str] | None:
    """A table of another unit, and the table or file of which it and this one are both made; None where none is."""
    others = [one for one in policy.tables if one.unit != unit]
    own = _sources(schema, policy, engine) if others else frozenset()
    for other in others:
        read = own & _sources_of(other.table, policy, engine)
        if read:
            return other, min(read)
    return None


def require_other_people(
    schema: TableSchema, columns: Iterable[str], unit: str, policy: Policy, engine: Engine
) -> None:
    """Refuse to give people a second budget.

    Raises:
        PolicyError: they seem to have one; says what to write.

    """
    column = same_column(columns, schema.canonical, unit, policy)
    if column is not None:
        other, reason = column, f"its unit column is called {column.privacy_unit_column!r}, too"
    else:
        rows = _same_rows(schema, unit, policy, engine)
        if rows is None:
            return
        other, reason = rows[0], f"both are made of {rows[1]!r}"
    raise PolicyError(
        f"{schema.canonical!r} seems to hold the people of {other.table!r}, which has the budget of unit "
        f"{other.unit!r}: {reason}. Say unit := '{other.unit}' if these are the same people, or "
        "separate_people := true if they are others"
    )


def people_in(schema: TableSchema, policy: Policy, engine: Engine) -> str | None:
    """Why a table that is to be public seems to tell of people, as the end of a sentence; None where it does not."""
    for table in policy.tables:
        link = policy.link(table.table)
        if link is None and schema.column(table.privacy_unit_column) is not None:
            return f"has a column {table.privacy_unit_column!r}, which is the unit column of {table.table!r}"
        if link is not None:
            for place, key in ((link.table, link.columns), (link.parent, link.parent_columns)):
                if all(schema.column(name) is not None for name in key):
                    listed = ", ".join(map(repr, key))
                    return f"has {listed}, which leads to the unit of {place!r}"
        read = _sources_of(table.table, policy, engine)
        if read == {schema.canonical} and table.table != schema.canonical:
            return f"is what the protected {table.table!r} reads"
    return None


def public_with_people(columns: Iterable[str], policy: Policy, engine: Engine) -> str | None:
    """A public table, not declared so by decision, that has all of these columns; None where there is none."""
    names = tuple(columns)
    for public in policy.public:
        known = None if public.decision is not None else engine.find(public.table)
        if known is not None and all(known.column(name) is not None for name in names):
            return public.table
    return None


def _sources_of(canonical: str, policy: Policy, engine: Engine) -> frozenset[str]:
    """As `_sources`, of a table by its identity; only itself where it is gone or cannot be read."""
    schema = engine.find(canonical, views=True)
    with contextlib.suppress(EngineError):
        if schema is not None:
            return _sources(schema, policy, engine)
    return frozenset((canonical,))


def _sources(schema: TableSchema, policy: Policy, engine: Engine) -> frozenset[str]:
    """Base tables, by their identities, and files that rows of a table or view come from; public tables left out."""
    if engine.is_base_table(schema):
        return frozenset((schema.canonical,))
    found = set(_files(schema, engine, set()))
    for name in engine.tables_read(schema):
        parts = _parts(name)
        table = None if parts is None else engine.resolve(parts)
        found.add(name if table is None else table.canonical)
    return frozenset(name for name in found if policy.public_table(name) is None)


def _files(schema: TableSchema, engine: Engine, seen: set[str]) -> Iterator[str]:
    """Paths of the files that a view reads, and the views below it."""
    text = engine.view_text(schema)
    if text is None or schema.canonical in seen:
        return
    seen.add(schema.canonical)
    for source in view_sources(text):
        below = engine.resolve(source.names) if source.names else None
        if below is not None:
            yield from _files(below, engine, seen)
        elif not source.names or (len(source.names) == 1 and any(sign in source.names[0] for sign in "./\\")):
            for text in source.texts:
                yield from _paths(text)


def _paths(text: str) -> Iterator[str]:
    """The files that a name or a pattern of names stands for, whatever links lead there, and what it says itself."""
    path = _FILE_URL.sub("", text)
    yield os.path.realpath(path)
    if glob.has_magic(path):
        yield from map(os.path.realpath, glob.iglob(path, recursive=True))  # noqa: PTH207 (patterns of DuckDB, not of Path)


def _parts(name: str) -> list[str] | None:
    with contextlib.suppress(PolicyError):
        return split_name(name)
    return None
