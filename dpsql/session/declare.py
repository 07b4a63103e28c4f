"""The curator's declarations: CALL dp_unit, dp_protect, dp_link, dp_domain, dp_public, dp_analyst, dp_new_version."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Protocol, TypeVar

from dpsql.accounting import zcdp
from dpsql.engine import Engine
from dpsql.errors import PolicyError
from dpsql.query.environment import TableSchema, folded
from dpsql.query.statements import FunctionCall
from dpsql.session.links import link_steps, linked, unit_column
from dpsql.session.reader import CURATOR
from dpsql.state import (
    ClearedAnalyst,
    Domain,
    Link,
    Policy,
    ProtectedTable,
    PublicTable,
    RememberedTable,
    State,
    Unit,
    delta_units_down,
    rho_nano_down,
)

_T = TypeVar("_T")

BUDGET = ("epsilon_budget", "delta_budget", "rho_budget", "delta_threshold", "delta_conversion")
TABLE_RULES = (
    "unit", "privacy_unit_column", "max_groups_contributed", "max_rows_per_group",
    "default_rho", "default_epsilon", "default_delta", "min_privacy_units_per_group", "rho_window", "rho_ceiling",
    "version",
)  # fmt: skip

_PART = re.compile(r'"((?:[^"]|"")+)"|([^".]+)')
_NAME = re.compile(rf"(?:{_PART.pattern})(?:\.(?:{_PART.pattern}))*")


class Books(Protocol):
    """The state behind a session: ``read`` finds it as it is, ``write`` creates it where there is none.

    A declaration that is wrong in itself is refused before ``write``, so that it leaves no empty state file.
    """

    def read(self) -> State:
        """The state for looking up what is declared."""

    def write(self) -> State:
        """The state to declare in."""


def declare(call: FunctionCall, books: Books, engine: Engine) -> str:
    """Carry out one declaration; returns a sentence that says what now holds.

    Raises:
        PolicyError: an argument is missing, unknown or contradicts an earlier declaration; nothing changed.

    """
    match call.name:
        case "dp_unit":
            return _unit(call, books)
        case "dp_protect":
            return _protect(call, books, engine)
        case "dp_link":
            return _link(call, books, engine)
        case "dp_domain":
            return _domain(call, books, engine)
        case "dp_public":
            return _public(call, books, engine)
        case "dp_analyst":
            return _analyst(call, books)
        case _:
            return _new_version(call, books, engine)


class _Arguments:
    """Arguments of one call, checked for unknown names and read by type."""

    def __init__(self, call: FunctionCall, positional: int, named: tuple[str, ...], *, lists: bool = False) -> None:
        self._call = call
        listed = [_listed(argument) for argument in call.positional]
        single = all(
            len(names) == 1 and not isinstance(p, tuple) for names, p in zip(listed, call.positional, strict=True)
        )
        if len(listed) != positional or not all(listed) or not (lists or single):
            raise PolicyError(f"{call.name} takes {positional} name{'s' * (positional > 1)} in quotes first")
        unknown = sorted(set(call.named) - set(named))
        if unknown:
            raise PolicyError(f"{call.name} has no argument {unknown[0]}; it has {', '.join(named) or 'none'}")
        self.lists = tuple(listed)
        self.names = tuple(names[0] for names in listed)

    def names_of(self, name: str) -> tuple[str, ...]:
        """One name in quotes, or a list of them."""
        return _listed(self._call.named.get(name))

    def has(self, *names: str) -> bool:
        return any(self._call.named.get(name) is not None for name in names)

    def text(self, name: str) -> str | None:
        return self._read(name, str, "text in quotes")

    def whole(self, name: str) -> int | None:
        return self._read(name, int, "a whole number")

    def number(self, name: str) -> float | None:
        value = self._call.named.get(name)
        if isinstance(value, int) and not isinstance(value, bool):
            return float(value)
        return self._read(name, float, "a number")

    def pair(self, name: str) -> tuple[float, float] | None:
        value = self._call.named.get(name)
        if value is None:
            return None
        if isinstance(value, tuple) and len(value) == 2:
            low, high = value
            if isinstance(low, int | float) and isinstance(high, int | float):
                return float(low), float(high)
        raise PolicyError(f"{name} takes two numbers, as in {name} := [0, 500]")

    def literals(self, name: str) -> tuple[str, ...] | None:
        if name in self._call.named and name not in self._call.literals:
            raise PolicyError(f"{name} takes a list, as in {name} := ['a', 'b']")
        return self._call.literals.get(name)

    def _read(self, name: str, kind: type[_T], noun: str) -> _T | None:
        value = self._call.named.get(name)
        if value is None:
            return None
        if not isinstance(value, kind) or isinstance(value, bool):
            raise PolicyError(f"{name} takes {noun}")
        return value


def _listed(argument: object) -> tuple[str, ...]:
    """A name, or a list of names; empty for anything else."""
    names = argument if isinstance(argument, tuple) else (argument,)
    return tuple(names) if all(isinstance(name, str) and name for name in names) else ()


def budgeted(name: str, epsilon: float | None, delta: float | None) -> Unit:
    """A unit with a budget of (epsilon, delta).

    ``delta`` is halved between thresholds and conversion, and the rho budget is the largest that ``epsilon`` and the
    conversion half allow (optimal zCDP conversion).

    Raises:
        PolicyError: one of them is missing or out of range.

    """
    if epsilon is None or delta is None or not (epsilon > 0 and 0 < delta < 1):
        raise PolicyError("epsilon_budget must be positive and delta_budget between 0 and 1; give both")
    return Unit(name, rho_nano_down(zcdp.rho(epsilon, delta / 2)), delta_units_down(delta / 2), delta / 2)


def _budget(name: str, arguments: _Arguments, before: Unit | None) -> Unit:
    """A unit's budget: as rho and two deltas, or as (epsilon, delta)."""
    by_epsilon = arguments.has("epsilon_budget", "delta_budget")
    by_rho = arguments.has("rho_budget", "delta_threshold", "delta_conversion")
    if by_epsilon and by_rho:
        raise PolicyError("a budget is either (epsilon_budget, delta_budget) or rho_budget with two deltas")
    if not by_epsilon and not by_rho:
        if before is not None:
            return before
        raise PolicyError("a unit needs a budget: epsilon_budget := 3, delta_budget := 1e-6")
    if by_epsilon:
        return budgeted(name, arguments.number("epsilon_budget"), arguments.number("delta_budget"))
    rho, threshold = arguments.number("rho_budget"), arguments.number("delta_threshold")
    conversion = arguments.number("delta_conversion")
    if rho is None or threshold is None or conversion is None:
        raise PolicyError("rho_budget goes with delta_threshold and delta_conversion")
    return Unit(name, rho_nano_down(rho), delta_units_down(threshold), conversion)


