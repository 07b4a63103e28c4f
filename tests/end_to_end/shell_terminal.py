"""The stock ``duckdb`` shell at a pseudo-terminal: a statement is entered, and what is then on screen is read."""

from __future__ import annotations

import os
import pty
import re
import select
import shutil
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

import pytest

from dpsql.assets import native_library

SHELL = shutil.which("duckdb", path=str(Path(sys.executable).parent))
needs_shell = pytest.mark.skipif(
    SHELL is None or native_library() is None,
    reason="the DuckDB shell needs duckdb-cli (pip install 'dpsql[shell]') and the extension (make native)",
)
QUIET = ("-dark-mode", "-cmd", ".highlight off")
"""Arguments without which the shell asks the terminal for its colours, and waits for the answer."""
_PATIENCE_SECONDS = 600.0
_PROMPT = r"(?:\S+ D |· )"


class Terminal:
    """A program at a pseudo-terminal; a context manager.

    Args:
        command: program and arguments.
        environment: variables beside those of this process.
        shown: whether everything on the screen is printed here too.

    """

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str] | None = None, *, shown: bool = False
    ) -> None:
        self._shown = shown
        self._asked = 0
        # a terminal without cursor movements: what is on screen is then what was written
        variables = os.environ | {"TERM": "dumb", "NO_COLOR": "1"} | dict(environment or {})
        self.process, self._end = pty.fork()
        if self.process == 0:
            os.execvpe(command[0], list(command), variables)  # noqa: S606

    def ask(self, statement: str) -> str:
        """Enter a statement; returns what is on screen before the prompt is back, without the statement itself."""
        self._asked += 1
        mark = f"answer {self._asked} ends"
        entered = [*statement.split("\n"), f".print {mark}"]
        os.write(self._end, "".join(f"{line}\n" for line in entered).encode())
        screen = self._read_until(re.compile(rf"^(?:{_PROMPT})*{mark}\r?$", re.MULTILINE))
        lines = [re.sub(rf"^(?:{_PROMPT})+", "", line.rstrip("\r")) for line in screen.split("\n")]
        text = "\n".join(line for line in lines if line not in entered and line != mark).strip("\n")
        if self._shown:
            print(f"D {statement}\n{text}\n")
        return text

    def _read_until(self, pattern: re.Pattern[str]) -> str:
        screen = ""
        ends = time.monotonic() + _PATIENCE_SECONDS
        while not pattern.search(screen):
            ready, _, _ = select.select([self._end], [], [], max(ends - time.monotonic(), 0.0))
            if not ready:
                raise AssertionError(f"nothing more came to the screen after:\n{screen}")
            try:
                screen += os.read(self._end, 65536).decode(errors="replace")
            except OSError as error:
                raise AssertionError(f"the shell ended after:\n{screen}") from error
        return screen

    def __enter__(self) -> Terminal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # the launcher, and the shell that it started: who opens the file next must find it unlocked
        os.killpg(self.process, signal.SIGKILL)
        os.close(self._end)
        os.waitpid(self.process, 0)
        ends = time.monotonic() + _PATIENCE_SECONDS
        while time.monotonic() < ends:
            try:
                os.killpg(self.process, 0)
            except ProcessLookupError:
                return
            time.sleep(0.01)
