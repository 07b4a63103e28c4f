"""All noise comes from one source over the operating system's words, and nothing in dpsql can hand in another one.

Tests replace the source through a private attribute. The package has no second source, and no parameter, option or
variable by which one could be named.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence

import pytest

import dpsql
from dpsql.frontends import pandas_accessor
from dpsql.model.private_query import OPTION_NAMES
from dpsql.noise.entropy import NoiseSource, SystemEntropy
from dpsql.session.declare import ARGUMENTS
from dpsql.session.runner import StatementRunner
from tests.documents.pages import ROOT
from tests.structure.limits import PUBLIC_CLASSES
from tests.structure.source_figures import Function, Module, modules_of, parsed

RANDOMNESS = re.compile(r"noise|entropy|seed|random|rng|quiet|silent")
SOURCES = ("Entropy", "NoiseSource", "SystemEntropy")
PASSED_ON = (
    "dpsql.noise",
    "dpsql.mechanism",
    "dpsql.cascade",
    "dpsql.release",
    "dpsql.receipts",
    "dpsql.features",
    "dpsql.session.runner",
)
"""Modules that know of the source; where a session begins and what is public are not among them."""

Search = Callable[[Sequence[Module]], Iterator[str]]


def classes_that_draw(modules: Sequence[Module]) -> Iterator[str]:
    """Classes that hand out random words, or that stand for one of the sources."""
    for module in modules:
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ClassDef):
                bases = {ast.unparse(base).rpartition(".")[2] for base in node.bases}
                methods = {child.name for child in node.body if isinstance(child, Function)}
                if node.name in SOURCES or bases & set(SOURCES) or "words" in methods:
                    yield f"{module.name}.{node.name}"


def sources_made(modules: Sequence[Module]) -> Iterator[str]:
    """Calls that make a source, or hand one to the steps of an answer, with the module that they stand in."""
    for module in modules:
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in (*SOURCES, "Runtime"):
                yield f"{module.name}: {ast.unparse(node)}"


def sources_assigned(modules: Sequence[Module]) -> Iterator[str]:
    """Statements that give an object its source, by whatever name, and keywords that do."""
    for module in modules:
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Attribute) and node.attr == "noise_source" and isinstance(node.ctx, ast.Store):
                yield f"{module.name}: {ast.unparse(node)}"
            if isinstance(node, ast.Constant | ast.keyword) and "noise_source" in (
                node.value if isinstance(node, ast.Constant) else node.arg,
            ):
                yield f"{module.name}: {ast.unparse(node)}"


def modules_that_know(modules: Sequence[Module]) -> Iterator[str]:
    """Modules that name a source and are none of those that pass it on."""
    for module in modules:
        names = {node.id for node in ast.walk(module.tree) if isinstance(node, ast.Name)}
        names |= {node.attr for node in ast.walk(module.tree) if isinstance(node, ast.Attribute)}
        names |= {
            alias.name for node in ast.walk(module.tree) if isinstance(node, ast.ImportFrom) for alias in node.names
        }
        if names & {*SOURCES, "noise_source", "urandom"} and not module.name.startswith(PASSED_ON):
            yield module.name


def flags(modules: Sequence[Module]) -> Iterator[str]:
    """Command-line flags and variables of the environment that sound of randomness."""
    for module in modules:
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                text = node.value
                if re.fullmatch(r"--[a-z-]+|DPSQL_\w+", text) and RANDOMNESS.search(text.lower()):
                    yield f"{module.name}: {text}"


FINDINGS: Mapping[Search, list[str]] = {
    classes_that_draw: [f"dpsql.noise.entropy.{name}" for name in SOURCES],
    sources_made: [
        "dpsql.cascade.cascade: SystemEntropy()",
        "dpsql.session.runner: NoiseSource(SystemEntropy())",
        "dpsql.session.runner: Runtime(state, self.engine, self.sandbox, self.noise_source)",
        "dpsql.session.runner: Runtime(state, engine, self.sandbox, self.noise_source, "
        "logs_changes=self._logs_changes)",
        "dpsql.session.runner: SystemEntropy()",
    ],
    sources_assigned: ["dpsql.session.runner: self.noise_source"],
    # the salt of a frame
    modules_that_know: ["dpsql.state.side_table"],
    flags: [],
}
"""What each search finds in dpsql, all of it."""

PLANTED: Mapping[Search, str] = {
    classes_that_draw: "class Silent(NoiseSource):\n    pass",
    sources_made: "source = entropy.NoiseSource(Zeros())",
    sources_assigned: "setattr(runner, 'noise_source', Zeros())",
    modules_that_know: "from dpsql.noise.entropy import NoiseSource as Source",
    flags: "parser.add_argument('--no-noise')",
}


@pytest.fixture(scope="module")
def modules() -> tuple[Module, ...]:
    return modules_of(ROOT)


@pytest.mark.parametrize("search", FINDINGS, ids=lambda search: search.__name__)
def test_there_is_one_source_of_noise(modules: tuple[Module, ...], search: Search) -> None:
    assert sorted(search(modules)) == sorted(FINDINGS[search])


@pytest.mark.parametrize("search", PLANTED, ids=lambda search: search.__name__)
def test_a_planted_source_is_found(search: Search) -> None:
    assert list(search(parsed({"dpsql.frontends.planted": PLANTED[search]})))


def test_a_desk_draws_from_the_system() -> None:
    with dpsql.connect() as session:
        assert type(session._runner.noise_source) is NoiseSource
        assert type(session._runner.noise_source.entropy) is SystemEntropy


def public_signatures() -> Iterator[tuple[str, inspect.Signature]]:
    """Signatures of everything that users call, by name."""
    named = {name: getattr(dpsql, name) for name in dpsql.__all__}
    named |= {f"remote.{name}": getattr(dpsql.remote, name) for name in dpsql.remote.__all__}
    named |= {name: getattr(pandas_accessor, name) for name in PUBLIC_CLASSES}
    for name, each in named.items():
        if callable(each) and name not in dpsql.errors.__dict__:
            yield name, inspect.signature(each)
        if inspect.isclass(each):
            members = inspect.getmembers(each, inspect.isfunction)
            yield from ((f"{name}.{called}", inspect.signature(method)) for called, method in members)


def test_nothing_public_takes_noise() -> None:
    signatures = dict(public_signatures())
    assert {"connect", "Session.sql", "Session.__init__", "from_frame"} <= set(signatures)
    words = [(name, each) for name, signature in signatures.items() for each in signature.parameters]
    words += [("option", each) for each in OPTION_NAMES]
    words += [(declaration, each) for declaration, arguments in ARGUMENTS.items() for each in arguments]
    assert [each for each in words if RANDOMNESS.search(each[1])] == []


def test_a_desk_is_made_without_a_source() -> None:
    assert list(inspect.signature(StatementRunner).parameters) == ["access", "engine", "logs_changes"]
