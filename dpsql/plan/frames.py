"""The frames that can answer a query: levels, how units are bounded, and by which mechanisms.

Frames of one set of keys differ in sparsity and mechanism alone, the best not chosen yet. Correlated noise needs a
number of keys that is enforced: a public list, or the subtraction of the (k+1)-th largest presence count. A number that
somebody declares, and that the data might break, is none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

from sqlglot import exp

from dpsql.model.environment import Mechanism, Unfit, things_without
from dpsql.model.estimates import UNITS, RunningSum
from dpsql.model.frame import (
    NANO,
    Bounding,
    Factorised,
    Frame,
    Key,
    Ordering,
    PublicKeys,
    Rows,
    RowsSql,
    Sparsity,
    Window,
)
from dpsql.model.private_query import Buckets, EachKey, QueryOptions, Request
from dpsql.model.refusals import Refusals, refuse_combinations, that_hold
from dpsql.operations.dialect import quote, to_sql
from dpsql.plan.aggregates.arguments import Aggregate
from dpsql.plan.features.auto import counted_groups
from dpsql.plan.measures import check_beside_buckets, measured_things
from dpsql.plan.select_text import SelectKeys, SelectText
from dpsql.sql.clauses import MAX_GROUPS_LIMIT, Clauses, is_aggregate_call
from dpsql.sql.names import ResolvedSelect


def read_levels(text: SelectText) -> tuple[Request, int | None]:
    """How private the answer shall be, and the ceiling of its frames in nano-rho.

    The query says it, else the policy; a ceiling that the query asks for is no higher than the policy's.
    """
    options, rules, levels, refusals = text.clauses.options, text.owner.rules, text.owner.rules.levels, text.refusals
    rho, epsilon = options.rho, options.epsilon
    if rho is None and epsilon is None:
        rho, epsilon = levels.default_rho, levels.default_epsilon if levels.default_rho is None else None
    if rho is None and epsilon is None:
        refusals.add(
            "privacy_level_missing", text.clauses.source,
            "neither policy nor query says how private the answer shall be.",
            "Write SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 0.5), or declare default_rho in dp_protect.",
        )  # fmt: skip
    refuse_combinations({"rho_window"}, options.given | that_hold({"epsilon": epsilon}), text.hint, refusals)
    level, most = options.rho_ceiling or levels.ceiling, levels.ceiling or levels.limit
    is_above = level and most is not None and round(level * NANO) > round(most * NANO)
    known = options.given | that_hold({"a lower ceiling of the policy, or limit of the reader": is_above})
    refuse_combinations({"rho_ceiling"}, known, text.hint, refusals, limit=most)
    request = Request(
        rho,
        epsilon,
        options.delta if options.delta is not None else levels.default_delta,
        min_units=max(options.min_privacy_units_per_group or 1, rules.min_units),
        refresh=bool(options.refresh),
        own_threshold=bool(options.own_threshold),
    )
    return request, max(1, round(level * NANO)) if level else None


@dataclass(frozen=True, slots=True)
class GroupedSource:
    """What a query groups, before its keys: the frame without any, and what says how a unit's groups are bounded."""

    text: SelectText
    base: Frame
    request: Request

    def by_keys(self, written: Sequence[exp.Expr], keys: tuple[Key, ...], public: PublicKeys | None) -> Frame:
        """The frame by some keys, its mechanism not chosen yet."""
        options, rules, hides = self.text.clauses.options, self.text.owner.rules, bool(written) and not public
        # AUTO has a number when it chose one
        asked = 1 if options.max_groups_contributed == "AUTO" else options.max_groups_contributed or rules.max_groups
        if not written:
            asked = 1
        elif public:
            asked = max(1, min(asked or public.count, public.count))
        counted = counted_groups(asked, public) if options.bounding == "L2" and asked else None
        bounding = Bounding(asked, counted, rules.min_units if hides else 1)
        # a query by epsilon leaves the policy's window
        levels = options.rho_window or (rules.levels.window if self.request.epsilon is None else None)
        window = self._window(*levels) if hides and levels else None
        return replace(self.base, keys=keys, public_keys=public, bounding=bounding, window=window)

    def _window(self, lowest: float, highest: float) -> Window:
        """The window of a frame with private keys.

        Another delta is another window, since the first release pays for all.
        """
        low, high, ceiling = round(lowest * NANO), round(highest * NANO), self.base.ceiling
        known = {"rho_window"} | that_hold({"a ceiling at another level": ceiling not in (None, high)})
        end = (ceiling or high) / NANO
        refuse_combinations({"rho_window"}, known, self.text.hint, self.text.refusals, low=low / NANO, ceiling=end)
        return Window(low, high, self.request.delta)


