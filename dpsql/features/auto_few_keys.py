"""The norm that AUTO chooses where the keys are few, by the whole error of a table and the tail that norms may have.

Noise costs a table its number of keys times the noise of one. So where keys are few, the best norm has few units above
it: at the default level fewer than noise lets places show one by one. A family of tails says how many there are. Each
tail counts as much as the noisy histogram makes it likely, and the norm has the least error over all of them.

The choice is public computation on points that were released: a bad guess costs accuracy, never privacy
(docs/proofs/auto.md, "Few keys").
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpsql.bound.unit_histograms import NORM_STEPS_PER_DOUBLING
from dpsql.features.auto_choices import MEAN_NOISE, WIDEST, Floats
from dpsql.features.auto_norms import NormUse, likely_units

_CERTAIN = 12.0
"""A place of so many standard deviations is as it was counted; the tail begins at the last of them."""
_RISE = 6.0
"""If doublings of norms that hold units have so many standard deviations of a place more than those before them,
units have norms of another kind: the tail begins there."""
_PLACES = 12 * NORM_STEPS_PER_DOUBLING
"""A tail reaches over so many places."""
_SMALL = 2 * NORM_STEPS_PER_DOUBLING
"""Up to this place, a norm of 4, some places have no norm of whole numbers of rows, so that two are read as one."""
_SLOPES = np.append(0.0, 0.35 * np.exp2(np.arange(15) / 2.0))
_CURVATURES = np.append(0.0, 0.03 * np.exp(np.arange(8)))
_LEAST_SLOPE = 0.8
"""A tail without curvature falls no more slowly: a little noise far out would promise units of norms without end."""
_STEP = 1.0 / 16.0
"""Norms that may be chosen are so many doublings apart."""
_ROW_STEPS = 2.0


@dataclass(frozen=True, slots=True)
class _Tails:
    """Tails that norms may have from a place on.

    Attributes:
        units: of each tail, the units in each place.
        likelihood: of each tail, adding up to 1.

    """

    units: Floats
    likelihood: Floats


def norm_of_few_keys(noisy: Floats, sigma: float, use: NormUse) -> float | None:
    """Return the norm with the least expected logarithm of a table's error, over all tails that norms may have.

    For a tail, the error is the hypotenuse of what the norm leaves out of all keys together, and of the mean size of
    the noise in all of them. A unit of norm v in g groups has v sqrt(g) in all.

    Args:
        noisy: number of units in each place, in units.
        sigma: its noise.
        use: how the norm will be used, with the number of keys.

    Returns: a number of steps, a multiple of 1/2; None where no place, nor all together, are likely to hold units.

    """
    held = likely_units(noisy, sigma, use.usual_places)
    if not held.any():
        return None
    start = _start(noisy[1:], held, sigma)
    tails = _tails(noisy[1 + start :][:_PLACES], sigma, start)
    places = start + np.arange(tails.units.shape[1])
    # all units of the first place may have the norm at its end; further out they are spread over their places
    values = np.exp2((places - 0.5 * (places > start)) / NORM_STEPS_PER_DOUBLING)
    last = max(int(places[-1]), start + 1)
    norms = np.exp2(np.arange(start / NORM_STEPS_PER_DOUBLING, last / NORM_STEPS_PER_DOUBLING, _STEP))
    lost = tails.units @ np.maximum(values[:, None] - norms, 0.0) * math.sqrt(use.groups)
    noise = MEAN_NOISE * (use.key_count or 1) * norms / math.sqrt(2.0 * use.rho)
    expected = tails.likelihood @ np.log(np.hypot(lost, noise))
    norm = float(norms[int(np.argmin(expected))])
    return max(1.0, round(norm * _ROW_STEPS) / _ROW_STEPS)


def _start(places: Floats, held: Floats, sigma: float) -> int:
    """Return the place where the tail begins.

    It is the last place that is certain, or the fullest place of the fullest doubling if none is. Where a later
    doubling that holds units has more of them than the one before it, it is the fullest place of that.
    """
    known, doubling = np.flatnonzero(held), NORM_STEPS_PER_DOUBLING
    near = np.arange(max(0, known[0] - WIDEST), min(known[-1] + WIDEST, len(places) - doubling) + 1)
    of_doubling = np.convolve(places, np.ones(doubling), "valid")

    def fullest(some: npt.NDArray[np.intp]) -> int:
        first = int(some[int(np.argmax(of_doubling[some]))])
        return first + int(np.argmax(places[first : first + doubling]))

    certain = near[places[near] > _CERTAIN * sigma]
    start = int(certain[-1]) if certain.size else fullest(near)
    later = known[(known > start + doubling) & (known <= len(places) - doubling)]
    rises = later[of_doubling[later] - of_doubling[later - doubling] > _RISE * sigma]
    if rises.size:
        start = fullest(rises)
    # two places that are read as one begin at an odd one
    return start - (start + 1) % 2 if 0 < start < _SMALL else start


def _tails(places: Floats, sigma: float, start: int) -> _Tails:
    """Return tails of units by their norms, each of the size that fits the noisy places best.

    At t doublings above the first place a tail has exp(-slope t - curvature t²) times its size: that of a Pareto law
    without curvature, of a log-normal one with some, and of norms that nearly all units have with much.
    """
    doublings = np.arange(-1, len(places)) / NORM_STEPS_PER_DOUBLING
    slope, curvature = (one.ravel() for one in np.meshgrid(_SLOPES, _CURVATURES))
    ends = (curvature > 0.0) | (slope >= _LEAST_SLOPE)
    shapes = np.exp(-slope[ends, None] * doublings - curvature[ends, None] * doublings**2)
    units = shapes[:, 1:].copy()
    if not start:
        # a norm of one row stands for all from 1 / sqrt(2) on, which are two places
        units[:, 0] += shapes[:, 0]
    starts = np.arange(start, start + len(places))
    starts = starts[(starts >= _SMALL) | (starts == 0) | (starts % 2 == 1)] - start
    noise = sigma * np.sqrt(np.diff(np.append(starts, len(places))))
    model = np.add.reduceat(units, starts, axis=1) / noise
    squares = (model**2).sum(axis=1)
    product = np.maximum(model @ (np.add.reduceat(places, starts) / noise), 0.0)
    # the likelihood of a shape, whatever its size
    exponent = 0.5 * product**2 / squares - 0.5 * np.log(squares)
    likelihood = np.exp(exponent - exponent.max())
    return _Tails(units * (product / squares)[:, None], likelihood / likelihood.sum())
