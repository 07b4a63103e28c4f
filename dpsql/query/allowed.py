"""The allow-list of row expressions: total, deterministic functions whose cost does not depend on the row.

Anything else is refused: a function with a data-dependent cost is a clock, one with a side effect a pipe, one that
fails an error oracle. What may still fail on a row (a cast, a division) is wrapped in TRY where SQL is generated.
"""

from __future__ import annotations

from collections.abc import Callable

from sqlglot import exp
from sqlglot.dialects.duckdb import DuckDB

from dpsql.query.dialect import written
from dpsql.query.refusals import Refusals
from dpsql.query.row_rules import check_literals

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


def check_row_expression(
    root: exp.Expr, refusals: Refusals, answered: Callable[[exp.Expr], bool] = lambda _: False
) -> set[int]:
    """Note a refusal for every node of ``root`` that is not on the allow-list; what a refused node holds is its own.

    ``answered`` says which nodes stand for something that is checked elsewhere. Returns the ids of refused nodes.
    """
    refused: set[int] = set()
    for node in root.walk(prune=lambda node: id(node) in refused or answered(node)):
        if answered(node):
            continue
        before = len(refusals.found)
        check_node(node, refusals)
        if len(refusals.found) > before:
            refused.add(id(node))
    return refused


def check_grouped(root: exp.Expr, refusals: Refusals, answered: Callable[[exp.Expr], bool]) -> list[exp.Expr]:
    """Note a refusal for every part of ``root`` that is not computed of groups, by what is on the allow-list.

    ``answered`` says which nodes are keys, aggregates, or something else that a group has one of. Returns these nodes:
    what they hold is checked elsewhere.
    """
    refused = check_row_expression(root, refusals, answered)
    # where the keys themselves were refused, every column would seem ungrouped
    has_keys = all(refusal.code != "group_by_form" for refusal in refusals.found)
    found = []
    for node in root.walk(prune=lambda node: answered(node) or id(node) in refused):
        if answered(node):
            found.append(node)
        elif has_keys and isinstance(node, exp.Column):
            refusals.add(
                "not_grouped", node, f"column {node.name} is neither grouped nor aggregated.",
                "Add it to GROUP BY, or aggregate it.",
            )  # fmt: skip
    return found


def check_node(node: exp.Expr, refusals: Refusals) -> None:
    """Note a refusal if a node by itself is not on the allow-list."""
    check_literals(node, refusals)
    if type(node) in _STRUCTURE:
        _check_structure(node, refusals)
    elif isinstance(node, exp.Cast):
        if node.to.this.name not in _CAST_TARGETS or node.to.args.get("nested"):
            refusals.add(
                "row_syntax", node, f"a cast to {node.to.sql(dialect=DuckDB)} is not allowed here.",
                "Cast to a scalar type.",
            )  # fmt: skip
    elif isinstance(node, exp.Anonymous):
        if node.name.lower() not in _FUNCTION_NAMES:
            _refuse_function(node, refusals)
    elif isinstance(node, exp.Func):
        if type(node) not in _FUNCTION_NODES:
            _refuse_function(node, refusals)
    else:
        refusals.add(
            "row_syntax",
            node,
            f"{written(node)} is not allowed inside a private query.",
            "Use columns, literals, comparisons, arithmetic, CASE and the listed functions.",
        )


def _check_structure(node: exp.Expr, refusals: Refusals) -> None:
    if isinstance(node, exp.In) and (node.args.get("unnest") or node.args.get("field")):
        refusals.add("row_syntax", node, "IN takes a list of values here.", "Write the values out, as in x IN (1, 2).")


def _refuse_function(node: exp.Expr, refusals: Refusals) -> None:
    if isinstance(node, exp.AggFunc):
        refusals.add(
            "row_function", node, f"{written(node)} cannot stand here: it would aggregate rows.",
            "Filter rows with WHERE and FILTER, and groups with HAVING.",
        )  # fmt: skip
        return
    refusals.add(
        "row_function",
        node,
        f"{written(node)} is not allowed inside a private query.",
        "Allowed are total functions with a cost that does not depend on the row; see docs/sql.md.",
    )
