"""Draws of correlated Gaussian noise with a deviation for each key, on one grid.

Counts are whole numbers. Own noise and the common term are drawn on multiples of 2**-GRID_BITS of a count, so that half
a count is on the grid. Therefore the bound of `accounting/weighted_gaussian.py` holds on the grid as it stands.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpsql.errors import CalibrationError
from dpsql.noise.correlated_gaussian import GRID_BITS
from dpsql.noise.entropy import Entropy, Integers
from dpsql.noise.rounded_gaussian import RoundedGaussian

Floats = npt.NDArray[np.float64]

VALUES_PER_DOUBLING = 64
"""Own deviations have so many values between one and its double, as a table is made for each of them."""
MOST_SIGMA = 2.0 ** (45 - GRID_BITS)
"""The largest deviation that can be drawn, in counts."""


@dataclass(frozen=True, slots=True, eq=False)
class WeightedCorrelatedGaussian:
    """Draw Z_i + F on the grid: Z_i ~ N(0, own_i^2) for each key, and one F ~ N(0, common^2) for all keys.

    *Guarantee*: with counts that one unit moves by 0 to m, all in one direction, showing all counts plus these draws
    costs (sum 1/own_i^2 + 1/common^2) m^2 / 8 in rho, as one Gaussian release, plus `slack_delta` of all draws:
    the number of keys, and 1. Neighbours differ in all rows of one unit (add or remove).
    *Source*: docs/proofs/weighted-correlated.md, Theorems 1 and 2.
    *Args*: `own`, the standard deviation of each key in counts, in (0, 2**25]; *Shape*: (keys,). `common`, likewise.
    *Raises*: CalibrationError for any other, NaN included.
    *Assumes*: the draws of `RoundedGaussian`.
    *Timing*: as `RoundedGaussian`, once for each distinct deviation; no exact value enters.
    """

    own: Floats
    common: float

    def __post_init__(self) -> None:
        sigmas = np.append(self.own, self.common)
        if not np.all((sigmas > 0.0) & (sigmas <= MOST_SIGMA)):
            raise CalibrationError("noise must have scales in (0, 2**25] counts")

    def draw(self, count: int, entropy: Entropy) -> Integers:
        """Return the noise of each key, the common term inside it.

        *Returns*: multiples of 2**-GRID_BITS of a count. *Shapes*: (keys,).
        *Raises*: CalibrationError if ``count`` is not the number of keys; EntropyError if the entropy fails.
        *Randomness*: one draw of RoundedGaussian for each key, and one for the common term.
        """
        if count != len(self.own):
            raise CalibrationError(f"noise for {len(self.own)} keys was asked for {count}")
        steps = 2.0**GRID_BITS
        drawn = np.empty(count, dtype=np.int64)
        sigmas, places = np.unique(self.own, return_inverse=True)
        for place, sigma in enumerate(sigmas.tolist()):
            of_sigma = np.flatnonzero(places == place)
            drawn[of_sigma] = RoundedGaussian(sigma * steps).draw(len(of_sigma), entropy)
        return drawn + int(RoundedGaussian(self.common * steps).draw(1, entropy)[0])


def with_few_values(sigmas: Floats) -> Floats:
    """Return deviations rounded to the nearest of `VALUES_PER_DOUBLING` values per doubling.

    *Shapes*: (keys,) to (keys,).

    >>> with_few_values(np.array([1.0, 1.001, 1.9, 3.8])).tolist()
    [1.0, 1.0, 1.8945759815869656, 3.789151963173931]
    """
    powers = np.rint(np.log2(sigmas) * VALUES_PER_DOUBLING).astype(np.int64)
    whole, part = np.divmod(powers, VALUES_PER_DOUBLING)
    # powers of two are exact, so that a part has one value in all doublings
    return np.asarray(np.ldexp(np.exp2(part / VALUES_PER_DOUBLING), whole))
