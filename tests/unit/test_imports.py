"""The import fence: rooms import downwards only, each package has its room, and no module is dead.

The rules are read from the AST. An import inside a function or under TYPE_CHECKING counts like any other, and so does
a text that is the full name of a module of dpsql: by such a text a module is imported at its first use.
"""

from __future__ import annotations

import ast
import functools
import inspect
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module

import pytest

import dpsql
from dpsql.frontends.cli import COMMANDS
from tests.documents.pages import ROOT
from tests.structure.rooms import BY_DOOR, BY_NAME, ROOMS, room_of
from tests.structure.source_figures import PACKAGE, module_sources

FENCED = {package for room in ROOMS for package in room.packages}
COMMAND_LINE = (PACKAGE, f"{PACKAGE}.__main__", f"{PACKAGE}.frontends.cli")
ENTRY_POINTS = (
    *COMMAND_LINE,
    f"{PACKAGE}.frontends.dbt.plugin",
    f"{PACKAGE}.engine.check",
    f"{PACKAGE}.noise.divisible",
)
"""Modules that people or programs start with. Who shares noise imports `dpsql.noise.divisible` by name."""
IMPORTED_LATER = sorted({*dpsql._MODULES.values(), *(command.module for command in COMMANDS)})
"""Modules that the entry points import when a name or a command is first used."""


def imports_of(source: str, known: set[str]) -> Iterator[str]:
    """Dotted names that a module imports, taking ``from a import b`` as a.b where that is a module."""
    for node in _imports(source):
        if isinstance(node, ast.Constant):
            if isinstance(node.value, str) and node.value in known - {PACKAGE}:
                yield node.value
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif node.level:
            yield "." * node.level
        else:
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield full if full in known else node.module or ""


@functools.cache
def _imports(source: str) -> tuple[ast.Import | ast.ImportFrom | ast.Constant, ...]:
    """Return imports and texts; parsing is most of the work, and every rule reads the same modules."""
    return tuple(
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Import | ast.ImportFrom)
        or (isinstance(node, ast.Constant) and str(node.value).startswith(f"{PACKAGE}."))
    )


def fence_faults(sources: Mapping[str, str]) -> list[str]:
    """Every import that crosses a fence, as a sentence."""
    faults = []
    for module, source in sources.items():
        room = BY_NAME.get(room_of(module))
        if room is None:
            faults.append(f"{module}: the room {room_of(module)!r} has no place in the list of rooms")
            continue
        for target in imports_of(source, set(sources)):
            top = target.split(".")[0]
            if not top:
                faults.append(f"{module}: relative import; write the full name")
            elif top == PACKAGE:
                inner = room_of(target)
                if inner != room.name and inner not in room.imports:
                    faults.append(f"{module}: {room.name} may not import {inner}")
                elif inner == BY_DOOR != room.name and target != f"{PACKAGE}.{BY_DOOR}":
                    faults.append(f"{module}: {room.name} asks {PACKAGE}.{BY_DOOR}, and no module inside it")
            elif top in FENCED:
                if top not in room.packages:
                    faults.append(f"{module}: {top} is fenced out of {room.name}")
            elif top not in sys.stdlib_module_names:
                faults.append(f"{module}: {top} is neither the standard library's nor listed with any room")
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
    lines = [*project["dependencies"], *extras["server"], *extras["plot"], *extras["spark"]]
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
    assert not imported_with([*ENTRY_POINTS, *IMPORTED_LATER], package) & servers


def test_the_command_line_needs_no_package(package: dict[str, str]) -> None:
    assert imported_with(COMMAND_LINE, package) <= set(sys.stdlib_module_names)


@pytest.mark.parametrize("module", sorted({command.module for command in COMMANDS}))
def test_no_command_needs_frames_or_pictures(package: dict[str, str], module: str) -> None:
    imported = imported_with([module], package)
    assert "argparse" in imported
    assert not imported & {"pandas", "polars", "matplotlib"}


def test_commands_have_the_functions_that_they_name() -> None:
    for command in COMMANDS:
        function = getattr(import_module(command.module), command.name.replace("-", "_"))
        assert list(inspect.signature(function).parameters) in (["arguments"], ["_"]), command.name


def test_each_public_name_is_imported_or_has_a_module(package: dict[str, str]) -> None:
    tree = ast.parse(package[PACKAGE])
    (for_checkers,) = (node for node in tree.body if isinstance(node, ast.If) and len(node.body) > 2)
    assert ast.unparse(for_checkers.test) == "TYPE_CHECKING"
    later = names_imported(for_checkers.body)
    assert later == dpsql._MODULES
    at_once = [name for name, module in names_imported(tree.body).items() if module == f"{PACKAGE}.errors"]
    assert sorted([*at_once, *later]) == dpsql.__all__


