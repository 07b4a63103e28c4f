"""The running server: sockets, TLS, signals, and an end that leaves no question half answered.

A request has a limit on the time that it takes to arrive: a connection that sends one byte a second is not kept open.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Callable, Iterator

import h11
import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.http.h11_impl import H11Protocol

from dpsql.access.queries import Queries
from dpsql.errors import PolicyError
from dpsql.frontends.server.application import Metrics, application
from dpsql.frontends.server.doors import Address, Certificate, Doors, Urls
from dpsql.frontends.server.routes import AnalystRoutes, CuratorRoutes
from dpsql.frontends.server.settings import Settings
from dpsql.session import Session

_STOP_SECONDS = 5
_STOPPED_TWICE = 130
_AFTER_THE_ROUTE = 1.0
"""A route that reads a body has the same limit, and says what is wrong; this one ends all other connections."""


class _Server(uvicorn.Server):
    """A server whose signals are somebody else's."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def serve(
    session: Session, doors: Doors, settings: Settings, *, ready: Callable[[Urls], None], stop: asyncio.Event
) -> None:
    """Answer until ``stop`` is set; then no more questions are taken, and those being answered have some time.

    Raises:
        PolicyError: an address cannot be listened on, or certificate and key cannot be used.

    """
    metrics, certificate = Metrics(), doors.certificate
    queries = Queries(session, settings, metrics)
    of_analysts = AnalystRoutes(queries, doors.analysts.tokens, settings).routes
    runtime = [(doors.analysts, application(of_analysts, metrics.requested))]
    if doors.curator is not None:
        of_curator = CuratorRoutes(session, queries, metrics, doors.curator.tokens).routes
        runtime.append((doors.curator, application(of_curator, lambda *_: None)))
    with contextlib.ExitStack() as opened:
        sockets = [opened.enter_context(_listening(door.address)) for door, _ in runtime]
        servers = [_Server(_config(app, certificate, settings.body_seconds)) for _, app in runtime]
        running = [asyncio.create_task(one.serve([at])) for one, at in zip(servers, sockets, strict=True)]
        stopped = asyncio.create_task(stop.wait())
        while not all(one.started for one in servers) and not any(task.done() for task in running):
            await asyncio.sleep(0.005)
        ready(Urls(*(_url(door.address, at, certificate) for (door, _), at in zip(runtime, sockets, strict=True))))
        await asyncio.wait({stopped, *running}, return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        await queries.close()
        for one in servers:
            one.should_exit = True
        await asyncio.gather(*running)


def run_until_signalled(session: Session, doors: Doors, settings: Settings, ready: Callable[[Urls], None]) -> None:
    """`serve` until SIGTERM or SIGINT; a second one ends the process at once, which loses no charge and no answer."""

    async def run() -> None:
        stop = asyncio.Event()

        def signalled() -> None:
            if stop.is_set():
                os._exit(_STOPPED_TWICE)
            stop.set()

        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, signalled)
        await serve(session, doors, settings, ready=ready, stop=stop)

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


def timed_protocol(seconds: float) -> type[H11Protocol]:
    """HTTP/1.1 for uvicorn; headers have this long to be here whole, and a body after them."""

    class TimedProtocol(H11Protocol):
        _part: object = None
        _limit: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn's own
            super().connection_made(transport)
            self._look()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._look()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            # whatever comes now is of another request
            self._part = None
            self._look()

        def connection_lost(self, exc: Exception | None) -> None:
            self._forget()
            super().connection_lost(exc)

        def _look(self) -> None:
            """Give each part that has not ended its time, once."""
            part = self.conn.their_state
            if part is self._part:
                return
            self._part = part
            self._forget()
            if part in (h11.IDLE, h11.SEND_BODY):
                limit = seconds if part is h11.IDLE else seconds + _AFTER_THE_ROUTE
                self._limit = self.loop.call_later(limit, self.transport.abort)

        def _forget(self) -> None:
            if self._limit is not None:
                self._limit.cancel()

    return TimedProtocol
