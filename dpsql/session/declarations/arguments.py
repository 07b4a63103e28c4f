"""What a declaration is handed: arguments, read by type; the state to declare in; names of tables and columns."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Protocol, TypeVar

from dpsql.engine import Engine
from dpsql.errors import PolicyError
from dpsql.model.environment import Column, TableSchema
from dpsql.model.similar_names import as_written, did_you_mean
from dpsql.operations import blanks
from dpsql.sql.statements import FunctionCall
from dpsql.state import RememberedTable, State, rho_nano_down

_T = TypeVar("_T")

_NOUNS = {str: "text in quotes", int: "a whole number", float: "a number", bool: "TRUE or FALSE"}
_PART = re.compile(r'"((?:[^"]|"")+)"|([^".]+)')
_TIME = re.compile(r" AS (?:DATE|TIMESTAMP)")
_NAME = re.compile(rf"(?:{_PART.pattern})(?:\.(?:{_PART.pattern}))*")

IN_THE_CALL = (
    f"of dates and timestamps a call names them, as in contribution_bounds_per_row => {blanks.pair(blanks.DAYS)}"
)
"""Where bounds of times are named."""

BUDGET = (
    "epsilon_budget",
    "delta_budget",
    "rho_budget",
    "delta_threshold",
    "delta_conversion",
    "composition",
    "thresholds",
)
TABLE_RULES = (
    "unit",
    "privacy_unit_column",
    "max_groups_contributed",
    "max_rows_per_group",
    "max_rows_norm",
    "max_rows_per_unit",
    "default_rho",
    "default_epsilon",
    "default_delta",
    "min_privacy_units_per_group",
    "rho_window",
    "rho_ceiling",
    "coverage",
    "time_zone",
    "version",
)
# The named arguments of each declaration.
ARGUMENTS: Mapping[str, tuple[str, ...]] = {
    "dp_unit": (*BUDGET, "replace"),
    "dp_protect": (*TABLE_RULES, *BUDGET, "separate_people", "replace"),
    "dp_unprotect": (),
    "dp_link": ("parent", *TABLE_RULES[2:], "separate_people", "replace"),
    "dp_domain": ("bounds", "keys", "keys_from", "ordered", "replace"),
    "dp_public": ("version", "public", "public_by_decision", "readable", "replace"),
    "dp_analyst": ("rho_limit", "budget_part", "replace"),
    "dp_new_version": ("version",),
    "dp_accept_state": (),
}
# The names in quotes that a declaration begins with, if it is not one.
_NAMES = {"dp_link": 2, "dp_domain": 2, "dp_accept_state": 0}


class StateAccess(Protocol):
    """The state behind a session: ``read`` finds it as it is, ``write`` creates it where there is none.

    A declaration that is wrong in itself is refused before ``write``, so that it leaves no empty state file.
    """

    def read(self) -> State:
        """The state for looking up what is declared."""

    def write(self) -> State:
        """The state to declare in."""


class Arguments:
    """Arguments of one call, checked for unknown names and read by type.

    An argument that is left out leaves its setting as it is; one that is NULL removes it.
    """

    def __init__(self, call: FunctionCall) -> None:
        self._call = call
        positional = _NAMES.get(call.name, 1)
        listed = [_listed(argument) for argument in call.positional]
        single = all(
            len(names) == 1 and not isinstance(p, tuple) for names, p in zip(listed, call.positional, strict=True)
        )
        if len(listed) != positional or not all(listed) or not (single or call.name == "dp_link"):
            wanted = f"{positional} name{'s' * (positional > 1)} in quotes first" if positional else "no argument"
            raise PolicyError(f"{call.name} takes {wanted}")
        known = ARGUMENTS[call.name]
        unknown = sorted(set(call.named) - set(known))
        if unknown:
            alone = "It takes the name of a table alone." if positional else "It takes no argument."
            has = f"It has {', '.join(known)}." if known else alone
            hint = f"{did_you_mean(unknown[0], known)} {has}".lstrip()
            raise PolicyError(f"{call.name} has no argument {unknown[0]}. {hint}")
        self.lists = tuple(listed)
        self.names = tuple(names[0] for names in listed)
        self._values = {name: value for name, value in call.named.items() if value is not None}

    def names_of(self, name: str) -> tuple[str, ...]:
        """One name in quotes, or a list of them; empty for anything else."""
        return _listed(self._values.get(name))

    def has(self, *names: str) -> bool:
        """Whether one of these arguments has a value."""
        return any(name in self._values for name in names)

    def removes(self, name: str) -> bool:
        """Whether this argument is NULL."""
        return name in self._call.named and not self.has(name)

    def names_any(self, *names: str) -> bool:
        """Whether one of these arguments is there, with a value or as NULL."""
        return any(name in self._call.named for name in names)

    def read(self, name: str, kind: type[_T]) -> _T | None:
        """A value of this type, None where there is none; a whole number is a number, too."""
        value = self._values.get(name)
        if kind is float and type(value) is int:
            value = float(value)
        if value is None or (isinstance(value, kind) and isinstance(value, bool) == (kind is bool)):
            return value
        raise PolicyError(f"{name} takes {_NOUNS[kind]}")

    def flag(self, name: str, *, default: bool = False) -> bool:
        """TRUE or FALSE, and the default where neither is said."""
        said = self.read(name, bool)
        return default if said is None else said

    def pair(self, name: str) -> tuple[float, float] | None:
        """Two numbers, None where there are none."""
        if not self.has(name):
            return None
        match self._values[name]:
            case (int() | float() as low, int() | float() as high) if bool not in (type(low), type(high)):
                return float(low), float(high)
        ends = blanks.VALUES if name == "bounds" else blanks.LEVELS
        if name == "bounds" and any(map(_TIME.search, self._call.literals.get(name) or ())):
            raise PolicyError(f"{name} takes two numbers; {IN_THE_CALL}")
        raise PolicyError(f"{name} takes two numbers, the lower first: {name} := [{', '.join(ends)}]")

    def literals(self, name: str) -> tuple[str, ...] | None:
        """The elements of a list as SQL, None where there is no list."""
        if self.has(name) and name not in self._call.literals:
            raise PolicyError(f"{name} takes a list: {name} := [{blanks.KEYS}]")
        return self._call.literals.get(name)

    def kept(self, before: object | None, fields: Mapping[str, str], instead: Mapping[str, str]) -> dict[str, Any]:
        """Fields of a declaration that stay as they are, because their arguments are not named.

        Args:
            before: the declaration as it is; None where there is none.
            fields: by the name of the argument, where the declaration keeps it.
            instead: of an argument, the other one that takes its place where that has a value.

        """
        if not before:
            return {}
        return {
            field: getattr(before, field)
            for name, field in fields.items()
            if not (self.names_any(name) or (name in instead and self.has(instead[name])))
        }

    def version(self) -> str:
        """The version that the declaration names; empty where it leaves the version as it is."""
        version = self.read("version", str)
        if version == "":
            raise PolicyError("version takes a name, as in version := '2026-11'")
        return version or ""

    def require_kept(self, *names: str) -> None:
        """Refuse NULL for settings that nothing can do without."""
        for name in names:
            if self.removes(name):
                raise PolicyError(f"{name} cannot be removed; leave it out to keep it as it is")


def rho_nano(rho: float | None) -> int | None:
    """A level as the policy keeps it, rounded down; None where none is said."""
    return None if rho is None else rho_nano_down(rho)


def _listed(argument: object) -> tuple[str, ...]:
    """A name, or a list of names; empty for anything else."""
    names = argument if isinstance(argument, tuple) else (argument,)
    return tuple(names) if all(isinstance(name, str) and name for name in names) else ()


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


def table_of(parts: list[str], engine: Engine) -> TableSchema:
    """The table or view of this name.

    Raises:
        PolicyError: there is none.

    """
    schema = engine.resolve(parts)
    if not schema:
        raise PolicyError(f"there is no table or view {'.'.join(parts)!r} in this database")
    return schema


def column_of(schema: TableSchema, name: str) -> Column:
    """The column of this name, which the table may spell otherwise.

    Raises:
        PolicyError: the table has no such column.

    """
    column = schema.column(name)
    if not column:
        similar = did_you_mean(name, (as_written(one.name) for one in schema.columns))
        hint = f"{similar} It has {', '.join(one.name for one in schema.columns)}.".lstrip()
        raise PolicyError(f"table {schema.canonical!r} has no column {name!r}. {hint}")
    return column


def require_bytewise(schema: TableSchema, column: str, engine: Engine) -> None:
    """Units are told apart by their bytes: where SQL holds two spellings equal, one person would count twice."""
    collation = engine.collation(schema, column)
    if collation is not None:
        raise PolicyError(
            f"privacy unit column {column!r} is compared under collation {collation!r}, so that one unit may have "
            "several spellings; use a column without a collation (and no default_collation), as in "
            f'CREATE VIEW … AS SELECT *, lower({column}) COLLATE "binary" AS one_spelling FROM …'
        )


def require_declared(schema: TableSchema, access: StateAccess) -> None:
    """Refuse a table that is neither protected nor public."""
    policy = access.read().policy()
    if not (policy.protected_table(schema.canonical) or policy.public_table(schema.canonical)):
        raise PolicyError(f"table {schema.canonical!r} is neither protected nor public")


def remember(schema: TableSchema, state: State) -> None:
    """Keep the columns of a protected table, for plans once it is dropped."""
    state.remember(
        RememberedTable(
            schema.canonical, tuple((column.name, column.type, column.nullable) for column in schema.columns)
        )
    )
