"""Gaussian noise on a power of the running totals along one public key, from under which values are read."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from dpsql.accounting import gaussian
from dpsql.mechanism.gaussian_measure import GaussianHistogram
from dpsql.mechanism.histogram import Histogram, HistogramMechanism, Moved, Sequences
from dpsql.mechanism.measure import FLOAT_SLACK, Floats, Integers, Shape
from dpsql.model.estimates import RunningTotal
from dpsql.model.frame import Frame, Ordering, Statistic
from dpsql.model.statistic_kinds import BESIDE_KINDS
from dpsql.noise.correlated_gaussian import GRID_BITS
from dpsql.noise.running_totals import best_power

# A sum's radius is at least this many lattice steps (`plan.aggregates.sums`): what its rounding adds to l2 is
# below.
_LEAST_RADIUS_BITS = 22


@dataclass(frozen=True, slots=True, kw_only=True)
class FactorisedHistogram(GaussianHistogram):
    """Every sequence of public keys is noised as a power of its running totals; values are read from under the noise.

    *Guarantee*, *Source*: `FractionalSum`; docs/proofs/running-totals.md. Independent noise on each entry of what is
    noised, so that rises and lower points are those of any cascade (Theorem 4 there).
    """

    sequences: Sequences

    def sigma(self, rho: float) -> float:
        """Noise of every entry at a level, in counts, rounded up."""
        return self._l2(1, GRID_BITS) * 2.0**-GRID_BITS / math.sqrt(2.0 * rho) * FLOAT_SLACK

    def query_epsilon(self, delta: float, sigma: float, tau: float | None, moved: Moved) -> float:  # noqa: ARG002
        """Smallest epsilon of the query at delta."""
        # rounding adds to what sums move by: less than this
        entries = self._l2(1, GRID_BITS) * 2.0**-GRID_BITS + math.sqrt(self.draws) * 2.0**-_LEAST_RADIUS_BITS
        mu = math.hypot(entries * math.sqrt(sigma**-2 + moved.per_group), math.sqrt(moved.beside)) * FLOAT_SLACK
        return gaussian.epsilon(delta, mu, 1.0)

    def sum_l2(self, statistic: Statistic) -> float:
        """Most that one unit moves what is noised of a statistic, in its units."""
        if statistic.kind in BESIDE_KINDS:
            return 1.0
        shift = statistic.lattice_exponent - statistic.noise_exponent
        return self._l2(statistic.radius_steps, shift) * 2.0**statistic.noise_exponent

    def spread(self, exact: Integers, shift: int) -> Integers:
        """What noise is added to."""
        return self.sequences.spread(exact, shift)

    def values(self, noisy: Floats) -> Floats:
        """Values from under the noise."""
        return self.sequences.values(noisy)

    def along(self, ordering: Ordering) -> Sequences:
        """Sequences of the power that is noised."""
        return Sequences(ordering, self.sequences.sixteenths)

    def value_norms(self) -> Floats:
        """Standard deviation of each value over that of the noise."""
        return self.sequences.value_norms()

    def _l2(self, radius_steps: int, shift: int) -> float:
        sequences = self.sequences.ordering.sequences
        return self.sequences.sums.sensitivity_steps(radius_steps, self.unit_groups, shift, sequences)


def _histogram(frame: Frame, _: Shape | None) -> Histogram:
    if frame.factorised is None:
        raise AssertionError("running totals are noised along a key")
    ordering, groups = frame.factorised.ordering, frame.unit_groups
    sequences = Sequences(ordering, frame.factorised.sixteenths)
    # every entry from the first moved one on, in every sequence that the unit is in
    touched = sequences.sums.touched(groups, ordering.sequences)
    return FactorisedHistogram(
        name="factorised_gaussian", unit_groups=groups, draws=touched, sum_draws=touched, sequences=sequences
    )


FACTORISED_GAUSSIAN = HistogramMechanism(
    name="factorised_gaussian",
    word="FACTORISED_GAUSSIAN",
    sentence="Gaussian noise on partial sums of public keys, from which totals and values are read",
    without=frozenset({"private keys", "bounding = L2", "neither running totals nor buckets", "composition = pure"}),
    noises_totals=True,
    histogram=_histogram,
)


def with_best_power(frame: Frame, total: RunningTotal | None) -> Frame:
    """The frame with the power of its totals that has the least noise; plain where that is none."""
    if frame.factorised is None or total is None:
        raise AssertionError("a power of running totals is noised where there are some")
    power = best_power(total.ordering.length, frame.unit_groups, total.span).sixteenths
    if not power:
        return replace(frame, mechanism="gaussian", factorised=None)
    return replace(frame, factorised=replace(frame.factorised, sixteenths=power))