@dataclass(frozen=True, slots=True)
class SetFrames:
    """One set of keys as the text writes them, and the frames that can answer it; none where something was refused."""

    written: tuple[exp.Expr, ...]
    frames: tuple[Frame, ...]


def base_frame(text: SelectText, inner: ResolvedSelect, ceiling: int | None) -> Frame:
    """The frame of the rows of a query without keys, in which every unit has one group."""
    relation, schema, rules = text.relation, text.relation.schema, text.owner.rules
    unit = schema.column(text.owner.unit)
    if not unit:
        raise AssertionError("a relation has the column that names its unit")
    rows = Rows(
        unit=rules.unit,
        table=schema.canonical,
        version=rules.version,
        unit_column=Key(quote(unit.name), unit.type),
        filters=tuple(sorted({to_sql(part) for part in inner.filters})),
        settings=text.environment.settings,
        links=rules.links if relation.is_table else (),
        source="" if relation.is_table else relation.identity,
        reads=() if relation.is_table else relation.reads,
    )
    rows_sql = RowsSql(schema.relation, schema.types, relation.cuts)
    return Frame(rows, rows_sql, Bounding(max_groups=1), ceiling=ceiling)


def frames_by_keys(source: GroupedSource, by: SelectKeys, aggregates: Mapping[str, Aggregate]) -> SetFrames:
    """The frames by the one set of keys of a query."""
    text, written = source.text, by.inner.keys
    is_public = that_hold({"public keys": not written or by.public})
    refuse_combinations({"own_threshold"}, text.clauses.options.given | is_public, text.hint, text.refusals)
    frame = source.by_keys(written, by.keys, by.public)
    if by.inner is not text.select:
        once = frame.bounding.max_groups == 1 and not is_left_to_auto(text.clauses.options, frame)
        check_beside_buckets(
            text.select, aggregates, source.request.min_units, text.hint, once=once, refusals=text.refusals
        )
    found = candidates(frame, text.environment.mechanisms, text.clauses, by.inner, aggregates, by.groups, text.refusals)
    return SetFrames(written, found)


def is_left_to_auto(options: QueryOptions, frame: Frame) -> bool:
    """Whether AUTO chooses the number of groups of a unit, which may have more than one."""
    return options.max_groups_contributed == "AUTO" and bool(frame.keys) and frame.key_count != 1


_SKETCH = {"mechanism = MISRA_GRIES", "sketch_size"}
_OF_NOISE = {
    "bounding = L2", "max_groups_contributed = AUTO", "public keys", "private keys", "mechanism = FACTORISED_GAUSSIAN",
    "running totals or buckets", "sketch",
}  # fmt: skip
"""Things that are about noise, or that not every noise goes with."""
_NOISE_OPTIONS = {"bounding", "max_groups_contributed", "mechanism", "top_k", "sketch_size"}

_HEADROOM = 2
"""LIMIT n pre-selects this many times n groups: a group is shown where it exceeds the largest one left out by more than
the threshold, and of exactly n groups the last would hardly ever do so."""


def candidates(
    frame: Frame,
    mechanisms: Sequence[Mechanism],
    clauses: Clauses,
    resolved: ResolvedSelect,
    aggregates: Mapping[str, Aggregate],
    groups: EachKey | Buckets,
    refusals: Refusals,
) -> tuple[Frame, ...]:
    """The frame by every mechanism that can answer it, at least one unless a refusal was noted."""
    options = clauses.options
    values = [aggregate.estimate.value for aggregate in aggregates.values()]
    totals = [value.total.ordering for value in values if isinstance(value, RunningSum)]
    along = groups.ordering if isinstance(groups, Buckets) else next(iter(totals), None)
    asked = _things(frame, options, resolved, along)
    if along or options.given & _NOISE_OPTIONS:
        known = asked | things_without(options.mechanism, mechanisms)
        if _is_refused(frame, clauses, resolved, aggregates, known, refusals):
            return ()
    if "public keys" in asked:
        # which power of the totals is noised depends on its noise, and is chosen with it
        factorised = Factorised(along, 0) if along else None
        # beside weights of one group, which are asked for in vain, a noise that they do not go with is no refusal
        word = options.mechanism if resolved.keys or "bounding = L2" not in asked else None
        return tuple(
            replace(frame, mechanism=one.name, factorised=factorised if one.noises_totals else None)
            for one in _fitting(mechanisms, word, asked)
            if one.word == word or one.least_keys <= (frame.key_count or 1)
        )
    sparsity = _sparsity(frame, clauses, resolved, aggregates)
    if not sparsity and (frame.bounding.max_groups is None or options.mechanism == "CSH"):
        # CSH is refused for want of k even where max_groups is known
        things = {"private keys without top_k or LIMIT", "no max_groups_contributed"}
        refuse_combinations(
            {"mechanism = CSH", "private keys without top_k or LIMIT"}, options.given | things, resolved.keys[0],
            refusals, first=True,
        )  # fmt: skip
        return ()
    fitting = _fitting(mechanisms, options.mechanism, asked if sparsity else asked | {"all private keys"})
    bounded = replace(frame, bounding=replace(frame.bounding, sparsity=sparsity))
    # the common term first: near a tie of noise the first candidate stays
    return tuple(replace(bounded, mechanism=one.name) for one in reversed(fitting))


