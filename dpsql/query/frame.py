"""What is grouped, and what is measured of a group: the frame and the statistics of a query.

A *frame* says how rows are grouped, bounded and noised; a *statistic* is the smallest thing on it that is noised,
stored and paid for. The two are what a stored release is found by (`query/identity.py`).
Everything here is a function of policy, query text and schema; nothing of the data.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dpsql.query.keys import Key, Ordering, PublicKeys

NANO = 10**9
"""Levels are whole numbers of nano-rho."""

COUNT_LATTICE_EXPONENT = -1
"""Row counts live on halves, so that the centre of any interval of integers lies on the lattice."""

NOISE_GRID_EXPONENT = -20
"""Noisy counts live on this finer grid, so that averages and bridges of points hardly feel it."""

WEIGHT_BITS = 20
"""A unit's weight is a multiple of 2**-20: finer steps than those of noisy counts would be lost on them."""

SUM_LATTICE_BITS = 24
"""A sum's lattice splits the final interval of one unit in one group into 2**24 to 2**25 steps, and where several rows
are added into up to 2**8 times as many (`sum_lattice.sum_steps`)."""


@dataclass(frozen=True, slots=True)
class Factorised:
    """What is noised in place of the values: a power of the running totals, in sixteenths."""

    ordering: Ordering
    sixteenths: int


