"""The shell's database, reached through the extension: an engine's ``Connection``."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import duckdb
import pyarrow as pa

from dpsql.engine import PINNED
from dpsql.frontends.shell.columns import WireType, chunks, read_chunks, read_header, sql_name, wire_type
from dpsql.frontends.shell.frames import BodyReader, Channel, number, text
from dpsql.query.dialect import quote, text_literal

_HOME, _PINNED = 0, 1


class ShellConnection:
    """The two connections that the extension holds to the shell's database: one as it is, one with pinned settings."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._local = duckdb.connect(":memory:", config={"threads": "1", "enable_external_access": "false"})
        for statement in PINNED[:-1]:
            self._local.execute(statement)
        self._is_pinned = False

    def home(self) -> tuple[str, str]:
        """Database and schema that the shell began with."""
        ((database, schema),) = self.rows(_HOME, "SELECT current_database(), current_schema()")
        return str(database), str(schema)

    def path(self) -> str | None:
        """The file of the shell's database; None for one in memory."""
        sql = "SELECT path FROM duckdb_databases() WHERE database_name = current_database()"
        ((path,),) = self.rows(_HOME, sql)
        return path or None

    @contextlib.contextmanager
    def pinned(self) -> Iterator[_ShellCursor]:
        """The connection with pinned settings; one cursor at a time."""
        if not self._is_pinned:
            for statement in PINNED:
                self.run(_PINNED, statement)
            self._is_pinned = True
        cursor = _ShellCursor(self)
        try:
            yield cursor
        finally:
            cursor.close()

    def load_native(self) -> None:
        """Nothing: the extension is the library."""

    def run(self, place: int, sql: str) -> pa.Table:
        """Rows of a query.

        Raises:
            duckdb.Error: what DuckDB says.

        """
        table = self._flat(place, sql)
        return self._described(place, sql) if table is None else table

    def rows(self, place: int, sql: str) -> list[tuple[Any, ...]]:
        """The same as tuples."""
        return [tuple(row.values()) for row in self.run(place, sql).to_pylist()]

    def _flat(self, place: int, sql: str) -> pa.Table | None:
        """Rows of a query; None where a column is not flat."""
        self._channel.send("Q", bytes((place,)) + text(sql))
        kind, body = self._channel.receive()
        if kind == "X":
            raise duckdb.Error(BodyReader(body).text())
        names, types = read_header(body)
        bodies = []
        while (frame := self._channel.receive())[0] == "C":
            bodies.append(frame[1])
        if not all(kind.is_known for kind in types):
            return None
        return pa.table(read_chunks(bodies, types), names=names)

    def _described(self, place: int, sql: str) -> pa.Table:
        """Rows of a query with columns that are not flat, which travel as texts and are cast back."""
        columns = [
            (str(row[0]), str(row[1]))
            for row in self.rows(place, f"SELECT column_name, column_type FROM (DESCRIBE {sql})")
        ]
        listed = ", ".join(f"c{i}" for i in range(len(columns)))
        texts = ", ".join(f"CAST(c{i} AS {sql_name(wire_type(kind))}) AS c{i}" for i, (_, kind) in enumerate(columns))
        flat = self._flat(place, f"SELECT {texts} FROM ({sql}) AS described({listed})")
        return self._cast(flat, [kind for _, kind in columns]).rename_columns([name for name, _ in columns])

    def _cast(self, table: pa.Table, kinds: Sequence[str]) -> pa.Table:
        """The columns in these types, called c0, c1, …."""
        numbered = table.rename_columns([f"c{i}" for i in range(len(kinds))])
        casts = ", ".join(f"CAST(c{i} AS {kind}) AS c{i}" for i, kind in enumerate(kinds))
        return self._local.from_arrow(numbered).project(casts).to_arrow_table()

    def typed(self, table: pa.Table, types: Sequence[WireType]) -> pa.Table:
        """The columns of a table in the types in which they travel."""
        return self._cast(table, [sql_name(kind) for kind in types])

    def types(self, table: pa.Table) -> list[WireType]:
        """The types in which a table's columns travel."""
        return [wire_type(str(kind)) for kind in self._local.from_arrow(table).types]

    def put(self, name: str, table: pa.Table) -> None:
        """Make a temporary table of the pinned connection."""
        types = self.types(table)
        declared = ", ".join(
            f"{quote(column)} {sql_name(kind)}" for column, kind in zip(table.column_names, types, strict=True)
        )
        self.run(_PINNED, f"CREATE OR REPLACE TEMP TABLE temp.main.{name} ({declared})")
        rows = chunks(self.typed(table, types), types)
        kinds = b"".join(kind.packed() for kind in types)
        self._channel.send("A", text(name) + number(len(types)) + kinds + number(len(rows)) + b"".join(rows))
        kind, body = self._channel.receive()
        if kind == "X":
            raise duckdb.Error(BodyReader(body).text())

    def drop(self, name: str) -> None:
        """Drop a temporary table of the pinned connection."""
        self.run(_PINNED, f"DROP TABLE IF EXISTS temp.main.{name}")


class _ShellCursor:
    def __init__(self, connection: ShellConnection) -> None:
        self._connection = connection
        self._offered: list[str] = []

    def rows(self, sql: str, parameters: Sequence[str] = ()) -> list[tuple[Any, ...]]:
        # without parameters a question mark is part of a name
        if parameters:
            first, *rest = sql.split("?")
            sql = first + "".join(text_literal(value) + part for value, part in zip(parameters, rest, strict=True))
        return self._connection.rows(_PINNED, sql)

    def table(self, sql: str) -> pa.Table:
        return self._connection.run(_PINNED, sql)

    def pieces(self, sql: str, rows: int) -> Iterator[pa.Table]:
        table = self.table(sql)
        yield table.schema.empty_table()
        for start in range(0, table.num_rows, rows):
            yield table.slice(start, rows)

    def offer(self, name: str, table: pa.Table) -> None:
        self._connection.put(name, table)
        self._offered.append(name)

    def count_progress(self) -> None:
        """Nothing: the prompt has no progress of a helper's query."""

    def interrupt(self) -> None:
        """Nothing: a question from the shell has no limit of time, and its reading ends with its query."""

    def progress(self) -> float | None:
        """Not known here: the shell's own bar is that of the query around."""
        return None

    def close(self) -> None:
        for name in self._offered:
            self._connection.drop(name)
