"""Refusals over HTTP: which status an error has, and its body (RFC 9457, with type and attributes of the error)."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from starlette.responses import JSONResponse

from dpsql.errors import (
    AccessError,
    BudgetError,
    CalibrationError,
    DpsqlError,
    EngineError,
    EntropyError,
    ParseError,
    PolicyError,
    QueryError,
    ReleaseError,
    RemoteError,
    StateError,
)
from dpsql.remote.wire import PROBLEM, error_to_json

_STATUS: tuple[tuple[type[DpsqlError], int], ...] = (
    (ParseError, 400),
    (QueryError, 422),
    (PolicyError, 422),
    (CalibrationError, 422),
    (AccessError, 403),
    (BudgetError, 409),
    (ReleaseError, 409),
    # no answer by the deadline, and none will come: for a 5xx, and for 408, clients ask again by themselves
    (EngineError, 410),
    (StateError, 503),
    (EntropyError, 503),
    (RemoteError, 503),
    (DpsqlError, 500),
)
OF_AN_ANSWER = tuple(sorted({status for _, status in _STATUS} - {500}))
"""Every status that an error of an answer may have; 503 where the server is stopping."""


class Problem(Exception):  # noqa: N818 — the name of RFC 9457
    """Ends a request with this status; ``error`` is what the client raises."""

    def __init__(self, status: int, error: DpsqlError, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(status)
        self.status = status
        self.error = error
        self.headers = dict(headers or {})

    def response(self) -> JSONResponse:
        """The body says what an error of this package says, and nothing of the server."""
        body: dict[str, Any] = {
            "type": "about:blank",
            "title": HTTPStatus(self.status).phrase,
            "status": self.status,
            **error_to_json(self.error),
        }
        return JSONResponse(body, self.status, self.headers, media_type=PROBLEM)


def problem_of(error: DpsqlError) -> Problem:
    """An error of an answer."""
    return Problem(next(status for kind, status in _STATUS if isinstance(error, kind)), error)


def bad_request(message: str) -> Problem:
    """What was sent is no question."""
    return Problem(400, ParseError(message))


def busy(message: str) -> Problem:
    """There is no place in the queue."""
    return Problem(429, RemoteError(message), {"Retry-After": "1"})


def unauthorised() -> Problem:
    """No token, or an unknown one."""
    return Problem(401, AccessError("the server does not know this token"), {"WWW-Authenticate": "Bearer"})


def not_found(message: str) -> Problem:
    """There is nothing there for this reader."""
    return Problem(404, RemoteError(message))
