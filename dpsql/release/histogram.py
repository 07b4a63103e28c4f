"""How the presence count of a frame is noised, hidden and accounted for: everything about it except its level.

Each kind answers the same questions, so that calibration, release and receipt ask none about mechanisms:

    IndependentHistogram      noise of its own for every key; public keys, or private ones behind a threshold (GSHM)
    ListedHistogram           noise with a common term over a public list of keys
    DiscreteListedHistogram   the same with discrete noise
    FactorisedHistogram       noise on a power of the running totals along a public list of keys
    WeightedHistogram         noise of its own for every key; units in many groups count with a weight (bounding = L2)
    SubtractedHistogram       a common term over what the subtraction of a floor has left (CSH on top-k or a sketch)
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Hashable
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
import numpy.typing as npt

from dpsql.accounting import gaussian, sparse_histogram
from dpsql.mechanisms.correlated_gaussian import (
    GRID_BITS,
    CorrelatedGaussian,
    effective_tau,
    threshold_to_compare,
)
from dpsql.mechanisms.entropy import Entropy
from dpsql.mechanisms.running_totals import FractionalSum
from dpsql.query.frame import Statistic

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
FLOAT_SLACK = 1.0 + 2.0**-40


@dataclass(frozen=True, slots=True)
class NoisyHistogram:
    """Noisy counts over key ids and the floor to be added to each of them, in steps of 2**-GRID_BITS of a count."""

    values: Integers
    floor: int


class Histogram(Hashable, Protocol):
    """A presence count's mechanism without its level.

    Implementations are frozen, and equal where they noise alike.
    """

    @property
    def name(self) -> str:
        """The mechanism's name in receipts."""

    @property
    def unit_groups(self) -> int:
        """Most counted groups that one unit touches."""

    @property
    def hides(self) -> bool:
        """Whether keys pass a threshold."""

    @property
    def draws(self) -> int:
        """Draws whose imprecision counts towards delta."""

    @property
    def is_gaussian(self) -> bool:
        """Whether counts have the Gaussian law, so that points made of others have it at their level."""

    @property
    def correlation(self) -> float:
        """Variance of the noise that all keys share over sigma^2."""

    @property
    def floor_correlation(self) -> float | None:
        """Variance of the floor's own noise over sigma^2; None where no noisy floor is shown."""

    @property
    def threshold_room(self) -> float:
        """How many times the threshold's delta a guarantee needs at least."""

    def sigma(self, rho: float) -> float:
        """Standard deviation of each key's own noise at a level, in units, rounded up."""

    def check(self, sigma: float) -> None:
        """Raise CalibrationError if such noise cannot be drawn."""

    def query_rho(self, epsilon: float, delta: float, presence_share: float) -> float:
        """Largest rho of a query whose presence count gets this share of it, rounded down."""

    def threshold(self, delta: float, sigma: float) -> float | None:
        """Smallest tau, as it is compared with, whose threshold part is at most delta; None where no key hides."""

    def query_threshold(self, epsilon: float, delta: float, sigma: float, aggregate_precision: float) -> float | None:
        """Smallest tau for which the query, sums included, is (epsilon, delta)-private; None where no key hides."""

    def threshold_delta(self, sigma: float, tau: float | None) -> float:
        """What the ledger adds beside rho, rounded up; 0 where no key hides."""

    def query_epsilon(self, delta: float, sigma: float, tau: float | None, aggregate_precision: float) -> float:
        """Smallest epsilon of the query, sums included, at delta; rounded up."""

    def draw(self, exact: Integers, floor: int, sigma: float, entropy: Entropy) -> NoisyHistogram:
        """Noise the counts, and what was subtracted from them."""

    @property
    def sum_draws(self) -> int:
        """Draws on a sum whose imprecision counts towards delta."""

    def sum_l2(self, statistic: Statistic) -> float:
        """Most that one unit moves what is noised of a sum, in its units."""

    def spread(self, exact: Integers, shift: int) -> Integers:
        """What noise is added to, in steps of 2**-shift of those of ``exact``."""

    def values(self, noisy: Floats) -> Floats:
        """Values of the keys from under the noise."""

    def value_norms(self) -> Floats:
        """Standard deviation of each value over that of the noise: one for each key, or one for all."""


