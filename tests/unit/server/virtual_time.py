"""An event loop whose clock jumps to the next thing that is to happen: moments are exact, whatever the machine does."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _NoWaiting(selectors.DefaultSelector):
    """Gives the time that it was to wait for to the loop's clock."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self.now += timeout or 0.0
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    """What an executor would do in a thread is done here, after ``lasts`` has let as much time pass as it takes."""

    def __init__(self, lasts: Callable[..., Awaitable[None]]) -> None:
        self._waiting = _NoWaiting()
        super().__init__(self._waiting)
        self._lasts = lasts

    def time(self) -> float:
        return self._waiting.now

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Any:  # type: ignore[override] # without threads
        async def later() -> Any:
            await self._lasts(*args)
            return func(*args)

        return self.create_task(later())


def run_virtually(work: Coroutine[Any, Any, T], lasts: Callable[..., Awaitable[None]]) -> T:
    """`asyncio.run` without waiting; ``lasts`` gets what the executor's function gets."""
    with asyncio.Runner(loop_factory=lambda: VirtualLoop(lasts)) as runner:
        return runner.run(work)
