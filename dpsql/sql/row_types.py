"""The types, sizes and depths that the parts of a row expression may have, once DuckDB has bound them.

``row_rules`` says which nodes may stand in an expression at all.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from sqlglot import exp

from dpsql.model.environment import Column, Environment, types_of
from dpsql.model.refusals import Refusals
from dpsql.operations.dialect import to_sql, written
from dpsql.operations.row_sql import as_condition, columns_of, try_depth
from dpsql.sql.clauses import is_aggregate_call
from dpsql.sql.literals import as_truth, check_literals
from dpsql.sql.row_rules import MAX_JOINED_COLUMNS, check_row_expression, joined_columns
from dpsql.sql.statements import MOST_TYPED_NODES

MAX_TRY_DEPTH = 6
MAX_USES = 1_000
"""Most columns of tables in one expression, with all subqueries below it, that the optimizer may write out."""
_SCALAR = re.compile(
    r'U?(TINYINT|SMALLINT|INTEGER|BIGINT|HUGEINT)|BOOLEAN|FLOAT|DOUBLE|DECIMAL\(\d+,\d+\)|VARCHAR|DATE|UUID|"NULL"|'
    r"TIMESTAMP(_S|_MS|_NS| WITH TIME ZONE)?"
)
"""Types that row expressions may compute with, and whose values are counted."""
_COARSE = ("TIMESTAMP_S", "TIMESTAMP_MS")
"""Timestamps beyond the range of others: DuckDB's casts of these to texts and zoned ones fail outside TRY."""
_UNTYPED = (exp.Literal, exp.Null, exp.Boolean, exp.Identifier, exp.DataType, exp.DataTypeParam, exp.Var, exp.Interval)
_BOOLEAN = (exp.Predicate, exp.And, exp.Or, exp.Not)
"""What is a BOOLEAN where it binds; it binds where what it stands in does."""
_CONNECTIVES = (exp.And, exp.Or, exp.Not, exp.Paren)
"""Parts of a condition whose operands are conditions."""
_CALL_PARTS = (exp.Where, exp.Distinct, exp.Kwarg, exp.PropertyEQ, exp.Tuple, exp.Array, exp.Star, exp.Paren)


def is_scalar(kind: str) -> bool:
    """Whether expressions may compute with values of a DuckDB type."""
    return _SCALAR.fullmatch(kind) is not None


def check_expressions(
    roots: Sequence[exp.Expr], columns: Sequence[Column], environment: Environment, refusals: Refusals
) -> None:
    """Refuse expressions that are not safe on private rows.

    Raises:
        SchemaError: one does not bind.
        UnsupportedQueryError: one is refused.

    """
    before = len(refusals.found)
    for root in roots:
        check_row_expression(root, refusals)
    refusals.raise_if_any(before)
    check_private_parts(roots, (), columns, environment, refusals)
    refusals.raise_if_any(before)


def check_private_parts(
    conditions: Sequence[exp.Expr],
    calls: Iterable[exp.Expr],
    columns: Sequence[Column],
    environment: Environment,
    refusals: Refusals,
) -> None:
    """Note a refusal for every part of the private expressions whose type or depth is not safe.

    A column of another type (a list, a TIME, an INTERVAL, …) may be grouped by, counted or compared with NULL, and
    nothing else: what DuckDB does with it may fail where no TRY catches it.

    Args:
        conditions: filters and keys.
        calls: of aggregates, which hold private expressions.
        columns: the columns of the source.
        environment: binds types.
        refusals: collects.

    Raises:
        SchemaError: a part does not bind.

    """
    roots = [*conditions, *(argument for call in calls for argument in _arguments(call))]
    # a column alone may be of any type, and nothing is computed of it here
    long = {column.name for column in columns if column.uses > MAX_USES}
    roots = [root for root in roots if not isinstance(root, exp.Column) or root.name in long]
    typed = [(root, node) for root in roots for node in _typed_parts(root)]
    if typed:
        refused = _check_types(typed, columns, environment, refusals)
        check_literals([root for root in roots if id(root) not in refused], columns, environment, refusals)
    for root in roots:
        _check_uses(root, columns, refusals)
        if try_depth(to_sql(root)) > MAX_TRY_DEPTH:
            refusals.add(
                "row_syntax",
                root,
                "conditions, CASE and coalesce are nested too deeply.",
                f"At most {MAX_TRY_DEPTH} of them may stand inside one another where a part can fail.",
            )


def checked_conditions(
    filters: Sequence[exp.Expr], columns: Sequence[Column], environment: Environment, refusals: Refusals
) -> tuple[str, ...]:
    """Return the SQL of conditions, in an order that does not depend on how they were written.

    Raises:
        SchemaError: a condition does not bind.
        UnsupportedQueryError: a condition is a literal that is no BOOLEAN, or of a type that has no cast to it.

    """
    before = len(refusals.found)
    check_literals(
        [as_truth(part) for part in filters if not any(part.iter_expressions())], columns, environment, refusals
    )
    check_truths(filters, columns, environment, refusals)
    refusals.raise_if_any(before)
    types_of(environment, columns, [(part, as_condition(to_sql(part))) for part in filters], refusals.text)
    return tuple(sorted({to_sql(part) for part in filters}))


