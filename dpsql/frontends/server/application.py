"""From a table of described routes to an ASGI application: each request is checked, answered, counted and logged.

The log has method, route, status and analyst: no statement, literal, query string, body or token.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from dpsql.errors import DpsqlError, EngineError, RemoteError
from dpsql.frontends.server.problems import Problem, bad_request, not_found, problem_of

logger = logging.getLogger("dpsql.server")


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


Count = Callable[[str, str, int], None]


def application(routes: Sequence[Described], count: Count) -> Starlette:
    """The application; ``count`` gets method, route and status of each request."""
    found = Starlette(
        routes=[Route(one.path, _endpoint(one, count), methods=[one.method]) for one in routes],
        exception_handlers={HTTPException: _unrouted(count)},
        middleware=[Middleware(_OneLength)],
    )
    # to an address that the Host header names, and by http where a proxy speaks TLS: a token would follow
    found.router.redirect_slashes = False
    return found


class _OneLength:
    """Refuses a body of two lengths: a proxy may believe the other one, and give its rest to the next reader."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer: ASGIApp = self._app
        if {b"content-length", b"transfer-encoding"} <= {name for name, _ in scope["headers"]}:
            problem = bad_request("the request says twice how long it is")
            answer = Problem(problem.status, problem.error, {"Connection": "close"}).response()
        await answer(scope, receive, send)


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
        analyst = getattr(request.state, "analyst", "-")
        logger.info("%s %s %d %s", request.method, route.path, response.status_code, analyst)
        count(request.method, route.path, response.status_code)
        return response

    return endpoint


def _unrouted(count: Count) -> Callable[[Request, Exception], Response]:
    def handle(_: Request, error: Exception) -> Response:
        status = error.status_code if isinstance(error, HTTPException) else 500
        headers = dict(error.headers or {}) if isinstance(error, HTTPException) else {}
        # a method is any word that a stranger sends; each would be a counter of its own
        count("any", "unknown", status)
        if status == 405:
            return Problem(405, RemoteError("this address does not take that method"), headers).response()
        return not_found("there is nothing at this address; /openapi.json lists what there is").response()

    return handle
