"""The process behind the extension: ``dpsql helper``, started by it with a socket as standard input.

It holds policy, ledger and releases of the shell's database, plans and draws, and asks the extension to run what is to
be run on the database. Binding answers names and types alone; charging and running happen when rows are asked for.
"""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

import pyarrow as pa

from dpsql.engine import DuckDBEngine, Sandbox
from dpsql.errors import DpsqlError, EngineError
from dpsql.frontends.shell.columns import WireType, chunks, header, sql_name, wire_type
from dpsql.frontends.shell.connection import ShellConnection
from dpsql.frontends.shell.frames import PROTOCOL, BodyReader, Channel, number, text
from dpsql.query.statements import DECLARATIONS, Argument, FunctionCall
from dpsql.session import Desk, StateDrawer

STATE_VARIABLE = "DPSQL_STATE"
"""Environment variable that names a state file; by default it lies beside the database."""


class Helper:
    """Answers requests, one at a time."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._connection = ShellConnection(channel)
        self._desk: Desk | None = None

    def serve(self) -> None:
        """Answer until the shell is gone."""
        self._channel.send("V", number(PROTOCOL))
        while True:
            try:
                kind, body = self._channel.receive()
            except EOFError:
                return
            try:
                self._answer(kind, body)
            except DpsqlError as error:
                self._channel.send("E", text(str(error)))
            except Exception:
                # its text may quote rows
                self._channel.send("E", text(str(EngineError("a step of the answer failed"))))

    def _answer(self, kind: str, body: bytes) -> None:
        desk = self._opened()
        reader = BodyReader(body)
        if kind == "B":
            self._channel.send("S", header(*self._columns(read_call(reader), desk)))
            return
        types = [WireType(*reader.raw(3)) for _ in range(reader.number())]
        result = desk.carry_out(read_call(reader)).arrow()
        for chunk in chunks(_typed(result, types, desk.sandbox), types):
            self._channel.send("C", chunk)
        self._channel.send("Z")

    def _columns(self, call: FunctionCall, desk: Desk) -> tuple[list[str], list[WireType]]:
        """Names and types of the answer, for which nothing is charged."""
        if call.name in DECLARATIONS:
            return ["declared"], [wire_type("VARCHAR")]
        if call.name == "dp_query":
            shown = desk.shown(call)
            return [column.name for column in shown], [wire_type(column.type) for column in shown]
        table = desk.carry_out(call).arrow()
        return table.column_names, self._connection.types(table)

    def _opened(self) -> Desk:
        if self._desk is None:
            named = os.environ.get(STATE_VARIABLE)
            path = self._connection.path()
            state = Path(named) if named else None if path is None else Path(f"{path}.dpsql")
            self._desk = Desk(StateDrawer(state), DuckDBEngine(self._connection))
        return self._desk


def read_call(reader: BodyReader) -> FunctionCall:
    """A function's name and arguments."""
    name = reader.text()
    positional = [_value(reader)[0] for _ in range(reader.number())]
    named: dict[str, Argument] = {}
    literals: dict[str, tuple[str, ...]] = {}
    while reader.byte():
        argument = reader.text()
        value, sql = _value(reader)
        named[argument] = value
        if isinstance(sql, tuple):
            literals[argument] = sql
    return FunctionCall(name, tuple(positional), named, literals)


def _value(reader: BodyReader) -> tuple[Argument, str | tuple[str, ...]]:
    """A value, and its text as SQL."""
    kind = reader.letter()
    if kind == "n":
        return None, "NULL"
    if kind == "l":
        values = [_value(reader) for _ in range(reader.number())]
        return tuple(value for value, _ in values), tuple(str(sql) for _, sql in values)
    said = reader.text()
    match kind:
        case "b":
            return said == "true", said
        case "#":
            return (float(said) if any(letter in said for letter in ".enf") else int(said)), said
        case _:
            return said, "'" + said.replace("'", "''") + "'"


def _typed(table: pa.Table, types: list[WireType], sandbox: Sandbox) -> pa.Table:
    """The answer in the types that were promised."""
    names = [f"c{i}" for i in range(len(types))]
    casts = ", ".join(f"CAST({name} AS {sql_name(kind)}) AS {name}" for name, kind in zip(names, types, strict=True))
    return sandbox.run(f"SELECT {casts} FROM answer", {"answer": table.rename_columns(names)})


def main() -> None:
    """Serve the extension that started this process."""
    with socket.socket(fileno=os.dup(sys.stdin.fileno())) as connected:
        Helper(Channel(connected)).serve()
