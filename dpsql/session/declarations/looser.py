"""Which change of a declaration protects less than before: it is named, and done where ``replace := true`` is said.

| setting | protects less where it |
| --- | --- |
| ``epsilon_budget``, ``delta_budget``, ``rho_budget``, ``delta_threshold``, ``delta_conversion`` | rises |
| ``privacy_unit_column`` | is another column |
| ``min_privacy_units_per_group`` | falls or is removed |
| ``rho_ceiling`` | rises or is removed |
| ``rho_window`` | holds a level that it did not hold, or is removed |
| ``max_groups_contributed``, ``max_rows_per_group``, ``bounds`` | is removed |
| ``default_rho``, ``default_epsilon``, ``default_delta`` | rises; or the default becomes one of the other kind |
| ``rho_limit`` | rises or is removed |

Other bounds on what one unit adds are other noise for the same privacy, so they protect no less.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from dpsql.errors import PolicyError
from dpsql.query.environment import folded
from dpsql.state import (
    DELTA_UNITS_PER_ONE,
    NANO_PER_RHO,
    ClearedAnalyst,
    Domain,
    ProtectedTable,
    Unit,
)


@dataclass(frozen=True, slots=True)
class Change:
    """One setting that protects less than before, with both values as people read them."""

    setting: str
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.setting} from {self.before} to {self.after}"


def require_no_looser(noun: str, changes: Sequence[Change], *, replace: bool | None) -> None:
    """Refuse what protects less than before, unless it is said that it shall.

    Raises:
        PolicyError: naming each such setting.

    """
    if changes and not replace:
        listed = ", ".join(map(str, changes))
        raise PolicyError(
            f"this would protect {noun} less than what is declared: {listed}; add replace := true if that is meant"
        )


def looser_unit(before: Unit | None, after: Unit) -> list[Change]:
    """The parts of a budget that rise."""
    if before is None:
        return []
    amounts = (
        ("rho_budget", before.rho_budget / NANO_PER_RHO, after.rho_budget / NANO_PER_RHO),
        (
            "delta_threshold",
            before.delta_threshold / DELTA_UNITS_PER_ONE,
            after.delta_threshold / DELTA_UNITS_PER_ONE,
        ),
        ("delta_conversion", before.delta_conversion, after.delta_conversion),
    )
    return [Change(name, _text(old), _text(new)) for name, old, new in amounts if new > old]


def looser_table(before: ProtectedTable | None, after: ProtectedTable, default_delta: float) -> list[Change]:
    """The settings of a protected table that protect less.

    Args:
        before: as it is declared; None where it is not.
        after: as it shall be.
        default_delta: what holds where the table has none of its own.

    """
    return [] if before is None else list(_looser_settings(before, after, default_delta))


def _looser_settings(before: ProtectedTable, after: ProtectedTable, default_delta: float) -> Iterator[Change]:
    if folded(before.privacy_unit_column) != folded(after.privacy_unit_column):
        yield Change("privacy_unit_column", before.privacy_unit_column, after.privacy_unit_column)
    bounded: tuple[tuple[str, Any, Any, int, _Compares], ...] = (
        ("max_groups_contributed", before.max_groups, after.max_groups, 1, _never),
        ("max_rows_per_group", before.max_rows_per_group, after.max_rows_per_group, 1, _never),
        ("min_privacy_units_per_group", before.min_units, after.min_units, 1, _falls),
        ("rho_ceiling", before.rho_ceiling, after.rho_ceiling, NANO_PER_RHO, _rises),
        ("rho_window", before.rho_window, after.rho_window, NANO_PER_RHO, _widens),
    )
    for name, old, new, scale, is_less in bounded:
        if old is not None and (new is None or is_less(old, new)):
            yield Change(name, _scaled(old, scale), _scaled(new, scale))
    yield from _looser_level(before, after)
    old_delta = default_delta if before.default_delta is None else before.default_delta
    new_delta = default_delta if after.default_delta is None else after.default_delta
    if new_delta > old_delta:
        yield Change("default_delta", _text(old_delta), _text(new_delta))


def _looser_level(before: ProtectedTable, after: ProtectedTable) -> Iterator[Change]:
    if before.default_rho is not None and after.default_epsilon is not None:
        yield Change("default_rho", _scaled(before.default_rho, NANO_PER_RHO), "default_epsilon")
    elif before.default_epsilon is not None and after.default_rho is not None:
        yield Change("default_epsilon", _text(before.default_epsilon), "default_rho")
    elif before.default_rho is not None and after.default_rho is not None and after.default_rho > before.default_rho:
        old, new = before.default_rho, after.default_rho
        yield Change("default_rho", _scaled(old, NANO_PER_RHO), _scaled(new, NANO_PER_RHO))
    elif (
        before.default_epsilon is not None
        and after.default_epsilon is not None
        and after.default_epsilon > before.default_epsilon
    ):
        yield Change("default_epsilon", _text(before.default_epsilon), _text(after.default_epsilon))


def looser_domain(before: Domain | None, after: Domain | None) -> list[Change]:
    """Bounds that are removed."""
    if before is None or before.bounds is None or (after is not None and after.bounds is not None):
        return []
    return [Change("bounds", _scaled(before.bounds, 1), "none")]


def looser_analyst(before: ClearedAnalyst | None, after: ClearedAnalyst) -> list[Change]:
    """A limit that rises or is removed."""
    if before is None or before.rho_limit is None:
        return []
    if after.rho_limit is not None and after.rho_limit <= before.rho_limit:
        return []
    return [Change("rho_limit", _scaled(before.rho_limit, NANO_PER_RHO), _scaled(after.rho_limit, NANO_PER_RHO))]


_Compares = Callable[[Any, Any], bool]


def _never(_before: object, _after: object) -> bool:
    return False


def _falls(before: int, after: int) -> bool:
    return after < before


def _rises(before: int, after: int) -> bool:
    return after > before


def _widens(before: tuple[int, int], after: tuple[int, int]) -> bool:
    return after[0] < before[0] or after[1] > before[1]


def _text(amount: float) -> str:
    return f"{amount:.9g}"


def _scaled(value: float | tuple[float, ...] | None, scale: int) -> str:
    if value is None:
        return "none"
    if isinstance(value, tuple):
        return f"[{', '.join(_text(part / scale) for part in value)}]"
    return _text(value / scale)
