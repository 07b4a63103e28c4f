"""What a request asks: the statement with its parameters and options, within the limits of the server."""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from starlette.datastructures import QueryParams
from starlette.requests import ClientDisconnect, Request

from dpsql.errors import RemoteError
from dpsql.frontends.server.problems import Problem, bad_request
from dpsql.frontends.server.settings import Settings
from dpsql.frontends.server.tokens import Tokens
from dpsql.remote.wire import scalar_of

_MEMBERS = {"sql", "params", "options", "timeout_seconds"}
_NOT_OPTIONS = {"self", "text", "params", "timeout_seconds"}


@dataclass(frozen=True, slots=True)
class Question:
    """One statement as ``Analyst.sql`` takes it; its text shows nothing, since it may hold literals."""

    sql: str
    params: Any
    options: Mapping[str, Any]
    timeout_seconds: float

    @property
    def identity(self) -> str:
        """The same for the same question."""
        content = json.dumps([self.sql, repr(self.params), sorted((name, repr(v)) for name, v in self.options.items())])
        return hashlib.sha256(content.encode("utf-8", "surrogatepass")).hexdigest()

    def __repr__(self) -> str:
        return "Question(…)"


def token_of(request: Request) -> str:
    """The bearer token of a request, empty where it has none."""
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def holder_of(request: Request, tokens: Tokens) -> str | None:
    """Who asks; None for an unknown token."""
    return tokens.holder(token_of(request))


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
    options = {} if content.get("options") is None else content["options"]
    if not isinstance(options, dict):
        raise bad_request('options are an object, as in {"rho": 0.05}')
    return _question(
        content.get("sql"),
        _params(content.get("params")),
        {name: _option(name, value) for name, value in options.items()},
        content.get("timeout_seconds"),
        settings,
    )


def question_of_url(query: QueryParams, settings: Settings) -> Question:
    """The question in an address: ``sql``, and options by name; a value is JSON where it can be read as that.

    Raises:
        Problem: it is none (400).

    """
    given = {name: value for name, value in query.items() if name not in ("sql", "wait")}
    if len(set(query)) != len(query.multi_items()):
        raise bad_request("an option stands twice in the address")
    return _question(
        query.get("sql"), None, {name: _option(name, _json_or_text(value)) for name, value in given.items()},
        None, settings,
    )  # fmt: skip


def wait_of(request: Request, default: float, most: float) -> float:
    """How long to hold back a reply that is not there yet, in seconds.

    Raises:
        Problem: it is no number (400).

    """
    try:
        wait = float(request.query_params.get("wait", default))
    except ValueError:
        wait = math.nan
    if not wait >= 0:
        raise bad_request("wait takes a number of seconds")
    return min(wait, most)


async def _body(request: Request, most: int) -> bytes:
    parts, size = [], 0
    try:
        async for part in request.stream():
            size += len(part)
            if size > most:
                raise Problem(413, RemoteError(f"a question has at most {most} bytes"))
            parts.append(part)
    except ClientDisconnect:
        raise bad_request("the question ended early") from None
    return b"".join(parts)


def _question(
    sql: object, params: Any, options: Mapping[str, object], timeout_seconds: object, settings: Settings
) -> Question:
    if not isinstance(sql, str) or not sql.strip():
        raise bad_request("a question needs its statement, sql")
    if len(sql) > settings.statement_length:
        raise Problem(413, RemoteError(f"a statement has at most {settings.statement_length} characters"))
    most = settings.timeout_seconds
    if timeout_seconds is None:
        timeout_seconds = most
    if isinstance(timeout_seconds, bool) or not isinstance(timeout_seconds, int | float) or not timeout_seconds > 0:
        raise bad_request("timeout_seconds takes a positive number")
    return Question(sql, params, options, float(min(timeout_seconds, most)))


def _params(value: object) -> Any:
    try:
        match value:
            case None:
                return None
            case list():
                return [scalar_of(one) for one in value]
            case dict():
                return {name: scalar_of(one) for name, one in value.items()}
    except ValueError:
        pass
    raise bad_request("params are a list of values, or an object of values by name")


def _option(name: str, value: object) -> object:
    if not name.isidentifier() or name in _NOT_OPTIONS:
        raise bad_request("an option has a name, as in rho or max_groups_contributed")
    try:
        return [scalar_of(one) for one in value] if isinstance(value, list) else scalar_of(value)
    except ValueError:
        raise bad_request(f"option {name} takes a value or a list of values") from None


def _json_or_text(text: str) -> object:
    try:
        return json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return text


def _no_constant(name: str) -> NoReturn:
    raise ValueError(name)
