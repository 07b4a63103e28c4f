"""From a SELECT to a private query: what is grouped, measured and shown; refuses what cannot be private."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from sqlglot import exp

from dpsql.errors import ParseError, SchemaError
from dpsql.query.after import PrivateInside, read_after, split
from dpsql.query.aggregate_calls import is_aggregate_call, is_interval_call
from dpsql.query.aggregate_source import Aggregate
from dpsql.query.aggregates import AggregateReader
from dpsql.query.allowed import check_row_expression
from dpsql.query.auto import asked_frame, auto_groups, counted_groups
from dpsql.query.buckets import read_buckets, take_apart
from dpsql.query.clauses import Clauses, QueryOptions, read_clauses
from dpsql.query.dialect import TOO_DEEP, quote, to_sql, unquoted
from dpsql.query.environment import Environment, TableRules, TableSchema, types_of
from dpsql.query.grouping_sets import GroupedSelect, read_grouping
from dpsql.query.levels import check_threshold, read_ceiling, read_request, read_window
from dpsql.query.mechanism import NOT_AFTER_AUTO, mechanisms
from dpsql.query.names import ResolvedSelect, resolve_names
from dpsql.query.outputs import Finisher, check_outputs
from dpsql.query.outside import check_other_group, check_outside, outside_frame, over_groups
from dpsql.query.private_query import (
    PRESENCE,
    AutoBounds,
    AutoGroups,
    Buckets,
    Frame,
    Key,
    OtherGroup,
    PrivateQuery,
    PublicKeys,
    Request,
    Statistic,
    ToldBounds,
)
from dpsql.query.refusals import Refusals
from dpsql.query.relation import Owner, Relation
from dpsql.query.row_rules import check_private_parts
from dpsql.query.set_frames import check_beside_sets, distinct_sets, frames_of_sets, query_of_sets
from dpsql.query.shielded import as_condition
from dpsql.query.sources import SourceReader
from dpsql.query.statements import SelectStatement
from dpsql.query.totals import TotalsReader
from dpsql.query.windows import mark_windows

_MOST_EXTREMES = 7
"""Sums whose bounds AUTO finds in one query: with max_groups they are what `calibrate.MOST_TOLD` draws cover."""
_UNRELEASABLE = (
    "MAP(",
    "UNION(",
    "STRUCT(",
    "TUPLE(",
    "VARIANT",
    "GEOMETRY",
    "BIT",
    "BIGNUM",
    "UHUGEINT",
    "TIME WITH TIME ZONE",
    '"NULL"',
)


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
    try:
        return _plan(statement, environment, keywords or {}, told or {}, refusals)
    except PrivateInside as inside:
        return _plan_inside(statement, inside, environment, keywords or {}, told or {}, refusals)
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


def _plan(
    statement: SelectStatement,
    environment: Environment,
    keywords: Mapping[str, object],
    told: ToldBounds,
    refusals: Refusals,
) -> PrivateQuery:
    clauses = read_clauses(statement.tree, keywords, refusals)
    hint = statement.tree.args.get("hint")
    clauses, relation, owner = SourceReader(environment, clauses.options, hint, refusals).read(clauses)
    schema, rules = relation.schema, owner.rules
    resolved = resolve_names(clauses, schema, environment, refusals)
    several = len(resolved.sets) > 1
    mark_windows(
        resolved, refusals,
        listed=not several and not _unlisted(clauses.options, resolved.keys, schema, environment),
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
    keys = _keys(inner.keys, schema, environment, refusals)
    public = _public_keys(options, inner.keys, keys, schema, environment, refusals) if not several else None
    buckets = None
    if parts is not None and keys and not refusals.found:
        # what does not bind is said of the text, before it is computed on the public list
        written = [(part, as_condition(to_sql(part))) for part in parts.conditions]
        types_of(environment, schema.columns, written, statement.text)
        result = _keys(resolved.keys, schema, environment, refusals)
        buckets = read_buckets(parts, resolved, keys, result, public, schema, environment, hint, refusals)
    reader = AggregateReader(schema, owner, environment, refusals, told)
    aggregates = _read_aggregates(resolved, reader, TotalsReader(reader, keys, public, refusals), refusals)
    _check_weights(options, aggregates, hint, refusals)
    source = _Source(_base_frame(relation, owner, inner, ceiling, environment), clauses, request, rules, hint, refusals)
    if several:
        by_set, auto = _by_sets(source, grouped, schema, environment, aggregates), None
    else:
        by_set, auto = _by_one_set(source, resolved, inner, keys, public, buckets, aggregates)
    frames = by_set[0]
    extremes = _auto_bounds(reader.asked_extremes, frames, told, clauses, refusals, several=several)
    if has_other and frames:
        check_outside(frames[0], reader.asked_extremes, clauses.select[0], refusals)
    refusals.raise_if_any()
    check_private_parts((*resolved.filters, *resolved.keys), resolved.outputs, schema.columns, environment, refusals)
    refusals.raise_if_any()

    types_of(
        environment, schema.columns, [(part, as_condition(to_sql(part))) for part in resolved.filters], statement.text
    )
    statistics, weights = _statistics(list(aggregates.values()))
    estimates = tuple(aggregate.estimate for aggregate in aggregates.values())
    result_keys = (*(keys if buckets is None else buckets.keys), *grouped.flag_keys())
    outputs = Finisher(clauses, grouped.outer, result_keys, list(aggregates), estimates, environment, statement.text)
    query = PrivateQuery(
        frame=frames[0],
        alternatives=frames[1:],
        statistics=statistics,
        weights=weights,
        estimates=estimates,
        finish=outputs.finish(),
        request=request,
        min_units=_min_units(options, rules),
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


@dataclass(frozen=True, slots=True)
class _Source:
    """What a query groups, before its keys: the frame without any, and what says how a unit's groups are bounded."""

    base: Frame
    clauses: Clauses
    request: Request
    rules: TableRules
    hint: exp.Expr | None
    refusals: Refusals

    def by_keys(self, written: Sequence[exp.Expr], keys: tuple[Key, ...], public: PublicKeys | None) -> Frame:
        """The frame by some keys, its mechanism not chosen yet."""
        options, hides = self.clauses.options, bool(written) and public is None
        window = read_window(
            options, self.rules, self.request, private_keys=hides, ceiling=self.base.ceiling, hint=self.hint,
            refusals=self.refusals,
        )  # fmt: skip
        max_groups = _max_groups(options, self.rules, written, public)
        return replace(
            self.base, keys=keys, max_groups=max_groups, public_keys=public,
            minimum_units=self.rules.min_units if hides else 1, window=window,
            counted_groups=counted_groups(max_groups, public) if options.bounding == "L2" and max_groups else None,
        )  # fmt: skip


