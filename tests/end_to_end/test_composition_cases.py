"""Random texts of several parts: plain DuckDB runs them, and they are of all forms."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random

import duckdb
import pytest

from tests.end_to_end.composition_cases import FORMS, random_composition
from tests.end_to_end.retail_schema import SETUP

TEXTS = 60


@pytest.fixture(scope="module")
def connection() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect(":memory:") as connection:
        for text in SETUP:
            connection.execute(text)
        yield connection


def test_random_texts_run_in_plain_duckdb(connection: duckdb.DuckDBPyConnection) -> None:
    rng = Random(1)
    shown = [connection.execute(random_composition(rng)).fetchall() for _ in range(TEXTS)]
    assert sum(map(bool, shown)) >= 0.9 * TEXTS


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)
def test_each_form_has_many_texts(connection: duckdb.DuckDBPyConnection, form: Callable[[Random], str]) -> None:
    texts = {form(Random(seed)) for seed in range(10)}
    assert len(texts) == 10
    for text in texts:
        connection.execute(text)


def test_equal_seeds_give_equal_texts() -> None:
    assert random_composition(Random(7)) == random_composition(Random(7))
