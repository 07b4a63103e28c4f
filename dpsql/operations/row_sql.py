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

What a frame and the subqueries below it read is made of such parts, each value in one spelling. The text is written
while a frame is planned; its salt is looked up where the rows are read. Until then ``SALT`` stands in its place. It is
no expression that DuckDB can bind, so a query in which it was left does not run.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

import sqlglot
from sqlglot import exp
from sqlglot.dialects.duckdb import DuckDB

from dpsql.operations.dialect import quote, to_sql
from dpsql.operations.overflow import is_divisor, near, widened

_LEAVES = (exp.Column, exp.Literal, exp.Null, exp.Boolean, exp.Identifier, exp.DataType, exp.DataTypeParam, exp.Var)
_LOGIC = (exp.And, exp.Or, exp.Not)
_BOOLEAN = (exp.Predicate, exp.Boolean, exp.Null, *_LOGIC)
_MAY_IGNORE = (
    exp.Between,
    exp.Case,
    exp.Coalesce,
    exp.Concat,
    exp.Greatest,
    exp.If,
    exp.In,
    exp.Is,
    exp.Least,
    exp.Nullif,
    exp.NullSafeEQ,
    exp.NullSafeNEQ,
    *_LOGIC,
)
"""Operators whose result may not depend on one of their operands."""
_SEARCHES = (exp.RegexpLike, exp.RegexpFullMatch, exp.RegexpExtract, exp.RegexpReplace)

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
    values are far from the usual ones apart (``near``).

    >>> total_sql('"a" + 1 > 1 OR CAST("s" AS INT) = 2')
    'try("a" + 1 > 1) OR try(TRY_CAST("s" AS INT) = 2)'
    >>> total_sql('"a" + 1', (("a", "INTEGER"),))
    'try(TRY_CAST(TRY_CAST("a" AS BIGINT) + 1 AS INT))'
    """
    root, columns = sqlglot.parse_one(sql, dialect=DuckDB), dict(types)
    conditions = near(root, columns)
    total = _total(widened(root, columns))
    if conditions:
        all_near = _condition(exp.and_(*conditions, copy=False))
        total = exp.Case(ifs=[exp.If(this=all_near, true=total)], default=total.copy())
    return to_sql(total)


def total_condition_sql(sql: str, types: Types = ()) -> str:
    """Likewise for a condition, cast to BOOLEAN here, because DuckDB would cast it outside TRY."""
    return f"TRY(CAST({total_sql(sql, types)} AS BOOLEAN))"


@lru_cache(maxsize=4096)
def columns_of(sql: str) -> tuple[str, ...]:
    """Names of the columns that an expression uses, each as often as it does, and as replace() makes it longer.

    >>> sorted(columns_of('"a" + 1 > "b"'))
    ['a', 'b']
    """
    found = sqlglot.parse_one(sql, dialect=DuckDB).find_all(exp.Column)
    return tuple(column.name for column in found for _ in range(times_longer(column)))


_MOST_TIMES = 10_000


def times_longer(node: exp.Expr) -> int:
    """Return how many times as long calls of replace() around a part may make it: the product of their growths."""
    times, above = 1, node.parent
    while above is not None and times < _MOST_TIMES:
        if isinstance(above, exp.Replace):
            # an empty text is refused elsewhere
            before, after = (len(above.text(name).encode()) or 1 for name in ("expression", "replacement"))
            times *= max(1, -(-after // before))
        above = above.parent
    return min(times, _MOST_TIMES)


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
        if isinstance(node, _SEARCHES):
            from dpsql.operations.cut_patterns import cut_search  # noqa: PLC0415 — few queries have a pattern

            above, node = node.parent, cut_search(node)
            node.parent = above
        for child in list(node.iter_expressions()):
            inner = _condition(child) if isinstance(node, _LOGIC) else _total(child, within_strict=_is_strict(node))
            if inner is not child:
                child.replace(inner)
    return node if within_strict or isinstance(node, _LOGIC) else _try(node)


def _is_strict(node: exp.Expr) -> bool:
    return is_divisor(node) or not isinstance(node, (*_MAY_IGNORE, *_PLANNED_AHEAD))


def _total_case(node: exp.Case) -> exp.Case:
    subject, default = node.this, node.args.get("default")
    branches = []
    for branch in node.args["ifs"]:
        # a subject is compared with every branch, and each comparison may fail
        test = exp.EQ(this=_paren(subject), expression=_paren(branch.this)) if subject else branch.this
        branches.append(exp.If(this=_condition(test), true=_total(branch.args["true"])))
    return exp.Case(ifs=branches, default=_total(default) if default else None)


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


def finite(sql: str) -> str:
    """Return SQL that is NULL where a floating-point value is NaN or infinite.

    >>> guarded(finite('"x"')), guarded(finite('"x" + 1'))
    ('case when isfinite("x") then "x" end', 'TRY(case when isfinite("x" + 1) then "x" + 1 end)')
    """
    return f"case when isfinite({sql}) then {sql} end"


_COLUMN = r'"(?:[^"]|"")*"'
_PLAIN_COLUMN = re.compile(f"^{_COLUMN}$")
_NEVER_FAILS = re.compile(rf"^({_COLUMN}|case when isfinite\(({_COLUMN})\) then \2 end)$")
"""A column, or one that is ``finite``: what the optimizer knows of it makes nothing fail."""
_NESTED_TYPE = re.compile(r"^(.*)\[\d*\]$")


def is_plain(sql: str) -> bool:
    """Whether an expression is a column and nothing else."""
    return _PLAIN_COLUMN.match(sql) is not None


def guarded(sql: str) -> str:
    """An expression that becomes NULL where it would fail on a row."""
    return sql if _NEVER_FAILS.match(sql) else f"TRY({sql})"


def without_statistics(relation: str, expressions: Iterable[str]) -> str:
    """The relation, with every column that one of the expressions computes with read through TRY.

    What the optimizer knows of a column (its least and greatest value, whether it holds NULL) would otherwise decide
    what it computes while it plans, where no TRY catches an error: the rows of others would decide whether a query
    fails. TRY passes no such knowledge on.
    """
    used = {name for sql in expressions if not _NEVER_FAILS.match(sql) for name in columns_of(sql)}
    if not used:
        return relation
    replaced = ", ".join(f"TRY({quote(name)}) AS {quote(name)}" for name in sorted(used))
    return f"(SELECT * REPLACE ({replaced}) FROM {relation})"


def shielded(sql: str, unit: str, types: Types) -> str:
    """A total expression of which nothing is computed outside TRY, on rows with a unit column.

    Two expressions that share a part (a cast that DuckDB adds by itself, say) would have it computed once, before and
    outside TRY, where it fails aloud; the optimizer does not look for shared parts inside CASE. Rows without a unit are
    dropped anyway; where no column names the unit the rows are public, and the expression is total alone.
    """
    if _NEVER_FAILS.match(sql):
        return sql
    total = total_sql(sql, types)
    return f"CASE WHEN {unit} IS NOT NULL THEN {total} END" if unit else total


def computed_condition(sql: str, unit: str, types: Types) -> str:
    """The same of a condition, as BOOLEAN."""
    total = total_condition_sql(sql, types)
    return f"CASE WHEN {unit} IS NOT NULL THEN {total} END" if unit else total


def as_condition(sql: str) -> str:
    """A condition as BOOLEAN: one of another type would be cast where it is used, outside TRY."""
    return f"CAST({sql} AS BOOLEAN)"


def one_spelling(value: str, value_type: str, depth: int = 0) -> str:
    """The value, spelled the same for all values that GROUP BY holds equal.

    GROUP BY shows the spelling of whichever row came first, which would tell of rows without noise: -0.0 and 0.0,
    NaNs of several bit patterns, 30 days and 1 month, texts under a collation.
    """
    if value_type == "VARCHAR":
        return f'{value} COLLATE "binary"'
    if value_type in ("FLOAT", "DOUBLE"):
        return f"CASE WHEN isnan({value}) THEN 'nan'::{value_type} WHEN {value} = 0 THEN 0 ELSE {value} END"
    if value_type == "INTERVAL":
        normal = f"normalized_interval({value})"
        # of a negative interval the opposite is normalised, so that -5 days are not -1 month and 25 days
        opposite = f"TRY(-normalized_interval(-{normal}))"
        return f"CASE WHEN {normal} < INTERVAL 0 DAY THEN coalesce({opposite}, {normal}) ELSE {normal} END"
    nested = _NESTED_TYPE.match(value_type)
    if nested:
        element = f"element_{depth}"
        inner = one_spelling(element, nested[1], depth + 1)
        return f"CAST(list_transform({value}, lambda {element}: {inner}) AS {value_type})"
    return value


SALT = "dpsql_salt('of', \"frame\")"
"""Holds both kinds of quotes: a literal that had it would double one of them, a name the other; and no expression of a
query calls a function of this name. So no text of anybody else is taken for it."""

STAND_IN_SALT = bytes(16)
"""For a query that is tried on empty tables alone."""


def with_salt(sql: str, salt: bytes) -> str:
    """The SQL with the salt, as a literal, in its place."""
    return sql.replace(SALT, f"'{salt.hex()}'")
