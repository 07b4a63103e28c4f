"""Parts of private SQL that cannot fail on a row, and show each value in one spelling, whatever the rows are.

What the query of a frame reads is made of them, and what the subqueries below it read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from dpsql.query.dialect import quote
from dpsql.query.total import Types, columns_of, total_condition_sql, total_sql

_PLAIN_COLUMN = re.compile(r'^"(?:[^"]|"")*"$')
_NESTED_TYPE = re.compile(r"^(.*)\[\d*\]$")


def is_plain(sql: str) -> bool:
    """Whether an expression is a column and nothing else."""
    return _PLAIN_COLUMN.match(sql) is not None


def guarded(sql: str) -> str:
    """An expression that becomes NULL where it would fail on a row."""
    return sql if is_plain(sql) else f"TRY({sql})"


def without_statistics(relation: str, expressions: Iterable[str]) -> str:
    """The relation, with every column that one of the expressions computes with read through TRY.

    What the optimizer knows of a column (its least and greatest value, whether it holds NULL) would otherwise decide
    what it computes while it plans, where no TRY catches an error: the rows of others would decide whether a query
    fails. TRY passes no such knowledge on.
    """
    used = {name for sql in expressions if not is_plain(sql) for name in columns_of(sql)}
    if not used:
        return relation
    replaced = ", ".join(f"TRY({quote(name)}) AS {quote(name)}" for name in sorted(used))
    return f"(SELECT * REPLACE ({replaced}) FROM {relation})"


def shielded(sql: str, unit: str, types: Types) -> str:
    """A total expression of which nothing is computed outside TRY.

    Two expressions that share a part (a cast that DuckDB adds by itself, say) would have it computed once, before and
    outside TRY, where it fails aloud; the optimizer does not look for shared parts inside CASE. Rows without a unit are
    dropped anyway.
    """
    return sql if is_plain(sql) else f"CASE WHEN {unit} IS NOT NULL THEN {total_sql(sql, types)} END"


def computed(sql: str, unit: str | None, types: Types) -> str:
    """What an expression is computed by, on rows with a unit column or on public ones."""
    return total_sql(sql, types) if unit is None else shielded(sql, unit, types)


def computed_condition(sql: str, unit: str | None, types: Types) -> str:
    """The same of a condition, as BOOLEAN."""
    total = total_condition_sql(sql, types)
    return total if unit is None else f"CASE WHEN {unit} IS NOT NULL THEN {total} END"


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
