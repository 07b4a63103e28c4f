"""The process behind the extension: ``dpsql helper``, which the extension starts with a socket as standard input.

It holds policy, ledger and releases of the shell's database. It plans and draws, and the extension runs its queries on
the database. Binding answers with names and types alone. Charging and running happen when rows are asked for.
"""

from __future__ import annotations

import contextlib
import functools
import os
import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from dpsql import remote
from dpsql.errors import AccessError, DpsqlError, EngineError, ReleaseError
from dpsql.frontends.shell.frames import (
    PROTOCOL,
    BodyReader,
    Channel,
    WireType,
    chunks,
    header,
    number,
    read_chunks,
    read_header,
    sql_name,
    text,
    wire_type,
)
from dpsql.session import (
    DECLARATIONS,
    MAIN_DATABASE,
    PINNED,
    MainDatabase,
    Receipt,
    Result,
    main_database,
    quote,
    sql_on,
    state_beside,
    text_literal,
)

STATE_VARIABLE = "DPSQL_STATE"
"""Environment variable that names a state file; by default it lies beside the database."""

TOKEN_VARIABLE = "DPSQL_TOKEN"  # noqa: S105 — a name, not a token
"""Environment variable with the token for a server, which a statement would leave in the shell's history."""

_HOME, _PINNED = 0, 1
_ONE_TEXT = {**dict.fromkeys(DECLARATIONS, "declared"), "dp_server": "answers come from"}
"""Functions whose answer is one column of text, with its name."""
RECEIPT_FUNCTION = "dp_receipt"
"""Function of the shell that answers with the receipt of the last private answer."""
_RECEIPT_COLUMNS = ("heading", "sentence")
_TEXT_COLUMNS = {RECEIPT_FUNCTION: _RECEIPT_COLUMNS, "dp_check": ("section", "name", "value")}
"""Functions whose answer is columns of text that are known before it is computed."""


@dataclass(frozen=True, slots=True)
class Call:
    """A function of the shell: its name, its arguments as they stand in SQL, and those that are texts as such."""

    name: str
    arguments: str
    texts: Mapping[str | int, str] = field(default_factory=dict)

    @property
    def statement(self) -> str:
        """Return the statement that a session answers."""
        return f"{'CALL' if self.name in DECLARATIONS else 'FROM'} {self.name}({self.arguments})"


