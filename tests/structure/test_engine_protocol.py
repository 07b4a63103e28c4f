"""The protocol of an engine lists what the rooms ask of one: nothing else is asked, and nothing is listed in vain."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

import dpsql
from dpsql.engine import Definitions, DuckDBEngine, Engine, Transaction
from dpsql.session import engines
from tests.documents.pages import ROOT
from tests.structure.source_figures import Module, modules_of, parsed

LISTED: dict[type, set[str]] = {
    kind: {name for name in vars(kind) if not name.startswith("_")} for kind in (Engine, Transaction)
}
NAMES: dict[type, tuple[str, str]] = {Engine: ("engine", "_engine"), Transaction: ("transaction", "_transaction")}
"""Names under which code has an engine, and a transaction of one."""
ROOMS_OF_ROWS = ("dpsql.release", "dpsql.features")
"""Rooms whose transactions are those of an engine; the state file has others."""


def asked_of(kind: type, modules: Sequence[Module]) -> Iterator[str]:
    """Yield the attributes of whatever is called an engine or a transaction, outside of the room of engines."""
    for module in modules:
        if module.name.startswith("dpsql.engine") or (
            kind is Transaction and not module.name.startswith(ROOMS_OF_ROWS)
        ):
            continue
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Attribute) and ast.unparse(node.value).rpartition(".")[2] in NAMES[kind]:
                yield node.attr


@pytest.mark.parametrize("kind", LISTED)
def test_the_rooms_ask_what_the_protocol_lists(kind: type) -> None:
    assert set(asked_of(kind, modules_of(ROOT))) == LISTED[kind]


def test_other_attributes_of_engines_are_found() -> None:
    planted = {
        "dpsql.release.planted": "engine.a()\nruntime.engine.b\nself._engine.c()\nself.engines.d()\ntransaction.f()\n",
        "dpsql.state.planted": "transaction.g()\n",
        "dpsql.engine.planted": "engine.e()\ntransaction.h()\n",
    }
    assert sorted(asked_of(Engine, parsed(planted))) == ["a", "b", "c"]
    assert list(asked_of(Transaction, parsed(planted))) == ["f"]


class _Of:
    """An object of another class that answers what a protocol lists, and nothing else."""

    def __init__(self, kind: type, inner: Any) -> None:
        self._kind, self._inner = kind, inner

    def __getattr__(self, name: str) -> Any:
        if name not in LISTED[self._kind]:
            raise AssertionError(f"{name} is not listed")
        return getattr(self._inner, name)


class _Listed(_Of):
    """An engine that is no `DuckDBEngine`, and whose transactions are none of DuckDB."""

    def __init__(self, *given: Any) -> None:
        (first, *_) = given
        super().__init__(Engine, first if isinstance(first, DuckDBEngine) else DuckDBEngine(*given))

    def while_defined(self, planned: Definitions) -> _Listed:
        return _Listed(self._inner.while_defined(planned))

    @contextmanager
    def transaction(self, *within: float | None) -> Iterator[_Of]:
        with self._inner.transaction(*within) as transaction:
            yield _Of(Transaction, transaction)


@pytest.mark.parametrize(
    "text",
    [
        "SELECT city, count(*) AS n FROM visits GROUP BY city",
        "SELECT city, sum(cost) AS cost FROM visits GROUP BY city",
        "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (max_groups_contributed = AUTO) city, count(*) AS n, "
        "sum(cost) AS cost FROM visits GROUP BY city",
        "SELECT city, count(*) AS n FROM (SELECT * FROM visits WHERE cost > 1) GROUP BY city",
        "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (mechanism = MISRA_GRIES, sketch_size = 50) city, "
        "count(DISTINCT patient) AS n FROM visits GROUP BY city",
    ],
)
def test_an_engine_of_another_class_answers(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "DuckDBEngine", _Listed)
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
