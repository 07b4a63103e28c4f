"""The routes for analysts over sessions whose statements end as they are told to."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import re
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa

import dpsql
from dpsql.access.queries import Queries, Query
from dpsql.frontends.server.application import Metrics, application
from dpsql.frontends.server.routes import AnalystRoutes
from dpsql.frontends.server.settings import Settings
from dpsql.session import Result
from tests.serving import token_of, tokens_for

SETTINGS = Settings(
    first_answer_seconds=0.1, timeout_seconds=5.0, workers=2, waiting=4, grace_seconds=0, ask_by_get=True
)
DEADLINE = 6.4
"""The first of 0.1, 0.2, 0.4, … that is not before the limit of 5 s."""

ANSWER = Result(pa.table({"n": [1]}))
OTHERS = ("bob", "eve")


@dataclasses.dataclass(frozen=True)
class Ending:
    """What becomes of the question that all is about, after how long."""

    seconds: float
    outcome: Result | Exception
    workers_are_taken: bool = False


class Server:
    """The routes for analysts over sessions whose statements end as they are told to."""

    def __init__(self, ending: Ending, taken_seconds: float) -> None:
        self.ending = ending
        self.taken_seconds = taken_seconds
        self.seen: list[tuple[float, str, int, Mapping[str, str], str]] = []
        self._queries = Queries(cast("dpsql.Session", self), SETTINGS, Metrics())
        self._app = application(
            AnalystRoutes(self._queries, tokens_for("ana", *OTHERS), SETTINGS).routes, lambda *_: None
        )

    def sql(self, _: str) -> Result:
        rows = [{"kind": "analyst", "name": name} for name in ("ana", *OTHERS)]
        return Result(pa.Table.from_pylist(rows))

    def as_analyst(self, _: str) -> SimpleNamespace:
        return SimpleNamespace(sql=lambda text, *_, **__: self.answer(text))

    def answer(self, text: str) -> Result:
        outcome = self.ending.outcome if text == "SELECT it" else ANSWER
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    async def lasts(self, *arguments: object) -> None:
        """Let the time pass that a question takes; only what the engine does for ana ends when it is stopped."""
        loop = asyncio.get_running_loop()
        query = arguments[0] if arguments else None
        if not isinstance(query, Query):
            return
        if query.analyst != "ana":
            await asyncio.sleep(self.taken_seconds)
        elif query.question.sql == "SELECT it":
            until = loop.time() + self.ending.seconds
            while (left := until - loop.time()) > 0 and not query.work.stop.is_set():
                await asyncio.sleep(min(left, 0.03))

    async def request(self, method: str, path: str, name: str = "ana", body: object = None) -> Mapping[str, Any]:
        """One request; what comes of it is noted, with the time."""
        path, _, query = path.partition("?")
        content = b"" if body is None else json.dumps(body).encode()
        headers = {"authorization": f"Bearer {token_of(name)}", "content-type": "application/json"}
        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "query_string": query.encode(),
            "http_version": "1.1",
            "headers": [(key.encode(), value.encode()) for key, value in headers.items()],
        }
        sent: list[Mapping[str, Any]] = []

        async def receive() -> Mapping[str, Any]:
            return {"type": "http.request", "body": content, "more_body": False}

        async def send(message: Mapping[str, Any]) -> None:
            sent.append(message)

        await self._app(scope, cast("Any", receive), cast("Any", send))
        told = {key.decode(): value.decode() for key, value in sent[0]["headers"]}
        text = b"".join(message.get("body", b"") for message in sent[1:]).decode("latin-1")
        if name == "ana":
            now = round(asyncio.get_running_loop().time(), 9)
            self.seen.append((now, f"{method} {path}", sent[0]["status"], told, text))
        return {"status": sent[0]["status"], "headers": told, "text": text}

    async def close(self) -> None:
        await self._queries.close()

    def transcript(self) -> list[str]:
        """Everything that ana saw, without the names of questions, which are random."""
        return [re.sub(r"/queries/[\w-]{22}|\"id\":\"[\w-]{22}\"", "#", str(line)) for line in self.seen]