class Helper:
    """Process that answers requests, one at a time."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._connection = ShellConnection(channel)
        self._server: Callable[[str], Result] | None = None
        self._receipt: Receipt | None = None

    def serve(self) -> None:
        """Answer until the shell is gone."""
        self._channel.send("V", number(PROTOCOL))
        with contextlib.suppress(EOFError):
            while True:
                kind, body = self._channel.receive()
                try:
                    self._answer(kind, BodyReader(body))
                except DpsqlError as error:
                    self._channel.send("E", text(str(error)))
                except Exception:
                    # its text may quote rows
                    self._channel.send("E", text(str(EngineError("a step of the answer failed"))))

    def _answer(self, kind: str, body: BodyReader) -> None:
        if kind == "B":
            self._channel.send("S", header(*self._columns(read_call(body))))
            return
        types = [WireType(*body.raw(3)) for _ in range(body.number())]
        call = read_call(body)
        answer = self._rows_of(call)
        for chunk in chunks(self._connection.typed(answer, types), types):
            self._channel.send("C", chunk)
        self._channel.send("Z")

    def _rows_of(self, call: Call) -> pa.Table:
        """Return the rows that a call answers with."""
        if call.name == "dp_server":
            return self._move(call)
        return self._last_receipt() if call.name == RECEIPT_FUNCTION else self._answered(call)

    def _answered(self, call: Call) -> pa.Table:
        """Return the rows of an answer; write the lines on it below the shell's table, to stderr."""
        result = self._ask(call.statement)
        if result.receipt:
            self._receipt = result.receipt
            # without its layout: the shell prints all numbers, also those whose intervals say nothing
            drawn = Result(result.arrow(), result.receipt, standing=lambda: result.standing)
            for line in drawn.lines_below(receipt_at=f"FROM {RECEIPT_FUNCTION}()"):
                sys.stderr.write(f"{line}\n")
        return result.arrow()

    def _last_receipt(self) -> pa.Table:
        """Return the receipt of the last private answer, a sentence a row.

        Raises:
            ReleaseError: there was no private answer in this shell.

        """
        if self._receipt is None:
            raise ReleaseError("no private answer was asked for in this shell; ask with FROM dp_query($$ SELECT … $$)")
        sections = self._receipt.sections.items()
        rows = [(heading, sentence) for heading, sentences in sections for sentence in sentences]
        return pa.table(list(zip(*rows, strict=True)), names=list(_RECEIPT_COLUMNS))

    def _columns(self, call: Call) -> tuple[list[str], list[WireType]]:
        """Return names and types of the answer; they cost nothing."""
        if call.name in _ONE_TEXT:
            return [_ONE_TEXT[call.name]], [wire_type("VARCHAR")]
        if names := _TEXT_COLUMNS.get(call.name):
            return list(names), [wire_type("VARCHAR")] * len(names)
        if call.name == "dp_query":
            columns = self._ask(Call("dp_describe", call.arguments).statement).fetchall()
            return [name for name, _ in columns], [wire_type(kind) for _, kind in columns]
        table = self._ask(call.statement).arrow()
        return table.column_names, self._connection.types(table)

    def _move(self, call: Call) -> pa.Table:
        """Send later questions to a server, as ``CALL dp_server(url)`` says; to the own database if the URL is NULL."""
        url = call.texts.get(0)
        if url is None:
            self._server = None
            return pa.table({"": ["the shell's own database"]})
        token = call.texts.get("token", os.environ.get(TOKEN_VARIABLE, ""))
        if not token:
            raise AccessError(
                f"a server wants a token: set {TOKEN_VARIABLE} before the shell starts, or add token := '…'"
            )
        analyst = remote.connect(url, token=token, ca_file=call.texts.get("ca_file"))
        self._server = analyst.sql
        return pa.table({"": [f"{url}, for analyst {analyst.name}"]})

    def _ask(self, statement: str) -> Result:
        return (self._server or self._own)(statement)

    @functools.cached_property
    def _own(self) -> Callable[[str], Result]:
        """Return the function that answers on the shell's own database, with its state file."""
        named = os.environ.get(STATE_VARIABLE)
        return sql_on(self._connection, Path(named) if named else state_beside(self._connection.path()))


