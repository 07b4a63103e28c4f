"""What is grouped, and what is measured of a group: keys, frame and statistics of a query.

A *frame* says how rows are grouped, bounded and noised; a *statistic* is the smallest thing on it that is noised,
stored and paid for. The two are what a stored release is found by (`model/identity.py`).
Everything here is a function of policy, query text and schema; nothing of the data.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

from dpsql.model.cells import Cells
from dpsql.model.rows import Key, PublicKeys, Rows, RowsSql
from dpsql.model.statistic_kinds import COVERED_KINDS, SUM_KINDS, StatisticKind
from dpsql.model.top_rows import ChosenBy

NANO = 10**9
"""Levels are whole numbers of nano-rho."""
KEYS_FIRST = "keys_first"
"""The mechanism of frames whose private keys are selected by releases of their own, before their numbers."""
GSHM = "gshm"
"""The mechanism of frames whose private keys are shown by a threshold, with noise of its own on each."""

COUNT_LATTICE_EXPONENT = -1
"""Row counts live on halves, so that the centre of any interval of integers lies on the lattice."""

NOISE_GRID_EXPONENT = -20
"""Noisy counts live on this finer grid, so that averages and bridges of points hardly feel it."""

WEIGHT_BITS = 20
"""A unit's weight is a multiple of 2**-20: finer steps than those of noisy counts would be lost on them."""

SUM_LATTICE_BITS = 24
"""A sum's lattice splits the final interval of one unit in one group into 2**24 to 2**25 steps, and where several rows
are added into up to 2**8 times as many (`sums.sum_steps`)."""


@dataclass(frozen=True, slots=True)
class Ordering:
    """Public keys along one of them: a sequence for each combination of the others.

    Attributes:
        axis: which of the frame's keys.
        lengths: number of values of each key.
        descending: whether sequences begin with the largest value.
        with_null: whether the last value is NULL, which comes last in both directions.

    """

    axis: int
    lengths: tuple[int, ...]
    descending: bool
    with_null: bool = False

    @property
    def length(self) -> int:
        """Keys in a sequence."""
        return self.lengths[self.axis]

    @property
    def sequences(self) -> int:
        """Number of sequences."""
        return math.prod(self.lengths) // self.length


Places = tuple[tuple[int, ...], ...]
"""Of each group, the places of its values in a public list."""


@dataclass(frozen=True, slots=True)
class Factorised:
    """What is noised in place of the values: a power of the running totals, in sixteenths."""

    ordering: Ordering
    sixteenths: int


@dataclass(frozen=True, slots=True)
class Sparsity:
    """What leaves at most ``k`` keys with a count, whatever the data are.

    Attributes:
        kind: ``top_k`` subtracts the (k+1)-th largest presence count, ``sketch`` does so after every shard of units.
        k: most keys that are left.

    """

    kind: Literal["top_k", "sketch"]
    k: int


@dataclass(frozen=True, slots=True)
class Window:
    """A range of levels whose thresholds are all paid with the first release of a frame.

    Attributes:
        low, high: lowest and highest level in nano-rho.
        delta: what the thresholds of all levels may cost together. It is part of the frame: thresholds that followed
            each query's own delta would be lower than what the first release paid for.

    """

    low: int
    high: int
    delta: float


@dataclass(frozen=True, slots=True)
class Bounding:
    """What bounds a unit's part in the groups, and the groups themselves.

    Attributes:
        max_groups: most groups that one unit may touch; None, only beside ``sparsity``, for as many as it likes.
        counted_groups: most groups in which a unit counts at all, where one in more than ``max_groups`` counts in each
            with a weight, so that its l2 norm stays that of ``max_groups``; None where it counts fully or not at all.
        by_norm: whether rows and sums of a unit are bounded over all its groups together, in the l2 norm.
        max_rows: most rows of a unit that are read at all; None for any number.
        minimum_units: private keys of fewer units are left out before anything is noised.
        sparsity: what is subtracted from the presence counts of private keys before they are noised.
        finer: a frame of the same rows by more keys, all public, that bounds what a unit adds: groups here are sums of
            its groups, and the presence count is that of its pairs of a unit and a group. None where the frame bounds
            its own groups.

    """

    max_groups: int | None
    counted_groups: int | None = None
    minimum_units: int = 1
    sparsity: Sparsity | None = None
    finer: Frame | None = None
    by_norm: bool = False
    max_rows: int | None = None

    @property
    def most_counted(self) -> int | None:
        """Return the most groups in which a unit counts, fully or with a weight. Return None for any number."""
        return self.counted_groups or self.max_groups


@dataclass(frozen=True, slots=True)
class Largest:
    """The counts of a question for the largest ones.

    Attributes:
        counted: the count of rows or units with a condition that stands in place of the count of units; its values are
            not recentred. None if units are counted.
        chosen_by: what its keys follow from; None if all keys are noised.

    """

    counted: Statistic | None = None
    chosen_by: ChosenBy | None = None

    @property
    def most(self) -> int:
        """The most that one unit adds to a count."""
        return self.counted.high_steps >> -COUNT_LATTICE_EXPONENT if self.counted else 1


