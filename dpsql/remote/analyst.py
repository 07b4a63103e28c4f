"""RemoteAnalyst: ``sql`` as on a handle in the curator's process, answered by a server."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

from dpsql.errors import ParseError, PolicyError, RemoteError
from dpsql.remote.transport import Reply, Transport
from dpsql.remote.wire import ARROW, JSON, error_of, result_of, to_json
from dpsql.session import Result

_WAIT_SECONDS = 25.0
"""How long the server is asked to hold back an answer that is not there yet; proxies cut what takes a minute."""
_SILENCE_SECONDS = 30.0
_BUSY_SECONDS = 300.0
"""How long a question waits for its place in the server's queue."""

_FIRST_PAUSE_SECONDS = 0.05


class RemoteAnalyst:
    """An analyst's session with a server: private SELECT, dp_query, dp_explain, dp_budget and their own dp_releases.

    Threads may share it. It is a context manager, and holds no connection between questions.

    Attributes:
        name: of the analyst whom the token belongs to.

    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        reply = transport.request("GET", "/v1/me", accept=JSON, seconds=_SILENCE_SECONDS)
        if reply.status != 200:
            raise error_of(reply.json())
        self.name = str(reply.json().get("analyst", ""))

    def sql(
        self,
        text: str,
        params: Sequence[object] | Mapping[str, object] | None = None,
        *,
        timeout_seconds: float | None = None,
        **options: object,
    ) -> Result:
        """Run one statement, as ``Analyst.sql`` does; the result is here whole when this returns.

        Args:
            text: one SQL statement.
            params: values for ``?`` (a list) or ``$name`` (a mapping).
            timeout_seconds: limit on the time until the answer, from when the server begins; it rounds up to its own
                times, and has a limit itself. A charge stays when it runs out.
            options: as in ``OPTIONS (…)``.

        Raises:
            DpsqlError: as in the curator's process, with place and hint; RemoteError where the server cannot be reached
                or is too busy.

        """
        if not isinstance(text, str):
            raise ParseError("a statement is text")
        question = _question(text, params, options, timeout_seconds)
        reply = self._ask(question)
        query_id = str(reply.json().get("id", ""))
        try:
            return self._result(query_id)
        except KeyboardInterrupt:
            with contextlib.suppress(RemoteError):
                self._transport.request("DELETE", f"/v1/queries/{query_id}", accept=JSON, seconds=_SILENCE_SECONDS)
            raise

    def _ask(self, question: dict[str, object]) -> Reply:
        """Have the question taken; a full queue is asked again, at growing intervals up to what the server says."""
        until = time.monotonic() + _BUSY_SECONDS
        pause = _FIRST_PAUSE_SECONDS
        while True:
            reply = self._transport.request("POST", "/v1/queries", accept=JSON, body=question, seconds=_SILENCE_SECONDS)
            if reply.status == 202:
                return reply
            if reply.status != 429 or time.monotonic() > until:
                raise error_of(reply.json())
            time.sleep(pause)
            pause = min(2 * pause, _seconds(reply.headers.get("retry-after")))

    def _result(self, query_id: str) -> Result:
        path = f"/v1/queries/{query_id}/result.arrow?wait={_WAIT_SECONDS:g}"
        while True:
            reply = self._transport.request("GET", path, accept=ARROW, seconds=_WAIT_SECONDS + _SILENCE_SECONDS)
            if reply.status == 200:
                return result_of(reply.body)
            if reply.status != 202:
                raise error_of(reply.json())

    def close(self) -> None:
        """Nothing is open; here so that it can be used as a session is."""

    def __enter__(self) -> RemoteAnalyst:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"RemoteAnalyst({self.name!r})"


def _question(
    text: str,
    params: Sequence[object] | Mapping[str, object] | None,
    options: Mapping[str, object],
    timeout_seconds: float | None,
) -> dict[str, object]:
    try:
        question = {"sql": text, "params": to_json(params), "options": to_json(options)}
    except TypeError as error:
        raise PolicyError(str(error)) from None
    if timeout_seconds is not None:
        if not (isinstance(timeout_seconds, int | float) and 0 < timeout_seconds < math.inf):
            raise PolicyError("timeout_seconds takes a positive number")
        question["timeout_seconds"] = timeout_seconds
    return question


def _seconds(retry_after: str | None) -> float:
    return min(float(retry_after), 30.0) if retry_after and retry_after.isdecimal() else 1.0


def connect(url: str, *, token: str, ca_file: str | Path | None = None, plain_http: bool = False) -> RemoteAnalyst:
    """Open an analyst's session with a server of ``dpsql serve``.

    Args:
        url: address of the server, as in ``https://stats.example:8642``.
        token: what ``dpsql token`` printed for this analyst.
        ca_file: certificates to trust in place of the system's, for a server with one of its own.
        plain_http: allow http to another machine, where something else protects the connection.

    Raises:
        AccessError: the token is not known there.
        RemoteError: the address makes no sense, or no server answers.

    """
    path = None if ca_file is None else Path(ca_file)
    return RemoteAnalyst(Transport(url, token, ca_file=path, plain_http=plain_http))
