"""Columns that the curator of a table may be expected to group by, and the rows that bounds keep by each."""

from __future__ import annotations

import re
from collections.abc import Sequence

from dpsql.bound.raw_columns import distinct_counts_sql, kept_rows_sql
from dpsql.engine import Engine
from dpsql.model.environment import TableSchema, folded
from dpsql.plan.environment.links import unit_column
from dpsql.release.raw_groups import read_rows
from dpsql.state import Policy

MOST_COLUMNS = 8
_FEWEST_VALUES, _MOST_VALUES = 2, 1000
_KEY_TYPE = re.compile(r"VARCHAR|BOOLEAN|DATE|U?(TINY|SMALL|BIG|HUGE)?INT(EGER)?")


def listed_columns(schema: TableSchema, policy: Policy) -> tuple[str, ...]:
    """Return the columns of a table with a public list of keys."""
    return tuple(one.column for one in policy.domains if one.table == schema.canonical and (one.keys or one.keys_from))


def group_columns(
    schema: TableSchema, policy: Policy, engine: Engine, timeout_seconds: float | None = None
) -> tuple[str, ...]:
    """Return the columns with a public list of keys; without any, those with some two to a thousand values.

    Args:
        schema: the table, with the column of its unit.
        policy: what is declared.
        engine: where the rows are.
        timeout_seconds: limit of time.

    Raises:
        EngineError: the limit of time was reached.

    """
    if listed := listed_columns(schema, policy):
        return listed[:MOST_COLUMNS]
    names = _likely_keys(schema, policy, engine)
    if not names:
        return ()
    table = read_rows(engine, distinct_counts_sql(schema.relation, names), timeout_seconds=timeout_seconds)
    _, *counts = next(iter(table.to_pylist())).values()
    found = (name for name, count in zip(names, counts, strict=True) if _FEWEST_VALUES <= count <= _MOST_VALUES)
    return tuple(found)[:MOST_COLUMNS]


def _likely_keys(schema: TableSchema, policy: Policy, engine: Engine) -> list[str]:
    """Return the columns whose type is one of keys, and that name no unit, no row and no amount."""
    link = policy.link(schema.canonical)
    left_out = {unit_column(policy, schema.canonical), *(link.columns if link else ())}
    left_out |= {one.column for one in policy.domains if one.table == schema.canonical and one.bounds}
    left_out |= {names[0] for names in engine.unique_columns(schema) if len(names) == 1}
    unlikely = set(map(folded, left_out))
    return [one.name for one in schema.columns if folded(one.name) not in unlikely and _KEY_TYPE.fullmatch(one.type)]


def least_kept(
    schema: TableSchema,
    unit: str,
    columns: Sequence[str],
    bounds: tuple[int | None, int | None],
    engine: Engine,
    timeout_seconds: float | None = None,
) -> tuple[str, float] | None:
    """Return the column by which bounds keep the least share of the rows, and the share; None without rows.

    Args:
        schema: the table.
        unit: column of the unit.
        columns: those that may be grouped by.
        bounds: most groups of a unit, and most rows in each; None for any number.
        engine: where the rows are.
        timeout_seconds: limit of time.

    Raises:
        EngineError: the limit of time was reached.

    """
    if not columns:
        return None
    sql = kept_rows_sql(schema.relation, unit, columns, *bounds)
    rows = read_rows(engine, sql, timeout_seconds=timeout_seconds).to_pylist()
    shares = {columns[row["place"]]: float(row["share"]) for row in rows if row["share"] is not None}
    return min(shares.items(), key=lambda one: one[1]) if shares else None
