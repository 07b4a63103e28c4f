"""An answer in the shape that pandas gives the same question."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from dpsql.frontends.frames.listed import ListedKeys
from dpsql.frontends.frames.measures import Measure
from dpsql.session import Receipt

_SIGNED = {f"uint{bits}": "int64" for bits in (8, 16, 32, 64)} | {f"UInt{bits}": "Int64" for bits in (8, 16, 32, 64)}


class ReceiptRecord(dict[str, Any]):
    """A receipt as plain values, so that it can be stored with a table; prints as the receipt does."""

    def __init__(self, receipt: Receipt) -> None:
        super().__init__(dataclasses.asdict(receipt))
        self._text = str(receipt)

    def __str__(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return self._text


def typed_keys(
    answer: pd.DataFrame, empty: pd.DataFrame, keys: Sequence[str], listed: ListedKeys | None
) -> pd.DataFrame:
    """The keys with the dtypes that they have in the frame; categories are those that are listed, or shown."""
    typed = {}
    for place, key in enumerate(keys):
        values, dtype = answer.iloc[:, place], empty[key].dtype
        if not isinstance(dtype, pd.CategoricalDtype):
            # an index of objects has the dtype of what is in it, in pandas too
            typed[key] = values if pd.api.types.is_object_dtype(dtype) else _as_dtype(values, dtype)
            continue
        values = _as_dtype(values, dtype.categories.dtype)
        columns = {} if listed is None else listed.columns
        known = _as_dtype(pd.Series(list(columns[key])), dtype.categories.dtype) if key in columns else values
        typed[key] = pd.Series(pd.Categorical(values, categories=known.dropna().drop_duplicates()))
    return pd.DataFrame(typed)


def _as_dtype(values: pd.Series[Any], dtype: Any) -> pd.Series[Any]:
    """With this dtype, or as they are where a key has no place in it."""
    if pd.api.types.is_bool_dtype(dtype) and not pd.api.types.is_bool_dtype(values.dropna().infer_objects().dtype):
        # the text 'false' is true to astype
        return values
    if dtype == "float16" or (isinstance(dtype, pd.ArrowDtype) and _has_no_order(dtype.pyarrow_dtype)):
        return values
    try:
        return values.astype(dtype)
    except (TypeError, ValueError, OverflowError, NotImplementedError):
        return values


def _has_no_order(kind: pa.DataType) -> bool:
    """Whether Arrow cannot put such values in order."""
    return isinstance(kind, pa.BaseExtensionType) or pa.types.is_dictionary(kind) or _is_view(kind)


def _is_view(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string_view(kind) or pa.types.is_binary_view(kind))


def rows_to_show(keys: pd.DataFrame, listed: ListedKeys | None, *, sort: bool, dropna: bool) -> npt.NDArray[np.intp]:
    """Which rows are shown, in which order: by key, or as they are listed. The order of first appearance is private.

    Missing keys are left out of the answer and not of the rows, so the release is the one of all groups.
    """
    numbered = keys.reset_index(drop=True)
    numbered = numbered.sort_values(list(keys.columns), kind="stable") if sort and len(keys) else numbered
    rows: npt.NDArray[np.intp] = (numbered.dropna() if dropna else numbered).index.to_numpy()
    combinations = None if listed is None else listed.combinations(list(keys.columns))
    if combinations is None or not len(keys):
        return rows
    wanted = pd.DataFrame(combinations, columns=keys.columns, dtype=object)
    for key in keys.columns:
        wanted[key] = _as_dtype(wanted[key], keys[key].dtype)
    places = pd.MultiIndex.from_frame(wanted).get_indexer(pd.MultiIndex.from_frame(keys))[rows]
    listed_rows: npt.NDArray[np.intp] = rows[places >= 0]
    return listed_rows if sort else listed_rows[np.argsort(places[places >= 0], kind="stable")]


def typed_values(values: pd.Series[Any], measure: Measure, empty: pd.DataFrame, keys: Sequence[str]) -> pd.Series[Any]:
    """A column of the answer with the dtype that pandas gives it; whole numbers rounded, and never unsigned.

    Where pandas computes no number of the column, because the source has numbers where the frame has texts, it is as
    SQL has it.
    """
    values = values.astype("float64") if pd.api.types.is_object_dtype(values.dtype) else values
    dtype = _dtype_in_pandas(measure, empty, keys)
    if dtype is None:
        return values
    dtype = _SIGNED.get(str(dtype), dtype)
    if pd.api.types.is_integer_dtype(dtype) and pd.api.types.is_float_dtype(values.dtype):
        values = values.round()
    return _as_dtype(values, dtype)


def _dtype_in_pandas(measure: Measure, empty: pd.DataFrame, keys: Sequence[str]) -> Any:
    """The dtype of the same number in pandas, found on no rows; None where it is none."""
    grouped = empty.groupby([empty[key].astype(object) for key in keys])
    if measure.column is None or measure.function == "size":
        return grouped.size().dtype
    try:
        dtype = getattr(grouped[measure.column], measure.function)().dtype
    except (TypeError, ValueError, NotImplementedError):
        return None
    return dtype if pd.api.types.is_numeric_dtype(dtype) else None


def table_of(answer: pa.Table, frame: pa.Schema, keys: Sequence[str], measures: Sequence[Measure | None]) -> pa.Table:
    """An Arrow answer with the key types of the frame, dictionaries decoded, and sums of whole numbers rounded.

    Args:
        answer: keys, then a column for each measure.
        frame: the columns of the frame.
        keys: their names.
        measures: of each column beside the keys; None for the end of an interval.

    """
    columns = []
    for place, column in enumerate(answer.columns):
        measure = None if place < len(keys) else measures[place - len(keys)]
        if place < len(keys):
            wanted = frame.field(keys[place]).type
            wanted = wanted.value_type if pa.types.is_dictionary(wanted) else wanted
            columns.append(_cast(column, wanted))
        elif measure is not None and measure.function == "sum" and _is_whole(frame.field(str(measure.column)).type):
            columns.append(_cast(pc.round(column), pa.int64()))
        else:
            columns.append(column)
    return pa.table(columns, names=answer.column_names)


def ordered_keys(keys: pa.Table) -> pd.DataFrame:
    """Keys as pandas can put them in order; its times of day have no nanoseconds."""
    for place, field in enumerate(keys.schema):
        if field.type == pa.time64("ns"):
            keys = keys.set_column(place, field.name, keys.column(place).cast(pa.time64("us"), safe=False))
    ordered: pd.DataFrame = keys.to_pandas()
    return ordered


def _is_whole(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_boolean(kind))


def _cast(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    if _is_view(kind):
        # Arrow has no order of views
        return column
    try:
        return column.cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return column
