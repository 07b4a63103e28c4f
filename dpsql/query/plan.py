"""From a SELECT to a private query: what is grouped, measured and shown; refuses what cannot be private."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from sqlglot import exp

from dpsql.errors import ParseError, SchemaError
from dpsql.query.after import read_after
from dpsql.query.aggregate_source import Aggregate
from dpsql.query.aggregates import AggregateReader
from dpsql.query.allowed import check_row_expression
from dpsql.query.buckets import read_buckets, take_apart
from dpsql.query.clauses import Clauses, read_clauses
from dpsql.query.dialect import TOO_DEEP, to_sql
from dpsql.query.environment import Environment, TableRules, TableSchema, types_of
from dpsql.query.frame import Frame, Statistic
from dpsql.query.grouped_source import GroupedSource, base_frame, by_one_set, by_sets
from dpsql.query.grouping_sets import GroupedSelect, read_grouping
from dpsql.query.inner_query import PrivateInside, split
from dpsql.query.levels import read_ceiling, read_request
from dpsql.query.limits import check_size, check_statistics
from dpsql.query.measured import auto_bounds, check_weights, read_aggregates, statistics_of
from dpsql.query.names import ResolvedSelect, resolve_names
from dpsql.query.options import QueryOptions
from dpsql.query.outputs import Finisher, check_outputs
from dpsql.query.outside import check_other_group, check_outside, outside_frame, over_groups
from dpsql.query.private_query import OtherGroup, PrivateQuery, ToldBounds
from dpsql.query.read_keys import read_keys, read_public_keys, unlisted_keys
from dpsql.query.refusals import Refusals
from dpsql.query.relation import Owner
from dpsql.query.row_rules import check_private_parts
from dpsql.query.set_frames import check_beside_sets, distinct_sets, query_of_sets
from dpsql.query.shielded import as_condition
from dpsql.query.sources import Sources, read_sources
from dpsql.query.statements import SelectStatement
from dpsql.query.totals import TotalsReader
from dpsql.query.unit_groups import check_single_units
from dpsql.query.windows import mark_windows


def plan_query(
    statement: SelectStatement,
    environment: Environment,
    keywords: Mapping[str, object] | None = None,
    told: ToldBounds | None = None,
) -> PrivateQuery:
    """Plan a SELECT.

    Args:
        statement: the parsed text.
        environment: policy, schemas, settings and clock.
        keywords: options given beside the text (``rho=0.1``).
        told: bounds that AUTO found for this text before.

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
        clauses = read_clauses(statement.tree, keywords or {}, refusals)
        sources = read_sources(statement.tree, clauses, environment, refusals)
        if isinstance(sources, PrivateInside):
            return _plan_inside(statement, sources, environment, keywords or {}, told or {}, refusals)
        return _plan(statement, sources, told or {}, refusals)
    except SchemaError:
        # a name that is not found may belong to a clause that was just refused
        refusals.raise_if_any()
        raise
    except RecursionError:
        raise ParseError(TOO_DEEP) from None


def _plan_inside(
    statement: SelectStatement, inside: PrivateInside, environment: Environment, keywords: Mapping[str, object],
    told: ToldBounds, refusals: Refusals,
) -> PrivateQuery:  # fmt: skip
    """Plan the private query inside, and what is computed of its answer."""
    parts = split(statement.tree, inside)
    if parts is None:
        refusals.refuse(
            "source", inside.node, "a group of this subquery would hold rows of several units.",
            "Add the privacy unit to its GROUP BY; the query above may then group as it likes.",
        )  # fmt: skip
    inner, outer = parts
    query = plan_query(SelectStatement(inner, statement.text), environment, keywords, told)
    return replace(query, after=(*query.after, read_after(outer, query.shown, environment, refusals)))


