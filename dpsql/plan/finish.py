"""What is computed of keys and aggregates: select list, HAVING and ORDER BY, checked and written as SQL.

Post-processing reads the noisy table alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sqlglot import exp

from dpsql.model.environment import Column, types_of
from dpsql.model.estimates import Estimate
from dpsql.model.private_query import Buckets, Finish, FrameQuery, OutputColumn, PrivateQuery
from dpsql.model.query_kinds import GroupingSets
from dpsql.model.rows import Key
from dpsql.operations.dialect import quote, to_sql, written
from dpsql.operations.row_sql import as_condition, guarded
from dpsql.operations.trees import map_tree
from dpsql.plan.aggregates.arguments import Aggregate
from dpsql.plan.row_choice import picked_rows
from dpsql.sql.clauses import WITHIN_TARGET, is_aggregate_call, is_interval_call, is_over_result
from dpsql.sql.literals import as_truth, check_literals
from dpsql.sql.names import ResolvedSelect
from dpsql.sql.row_rules import check_row_expression
from dpsql.sql.source.projections import zones_in
from dpsql.sql.source.sources import SelectText
from dpsql.sql.windows import order_terms, parts_of, range_terms, window_sql

_WHOLE = ("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT")
_ENDS = ("low", "high")
_ZONED = "TIMESTAMP WITH TIME ZONE"
_AT_LEAST_0 = "(CASE WHEN {0} < 0 THEN 0 ELSE {0} END)"
"""Of a number; greatest() would make 0 of NULL."""
_MOMENTS = {
    "DATE": "CAST(make_timestamp(CAST(round({0} * 1e6) AS BIGINT)) AS DATE) AS {0}",
    "TIMESTAMP": "make_timestamp(CAST(round({0} * 1e6) AS BIGINT)) AS {0}",
    "TIMESTAMP WITH TIME ZONE": "make_timestamptz(CAST(round({0} * 1e6) AS BIGINT)) AS {0}",
}
"""Moments of a column of seconds, by the type of these."""
_UNBOUNDED_ENDS = ("unbounded", "unbounded_low", "unbounded_high")


def check_outputs(text: SelectText) -> None:
    """Note a refusal for every part that is neither a key nor an aggregate nor computed from them."""
    keys = {to_sql(key) for key in (*text.select.keys, *text.flags)}

    def answered(node: exp.Expr) -> bool:
        return is_aggregate_call(node) or is_interval_call(node) or is_over_result(node) or to_sql(node) in keys

    roots = list(text.select.outputs)
    for root in roots:
        for node in check_row_expression(root, text.refusals, answered):
            if is_over_result(node):
                # a window computes with groups too
                roots += parts_of(node)
            elif is_interval_call(node) and interval_target(node, text.select) is None:
                text.refusals.add(
                    "interval_argument",
                    node,
                    f"{written(node)} takes the alias of one aggregate.",
                    f"Name an aggregate first, as in count(*) AS n, {node.name.lower()}(n).",
                )
            elif is_interval_call(node) and node.name.lower() == WITHIN_TARGET:
                _check_within(node, text)


def _check_within(node: exp.Expr, text: SelectText) -> None:
    """Note a refusal if a text without a relative error asks whether a number is within it."""
    if text.options.target_relative_error is not None:
        return
    levels = [one for one in ("rho", "epsilon", "target_half_width") if one in text.options.given]
    in_place = f" in place of {' and '.join(levels)}" if levels else ""
    hint = f"Write OPTIONS (target_relative_error = 0.1, max_rho = 0.1){in_place}, or leave it out."
    if text.owner.rules.counts_epsilon:
        hint = "Leave it out."
    text.refusals.add("option", node, f"{written(node)} goes with target_relative_error.", hint)


def interval_target(node: exp.Expr, resolved: ResolvedSelect) -> exp.Expr | None:
    """The aggregate that dp_interval_low(alias) is about; None where the argument is no alias of one aggregate."""
    argument = node.expressions[0] if len(node.expressions) == 1 else None
    if not isinstance(argument, exp.Column) or argument.table:
        return None
    named = [item.expression for item in resolved.items if item.name.lower() == argument.name.lower()]
    return named[0] if named and is_aggregate_call(named[0]) else None


def read_finish(text: SelectText, keys: Sequence[Key], aggregates: Mapping[str, Aggregate]) -> Finish:
    """The SQL of every output over the noisy table, with its type.

    Args:
        text: the query.
        keys: those of the answer.
        aggregates: by their texts.

    Raises:
        SchemaError: an output does not bind.

    """
    select, numbers = text.select, {sql: index for index, sql in enumerate(aggregates)}
    places = {key.sql: index for index, key in enumerate(keys)}
    shown_keys = {to_sql(key): f"key_{places[to_sql(key)]}" for key in (*select.keys, *text.flags)}
    noisy = [Column(f"key_{i}", key.type, True) for i, key in enumerate(keys)]
    for i, aggregate in enumerate(aggregates.values()):
        noisy.append(Column(f"agg_{i}", aggregate.estimate.type, True))
        own = aggregate.estimate.type if aggregate.estimate.type in _MOMENTS else "DOUBLE"
        noisy += [Column(f"agg_{i}_{end}", own, True) for end in (*_ENDS, *_UNBOUNDED_ENDS)]
        noisy.append(Column(f"agg_{i}_within", "BOOLEAN", True))
    estimates = [aggregate.estimate for aggregate in aggregates.values()]
    table = _NoisyTable(text, len(keys), noisy, {sql: f"agg_{i}" for sql, i in numbers.items()} | shown_keys, estimates)
    shown = [(item.expression, table.sql(item.expression)) for item in select.items]
    having, qualify = (
        [] if node is None else [(node, as_condition(table.sql(node)))] for node in (select.having, select.qualify)
    )
    # a constant orders nothing, and written out it would be read as a position
    ordering = [term for term in select.order if any(map(_varies, term.walk()))]
    terms = [(term, table.sql(table.sorted_by(term.this))) for term in ordering]
    windows = tuple(table.windows)
    if windows:
        kinds = types_of(text.environment, noisy, [(table.windows[sql], sql) for sql in windows], text.refusals.text)
        noisy += [Column(f"window_{i}", kind, True) for i, kind in enumerate(kinds)]
    # what does not bind is refused now, before anything is charged
    types = types_of(text.environment, noisy, [*shown, *having, *qualify, *terms], text.refusals.text)
    _check_literals(table, noisy)
    columns = tuple(
        OutputColumn(item.name, sql, kind, numbers.get(to_sql(item.expression)), *table.read_as(item.expression, kind))
        for item, (_, sql), kind in zip(select.items, shown, types, strict=False)
    )
    # ties are broken by the keys, which tell rows apart, so that the order never depends on anything else
    order = [f"{guarded(sql)} {_direction(term)}" for term, sql in terms]
    order += [f"{quote(name)} ASC NULLS LAST" for name in shown_keys.values()]
    conditions = [part[0][1] if part else "" for part in (having, qualify)]
    may_pick = text.clauses.limit is not None or text.clauses.offset or having or qualify or windows
    chosen = picked_rows(text, ordering, numbers) if may_pick else (None, "")
    return Finish(
        columns,
        conditions[0],
        windows,
        conditions[1],
        tuple(order),
        text.clauses.limit,
        text.clauses.offset,
        tuple(sorted(table.unbounded)),
        tuple(sorted(table.lost_orders)),
        tuple(sorted(table.within)),
        *chosen,
    )


@dataclass(frozen=True, slots=True)
class _NoisyTable:
    """Rewrites what is computed of groups into SQL over the noisy table.

    Attributes:
        text: the query.
        keys: how many keys it has.
        columns: keys first, then aggregates with their intervals.
        names: of keys and aggregates by their texts, which column is each.
        estimates: the aggregates.
        windows: by their SQL; grows while expressions are rewritten.
        unbounded: aggregates whose number without bounds is asked for; likewise.
        lost_orders: columns, each with its table, whose ENUM type has another list than was declared; likewise.
        within: aggregates of which is asked whether they are within the relative error; likewise.

    """

    text: SelectText
    keys: int
    columns: Sequence[Column]
    names: Mapping[str, str]
    estimates: Sequence[Estimate]
    windows: dict[str, exp.Expr] = field(default_factory=dict)
    unbounded: set[int] = field(default_factory=set)
    lost_orders: set[tuple[str, str]] = field(default_factory=set)
    within: set[int] = field(default_factory=set)

    def sql(self, root: exp.Expr) -> str:
        """Return an expression over the table as SQL."""
        return to_sql(self.tree(root))

    def tree(self, root: exp.Expr) -> exp.Expr:
        """Return an expression over the table."""
        return map_tree(root.copy(), self._column)

    def read_as(self, node: exp.Expr, kind: str) -> tuple[tuple[str, ...], str]:
        """Return the declared order of a column of the answer, and the time zones whose clocks are read of it."""
        return self.order_of(node), zones_in(node, self.text.relation.schema) if kind == _ZONED else ""

    def order_of(self, node: exp.Expr) -> tuple[str, ...]:
        """Return the values of a key in their declared order, or nothing if the order is by the values themselves."""
        if not isinstance(node, exp.Column):
            return ()
        origin, environment = self.text.relation.schema.origin(node.name), self.text.environment
        members = environment.policy.order(*origin)
        if members and not environment.schemas.keeps_order(origin, members):
            self.lost_orders.add(origin)
            return ()
        return members

    def sorted_by(self, node: exp.Expr) -> exp.Expr:
        """Return the place of a key in its declared order, or an expression itself if no order is declared."""
        members = self.order_of(node)
        return place_in(members, node) if members else node

    def _column(self, node: exp.Expr) -> exp.Expr:
        """The column that a node stands for; the node itself where it is none."""
        if is_over_result(node):
            return self._window_column(node)
        name = self.names.get(to_sql(node))
        if not name and is_interval_call(node):
            target = interval_target(node, self.text.select)
            if target is None:
                raise AssertionError("check_outputs refused this call before")
            aggregate, end = self.names[to_sql(target)], node.name.lower().removeprefix("dp_")
            name = f"{aggregate}_{end.removeprefix('interval_').removesuffix('_target')}"
            if node.name.lower() == WITHIN_TARGET:
                self.within.add(int(aggregate.removeprefix("agg_")))
            if end in _UNBOUNDED_ENDS:
                self._add_unbounded(node, int(aggregate.removeprefix("agg_")))
        return exp.column(exp.to_identifier(name, quoted=True)) if name else node

    def _add_unbounded(self, node: exp.Expr, number: int) -> None:
        """Note that an aggregate's number without bounds is asked for; refuse what has none."""
        if self.estimates[number].covered is None:
            self.text.refusals.refuse(
                "interval_argument",
                node,
                f"{written(node)} takes the alias of a count or a sum whose bounds begin at 0 or below.",
                "Name a count or sum first, as in count(*) AS n, dp_unbounded(n). Of an average, ask for both parts.",
            )
        if self.text.options.coverage is False:
            self.text.refusals.refuse(
                "option",
                node,
                f"{written(node)} needs to know what bounds leave, and coverage = FALSE leaves it out.",
                "Leave coverage = FALSE out.",
            )
        self.unbounded.add(number)

    def _window_column(self, node: exp.Window) -> exp.Expr:
        for term in order_terms(node):
            term.set("this", self.sorted_by(term.this))
        # its function is not looked up, which may read as an aggregate does
        for part in parts_of(node):
            part.replace(map_tree(part.copy(), self._column))
        for term in range_terms(node):
            # in the type of a whole number the ends of a range may lie beyond it, which fails aloud
            environment, parts = self.text.environment, [(term.this, to_sql(term.this))]
            (kind,) = types_of(environment, self.columns, parts, self.text.refusals.text)
            if kind in _WHOLE:
                term.set("this", exp.cast(term.this.copy(), "HUGEINT", dialect="duckdb"))
        sql = window_sql(node, [f"key_{i}" for i in range(self.keys)])
        self.windows.setdefault(sql, node)
        return exp.column(exp.to_identifier(f"window_{list(self.windows).index(sql)}", quoted=True))


