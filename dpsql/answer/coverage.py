"""Coverage read from its noisy histogram: the share that bounding leaves, and how many units are too large to tell.

All of it is post-processing of stored points. docs/proofs/coverage.md derives the estimate and its interval.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpsql.answer.estimates import Z_95
from dpsql.bound.coverage import BUCKETS, CORNERS

Floats = npt.NDArray[np.float64]

MUCH = 0.95
"""A share that bounding may leave without a word beside the numbers."""
_SURE = 5.0
"""A bucket surely holds units where its noisy number exceeds so many standard deviations: of 16 empty ones any does
with probability 5e-6, and the noise of the last that does is a small part of what is in it."""
_NARROW = 0.1
"""Sizes are told apart as far as noise leaves the sum of them known to this part of it, up and down."""
_LEAST_TOLD = 0.2
"""A share is told where it is known to this much, up and down: else there are too few units."""
_Z_ONE_SIDED = 1.6448536269514722


@dataclass(frozen=True, slots=True)
class Kept:
    """What bounding leaves of units up to a size.

    Attributes:
        share: of what these units have, from 0 to 1; None where too few units tell.
        low, high: its 95 % interval.
        size: the largest size that is told apart, in groups, rows or the units of the aggregate.
        beyond: most units above that size, with probability 95 %.
        part_beyond: least part that these have of all that there is, with probability 95 %; 0 where there may be none.
        enough: size to which each unit would have to be cut for 95 % to be left; 0 where it is not known.

    """

    share: float | None
    low: float
    high: float
    size: float
    beyond: float
    part_beyond: float = 0.0
    enough: float = 0.0


UNKNOWN = Kept(None, 0.0, 1.0, 0.0, math.inf)
"""Where nothing tells."""


def kept_of(noisy: Floats, sigma: float, end: float, most: float = math.inf) -> Kept:
    """Read a histogram of coverage.

    Args:
        noisy: units in each place; shape (PLACES,).
        sigma: standard deviation of each.
        end: size at which the first bucket ends.
        most: what may be left of any unit.

    """
    corners = noisy[:-1].reshape(BUCKETS, CORNERS)
    ends = end * np.ldexp(1.0, np.arange(BUCKETS))
    # of each place, the size of who stands there, and what is left of it
    sizes, left = np.outer(ends, [0.0, 1.0, 0.0, 1.0]), np.outer(np.minimum(ends, most), [0.0, 0.0, 1.0, 1.0])
    whole = np.cumsum((sizes * corners).sum(axis=1))
    whole_noise = Z_95 * sigma * np.sqrt(np.cumsum((sizes**2).sum(axis=1)))
    sure = np.flatnonzero(corners.sum(axis=1) > _SURE * math.sqrt(CORNERS) * sigma)
    told = np.flatnonzero(whole_noise <= _NARROW * whole)
    # as far as units surely go, or further, where it is still known well how much there is: a few may have much
    count = max([0, *(sure + 1), *(told + 1)])
    outside = noisy[CORNERS * count :]
    outside_noise = _Z_ONE_SIDED * sigma * math.sqrt(len(outside))
    beyond = max(0.0, float(outside.sum()) + outside_noise)
    size = float(ends[count - 1]) if count else 0.0
    if not count or whole[count - 1] <= 0.0:
        return Kept(None, 0.0, 1.0, size, beyond)
    share = min(1.0, max(0.0, float((left * corners)[:count].sum() / whole[count - 1])))
    spread = _variance(corners[:count], (left - share * sizes)[:count], sigma)
    width = Z_95 * math.sqrt(spread) / float(whole[count - 1])
    if width > _LEAST_TOLD:
        return Kept(None, 0.0, 1.0, size, beyond)
    # each of them has more than the size
    least_beyond = size * max(0.0, float(outside.sum()) - outside_noise)
    most_within = float(whole[count - 1]) + Z_95 * math.sqrt(_variance(corners[:count], sizes[:count], sigma))
    part_beyond = least_beyond / (least_beyond + most_within)
    enough = _enough(corners[:count], ends[:count])
    return Kept(share, max(0.0, share - width), min(1.0, share + width), size, beyond, part_beyond, enough)


def _variance(told: Floats, scores: Floats, sigma: float) -> float:
    """Variance of a sum of scores: of the noise, and of where units stand.

    Which groups of a unit are left varies by no more than where it stands does, so that counts twice.
    """
    units = np.maximum(told, 0.0)
    number = units.sum(axis=1)
    means = np.divide((units * scores).sum(axis=1), number, out=np.zeros_like(number), where=number > 0.0)
    spread = np.maximum((units * scores**2).sum(axis=1) - number * means**2, 0.0)
    return float(sigma**2 * (scores**2).sum() + 2.0 * spread.sum())


def _enough(told: Floats, ends: Floats) -> float:
    """The least end of a bucket to which all units can be cut with 95 % left, each taken at the mean of its bucket."""
    units = np.maximum(told, 0.0)
    number = units.sum(axis=1)
    means = ends * np.divide(units[:, [1, 3]].sum(axis=1), number, out=np.zeros_like(number), where=number > 0.0)
    whole = float(number @ means)
    return next((float(most) for most in ends if number @ np.minimum(means, most) >= MUCH * whole), 0.0)


def unbounded_of(value: Floats, low: Floats, high: Floats, kept: Kept | None) -> tuple[Floats, Floats, Floats]:
    """The ratio estimate of numbers without their bounds, and the ends of its interval.

    A number over the share that is kept: right where bounding leaves the same share of every group. The interval is of
    the noise in both, and of nothing else; it holds where each of both intervals does.

    Args:
        value: the bounded number of each group.
        low: lower end of its interval.
        high: upper end.
        kept: the share; None where no bound can leave anything out. NaN comes where the share is not known.

    """
    if kept is None:
        return value, low, high
    share = math.nan if kept.share is None or kept.low <= 0.0 else kept.share
    least, most = (kept.low, kept.high) if share > 0.0 else (math.nan, math.nan)
    # the end that is further from 0 is that of the smaller share
    ends = np.stack([low / least, low / most, high / least, high / most])
    return value / share, ends.min(axis=0), ends.max(axis=0)
