"""RemoteAnalyst: ``sql`` as on a handle in the curator's process, answered by a server over HTTP.

Its transport knows one address and one token, and sends the token nowhere else.
"""

from __future__ import annotations

import contextlib
import http.client
import ipaddress
import json
import math
import ssl
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from dpsql.errors import ParseError, PolicyError, RemoteError
from dpsql.remote.wire import ARROW, JSON, error_of, result_of, to_json
from dpsql.session import Result

_CONNECT_SECONDS = 10.0
_WAIT_SECONDS = 25.0
"""How long the server is asked to hold back an answer that is not there yet; proxies cut what takes a minute."""
_SILENCE_SECONDS = 30.0
_BUSY_SECONDS = 300.0
"""How long a question waits for its place in the server's queue."""

_FIRST_PAUSE_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class Reply:
    """Status, headers in small letters, and body."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> dict[str, Any]:
        """The body as a JSON object.

        Raises:
            RemoteError: it is none.

        """
        with contextlib.suppress(ValueError, RecursionError):
            content = json.loads(self.body)
            if isinstance(content, dict):
                return content
        raise RemoteError(f"what answered (HTTP {self.status}) is not a server of dpsql serve")


class Transport:
    """Requests to one server; each has a connection of its own, so threads share it."""

    def __init__(self, url: str, token: str, *, ca_file: str | Path | None, plain_http: bool) -> None:
        self._host, self._port, self._prefix, secure = _parts(url)
        if not token or not token.isascii() or not token.isprintable():
            raise RemoteError("a token is the line that `dpsql token` printed")
        if not secure and not plain_http and not is_loopback(self._host):
            raise RemoteError(
                f"http would send the token to {self._host} for everybody on the way to read; use https, or "
                "plain_http=True where something else protects the connection"
            )
        self._token = token
        try:
            # an empty name is the folder that it is read in, and not the system's certificates
            trusted = None if ca_file is None else Path(ca_file)
            self._tls = ssl.create_default_context(cafile=trusted) if secure else None
        except OSError:
            raise RemoteError(f"ca_file {str(ca_file)!r} is no file of certificates that can be read") from None

    def request(
        self, method: str, path: str, *, accept: str, body: object = None, seconds: float | None = None
    ) -> Reply:
        """Ask and read the whole answer.

        Args:
            method: of HTTP.
            path: below the server's address.
            accept: media types wanted.
            body: sent as JSON.
            seconds: how long the server may keep silent.

        Raises:
            RemoteError: there is no connection, or it broke.

        """
        content = None if body is None else json.dumps(body, allow_nan=False).encode()
        headers = {"Authorization": f"Bearer {self._token}", "Accept": accept}
        if content is not None:
            headers["Content-Type"] = JSON
        connection = (
            http.client.HTTPConnection(self._host, self._port, timeout=_CONNECT_SECONDS)
            if self._tls is None
            else http.client.HTTPSConnection(self._host, self._port, timeout=_CONNECT_SECONDS, context=self._tls)
        )
        try:
            connection.connect()
            connection.sock.settimeout(seconds)
            connection.request(method, self._prefix + path, content, headers)
            reply = connection.getresponse()
            return Reply(reply.status, {name.lower(): value for name, value in reply.getheaders()}, reply.read())
        except (OSError, http.client.HTTPException, UnicodeError) as error:
            why = error.strerror if isinstance(error, OSError) and error.strerror else type(error).__name__
            raise RemoteError(
                f"no answer from {self._host}:{self._port} ({why}); asking the same again pays nothing twice"
            ) from None
        finally:
            connection.close()


def is_loopback(host: str) -> bool:
    """Whether an address never leaves the machine."""
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host.lower() == "localhost"


def _parts(url: str) -> tuple[str, int, str, bool]:
    """Host, port, path and whether it is https."""
    with contextlib.suppress(ValueError):
        parts = urlsplit(url)
        host, port, secure = parts.hostname, parts.port, parts.scheme == "https"
        further = parts.query or parts.fragment or parts.username or parts.password
        if host and not further and parts.scheme in ("http", "https"):
            return host, port or (443 if secure else 80), parts.path.rstrip("/"), secure
    raise RemoteError("a server's address looks like https://stats.example:8642")


class RemoteAnalyst(contextlib.AbstractContextManager["RemoteAnalyst"]):
    """An analyst's session with a server: private SELECT, SHOW TABLES, plans, budgets and their own releases.

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
        query_id = self._ask(_question(text, params, options, timeout_seconds))
        try:
            return self._result(query_id)
        except KeyboardInterrupt:
            with contextlib.suppress(RemoteError):
                self._transport.request("DELETE", f"/v1/queries/{query_id}", accept=JSON, seconds=_SILENCE_SECONDS)
            raise

    execute = sql

    def _ask(self, question: dict[str, object]) -> str:
        """Have the question taken, and return its id; a full queue is asked again, at growing intervals.

        The intervals grow up to what the server says.
        """
        until = time.monotonic() + _BUSY_SECONDS
        pause = _FIRST_PAUSE_SECONDS
        while True:
            reply = self._transport.request("POST", "/v1/queries", accept=JSON, body=question, seconds=_SILENCE_SECONDS)
            if reply.status == 202:
                return str(reply.json().get("id", ""))
            if reply.status != 429 or time.monotonic() > until:
                raise error_of(reply.json())
            time.sleep(pause)
            after = reply.headers.get("retry-after", "")
            pause = min(2 * pause, float(after) if after.isdecimal() else 1.0, 30.0)

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

    def __exit__(self, *_: object) -> None:
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
    return RemoteAnalyst(Transport(url, token, ca_file=ca_file, plain_http=plain_http))
