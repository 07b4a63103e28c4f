"""Columns on the wire: DuckDB's own bytes of a column, from Arrow and to it.

Types that are not flat (lists, structs, intervals, UUIDs, …) travel as text, and are VARCHAR at the prompt.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dpsql.frontends.shell.frames import BodyReader, number, text

ROWS_OF_A_CHUNK = 2048
"""DuckDB's own."""

_BOOLEAN, _VARCHAR, _BLOB, _DECIMAL = 1, 17, 18, 19
_FIXED: dict[str, tuple[int, str, pa.DataType]] = {
    "TINYINT": (2, "<i1", pa.int8()),
    "SMALLINT": (3, "<i2", pa.int16()),
    "INTEGER": (4, "<i4", pa.int32()),
    "BIGINT": (5, "<i8", pa.int64()),
    "UTINYINT": (6, "<u1", pa.uint8()),
    "USMALLINT": (7, "<u2", pa.uint16()),
    "UINTEGER": (8, "<u4", pa.uint32()),
    "UBIGINT": (9, "<u8", pa.uint64()),
    "FLOAT": (10, "<f4", pa.float32()),
    "DOUBLE": (11, "<f8", pa.float64()),
    "TIMESTAMP": (12, "<i8", pa.timestamp("us")),
    "DATE": (13, "<i4", pa.date32()),
    "TIME": (14, "<i8", pa.time64("us")),
    "TIMESTAMP WITH TIME ZONE": (31, "<i8", pa.timestamp("us", tz="UTC")),
}
_VARIABLE = {"BOOLEAN": _BOOLEAN, "VARCHAR": _VARCHAR, "BLOB": _BLOB}
_BY_ID = {number_of: (dtype, arrow) for number_of, dtype, arrow in _FIXED.values()}
_DECIMAL_TYPE = re.compile(r"DECIMAL\((\d+),(\d+)\)")
_MOST_BYTES = 2**31 - 1
"""What the offsets of an Arrow column of texts reach."""


@dataclass(frozen=True, slots=True)
class WireType:
    """An id of DuckDB's, and width and scale of a DECIMAL; as in ``Type`` of ``native.h``."""

    id: int
    width: int = 0
    scale: int = 0

    @property
    def is_known(self) -> bool:
        """Whether columns of this type can be read and written here."""
        return self.id in _BY_ID or self.id in (*_VARIABLE.values(), _DECIMAL)

    def packed(self) -> bytes:
        """Three bytes."""
        return bytes((self.id, self.width, self.scale))


def wire_type(name: str) -> WireType:
    """The type by which a column of a DuckDB type travels: its own, or VARCHAR."""
    decimal = _DECIMAL_TYPE.fullmatch(name)
    if decimal:
        return WireType(_DECIMAL, int(decimal[1]), int(decimal[2]))
    if name in _FIXED:
        return WireType(_FIXED[name][0])
    return WireType(_VARIABLE.get(name, _VARCHAR))


def sql_name(kind: WireType) -> str:
    """The DuckDB type, as SQL writes it."""
    if kind.id == _DECIMAL:
        return f"DECIMAL({kind.width},{kind.scale})"
    listed = {value[0]: name for name, value in _FIXED.items()} | {value: name for name, value in _VARIABLE.items()}
    return listed[kind.id]


def header(names: list[str], types: list[WireType]) -> bytes:
    """Names and types of columns."""
    columns = (text(name) + kind.packed() for name, kind in zip(names, types, strict=True))
    return number(len(names)) + b"".join(columns)


def read_header(body: bytes) -> tuple[list[str], list[WireType]]:
    """The same back."""
    reader = BodyReader(body)
    columns = [(reader.text(), WireType(*reader.raw(3))) for _ in range(reader.number())]
    return [name for name, _ in columns], [kind for _, kind in columns]


def chunks(table: pa.Table, types: list[WireType]) -> list[bytes]:
    """The rows of a table, which has these types, at most ``ROWS_OF_A_CHUNK`` a chunk; none for no rows."""
    columns = [_Column(column.combine_chunks(), kind) for column, kind in zip(table.columns, types, strict=True)]
    starts = range(0, table.num_rows, ROWS_OF_A_CHUNK)
    ends = (min(start + ROWS_OF_A_CHUNK, table.num_rows) for start in starts)
    return [
        number(end - start) + b"".join(column.rows(start, end) for column in columns)
        for start, end in zip(starts, ends, strict=True)
    ]


