"""CALL dp_protect and dp_link: whose rows a table holds, and the settings of queries on it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from dpsql.engine import Engine
from dpsql.errors import PolicyError
from dpsql.query.environment import TableSchema, folded
from dpsql.query.statements import FunctionCall
from dpsql.session.declarations.arguments import BUDGET, Arguments, Books
from dpsql.session.declarations.budgets import budget
from dpsql.session.declarations.looser import looser_table, looser_unit, require_no_looser
from dpsql.session.declarations.names import column_of, remember, require_bytewise, split_name, table_of
from dpsql.session.declarations.people import public_with_people, require_other_people
from dpsql.session.links import link_steps, linked, unit_column
from dpsql.state import Link, Policy, ProtectedTable, Unit, delta_from_units, rho_nano_down


def declare_protected(call: FunctionCall, books: Books, engine: Engine) -> str:
    """Protect a table, or change what is named of its settings."""
    arguments = Arguments(call, 1)
    arguments.require_kept("unit", "privacy_unit_column")
    schema = table_of(split_name(arguments.names[0]), engine)
    policy = books.read().policy()
    before = policy.protected_table(schema.canonical)
    if policy.public_table(schema.canonical) is not None:
        # said here, before a unit is declared that would stay behind
        raise PolicyError(
            f"table {schema.canonical!r} is public; where nothing was released of it yet, CALL "
            f"dp_public('{arguments.names[0]}', public := false) comes first"
        )
    unit = _unit(arguments, folded(schema.catalog_name[2]), policy, before)
    column = arguments.text("privacy_unit_column") or (before.privacy_unit_column if before else None)
    if column is None:
        raise PolicyError("dp_protect needs privacy_unit_column := 'the column that names the unit'")
    column = column_of(schema, column)
    require_bytewise(schema, column, engine)
    if policy.link(schema.canonical) is not None:
        raise PolicyError(f"table {schema.canonical!r} is linked; change its settings with CALL dp_link")
    protected = _settings(arguments, schema.canonical, unit.name, column, before)
    _require_no_looser(arguments, before, protected, policy, unit)
    if before is None or folded(before.privacy_unit_column) != folded(column) or arguments.names_any("separate_people"):
        _require_told_apart(schema, (column,), protected, policy, engine)
    state = books.write()
    if unit != policy.unit(unit.name):
        state.declare_unit(unit)
    state.declare_protected(protected)
    remember(schema, state)
    return f"table {schema.canonical} is protected; its privacy unit is {unit.name}"


def _unit(arguments: Arguments, own_unit: str, policy: Policy, before: ProtectedTable | None) -> Unit:
    """The unit of a table: the one that is named, the one that it has, or one of its own with its own budget."""
    said = arguments.text("unit")
    name = said or (before.unit if before else own_unit)
    known = policy.unit(name)
    if said is not None or name != own_unit:
        if arguments.has(*BUDGET):
            raise PolicyError(f"the budget belongs to unit {name!r}: declare it with CALL dp_unit")
        if known is None:
            raise PolicyError(f"there is no privacy unit {name!r}; declare it with CALL dp_unit first")
        return known
    return budget(name, arguments, known)


def _settings(
    arguments: Arguments, table: str, unit: str, column: str, before: ProtectedTable | None
) -> ProtectedTable:
    """What dp_protect and dp_link say of a table's queries; what they do not name stays as it was."""
    default_rho, ceiling = arguments.number("default_rho"), arguments.number("rho_ceiling")
    window = arguments.pair("rho_window")
    said = ProtectedTable(
        table=table,
        unit=unit,
        privacy_unit_column=column,
        max_groups=arguments.whole("max_groups_contributed"),
        max_rows_per_group=arguments.whole("max_rows_per_group"),
        default_rho=None if default_rho is None else rho_nano_down(default_rho),
        default_epsilon=arguments.number("default_epsilon"),
        default_delta=arguments.number("default_delta"),
        min_units=arguments.whole("min_privacy_units_per_group"),
        rho_window=None if window is None else (rho_nano_down(window[0]), rho_nano_down(window[1])),
        rho_ceiling=None if ceiling is None else rho_nano_down(ceiling),
        version=arguments.version(),
        separate_people=bool(arguments.flag("separate_people")),
    )
    if before is None:
        return said
    # a default level is said as rho or as epsilon, and the one that is said takes the other's place
    other = {"default_rho": "default_epsilon", "default_epsilon": "default_rho"}
    kept = {
        field: getattr(before, field)
        for name, field in _FIELDS.items()
        if not arguments.names_any(name) and not (name in other and arguments.has(other[name]))
    }
    return dataclasses.replace(said, **kept)


_FIELDS = {
    "max_groups_contributed": "max_groups",
    "max_rows_per_group": "max_rows_per_group",
    "default_rho": "default_rho",
    "default_epsilon": "default_epsilon",
    "default_delta": "default_delta",
    "min_privacy_units_per_group": "min_units",
    "rho_window": "rho_window",
    "rho_ceiling": "rho_ceiling",
    "separate_people": "separate_people",
}
"""Where the policy keeps each setting of a table."""


