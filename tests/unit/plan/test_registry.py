"""Every aggregate has one row, and every row is met by the parser, the pages and a record."""

from __future__ import annotations

from pathlib import Path

import pytest

from dpsql.plan.aggregates.registry import AGGREGATES, BY_NAME
from dpsql.sql.clauses import AGGREGATE_NAMES, PRIVATE_AGGREGATES
from tests.sql.golden_records import records

PAGE = Path(__file__).parents[3] / "docs" / "sql-aggregates.md"


def test_names_of_the_parser_are_those_of_the_rows() -> None:
    assert set(AGGREGATE_NAMES) == set(BY_NAME)
    assert len(BY_NAME) == sum(len(kind.names) for kind in AGGREGATES)
    assert {name.removeprefix("dp_") for name in PRIVATE_AGGREGATES} <= set(BY_NAME)


@pytest.mark.parametrize("name", BY_NAME)
def test_every_name_is_documented_answered_and_planned(name: str) -> None:
    answered = [record.sql for record in records() if record.directive in ("exact", "plan")]
    assert f"`{name}(" in PAGE.read_text(encoding="utf-8")
    assert any(f"{name}(" in sql for sql in answered)
