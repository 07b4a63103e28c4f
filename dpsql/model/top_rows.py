"""Rows that an answer shows of its groups because they have the largest or the smallest numbers."""

from __future__ import annotations

from dataclasses import dataclass

WINDOW = "a window"
"""Name of windows that order groups by their numbers, in place of a clause that picks them."""
AROUND = "the outer query"
"""Name of a query that picks rows of an answer, in place of a clause of its own."""


@dataclass(frozen=True, slots=True)
class TopRows:
    """Rows that ``ORDER BY`` one number and ``LIMIT`` pick of the groups of one set of keys.

    Attributes:
        estimate: number of the estimate that orders the groups; their keys decide between equal ones.
        is_largest: whether the largest numbers come first.
        nulls_first: whether groups without a number come before them.
        limit: number of rows.
        offset: number of rows that are passed over.

    """

    estimate: int
    is_largest: bool
    nulls_first: bool
    limit: int
    offset: int = 0


@dataclass(frozen=True, slots=True)
class ChosenBy:
    """The origin of the keys of a release, if counts that were released before choose them.

    Attributes:
        point: hash of these counts, their level, and the level of the release that they stem from; in nano-rho.
        rho_nano: level of the release.
        error, confidence: the relative error that the counts shall have, and how sure it is.
        limit: the largest number of keys; None for any number.

    """

    point: tuple[str, int, int]
    rho_nano: int
    error: float
    confidence: float
    limit: int | None