class ShellConnection:
    """Two connections of the extension to the shell's database: one as it is, one with pinned settings."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._local = duckdb.connect(":memory:", config={"threads": "1", "enable_external_access": "false"})
        for statement in PINNED[:-1]:
            self._local.execute(statement)
        self._is_pinned = False

    def home(self) -> tuple[str, str]:
        """Return the database and the schema that the shell began with."""
        ((database, schema),) = self.rows(_HOME, "SELECT current_database(), current_schema()")
        return str(database), str(schema)

    def main_database(self) -> MainDatabase:
        """Return the database that the shell began with."""
        return main_database(self.rows(_HOME, MAIN_DATABASE))

    def time_zone(self) -> str:
        """Return the time zone that the shell began with."""
        ((zone,),) = self.rows(_HOME, "SELECT current_setting('TimeZone')")
        return str(zone)

    @property
    def has_own_cursors(self) -> bool:
        """Return that all cursors share the connection of the prompt."""
        return False

    def path(self) -> str:
        """Return the file of the shell's database; empty for one in memory."""
        ((path,),) = self.rows(_HOME, "SELECT path FROM duckdb_databases() WHERE database_name = current_database()")
        return str(path or "")

    @contextlib.contextmanager
    def pinned(self) -> Iterator[_ShellCursor]:
        """Return the connection with pinned settings; one cursor at a time."""
        if not self._is_pinned:
            for statement in PINNED:
                self.run(_PINNED, statement)
            self._is_pinned = True
        with contextlib.closing(_ShellCursor(self)) as cursor:
            yield cursor

    def plain(self) -> contextlib.AbstractContextManager[_ShellCursor]:
        """Return the connection with pinned settings."""
        return self.pinned()

    def load_native(self) -> None:
        """Do nothing: the extension is the library."""

    def run(self, place: int, sql: str) -> pa.Table:
        """Return the rows of a query.

        Raises:
            duckdb.Error: the query fails; its text is that of DuckDB.

        """
        table = self._flat(place, sql)
        return self._described(place, sql) if table is None else table

    def rows(self, place: int, sql: str) -> list[tuple[Any, ...]]:
        """Return the rows of a query as tuples."""
        return [tuple(row.values()) for row in self.run(place, sql).to_pylist()]

    def _flat(self, place: int, sql: str) -> pa.Table | None:
        """Return the rows of a query; None if a column is not flat."""
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
        """Return the rows of a query with columns that are not flat: they travel as texts and are cast back."""
        columns = [
            (str(row[0]), str(row[1]))
            for row in self.rows(place, f"SELECT column_name, column_type FROM (DESCRIBE {sql})")
        ]
        listed = ", ".join(f"c{i}" for i in range(len(columns)))
        texts = ", ".join(f"CAST(c{i} AS {sql_name(wire_type(kind))}) AS c{i}" for i, (_, kind) in enumerate(columns))
        flat = self._flat(place, f"SELECT {texts} FROM ({sql}) AS described({listed})")
        return self._cast(flat, [kind for _, kind in columns]).rename_columns([name for name, _ in columns])

    def _cast(self, table: pa.Table, kinds: Sequence[str]) -> pa.Table:
        """Return the columns in these types, called c0, c1, …."""
        numbered = table.rename_columns([f"c{i}" for i in range(len(kinds))])
        casts = ", ".join(f"CAST(c{i} AS {kind}) AS c{i}" for i, kind in enumerate(kinds))
        return self._local.from_arrow(numbered).project(casts).to_arrow_table()

    def typed(self, table: pa.Table, types: Sequence[WireType]) -> pa.Table:
        """Return the columns of a table in the types in which they travel."""
        return self._cast(table, [sql_name(kind) for kind in types])

    def types(self, table: pa.Table) -> list[WireType]:
        """Return the types in which a table's columns travel."""
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


@dataclass(frozen=True, eq=False, repr=False)
class _ShellCursor:
    _connection: ShellConnection
    _offered: list[str] = field(default_factory=list)

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
        """Do nothing: the prompt has no progress of a helper's query."""

    def interrupt(self) -> None:
        """Do nothing: a question from the shell has no limit of time, and its reading ends with its query."""

    def progress(self) -> float | None:
        """Return None: the shell's own bar is that of the query around."""
        return None

    def close(self) -> None:
        for name in self._offered:
            self._connection.run(_PINNED, f"DROP TABLE IF EXISTS temp.main.{name}")


def read_call(body: BodyReader) -> Call:
    """Read a function's name and arguments."""
    name = body.text()
    values: dict[str | int, tuple[str, str | None]] = {place: _value(body) for place in range(body.number())}
    while body.byte():
        argument = body.text()
        values[argument] = _value(body)
    arguments = [sql if isinstance(place, int) else f"{place} := {sql}" for place, (sql, _) in values.items()]
    texts = {place: said for place, (_, said) in values.items() if said is not None}
    return Call(name, ", ".join(arguments), texts)


def _value(body: BodyReader) -> tuple[str, str | None]:
    """Return a value as SQL, and the text beside it if it is one."""
    kind = chr(body.byte())
    if kind == "n":
        return "NULL", None
    if kind == "l":
        return f"[{', '.join(_value(body)[0] for _ in range(body.number()))}]", None
    if kind == "o":
        members = [f"{text_literal(body.text())}: {_value(body)[0]}" for _ in range(body.number())]
        return f"{{{', '.join(members)}}}", None
    said = body.text()
    return (text_literal(said), said) if kind == "s" else (said, None)


def main() -> None:
    """Serve the extension that started this process."""
    with socket.socket(fileno=os.dup(sys.stdin.fileno())) as connected:
        Helper(Channel(connected)).serve()
