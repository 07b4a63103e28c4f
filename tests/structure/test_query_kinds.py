"""Each kind of query is a row and a file of its own; who asks a kind names none."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from importlib import import_module

import pytest

from dpsql.features import kinds
from dpsql.features.kinds import KINDS
from dpsql.features.query_kind import QueryKind
from dpsql.model import query_kinds
from dpsql.model.private_query import PrivateQuery
from tests.documents.pages import ROOT
from tests.structure.source_figures import module_sources

NAMES = {
    name
    for name, found in vars(query_kinds).items()
    if isinstance(found, type) and issubclass(found, PrivateQuery) and found is not PrivateQuery
}
ASKING = (
    "dpsql.receipts.plan_rows",
    "dpsql.release.stage",
    "dpsql.features.auto",
    "dpsql.features.auto_outcomes",
    "dpsql.features.auto_undrawable",
    "dpsql.features.query_kind",
    "dpsql.session.asked_level",
    "dpsql.session.explain",
    "dpsql.session.runner",
)
"""Modules that ask the kind of a query, or are asked by every kind."""
OF_KINDS = {row if isinstance(row, str) else type(row).__module__ for row in KINDS.values()}


def kinds_named(source: str) -> set[str]:
    """Return the kinds that a source names, as a name, as part of one, or in an import."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, ast.Attribute):
            found.add(node.attr)
        elif isinstance(node, ast.alias):
            found.add(node.name)
    return found & NAMES


def importers(sources: Mapping[str, str], module: str) -> Iterator[str]:
    """Yield the modules that import a module, at the top or later."""
    room, _, name = module.rpartition(".")
    # most sources need not be parsed
    for importer, source in ((one, text) for one, text in sources.items() if name in text):
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.ImportFrom) and (
                node.module == module or (node.module == room and name in {alias.name for alias in node.names})
            ):
                yield importer


@pytest.fixture(scope="module")
def sources() -> dict[str, str]:
    return module_sources(ROOT)


def test_each_kind_has_one_row_and_one_file() -> None:
    assert {kind.__name__ for kind in KINDS} == NAMES
    assert len(OF_KINDS) == len(KINDS)
    for module in OF_KINDS:
        assert isinstance(import_module(module).KIND, QueryKind), module
    assert QueryKind.__abstractmethods__ == {"stages"}


@pytest.mark.parametrize("module", ASKING)
def test_who_asks_a_kind_names_none(sources: Mapping[str, str], module: str) -> None:
    assert kinds_named(sources[module]) == set()


def test_no_kind_is_imported_but_by_the_list(sources: Mapping[str, str]) -> None:
    found = {module: list(importers(sources, module)) for module in OF_KINDS}
    # the kind of the simplest query is there from the start
    assert found.pop("dpsql.features.one_set") == [kinds.__name__]
    assert not any(found.values()), found


@pytest.mark.parametrize(
    "planted",
    [
        "match query:\n    case GroupingSets():\n        pass",
        "isinstance(query, query_kinds.KeysFirst)",
        "from dpsql.model.query_kinds import OneSet as Plain",
    ],
)
def test_a_kind_that_is_named_is_found(planted: str) -> None:
    assert len(kinds_named(planted)) == 1
    assert list(importers({"dpsql.session.runner": "from dpsql.features import one_set"}, "dpsql.features.one_set"))
