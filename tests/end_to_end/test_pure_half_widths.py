"""Half widths that a pure unit's budget does not cover: the smallest ones that it covers are told."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import pytest

import dpsql
from dpsql.errors import BudgetError
from tests.end_to_end.prepared import with_declarations, with_own_state
from tests.end_to_end.receipts import receipt_of

TABLES = "CREATE TABLE v AS SELECT i AS person, i % 5 AS city, i % 11 AS nights FROM range(2000) t(i)"
DECLARED = (
    "CALL dp_unit('person', epsilon_budget := 9, delta_budget := 1e-6, composition := 'pure')",
    "CALL dp_protect('v', unit := 'person', privacy_unit_column := 'person', max_groups_contributed := 2, "
    "max_rows_per_group := 5)",
)
UNITS = "SELECT count(DISTINCT person) AS n FROM v"
ROWS = "SELECT count(*) AS n FROM v"
SUM = "SELECT sum(nights, contribution_bounds_per_row => (0, 10)) AS s FROM v"
BOTH = SUM.replace(" AS s", " AS s, count(DISTINCT person) AS n")
CITIES = "SELECT city, count(DISTINCT person) AS n FROM v GROUP BY city"
Widths = float | dict[str, float]


@pytest.fixture(scope="module")
def declared() -> Iterator[dpsql.Session]:
    with with_declarations(TABLES, DECLARED) as session:
        yield session


@pytest.fixture
def hotel(declared: dpsql.Session) -> Iterator[dpsql.Session]:
    with with_own_state(declared) as session:
        yield session


def _told(session: dpsql.Session | dpsql.Analyst, text: str, target: object) -> Widths:
    """Return the half widths that a refusal tells to write."""
    with pytest.raises(BudgetError) as caught:
        session.sql(text, target_half_width=target)
    found = re.search(r"Write target_half_width = (\{[^}]*\}|[\d.e+]*\d)", str(caught.value))
    assert found, str(caught.value)
    if named := re.findall(r"(\w+)'?: ([\d.e+]*\d)", found[1]):
        return {name: float(width) for name, width in named}
    return float(found[1])


def _smaller(widths: Widths, *, are_whole: bool) -> Widths:
    """Return half widths that are 10 % smaller, or a step if that is more."""
    if isinstance(widths, Mapping):
        return {name: 0.9 * width for name, width in widths.items()}
    return min(0.9 * widths, widths - 1.0) if are_whole and widths > 1.0 else 0.9 * widths


@pytest.mark.parametrize("left", [0.01, 0.3, 0.9, 2.0])
@pytest.mark.parametrize(
    ("text", "target"),
    [
        (UNITS, 0.01),
        (UNITS, 0.2),
        (ROWS, 0.7),
        (SUM, 0.6),
        (BOTH, {"n": 0.5, "s": 3.0}),
        (BOTH, 2.0),
        (CITIES, 0.5),
    ],
)
def test_half_widths_that_are_told_are_the_smallest_ones(
    hotel: dpsql.Session, text: str, target: Widths, left: float
) -> None:
    hotel.sql(f"CALL dp_unit('person', epsilon_budget := {left})")
    told, are_whole = _told(hotel, text, target), text in {UNITS, CITIES}
    if are_whole:
        assert isinstance(told, float)
        assert told.is_integer()
    with pytest.raises(BudgetError):
        hotel.sql(text, target_half_width=_smaller(told, are_whole=are_whole))
    receipt = receipt_of(hotel.sql(text, target_half_width=told))
    for column in receipt.columns:
        width = told if isinstance(told, float) else told[column.name]
        assert column.half_width_95 is not None
        assert column.half_width_95 <= width
    assert 0.8 * left < receipt.charged_rho <= left


@pytest.mark.parametrize(("left", "width"), [(2.0, 1.0), (0.9, 3.0), (0.3, 10.0)])
def test_widths_of_counts_are_whole_and_do_not_depend_on_what_was_asked(
    hotel: dpsql.Session, left: float, width: float
) -> None:
    hotel.sql(f"CALL dp_unit('person', epsilon_budget := {left})")
    assert [_told(hotel, UNITS, target) for target in (0.01, 0.2, 0.9)] == [width] * 3


def test_what_is_stored_or_not_for_an_analyst_is_not_left(hotel: dpsql.Session) -> None:
    hotel.sql(UNITS, epsilon=7.0)
    hotel.sql("CALL dp_unit('person', epsilon_budget := 7.4)")
    # the count of people is stored, and the sum alone is paid for
    told = _told(hotel, BOTH, {"n": 3.0, "s": 40.0})
    assert 0.3 < receipt_of(hotel.sql(BOTH, target_half_width=told)).charged_rho <= 0.4
    hotel.sql("CALL dp_analyst('ben', budget_part := 0.1)")
    ben = hotel.as_analyst("ben")
    hotel.sql("CALL dp_unit('person', epsilon_budget := 20, replace := true)")
    assert ben.sql(ROWS, target_half_width=_told(ben, ROWS, 1.0)).receipt
