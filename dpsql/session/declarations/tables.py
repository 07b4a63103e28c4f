"""CALL dp_unit, dp_protect and dp_link: budgets of units, whose rows a table holds, and settings of its queries."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from dpsql.engine import Engine
from dpsql.errors import PolicyError
from dpsql.model.environment import TableSchema, folded
from dpsql.model.similar_names import as_written
from dpsql.operations.comparisons import compared_type
from dpsql.operations.dialect import text_literal
from dpsql.plan.environment.links import link_steps, linked, unit_column
from dpsql.session.declarations.arguments import (
    BUDGET,
    Arguments,
    StateAccess,
    column_of,
    remember,
    require_bytewise,
    rho_nano,
    split_name,
    table_of,
)
from dpsql.session.declarations.budgets import looser_budget, read_budget, require_its_levels
from dpsql.session.declarations.people import require_other_people
from dpsql.session.declarations.protection import (
    looser,
    looser_defaults,
    require_no_looser,
)
from dpsql.session.declarations.public import require_not_public
from dpsql.session.declarations.undoing import fact_changes, reach_of, require_replaced
from dpsql.session.declarations.unit_names import look_alike_unit
from dpsql.sql.time_zones import unknown_zone
from dpsql.sql.zone_names import ZONES
from dpsql.state import (
    Link,
    Policy,
    ProtectedTable,
    Reach,
    Unit,
    checked,
    rho_nano_down,
)

_UTC = frozenset(
    f"{prefix}{name}" for prefix in ("", "Etc/") for name in ("UTC", "UCT", "GMT", "Greenwich", "Universal", "Zulu")
)
"""Names of one zone."""


def declare_unit(arguments: Arguments, access: StateAccess, _engine: Engine) -> str:
    """Declare a privacy unit, or change what is named of its budget."""
    name = arguments.names[0].strip()
    policy = access.read().policy()
    before = policy.unit(name)
    unit = read_budget(name, arguments, before)
    require_its_levels(unit, [one for one in policy.tables if before and one.unit == before.name])
    require_no_looser(f"unit {unit.name}", looser_budget(before, unit), replace=arguments.flag("replace"))
    access.write().declare_unit(unit)
    return _warned(f"unit {unit.name} has its budget", look_alike_unit(unit.name, policy))


def declare_protected(arguments: Arguments, access: StateAccess, engine: Engine) -> str:
    """Protect a table, or change what is named of its settings."""
    arguments.require_kept("unit", "privacy_unit_column")
    schema = table_of(split_name(arguments.names[0]), engine)
    policy = access.read().policy()
    before = policy.protected_table(schema.canonical)
    link = policy.link(schema.canonical)
    if link and not arguments.has("privacy_unit_column"):
        raise PolicyError(
            f"table {schema.canonical!r} is linked; change its settings with CALL dp_link, or name its own "
            "privacy_unit_column := 'column' with replace := true"
        )
    if policy.public_table(schema.canonical):
        # said here, before a unit is declared that would stay behind
        require_replaced(arguments, schema, access, engine)
    unit = _unit(arguments, folded(schema.catalog_name[2]), policy, before)
    name = arguments.read("privacy_unit_column", str) or (before.privacy_unit_column if before else "")
    if not name:
        raise PolicyError("dp_protect needs privacy_unit_column := 'the column that names the unit'")
    column = column_of(schema, name).name
    require_bytewise(schema, column, engine)
    protected = _settings(arguments, schema.canonical, unit, column, before)
    changes = fact_changes(before, protected, link, None)
    protected, reach = _with_reach(arguments, schema, protected, policy, access, engine, changes)
    _require_no_looser(arguments, before, protected, policy, unit, changes)
    seen = None
    if not before or changes or arguments.names_any("separate_people"):
        _require_told_apart(arguments, schema, (), protected, policy, engine)
        seen = policy.last
    state = access.write()
    if unit != policy.unit(unit.name):
        state.declare_unit(unit)
    state.declare_protected(protected, reach=reach, seen=seen)
    remember(schema, state)
    told = f"table {schema.canonical} is protected; its privacy unit is {unit.name}"
    return _warned(told, look_alike_unit(unit.name, policy)) + _other_zone(schema, protected, engine)


def _warned(told: str, warning: str) -> str:
    return f"{told}; {warning}" if warning else told


def _unit(arguments: Arguments, own_unit: str, policy: Policy, before: ProtectedTable | None) -> Unit:
    """The unit of a table: the one that is named, the one that it has, or one of its own with its own budget."""
    said = arguments.read("unit", str)
    name = said or (before.unit if before else own_unit)
    known = policy.unit(name)
    if said is not None or name != own_unit:
        if arguments.has(*BUDGET):
            raise PolicyError(f"the budget belongs to unit {name!r}: declare it with CALL dp_unit")
        if not known:
            raise PolicyError(f"there is no privacy unit {name!r}; declare it with CALL dp_unit first")
        return known
    return read_budget(name, arguments, known)


def _settings(
    arguments: Arguments, table: str, unit: Unit, column: str, before: ProtectedTable | None
) -> ProtectedTable:
    """What dp_protect and dp_link say of a table's queries; what they do not name stays as it was."""
    window = arguments.pair("rho_window")
    said = ProtectedTable(
        table=table,
        unit=unit.name,
        privacy_unit_column=column,
        max_groups=arguments.read("max_groups_contributed", int),
        max_rows_per_group=arguments.read("max_rows_per_group", int),
        default_rho=rho_nano(arguments.read("default_rho", float)),
        default_epsilon=arguments.read("default_epsilon", float),
        default_delta=arguments.read("default_delta", float),
        min_units=arguments.read("min_privacy_units_per_group", int),
        rho_window=(rho_nano_down(window[0]), rho_nano_down(window[1])) if window else None,
        rho_ceiling=rho_nano(arguments.read("rho_ceiling", float)),
        version=arguments.version(),
        separate_people=arguments.flag("separate_people"),
        max_rows_norm=arguments.read("max_rows_norm", float),
        max_rows_per_unit=arguments.read("max_rows_per_unit", int),
        coverage=arguments.flag("coverage", default=True),
        time_zone=_declared_zone(arguments, before),
    )
    protected = checked(dataclasses.replace(said, **arguments.kept(before, _FIELDS, _INSTEAD)))
    require_its_levels(unit, [protected])
    return protected


