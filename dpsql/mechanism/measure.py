"""Everything that hangs on the law of the noise: draws, other levels, intervals, tails, and the cost of an amount.

A frame has one law for all of its statistics, and its `Histogram` names the `Measure` of that law. Calibration,
cascade, release and receipt ask the measure, and none of them knows a law. The other laws than the Gaussian one need
little: the size of one draw is enough for intervals of sums and averages. A measure of its own can have narrower ones.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from dpsql.accounting.composition import CONVERSIONS, Composition
from dpsql.model.frame import Statistic
from dpsql.noise.entropy import NoiseSource

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

FLOAT_SLACK = 1.0 + 2.0**-40
MISS = 0.05
"""Probability with which an interval of an answer misses."""


def miss_of(confidence: float) -> float:
    """Return the probability with which an interval of a confidence misses.

    >>> miss_of(0.95), miss_of(0.99)
    (0.05, 0.01)
    """
    return round(1.0 - confidence, 12)


_FARTHEST = 60.0
"""Standard deviations beyond which no noise is looked for."""
_PLACES = np.linspace(0.0, _FARTHEST, 24_001)
_HALVINGS = 60


@dataclass(frozen=True, slots=True)
class Level:
    """One statistic's share of a query.

    Attributes:
        rho_nano: level of the ledger's amounts, times 1e9; what its noise is drawn for and what it costs.
        sigma: standard deviation of the noise that each key has of its own, in the units of the aggregate, rounded up.
        noise_delta: what finite precision of the draws adds to delta, rounded up.

    """

    statistic: Statistic
    rho_nano: int
    sigma: float
    noise_delta: float


@dataclass(frozen=True, slots=True)
class Shape:
    """Variances over sigma^2: of the noise that all keys share, and of the floor's own (None without a floor)."""

    correlation: float
    floor_correlation: float | None


OWN_NOISE = Shape(0.0, None)
"""Of noise that is independent on each key, without a floor."""


@dataclass(frozen=True, slots=True)
class Grid:
    """The numbers that a statistic's noise is drawn on.

    Attributes:
        exponent: noise is stored in steps of 2**exponent of a unit.
        lattice_exponent: values are in steps of 2**lattice_exponent of a unit, which are no smaller.
        shape: of the noise that keys share; None of every statistic but a presence count.

    """

    exponent: int
    lattice_exponent: int
    shape: Shape | None = None

    @property
    def shift(self) -> int:
        """Places between a step of the noise and one of the values."""
        return self.lattice_exponent - self.exponent


class Term(NamedTuple):
    """A draw as it is in a sum, with its weight.

    Attributes:
        sigma: its standard deviation.
        step: its noise is a multiple of this; 0 if it is of no number.

    """

    sigma: Floats | float
    step: Floats | float = 0.0


class RatioTerm(NamedTuple):
    """A draw as it is in both sums of a quotient.

    Attributes:
        above, below: its standard deviation in the top and, with its sign, in the bottom.
        step: its noise is a multiple of so many standard deviations; 0 if it is of no number.

    """

    above: Floats | float
    below: Floats | float
    step: float = 0.0

    def less(self, quotient: Floats | float) -> Term:
        """Return the draw as it is in the top less a quotient times the bottom."""
        sigma = np.abs(self.above - quotient * self.below)
        return Term(sigma, self.step * sigma)


@dataclass(frozen=True, slots=True)
class NoisyHistogram:
    """Noisy counts over key ids and the floor to be added to each of them, in steps of 2**-GRID_BITS of a count."""

    values: Integers
    floor: int


@dataclass(frozen=True, slots=True)
class Placed:
    """A point at its level.

    Attributes:
        rho_nano: its level.
        sigma: standard deviation of each key's own noise at that level, in units.
        noisy: its values and floor; a floor of 0 where there is none.

    """

    rho_nano: int
    sigma: float
    noisy: NoisyHistogram


