"""Sources of rows: the base tables and files that the rows of a table or view come from.

Views, macros, patterns of file names and ``file:`` URLs are followed. A copy of a table has its own rows, so it is a
source of its own.
"""

from __future__ import annotations

import contextlib
import glob
import os
import re
from collections.abc import Iterator

from dpsql.engine import Engine
from dpsql.errors import EngineError, PolicyError
from dpsql.model.environment import TableSchema, folded
from dpsql.session.declarations.arguments import split_name, table_of
from dpsql.sql.view_sources import ViewSource, columns_behind, view_sources
from dpsql.state import Policy, ProtectedTable

_FILE_URL = re.compile(r"file:(//(localhost(?=/))?)?", re.IGNORECASE)


def sources_of(canonical: str, policy: Policy, engine: Engine) -> frozenset[str]:
    """Return the sources of a table by its identity; only itself if it is gone or cannot be read.

    Sources are base tables, by their identities, and files. Public tables are left out.
    """
    schema = engine.find(canonical, views=True)
    with contextlib.suppress(EngineError):
        if schema:
            return rows_from(schema, policy, engine)
    return frozenset((canonical,))


def rows_from(schema: TableSchema, policy: Policy, engine: Engine) -> frozenset[str]:
    """Base tables, by their identities, and files that rows of a table or view come from; public tables left out."""
    if engine.is_base_table(schema):
        return frozenset((schema.canonical,))
    found = {*_files(schema, engine, set()), *(_identity(name, engine) for name in engine.tables_read(schema))}
    return frozenset(name for name in found if not policy.public_table(name))


def _identity(name: str, engine: Engine) -> str:
    """Identity of a table that a view reads; what is said itself where that names no table."""
    with contextlib.suppress(PolicyError):
        return table_of(split_name(name), engine).canonical
    return name


def _files(schema: TableSchema, engine: Engine, seen: set[str]) -> Iterator[str]:
    """Yield the paths of the files that a view reads, and the views below it."""
    for source, below in _sources_below(schema, engine, seen):
        is_path = len(source.names) == 1 and any(sign in source.names[0] for sign in "./\\")
        if not below and (not source.names or is_path):
            for text in source.texts:
                yield from _paths(text)


def _sources_below(
    schema: TableSchema, engine: Engine, seen: set[str]
) -> Iterator[tuple[ViewSource, TableSchema | None]]:
    """Yield the sources of a view and of the views below it, each with the table or view that it names."""
    text = engine.view_text(schema)
    if not text or schema.canonical in seen:
        return
    seen.add(schema.canonical)
    for source in view_sources(text):
        below = engine.resolve(source.names) if source.names else None
        yield source, below
        if below:
            yield from _sources_below(below, engine, seen)


def reads_rows_of(reader: str, schema: TableSchema, engine: Engine) -> bool:
    """Return True if a table, by its identity, is another table or view, reads it, or reads a file that it reads."""
    if reader == schema.canonical:
        return True
    found = sources_of(reader, Policy(), engine)
    if schema.canonical in found or not found.isdisjoint(_files(schema, engine, set())):
        return True
    view = engine.find(reader, views=True)
    return view is not None and schema.canonical in _views_below(view, engine, set())


def _views_below(schema: TableSchema, engine: Engine, seen: set[str]) -> Iterator[str]:
    """Yield the identities of the tables and views that the text of a view names, and of those below them."""
    yield from (below.canonical for _, below in _sources_below(schema, engine, seen) if below)


def lends_unit(table: TableSchema, reader: ProtectedTable, engine: Engine) -> bool:
    """Return True if the unit column of a protected view may come from a table that it reads, or be there, too.

    It may if the table has a column of a name that the unit column has, there or in a view below.
    """
    view = engine.find(reader.table, views=True)
    if not view:
        return True
    below = (engine.find(name, views=True) for name in _views_below(view, engine, set()))
    texts = [engine.view_text(one) for one in (view, *below) if one and not engine.is_base_table(one)]
    names: frozenset[str] = frozenset()
    more = frozenset((folded(reader.privacy_unit_column),))
    while names != more:
        names = more
        for text in texts:
            found = columns_behind(text, more) if text else None
            if found is None:
                return True
            more = found
    return any(table.column(name) for name in names)


def _paths(text: str) -> Iterator[str]:
    """The files that a name or a pattern of names stands for, whatever links lead there, and what it says itself."""
    path = _FILE_URL.sub("", text)
    yield os.path.realpath(path)
    if glob.has_magic(path):
        yield from map(os.path.realpath, glob.iglob(path, recursive=True))  # noqa: PTH207 (patterns of DuckDB, not of Path)
