"""Estimates: the values of an answer, each of one kind, which says of which statistics it is computed.

Planning chooses the kind (`plan.aggregates`); value and interval of a kind are computed by one function
(`answer.estimates`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from dpsql.model.frame import COUNT_LATTICE_EXPONENT, PRESENCE, Ordering, Statistic
from dpsql.model.statistic_kinds import SUM_KINDS


@dataclass(frozen=True, slots=True)
class Linear:
    """A value ``lattice * statistic + centre * presence``; without a statistic, a multiple of the presence count."""

    statistic: Statistic | None
    centre: float


@dataclass(frozen=True, slots=True)
class RunningTotal:
    """Sums over the last ``span`` keys of a sequence up to each; without a span from its first."""

    ordering: Ordering
    span: int | None


@dataclass(frozen=True, slots=True)
class LinearValue:
    """A value that is computed of one linear value, whose error does not depend on what is shown."""

    linear: Linear

    @property
    def linears(self) -> tuple[Linear, ...]:
        """All linear values that it is computed of."""
        return (self.linear,)


@dataclass(frozen=True, slots=True)
class BoundedValue:
    """A value between public bounds, whose error depends on what is shown."""

    bounds: tuple[float, float]


@dataclass(frozen=True, slots=True)
class Sum(LinearValue):
    """A count or a sum."""


UNITS = Sum(Linear(None, 1.0))
"""The number of units: the presence count itself."""


@dataclass(frozen=True, slots=True)
class RunningSum(LinearValue):
    """A count or a sum that is added up along the values of a key."""

    total: RunningTotal


@dataclass(frozen=True, slots=True)
class AnyUnit(LinearValue):
    """A truth value: ``truth`` where the 95 % interval of a number of units is above 0, NULL elsewhere."""

    truth: bool


@dataclass(frozen=True, slots=True)
class Ratio(BoundedValue):
    """The mean of rows: their sum by their number; ``offset`` more where the sum is of distances to that."""

    numerator: Linear
    denominator: Linear
    offset: float = 0.0

    @property
    def linears(self) -> tuple[Linear, ...]:
        """Sum and number of the rows."""
        return self.numerator, self.denominator


@dataclass(frozen=True, slots=True)
class Spread(BoundedValue):
    """A variance, or its root.

    Attributes:
        average: of the same values.
        squares: sum of the squared distances to ``middle``.
        middle: of the values' bounds.
        is_sample: whether it is that of the population that the rows are a sample of.
        is_root: whether it is a standard deviation.
        offset: what was subtracted from the square of each row.

    """

    average: Ratio
    squares: Linear
    middle: float
    is_sample: bool
    is_root: bool
    offset: float = 0.0

    @property
    def linears(self) -> tuple[Linear, ...]:
        """Sum and number of the rows, and the sum of squares."""
        return *self.average.linears, self.squares


EXTREMES = {"minimum": "0.010", "maximum": "0.990"}
"""Shares of the rows below the quantiles that stand for extremes of rows, as no person writes them."""
IN_PLACE_OF = " in place of "
"""Words between a quantile and the extreme that it stands for, in the name of an aggregate."""


@dataclass(frozen=True, slots=True)
class GeometricMean(BoundedValue):
    """The mean of rows on the scale of their logarithms."""

    logarithm: Ratio

    @property
    def linears(self) -> tuple[Linear, ...]:
        """Sum of the logarithms, and number of the rows."""
        return self.logarithm.linears


@dataclass(frozen=True, slots=True)
class PairValue:
    """The sums of one value of a pair.

    Attributes:
        name: the value's text, for receipts.
        value_bounds: bounds of the value, with their origin.
        distances: sum of the distances to the middle of the bounds.
        squares: sum of the squared distances, half of the largest subtracted from each; None if nothing reads it.

    """

    name: str
    value_bounds: ValueBounds
    distances: Linear
    squares: Linear | None

    @property
    def middle(self) -> float:
        """Middle of the bounds."""
        return sum(self.value_bounds.bounds) / 2.0

    @property
    def radius(self) -> float:
        """Largest distance to the middle."""
        low, high = self.value_bounds.bounds
        return (high - low) / 2.0


PairFunction = Literal["covar_pop", "covar_samp", "corr", "regr_slope", "regr_intercept", "regr_r2"]


@dataclass(frozen=True, slots=True)
class Moments(BoundedValue):
    """A number of pairs (y, x): a covariance, a correlation, or one of the line through them.

    Attributes:
        function: the aggregate.
        rows: number of the rows with both values.
        y, x: the sums of either value.
        products: sum of the products of both distances.

    """

    function: PairFunction
    rows: Linear
    y: PairValue
    x: PairValue
    products: Linear

    @property
    def linears(self) -> tuple[Linear, ...]:
        """Number of the rows, and all sums that are read."""
        sums = (self.y.distances, self.x.distances, self.products, self.y.squares, self.x.squares)
        return (self.rows, *(one for one in sums if one))


@dataclass(frozen=True, slots=True)
class Quantile(BoundedValue):
    """The value below which a share of the rows of a histogram is.

    ``extreme`` names the extreme of rows that was asked for, if any.
    """

    histogram: Statistic
    share: float
    extreme: str = ""

    @property
    def linears(self) -> tuple[Linear, ...]:
        """The cells."""
        return (Linear(self.histogram, 0.0),)

    @property
    def edges(self) -> tuple[float, ...]:
        """Where the cells begin, and where the last one ends."""
        if not self.histogram.histogram:
            raise AssertionError("a quantile is read from cells")
        return self.histogram.histogram.edges


@dataclass(frozen=True, slots=True)
class NotFound:
    """Why AUTO found no bounds or no norm in a stored histogram.

    ``few``: too few units have values of one size. ``zeros``: nearly all have values that add up to 0. ``range``: the
    values are out of the range that can be noised. ``noise``: units have so many rows that the noise cannot be drawn.
    """

    reason: Literal["few", "zeros", "range", "noise"]


@dataclass(frozen=True, slots=True)
class NoValue:
    """The value of a column that has no bounds: it is NULL in every row, and nothing is noised for it.

    Attributes:
        instead: the value that the column would have with bounds.
        not_found: why AUTO found none.
        cure: the aggregate with bounds, as text that may be pasted.

    """

    instead: Value
    not_found: NotFound
    cure: str

    @property
    def linears(self) -> tuple[Linear, ...]:
        """No linear value."""
        return ()


Value = LinearValue | Ratio | Spread | GeometricMean | Moments | Quantile | NoValue


@dataclass(frozen=True, slots=True)
class ValueBounds:
    """The public bounds of the values that an average, a spread or a sum is of, and their origin.

    Attributes:
        form: ``row`` for the value of a row, ``group`` for the total of a unit in a group, ``norm`` for the l2 norm of
            all totals of a unit.
        bounds: the lower and the upper end; of a norm its negative and itself.
        asked: the question by which AUTO found them; None if policy or text say them.
        hold_all: whether the declared domains and the types of the columns allow no value outside.
        possible: the least and the largest value by type, infinite if it says nothing.
        least_size: the smallest absolute value other than 0 by type, 0 if it says nothing.

    """

    form: Literal["row", "group", "norm"]
    bounds: tuple[float, float]
    asked: Statistic | None
    hold_all: bool = False
    possible: tuple[float, float] = (-math.inf, math.inf)
    least_size: float = 0.0


WHOLE = ("BIGINT", "HUGEINT")
"""DuckDB types of estimates that are shown as whole numbers: counts, and sums of whole numbers."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """One aggregate of the query as a reader knows it.

    Attributes:
        name: the aggregate's text, for plans and receipts.
        value: how it is computed of statistics.
        type: DuckDB type of the result.
        counts_rows: whether it is a multiple of the number of units because each has the same number of rows.
        value_bounds: the bounds of its values; None for counts and quantiles.

    """

    name: str
    value: Value
    type: str
    counts_rows: bool = False
    value_bounds: ValueBounds | None = None

    @property
    def is_never_negative(self) -> bool:
        """Whether it is a count, or a sum of what is never negative, of one group; on any rows whatever."""
        if not isinstance(self.value, Sum):
            return False
        statistic = self.value.linear.statistic
        if not statistic or statistic.kind not in SUM_KINDS:
            return True
        bounds = statistic.group_bounds_steps or statistic.row_bounds_steps
        return bounds is not None and bounds[0] >= 0

    @property
    def covered(self) -> Statistic | None:
        """Of a count or a sum, the statistic whose bounds leave something out; None of all others."""
        if not isinstance(self.value, Sum | RunningSum):
            return None
        statistic, centre = self.value.linear.statistic, self.value.linear.centre
        if statistic:
            return statistic if statistic.kind in ("rows", "sum") and not statistic.is_raised else None
        # stored coverage of a running total of units is that of rows, one for each unit
        if isinstance(self.value, Sum) and not self.counts_rows:
            return PRESENCE
        steps = round(centre) << -COUNT_LATTICE_EXPONENT
        return Statistic("rows", steps, steps, COUNT_LATTICE_EXPONENT, limit=round(centre))
