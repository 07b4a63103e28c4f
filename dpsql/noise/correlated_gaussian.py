"""Noise with a common term: every key has its own, all keys share one draw, both on one fine grid.

Counts are whole numbers; each key's own noise and the common term live on multiples of 2**-GRID_BITS of a count, and
integers are all that is ever added. What the grid costs is paid by `effective_sigma` and `effective_tau`. Proofs:
docs/proofs/correlated-gaussian.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from dpsql.accounting.profile import require_finite, require_max_groups, require_positive
from dpsql.errors import CalibrationError
from dpsql.noise.entropy import Entropy, Integers
from dpsql.noise.rounded_gaussian import RoundedGaussian

# The common term lives on multiples of 2**-GRID_BITS of a count.
GRID_BITS = 20
# Noise and threshold enter the accounting divided by this much.
GRID_ALLOWANCE = 1 + 2.0**-23
# How often a point may rise, and what its roundings and those of what is made of it cost a threshold, in counts.
MOST_RISES = 96
TAU_LOSS = 2.0**-12

_GRID_STEPS = 1 << GRID_BITS
# The excess of the squared distance is at most its share _spread / 4**(GRID_BITS + 1); two allowances cover 2**-22.
_LARGEST_SPREAD = 4.0 ** (GRID_BITS + 1) * 2.0**-22
_MAX_SIGMA = 2.0 ** (45 - GRID_BITS)


@dataclass(frozen=True, slots=True, eq=False)
class CorrelatedNoise:
    """One draw for all keys.

    Attributes:
        values: what is added to the counts, (count,); whole counts, or half counts where the mechanism says so.
        common: the common term, in grid steps or half counts; secret like any noise.
        floor: what is added to the floor, in grid steps; 0 where no floor is shown.
    """

    values: Integers
    common: int
    floor: int = 0


@dataclass(frozen=True, slots=True)
class CorrelatedGaussian:
    """Draw Z_i + F on the grid, where F ~ N(0, correlation sigma^2) is one for all keys.

    *Guarantee*: with counts H_i that one unit moves by 0 or 1, all in one direction, showing H_i + values for
    all keys (k of them, public) or where it exceeds 1 + tau, strictly (k-sparse), costs no more than
    `CorrelatedProfile.delta` with the analysis "improved", or its `rho` and `threshold_delta`, at `effective_sigma` and
    `effective_tau`, plus `slack_delta` of all draws: `count` + 1, and 1 for the floor. Neighbours differ in
    all rows of one unit (add or remove).
    *Source*: Lebeda and Retschmeier 2025, Algorithm 2; the rounding: docs/proofs/correlated-gaussian.md.
    *Symbols*: 1/correlation is lambda.
    *Args*: `sigma`, the standard deviation of a key's own noise, in counts, in (0, 2**25]; `correlation`, at
    least 0, with sigma * sqrt(correlation) at most 2**25. At 0 there is no common term. `floor_correlation`, the
    variance of the floor's own noise over sigma^2, above 0 and bounded likewise; None where no floor is shown.
    *Floor*: the (k+1)-th count, which top-k pre-processing takes from all others. The common term enters its noise
    with the opposite sign: a shown count plus the floor shown keeps its own noise and the floor's, while the common
    term cancels.
    *Raises*: CalibrationError for any other, NaN included.
    *Assumes*: the draws of `RoundedGaussian`.
    *Timing*: as `RoundedGaussian`; no exact value enters.
    """

    sigma: float
    correlation: float
    floor_correlation: float | None = None

    def __post_init__(self) -> None:
        require_finite("correlation", self.correlation, least=0.0)
        _grid_law("own", self.sigma)
        if self.correlation > 0:
            _grid_law("common", self.sigma * math.sqrt(self.correlation))
        if self.floor_correlation is not None:
            require_positive("floor_correlation", self.floor_correlation)
            _grid_law("floor", self.sigma * math.sqrt(self.floor_correlation))

    def draw(self, count: int, entropy: Entropy) -> CorrelatedNoise:
        """Return the noise of `count` keys, the common term inside it, and the noise of the floor.

        *Returns*: grid steps: the floor shown is floor + result / 2**GRID_BITS. *Shapes*: (count,) and two integers.
        *Raises*: ReleaseError for a negative count; EntropyError if the entropy fails.
        *Randomness*: `count` draws of RoundedGaussian, one more for the common term, and one for the floor.
        """
        own, common, floor = _grid_law("own", self.sigma).draw(count, entropy), 0, 0
        if self.correlation:
            common = int(_grid_law("common", self.sigma * math.sqrt(self.correlation)).draw(1, entropy)[0])
        if self.floor_correlation is not None:
            floor = int(_grid_law("floor", self.sigma * math.sqrt(self.floor_correlation)).draw(1, entropy)[0]) - common
        return CorrelatedNoise(own + common, common, floor)


def effective_sigma(sigma: float, *, k: int, correlation: float, floor_correlation: float | None = None) -> float:
    """Return the own noise to account with: that of a continuous mechanism which is no more private.

    *Guarantee*: for every pair of neighbours the continuous mechanism with this noise and `effective_tau` has
    at least the distance, and at least the chance of showing a new key, that this one has.
    *Source*: docs/proofs/correlated-gaussian.md, Theorem 2.
    *Args*: as `CorrelatedGaussian`; `k`, most keys with a unit; `floor_correlation`, None if no floor is shown.
    *Returns*: counts, rounded down; `sigma` itself for correlation 0.
    *Raises*: CalibrationError where k (1 + correlation) + 1/correlation + 2 exceeds 2**20 (with a floor more
    terms, see the proof): there the grid would be too coarse.

    >>> 17.5 - effective_sigma(17.5, k=10, correlation=0.3) < 3e-6
    True
    """
    require_positive("sigma", sigma)
    if require_finite("correlation", correlation, least=0.0) == 0:
        return sigma
    if not _spread(require_max_groups(k), correlation, floor_correlation) <= _LARGEST_SPREAD:
        raise CalibrationError(
            f"no proof covers max_groups = {k} with correlation {correlation!r} and floor correlation "
            f"{floor_correlation!r}: the grid of the common noise is too coarse"
        )
    return sigma / GRID_ALLOWANCE


def effective_tau(tau: float, correlation: float) -> float:
    """Return the threshold to account with, if a count is shown where it exceeds 1 + tau, strictly.

    *Guarantee*: a key with one unit is shown no more often than if its noise Z_i + F were continuous and had to
    exceed tau - TAU_LOSS; divided by GRID_ALLOWANCE, as `effective_sigma` is. That covers points that rose up to
    MOST_RISES times, and points that were made of them, as far as `rounding_loss` is no more.
    *Source*: docs/proofs/correlated-gaussian.md, Lemmas 1, 3 and 4.
    *Args*: `tau` in counts, at least TAU_LOSS; `correlation`, at least 0.
    *Returns*: counts, rounded down.
    *Raises*: CalibrationError for any other.

    >>> 95.999 < effective_tau(96.0, 0.0) < 96.0, 95.999 < effective_tau(96.0, 0.3) < 96.0
    (True, True)
    """
    require_finite("tau", tau, least=TAU_LOSS)
    shared = require_finite("correlation", correlation, least=0.0) > 0
    # lowered by more than the roundings of a large threshold
    return (tau - TAU_LOSS) / (GRID_ALLOWANCE if shared else 1.0) * (1 - 2.0**-50)


def rounding_loss(drawn: int, lowered: int, lowered_elsewhere: int, *, shared: bool) -> float:
    """Return how far a point may be from its continuous average, in counts.

    *Guarantee*: holds for every point of a statistic that was drawn or rose `drawn` times, and of which other points
    were made: `lowered` at levels of a grid on which the inverse square roots of the levels add up to at most 14 times
    the largest, and `lowered_elsewhere` at any others.
    *Source*: docs/proofs/correlated-gaussian.md, Lemma 4.
    *Args*: three numbers, at least 0; `shared`, whether there is a common term.
    *Returns*: counts, exactly.

    >>> rounding_loss(96, 145, 0, shared=False) < TAU_LOSS < rounding_loss(96, 155, 0, shared=False)
    True
    """
    if shared:
        return (1 + 1.5 * (drawn + lowered) + 2.5 * lowered_elsewhere + 12) / _GRID_STEPS
    return (1 + drawn + lowered + 1.5 * lowered_elsewhere + 6) / _GRID_STEPS


def threshold_to_compare(tau: float, correlation: float) -> float:
    """Return a threshold whose `effective_tau` is at least ``tau``."""
    return (tau * (GRID_ALLOWANCE if correlation > 0 else 1.0) + TAU_LOSS) * (1 + 2.0**-48)


def _spread(k: int, correlation: float, floor_correlation: float | None) -> float:
    """Bound on (sum of squares a shift of the common term by 1 costs)^2 / smallest distance of any pair."""
    without_floor = k * (1 + correlation) + 1 / correlation + 2
    if floor_correlation is None:
        return without_floor
    floor = require_positive("floor_correlation", floor_correlation)
    return without_floor + k * floor + 1 / floor + correlation / floor + floor / correlation


def _grid_law(term: str, sigma: float) -> RoundedGaussian:
    """Return the law of one term in grid steps, or raise CalibrationError where its scale is out of range."""
    if not 0 < sigma <= _MAX_SIGMA:
        raise CalibrationError(f"the {term} noise must have a scale in (0, 2**25] counts, got {sigma!r}")
    return RoundedGaussian(sigma * _GRID_STEPS)
