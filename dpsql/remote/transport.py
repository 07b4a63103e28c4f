"""HTTP to one server: an address, a token, and requests that carry it nowhere else."""

from __future__ import annotations

import http.client
import ipaddress
import json
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from dpsql.errors import RemoteError
from dpsql.remote.wire import JSON


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
        try:
            content = json.loads(self.body)
        except (ValueError, RecursionError):
            content = None
        if not isinstance(content, dict):
            raise RemoteError(f"what answered (HTTP {self.status}) is not a server of dpsql serve")
        return content


class Transport:
    """Requests to one server; each has a connection of its own, so threads share it."""

    def __init__(
        self, url: str, token: str, *, ca_file: Path | None, plain_http: bool, connect_seconds: float = 10.0
    ) -> None:
        self._host, self._port, self._prefix, secure = _parts(url)
        if not token or not token.isascii() or not token.isprintable():
            raise RemoteError("a token is the line that `dpsql token` printed")
        if not secure and not plain_http and not is_loopback(self._host):
            raise RemoteError(
                f"http would send the token to {self._host} for everybody on the way to read; use https, or "
                "plain_http=True where something else protects the connection"
            )
        self._token = token
        self._tls = ssl.create_default_context(cafile=ca_file) if secure else None
        self._connect_seconds = connect_seconds

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
        headers = {"Authorization": f"Bearer {self._token}", "Accept": accept}
        content = None
        if body is not None:
            content = json.dumps(body, allow_nan=False).encode()
            headers["Content-Type"] = JSON
        connection = self._connection()
        try:
            connection.connect()
            if connection.sock is not None:
                connection.sock.settimeout(seconds)
            connection.request(method, self._prefix + path, content, headers)
            reply = connection.getresponse()
            names = {name.lower(): value for name, value in reply.getheaders()}
            return Reply(reply.status, names, reply.read())
        except (OSError, http.client.HTTPException, UnicodeError) as error:
            why = error.strerror if isinstance(error, OSError) and error.strerror else type(error).__name__
            raise RemoteError(
                f"no answer from {self._host}:{self._port} ({why}); asking the same again pays nothing twice"
            ) from None
        finally:
            connection.close()

    def _connection(self) -> http.client.HTTPConnection:
        if self._tls is None:
            return http.client.HTTPConnection(self._host, self._port, timeout=self._connect_seconds)
        return http.client.HTTPSConnection(self._host, self._port, timeout=self._connect_seconds, context=self._tls)

    def __repr__(self) -> str:
        return f"Transport({self._host}:{self._port})"


def is_loopback(host: str) -> bool:
    """Whether an address never leaves the machine."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _parts(url: str) -> tuple[str, int, str, bool]:
    """Host, port, path and whether it is https."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
        parts = urlsplit("")
    plain = not (parts.query or parts.fragment or parts.username or parts.password)
    if not host or not plain or parts.scheme not in ("http", "https"):
        raise RemoteError("a server's address looks like https://stats.example:8642")
    secure = parts.scheme == "https"
    return host, port or (443 if secure else 80), parts.path.rstrip("/"), secure
