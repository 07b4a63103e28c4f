"""Public keys in sequences: noise that is small for running totals, and how values are read from under it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, TypeVar

import numpy as np
import numpy.typing as npt

from dpsql.accounting import gaussian
from dpsql.mechanisms.correlated_gaussian import GRID_BITS, CorrelatedGaussian
from dpsql.mechanisms.entropy import Entropy
from dpsql.mechanisms.running_totals import FractionalSum
from dpsql.query.frame import Statistic
from dpsql.query.keys import Ordering, Places
from dpsql.release.histogram import FLOAT_SLACK, Integers, NoisyHistogram, PublicHistogram

Floats = npt.NDArray[np.float64]
_Number = TypeVar("_Number", np.int64, np.float64)
# A sum's radius is at least this many lattice steps (`query.sum_lattice`): what its rounding adds to l2 is below.
_LEAST_RADIUS_BITS = 22


@dataclass(frozen=True, slots=True)
class Sequences:
    """Vectors over key ids as sequences along one key, and what is noised of each sequence.

    Attributes:
        ordering: which key, and how the ids are laid out.
        sixteenths: power of the running totals that is noised, 0 for the values themselves.

    """

    ordering: Ordering
    sixteenths: int

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


@dataclass(frozen=True, slots=True)
class FactorisedHistogram(PublicHistogram):
    """Every sequence of public keys is noised as a power of its running totals; values are read from under the noise.

    *Guarantee*, *Source*: `FractionalSum`; docs/proofs/running-totals.md. Independent noise on each entry of what is
    noised, so that rises and lower points are those of any cascade (Theorem 4 there).
    """

    sequences: Sequences
    unit_groups: int
    name: ClassVar[str] = "factorised_gaussian"
    is_gaussian: ClassVar[bool] = True
    correlation: ClassVar[float] = 0.0

    @property
    def draws(self) -> int:
        """Every entry from the first moved one on, in every sequence that the unit is in."""
        return self.sequences.sums.touched(self.unit_groups, self.sequences.ordering.sequences)

    @property
    def sum_draws(self) -> int:
        """The same as of the counts."""
        return self.draws

    def sigma(self, rho: float) -> float:
        """Noise of every entry at a level, in counts, rounded up."""
        return self._l2(1, GRID_BITS) * 2.0**-GRID_BITS / math.sqrt(2.0 * rho) * FLOAT_SLACK

    def check(self, sigma: float) -> None:
        """Refuse noise that cannot be drawn."""
        CorrelatedGaussian(sigma, 0.0)

    def query_rho(self, epsilon: float, delta: float, presence_share: float) -> float:  # noqa: ARG002 — all is Gaussian
        """Largest rho of a query, rounded down."""
        return 0.5 / gaussian.sigma(epsilon, delta, 1.0) ** 2 / FLOAT_SLACK**3

    def query_epsilon(self, delta: float, sigma: float, tau: float | None, aggregate_precision: float) -> float:  # noqa: ARG002
        """Smallest epsilon of the query at delta."""
        # rounding adds to what sums move by: less than this
        moved = self._l2(1, GRID_BITS) * 2.0**-GRID_BITS + math.sqrt(self.draws) * 2.0**-_LEAST_RADIUS_BITS
        mu = moved * math.sqrt(sigma**-2 + aggregate_precision) * FLOAT_SLACK
        return gaussian.epsilon(delta, mu, 1.0)

    def draw(self, exact: Integers, floor: int, sigma: float, entropy: Entropy) -> NoisyHistogram:
        """Add one draw to every entry of what is noised."""
        noise = CorrelatedGaussian(sigma, 0.0).draw(len(exact), entropy)
        return NoisyHistogram(self.spread(exact, GRID_BITS) + noise.values, floor << GRID_BITS)

    def sum_l2(self, statistic: Statistic) -> float:
        """Most that one unit moves what is noised of a sum, in its units."""
        shift = statistic.lattice_exponent - statistic.noise_exponent
        return self._l2(statistic.radius_steps, shift) * 2.0**statistic.noise_exponent

    def spread(self, exact: Integers, shift: int) -> Integers:
        """What noise is added to."""
        return self.sequences.spread(exact, shift)

    def values(self, noisy: Floats) -> Floats:
        """Values from under the noise."""
        return self.sequences.values(noisy)

    def value_norms(self) -> Floats:
        """Standard deviation of each value over that of the noise."""
        return self.sequences.value_norms()

    def _l2(self, radius_steps: int, shift: int) -> float:
        sequences = self.sequences.ordering.sequences
        return self.sequences.sums.sensitivity_steps(radius_steps, self.unit_groups, shift, sequences)
