"""Changes that protect less than before: they are declared only with ``replace := true``.

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
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from dpsql.errors import PolicyError
from dpsql.state import (
    DELTA_UNITS_PER_ONE,
    NANO_PER_RHO,
    ClearedAnalyst,
    Domain,
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
