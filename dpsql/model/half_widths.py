"""The half widths that a query asks for in place of a level."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from dpsql.errors import CalibrationError


@dataclass(frozen=True, slots=True)
class HalfWidths:
    """The half widths that a query asks for in place of a level.

    Attributes:
        widths: the largest half width of noise, of each count and sum or by names of columns.
        confidence: the probability with which a number lies within its half width: 0.9, 0.95 or 0.99.
        max_rho, max_epsilon: levels that the query must not exceed; None for any.

    """

    widths: float | tuple[tuple[str, float], ...]
    confidence: float = 0.95
    max_rho: float | None = None
    max_epsilon: float | None = None

    @property
    def cap(self) -> tuple[str, float]:
        """The option that says the highest level, and its value.

        Raises:
            CalibrationError: there is none.

        """
        for name, value in (("max_rho", self.max_rho), ("max_epsilon", self.max_epsilon)):
            if value is not None:
                return name, value
        raise CalibrationError("half widths with AUTO need max_rho or max_epsilon")

    def of(self, column: str) -> float | None:
        """Return the half width that is asked for a column; None if any will do."""
        if isinstance(self.widths, tuple):
            return next((width for name, width in self.widths if name.lower() == column.lower()), None)
        return self.widths

    def mapped(self, change: Callable[[float], float]) -> HalfWidths:
        """Return the same with a change of each half width."""
        if isinstance(self.widths, tuple):
            return replace(self, widths=tuple((name, change(width)) for name, width in self.widths))
        return replace(self, widths=change(self.widths))
