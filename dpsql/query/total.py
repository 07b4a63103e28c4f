"""Row expressions made total: every part that could fail on a row is NULL there, whatever the other rows are.

One TRY around a whole expression is not enough. DuckDB folds ``a OR b`` to true where its statistics of the *table*
say that ``a`` always holds, and then a failing ``b`` is never computed: other rows would decide what a row counts.
So each operand of an operator that may ignore one of them (AND, OR, CASE, coalesce, IN, …) has a TRY of its own.

The optimizer also computes functions of dates over the least and greatest value of a column while it plans, where no
TRY catches what fails: so their arguments stand in TRY too, which carries no statistics, and ``bound`` reads every
column that an expression uses through TRY.

Other strict operators (NULL in, NULL out) compute all their operands and need none inside: one TRY around a tree of
them says the same as a TRY around each. That matters, because a TRY that fails computes its part a second time, row by
row: TRYs that stand inside one another double that cost at every step.

A TRY that fails on one row takes the 2,048 rows that the engine holds together one by one: it costs 50 times as much,
where one person's rows lie among all others. So what can be said without an error is: casts are TRY_CASTs, and whole
numbers are computed in types in which they do not overflow. Dates and wide numbers that may fail are computed apart.
"""

from __future__ import annotations

from functools import lru_cache

import sqlglot
from sqlglot import exp
from sqlglot.dialects.duckdb import DuckDB

from dpsql.query.dialect import to_sql
from dpsql.query.far_values import near
from dpsql.query.widened import is_divisor, widened

_LEAVES = (exp.Column, exp.Literal, exp.Null, exp.Boolean, exp.Identifier, exp.DataType, exp.DataTypeParam, exp.Var)
_LOGIC = (exp.And, exp.Or, exp.Not)
_BOOLEAN = (exp.Predicate, exp.Boolean, exp.Null, *_LOGIC)
_MAY_IGNORE = (
    exp.Between, exp.Case, exp.Coalesce, exp.Concat, exp.Greatest, exp.If, exp.In, exp.Is, exp.Least, exp.Nullif,
    exp.NullSafeEQ, exp.NullSafeNEQ, *_LOGIC,
)  # fmt: skip
"""Operators whose result may not depend on one of their operands."""

_PLANNED_AHEAD = tuple(
    {
        type(sqlglot.parse_one(call, dialect=DuckDB))
        for call in (
            "date_part('year', d)", "date_trunc('week', d)", "extract(week from d)", "week(d)", "weekofyear(d)",
            "isoyear(d)", "yearweek(d)", "year(d)", "quarter(d)", "month(d)", "day(d)", "dayofweek(d)", "isodow(d)",
            "dayofyear(d)", "dayofmonth(d)", "weekday(d)", "decade(d)", "century(d)", "last_day(d)", "dayname(d)",
            "monthname(d)", "date_diff('day', d, e)", "epoch(d)", "date(d)", "hour(d)", "minute(d)", "second(d)",
        )
    }
)  # fmt: skip
"""Calls that the optimizer may compute over a column's statistics."""


Types = tuple[tuple[str, str], ...]
"""Names of columns with their DuckDB types."""


@lru_cache(maxsize=4096)
def total_sql(sql: str, types: Types = ()) -> str:
    """The expression with a TRY around each part that could fail and might be ignored.

    With the types of its columns, whole numbers are computed so that they do not fail (``widened``), and rows whose
    values are far from the usual ones apart (``far_values``).

    >>> total_sql('"a" + 1 > 1 OR CAST("s" AS INT) = 2')
    'try("a" + 1 > 1) OR try(TRY_CAST("s" AS INT) = 2)'
    >>> total_sql('"a" + 1', (("a", "INTEGER"),))
    'try(TRY_CAST(TRY_CAST("a" AS BIGINT) + 1 AS INT))'
    """
    root, columns = sqlglot.parse_one(sql, dialect=DuckDB), dict(types)
    condition = near(root, columns)
    total = _total(widened(root, columns))
    if condition is None:
        return to_sql(total)
    return to_sql(exp.Case(ifs=[exp.If(this=_condition(condition), true=total)], default=total.copy()))


def total_condition_sql(sql: str, types: Types = ()) -> str:
    """Likewise for a condition, cast to BOOLEAN here, because DuckDB would cast it outside TRY."""
    return f"TRY(CAST({total_sql(sql, types)} AS BOOLEAN))"


@lru_cache(maxsize=4096)
def columns_of(sql: str) -> tuple[str, ...]:
    """Names of the columns that an expression uses, each as often as it does.

    >>> sorted(columns_of('"a" + 1 > "b"'))
    ['a', 'b']
    """
    return tuple(column.name for column in sqlglot.parse_one(sql, dialect=DuckDB).find_all(exp.Column))


def try_depth(sql: str) -> int:
    """How many TRYs of ``total_sql`` stand inside one another."""
    return _depth(_total(sqlglot.parse_one(sql, dialect=DuckDB)))


def _depth(node: exp.Expr) -> int:
    inner = max((_depth(child) for child in node.iter_expressions()), default=0)
    return inner + (isinstance(node, exp.Anonymous) and node.name.upper() == "TRY")


def _total(node: exp.Expr, *, within_strict: bool = False) -> exp.Expr:
    if isinstance(node, _LEAVES) or (isinstance(node, exp.Interval | exp.Neg) and isinstance(node.this, exp.Literal)):
        return node
    if isinstance(node, exp.Paren):
        node.set("this", _total(node.this, within_strict=within_strict))
        return node
    if type(node) is exp.Cast:
        cast = exp.TryCast(**node.args)
        cast.parent = node.parent
        node = cast
    if isinstance(node, exp.Case):
        node = _total_case(node)
    elif isinstance(node, exp.If):
        node = _total_case(exp.Case(ifs=[node.copy()], default=node.args.get("false")))
    else:
        for child in list(node.iter_expressions()):
            inner = _condition(child) if isinstance(node, _LOGIC) else _total(child, within_strict=_is_strict(node))
            if inner is not child:
                child.replace(inner)
    return node if within_strict or isinstance(node, _LOGIC) else _try(node)


def _is_strict(node: exp.Expr) -> bool:
    return is_divisor(node) or not isinstance(node, (*_MAY_IGNORE, *_PLANNED_AHEAD))


def _total_case(node: exp.Case) -> exp.Case:
    subject = node.this
    branches = []
    for branch in node.args["ifs"]:
        # a subject is compared with every branch, and each comparison may fail
        test = branch.this if subject is None else exp.EQ(this=_paren(subject), expression=_paren(branch.this))
        branches.append(exp.If(this=_condition(test), true=_total(branch.args["true"])))
    default = node.args.get("default")
    return exp.Case(ifs=branches, default=_total(default) if default is not None else None)


def _paren(node: exp.Expr) -> exp.Expr:
    return node.copy() if isinstance(node, _LEAVES) else exp.paren(node.copy(), copy=False)


def _condition(node: exp.Expr) -> exp.Expr:
    """A part that stands where a BOOLEAN is expected."""
    if isinstance(node.unnest(), _BOOLEAN):
        return _total(node)
    return _try(exp.cast(_total(node.copy(), within_strict=True), "BOOLEAN", dialect="duckdb"))


def _try(node: exp.Expr) -> exp.Expr:
    # the copy has no parent, so that the original's place can be given to the call
    return exp.Anonymous(this="TRY", expressions=[node.copy()])
