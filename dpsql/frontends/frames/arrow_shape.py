"""Answers as Arrow tables: key types of the frame, and keys in an order that pandas finds."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import cast

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from dpsql.frontends.frames.shape import Measure, is_view


def table_of(answer: pa.Table, frame: pa.Schema, keys: Sequence[str], measures: Sequence[Measure | None]) -> pa.Table:
    """An Arrow answer with the key types of the frame, dictionaries decoded, and sums of whole numbers rounded.

    Args:
        answer: keys, then a column for each measure.
        frame: the columns of the frame.
        keys: their names.
        measures: of each column beside the keys; None for a column beside a number.

    """
    kinds = [frame.field(key).type for key in keys]
    kinds = [kind.value_type if pa.types.is_dictionary(kind) else kind for kind in kinds]
    columns = [_cast(column, kind) for column, kind in zip(answer.columns[: len(keys)], kinds, strict=True)]
    for column, measure in zip(answer.columns[len(keys) :], measures, strict=True):
        summed = frame.field(str(measure.column)).type if measure and measure.function == "sum" else pa.null()
        is_whole = pa.types.is_integer(summed) or pa.types.is_boolean(summed)
        columns.append(_cast(pc.round(column), pa.int64()) if is_whole else column)
    return pa.table(columns, names=answer.column_names)


def ordered_keys(keys: pa.Table) -> pd.DataFrame:
    """Keys as pandas can put them in order; its times of day have no nanoseconds."""
    for place, field in enumerate(keys.schema):
        if field.type == pa.time64("ns"):
            keys = keys.set_column(place, field.name, keys.column(place).cast(pa.time64("us"), safe=False))
    return cast("pd.DataFrame", keys.to_pandas())


def _cast(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    with contextlib.suppress(pa.ArrowInvalid, pa.ArrowNotImplementedError):
        # Arrow has no order of views
        return column if is_view(kind) else column.cast(kind)
    return column
