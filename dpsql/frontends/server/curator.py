"""The curator's routes, on an address and with tokens of their own: what analysts never see."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from dpsql.frontends.server.analysts import said
from dpsql.frontends.server.application import Described
from dpsql.frontends.server.metrics import CONTENT_TYPE, Metrics
from dpsql.frontends.server.openapi import description
from dpsql.frontends.server.problems import unauthorised
from dpsql.frontends.server.queries import Queries
from dpsql.frontends.server.query import Query
from dpsql.frontends.server.replies import FORMATS, encode, format_asked
from dpsql.frontends.server.requests import holder_of
from dpsql.frontends.server.tokens import Tokens
from dpsql.session import Result, Session

_BOOKS = {"releases": "what was released, to whom", "budget": "what is left", "policy": "what is declared"}
_PROTECTED = ("protected table", "public table")


class CuratorRoutes:
    """Metrics, progress, true times, and the books of everybody."""

    def __init__(self, session: Session, queries: Queries, metrics: Metrics, tokens: Tokens) -> None:
        self._session = session
        self._queries = queries
        self._metrics = metrics
        self._tokens = tokens
        self.routes = self._described()
        self._description = description("dpsql: the curator's side", self.routes)

    def _described(self) -> tuple[Described, ...]:
        return (
            Described(
                "GET", "/health", self._health, "Whether the server takes questions.",
                said(_200="it does", _503="it is stopping"), secured=False,
            ),
            Described("GET", "/openapi.json", self._openapi, "This description.", said(200), secured=False),
            Described(
                "GET", "/metrics", self._metrics_text, "Counters and times in Prometheus' format.", said(200, 401, 500),
                produces=("text/plain",),
            ),
            Described(
                "GET", "/v1/queries", self._progress, "Questions of all analysts: states, true seconds, rows.",
                said(200, 401, 500),
            ),
            *(
                Described(
                    "GET", f"/v1/{name}", self._books(name), f"The books: {text}.", said(200, 401, 406, 500, 503),
                    produces=tuple(FORMATS.values()),
                )
                for name, text in _BOOKS.items()
            ),
        )  # fmt: skip

    def _require_curator(self, request: Request) -> None:
        if holder_of(request, self._tokens) is None:
            raise unauthorised()

    async def _health(self, _: Request) -> Response:
        stopping = self._queries.is_stopping
        return JSONResponse({"status": "stopping" if stopping else "ok"}, 503 if stopping else 200)

    async def _openapi(self, _: Request) -> Response:
        return JSONResponse(self._description)

    async def _metrics_text(self, request: Request) -> Response:
        self._require_curator(request)
        left, rows = await asyncio.to_thread(self._gauges)
        return Response(self._metrics.text(self._queries.all(), left, rows), media_type=CONTENT_TYPE)

    async def _progress(self, request: Request) -> Response:
        self._require_curator(request)
        return JSONResponse([self._shown(query) for query in self._queries.all()])

    def _books(self, name: str) -> Callable[[Request], Awaitable[Response]]:
        async def handle(request: Request) -> Response:
            self._require_curator(request)
            form = format_asked(request)
            content = await asyncio.to_thread(lambda: encode(self._session.sql(f"FROM dp_{name}()"), form))
            return Response(content, media_type=FORMATS[form])

        return handle

    def _gauges(self) -> tuple[list[tuple[str, float]], list[tuple[str, int]]]:
        """What the units have left, and about how many rows the declared tables have."""
        budgets = self._session.sql("FROM dp_budget()").arrow().select(["unit", "rho_left"]).to_pylist()
        policy = self._session.sql("FROM dp_policy()").fetchall()
        declared = {name for kind, name, *_ in policy if kind in _PROTECTED}
        cursor = self._session.connection.cursor()
        try:
            sizes = cursor.execute(
                "SELECT schema_name || '.' || table_name, estimated_size FROM duckdb_tables() WHERE NOT internal"
            ).fetchall()
        finally:
            cursor.close()
        left = [(row["unit"], row["rho_left"]) for row in budgets]
        return left, [(name, size) for name, size in sizes if name in declared]

    def _shown(self, query: Query) -> dict[str, Any]:
        now = self._queries.now()
        began = query.ended_at if query.began_at is None else query.began_at
        ended = now if query.ended_at is None else query.ended_at
        waited = (now if began is None else began) - query.asked_at
        match query.outcome:
            case None:
                state = "queued" if query.began_at is None else "working"
            case _:
                state = query.state
        return {
            "id": query.query_id,
            "analyst": query.analyst,
            "state": state,
            "seconds_waited": round(waited, 6),
            "seconds_worked": None if query.began_at is None else round(ended - query.began_at, 6),
            "rows": len(query.outcome) if isinstance(query.outcome, Result) else None,
            "error": None if query.outcome is None else query.error,
        }
