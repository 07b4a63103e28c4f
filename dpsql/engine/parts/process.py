"""A process that reads parts: it runs texts on one part at a time, and keeps the tables of open transactions.

Requests and replies go through its standard input and output: a line of JSON, and tables in Arrow's own format.
Nothing of them is on a command line, in the environment or in a file. A failure is a word, because DuckDB quotes values
of rows. The process ends when its input does, even amid a reading, so it does not outlive the program that began it.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa

from dpsql.bound.aggregation import LISTED_KEYS
from dpsql.engine.arrow_stream import from_stream, to_stream
from dpsql.engine.connection import Connection, Cursor, answers_native
from dpsql.engine.parts.manifest import file_digest
from dpsql.engine.parts.part_database import open_part_database
from dpsql.operations.dialect import quote, text_literal

PROBE = "SELECT version(), hash(hash(7, 'part', 0.5::DOUBLE, DATE '2000-02-29'))::VARCHAR"
"""A query by which two DuckDB libraries are compared: the choice of groups rests on its hash."""

CHANGED = "changed"
"""Word of a failure: the file of a part is not the one that the split left."""
FAILED = "failed"
"""Word of any other failure."""


def send(stream: BinaryIO, header: Mapping[str, Any], tables: Sequence[pa.Table] = ()) -> None:
    """Write a message: a header of JSON and tables."""
    blobs = [memoryview(to_stream(table)) for table in tables]
    line = json.dumps({**header, "sizes": [len(blob) for blob in blobs]})
    stream.write(line.encode() + b"\n")
    for blob in blobs:
        stream.write(blob)
    stream.flush()


def receive(stream: BinaryIO) -> tuple[dict[str, Any], list[pa.Table]]:
    """Read a message.

    Raises:
        EOFError: the other end is gone.

    """
    line = stream.readline()
    if not line.endswith(b"\n"):
        raise EOFError
    header = json.loads(line)
    blobs = [stream.read(size) for size in header["sizes"]]
    if [len(blob) for blob in blobs] != header["sizes"]:
        raise EOFError
    return header, [from_stream(blob) for blob in blobs]


@dataclass
class _Held:
    """A cursor of an open transaction, with the names of its tables."""

    cursor: Cursor
    until_end: contextlib.ExitStack
    tables: set[str] = field(default_factory=set)


class Reader:
    """Reads parts with one DuckDB in memory, to which one part is attached at a time."""

    def __init__(self, start: Mapping[str, Any]) -> None:
        library = Path(start["native_library"]) if start["native_library"] else None
        self._database, connection = open_part_database(start["memory_limit"], start["temp_directory"], library)
        self._connection: Connection = connection
        self._home = str(start["home"])
        self._files = [(Path(start["folder"]) / one["name"], one["digest"]) for one in start["parts"]]
        self._attached: int | None = None
        self._held: dict[tuple[str, int], _Held] = {}

    def facts(self) -> dict[str, Any]:
        """Return version and hash of this DuckDB, and whether the native aggregates can be called."""
        with self._connection.pinned() as cursor:
            (probe,) = cursor.rows(PROBE)
            return {"probe": list(probe), "has_native": answers_native(cursor)}

    def check(self, part: int) -> None:
        """Require that a part is the file that the split left, and that it can be attached.

        Raises:
            _ChangedError: it is another file.

        """
        self._attach(part)

    def run(self, request: Mapping[str, Any], listed: Sequence[pa.Table]) -> list[pa.Table]:
        """Run texts on a part and return their rows.

        The request names the part, the transaction (empty for none), the tables that its texts read as pairs of name
        and text, the texts, and places of listed keys: of each table and of the texts, or None.

        Raises:
            _ChangedError: the part is another file.
            duckdb.Error: a text fails.

        """
        self._attach(request["part"])
        held = self._hold(request["transaction"], request["part"])
        try:
            for (name, sql), place in zip(request["made"], request["listed_of_made"], strict=True):
                if name not in held.tables:
                    self._offer(held.cursor, place, listed)
                    held.cursor.rows(f"CREATE TEMP TABLE {name} AS {sql}")
                    held.tables.add(name)
            self._offer(held.cursor, request["listed_of_texts"], listed)
            return [held.cursor.table(sql) for sql in request["texts"]]
        finally:
            if not request["transaction"]:
                held.until_end.close()

    def end(self, transaction: str) -> None:
        """End a transaction, and its tables."""
        for key in [key for key in self._held if key[0] == transaction]:
            self._held.pop(key).until_end.close()

    def _hold(self, transaction: str, part: int) -> _Held:
        held = self._held.get((transaction, part))
        if held is None:
            until_end = contextlib.ExitStack()
            held = _Held(until_end.enter_context(self._connection.pinned()), until_end)
            if transaction:
                self._held[transaction, part] = held
        return held

    @staticmethod
    def _offer(cursor: Cursor, place: int | None, listed: Sequence[pa.Table]) -> None:
        if place is not None:
            cursor.offer(LISTED_KEYS, listed[place])

    def _attach(self, part: int) -> None:
        """Attach a part under the name of the head, in place of another."""
        if self._attached == part:
            return
        path, digest = self._files[part]
        self._detach()
        if not path.is_file() or file_digest(path) != digest:
            raise _ChangedError
        self._database.execute(f"ATTACH {text_literal(str(path))} AS {quote(self._home)} (READ_ONLY)")
        self._attached = part
        # nobody writes to it from here on: DuckDB locks what it has attached
        if file_digest(path) != digest:
            self._detach()
            raise _ChangedError

    def _detach(self) -> None:
        if self._attached is not None:
            self._database.execute(f"DETACH {quote(self._home)}")
            self._attached = None


class _ChangedError(Exception):
    """A part is not the file that the split left."""


def answered(reader: Reader, request: Mapping[str, Any], listed: Sequence[pa.Table]) -> tuple[dict[str, Any], Any]:
    """Return the reply to a request: a header and tables. A failure is a word in the header."""
    try:
        match request["ask"]:
            case "facts":
                return reader.facts(), ()
            case "check":
                reader.check(request["part"])
                return {}, ()
            case "end":
                reader.end(request["transaction"])
                return {}, ()
            case _:
                return {}, reader.run(request, listed)
    except _ChangedError:
        return {"failure": CHANGED}, ()
    except Exception:
        return {"failure": FAILED}, ()


def main() -> None:
    """Answer requests until the input ends."""
    requests, replies = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    # what a library prints is no reply
    os.dup2(2, 1)
    received: queue.SimpleQueue[tuple[dict[str, Any], list[pa.Table]]] = queue.SimpleQueue()
    # a query of DuckDB does not notice that nobody waits for it any more
    threading.Thread(target=_receive_all, args=(requests, received), daemon=True).start()
    start, _ = received.get()
    reader = Reader(start)
    while True:
        request, listed = received.get()
        try:
            send(replies, *answered(reader, request, listed))
        except BrokenPipeError:
            os._exit(0)


def _receive_all(requests: BinaryIO, received: queue.SimpleQueue[tuple[dict[str, Any], list[pa.Table]]]) -> None:
    """Read messages until the input ends, and end the process then."""
    try:
        while True:
            received.put(receive(requests))
    finally:
        # memory of a large database is given back at once
        os._exit(0)
