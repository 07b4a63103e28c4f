"""A private query: estimates of the statistics on a frame, how they are shown, and how private that shall be.

A query of one *frame* (what is grouped, how it is bounded and noised) has some *statistics* on it (each the smallest
thing that is noised, stored and paid for), *estimates* (numbers built from statistics) and a *finish* (SQL over the
noisy table). A private query is one of these, or several whose groups stand in one answer. Everything here is a
function of policy, query text and schema; nothing of the data.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import ClassVar, Literal, Self

from dpsql.errors import CalibrationError
from dpsql.model.auto_level import AutoLevel
from dpsql.model.estimates import Estimate, NotFound, NoValue, RunningSum, RunningTotal
from dpsql.model.frame import Frame, Ordering, Places, Statistic
from dpsql.model.half_widths import HalfWidths
from dpsql.model.rows import Key
from dpsql.model.top_rows import AROUND, TopRows


@dataclass(frozen=True, slots=True)
class QueryOptions:
    """What the clause OPTIONS (…) or keyword arguments ask for; None where nothing was said."""

    epsilon: float | None = None
    delta: float | None = None
    rho: float | None = None
    max_groups_contributed: int | Literal["AUTO"] | None = None
    group_selection_strategy: str | None = None
    min_privacy_units_per_group: int | None = None
    privacy_unit_column: str | None = None
    mechanism: str | None = None
    top_k: int | None = None
    sketch_size: int | None = None
    rho_window: tuple[float, float] | None = None
    rho_ceiling: float | None = None
    own_threshold: bool | None = None
    as_of: str | None = None
    refresh: bool | None = None
    buckets: str | None = None
    bounding: str | None = None
    other_group: str | None = None
    coverage: bool | None = None
    target_half_width: float | tuple[tuple[str, float], ...] | None = None
    confidence: float | None = None
    max_rho: float | None = None
    max_epsilon: float | None = None
    target_relative_error: float | None = None
    at_least: float | None = None
    method: str | None = None
    extremes: str | None = None

    @property
    def given(self) -> frozenset[str]:
        """Names of the options that are given, and ``name = WORD`` beside where the value is a word."""
        given = {name: value for name in OPTION_NAMES if (value := getattr(self, name)) not in (None, False)}
        return frozenset((*given, *(f"{name} = {value}" for name, value in given.items() if isinstance(value, str))))


OPTION_NAMES = tuple(option.name for option in fields(QueryOptions))
TARGET_OPTIONS = (
    "target_half_width",
    "target_relative_error",
    "at_least",
    "method",
    "confidence",
    "max_rho",
    "max_epsilon",
)
"""The options of targets, in the order in which messages and the command line name them."""
OPTIONS_OF_TARGETS: Mapping[str, frozenset[str]] = {
    "target_half_width": frozenset(("confidence", "max_rho", "max_epsilon")),
    "target_relative_error": frozenset(("confidence", "max_rho", "max_epsilon", "at_least", "method")),
}
"""The options that go with a target alone, by the targets."""


@dataclass(frozen=True, slots=True)
class EachKey:
    """Groups of an answer that are those of its frame, one for each of the frame's keys."""


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
class OutputColumn:
    """A column of the result.

    Attributes:
        name: how it is called.
        sql: what it is over the noisy table.
        type: its DuckDB type.
        estimate: which aggregate it is, None if it is not a single one.
        order: its values in the order that the curator declared; empty if it is sorted by the values themselves.
        zone: the time zones whose clocks are read of it, with blanks between; empty if it is no timestamp with a zone.

    """

    name: str
    sql: str
    type: str
    estimate: int | None = None
    order: tuple[str, ...] = ()
    zone: str = ""


