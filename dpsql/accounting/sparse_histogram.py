"""The Gaussian sparse histogram mechanism: its privacy profile, with whole units and with weighted ones.

The mechanism adds N(0, sigma^2) to the number of units of every key that has one, and shows the keys whose
noisy count exceeds 1 + tau, strictly; noisy aggregates travel with each shown key. One unit touches at most
max_groups keys, of which j are also touched by others and n = max_groups - j are its own. A key of its own is
shown with probability 1 - Phi(tau/sigma), and that betrays the unit; the common keys are a Gaussian shift of
squared length j (1/sigma^2 + aggregate_precision), and what is released beside them one of `beside`, whatever j is.
`docs/proofs/gshm.md` proves every statement below, `docs/proofs/coverage.md` those about what is beside.

With weights, a unit in n <= max_groups keys adds 1 to each. One in more, n capped at counted_groups, adds
w_n = sqrt(max_groups / n) to each, so that its contribution has the same l2 norm whatever n is. Scaled by 1/w_n, the
pair of neighbours that such a unit makes is one of the plain mechanism with n keys, noise sigma/w_n and threshold
(1 + tau)/w_n; the worst n rules. `docs/proofs/weighted.md` proves every statement about them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import scipy

from dpsql.accounting.gaussian import Floats, log_delta, log_delta_up, round_delta_up
from dpsql.accounting.profile import FAR, SMALLEST, Profile, narrow, stepped_up
from dpsql.errors import CalibrationError

# The numbers of common keys are first bounded in this many blocks; only blocks that may hold the maximum are
# worked out one by one.
_BLOCKS = 512
# Splits worked out at once; more would leave the processor's cache and take five times as long.
_CHUNK = 8192
# Numbers of keys are looked at one by one up to this many, in as many blocks beyond.
_WEIGHT_BLOCKS = 2048
# Fractions of common keys between which delta is bounded: dense everywhere, and as fine as it gets at both ends.
_ENDS = 2.0 ** -np.arange(8.0, 50.0)
_FRACTIONS = np.unique(np.concatenate([np.linspace(0.0, 1.0, 1025), _ENDS, 1.0 - _ENDS]))


@dataclass(frozen=True, slots=True, kw_only=True)
class SparseProfile(Profile):
    """Profile of the Gaussian sparse histogram.

    Guarantee: as `Profile`; `delta` is the smallest that holds.
    Source: Wilkins et al. 2024, Theorem 5.4, as restated in the correlated stability histogram paper, Lemma
        2.7: the maximum over all splits; `threshold_delta`, 1 - Phi(tau/sigma)^max_groups, is delta_inf of Lemma 2.6.
    Symbols: max_groups is k, log psi(n) = n log Phi(tau/sigma) is gamma(k - n);
        rho = max_groups (1/sigma^2 + aggregate_precision) / 2.

    Attributes:
        max_groups: most keys that one unit touches, at least 1.

    >>> profile = SparseProfile(max_groups=4, sigma=8.0)
    >>> round(profile.delta(1.0, 35.0), 9), round(profile.threshold_delta(35.0), 9)
    (2.4286e-05, 2.4286e-05)
    """

    max_groups: int
    has_beside: ClassVar[bool] = True

    @property
    def unit_groups(self) -> int:
        """All keys that a unit touches."""
        return self.max_groups

    def own_threshold(self, delta: float) -> float:
        """Smallest tau at which all max_groups keys are new and cost delta."""
        one_key = -math.expm1(math.log1p(-delta) / self.max_groups)
        near = max(0.0, -self.sigma * float(scipy.special.ndtri(one_key)))
        return stepped_up(lambda tau: self._threshold_delta(tau) <= delta, near, step=2.0**-50, scale=self.sigma)

    def _delta(self, epsilon: float, tau: float) -> float:
        x = min(tau / self.sigma, FAR)
        # Two divisions, because sigma^2 may underflow where 1/sigma is still a number.
        precision = (1.0 / self.sigma) / self.sigma + self.aggregate_precision
        if not math.isfinite(self.max_groups * precision + self.beside):
            return 1.0
        splits = _candidate_splits(epsilon, self.max_groups, x, precision, self.beside)
        worst = max(
            float(way.max())
            for part in np.array_split(splits, 1 + splits.size // _CHUNK)
            for way in _log_split_deltas(epsilon, part, self.max_groups, x, precision, self.beside)
        )
        return max(self._threshold_delta(tau), round_delta_up(worst))

    def _threshold_delta(self, tau: float) -> float:
        x = tau / self.sigma
        if x > FAR:
            return SMALLEST
        shown = -math.expm1(self.max_groups * float(scipy.special.log_ndtr(x)))
        # Raised by more than what comes from rounding x itself.
        return min(1.0, math.nextafter(shown * (1.0 + 2.0**-46 * (1.0 + x * x)), math.inf))

    def _squared_distance(self) -> float:
        return self.max_groups * ((1.0 / self.sigma) / self.sigma + self.aggregate_precision)


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightedProfile(SparseProfile):
    """Profile of the sparse histogram with weighted units.

    Guarantee: as `Profile`; `delta` is at most 1.001 times the exact one where the extreme cases rule.
    Source: docs/proofs/weighted.md, Theorem 1: the profile of the plain mechanism at the scaled pair for every n, as
        one bound over all fractions of common keys; Theorem 2 for `threshold_delta` and
        rho = max_groups (1/sigma^2 + aggregate_precision) / 2.
    Symbols: max_groups is m, counted_groups is N, f = j/n the fraction of common keys, H the worst hazard;
        aggregate_precision has the radius of a full unit for sensitivity_l2.
    Assumes: weights rounded down.

    Attributes:
        max_groups: most keys in which a unit counts fully, at least 1.
        counted_groups: most keys in which it counts at all, at least max_groups.
        concentrated: whether one key may hold all that a unit adds to an aggregate, whose norm over all keys is then
            what max_groups full keys would have (docs/proofs/norm.md, Theorem 2); else each key holds its part.

    >>> round(WeightedProfile(max_groups=4, counted_groups=16, sigma=8.0).delta(1.0, 35.0), 9)
    7.2805e-05
    """

    counted_groups: int
    concentrated: bool = False

    def __post_init__(self) -> None:
        """Refuse parameters out of range."""
        Profile.__post_init__(self)
        if self.counted_groups < self.max_groups:
            raise CalibrationError(f"counted_groups must be at least {self.max_groups}, got {self.counted_groups!r}")

    def own_threshold(self, delta: float) -> float:
        """Smallest tau at which the worst number of new keys costs delta."""

        def is_safe(tau: float) -> bool:
            return self._threshold_delta(tau) <= delta

        if is_safe(0.0):
            return 0.0
        # with every one of counted_groups keys at the value 1, tau is too large
        one_key = -math.expm1(math.log1p(-delta) / self.counted_groups)
        highest = max(0.0, -self.sigma * float(scipy.special.ndtri(one_key))) * (1.0 + 2.0**-30) + self.sigma * 2.0**-30
        while not is_safe(highest):
            highest = 2.0 * highest
        return narrow(is_safe, 0.0, highest)

    def _delta(self, epsilon: float, tau: float) -> float:
        hazard, squared = self._worst_hazard(tau), self._squared_distance()
        if not math.isfinite(squared + self.beside):
            return 1.0
        at_once = self.max_groups * self.aggregate_precision if self.concentrated else 0.0
        # Hidden with probability exp(-(1-f) hazard), shifted by sqrt(f squared), or by what one key may hold at once:
        # between two fractions f of common keys the first hides least and the second is shifted most, which bounds
        # both directions.
        lost = hazard * (1.0 - _FRACTIONS[:-1]) * (1.0 + 2.0**-50)
        mu = np.sqrt(self.beside + at_once + _FRACTIONS[1:] * (squared - at_once)) * (1.0 + 2.0**-49)
        # all common: nothing is lost
        lost, mu = np.append(lost, 0.0), np.append(mu, math.sqrt(self.beside + squared) * (1.0 + 2.0**-50))
        worst = max(float(way.max()) for way in _log_deltas(epsilon, lost, lost, mu))
        return max(math.nextafter(-math.expm1(-hazard), math.inf), round_delta_up(worst))

    def _threshold_delta(self, tau: float) -> float:
        return min(1.0, math.nextafter(-math.expm1(-self._worst_hazard(tau)), math.inf))

    def _worst_hazard(self, tau: float) -> float:
        """Largest -ln of the probability that n keys of one unit all stay hidden, for n from m to N; rounded up.

        Fewer than m keys hide better than m. Within a block of numbers n the most keys and the largest weight bound it.
        """
        if self.counted_groups - self.max_groups < _WEIGHT_BLOCKS:
            least = most = np.arange(self.max_groups, self.counted_groups + 1, dtype=float)
        else:
            most = np.unique(np.rint(np.geomspace(self.max_groups, self.counted_groups, _WEIGHT_BLOCKS)))
            # the first block is one number, as the edges begin with it
            least = np.append(most[0], most[:-1])
        x = np.minimum((tau + (1.0 - np.sqrt(self.max_groups / least))) / self.sigma, FAR)
        hazards = -most * scipy.special.log_ndtr(x) * (1.0 + 2.0**-46 * (1.0 + x * x))
        return max(float(hazards.max()), SMALLEST)


def _log_split_deltas(
    epsilon: float, common: Floats, max_groups: int, x: float, precision: float, beside: float = 0.0
) -> tuple[Floats, Floats]:
    """Deltas of the law with the unit against that without, and the reverse, per number of common keys.

    Both are logarithms, rounded up. The second never exceeds the first (docs/proofs/gshm.md), but
    it is cheap to certify.
    """
    hazard = -(max_groups - common) * float(scipy.special.log_ndtr(x))
    # Bounds the relative error of 1 - Phi(x)^n that comes from rounding x itself.
    error = 2.0**-46 * (1.0 + x * x)
    most, least = hazard * (1.0 + error), hazard * (1.0 - error)
    # where nothing is beside this is, to the last bit, what it is of keys alone
    mu = np.sqrt(common * precision + beside) * (1.0 + 2.0**-51 * (beside > 0.0))
    return _log_deltas(epsilon, most, least, mu)


def _log_deltas(epsilon: float, most: Floats, least: Floats, mu: Floats) -> tuple[Floats, Floats]:
    """The same of keys that stay hidden with probability exp(-hazard), from ``least`` to ``most``, and shifts mu."""
    with np.errstate(divide="ignore"):
        log_shown = np.log(-np.expm1(-most))
    with_unit = np.logaddexp(log_shown, log_delta_up(epsilon + least, mu) - least)
    return with_unit, log_delta_up(epsilon - most, mu)


def _candidate_splits(epsilon: float, max_groups: int, x: float, precision: float, beside: float = 0.0) -> Floats:
    """Numbers of common keys among which the largest delta is certain to be.

    A block is dropped only if its bound, the shown part of its first split plus the Gaussian part of its
    last, does not reach the larger of the two pure cases; that sum bounds both directions of every split in
    between.
    """
    if max_groups <= 2 * _BLOCKS:
        return np.arange(max_groups + 1, dtype=float)
    edges = np.linspace(0, max_groups, _BLOCKS + 1).astype(np.int64)
    first, last = edges[:-1], edges[1:]
    with np.errstate(divide="ignore"):
        log_shown = np.log(-np.expm1((max_groups - first) * float(scipy.special.log_ndtr(x))))
    log_gauss = log_delta(epsilon, np.sqrt(last * precision + beside))
    at_least = max(float(log_shown[0]), float(log_gauss[-1]))
    kept = np.logaddexp(log_shown, log_gauss) >= at_least - 1e-9
    # The last split is a pure case and no block's first, so it is always looked at.
    return np.flatnonzero(np.append(np.repeat(kept, last - first), True)).astype(float)
