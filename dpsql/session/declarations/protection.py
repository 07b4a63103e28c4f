"""What a declaration does only where it is said: protect less than before, and give people a second budget, or none.

| setting | protects less where it |
| --- | --- |
| ``epsilon_budget``, ``delta_budget``, ``rho_budget``, ``delta_threshold``, ``delta_conversion`` | rises |
| ``unit``, ``privacy_unit_column``, the columns of a link | is another one, or a link comes or goes |
| ``min_privacy_units_per_group`` | falls or is removed |
| ``rho_ceiling`` | rises or is removed |
| ``rho_window`` | holds a level that it did not hold, or is removed |
| ``max_groups_contributed``, ``max_rows_per_group``, ``bounds`` | is removed |
| ``max_rows_norm``, ``max_rows_per_unit`` | is removed |
| ``default_rho``, ``default_epsilon``, ``default_delta`` | rises; or the default becomes one of the other kind |
| ``rho_limit``, ``budget_part`` | rises or is removed |

Such a change is named, and done where ``replace := true`` is said. Other bounds on what one unit adds are other noise
for the same privacy, so they protect no less.

Are these the same people under two budgets, or people in a public table? Both are said explicitly, or refused. What can
be seen of it: a column that is called like the column of a privacy unit, and a table or view whose rows are those of a
protected one. A copy of a protected table under other names looks like any table.
"""

from __future__ import annotations

import contextlib
import dataclasses
import glob
import operator
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from dpsql.engine import Engine
from dpsql.errors import EngineError, PolicyError
from dpsql.model.environment import TableSchema, folded
from dpsql.session.declarations.arguments import split_name, table_of
from dpsql.sql.source.relation import ViewSource, columns_behind, view_sources
from dpsql.state import (
    DELTA_UNITS_PER_ONE,
    NANO_PER_RHO,
    ClearedAnalyst,
    Domain,
    Policy,
    ProtectedTable,
    Unit,
)


def require_no_looser(noun: str, changes: Sequence[str], *, replace: bool) -> None:
    """Refuse what protects less than before, unless it is said that it shall.

    Raises:
        PolicyError: naming each such setting.

    """
    if changes and not replace:
        raise PolicyError(
            f"this would protect {noun} less than what is declared: {', '.join(changes)}; add replace := true if that "
            "is meant"
        )


