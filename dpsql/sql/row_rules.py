"""The allow-list of row expressions: total, deterministic functions whose cost does not depend on the row.

Anything else is refused: a function with a data-dependent cost is a clock, one with a side effect a pipe, one that
fails an error oracle. What may still fail on a row (a cast, a division) is wrapped in TRY where SQL is generated.

Beside names there are rules for literals here, and for types, sizes and depths in ``row_types``. DuckDB has errors that
no TRY catches (a date part of an INTERVAL or a TIME, a LIKE pattern that ends in its escape, a bucket of no width),
formats that read uninitialised memory (two ``%n`` in strftime), and costs that double with each nested TRY or concat.
Each would tell of a single row, by an error, a value or a clock.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

from sqlglot import exp
from sqlglot.dialects.duckdb import DuckDB

from dpsql.model.refusals import Refusals
from dpsql.operations.dialect import written
from dpsql.operations.row_sql import times_longer
from dpsql.sql.clauses import AGGREGATE_NAMES, INTERVAL_FUNCTIONS, PRIVATE_AGGREGATES, ReleasedList
from dpsql.sql.date_parts import DATE_PARTS

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
    "timezone('Europe/Berlin', ts)", "time_bucket(interval 1 hour, ts)", "strlen(s)",
    "regexp_matches(s, '^a')", "regexp_full_match(s, 'a+')", "regexp_extract(s, '^(a+)b', 1)",
    "regexp_replace(s, 'a+', 'b')", "replace(s, 'a', 'b')",
)  # fmt: skip
"""One call of each function that a row expression may use; the node that it parses to is what is allowed.

