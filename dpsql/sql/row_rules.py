"""The allow-list of row expressions: total, deterministic functions whose cost does not depend on the row.

Anything else is refused: a function with a data-dependent cost is a clock, one with a side effect a pipe, one that
fails an error oracle. What may still fail on a row (a cast, a division) is wrapped in TRY where SQL is generated.

Beside names there are rules for literals, types, sizes and depths. DuckDB has errors that no TRY catches (a date part
of an INTERVAL or a TIME, a LIKE pattern that ends in its escape, a bucket of no width), formats that read uninitialised
memory (two ``%n`` in strftime), and costs that double with each nested TRY or concat. Each would tell of a single row,
by an error, a value or a clock.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from sqlglot import exp
from sqlglot.dialects.duckdb import DuckDB

from dpsql.model.environment import Column, Environment, types_of
from dpsql.model.refusals import Refusals
from dpsql.operations.dialect import to_sql, written
from dpsql.operations.row_sql import as_condition, columns_of, try_depth
from dpsql.sql.clauses import is_aggregate_call
from dpsql.sql.statements import MOST_TYPED_NODES

FUNCTION_EXAMPLES: tuple[str, ...] = (
    "abs(x)", "ceil(x)", "floor(x)", "round(x, 1)", "sign(x)", "sqrt(x)", "ln(x)", "log10(x)", "log2(x)",
    "exp(x)", "power(x, 2)", "cbrt(x)", "sin(x)", "cos(x)", "tan(x)", "atan(x)", "atan2(x, y)", "degrees(x)",
    "radians(x)", "pi()", "mod(x, 2)", "trunc(x)", "isnan(x)", "isfinite(x)", "isinf(x)",
    "least(x, y)", "greatest(x, y)", "coalesce(x, y)", "nullif(x, y)", "if(c, x, y)", "case when c then x end",
    "cast(x as integer)", "try_cast(x as integer)", "date_trunc('month', d)", "extract(year from d)",
    "date_part('year', d)", "year(d)", "quarter(d)", "month(d)", "week(d)", "day(d)", "hour(d)", "minute(d)",
    "second(d)", "dayofweek(d)", "isodow(d)", "dayofyear(d)", "dayofmonth(d)", "weekday(d)", "weekofyear(d)",
    "isoyear(d)", "yearweek(d)", "decade(d)", "century(d)", "dayname(d)", "monthname(d)",
    "last_day(d)", "make_date(x, y, z)", "date_diff('day', d, e)", "date_add(d, interval 1 day)",
    "date_sub('day', d, e)", "epoch(d)", "strftime(d, '%Y')",
    "lower(s)", "upper(s)", "trim(s)", "ltrim(s)", "rtrim(s)", "length(s)", "left(s, 1)", "right(s, 1)",
    "substring(s, 1, 2)", "concat(s, t)", "split_part(s, t, 1)", "starts_with(s, t)", "ends_with(s, t)",
    "suffix(s, t)", "prefix(s, t)", "contains(s, t)", "strpos(s, t)", "instr(s, t)",
    "reverse(s)", "ascii(s)", "date_trunc('hour', ts)", "datediff('day', d, e)", "date(d)",
)  # fmt: skip
"""One call of each function that a row expression may use; the node that it parses to is what is allowed.

