"""The largest share of units whose values may be cut, from the noisy histogram by which AUTO chose the bounds.

The bounds were chosen by the same noisy bins. So the end holds for all bounds that could be chosen at once
(docs/proofs/coverage.md, Theorem 4). All of it is post-processing of the stored point that chose for the reader.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from dpsql.bound.unit_histograms import NORM_PLACES, NORM_STEPS_PER_DOUBLING
from dpsql.bound.value_steps import VALUE_BITS, VALUE_EXPONENT
from dpsql.mechanism.gaussian_measure import GAUSSIAN
from dpsql.mechanism.measure import Measure
from dpsql.model.estimates import ValueBounds
from dpsql.model.private_query import AutoBounds, FrameQuery
from dpsql.release.coverage import ERROR
from dpsql.release.coverage_places import Line
from dpsql.release.estimates import Floats
from dpsql.state import Point, SideTable

_FURTHEST = VALUE_BITS + 1
VALUE_PLACES = 2 * _FURTHEST + 1
"""Bins of one histogram of extremes: 0, and in both directions one for each power of two."""


def most_cut(query: FrameQuery, bounds: ValueBounds, side_table: SideTable, statements: int) -> float | None:
    """Return the largest share of units with values of which bounds may cut some, or None if noise hides it.

    Args:
        query: the query as it is served, with the levels by which AUTO chose for its reader.
        bounds: bounds that AUTO found.
        side_table: where points are stored.
        statements: number of histograms whose statements are made together.

    """
    point = _point_that_chose(query, bounds, side_table)
    # histograms of AUTO have Gaussian noise
    if point is None:
        return None
    return share_cut(point.noisy_values, point.sigma, bounds, GAUSSIAN, statements)


def share_cut(noisy: Floats, sigma: float, bounds: ValueBounds, measure: Measure, statements: int = 1) -> float | None:
    """Return an upper end of the share of units with a value outside bounds, or with a norm above one.

    *Guarantee*: with probability 1 - 0.05 / ``statements`` the share is at most the end for all bounds at once, so also
    for bounds that ``noisy`` chose. *Source*: docs/proofs/coverage.md, Theorem 4.

    Args:
        noisy: units in each bin: of extremes by their largest value, then by their smallest; of norms by these.
        sigma: standard deviation of the noise of each.
        bounds: the bounds.
        measure: the law of the noise.
        statements: number of histograms whose statements are made together.

    Returns:
        A number from 0 to 1; None if noise may be all that there is, or the end is 1.

    """
    if bounds.form == "norm":
        outside, possible = np.arange(NORM_PLACES) > last_norm(bounds.bounds[1]), np.ones(NORM_PLACES, dtype=np.bool_)
        cuts, weight = NORM_PLACES, 1.0
    else:
        (first, last), places = value_range(bounds.bounds), np.arange(VALUE_PLACES)
        # the largest value is above the bounds, or the smallest is below; each unit is in both histograms
        outside, possible = np.concatenate([places > last, places < first]), np.tile(_possible(bounds), 2)
        count = int(possible.sum()) // 2
        cuts, weight = (count + 1) * (count + 2) // 2, 0.5
    outside &= possible
    number, variance = int(outside.sum()), sigma**2
    line = Line(
        above=float(noisy[outside].sum()),
        below=weight * float(noisy[possible].sum()),
        above_variance=variance * number,
        below_variance=variance * weight**2 * int(possible.sum()),
        covariance=variance * weight * number,
    )
    z = _factor(measure, cuts, statements)
    if not line.is_sure(z):
        return None
    end = line.end(z, upper=True)
    return max(0.0, end) if end < 1.0 else None


def value_range(bounds: tuple[float, float]) -> tuple[int, int]:
    """Return the first and the last bin of values that lie within bounds as a whole.

    >>> first, last = value_range((0.0, 2.0**VALUE_EXPONENT))
    >>> first - _FURTHEST, last - _FURTHEST
    (0, 1)
    """
    upper, (low, high) = _upper_ends(), bounds
    lower = -upper[::-1]
    return int(np.searchsorted(lower, low)), int(np.searchsorted(upper, high, side="right")) - 1


def last_norm(norm: float) -> int:
    """Return the last bin of norms up to a norm; the very last bin has norms of any size."""
    ends = np.exp2(np.arange(NORM_PLACES - 2) / NORM_STEPS_PER_DOUBLING + VALUE_EXPONENT)
    # the first bin is for norms of 0
    return int(np.searchsorted(ends, norm, side="right"))


def _possible(bounds: ValueBounds) -> npt.NDArray[np.bool_]:
    """Return the bins of values that units may be in by the type of the values."""
    upper = _upper_ends()
    lower, (low, high) = -upper[::-1], bounds.possible
    sizes = np.maximum(np.abs(upper), np.abs(lower))
    # AUTO rounds values to its steps
    least = bounds.least_size - 2.0 ** (VALUE_EXPONENT - 1)
    found: npt.NDArray[np.bool_] = (upper >= low) & (lower <= high) & ((sizes >= least) | (upper == 0.0))
    return found


@lru_cache(maxsize=64)
def _factor(measure: Measure, cuts: int, statements: int) -> float:
    """Return the standard deviations for an end that holds at so many cuts at once."""
    return measure.quantile(ERROR / statements / cuts)


@lru_cache(maxsize=1)
def _upper_ends() -> Floats:
    """Return the upper end of each bin of values, in their order."""
    positive = np.exp2(np.arange(_FURTHEST) + float(VALUE_EXPONENT))
    return np.concatenate([-positive[::-1] / 2.0, [0.0], positive])


def _point_that_chose(query: FrameQuery, bounds: ValueBounds, side_table: SideTable) -> Point | None:
    """Return the stored point by which AUTO chose bounds for the reader."""
    for asked, level in zip(query.auto, query.auto_levels, strict=True):
        if isinstance(asked, AutoBounds) and asked.statistic == bounds.asked:
            return side_table.point(level.statistic_hash, level.rho_nano)
    return None