def _things(frame: Frame, options: QueryOptions, resolved: ResolvedSelect, along: Ordering | None) -> frozenset[Unfit]:
    """What the query has that not every mechanism goes with."""
    # a key that was refused is not in the frame, and is private all the same
    is_private = bool(resolved.keys) and not frame.public_keys
    things: list[Unfit] = [
        "private keys" if is_private else "public keys",
        "sketch" if options.given & _SKETCH else "no sketch",
    ]
    is_auto = options.max_groups_contributed == "AUTO"
    if options.bounding == "L2" and (frame.bounding.counted_groups or is_auto):
        # units in many groups count in them with a weight
        things.append("bounding = L2")
    else:
        things.append("running totals or buckets" if along else "neither running totals nor buckets")
    return frozenset(things)


def _is_refused(
    frame: Frame,
    clauses: Clauses,
    resolved: ResolvedSelect,
    aggregates: Mapping[str, Aggregate],
    asked: AbstractSet[str],
    refusals: Refusals,
) -> bool:
    """Note the first refusal of the noise that is asked for; False where it goes with the query."""
    options = clauses.options
    known = options.given | measured_things(aggregates)
    if not resolved.keys:
        # a unit has one group, which nothing bounds
        known -= {"bounding = L2", "max_groups_contributed = AUTO"}
    # weights are refused as they were asked for: a frame without keys may have some, and one group
    known |= (asked - {"bounding = L2"}) | that_hold({
        "no max_groups_contributed": frame.bounding.max_groups is None,
        "one of MISRA_GRIES and sketch_size alone": len(options.given & _SKETCH) == 1,
    })  # fmt: skip
    return refuse_combinations(_OF_NOISE, known, clauses.select[0], refusals, first=True, mechanism=options.mechanism)


def things_of(frames: Sequence[Frame]) -> frozenset[str]:
    """Things known of the keys of a query by its frames."""
    frame = frames[0]
    return that_hold(
        {
            "public keys": frame.public_keys,
            "no text key": frame.has_private_keys and all(key.type != "VARCHAR" for key in frame.keys),
            "no max_groups_contributed": frame.bounding.max_groups is None,
            "the largest groups alone": any(one.bounding.sparsity for one in frames),
        }
    )


def wanted_rows(clauses: Clauses, resolved: ResolvedSelect, aggregates: Mapping[str, Aggregate]) -> int | None:
    """The n of ``ORDER BY count(DISTINCT unit) DESC LIMIT n``; None where the query asks for anything else.

    HAVING drops rows after the order is made, so the rows that it leaves need not be among the n largest.
    """
    if clauses.limit is None or resolved.having is not None or not resolved.order:
        return None
    first = resolved.order[0]
    aggregate = aggregates.get(to_sql(first.this)) if is_aggregate_call(first.this) else None
    if not aggregate or not first.args.get("desc"):
        return None
    rows = clauses.limit + (clauses.offset or 0)
    return rows if aggregate.estimate.value == UNITS and 1 <= _HEADROOM * rows <= MAX_GROUPS_LIMIT else None


def _fitting(mechanisms: Sequence[Mechanism], word: str | None, asked: AbstractSet[Unfit]) -> list[Mechanism]:
    """The mechanism that is named, or all that are offered where none is, of those that go with what is asked."""
    named = [one for one in mechanisms if (one.word == word if word else one.is_offered)]
    return [one for one in named if one.without.isdisjoint(asked)]


def _sparsity(
    frame: Frame, clauses: Clauses, resolved: ResolvedSelect, aggregates: Mapping[str, Aggregate]
) -> Sparsity | None:
    """What leaves a number of private keys that is enforced; None where all are noised."""
    options = clauses.options
    if options.sketch_size:
        return Sparsity("sketch", options.sketch_size)
    if options.top_k:
        return Sparsity("top_k", options.top_k)
    is_needed = frame.bounding.max_groups is None or options.mechanism == "CSH"
    rows = wanted_rows(clauses, resolved, aggregates) if is_needed else None
    return Sparsity("top_k", _HEADROOM * rows) if rows else None
