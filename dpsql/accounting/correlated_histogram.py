"""The correlated stability histogram, alone and after top-k pre-processing: privacy profiles, quietest correlations.

The mechanism adds N(0, sigma^2) to the number of units of every key that has one, and one common draw of
N(0, correlation sigma^2) to all of them; it shows the keys whose noisy count exceeds 1 + tau, strictly. At most
k keys have a unit, whatever the data (a public list of k keys, or top-k pre-processing that always runs).
One unit raises counts by 1, or lowers them by 1, never both; half of that common move hides in the common
noise, which therefore replaces almost half of the noise of each key.

A pair of neighbours has n new keys, k - n common ones, and m of these change. `docs/proofs/csh-exact.md`
proves what is stated here, `docs/proofs/csh-zcdp.md` what the ledger adds.

Top-k pre-processing subtracts the *floor* h, the (k+1)-th largest number of units, from every key's number and
cuts off at 0. So at most k keys have anything left, whatever the data and whatever one unit touches. Each of
these gets noise N(0, sigma^2) of its own and one common draw F ~ N(0, correlation sigma^2); it is shown if its
noisy count exceeds 1 + tau, strictly. The floor is released as h + C - F, C ~ N(0, floor_correlation sigma^2):
added to a shown count it gives back the number of units, and F cancels.

A pair of neighbours has j common keys, q of them the unit's own, and n keys that only the larger histogram has.
`docs/proofs/top-k.md` proves what is stated here about it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, Literal, get_args

import numpy as np
import scipy

from dpsql.accounting import gaussian
from dpsql.accounting.exceedance import FINE, shown_by_own_noise, shown_probabilities, shown_probability, shown_quantile
from dpsql.accounting.gaussian import Floats, shift_deltas
from dpsql.accounting.profile import (
    FAR,
    UP,
    Profile,
    place_of_minimum,
    require_max_groups,
    stepped_up,
    within_floats,
)
from dpsql.accounting.worst_pair import (
    FloorNoise,
    Noise,
    Setting,
    largest_delta,
    largest_sum,
    splits_above,
    worst_floor_squared,
    worst_shift_squared,
)
from dpsql.errors import CalibrationError

CorrelatedAnalysis = Literal["exact", "improved", "tight", "add-the-deltas"]

# Nodes that suffice to drop most numbers of new keys.
_ROUGH = 512
_MOST_REFINED = 256
_DOWN = 1.0 - 2.0**-38


@dataclass(frozen=True, slots=True, kw_only=True)
class CommonNoiseProfile(Profile):
    """What the profiles have in common of histograms whose k keys share one noise term.

    Attributes:
        k: most keys with a unit, at least 1. It must hold for every input, not for this one.
        correlation: variance of the common noise over sigma^2, at least 0; None for 1/sqrt(k).
        max_groups: most keys that one unit touches; None for any number.

    """

    k: int
    correlation: float | None = None
    max_groups: int | None = None

    @property
    def common_variance(self) -> float:
        """Correlation, the paper's choice 1/sqrt(k) if none is given."""
        return 1.0 / math.sqrt(self.k) if self.correlation is None else self.correlation

    @property
    def unit_groups(self) -> int:
        """Most of the k keys that one unit touches."""
        return self.k if self.max_groups is None else min(self.max_groups, self.k)

    @property
    def new_keys(self) -> int:
        """Most keys that only one of two neighbours has."""
        return self.unit_groups

    @property
    def highest_threshold(self) -> float:
        """Tau at which the tail of any number of keys is below the floating-point range."""
        return 1.1 * FAR * (1.0 + math.sqrt(self.common_variance)) * self.sigma

    def own_threshold(self, delta: float) -> float:
        """Smallest tau at which new keys alone cost delta."""
        near = shown_quantile(delta, self.new_keys, self.common_variance) * self.sigma
        return stepped_up(lambda tau: self._threshold_delta(tau) <= delta, near, step=2.0**-52, scale=self.sigma)

    def least_epsilon(self, delta: float) -> float:
        """Epsilon that the noise alone costs, seldom far from the answer."""
        return gaussian.epsilon(delta, math.sqrt(2.0 * self.rho), 1.0) * _DOWN

    def _threshold_delta(self, tau: float) -> float:
        return shown_probability(self.new_keys, tau / self.sigma, self.common_variance)


