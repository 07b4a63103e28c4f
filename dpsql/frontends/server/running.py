"""The running server: sockets, TLS, signals, and an end that leaves no question half answered."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import uvicorn
from starlette.applications import Starlette

from dpsql.errors import PolicyError
from dpsql.frontends.server.analysts import AnalystRoutes
from dpsql.frontends.server.application import application
from dpsql.frontends.server.arrivals import timed_protocol
from dpsql.frontends.server.curator import CuratorRoutes
from dpsql.frontends.server.metrics import Metrics
from dpsql.frontends.server.queries import Queries
from dpsql.frontends.server.settings import Address, Certificate, Settings
from dpsql.frontends.server.tokens import Tokens
from dpsql.session import Session

_STOP_SECONDS = 5
_STOPPED_TWICE = 130


@dataclass(frozen=True, slots=True)
class Door:
    """One address with those who may come in by it."""

    address: Address
    tokens: Tokens


@dataclass(frozen=True, slots=True)
class Urls:
    """Where the server listens."""

    analysts: str
    curator: str | None


class _Server(uvicorn.Server):
    """A server whose signals are somebody else's."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def serve(
    session: Session,
    analysts: Door,
    curator: Door | None,
    settings: Settings,
    certificate: Certificate | None,
    *,
    ready: Callable[[Urls], None],
    stop: asyncio.Event,
) -> None:
    """Answer until ``stop`` is set; then no more questions are taken, and those being answered have some time.

    Raises:
        PolicyError: an address cannot be listened on, or certificate and key cannot be used.

    """
    metrics = Metrics()
    queries = Queries(session, settings, metrics)
    rooms = [(analysts, application(AnalystRoutes(queries, analysts.tokens, settings).routes, metrics.requested))]
    if curator is not None:
        routes = CuratorRoutes(session, queries, metrics, curator.tokens).routes
        rooms.append((curator, application(routes, lambda *_: None)))
    with contextlib.ExitStack() as opened:
        sockets = [opened.enter_context(_listening(door.address)) for door, _ in rooms]
        servers = [_Server(_config(app, certificate, settings.body_seconds)) for _, app in rooms]
        running = [asyncio.create_task(one.serve([at])) for one, at in zip(servers, sockets, strict=True)]
        stopped = asyncio.create_task(stop.wait())
        while not all(one.started for one in servers) and not any(task.done() for task in running):
            await asyncio.sleep(0.005)
        urls = [_url(door.address, at, certificate) for (door, _), at in zip(rooms, sockets, strict=True)]
        ready(Urls(urls[0], urls[1] if curator is not None else None))
        await asyncio.wait({stopped, *running}, return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        await queries.close()
        for one in servers:
            one.should_exit = True
        await asyncio.gather(*running)


def run_until_signalled(
    session: Session,
    analysts: Door,
    curator: Door | None,
    settings: Settings,
    certificate: Certificate | None,
    ready: Callable[[Urls], None],
) -> None:
    """`serve` until SIGTERM or SIGINT; a second one ends the process at once, which loses no charge and no answer."""

    async def run() -> None:
        stop = asyncio.Event()

        def signalled() -> None:
            if stop.is_set():
                os._exit(_STOPPED_TWICE)
            stop.set()

        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, signalled)
        await serve(session, analysts, curator, settings, certificate, ready=ready, stop=stop)

    asyncio.run(run())


def _config(app: Starlette, certificate: Certificate | None, arrival_seconds: float) -> uvicorn.Config:
    config = uvicorn.Config(
        app,
        http=timed_protocol(arrival_seconds),
        ws="none",
        lifespan="off",
        # its access log has the query string, with the statement in it
        access_log=False,
        log_config=None,
        log_level="warning",
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=_STOP_SECONDS,
        ssl_certfile=None if certificate is None else certificate.chain,
        ssl_keyfile=None if certificate is None else certificate.key,
    )
    try:
        config.load()
    except OSError:
        raise PolicyError("the certificate and its key cannot be read, or do not belong together") from None
    return config


@contextlib.contextmanager
def _listening(address: Address) -> Iterator[socket.socket]:
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((address.host, address.port))
        except OSError as error:
            raise PolicyError(f"{address.host}:{address.port} cannot be listened on: {error.strerror}") from None
        yield listening


def _url(address: Address, at: socket.socket, certificate: Certificate | None) -> str:
    host = f"[{address.host}]" if ":" in address.host else address.host
    return f"{'http' if certificate is None else 'https'}://{host}:{at.getsockname()[1]}"
