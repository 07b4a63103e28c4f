"""A limit on the time that DuckDB takes for a query."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

_REPEAT_SECONDS = 0.02


@contextlib.contextmanager
def interrupt_after(seconds: float | None, interrupt: Callable[[], None]) -> Iterator[threading.Event]:
    """Interrupt a query that takes longer than this, again and again until it ends; the event says that it was."""
    expired = threading.Event()
    if seconds is None:
        yield expired
        return

    done = threading.Event()

    def watch() -> None:
        if done.wait(min(seconds, threading.TIMEOUT_MAX)):
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