class Measure(ABC):
    """The law of the noise of all statistics of a frame, and what its levels cost.

    A noise of the law has one parameter, its standard deviation sigma. All noise is symmetric, and draws are
    independent of each other.

    Attributes:
        composition: how its levels add up; a key of `accounting.composition.CONVERSIONS`. The budget of a unit pays for
            noise that adds up as the unit's does, and in a ``zcdp`` unit for Gaussian noise, too.
        shows_origin: whether a count that was made of a higher level tells of that level, by its lattice.
        amount: word for a level in messages.
        rises: whether a higher level is made of a lower one and a fresh release at the difference of both. If not, it
            is a release of its own at its full price, and a lower level is made of one release.
        in_steps: whether noise is a multiple of the step of a statistic's values, so that whole values stay whole.

    """

    composition: Composition
    shows_origin: bool
    amount: ClassVar[str] = "rho"
    rises: ClassVar[bool] = True
    in_steps: ClassVar[bool] = False

    def epsilon(self, delta: float, rho: float) -> float:
        """Return the smallest epsilon of releases whose levels add up to rho; rounded up."""
        return CONVERSIONS[self.composition].epsilon(delta, rho * FLOAT_SLACK)

    def converted_delta(self, delta: float) -> float:
        """Return the part of a delta that the conversion of levels to epsilon takes; thresholds cost theirs beside."""
        return delta

    def joint_epsilon(self, delta: float, rho: float) -> float:
        """Return the smallest epsilon of frames that are released together at levels that add up to rho; rounded up."""
        return self.epsilon(delta, rho)

    def rho(self, epsilon: float, delta: float) -> float:
        """Return the largest rho to which levels of releases may add up for (epsilon, delta); rounded down."""
        return CONVERSIONS[self.composition].rho(epsilon, delta) / FLOAT_SLACK

    def budget_rho(self, epsilon: float, delta: float) -> float:
        """Return the rho that an exact budget has for (epsilon, delta); rounded down."""
        return self.rho(epsilon, delta)

    def imprecision(self, draws: int, rho: float) -> float:  # noqa: ARG002 — of laws that are drawn with an error
        """Return what inexact draws of one release at rho add to the delta of the ledger; 0 where all are exact."""
        return 0.0

    def imprecision_at(self, draws: int, epsilon: float) -> float:  # noqa: ARG002
        """Return what inexact draws add to the delta of an (epsilon, delta) guarantee; 0 where all are exact."""
        return 0.0

    @abstractmethod
    def require(self, grid: Grid, sigma: float) -> None:
        """Find out that noise can be drawn.

        Raises:
            CalibrationError: it cannot.

        """

    @abstractmethod
    def draw(self, grid: Grid, sigma: float, count: int, source: NoiseSource) -> NoisyHistogram:
        """Return noise alone, for so many keys; the floor's is 0 where the grid's shape has none."""

    def risen(self, held: Placed, fresh: Placed) -> NoisyHistogram:
        """Return the point at the sum of two levels, of the point at one and a fresh release at the other.

        Whoever holds the point and the old one holds the fresh release, so all rises together cost what the highest
        level costs.

        *Guarantee*: post-processing of two releases, the second of which was charged for its own level.
        *Source*: Andersson, Retschmeier, Nelson and Pagh, Lemmas 3.1 to 3.3; docs/proofs/cascade.md.
        """
        raise AssertionError(f"a law that rises says how {held} and {fresh} make one point")

    @abstractmethod
    def lowered(
        self, grid: Grid, high: Placed, low: Placed | None, rho_nano: int, sigma: float, source: NoiseSource
    ) -> NoisyHistogram:
        """Return the point at a level below ``high``, and above ``low`` where there is one.

        *Guarantee*: post-processing of points that were paid for. *Shapes*: both over the same keys.

        Args:
            grid: of the values.
            high: the point above.
            low: the point below; None where there is none.
            rho_nano: the level.
            sigma: standard deviation of each key's own noise at that level.
            source: of the noise.

        """

    @abstractmethod
    def quantile(self, miss: float) -> float:
        """Return the standard deviations that one draw exceeds with a probability of at most ``miss``.

        It is one end, and ``miss`` is below 1/2. Sums of many draws are compared with it as if they were one draw. So
        it has to hold for a weighted sum of draws, too, as it does for laws with tails like those of Laplace noise.
        """

    def half_width(
        self, noises: Sequence[Term], roundings: int = 0, miss: float = MISS, wider: Floats | float = 1.0
    ) -> Floats:
        """Return a number that the size of a sum of draws exceeds with a probability of at most ``miss``.

        *Guarantee*: each of n draws exceeds its quantile with at most 1/n of the probability (Bonferroni 1936).

        Args:
            noises: the draws as they are in the sum.
            roundings: roundings to whole numbers in the sum, by at most 1/2 each.
            miss: a probability.
            wider: ratio of two quantiles of one draw; what the larger one misses takes the place of ``miss``.

        """
        largest = self.quantile(miss / 2.0 / len(noises))
        return np.asarray((largest * sum(one.sigma for one in noises) + roundings / 2.0) * wider, dtype=np.float64)

    def is_beyond(self, noises: Sequence[Term], size: Floats, wider: Floats | float = 1.0) -> npt.NDArray[np.bool_]:
        """Tell if a size is more than the half width of a sum of draws; arguments as those of `half_width`."""
        return np.asarray(size > self.half_width(noises, wider=wider))

    def ratio_interval(
        self,
        ratio: tuple[Floats, Floats],
        noises: Sequence[RatioTerm],
        bounds: tuple[float, float],
        wider: Floats | float = 1.0,
    ) -> tuple[Floats, Floats]:
        """Return the ends of an interval of a quotient, with the confidence of an answer's intervals.

        *Guarantee*: the quotient q is left out only if top - q bottom, which has noise alone, is larger than its half
        width. *Source*: Fieller 1954, for any law. With the half widths of `half_width` the numbers that are not left
        out are an interval where the noise of the bottom is less than the bottom; elsewhere it is all of the bounds.

        Args:
            ratio: noisy top and bottom.
            noises: each draw as it is in both.
            bounds: least and largest quotient.
            wider: factor of the half widths.

        Shapes: (groups,) of each array and of both results.
        """
        top, bottom = ratio
        of_bottom = [Term(np.abs(one.below), one.step * np.abs(one.below)) for one in noises]
        clear = (bottom > 0.0) & self.is_beyond(of_bottom, bottom, wider)
        safe = np.where(clear, bottom, 1.0)

        def is_left_out(quotient: Floats) -> npt.NDArray[np.bool_]:
            return self.is_beyond([one.less(quotient) for one in noises], np.abs(top - quotient * safe), wider)

        ends = []
        for bound in bounds:
            inside, outside = np.clip(top / safe, *bounds), np.full(len(top), bound)
            for _ in range(_HALVINGS):
                middle = (inside + outside) / 2.0
                out = is_left_out(middle)
                inside, outside = np.where(out, inside, middle), np.where(out, middle, outside)
            ends.append(np.where(clear, outside, bound))
        return ends[0], ends[1]

    @abstractmethod
    def tail(self, size: npt.ArrayLike) -> Floats:
        """Return the probability that noise exceeds a size, in standard deviations, which may be below 0."""

    def mean_above(self, size: npt.ArrayLike) -> Floats:
        """Return E[x; x > size] of noise x, in standard deviations."""
        # x T(x) and the integral of the tails T from there, by trapezoids; even, because noise is symmetric
        places, sizes = _PLACES, np.minimum(np.abs(np.asarray(size, dtype=np.float64)), _FARTHEST)
        tails = self.tail(places)
        steps = (tails[1:] + tails[:-1]) / 2.0 * np.diff(places)
        beyond = np.append(np.cumsum(steps[::-1])[::-1], 0.0)
        return np.asarray(sizes * self.tail(sizes) + np.interp(sizes, places, beyond), dtype=np.float64)
