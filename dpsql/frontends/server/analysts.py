"""The analysts' routes: ask, look, fetch, cancel. Nothing here knows more than the reader's own questions."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

import dpsql
from dpsql.errors import RemoteError
from dpsql.frontends.server.application import Described
from dpsql.frontends.server.openapi import description
from dpsql.frontends.server.problems import OF_AN_ANSWER, Problem, not_found, problem_of, unauthorised
from dpsql.frontends.server.queries import Queries
from dpsql.frontends.server.query import Query
from dpsql.frontends.server.replies import FORMATS, answer_reply, format_asked, format_named
from dpsql.frontends.server.requests import holder_of, question_of_url, read_question, wait_of
from dpsql.frontends.server.settings import Settings
from dpsql.frontends.server.tokens import Tokens
from dpsql.remote.wire import error_to_json, to_json
from dpsql.session import Result

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
        "options": {"type": "object", "description": "as in OPTIONS (…)"},
        "timeout_seconds": {"type": "number", "description": "deadline of the answer, rounded up to a moment"},
    },
}


def said(*statuses: int, **known: str) -> Mapping[int, str]:
    """Statuses with their meaning; HTTP's own word where none is given, as in ``said(401, _200="the answer")``."""
    named = {int(name[1:]): text for name, text in known.items()}
    return dict(sorted({**{status: HTTPStatus(status).phrase for status in statuses}, **named}.items()))


class AnalystRoutes:
    """What analysts can ask of the server."""

    def __init__(self, queries: Queries, tokens: Tokens, settings: Settings) -> None:
        self._queries = queries
        self._tokens = tokens
        self._settings = settings
        self.routes = self._described()
        self._description = description("dpsql: private answers", self.routes)

    def _described(self) -> tuple[Described, ...]:
        fetched = said(
            401, 404, *OF_AN_ANSWER, 416,
            _200="the answer", _206="the range of it", _202="there is no answer yet; Retry-After says when to look",
            _410="there is no answer and will be none: the deadline is past, or the query was cancelled",
            _500="the answer cannot be written in this form",
        )  # fmt: skip
        routes = [
            Described(
                "GET", "/health", self._health, "Whether the server takes questions.",
                said(_200="it does", _503="it is stopping"), secured=False,
            ),
            Described("GET", "/openapi.json", self._openapi, "This description.", said(200), secured=False),
            Described("GET", "/v1/me", self._me, "Whose token it is.", said(200, 401)),
            Described(
                "POST", "/v1/queries", self._ask, "Ask; what is charged is charged once, however often it is asked.",
                said(
                    400, 401, 403, 406, 408, 409, 413, 415, 422, 429, 500, 503,
                    _200="the answer, where it was there within wait", _202="the question was taken",
                    _410="the deadline passed within wait without an answer, or the query was cancelled",
                ),
                parameters=_WAIT, produces=tuple(FORMATS.values()), body=_BODY,
            ),
            Described(
                "GET", "/v1/queries/{query_id}", self._look, "What became of a question, with the receipt.",
                said(400, 401, 404, 500, _200="its state"), parameters=_WAIT,
            ),
            Described(
                "DELETE", "/v1/queries/{query_id}", self._cancel, "Cancel a question; a charge stays.",
                said(401, 404, 500, _200="its state", _409="it has an outcome already"),
            ),
            Described(
                "GET", "/v1/queries/{query_id}/result", self._fetch, "The answer in the form that Accept names.",
                {**fetched, **said(406)}, parameters=_WAIT, produces=tuple(FORMATS.values()),
            ),
            Described(
                "GET", "/v1/queries/{query_id}/result.{form}", self._fetch, "The answer as json, arrow or parquet.",
                fetched, parameters=_WAIT, produces=tuple(FORMATS.values()),
            ),
        ]  # fmt: skip
        if self._settings.ask_by_get:
            routes.append(Described(
                "GET", "/v1/result.{form}", self._ask_by_get,
                "Ask by an address, and fetch; HEAD never asks, and the same address again is the same answer.",
                {**fetched, **said(413, 429, _405="HEAD of what was not asked yet; GET asks")},
                parameters={"sql": "one statement", "rho": "and other options by name", **_WAIT},
                produces=tuple(FORMATS.values()),
            ))  # fmt: skip
        return tuple(routes)

    def _who(self, request: Request) -> str:
        analyst = holder_of(request, self._tokens)
        if analyst is None:
            raise unauthorised()
        request.state.analyst = analyst
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
        query = self._queries.ask(analyst, await read_question(request, self._settings))
        if not wait:
            return self._taken(query)
        return await self._answered(query, form, wait, request)

    def _taken(self, query: Query) -> Response:
        headers = {
            "Location": f"/v1/queries/{query.query_id}",
            "Retry-After": str(self._queries.seconds_to_next(query)),
        }
        return JSONResponse({"id": query.query_id, "state": query.state}, 202, headers)

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
            query = self._queries.ask(analyst, question)
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
                return self._taken(query)
            case Result() as result:
                return await answer_reply(query, result, form, request)
            case error if query.state == "cancelled":
                raise Problem(410, error)
            case error:
                raise problem_of(error)


async def _shown(query: Query, wait: float) -> None:
    if wait and not query.shown.is_set():
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(query.shown.wait(), wait)


def _state(query: Query) -> Response:
    content: dict[str, Any] = {"id": query.query_id, "state": query.state}
    match query.outcome:
        case None:
            pass
        case Result() as result:
            address = f"/v1/queries/{query.query_id}/result"
            content |= {
                "rows": len(result),
                "columns": result.columns,
                "receipt": to_json(result.receipt),
                "results": [f"{address}.{form}" for form in FORMATS],
            }
        case error:
            content["problem"] = error_to_json(error)
    return JSONResponse(content)
