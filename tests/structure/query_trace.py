"""Files, functions and lines that a query runs through: python -m tests.structure.query_trace ["SELECT …"].

The query is the default one. A fresh session opens a file of DuckDB, protects one table with the bounds that
``dp_protect`` asks for, and sets nothing else. So the keys are private, and what bounds leave out is measured. A tracer
(``sys.settrace``) sees every frame of dpsql that a step enters in the thread of its call:

- *asked first*: ``Session.sql``. The query is charged and read.
- *printed*: ``str`` of the result, with the lines of its receipt.
- *asked again*: ``Session.sql``. The stored answer is served.

Counted are:

- *files*: files of dpsql/ in which any code ran.
- *functions*: functions with a name, methods and nested functions included. Lambdas and comprehensions have none, and
  methods that a dataclass makes have no file.
- *lines*: distinct executed lines, those of lambdas and comprehensions too.
- *types*: distinct classes of dpsql of which a function returned an instance to a caller in another room, that is in
  another folder or module directly below dpsql/. What stands inside a list or a tuple is not looked at.

Importing dpsql, opening the session and the declarations are not counted. A module that a step itself imports is
counted. The query is the first of its process, so code that fills a cache is counted. Only *printed* depends on noise,
which chooses between wordings of what bounds may leave out: its limits are those of the longest one.

``--functions`` lists the functions of each file with the lines where they begin, and the lines of the file that ran.
"""

from __future__ import annotations

import argparse
import importlib
import multiprocessing
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import dpsql
from tests.structure.limits import TRACE_LIMITS

SIMPLE_QUERY = "SELECT city, count(*) FROM visits GROUP BY city"
TABLE = (
    "CREATE TABLE visits AS SELECT i AS patient, ['Lund', 'Malmö', 'Umeå'][1 + i % 3] AS city, i % 100 AS cost "
    "FROM range(300) t(i)"
)
PROTECTION = (
    "CALL dp_protect('visits', privacy_unit_column := 'patient', max_groups_contributed := 1, max_rows_per_group := 2, "
    "epsilon_budget := 3, delta_budget := 1e-6)"
)
RHO = 0.1


@dataclass(frozen=True, slots=True)
class FileTrace:
    """Code of one file that ran: functions by the line where they begin and their name, and numbers of lines."""

    functions: frozenset[tuple[int, str]]
    lines: frozenset[int]


@dataclass(frozen=True, slots=True)
class QueryTrace:
    """Code of a package that ran.

    Attributes:
        entered: by path of the file below the package, in order of the paths.
        returned: names of the classes whose instances went from one room to another, in order.

    """

    entered: dict[str, FileTrace]
    returned: tuple[str, ...]

    @property
    def files(self) -> int:
        """Number of files."""
        return len(self.entered)

    @property
    def functions(self) -> int:
        """Number of functions with a name."""
        return sum(len(each.functions) for each in self.entered.values())

    @property
    def lines(self) -> int:
        """Number of distinct executed lines."""
        return sum(len(each.lines) for each in self.entered.values())

    @property
    def types(self) -> int:
        """Number of classes returned across rooms."""
        return len(self.returned)

    def of_room(self, room: str) -> QueryTrace:
        """The part in the files of one room; types belong to no room."""
        return QueryTrace({path: each for path, each in self.entered.items() if room_of(path) == room}, ())


@dataclass(frozen=True, slots=True)
class Tracer:
    """Collects what runs of a package while it is on, in this thread.

    Attributes:
        package: the package's folder, whose name is the package's.
        codes: code objects that were entered, by file.
        lines: executed lines, by file.
        classes: classes of the package returned from one room to another.

    """

    package: Path
    codes: dict[str, set[CodeType]] = field(default_factory=lambda: defaultdict(set))
    lines: dict[str, set[int]] = field(default_factory=lambda: defaultdict(set))
    classes: set[type] = field(default_factory=set)

    @contextmanager
    def on(self) -> Iterator[None]:
        """Trace what runs inside; a tracer that was there before is there again afterwards."""
        before = sys.gettrace()
        sys.settrace(self._enter)
        try:
            yield
        finally:
            sys.settrace(before)

    def result(self) -> QueryTrace:
        """Trace of what was seen so far."""
        entered = {
            self._path(name): FileTrace(
                frozenset(
                    (code.co_firstlineno, code.co_qualname) for code in codes if not code.co_name.startswith("<")
                ),
                frozenset(self.lines[name]),
            )
            for name, codes in sorted(self.codes.items())
        }
        return QueryTrace(entered, tuple(sorted(f"{each.__module__}.{each.__qualname__}" for each in self.classes)))

    def _enter(self, frame: FrameType, event: str, arg: object) -> Any:
        name = frame.f_code.co_filename
        if not self._is_inside(name):
            return None
        self.codes[name].add(frame.f_code)
        return self._inside

    def _inside(self, frame: FrameType, event: str, arg: object) -> Any:
        name, caller = frame.f_code.co_filename, frame.f_back
        if event == "line":
            self.lines[name].add(frame.f_lineno)
        elif event == "return" and caller is not None and self._is_inside(caller.f_code.co_filename):
            between_rooms = room_of(self._path(name)) != room_of(self._path(caller.f_code.co_filename))
            if between_rooms and type(arg).__module__.split(".")[0] == self.package.name:
                self.classes.add(type(arg))
        return self._inside

    def _is_inside(self, name: str) -> bool:
        return name.startswith(f"{self.package}/")

    def _path(self, name: str) -> str:
        return name.removeprefix(f"{self.package}/")


