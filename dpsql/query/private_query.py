"""A private query: estimates of the statistics on a frame, how they are shown, and how private that shall be.

A query is one *frame* (what is grouped, how it is bounded and noised), some *statistics* on it (each the smallest thing
that is noised, stored and paid for), *estimates* (numbers built from statistics) and a *finish* (SQL over the
noisy table). Everything here is a function of policy, query text and schema; nothing of the data.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from dpsql.query.frame import Frame, Statistic
from dpsql.query.keys import Key, Ordering, Places


@dataclass(frozen=True, slots=True)
class Buckets:
    """Groups of an answer that are added up from a release by the values of one public key.

    Attributes:
        ordering: public keys along the bucket column.
        column: the bucket column.
        keys: those of the answer.
        sources: of each key of the answer, which of the frame's keys it is; None where it is computed from the bucket
            column, of whose values in a group any one tells it.
        places: the groups of buckets, in the order of what they are called.

    """

    ordering: Ordering
    column: Key
    keys: tuple[Key, ...]
    sources: tuple[int | None, ...]
    places: Places


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
class Spread:
    """A variance, or its root, beside the average of the same values.

    Attributes:
        squares: sum of the squared distances to ``middle``.
        middle: of the values' bounds.
        is_sample: whether it is that of the population that the rows are a sample of.
        is_root: whether it is a standard deviation.

    """

    squares: Linear
    middle: float
    is_sample: bool
    is_root: bool


@dataclass(frozen=True, slots=True)
class Estimate:
    """One aggregate of the query as a reader knows it.

    Attributes:
        name: the aggregate's text, for plans and receipts.
        numerator, denominator: the value is their ratio; no denominator for counts and sums.
        type: DuckDB type of the result.
        clamp: public bounds of an average, or of a spread.
        total: along which keys it is added up; None where every key has its own.
        spread: what makes it the spread of the values whose average the ratio is; None where it is the ratio itself.
        quantile: which share of the rows of a histogram is below the value; None where it is no quantile.

    """

    name: str
    numerator: Linear
    denominator: Linear | None
    type: str
    clamp: tuple[float, float] | None = None
    total: RunningTotal | None = None
    spread: Spread | None = None
    quantile: float | None = None


@dataclass(frozen=True, slots=True)
class OutputColumn:
    """A column of the result: its name, SQL over the noisy table, and, where it is one aggregate, which."""

    name: str
    sql: str
    type: str
    estimate: int | None = None


@dataclass(frozen=True, slots=True)
class Finish:
    """Post-processing as SQL text over the noisy table (columns key_0…, agg_0…, agg_0_low, agg_0_high…).

    ``windows`` are computed of the rows that pass ``having``, as columns window_0…; ``qualify`` filters after them.
    """

    columns: tuple[OutputColumn, ...]
    having: str = ""
    windows: tuple[str, ...] = ()
    qualify: str = ""
    order_by: tuple[str, ...] = ()
    limit: int | None = None
    offset: int | None = None


@dataclass(frozen=True, slots=True)
class After:
    """A query over the result: SQL that reads it, and the columns that it makes."""

    sql: str
    columns: tuple[OutputColumn, ...]


@dataclass(frozen=True, slots=True)
class Request:
    """How private the answer shall be: rho, or (epsilon, delta)."""

    rho: float | None
    epsilon: float | None
    delta: float


@dataclass(frozen=True, slots=True)
class Grouping:
    """The grouping sets of a query, each a query by its own keys.

    Attributes:
        keys: those of all sets, and the flags: columns that are 1 in the rows of sets which leave a key out, else 0.
        flagged: of each flag, which of the keys it is about.
        parts: the queries by the keys of each distinct set, those with most keys first.
        sets: of each grouping set in the order of the text, which part it is.
        adds_up: whether the first part has all keys, all of them public, and the others are sums of its groups.

    """

    keys: tuple[Key, ...]
    flagged: tuple[int, ...]
    parts: tuple[PrivateQuery, ...]
    sets: tuple[int, ...]
    adds_up: bool

    def places(self, part: PrivateQuery) -> tuple[int, ...]:
        """Of each key of a part, its place among the keys of all sets."""
        return tuple(self.keys.index(key) for key in part.frame.keys)

    def with_first(self, first: PrivateQuery) -> Grouping:
        """The sets with this as the first part; where they add up, the others are sums of its groups."""
        others = self.parts[1:]
        if self.adds_up:
            others = tuple(replace(part, frame=replace(part.frame, finer=first.frame)) for part in others)
        return replace(self, parts=(first, *others))


@dataclass(frozen=True, slots=True)
class AutoLevel:
    """Where one reader stands with what AUTO asks, at the level of one query; all levels in nano-rho.

    Attributes:
        statistic_hash: what the histogram is stored under.
        share_nano: what the query leaves for it.
        rho_nano: level of the histogram that it chooses by, or is to choose by.
        due_nano: what is to be drawn and paid for that histogram.
        is_stored: whether the histogram is there.
        is_sure: whether what it says holds for later queries, at higher levels too.

    """

    statistic_hash: str
    share_nano: int
    rho_nano: int
    due_nano: int = 0
    is_stored: bool = True
    is_sure: bool = False


@dataclass(frozen=True, slots=True)
class AutoGroups:
    """What ``max_groups_contributed = AUTO`` asks of the data before the frame is known.

    Attributes:
        frame: whose units are counted by their number of groups; the same whatever is asked of these groups.
        candidates: numbers that may be chosen, and the ends of the places of the histogram.
        weighted: whether units in more groups than that count with a weight.
        level: where the reader stands; None in a plan that nobody looked into the books for.

    """

    frame: Frame
    candidates: tuple[int, ...]
    weighted: bool
    level: AutoLevel | None = None


@dataclass(frozen=True, slots=True)
class AutoBounds:
    """What ``contribution_bounds_per_… => AUTO`` asks of the data before a sum's lattice is known.

    Attributes:
        name: the aggregate's text, for plans and receipts.
        statistic: whose extremes are looked for: of a unit's sums in its groups, or of its rows.
        frame: whose units are looked at.
        bounds: what was found; None before.
        level: where the reader stands; None in a plan that nobody looked into the books for.

    """

    name: str
    statistic: Statistic
    frame: Frame
    bounds: tuple[float, float] | None = None
    level: AutoLevel | None = None


ToldBounds = Mapping[Statistic, tuple[float, float]]
"""Bounds that AUTO found."""


@dataclass(frozen=True, slots=True)
class OtherGroup:
    """One more row of an answer, for the rows of all groups that are not shown.

    Attributes:
        name: what its text keys read.
        query: of these rows, without keys; what it measures makes the same estimates.

    """

    name: str
    query: PrivateQuery


@dataclass(frozen=True, slots=True)
class PrivateQuery:
    """A query that has a private answer.

    ``statistics[0]`` is the presence count; ``weights`` stand beside the statistics and add to 1. ``alternatives`` are
    frames that would answer the same text by another mechanism. ``refresh`` asks for a new generation of the frame,
    ``own_threshold`` for a threshold at the level asked for, whatever keys were shown before. ``after`` are queries
    over the result, one over the other. ``buckets`` add the answer up from a release by finer keys. ``auto`` chooses
    max_groups; before it has, that of the frames is 1. ``auto_bounds`` find bounds of sums, which are -1 and 1 before.
    With ``grouping`` the query is its parts, answered as one; the frame is that of the first, and what is said of
    statistics and estimates holds for each of them. ``other`` adds a row, which is released after the groups.
    """

    frame: Frame
    alternatives: tuple[Frame, ...]
    statistics: tuple[Statistic, ...]
    weights: tuple[float, ...]
    estimates: tuple[Estimate, ...]
    finish: Finish
    request: Request
    min_units: int
    refresh: bool = False
    own_threshold: bool = False
    buckets: Buckets | None = None
    after: tuple[After, ...] = ()
    auto: AutoGroups | None = None
    auto_bounds: tuple[AutoBounds, ...] = ()
    grouping: Grouping | None = None
    other: OtherGroup | None = None

    @property
    def shown(self) -> tuple[OutputColumn, ...]:
        """The columns of the result."""
        return self.after[-1].columns if self.after else self.finish.columns

    @property
    def auto_levels(self) -> tuple[AutoLevel | None, ...]:
        """Where the reader stands with each thing that is left to AUTO; None where nobody looked into the books."""
        return tuple(asked.level for asked in ((self.auto,) if self.auto else ()) + self.auto_bounds)

    @property
    def told_levels(self) -> dict[str, int]:
        """What a release tells of the histograms that AUTO chose by: their hashes, with their levels in nano-rho."""
        return {level.statistic_hash: level.rho_nano for level in self.auto_levels if level is not None}

    @property
    def keys(self) -> tuple[Key, ...]:
        """The keys of the answer."""
        if self.grouping is not None:
            return self.grouping.keys
        return self.frame.keys if self.buckets is None else self.buckets.keys

    @property
    def total(self) -> RunningTotal | None:
        """The running total that reaches furthest, which that of buckets does; None where there is none."""
        if self.buckets is not None:
            return RunningTotal(self.buckets.ordering, None)
        totals = [estimate.total for estimate in self.estimates if estimate.total is not None]
        return max(totals, key=lambda total: math.inf if total.span is None else total.span, default=None)
