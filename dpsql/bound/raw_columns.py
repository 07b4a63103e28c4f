"""Columns of raw rows that one may group by, and the rows that bounds keep by one of them, for the curator alone."""

from __future__ import annotations

from collections.abc import Sequence

from dpsql.operations.dialect import quote


def distinct_counts_sql(relation: str, columns: Sequence[str]) -> str:
    """Return SQL for one row: the number of rows, and about how many distinct values each column has."""
    counts = "".join(f", approx_count_distinct({quote(name)}) AS distinct_{i}" for i, name in enumerate(columns))
    return f"SELECT count(*) AS row_count{counts} FROM {relation}"


def kept_rows_sql(
    relation: str, unit: str, columns: Sequence[str], max_groups: int | None, max_rows: int | None
) -> str:
    """Return SQL for the share of the rows that bounds keep, grouped by each of some columns.

    Args:
        relation: the rows.
        unit: column of the unit.
        columns: those that are grouped by, each by itself.
        max_groups: most groups of a unit; None for any number.
        max_rows: most rows of a unit in each; None for any number.

    Returns:
        A SELECT with columns place (of the column) and share, which is NULL without rows.

    """
    rows = "row_count" if max_rows is None else f"least(row_count, {max_rows})"
    groups = "1.0" if max_groups is None else f"least(1.0, {max_groups} / groups)"
    selects = []
    for place, column in enumerate(columns):
        pairs = (
            f"SELECT {quote(unit)} AS unit, {quote(column)} AS group_key, count(*) AS row_count FROM {relation} "
            f"WHERE {quote(unit)} IS NOT NULL GROUP BY ALL"
        )
        counted = f"SELECT row_count, count(*) OVER (PARTITION BY unit) AS groups FROM ({pairs})"
        share = f"CAST(sum({rows} * {groups}) / sum(row_count) AS DOUBLE)"
        selects.append(f"SELECT {place} AS place, {share} AS share FROM ({counted})")
    return " UNION ALL ".join(selects)
