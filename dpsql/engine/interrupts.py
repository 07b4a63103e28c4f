"""A limit on the time that DuckDB takes for a query, and a way to stop one from another thread."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar

_REPEAT_SECONDS = 0.02
_STOP: ContextVar[threading.Event | None] = ContextVar("stop", default=None)


@contextlib.contextmanager
def stopped_by(event: threading.Event) -> Iterator[None]:
    """Whatever this thread asks of DuckDB inside the block is interrupted once the event is set."""
    token = _STOP.set(event)
    try:
        yield
    finally:
        _STOP.reset(token)


@contextlib.contextmanager
def interrupt_after(seconds: float | None, interrupt: Callable[[], None]) -> Iterator[threading.Event]:
    """Interrupt a query that takes longer than this, again and again until it ends; the event says that it was.

    A query inside `stopped_by` is interrupted likewise when that event is set.
    """
    expired = threading.Event()
    stop = _STOP.get()
    if seconds is None and stop is None:
        yield expired
        return

    done = threading.Event()
    deadline = math.inf if seconds is None else time.monotonic() + seconds

    def watch() -> None:
        while (left := deadline - time.monotonic()) > 0 and not (stop and stop.is_set()):
            if done.wait(min(left, threading.TIMEOUT_MAX if stop is None else _REPEAT_SECONDS)):
                return
        expired.set()
        # DuckDB forgets an interrupt that comes before its query starts, so it is repeated
        while True:
            interrupt()
            if done.wait(_REPEAT_SECONDS):
                return

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield expired
    finally:
        done.set()
        watcher.join()
