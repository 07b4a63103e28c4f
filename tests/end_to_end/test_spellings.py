"""Random texts of the everyday spellings: the rows of DuckDB without noise, and the loss of one person."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

import duckdb
import pytest

import dpsql
from tests.end_to_end.composed import spent
from tests.end_to_end.prepared import with_own_state
from tests.end_to_end.retail_schema import LEVEL, NUMBERS, create_tables, tables_without_a_customer
from tests.end_to_end.spelling_cases import KEYS_OF_COLUMNS, SpelledText, random_text
from tests.end_to_end.two_worlds import watched

_ABOVE = 1.0 + 1e-9


@pytest.fixture(scope="module")
def prepared() -> Iterator[dpsql.Session]:
    """Tables of a shop, without noise."""
    with dpsql.connect(threads=1) as session:
        create_tables(session)
        for text in KEYS_OF_COLUMNS:
            session.sql(text)
        yield session


def _is_close(shown: Any, exact: Any, tolerance: float) -> bool:
    if isinstance(exact, list):
        return len(shown) == len(exact) and all(map(_is_close, shown, exact, [tolerance] * len(exact)))
    if isinstance(exact, dict):
        # a list of public values has those without rows, too
        return {key: count for key, count in dict(shown).items() if count} == exact
    if isinstance(shown, NUMBERS) and isinstance(exact, NUMBERS):
        return math.isclose(shown, exact, rel_tol=1e-4, abs_tol=max(tolerance, 1e-4))
    return bool(shown == exact)


def _by_keys(rows: Sequence[tuple[Any, ...]], keys: int) -> list[tuple[Any, ...]]:
    return sorted(rows, key=lambda row: str(row[:keys]))


def _assert_equal(session: dpsql.Session, text: SpelledText) -> None:
    keys = text.plain.count(" AS k")
    shown = _by_keys(session.sql(text.sql, **LEVEL).fetchall(), keys)
    exact = _by_keys(session.connection.execute(text.plain).fetchall(), keys)
    assert [row[:keys] for row in shown] == [row[:keys] for row in exact], text.sql
    for row, other in zip(shown, exact, strict=True):
        for value, known, tolerance in zip(row, other, text.tolerances, strict=True):
            assert _is_close(value, known, tolerance), (text.sql, value, known)


@pytest.mark.long
def test_without_noise_an_answer_has_the_rows_of_duckdb(prepared: dpsql.Session) -> None:
    rng = Random(1500)
    with with_own_state(prepared) as session:
        for _ in range(1500):
            _assert_equal(session, random_text(rng))


@pytest.fixture(scope="module")
def beside() -> Iterator[duckdb.DuckDBPyConnection]:
    with tables_without_a_customer() as connection:
        yield connection


@pytest.mark.parametrize("texts", [60, pytest.param(500, marks=pytest.mark.long)])
def test_an_answer_is_that_of_duckdb_and_one_person_moves_it_by_no_more_than_the_charge(
    prepared: dpsql.Session, beside: duckdb.DuckDBPyConnection, texts: int
) -> None:
    rng, largest = Random(5000 + texts), 0.0
    for _ in range(texts):
        text = random_text(rng)
        with with_own_state(prepared) as session, watched(beside) as worlds:
            before = spent(session, "shopper")
            _assert_equal(session, text)
            charged = (spent(session, "shopper").rho_nano - before.rho_nano) / 1e9
            assert worlds.loss <= charged * _ABOVE, text.sql
            largest = max(largest, worlds.loss / charged)
    assert largest > 0.1
