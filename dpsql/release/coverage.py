"""Coverage read from its noisy histogram: the share that bounding leaves, and what units too large for that have.

All of it is post-processing of stored points. No number can be promised about all rows: one unit may have most of them,
and moves one place by 1. So the share is that of units up to a size; of the others their number is bounded, and what
they have at least. docs/proofs/coverage.md, Theorem 3, proves that all of it holds together.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from dpsql.bound.coverage import BUCKETS, CORNERS
from dpsql.mechanism.measure import MISS, Measure
from dpsql.release.coverage_places import Line, Places
from dpsql.release.estimates import Floats

MUCH = 0.95
"""The share that bounds are advised to leave."""
ERROR = 0.05
"""Probability with which any statement of a receipt may be wrong."""
_CUTS = BUCKETS * (BUCKETS + 1) // 2
"""Pairs of a size that may be chosen and a last bucket beyond it."""
_LEAST_TOLD = 0.25
"""A share is told if its lower end is at least this part of its upper end; else there are too few units."""
_SEEN = 3.0
"""Standard deviations of noise above which a bucket seems to hold units."""
_LONGEST_TAIL = 0.9
"""Largest part of a bucket's sum of sizes that the next bucket is taken to have."""
_SHORT = 0.1
"""Part beyond a size that is too small to look for a smaller size."""
_TOLD_OF_SEEMING = 1.0 / 6.0
"""The least part beyond must be this much of the part that seems to be there, or a smaller size is looked for."""
_MEAN_SIZE = 0.7
"""Size of a unit by the end of its bucket, as a rule."""
_SURE = 5.0
"""Standard deviations of noise above which a bucket surely holds units."""
_NARROW = 0.1
"""Sizes count as far as noise leaves their sum known to this part of it, up and down."""
_WIDEST = 0.2
"""Half of the widest interval with which a share is used: else there are too few units."""


@dataclass(frozen=True, slots=True)
class Share:
    """The share that bounding leaves of what units up to a size have, with its interval."""

    value: float
    low: float
    high: float
    size: float


@dataclass(frozen=True, slots=True)
class Kept:
    """Coverage of one number: the share that bounding leaves of units up to a size, and facts on the other units.

    Attributes:
        share: of what units up to a size have; None where too few units tell.
        least_beyond, most_beyond: fewest and most units above that size.
        part_beyond: least part that these have of all that there is; 0 where there may be none.
        high_of_all: most that bounding leaves of all that there is; 1 where nothing is known.
        ratio: the share by which a ratio estimate divides; None where too few units tell.
        enough: size to which each unit would have to be cut for 95 % to be left, of units up to the size that says
            most of what units have; 0 where it is not known.

    """

    share: Share | None
    least_beyond: float = 0.0
    most_beyond: float = math.inf
    part_beyond: float = 0.0
    high_of_all: float = 1.0
    ratio: Share | None = None
    enough: float = 0.0


@dataclass(frozen=True, slots=True)
class _Factors:
    """Standard deviations by which one-sided ends lie apart from what is measured."""

    low: float
    high: float
    number: float
    cut: float

    @property
    def largest(self) -> float:
        return max(self.low, self.high, self.number, self.cut)


@lru_cache(maxsize=64)
def _factors(measure: Measure, statements: int) -> _Factors:
    """Share out the probability of an error over columns, sizes that may be chosen, and ends."""
    one_size = ERROR / statements / BUCKETS
    ends = (0.4 * one_size, 0.1 * one_size, 0.1 * one_size, 0.2 * ERROR / statements / _CUTS)
    return _Factors(*map(measure.quantile, ends))


def kept_of(
    noisy: Floats,
    sigma: float,
    end: float,
    most: float = math.inf,
    *,
    measure: Measure,
    largest: float = math.inf,
    statements: int = 1,
) -> Kept:
    """Read a histogram of coverage.

    *Guarantee*: all numbers of the result, but for ``enough``, ``ratio`` and the value of ``share``, are true together
    with probability 1 - 0.05 / ``statements``, up to the normal approximation of where units stand.
    *Source*: docs/proofs/coverage.md, Theorem 3.

    Args:
        noisy: units in each place; shape (PLACES,).
        sigma: standard deviation of each.
        end: size at which the first bucket ends.
        most: what may be left of any unit.
        measure: the law of the noise.
        largest: size that no unit exceeds, whatever the data are.
        statements: number of histograms whose statements are made together.

    """
    ratio = _ratio_share(noisy, sigma, end, most, measure.quantile(MISS / 2.0))
    places, factors = Places(noisy, sigma, end, most, largest), _factors(measure, statements)
    shares = {bucket: share for bucket in range(BUCKETS) if (share := _share(places, bucket, factors))}
    if not shares:
        return Kept(None, ratio=ratio)
    known = {bucket: _known(places.kept_up_to(bucket), share) for bucket, share in shares.items()}
    widest = max(known, key=lambda bucket: known[bucket])
    parts = {bucket: _part_beyond(places, bucket, factors) for bucket in shares}
    chosen = _chosen(places, {bucket: part for bucket, part in parts.items() if bucket <= widest})
    share = shares[chosen]
    number, noise = places.units_beyond(chosen)
    cuts = (places.units_beyond(chosen, last) for last in range(chosen + 1, BUCKETS + 1))
    is_told = share.low > 0.0 and share.low >= _LEAST_TOLD * share.high
    return Kept(
        share=share if is_told else None,
        least_beyond=max([0.0, *(found - factors.cut * deviation for found, deviation in cuts)]),
        most_beyond=max(0.0, number + factors.number * noise),
        part_beyond=parts[chosen],
        high_of_all=min(_of_all(shares[bucket], part, most) for bucket, part in parts.items()),
        ratio=ratio,
        enough=places.enough(widest, MUCH),
    )


