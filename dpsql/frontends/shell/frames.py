"""Frames between extension and helper: a letter, a size, a body. ``udfs/native/helper.c`` says which there are.

A chunk of rows is DuckDB's own bytes of each column, made from Arrow and read to it. Types that are not flat (lists,
structs, intervals, UUIDs, …) travel as text, and are VARCHAR at the prompt.
"""

from __future__ import annotations

import re
import socket
import struct
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

PROTOCOL = 1

_HEAD = struct.Struct("<cI")
_SIZE = struct.Struct("<I")

ROWS_OF_A_CHUNK = 2048
"""DuckDB's own."""

_BOOLEAN, _VARCHAR, _BLOB, _DECIMAL = 1, 17, 18, 19
_TYPES: dict[str, tuple[int, str, pa.DataType]] = {
    "BOOLEAN": (_BOOLEAN, "<u1", pa.bool_()),
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
    "VARCHAR": (_VARCHAR, "<u4", pa.string()),
    "BLOB": (_BLOB, "<u4", pa.binary()),
}
"""By DuckDB's name: its id, what a row takes on the wire (of a text its size, before all texts), and Arrow's type."""

_BY_ID = {number_of: (name, np.dtype(dtype), arrow) for name, (number_of, dtype, arrow) in _TYPES.items()}
_DECIMAL_TYPE = re.compile(r"DECIMAL\((\d+),(\d+)\)")


class Channel:
    """One end of the pair of sockets, for frames."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._incoming = connected.makefile("rb")

    def send(self, kind: str, body: bytes = b"") -> None:
        """Send one frame."""
        self._socket.sendall(_HEAD.pack(kind.encode(), len(body)) + body)

    def receive(self) -> tuple[str, bytes]:
        """Return the next frame.

        Raises:
            EOFError: the other end is gone.

        """
        kind, size = _HEAD.unpack(self._exactly(_HEAD.size))
        return kind.decode(), self._exactly(size)

    def _exactly(self, size: int) -> bytes:
        received = self._incoming.read(size)
        if len(received) < size:
            raise EOFError
        return received


class BodyReader:
    """Reader of a body, from its front."""

    def __init__(self, body: bytes) -> None:
        self._body = memoryview(body)

    def raw(self, size: int) -> memoryview:
        """Return the next bytes as they are.

        Raises:
            ValueError: there are fewer.

        """
        if size > len(self._body):
            raise ValueError("a frame ends early")
        taken, self._body = self._body[:size], self._body[size:]
        return taken

    def byte(self) -> int:
        """Return the next number below 256."""
        return self.raw(1)[0]

    def number(self) -> int:
        """Return the next number below 2**32."""
        return int(_SIZE.unpack(self.raw(_SIZE.size))[0])

    def text(self) -> str:
        """Return the next text, which has its size before it."""
        return bytes(self.raw(self.number())).decode()


def number(value: int) -> bytes:
    """Return the bytes of a number below 2**32."""
    return _SIZE.pack(value)


def text(value: str) -> bytes:
    """Return the bytes of a text, with its size before it."""
    encoded = value.encode()
    return number(len(encoded)) + encoded


@dataclass(frozen=True, slots=True)
class WireType:
    """An id of DuckDB's, and width and scale of a DECIMAL; as in ``Type`` of ``native.h``."""

    id: int
    width: int = 0
    scale: int = 0

    @property
    def is_known(self) -> bool:
        """Check that columns of this type can be read and written here."""
        return self.id == _DECIMAL or self.id in _BY_ID

    def packed(self) -> bytes:
        """Return the type as three bytes."""
        return bytes((self.id, self.width, self.scale))


def wire_type(name: str) -> WireType:
    """Return the type by which a column of a DuckDB type travels: its own, or VARCHAR."""
    decimal = _DECIMAL_TYPE.fullmatch(name)
    if decimal:
        return WireType(_DECIMAL, int(decimal[1]), int(decimal[2]))
    return WireType(_TYPES.get(name, _TYPES["VARCHAR"])[0])


def sql_name(kind: WireType) -> str:
    """Return the DuckDB type as SQL writes it."""
    return f"DECIMAL({kind.width},{kind.scale})" if kind.id == _DECIMAL else _BY_ID[kind.id][0]


