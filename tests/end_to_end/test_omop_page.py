"""The summaries of `docs/omop.md`: without noise they are those of DuckDB, and quantiles lie within a cell."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import dpsql
from tests.documents.pages import ROOT, read_page, statements
from tests.end_to_end.everyday_schema import LEVEL, assert_equal_rows
from tests.end_to_end.omop_schema import SETUP
from tests.noise_sources import silence

DECLARATIONS, *SUMMARIES = (block.text for block in read_page(ROOT / "docs" / "omop.md").blocks)
HIGHEST = (110, 1100, 5, 16, 110, 110, 200, 100, 200, 10)
"""The upper bound of the number that each summary is about. The lower one is 0."""
CELLS = 64
"""Cells of the histogram of a quantile. Those next to 0 are smaller."""
IDS = [f"summary {number}" for number in range(1, 11)]
UNIT = "CALL dp_unit('person', rho_budget := 9e9, delta_threshold := 0.4, delta_conversion := 0.1)"


@pytest.fixture(scope="module")
def session() -> Iterator[dpsql.Session]:
    with dpsql.connect(threads=1) as session:
        for text in SETUP:
            session.connection.execute(text)
        for text in statements(DECLARATIONS):
            session.sql(UNIT if text.startswith("CALL dp_unit") else text)
        silence(session)
        yield session


@pytest.mark.parametrize(("text", "highest"), tuple(zip(SUMMARIES, HIGHEST, strict=True)), ids=IDS)
def test_a_summary_is_that_of_duckdb(session: dpsql.Session, text: str, highest: int) -> None:
    right = session.connection.execute(text)
    names, rows = [column[0] for column in right.description], right.fetchall()
    within = dict.fromkeys(("quartiles", "quantiles"), highest / CELLS)
    assert len(rows) >= 2
    assert_equal_rows(session.sql(text, coverage=False, **LEVEL).fetchall(), rows, names, within, ordered=False)