def _known(line: Line, share: Share) -> float:
    """Return what units up to a size seem to have, less where noise hides it or the share is little known."""
    ratio = share.low / share.high if share.high > 0.0 else 0.0
    return (line.below - 2.0 * math.sqrt(line.below_variance)) * math.sqrt(ratio)


def _share(places: Places, bucket: int, factors: _Factors) -> Share | None:
    """Return the share up to a bucket with its interval, or None if noise may be all that there is."""
    line = places.kept_up_to(bucket)
    if not line.is_sure(factors.largest):
        return None
    low, high = line.end(factors.low, upper=False), line.end(factors.high, upper=True)
    low, high = min(1.0, max(0.0, low)), min(1.0, max(0.0, high))
    value = min(1.0, max(0.0, line.above / line.below))
    return Share(value, low, high, float(places.ends[bucket]))


def _part_beyond(places: Places, bucket: int, factors: _Factors) -> float:
    """Return the least part of all that units beyond a bucket have: the largest over where they are cut off.

    Few units are far beyond, and much noise; without the last buckets less is counted, and more is sure.
    """
    lines = (places.least_beyond(bucket, last) for last in range(bucket + 1, BUCKETS + 1))
    ratio = max((line.end(factors.cut, upper=False) for line in lines), default=0.0)
    return ratio / (1.0 + ratio) if ratio > 0.0 else 0.0


def _of_all(share: Share, part: float, most: float) -> float:
    """Return the most that bounding leaves of all units together, from a share up to a size and the part beyond it."""
    # of a unit beyond the size no larger part is left
    left_beyond = min(1.0, most / share.size)
    return left_beyond if left_beyond >= share.high else share.high - part * (share.high - left_beyond)


def _chosen(places: Places, parts: dict[int, float]) -> int:
    """Choose the last bucket of the sizes that are spoken of.

    It is the last one beyond which little seems to be, or of which the least part beyond is a good part of what seems
    to be. What seems to be is a guess, and may be wrong: every statement holds whichever bucket is chosen.
    """
    seen = np.flatnonzero(places.units[:-1] > _SEEN * np.sqrt(places.units_variance[:-1]))
    if not len(seen):
        return max(parts)
    last = int(seen[-1])
    masses = np.maximum(_MEAN_SIZE * places.ends * places.units[:-1], 0.0)
    tail = masses[last] / masses[last - 1] if last and masses[last - 1] > 0.0 else _LONGEST_TAIL
    # no more than the next bucket can have, one standard deviation of noise included
    if last + 1 < BUCKETS:
        following = max(0.0, places.units[last + 1] + math.sqrt(places.units_variance[last + 1]))
        tail = min(tail, 2.0 * following / places.units[last])
    tail = min(tail, _LONGEST_TAIL)
    hidden = float(masses[last]) * tail / (1.0 - tail)
    whole = float(masses[: last + 1].sum()) + hidden
    for bucket in sorted(parts, reverse=True):
        seeming = (float(masses[bucket + 1 : last + 1].sum()) + hidden) / whole
        if seeming <= _SHORT or parts[bucket] >= _TOLD_OF_SEEMING * seeming:
            return bucket
    return max(parts)


def _ratio_share(noisy: Floats, sigma: float, end: float, most: float, z: float) -> Share | None:
    """Return the share by which the ratio estimate of a number without its bounds divides.

    It is what bounding leaves of units up to a size, or None if too few units tell.

    The size is the end of the last bucket that surely holds units. It is a later one if the sum of sizes is well known
    up to there, because a few units may have much. The share has an interval of its own, too. So a stored answer with
    ``dp_unbounded`` stays as it was, whatever else a receipt says of coverage.

    *Guarantee*: the interval holds the share with about 95 %. *Source*: docs/proofs/coverage.md, "The ratio estimate".

    Args:
        noisy: units in each place; shape (PLACES,).
        sigma: standard deviation of each.
        end: size at which the first bucket ends.
        most: what may be left of any unit.
        z: standard deviations between the share and an end.

    """
    corners = noisy[:-1].reshape(BUCKETS, CORNERS)
    ends = end * np.ldexp(1.0, np.arange(BUCKETS))
    sizes, left = np.outer(ends, [0.0, 1.0, 0.0, 1.0]), np.outer(np.minimum(ends, most), [0.0, 0.0, 1.0, 1.0])
    whole = np.cumsum((sizes * corners).sum(axis=1))
    whole_noise = z * sigma * np.sqrt(np.cumsum((sizes**2).sum(axis=1)))
    sure = np.flatnonzero(corners.sum(axis=1) > _SURE * math.sqrt(CORNERS) * sigma)
    told = np.flatnonzero(whole_noise <= _NARROW * whole)
    count = max([0, *(sure + 1), *(told + 1)])
    if not count or whole[count - 1] <= 0.0:
        return None
    share = min(1.0, max(0.0, float((left * corners)[:count].sum() / whole[count - 1])))
    width = z * math.sqrt(_variance(corners[:count], (left - share * sizes)[:count], sigma)) / float(whole[count - 1])
    if width > _WIDEST:
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
