"""Vectors as Arrow arrays, and back; pyarrow's own conversions would import pandas.

The state file holds vectors and tables as compressed Arrow blobs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dpsql.errors import StateError


def to_arrow(values: npt.NDArray[Any], *, nan_as_null: bool = False) -> pa.Array:
    """Return integers or floats as an Arrow array on their memory.

    Raises:
        TypeError: the values are of another kind, of another byte order, or no vector.

    """
    if values.ndim != 1 or values.dtype.kind not in "iuf" or not values.dtype.isnative:
        raise TypeError(f"no vector of numbers: {values.ndim} dimensions of {values.dtype}")
    values = np.ascontiguousarray(values)
    valid = pa.py_buffer(np.packbits(~np.isnan(values), bitorder="little")) if nan_as_null else None
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), values.size, [valid, pa.py_buffer(values)])


def texts_to_arrow(texts: Sequence[str]) -> pa.Array:
    """Return texts as an Arrow array."""
    encoded = [text.encode() for text in texts]
    if sum(map(len, encoded)) >= 2**31:
        # pyarrow has a type for it
        return pa.array(texts)
    ends = np.cumsum([0, *map(len, encoded)], dtype=np.int32)
    return pa.StringArray.from_buffers(len(encoded), pa.py_buffer(ends), pa.py_buffer(b"".join(encoded)))


def to_numpy(column: pa.ChunkedArray) -> npt.NDArray[Any]:
    """Return a column of numbers as an array; NULL becomes NaN."""
    is_plain = pa.types.is_integer(column.type) or pa.types.is_floating(column.type)
    if is_plain and not len(column):
        # the import of pandas, as below, would tell by its time that there are no rows
        return np.empty(0, column.type.to_pandas_dtype())
    array = column.combine_chunks()
    if array.null_count or not is_plain:
        # pyarrow imports pandas for it
        return np.asarray(array.to_numpy(zero_copy_only=False))
    kind = np.dtype(array.type.to_pandas_dtype())
    return np.frombuffer(array.buffers()[1], kind, len(array), array.offset * kind.itemsize)


def table_blob(table: pa.Table) -> bytes:
    """Write a table as a blob."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def table_of(blob: bytes) -> pa.Table:
    """Read a table from its blob.

    Raises:
        StateError: the blob is damaged.

    """
    try:
        with pa.ipc.open_stream(pa.py_buffer(blob)) as reader:
            return reader.read_all()
    except (pa.ArrowException, OSError):
        # Arrow's own message may quote what it could read.
        raise StateError("the state is damaged: stored Arrow data cannot be read") from None


def vector_blob(values: npt.NDArray[np.int64]) -> bytes:
    """Write a vector as a blob."""
    return table_blob(pa.table([to_arrow(values)], ["value"]))


def vector_of(parts: Sequence[tuple[bytes, int]]) -> npt.NDArray[np.int64]:
    """Read a vector from its blobs, one after another; it is read-only.

    Args:
        parts: each blob with the number of its values.

    Raises:
        StateError: a blob is damaged, or has another number of values.

    """
    vectors = []
    for blob, value_count in parts:
        table = table_of(blob)
        if table.column_names != ["value"] or table.num_rows != value_count:
            raise StateError("the state is damaged: a stored vector does not have the values it should")
        vectors.append(to_numpy(table["value"]))
    values: npt.NDArray[np.int64] = np.concatenate(vectors)
    values.setflags(write=False)
    return values
