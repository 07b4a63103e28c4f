"""Which statements run for a text does not hang on one person's one row, on the edges of `benchmarks.one_row_texts`.

Statements are compared, and no time is taken. Both databases have the same salts and the same random words.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import dpsql
from benchmarks.one_row_texts import KINDS, Edge, Scale, Text, Writer, edges, opened
from benchmarks.time_of_one_row import planted
from dpsql.assets import native_library
from dpsql.engine import DuckDBEngine
from dpsql.engine.connection import _LocalCursor
from dpsql.engine.sandbox import Sandbox
from dpsql.errors import DpsqlError
from dpsql.release import formulation, held_pairs
from dpsql.state import side_table
from tests.end_to_end.prepared import with_own_state
from tests.noise_sources import seeded_noise

SCALE = Scale(2_000)
_NUMBER = re.compile(r"-?\d+(\.\d+)?(e[-+]?\d+)?")

Worlds = tuple[dpsql.Session, dpsql.Session]


@pytest.fixture(scope="module")
def worlds() -> Iterator[Worlds]:
    with opened(SCALE, has_row=False) as without, opened(SCALE, has_row=True) as having:
        yield without, having


@pytest.fixture(scope="module")
def known(worlds: Worlds) -> list[Edge]:
    return edges(SCALE, [world.connection for world in worlds])


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that gets each statement that runs on rows or on what was read of them."""
    statements: list[str] = []
    # these tables are small, and their sizes choose all the same
    monkeypatch.setattr(formulation, "_FEW_ROWS", 10)

    def recorded(function: Callable[..., Any]) -> Callable[..., Any]:
        def run(self: object, sql: str, *of: Any, **named: Any) -> Any:
            statements.append(sql)
            return function(self, sql, *of, **named)

        return run

    for place, name in ((_LocalCursor, "rows"), (_LocalCursor, "table"), (_LocalCursor, "pieces"), (Sandbox, "run")):
        monkeypatch.setattr(place, name, recorded(getattr(place, name)))
    return statements


def work(
    world: dpsql.Session, text: Text, ran: list[str], monkeypatch: pytest.MonkeyPatch, library: Path | None
) -> list[str]:
    """Ask a text of a new state, with salts that are always the same, and return the statements that run."""
    salts = iter(range(10**6))
    monkeypatch.setattr(side_table, "os", SimpleNamespace(urandom=lambda size: next(salts).to_bytes(size)))
    monkeypatch.setattr(held_pairs, "secrets", SimpleNamespace(token_bytes=bytes))
    with with_own_state(world) as session:
        engine = session._runner.engine = DuckDBEngine(session.connection, library)
        # the library is loaded before anything is recorded, if it is built
        engine.has_native  # noqa: B018
        ran.clear()
        session._runner.noise_source = seeded_noise(1)
        try:
            session.sql(text.sql, **text.options)
        except DpsqlError as error:
            if not str(error).startswith("AUTO found"):
                raise
    # what AUTO found is in its statements, and was paid for
    return [_NUMBER.sub("0", sql) for sql in ran] if text.kind == "AUTO" else list(ran)


def differences(worlds: Worlds, texts: list[Text], ran: list[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Yield what runs for a text in one of the databases alone."""
    for place, text in enumerate(texts):
        library = native_library() if place % 2 else None
        without, having = (work(world, text, ran, monkeypatch, library) for world in worlds)
        assert without
        if without != having:
            first = next((pair for pair in zip(without, having, strict=False) if pair[0] != pair[1]), ("", ""))
            yield f"{text.kind}, {text.edge}: {text.sql}\n  {len(without)} and {len(having)}\n  " + "\n  ".join(first)


def test_one_row_changes_no_statement(
    worlds: Worlds, known: list[Edge], ran: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [Writer(known).text(number) for number in range(0, 24, 3)]
    assert {text.kind for text in texts} == set(KINDS)
    assert not (found := list(differences(worlds, texts, ran, monkeypatch))), "\n".join(found)


@pytest.mark.long
def test_one_row_changes_no_statement_of_many(
    worlds: Worlds, known: list[Edge], ran: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [Writer(known).text(number) for number in range(120)]
    assert {text.edge for text in texts} == {edge.name for edge in known}
    assert not (found := list(differences(worlds, texts, ran, monkeypatch))), "\n".join(found)


def test_a_fixed_number_of_rows_that_decides_is_found(
    worlds: Worlds, known: list[Edge], ran: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = next(text for text in map(Writer(known).text, range(60)) if text.kind == "join" and "t.id <=" in text.sql)
    with planted(SCALE.half):
        assert list(differences(worlds, [text], ran, monkeypatch))
