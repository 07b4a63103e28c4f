"""From a SELECT to a private query: what is grouped, measured and shown; refuses what cannot be private.

`plan_query` reads a SELECT from the rows outwards: sources, names, keys, aggregates, frames. What one step has read is
a record that the next ones take. `TEXT_RULES` and `RULES` are what is checked of it on the way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from sqlglot import exp

from dpsql.errors import ParseError, SchemaError
from dpsql.model.environment import Environment, things_without, types_of
from dpsql.model.frame import Key
from dpsql.model.private_query import (
    AutoBounds,
    AutoQuestion,
    FoundBounds,
    FrameQuery,
    OneSet,
    PrivateQuery,
    Request,
    WithOtherGroup,
)
from dpsql.model.refusals import Refusals, refuse_combinations, that_hold
from dpsql.operations.dialect import TOO_DEEP, to_sql
from dpsql.operations.row_sql import as_condition
from dpsql.plan.aggregates.arguments import Aggregate, AggregateSource
from dpsql.plan.features.auto import auto_groups
from dpsql.plan.features.other_group import outside_frame, over_groups
from dpsql.plan.finish import Finisher, check_outputs, read_after, split
from dpsql.plan.frames import (
    GroupedSource,
    SetFrames,
    base_frame,
    frames_by_keys,
    is_left_to_auto,
    read_levels,
    things_of,
)
from dpsql.plan.grouping_sets import frames_of_sets, read_grouping, sets_of
from dpsql.plan.measures import auto_bounds, measured_things, read_aggregates, statistics_of
from dpsql.plan.select_text import SelectKeys, SelectText, read_select_keys, unlisted_keys
from dpsql.sql.clauses import read_clauses
from dpsql.sql.names import resolve_names
from dpsql.sql.row_rules import check_private_parts, check_row_expression
from dpsql.sql.source.sources import PrivateInside, Sources, read_sources
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
    try:
        words = [mechanism.word for mechanism in environment.mechanisms]
        clauses = read_clauses(statement.tree, keywords or {}, words, refusals)
        sources = read_sources(statement.tree, clauses, environment, refusals)
        if isinstance(sources, PrivateInside):
            return _plan_inside(statement, sources, environment, keywords or {}, found_bounds or {}, refusals)
        return _plan(statement, sources, found_bounds or {}, refusals)
    except SchemaError:
        # a name that is not found may belong to a clause that was just refused
        refusals.raise_if_any()
        raise
    except RecursionError:
        raise ParseError(TOO_DEEP) from None


def _plan_inside(
    statement: SelectStatement, inside: PrivateInside, environment: Environment, keywords: Mapping[str, object],
    found_bounds: FoundBounds, refusals: Refusals,
) -> PrivateQuery:  # fmt: skip
    """Plan the private query inside, and what is computed of its answer."""
    parts = split(statement.tree, inside)
    if not parts:
        refusals.refuse(
            "source", inside.node, "a group of this subquery would hold rows of several units.",
            "Add the privacy unit to its GROUP BY; the query above may then group as it likes.",
        )  # fmt: skip
    inner, outer = parts
    query = plan_query(SelectStatement(inner, statement.text), environment, keywords, found_bounds)
    return replace(query, after=(*query.after, read_after(outer, query.shown, environment, refusals)))


def _plan(statement: SelectStatement, sources: Sources, found_bounds: FoundBounds, refusals: Refusals) -> PrivateQuery:
    """Plan a SELECT whose rows are private, from its text to its keys, aggregates and frames."""
    text = _read_text(statement, sources, refusals)
    for check in TEXT_RULES:
        check(text)
    request, ceiling = read_levels(text)
    asked = _things_asked(text)
    keys = read_select_keys(text, in_buckets="buckets" in asked and not text.has_sets)
    rows = AggregateSource(text.relation.schema, sources.owner, text.environment, refusals, found_bounds)
    aggregates = read_aggregates(text.select, rows, keys.keys, keys.public)
    if text.clauses.options.bounding == "L2":
        asked_of_l2 = asked | measured_things(aggregates)
        refuse_combinations({"count(DISTINCT x) or quantiles"}, asked_of_l2, text.hint, refusals)
    base = base_frame(text, keys.inner, ceiling)
    source = GroupedSource(text, base, request)
    by_set = frames_of_sets(source, aggregates) if text.has_sets else (frames_by_keys(source, keys, aggregates),)
    extremes = auto_bounds(rows.asked, by_set[0].frames, found_bounds, text.clauses, refusals) if rows.asked else ()
    read = ReadQuery(text, asked, request, keys, aggregates, by_set, extremes)
    for rule in RULES:
        rule(read)
    refusals.raise_if_any()
    select, columns = text.select, text.relation.schema.columns
    check_private_parts((*select.filters, *select.keys), select.outputs, columns, text.environment, refusals)
    refusals.raise_if_any()
    filters = [(part, as_condition(to_sql(part))) for part in select.filters]
    types_of(text.environment, columns, filters, refusals.text)
    return _private_query(read, source)


def _read_text(statement: SelectStatement, sources: Sources, refusals: Refusals) -> SelectText:
    """Resolve the names of a SELECT, mark its windows and replace its GROUPING() calls."""
    clauses, schema, environment = sources.clauses, sources.relation.schema, sources.environment
    select = resolve_names(clauses, schema, environment, refusals)
    has_sets = len(select.sets) > 1
    if select.qualify or any(part.find(exp.Window) for part in select.outputs):
        unlisted = unlisted_keys(clauses.options, select.keys, schema, environment)
        mark_windows(select, refusals, listed=not has_sets and not unlisted)
    flags: tuple[exp.Expr, ...] = ()
    if has_sets or any(root.find(exp.Grouping, exp.GroupingId) for root in select.outputs):
        select, flags = read_grouping(select, refusals)
    return SelectText(
        clauses=clauses,
        relation=sources.relation,
        owner=sources.owner,
        environment=environment,
        select=select,
        flags=flags,
        outer=replace(select, keys=(*select.keys, *flags)),
        has_sets=has_sets,
        hint=statement.tree.args.get("hint"),
        refusals=refusals,
    )


@dataclass(frozen=True, slots=True)
class ReadQuery:
    """All that is read of a SELECT.

    Attributes:
        text: the query with its names.
        asked: things that it asks for beside keys and aggregates.
        request: how private the answer shall be.
        keys: what it groups by.
        aggregates: what it measures, by text.
        by_set: of each distinct set of keys, those of most keys first, its frames.
        extremes: bounds that are left to AUTO.

    """

    text: SelectText
    asked: frozenset[str]
    request: Request
    keys: SelectKeys
    aggregates: Mapping[str, Aggregate]
    by_set: tuple[SetFrames, ...]
    extremes: tuple[AutoBounds, ...]


def _check_row_parts(text: SelectText) -> None:
    """Note a refusal for every part of WHERE and GROUP BY that is not on the allow-list."""
    for part in (*text.select.filters, *text.select.keys):
        check_row_expression(part, text.refusals)


def _check_unit_column(text: SelectText) -> None:
    """Note a refusal where the text names another unit than the policy does."""
    column, declared = text.clauses.options.privacy_unit_column, text.owner.rules.privacy_unit_column
    if column is not None and column.lower() != declared.lower():
        text.refusals.add(
            "option", text.hint, "privacy_unit_column differs from the policy's.",
            f"The policy says {declared}; leave the option out.",
        )  # fmt: skip


TEXT_RULES: tuple[Callable[[SelectText], None], ...] = (_check_row_parts, _check_unit_column, check_outputs)
"""What is checked of a text before its keys are read, which are not where it refuses something."""


def _check_auto_and_other_group(read: ReadQuery) -> None:
    """Note a refusal for what goes with neither bounds by AUTO nor a row for the other groups."""
    frames = read.by_set[0].frames
    if frames and (read.extremes or "other_group" in read.asked):
        known = read.asked | things_of(frames) | that_hold({"AUTO bounds": read.extremes})
        clause = read.text.clauses.select[0]
        refuse_combinations({"AUTO bounds", "other_group"}, known, clause, read.text.refusals)


def _check_single_units(read: ReadQuery) -> None:
    """Note a refusal where no group could be shown, and no row for the groups that are not."""
    if read.text.clauses.options.other_group is None:
        for one in read.by_set:
            hides = one.frames and one.frames[0].has_private_keys
            if hides and read.text.owner.has_single_units(map(to_sql, one.written)):
                refuse_single_units(one.written[0], read.text.refusals)


RULES: tuple[Callable[[ReadQuery], None], ...] = (_check_auto_and_other_group, _check_single_units)
"""What is checked of a query once all of it is read."""


def _private_query(read: ReadQuery, source: GroupedSource) -> PrivateQuery:
    """The query of a SELECT in which nothing was refused."""
    text, aggregates, frames, options = read.text, read.aggregates, read.by_set[0].frames, read.text.clauses.options
    statistics, weights = statistics_of(list(aggregates.values()))
    check_statistics(statistics, text.clauses.select[0], text.refusals)
    estimates = tuple(aggregate.estimate for aggregate in aggregates.values())
    shown_keys = (*read.keys.shown, *(Key(to_sql(flag), "BIGINT") for flag in text.flags))
    auto: list[AutoQuestion] = list(read.extremes)
    if is_left_to_auto(options, frames[0]):
        auto.insert(0, auto_groups(frames[0], weighted=options.bounding == "L2"))
    query = FrameQuery(
        frame=frames[0],
        alternatives=frames[1:],
        statistics=statistics,
        weights=weights,
        estimates=estimates,
        finish=Finisher(text, shown_keys, aggregates).finish(),
        request=read.request,
        groups=read.keys.groups,
        auto=tuple(auto),
    )
    if options.other_group is not None:
        return WithOtherGroup((query,), options.other_group, _outside(query, source))
    return sets_of(query, read.by_set, text.select, shown_keys, options) if text.has_sets else OneSet((query,))


def _things_asked(text: SelectText) -> frozenset[str]:
    """Things that a text asks for beside its keys and aggregates, without the other group where that was refused."""
    asked = text.clauses.options.given | things_without(text.clauses.options.mechanism, text.environment.mechanisms)
    asked |= that_hold({"GROUPING SETS": text.has_sets, "no GROUP BY": not text.select.keys})
    refuse_combinations({"GROUPING SETS"}, asked, text.hint, text.refusals)
    clause = text.hint or text.clauses.select[0]
    has_no_other = refuse_combinations({"other_group"}, asked, clause, text.refusals)
    return asked - {"other_group"} if has_no_other else asked


def _outside(query: FrameQuery, source: GroupedSource) -> FrameQuery:
    """The query of the rows outside its groups, in which a unit adds as much as to all its groups together.

    Raises:
        UnsupportedQueryError: that is more than can be noised.

    """
    frame, text = query.frame, source.text
    groups = frame.bounding.max_groups
    if groups is None:
        raise AssertionError("a frame whose groups of a unit have no number was refused")
    together = over_groups(text.owner, groups)
    rows = AggregateSource(text.relation.schema, together, text.environment, text.refusals, groups=groups)
    aggregates = read_aggregates(text.select, rows, frame.keys, None)
    text.refusals.raise_if_any()
    statistics, weights = statistics_of(list(aggregates.values()))
    return replace(
        query, frame=outside_frame(source.base, frame), alternatives=(), statistics=statistics, weights=weights,
        estimates=tuple(aggregate.estimate for aggregate in aggregates.values()),
    )  # fmt: skip
