"""The routes of two doors: analysts ask, look, fetch and cancel; the curator sees metrics, progress and the books.

What analysts reach knows no more than the reader's own questions. The curator's routes are on an address and with
tokens of their own, and show what analysts never see.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

import dpsql
from dpsql.access.queries import Queries, Query, Question
from dpsql.access.tokens import Tokens
from dpsql.errors import RemoteError
from dpsql.frontends.server.application import CONTENT_TYPE, Described, Metrics, description, progress_of, said
from dpsql.frontends.server.messages import (
    FORMATS,
    OF_AN_ANSWER,
    Problem,
    answer_reply,
    busy,
    encode,
    format_asked,
    format_named,
    not_found,
    problem_of,
    question_of_url,
    read_question,
    require_holder,
    wait_of,
)
from dpsql.frontends.server.settings import Settings
from dpsql.remote.wire import to_json
from dpsql.session import Result, Session

_WAIT_SECONDS = 60.0
_SAME_SECONDS = 60.0
"""Within this time a GET that asks the same is the same reading of one answer: a HEAD and some ranges."""

_WAIT = {"wait": "seconds to hold the reply back while there is no answer"}
_BODY: dict[str, Any] = {
    "type": "object",
    "required": ["sql"],
    "additionalProperties": False,
    "properties": {
        "sql": {"type": "string", "description": "one statement"},
        "params": {"type": ["array", "object", "null"], "description": "values for ? or for $name"},
        "options": {
            "type": "object",
            "description": 'as in OPTIONS (…): {"rho": 0.05}, or {"target_relative_error": 0.1, "max_rho": 0.5}',
        },
        "timeout_seconds": {"type": "number", "description": "deadline of the answer, rounded up to a moment"},
    },
}
_BOOKS = {
    "releases": "what was released, to whom",
    "budget": "what is left",
    "policy": "what is declared",
    "tables": "what may be asked of, as analysts see it",
}
_PROTECTED = ("protected table", "public table")
_FORMS = tuple(FORMATS.values())
_REFUSED = (400, 401, 403, 406, 408, 409, 413, 415, 422, 429, 500, 503)
"""Statuses of a question that has no answer."""
_ASKED = said(
    *_REFUSED,
    _200="the answer, where it was there within wait",
    _202="the question was taken",
    _410="the deadline passed within wait without an answer, or the query was cancelled",
)
"""Replies to a question."""
_FETCHED = said(
    401,
    404,
    *OF_AN_ANSWER,
    416,
    _200="the answer",
    _206="the range of it",
    _202="there is no answer yet; Retry-After says when to look",
    _410="there is no answer and will be none: the deadline is past, or the query was cancelled",
    _500="the answer cannot be written in this form",
)
"""Replies to whoever fetches an answer."""


def _health_route(endpoint: Callable[[Request], Awaitable[Response]]) -> Described:
    states = said(_200="it does", _503="it is stopping")
    return Described("GET", "/health", endpoint, "Whether the server takes questions.", states, secured=False)


class AnalystRoutes:
    """What analysts can ask of the server."""

    def __init__(self, queries: Queries, tokens: Tokens, settings: Settings) -> None:
        self._queries = queries
        self._tokens = tokens
        self._settings = settings
        self.routes = self._described()
        self._description = description("dpsql: private answers", self.routes)

    def _described(self) -> tuple[Described, ...]:
        server = (
            _health_route(self._health),
            Described("GET", "/openapi.json", self._openapi, "This description.", said(200), secured=False),
            Described("GET", "/v1/me", self._me, "Whose token it is.", said(200, 401)),
        )
        tables = Described(
            "GET",
            "/v1/tables",
            self._tables,
            "Tables and columns that may be asked of; charges nothing, and is the same answer for a minute.",
            {status: text for status, text in {**_FETCHED, **said(406, 429)}.items() if status != 404},
            parameters=_WAIT,
            produces=_FORMS,
        )
        by_get = (self._question_by_get(),) if self._settings.ask_by_get else ()
        return (*server, tables, *self._questions(), *self._answers(), *by_get)

    def _questions(self) -> tuple[Described, ...]:
        return (
            Described(
                "POST",
                "/v1/queries",
                self._ask,
                "Ask; what is charged is charged once, however often it is asked.",
                _ASKED,
                parameters=_WAIT,
                produces=_FORMS,
                body=_BODY,
            ),
            Described(
                "GET",
                "/v1/queries/{query_id}",
                self._look,
                "What became of a question, with the receipt.",
                said(400, 401, 404, 500, _200="its state"),
                parameters=_WAIT,
            ),
            Described(
                "DELETE",
                "/v1/queries/{query_id}",
                self._cancel,
                "Cancel a question; a charge stays.",
                said(401, 404, 500, _200="its state", _409="it has an outcome already"),
            ),
        )

    def _answers(self) -> tuple[Described, ...]:
        return (
            Described(
                "GET",
                "/v1/queries/{query_id}/result",
                self._fetch,
                "The answer in the form that Accept names.",
                {**_FETCHED, **said(406)},
                parameters=_WAIT,
                produces=_FORMS,
            ),
            Described(
                "GET",
                "/v1/queries/{query_id}/result.{form}",
                self._fetch,
                "The answer as json, arrow or parquet.",
                _FETCHED,
                parameters=_WAIT,
                produces=_FORMS,
            ),
        )

    def _question_by_get(self) -> Described:
        return Described(
            "GET",
            "/v1/result.{form}",
            self._ask_by_get,
            "Ask by an address, and fetch; HEAD never asks, and the same address again is the same answer.",
            {**_FETCHED, **said(413, 429, _405="HEAD of what was not asked yet; GET asks")},
            parameters={"sql": "one statement", "rho": "and other options by name, objects as JSON", **_WAIT},
            produces=_FORMS,
        )

    def _who(self, request: Request) -> str:
        analyst = request.state.analyst = require_holder(request, self._tokens)
        return analyst

    async def _health(self, _: Request) -> Response:
        if self._queries.is_stopping:
            raise Problem(503, RemoteError("the server is stopping"))
        return JSONResponse({"status": "ok"})

    async def _openapi(self, _: Request) -> Response:
        return JSONResponse(self._description)

    async def _me(self, request: Request) -> Response:
        return JSONResponse({"analyst": self._who(request), "dpsql": dpsql.__version__})

    async def _ask(self, request: Request) -> Response:
        analyst = self._who(request)
        wait = wait_of(request, 0.0, self._queries.longest_wait)
        # what the reply is to be is found out before anything is asked
        form = format_asked(request) if wait else "json"
        query = self._begun(analyst, await read_question(request, self._settings))
        return await self._answered(query, form, wait, request)

    def _begun(self, analyst: str, question: Question) -> Query:
        try:
            return self._queries.ask(analyst, question)
        except RemoteError as error:
            raise (problem_of if self._queries.is_stopping else busy)(error) from None

    async def _tables(self, request: Request) -> Response:
        analyst = self._who(request)
        form = format_asked(request)
        wait = wait_of(request, self._queries.longest_wait, self._queries.longest_wait)
        question = Question("FROM dp_tables()", None, {}, self._settings.timeout_seconds)
        query = self._queries.recent(analyst, question, _SAME_SECONDS) or self._begun(analyst, question)
        return await self._answered(query, form, wait, request)

    async def _look(self, request: Request) -> Response:
        query = self._own(request)
        await _shown(query, wait_of(request, 0.0, self._queries.longest_wait))
        return _state(query)

    async def _cancel(self, request: Request) -> Response:
        query = self._own(request)
        if not self._queries.cancel(query):
            raise Problem(409, RemoteError(f"the query is {query.state} and cannot be cancelled"))
        return _state(query)

    async def _fetch(self, request: Request) -> Response:
        named = request.path_params.get("form")
        query = self._own(request)
        form = format_asked(request) if named is None else format_named(named)
        wait = wait_of(request, _WAIT_SECONDS, self._queries.longest_wait)
        return await self._answered(query, form, wait, request)

    async def _ask_by_get(self, request: Request) -> Response:
        analyst = self._who(request)
        form = format_named(request.path_params["form"])
        wait = wait_of(request, self._queries.longest_wait, self._queries.longest_wait)
        question = question_of_url(request.query_params, self._settings)
        query = self._queries.recent(analyst, question, _SAME_SECONDS)
        if query is None:
            if request.method == "HEAD":
                # stock DuckDB then asks for the first bytes, by GET
                raise Problem(405, RemoteError("a HEAD asks nothing; GET does"), {"Allow": "GET"})
            query = self._begun(analyst, question)
        return await self._answered(query, form, wait, request)

    def _own(self, request: Request) -> Query:
        query = self._queries.find(self._who(request), request.path_params["query_id"])
        if query is None:
            raise not_found(
                "there is no such query of yours, or it is too long ago; asking the same again pays nothing twice"
            )
        return query

    async def _answered(self, query: Query, form: str, wait: float, request: Request) -> Response:
        await _shown(query, wait)
        match query.outcome:
            case None:
                return JSONResponse(
                    {"id": query.query_id, "state": query.state},
                    202,
                    {
                        "Location": f"/v1/queries/{query.query_id}",
                        "Retry-After": str(self._queries.seconds_to_next(query)),
                    },
                )
            case Result() as result:
                return await answer_reply(query, result, form, request)
            case error if query.state == "cancelled":
                raise Problem(410, error)
            case error:
                raise problem_of(error)


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
            _health_route(self._health),
            Described("GET", "/openapi.json", self._openapi, "This description.", said(200), secured=False),
            Described(
                "GET",
                "/metrics",
                self._metrics_text,
                "Counters and times in Prometheus' format.",
                said(200, 401, 500),
                produces=("text/plain",),
            ),
            Described(
                "GET",
                "/v1/queries",
                self._progress,
                "Questions of all analysts: states, true seconds, rows.",
                said(200, 401, 500),
            ),
            *(
                Described(
                    "GET",
                    f"/v1/{name}",
                    self._books(name),
                    f"The books: {text}.",
                    said(200, 401, 406, 500, 503),
                    produces=_FORMS,
                )
                for name, text in _BOOKS.items()
            ),
        )

    async def _health(self, _: Request) -> Response:
        stopping = self._queries.is_stopping
        return JSONResponse({"status": "stopping" if stopping else "ok"}, 503 if stopping else 200)

    async def _openapi(self, _: Request) -> Response:
        return JSONResponse(self._description)

    async def _metrics_text(self, request: Request) -> Response:
        require_holder(request, self._tokens)
        left, rows = await asyncio.to_thread(self._gauges)
        return Response(self._metrics.text(self._queries.all(), left, rows), media_type=CONTENT_TYPE)

    async def _progress(self, request: Request) -> Response:
        require_holder(request, self._tokens)
        return JSONResponse([self._shown(query) for query in self._queries.all()])

    def _books(self, name: str) -> Callable[[Request], Awaitable[Response]]:
        async def handle(request: Request) -> Response:
            require_holder(request, self._tokens)
            form = format_asked(request)
            content = await asyncio.to_thread(lambda: encode(self._session.sql(f"FROM dp_{name}()"), form))
            return Response(content, media_type=FORMATS[form])

        return handle

    def _gauges(self) -> tuple[list[tuple[str, float]], list[tuple[str, int]]]:
        """What the units have left, and about how many rows the declared tables have."""
        budgets = self._session.sql("FROM dp_budget()").arrow().select(["unit", "rho_left"]).to_pylist()
        declared = {name for kind, name, *_ in self._session.sql("FROM dp_policy()").fetchall() if kind in _PROTECTED}
        with contextlib.closing(self._session.connection.cursor()) as cursor:
            sizes = cursor.execute(
                "SELECT schema_name || '.' || table_name, estimated_size FROM duckdb_tables() WHERE NOT internal"
            ).fetchall()
        return (
            [(row["unit"], row["rho_left"]) for row in budgets if row["rho_left"] is not None],
            [(name, size) for name, size in sizes if name in declared],
        )

    def _shown(self, query: Query) -> dict[str, Any]:
        now = self._queries.now()
        began = query.work.ended_at if query.work.began_at is None else query.work.began_at
        ended = now if query.work.ended_at is None else query.work.ended_at
        waited = (now if began is None else began) - query.asked_at
        return {
            "id": query.query_id,
            "analyst": query.analyst,
            "state": progress_of(query) if query.outcome is None else query.state,
            "seconds_waited": round(waited, 6),
            "seconds_worked": None if query.work.began_at is None else round(ended - query.work.began_at, 6),
            "rows": len(query.outcome) if isinstance(query.outcome, Result) else None,
            "error": None if query.outcome is None else query.work.error,
        }


async def _shown(query: Query, wait: float) -> None:
    if wait and not query.shown.is_set():
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(query.shown.wait(), wait)


def _state(query: Query) -> Response:
    content: dict[str, Any] = {"id": query.query_id, "state": query.state}
    if isinstance(query.outcome, Result):
        receipt = query.outcome.receipt
        content |= {
            "rows": len(query.outcome),
            "columns": query.outcome.columns,
            "receipt": to_json(receipt),
            "missing": [*receipt.missing] if receipt else [],
            "kept": [*receipt.kept] if receipt else [],
            "results": [f"/v1/queries/{query.query_id}/result.{form}" for form in FORMATS],
        }
    elif query.outcome is not None:
        content["problem"] = problem_of(query.outcome).facts
    return JSONResponse(content)
