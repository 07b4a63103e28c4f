"""Level of the histogram that AUTO chooses by, for one reader and one query."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AutoLevel:
    """Levels of one question of AUTO for one reader and one query, all in nano-rho.

    Attributes:
        statistic_hash: what the histogram is stored under.
        share_nano: what the query leaves for it.
        rho_nano: level of the histogram that it chooses by, or is to choose by.
        due_nano: what is to be drawn and paid for that histogram.
        is_stored: whether the histogram is there.
        is_sure: whether what it says holds for later queries, at higher levels too.
        limit_nano: highest level by which it may choose for this reader; None for any.

    """

    statistic_hash: str
    share_nano: int
    rho_nano: int
    due_nano: int = 0
    is_stored: bool = True
    is_sure: bool = False
    limit_nano: int | None = None
