"""Tables as streams of Arrow."""

from __future__ import annotations

import pyarrow as pa


def to_stream(table: pa.Table, compression: str | None = None) -> pa.Buffer:
    """Return a table as a stream of Arrow, compressed as pyarrow calls it or not at all."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_table(table)
    return sink.getvalue()


def from_stream(stream: bytes | pa.Buffer) -> pa.Table:
    """Return the table of a stream of Arrow."""
    return pa.ipc.open_stream(stream).read_all()
