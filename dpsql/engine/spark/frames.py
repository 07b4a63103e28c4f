"""Frames of Spark with the columns that a question reads, and with the unit of each row."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as of

from dpsql.engine.definitions import redefined
from dpsql.engine.spark.request import SOURCE, column_name
from dpsql.engine.spark.tables import SparkTable, UnitTable, duckdb_type, own_name, spark_unit_kind

UNIT = "unit"
"""Column of the unit by which rows go to their parts."""


def duckdb_columns(frame: DataFrame) -> Iterator[tuple[str, str]]:
    """Yield name and DuckDB type of each column that has one."""
    for field in frame.schema.fields:
        kind = duckdb_type(field.dataType.simpleString())
        if kind is not None:
            yield field.name, kind


def quoted_name(name: str) -> str:
    """Return a name as Spark quotes it."""
    return f"`{name.replace('`', '``')}`"


def aliases(place: int, one: UnitTable) -> list[tuple[str, str]]:
    """Return the columns of a table that are read, each with the name that Spark gives it from here on.

    The columns of the texts come first, as `request.TaskTable` has them.
    """
    more = [name for columns, _, _ in one.links[:1] for name in columns]
    more += [name for key in one.keys for name in key]
    names = list(dict.fromkeys((*one.columns, *(own_column(one.table, name) for name in more))))
    return [(name, column_name(place, number)) for number, name in enumerate(names)]


def own_column(table: SparkTable, name: str) -> str:
    """Return the name of a column as its table spells it.

    Raises:
        EngineError: there is none any more.

    """
    found = table.column(name)
    if found is None:
        raise redefined()
    return found[0]


def alias_of(tables: Sequence[UnitTable], place: int, name: str) -> str:
    """Return the name by which Spark knows a column of a table that is read."""
    one = tables[place]
    return dict(aliases(place, one))[own_column(one.table, name)]


def valid_column(table: SparkTable, name: str) -> Column:
    """Return a column, with texts that DuckDB reads: Spark lets a text have any bytes."""
    found = table.column(name)
    column = of.col(quoted_name(name))
    return of.make_valid_utf8(column) if found and found[1] == "VARCHAR" else column


def unit_of(table: SparkTable, unit: str) -> Column:
    """Return a unit as a value that is the same for each width of an integer."""
    found = table.column(unit)
    kind = found and spark_unit_kind(found[1])
    column = valid_column(table, unit)
    return column.cast("bigint") if kind == "whole number" else column


def with_unit(tables: Sequence[UnitTable], place: int, frames: Sequence[DataFrame]) -> DataFrame:
    """Return a frame with the unit of each row, found by the joins of its links."""
    one = tables[place]
    if not one.links:
        return frames[place]
    names = [other.table.name for other in tables]
    frame, child = frames[place], place
    own = frame.columns
    for columns, parent, key in one.links:
        parent_place = names.index(str(own_name(parent)))
        met = frames[parent_place].drop(SOURCE)
        equal = [
            of.col(alias_of(tables, child, column)) == of.col(alias_of(tables, parent_place, other))
            for column, other in zip(columns, key, strict=True)
        ]
        frame = frame.join(met, functools.reduce(lambda left, right: left & right, equal))
        child = parent_place
    return frame.select(of.col(UNIT), *own)
