"""From a table of described routes to an ASGI application, and to its OpenAPI description; and what is counted.

Each request is checked, answered, counted and logged. The log has method, route, status and analyst: no statement,
literal, query string, body or token. Metrics come in Prometheus' text format.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

import dpsql
from dpsql.access.queries import Query
from dpsql.errors import DpsqlError, EngineError, ParseError, RemoteError
from dpsql.frontends.server.messages import Problem, not_found, problem_of
from dpsql.remote.wire import PROBLEM
from dpsql.session import Result

logger = logging.getLogger("dpsql.server")

CONTENT_TYPE = "text/plain; version=1.0.0; charset=utf-8"
_SECONDS = (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300)
_PROBLEM = {
    "type": "object",
    "required": ["type", "title", "status", "error", "detail"],
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "error": {"type": "string", "description": "the type of the error, as in Python's dpsql.errors"},
        "detail": {"type": "string", "description": "what is wrong, and what to write instead"},
        "span": {"type": ["object", "null"], "description": "its place in the statement"},
        "hint": {"type": "string"},
        "refusals": {"type": "array", "items": {"type": "object"}, "description": "every reason, with its place"},
        "schema": {"type": "string", "description": "version of the members reasons and amounts: dpsql-answer-1"},
        "reasons": {
            "type": "array",
            "items": {"type": "object"},
            "description": "their codes, places and cures",
        },
        "amounts": {"type": "object", "description": "numbers of the error"},
        "unit": {"type": "string"},
        "analyst": {"type": "string", "description": "whose part of the budget of the unit is used up"},
        "requested_rho": {"type": "number"},
        "remaining_rho": {"type": ["number", "null"], "description": "null if it is not for this analyst"},
        "requested_delta": {"type": "number"},
        "remaining_delta": {"type": ["number", "null"]},
        "requested_epsilon": {"type": "number"},
        "remaining_epsilon": {"type": "number", "description": "the most that the same statement may still ask for"},
        "limit_rho": {"type": "number", "description": "the most that this analyst may be shown"},
    },
}


@dataclass(frozen=True, slots=True)
class Described:
    """One route with everything that is said of it.

    Attributes:
        method, path: of HTTP; a GET answers HEAD as well.
        handle: what answers.
        summary: one sentence.
        statuses: every status that it may have, and what that means.
        parameters: of the query string, by name.
        produces: media types of a 200.
        body: JSON schema of the request.
        secured: whether it takes a token.

    """

    method: str
    path: str
    handle: Callable[[Request], Awaitable[Response]]
    summary: str
    statuses: Mapping[int, str]
    parameters: Mapping[str, str] = field(default_factory=dict)
    produces: tuple[str, ...] = ("application/json",)
    body: Mapping[str, Any] | None = None
    secured: bool = True


def said(*statuses: int, **known: str) -> Mapping[int, str]:
    """Statuses with their meaning; HTTP's own word where none is given, as in ``said(401, _200="the answer")``."""
    named = {int(name[1:]): text for name, text in known.items()}
    return dict(sorted({**{status: HTTPStatus(status).phrase for status in statuses}, **named}.items()))


Count = Callable[[str, str, int], None]


def application(routes: Sequence[Described], count: Count) -> Starlette:
    """The application; ``count`` gets method, route and status of each request."""

    def unrouted(_: Request, error: Any) -> Response:
        # a method is any word that a stranger sends; each would be a counter of its own
        count("any", "unknown", error.status_code)
        if error.status_code == 405:
            return Problem(405, RemoteError("this address does not take that method"), error.headers).response()
        return not_found("there is nothing at this address; /openapi.json lists what there is").response()

    found = Starlette(
        routes=[Route(one.path, _endpoint(one, count), methods=[one.method]) for one in routes],
        exception_handlers={HTTPException: unrouted},
        middleware=[Middleware(_of_one_length)],
    )
    # to an address that the Host header names, and by http where a proxy speaks TLS: a token would follow
    found.router.redirect_slashes = False
    return found


def _of_one_length(app: ASGIApp) -> ASGIApp:
    """Refuse a body of two lengths: a proxy may believe the other one, and give its rest to the next reader."""

    async def checked(scope: Scope, receive: Receive, send: Send) -> None:
        answer = app
        if {b"content-length", b"transfer-encoding"} <= {name for name, _ in scope["headers"]}:
            answer = Problem(
                400, ParseError("the request says twice how long it is"), {"Connection": "close"}
            ).response()
        await answer(scope, receive, send)

    return checked