def read_chunks(bodies: list[bytes], types: list[WireType]) -> list[pa.ChunkedArray]:
    """The columns of chunks, for types that are known."""
    pieces: list[list[pa.Array]] = [[] for _ in types]
    for body in bodies:
        reader = BodyReader(body)
        rows = reader.number()
        for column, kind in zip(pieces, types, strict=True):
            column.append(_read_column(reader, kind, rows))
    return [
        pa.chunked_array(column, type=_arrow_type(kind)).combine_chunks()
        for column, kind in zip(pieces, types, strict=True)
    ]


class _Column:
    """A column as DuckDB's bytes, to be cut into chunks."""

    def __init__(self, array: pa.Array | pa.ChunkedArray, kind: WireType) -> None:
        if isinstance(array, pa.ChunkedArray):
            array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], array.type)
        self._valid = np.asarray(array.is_valid()).astype(np.uint8)
        self._values: npt.NDArray[Any] | None = None
        self._offsets: npt.NDArray[np.int64] | None = None
        if kind.id in (_VARCHAR, _BLOB):
            array = array.cast(pa.large_binary() if kind.id == _BLOB else pa.large_string())
            offsets = np.frombuffer(array.buffers()[1], np.int64)[array.offset : array.offset + len(array) + 1]
            self._offsets = offsets if len(array) else np.zeros(1, np.int64)
            self._bytes = memoryview(array.buffers()[2] or b"")
        elif kind.id == _DECIMAL:
            words = np.frombuffer(array.buffers()[1], "<i8").reshape(-1, 2)[array.offset : array.offset + len(array)]
            self._values = words if kind.width > 18 else words[:, 0].astype(_decimal_dtype(kind))
        elif kind.id == _BOOLEAN:
            self._values = np.asarray(array.fill_null(False)).astype(np.uint8)
        else:
            dtype, arrow = _BY_ID[kind.id]
            plain = pa.Array.from_buffers(_plain(arrow), len(array), array.buffers(), offset=array.offset)
            self._values = np.asarray(plain.fill_null(0)).astype(dtype)

    def rows(self, start: int, end: int) -> bytes:
        valid = self._valid[start:end]
        if self._offsets is None:
            assert self._values is not None  # noqa: S101 — texts have offsets, all others values
            return valid.tobytes() + self._values[start:end].tobytes()
        bounds = self._offsets[start : end + 1]
        sizes = np.diff(bounds).astype("<u4")
        return valid.tobytes() + sizes.tobytes() + bytes(self._bytes[int(bounds[0]) : int(bounds[-1])])


def _read_column(reader: BodyReader, kind: WireType, rows: int) -> pa.Array:
    valid = np.frombuffer(reader.raw(rows), np.uint8)
    bitmap = None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))
    if kind.id in (_VARCHAR, _BLOB):
        sizes = np.frombuffer(reader.raw(4 * rows), "<u4")
        ends = np.cumsum(sizes, dtype=np.int64)
        data = reader.raw(int(ends[-1]) if rows else 0)
        if len(data) > _MOST_BYTES:
            raise ValueError("the texts of a chunk are too long")
        offsets = np.concatenate(([0], ends)).astype(np.int32)
        buffers = [bitmap, pa.py_buffer(offsets), pa.py_buffer(data)]
    elif kind.id == _DECIMAL:
        dtype = np.dtype(_decimal_dtype(kind))
        raw = np.frombuffer(reader.raw(dtype.itemsize * rows), dtype)
        if kind.width <= 18:
            low = raw.astype(np.int64)
            raw = np.stack([low, low >> 63], axis=1)
        buffers = [bitmap, pa.py_buffer(np.ascontiguousarray(raw))]
    elif kind.id == _BOOLEAN:
        truth = np.frombuffer(reader.raw(rows), np.uint8)
        buffers = [bitmap, pa.py_buffer(np.packbits(truth, bitorder="little"))]
    else:
        buffers = [bitmap, pa.py_buffer(reader.raw(np.dtype(_BY_ID[kind.id][0]).itemsize * rows))]
    return pa.Array.from_buffers(_arrow_type(kind), rows, buffers)


def _arrow_type(kind: WireType) -> pa.DataType:
    if kind.id == _DECIMAL:
        return pa.decimal128(kind.width, kind.scale)
    if kind.id in _BY_ID:
        return _BY_ID[kind.id][1]
    return {_BOOLEAN: pa.bool_(), _VARCHAR: pa.string(), _BLOB: pa.binary()}[kind.id]


def _decimal_dtype(kind: WireType) -> str:
    sizes = ((4, "<i2"), (9, "<i4"), (18, "<i8"))
    # a pair of words, which no width of numpy's has
    return next((dtype for width, dtype in sizes if kind.width <= width), "V16")


def _plain(arrow: pa.DataType) -> pa.DataType:
    """The numbers that stand for points in time."""
    if pa.types.is_temporal(arrow):
        return pa.int32() if arrow == pa.date32() else pa.int64()
    return arrow