def check_truths(
    conditions: Sequence[exp.Expr], columns: Sequence[Column], environment: Environment, refusals: Refusals
) -> None:
    """Note a refusal for each part of a condition, between AND, OR and NOT, that has no cast to BOOLEAN.

    Raises:
        SchemaError: a part does not bind.

    """
    parts = (part for root in conditions for part in root.walk(prune=lambda node: not isinstance(node, _CONNECTIVES)))
    values = [part for part in parts if not isinstance(part, (*_CONNECTIVES, *_BOOLEAN, *_UNTYPED))]
    kinds = types_of(environment, columns, [(part, to_sql(part)) for part in values], refusals.text) if values else []
    for part, kind in zip(values, kinds, strict=True):
        if not environment.schemas.has_cast(kind, "BOOLEAN"):
            refusals.add(
                "row_type",
                part,
                f"{written(part)} is of type {kind}, which is neither true nor false.",
                "Compare it with something, as in x IS NOT NULL.",
            )


def _check_types(
    typed: Sequence[tuple[exp.Expr, exp.Expr]], columns: Sequence[Column], environment: Environment, refusals: Refusals
) -> set[int]:
    """Note a refusal for each part of a type that is not safe, and for each cast that DuckDB does not have.

    Every row would be NULL where there is no such cast, and nothing would say so.

    Args:
        typed: parts that have a type, each after the expression in which it stands.
        columns: the columns of the source.
        environment: binds types, and knows the casts.
        refusals: collects.

    Returns:
        Which of the expressions were refused, by their ``id``.

    Raises:
        UnsupportedQueryError: the parts are too long, all together, to be bound each by itself.

    """
    _check_size(typed, refusals)
    refused: set[int] = set()
    bound = types_of(environment, columns, [(node, to_sql(node)) for _, node in typed], refusals.text)
    kinds = {id(node): kind for (_, node), kind in zip(typed, bound, strict=True)}
    for root, cast in ((root, node) for root, node in typed if isinstance(node, exp.Cast)):
        source = cast.this.unnest()
        before, after = kinds.get(id(source)), kinds[id(cast)]
        if before and not isinstance(source, exp.Null) and not environment.schemas.has_cast(before, after):
            refused.add(id(root))
            refusals.add(
                "row_type",
                cast,
                f"{written(cast)}: there is no cast from {before} to {after}.",
                "Compute it in another way: epoch(t) is the seconds of a timestamp, and texts can be cast to every "
                "type.",
            )
    for (root, node), kind in zip(typed, bound, strict=True):
        if not is_scalar(kind):
            refused.add(id(root))
            refusals.add(
                "row_type",
                node,
                f"{written(node)} has a type that can only be grouped by, counted or compared with NULL.",
                "Compute with numbers, texts, booleans, dates and timestamps; date_diff() subtracts dates.",
            )
        elif kind in _COARSE and node is not root and not _is_refined(node):
            refused.add(id(root))
            refusals.add(
                "row_type",
                node,
                f"{written(node)} is of type {kind}, which is only grouped by, counted or cast.",
                "Write CAST(s AS TIMESTAMP).",
            )
    return refused


def _check_size(typed: Sequence[tuple[exp.Expr, exp.Expr]], refusals: Refusals) -> None:
    """Refuse parts that are too long, all together, to be bound each by itself."""
    count = 0
    for root, node in typed:
        count += sum(1 for _ in node.walk())
        if count > MOST_TYPED_NODES:
            refusals.refuse(
                "size",
                root,
                f"the nested parts of all expressions of a query have at most {MOST_TYPED_NODES:,} columns, literals, "
                "calls and operators together.",
                "Compute less in a chain: in columns of a subquery, in a view, or in several conditions.",
            )


def uses_of(sql: str, columns: Sequence[Column]) -> int:
    """Columns of tables in an expression, through all subqueries, each as often as it is named; 1 at least."""
    known = {column.name: column.uses for column in columns}
    return max(1, sum(known.get(name, 1) for name in columns_of(sql)))


def _check_uses(root: exp.Expr, columns: Sequence[Column], refusals: Refusals) -> None:
    """Note a refusal for what subqueries over one another make too long: each of them could double it."""
    if uses_of(to_sql(root), columns) > MAX_USES:
        refusals.add(
            "row_syntax",
            root,
            f"more than {MAX_USES:,} columns are named here, with all subqueries below.",
            "Name a computed column less often.",
        )
    for node in root.find_all(exp.Concat, exp.DPipe, exp.Replace):
        if joined_columns(node) <= MAX_JOINED_COLUMNS < uses_of(to_sql(node), columns):
            refusals.add(
                "row_syntax",
                node,
                f"more than {MAX_JOINED_COLUMNS} columns, or as much of one, are joined into one text, with all "
                "subqueries below.",
                "Join fewer: a text that grows with a row takes time that reveals its length.",
            )
            break


def _arguments(call: exp.Expr) -> list[exp.Expr]:
    """The private expressions of an aggregate call, its argument and its FILTER; of a window, those of what it sums."""
    found: list[exp.Expr] = []
    for child in [call.this] if isinstance(call, exp.Window) else call.iter_expressions():
        is_part = is_aggregate_call(child) or isinstance(child, _CALL_PARTS)
        found += _arguments(child) if is_part else [child]
    return found


def _is_refined(node: exp.Expr) -> bool:
    """Whether a part is what is cast, by a cast that TRY catches."""
    above = node.parent
    while isinstance(above, exp.Paren):
        above = above.parent
    return isinstance(above, exp.Cast) and above.to.is_type("timestamp", "timestampntz", "date")


def _typed_parts(root: exp.Expr) -> Iterator[exp.Expr]:
    """The parts of an expression that are bound, each by itself; a column alone may be of any type."""
    for node in root.walk(prune=lambda node: isinstance(node, _UNTYPED)):
        alone = node is root or isinstance(node.parent, exp.Is)
        if not (
            isinstance(node, (*_UNTYPED, exp.Paren, exp.Escape, exp.If))
            or (isinstance(node, _BOOLEAN) and node is not root)
            or (isinstance(node, exp.Column) and alone)
        ):
            yield node
