"""An upper end of the units that may be missing in one group, from the noisy histogram of their numbers of groups.

A unit in more groups than it may count in is left out of some of them. Nobody knows of which, so all such units are
taken to be in the one group that is looked at. All of it is post-processing of the stored point.
docs/proofs/coverage.md, Theorem 5, has the proof.
"""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from dpsql.bound.coverage import BUCKETS, CORNERS, PLACES, first_end, most_left
from dpsql.model.frame import PRESENCE, Frame

Floats = npt.NDArray[np.float64]

ERROR = 0.0125
"""Probability with which the end may be too low."""
_MORE_UNITS = 4.0
"""Units more in each place when the spread of their places is computed: few units have a spread they do not show."""
_LEAST_PROBABILITY = 1e-9
"""A corner with a smaller probability is that of rounding."""


def most_missing(noisy: Floats, sigma: float, frame: Frame) -> float:
    """Return an upper end of the units that bounds leave out of any one group.

    *Guarantee*: the number of units that are missing in a group exceeds the end with a probability of at most `ERROR`,
    over noise and secret, up to the normal approximation of where units stand. *Source*: docs/proofs/coverage.md,
    Theorem 5.

    Args:
        noisy: units in each place of the histogram of groups; shape (PLACES,).
        sigma: standard deviation of each.
        frame: what bounds the groups of a unit.

    Returns:
        A number from 0 on.

    """
    candidates = missing_weights(frame)
    z = -NormalDist().inv_cdf(ERROR / len(candidates))
    return max(0.0, min(_end(weights, noisy, sigma, z) for weights in candidates))


def missing_weights(frame: Frame) -> list[Floats]:
    """Return weights of the places, whose sum over units is at least what one group lacks of them in the mean.

    The first ones have little noise. If a bucket holds both units that lack groups and units that lack none, there
    are second ones, of which the latter add nothing in the mean.

    Args:
        frame: what bounds the groups of a unit.

    Returns:
        One or two vectors of the shape (PLACES,).

    """
    least, unbiased = np.zeros(PLACES), np.zeros(PLACES)
    largest, most = frame.key_count or math.inf, most_left(PRESENCE, frame)
    for bucket in range(BUCKETS):
        end = first_end(PRESENCE) * 2.0**bucket
        sizes = np.arange(math.floor(end / 2.0) + 1, int(min(end, largest)) + 1, dtype=np.float64)
        lacking = 1.0 - _parts_left(sizes, frame)
        if not lacking.max(initial=0.0) > 0.0:
            continue
        forms = _forms(sizes, lacking, end, min(end, most))
        places = slice(CORNERS * bucket, CORNERS * (bucket + 1))
        least[places] = min(forms, key=np.linalg.norm)
        unbiased[places] = forms[-1] if lacking.min() <= 0.0 else least[places]
    if largest > first_end(PRESENCE) * 2.0 ** (BUCKETS - 1):
        least[-1] = unbiased[-1] = 1.0
    return [least] if np.array_equal(least, unbiased) else [least, unbiased]


def _parts_left(sizes: Floats, frame: Frame) -> Floats:
    """Return the part of a unit that counts in the mean in one of its groups, by its number of groups."""
    bounding = frame.bounding
    counted = np.minimum(sizes, bounding.most_counted or math.inf)
    weights = np.minimum(1.0, np.sqrt(frame.unit_groups / counted)) if bounding.counted_groups else 1.0
    parts: Floats = weights * counted / sizes
    return parts


def _forms(sizes: Floats, lacking: Floats, end: float, most: float) -> list[Floats]:
    """Return weights of the corners of one bucket; the last ones are those of which no unit that lacks nothing adds.

    Args:
        sizes: the numbers of groups in the bucket.
        lacking: part of a unit that one of its groups lacks in the mean.
        end: largest size in the bucket.
        most: most that may be left of a unit in the bucket.

    """
    by_size, by_left = sizes / end, sizes * (1.0 - lacking) / most
    odds = (1.0 - np.maximum(by_size, by_left), by_size - by_left, by_left - by_size)
    is_possible = np.array([*(bool((one > _LEAST_PROBABILITY).any()) for one in odds), True])
    is_large, is_left = np.array([0.0, 1.0, 0.0, 1.0]), np.array([0.0, 0.0, 1.0, 1.0])
    forms = (
        (lacking / by_size).max() * is_large,
        np.full(CORNERS, lacking.max()),
        (end * is_large - most * is_left) / sizes[lacking > 0.0].min(),
    )
    return [np.where(is_possible, one, 0.0) for one in forms]


def _end(weights: Floats, noisy: Floats, sigma: float, z: float) -> float:
    """Return the upper end of a weighted sum, with the spread of where units stand and of which groups are chosen."""
    total, units = float(weights @ noisy), np.maximum(noisy, 0.0)
    spread = float(weights**2 @ units)
    for places in np.split(np.arange(PLACES - 1), BUCKETS):
        number = float(units[places].sum())
        spread -= float(weights[places] @ units[places]) ** 2 / number if number > 0.0 else 0.0
    variance = (sigma**2 + _MORE_UNITS) * float(weights @ weights) + max(0.0, spread) + max(0.0, total)
    return total + z * math.sqrt(variance)