def _unit(call: FunctionCall, books: Books) -> str:
    arguments = _Arguments(call, 1, BUDGET)
    unit = _budget(arguments.names[0], arguments, None)
    books.write().declare_unit(unit)
    return f"unit {unit.name} has its budget"


def split_name(text: str) -> list[str]:
    """Parts of a name: dots separate them, double quotes hold one together, case and spaces stay.

    >>> split_name("main.my visits")
    ['main', 'my visits']
    >>> split_name('clinic."Odd.Schema"."my ""own"" table"')
    ['clinic', 'Odd.Schema', 'my "own" table']

    Raises:
        PolicyError: a part is empty or a quote is not closed.

    """
    if not _NAME.fullmatch(text):
        raise PolicyError(f"{text!r} is not a name: write visits, main.visits or 'main.\"odd.name\"'")
    return [quoted.replace('""', '"') or bare for quoted, bare in _PART.findall(text)]


def _table(parts: list[str], engine: Engine) -> TableSchema:
    schema = engine.resolve(parts)
    if schema is None:
        raise PolicyError(f"there is no table or view {'.'.join(parts)!r} in this database")
    return schema


def _column(schema: TableSchema, name: str) -> str:
    column = schema.column(name)
    if column is None:
        names = ", ".join(c.name for c in schema.columns)
        raise PolicyError(f"table {schema.canonical!r} has no column {name!r}; it has {names}")
    return column.name