def _base_frame(
    relation: Relation, owner: Owner, select: ResolvedSelect, ceiling: int | None, environment: Environment
) -> Frame:
    schema, rules = relation.schema, owner.rules
    links = tuple((step.parent, step.version, step.columns, step.parent_columns) for step in rules.links)
    return Frame(
        unit=rules.unit,
        table=schema.canonical,
        relation=schema.relation,
        version=rules.version,
        unit_column=_unit_column(schema, owner),
        filters=tuple(sorted({to_sql(part) for part in select.filters})),
        keys=(),
        max_groups=1,
        public_keys=None,
        sparsity=None,
        minimum_units=1,
        mechanism="gaussian",
        window=None,
        settings=environment.settings,
        ceiling=ceiling,
        links=links if relation.is_table else (),
        source="" if relation.is_table else relation.identity,
        reads=() if relation.is_table else relation.reads,
    )


def _by_one_set(
    source: _Source,
    resolved: ResolvedSelect,
    inner: ResolvedSelect,
    keys: tuple[Key, ...],
    public: PublicKeys | None,
    buckets: Buckets | None,
    aggregates: Mapping[str, Aggregate],
) -> tuple[list[tuple[Frame, ...]], AutoGroups | None]:
    """The frames of the one set of keys, and what AUTO asks before they are known."""
    clauses, hint, refusals, auto = source.clauses, source.hint, source.refusals, None
    options = clauses.options
    check_threshold(options, private_keys=bool(inner.keys) and public is None, hint=hint, refusals=refusals)
    frame = source.by_keys(inner.keys, keys, public)
    if options.max_groups_contributed == "AUTO" and keys and frame.key_count != 1:
        auto = auto_groups(frame, weighted=options.bounding == "L2")
    if inner is not resolved:
        once = frame.max_groups == 1 and auto is None
        _check_buckets(resolved, aggregates, _min_units(options, source.rules), hint, once=once, refusals=refusals)
    return [mechanisms(frame, clauses, inner, aggregates, buckets, refusals)], auto


