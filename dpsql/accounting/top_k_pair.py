"""How far one unit moves what a top-k histogram shows: its counts, its floor, and the sums beside them.

The floor h is the (k+1)-th largest count, and the histogram is H = max(G - h, 0). One unit either leaves the
floor alone and raises H by 1 on keys of its own, or raises the floor and lowers H by 1 on the keys that are
*not* its own. Released are y = H + Z + F per key, F common to all, and the floor as h + C - F. Of j common keys
q are the unit's own; sums move on those, in both cases. `docs/proofs/top-k.md` derives the distances: the
released floor is as good as 1/floor_correlation further keys, which change in the second case only.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dpsql.accounting.correlated_pair import Noise, worst_shift_squared
from dpsql.accounting.gaussian import Floats

_UP = 1.0 + 2.0**-40


@dataclass(frozen=True, slots=True)
class FloorNoise:
    """What determines the privacy of one release with a floor.

    Attributes:
        sigma: standard deviation of the noise that each key has of its own, in units.
        correlation: variance of the common noise F over sigma^2, at least 0.
        floor_correlation: variance of the floor's own noise C over sigma^2, above 0.
        aggregate_precision: sum over the aggregates of (sensitivity_l2 per key / their noise)^2.

    """

    sigma: float
    correlation: float
    floor_correlation: float
    aggregate_precision: float = 0.0

    @property
    def at_rest(self) -> Noise:
        """Noise of the counts alone that hides the same changes when the floor does not move.

        The floor's noisy value then tells of F only; 1/F's variance and 1/C's variance add up.
        """
        share = self.floor_correlation / (self.correlation + self.floor_correlation)
        return Noise(self.sigma, self.correlation * share, self.aggregate_precision)


def floor_rises_squared(own: Floats, common: Floats, noise: FloorNoise) -> Floats:
    """Squared distance of the means, in standard deviations, if the floor rises and the unit has ``own`` common keys.

    The other ``common - own`` keys fall by 1. (j - q + a)(q + b) / (j + a + b) with a = 1/floor_correlation and
    b = 1/correlation, plus one aggregate_precision per own key; written without cancellation and rounded up.
    """
    correlation, floor = noise.correlation, noise.floor_correlation
    with np.errstate(over="ignore", invalid="ignore"):
        falling = (1.0 + floor * (common - own)) * (1.0 + correlation * own)
        counts = falling / (correlation + floor + correlation * floor * common)
        return np.asarray((counts / noise.sigma / noise.sigma + own * noise.aggregate_precision) * _UP)


def worst_floor_squared(common: Floats, most_own: Floats, most_own_below: Floats, noise: FloorNoise) -> Floats:
    """Largest squared distance of both cases over whole numbers of own keys.

    Args:
        common: keys of both histograms.
        most_own: most of them that are the unit's if the floor stays, at least 0.
        most_own_below: most of them that are the unit's if the floor rises, at least 0.
        noise: the noise.
    Shapes: all the same.
    Returns: one number per element, rounded up; NaN or infinite where it leaves the floating-point range.
    """
    worst = worst_shift_squared(most_own, common, noise.at_rest)
    correlation = noise.correlation
    gain = 1.0 + noise.sigma * noise.sigma * noise.aggregate_precision
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        # The parabola's top. Without correlation it is at either end, or nowhere if all numbers cost the same.
        steps = gain * (1.0 + correlation * (common + 1.0 / noise.floor_correlation)) - 2.0
        top = np.floor(np.nan_to_num(steps / (2.0 * correlation)) if correlation > 0.0 else np.sign(steps) * np.inf)
    for own in (top, top + 1.0):
        kept = np.clip(np.nan_to_num(own), 0.0, most_own_below)
        worst = np.maximum(worst, floor_rises_squared(kept, common, noise))
    return worst
