"""Post-processing as SQL: HAVING, ORDER BY, LIMIT and expressions over aggregates, on the noisy table alone."""

from __future__ import annotations

from dpsql.query.dialect import quote
from dpsql.query.private_query import PrivateQuery
from dpsql.query.shielded import guarded

NOISY = "dpsql_noisy"
"""Name of the noisy table: columns key_i, agg_i, agg_i_low, agg_i_high, and bucket where groups are of buckets."""


def finish_sql(query: PrivateQuery) -> str:
    """SQL from the noisy table to the result, with every column in its planned type.

    After the columns stand the ends of the 95 % interval of each that is one aggregate, low before high. An expression
    that fails on a noisy value (a cast, an overflow) is NULL: what was charged is always answered.
    """
    finish = query.finish
    typed = [f"CAST({_key(query, i)} AS {key.type}) AS key_{i}" for i, key in enumerate(query.keys)]
    for i, estimate in enumerate(query.estimates):
        typed.append(f"TRY_CAST(agg_{i} AS {estimate.type}) AS agg_{i}, agg_{i}_low, agg_{i}_high")
    source = f"(SELECT {', '.join(typed) or '*'} FROM {NOISY})"
    shown = [f"CAST({guarded(column.sql)} AS {column.type}) AS {quote(column.name)}" for column in finish.columns]
    numbered = [column.estimate for column in finish.columns if column.estimate is not None]
    columns = ", ".join(shown + [f"agg_{i}_{end}" for i in numbered for end in ("low", "high")])
    having = f" WHERE {guarded(finish.having)}" if finish.having else ""
    if finish.windows:
        windows = ", ".join(f"{sql} AS window_{i}" for i, sql in enumerate(finish.windows))
        source = f"(SELECT *, {windows} FROM (SELECT * FROM {source}{having} {_by_keys(query)}))"
        having = f" WHERE {guarded(finish.qualify)}" if finish.qualify else ""
    order = f" ORDER BY {', '.join(finish.order_by)}" if finish.order_by else ""
    limit = f" LIMIT {finish.limit}" if finish.limit is not None else ""
    offset = f" OFFSET {finish.offset}" if finish.offset is not None else ""
    return f"SELECT {columns} FROM {source}{having}{order}{limit}{offset}"


def _by_keys(query: PrivateQuery) -> str:
    """The order in which windows add up: sums of floating-point numbers depend on it."""
    keys = ", ".join(f"key_{i} NULLS LAST" for i in range(len(query.keys)))
    return f"ORDER BY {keys}" if keys else ""


def _key(query: PrivateQuery, place: int) -> str:
    """A key of the answer: a column of the noisy table, or computed from a bucket of the group, under its own name."""
    buckets = query.buckets
    if buckets is None or buckets.sources[place] is not None:
        return f"key_{place}"
    bucket = f"SELECT CAST({NOISY}.bucket AS {buckets.column.type}) AS {buckets.column.sql}"
    return f"(SELECT {guarded(buckets.keys[place].sql)} FROM ({bucket}))"