def _plan(statement: SelectStatement, sources: Sources, told: ToldBounds, refusals: Refusals) -> PrivateQuery:
    hint = statement.tree.args.get("hint")
    clauses, relation, owner, environment = sources.clauses, sources.relation, sources.owner, sources.environment
    schema, rules = relation.schema, owner.rules
    resolved = resolve_names(clauses, schema, environment, refusals)
    several = len(resolved.sets) > 1
    mark_windows(
        resolved, refusals,
        listed=not several and not unlisted_keys(clauses.options, resolved.keys, schema, environment),
    )  # fmt: skip
    grouped = read_grouping(resolved, refusals)
    resolved = grouped.select
    for part in (*resolved.filters, *resolved.keys):
        check_row_expression(part, refusals)
    _check_options(clauses.options, rules, hint, refusals)

    check_outputs(grouped.outer, refusals)

    options = clauses.options
    request = read_request(clauses, rules, hint, refusals)
    ceiling = read_ceiling(options, rules, hint, refusals)
    check_beside_sets(options, resolved, hint, refusals)
    has_other = check_other_group(options, resolved, clauses.select[0] if hint is None else hint, refusals)
    parts = None if several else take_apart(options, resolved, schema, hint, refusals)
    inner = resolved if parts is None else parts.inner
    keys = read_keys(inner.keys, schema, environment, refusals)
    public = read_public_keys(options, inner.keys, keys, schema, environment, refusals) if not several else None
    buckets = None
    if parts is not None and keys and not refusals.found:
        # what does not bind is said of the text, before it is computed on the public list
        written = [(part, as_condition(to_sql(part))) for part in parts.conditions]
        types_of(environment, schema.columns, written, statement.text)
        result = read_keys(resolved.keys, schema, environment, refusals)
        buckets = read_buckets(parts, resolved, keys, result, public, schema, environment, hint, refusals)
    reader = AggregateReader(schema, owner, environment, refusals, told)
    aggregates = read_aggregates(resolved, reader, TotalsReader(reader, keys, public, refusals), refusals)
    check_weights(options, aggregates, hint, refusals)
    source = GroupedSource(
        base_frame(relation, owner, inner, ceiling, environment), clauses, request, rules, hint, refusals
    )
    if several:
        by_set, auto = by_sets(source, grouped, schema, environment, aggregates), None
    else:
        by_set, auto = by_one_set(source, resolved, inner, keys, public, buckets, aggregates)
    frames = by_set[0]
    extremes = auto_bounds(reader.asked_extremes, frames, told, clauses, refusals, several=several)
    if has_other and frames:
        check_outside(frames[0], reader.asked_extremes, clauses.select[0], refusals)
    _check_groups(by_set, grouped, inner, owner, options, refusals)
    refusals.raise_if_any()
    check_private_parts((*resolved.filters, *resolved.keys), resolved.outputs, schema.columns, environment, refusals)
    refusals.raise_if_any()

    types_of(
        environment, schema.columns, [(part, as_condition(to_sql(part))) for part in resolved.filters], statement.text
    )
    statistics, weights = _statistics(aggregates, clauses, refusals)
    estimates = tuple(aggregate.estimate for aggregate in aggregates.values())
    result_keys = (*(keys if buckets is None else buckets.keys), *grouped.flag_keys())
    query = PrivateQuery(
        frame=frames[0],
        alternatives=frames[1:],
        statistics=statistics,
        weights=weights,
        estimates=estimates,
        finish=Finisher(
            clauses, grouped.outer, result_keys, list(aggregates), estimates, environment, statement.text
        ).finish(),
        request=request,
        min_units=source.min_units,
        refresh=bool(options.refresh),
        own_threshold=bool(options.own_threshold),
        buckets=buckets,
        auto=auto,
        auto_bounds=extremes,
    )
    if has_other and options.other_group is not None:
        outside = _outside(query, source, resolved, owner, schema, environment)
        return replace(query, other=OtherGroup(options.other_group, outside))
    return query_of_sets(query, by_set, resolved, result_keys, options) if several else query


def _check_groups(
    by_set: Sequence[tuple[Frame, ...]], grouped: GroupedSelect, inner: ResolvedSelect, owner: Owner,
    options: QueryOptions, refusals: Refusals,
) -> None:  # fmt: skip
    """Note a refusal where no group could be shown, and no row for the groups that are not."""
    if options.other_group is None:
        sets = grouped.select.sets
        selects = [grouped.of_set(places) for places in distinct_sets(sets)] if len(sets) > 1 else [inner]
        check_single_units(by_set, [select.keys for select in selects], owner, refusals)


def _statistics(
    aggregates: Mapping[str, Aggregate], clauses: Clauses, refusals: Refusals
) -> tuple[tuple[Statistic, ...], tuple[float, ...]]:
    """The statistics that the aggregates share, with their weights."""
    found = statistics_of(list(aggregates.values()))
    check_statistics(found[0], clauses.select[0], refusals)
    return found


def _outside(
    query: PrivateQuery, source: GroupedSource, resolved: ResolvedSelect, owner: Owner, schema: TableSchema,
    environment: Environment,
) -> PrivateQuery:  # fmt: skip
    """The query of the rows outside its groups, in which a unit adds as much as to all its groups together.

    Raises:
        UnsupportedQueryError: that is more than can be noised.

    """
    frame, refusals = query.frame, source.refusals
    if frame.max_groups is None:
        raise AssertionError("a frame whose groups of a unit have no number was refused")
    together = over_groups(owner, frame.max_groups)
    reader = AggregateReader(schema, together, environment, refusals, groups=frame.max_groups)
    aggregates = read_aggregates(resolved, reader, TotalsReader(reader, frame.keys, None, refusals), refusals)
    refusals.raise_if_any()
    statistics, weights = statistics_of(list(aggregates.values()))
    return replace(
        query, frame=outside_frame(source.base, frame), alternatives=(), statistics=statistics, weights=weights,
        estimates=tuple(aggregate.estimate for aggregate in aggregates.values()),
    )  # fmt: skip


def _check_options(options: QueryOptions, rules: TableRules, clause: exp.Expr | None, refusals: Refusals) -> None:
    column, declared = options.privacy_unit_column, rules.privacy_unit_column
    if column is not None and column.lower() != declared.lower():
        refusals.add(
            "option", clause, "privacy_unit_column differs from the policy's.",
            f"The policy says {declared}; leave the option out.",
        )  # fmt: skip