# Of two values, before and after.
_rises = operator.lt


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting of a declaration, and which change of it protects less.

    Attributes:
        name: as the curator says it.
        field: where the declaration keeps it; None stands there where it is not declared.
        is_looser: whether the second of two values protects less than the first; by default only a removal does.
        units: how many the declaration keeps of one that the curator says.

    """

    name: str
    field: str
    is_looser: Callable[[Any, Any], bool] = lambda _before, _after: False
    units: int = 1

    def changes(self, before: object, after: object | None) -> Iterator[str]:
        """The change, where it protects less: so does a setting that is removed, and never one that is new."""
        old, new = getattr(before, self.field), getattr(after, self.field, None)
        if old is not None and (new is None or self.is_looser(old, new)):
            yield f"{self.name} from {self.text(old)} to {self.text(new)}"

    def text(self, value: Any) -> str:
        """A value as people read it."""
        match value:
            case None:
                return "none"
            case str():
                return value
            case tuple():
                return f"[{', '.join(map(self.text, value))}]"
        return f"{value / self.units:.9g}"


# The settings of each declaration; the defaults of a table's queries stand apart.
_SETTINGS: Mapping[type, tuple[Setting, ...]] = {
    Unit: (
        Setting("rho_budget", "rho_budget", _rises, NANO_PER_RHO),
        Setting("delta_threshold", "delta_threshold", _rises, DELTA_UNITS_PER_ONE),
        Setting("delta_conversion", "delta_conversion", _rises),
    ),
    ProtectedTable: (
        Setting("max_groups_contributed", "max_groups"),
        Setting("max_rows_per_group", "max_rows_per_group"),
        Setting("max_rows_norm", "max_rows_norm"),
        Setting("max_rows_per_unit", "max_rows_per_unit"),
        Setting("min_privacy_units_per_group", "min_units", operator.gt),
        Setting("rho_ceiling", "rho_ceiling", _rises, NANO_PER_RHO),
        Setting(
            "rho_window", "rho_window", lambda before, after: after[0] < before[0] or after[1] > before[1], NANO_PER_RHO
        ),
    ),
    Domain: (Setting("bounds", "bounds"),),
    ClearedAnalyst: (
        Setting("rho_limit", "rho_limit", _rises, NANO_PER_RHO),
        Setting("budget_part", "budget_part", _rises),
    ),
    type(None): (),
}
# The default level of a table, which has one of them at most, and its delta.
_LEVELS = (
    Setting("default_rho", "default_rho", _rises, NANO_PER_RHO),
    Setting("default_epsilon", "default_epsilon", _rises),
)
_DELTA = Setting("default_delta", "default_delta", _rises)

_Declared = TypeVar("_Declared", Unit, ProtectedTable, Domain, ClearedAnalyst)


def looser(before: _Declared | None, after: _Declared | None) -> list[str]:
    """The settings of a declaration that protect less.

    Args:
        before: as it is declared; None where it is not, so that nothing can protect less.
        after: as it shall be; None where it is taken back.

    """
    return [change for setting in _SETTINGS[type(before)] for change in setting.changes(before, after)]


def looser_defaults(before: ProtectedTable | None, after: ProtectedTable, default_delta: float) -> list[str]:
    """The defaults of a table's queries that protect less: they rise, or the level becomes one of the other kind.

    Args:
        before: as it is declared; None where it is not.
        after: as it shall be.
        default_delta: what holds where the table has none of its own.

    """
    if not before:
        return []
    changes: list[str] = []
    for level, other in (_LEVELS, _LEVELS[::-1]):
        old, new = getattr(before, level.field), getattr(after, level.field)
        if old and getattr(after, other.field):
            changes.append(f"{level.name} from {level.text(old)} to {other.name}")
        elif new:
            # without a default, queries name a level themselves
            changes += level.changes(before, after)
    tables = (dataclasses.replace(one, default_delta=one.default_delta or default_delta) for one in (before, after))
    return [*changes, *_DELTA.changes(*tables)]


_FILE_URL = re.compile(r"file:(//(localhost(?=/))?)?", re.IGNORECASE)


def same_column(columns: Iterable[str], table: str, unit: str, policy: Policy) -> ProtectedTable | None:
    """A table of another unit whose unit column is called like one of these; None where there is none.

    None, too, for a unit that other tables have: it is told apart from all others by its name.
    """
    if any(one.unit == unit and one.table != table for one in policy.tables):
        return None
    named = {folded(column) for column in columns}
    others = (one for one in policy.tables if one.unit != unit and not policy.link(one.table))
    return next((one for one in others if folded(one.privacy_unit_column) in named), None)


def _same_people(
    schema: TableSchema, columns: Iterable[str], unit: str, policy: Policy, engine: Engine
) -> Iterator[tuple[ProtectedTable, str]]:
    """Tables of other units that seem to hold the same people, each with the reason."""
    column = same_column(columns, schema.canonical, unit, policy)
    if column:
        yield column, f"its unit column is called {column.privacy_unit_column!r}, too"
    others = [one for one in policy.tables if one.unit != unit]
    own = _sources(schema, policy, engine) if others else frozenset()
    for other in others:
        read = own & sources_of(other.table, policy, engine)
        if read:
            yield other, f"both are made of {min(read)!r}"


def require_other_people(
    schema: TableSchema, columns: Iterable[str], unit: str, policy: Policy, engine: Engine
) -> None:
    """Refuse to give people a second budget.

    Raises:
        PolicyError: they seem to have one; says what to write.

    """
    for other, reason in _same_people(schema, columns, unit, policy, engine):
        raise PolicyError(
            f"{schema.canonical!r} seems to hold the people of {other.table!r}, which has the budget of unit "
            f"{other.unit!r}: {reason}. Say unit := '{other.unit}' if these are the same people, or "
            "separate_people := true if they are others"
        )


def sources_of(canonical: str, policy: Policy, engine: Engine) -> frozenset[str]:
    """Return the sources of a table by its identity; only itself if it is gone or cannot be read.

    Sources are base tables, by their identities, and files. Public tables are left out.
    """
    schema = engine.find(canonical, views=True)
    with contextlib.suppress(EngineError):
        if schema:
            return _sources(schema, policy, engine)
    return frozenset((canonical,))


def _sources(schema: TableSchema, policy: Policy, engine: Engine) -> frozenset[str]:
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