def _check_literals(table: _NoisyTable, columns: Sequence[Column]) -> None:
    """Refuse literals that cannot be cast to the type of what they are compared or computed with.

    Args:
        table: rewrites what is computed of groups.
        columns: those of the table, windows included.

    Raises:
        UnsupportedQueryError: a literal is refused.

    """
    text, select = table.text, table.text.select
    roots = [root for root in select.outputs if root.find(exp.Literal, exp.RawString)]
    if roots:
        conditions = [as_truth(root) if root is select.having or root is select.qualify else root for root in roots]
        check_literals([table.tree(root) for root in conditions], columns, text.environment, text.refusals)
        text.refusals.raise_if_any()


def place_in(members: Sequence[str], node: exp.Expr) -> exp.Expr:
    """Return the expression that computes the place of a text in a list, NULL if it is not there."""
    listed = exp.Array(expressions=[exp.Literal.string(member) for member in members])
    return exp.Anonymous(this="list_position", expressions=[listed, node.copy()])


def _varies(node: exp.Expr) -> bool:
    return isinstance(node, exp.Column | exp.Window) or is_aggregate_call(node) or is_interval_call(node)


def _direction(term: exp.Expr) -> str:
    direction = "DESC" if term.args.get("desc") else "ASC"
    return f"{direction} NULLS {'FIRST' if term.args.get('nulls_first') else 'LAST'}"


