"""Gaussian noise with a common term over a public list of keys: every listed key is shown, none hides."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache

from dpsql.accounting.correlated_histogram import CommonNoiseProfile, CorrelatedProfile, quietest_correlation
from dpsql.accounting.profile import Profile, smallest_sigma
from dpsql.mechanism.gaussian_measure import ProfiledHistogram
from dpsql.mechanism.histogram import NOTHING_MOVED, Histogram, HistogramMechanism, Moved
from dpsql.mechanism.measure import FLOAT_SLACK, Shape
from dpsql.model.frame import Frame
from dpsql.noise.correlated_gaussian import GRID_ALLOWANCE, effective_sigma


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedNoise(ProfiledHistogram):
    """What holds for every mechanism in which at most k keys share a common term of the noise.

    Attributes:
        unit_profile: profile at noise of 1, with the k keys and the correlation.

    """

    unit_profile: CommonNoiseProfile

    def sigma(self, rho: float) -> float:
        """Own noise at a level, rounded up."""
        return smallest_sigma(self.unit_profile, rho) * GRID_ALLOWANCE * FLOAT_SLACK

    def profile(self, sigma: float, moved: Moved = NOTHING_MOVED) -> Profile:
        """Profile at this noise, less what the grid takes of it."""
        k, floor = self.unit_profile.k, self.shape.floor_correlation
        own = effective_sigma(sigma, k=k, correlation=self.shape.correlation, floor_correlation=floor)
        return replace(self.unit_profile, sigma=own, aggregate_precision=moved.per_group, beside=moved.beside)


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedHistogram(SharedNoise):
    """All keys of a public list share a common term of the noise.

    *Guarantee*, *Source*: the correlated Gaussian mechanism (Lebeda 2024; Lemma 2.8 of Lebeda and Retschmeier 2025) at
    the exact distance, `CorrelatedProfile.rho`; every listed key is noised: nothing hides, and no delta is spent on it.
    If one unit moves a count by 0 to `most`, a distance is `most` times that at most, and so is the noise
    (docs/proofs/weighted-correlated.md, Theorem 1).

    Attributes:
        most: the most that one unit adds to a count.

    """

    most: int = 1

    def sigma(self, rho: float) -> float:
        """Own noise at a level, rounded up."""
        return SharedNoise.sigma(self, rho) * self.most

    def profile(self, sigma: float, moved: Moved = NOTHING_MOVED) -> Profile:
        """Profile at this noise."""
        return SharedNoise.profile(self, sigma / self.most, moved)


@lru_cache(maxsize=4096)
def _correlation(k: int, unit_groups: int) -> float:
    return quietest_correlation(k, unit_groups) or 1.0 / math.sqrt(k)


def listed_histogram(k: int, groups: int, correlation: float, most: int = 1) -> ListedHistogram:
    """The histogram of k listed keys, of which a unit touches so many, and adds `most` to a count."""
    profile = CorrelatedProfile(k=k, sigma=1.0, correlation=correlation, max_groups=groups)
    # all counts share the common term, and that is a draw itself
    return ListedHistogram(
        name="correlated_gaussian",
        unit_groups=groups,
        draws=k + 1,
        sum_draws=groups,
        shape=Shape(correlation, None),
        unit_profile=profile,
        most=most,
    )


def _histogram(frame: Frame, shape: Shape | None) -> Histogram:
    k, groups = listed_keys(frame), frame.unit_groups
    correlation = shape.correlation if shape else _correlation(k, groups)
    return listed_histogram(k, groups, correlation, frame.largest.most if frame.largest else 1)


def listed_keys(frame: Frame) -> int:
    """Number of keys of a public list, 1 without GROUP BY."""
    if frame.key_count is None:
        raise AssertionError("noise with a part common to all keys is for public keys here")
    return frame.key_count


CORRELATED_GAUSSIAN = HistogramMechanism(
    name="correlated_gaussian",
    word="CORRELATED_GAUSSIAN",
    sentence="correlated Gaussian noise on every public key: part of it is common to all keys",
    without=frozenset({"private keys", "bounding = L2", "running totals or buckets", "composition = pure"}),
    least_keys=2,
    histogram=_histogram,
)
