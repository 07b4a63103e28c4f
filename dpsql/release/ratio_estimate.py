"""The ratio estimate of a number without its bounds: the bounded number over the share that bounding leaves.

Its share has an interval of its own, and a size of its own. So a stored answer with ``dp_unbounded`` stays as it was,
whatever else a receipt says of coverage.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from dpsql.bound.coverage import BUCKETS, CORNERS
from dpsql.release.estimates import Z_95, Floats

_SURE = 5.0
"""Standard deviations of noise above which a bucket surely holds units."""
_NARROW = 0.1
"""Sizes count as far as noise leaves their sum known to this part of it, up and down."""
_LEAST_TOLD = 0.2
"""Half of the widest interval with which a share is used: else there are too few units."""


@dataclass(frozen=True, slots=True)
class Share:
    """The share that bounding leaves of what units up to a size have, with its interval."""

    value: float
    low: float
    high: float
    size: float


def ratio_share(noisy: Floats, sigma: float, end: float, most: float) -> Share | None:
    """Return the share that bounding leaves of units up to a size, or None if too few units tell.

    The size is the end of the last bucket that surely holds units. It is a later one if the sum of sizes is well known
    up to there, because a few units may have much.

    *Guarantee*: the interval holds the share with about 95 %. *Source*: docs/proofs/coverage.md, "The ratio estimate".

    Args:
        noisy: units in each place; shape (PLACES,).
        sigma: standard deviation of each.
        end: size at which the first bucket ends.
        most: what may be left of any unit.

    """
    corners = noisy[:-1].reshape(BUCKETS, CORNERS)
    ends = end * np.ldexp(1.0, np.arange(BUCKETS))
    sizes, left = np.outer(ends, [0.0, 1.0, 0.0, 1.0]), np.outer(np.minimum(ends, most), [0.0, 0.0, 1.0, 1.0])
    whole = np.cumsum((sizes * corners).sum(axis=1))
    whole_noise = Z_95 * sigma * np.sqrt(np.cumsum((sizes**2).sum(axis=1)))
    sure = np.flatnonzero(corners.sum(axis=1) > _SURE * math.sqrt(CORNERS) * sigma)
    told = np.flatnonzero(whole_noise <= _NARROW * whole)
    count = max([0, *(sure + 1), *(told + 1)])
    if not count or whole[count - 1] <= 0.0:
        return None
    share = min(1.0, max(0.0, float((left * corners)[:count].sum() / whole[count - 1])))
    width = (
        Z_95 * math.sqrt(_variance(corners[:count], (left - share * sizes)[:count], sigma)) / float(whole[count - 1])
    )
    if width > _LEAST_TOLD:
        return None
    return Share(share, max(0.0, share - width), min(1.0, share + width), float(ends[count - 1]))


def _variance(told: Floats, scores: Floats, sigma: float) -> float:
    """Return the variance of a sum of scores: of the noise, and of where units stand.

    Which groups of a unit are left varies by no more than its place does, so the second counts twice.
    """
    units = np.maximum(told, 0.0)
    number = units.sum(axis=1)
    means = np.divide((units * scores).sum(axis=1), number, out=np.zeros_like(number), where=number > 0.0)
    spread = np.maximum((units * scores**2).sum(axis=1) - number * means**2, 0.0)
    return float(sigma**2 * (scores**2).sum() + 2.0 * spread.sum())


def unbounded_of(value: Floats, low: Floats, high: Floats, share: Share | None) -> tuple[Floats, Floats, Floats]:
    """Return the ratio estimate of numbers without their bounds, and the ends of its interval.

    It is right where bounding leaves the same share of every group, and no unit is beyond the size of the share. The
    interval is of the noise in both, and of nothing else. It holds where each of both intervals does.

    Args:
        value: the bounded number of each group.
        low: lower end of its interval.
        high: upper end.
        share: what bounding leaves. NaN comes where it is None, or may be 0.

    """
    part, least, most = (share.value, share.low, share.high) if share and share.low > 0.0 else (math.nan,) * 3
    # the end that is further from 0 is that of the smaller share
    ends = np.stack([low / least, low / most, high / least, high / most])
    return value / part, ends.min(axis=0), ends.max(axis=0)