def _require_bytewise(schema: TableSchema, column: str, engine: Engine) -> None:
    """Units are told apart by their bytes: where SQL holds two spellings equal, one person would count twice."""
    collation = engine.collation(schema, column)
    if collation is not None:
        raise PolicyError(
            f"privacy unit column {column!r} is compared under collation {collation!r}, so that one unit may have "
            "several spellings; use a column without a collation (and no default_collation), as in "
            f'CREATE VIEW … AS SELECT *, lower({column}) COLLATE "binary" AS one_spelling FROM …'
        )


def _require_declared(schema: TableSchema, books: Books) -> None:
    policy = books.read().policy()
    if policy.protected_table(schema.canonical) is None and policy.public_table(schema.canonical) is None:
        raise PolicyError(f"table {schema.canonical!r} is neither protected nor public")


def _protect(call: FunctionCall, books: Books, engine: Engine) -> str:
    arguments = _Arguments(call, 1, TABLE_RULES + BUDGET)
    schema = _table(split_name(arguments.names[0]), engine)
    policy = books.read().policy()
    before = policy.protected_table(schema.canonical)
    own_unit = folded(schema.catalog_name[2])
    unit_name = arguments.text("unit") or (before.unit if before else own_unit)
    shared = arguments.text("unit") is not None or unit_name != own_unit
    if shared and arguments.has(*BUDGET):
        raise PolicyError(f"the budget belongs to unit {unit_name!r}: declare it with CALL dp_unit")
    if shared and policy.unit(unit_name) is None:
        raise PolicyError(f"there is no privacy unit {unit_name!r}; declare it with CALL dp_unit first")
    if policy.public_table(schema.canonical) is not None:
        # said here, before a unit is declared that would stay behind
        raise PolicyError(f"table {schema.canonical!r} is public; what was public cannot be protected")
    column = arguments.text("privacy_unit_column") or (before.privacy_unit_column if before else None)
    if column is None:
        raise PolicyError("dp_protect needs privacy_unit_column := 'the column that names the unit'")
    column = _column(schema, column)
    _require_bytewise(schema, column, engine)
    if policy.link(schema.canonical) is not None:
        raise PolicyError(f"table {schema.canonical!r} is linked; change its settings with CALL dp_link")
    protected = _settings(arguments, schema.canonical, unit_name, column)
    own_budget = None if shared else _budget(unit_name, arguments, policy.unit(unit_name))
    state = books.write()
    if own_budget is not None:
        state.declare_unit(own_budget)
    state.declare_protected(protected)
    _remember(schema, state)
    return f"table {schema.canonical} is protected; its privacy unit is {unit_name}"


def _settings(arguments: _Arguments, table: str, unit: str, column: str) -> ProtectedTable:
    """What dp_protect and dp_link say of a table's queries."""
    default_rho, ceiling = arguments.number("default_rho"), arguments.number("rho_ceiling")
    window = arguments.pair("rho_window")
    return ProtectedTable(
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
        version=_version(arguments),
    )


def _version(arguments: _Arguments) -> str:
    """The version that a declaration names; empty where it leaves the version as it is."""
    version = arguments.text("version")
    if version == "":
        raise PolicyError("version takes a name, as in version := '2026-11'")
    return version or ""


def _link(call: FunctionCall, books: Books, engine: Engine) -> str:
    arguments = _Arguments(call, 2, ("parent", *TABLE_RULES[2:]), lists=True)
    schema = _table(split_name(arguments.names[0]), engine)
    columns = tuple(_column(schema, name) for name in arguments.lists[1])
    keys = arguments.names_of("parent")
    if not keys:
        raise PolicyError("dp_link needs parent := 'table.column', or a list of such for a key of several columns")
    places = [split_name(key) for key in keys]
    tables = {tuple(parts[:-1]) for parts in places}
    if len(tables) != 1 or not all(tables):
        raise PolicyError("parent takes columns of one table, as in parent := ['visits.city', 'visits.number']")
    parent = _table(list(next(iter(tables))), engine)
    parent_columns = tuple(_column(parent, parts[-1]) for parts in places)
    policy = books.read().policy()
    above = policy.protected_table(parent.canonical)
    if above is None:
        raise PolicyError(f"table {parent.canonical!r} is not protected, so no table can be linked to it")
    if not engine.is_base_table(schema) or not engine.is_base_table(parent):
        raise PolicyError("a link is between base tables, whose keys DuckDB keeps")
    for column, key in zip(columns, parent_columns, strict=False):
        _require_bytewise(schema, column, engine)
        _require_bytewise(parent, key, engine)
    link = Link(schema.canonical, columns, parent.canonical, parent_columns)
    _require_key(link, schema, parent, engine)
    protected = _settings(arguments, schema.canonical, above.unit, columns[0])
    _require_free_name(link, schema, policy)
    state = books.write()
    state.declare_protected(protected, link)
    _remember(linked(schema, state.policy(), engine), state)
    return f"table {schema.canonical} is linked to {parent.canonical}; its privacy unit is {above.unit}"


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