Not among them: functions whose result can be much longer than their argument (replace, repeat, lpad, …), because a
few of them nested make one row take minutes.
"""

_STRUCTURE: frozenset[type[exp.Expr]] = frozenset(
    {
        exp.Add, exp.And, exp.Between, exp.BitwiseAnd, exp.BitwiseOr, exp.BitwiseXor, exp.Boolean, exp.Column,
        exp.DataType, exp.DataTypeParam, exp.Div, exp.DPipe, exp.EQ, exp.GT, exp.GTE, exp.Identifier,
        exp.If, exp.ILike, exp.In, exp.IntDiv, exp.Interval, exp.Is, exp.Like, exp.Literal, exp.LT, exp.LTE,
        exp.Mod, exp.Mul, exp.Neg, exp.NEQ, exp.Not, exp.Null, exp.NullSafeEQ, exp.NullSafeNEQ, exp.Or,
        exp.Paren, exp.RawString, exp.Sub, exp.Var,
    }
)  # fmt: skip

_CAST_TARGETS: frozenset[str] = frozenset(
    {
        "BOOLEAN", "TINYINT", "SMALLINT", "INT", "BIGINT", "INT128", "UTINYINT", "USMALLINT", "UINT", "UBIGINT",
        "UINT128", "FLOAT", "DOUBLE", "DECIMAL", "VARCHAR", "TEXT", "CHAR", "DATE", "TIMESTAMP",
        "TIMESTAMPNTZ", "TIMESTAMPTZ", "TIMESTAMP_S", "TIMESTAMP_MS", "TIMESTAMP_NS", "UUID",
    }
)  # fmt: skip


def _allowed_functions() -> tuple[frozenset[type[exp.Expr]], frozenset[str]]:
    nodes: set[type[exp.Expr]] = set()
    names: set[str] = set()
    for example in FUNCTION_EXAMPLES:
        tree = DuckDB().parse(example)[0]
        if isinstance(tree, exp.Anonymous):
            names.add(tree.name.lower())
        else:
            # a few calls parse to a small tree of nodes, as extract() does to a cast inside a function
            nodes.update(type(node) for node in (tree.walk() if tree else ()) if isinstance(node, exp.Func))
    return frozenset(nodes), frozenset(names)


_FUNCTION_NODES, _FUNCTION_NAMES = _allowed_functions()
_ALLOWED = "Allowed are total functions with a cost that does not depend on the row; see docs/sql.md."


def check_row_expression(
    root: exp.Expr, refusals: Refusals, answered: Callable[[exp.Expr], bool] | None = None
) -> list[exp.Expr]:
    """Note a refusal for every node of ``root`` that is not on the allow-list; what a refused node holds is its own.

    Args:
        root: an expression over rows, or over groups.
        refusals: collects.
        answered: of an expression over groups, which nodes are keys, aggregates, or something else that a group has
            one of; a column elsewhere is refused. None of an expression over rows.

    Returns:
        The nodes that are answered: what they hold is checked elsewhere.

    """
    # where the keys themselves were refused, every column would seem ungrouped
    is_grouped = answered and all(refusal.code != "group_by_form" for refusal in refusals.found)
    found: list[exp.Expr] = []
    left: set[int] = set()
    for node in root.walk(prune=lambda node: id(node) in left):
        before = len(refusals.found)
        if answered and answered(node):
            found.append(node)
            left.add(id(node))
            continue
        check_node(node, refusals)
        if len(refusals.found) > before:
            left.add(id(node))
        elif is_grouped and isinstance(node, exp.Column):
            refusals.add(
                "not_grouped", node, f"column {node.name} is neither grouped nor aggregated.",
                "Add it to GROUP BY, or aggregate it.",
            )  # fmt: skip
    return found


def check_node(node: exp.Expr, refusals: Refusals) -> None:
    """Note a refusal if a node by itself is not on the allow-list."""
    for kinds, holds, message, hint in _LITERALS:
        if isinstance(node, kinds) and not holds(node):
            refusals.add("row_syntax", node, message.format(written(node)), hint)
    if isinstance(node, exp.In) and (node.args.get("unnest") or node.args.get("field")):
        refusals.add("row_syntax", node, "IN takes a list of values here.", "Write the values out, as in x IN (1, 2).")
    elif type(node) in _STRUCTURE:
        return
    elif isinstance(node, exp.Cast):
        if node.to.this.name not in _CAST_TARGETS or node.to.args.get("nested"):
            refusals.add(
                "row_syntax", node, f"a cast to {node.to.sql(dialect=DuckDB)} is not allowed here.",
                "Cast to a scalar type.",
            )  # fmt: skip
    elif isinstance(node, exp.AggFunc) and type(node) not in _FUNCTION_NODES:
        refusals.add(
            "row_function", node, f"{written(node)} cannot stand here: it would aggregate rows.",
            "Filter rows with WHERE and FILTER, and groups with HAVING.",
        )  # fmt: skip
    elif isinstance(node, exp.Func):
        by_name = isinstance(node, exp.Anonymous)
        if node.name.lower() not in _FUNCTION_NAMES if by_name else type(node) not in _FUNCTION_NODES:
            refusals.add("row_function", node, f"{written(node)} is not allowed inside a private query.", _ALLOWED)
    else:
        refusals.add(
            "row_syntax",
            node,
            f"{written(node)} is not allowed inside a private query.",
            "Use columns, literals, comparisons, arithmetic, CASE and the listed functions.",
        )


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


def _is_part(part: exp.Expr | None) -> bool:
    return isinstance(part, exp.Var | exp.Literal) and part.name.lower() in DATE_PARTS


def _is_text(node: exp.Expr | None) -> bool:
    return isinstance(node, exp.RawString) or (isinstance(node, exp.Literal) and bool(node.is_string))


def _is_plain_interval(node: exp.Interval) -> bool:
    number = node.this.this if isinstance(node.this, exp.Neg) else node.this
    unit = node.args.get("unit")
    known = isinstance(unit, exp.Var) and unit.name.lower().removesuffix("s") in DATE_PARTS
    return isinstance(number, exp.Literal) and known and isinstance(node.parent, exp.Add | exp.Sub | exp.DateAdd)


def _joined_columns(node: exp.Expr) -> int:
    return sum(1 for _ in node.find_all(exp.Column))


_PART = ("{} takes a known unit as a literal here.", f"Units are {', '.join(sorted(DATE_PARTS))}.")
_LITERALS: tuple[tuple[tuple[type[exp.Expr], ...], Callable[[Any], bool], str, str], ...] = (
    ((exp.TimestampTrunc, exp.DateDiff), lambda node: _is_part(node.args.get("unit")), *_PART),
    ((exp.Extract,), lambda node: _is_part(node.this), *_PART),
    (
        (exp.Anonymous,),
        lambda node: node.name.lower() not in ("date_part", "date_sub") or any(map(_is_part, node.expressions[:1])),
        *_PART,
    ),
    (
        (exp.TimeToStr,),
        lambda node: _is_text(node.args.get("format")) and _FORMAT.fullmatch(node.args["format"].name) is not None,
        "the format of strftime is not one that is known to be safe.",
        "Use a literal of %Y %m %d %H %M %S %j %y %b %B %a %A %p.",
    ),
    (
        (exp.Like, exp.ILike),
        lambda node: _is_text(node.expression),
        "the pattern of LIKE must be a text literal.",
        "Write s LIKE 'a%'.",
    ),
    (
        (exp.Interval,),
        _is_plain_interval,
        "an interval must be a literal that is added to a date.",
        "Write d + INTERVAL 1 DAY.",
    ),
    (
        (exp.Concat, exp.DPipe),
        lambda node: _joined_columns(node) <= MAX_JOINED_COLUMNS,
        f"more than {MAX_JOINED_COLUMNS} columns are joined into one text.",
        "Join fewer: a text that grows with a row takes time that tells of it.",
    ),
)
"""Nodes of which a part must be a literal of a known kind: whether it is, and the refusal where it is not."""


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
        _check_types(typed, columns, environment, refusals)
    for root in roots:
        _check_uses(root, columns, refusals)
        if try_depth(to_sql(root)) > MAX_TRY_DEPTH:
            refusals.add(
                "row_syntax", root, "conditions, CASE and coalesce are nested too deeply.",
                f"At most {MAX_TRY_DEPTH} of them may stand inside one another where a part can fail.",
            )  # fmt: skip


def checked_conditions(
    filters: Sequence[exp.Expr], columns: Sequence[Column], environment: Environment, refusals: Refusals
) -> tuple[str, ...]:
    """SQL of conditions, in an order that does not depend on how they were written."""
    types_of(environment, columns, [(part, as_condition(to_sql(part))) for part in filters], refusals.text)
    return tuple(sorted({to_sql(part) for part in filters}))


def _check_types(
    typed: Sequence[tuple[exp.Expr, exp.Expr]], columns: Sequence[Column], environment: Environment, refusals: Refusals
) -> None:
    """Note a refusal for each part of a type that is not safe, and for each cast that DuckDB does not have.

    Every row would be NULL where there is no such cast, and nothing would say so.

    Args:
        typed: parts that have a type, each after the expression in which it stands.
        columns: the columns of the source.
        environment: binds types, and knows the casts.
        refusals: collects.

    Raises:
        UnsupportedQueryError: the parts are too long, all together, to be bound each by itself.

    """
    count = 0
    for root, node in typed:
        count += sum(1 for _ in node.walk())
        if count > MOST_TYPED_NODES:
            refusals.refuse(
                "size", root, f"the parts of the expressions of a query, which stand in one another, have at most "
                f"{MOST_TYPED_NODES:,} columns, literals, calls and operators.",
                "Compute less in a chain: in columns of a subquery, in a view, or in several conditions.",
            )  # fmt: skip
    bound = types_of(environment, columns, [(node, to_sql(node)) for _, node in typed], refusals.text)
    kinds = {id(node): kind for (_, node), kind in zip(typed, bound, strict=True)}
    for node in (node for _, node in typed if isinstance(node, exp.Cast)):
        source = node.this.unnest()
        before, after = kinds.get(id(source)), kinds[id(node)]
        if before and not isinstance(source, exp.Null) and not environment.schemas.has_cast(before, after):
            refusals.add(
                "row_type", node, f"{written(node)}: there is no cast from {before} to {after}.",
                "Compute it in another way: epoch(t) is the seconds of a timestamp, and texts can be cast to every "
                "type.",
            )  # fmt: skip
    for (root, node), kind in zip(typed, bound, strict=True):
        if not is_scalar(kind):
            refusals.add(
                "row_type", node, f"{written(node)} has a type that can only be grouped by, counted or compared with "
                "NULL.", "Compute with numbers, texts, booleans, dates and timestamps; date_diff() subtracts dates.",
            )  # fmt: skip
        elif kind in _COARSE and node is not root and not _is_refined(node):
            refusals.add(
                "row_type", node, f"{written(node)} is of type {kind}, which is only grouped by, counted or cast.",
                "Write CAST(s AS TIMESTAMP).",
            )  # fmt: skip


def uses_of(sql: str, columns: Sequence[Column]) -> int:
    """Columns of tables in an expression, through all subqueries, each as often as it is named; 1 at least."""
    known = {column.name: column.uses for column in columns}
    return max(1, sum(known.get(name, 1) for name in columns_of(sql)))


def _check_uses(root: exp.Expr, columns: Sequence[Column], refusals: Refusals) -> None:
    """Note a refusal for what subqueries over one another make too long: each of them could double it."""
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
