"""bool_or says TRUE of a group without a true row with probability 0.025 at most."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import dpsql
from dpsql.model.estimates import AnyUnit, Estimate
from dpsql.release import estimates as any_unit
from dpsql.release.estimates import EstimatedColumn, NoisyFrame, sum_column
from tests.noise_sources import seeded_noise

pytestmark = pytest.mark.statistical

GROUPS = 2000
MOST = 78
"""More of 2,000 groups are told of wrongly, where each is with probability 0.025, with probability below 1e-4."""
LEAST = 1900
"""Fewer of 2,000 groups with ten units are told of, where each is with probability 0.97, with less than 1e-4."""
QUERY = "SELECT city, bool_or(urgent) AS some, bool_and(calm) AS all_calm FROM visits GROUP BY city ORDER BY city"


@pytest.fixture(scope="module", params=["listed"])
def session(request: pytest.FixtureRequest) -> Iterator[dpsql.Session]:
    """12 patients in each city; in the first 2,000 none, in the others ten have an urgent visit."""
    with dpsql.connect() as session:
        session.connection.execute(
            f"CREATE TABLE visits AS SELECT p AS patient, p % {2 * GROUPS} AS city, "
            f"p % {2 * GROUPS} >= {GROUPS} AND p // {2 * GROUPS} < 10 AS urgent, NOT urgent AS calm "
            f"FROM range({24 * GROUPS}) u(p)"
        )
        session.sql(
            "CALL dp_protect('visits', coverage := FALSE, "
            "privacy_unit_column := 'patient', max_groups_contributed := 1, "
            "rho_budget := 10000, delta_threshold := 0.5, delta_conversion := 1e-6)"
        )
        if request.param == "listed":
            session.sql(f"CALL dp_domain('visits', 'city', keys := {list(range(2 * GROUPS))})")
            # stored in this order whichever test comes first: the tests read these two points
            session._runner.noise_source = seeded_noise(11)
            for rho in (0.05, 0.5):
                told(session, rho)
        session._runner.noise_source = seeded_noise(11)
        yield session


def told(session: dpsql.Session, rho: float) -> tuple[int, int]:
    """Of how many cities without and with urgent visits it is told; both aggregates tell the same."""
    rows = session.sql(QUERY, rho=rho, mechanism="GAUSSIAN").fetchall()
    assert {some for _, some, _ in rows} <= {True, None}
    assert {all_calm for _, _, all_calm in rows} <= {False, None}
    return sum(some is True for _, some, _ in rows[:GROUPS]), sum(some is True for _, some, _ in rows[GROUPS:])


def at_half_the_noise(estimate: Estimate, value: AnyUnit, frame: NoisyFrame) -> EstimatedColumn:
    """The planted fault: an interval of half the width."""
    column = sum_column(estimate, value, frame)
    return EstimatedColumn(column.value, (column.value + column.low) / 2, column.high)


@pytest.mark.parametrize("rho", [0.05, 0.5])
def test_a_group_without_a_true_row_is_hardly_ever_told_of(session: dpsql.Session, rho: float) -> None:
    assert told(session, rho)[0] <= MOST


def test_an_interval_that_is_too_narrow_is_caught(session: dpsql.Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(any_unit, "sum_column", at_half_the_noise)
    assert told(session, 0.05)[0] > MOST


def test_ten_units_are_told_of_where_the_noise_is_small(session: dpsql.Session) -> None:
    assert told(session, 0.5)[1] >= LEAST


@pytest.mark.parametrize("session", ["hidden"], indirect=True)
def test_of_hidden_groups_hardly_any_is_both_shown_and_told_of_wrongly(session: dpsql.Session) -> None:
    """A group is shown where the noise of its count is high, so of those that are shown more are told of wrongly."""
    rows = session.sql(QUERY, rho=0.05, delta=1e-3).fetchall()
    shown = [some for city, some, _ in rows if city < GROUPS]
    wrong = sum(some is True for some in shown)
    assert 0 < wrong <= MOST
    assert wrong / len(shown) > MOST / GROUPS