def _remember(schema: TableSchema, state: State) -> None:
    columns = tuple((column.name, column.type, column.nullable) for column in schema.columns)
    state.remember(RememberedTable(schema.canonical, columns))


def _analyst(call: FunctionCall, books: Books) -> str:
    arguments = _Arguments(call, 1, ("rho_limit",))
    name, limit = arguments.names[0], arguments.number("rho_limit")
    if limit is None and "rho_limit" in call.named:
        raise PolicyError("rho_limit takes a number; leave it out for any level")
    if folded(name) == CURATOR:
        raise PolicyError("the curator may be shown everything; an analyst needs a name of their own")
    analyst = ClearedAnalyst(name, None if limit is None else rho_nano_down(limit))
    books.write().declare_analyst(analyst)
    return f"analyst {name} may be shown " + ("any level" if limit is None else f"levels up to rho = {limit:.9g}")


def _domain(call: FunctionCall, books: Books, engine: Engine) -> str:
    arguments = _Arguments(call, 2, ("bounds", "keys", "keys_from"))
    schema = _table(split_name(arguments.names[0]), engine)
    column = _column(schema, arguments.names[1])
    source = arguments.text("keys_from")
    keys_from = None
    if source is not None:
        *parts, key_column = split_name(source)
        if not parts:
            raise PolicyError("keys_from takes 'table.column'")
        listed = _table(parts, engine)
        keys_from = (listed.canonical, _column(listed, key_column))
    domain = Domain(schema.canonical, column, arguments.pair("bounds"), arguments.literals("keys"), keys_from)
    _require_declared(schema, books)
    books.write().declare_domain(domain)
    return f"the domain of {schema.canonical}.{column} is declared"


def _public(call: FunctionCall, books: Books, engine: Engine) -> str:
    arguments = _Arguments(call, 1, ("version",))
    schema = _table(split_name(arguments.names[0]), engine)
    if not engine.is_base_table(schema):
        raise PolicyError(
            f"{schema.canonical!r} is a view; a public table must be a base table, "
            "because a view may reach a protected one"
        )
    books.write().declare_public(PublicTable(schema.canonical, _version(arguments)))
    return f"table {schema.canonical} is public"


def _new_version(call: FunctionCall, books: Books, engine: Engine) -> str:
    arguments = _Arguments(call, 1, ("version",))
    schema = _table(split_name(arguments.names[0]), engine)
    version = arguments.text("version")
    _require_declared(schema, books)
    policy = books.read().policy()
    if policy.public_table(schema.canonical) is not None and not engine.is_base_table(schema):
        raise PolicyError(f"{schema.canonical!r} is a view now, and a public table must be a base table")
    # what a link needs is looked up before anything changes
    known = linked(schema, policy, engine) if policy.protected_table(schema.canonical) is not None else None
    state = books.write()
    version = state.new_version(schema.canonical, version)
    if known is not None:
        _remember(known, state)
    return f"table {schema.canonical} is at version {version}"


def options_of(call: FunctionCall) -> tuple[str, Mapping[str, object]]:
    """Query text and options of ``dp_query($$…$$, rho := 0.1)`` or ``dp_explain``."""
    if len(call.positional) != 1 or not isinstance(call.positional[0], str):
        raise PolicyError(f"{call.name} takes the query as text: FROM {call.name}($$ SELECT … $$, rho := 0.1)")
    return call.positional[0], call.named