def names_imported(statements: Sequence[ast.stmt]) -> dict[str, str]:
    """Modules of the names that statements import from a module; a module below dpsql is its own."""
    return {
        alias.name: f"{PACKAGE}.{alias.name}" if node.module == PACKAGE else node.module or ""
        for node in statements
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def test_a_package_is_needed_where_it_is_imported_at_the_top() -> None:
    lazy = {**CLEAN, "dpsql.session": "def f():\n    import uvicorn\nfrom dpsql import sql"}
    assert imported_with(["dpsql"], lazy) == set()
    assert imported_with(["dpsql"], {**lazy, "dpsql.sql": "import uvicorn.main"}) == {"uvicorn"}


CLEAN = {
    "dpsql": "from dpsql.session import Session",
    "dpsql.errors": "",
    "dpsql.session": "import duckdb\nfrom dpsql import errors\nfrom dpsql.sql.parse import parse",
    "dpsql.sql": "",
    "dpsql.sql.parse": "import sqlglot\nfrom dpsql.errors import ParseError",
}


def test_the_fence_accepts_a_clean_package() -> None:
    assert fence_faults(CLEAN) == []
    assert dead_modules(CLEAN) == set()
    assert import_cycles(CLEAN) == set()


@pytest.mark.parametrize(
    ("module", "planted", "complaint"),
    [
        ("dpsql.sql.parse", "import duckdb", "duckdb is fenced out of sql"),
        (
            "dpsql.sql.parse",
            "def f():\n    from dpsql.accounting import zcdp",
            "sql may not import accounting",
        ),
        ("dpsql.sql.parse", "import dpsql.session as s", "sql may not import session"),
        ("dpsql.sql.parse", "from dpsql import session", "sql may not import session"),
        ("dpsql.sql.parse", "if TYPE_CHECKING:\n    import sqlite3", "sqlite3 is fenced out of sql"),
        ("dpsql.sql.parse", "from . import plan", "relative import"),
        ("dpsql.session", "import sqlglot.exp", "sqlglot is fenced out of session"),
        ("dpsql.session", "from requests import get", "requests is neither"),
        ("dpsql.errors", "from dpsql import assets", "errors may not import"),
        ("dpsql.state.ledger", "from dpsql.cascade.cascade import Point", "state may not import cascade"),
        ("dpsql.noise.gshm", "from dpsql.sql import parse", "noise may not import sql"),
        ("dpsql.plan.frames", "from dpsql.mechanism.registry import choose", "plan may not import mechanism"),
        ("dpsql.plan.features.auto", "from dpsql.plan import planner", "plan.features may not import plan"),
        ("dpsql.bound.aggregation", "import sqlglot", "sqlglot is fenced out of bound"),
        ("dpsql.frontends.dbt.plugin", "from dpsql.engine import DuckDBEngine", "frontends.dbt may not import engine"),
        ("dpsql.frontends.frames.rows", "from dpsql.state import Policy", "frontends.frames may not import state"),
        ("dpsql.frontends.server.messages", "import dpsql.cascade.reader", "frontends.server may not import cascade"),
        ("dpsql.frontends.shell.launch", "from dpsql.sql import parse", "frontends.shell may not import sql"),
        ("dpsql.access.queries", "from starlette.requests import Request", "starlette is fenced out of access"),
        (
            "dpsql.access.queries",
            "from dpsql.frontends.server import messages",
            "access may not import frontends.serve",
        ),
        ("dpsql.frontends.cli", "from dpsql.operations.dialect import quote", "frontends may not import operations"),
        ("dpsql.frontends.cli", "from dpsql.session.session import LazyState", "asks dpsql.session, and no module"),
        ("dpsql.attic.old", "", "no place in the list of rooms"),
    ],
)
def test_the_fence_catches_a_planted_fault(module: str, planted: str, complaint: str) -> None:
    faults = fence_faults({**CLEAN, module: planted})
    assert len(faults) == 1
    assert complaint in faults[0]


def test_a_dead_module_is_caught() -> None:
    assert dead_modules({**CLEAN, "dpsql.sql.unused": ""}) == {"dpsql.sql.unused"}


def test_a_module_whose_name_stands_in_a_text_is_imported() -> None:
    named = {**CLEAN, "dpsql.sql.later": "", "dpsql.session": f"{CLEAN['dpsql.session']}\nLATER = 'dpsql.sql.later'"}
    assert dead_modules(named) == set()
    assert fence_faults({**named, "dpsql.errors": "LATER = 'dpsql.sql.later'"}) == [
        "dpsql.errors: errors may not import sql"
    ]


def test_a_cycle_is_caught() -> None:
    cyclic = {**CLEAN, "dpsql.sql.plan": "from dpsql.sql import parse"}
    cyclic["dpsql.sql.parse"] = "from dpsql.sql.plan import plan"
    assert import_cycles(cyclic) == {
        frozenset({"dpsql.sql.plan", "dpsql.sql.parse"}),
        frozenset({"dpsql.sql.plan"}),
        frozenset({"dpsql.sql.parse"}),
    }