@dataclass(frozen=True, slots=True)
class Finish:
    """Post-processing as SQL text over the noisy table (columns key_0…, agg_0…, agg_0_low, agg_0_high…).

    ``windows`` are computed of the rows that pass ``having``, as columns window_0…; ``qualify`` filters after them.
    ``unbounded`` are the estimates of which the noisy table has agg_0_unbounded, …_low and …_high, too.
    ``within`` are those of which it has agg_0_within: whether a number is within the relative error that is asked for.
    ``lost_orders`` are columns, each with its table, whose ENUM type has another list than the one that was declared.
    ``top`` are the rows that one number picks, and ``picks`` the clause that picks rows by numbers in another way,
    or what else does.
    """

    columns: tuple[OutputColumn, ...]
    having: str = ""
    windows: tuple[str, ...] = ()
    qualify: str = ""
    order_by: tuple[str, ...] = ()
    limit: int | None = None
    offset: int | None = None
    unbounded: tuple[int, ...] = ()
    lost_orders: tuple[tuple[str, str], ...] = ()
    within: tuple[int, ...] = ()
    top: TopRows | None = None
    picks: str = ""

    @property
    def leaves_out(self) -> str:
        """The clause that may leave groups out of the rows; an empty text if none does."""
        clauses = {
            "HAVING": self.having,
            "QUALIFY": self.qualify,
            "LIMIT": self.limit is not None,
            "OFFSET": self.offset,
            AROUND: self.picks == AROUND,
        }
        return next((clause for clause, is_there in clauses.items() if is_there), "")


@dataclass(frozen=True, slots=True)
class After:
    """A query over the result: SQL that reads it, and the columns that it makes."""

    sql: str
    columns: tuple[OutputColumn, ...]


@dataclass(frozen=True, slots=True)
class Request:
    """How private the answer shall be, by rho or by (epsilon, delta), and which release of its frames it shall be.

    Attributes:
        rho, epsilon: one of them; the other is None.
        delta: what thresholds, or the conversion to epsilon, may cost.
        min_units: groups of fewer units are not shown.
        refresh: whether a new generation of the frames is asked for.
        own_threshold: whether keys pass a threshold at the level asked for, whatever keys were shown before.
        coverage: whether what bounds leave is to be measured where it can be; None where nobody wants to know.
        amount: option that a level is named by; where it is epsilon, ``rho`` holds an epsilon.
        by_budget: whether epsilon becomes rho as in the budget of an exact unit without thresholds.
        target: the half widths that the level follows from; None if a level was asked for.

    """

    rho: float | None
    epsilon: float | None
    delta: float
    min_units: int = 1
    refresh: bool = False
    own_threshold: bool = False
    coverage: bool | None = None
    by_budget: bool = False
    amount: Literal["rho", "epsilon"] = "rho"
    target: HalfWidths | None = None

    @property
    def asked_epsilon(self) -> float:
        """Epsilon, where no rho is asked for.

        Raises:
            CalibrationError: neither is.

        """
        if self.epsilon is None:
            raise CalibrationError("a query needs rho or epsilon")
        return self.epsilon

    def at(self, rho: float) -> Request:
        """The same at a level of rho."""
        return replace(self, rho=rho, epsilon=None)


@dataclass(frozen=True, slots=True)
class AutoGroups:
    """What ``max_groups_contributed = AUTO`` asks of the data before the frame is known.

    Attributes:
        frame: whose units are counted by their number of groups; the same whatever is asked of these groups.
        candidates: numbers that may be chosen, and the ends of the places of the histogram.
        weighted: whether units in more groups than that count with a weight.
        chosen: the answer, where it decided more than the number of groups; None where that is yet to follow from it.

    """

    frame: Frame
    candidates: tuple[int, ...]
    weighted: bool
    chosen: int | None = None


@dataclass(frozen=True, slots=True)
class AutoBounds:
    """What ``contribution_bounds_per_… => AUTO`` or ``contribution_norm => AUTO`` asks before a lattice is known.

    Attributes:
        name: the aggregate's text, for plans and receipts.
        statistic: whose extremes are looked for: of a unit's sums in its groups, or of its rows; or the norm of its
            rows or sums over its groups.
        frame: whose units are looked at.
        bounds: what was found, a norm as its two ends; of a sum that is not looked at yet, from -1 to 1.
        instead: bounds of a row that are used because nothing was found; None if there are none.

    """

    name: str
    statistic: Statistic
    frame: Frame
    bounds: tuple[float, float] | NotFound
    instead: tuple[float, float] | None = None

    @property
    def is_norm(self) -> bool:
        """Whether it is a norm that is looked for."""
        return self.statistic.kind in ("rows_norm", "sum_norm")


