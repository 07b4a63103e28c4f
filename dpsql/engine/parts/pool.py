"""A pool of processes that read parts: each part has its process, and a process that dies is begun again.

A task is a reading of one part. It names all tables that its texts read, so it can run again from the start: a new
process makes these tables anew, by the same texts and salts, and has the same rows.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

import pyarrow as pa

from dpsql.engine.connection import interrupt_after
from dpsql.engine.parts.process import CHANGED, receive, send
from dpsql.errors import EngineError

CHECK_SECONDS = 120.0
"""Limit of time of what comes before a charge: a process that does not answer ends then."""
_ATTEMPTS = 5
"""Processes that may die on one task; then the reading fails."""
_WAIT_SECONDS = 0.05
_MAIN = "import sys; sys.path[:] = sys.argv[1:]; from dpsql.engine.parts.process import main; main()"

Header = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Task:
    """A request to the process of a part.

    Attributes:
        part: number of the part.
        request: the header of the message.
        tables: the tables of the message.

    """

    part: int
    request: Header
    tables: tuple[pa.Table, ...] = ()


class _DiedError(Exception):
    """A process is gone."""


class _Process:
    """A process with one request at a time; it begins with its first request."""

    def __init__(self, start: Header, spilled: Path | None) -> None:
        self.turn = threading.Lock()
        self._life = threading.RLock()
        self.is_closed = False
        self._owner = os.getpid()
        self._start = {**start, "temp_directory": "" if spilled is None else str(spilled)}
        self._spilled = spilled
        self._running: list[subprocess.Popen[bytes]] = []

    def ask(self, task: Task) -> tuple[Header, list[pa.Table]]:
        """Send a request and return the reply.

        Raises:
            EngineError: the session was closed, or belongs to the program that this one was forked from.
            _DiedError: the process is gone, or could not begin.

        """
        if self._owner != os.getpid():
            # replies to one program would be read by the other
            raise EngineError("parts are not read after a fork: open the folder in each process", withheld=False)
        if not self._running and task.request["ask"] == "end":
            return {}, []
        try:
            running = self._running[0] if self._running else self._begin()
            send(cast("BinaryIO", running.stdin), task.request, task.tables)
            return receive(cast("BinaryIO", running.stdout))
        except (EOFError, OSError, ValueError, IndexError):
            self.kill()
        raise _DiedError

    def _begin(self) -> subprocess.Popen[bytes]:
        with self._life:
            if self.is_closed:
                raise EngineError("the session was closed", withheld=False)
            if self._spilled:
                self._spilled.parent.mkdir(parents=True, exist_ok=True)
            running = subprocess.Popen(  # noqa: S603 — this program and a constant text
                [sys.executable, "-c", _MAIN, *sys.path],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                # a library may print values of rows
                stderr=subprocess.DEVNULL,
                # an interrupt at the keyboard is for the program that began it
                start_new_session=True,
            )
            self._running[:] = [running]
        send(cast("BinaryIO", running.stdin), self._start)
        return running

    def kill(self) -> None:
        """End the process at once; the next request begins another."""
        if self._owner != os.getpid():
            return
        # no other process begins in the folder before it is removed
        with self._life:
            while self._running:
                running = self._running.pop()
                running.kill()
                for stream in (running.stdin, running.stdout):
                    with contextlib.suppress(OSError):
                        cast("BinaryIO", stream).close()
                running.wait()
                if self._spilled:
                    shutil.rmtree(self._spilled, ignore_errors=True)


class _Reading:
    """Tasks that run together, and can be stopped together."""

    def __init__(self) -> None:
        self.is_stopped = False
        self._asking: set[_Process] = set()

    @contextlib.contextmanager
    def turn(self, process: _Process) -> Iterator[None]:
        """Wait for the turn to ask a process; ``stop`` ends the wait, or the process while it answers.

        Raises:
            EngineError: the tasks were stopped.

        """
        while not process.turn.acquire(timeout=_WAIT_SECONDS):
            self._go_on()
        try:
            self._asking.add(process)
            self._go_on()
            yield
        finally:
            self._asking.discard(process)
            process.turn.release()

    def _go_on(self) -> None:
        if self.is_stopped:
            raise EngineError("the processes that read parts were stopped", withheld=False)

    def stop(self) -> None:
        """End what runs, and let nothing more begin."""
        self.is_stopped = True
        for process in tuple(self._asking):
            process.kill()


class Pool:
    """Processes that read the parts of a folder, each under a limit of memory.

    Args:
        count: number of processes.
        start: what a process is told first (`process.Reader`), but its place on disk.
        spill: folder in which each process has a folder for rows that memory does not hold; None for no such rows.

    """

    def __init__(self, count: int, start: Header, spill: Path | None) -> None:
        # two databases do not share a folder
        name = secrets.token_hex(4)
        self._processes = [_Process(start, spill and spill / f"part-{name}-{place}") for place in range(count)]
        self._made_spill = spill if spill and not spill.exists() else None
        self._ended = weakref.finalize(self, _kill_all, self._processes)

    def close(self) -> None:
        """End all processes; nothing begins one any more."""
        for process in self._processes:
            process.is_closed = True
        self._ended()
        _kill_all(self._processes)
        if self._made_spill:
            with contextlib.suppress(OSError):
                self._made_spill.rmdir()

    def facts(self) -> list[Header]:
        """Return what each process says of its DuckDB.

        Raises:
            EngineError: a process cannot begin.

        """
        asked = [Task(place, {"ask": "facts"}) for place in range(len(self._processes))]
        return [header for header, _ in self.run(asked, CHECK_SECONDS, charged=False)]

    def run(
        self, tasks: Sequence[Task], timeout_seconds: float | None, *, charged: bool = True
    ) -> list[tuple[Header, list[pa.Table]]]:
        """Carry tasks out and return their replies in order.

        Args:
            tasks: what is asked.
            timeout_seconds: limit of time.
            charged: whether there may have been a charge before.

        Raises:
            EngineError: a task failed, or the time ran out; the message is constant.

        """
        reading = _Reading()
        by_process: dict[int, list[int]] = {}
        for place, task in enumerate(tasks):
            by_process.setdefault(task.part % len(self._processes), []).append(place)
        replies: dict[int, tuple[Header, list[pa.Table]]] = {}

        def work(number: int) -> None:
            for place in by_process[number]:
                replies[place] = self._answer(self._processes[number], tasks[place], reading, charged=charged)

        failures: list[EngineError] = []
        with (
            interrupt_after(timeout_seconds, reading.stop) as expired,
            ThreadPoolExecutor(len(by_process), "dpsql-part") as threads,
        ):
            futures = [threads.submit(_quietly, work, number, reading, failures) for number in by_process]
            try:
                for future in futures:
                    future.result()
            except BaseException:
                # an interrupt at the keyboard
                reading.stop()
                raise
        if expired.is_set():
            raise EngineError.out_of_time()
        if failures:
            raise failures[0]
        return [replies[place] for place in range(len(tasks))]

    @staticmethod
    def _answer(process: _Process, task: Task, reading: _Reading, *, charged: bool) -> tuple[Header, list[pa.Table]]:
        for _ in range(_ATTEMPTS):
            with contextlib.suppress(_DiedError), reading.turn(process):
                header, tables = process.ask(task)
                if header.get("failure") == CHANGED:
                    raise changed(task.part, charged=charged)
                if "failure" in header:
                    raise EngineError("a part could not be read", charged=charged)
                return header, tables
        raise EngineError("the processes that read parts ended", withheld=False, charged=charged)


def changed(part: int, *, charged: bool) -> EngineError:
    """Return the error of a part that is not as the split left it."""
    return EngineError(
        f"part {part} is missing, was changed, or belongs to another split: split the tables again, and declare a new "
        "version",
        withheld=False,
        charged=charged,
    )


def _quietly(work: Callable[[int], None], number: int, reading: _Reading, failures: list[EngineError]) -> None:
    """Run the tasks of a process; the first failure stops the others."""
    try:
        work(number)
    except EngineError as error:
        failures.append(error)
        reading.stop()


def _kill_all(processes: Sequence[_Process]) -> None:
    for process in processes:
        process.kill()