def _by_sets(
    source: _Source,
    grouped: GroupedSelect,
    schema: TableSchema,
    environment: Environment,
    aggregates: Mapping[str, Aggregate],
) -> list[tuple[Frame, ...]]:
    """Of each distinct grouping set its frames."""
    clauses, refusals = source.clauses, source.refusals
    found, hides = [], False
    selects = [grouped.of_set(places) for places in distinct_sets(grouped.select.sets)]
    for select in selects:
        keys = _keys(select.keys, schema, environment, refusals)
        public = _public_keys(clauses.options, select.keys, keys, schema, environment, refusals)
        found.append(source.by_keys(select.keys, keys, public))
        hides |= bool(select.keys) and public is None
    check_threshold(clauses.options, private_keys=hides, hint=source.hint, refusals=refusals)
    return frames_of_sets(found, selects, clauses, aggregates, refusals)


def _check_weights(
    options: QueryOptions, aggregates: Mapping[str, Aggregate], hint: exp.Expr | None, refusals: Refusals
) -> None:
    """Note a refusal for what has no weight where units in many groups count with one."""
    if options.bounding == "L2" and any(one.kind in ("values", "histogram") for one in _measured(aggregates)):
        refusals.add(
            "mechanism", hint, "distinct values and the rows of a quantile have no weight: they count or they do not.",
            "Leave bounding = L2 out, or ask for them apart.",
        )  # fmt: skip


