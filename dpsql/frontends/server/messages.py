"""Messages of HTTP: what a request asks, within the limits of the server, and answers and refusals as replies.

A refusal is a problem (RFC 9457) with type and attributes of its error. An answer comes in the form that Accept or the
address asks for, whole or a range of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import re
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, NoReturn

from starlette.datastructures import QueryParams
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from dpsql.access.queries import Query, Question
from dpsql.access.tokens import Tokens
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
from dpsql.frontends.outputs import encoded
from dpsql.frontends.server.settings import Settings
from dpsql.remote.documents import refusal_document
from dpsql.remote.wire import ARROW, JSON, PARQUET, PROBLEM, error_to_json, scalar_of, to_arrow
from dpsql.session import Result

FORMATS: Mapping[str, str] = {"json": JSON, "arrow": ARROW, "parquet": PARQUET}
"""Names at the end of an address, and the media types that they mean; the first is the default."""

_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})")
_MEMBERS = {"sql", "params", "options", "timeout_seconds"}
_NOT_OPTIONS = {"self", "text", "params", "timeout_seconds"}

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
        kind = {"type": "about:blank", "title": HTTPStatus(self.status).phrase, "status": self.status}
        return JSONResponse({**kind, **self.facts}, self.status, self.headers, media_type=PROBLEM)

    @property
    def facts(self) -> dict[str, Any]:
        """The facts of the error as Python's client reads them, with the members of its document."""
        return {**error_to_json(self.error), **refusal_document(self.error)}


def problem_of(error: DpsqlError) -> Problem:
    """An error of an answer."""
    return Problem(next(status for kind, status in _STATUS if isinstance(error, kind)), error)


def bad_request(message: str) -> Problem:
    """What was sent is no question."""
    return Problem(400, ParseError(message))


def busy(error: DpsqlError) -> Problem:
    """There is no place in the queue."""
    return Problem(429, error, {"Retry-After": "1"})


def not_found(message: str) -> Problem:
    """There is nothing there for this reader."""
    return Problem(404, RemoteError(message))


def require_holder(request: Request, tokens: Tokens) -> str:
    """Whose bearer token a request has.

    Raises:
        Problem: it has none, or an unknown one (401).

    """
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    holder = tokens.holder(token.strip() if scheme.lower() == "bearer" else "")
    if holder is None:
        raise Problem(401, AccessError("the server does not know this token"), {"WWW-Authenticate": "Bearer"})
    return holder