def unit_l2(statistic: Statistic) -> float:
    """Most that one unit moves, in one group, what is noised of a statistic, in its units; rounded up.

    Of a histogram the running totals' square root is noised, R x for the cells' counts x.
    *Proof*: a unit adds counts d of at least 0 that are radius at most in sum (`query.histogram_sql`). R d is a sum of
    columns of R, and by the triangle inequality no longer than radius times the longest column, which is as long as
    where all rows are in the first cell. Rounding R x adds less than a step of the noise to each entry. ∎
    *Source*: Fichtenberger, Henzinger and Upadhyay 2023; docs/proofs/running-totals.md.
    """
    if statistic.cells == 1:
        return statistic.radius
    shift = statistic.lattice_exponent - statistic.noise_exponent
    steps = FractionalSum(statistic.cells).sensitivity_steps(statistic.radius_steps, 1, shift)
    return steps * 2.0**statistic.noise_exponent


class _HasUnitGroups(Protocol):
    @property
    def unit_groups(self) -> int: ...


class ValuesThemselves:
    """What holds for every mechanism that noises the values of the keys themselves."""

    is_gaussian: ClassVar[bool] = True

    @property
    def sum_draws(self: _HasUnitGroups) -> int:
        """Those on groups that the unit touches."""
        return self.unit_groups

    def sum_l2(self: _HasUnitGroups, statistic: Statistic) -> float:
        """One unit moves as many groups, each by at most `unit_l2`."""
        return unit_l2(statistic) * math.sqrt(self.unit_groups)

    def spread(self, exact: Integers, shift: int) -> Integers:
        """The values."""
        return exact << shift

    def values(self, noisy: Floats) -> Floats:
        """What was noised."""
        return noisy

    def value_norms(self) -> Floats:
        """1."""
        return np.ones(1)


class PublicHistogram:
    """What holds for every mechanism under which no key hides."""

    hides: ClassVar[bool] = False
    floor_correlation: ClassVar[None] = None
    threshold_room: ClassVar[float] = 1.0

    def threshold(self, delta: float, sigma: float) -> None:  # noqa: ARG002 — the protocol's
        """None: every key is shown."""
        return

    def query_threshold(self, epsilon: float, delta: float, sigma: float, aggregate_precision: float) -> None:  # noqa: ARG002
        """None: every key is shown."""
        return

    def threshold_delta(self, sigma: float, tau: float | None) -> float:  # noqa: ARG002
        """Nothing is lost by showing a key."""
        return 0.0


def count_sigma(histogram: Histogram, sigma: float) -> float:
    """Standard deviation of a count, floor added: own noise, and what the floor leaves of the shared."""
    shared = histogram.correlation if histogram.floor_correlation is None else histogram.floor_correlation
    return sigma * math.sqrt(1.0 + shared)