# Where the policy keeps each setting of a table.
_SAME_NAME = (
    "max_rows_per_group",
    "max_rows_norm",
    "max_rows_per_unit",
    "default_rho",
    "default_epsilon",
    "default_delta",
    "rho_window",
    "rho_ceiling",
    "separate_people",
    "coverage",
    "time_zone",
)
_FIELDS = {name: name for name in _SAME_NAME} | {
    "max_groups_contributed": "max_groups",
    "min_privacy_units_per_group": "min_units",
}
# A default level is said as rho or as epsilon, and the one that is said takes the other's place.
_INSTEAD = {"default_rho": "default_epsilon", "default_epsilon": "default_rho"}


def _with_reach(
    arguments: Arguments,
    schema: TableSchema,
    protected: ProtectedTable,
    policy: Policy,
    access: StateAccess,
    engine: Engine,
    changes: Sequence[str],
) -> tuple[ProtectedTable, Reach | None]:
    """Return a table as it shall be protected, and the reach of that if it replaces another declaration.

    That these are other people was said of the unit before, so it has to be said again of another one.

    Raises:
        PolicyError: an answer was paid for under what is replaced.

    """
    if not (changes or policy.public_table(schema.canonical)):
        return protected, None
    reach = reach_of(schema, policy, engine)
    access.read().require_unpaid(schema.canonical, reach)
    if changes and not arguments.names_any("separate_people"):
        protected = dataclasses.replace(protected, separate_people=False)
    return protected, reach


def _require_no_looser(
    arguments: Arguments,
    before: ProtectedTable | None,
    after: ProtectedTable,
    policy: Policy,
    unit: Unit,
    facts: Sequence[str],
) -> None:
    changes = [
        *looser_budget(policy.unit(unit.name), unit),
        *facts,
        *(["archived from true to false"] if before and before.archived else []),
        *looser(before, after),
        *looser_defaults(before, after, unit.default_delta),
    ]
    require_no_looser(f"table {after.table}", changes, replace=arguments.flag("replace"))


def _require_told_apart(
    arguments: Arguments,
    schema: TableSchema,
    link_columns: Sequence[str],
    protected: ProtectedTable,
    policy: Policy,
    engine: Engine,
) -> None:
    """Refuse people who seem to have another budget already, or to be public, where nobody says that it is so."""
    if not protected.separate_people:
        require_other_people(arguments, schema, protected, link_columns, policy, engine)
    require_not_public(schema, link_columns or (protected.privacy_unit_column,), policy, engine)


def declare_linked(arguments: Arguments, access: StateAccess, engine: Engine) -> str:
    """Protect a table through the key of another one, or change what is named of its settings."""
    schema = table_of(split_name(arguments.names[0]), engine)
    columns = tuple(column_of(schema, name).name for name in arguments.lists[1])
    policy = access.read().policy()
    parent, parent_columns = _parent(arguments, policy.link(schema.canonical), engine)
    above = policy.protected_table(parent.canonical)
    if not above:
        raise PolicyError(f"table {parent.canonical!r} is not protected, so no table can be linked to it")
    if above.archived:
        raise PolicyError(
            f"table {parent.canonical!r} is archived, so no table can be linked to it; first declare it again with "
            "replace := true"
        )
    if not engine.is_base_table(schema) or not engine.is_base_table(parent):
        raise PolicyError("a link is between base tables, whose keys DuckDB keeps")
    for column, key in zip(columns, parent_columns, strict=False):
        require_bytewise(schema, column, engine)
        require_bytewise(parent, key, engine)
    link = checked(Link(schema.canonical, columns, parent.canonical, parent_columns))
    _require_no_circle(link, policy)
    _require_key(link, schema, parent, engine)
    before = policy.protected_table(schema.canonical)
    unit = policy.declared_unit(above.unit)
    protected = _settings(arguments, schema.canonical, unit, columns[0], before)
    changes = fact_changes(before, protected, policy.link(schema.canonical), link)
    if policy.public_table(schema.canonical):
        require_replaced(arguments, schema, access, engine)
    protected, reach = _with_reach(arguments, schema, protected, policy, access, engine, changes)
    _require_free_name(link, schema, policy)
    _require_no_looser(arguments, before, protected, policy, unit, changes)
    seen = None
    if not before or changes or arguments.names_any("separate_people"):
        _require_told_apart(arguments, schema, columns, protected, policy, engine)
        seen = policy.last
    state = access.write()
    state.declare_protected(protected, link, reach, seen)
    remember(linked(schema, state.policy(), engine), state)
    told = f"table {schema.canonical} is linked to {parent.canonical}; its privacy unit is {above.unit}"
    return told + _other_zone(schema, protected, engine)


