"""What a query may ask for beside its SELECT."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal


@dataclass(frozen=True, slots=True)
class QueryOptions:
    """What the clause OPTIONS (…) or keyword arguments ask for; None where nothing was said."""

    epsilon: float | None = None
    delta: float | None = None
    rho: float | None = None
    max_groups_contributed: int | Literal["AUTO"] | None = None
    group_selection_strategy: str | None = None
    min_privacy_units_per_group: int | None = None
    privacy_unit_column: str | None = None
    mechanism: str | None = None
    top_k: int | None = None
    sketch_size: int | None = None
    rho_window: tuple[float, float] | None = None
    rho_ceiling: float | None = None
    own_threshold: bool | None = None
    as_of: str | None = None
    refresh: bool | None = None
    buckets: str | None = None
    bounding: str | None = None
    other_group: str | None = None


OPTION_NAMES = tuple(option.name for option in fields(QueryOptions))
