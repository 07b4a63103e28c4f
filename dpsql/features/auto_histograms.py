"""The questions that AUTO asks of the data: noisy histograms of units.

A question has a statistic, places, an exact histogram, and what its stored points say. What is chosen by a noisy
histogram is post-processing: a number of groups, or the bounds of a sum (exponential histograms of units' extreme
values). docs/proofs/auto.md says when a histogram says enough for a choice that later queries keep.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from dpsql.bound.formulations import Formulation
from dpsql.bound.pairs import Pairs
from dpsql.bound.unit_histograms import NORM_PLACES, extremes_sql, group_counts_sql, norms_sql
from dpsql.features.auto_choices import EXTREMES_L2, PLACES, Integers, binned, placed, sure_bounds, sure_groups
from dpsql.features.auto_norms import sure_norm
from dpsql.mechanism.histogram import FLOAT_SLACK
from dpsql.model.auto_level import AutoLevel
from dpsql.model.frame import NANO, NOISE_GRID_EXPONENT, Frame, Statistic
from dpsql.model.identity import statistic_hash
from dpsql.model.private_query import AutoBounds, AutoGroups, AutoQuestion, FrameQuery
from dpsql.noise.entropy import NoiseSource
from dpsql.noise.rounded_gaussian import RoundedGaussian, slack_delta_zcdp
from dpsql.plan.features.auto import GROUPS
from dpsql.state import Point, SideTable, delta_units_up, to_numpy


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

    def sql(self, salt: bytes, formulation: Formulation = "groups_first", pairs: Pairs | None = None) -> str:
        """Return SQL for the exact histogram; nothing of the data.

        Args:
            salt: that by which joins cut rows.
            formulation: ``one_row`` if no unit has two rows, so that nothing is grouped by unit.
            pairs: the table of the frame's pairs, if there is one.

        """
        has_one_row = formulation == "one_row"
        if isinstance(self.asked, AutoGroups):
            return group_counts_sql(self.frame, salt, has_one_row=has_one_row, pairs=pairs)
        sql = norms_sql if self._is_norm else extremes_sql
        return sql(self.frame, self.asked.statistic, salt, has_one_row=has_one_row, pairs=pairs)

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

    def noise_units(self, rho_nano: int) -> int:
        """Delta units that the precision of one draw costs, on the places that a unit stands in."""
        return delta_units_up(slack_delta_zcdp(round(self.l2**2), rho_nano / NANO))

    def point(self, side_table: SideTable, rho_nano: int) -> Point:
        """The stored histogram of a level."""
        point = side_table.point(self.statistic_hash, rho_nano)
        if point is None or len(point.values) != self.place_count:
            raise AssertionError("a histogram is stored over its places")
        return point

    def is_sure(self, point: Point) -> bool:
        """Whether a stored histogram says enough for a choice that later queries keep."""
        sure = sure_groups if isinstance(self.asked, AutoGroups) else sure_norm if self._is_norm else sure_bounds
        return sure(point.noisy_values, point.sigma)


def questions(query: FrameQuery) -> Iterator[tuple[Question, AutoLevel]]:
    """What a query leaves to AUTO, and where its reader stands with it."""
    return zip(map(Question, query.auto), query.auto_levels, strict=True)


def auto_sigma(rho_nano: int, l2: float) -> float:
    """Noise of a histogram of which one unit moves this much in the l2 norm."""
    return FLOAT_SLACK * l2 / math.sqrt(2.0 * rho_nano / NANO)


def noisy_histogram(exact: Integers, rho_nano: int, l2: float, source: NoiseSource) -> Integers:
    """Units in each place with Gaussian noise, in steps of the noise's grid.

    *Guarantee*: rho-zCDP at ``rho_nano`` when all rows of one unit are added or removed, if it stands in l2 squared
    places (docs/proofs/auto.md). *Source*: Bun and Steinke 2016, Proposition 1.6.
    *Randomness*: one draw for each place.
    """
    sigma_steps = auto_sigma(rho_nano, l2) * 2.0**-NOISE_GRID_EXPONENT
    return (exact << -NOISE_GRID_EXPONENT) + source.draw(RoundedGaussian(sigma_steps), len(exact))
