"""From a SELECT to a private query: what is grouped, measured and shown; refuses what cannot be private.

`plan_query` reads a SELECT from the rows outwards: sources, names, keys, aggregates, frames. What one step has read is
a record that the next ones take.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace

from sqlglot import exp

from dpsql.errors import ParseError, SchemaError, UnsupportedQueryError
from dpsql.model.environment import Environment, things_without
from dpsql.model.frame import PRESENCE, Frame
from dpsql.model.private_query import AutoBounds, AutoQuestion, Finish, FoundBounds, FrameQuery, PrivateQuery
from dpsql.model.query_kinds import (
    AutoHalfWidths,
    KeysAlone,
    KeysFirst,
    LargestWithin,
    OneSet,
    WithinTarget,
    WithOtherGroup,
)
from dpsql.model.refusals import Refusals, refuse_combinations, that_hold
from dpsql.model.rows import Key
from dpsql.model.top_rows import AROUND
from dpsql.operations.dialect import TOO_DEEP, to_sql
from dpsql.plan.aggregates.arguments import Aggregate
from dpsql.plan.aggregates.source import AggregateSource
from dpsql.plan.features.auto import auto_groups
from dpsql.plan.features.coverage import with_coverage
from dpsql.plan.features.defaults import MISSING, plan_with_auto
from dpsql.plan.features.half_width_caps import needs_named_bounds
from dpsql.plan.features.half_widths import check_half_widths
from dpsql.plan.features.largest import largest_within
from dpsql.plan.features.other_group import outside_frame, over_groups
from dpsql.plan.features.pure_cures import in_epsilon
from dpsql.plan.features.relative_errors import cap_of, check_relative_error, relative_error
from dpsql.plan.finish import check_outputs, read_finish
from dpsql.plan.frames import (
    GroupedSource,
    frames_by_keys,
    is_left_to_auto,
    read_levels,
    selection_frames,
    things_of,
)
from dpsql.plan.grouping_sets import frames_of_sets, read_grouping, sets_of
from dpsql.plan.keys import SelectKeys, read_select_keys, unlisted_keys
from dpsql.plan.measures import auto_bounds, measured_things, read_aggregates, statistics_of
from dpsql.plan.outer_query import picks_by_numbers, read_after, split
from dpsql.plan.unique_keys import unique_keys, units_have_one_row, with_row_facts
from dpsql.sql.row_rules import check_row_expression
from dpsql.sql.row_types import check_private_parts, checked_conditions
from dpsql.sql.source.scope import PrivateInside
from dpsql.sql.source.sources import SelectText, read_select
from dpsql.sql.source.unit_groups import refuse_single_units
from dpsql.sql.statements import SelectStatement, check_size, check_statistics
from dpsql.sql.windows import mark_windows


def plan_query(
    statement: SelectStatement,
    environment: Environment,
    keywords: Mapping[str, object] | None = None,
    found_bounds: FoundBounds | None = None,
) -> PrivateQuery:
    """Plan a SELECT.

    Args:
        statement: the parsed text.
        environment: policy, schemas, settings and clock.
        keywords: options given beside the text (``rho=0.1``).
        found_bounds: bounds that AUTO found for this text before.

    Returns:
        A PrivateQuery; a function of text, policy, schemas and clock alone.

    Raises:
        ParseError: the text unfolds to more than can be read.
        SchemaError: a name is not there for this reader, or an expression has no type.
        UnsupportedQueryError: no private answer is defined; lists every reason.

    """
    refusals = Refusals(statement.text)
    check_size(statement.tree, refusals)
    if not isinstance(statement.tree, exp.Select):
        refusals.refuse(
            "clause",
            statement.tree.expression,
            f"{type(statement.tree).__name__.upper()} has no private form by itself.",
            "Put it around private queries.",
        )
    try:
        text = read_select(statement.tree, keywords or {}, environment, refusals)
        if isinstance(text, PrivateInside):
            return _plan_inside(statement.tree, text, environment, keywords or {}, found_bounds or {}, refusals)
        read, found = tuple(refusals.found), found_bounds or {}
        try:
            return _plan(text, found)
        except UnsupportedQueryError as error:
            from dpsql.plan.spellings import respelled  # noqa: PLC0415 — only refused texts need it

            other, refused = respelled(statement.tree, text), error.refusals
            if other is None and text.owner.rules.counts_epsilon:
                # AUTO finds no bounds there
                raise UnsupportedQueryError(in_epsilon(text, refused)) from None
            if other is None and needs_named_bounds(text):
                raise
        if other is not None:
            return plan_query(replace(statement, tree=other), environment, keywords, found_bounds)
        # what is refused for want of a bound alone is left to AUTO
        return plan_with_auto(text, read, refused, found, lambda changed: _plan(changed, found))
    except SchemaError:
        # a name that is not found may belong to a clause that was just refused
        refusals.found[:] = [one for one in refusals.found if one.code not in MISSING]
        refusals.raise_if_any()
        raise
    except RecursionError:
        raise ParseError(TOO_DEEP) from None


def _plan_inside(
    tree: exp.Select,
    inside: PrivateInside,
    environment: Environment,
    keywords: Mapping[str, object],
    found_bounds: FoundBounds,
    refusals: Refusals,
) -> PrivateQuery:
    """Plan the private query inside, and what is computed of its answer."""
    parts = split(tree, inside)
    if not parts:
        refusals.refuse(
            "source",
            inside.node,
            "a group of this subquery would hold rows of several units.",
            "Add the privacy unit to its GROUP BY; the query above may then group as it likes.",
        )
    inner, outer = parts
    query = plan_query(SelectStatement(inner, refusals.text), environment, keywords, found_bounds)
    picks, after = picks_by_numbers(outer, query), read_after(outer, query.shown, environment, refusals)
    query = replace(query, after=(*query.after, after))
    return query.mapped(_picked_around) if picks else query


def _picked_around(part: FrameQuery) -> FrameQuery:
    """Return a part whose rows the query around it picks, if no clause of its own does."""
    return replace(part, finish=replace(part.finish, picks=part.finish.picks or AROUND))


def _plan(text: SelectText, found_bounds: FoundBounds) -> PrivateQuery:
    """Plan a SELECT whose rows are private, from its text to its keys, aggregates and frames."""
    text = _with_calls_read(text)
    select, options, refusals = text.select, text.options, text.refusals
    private_parts = (*select.filters, *select.keys)
    for part in private_parts:
        check_row_expression(part, refusals)
    column, declared = options.privacy_unit_column, text.owner.rules.privacy_unit_column
    if column is not None and column.lower() != declared.lower():
        refusals.add(
            "option",
            text.hint,
            "privacy_unit_column differs from the policy's.",
            f"The policy says {declared}; leave the option out.",
        )
    check_outputs(text)
    _check_single_units(text)
    source = read_levels(text)
    asked = _things_asked(text)
    keys = read_select_keys(text, in_buckets="buckets" in asked and not text.has_sets)
    rows = AggregateSource(
        text.relation.schema,
        text.owner,
        text.environment,
        refusals,
        found_bounds,
        by_norm=options.bounding == "NORM",
        recentred=options.mechanism != "KEYS_FIRST" and not options.method,
        finds_bounds=text.finds_bounds,
    )
    aggregates = read_aggregates(select, rows, keys.keys, keys.public)
    if options.target_half_width is not None:
        check_half_widths(text, aggregates, rows.asked)
    if options.target_relative_error is not None:
        check_relative_error(text, aggregates, has_private_keys=_has_private(text, keys))
    if (keys.keys and not select.calls) or options.mechanism == "KEYS_FIRST":
        _check_selection(source, keys, asked | measured_things(aggregates))
    if options.bounding == "L2" or options.mechanism:
        _check_cells(text, asked | measured_things(aggregates))
    by_set = frames_of_sets(source, aggregates) if text.has_sets else (frames_by_keys(source, keys, aggregates),)
    extremes = auto_bounds(rows, by_set[0], text.clauses.select) if rows.asked else ()
    if rows.asked or (by_set[0] and "other_group" in asked):
        # AUTO may not go with the text although there is no frame yet
        known = asked | (things_of(by_set[0]) if by_set[0] else set())
        known |= that_hold({"AUTO bounds": rows.asked, "composition = pure": text.owner.rules.counts_epsilon})
        refuse_combinations({"AUTO bounds", "other_group"}, known, text.clauses.select[0], refusals)
    refusals.raise_if_any()
    check_private_parts(private_parts, select.calls, text.relation.schema.columns, text.environment, refusals)
    refusals.raise_if_any()
    if select.filters:
        # what does not bind is said before anything is charged
        checked_conditions(select.filters, text.relation.schema.columns, text.environment, refusals)
    query = _private_query(source, keys, aggregates, by_set, extremes, rows.found_bounds)
    if source.request.coverage or query.first.finish.unbounded:
        query = _with_coverage(query, text)
    if not any(aggregate.no_value for aggregate in aggregates.values()):
        return query
    from dpsql.plan.features.unbounded_column import left_out  # noqa: PLC0415 — few queries need it

    return query.mapped(left_out)


def _has_private(text: SelectText, keys: SelectKeys) -> bool:
    """Check that the one set of keys of a text has no public list."""
    return bool(keys.keys) and not (keys.public or text.has_sets)


def _with_calls_read(text: SelectText) -> SelectText:
    """The text with its windows marked, and without calls of GROUPING()."""
    select, outputs = text.select, text.select.outputs
    if select.qualify or any(part.find(exp.Window) for part in outputs):
        unlisted = unlisted_keys(text, select.keys)
        along = () if text.has_sets or unlisted else _unordered(text)
        mark_windows(select, text.refusals, along)
    has_calls = text.has_sets or any(part.find(exp.Grouping, exp.GroupingId) for part in outputs)
    return read_grouping(text) if has_calls else text


def _unordered(text: SelectText) -> frozenset[str]:
    """Return the texts of the keys that have no declared order: totals with noise of their own run by letters."""
    order, origin = text.environment.policy.order, text.relation.schema.origin
    return frozenset(
        to_sql(key) for key in text.select.keys if not (isinstance(key, exp.Column) and order(*origin(key.name)))
    )


def _things_asked(text: SelectText) -> frozenset[str]:
    """Things that a text asks for beside its keys and aggregates, without the other group where that was refused."""
    asked = text.options.given | things_without(text.options.mechanism, text.environment.mechanisms)
    asked |= that_hold({"GROUPING SETS": text.has_sets, "no GROUP BY": not text.select.keys})
    refuse_combinations({"GROUPING SETS"}, asked, text.hint, text.refusals)
    if refuse_combinations({"other_group"}, asked, text.hint or text.clauses.select[0], text.refusals):
        return asked - {"other_group"}
    return asked


def _check_selection(source: GroupedSource, keys: SelectKeys, asked: AbstractSet[str]) -> None:
    """Note what does not go with keys that are selected in rounds, alone or before numbers."""
    text = source.text
    alone = not text.select.calls
    asked |= that_hold(
        {
            "keys alone": alone,
            "public keys": keys.public,
            "a ceiling": source.ceiling,
            "no max_groups_contributed": not (text.options.max_groups_contributed or text.owner.rules.max_groups),
        }
    )
    things = {"keys alone" if alone else "mechanism = KEYS_FIRST"}
    strategy = "OPTIONS (group_selection_strategy = GAUSSIAN_THRESHOLD)"
    cure = f"; for the keys with enough units, write {strategy}" if text.owner.rules.has_thresholds else ""
    refuse_combinations(things, asked, text.hint or text.clauses.select[0], text.refusals, by_threshold=cure)


def _check_cells(text: SelectText, asked: AbstractSet[str]) -> None:
    """Note quantiles and distinct values that do not go with bounding = L2, or with the mechanism."""
    things = {"quantiles", "DISTINCT values or quantiles"} if text.options.bounding == "L2" else {"quantiles"}
    refuse_combinations(things, asked, text.hint, text.refusals, mechanism=text.options.mechanism)


def _check_single_units(text: SelectText) -> None:
    """Note a refusal if no group by private keys could be shown, and no row for the groups that are not shown."""
    keys = text.select.keys
    sets = [[keys[place] for place in places] for places in text.select.sets] if text.has_sets else [list(keys)]
    for by in sets if text.options.other_group is None else ():
        if not unlisted_keys(text, by):
            continue
        if text.owner.has_single_units(map(to_sql, by)):
            refuse_single_units(by[0], text.refusals)
        elif unique := unique_keys(text, by):
            refuse_single_units(unique[0], text.refusals, unique)


def _private_query(
    source: GroupedSource,
    keys: SelectKeys,
    aggregates: Mapping[str, Aggregate],
    by_set: Sequence[tuple[Frame, ...]],
    extremes: Sequence[AutoBounds],
    found_bounds: FoundBounds,
) -> PrivateQuery:
    """The query of a SELECT in which nothing was refused."""
    text, frames, options = source.text, by_set[0], source.text.options
    statistics, weights = statistics_of(list(aggregates.values()), frames[0], source.request.min_units)
    check_statistics(statistics, text.clauses.select[0], text.refusals)
    shown_keys = (*keys.shown, *(Key(to_sql(flag), "BIGINT") for flag in text.flags))
    auto: list[AutoQuestion] = list(extremes)
    if is_left_to_auto(options, frames[0]):
        auto.insert(0, auto_groups(frames[0], found_bounds, weighted=options.bounding in ("L2", "NORM")))
    query = FrameQuery(
        frame=frames[0],
        alternatives=frames[1:],
        statistics=statistics,
        weights=weights,
        estimates=tuple(aggregate.answered for aggregate in aggregates.values()),
        finish=read_finish(text, shown_keys, aggregates),
        request=source.request,
        groups=keys.groups,
        auto=tuple(auto),
    )
    if options.other_group is not None:
        return WithOtherGroup((query,), options.other_group, _outside(query, text))
    if text.has_sets:
        return sets_of(query, by_set, text.select, shown_keys, options)
    if options.mechanism == "KEYS_FIRST":
        return KeysFirst((query, _selection(query, selection_frames(source, keys))), text.finds_mechanism)
    if options.target_relative_error is not None:
        # without a row or a key there is nothing to choose, and steps cost nothing
        if options.method and query.finish.limit != 0 and query.frame.key_count:
            return largest_within(with_row_facts(query, text), text)
        if query.finish.within:
            query = with_row_facts(query, text)
        return WithinTarget((query,), relative_error(options, options.target_relative_error), cap_of(options))
    if source.request.target is not None and query.auto:
        return AutoHalfWidths((query,))
    in_rounds = not aggregates and query.frame.bounding.counted_groups
    return KeysAlone((query,)) if in_rounds else OneSet((query,))


def _with_coverage(query: PrivateQuery, text: SelectText) -> PrivateQuery:
    """The query with what bounding leaves of its numbers; without it where only the policy asks for it, in vain.

    Raises:
        UnsupportedQueryError: that is not measured of it, and it asks for it.

    """
    if isinstance(query, KeysAlone | LargestWithin) or not all(part.frame.is_measured for part in query.parts):
        if not (text.options.coverage or query.first.finish.unbounded):
            return query
        text.refusals.refuse(
            "option",
            text.hint or text.clauses.select[0],
            "what bounds leave is not measured of keys alone, of the largest groups alone, with method = CORRELATED, "
            "of grouping sets that add up, at a ceiling, and where joins or max_rows_per_unit cut the rows of a unit.",
            "Leave coverage and dp_unbounded out.",
        )
    if any(one.value_bounds for one in query.first.estimates) and units_have_one_row(text):
        query = query.mapped(lambda part: replace(part, has_one_row=True))
    # what a query for keys shows is no number that a bound makes smaller
    return query.mapped(lambda part: with_coverage(part) if part.estimates else part)


def _selection(query: FrameQuery, frames: tuple[Frame, ...]) -> FrameQuery:
    """The query for the keys of a query alone, of which no number is shown."""
    return replace(
        query,
        frame=frames[0],
        alternatives=frames[1:],
        statistics=(PRESENCE,),
        weights=(1.0,),
        estimates=(),
        finish=Finish(()),
        auto=(),
    )


def _outside(query: FrameQuery, text: SelectText) -> FrameQuery:
    """The query of the rows outside its groups, in which a unit adds as much as to all its groups together.

    Raises:
        UnsupportedQueryError: that is more than can be noised.

    """
    frame = query.frame
    groups = frame.bounding.max_groups
    if groups is None:
        raise AssertionError("a frame whose groups of a unit have no number was refused")
    together = over_groups(text.owner, groups)
    rows = AggregateSource(text.relation.schema, together, text.environment, text.refusals, groups=groups)
    aggregates = read_aggregates(text.select, rows, frame.keys, None)
    text.refusals.raise_if_any()
    statistics, weights = statistics_of(list(aggregates.values()), frame, query.request.min_units)
    return replace(
        query,
        frame=outside_frame(frame),
        alternatives=(),
        statistics=statistics,
        weights=weights,
        estimates=tuple(aggregate.estimate for aggregate in aggregates.values()),
    )
