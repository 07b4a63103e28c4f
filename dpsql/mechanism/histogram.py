"""How the presence count of a frame is noised, hidden and accounted for: everything about it except its level.

Each mechanism stands in a file of this folder: its words, what it does not go with, and the `Histogram` that it makes
of a frame (`registry.py` lists them). All histograms answer the same questions, so that calibration, release and
receipt ask none about mechanisms.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, TypeVar

import numpy as np
import numpy.typing as npt

from dpsql.accounting import gaussian
from dpsql.accounting.best_point import best_point
from dpsql.accounting.profile import (
    Profile,
    smallest_epsilon,
    smallest_query_threshold,
    smallest_threshold,
)
from dpsql.model.environment import Mechanism
from dpsql.model.frame import Factorised, Frame, Norm, Ordering, Places, Statistic
from dpsql.model.statistic_kinds import BESIDE_KINDS
from dpsql.noise.correlated_gaussian import (
    GRID_BITS,
    CorrelatedGaussian,
    CorrelatedNoise,
    effective_tau,
    threshold_to_compare,
)
from dpsql.noise.entropy import Distribution, NoiseSource
from dpsql.noise.running_totals import FractionalSum

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
_Number = TypeVar("_Number", np.int64, np.float64)


@dataclass(frozen=True, slots=True)
class Sequences(Factorised):
    """Vectors over key ids as sequences along one key, and what is noised of each: a power of 0 is the values."""

    @property
    def sums(self) -> FractionalSum:
        """What is noised of one sequence."""
        return FractionalSum(self.ordering.length, self.sixteenths)

    def spread(self, exact: Integers, shift: int) -> Integers:
        """What noise is added to, in steps of 2**-shift; over key ids, like all that follow."""
        return self._flat(self.sums.transform(self._rows(exact), shift))

    def values(self, noisy: Floats) -> Floats:
        """Values from under the noise."""
        return self._flat(self.sums.values(self._rows(noisy)))

    def totals(self, values: Floats, span: int | None) -> Floats:
        """Running totals of values, which are plain ones here."""
        plain = FractionalSum(self.ordering.length, 0)
        return self._flat(plain.totals(self._rows(values), span))

    def value_norms(self) -> Floats:
        """Standard deviation of each value for independent noise of 1."""
        return self._repeated(self.sums.value_norms())

    def total_norms(self, span: int | None) -> Floats:
        """The same of each running total."""
        return self._repeated(self.sums.total_norms(span))

    def group_sums(self, values: Floats, places: Places) -> Floats:
        """Sums of values over groups of a sequence's keys: group by group, for one sequence after the other."""
        return np.asarray(self._rows(values) @ self._members(places).T, dtype=np.float64).ravel()

    def group_norms(self, places: Places) -> Floats:
        """Standard deviation of each of them for independent noise of 1."""
        norms = self.sums.subset_norms(self._members(places))
        return np.tile(norms, self.ordering.sequences)

    def first_ids(self, places: Places) -> Integers:
        """Id of the first key of each group, in the order of `group_sums`; of an empty one, of its sequence."""
        ids = self._rows(np.arange(np.prod(self.ordering.lengths), dtype=np.int64))
        return ids[:, np.array([group[0] if group else 0 for group in places], dtype=np.intp)].ravel()

    def _members(self, places: Places) -> Floats:
        members = np.zeros((len(places), self.ordering.length))
        for row, group in zip(members, places, strict=True):
            row[list(group)] = 1.0
        return members

    def _repeated(self, norms: Floats) -> Floats:
        return self._flat(np.tile(norms, (self.ordering.sequences, 1)))

    def _rows(self, vector: npt.NDArray[_Number]) -> npt.NDArray[_Number]:
        ordering = self.ordering
        rows = np.moveaxis(vector.reshape(ordering.lengths), ordering.axis, -1).reshape(-1, ordering.length)
        return rows[:, self._order()]

    def _order(self) -> npt.NDArray[np.intp]:
        """Places in the list, in the order of a sequence."""
        ordering = self.ordering
        values = np.arange(ordering.length - ordering.with_null)
        directed = values[::-1] if ordering.descending else values
        return np.append(directed, ordering.length - 1) if ordering.with_null else directed

    def _flat(self, rows: npt.NDArray[_Number]) -> npt.NDArray[_Number]:
        ordering = self.ordering
        ordered = np.empty_like(rows)
        ordered[:, self._order()] = rows
        others = [length for axis, length in enumerate(ordering.lengths) if axis != ordering.axis]
        return np.moveaxis(ordered.reshape(*others, ordering.length), -1, ordering.axis).ravel()