def _require_no_looser(
    arguments: Arguments, before: ProtectedTable | None, after: ProtectedTable, policy: Policy, unit: Unit
) -> None:
    known = policy.unit(unit.name)
    default_delta = delta_from_units(unit.delta_threshold // 100)
    changes = [*looser_unit(known, unit), *looser_table(before, after, default_delta)]
    require_no_looser(f"table {after.table}", changes, replace=arguments.flag("replace"))


def _require_told_apart(
    schema: TableSchema, columns: Sequence[str], protected: ProtectedTable, policy: Policy, engine: Engine
) -> None:
    """Refuse people who seem to have another budget already, or to be public, where nobody says that it is so."""
    if not protected.separate_people:
        require_other_people(schema, columns, protected.unit, policy, engine)
    public = public_with_people(columns, policy, engine)
    if public is not None:
        raise PolicyError(
            f"table {public!r} is public and has {', '.join(map(repr, columns))}, too, which tells of people now. Say "
            f"CALL dp_public('{public}', public := false), or dp_public('{public}', public_by_decision := 'why') first"
        )


def declare_linked(call: FunctionCall, books: Books, engine: Engine) -> str:
    """Protect a table through the key of another one, or change what is named of its settings."""
    arguments = Arguments(call, 2, lists=True)
    schema = table_of(split_name(arguments.names[0]), engine)
    columns = tuple(column_of(schema, name) for name in arguments.lists[1])
    policy = books.read().policy()
    parent, parent_columns = _parent(arguments, policy.link(schema.canonical), engine)
    above = policy.protected_table(parent.canonical)
    if above is None:
        raise PolicyError(f"table {parent.canonical!r} is not protected, so no table can be linked to it")
    if not engine.is_base_table(schema) or not engine.is_base_table(parent):
        raise PolicyError("a link is between base tables, whose keys DuckDB keeps")
    for column, key in zip(columns, parent_columns, strict=False):
        require_bytewise(schema, column, engine)
        require_bytewise(parent, key, engine)
    link = Link(schema.canonical, columns, parent.canonical, parent_columns)
    _require_key(link, schema, parent, engine)
    before = policy.protected_table(schema.canonical)
    protected = _settings(arguments, schema.canonical, above.unit, columns[0], before)
    _require_free_name(link, schema, policy)
    unit = policy.unit(above.unit)
    if unit is not None:
        _require_no_looser(arguments, before, protected, policy, unit)
    if before is None or arguments.names_any("separate_people"):
        _require_told_apart(schema, columns, protected, policy, engine)
    state = books.write()
    state.declare_protected(protected, link)
    remember(linked(schema, state.policy(), engine), state)
    return f"table {schema.canonical} is linked to {parent.canonical}; its privacy unit is {above.unit}"


def _parent(arguments: Arguments, before: Link | None, engine: Engine) -> tuple[TableSchema, tuple[str, ...]]:
    """The parent and its key, as they are named or as they are declared."""
    arguments.require_kept("parent")
    keys = arguments.names_of("parent")
    if not keys and not arguments.has("parent") and before is not None:
        known = engine.find(before.parent)
        if known is None:
            raise PolicyError(f"the table {before.parent!r} that leads to the privacy unit is gone")
        return known, before.parent_columns
    if not keys:
        raise PolicyError("dp_link needs parent := 'table.column', or a list of such for a key of several columns")
    places = [split_name(key) for key in keys]
    tables = {tuple(parts[:-1]) for parts in places}
    if len(tables) != 1 or not all(tables):
        raise PolicyError("parent takes columns of one table, as in parent := ['visits.city', 'visits.number']")
    parent = table_of(list(next(iter(tables))), engine)
    return parent, tuple(column_of(parent, parts[-1]) for parts in places)


def _require_key(link: Link, child: TableSchema, parent: TableSchema, engine: Engine) -> None:
    """A row must meet one parent row at most, and no comparison may need a cast."""
    if not engine.is_unique(parent, link.parent_columns):
        raise PolicyError(
            f"{', '.join(link.parent_columns)} of {parent.canonical!r} has no PRIMARY KEY or UNIQUE constraint, so a "
            "row could meet several parents; ALTER TABLE … ADD PRIMARY KEY, or create the table with one"
        )
    for own, key in zip(link.columns, link.parent_columns, strict=True):
        types = [column.type for column in (child.column(own), parent.column(key)) if column is not None]
        if len(set(types)) != 1:
            raise PolicyError(f"{own!r} is {types[0]} and {key!r} is {types[1]}; a link compares columns of one type")


def _require_free_name(link: Link, child: TableSchema, policy: Policy) -> None:
    """What the last parent lends must have a name of its own in the table."""
    with_link = dataclasses.replace(policy, links=(*(one for one in policy.links if one.table != link.table), link))
    if not link_steps(with_link, link.table):
        return
    name = unit_column(with_link, link_steps(with_link, link.table)[-1].parent)
    if child.column(name) is not None:
        raise PolicyError(
            f"table {child.canonical!r} has a column {name!r} of its own; protect it by that column with CALL "
            "dp_protect, or rename it"
        )