@dataclass(frozen=True, slots=True, kw_only=True)
class CorrelatedProfile(CommonNoiseProfile):
    """Profile of the correlated stability histogram.

    Guarantee: as `Profile`. `delta` is too large ("exact") by at most a few millionths of itself where a pure case is
        the worst, less than a thousandth where a mixed pair is; `threshold_delta` by at most two millionths.
    Source: Lebeda and Retschmeier 2025, Theorem 3.3 ("add-the-deltas") and the first three terms of Theorem
        3.5 ("tight"), both for any correlation; docs/proofs/csh-exact.md, Theorem 1 ("improved": exact
        probability of showing a new key, exact largest distance) and Theorem 2 ("exact": the largest
        hockey-stick divergence over all pairs of neighbours, no smaller delta holds for all inputs). The paper's
        delta_inf, exact, is `threshold_delta`; with it and `rho`: docs/proofs/csh-zcdp.md. The smallest threshold for
        "add-the-deltas" is Lemma 3.4 with 1 - delta + delta_gauss in place of the printed 1 - delta - delta_gauss,
        which would give a threshold that is too small.
    Symbols: 1/correlation is lambda, by default the paper's sqrt(k).

    Attributes:
        max_groups: as of `CommonNoiseProfile`, **only where k comes from a public list of k keys.** After top-k
            pre-processing one row can move all k counts, as it may raise the (k+1)-th, which is subtracted from all of
            them: leave it None there. A key's aggregates must change only if its count does, which top-k
            pre-processing breaks.
        analysis: each is at most those after it, except that "tight" may exceed "add-the-deltas".

    >>> profile = CorrelatedProfile(k=10, sigma=17.5)
    >>> round(profile.delta(0.35, 97.0), 8), round(profile.threshold_delta(97.0), 8), round(profile.rho, 6)
    (1.138e-05, 6.78e-06, 0.005351)
    """

    analysis: CorrelatedAnalysis = "exact"
    resolution: ClassVar[float] = 2.0**-30

    def __post_init__(self) -> None:
        """Refuse parameters out of range."""
        Profile.__post_init__(self)
        if self.analysis not in get_args(CorrelatedAnalysis):
            raise CalibrationError(f"analysis must be one of {get_args(CorrelatedAnalysis)}, got {self.analysis!r}")

    @property
    def noise(self) -> Noise:
        """Noise of one release."""
        return Noise(self.sigma, self.common_variance, self.aggregate_precision)

    def own_threshold(self, delta: float) -> float:
        """Smallest tau at which new keys alone cost delta, by the analysis."""
        if self.analysis in {"exact", "improved"}:
            return CommonNoiseProfile.own_threshold(self, delta)
        terms = self.unit_groups + (self.common_variance > 0.0)
        quantile = -float(scipy.special.ndtri(-math.expm1(math.log1p(-delta) / terms)))
        return max(0.0, quantile * (1.0 + math.sqrt(self.common_variance)) * self.sigma)

    def _delta(self, epsilon: float, tau: float) -> float:
        noise, unit_keys, x = self.noise, self.unit_groups, tau / self.sigma
        paper = self.analysis in {"tight", "add-the-deltas"}

        def shown(new: Floats, nodes: int = FINE) -> Floats:
            return _shown_split(new, x, noise) if paper else shown_probabilities(new, x, noise.correlation, nodes)

        def gauss(new: Floats) -> Floats:
            return _gauss(epsilon, self.k - new, np.minimum(unit_keys - new, self.k - new), noise, paper=paper)

        only_new, only_common = float(shown(np.array([float(unit_keys)]))[0]), float(gauss(np.zeros(1))[0])
        if self.analysis == "add-the-deltas":
            return min(1.0, (only_new + only_common) * UP)
        least = max(only_new, only_common)
        if least >= 1.0:
            return 1.0
        splits = splits_above(least, unit_keys, lambda new: shown(new, _ROUGH), gauss)
        if splits and not paper:
            # Where very many survive they are mixed pairs that rule, and a rough bound has to do for the rest.
            splits.sort(key=lambda split: -split[1])
            new = np.array([float(new) for new, _ in splits[:_MOST_REFINED]])
            bounds = ((shown(new) + gauss(new)) * UP).tolist()
            splits = [(int(new), bound) for new, bound in zip(new, bounds, strict=True)] + splits[_MOST_REFINED:]
        if self.analysis == "exact":
            return min(1.0, largest_delta(epsilon, least, splits, Setting(self.k, unit_keys, x, noise)))
        return min(1.0, max([least, *(bound for _, bound in splits)]))

    def _squared_distance(self) -> float:
        return float(worst_shift_squared(np.array([float(self.unit_groups)]), np.array([float(self.k)]), self.noise)[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class TopKProfile(CommonNoiseProfile):
    """Profile of the top-k histogram with its floor.

    Guarantee: as `Profile`, the noisy floor included. `delta` is too large by a few millionths of itself where one
        kind of key costs most, by less than a fiftieth where both together do; `threshold_delta` by at most two
        millionths.
    Source: docs/proofs/top-k.md, Theorem 2: over all pairs, the largest sum of the probability of showing a key
        that only one histogram has, and the delta of the common counts, the floor and the aggregates; Theorem 3 for
        `rho` and `threshold_delta`, which no bound on a unit's keys makes smaller: a unit with one key can take all k
        keys of the others out of the histogram.
    Symbols: 1/correlation and 1/floor_correlation are lambda_2 and lambda_1.

    Attributes:
        k: the floor is the (k+1)-th largest count; at least 1.
        max_groups: most keys one unit touches in the data; None for any number. It bounds the counts and sums
            that rise, not the counts that fall: all k do where the unit raises the floor. **None for a sketch**,
            where later batches move counts of keys that the unit does not have (docs/proofs/top-k.md, 7).
        aggregate_precision: as of `Profile`; aggregates move on keys that the unit has, whether or not the key's count
            does. 0 for a sketch.
        floor_correlation: variance of the floor's own noise over sigma^2, above 0; None for 1/sqrt(k).

    >>> profile = TopKProfile(k=10, sigma=21.5)
    >>> round(profile.delta(0.35, 119.0), 8), round(profile.threshold_delta(119.0), 8), round(profile.rho, 6)
    (7.02e-06, 7.02e-06, 0.004414)
    """

    floor_correlation: float | None = None
    resolution: ClassVar[float] = 2.0**-20
    slacks: ClassVar[tuple[float, ...]] = (2.0**-37, 2.0**-7, 2.0**-4, 2.0**-2, 0.5)

    @property
    def new_keys(self) -> int:
        """All, as raising the floor takes any key out."""
        return self.k

    @property
    def noise(self) -> FloorNoise:
        """Noise of one release."""
        floor = 1.0 / math.sqrt(self.k) if self.floor_correlation is None else self.floor_correlation
        return FloorNoise(self.sigma, self.common_variance, self.aggregate_precision, floor_correlation=floor)

    def threshold_share(self, epsilon: float, delta: float, slack: float = 0.0) -> float:
        """The rest, after what the floor costs alone where it moves while all k keys are lost."""
        floor_alone = float(self._gauss(epsilon, np.array([float(self.k)]))[0])
        return min(delta * (1.0 - slack), delta * _DOWN - floor_alone)

    def _delta(self, epsilon: float, tau: float) -> float:
        return largest_sum(self.k, tau / self.sigma, self.common_variance, lambda lost: self._gauss(epsilon, lost))

    def _gauss(self, epsilon: float, lost: Floats) -> Floats:
        """Delta of what is common at its largest distance; it falls with the number of keys that are not."""
        return shift_deltas(epsilon, self._squared(lost))

    def _squared_distance(self) -> float:
        return float(self._squared(np.zeros(1))[0])

    def _squared(self, lost: Floats) -> Floats:
        """Largest squared distance of what is common, by how many keys only the larger histogram has."""
        common = self.k - lost
        unit_keys = self.k + 1 if self.max_groups is None else min(self.max_groups, self.k + 1)
        # The unit's new keys use up its bound where the floor stays; raising the floor takes one key outside.
        own = np.minimum(common, np.maximum(unit_keys - lost, 0.0))
        return worst_floor_squared(common, own, np.minimum(common, unit_keys - 1.0), self.noise)


def quietest(variance: Callable[[float], float], lowest: float, highest: float) -> float:
    """Correlation with the least variance of a count, whose logarithm is searched from -highest to -lowest."""
    grid = np.linspace(lowest, highest, 33).tolist()
    return math.exp(-place_of_minimum(lambda log_inverse: variance(math.exp(-log_inverse)), grid, 1e-9))


@lru_cache(maxsize=4096)
@within_floats
def quietest_correlation(k: int, max_groups: int | None = None) -> float:
    """Correlation of the correlated stability histogram on a public list of k keys with the least noise.

    Source: a count's variance at rho is the profile's rho at sigma = 1, times (1 + correlation) / rho. Without a bound
        on a unit's keys it is least at 1/sqrt(k), up to whole numbers of keys (docs/proofs/csh-exact.md, 4).

    Args:
        k: most keys with a unit, at least 1.
        max_groups: most keys one unit touches; None for all of them.
    Returns: variance of the common noise over that of a key's own; 0 if no common noise beats none. Not rounded:
        any number is private, this one is as good as any.
    Raises: CalibrationError for inputs outside these ranges.
    Randomness: none.

    >>> round(1.0 / quietest_correlation(100), 2), quietest_correlation(100, max_groups=1)
    (10.0, 0.0)
    """

    def variance(correlation: float) -> float:
        profile = CorrelatedProfile(k=k, sigma=1.0, correlation=correlation, max_groups=max_groups)
        return profile.rho * (1.0 + correlation)

    centre = math.log(require_max_groups(k))
    best = quietest(variance, 0.5 * centre - 2.0, centre + 2.0)
    return best if variance(best) < variance(0.0) else 0.0


@lru_cache(maxsize=4096)
@within_floats
def quietest_top_k_correlation(k: int, max_groups: int | None = None) -> float:
    """Correlation of keys and floor, the same for both, with which the top-k histogram has the least noise.

    Source: the variance of a noisy count above the floor, and that of a count with the floor added back, at rho
        are both the profile's rho at sigma = 1, times (1 + correlation) / rho. Without a bound on a unit's keys it is
        least at sqrt(2/k), up to whole numbers of keys (docs/proofs/top-k.md, 5).

    Args:
        k: the floor is the (k+1)-th largest count; at least 1.
        max_groups: most keys one unit touches in the data; None for any number.
    Returns: above 0. Not rounded: any number is private, this one is as good as any.
    Raises: CalibrationError for inputs outside these ranges.
    Randomness: none.

    >>> round(quietest_top_k_correlation(1000) * 500**0.5, 2), round(quietest_top_k_correlation(1000, max_groups=1), 2)
    (1.0, 1.0)
    """

    def variance(correlation: float) -> float:
        profile = TopKProfile(
            k=k, sigma=1.0, correlation=correlation, floor_correlation=correlation, max_groups=max_groups
        )
        return profile.rho * (1.0 + correlation)

    # With few keys per unit it is near 1, with many near sqrt(2/k).
    return quietest(variance, -1.0, 0.5 * math.log(require_max_groups(k)) + 1.0)


def _gauss(epsilon: float, common: Floats, most_changed: Floats, noise: Noise, *, paper: bool) -> Floats:
    """Delta of the common counts and aggregates alone: at their largest distance, or at the paper's bound on it."""
    if paper:
        own = 1.0 / noise.sigma / noise.sigma
        with np.errstate(divide="ignore"):
            # Half of the move is put on the common noise, or none of it; gamma(j) of Theorem 3.5.
            half = 0.25 * (common + np.divide(1.0, noise.correlation)) if noise.correlation > 0.0 else np.inf
        squared = (np.minimum(most_changed, half) * own + most_changed * noise.aggregate_precision) * UP
    else:
        squared = worst_shift_squared(most_changed, common, noise)
    return shift_deltas(epsilon, squared)


def _shown_split(new: Floats, x: float, noise: Noise) -> Floats:
    """Bound of Lemma 3.2 on the probability that any of ``new`` keys is shown: 1 - psi(new)."""
    w = min(x / (1.0 + math.sqrt(noise.correlation)), FAR)
    return np.where(new > 0.0, shown_by_own_noise(new + (noise.correlation > 0.0), w), 0.0)