def _endpoint(route: Described, count: Count) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        try:
            response = await route.handle(request)
        except Problem as problem:
            response = problem.response()
        except DpsqlError as error:
            response = problem_of(error).response()
        except Exception as error:
            # its text may quote what was asked or found
            logger.error("%s %s failed with %s", request.method, route.path, type(error).__name__)
            response = Problem(500, EngineError("the server failed")).response()
        logger.info(
            "%s %s %d %s", request.method, route.path, response.status_code, getattr(request.state, "analyst", "-")
        )
        count(request.method, route.path, response.status_code)
        return response

    return endpoint


def description(title: str, routes: Sequence[Described]) -> dict[str, Any]:
    """An OpenAPI 3.1 document."""
    paths: dict[str, Any] = {}
    for route in routes:
        for method in ("GET", "HEAD") if route.method == "GET" else (route.method,):
            paths.setdefault(route.path, {})[method.lower()] = _operation(route, method)
    return {
        "openapi": "3.1.0",
        "info": {"title": title, "version": dpsql.__version__},
        "paths": paths,
        "components": {
            "schemas": {"Problem": _PROBLEM},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(route: Described, method: str) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "summary": route.summary,
        "parameters": [
            *(
                {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
                for name in re.findall(r"{(\w+)}", route.path)
            ),
            *(
                {"name": name, "in": "query", "description": text, "schema": {"type": "string"}}
                for name, text in route.parameters.items()
            ),
        ],
        "responses": {str(status): _response(status, text, route, method) for status, text in route.statuses.items()},
        "security": [{"token": []}] if route.secured else [],
    }
    if route.body is not None:
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": dict(route.body)}}}
    return operation


def _response(status: int, text: str, route: Described, method: str) -> dict[str, Any]:
    if method == "HEAD" or status in (304, 416):
        return {"description": text}
    if status in (200, 206):
        return {"description": text, "content": {kind: {} for kind in route.produces}}
    if status < 400:
        return {"description": text, "content": {"application/json": {}}}
    return {"description": text, "content": {PROBLEM: {"schema": {"$ref": "#/components/schemas/Problem"}}}}


class Metrics:
    """Counters of one server; nothing in them holds a literal, a key or a token."""

    def __init__(self) -> None:
        registry = self._registry = CollectorRegistry()
        self._requests = Counter(
            "dpsql_requests", "Requests of analysts.", ("method", "route", "status"), registry=registry
        )
        self._queries = Counter("dpsql_queries", "Questions that ended.", ("analyst", "outcome"), registry=registry)
        self._seconds = Histogram(
            "dpsql_query_seconds", "Time a worker took, unrounded.", ("analyst",), buckets=_SECONDS, registry=registry
        )
        self._rows = Counter("dpsql_answer_rows", "Rows of the answers shown.", ("analyst",), registry=registry)
        self._rho = Counter("dpsql_charged_rho", "What answers took from the budgets.", ("analyst",), registry=registry)
        self._waiting = Gauge("dpsql_waiting", "Questions without an outcome.", ("state",), registry=registry)
        self._left = Gauge("dpsql_rho_left", "What each unit has left.", ("unit",), registry=registry)
        self._tables = Gauge("dpsql_table_rows", "Rows of each table, as estimated.", ("table",), registry=registry)

    def requested(self, method: str, route: str, status: int) -> None:
        """A request was answered."""
        self._requests.labels(method, route, str(status)).inc()

    def worked(self, analyst: str, seconds: float) -> None:
        """A worker gave a question back, whatever is shown of it, and when."""
        self._seconds.labels(analyst).observe(seconds)

    def ended(self, query: Query) -> None:
        """A question has its outcome, and its turn is over."""
        self._queries.labels(query.analyst, query.state).inc()
        if isinstance(query.outcome, Result):
            self._rows.labels(query.analyst).inc(len(query.outcome))
            if query.outcome.receipt is not None and query.outcome.receipt.amount == "rho":
                self._rho.labels(query.analyst).inc(query.outcome.receipt.charged_rho)

    def text(
        self, queries: Iterable[Query], rho_left: Iterable[tuple[str, float]], rows: Iterable[tuple[str, int]]
    ) -> bytes:
        """Everything, as of now."""
        states = [progress_of(query) for query in queries if query.outcome is None]
        for state in ("queued", "working"):
            self._waiting.labels(state).set(states.count(state))
        for unit, left in rho_left:
            self._left.labels(unit).set(left)
        for table, count in rows:
            self._tables.labels(table).set(count)
        return generate_latest(self._registry)


def progress_of(query: Query) -> str:
    """Whether a question without an outcome waits or is worked on, for the curator alone."""
    return "queued" if query.work.began_at is None else "working"
