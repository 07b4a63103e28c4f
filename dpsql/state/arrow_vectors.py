"""Vectors as Arrow arrays, and back; pyarrow's own conversions would import pandas.

The state file holds vectors and tables as compressed Arrow blobs. `Decoded` keeps the vectors that were read last.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dpsql.errors import StateError

Integers = npt.NDArray[np.int64]
# Statistic, levels, when the point was made, and how many values it has: a file that was restored may hold another
# point in its place, and a damaged one fewer values.
VectorName = tuple[str, int, int, datetime, int]

_MOST_BYTES = 2**28


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


def vector_blob(values: Integers) -> bytes:
    """Write a vector as a blob."""
    return table_blob(pa.table([to_arrow(values)], ["value"]))


def vector_of(parts: Sequence[tuple[bytes, int]]) -> Integers:
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
    values: Integers = np.concatenate(vectors)
    values.setflags(write=False)
    return values


class Decoded:
    """The vectors that were used last, up to a quarter of a gigabyte; threads share it.

    A point's vector never changes once it is stored, so what is here under its name is what the file holds.
    """

    def __init__(self) -> None:
        self._vectors: OrderedDict[VectorName, Integers] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def vector(self, name: VectorName, read: Callable[[], Integers]) -> Integers:
        """The vector of a stored point, read-only.

        Where it is not at hand it is read, as an array of its own, and kept; what was used longest ago is let go.
        """
        with self._lock:
            if name in self._vectors:
                self._vectors.move_to_end(name)
                return self._vectors[name]
        vector = read()
        vector.setflags(write=False)
        with self._lock:
            # another thread may have read it meanwhile
            if name not in self._vectors:
                self._bytes += vector.nbytes
            self._vectors[name] = vector
            while self._bytes > _MOST_BYTES:
                self._bytes -= self._vectors.popitem(last=False)[1].nbytes
        return vector
