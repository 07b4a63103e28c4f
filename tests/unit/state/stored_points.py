"""What tests look up in the side table, through what the product offers."""

from __future__ import annotations

from dpsql.state import Point, SideTable


def top_point(table: SideTable, statistic_hash: str) -> Point | None:
    """The stored point of the highest level, None if there is none."""
    levels = table.levels(statistic_hash)
    return table.point(statistic_hash, levels[0].rho_nano) if levels else None