def _outside(
    query: PrivateQuery, source: _Source, resolved: ResolvedSelect, owner: Owner, schema: TableSchema,
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
    aggregates = _read_aggregates(resolved, reader, TotalsReader(reader, frame.keys, None, refusals), refusals)
    refusals.raise_if_any()
    statistics, weights = _statistics(list(aggregates.values()))
    return replace(
        query, frame=outside_frame(source.base, frame), alternatives=(), statistics=statistics, weights=weights,
        estimates=tuple(aggregate.estimate for aggregate in aggregates.values()),
    )  # fmt: skip


def _auto_bounds(
    asked: Mapping[Statistic, str], frames: tuple[Frame, ...], told: ToldBounds, clauses: Clauses, refusals: Refusals,
    *, several: bool,
) -> tuple[AutoBounds, ...]:  # fmt: skip
    if not frames:
        return ()
    frame = asked_frame(frames[0])
    found = tuple(
        AutoBounds(name, statistic, frame, *told.get(statistic, (None, None))) for statistic, name in asked.items()
    )
    if len(found) > _MOST_EXTREMES:
        refusals.add(
            "bounds_invalid", clauses.select[0], f"AUTO finds the bounds of at most {_MOST_EXTREMES} sums of a query.",
            "Ask them apart, or name bounds.",
        )  # fmt: skip
    if found and several:
        refusals.add(
            "bounds_invalid", clauses.select[0], "AUTO finds bounds for one set of keys.",
            "Name bounds, or ask with one GROUP BY.",
        )  # fmt: skip
    if found and (clauses.options.mechanism in NOT_AFTER_AUTO or any(frame.sparsity for frame in frames)):
        refusals.add(
            "mechanism", clauses.select[0], "AUTO goes with GAUSSIAN, CORRELATED_GAUSSIAN or GSHM.",
            "Leave mechanism and top_k out, write max_groups_contributed, or name bounds.",
        )  # fmt: skip
    return found


def _unit_column(schema: TableSchema, owner: Owner) -> Key:
    column = schema.column(owner.unit)
    if column is None:
        raise AssertionError("a relation has the column that names its unit")
    return Key(quote(column.name), column.type)


def _check_options(options: QueryOptions, rules: TableRules, clause: exp.Expr | None, refusals: Refusals) -> None:
    column, declared = options.privacy_unit_column, rules.privacy_unit_column
    if column is not None and column.lower() != declared.lower():
        refusals.add(
            "option", clause, "privacy_unit_column differs from the policy's.",
            f"The policy says {declared}; leave the option out.",
        )  # fmt: skip


def _read_aggregates(
    resolved: ResolvedSelect, reader: AggregateReader, totals: TotalsReader, refusals: Refusals
) -> dict[str, Aggregate]:
    """Aggregates by their normalised text, in the order of their first use."""
    roots = resolved.outputs
    aggregates: dict[str, Aggregate] = {}
    seen: set[str] = set()
    for root in roots:
        for node in root.walk(prune=is_aggregate_call):
            if not is_aggregate_call(node) or to_sql(node) in seen:
                continue
            seen.add(to_sql(node))
            aggregate = totals.read(node) if isinstance(node, exp.Window) else reader.read(node)
            if aggregate is not None:
                aggregates[to_sql(node)] = aggregate
    if resolved.having is not None and any(aggregate.estimate.total for aggregate in aggregates.values()):
        refusals.add(
            "running_total", resolved.having, "HAVING would take groups out of a running total.",
            "Leave it out, and filter the answer.",
        )  # fmt: skip
    if not seen and not any(is_interval_call(node) for root in roots for node in root.walk()):
        refusals.add(
            "no_aggregate", roots[0], "a query without an aggregate would release rows or keys as they are.",
            "Add count(*), sum(…) or avg(…).",
        )  # fmt: skip
    return aggregates


def _measured(aggregates: Mapping[str, Aggregate]) -> list[Statistic]:
    return [statistic for aggregate in aggregates.values() for statistic in aggregate.statistics]


def _check_buckets(
    resolved: ResolvedSelect,
    aggregates: Mapping[str, Aggregate],
    min_units: int,
    hint: exp.Expr | None,
    *,
    once: bool,
    refusals: Refusals,
) -> None:
    """Note a refusal for what buckets do not add up to: distinct units, unless each is in one bucket."""
    if any(aggregate.estimate.total for aggregate in aggregates.values()):
        refusals.add(
            "buckets", hint, "running totals and buckets go along a key in two ways.", "Ask for one of them.",
        )  # fmt: skip
    if any(one.kind == "values" for one in _measured(aggregates)):
        refusals.add(
            "buckets", hint, "a value in two buckets would count twice.", "Leave count(DISTINCT …) or buckets out.",
        )  # fmt: skip
    if once:
        return
    for root in resolved.outputs:
        for call in root.find_all(exp.Distinct):
            refusals.add(
                "buckets", call.parent, "a unit in two buckets would count twice.",
                "Write OPTIONS (max_groups_contributed = 1), count rows, or leave buckets out.",
            )  # fmt: skip
    if min_units > 1:
        refusals.add(
            "buckets", hint, "units in several buckets would count several times towards min_privacy_units_per_group.",
            "Write OPTIONS (max_groups_contributed = 1), or leave buckets out.",
        )  # fmt: skip


def _keys(
    written: Sequence[exp.Expr], schema: TableSchema, environment: Environment, refusals: Refusals
) -> tuple[Key, ...]:
    if refusals.found:
        return ()
    types = types_of(environment, schema.columns, [(key, to_sql(key)) for key in written], refusals.text)
    keys: list[Key] = []
    for node, key_type in zip(written, types, strict=True):
        if any(part in key_type for part in _UNRELEASABLE):
            refusals.add(
                "key_type",
                node,
                "a group key of this type cannot be released.",
                "Group by a scalar or a list, or cast it to VARCHAR.",
            )
        keys.append(Key(to_sql(node), key_type))
    return tuple(sorted(keys, key=lambda key: key.sql))


def _unlisted(
    options: QueryOptions, written: Sequence[exp.Expr], schema: TableSchema, environment: Environment
) -> list[exp.Expr]:
    """Keys that are not taken from a public list; all of them where a threshold is asked for."""
    if options.group_selection_strategy == "GAUSSIAN_THRESHOLD":
        return list(written)
    has_list = environment.policy.has_public_keys
    return [key for key in written if not (isinstance(key, exp.Column) and has_list(*schema.origin(key.name)))]


def _public_keys(
    options: QueryOptions,
    written: Sequence[exp.Expr],
    keys: Sequence[Key],
    schema: TableSchema,
    environment: Environment,
    refusals: Refusals,
) -> PublicKeys | None:
    if not keys:
        return None
    unlisted = _unlisted(options, written, schema, environment)
    if not unlisted:
        origins = {to_sql(node): schema.origin(node.name) for node in written}
        return environment.schemas.public_keys([origins[key.sql] for key in keys], [key.type for key in keys])
    if options.group_selection_strategy == "PUBLIC_GROUPS":
        for node in unlisted:
            refusals.add(
                "public_keys_missing", node, f"{unquoted(node)} has no public list of keys.",
                "Group by a column with CALL dp_domain('table', 'column', keys := [...]), or leave PUBLIC_GROUPS out.",
            )  # fmt: skip
    return None


def _min_units(options: QueryOptions, rules: TableRules) -> int:
    return max(options.min_privacy_units_per_group or 1, rules.min_units)


def _max_groups(
    options: QueryOptions, rules: TableRules, written: Sequence[exp.Expr], public: PublicKeys | None
) -> int | None:
    if not written:
        return 1
    # AUTO has a number when it was told one
    asked = 1 if options.max_groups_contributed == "AUTO" else options.max_groups_contributed or rules.max_groups
    if public is not None:
        return max(1, min(asked or public.count, public.count))
    return asked


def _statistics(aggregates: Sequence[Aggregate]) -> tuple[tuple[Statistic, ...], tuple[float, ...]]:
    """The distinct statistics, presence first, and their shares of rho.

    The shares minimise the sum of the relative variances: an estimate lattice*s + centre*presence has variance
    proportional to radius²/w_s + centre²/w_presence, so w_s goes as radius and w_presence as the root of the sum of
    the centres squared, all relative to the largest value that one unit can add (with 1 for the presence count's
    own use). ``weight =>`` multiplies a statistic's share.
    """
    asked: dict[Statistic, float] = {}
    for aggregate in aggregates:
        for statistic in aggregate.statistics:
            asked[statistic] = max(asked.get(statistic, 0.0), aggregate.weight or 1.0)
    # sorted, so that the order of columns changes no share, not even in its last digit
    ordered = sorted(asked, key=repr)
    scales = [max(abs(bound) for bound in statistic.interval) for statistic in ordered]
    relative = list(zip(ordered, scales, strict=True))
    presence = math.sqrt(math.fsum([1.0, *((statistic.centre / scale) ** 2 for statistic, scale in relative)]))
    shares = [presence, *(asked[statistic] * statistic.radius / scale for statistic, scale in relative)]
    total = math.fsum(shares)
    return (PRESENCE, *ordered), tuple(share / total for share in shares)