def room_of(path: str) -> str:
    """The folder or module directly below the package that a file belongs to."""
    return path.partition("/")[0].removesuffix(".py")


@contextmanager
def protected_table() -> Iterator[dpsql.Session]:
    """Open a new file of DuckDB with one protected table, and nothing else declared."""
    with tempfile.TemporaryDirectory() as folder, dpsql.connect(Path(folder) / "clinic.duckdb") as session:
        session.connection.execute(TABLE)
        session.sql(PROTECTION)
        yield session


def trace_query(text: str) -> dict[str, QueryTrace]:
    """Trace a text by steps: asked first, printed, and asked again, of a fresh session in this process."""
    first, printed, again = (Tracer(Path(dpsql.__file__).parent) for _ in TRACE_LIMITS)
    # what scipy imports of itself, a finder of dpsql would be asked for
    importlib.import_module("scipy.special")
    with protected_table() as session:
        with first.on():
            result = session.sql(text, rho=RHO)
        with printed.on():
            str(result)
        with again.on():
            session.sql(text, rho=RHO)
    return dict(zip(TRACE_LIMITS, (each.result() for each in (first, printed, again)), strict=True))


def trace_in_new_process(text: str) -> dict[str, QueryTrace]:
    """The same where nothing has been asked before, whatever this process has done."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(trace_query, (text,))


def described(trace: QueryTrace, *, with_functions: bool) -> Iterator[str]:
    """Lines of counts by room and file, and the types; if asked for, the functions and lines of each file."""
    yield f"{'':<48}{'files':>7}{'functions':>11}{'lines':>7}{'types':>7}"
    for room in dict.fromkeys(map(room_of, trace.entered)):
        part = trace.of_room(room)
        yield f"{room:<48}{part.files:>7,}{part.functions:>11,}{part.lines:>7,}"
        for path, file in part.entered.items():
            yield f"    {path:<44}{'':>7}{len(file.functions):>11,}{len(file.lines):>7,}"
            if with_functions:
                yield from (f"{'':<8}{line:>5} {name}" for line, name in sorted(file.functions))
                yield f"{'':<8}lines {', '.join(runs(file.lines))}"
    yield f"{'all':<48}{trace.files:>7,}{trace.functions:>11,}{trace.lines:>7,}{trace.types:>7,}"
    yield f"returned across rooms: {', '.join(name.rpartition('.')[2] for name in trace.returned)}"


def runs(numbers: Iterable[int]) -> Iterator[str]:
    """Write numbers in order, and consecutive ones by their first and last: 3, 7-9."""
    in_order = sorted(numbers)
    for _, run in groupby(enumerate(in_order), key=lambda each: each[1] - each[0]):
        members = [number for _, number in run]
        first, last = members[0], members[-1]
        yield str(first) if first == last else f"{first}-{last}"


def main() -> None:
    """Trace the text of the command line, or the simplest private query, and print the counts."""
    parser = argparse.ArgumentParser(description="Files, functions and lines of dpsql that a query runs through.")
    parser.add_argument("text", nargs="?", default=SIMPLE_QUERY, help=f"on visits(patient, city, cost): {SIMPLE_QUERY}")
    parser.add_argument("--functions", action="store_true", help="list the functions and lines of each file")
    arguments = parser.parse_args()
    try:
        traces = trace_query(arguments.text)
    except dpsql.DpsqlError as error:
        parser.error(str(error))
    for step, trace in traces.items():
        print(f"{step}: {arguments.text}", *described(trace, with_functions=arguments.functions), "", sep="\n")  # noqa: T201
        if arguments.text == SIMPLE_QUERY:
            limits = ", ".join(f"{name} {limit:,}" for name, limit in TRACE_LIMITS[step].items())
            print(f"limits: {limits}\n")  # noqa: T201


if __name__ == "__main__":
    main()
