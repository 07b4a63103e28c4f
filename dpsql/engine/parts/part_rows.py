"""Rows of a source with the numbers of their parts, found by the joins of its links."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dpsql.engine.parts.sources import POSITION, SplitSource
from dpsql.engine.parts.unit_part import SplitError, part_sql, unit_kind
from dpsql.operations.comparisons import compared_type, comparison
from dpsql.operations.dialect import quote


def parents_of(source: SplitSource, sources: Mapping[str, SplitSource]) -> tuple[SplitSource, ...]:
    """Return the parents of the links of a source, in order.

    Args:
        source: the source.
        sources: all sources of the split, by canonical name.

    Raises:
        SplitError: a parent is not in the split, its key is not unique, or a column is not there or of another type.

    """
    child, parents = source, []
    for columns, table, key in source.links:
        parent = sources.get(table)
        if parent is None or not parent.unit_column:
            raise SplitError(f"{source.table} is linked to {table}, which is not split: split both, so that rows meet")
        if not parent.is_unique(key):
            raise SplitError(
                f"the key {', '.join(key)} of {table} has no PRIMARY KEY or UNIQUE constraint, and {source.table} is "
                "linked to it: add the constraint, so that a row has one unit"
            )
        for one, other in zip(columns, key, strict=True):
            if not compared_type(child.column(one).read("")[1], parent.column(other).read("")[1]):
                raise SplitError(f"column {one!r} of {child.table} and {other!r} of {table} have different types")
        parents.append(parent)
        child = parent
    return tuple(parents)


def unit_type(source: SplitSource, parents: Sequence[SplitSource]) -> str:
    """Return the DuckDB type of the unit of a source.

    Raises:
        SplitError: units of this type may have several texts.

    """
    owner = parents[-1] if parents else source
    kind = owner.column(source.unit_column).read("")[1]
    if unit_kind(kind) is None:
        raise SplitError(
            f"the unit column {source.unit_column!r} of {owner.table} has the type {kind}: units are integers, texts, "
            "dates or other plain values"
        )
    return kind


def joined(
    source: SplitSource, parents: Sequence[SplitSource], relations: Sequence[str], join: str = "LEFT JOIN"
) -> str:
    """Return FROM with the joins that lead each row to its first parents; a row meets one row of each, or none.

    Args:
        source: its rows are called step_0.
        parents: the first of its links, called step_1, step_2, …
        relations: SQL of the rows of the source and of the parents.
        join: the join in SQL.

    """
    joins, child = [f"{relations[0]} AS step_0"], source
    for place, ((columns, _, key), parent) in enumerate(zip(source.links, parents, strict=False), start=1):
        equal = []
        for one, other in zip(columns, key, strict=True):
            left, left_type = child.column(one).read(f"step_{place - 1}")
            right, right_type = parent.column(other).read(f"step_{place}")
            equal.append(comparison(left, "=", right, (left_type, right_type)))
        joins.append(f"{relations[place]} AS step_{place} ON {' AND '.join(equal)}")
        child = parent
    return f" {join} ".join(joins)


def row_part(source: SplitSource, parents: Sequence[SplitSource], parts: int) -> str:
    """Return SQL for the number of the part of a row of `joined`."""
    owner = parents[-1] if parents else source
    unit, kind = owner.column(source.unit_column).read(f"step_{len(parents)}")
    return part_sql(unit, kind, parts)


def numbered_rows(source: SplitSource, parents: Sequence[SplitSource], parts: int) -> str:
    """Return a query for the rows of a source by part, in their order: the number of the part, and each column.

    The columns are called part, column_0, column_1, …
    """
    columns = ", ".join(f"step_0.{quote(one.name)} AS column_{place}" for place, one in enumerate(source.columns))
    if not source.unit_column:
        return f"SELECT {columns} FROM {source.relation} AS step_0 ORDER BY step_0.{quote(POSITION)}"
    rows = joined(source, parents, [source.relation, *(one.relation for one in parents)])
    number = row_part(source, parents, parts)
    return f"SELECT {number} AS part, {columns} FROM {rows} ORDER BY part, step_0.{quote(POSITION)}"
