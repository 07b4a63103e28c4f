"""What a declaration is handed: its arguments, read by type, and the state to declare in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, TypeVar

from dpsql.errors import PolicyError
from dpsql.query.statements import FunctionCall
from dpsql.state import State

_T = TypeVar("_T")

BUDGET = ("epsilon_budget", "delta_budget", "rho_budget", "delta_threshold", "delta_conversion")
TABLE_RULES = (
    "unit", "privacy_unit_column", "max_groups_contributed", "max_rows_per_group",
    "default_rho", "default_epsilon", "default_delta", "min_privacy_units_per_group", "rho_window", "rho_ceiling",
    "version",
)  # fmt: skip
ARGUMENTS: Mapping[str, tuple[str, ...]] = {
    "dp_unit": (*BUDGET, "replace"),
    "dp_protect": (*TABLE_RULES, *BUDGET, "separate_people", "replace"),
    "dp_link": ("parent", *TABLE_RULES[2:], "separate_people", "replace"),
    "dp_domain": ("bounds", "keys", "keys_from", "replace"),
    "dp_public": ("version", "public", "public_by_decision"),
    "dp_analyst": ("rho_limit", "replace"),
    "dp_new_version": ("version",),
}
"""The named arguments of each declaration."""


class Books(Protocol):
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

    def __init__(self, call: FunctionCall, positional: int, *, lists: bool = False) -> None:
        self._call = call
        listed = [_listed(argument) for argument in call.positional]
        single = all(
            len(names) == 1 and not isinstance(p, tuple) for names, p in zip(listed, call.positional, strict=True)
        )
        if len(listed) != positional or not all(listed) or not (lists or single):
            raise PolicyError(f"{call.name} takes {positional} name{'s' * (positional > 1)} in quotes first")
        known = ARGUMENTS[call.name]
        unknown = sorted(set(call.named) - set(known))
        if unknown:
            raise PolicyError(f"{call.name} has no argument {unknown[0]}; it has {', '.join(known)}")
        self.lists = tuple(listed)
        self.names = tuple(names[0] for names in listed)

    def names_of(self, name: str) -> tuple[str, ...]:
        """One name in quotes, or a list of them."""
        return _listed(self._call.named.get(name))

    def has(self, *names: str) -> bool:
        """Whether one of these arguments has a value."""
        return any(self._call.named.get(name) is not None for name in names)

    def removes(self, name: str) -> bool:
        """Whether this argument is NULL."""
        return name in self._call.named and self._call.named[name] is None

    def names_any(self, *names: str) -> bool:
        """Whether one of these arguments is there, with a value or as NULL."""
        return any(name in self._call.named for name in names)

    def text(self, name: str) -> str | None:
        """Text, None where there is none."""
        return self._read(name, str, "text in quotes")

    def whole(self, name: str) -> int | None:
        """A whole number, None where there is none."""
        return self._read(name, int, "a whole number")

    def number(self, name: str) -> float | None:
        """A number, None where there is none."""
        value = self._call.named.get(name)
        if isinstance(value, int) and not isinstance(value, bool):
            return float(value)
        return self._read(name, float, "a number")

    def flag(self, name: str) -> bool | None:
        """TRUE or FALSE, None where neither is said."""
        value = self._call.named.get(name)
        if value is None or isinstance(value, bool):
            return value
        raise PolicyError(f"{name} takes TRUE or FALSE")

    def pair(self, name: str) -> tuple[float, float] | None:
        """Two numbers, None where there are none."""
        value = self._call.named.get(name)
        if value is None:
            return None
        if isinstance(value, tuple) and len(value) == 2:
            low, high = value
            numbers = not isinstance(low, bool) and not isinstance(high, bool)
            if numbers and isinstance(low, int | float) and isinstance(high, int | float):
                return float(low), float(high)
        raise PolicyError(f"{name} takes two numbers, as in {name} := [0, 500]")

    def literals(self, name: str) -> tuple[str, ...] | None:
        """The elements of a list as SQL, None where there is no list."""
        if self.has(name) and name not in self._call.literals:
            raise PolicyError(f"{name} takes a list, as in {name} := ['a', 'b']")
        return self._call.literals.get(name)

    def version(self) -> str:
        """The version that the declaration names; empty where it leaves the version as it is."""
        version = self.text("version")
        if version == "":
            raise PolicyError("version takes a name, as in version := '2026-11'")
        return version or ""

    def require_kept(self, *names: str) -> None:
        """Refuse NULL for settings that nothing can do without."""
        for name in names:
            if self.removes(name):
                raise PolicyError(f"{name} cannot be removed; leave it out to keep it as it is")

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
