"""A server of ``dpsql serve`` in a thread of the test, and requests to it that show everything."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import dpsql
from dpsql.access.tokens import Tokens, hash_of
from dpsql.frontends.server.doors import Address, Certificate, Door, Doors, Urls
from dpsql.frontends.server.running import serve
from dpsql.frontends.server.settings import Settings

QUICK = Settings(first_answer_seconds=0.005, grace_seconds=5.0)
"""Answers at once, nearly."""


def tokens_for(*names: str) -> Tokens:
    """One token each, which is the name with a prefix."""
    return Tokens(tuple((name, hash_of(token_of(name)).encode()) for name in names))


def token_of(name: str) -> str:
    return f"secret-of-{name}"


def door(*names: str) -> Door:
    return Door(Address("127.0.0.1", 0), tokens_for(*names))


@contextlib.contextmanager
def in_background(
    session: dpsql.Session,
    analysts: Door,
    curator: Door | None = None,
    settings: Settings = QUICK,
    certificate: Certificate | None = None,
) -> Iterator[Urls]:
    """`serve` in a thread of this process, as long as the block lasts."""
    found: list[Urls] = []
    failed: list[BaseException] = []
    is_ready = threading.Event()
    stopping: list[Callable[[], object]] = []

    async def run() -> None:
        stop, loop = asyncio.Event(), asyncio.get_running_loop()
        stopping.append(lambda: loop.call_soon_threadsafe(stop.set))

        def ready(urls: Urls) -> None:
            found.append(urls)
            is_ready.set()

        await serve(session, Doors(analysts, curator, certificate), settings, ready=ready, stop=stop)

    def work() -> None:
        try:
            asyncio.run(run())
        except BaseException as error:
            failed.append(error)
        finally:
            is_ready.set()

    thread = threading.Thread(target=work, name="dpsql-serve")
    thread.start()
    is_ready.wait()
    try:
        if failed:
            raise failed[0]
        yield found[0]
    finally:
        if thread.is_alive():
            stopping[0]()
        thread.join()


@dataclass(frozen=True)
class Seen:
    """A reply, whole."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def everything(self) -> str:
        return f"{self.status} {dict(self.headers)} {self.body.decode('utf-8', 'backslashreplace')}"


def request(
    url: str,
    method: str,
    path: str,
    *,
    name: str | None = None,
    body: object = None,
    headers: Mapping[str, str] | None = None,
) -> Seen:
    """One request with the token of a name; a body that is no bytes is sent as JSON."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=600)
    sent = dict(headers or {})
    if name is not None:
        sent.setdefault("Authorization", f"Bearer {token_of(name)}")
    content = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
    if content is not None:
        sent.setdefault("Content-Type", "application/json")
    try:
        connection.request(method, path, content, sent)
        reply = connection.getresponse()
        return Seen(reply.status, {key.lower(): value for key, value in reply.getheaders()}, reply.read())
    finally:
        connection.close()


def ask(url: str, name: str, sql: str, **options: object) -> Seen:
    """Ask and wait, for JSON."""
    body = {"sql": sql, "options": options}
    return request(url, "POST", "/v1/queries?wait=60", name=name, body=body)
