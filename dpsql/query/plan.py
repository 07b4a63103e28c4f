"""From a SELECT to a private query: what is grouped, measured and shown; refuses what cannot be private."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from sqlglot import exp

from dpsql.errors import SchemaError
from dpsql.query.aggregates import Aggregate, AggregateReader, is_aggregate_call
from dpsql.query.allowed import check_row_expression
from dpsql.query.clauses import Clauses, QueryOptions, read_clauses
from dpsql.query.dialect import quote, span_of, to_sql
from dpsql.query.environment import Column, Environment, TableRules, TableSchema
from dpsql.query.names import INTERVAL_FUNCTIONS, ResolvedSelect, resolve_names
from dpsql.query.private_query import (
    PRESENCE,
    Estimate,
    Finish,
    Frame,
    Key,
    OutputColumn,
    PrivateQuery,
    PublicKeys,
    Request,
    Statistic,
)
from dpsql.query.refusals import Refusals
from dpsql.query.statements import SelectStatement

_UNRELEASABLE = ("MAP(", "UNION(", "STRUCT(", "VARIANT", "GEOMETRY", '"NULL"')


def plan_query(
    statement: SelectStatement, environment: Environment, keywords: Mapping[str, object] | None = None
) -> PrivateQuery:
    """Plan a SELECT.

    Args:
        statement: the parsed text.
        environment: policy, schemas, settings and clock.
        keywords: options given beside the text (``rho=0.1``).

    Returns:
        A PrivateQuery; a function of text, policy, schemas and clock alone.

    Raises:
        SchemaError: a name is not there for this reader, or an expression has no type.
        UnsupportedQueryError: no private answer is defined; lists every reason.

    """
    refusals = Refusals(statement.text)
    clauses = read_clauses(statement.tree, keywords or {}, refusals)
    schema, rules = _protected_table(clauses.source, environment, statement.text)
    try:
        resolved = resolve_names(clauses, schema, environment, refusals)
    except SchemaError:
        # a column that is not found may belong to a table whose join was just refused
        refusals.raise_if_any()
        raise
    for part in (*resolved.filters, *resolved.keys):
        check_row_expression(part, refusals)
    _check_options(clauses.options, rules, refusals)

    reader = AggregateReader(schema, rules, environment, refusals)
    aggregates = _read_aggregates(resolved, reader, refusals)
    request = _request(clauses.options, rules, refusals)
    keys = _keys(resolved.keys, schema, environment, refusals)
    public = _public_keys(clauses.options, resolved.keys, keys, schema, environment, refusals)
    max_groups = _max_groups(clauses.options, rules, keys, public, refusals)
    refusals.raise_if_any()

    environment.schemas.describe(schema.columns, [f"CAST({to_sql(part)} AS BOOLEAN)" for part in resolved.filters])
    frame = Frame(
        unit=rules.unit,
        table=schema.canonical,
        relation=schema.relation,
        version=rules.version,
        unit_column=_unit_column(schema, rules),
        filters=tuple(sorted({to_sql(part) for part in resolved.filters})),
        keys=keys,
        max_groups=max_groups,
        public_keys=public,
        settings=environment.settings,
    )
    statistics, weights = _statistics(list(aggregates.values()))
    estimates = tuple(aggregate.estimate for aggregate in aggregates.values())
    finish = _Finisher(clauses, resolved, frame, list(aggregates), estimates, environment, refusals).finish()
    refusals.raise_if_any()
    return PrivateQuery(
        frame=frame,
        statistics=statistics,
        weights=weights,
        estimates=estimates,
        finish=finish,
        request=request,
        min_units=clauses.options.min_privacy_units_per_group or 1,
    )


def _protected_table(source: exp.Table, environment: Environment, text: str) -> tuple[TableSchema, TableRules]:
    parts = [part.name for part in source.parts]
    schema = environment.schemas.resolve(parts)
    rules = environment.policy.rules(schema.canonical) if schema else None
    if schema is None or rules is None:
        public = schema is not None and environment.policy.is_public(schema.canonical)
        raise SchemaError(
            f"table {'.'.join(parts)!r} is "
            + ("public, not protected." if public else "not protected, so it cannot be queried."),
            hint="" if public else f"The curator declares it with CALL dp_protect('{'.'.join(parts)}', …).",
            span=span_of(source, text),
        )
    return schema, rules


def _unit_column(schema: TableSchema, rules: TableRules) -> Key:
    column = schema.column(rules.privacy_unit_column)
    if column is None:
        raise SchemaError(
            f"the protected table has lost its privacy unit column {rules.privacy_unit_column!r}.",
            hint="The curator repeats CALL dp_protect(…) with the column's new name.",
        )
    return Key(quote(column.name), column.type)


def _check_options(options: QueryOptions, rules: TableRules, refusals: Refusals) -> None:
    column = options.privacy_unit_column
    if column is not None and column.lower() != rules.privacy_unit_column.lower():
        refusals.add(
            "option", None, "privacy_unit_column differs from the policy's.",
            f"The policy says {rules.privacy_unit_column}; leave the option out.",
        )  # fmt: skip


def _read_aggregates(resolved: ResolvedSelect, reader: AggregateReader, refusals: Refusals) -> dict[str, Aggregate]:
    """Aggregates by their normalised text, in the order of their first use."""
    roots = [item.expression for item in resolved.items]
    if resolved.having is not None:
        roots.append(resolved.having)
    roots.extend(resolved.order)
    aggregates: dict[str, Aggregate] = {}
    seen: set[str] = set()
    for root in roots:
        for node in root.walk(prune=is_aggregate_call):
            if not is_aggregate_call(node) or to_sql(node) in seen:
                continue
            seen.add(to_sql(node))
            aggregate = reader.read(node)
            if aggregate is not None:
                aggregates[to_sql(node)] = aggregate
    if not seen and not any(_calls_interval(root) for root in roots):
        refusals.add(
            "no_aggregate", None, "a query without an aggregate would release rows.",
            "Add count(*), sum(…) or avg(…).",
        )  # fmt: skip
    return aggregates


def _calls_interval(root: exp.Expr) -> bool:
    return any(isinstance(n, exp.Anonymous) and n.name.lower() in INTERVAL_FUNCTIONS for n in root.walk())


def _request(options: QueryOptions, rules: TableRules, refusals: Refusals) -> Request:
    rho, epsilon = options.rho, options.epsilon
    if rho is None and epsilon is None:
        rho, epsilon = rules.default_rho, rules.default_epsilon if rules.default_rho is None else None
    if rho is None and epsilon is None:
        refusals.add(
            "privacy_level_missing", None, "neither policy nor query says how private the answer shall be.",
            "Write SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 0.5), or declare default_rho in dp_protect.",
        )  # fmt: skip
    return Request(rho, epsilon, options.delta if options.delta is not None else rules.default_delta)


def _keys(
    written: Sequence[exp.Expr], schema: TableSchema, environment: Environment, refusals: Refusals
) -> tuple[Key, ...]:
    if refusals.found:
        return ()
    types = environment.schemas.describe(schema.columns, [to_sql(key) for key in written])
    keys: list[Key] = []
    for node, key_type in zip(written, types, strict=True):
        if any(part in key_type for part in _UNRELEASABLE):
            refusals.add(
                "key_type",
                node,
                "a group key of this type cannot be released.",
                "Group by a scalar or a list.",
            )
        keys.append(Key(to_sql(node), key_type))
    return tuple(sorted(keys, key=lambda key: key.sql))


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
        if not (isinstance(node, exp.Column) and environment.policy.has_public_keys(schema.canonical, node.name))
    ]
    if not missing:
        columns = {to_sql(node): node.name for node in written}
        named = [columns[key.sql] for key in keys]
        return environment.schemas.public_keys(schema.canonical, named, [key.type for key in keys])
    if options.group_selection_strategy == "PUBLIC_GROUPS":
        for node in missing:
            refusals.add(
                "public_keys_missing", node, f"{to_sql(node)} has no public list of keys.",
                f"Declare CALL dp_domain('{schema.canonical}', 'column', keys := [...]) or leave PUBLIC_GROUPS out.",
            )  # fmt: skip
    return None


def _max_groups(
    options: QueryOptions,
    rules: TableRules,
    keys: Sequence[Key],
    public: PublicKeys | None,
    refusals: Refusals,
) -> int:
    if refusals.found or not keys:
        return 1
    asked = options.max_groups_contributed or rules.max_groups
    if public is not None:
        return max(1, min(asked or public.count, public.count))
    if asked is None:
        refusals.add(
            "max_groups_missing", None, "neither policy nor query says how many groups one unit may touch.",
            "Write OPTIONS (max_groups_contributed = 4), or declare max_groups_contributed in dp_protect.",
        )  # fmt: skip
        return 1
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


class _Finisher:
    """Rewrites the select list, HAVING and ORDER BY into SQL over the noisy table."""

    def __init__(
        self,
        clauses: Clauses,
        resolved: ResolvedSelect,
        frame: Frame,
        aggregate_texts: Sequence[str],
        estimates: Sequence[Estimate],
        environment: Environment,
        refusals: Refusals,
    ) -> None:
        self._clauses = clauses
        self._resolved = resolved
        self._estimates = estimates
        self._environment = environment
        self._refusals = refusals
        by_sql = {key.sql: index for index, key in enumerate(frame.keys)}
        self._keys = {text: by_sql[text] for text in map(to_sql, resolved.keys)}
        self._aggregates = {text: index for index, text in enumerate(aggregate_texts)}
        self._aliases = {item.name.lower(): item.expression for item in resolved.items}
        self._noisy = [Column(f"key_{i}", key.type, True) for i, key in enumerate(frame.keys)]
        for i, estimate in enumerate(estimates):
            self._noisy.append(Column(f"agg_{i}", estimate.type, True))
            self._noisy += [Column(f"agg_{i}_{end}", "DOUBLE", True) for end in ("low", "high")]

    def finish(self) -> Finish:
        texts = [self._rewrite(item.expression) for item in self._resolved.items]
        having = self._rewrite(self._resolved.having) if self._resolved.having is not None else ""
        order = [self._rewrite(term) for term in self._resolved.order]
        self._refusals.raise_if_any()
        types = self._environment.schemas.describe(self._noisy, texts)
        if having:
            self._environment.schemas.describe(self._noisy, [having])
        columns = tuple(
            OutputColumn(item.name, text, kind, self._aggregates.get(to_sql(item.expression)))
            for item, text, kind in zip(self._resolved.items, texts, types, strict=True)
        )
        # ties are broken by the keys, which tell rows apart, so that the order never depends on anything else
        order += [f"{quote(f'key_{index}')} ASC NULLS LAST" for index in self._keys.values()]
        return Finish(columns, having, tuple(order), self._clauses.limit, self._clauses.offset)

    def _rewrite(self, root: exp.Expr) -> str:
        if isinstance(root, exp.Ordered):
            inner = self._rewrite(root.this)
            direction = "DESC" if root.args.get("desc") else "ASC"
            return f"{inner} {direction} NULLS {'FIRST' if root.args.get('nulls_first') else 'LAST'}"
        copied = exp.Paren(this=root.copy())
        self._replace(copied)
        check_row_expression(copied.this, self._refusals)
        return to_sql(copied.this)

    def _replace(self, parent: exp.Expr) -> None:
        for child in list(parent.iter_expressions()):
            replacement = self._noisy_column(child)
            if replacement is not None:
                child.replace(replacement)
            elif isinstance(child, exp.Column):
                self._refusals.add(
                    "not_grouped", child, f"column {child.name} is neither grouped nor aggregated.",
                    "Add it to GROUP BY, or aggregate it.",
                )  # fmt: skip
            else:
                self._replace(child)

    def _noisy_column(self, node: exp.Expr) -> exp.Expr | None:
        text = to_sql(node)
        if text in self._keys:
            return exp.column(exp.to_identifier(f"key_{self._keys[text]}", quoted=True))
        if text in self._aggregates:
            return exp.column(exp.to_identifier(f"agg_{self._aggregates[text]}", quoted=True))
        if isinstance(node, exp.Anonymous) and node.name.lower() in INTERVAL_FUNCTIONS:
            return self._interval_column(node)
        return None

    def _interval_column(self, node: exp.Anonymous) -> exp.Expr | None:
        argument = node.expressions[0] if len(node.expressions) == 1 else None
        target = self._aliases.get(argument.name.lower()) if isinstance(argument, exp.Column) else None
        index = self._aggregates.get(to_sql(target)) if target is not None else None
        if index is None:
            self._refusals.add(
                "interval_argument", node, f"{node.name.lower()} takes the alias of one aggregate.",
                "Write count(*) AS n, dp_interval_low(n).",
            )  # fmt: skip
            return exp.null()
        end = node.name.lower().removeprefix("dp_interval_")
        return exp.column(exp.to_identifier(f"agg_{index}_{end}", quoted=True))
