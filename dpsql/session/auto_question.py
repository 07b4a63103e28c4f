"""One question that AUTO asks of the data: its statistic, its places, its exact histogram, and what its points say."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dpsql.query.auto import GROUPS, extremes_sql, group_counts_sql
from dpsql.query.frame import Frame, Statistic
from dpsql.query.identity import statistic_hash
from dpsql.query.private_query import AutoBounds, AutoGroups, AutoLevel, PrivateQuery
from dpsql.release.auto_bounds import EXTREMES_L2, PLACES, placed, sure_bounds
from dpsql.release.auto_groups import auto_noise_delta, binned, sure_groups
from dpsql.state import Point, SideTable, delta_units_up


@dataclass(frozen=True, slots=True)
class Question:
    """What AUTO asks: whose units are told apart by what, and where they may stand."""

    asked: AutoGroups | AutoBounds

    @property
    def frame(self) -> Frame:
        """Whose units are looked at."""
        return self.asked.frame

    @property
    def statistic(self) -> Statistic:
        """What they are told apart by."""
        return GROUPS if isinstance(self.asked, AutoGroups) else self.asked.statistic

    @property
    def statistic_hash(self) -> str:
        """What the histogram is charged, stored and found by."""
        return statistic_hash(self.statistic, self.frame)

    @property
    def level(self) -> AutoLevel:
        """Where the reader stands with it."""
        if self.asked.level is None:
            raise AssertionError("what AUTO asks is looked up before it is used")
        return self.asked.level

    @property
    def l2(self) -> float:
        """Most that one unit moves the histogram in the l2 norm; its square is the number of places it stands in."""
        return 1.0 if isinstance(self.asked, AutoGroups) else EXTREMES_L2

    @property
    def place_count(self) -> int:
        """Number of places; the same for every table."""
        return len(self.asked.candidates) if isinstance(self.asked, AutoGroups) else 2 * PLACES

    def sql(self, salt: bytes) -> str:
        """The exact histogram; nothing of the data. The salt is that by which joins cut rows."""
        if isinstance(self.asked, AutoGroups):
            return group_counts_sql(self.frame, salt)
        return extremes_sql(self.frame, self.asked.statistic, salt)

    def exact(self, table: pa.Table) -> npt.NDArray[np.int64]:
        """Number of units in each place."""
        units = table.column("units").to_numpy().astype(np.int64)
        if isinstance(self.asked, AutoGroups):
            return binned(table.column("groups").to_numpy().astype(np.int64), units, self.asked.candidates)
        upper = table.column("upper").to_numpy(zero_copy_only=False).astype(np.bool_)
        return placed(upper, table.column("place").to_numpy().astype(np.int64), units)

    def noise_units(self, rho_nano: int) -> int:
        """Delta units that the precision of one draw costs."""
        return delta_units_up(auto_noise_delta(rho_nano, round(self.l2**2)))

    def point(self, side_table: SideTable, rho_nano: int) -> Point:
        """The stored histogram of a level."""
        point = side_table.point(self.statistic_hash, rho_nano)
        if point is None or len(point.values) != self.place_count:
            raise AssertionError("a histogram is stored over its places")
        return point

    def is_sure(self, point: Point) -> bool:
        """Whether a stored histogram says enough for a choice that later queries keep."""
        sure = sure_groups if isinstance(self.asked, AutoGroups) else sure_bounds
        return sure(noisy_units(point), point.sigma)


def questions(query: PrivateQuery) -> Iterator[Question]:
    """What a query leaves to AUTO."""
    if query.auto is not None:
        yield Question(query.auto)
    yield from map(Question, query.auto_bounds)


def noisy_units(point: Point) -> npt.NDArray[np.float64]:
    """Noisy number of units in each place."""
    return point.values.astype(np.float64) * 2.0**point.lattice_exponent