@dataclass(frozen=True, slots=True)
class OwnNoise(ValuesThemselves, ABC):
    """What holds for every mechanism in which each key has Gaussian noise of its own, with a threshold or without.

    Without one it is the Gaussian mechanism at an l2 sensitivity of sqrt(unit_groups). What a threshold adds to that
    is for each mechanism to say.
    """

    unit_groups: int
    hides: bool
    threshold_room: ClassVar[float] = FLOAT_SLACK
    correlation: ClassVar[float] = 0.0
    floor_correlation: ClassVar[None] = None

    @property
    def name(self) -> str:
        """``gshm`` with a threshold, ``gaussian`` without."""
        return "gshm" if self.hides else "gaussian"

    def sigma(self, rho: float) -> float:
        """sqrt(unit_groups / (2 rho)), rounded up."""
        return math.sqrt(self.unit_groups / (2.0 * rho)) * FLOAT_SLACK

    def check(self, sigma: float) -> None:
        """Refuse noise that cannot be drawn."""
        CorrelatedGaussian(sigma, 0.0)

    def query_rho(self, epsilon: float, delta: float, presence_share: float) -> float:
        """Largest rho of a query, rounded down."""
        if not self.hides:
            return 0.5 / gaussian.sigma(epsilon, delta, 1.0) ** 2 / FLOAT_SLACK**3
        return self._hiding_rho(epsilon, delta, presence_share) / FLOAT_SLACK

    def threshold(self, delta: float, sigma: float) -> float | None:
        """Smallest tau whose threshold part is at most delta."""
        return threshold_to_compare(self._tau(delta, sigma), 0.0) if self.hides else None

    def query_threshold(self, epsilon: float, delta: float, sigma: float, aggregate_precision: float) -> float | None:
        """Smallest tau for which the query is (epsilon, delta)-private."""
        if not self.hides:
            return None
        return threshold_to_compare(self._query_tau(epsilon, delta, sigma, aggregate_precision), 0.0)

    def threshold_delta(self, sigma: float, tau: float | None) -> float:
        """What the ledger adds beside rho."""
        return 0.0 if tau is None else self._tau_delta(sigma, effective_tau(tau, 0.0))

    def query_epsilon(self, delta: float, sigma: float, tau: float | None, aggregate_precision: float) -> float:
        """Smallest epsilon of the query at delta."""
        if tau is None:
            mu = math.sqrt(self.unit_groups * (sigma**-2 + aggregate_precision)) * FLOAT_SLACK
            return gaussian.epsilon(delta, mu, 1.0)
        return self._hiding_epsilon(delta, sigma, effective_tau(tau, 0.0), aggregate_precision)

    @abstractmethod
    def _hiding_rho(self, epsilon: float, delta: float, presence_share: float) -> float:
        """Largest rho of a query with a threshold."""

    @abstractmethod
    def _tau(self, delta: float, sigma: float) -> float:
        """Smallest tau whose threshold part is at most delta, as noise has to reach it."""

    @abstractmethod
    def _query_tau(self, epsilon: float, delta: float, sigma: float, aggregate_precision: float) -> float:
        """Smallest tau for which the query is (epsilon, delta)-private, as noise has to reach it."""

    @abstractmethod
    def _tau_delta(self, sigma: float, tau: float) -> float:
        """Threshold part of a tau that noise has to reach."""

    @abstractmethod
    def _hiding_epsilon(self, delta: float, sigma: float, tau: float, aggregate_precision: float) -> float:
        """Smallest epsilon of the query at delta, with a tau that noise has to reach."""


@dataclass(frozen=True, slots=True)
class IndependentHistogram(OwnNoise):
    """Every key has noise of its own.

    *Guarantee*, *Source*: `sparse_histogram.gshm_delta` and `threshold_delta` with a threshold, the Gaussian mechanism
    without; the rounding is post-processing (docs/proofs/gshm.md).
    """

    @property
    def draws(self) -> int:
        """Only the draws on groups that the unit touches."""
        return self.unit_groups

    def draw(self, exact: Integers, floor: int, sigma: float, entropy: Entropy) -> NoisyHistogram:
        """Add one draw to every count; the floor is a constant of the policy."""
        noise = CorrelatedGaussian(sigma, 0.0).draw(len(exact), entropy)
        return NoisyHistogram((exact << GRID_BITS) + noise.values, floor << GRID_BITS)

    def _hiding_rho(self, epsilon: float, delta: float, presence_share: float) -> float:
        groups = self.unit_groups
        return sparse_histogram.best_gshm(epsilon, delta, max_groups=groups, presence_share=presence_share).rho

    def _tau(self, delta: float, sigma: float) -> float:
        return sparse_histogram.threshold(delta, max_groups=self.unit_groups, sigma=sigma)

    def _query_tau(self, epsilon: float, delta: float, sigma: float, aggregate_precision: float) -> float:
        return sparse_histogram.gshm_threshold(
            epsilon, delta, max_groups=self.unit_groups, sigma=sigma, aggregate_precision=aggregate_precision
        )

    def _tau_delta(self, sigma: float, tau: float) -> float:
        return sparse_histogram.threshold_delta(max_groups=self.unit_groups, sigma=sigma, tau=tau)

    def _hiding_epsilon(self, delta: float, sigma: float, tau: float, aggregate_precision: float) -> float:
        return sparse_histogram.gshm_epsilon(
            delta, max_groups=self.unit_groups, sigma=sigma, tau=tau, aggregate_precision=aggregate_precision
        )