@dataclass(frozen=True, slots=True)
class Frame:
    """What is grouped: rows by keys, how units are bounded in them; and the shape of their presence count.

    Attributes:
        rows: which rows, and whose.
        rows_sql: how they are read.
        bounding: what bounds a unit's part; without a default, so that nobody forgets it.
        keys: grouping expressions, sorted by their text; empty for a query without GROUP BY.
        public_keys: None where keys are private and need a threshold.
        mechanism: how the presence count is noised; a name of the mechanisms that the plan was given.
        factorised: what is noised under the mechanism ``factorised_gaussian``; None under others.
        window: levels whose thresholds are paid together; None without.
        ceiling: level in nano-rho at which every statistic is drawn, once, after which its exact values are forgotten;
            None where it is drawn at the level asked for.
        generation: how many refreshes of the same frame came before.
        largest: of a question for the largest counts, what is counted, and which keys are noised; None for others.

    """

    rows: Rows
    rows_sql: RowsSql
    bounding: Bounding
    keys: tuple[Key, ...] = ()
    public_keys: PublicKeys | None = None
    mechanism: str = "gaussian"
    factorised: Factorised | None = None
    window: Window | None = None
    ceiling: int | None = None
    generation: int = 0
    largest: Largest | None = None

    @property
    def has_private_keys(self) -> bool:
        """Whether the key set itself depends on the data and must pass a threshold."""
        return bool(self.keys) and not self.public_keys

    @property
    def key_columns(self) -> list[str]:
        """Names of the columns of its keys in SQL."""
        return [f"key_{i}" for i in range(len(self.keys))]

    @property
    def called_keys(self) -> tuple[str, ...]:
        """Its keys as SQL, with the names that the query gives their columns."""
        return tuple(self.rows_sql.readable(key.sql) for key in self.keys)

    @property
    def is_frozen(self) -> bool:
        """Whether later releases are drawn from the histogram of the first: where keys depend on the data."""
        return self.has_private_keys

    @property
    def key_count(self) -> int | None:
        """Most keys that have a count, whatever the data are; None where nothing bounds them."""
        if self.bounding.sparsity:
            return self.bounding.sparsity.k
        if self.public_keys:
            return self.public_keys.count
        return None if self.keys else 1

    @property
    def cuts_groups(self) -> bool:
        """Tell if a unit may have more groups than it may count in."""
        most, count = self.bounding.max_groups, self.key_count
        return bool(self.keys) and (count is None or (most or count) < count)

    @property
    def is_measured(self) -> bool:
        """Whether it can be measured what bounding leaves: where a frame bounds units itself, as its numbers are drawn.

        What top-k pre-processing leaves out depends on all units together; at a ceiling coverage would cost as much as
        the numbers; and which rows of a unit are cut, before they are grouped, is not followed.
        """
        bounding = self.bounding
        cuts_rows = bounding.max_rows or self.rows_sql.cuts
        return not (bounding.finer or bounding.sparsity or cuts_rows or self.ceiling is not None)

    @property
    def finer_per_group(self) -> int:
        """Most of the groups of the finer frame that one unit has in one group; 1 where there is no finer frame."""
        finer = self.bounding.finer
        if not finer or finer.key_count is None:
            return 1
        return max(1, min(finer.unit_groups, finer.key_count // max(1, self.key_count or 1)))

    @property
    def unit_groups(self) -> int:
        """Most of the counted groups that one unit may touch, or as many as move the counts as far in the l2 norm.

        A unit in m groups of a finer frame, at most M of them in one group here, moves the counts by n_1, n_2, … with
        sum m, each at most M. Their sum of squares is largest where all but one are M or 0 (docs/proofs/
        grouping-sets.md, Lemma 1).
        """
        if self.bounding.finer:
            full, rest = divmod(self.bounding.finer.unit_groups, self.finer_per_group)
            return full * self.finer_per_group**2 + rest**2
        bounds = [bound for bound in (self.bounding.max_groups, self.key_count) if bound is not None]
        if not bounds:
            raise AssertionError("a frame bounds the groups of a unit")
        return max(1, min(bounds))

    def exact_exponent(self, statistic: Statistic) -> int:
        """Exact sums of a statistic are multiples of two to this power: of its lattice, of the noise's with weights."""
        return statistic.noise_exponent if self.bounding.counted_groups else statistic.lattice_exponent


@dataclass(frozen=True, slots=True)
class Norm:
    """A bound on all that one unit adds to its groups, in the l2 norm: who adds more is scaled down to it.

    Attributes:
        l2_steps: most norm of what is noised, in lattice steps.
        centre_steps: what is subtracted in each group from the unit's value, times the weight with which it counts.
        row_steps: where the unit's rows with a value are scaled down, and its values with them, the most norm of its
            numbers of rows, in steps of 2**COUNT_LATTICE_EXPONENT; None where its values are scaled down by themselves.

    """

    l2_steps: int
    centre_steps: int = 0
    row_steps: int | None = None


@dataclass(frozen=True, slots=True)
class Statistic:
    """One bounded aggregate of a frame, on an integer lattice of step 2**lattice_exponent.

    One unit adds to one group a value v with ``low_steps <= v <= high_steps`` (in lattice steps). What is noised is
    the sum of v - centre over the present units, so one unit moves one group by at most ``radius_steps``. With a norm
    it moves all its groups together by at most so much, and v is between the two where it is not scaled down.

    Attributes:
        kind: what is added up, counted or asked (`model.statistic_kinds`).
        value_sql: argument whose non-NULL rows count; empty for ``count(*)``.
        filter_sql: FILTER condition; empty without one.
        row_bounds_steps: clamp of each row in lattice steps (sums with per-row bounds).
        group_bounds_steps: clamp of the unit's value in the group (per-group bounds).
        limit: most rows of one unit that count in one group, more being scaled down to it; or a bound on its values in
            all groups together; None for neither.
        histogram: the cells of a group; None where a group has one number.

    """

    kind: StatisticKind
    low_steps: int
    high_steps: int
    lattice_exponent: int
    value_sql: str = ""
    filter_sql: str = ""
    row_bounds_steps: tuple[int, int] | None = None
    group_bounds_steps: tuple[int, int] | None = None
    limit: int | Norm | None = None
    histogram: Cells | None = None

    @property
    def covered(self) -> Statistic | None:
        """The bounded statistic that this one is about: coverage, or what is left out. None of all others."""
        kind = COVERED_KINDS.get(self.kind)
        return replace(self, kind=kind) if kind else None

    @property
    def is_raised(self) -> bool:
        """Whether bounds make more of what a unit has, because they begin above what it has at least."""
        least = 2 if self.kind == "rows" else 0
        return any(bounds[0] > least for bounds in (self.group_bounds_steps, self.row_bounds_steps) if bounds)

    @property
    def is_signed(self) -> bool:
        """Return whether it is the sum of values of both signs, as far as its bounds say.

        The interval of a sum that is not recentred has 0 in its middle, whatever its values are.
        """
        bounds = (self.row_bounds_steps, self.group_bounds_steps)
        is_from_zero = any(one[0] >= 0 for one in bounds if one)
        return self.kind == "sum" and self.interval[0] < 0.0 and not is_from_zero

    @property
    def row_cap(self) -> int | None:
        """Most rows of one unit that count in one group, if that is its limit."""
        return self.limit if isinstance(self.limit, int) else None

    @property
    def values_kept(self) -> int:
        """Return the number of distinct values of a unit that count in one group, if a value counts once."""
        low, high = self.row_bounds_steps or (0, 2**-COUNT_LATTICE_EXPONENT)
        return self.high_steps // max(-low, high)

    @property
    def cells(self) -> int:
        """Numbers per group."""
        return self.histogram.count if self.histogram else 1

    @property
    def centre_steps(self) -> int:
        """Middle of the public interval, rounded to the lattice; 0 for the presence count and for histograms."""
        if isinstance(self.limit, Norm):
            return self.limit.centre_steps
        return 0 if self.kind in ("presence", "histogram") else (self.low_steps + self.high_steps) // 2

    @property
    def radius_steps(self) -> int:
        """Most that one unit moves one group, in lattice steps (l-infinity sensitivity)."""
        if isinstance(self.limit, Norm):
            return self.limit.l2_steps
        return max(self.high_steps - self.centre_steps, self.centre_steps - self.low_steps)

    @property
    def lattice(self) -> float:
        """Step of the lattice in the units of the aggregate."""
        return float(2.0**self.lattice_exponent)

    @property
    def noise_exponent(self) -> int:
        """Noisy values are multiples of 2**noise_exponent: a sum's own lattice is fine enough, a count's is not."""
        return self.lattice_exponent if self.kind in SUM_KINDS else NOISE_GRID_EXPONENT

    @property
    def centre(self) -> float:
        """The centre in the units of the aggregate."""
        return self.centre_steps * self.lattice

    @property
    def radius(self) -> float:
        """The l-infinity sensitivity in the units of the aggregate."""
        return self.radius_steps * self.lattice

    @property
    def interval(self) -> tuple[float, float]:
        """Public interval of one unit's value in one group."""
        return self.low_steps * self.lattice, self.high_steps * self.lattice


PRESENCE = Statistic(kind="presence", low_steps=1, high_steps=1, lattice_exponent=0)
"""The presence count: distinct units per group. Every frame has it."""
