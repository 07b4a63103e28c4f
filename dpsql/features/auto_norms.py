"""The norm that AUTO chooses: what a unit may add over all its groups, from a noisy histogram of units by theirs.

What lies beyond a norm is scaled down, which no interval tells of; what lies below it pays for noise that nobody needs.
The choice is public computation on a histogram that was released: a bad guess costs accuracy, never privacy
(docs/proofs/auto.md).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from dpsql.features.auto_histograms import EMPTY, Floats, largest_size, sure_groups, sure_places
from dpsql.plan.features.auto import NORM_STEPS_PER_DOUBLING

_BIAS = 16.0
"""How much more a square of what bounds leave out weighs than one of noise, because stated intervals have noise alone:
what is left out of the largest groups is to be a quarter of it, so that they hold as often as they say."""
_DIGITS = 3
_STEP = 1.0 / 16.0
"""Norms that may be chosen are so many doublings apart."""


@dataclass(frozen=True, slots=True)
class NormUse:
    """How a norm will be used, as far as policy and text say it.

    Attributes:
        rho: what the statistics of a query have that leaves a histogram of this level for AUTO.
        groups: in how many groups a unit is taken to be.
        key_count: number of public keys; None where keys are private.

    """

    rho: float
    groups: int
    key_count: int | None


def chosen_norm(noisy: Floats, sigma: float, use: NormUse) -> float | None:
    """The norm with the least predicted sum of squared errors, what bounding leaves out counted sixteenfold.

    Norms are taken to be spread evenly within their place, a unit of norm v in g groups to have v sqrt(g) in all, group
    sizes to fall as 1/rank, and bounds to leave the same part of every group; of private keys those groups count of
    which twice the noise is less than the size. Where few places surely hold units, neighbouring ones are added up.

    Args:
        noisy: number of units in each place, in units.
        sigma: its noise.
        use: how it will be used.

    Returns: a number of steps; None where it is not known of any place, or of all together, that it holds units.

    """
    places = _held(noisy[1:], sigma)
    if places is None:
        return None
    units, low, high = places
    norms = np.exp2(np.arange(np.log2(low[0]), np.log2(high[-1]) + _STEP, _STEP))[1:]
    total = float(units @ (low + high)) / 2.0
    most = total * math.sqrt(use.groups)
    # any number of units: what one has in a group is no number of them
    largest = largest_size(most, most, use.key_count)
    errors = []
    for norm in norms:
        inside = np.clip(norm, low, high)
        # of what is spread evenly up to the upper end: the part above the norm, and how far above it is on average
        beyond = ((high + inside) / 2.0 - norm) * (high - inside) / (high - low)
        lost = float(units @ beyond) / total
        noise = norm / math.sqrt(2.0 * use.rho)
        groups = float(use.key_count or max(1.0, largest / (2.0 * noise)))
        squares = math.pi**2 / 6.0 - 1.0 / (groups + 0.5)
        hidden = 0.0 if use.key_count else largest**2 / groups
        errors.append(_BIAS * (lost * largest) ** 2 * squares + groups * noise**2 + hidden)
    return float(norms[int(np.argmin(errors))])


def _held(noisy: Floats, sigma: float) -> tuple[Floats, Floats, Floats] | None:
    """Places with units, wide enough to tell most of them from none: their numbers, lower and upper ends."""
    ends = np.exp2(np.arange(-1, len(noisy)) / NORM_STEPS_PER_DOUBLING)
    width, found = 1, None
    while width < 2 * len(noisy):
        starts = np.arange(0, len(noisy), width)
        merged, noise = np.add.reduceat(noisy, starts), sigma * math.sqrt(width)
        if sure_places(merged, noise, len(merged)).any():
            held = merged > EMPTY * noise
            last = np.minimum(starts + width, len(noisy))
            found = merged[held], ends[starts][held], ends[last][held]
            if sure_groups(merged, noise):
                break
        width *= 2
    return found


def rounded_up(norm: float) -> float:
    """The least number of three digits that is no less."""
    exponent = math.floor(math.log10(norm)) - _DIGITS + 1
    step = 10.0**exponent
    # a number that has three digits stays what it is
    return float(f"{math.ceil(norm / step - 1e-9) * step:.{_DIGITS}g}")
