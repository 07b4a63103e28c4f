"""The import fence: rooms import downwards only, each package has its room, and no module is dead.

The rules are read from the AST: an import inside a function or under TYPE_CHECKING counts like any other.
"""

from __future__ import annotations

import ast
import functools
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence

import pytest

from tests.documents.pages import ROOT
from tests.structure.source_figures import PACKAGE, module_sources

# What each room may import besides itself. A room is a folder or a module directly below dpsql.
LOWEST = {"errors"}
MATHEMATICS = {"mechanisms", "accounting"}
MIDDLE = {"query", "release", "state", "engine"}
BELOW_SESSION = MIDDLE | MATHEMATICS | LOWEST | {"assets"}
MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "assets": LOWEST,
    "accounting": LOWEST,
    "mechanisms": {"accounting"} | LOWEST,
    "query": LOWEST,
    "engine": {"query"} | LOWEST,
    "release": {"query"} | MATHEMATICS | LOWEST,
    "state": MATHEMATICS | LOWEST,
    "pictures": LOWEST,
    "session": BELOW_SESSION | {"pictures"},
    "remote": {"session"} | LOWEST,
    "frontends": {"session", "remote", "pictures", PACKAGE} | BELOW_SESSION,
    PACKAGE: {"frontends", "session", "remote"} | BELOW_SESSION,
    "__main__": {"frontends"},
}
# Which rooms may import a third-party package; a package that is not listed is allowed nowhere.
EVERY_ROOM = set(MAY_IMPORT)
MAY_USE: dict[str, set[str]] = {
    "dbt": {"frontends"},
    "dbt_common": {"frontends"},
    "duckdb": {"engine", "session", "frontends"},
    "filelock": {"state"},
    "h11": {"frontends"},
    "matplotlib": {"pictures", "session", "frontends"},
    "numpy": EVERY_ROOM - {"query"},
    "pandas": {"session", "frontends"},
    "polars": {"session", "frontends"},
    "prometheus_client": {"frontends"},
    "pyarrow": {"engine", "release", "state", "session", "remote", "frontends"},
    "scipy": MATHEMATICS,
    "sqlglot": {"query"},
    "sqlite3": {"state"},
    "starlette": {"frontends"},
    "uvicorn": {"frontends"},
}
ENTRY_POINTS = (PACKAGE, f"{PACKAGE}.__main__", f"{PACKAGE}.frontends.cli", f"{PACKAGE}.frontends.dbt.plugin")


def imports_of(source: str, known: set[str]) -> Iterator[str]:
    """Dotted names that a module imports, taking ``from a import b`` as a.b where that is a module."""
    for node in _imports(source):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif node.level:
            yield "." * node.level
        else:
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield full if full in known else node.module or ""


@functools.cache
def _imports(source: str) -> tuple[ast.Import | ast.ImportFrom, ...]:
    """Parsing is most of the work, and every rule reads the same modules."""
    return tuple(node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Import | ast.ImportFrom))


def room_of(module: str) -> str:
    return module.split(".")[1] if "." in module else module


def fence_faults(sources: Mapping[str, str]) -> list[str]:
    """Every import that crosses a fence, as a sentence."""
    faults = []
    for module, source in sources.items():
        room = room_of(module)
        if room not in MAY_IMPORT:
            faults.append(f"{module}: the room {room!r} has no place in the order of imports (MAY_IMPORT)")
            continue
        for target in imports_of(source, set(sources)):
            top = target.split(".")[0]
            if not top:
                faults.append(f"{module}: relative import; write the full name")
            elif top == PACKAGE:
                inner = room_of(target)
                if inner != room and inner not in MAY_IMPORT[room]:
                    faults.append(f"{module}: {room} may not import {inner}")
            elif top in MAY_USE:
                if room not in MAY_USE[top]:
                    faults.append(f"{module}: {top} is fenced out of {room}")
            elif top not in sys.stdlib_module_names:
                faults.append(f"{module}: {top} is neither the standard library's nor listed (MAY_USE)")
    return faults


def dead_modules(sources: Mapping[str, str]) -> set[str]:
    """Modules that no entry point reaches; an import of a.b also runs a."""
    known = set(sources)
    alive: set[str] = set()
    waiting = [name for name in ENTRY_POINTS if name in known]
    while waiting:
        module = waiting.pop()
        if module in known and module not in alive:
            alive.add(module)
            waiting += [module.rpartition(".")[0], *imports_of(sources[module], known)]
    return known - alive


def import_cycles(sources: Mapping[str, str]) -> set[frozenset[str]]:
    """Pairs of modules that reach each other."""
    known = set(sources)
    direct = {name: set(imports_of(text, known)) & known for name, text in sources.items()}
    reach = {name: set(targets) for name, targets in direct.items()}
    for middle in known:
        for name in known:
            if middle in reach[name]:
                reach[name] |= reach[middle]
    return {frozenset((a, b)) for a in known for b in reach[a] if a in reach[b]}


