"""The form of an everyday question: its SQL for dpsql, and what plain DuckDB answers to it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

PRIVATE_PARTS = re.compile(r"WITH DIFFERENTIAL_PRIVACY OPTIONS \([^)]*\)|, contribution_bounds_per_row => \([^)]*\)")
"""Parts of a text that plain DuckDB does not read."""


@dataclass(frozen=True)
class EverydayText:
    """One question.

    Attributes:
        name: its number, and what it asks
        sql: its SQL
        same: SQL of plain DuckDB with the right rows. Without it, that is the text without its private parts.
        within: the distance of quantiles of a column from the exact ones: the width of a cell
        ordered: whether the order of rows is right, too
    """

    name: str
    sql: str
    same: str | None = None
    within: Mapping[str, float] = field(default_factory=dict)
    ordered: bool = False

    @property
    def number(self) -> str:
        """The first word of the name."""
        return self.name.split()[0]

    @property
    def plain(self) -> str:
        """SQL of plain DuckDB with the right rows."""
        return self.same or PRIVATE_PARTS.sub("", self.sql)
