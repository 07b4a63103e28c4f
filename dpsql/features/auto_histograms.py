"""The questions that AUTO asks of the data: noisy histograms of units.

A question has a statistic, places, an exact histogram, and what its stored points say. What is chosen by a noisy
histogram is post-processing: a number of groups, or the bounds of a sum (exponential histograms of units' extreme
values). docs/proofs/auto.md says when a histogram says enough for a choice that later queries keep.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa

from dpsql.bound.unit_histograms import NORM_PLACES
from dpsql.cascade.auto_levels import served_level
from dpsql.cascade.reader import Reader
from dpsql.features.auto_choices import EXTREMES_L2, PLACES, Integers, binned, placed, sure_bounds, sure_groups
from dpsql.features.auto_norms import sure_norm
from dpsql.mechanism.gaussian_measure import GAUSSIAN
from dpsql.mechanism.measure import FLOAT_SLACK, Level
from dpsql.model.auto_level import AutoLevel
from dpsql.model.frame import NANO, Frame, Statistic
from dpsql.model.identity import statistic_hash
from dpsql.model.private_query import AutoBounds, AutoGroups, AutoQuestion, FrameQuery
from dpsql.plan.features.auto import GROUPS
from dpsql.state import Point, SideTable, State, to_numpy

MEASURE = GAUSSIAN
"""AUTO chooses by histograms with Gaussian noise, and its rules and prices are for that."""


@dataclass(frozen=True, slots=True)
class Question:
    """What AUTO asks: whose units are told apart by what, and where they may stand."""

    asked: AutoQuestion

    @property
    def frame(self) -> Frame:
        """Whose units are looked at."""
        return self.asked.frame

    @property
    def statistic(self) -> Statistic:
        """What they are told apart by."""
        return GROUPS if isinstance(self.asked, AutoGroups) else self.asked.statistic

    @property
    def _is_norm(self) -> bool:
        return isinstance(self.asked, AutoBounds) and self.asked.is_norm

    @property
    def statistic_hash(self) -> str:
        """What the histogram is charged, stored and found by."""
        return statistic_hash(self.statistic, self.frame)

    @property
    def l2(self) -> float:
        """Most that one unit moves the histogram in the l2 norm; its square is the number of places it stands in."""
        return 1.0 if isinstance(self.asked, AutoGroups) or self._is_norm else EXTREMES_L2

    @property
    def place_count(self) -> int:
        """Number of places; the same for every table."""
        if isinstance(self.asked, AutoGroups):
            return len(self.asked.candidates)
        return NORM_PLACES if self._is_norm else 2 * PLACES

    def exact(self, table: pa.Table) -> Integers:
        """Number of units in each place."""
        units = to_numpy(table.column("units")).astype(np.int64)
        if isinstance(self.asked, AutoGroups):
            return binned(to_numpy(table.column("groups")).astype(np.int64), units, self.asked.candidates)
        place = to_numpy(table.column("place")).astype(np.int64)
        if self._is_norm:
            return np.bincount(place, units, self.place_count).astype(np.int64)
        upper = to_numpy(table.column("upper").cast(pa.int8())).astype(np.bool_)
        return placed(upper, place, units)

    def level(self, rho_nano: int) -> Level:
        """Return a level with its noise; each place of a unit has a draw, whose precision counts."""
        noise_delta = MEASURE.imprecision(round(self.l2**2), rho_nano / NANO)
        return Level(self.statistic, rho_nano, auto_sigma(rho_nano, self.l2), noise_delta)

    def served(self, share_nano: int, state: State, reader: Reader) -> AutoLevel:
        """Return the level that serves a reader, at a query that leaves this share; as `served_level`."""
        is_sure, has_rows = partial(self.is_sure, state.side_table), bool(self.frame.rows_sql.relation)
        return served_level(self.statistic_hash, share_nano, state, reader, is_sure, has_rows=has_rows)

    def point(self, side_table: SideTable, rho_nano: int) -> Point:
        """The stored histogram of a level."""
        point = side_table.point(self.statistic_hash, rho_nano)
        if point is None or len(point.values) != self.place_count:
            raise AssertionError("a histogram is stored over its places")
        return point

    def is_sure(self, side_table: SideTable, rho_nano: int) -> bool:
        """Return whether the stored histogram of a level says enough for a choice that later queries keep."""
        point = self.point(side_table, rho_nano)
        sure = sure_groups if isinstance(self.asked, AutoGroups) else sure_norm if self._is_norm else sure_bounds
        return sure(point.noisy_values, point.sigma)


def questions(query: FrameQuery) -> Iterator[tuple[Question, AutoLevel]]:
    """What a query leaves to AUTO, and where its reader stands with it."""
    return zip(map(Question, query.auto), query.auto_levels, strict=True)


def auto_sigma(rho_nano: int, l2: float) -> float:
    """Noise of a histogram of which one unit moves this much in the l2 norm."""
    return FLOAT_SLACK * l2 / math.sqrt(2.0 * rho_nano / NANO)
