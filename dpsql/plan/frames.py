"""The frames that can answer a query: levels, how units are bounded, and by which mechanisms.

Frames of one set of keys differ in sparsity and mechanism alone, the best not chosen yet. Correlated noise needs a
number of keys that is enforced: a public list, or the subtraction of the (k+1)-th largest presence count. A number that
somebody declares, and that the data might break, is none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

from dpsql.model.environment import Unfit, things_without
from dpsql.model.estimates import UNITS, RunningSum
from dpsql.model.frame import NANO, Bounding, Factorised, Frame, Ordering, Sparsity, Window
from dpsql.model.half_widths import HalfWidths
from dpsql.model.private_query import Buckets, EachKey, QueryOptions, Request
from dpsql.model.refusals import refuse_combinations, that_hold
from dpsql.model.rows import TYPES_IN_CONSTRAINTS, Key, PublicKeys, Rows, RowsSql
from dpsql.operations import blanks
from dpsql.operations.dialect import quote, text_literal, to_sql
from dpsql.plan.aggregates.arguments import Aggregate
from dpsql.plan.features.auto import bounded_by_norm, counted_groups
from dpsql.plan.features.key_rounds import COUNTED_KEYS, first_round, numbers_frame
from dpsql.plan.features.largest import without_auto
from dpsql.plan.features.pure import PURE, refuse_numbers, request_in_epsilon
from dpsql.plan.keys import SelectKeys, refuse_thresholds
from dpsql.plan.measures import check_beside_buckets, measured_things
from dpsql.sql.clauses import Clauses, is_aggregate_call
from dpsql.sql.names import ResolvedSelect
from dpsql.sql.options import MAX_GROUPS_LIMIT
from dpsql.sql.source.row_bounds import sentence_of
from dpsql.sql.source.sources import SelectText


@dataclass(frozen=True, slots=True)
class GroupedSource:
    """What a query groups, and what all its frames have in common.

    Attributes:
        text: the query.
        request: how private the answer shall be.
        ceiling: that of its frames in nano-rho; None where they have none.

    """

    text: SelectText
    request: Request
    ceiling: int | None

    def by_keys(self, select: ResolvedSelect, keys: tuple[Key, ...], public: PublicKeys | None) -> Frame:
        """The frame of the rows of a query by some keys, its mechanism not chosen yet."""
        text, options, rules = self.text, self.text.options, self.text.owner.rules
        relation, hides = text.relation, bool(select.keys) and not public
        if hides and not rules.has_thresholds:
            refuse_thresholds(text, select.keys)
        rows = Rows(
            unit=rules.unit,
            table=relation.schema.canonical,
            version=rules.version,
            unit_column=Key(quote(text.owner.unit), relation.unit_type),
            filters=tuple(sorted({to_sql(part) for part in select.filters})),
            settings=text.environment.settings,
            links=rules.links if relation.is_table else (),
            source="" if relation.is_table else relation.identity,
            reads=() if relation.is_table else relation.reads,
        )
        zones = tuple(sorted(text.zones))
        is_stored = relation.is_table and not rules.links and relation.unit_type in TYPES_IN_CONSTRAINTS
        stored = (*relation.schema.catalog_name, rules.privacy_unit_column) if is_stored else ()
        schema = relation.schema
        rows_sql = RowsSql(
            schema.relation,
            schema.types,
            cuts=relation.cuts,
            single=relation.single,
            bounds="" if relation.is_table else _bounds_of_joined(text),
            called=_called(text),
            zones=zones,
            stored_unit=stored,
        )
        # AUTO has a number when it chose one; without keys a unit has one group
        by_norm = options.bounding == "NORM"
        most = options.max_groups_contributed or rules.max_groups or (rules.max_rows_per_unit if by_norm else None)
        most = 1 if most == "AUTO" or not select.keys else most
        if public:
            most = max(1, min(most or public.count, public.count))
        counted = counted_groups(most, public) if options.bounding == "L2" and most else None
        bounding = Bounding(most, counted, rules.min_units if hides else 1)
        if by_norm:
            key_count = public.count if public else None if select.keys else 1
            bounding = bounded_by_norm(bounding, key_count, rules.max_rows_per_unit)
        # a query by epsilon leaves the policy's window
        levels = options.rho_window or (
            rules.levels.window if self.request.epsilon is None and rules.composition != PURE else None
        )
        window = self._window(*levels) if hides and levels else None
        return Frame(rows, rows_sql, bounding, keys, public, window=window, ceiling=self.ceiling)

    def _window(self, lowest: float, highest: float) -> Window:
        """The window of a frame with private keys.

        Another delta is another window, since the first release pays for all.
        """
        low, high, ceiling = round(lowest * NANO), round(highest * NANO), self.ceiling
        known = {"rho_window"} | that_hold({"a ceiling at another level": ceiling not in (None, high)})
        end = (ceiling or high) / NANO
        refuse_combinations({"rho_window"}, known, self.text.hint, self.text.refusals, low=low / NANO, ceiling=end)
        return Window(low, high, self.request.delta)


STAND_IN_RHO = 1.0
"""Level by which a query is planned whose level follows from its half widths. Nothing is answered at it."""


def read_levels(text: SelectText) -> GroupedSource:
    """How private the answer shall be, and the ceiling of its frames.

    The query says it, else the policy; a ceiling that the query asks for is no higher than the policy's.
    """
    options, rules, levels, refusals = text.options, text.owner.rules, text.owner.rules.levels, text.refusals
    rho, epsilon, target = options.rho, options.epsilon, options.target_half_width
    half_widths = None
    if target is not None:
        rho = STAND_IN_RHO
        half_widths = HalfWidths(target, options.confidence or 0.95, options.max_rho, options.max_epsilon)
    if options.target_relative_error is not None:
        rho, epsilon, text = options.max_rho, options.max_epsilon, without_auto(text)
        if rho is None and epsilon is None:
            # that both are missing is refused
            rho = STAND_IN_RHO
    if rho is None and epsilon is None:
        rho, epsilon = levels.default_rho, levels.default_epsilon if levels.default_rho is None else None
    if rho is None and epsilon is None:
        refusals.add(
            "privacy_level_missing",
            text.clauses.source,
            "neither policy nor query says how private the answer shall be.",
            "Write SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 0.5), or declare "
            f"{rules.declaration(text.relation.schema.canonical, f'default_epsilon := {blanks.EPSILON}')}.",
            "Write SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 0.5).",
        )
    level, most = options.rho_ceiling or levels.ceiling, levels.ceiling or levels.limit
    is_above = level and most is not None and round(level * NANO) > round(most * NANO)
    # a window beside max_epsilon is refused with the target
    by_epsilon = epsilon is not None and options.target_relative_error is None
    known = that_hold({"epsilon": by_epsilon, "a lower ceiling of the policy, or limit of the reader": is_above})
    refuse_combinations({"rho_window", "rho_ceiling"}, options.given | known, text.hint, refusals, limit=most)
    delta = options.delta if options.delta is not None else levels.default_delta
    min_units = max(options.min_privacy_units_per_group or 1, rules.min_units)
    request = Request(
        rho=rho,
        epsilon=epsilon,
        delta=delta,
        min_units=min_units,
        refresh=bool(options.refresh),
        own_threshold=bool(options.own_threshold),
        # of a table without it, no receipt says that it is not measured
        coverage=(levels.coverage or None) if options.coverage is None else options.coverage,
        by_budget=rules.composition == "gaussian" and not rules.has_thresholds,
        target=half_widths,
    )
    if rules.composition == PURE:
        request = request_in_epsilon(text, request)
    return GroupedSource(text, request, max(1, round(level * NANO)) if level else None)


def _called(text: SelectText) -> tuple[tuple[str, str], ...]:
    """Return the columns of a join or subquery that the query calls otherwise, as quoted SQL, each with its name."""
    schema = text.relation.schema
    outputs = [one.output for one in schema.names]
    called = [(quote(one.output), schema.called(one.output)) for one in schema.names if one.output != one.declared]
    if outputs and text.owner.unit not in outputs:
        called.append((quote(text.owner.unit), "the privacy unit"))
    return tuple(called)


def _bounds_of_joined(text: SelectText) -> str:
    """Return which bounds joined rows have; empty if they are those of the one protected table that is read."""
    relation, owner, policy = text.relation, text.owner, text.environment.policy
    parents = {step.parent for step in owner.rules.links}
    protected = {table for table, _ in relation.reads if table not in parents and policy.rules(table)}
    return "" if (*protected,) == owner.bounds_from and not owner.bounds_rule else sentence_of(owner)


def frames_by_keys(source: GroupedSource, by: SelectKeys, aggregates: Mapping[str, Aggregate]) -> tuple[Frame, ...]:
    """The frames by the one set of keys of a query; none where something was refused."""
    text = source.text
    is_public = that_hold({"public keys": not by.inner.keys or by.public})
    refuse_combinations({"own_threshold", "rho_window"}, text.options.given | is_public, text.hint, text.refusals)
    frame = source.by_keys(by.inner, by.keys, by.public)
    if frame.has_private_keys and not by.inner.calls and frame.bounding.max_groups != 1:
        most = text.options.max_groups_contributed
        frame = first_round(frame, most if isinstance(most, int) else COUNTED_KEYS)
    if frame.has_private_keys and text.options.mechanism == "KEYS_FIRST":
        frame = numbers_frame(frame)
    if by.inner is not text.select:
        once = frame.bounding.max_groups == 1 and not is_left_to_auto(text.options, frame)
        check_beside_buckets(text, aggregates, source.request.min_units, once=once)
    return candidates(frame, text, text.options, by.inner, aggregates, by.groups)


def selection_frames(source: GroupedSource, by: SelectKeys) -> tuple[Frame, ...]:
    """The frames of the first round in which the keys of a query are selected before its numbers."""
    frame = first_round(source.by_keys(by.inner, by.keys, by.public), COUNTED_KEYS)
    return candidates(frame, source.text, QueryOptions(), by.inner, {}, by.groups)


def is_left_to_auto(options: QueryOptions, frame: Frame) -> bool:
    """Whether AUTO chooses the number of groups of a unit, which may have more than one."""
    return options.max_groups_contributed == "AUTO" and bool(frame.keys) and frame.key_count != 1


_SKETCH = {"mechanism = MISRA_GRIES", "sketch_size"}
_OF_NOISE = {
    "bounding = L2",
    "bounding = NORM",
    "composition = gaussian",
    "composition = pure",
    "mechanism = LAPLACE",
    "max_groups_contributed = AUTO",
    "public keys",
    "private keys",
    "mechanism = FACTORISED_GAUSSIAN",
    "running totals or buckets",
    "sketch",
}
"""Things that are about noise, or that not every noise goes with."""
_NOISE_OPTIONS = {"bounding", "max_groups_contributed", "mechanism", "top_k", "sketch_size"}

_COMPOSITIONS: Mapping[str, Unfit] = {
    "gaussian": "composition = gaussian",
    "zcdp": "composition = zcdp",
    "pure": "composition = pure",
}
_HEADROOM = 2
"""LIMIT n pre-selects this many times n groups: a group is shown where it exceeds the largest one left out by more than
the threshold, and of exactly n groups the last would hardly ever do so."""


def candidates(
    frame: Frame,
    text: SelectText,
    options: QueryOptions,
    select: ResolvedSelect,
    aggregates: Mapping[str, Aggregate],
    groups: EachKey | Buckets,
) -> tuple[Frame, ...]:
    """The frame by every mechanism that can answer it, at least one unless a refusal was noted.

    Args:
        frame: its mechanism is not chosen yet.
        text: the query.
        options: what is asked for, by this set of keys.
        select: the query by these keys.
        aggregates: what it measures.
        groups: which groups the answer has.

    """
    values = (aggregate.estimate.value for aggregate in aggregates.values())
    totals = (value.total.ordering for value in values if isinstance(value, RunningSum))
    along = groups.ordering if isinstance(groups, Buckets) else next(totals, None)
    budget, mechanisms = _COMPOSITIONS[text.owner.rules.composition], text.environment.mechanisms
    asked = _things(frame, options, select, along) | {budget}
    if budget == "composition = pure" and refuse_numbers(text, frame, aggregates):
        return ()
    if along or options.given & _NOISE_OPTIONS:
        known = asked | things_without(options.mechanism, mechanisms)
        if _is_refused(frame, text, options, select, measured_things(aggregates), known):
            return ()
    if "private keys" in asked:
        sparsity = _sparsity(frame, text.clauses, options, select, aggregates)
        if not sparsity and (frame.bounding.max_groups is None or options.mechanism == "CSH"):
            _refuse_any_number(text, options, select)
            return ()
        asked = asked if sparsity else asked | {"all private keys"}
        frame = replace(frame, bounding=replace(frame.bounding, sparsity=sparsity))
    # beside weights of one group, which are asked for in vain, a noise that they do not go with is no refusal
    word = options.mechanism if select.keys or "bounding = L2" not in asked else None
    named = [one for one in mechanisms if (one.word == word if word else one.is_offered)]
    fitting = [one for one in named if one.without.isdisjoint(asked)]
    if "private keys" in asked:
        # the common term first: near a tie of noise the first candidate stays
        return tuple(replace(frame, mechanism=one.name) for one in reversed(fitting))
    # which power of the totals is noised depends on its noise, and is chosen with it
    factorised = Factorised(along, 0) if along else None
    return tuple(
        replace(frame, mechanism=one.name, factorised=factorised if one.noises_totals else None)
        for one in fitting
        if one.word == word or one.least_keys <= (frame.key_count or 1)
    )


def _largest_groups(text: SelectText) -> str:
    """Return the part of a hint that asks for AUTO or for the largest groups alone; empty beside what has neither."""
    options = text.options
    if text.has_sets:
        return "; with one GROUP BY, AUTO finds this number"
    goes_with = not (options.mechanism or options.bounding or options.other_group)
    return f"; for the largest groups alone, write OPTIONS (top_k = {blanks.LARGEST_GROUPS})" if goes_with else ""


def _refuse_any_number(text: SelectText, options: QueryOptions, select: ResolvedSelect) -> None:
    """Note a refusal because no number of groups of a unit, nor of keys, is known."""
    if options.mechanism == "KEYS_FIRST":
        # its refusal was noted with the selection of keys
        return
    # CSH is refused for want of k even where max_groups is known
    refuse_combinations(
        {"mechanism = CSH", "private keys without top_k or LIMIT"},
        options.given | {"private keys without top_k or LIMIT", "no max_groups_contributed"},
        select.keys[0],
        text.refusals,
        first=True,
        largest=_largest_groups(text),
    )


def _things(frame: Frame, options: QueryOptions, select: ResolvedSelect, along: Ordering | None) -> frozenset[Unfit]:
    """What the query has that not every mechanism goes with."""
    # a key that was refused is not in the frame, and is private all the same
    keys: Unfit = "private keys" if select.keys and not frame.public_keys else "public keys"
    third: Unfit = "running totals or buckets" if along else "neither running totals nor buckets"
    is_chosen = frame.bounding.counted_groups or options.max_groups_contributed == "AUTO"
    if options.bounding in ("L2", "NORM") and is_chosen:
        # units in many groups count in them with a weight, or what they add is no whole number
        third = "bounding = L2"
    return frozenset((keys, "sketch" if options.given & _SKETCH else "no sketch", third))


def _is_refused(
    frame: Frame,
    text: SelectText,
    options: QueryOptions,
    select: ResolvedSelect,
    measured: AbstractSet[str],
    asked: AbstractSet[str],
) -> bool:
    """Note the first refusal of the noise that is asked for; False where it goes with the query."""
    known = options.given | measured
    if not select.keys:
        # a unit has one group, which nothing bounds
        known -= {"bounding = L2", "bounding = NORM", "max_groups_contributed = AUTO"}
    # weights are refused as they were asked for: a frame without keys may have some, and one group
    known |= (asked - {"bounding = L2"}) | that_hold(
        {
            "no max_groups_contributed": frame.bounding.max_groups is None,
            "one of MISRA_GRIES and sketch_size alone": len(options.given & _SKETCH) == 1,
        }
    )
    clause, unit = text.clauses.select[0], text_literal(text.owner.rules.unit)
    words = {"mechanism": options.mechanism, "unit": unit}
    return refuse_combinations(_OF_NOISE, known, clause, text.refusals, first=True, **words)


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


def _sparsity(
    frame: Frame, clauses: Clauses, options: QueryOptions, select: ResolvedSelect, aggregates: Mapping[str, Aggregate]
) -> Sparsity | None:
    """What leaves a number of private keys that is enforced; None where all are noised."""
    if options.sketch_size or options.top_k:
        return Sparsity("sketch" if options.sketch_size else "top_k", options.sketch_size or options.top_k or 0)
    if frame.bounding.max_groups is not None and options.mechanism != "CSH":
        return None
    rows = _wanted_rows(clauses, select, aggregates)
    return Sparsity("top_k", _HEADROOM * rows) if rows else None


def _wanted_rows(clauses: Clauses, select: ResolvedSelect, aggregates: Mapping[str, Aggregate]) -> int | None:
    """The n of ``ORDER BY count(DISTINCT unit) DESC LIMIT n``; None where the query asks for anything else.

    HAVING drops rows after the order is made, so the rows that it leaves need not be among the n largest.
    """
    if clauses.limit is None or select.having is not None or not select.order:
        return None
    first = select.order[0]
    aggregate = aggregates.get(to_sql(first.this)) if is_aggregate_call(first.this) else None
    if not aggregate or not first.args.get("desc"):
        return None
    rows = clauses.limit + (clauses.offset or 0)
    return rows if aggregate.estimate.value == UNITS and 1 <= _HEADROOM * rows <= MAX_GROUPS_LIMIT else None
