"""From a released table to what is drawn of it; nothing is looked at but the table and what came with it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dpsql.errors import SchemaError
from dpsql.pictures.bars import Bars
from dpsql.pictures.tables import TableColumn
from dpsql.session.layout import Layout
from dpsql.session.readable import readable


def bars_of(table: pa.Table, layout: Layout | None, threshold: float | None, column: str | None, rows: int) -> Bars:
    """One column of an answer as bars.

    Args:
        table: the answer.
        layout: what its columns are.
        threshold: of the receipt.
        column: which one; None for the first number that is no key.
        rows: how many groups, from the first on.

    Raises:
        SchemaError: there is no such column, it holds no numbers, or no row is to be drawn.

    """
    if rows < 1:
        raise SchemaError("a picture has one row or more.", hint="Write plot(rows=40).")
    keys = _keys(table, layout)
    column = _number(table, keys) if column is None else column
    if column not in table.column_names:
        raise SchemaError(f"the answer has no column {column!r}.", hint=f"It has {', '.join(table.column_names)}.")
    if not _is_number(table.schema.field(column).type):
        raise SchemaError(f"column {column!r} holds no numbers.", hint="Name a count, a sum or an average.")
    count = table.num_rows
    table = table.slice(0, rows)
    low, high = _ends(layout, column, table.num_rows)
    along = len(keys) == 1 and _is_ordered(table.schema.field(keys[0]).type)
    sentences = [f"First {rows} of {count:,} groups."] if count > rows else []
    if not count:
        sentences.append("There is no group.")
    is_cut = layout is not None and layout.is_cut and threshold is not None
    on_axis = layout is not None and layout.is_cut and layout.units == column
    if is_cut and not on_axis:
        sentences.append(f"Groups whose noisy count of units is at most {threshold:,.6g} are not shown.")
    return Bars(
        title=f"{column} by {', '.join(keys)}" if keys else column,
        value_name=column,
        names=_names(table, keys),
        values=_floats(table.column(column)),
        low=low,
        high=high,
        threshold=threshold if on_axis else None,
        is_along=along,
        remark=" ".join(sentences),
    )


def table_columns(table: pa.Table, layout: Layout | None) -> list[TableColumn]:
    """All columns with the intervals that are known of them."""
    columns = []
    for name, column in zip(table.column_names, table.columns, strict=True):
        ends = None if layout is None else layout.interval(name)
        intervals = None
        if ends is not None:
            low, high = (end.slice(0, table.num_rows).to_pylist() for end in ends)
            intervals = list(zip(low, high, strict=True))
        columns.append(TableColumn(name, readable(column).to_pylist(), intervals))
    return columns


def _keys(table: pa.Table, layout: Layout | None) -> tuple[str, ...]:
    """What tells rows apart; of a table without layout, its first column that holds no numbers."""
    if layout is not None:
        return layout.keys
    return tuple([field.name for field in table.schema if not _is_number(field.type)][:1])


def _number(table: pa.Table, keys: Sequence[str]) -> str:
    for field in table.schema:
        if field.name not in keys and _is_number(field.type):
            return str(field.name)
    raise SchemaError("the answer has no column of numbers to draw.")


def _names(table: pa.Table, keys: Sequence[str]) -> list[object]:
    if not keys:
        return [""] * table.num_rows
    columns: list[list[object]] = [readable(table.column(key)).to_pylist() for key in keys]
    if len(columns) == 1:
        return columns[0]
    return [" · ".join("NULL" if part is None else str(part) for part in parts) for parts in zip(*columns, strict=True)]


def _ends(layout: Layout | None, column: str, rows: int) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    ends = None if layout is None else layout.interval(column)
    if ends is None:
        return np.full(rows, np.nan), np.full(rows, np.nan)
    low, high = (_floats(end.slice(0, rows)) for end in ends)
    return low, high


def _floats(column: pa.ChunkedArray) -> npt.NDArray[np.float64]:
    values = pc.cast(column, pa.float64(), safe=False).to_numpy()
    return np.asarray(values, dtype=np.float64)


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def _is_ordered(kind: pa.DataType) -> bool:
    return bool(pa.types.is_temporal(kind) or _is_number(kind))