FLOAT_SLACK = 1.0 + 2.0**-40


@dataclass(frozen=True, slots=True)
class Shape:
    """Variances over sigma^2: of the noise that all keys share, and of the floor's own (None without a floor)."""

    correlation: float
    floor_correlation: float | None


@dataclass(frozen=True, slots=True)
class NoisyHistogram:
    """Noisy counts over key ids and the floor to be added to each of them, in steps of 2**-GRID_BITS of a count."""

    values: Integers
    floor: int


@dataclass(frozen=True, slots=True)
class Shares:
    """Parts of a query's rho: of its presence count, and of what is released whichever keys are shown."""

    presence: float
    beside: float = 0.0


@dataclass(frozen=True, slots=True)
class Moved:
    """How far one unit moves what a query releases beside its presence count, in units of its noise.

    Attributes:
        per_group: sum over the aggregates of (sensitivity_l2 in one group / noise)^2.
        beside: the same of all that is released whichever keys are shown.

    """

    per_group: float = 0.0
    beside: float = 0.0


NOTHING_MOVED = Moved()
"""Of a query of the presence count alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Histogram(ABC):
    """A presence count's mechanism without its level; equal to another one that noises alike.

    What stands here holds for Gaussian noise on the values of the keys themselves, all of which are shown: with a
    common term, or without. A mechanism says what is otherwise.

    Attributes:
        name: of the mechanism in receipts.
        unit_groups: most counted groups that one unit touches.
        draws: draws on the counts whose imprecision counts towards delta.
        sum_draws: the same of a sum.
        hides: whether keys pass a threshold.
        correlation: variance of the noise that all keys share over sigma^2.
        floor_correlation: variance of the floor's own noise over sigma^2; None where no noisy floor is shown.
        is_gaussian: whether counts have the Gaussian law, so that points made of others have it at their level.
        threshold_room: how many times the threshold's delta a guarantee needs at least.
        threshold_share: part of the delta of a query by rho that its threshold may cost; the rest is left for sums.

    """

    name: str
    unit_groups: int
    draws: int
    sum_draws: int
    hides: bool = False
    correlation: float = 0.0
    floor_correlation: float | None = None
    is_gaussian: ClassVar[bool] = True
    threshold_room: ClassVar[float] = FLOAT_SLACK
    threshold_share: ClassVar[float] = 1.0

    @abstractmethod
    def sigma(self, rho: float) -> float:
        """Standard deviation of each key's own noise at a level, in units, rounded up."""

    @abstractmethod
    def query_rho(self, epsilon: float, delta: float, shares: Shares) -> float:
        """Largest rho of a query of which its parts get these shares, rounded down."""

    @abstractmethod
    def query_epsilon(self, delta: float, sigma: float, tau: float | None, moved: Moved) -> float:
        """Smallest epsilon of the query, sums and what is beside included, at delta; rounded up."""

    def threshold(self, delta: float, sigma: float) -> float | None:  # noqa: ARG002 — of mechanisms that hide keys
        """Smallest tau, as it is compared with, whose threshold part is at most delta; None where no key hides."""
        return None

    def query_threshold(self, epsilon: float, delta: float, sigma: float, moved: Moved) -> float | None:  # noqa: ARG002
        """Smallest tau for which the query, with all of it, is (epsilon, delta)-private; None where no key hides."""
        return None

    def threshold_delta(self, sigma: float, tau: float | None) -> float:  # noqa: ARG002
        """What the ledger adds beside rho, rounded up; 0 where no key hides."""
        return 0.0

    def law(self, sigma: float) -> Distribution[CorrelatedNoise]:
        """The law of the noise of all counts.

        Raises:
            CalibrationError: such noise cannot be drawn.

        """
        return CorrelatedGaussian(sigma, self.correlation, self.floor_correlation)

    def draw(self, exact: Integers, floor: int, sigma: float, source: NoiseSource) -> NoisyHistogram:
        """Add noise to what is noised of the counts, and to the floor; without noise it is a constant of the policy."""
        noise = source.draw(self.law(sigma), len(exact))
        return NoisyHistogram(self.spread(exact, GRID_BITS) + noise.values, (floor << GRID_BITS) + noise.floor)

    def sum_l2(self, statistic: Statistic) -> float:
        """Most that one unit moves what is noised of a statistic, in its units, in all groups together."""
        if statistic.kind in BESIDE_KINDS:
            return 1.0
        if isinstance(statistic.limit, Norm):
            return statistic.radius
        return unit_l2(statistic) * math.sqrt(self.unit_groups)

    def spread(self, exact: Integers, shift: int) -> Integers:
        """What noise is added to, in steps of 2**-shift of those of ``exact``."""
        return exact << shift

    def values(self, noisy: Floats) -> Floats:
        """Values of the keys from under the noise."""
        return noisy

    def along(self, ordering: Ordering) -> Sequences:
        """Public keys as sequences along one of them, with what is noised of each."""
        return Sequences(ordering, 0)

    def value_norms(self) -> Floats:
        """Standard deviation of each value over that of the noise: one for each key, or one for all."""
        return np.ones(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class HistogramMechanism(Mechanism):
    """A mechanism with what it makes of a frame.

    Attributes:
        histogram: of a frame, and of the shape of the points that it has already, which their cascade keeps.

    """

    histogram: Callable[[Frame, Shape | None], Histogram]


def unit_l2(statistic: Statistic, groups: int = 1) -> float:
    """Most that one unit moves, in one group, what is noised of a statistic, in its units; rounded up.

    Of a norm, which may lie in one group, the root of its mean square over so many.

    Of a histogram the running totals' square root is noised, R x for the cells' counts x.
    *Proof*: a unit adds counts d of at least 0 that are radius at most in sum (`bound.value_counts`). R d is a sum of
    columns of R, and by the triangle inequality no longer than radius times the longest column, which is as long as
    where all rows are in the first cell. Rounding R x adds less than a step of the noise to each entry. ∎
    *Source*: Fichtenberger, Henzinger and Upadhyay 2023; docs/proofs/running-totals.md.
    """
    if statistic.cells == 1:
        return statistic.radius / math.sqrt(groups) if isinstance(statistic.limit, Norm) else statistic.radius
    shift = statistic.lattice_exponent - statistic.noise_exponent
    steps = FractionalSum(statistic.cells).sensitivity_steps(statistic.radius_steps, 1, shift)
    return steps * 2.0**statistic.noise_exponent


def count_sigma(histogram: Histogram, sigma: float) -> float:
    """Standard deviation of a count, floor added: own noise, and what the floor leaves of the shared."""
    shared = histogram.correlation if histogram.floor_correlation is None else histogram.floor_correlation
    return sigma * math.sqrt(1.0 + shared)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfiledHistogram(Histogram):
    """What holds for every mechanism whose cost is read off one `Profile`, with a threshold or without.

    Without a threshold every key is shown, and what is left is the Gaussian mechanism at the profile's distance.
    """

    @abstractmethod
    def profile(self, sigma: float, moved: Moved = NOTHING_MOVED) -> Profile:
        """The profile of noise as it is drawn."""

    def query_rho(self, epsilon: float, delta: float, shares: Shares) -> float:
        """Largest rho of a query, rounded down: where all of it moves together by what (epsilon, delta) allows."""
        presence, beside = shares.presence, shares.beside
        if self.hides:
            return best_point(self.profile(1.0), epsilon, delta, presence, beside).rho / FLOAT_SLACK**3
        sums = 2.0 * max(0.0, 1.0 - presence - beside) / self.unit_groups
        at_one = self.profile(self.sigma(presence), Moved(sums, 2.0 * beside)).rho
        return 0.5 / gaussian.sigma(epsilon, delta, 1.0) ** 2 / at_one / FLOAT_SLACK**3

    def threshold(self, delta: float, sigma: float) -> float | None:
        """Smallest tau whose threshold part is at most delta."""
        if not self.hides:
            return None
        return threshold_to_compare(smallest_threshold(self.profile(sigma), delta), self.correlation)

    def query_threshold(self, epsilon: float, delta: float, sigma: float, moved: Moved) -> float | None:
        """Smallest tau for which the query is (epsilon, delta)-private."""
        if not self.hides:
            return None
        profile = self.profile(sigma, moved)
        return threshold_to_compare(smallest_query_threshold(profile, epsilon, delta), self.correlation)

    def threshold_delta(self, sigma: float, tau: float | None) -> float:
        """What the ledger adds beside rho."""
        return 0.0 if tau is None else self.profile(sigma).threshold_delta(effective_tau(tau, self.correlation))

    def query_epsilon(self, delta: float, sigma: float, tau: float | None, moved: Moved) -> float:
        """Smallest epsilon of the query at delta."""
        profile = self.profile(sigma, moved)
        if tau is None:
            return gaussian.epsilon(delta, math.sqrt(2.0 * profile.rho) * FLOAT_SLACK, 1.0)
        return smallest_epsilon(profile, delta, effective_tau(tau, self.correlation))
