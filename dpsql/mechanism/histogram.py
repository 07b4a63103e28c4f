"""How the presence count of a frame is noised, hidden and accounted for: everything about it except its level.

Each mechanism stands in a file of this folder: its words, what it does not go with, and the `Histogram` that it makes
of a frame (`registry.py` lists them). All histograms answer the same questions, so that calibration, release and
receipt ask none about mechanisms.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import ClassVar, TypeVar

import numpy as np
import numpy.typing as npt

from dpsql.mechanism.measure import (
    FLOAT_SLACK,
    OWN_NOISE,
    Floats,
    Grid,
    Integers,
    Level,
    Measure,
    NoisyHistogram,
    Shape,
)
from dpsql.model.environment import Mechanism
from dpsql.model.frame import PRESENCE, Factorised, Frame, Norm, Ordering, Places, Statistic
from dpsql.model.statistic_kinds import BESIDE_KINDS
from dpsql.noise.correlated_gaussian import GRID_BITS
from dpsql.noise.entropy import NoiseSource
from dpsql.noise.running_totals import FractionalSum

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


MOST_AUTO_DRAWS = 16
"""Draws in histograms, by which AUTO chooses, that one unit touches in one query at most."""
MOST_DRAWN = 128
"""Draws that a point may be an average of."""


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

    Its `measure` has the law of the noise of all statistics. What is written out here holds for noise on the values of
    the keys themselves, all of which are shown. A mechanism says what is otherwise.

    Attributes:
        name: of the mechanism in receipts.
        unit_groups: most counted groups that one unit touches.
        draws: draws on the counts whose imprecision counts towards delta.
        sum_draws: the same of a sum.
        hides: whether keys pass a threshold.
        shape: of the noise that keys share, and of the floor's.
        measure: the law of the noise, and what its levels cost.
        threshold_room: how many times the threshold's delta a guarantee needs at least.
        threshold_share: part of the delta of a query by rho that its threshold may cost; the rest is left for sums.

    """

    name: str
    unit_groups: int
    draws: int
    sum_draws: int
    hides: bool = False
    shape: Shape = OWN_NOISE
    measure: ClassVar[Measure]
    threshold_room: ClassVar[float] = FLOAT_SLACK
    threshold_share: ClassVar[float] = 1.0

    def sigma(self, rho: float) -> float:
        """Standard deviation of each key's own noise at a level, in units, rounded up."""
        return self.sum_sigma(PRESENCE, rho)

    @abstractmethod
    def sum_sigma(self, statistic: Statistic, rho: float) -> float:
        """Return the standard deviation of each key's noise on a statistic at a level, in its units, rounded up."""

    def query_rho(self, epsilon: float, delta: float, shares: Shares) -> float:  # noqa: ARG002 — of a joint analysis
        """Largest rho of a query of which its parts get these shares, rounded down."""
        return self.measure.rho(epsilon, delta)

    @abstractmethod
    def guarantee(
        self, levels: tuple[Level, ...], tau: float | None, delta: float, auto_nano: int
    ) -> tuple[float, float]:
        """Return epsilon and delta of one release of these levels together, both rounded up.

        Args:
            levels: the presence count first.
            tau: threshold of new keys; None where all are shown.
            delta: what may be spent on noise and threshold.
            auto_nano: levels in nano-rho of what AUTO chose by, and of statistics left out because of it.

        """

    def threshold(self, delta: float, sigma: float) -> float | None:  # noqa: ARG002 — of mechanisms that hide keys
        """Smallest tau, as it is compared with, whose threshold part is at most delta; None where no key hides."""
        return None

    def query_threshold(self, epsilon: float, delta: float, sigma: float, moved: Moved) -> float | None:  # noqa: ARG002
        """Smallest tau for which the query, with all of it, is (epsilon, delta)-private; None where no key hides."""
        return None

    def threshold_delta(self, sigma: float, tau: float | None) -> float:  # noqa: ARG002
        """Return the delta that the ledger adds beside the level, rounded up; 0 where no key hides."""
        return 0.0

    def draw(self, exact: Integers, floor: int, sigma: float, source: NoiseSource) -> NoisyHistogram:
        """Add noise to what is noised of the counts, and to the floor; without noise it is a constant of the policy."""
        noise = self.measure.draw(Grid(-GRID_BITS, 0, self.shape), sigma, len(exact), source)
        return NoisyHistogram(self.spread(exact, GRID_BITS) + noise.values, (floor << GRID_BITS) + noise.floor)

    def draws_of(self, statistics: Iterable[Statistic]) -> int:
        """Draws whose imprecision counts: of the presence count, of every sum, and of a unit's place in coverage."""
        return sum(
            self.draws if one == PRESENCE else 1 if one.kind in BESIDE_KINDS else self.sum_draws * one.cells
            for one in statistics
        )

    def with_imprecision(self, levels: tuple[Level, ...], epsilon: float, delta: float, *, with_auto: bool) -> float:
        """Delta and what the draws' precision adds to it, rounded up.

        Each point may be an average of as many draws as there are rises.
        """
        draws = self.draws_of(level.statistic for level in levels) + MOST_AUTO_DRAWS * with_auto
        return min(1.0, (delta + self.measure.imprecision_at(MOST_DRAWN * draws, epsilon)) * (1.0 + 2.0**-51))

    def moved(self, levels: tuple[Level, ...]) -> Moved:
        """How far one unit moves the statistics beside the presence count: in each changed group, and in any case."""
        sums = (level for level in levels[1:] if level.statistic.kind not in BESIDE_KINDS)
        coverage = (level for level in levels[1:] if level.statistic.kind in BESIDE_KINDS)
        per_group = math.fsum((unit_l2(level.statistic, self.unit_groups) / level.sigma) ** 2 for level in sums)
        return Moved(per_group, math.fsum(level.sigma**-2 for level in coverage))

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


def count_sigma(counts: Histogram, sigma: float) -> float:
    """Standard deviation of a count, floor added: own noise, and what the floor leaves of the shared."""
    shared = counts.shape.correlation if counts.shape.floor_correlation is None else counts.shape.floor_correlation
    return sigma * math.sqrt(1.0 + shared)