def _parent(arguments: Arguments, before: Link | None, engine: Engine) -> tuple[TableSchema, tuple[str, ...]]:
    """The parent and its key, as they are named or as they are declared."""
    arguments.require_kept("parent")
    if before and not arguments.has("parent"):
        known = engine.find(before.parent)
        if not known:
            raise PolicyError(f"the table {before.parent!r} that leads to the privacy unit is gone")
        return known, before.parent_columns
    places = [split_name(key) for key in arguments.names_of("parent")]
    if not places:
        raise PolicyError("dp_link needs parent := 'table.column', or a list of such for a key of several columns")
    tables = {tuple(parts[:-1]) for parts in places}
    if len(tables) != 1 or not all(tables):
        raise PolicyError("parent takes columns of one table, as in parent := ['visits.city', 'visits.number']")
    parent = table_of(list(next(iter(tables))), engine)
    return parent, tuple(column_of(parent, parts[-1]).name for parts in places)


def _require_no_circle(link: Link, policy: Policy) -> None:
    """Check that the parents of a link do not lead back to its own table."""
    parent: str | None = link.parent
    while parent:
        if parent == link.table:
            raise PolicyError(f"the link of {link.table!r} would lead back to {link.table!r} itself")
        above = policy.link(parent)
        parent = above.parent if above else None


def _require_key(link: Link, child: TableSchema, parent: TableSchema, engine: Engine) -> None:
    """Check that a row meets one parent row at most, and that no comparison of the two may fail."""
    if not engine.is_unique(parent, link.parent_columns):
        raise PolicyError(
            f"{', '.join(link.parent_columns)} of {parent.canonical!r} has no PRIMARY KEY or UNIQUE constraint, so a "
            f"row could meet several parents. Write in DuckDB: ALTER TABLE {parent.canonical} ADD PRIMARY KEY "
            f"({', '.join(map(as_written, link.parent_columns))})"
        )
    for own, key in zip(link.columns, link.parent_columns, strict=True):
        own_type, key_type = column_of(child, own).type, column_of(parent, key).type
        if not compared_type(own_type, key_type):
            raise PolicyError(
                f"{own!r} is {own_type} and {key!r} is {key_type}; "
                "a link compares columns of one type, or whole numbers"
            )


def _require_free_name(link: Link, child: TableSchema, policy: Policy) -> None:
    """What the last parent lends must have a name of its own in the table."""
    with_link = dataclasses.replace(policy, links=(*(one for one in policy.links if one.table != link.table), link))
    steps = link_steps(with_link, link.table)
    name = unit_column(with_link, steps[-1].parent) if steps else ""
    if child.column(name):
        raise PolicyError(
            f"table {child.canonical!r} has a column {name!r} of its own; protect it by that column with CALL "
            "dp_protect, or rename it"
        )


def _declared_zone(arguments: Arguments, before: ProtectedTable | None) -> str | None:
    """Return the time zone that a declaration names.

    Raises:
        PolicyError: it is not known, or the table has another one, which a repeated declaration does not change.

    """
    zone, is_named = arguments.read("time_zone", str), arguments.names_any("time_zone")
    if zone is not None and zone not in ZONES:
        raise PolicyError(" ".join(unknown_zone(zone)))
    if before and is_named and (zone or "UTC") != (before.time_zone or "UTC") and not arguments.flag("replace"):
        raise PolicyError(
            f"days and hours of table {before.table} are those of time zone {before.time_zone or 'UTC'}, and would be "
            f"those of {zone or 'UTC'}; add replace := true if that is meant"
        )
    return zone


def _other_zone(schema: TableSchema, table: ProtectedTable, engine: Engine) -> str:
    """Return a warning if days of a table are those of another zone than the curator's session has; else empty.

    Args:
        schema: the table.
        table: what is declared of it.
        engine: knows the session.

    """
    if not any("WITH TIME ZONE" in column.type.upper() for column in schema.columns):
        return ""
    zone, here = table.time_zone or "UTC", engine.session_zone()
    if zone == here or {zone, here} <= _UTC:
        return ""
    told = f"; days and hours of its TIMESTAMPTZ values are those of time zone {zone}, and this session has {here}"
    cure = f": add time_zone := {text_literal(here)}, replace := true if that is meant"
    return told + (cure if here in ZONES else "")
