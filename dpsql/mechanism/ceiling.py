"""Ceilings: a frame with one draws every statistic once, at this level, and asks for none above it."""

from __future__ import annotations

from dpsql.errors import CalibrationError
from dpsql.model.frame import NANO


def require_below_ceiling(level_nano: int, ceiling_nano: int) -> None:
    """Refuse a level of a statistic that is above the ceiling of its frame.

    Raises:
        CalibrationError: it is.

    """
    if level_nano > ceiling_nano:
        raise CalibrationError(
            f"rho = {level_nano / NANO:.9g} for one statistic is above the ceiling, {ceiling_nano / NANO:.9g}, at "
            "which its numbers are drawn once and for all",
            requested_rho=level_nano / NANO,
            limit_rho=ceiling_nano / NANO,
        )