NOISY = "dpsql_noisy"
"""Name of the noisy table: columns key_i, agg_i, agg_i_low, agg_i_high, and bucket where groups are of buckets."""


def finish_sql(query: PrivateQuery) -> str:
    """SQL from the noisy table to the result, with every column in its planned type.

    After the columns stand the ends of the 95 % interval of each that is one aggregate, low before high. An expression
    that fails on a noisy value (a cast, an overflow) is NULL: what was charged is always answered.

    A column that is a count, or a sum of what is never negative, is shown as 0 where its noisy number is below 0; the
    ends of its interval likewise. What is computed of it (expressions, conditions, windows, the order) has the number
    as it is, whose noise has the mean 0.
    """
    finish, keys = query.first.finish, query.keys
    typed = [f"CAST({_key(query.first, i)} AS {key.type}) AS key_{i}" for i, key in enumerate(keys)]
    # rows of sets that add up would do so no more
    adds_up = isinstance(query, GroupingSets) and query.adds_up
    clamped = {i for i, one in enumerate(query.first.estimates) if one.is_never_negative and not adds_up}
    for i, estimate in enumerate(query.first.estimates):
        form = _AT_LEAST_0 if i in clamped else "{0}"
        low, high = (f"{form.format(f'agg_{i}_{end}')} AS agg_{i}_{end}" for end in _ENDS)
        if moment := _MOMENTS.get(estimate.type):
            typed += [moment.format(one) for one in (f"agg_{i}", *(f"agg_{i}_{end}" for end in _ENDS))]
        else:
            typed.append(f"TRY_CAST(agg_{i} AS {estimate.type}) AS agg_{i}, {low}, {high}")
        whole = [f"agg_{i}_{end}" for end in _UNBOUNDED_ENDS if i in finish.unbounded]
        typed += [f"{form.format(name)} AS {name}" for name in whole]
        typed += [f"CAST(agg_{i}_within AS BOOLEAN) AS agg_{i}_within"] * (i in finish.within)
    source = f"(SELECT {', '.join(typed) or '*'} FROM {NOISY})"
    shown = []
    for column in finish.columns:
        sql = _AT_LEAST_0.format(column.sql) if column.estimate in clamped else column.sql
        shown.append(f"CAST({guarded(sql)} AS {column.type}) AS {quote(column.name)}")
    numbered = [column.estimate for column in finish.columns if column.estimate is not None]
    columns = ", ".join(shown + [f"agg_{i}_{end}" for i in numbered for end in ("low", "high")])
    having = f" WHERE {guarded(finish.having)}" if finish.having else ""
    if finish.windows:
        windows = ", ".join(f"{sql} AS window_{i}" for i, sql in enumerate(finish.windows))
        # sums of floating-point numbers depend on the order in which windows add up
        by_keys = f" ORDER BY {', '.join(f'key_{i} NULLS LAST' for i in range(len(keys)))}" if keys else " "
        source = f"(SELECT *, {windows} FROM (SELECT * FROM {source}{having}{by_keys}))"
        having = f" WHERE {guarded(finish.qualify)}" if finish.qualify else ""
    order = f" ORDER BY {', '.join(finish.order_by)}" if finish.order_by else ""
    limit = f" LIMIT {finish.limit}" if finish.limit is not None else ""
    offset = f" OFFSET {finish.offset}" if finish.offset is not None else ""
    return f"SELECT {columns} FROM {source}{having}{order}{limit}{offset}"


def _key(query: FrameQuery, place: int) -> str:
    """A key of the answer: a column of the noisy table, or computed from a bucket of the group, under its own name."""
    match query.groups:
        case Buckets(column=column, keys=keys, sources=sources) if sources[place] is None:
            bucket = f"SELECT CAST({NOISY}.bucket AS {column.type}) AS {column.sql}"
            return f"(SELECT {guarded(keys[place].sql)} FROM ({bucket}))"
        case _:
            return f"key_{place}"
