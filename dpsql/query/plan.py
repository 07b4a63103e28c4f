"""From a SELECT to a private query: what is grouped, measured and shown; refuses what cannot be private."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

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
from dpsql.query.levels import check_threshold, read_ceiling, read_request, read_window
from dpsql.query.mechanism import NOT_AFTER_AUTO, mechanisms
from dpsql.query.names import ResolvedSelect, resolve_names
from dpsql.query.outputs import Finisher, check_outputs
from dpsql.query.private_query import (
    PRESENCE,
    AutoBounds,
    Frame,
    Key,
    PrivateQuery,
    PublicKeys,
    Statistic,
    ToldBounds,
)
from dpsql.query.refusals import Refusals
from dpsql.query.relation import Owner
from dpsql.query.row_rules import check_private_parts
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
        refusals.add(
            "source", inside.node, "a group of this subquery would hold rows of several units.",
            "Add the privacy unit to its GROUP BY; the query above may then group as it likes.",
        )  # fmt: skip
        refusals.raise_if_any()
    inner, outer = parts or (statement.tree, statement.tree)
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
    mark_windows(resolved, refusals, listed=_are_listed(clauses.options, resolved, schema, environment))
    for part in (*resolved.filters, *resolved.keys):
        check_row_expression(part, refusals)
    _check_options(clauses.options, rules, hint, refusals)

    check_outputs(resolved, refusals)

    options = clauses.options
    request = read_request(clauses, rules, hint, refusals)
    ceiling = read_ceiling(options, rules, hint, refusals)
    parts = take_apart(options, resolved, schema, hint, refusals)
    inner = resolved if parts is None else parts.inner
    keys = _keys(inner.keys, schema, environment, refusals)
    public = _public_keys(options, inner.keys, keys, schema, environment, refusals)
    buckets = None
    if parts is not None and keys and not refusals.found:
        # what does not bind is said of the text, before it is computed on the public list
        written = [(part, as_condition(to_sql(part))) for part in parts.conditions]
        types_of(environment, schema.columns, written, statement.text)
        result = _keys(resolved.keys, schema, environment, refusals)
        buckets = read_buckets(parts, resolved, keys, result, public, schema, environment, hint, refusals)
    reader = AggregateReader(schema, owner, environment, refusals, told)
    aggregates = _read_aggregates(resolved, reader, TotalsReader(reader, keys, public, refusals), refusals)
    hides = bool(inner.keys) and public is None
    check_threshold(options, private_keys=hides, hint=hint, refusals=refusals)
    max_groups = _max_groups(options, rules, inner.keys, public)
    frame = Frame(
        unit=rules.unit,
        table=schema.canonical,
        relation=schema.relation,
        version=rules.version,
        unit_column=_unit_column(schema, owner),
        filters=tuple(sorted({to_sql(part) for part in inner.filters})),
        keys=keys,
        max_groups=max_groups,
        public_keys=public,
        sparsity=None,
        minimum_units=rules.min_units if hides else 1,
        mechanism="gaussian",
        window=read_window(options, rules, request, private_keys=hides, ceiling=ceiling, hint=hint, refusals=refusals),
        settings=environment.settings,
        ceiling=ceiling,
        links=tuple((step.parent, step.version, step.columns, step.parent_columns) for step in rules.links)
        if relation.is_table
        else (),
        source="" if relation.is_table else relation.identity,
        reads=() if relation.is_table else relation.reads,
        counted_groups=counted_groups(max_groups, public) if options.bounding == "L2" and max_groups else None,
    )
    auto = None
    if options.max_groups_contributed == "AUTO" and keys and frame.key_count != 1:
        auto = auto_groups(frame, weighted=options.bounding == "L2")
    min_units = max(options.min_privacy_units_per_group or 1, rules.min_units)
    if parts is not None:
        once = frame.max_groups == 1 and auto is None
        _check_buckets(resolved, aggregates, min_units, hint, once=once, refusals=refusals)
    if options.bounding == "L2" and any(one.kind in ("values", "histogram") for one in _measured(aggregates)):
        refusals.add(
            "mechanism", hint, "distinct values and the rows of a quantile have no weight: they count or they do not.",
            "Leave bounding = L2 out, or ask for them apart.",
        )  # fmt: skip
    frames = mechanisms(frame, clauses, inner, aggregates, buckets, refusals)
    extremes = _auto_bounds(reader.asked_extremes, frames, told, clauses, refusals)
    refusals.raise_if_any()
    conditions = (*resolved.filters, *resolved.keys)
    check_private_parts(conditions, resolved.outputs, schema.columns, environment, refusals)
    refusals.raise_if_any()

    filters = [(part, as_condition(to_sql(part))) for part in resolved.filters]
    types_of(environment, schema.columns, filters, statement.text)
    statistics, weights = _statistics(list(aggregates.values()))
    estimates = tuple(aggregate.estimate for aggregate in aggregates.values())
    result_keys = keys if buckets is None else buckets.keys
    finish = Finisher(clauses, resolved, result_keys, list(aggregates), estimates, environment, statement.text).finish()
    return PrivateQuery(
        frame=frames[0],
        alternatives=frames[1:],
        statistics=statistics,
        weights=weights,
        estimates=estimates,
        finish=finish,
        request=request,
        min_units=min_units,
        refresh=bool(options.refresh),
        own_threshold=bool(options.own_threshold),
        buckets=buckets,
        auto=auto,
        auto_bounds=extremes,
    )


def _auto_bounds(
    asked: Mapping[Statistic, str], frames: tuple[Frame, ...], told: ToldBounds, clauses: Clauses, refusals: Refusals
) -> tuple[AutoBounds, ...]:
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


def _are_listed(options: QueryOptions, resolved: ResolvedSelect, schema: TableSchema, environment: Environment) -> bool:
    """Whether all keys are taken from public lists."""
    has_list = environment.policy.has_public_keys
    return options.group_selection_strategy != "GAUSSIAN_THRESHOLD" and all(
        isinstance(key, exp.Column) and has_list(*schema.origin(key.name)) for key in resolved.keys
    )


def _public_keys(
    options: QueryOptions,
    written: Sequence[exp.Expr],
    keys: Sequence[Key],
    schema: TableSchema,
    environment: Environment,
    refusals: Refusals,
) -> PublicKeys | None:
    if not keys or options.group_selection_strategy == "GAUSSIAN_THRESHOLD":
        return None
    missing = [
        node
        for node in written
        if not (isinstance(node, exp.Column) and environment.policy.has_public_keys(*schema.origin(node.name)))
    ]
    if not missing:
        origins = {to_sql(node): schema.origin(node.name) for node in written}
        return environment.schemas.public_keys([origins[key.sql] for key in keys], [key.type for key in keys])
    if options.group_selection_strategy == "PUBLIC_GROUPS":
        for node in missing:
            refusals.add(
                "public_keys_missing", node, f"{unquoted(node)} has no public list of keys.",
                "Group by a column with CALL dp_domain('table', 'column', keys := [...]), or leave PUBLIC_GROUPS out.",
            )  # fmt: skip
    return None


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