def header(names: list[str], types: list[WireType]) -> bytes:
    """Return the bytes of names and types of columns."""
    return number(len(names)) + b"".join(text(name) + kind.packed() for name, kind in zip(names, types, strict=True))


def read_header(body: bytes) -> tuple[list[str], list[WireType]]:
    """Read names and types of columns."""
    reader = BodyReader(body)
    columns = [(reader.text(), WireType(*reader.raw(3))) for _ in range(reader.number())]
    return [name for name, _ in columns], [kind for _, kind in columns]


def chunks(table: pa.Table, types: list[WireType]) -> list[bytes]:
    """Return the rows of a table of these types, at most ``ROWS_OF_A_CHUNK`` a chunk; no chunk for no rows."""
    return [
        number(batch.num_rows)
        + b"".join(_column_bytes(column, kind) for column, kind in zip(batch.columns, types, strict=True))
        for batch in table.combine_chunks().to_batches(max_chunksize=ROWS_OF_A_CHUNK)
        if batch.num_rows
    ]


def read_chunks(bodies: list[bytes], types: list[WireType]) -> list[pa.ChunkedArray]:
    """Read the columns of chunks, for types that are known."""
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


def _column_bytes(array: pa.Array, kind: WireType) -> bytes:
    """Return a column as DuckDB's bytes: which rows have a value, and the values."""
    valid = np.asarray(array.is_valid()).astype(np.uint8).tobytes()
    if kind.id == _DECIMAL:
        words = np.frombuffer(array.buffers()[1], "<i8").reshape(-1, 2)[array.offset : array.offset + len(array)]
        return valid + (words if kind.width > 18 else words[:, 0].astype(_decimal_dtype(kind))).tobytes()
    dtype = _BY_ID[kind.id][1]
    if kind.id in (_VARCHAR, _BLOB):
        array = array.cast(pa.large_binary() if kind.id == _BLOB else pa.large_string())
        ends = np.frombuffer(array.buffers()[1], np.int64)[array.offset : array.offset + len(array) + 1]
        data = memoryview(array.buffers()[2] or b"")[int(ends[0]) : int(ends[-1])]
        return valid + np.diff(ends).astype(dtype).tobytes() + bytes(data)
    if kind.id == _BOOLEAN:
        return valid + np.asarray(array.fill_null(False)).astype(dtype).tobytes()
    # the numbers that stand for points in time, too
    plain = pa.Array.from_buffers(pa.from_numpy_dtype(dtype), len(array), array.buffers(), offset=array.offset)
    return valid + np.asarray(plain.fill_null(0)).astype(dtype).tobytes()


def _read_column(reader: BodyReader, kind: WireType, rows: int) -> pa.Array:
    valid = np.frombuffer(reader.raw(rows), np.uint8)
    dtype = np.dtype(_decimal_dtype(kind)) if kind.id == _DECIMAL else _BY_ID[kind.id][1]
    raw = np.frombuffer(reader.raw(dtype.itemsize * rows), dtype)
    buffers = [None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))]
    if kind.id in (_VARCHAR, _BLOB):
        ends = np.cumsum(raw, dtype=np.int64)
        data = reader.raw(int(ends[-1]) if rows else 0)
        # what the offsets of an Arrow column of texts reach
        if len(data) > np.iinfo(np.int32).max:
            raise ValueError("the texts of a chunk are too long")
        buffers += [pa.py_buffer(np.concatenate(([0], ends)).astype(np.int32)), pa.py_buffer(data)]
    elif kind.id == _DECIMAL and kind.width <= 18:
        low = raw.astype(np.int64)
        buffers.append(pa.py_buffer(np.stack([low, low >> 63], axis=1)))
    else:
        buffers.append(pa.py_buffer(np.packbits(raw, bitorder="little") if kind.id == _BOOLEAN else raw))
    return pa.Array.from_buffers(_arrow_type(kind), rows, buffers)


def _arrow_type(kind: WireType) -> pa.DataType:
    return pa.decimal128(kind.width, kind.scale) if kind.id == _DECIMAL else _BY_ID[kind.id][2]


def _decimal_dtype(kind: WireType) -> str:
    sizes = ((4, "<i2"), (9, "<i4"), (18, "<i8"))
    # a pair of words, which no width of numpy's has
    return next((dtype for width, dtype in sizes if kind.width <= width), "V16")
