"""Correlated Gaussian noise with a variance for each chosen key of a public list; other keys have no number.

The keys and their variances follow from counts that were released before (`chosen_counts.py`). They are not known when
a release is priced. So the histogram of a frame has none, and `with_choice` returns one that can be drawn.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from dpsql.accounting import gaussian
from dpsql.mechanism.chosen_counts import Choice
from dpsql.mechanism.correlated_gaussian import listed_keys
from dpsql.mechanism.gaussian_measure import GaussianHistogram
from dpsql.mechanism.histogram import Histogram, HistogramMechanism, Moved
from dpsql.mechanism.measure import FLOAT_SLACK, Integers, NoisyHistogram, Shape
from dpsql.model.frame import Frame
from dpsql.noise.correlated_gaussian import GRID_BITS
from dpsql.noise.entropy import NoiseSource
from dpsql.noise.weighted_gaussian import WeightedCorrelatedGaussian

UNCHOSEN = -(2**62)
"""Stored in place of the number of a key that was not chosen, in steps of the noise; no count is so small."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenHistogram(GaussianHistogram):
    """Counts of chosen keys, noised with a variance for each; of the other keys nothing is released.

    *Guarantee*: if one unit moves a count by 0 to `most`, all in one direction, a release at rho has at most the
    distance sqrt(2 rho) of one Gaussian release, when all rows of the unit are added or removed. Which keys are chosen,
    and their variances, may follow from earlier releases.
    *Source*: docs/proofs/weighted-correlated.md, Theorems 1 to 3.

    Attributes:
        most: the most that one unit adds to a count.
        choice: the keys and their variances; None if none was chosen.

    """

    most: int
    choice: Choice | None = None

    def sigma(self, rho: float) -> float:
        """Return the standard deviation of the count of a single chosen key at a level, rounded up.

        Several keys have more, each its own.
        """
        return self.most / math.sqrt(2.0 * rho) * FLOAT_SLACK

    def query_epsilon(self, delta: float, sigma: float, tau: float | None, moved: Moved) -> float:  # noqa: ARG002
        """Smallest epsilon of the release at delta."""
        return gaussian.epsilon(delta, self.most / sigma * FLOAT_SLACK**2, 1.0)

    def draw(self, exact: Integers, floor: int, sigma: float, source: NoiseSource) -> NoisyHistogram:  # noqa: ARG002
        """Add noise to the counts of the chosen keys. The values of all others are `UNCHOSEN`.

        *Randomness*: a draw for each chosen key, and one for the term that they share.
        """
        values = np.full(len(exact), UNCHOSEN, dtype=np.int64)
        if self.choice:
            keys, variances = self.choice.keys, self.choice.variances
            noise = WeightedCorrelatedGaussian(np.sqrt(variances.own), math.sqrt(variances.common))
            values[keys] = (exact[keys] << GRID_BITS) + source.draw(noise, len(keys))
        return NoisyHistogram(values, 0)


def with_choice(histogram: Histogram, choice: Choice | None) -> Histogram:
    """Return the histogram of a frame of chosen keys with the keys that were chosen."""
    if not isinstance(histogram, ChosenHistogram):
        raise AssertionError("keys are chosen for a frame of chosen keys")
    return replace(histogram, choice=choice)


def _histogram(frame: Frame, shape: Shape | None) -> Histogram:  # noqa: ARG001 — no term is the same for all keys
    keys = listed_keys(frame)
    return ChosenHistogram(
        name=WEIGHTED_CORRELATED_GAUSSIAN.name,
        unit_groups=keys,
        # all counts share the common term, and that is a draw itself
        draws=keys + 1,
        sum_draws=keys,
        most=frame.largest.most if frame.largest else 1,
    )


WEIGHTED_CORRELATED_GAUSSIAN = HistogramMechanism(
    name="weighted_correlated_gaussian",
    word="WEIGHTED_CORRELATED_GAUSSIAN",
    sentence="correlated Gaussian noise on chosen public keys, with a variance for each",
    without=frozenset(),
    is_offered=False,
    histogram=_histogram,
)
"""No option names it: it is the second release of a question with method = CORRELATED."""
