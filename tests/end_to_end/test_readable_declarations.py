"""CALL dp_public(…, readable := true): who may see the rows of a public table, and what ends that."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import dpsql
from dpsql.cascade.reader import CURATOR, Reader
from dpsql.errors import AccessError, PolicyError
from dpsql.plan.environment.policy_view import PolicyView
from dpsql.state import PublicTable
from tests.end_to_end.prepared import with_own_state

POLICY = (
    "CALL dp_protect('visits', privacy_unit_column := 'patient_id', epsilon_budget := 3, delta_budget := 1e-6, "
    "max_groups_contributed := 2, max_rows_per_group := 2, coverage := FALSE)",
    "CALL dp_public('cities')",
    "CALL dp_public('streets')",
    "CALL dp_analyst('ana')",
)
JOIN = "SELECT region, count(*) AS n FROM visits JOIN cities ON city = name GROUP BY region"


@pytest.fixture(scope="module")
def prepared() -> Iterator[dpsql.Session]:
    with dpsql.connect() as session:
        session.connection.execute(
            "CREATE TABLE visits AS SELECT i AS patient_id, 'Ulm' AS city FROM range(50) r(i);"
            "CREATE TABLE cities AS SELECT 'Ulm' AS name, 'south' AS region;"
            "CREATE TABLE streets (street VARCHAR)"
        )
        for statement in POLICY:
            session.sql(statement)
        yield session


@pytest.fixture
def session(prepared: dpsql.Session) -> Iterator[dpsql.Session]:
    with with_own_state(prepared) as session:
        yield session


def cities(session: dpsql.Session) -> PublicTable | None:
    return session._access.read().policy().public_table("main.cities")


def readable(session: dpsql.Session, reader: str) -> list[str]:
    """Return the tables whose rows a reader may see."""
    policy = session._access.read().policy()
    view = PolicyView(policy, Reader.of(reader, policy))
    tables = ("main.cities", "main.streets", "main.visits", "main.unknown")
    return [table for table in tables if view.is_readable(table)]


def test_the_curator_reads_public_tables_and_analysts_those_that_are_declared_readable(
    session: dpsql.Session,
) -> None:
    assert readable(session, "ana") == []
    assert readable(session, CURATOR) == ["main.cities", "main.streets"]
    session.sql("CALL dp_public('cities', readable := true)")
    assert readable(session, "ana") == ["main.cities"]
    assert readable(session, CURATOR) == ["main.cities", "main.streets"]


def test_it_stays_until_it_is_taken_back(session: dpsql.Session) -> None:
    told = session.sql("CALL dp_public('cities', readable := true)").fetchall()
    assert told == [("table main.cities is public, and analysts may read its rows",)]
    assert session.sql("CALL dp_public('cities')").fetchall() == told
    session.sql("CALL dp_public('cities', public_by_decision := 'a map')")
    assert cities(session) == PublicTable("main.cities", "1", "a map", readable=True)
    assert ("public table", "main.cities", "readable", "True") in session.sql("FROM dp_policy()").fetchall()
    for end in ("FALSE", "NULL"):
        session.sql("CALL dp_public('cities', readable := true)")
        assert session.sql(f"CALL dp_public('cities', readable := {end})").fetchall() == [
            ("table main.cities is public",)
        ]
        assert cities(session) == PublicTable("main.cities", "1", "a map")
    assert "readable" not in [row[2] for row in session.sql("FROM dp_policy()").fetchall()]


def test_a_table_that_is_undone_begins_without_it(session: dpsql.Session) -> None:
    session.sql("CALL dp_public('cities', readable := true)")
    session.sql("CALL dp_public('cities', public := false)")
    assert readable(session, CURATOR) == ["main.streets"]
    session.sql("CALL dp_public('cities')")
    assert readable(session, "ana") == []
    session.sql("CALL dp_public('cities', readable := true)")
    protect = "CALL dp_protect('cities', privacy_unit_column := 'name', epsilon_budget := 3, delta_budget := 1e-6"
    session.sql(f"{protect}, coverage := FALSE, replace := true)")
    assert readable(session, CURATOR) == ["main.streets"]
    assert readable(session, "ana") == []
    session.sql("CALL dp_public('cities', replace := true)")
    assert readable(session, "ana") == []


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ("readable := 'yes'", "readable takes TRUE or FALSE"),
        ("readable := 1", "readable takes TRUE or FALSE"),
        ("public := false, readable := true", "goes with no other argument"),
    ],
)
def test_what_cannot_be_meant_is_refused(session: dpsql.Session, arguments: str, complaint: str) -> None:
    before = cities(session)
    with pytest.raises(PolicyError, match=complaint):
        session.sql(f"CALL dp_public('cities', {arguments})")
    assert cities(session) == before


def test_an_analyst_cannot_declare_it(session: dpsql.Session) -> None:
    with pytest.raises(AccessError):
        session.as_analyst("ana").sql("CALL dp_public('cities', readable := true)")
    assert readable(session, "ana") == []


def test_answers_do_not_depend_on_it(session: dpsql.Session) -> None:
    first = session.sql(JOIN, rho=0.05)
    session.sql("CALL dp_public('cities', readable := true)")
    again = session.sql(JOIN, rho=0.05)
    assert first.receipt
    assert again.receipt
    assert again.receipt.query_hash == first.receipt.query_hash
    assert again.receipt.charged_rho == 0
    assert again.fetchall() == first.fetchall()
