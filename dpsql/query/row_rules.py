"""What the allow-list cannot say by name: which literals, types, sizes and depths a row expression may have.

DuckDB has errors that no TRY catches (a date part of an INTERVAL or a TIME, a LIKE pattern that ends in its escape, a
bucket of no width), formats that read uninitialised memory (two ``%n`` in strftime), and costs that double with each
nested TRY or concat. Each would tell of a single row, by an error, a value or a clock.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from sqlglot import exp

from dpsql.query.aggregate_calls import is_aggregate_call
from dpsql.query.dialect import to_sql, written
from dpsql.query.environment import Column, Environment, types_of
from dpsql.query.limits import MOST_TYPED_NODES
from dpsql.query.refusals import Refusals
from dpsql.query.total import columns_of, try_depth

DATE_PARTS = frozenset(
    {
        "year", "quarter", "month", "week", "day", "hour", "minute", "second", "millisecond", "microsecond", "decade",
        "century", "dow", "dayofweek", "isodow", "doy", "dayofyear", "isoyear", "yearweek", "epoch",
    }
)  # fmt: skip
"""Units that dates may be truncated to, taken apart by and subtracted in."""

MAX_TRY_DEPTH = 6
MAX_JOINED_COLUMNS = 32
MAX_USES = 1_000
"""Most columns of tables in one expression, with all subqueries below it, that the optimizer may write out."""
_FORMAT = re.compile(r"(?:[^%]|%[YmdHMSjybBaAp%])*")
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
_CALL_PARTS = (exp.Where, exp.Distinct, exp.Kwarg, exp.PropertyEQ, exp.Tuple, exp.Array, exp.Star, exp.Paren)


def is_scalar(kind: str) -> bool:
    """Whether expressions may compute with values of a DuckDB type."""
    return _SCALAR.fullmatch(kind) is not None


def check_literals(node: exp.Expr, refusals: Refusals) -> None:
    """Note a refusal where a part of an expression must be a literal of a known kind and is not."""
    match node:
        case exp.TimestampTrunc() | exp.DateDiff():
            _check_part(node, node.args.get("unit"), refusals)
        case exp.Extract():
            _check_part(node, node.this, refusals)
        case exp.Anonymous() if node.name.lower() in ("date_part", "date_sub"):
            _check_part(node, node.expressions[0] if node.expressions else None, refusals)
        case exp.TimeToStr() if not (_is_text(node.args.get("format")) and _FORMAT.fullmatch(node.args["format"].name)):
            refusals.add(
                "row_syntax", node, "the format of strftime is not one that is known to be safe.",
                "Use a literal of %Y %m %d %H %M %S %j %y %b %B %a %A %p.",
            )  # fmt: skip
        case exp.Like() | exp.ILike() if not _is_text(node.expression):
            refusals.add("row_syntax", node, "the pattern of LIKE must be a text literal.", "Write s LIKE 'a%'.")
        case exp.Interval() if not _is_plain_interval(node):
            refusals.add(
                "row_syntax", node, "an interval must be a literal that is added to a date.",
                "Write d + INTERVAL 1 DAY.",
            )  # fmt: skip
        case exp.Concat() | exp.DPipe() if _joined_columns(node) > MAX_JOINED_COLUMNS:
            refusals.add(
                "row_syntax", node, f"more than {MAX_JOINED_COLUMNS} columns are joined into one text.",
                "Join fewer: a text that grows with a row takes time that tells of it.",
            )  # fmt: skip


def _check_part(node: exp.Expr, part: exp.Expr | None, refusals: Refusals) -> None:
    if isinstance(part, exp.Var | exp.Literal) and part.name.lower() in DATE_PARTS:
        return
    refusals.add(
        "row_syntax", node, f"{written(node)} takes a known unit as a literal here.",
        f"Units are {', '.join(sorted(DATE_PARTS))}.",
    )  # fmt: skip


def _is_text(node: exp.Expr | None) -> bool:
    return isinstance(node, exp.RawString) or (isinstance(node, exp.Literal) and bool(node.is_string))


def _is_plain_interval(node: exp.Interval) -> bool:
    number = node.this.this if isinstance(node.this, exp.Neg) else node.this
    unit = node.args.get("unit")
    known = isinstance(unit, exp.Var) and unit.name.lower().removesuffix("s") in DATE_PARTS
    return isinstance(number, exp.Literal) and known and isinstance(node.parent, exp.Add | exp.Sub | exp.DateAdd)


def _joined_columns(node: exp.Expr) -> int:
    return sum(1 for _ in node.find_all(exp.Column))


def check_private_parts(
    conditions: Sequence[exp.Expr],
    outputs: Iterable[exp.Expr],
    columns: Sequence[Column],
    environment: Environment,
    refusals: Refusals,
) -> None:
    """Note a refusal for every part of the private expressions whose type or depth is not safe.

    A column of another type (a list, a TIME, an INTERVAL, …) may be grouped by, counted or compared with NULL, and
    nothing else: what DuckDB does with it may fail where no TRY catches it.

    Args:
        conditions: filters and keys.
        outputs: select list, HAVING and ORDER BY, whose aggregate calls hold private expressions.
        columns: the columns of the source.
        environment: binds types.
        refusals: collects.

    Raises:
        SchemaError: a part does not bind.

    """
    calls = [node for output in outputs for node in output.walk(prune=is_aggregate_call) if is_aggregate_call(node)]
    roots = [*conditions, *(argument for call in calls for argument in _arguments(call))]
    typed = [(root, node) for root in roots for node in root.walk(prune=_is_untyped) if _has_type(node, root)]
    _check_typed(typed, refusals)
    parts = [(node, to_sql(node)) for _, node in typed]
    kinds = types_of(environment, columns, parts, refusals.text)
    _check_casts({id(node): kind for (node, _), kind in zip(parts, kinds, strict=True)}, parts, environment, refusals)
    for (node, _), kind in zip(parts, kinds, strict=True):
        if not is_scalar(kind):
            refusals.add(
                "row_type", node, f"{written(node)} has a type that can only be grouped by, counted or compared with "
                "NULL.", "Compute with numbers, texts, booleans, dates and timestamps; date_diff() subtracts dates.",
            )  # fmt: skip
        elif kind in _COARSE and not (any(node is root for root in roots) or _is_refined(node)):
            refusals.add(
                "row_type", node, f"{written(node)} is of type {kind}, which is only grouped by, counted or cast.",
                "Write CAST(s AS TIMESTAMP).",
            )  # fmt: skip
    _check_uses(roots, columns, refusals)
    for root in roots:
        if try_depth(to_sql(root)) > MAX_TRY_DEPTH:
            refusals.add(
                "row_syntax", root, "conditions, CASE and coalesce are nested too deeply.",
                f"At most {MAX_TRY_DEPTH} of them may stand inside one another where a part can fail.",
            )  # fmt: skip


def _check_casts(
    kinds: Mapping[int, str], parts: Sequence[tuple[exp.Expr, str]], environment: Environment, refusals: Refusals
) -> None:
    """Note a refusal for each cast that DuckDB does not have: every row would be NULL there, and nothing would say so.

    Args:
        kinds: types of the parts, by the identity of their nodes.
        parts: nodes with their texts.
        environment: knows the casts.
        refusals: collects.

    """
    for node, _ in parts:
        if not isinstance(node, exp.Cast):
            continue
        before, after = kinds.get(id(node.this.unnest())), kinds[id(node)]
        if before is None or isinstance(node.this.unnest(), exp.Null) or environment.schemas.has_cast(before, after):
            continue
        refusals.add(
            "row_type", node, f"{written(node)}: there is no cast from {before} to {after}.",
            "Compute it in another way: epoch(t) is the seconds of a timestamp, and texts can be cast to every type.",
        )  # fmt: skip


def _check_typed(typed: Sequence[tuple[exp.Expr, exp.Expr]], refusals: Refusals) -> None:
    """Refuse an expression whose parts are too long, all together, to be bound each by itself."""
    count = 0
    for root, node in typed:
        count += sum(1 for _ in node.walk())
        if count > MOST_TYPED_NODES:
            refusals.refuse(
                "size", root, f"the parts of the expressions of a query, which stand in one another, have at most "
                f"{MOST_TYPED_NODES:,} columns, literals, calls and operators.",
                "Compute less in a chain: in columns of a subquery, in a view, or in several conditions.",
            )  # fmt: skip


def uses_of(sql: str, columns: Sequence[Column]) -> int:
    """Columns of tables in an expression, through all subqueries, each as often as it is named; 1 at least."""
    known = {column.name: column.uses for column in columns}
    return max(1, sum(known.get(name, 1) for name in columns_of(sql)))


def _check_uses(roots: Sequence[exp.Expr], columns: Sequence[Column], refusals: Refusals) -> None:
    """Note a refusal for what subqueries over one another make too long: each of them could double it."""
    for root in roots:
        if uses_of(to_sql(root), columns) > MAX_USES:
            refusals.add(
                "row_syntax", root, f"more than {MAX_USES:,} columns are named here, with all subqueries below.",
                "Name a computed column less often.",
            )  # fmt: skip
        for node in root.find_all(exp.Concat, exp.DPipe):
            if _joined_columns(node) <= MAX_JOINED_COLUMNS < uses_of(to_sql(node), columns):
                refusals.add(
                    "row_syntax", node, f"more than {MAX_JOINED_COLUMNS} columns are joined into one text, with all "
                    "subqueries below.", "Join fewer: a text that grows with a row takes time that tells of it.",
                )  # fmt: skip
                break


def _arguments(call: exp.Expr) -> list[exp.Expr]:
    """The private expressions of an aggregate call, its argument and its FILTER; of a window, those of what it sums."""
    found: list[exp.Expr] = []
    for child in [call.this] if isinstance(call, exp.Window) else call.iter_expressions():
        if is_aggregate_call(child) or isinstance(child, _CALL_PARTS):
            found += _arguments(child)
        else:
            found.append(child)
    return found


def _is_untyped(node: exp.Expr) -> bool:
    return isinstance(node, _UNTYPED)


def _is_refined(node: exp.Expr) -> bool:
    """Whether a part is what is cast, by a cast that TRY catches."""
    above = node.parent
    while isinstance(above, exp.Paren):
        above = above.parent
    return isinstance(above, exp.Cast) and above.to.is_type("timestamp", "timestampntz", "date")


def _has_type(node: exp.Expr, root: exp.Expr) -> bool:
    if _is_untyped(node) or isinstance(node, exp.Paren | exp.Escape | exp.If):
        return False
    if node is not root and isinstance(node, _BOOLEAN):
        return False
    alone = node is root or isinstance(node.parent, exp.Is)
    return not (isinstance(node, exp.Column) and alone)
