"""The process behind the extension: ``dpsql helper``, started by it with a socket as standard input.

It holds policy, ledger and releases of the shell's database, plans and draws, and asks the extension to run what is to
be run on the database. Binding answers names and types alone; charging and running happen when rows are asked for.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from dpsql import remote
from dpsql.engine import DuckDBEngine
from dpsql.errors import AccessError, DpsqlError, EngineError
from dpsql.frontends.shell.columns import WireType, chunks, header, wire_type
from dpsql.frontends.shell.connection import ShellConnection
from dpsql.frontends.shell.frames import PROTOCOL, BodyReader, Channel, number, text
from dpsql.query.dialect import text_literal
from dpsql.query.statements import DECLARATIONS
from dpsql.session import Desk, Result, StateDrawer, state_beside
from dpsql.session.reader import CURATOR

STATE_VARIABLE = "DPSQL_STATE"
"""Environment variable that names a state file; by default it lies beside the database."""

Door = Callable[[str], Result]
"""Where statements are answered."""

TOKEN_VARIABLE = "DPSQL_TOKEN"  # noqa: S105 — a name, not a token
"""Environment variable with the token for a server, which a statement would leave in the shell's history."""


@dataclass(frozen=True, slots=True)
class Call:
    """A function of the shell: its name, its arguments as they stand in SQL, and those that are texts as such."""

    name: str
    arguments: str
    texts: Mapping[str | int, str] = field(default_factory=dict)

    @property
    def statement(self) -> str:
        """The statement that a session answers."""
        return f"{'CALL' if self.name in DECLARATIONS else 'FROM'} {self.name}({self.arguments})"


class Helper:
    """Answers requests, one at a time."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._connection = ShellConnection(channel)
        self._own: Door | None = None
        self._server: Door | None = None

    def serve(self) -> None:
        """Answer until the shell is gone."""
        self._channel.send("V", number(PROTOCOL))
        while True:
            try:
                kind, body = self._channel.receive()
            except EOFError:
                return
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
        answer = self._move(call) if call.name == "dp_server" else self._ask(call.statement).arrow()
        for chunk in chunks(self._connection.typed(answer, types), types):
            self._channel.send("C", chunk)
        self._channel.send("Z")

    def _columns(self, call: Call) -> tuple[list[str], list[WireType]]:
        """Names and types of the answer, for which nothing is charged."""
        if call.name in DECLARATIONS:
            return ["declared"], [wire_type("VARCHAR")]
        if call.name == "dp_server":
            return ["answers come from"], [wire_type("VARCHAR")]
        if call.name == "dp_query":
            columns = self._ask(Call("dp_describe", call.arguments).statement).fetchall()
            return [name for name, _ in columns], [wire_type(kind) for _, kind in columns]
        table = self._ask(call.statement).arrow()
        return table.column_names, self._connection.types(table)

    def _move(self, call: Call) -> pa.Table:
        """``CALL dp_server(url)``: what is asked from now on is asked of a server; of the own database after NULL."""
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
        if self._server is not None:
            return self._server(statement)
        if self._own is None:
            named = os.environ.get(STATE_VARIABLE)
            path = self._connection.path()
            state = Path(named) if named else state_beside(path or "")
            desk = Desk(StateDrawer(state), DuckDBEngine(self._connection))
            self._own = lambda asked: desk.run(asked, None, {}, reader=CURATOR, timeout_seconds=None)
        return self._own(statement)


def read_call(body: BodyReader) -> Call:
    """A function's name and arguments."""
    name = body.text()
    arguments: list[str] = []
    texts: dict[str | int, str] = {}
    for place in range(body.number()):
        sql, said = _value(body)
        arguments.append(sql)
        texts |= {} if said is None else {place: said}
    while body.byte():
        argument = body.text()
        sql, said = _value(body)
        arguments.append(f"{argument} := {sql}")
        texts |= {} if said is None else {argument: said}
    return Call(name, ", ".join(arguments), texts)


def _value(body: BodyReader) -> tuple[str, str | None]:
    """A value as SQL, and itself where it is a text."""
    kind = body.letter()
    if kind == "n":
        return "NULL", None
    if kind == "l":
        return f"[{', '.join(_value(body)[0] for _ in range(body.number()))}]", None
    said = body.text()
    return (text_literal(said), said) if kind == "s" else (said, None)


def main() -> None:
    """Serve the extension that started this process."""
    with socket.socket(fileno=os.dup(sys.stdin.fileno())) as connected:
        Helper(Channel(connected)).serve()