@pytest.fixture(scope="module")
def package() -> dict[str, str]:
    return module_sources(ROOT)


def test_no_import_crosses_a_fence(package: dict[str, str]) -> None:
    assert fence_faults(package) == []


def test_no_module_is_dead(package: dict[str, str]) -> None:
    assert dead_modules(package) == set()


def test_no_modules_import_each_other(package: dict[str, str]) -> None:
    assert import_cycles(package) == set()


def test_every_package_used_is_declared(package: dict[str, str]) -> None:
    with (ROOT / "pyproject.toml").open("rb") as text:
        project = tomllib.load(text)["project"]
    # polars is the reader's own: Result.pl() needs it only where it is asked for. dbt loads its plugin itself.
    extras = project["optional-dependencies"]
    lines = [*project["dependencies"], *extras["server"], *extras["plot"]]
    declared = {re.split(r"[<>=!~ \[]", line)[0].replace("-", "_") for line in lines} | {"polars", "dbt", "dbt_common"}
    used = {target.split(".")[0] for source in package.values() for target in imports_of(source, set())}
    assert used - set(sys.stdlib_module_names) - {PACKAGE, ""} <= declared


def imported_with(modules: Sequence[str], sources: Mapping[str, str]) -> set[str]:
    """Packages of others that importing modules imports: what stands at their top level, and of what they import."""
    known, waiting, seen, packages = set(sources), [*modules], set(), set()
    while waiting:
        name = waiting.pop()
        if name not in known:
            packages.add(name.split(".")[0])
        elif name not in seen:
            seen.add(name)
            top = [node for node in ast.parse(sources[name]).body if isinstance(node, ast.Import | ast.ImportFrom)]
            waiting += [name.rpartition(".")[0] or PACKAGE, *imports_of("\n".join(map(ast.unparse, top)), known)]
    return packages


def test_nothing_but_the_server_needs_its_packages(package: dict[str, str]) -> None:
    servers = {"h11", "starlette", "uvicorn", "prometheus_client"}
    assert not imported_with(ENTRY_POINTS, package) & servers


def test_a_package_is_needed_where_it_is_imported_at_the_top() -> None:
    lazy = {**CLEAN, "dpsql.session": "def f():\n    import uvicorn\nfrom dpsql import query"}
    assert imported_with(["dpsql"], lazy) == set()
    assert imported_with(["dpsql"], {**lazy, "dpsql.query": "import uvicorn.main"}) == {"uvicorn"}


CLEAN = {
    "dpsql": "from dpsql.session import Session",
    "dpsql.errors": "",
    "dpsql.session": "import duckdb\nfrom dpsql import errors\nfrom dpsql.query.parse import parse",
    "dpsql.query": "",
    "dpsql.query.parse": "import sqlglot\nfrom dpsql.errors import ParseError",
}


def test_the_fence_accepts_a_clean_package() -> None:
    assert fence_faults(CLEAN) == []
    assert dead_modules(CLEAN) == set()
    assert import_cycles(CLEAN) == set()


@pytest.mark.parametrize(
    ("module", "planted", "complaint"),
    [
        ("dpsql.query.parse", "import duckdb", "duckdb is fenced out of query"),
        (
            "dpsql.query.parse",
            "def f():\n    from dpsql.accounting import zcdp",
            "query may not import accounting",
        ),
        ("dpsql.query.parse", "import dpsql.session as s", "query may not import session"),
        ("dpsql.query.parse", "from dpsql import session", "query may not import session"),
        ("dpsql.query.parse", "if TYPE_CHECKING:\n    import sqlite3", "sqlite3 is fenced out of query"),
        ("dpsql.query.parse", "from . import plan", "relative import"),
        ("dpsql.session", "import sqlglot.exp", "sqlglot is fenced out of session"),
        ("dpsql.session", "from requests import get", "requests is neither"),
        ("dpsql.errors", "from dpsql import assets", "errors may not import"),
        ("dpsql.state.ledger", "from dpsql.release.cascade import Point", "state may not import release"),
        ("dpsql.mechanisms.gshm", "from dpsql.query import parse", "mechanisms may not import query"),
        ("dpsql.attic.old", "", "no place in the order of imports"),
    ],
)
def test_the_fence_catches_a_planted_fault(module: str, planted: str, complaint: str) -> None:
    faults = fence_faults({**CLEAN, module: planted})
    assert len(faults) == 1
    assert complaint in faults[0]


def test_a_dead_module_is_caught() -> None:
    assert dead_modules({**CLEAN, "dpsql.query.unused": ""}) == {"dpsql.query.unused"}


def test_a_cycle_is_caught() -> None:
    cyclic = {**CLEAN, "dpsql.query.plan": "from dpsql.query import parse"}
    cyclic["dpsql.query.parse"] = "from dpsql.query.plan import plan"
    assert import_cycles(cyclic) == {
        frozenset({"dpsql.query.plan", "dpsql.query.parse"}),
        frozenset({"dpsql.query.plan"}),
        frozenset({"dpsql.query.parse"}),
    }
