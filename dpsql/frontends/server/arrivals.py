"""A limit on the time that a request takes to arrive: a connection that sends one byte a second is not kept open."""

from __future__ import annotations

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

_AFTER_THE_ROUTE = 1.0
"""A route that reads a body has the same limit, and says what is wrong; this one ends all other connections."""


def timed_protocol(seconds: float) -> type[H11Protocol]:
    """HTTP/1.1 for uvicorn; headers have this long to be here whole, and a body after them."""

    class TimedProtocol(H11Protocol):
        def __init__(self, *arguments: Any, **named: Any) -> None:
            super().__init__(*arguments, **named)
            self._part: object = None
            self._limit: asyncio.TimerHandle | None = None

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
                late = 0.0 if part is h11.IDLE else _AFTER_THE_ROUTE
                self._limit = self.loop.call_later(seconds + late, self.transport.abort)

        def _forget(self) -> None:
            if self._limit is not None:
                self._limit.cancel()
                self._limit = None

    return TimedProtocol
