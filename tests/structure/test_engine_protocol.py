"""The protocol of an engine lists what the rooms ask of one: nothing else is asked, and nothing is listed in vain."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

import pytest

import dpsql
from dpsql.engine import DuckDBEngine, Engine
from dpsql.session import session as session_module
from tests.documents.pages import ROOT
from tests.structure.source_figures import Module, module_sources, parsed

LISTED = {name for name in vars(Engine) if not name.startswith("_")}
NAMES = ("engine", "_engine")
"""Names under which code has an engine."""


def asked_of_engines(modules: Sequence[Module]) -> Iterator[str]:
    """Yield the attributes of whatever is called an engine, outside of the room of engines."""
    for module in modules:
        if module.name.startswith("dpsql.engine"):
            continue
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Attribute) and ast.unparse(node.value).rpartition(".")[2] in NAMES:
                yield node.attr


def test_the_rooms_ask_what_the_protocol_lists() -> None:
    assert set(asked_of_engines(parsed(module_sources(ROOT)))) == LISTED


def test_other_attributes_of_engines_are_found() -> None:
    planted = {
        "dpsql.release.planted": "engine.a()\nruntime.engine.b\nself._engine.c()\nself.engines.d()\n",
        "dpsql.engine.planted": "engine.e()\n",
    }
    assert sorted(asked_of_engines(parsed(planted))) == ["a", "b", "c"]


class _Listed:
    """An engine that is no `DuckDBEngine`, and answers what the protocol lists."""

    def __init__(self, *given: object) -> None:
        self._inner = DuckDBEngine(*given)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> object:
        if name not in LISTED:
            raise AssertionError(f"{name} is not listed")
        return getattr(self._inner, name)


@pytest.mark.parametrize(
    "text",
    [
        "SELECT city, count(*) AS n FROM visits GROUP BY city",
        "SELECT city, sum(cost) AS cost FROM visits GROUP BY city",
        "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (mechanism = MISRA_GRIES, sketch_size = 50) city, "
        "count(DISTINCT patient) AS n FROM visits GROUP BY city",
    ],
)
def test_an_engine_of_another_class_answers(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_module, "DuckDBEngine", _Listed)
    with dpsql.connect() as session:
        session.connection.execute(
            "CREATE TABLE visits AS SELECT i AS patient, 'city ' || i % 3 AS city, i % 7 AS cost FROM range(900) t(i)"
        )
        session.sql(
            "CALL dp_protect('visits', privacy_unit_column := 'patient', max_groups_contributed := 2, "
            "epsilon_budget := 50, delta_budget := 1e-4)"
        )
        assert len(session.sql(text, rho=1.0, delta=1e-6).fetchall()) == 3
        assert session.warnings == ()