AutoQuestion = AutoGroups | AutoBounds
FoundBounds = Mapping[Statistic, tuple[float, float] | NotFound]
"""Bounds that AUTO found, or why it found none."""
NO_BOUNDS = (-1.0, 1.0)
"""What stands for bounds that it is yet to find."""


@dataclass(frozen=True, slots=True)
class FrameQuery:
    """A query by one set of keys: numbers that are estimated from statistics on one frame.

    Attributes:
        frame: what is grouped.
        alternatives: frames that would answer the same text by another mechanism.
        statistics: what is noised, the presence count first.
        weights: their shares of rho, which add to 1 together with those of ``unasked``.
        estimates: numbers that are made of them.
        finish: what is shown of these.
        request: how private the answer shall be.
        groups: which groups the answer has: one for each of the frame's keys, or sums of these.
        auto: what is asked of the data first; max_groups is 1 before it is chosen.
        auto_levels: where the reader stands with each question of ``auto``; none in a plan that is not bound to one.
        unasked: statistics of columns for which AUTO found no bounds, with their shares of rho. They are neither drawn
            nor paid for.
        has_one_row: whether a constraint of the tables leaves each unit at most one row; False if nobody asked.
        has_one_row_in_group: whether one leaves it at most one row in each group; False if nobody asked.

    """

    frame: Frame
    alternatives: tuple[Frame, ...]
    statistics: tuple[Statistic, ...]
    weights: tuple[float, ...]
    estimates: tuple[Estimate, ...]
    finish: Finish
    request: Request
    groups: EachKey | Buckets
    auto: tuple[AutoQuestion, ...] = ()
    auto_levels: tuple[AutoLevel, ...] = ()
    unasked: tuple[tuple[Statistic, float], ...] = ()
    has_one_row: bool = False
    has_one_row_in_group: bool = False

    @property
    def is_open(self) -> bool:
        """Whether a histogram that AUTO chooses by is not stored yet."""
        return not all(level.is_stored for level in self.auto_levels)

    @property
    def keys(self) -> tuple[Key, ...]:
        """The keys of the answer."""
        return self.groups.keys if isinstance(self.groups, Buckets) else self.frame.keys

    @property
    def total(self) -> RunningTotal | None:
        """The running total that reaches furthest, which that of buckets does; None where there is none."""
        if isinstance(self.groups, Buckets):
            return RunningTotal(self.groups.ordering, None)
        values = (one.value.instead if isinstance(one.value, NoValue) else one.value for one in self.estimates)
        totals = [value.total for value in values if isinstance(value, RunningSum)]
        return max(totals, key=lambda total: math.inf if total.span is None else total.span, default=None)


ChangeFrame = Callable[[FrameQuery], FrameQuery]


@dataclass(frozen=True, slots=True)
class PrivateQuery:
    """A query that has a private answer; `query_kinds` has the kinds, by which groups the answer has.

    Attributes:
        parts: the queries of frames that are released first: the groups.
        after: queries over the result, one over the other.
        beside: terms of its identity beside the statistics of its first part.

    """

    beside: ClassVar[tuple[str, ...]] = ()

    parts: tuple[FrameQuery, ...]
    after: tuple[After, ...] = field(default=(), kw_only=True)

    @property
    def first(self) -> FrameQuery:
        """The first of the parts: what is said of its statistics, estimates and finish holds for all."""
        return self.parts[0]

    @property
    def whole_request(self) -> Request:
        """The request of all parts together."""
        return self.first.request

    @property
    def keys(self) -> tuple[Key, ...]:
        """The keys of the groups."""
        return self.first.keys

    @property
    def shown(self) -> tuple[OutputColumn, ...]:
        """The columns of the result."""
        return self.after[-1].columns if self.after else self.first.finish.columns

    def at(self, rho: float) -> Self:
        """Return the query with each part at a level of rho."""
        return self.mapped(lambda part: replace(part, request=part.request.at(rho)))

    def mapped(self, change: ChangeFrame) -> Self:
        """The query with a change of each part; which rows are outside its groups is known when they are shown."""
        return replace(self, parts=tuple(map(change, self.parts)))