Mechanism = Literal[
    "gaussian", "correlated_gaussian", "discrete_correlated_gaussian", "factorised_gaussian", "gshm", "csh"
]
"""How the presence count is noised: ``gshm`` and ``csh`` hide what a threshold hides, the others noise every key."""


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
class Frame:
    """What is grouped: source, filter, keys, unit, max_groups; and the shape of its presence count.

    Attributes:
        unit: name of the privacy unit.
        table: canonical name of the protected table; part of the hash.
        relation: quoted DuckDB text that reads it; not part of the hash (an alias may change). Empty where the rows
            are gone, because the table was dropped or had this version once, and only stored releases are left.
        version: the table's declared version.
        unit_column: the column that names the privacy unit.
        filters: AND-ed conditions, normalised and sorted.
        keys: grouping expressions, sorted by their text; empty for a query without GROUP BY.
        max_groups: most groups that one unit may touch; None, only beside ``sparsity``, for as many as it likes.
        public_keys: None where keys are private and need a threshold.
        sparsity: what is subtracted from the presence counts of private keys before they are noised.
        minimum_units: private keys of fewer units are left out before anything is noised.
        mechanism: how the presence count is noised.
        window: levels whose thresholds are paid together; None without.
        settings: pinned session settings that an expression's value depends on.
        ceiling: level in nano-rho at which every statistic is drawn, once, after which its exact values are forgotten;
            None where it is drawn at the level asked for.
        generation: how many refreshes of the same frame came before.
        factorised: what is noised under the mechanism ``factorised_gaussian``; None under others.
        links: parents that lead to the unit, each with its version and the columns that were compared.
        source: where rows do not come from one table alone, how tables and their versions make them; else empty.
        reads: every table of ``source`` with its version.
        counted_groups: most groups in which a unit counts at all, where one in more than ``max_groups`` counts in each
            with a weight, so that its l2 norm stays that of ``max_groups``; None where it counts fully or not at all.
        finer: a frame of the same rows by more keys, all public, that bounds what a unit adds: groups here are sums of
            its groups, and the presence count is that of its pairs of a unit and a group. None where the frame bounds
            its own groups.
        outside: where rows are those outside the shown groups of another frame, which frame and groups these are; else
            empty.
        cuts: sentences about rows of one unit that joins leave out; no part of the hash, as ``source`` is.
        types: columns of ``relation`` with their types, by which expressions are computed; no part of the hash.

    """

    unit: str
    table: str
    relation: str
    version: str
    unit_column: Key
    filters: tuple[str, ...]
    keys: tuple[Key, ...]
    max_groups: int | None
    public_keys: PublicKeys | None
    sparsity: Sparsity | None
    minimum_units: int
    mechanism: Mechanism
    window: Window | None
    settings: tuple[tuple[str, str], ...]
    ceiling: int | None = None
    generation: int = 0
    factorised: Factorised | None = None
    links: tuple[tuple[str, str, tuple[str, ...], tuple[str, ...]], ...] = ()
    source: str = ""
    reads: tuple[tuple[str, str], ...] = ()
    counted_groups: int | None = None
    finer: Frame | None = None
    outside: str = ""
    cuts: tuple[str, ...] = ()
    types: tuple[tuple[str, str], ...] = ()

    @property
    def table_versions(self) -> tuple[tuple[str, str], ...]:
        """Every table that is read, with its version, the protected one that names the frame first."""
        parents = ((parent, version) for parent, version, _, _ in self.links)
        return tuple(dict.fromkeys(((self.table, self.version), *parents, *self.reads)))

    @property
    def has_private_keys(self) -> bool:
        """Whether the key set itself depends on the data and must pass a threshold."""
        return bool(self.keys) and self.public_keys is None

    @property
    def is_frozen(self) -> bool:
        """Whether later releases are drawn from the histogram of the first: where keys depend on the data."""
        return self.has_private_keys

    @property
    def key_count(self) -> int | None:
        """Most keys that have a count, whatever the data are; None where nothing bounds them."""
        if self.sparsity is not None:
            return self.sparsity.k
        if self.public_keys is not None:
            return self.public_keys.count
        return None if self.keys else 1

    @property
    def finer_per_group(self) -> int:
        """Most of the groups of the finer frame that one unit has in one group; 1 where there is no finer frame."""
        if self.finer is None or self.finer.key_count is None:
            return 1
        return max(1, min(self.finer.unit_groups, self.finer.key_count // max(1, self.key_count or 1)))

    @property
    def unit_groups(self) -> int:
        """Most of the counted groups that one unit may touch, or as many as move the counts as far in the l2 norm.

        A unit in m groups of a finer frame, at most M of them in one group here, moves the counts by n_1, n_2, … with
        sum m, each at most M. Their sum of squares is largest where all but one are M or 0 (docs/proofs/
        grouping-sets.md, Lemma 1).
        """
        if self.finer is not None:
            full, rest = divmod(self.finer.unit_groups, self.finer_per_group)
            return full * self.finer_per_group**2 + rest**2
        bounds = [bound for bound in (self.max_groups, self.key_count) if bound is not None]
        if not bounds:
            raise AssertionError("a frame bounds the groups of a unit")
        return max(1, min(bounds))

    def exact_exponent(self, statistic: Statistic) -> int:
        """Exact sums of a statistic are multiples of two to this power: of its lattice, of the noise's with weights."""
        return statistic.lattice_exponent if self.counted_groups is None else statistic.noise_exponent


@dataclass(frozen=True, slots=True)
class Statistic:
    """One bounded aggregate of a frame, on an integer lattice of step 2**lattice_exponent.

    One unit adds to one group a value v with ``low_steps <= v <= high_steps`` (in lattice steps). What is noised is
    the sum of v - centre over the present units, so one unit moves one group by at most ``radius_steps``.

    Attributes:
        kind: ``presence`` (v = 1, not recentred), ``units`` (present rows pass ``filter_sql``), ``rows``, ``sum``,
            ``values`` (distinct values of a group; v is then what the unit adds to those of all others) or
            ``histogram`` (rows in each of ``cells`` cells, not recentred; v is then their number); or what AUTO is
            told: ``groups``, ``group_extremes`` and ``row_extremes`` (`query.auto`).
        value_sql: argument whose non-NULL rows count; empty for ``count(*)``.
        filter_sql: FILTER condition; empty without one.
        row_bounds_steps: clamp of each row in lattice steps (sums with per-row bounds).
        group_bounds_steps: clamp of the unit's value in the group (per-group bounds).
        row_cap: most rows of one unit that count in one group; more are scaled down to it.
        cells: numbers per group: 1 but for histograms.
        cell_bounds: what the cells of a histogram divide into equal parts; rows beyond are in the first or the last.

    """

    kind: Literal["presence", "units", "rows", "sum", "values", "histogram", "groups", "group_extremes", "row_extremes"]
    low_steps: int
    high_steps: int
    lattice_exponent: int
    value_sql: str = ""
    filter_sql: str = ""
    row_bounds_steps: tuple[int, int] | None = None
    group_bounds_steps: tuple[int, int] | None = None
    row_cap: int | None = None
    cells: int = 1
    cell_bounds: tuple[float, float] | None = None

    @property
    def centre_steps(self) -> int:
        """Middle of the public interval, rounded to the lattice; 0 for the presence count and for histograms."""
        return 0 if self.kind in ("presence", "histogram") else (self.low_steps + self.high_steps) // 2

    @property
    def radius_steps(self) -> int:
        """Most that one unit moves one group, in lattice steps (l-infinity sensitivity)."""
        return max(self.high_steps - self.centre_steps, self.centre_steps - self.low_steps)

    @property
    def lattice(self) -> float:
        """Step of the lattice in the units of the aggregate."""
        return float(2.0**self.lattice_exponent)

    @property
    def noise_exponent(self) -> int:
        """Noisy values are multiples of 2**noise_exponent: a sum's own lattice is fine enough, a count's is not."""
        return self.lattice_exponent if self.kind == "sum" else NOISE_GRID_EXPONENT

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