Not among them: functions whose result can be much longer than their argument (repeat, lpad, …), because a few of them
nested make one row take minutes. By how much replace() makes a text longer follows from its literals, and is bounded.
"""

_SEARCHES = (exp.RegexpLike, exp.RegexpFullMatch, exp.RegexpExtract, exp.RegexpReplace)

ZONE_CALL = "timezone"
"""The function that ``x AT TIME ZONE 'zone'`` calls."""

_STRUCTURE: frozenset[type[exp.Expr]] = frozenset(
    {
        exp.Add, exp.And, exp.Between, exp.BitwiseAnd, exp.BitwiseOr, exp.BitwiseXor, exp.Boolean, exp.Column,
        exp.DataType, exp.DataTypeParam, exp.Div, exp.DPipe, exp.EQ, exp.GT, exp.GTE, exp.Identifier,
        exp.If, exp.ILike, exp.In, exp.IntDiv, exp.Interval, exp.Is, exp.Like, exp.Literal, exp.LT, exp.LTE,
        exp.Mod, exp.Mul, exp.Neg, exp.NEQ, exp.Not, exp.Null, exp.NullSafeEQ, exp.NullSafeNEQ, exp.Or,
        exp.Paren, exp.RawString, exp.Sub, exp.Var, ReleasedList,
    }
)  # fmt: skip

_CAST_TARGETS: frozenset[str] = frozenset(
    {
        "BOOLEAN", "TINYINT", "SMALLINT", "INT", "BIGINT", "INT128", "UTINYINT", "USMALLINT", "UINT", "UBIGINT",
        "UINT128", "FLOAT", "DOUBLE", "DECIMAL", "VARCHAR", "TEXT", "CHAR", "DATE", "TIMESTAMP",
        "TIMESTAMPNTZ", "TIMESTAMPTZ", "TIMESTAMP_S", "TIMESTAMP_MS", "TIMESTAMP_NS", "UUID",
    }
)  # fmt: skip


@functools.cache
def allowed_functions() -> tuple[frozenset[type[exp.Expr]], frozenset[str]]:
    """Return the classes of nodes that the examples parse to, and the names of functions without a class."""
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


@functools.cache
def function_names() -> tuple[str, ...]:
    """Return the names of all functions and aggregates that a query may call."""
    of_rows = (example.partition("(")[0] for example in FUNCTION_EXAMPLES if not example.startswith("case"))
    return tuple(dict.fromkeys((*of_rows, *AGGREGATE_NAMES, *PRIVATE_AGGREGATES, *INTERVAL_FUNCTIONS)))


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
                "not_grouped",
                node,
                f"column {written(node)} is neither grouped nor aggregated.",
                "Group by it, too, or aggregate it.",
            )
    return found


def check_node(node: exp.Expr, refusals: Refusals) -> None:
    """Note a refusal if a node by itself is not on the allow-list."""
    for kinds, holds, message, hint in _LITERALS:
        if isinstance(node, kinds) and not holds(node):
            from dpsql.sql.syntax_hints import cure_of_literal  # noqa: PLC0415 — only if a text is refused

            refusals.add("row_syntax", node, message.format(written(node)), cure_of_literal(node) or hint)
    if isinstance(node, exp.In) and (node.args.get("unnest") or node.args.get("field")):
        refusals.add("row_syntax", node, "IN takes a list of values here.", "Write the values out, as in x IN (1, 2).")
    elif type(node) in _STRUCTURE:
        return
    elif isinstance(node, exp.Cast):
        if node.to.this.name not in _CAST_TARGETS or node.to.args.get("nested"):
            refusals.add(
                "row_syntax",
                node,
                f"a cast to {node.to.sql(dialect=DuckDB)} is not allowed here.",
                "Cast to a scalar type.",
            )
    elif isinstance(node, exp.Func):
        nodes, names = allowed_functions()
        is_allowed = node.name.lower() in names if isinstance(node, exp.Anonymous) else type(node) in nodes
        if not is_allowed:
            from dpsql.sql.function_refusals import refuse_row_function  # noqa: PLC0415 — only if a call is refused

            refuse_row_function(node, refusals, function_names())
        elif isinstance(node, exp.Anonymous) and node.name.lower() == ZONE_CALL:
            from dpsql.sql.time_zones import check_zone  # noqa: PLC0415 — few queries name a zone

            check_zone(node, refusals)
        elif isinstance(node, _SEARCHES):
            from dpsql.sql.pattern_rules import check_pattern  # noqa: PLC0415 — few queries have a pattern

            check_pattern(node, refusals)
    else:
        from dpsql.sql.syntax_hints import refused_syntax  # noqa: PLC0415 — only if a text is refused

        refusals.add("row_syntax", node, *refused_syntax(node))


MAX_JOINED_COLUMNS = 32
_FORMAT = re.compile(r"(?:[^%]|%[YmdHMSjybBaApGVu%])*")


def _is_part(part: exp.Expr | None) -> bool:
    return isinstance(part, exp.Var | exp.Literal) and part.name.lower() in DATE_PARTS


def _is_text(node: exp.Expr | None) -> bool:
    return isinstance(node, exp.RawString) or (isinstance(node, exp.Literal) and bool(node.is_string))


def _is_plain_interval(node: exp.Interval) -> bool:
    number = node.this.this if isinstance(node.this, exp.Neg) else node.this
    unit = node.args.get("unit")
    known = isinstance(unit, exp.Var) and unit.name.lower().removesuffix("s") in DATE_PARTS
    # what is written for a number like 1e3 cannot be read again
    is_plain = isinstance(number, exp.Literal) and "e" not in number.name.lower()
    # what else a bucket may be is checked with the bucket
    return is_plain and known and isinstance(node.parent, exp.Add | exp.Sub | exp.DateAdd | exp.DateBin)


_SECONDS = {
    "microsecond": 1e-6, "millisecond": 1e-3, "second": 1.0, "minute": 60.0, "hour": 3_600.0, "day": 86_400.0,
    "week": 604_800.0, "month": 2_678_400.0, "quarter": 8_035_200.0, "year": 31_622_400.0, "decade": 316_224_000.0,
    "century": 3_162_240_000.0,
}  # fmt: skip
_MOST_SECONDS = 31_622_400_000.0
"""A thousand years: buckets of usual times begin in the range of every type."""
_FIRST_ORIGIN, _LAST_ORIGIN = "1700-01-01", "2200-01-01"


def _is_bucket(node: exp.DateBin) -> bool:
    """Return whether a bucket has a fixed width above 0 and, if one is named, an origin in a usual year."""
    width, origin = node.this, node.args.get("unit")
    if not isinstance(width, exp.Interval) or not isinstance(width.this, exp.Literal) or node.args.get("zone"):
        return False
    unit = width.args["unit"].name.lower().removesuffix("s") if width.args.get("unit") else ""
    if not width.this.name.isdecimal() or not 0 < int(width.this.name) * _SECONDS.get(unit, 0.0) <= _MOST_SECONDS:
        return False
    if origin is None:
        return True
    is_time = isinstance(origin, exp.Cast) and origin.to.is_type("date", "timestamp", "timestampntz", "timestamptz")
    is_literal = is_time and isinstance(origin.this, exp.Literal)
    return is_literal and _FIRST_ORIGIN <= origin.this.name <= _LAST_ORIGIN


def joined_columns(node: exp.Expr) -> int:
    """Return how many columns an expression names, each as often as it is named and as replace() makes it longer."""
    return sum(map(times_longer, node.find_all(exp.Column)))


def _replaces_literals(node: exp.Replace) -> bool:
    # a text of the query alone would grow while it is planned
    texts = (node.expression, node.args.get("replacement"))
    return node.this.find(exp.Column) is not None and all(map(_is_text, texts)) and bool(node.expression.name)


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
        "Use a literal of %Y %m %d %H %M %S %j %y %b %B %a %A %p %G %V %u.",
    ),
    (
        (exp.Like, exp.ILike),
        lambda node: _is_text(node.expression),
        "the pattern of LIKE must be a text literal.",
        "Give a text, as in s LIKE 'a%'.",
    ),
    (
        (exp.Interval,),
        _is_plain_interval,
        "an interval must be a literal that is added to a date.",
        "Give a literal, as in d + INTERVAL 1 DAY.",
    ),
    (
        (exp.DateBin,),
        _is_bucket,
        "{} takes a width above 0, at most 1000 years, and an origin, both as literals.",
        "Give a width, as in time_bucket(INTERVAL 15 MINUTES, t), and a DATE that a bucket begins with.",
    ),
    (
        (exp.Replace,),
        _replaces_literals,
        "{} takes a column's text and two text literals, and the first literal is not empty.",
        "Use constants, as in replace(s, 'a', 'b').",
    ),
    (
        (exp.Replace,),
        lambda node: joined_columns(node) <= MAX_JOINED_COLUMNS,
        f"replace() may make a text more than {MAX_JOINED_COLUMNS} times as long here.",
        "Give a shorter text: a text that grows with a row takes time that reveals its length.",
    ),
    (
        (exp.Concat, exp.DPipe),
        lambda node: joined_columns(node) <= MAX_JOINED_COLUMNS,
        f"more than {MAX_JOINED_COLUMNS} columns are joined into one text.",
        "Join fewer: a text that grows with a row takes time that reveals its length.",
    ),
)
"""Nodes of which a part must be a literal of a known kind: whether it is, and the refusal where it is not."""
