"""The simplest private query runs through no more code than ``limits.py`` allows, and the tracer counts right."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

import dpsql
from tests.structure.limits import ENTERED, NEVER_ENTERED, TRACE_LIMITS
from tests.structure.query_trace import SIMPLE_QUERY, QueryTrace, Tracer, described, trace_in_new_process

PARTS = {
    "desk/open.py": """
class Answer:
    pass


def ask(store):
    def twice(value):
        return 2 * value

    total = sum(twice(each) for each in [1, 2])
    if total < 0:
        total = 0
    found = store.read()
    assert found
    return Answer()
""",
    "store/files.py": """
class Draft:
    pass


class Row:
    pass


def read():
    draft = drafted()
    return Row()


def drafted():
    return Draft()
""",
    "never.py": "def run():\n    return 1\n",
}


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, ModuleType]:
    """A package of two rooms and a module, imported, by path."""
    loaded = {}
    for path, text in PARTS.items():
        file = tmp_path / "planted" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
        name = "planted." + path.removesuffix(".py").replace("/", ".")
        loaded[path] = ModuleType(name)
        monkeypatch.setitem(sys.modules, name, loaded[path])
        exec(compile(text, str(file), "exec"), loaded[path].__dict__)  # noqa: S102 — the text is above
    return loaded


def trace_of_planted(package: dict[str, ModuleType], folder: Path) -> QueryTrace:
    tracer = Tracer(folder / "planted")
    before = sys.gettrace()
    with tracer.on():
        package["desk/open.py"].ask(package["store/files.py"])
    assert sys.gettrace() is before
    package["never.py"].run()
    return tracer.result()


def test_what_ran_is_counted_once(package: dict[str, ModuleType], tmp_path: Path) -> None:
    trace = trace_of_planted(package, tmp_path)
    assert list(trace.entered) == ["desk/open.py", "store/files.py"]
    assert trace.entered["desk/open.py"].functions == {(6, "ask"), (7, "ask.<locals>.twice")}
    assert trace.entered["desk/open.py"].lines == {7, 8, 10, 11, 13, 14, 15}
    assert trace.entered["store/files.py"].functions == {(10, "read"), (15, "drafted")}
    assert (trace.files, trace.functions, trace.lines) == (2, 4, 10)


def test_types_count_between_rooms_alone(package: dict[str, ModuleType], tmp_path: Path) -> None:
    # drafted() answers its own room, read() another one, and ask() nobody in the package
    assert trace_of_planted(package, tmp_path).returned == ("planted.store.files.Row",)


def test_counts_of_rooms_add_up(package: dict[str, ModuleType], tmp_path: Path) -> None:
    trace = trace_of_planted(package, tmp_path)
    parts = [trace.of_room(room) for room in ("desk", "store")]
    for name in ("files", "functions", "lines"):
        assert sum(getattr(part, name) for part in parts) == getattr(trace, name) > 0
    lines = [line.split() for line in described(trace, with_functions=True)]
    assert ["store", "1", "2", "3"] in lines
    assert ["store/files.py", "2", "3"] in lines
    assert ["15", "drafted"] in lines
    assert ["lines", "11-12,", "16"] in lines


@pytest.fixture(scope="module")
def simple() -> dict[str, QueryTrace]:
    """Of a new process: what this one has asked before has filled caches."""
    return trace_in_new_process(SIMPLE_QUERY)


@pytest.mark.parametrize("step", TRACE_LIMITS)
@pytest.mark.parametrize("name", ["files", "functions", "lines", "types"])
def test_the_simplest_query_stays_small(simple: dict[str, QueryTrace], step: str, name: str) -> None:
    assert 0 < getattr(simple[step], name) <= TRACE_LIMITS[step][name]


@pytest.mark.parametrize("place", NEVER_ENTERED)
def test_the_simplest_query_does_not_enter(simple: dict[str, QueryTrace], place: str) -> None:
    assert (Path(dpsql.__file__).parent / place).exists()
    entered = {path for trace in simple.values() for path in trace.entered if path.startswith(place)}
    assert entered == {path for path in ENTERED if path.startswith(place)}


def test_features_are_seen(simple: dict[str, QueryTrace]) -> None:
    bounded = "sum(cost, contribution_bounds_per_group => (0, 500))"
    sums = trace_in_new_process(f"SELECT city, {bounded} FROM visits GROUP BY GROUPING SETS ((city), ())")
    for step in ("asked first", "asked again"):
        assert sums[step].functions > simple[step].functions
        assert sums[step].lines > simple[step].lines
    assert sums["asked first"].lines > TRACE_LIMITS["asked first"]["lines"]