async def read_question(request: Request, settings: Settings) -> Question:
    """The question in the body of a request.

    Raises:
        Problem: it is too large (413), too slow (408), not of JSON (415), or no question (400).

    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise Problem(415, RemoteError("a question is sent as application/json"))
    try:
        body = await asyncio.wait_for(_body(request, settings.body_bytes), settings.body_seconds)
    except TimeoutError:
        raise Problem(408, RemoteError("the question took too long to arrive")) from None
    try:
        content = json.loads(body, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        raise bad_request("the question is not JSON") from None
    if not isinstance(content, dict) or not set(content) <= _MEMBERS:
        raise bad_request('a question is {"sql": …, "params": …, "options": {…}, "timeout_seconds": …}')
    return _question(content, settings)


def question_of_url(query: QueryParams, settings: Settings) -> Question:
    """The question in an address: ``sql``, and options by name; a value is JSON where it can be read as that.

    Raises:
        Problem: it is none (400).

    """
    if len(set(query)) != len(query.multi_items()):
        raise bad_request("an option is in the address twice")
    options = {name: _json_or_text(value) for name, value in query.items() if name not in ("sql", "wait")}
    return _question({"sql": query.get("sql"), "options": options}, settings)


def wait_of(request: Request, default: float, most: float) -> float:
    """How long to hold back a reply that is not there yet, in seconds.

    Raises:
        Problem: it is no number (400).

    """
    with contextlib.suppress(ValueError):
        wait = float(request.query_params.get("wait", default))
        if wait >= 0:
            return min(wait, most)
    raise bad_request("wait takes a number of seconds")


async def _body(request: Request, most: int) -> bytes:
    body = bytearray()
    try:
        async for part in request.stream():
            body += part
            if len(body) > most:
                raise Problem(413, RemoteError(f"a question has at most {most} bytes"))
    except ClientDisconnect:
        raise bad_request("the question ended early") from None
    return bytes(body)


def _question(content: Mapping[str, Any], settings: Settings) -> Question:
    options = {} if content.get("options") is None else content["options"]
    if not isinstance(options, dict):
        raise bad_request('options are an object, as in {"rho": 0.05}')
    params = _params(content.get("params"))
    options = {name: _option(name, value) for name, value in options.items()}
    sql, seconds = content.get("sql"), content.get("timeout_seconds")
    if not isinstance(sql, str) or not sql.strip():
        raise bad_request("a question needs its statement, sql")
    if len(sql) > settings.statement_length:
        raise Problem(413, RemoteError(f"a statement has at most {settings.statement_length} characters"))
    seconds = settings.timeout_seconds if seconds is None else seconds
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds > 0:
        raise bad_request("timeout_seconds takes a positive number")
    return Question(sql, params, options, float(min(seconds, settings.timeout_seconds)))


def _params(value: object) -> Any:
    with contextlib.suppress(ValueError):
        match value:
            case None:
                return None
            case list():
                return [scalar_of(one) for one in value]
            case dict():
                return {name: scalar_of(one) for name, one in value.items()}
    raise bad_request("params are a list of values, or an object of values by name")


def _option(name: str, value: object) -> object:
    if not name.isidentifier() or name in _NOT_OPTIONS:
        raise bad_request("an option has a name, as in rho or max_groups_contributed")
    try:
        return _option_value(value)
    except ValueError:
        raise bad_request(f"option {name} takes a value, a list of values, or an object of values by name") from None


def _option_value(value: object) -> object:
    """Return the value of an option: one, a list of values, or values by name.

    Raises:
        ValueError: ``value`` is nothing of the kind.

    """
    if isinstance(value, list):
        return [scalar_of(one) for one in value]
    with contextlib.suppress(ValueError):
        return scalar_of(value)
    if isinstance(value, dict) and value:
        return {name: scalar_of(one) for name, one in value.items()}
    raise ValueError(type(value).__name__)


def _json_or_text(text: str) -> object:
    try:
        return json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return text


def _no_constant(name: str) -> NoReturn:
    raise ValueError(name)


def format_asked(request: Request) -> str:
    """The form that the reader prefers of those that there are.

    Raises:
        Problem: Accept allows none of them (406).

    """
    accepted = request.headers.get("accept", "*/*").lower().split(",")
    # of one weight, what is named first
    for one in sorted(filter(_weight, accepted), key=_weight, reverse=True):
        kind = one.partition(";")[0].strip()
        for name, media_type in FORMATS.items():
            if kind in (media_type, "*/*", f"{media_type.partition('/')[0]}/*"):
                return name
    raise Problem(406, RemoteError(f"answers come as {', '.join(FORMATS.values())}"))


def format_named(name: str) -> str:
    """The form that an address ends with.

    Raises:
        Problem: there is no such form (404).

    """
    if name not in FORMATS:
        raise not_found(f"answers end in {', '.join('.' + one for one in FORMATS)}")
    return name


def _weight(accepted: str) -> float:
    parameters = map(str.strip, accepted.split(";")[1:])
    found = next((one[2:] for one in parameters if one.startswith("q=")), "1")
    return float(found) if re.fullmatch(r"[01](\.\d{0,3})?", found) else 0.0


def encode(result: Result, name: str) -> bytes:
    """The answer in one of ``FORMATS``."""
    return to_arrow(result) if name == "arrow" else encoded(result, name)


async def answer_reply(query: Query, result: Result, name: str, request: Request) -> Response:
    """The answer, or the range of it that is asked for; the bytes of one query never change."""
    if name not in query.encoded:
        # two requests may make the same bytes at a time; the first ones stay, so that ranges fit together
        query.encoded.setdefault(name, await asyncio.to_thread(encode, result, name))
    content = query.encoded[name]
    tag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
    headers = {"Accept-Ranges": "bytes", "ETag": tag, "Cache-Control": "private, no-store"}
    return ranged(content, request.headers.get("range"), headers, FORMATS[name])


def ranged(content: bytes, asked: str | None, headers: Mapping[str, str], media_type: str) -> Response:
    """The bytes, or one range of them (RFC 9110, 14); several ranges, or what is no range, get them all."""
    size, found = len(content), _RANGE.fullmatch((asked or "").strip())
    first, last = found.groups() if found else ("", "")
    if not (first or last) or (first and last and int(last) < int(first)):
        return Response(content, 200, dict(headers), media_type=media_type)
    start = int(first) if first else max(0, size - int(last))
    end = min(int(last), size - 1) if first and last else size - 1
    if start >= size or (not first and not int(last)):
        return Response(b"", 416, {**headers, "Content-Range": f"bytes */{size}"}, media_type=media_type)
    placed = {**headers, "Content-Range": f"bytes {start}-{end}/{size}"}
    return Response(content[start : end + 1], 206, placed, media_type=media_type)
