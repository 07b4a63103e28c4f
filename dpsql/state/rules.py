"""The rules of each declaration. They are checked where something is declared; what the state file holds has passed."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, get_args

from dpsql.errors import require
from dpsql.state.policy import (
    DELTA_UNITS_PER_ONE,
    MAX_RHO_NANO,
    ClearedAnalyst,
    Composition,
    Domain,
    Link,
    ProtectedTable,
    PublicTable,
    Unit,
)

# What thresholds are computed for, and what keeps the sums of a billion units within 64 bits.
MAX_GROUPS = 100_000
MAX_ROWS_PER_GROUP = 10**9
MAX_MIN_UNITS = 10**12
MAX_ORDERED = 4_096
"""Most members of an ENUM whose order is declared: each ORDER BY writes them out."""

Declaration = Unit | ProtectedTable | PublicTable | Domain | ClearedAnalyst | Link
_Noun = TypeVar("_Noun", bound=Declaration)


def checked(declaration: _Noun) -> _Noun:
    """Return a declaration that breaks no rule.

    Raises:
        PolicyError: it breaks one.

    """
    _REQUIRE[type(declaration)](declaration)
    return declaration


def _is_count(value: object, *, least: int, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _require_unit(unit: Unit) -> None:
    require(
        (bool(unit.name), "a privacy unit needs a name"),
        (
            _is_count(unit.rho_budget, least=1, most=MAX_RHO_NANO),
            f"the budget of unit {unit.name!r} must be at least rho = 1e-9; declare more rho_budget or epsilon_budget",
        ),
        (
            _is_count(unit.delta_threshold, least=0, most=DELTA_UNITS_PER_ONE - 1),
            f"the threshold delta of unit {unit.name!r} must be in [0, 1)",
        ),
        (
            0.0 < unit.delta_conversion < 1.0 or (unit.composition == "pure" and unit.delta_conversion == 0.0),
            f"the conversion delta of unit {unit.name!r} must be between 0 and 1",
        ),
        (
            unit.composition in get_args(Composition),
            f"composition of unit {unit.name!r} takes 'gaussian', 'zcdp' or 'pure'",
        ),
    )


def _require_protected(protected: ProtectedTable) -> None:
    table, epsilon, delta = protected.table, protected.default_epsilon, protected.default_delta
    counts = (
        ("max_groups", protected.max_groups, MAX_GROUPS),
        ("max_rows_per_group", protected.max_rows_per_group, MAX_ROWS_PER_GROUP),
        ("max_rows_per_unit", protected.max_rows_per_unit, MAX_ROWS_PER_GROUP),
        ("min_units", protected.min_units, MAX_MIN_UNITS),
    )
    levels = (("default_rho", protected.default_rho), ("rho_ceiling", protected.rho_ceiling))
    require(
        (bool(table and protected.unit and protected.privacy_unit_column), "a protected table needs names"),
        *(
            (
                value is None or _is_count(value, least=1, most=most),
                f"{noun} of table {table!r} must be a whole number from 1 to {most}",
            )
            for noun, value, most in counts
        ),
        *(
            (
                value is None or _is_count(value, least=1, most=MAX_RHO_NANO),
                f"{noun} of table {table!r} must be at least 1e-9",
            )
            for noun, value in levels
        ),
        (
            protected.default_rho is None or epsilon is None,
            f"table {table!r} takes a default rho or a default epsilon, not both",
        ),
        (
            epsilon is None or 0.0 < epsilon < math.inf,
            f"the default epsilon of table {table!r} must be positive and finite",
        ),
        (
            delta is None or 0.0 < delta < 1.0,
            f"the default delta of table {table!r} must be between 0 and 1",
        ),
        (
            protected.max_rows_norm is None or 1.0 <= protected.max_rows_norm <= MAX_ROWS_PER_GROUP,
            f"max_rows_norm of table {table!r} must be a number from 1 to {MAX_ROWS_PER_GROUP}",
        ),
    )
    if protected.rho_window is not None:
        low, high = protected.rho_window
        require(
            (
                _is_count(low, least=1, most=MAX_RHO_NANO) and _is_count(high, least=low + 1, most=MAX_RHO_NANO),
                f"rho_window of table {table!r} takes two levels of at least 1e-9, the lower first",
            ),
            (
                epsilon is None,
                f"a window is a range of rho: table {table!r} takes a default rho with it, not a default epsilon",
            ),
            (
                protected.rho_ceiling in (None, high),
                f"the rho ceiling of table {table!r} must be the upper end of its window",
            ),
        )


def _require_link(link: Link) -> None:
    require(
        (
            0 < len(link.columns) == len(link.parent_columns),
            f"a link of table {link.table!r} needs as many columns as the key of {link.parent!r}",
        ),
        (link.table != link.parent, f"table {link.table!r} cannot be its own parent"),
    )


def _require_analyst(analyst: ClearedAnalyst) -> None:
    require(
        (bool(analyst.name), "an analyst needs a name"),
        (
            analyst.rho_limit is None or _is_count(analyst.rho_limit, least=1, most=MAX_RHO_NANO),
            f"rho_limit of analyst {analyst.name!r} must be at least 1e-9",
        ),
        (
            analyst.budget_part is None or 0.0 < analyst.budget_part <= 1.0,
            f"budget_part of analyst {analyst.name!r} must be above 0 and at most 1",
        ),
    )


def _require_public(public: PublicTable) -> None:
    require((bool(public.table), "a public table needs a name"))


def _require_domain(domain: Domain) -> None:
    """Equal bounds are refused: a range without width has sensitivity zero, and no release goes without noise."""
    place = f"{domain.table!r}.{domain.column!r}"
    require(
        (bool(domain.table and domain.column), "a domain needs a table and a column"),
        (
            any(known is not None for known in (domain.bounds, domain.keys, domain.keys_from, domain.ordered)),
            f"the domain of {place} declares neither bounds nor keys nor an order",
        ),
        (
            domain.ordered is None or 0 < len(domain.ordered) <= MAX_ORDERED,
            f"the type of {place} lists more than {MAX_ORDERED:,} values; leave ordered out",
        ),
    )
    if domain.bounds is not None:
        low, high = domain.bounds
        require(
            (
                low < high and math.isfinite(low) and math.isfinite(high) and math.isfinite(high - low),
                f"the bounds of {place} must be finite, with the lower one below the upper one",
            )
        )
    if domain.keys is not None:
        require(
            (domain.keys_from is None, f"the keys of {place} come from a list or a table, not from both"),
            (bool(domain.keys), f"the list of keys of {place} is empty"),
            (len(set(domain.keys)) == len(domain.keys), f"the list of keys of {place} repeats a key"),
        )
    if domain.keys_from is not None:
        require((all(domain.keys_from), f"the keys of {place} need a table and a column"))


_REQUIRE: Mapping[type, Callable[[Any], None]] = {
    Unit: _require_unit,
    ProtectedTable: _require_protected,
    Link: _require_link,
    ClearedAnalyst: _require_analyst,
    PublicTable: _require_public,
    Domain: _require_domain,
}
