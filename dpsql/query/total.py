"""Row expressions made total: every part that could fail on a row is NULL there, whatever the other rows are.

One TRY around a whole expression is not enough. DuckDB folds ``a OR b`` to true where its statistics of the *table*
say that ``a`` always holds, and then a failing ``b`` is never computed: other rows would decide what a row counts.
With a TRY of its own around each part nothing fails, so order, folding and short cuts change no value.
"""

from __future__ import annotations

from functools import lru_cache

import sqlglot
from sqlglot import exp
from sqlglot.dialects.duckdb import DuckDB

from dpsql.query.dialect import to_sql

_LEAVES = (exp.Column, exp.Literal, exp.Null, exp.Boolean, exp.Identifier, exp.DataType, exp.DataTypeParam, exp.Var)
_LOGIC = (exp.And, exp.Or, exp.Not)
_NEVER_FAIL = (exp.Paren, *_LOGIC)
_BOOLEAN = (exp.Predicate, exp.Boolean, exp.Null, exp.Escape, *_LOGIC)


@lru_cache(maxsize=4096)
def total_sql(sql: str) -> str:
    """The expression with a TRY around each part that could fail.

    >>> total_sql('"a" > 1 OR CAST("s" AS INT) = 2')
    'try("a" > 1) OR try(try(CAST("s" AS INT)) = 2)'
    """
    return to_sql(_total(sqlglot.parse_one(sql, dialect=DuckDB)))


def total_condition_sql(sql: str) -> str:
    """Likewise for a condition, cast to BOOLEAN here, because DuckDB would cast it outside TRY."""
    return f"TRY(CAST({total_sql(sql)} AS BOOLEAN))"


def _total(node: exp.Expr) -> exp.Expr:
    if isinstance(node, _LEAVES):
        return node
    if isinstance(node, exp.Interval | exp.Neg) and isinstance(node.this, exp.Literal):
        return node
    if isinstance(node, exp.Case):
        return _try(_total_case(node))
    if isinstance(node, exp.If):
        node.set("this", _condition(node.this))
        for name in ("true", "false"):
            if node.args.get(name) is not None:
                node.set(name, _total(node.args[name]))
        return _try(node)
    # LIKE … ESCAPE is one operator in two nodes
    whole = node.this if isinstance(node, exp.Escape) else node
    for child in list(whole.iter_expressions()):
        replacement = _condition(child) if isinstance(node, _LOGIC) else _total(child)
        if replacement is not child:
            child.replace(replacement)
    return node if isinstance(node, _NEVER_FAIL) else _try(node)


def _total_case(node: exp.Case) -> exp.Case:
    subject = node.this
    branches = []
    for branch in node.args["ifs"]:
        # a subject is compared with every branch, and each comparison may fail
        test = exp.EQ(this=subject.copy(), expression=branch.this) if subject is not None else branch.this
        branches.append(exp.If(this=_condition(test), true=_total(branch.args["true"])))
    default = node.args.get("default")
    return exp.Case(ifs=branches, default=_total(default) if default is not None else None)


def _condition(node: exp.Expr) -> exp.Expr:
    """A part that stands where a BOOLEAN is expected."""
    if isinstance(node.unnest(), _BOOLEAN):
        return _total(node)
    return _try(exp.cast(_total(node.copy()), "BOOLEAN", dialect="duckdb"))


def _try(node: exp.Expr) -> exp.Expr:
    # the copy has no parent, so that the original's place can be given to the call
    return exp.Anonymous(this="TRY", expressions=[node.copy()])
