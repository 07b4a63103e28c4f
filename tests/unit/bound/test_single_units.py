"""Groups of one unit each are refused where their keys are private, and answered where something can be shown."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import dpsql
from dpsql.errors import UnsupportedQueryError


@pytest.fixture(scope="module")
def session() -> Iterator[dpsql.Session]:
    with dpsql.connect() as session:
        session.connection.execute("CREATE TABLE t (pid INTEGER, other INTEGER, name VARCHAR)")
        session.connection.execute("CREATE TABLE listed (pid INTEGER, name VARCHAR)")
        session.connection.execute(
            "CREATE TABLE stays (id INTEGER PRIMARY KEY, bed VARCHAR UNIQUE, ward INTEGER, day DATE, pid INTEGER, "
            "UNIQUE (ward, day))"
        )
        session.sql("CALL dp_unit('person', rho_budget := 100, delta_threshold := 0.1, delta_conversion := 1e-6)")
        for table in ("t", "listed", "stays"):
            session.sql(
                f"CALL dp_protect('{table}', coverage := FALSE, unit := 'person', privacy_unit_column := 'pid', "
                "max_groups_contributed := 2, default_rho := 0.1)"
            )
        session.sql("CALL dp_domain('listed', 'pid', keys := [1, 2, 3])")
        session.sql("CALL dp_domain('stays', 'ward', keys := [1, 2])")
        session.sql("CALL dp_domain('stays', 'bed', keys := ['a', 'b', 'c', 'd'])")
        yield session


@pytest.mark.parametrize(
    "text",
    [
        "SELECT pid, count(DISTINCT pid) FROM t GROUP BY pid",
        "SELECT pid, name, count(DISTINCT pid) FROM listed GROUP BY ALL",
        "SELECT p, count(DISTINCT p) FROM (SELECT pid AS p FROM t) GROUP BY p",
        "SELECT t.pid, count(DISTINCT t.pid) FROM t JOIN listed ON t.pid = listed.pid GROUP BY t.pid",
        "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (top_k = 3) pid, count(DISTINCT pid) FROM t GROUP BY pid",
        "SELECT name, pid, count(DISTINCT pid) FROM t GROUP BY ROLLUP (name, pid)",
        "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (max_groups_contributed = AUTO) pid, count(DISTINCT pid) FROM t "
        "GROUP BY pid",
        "SELECT id, count(*) FROM stays GROUP BY id",
        "SELECT DISTINCT id FROM stays",
        "SELECT ward, day, count(*) FROM stays GROUP BY ward, day",
        "SELECT name, count(*) FROM (SELECT id AS name, pid FROM stays) GROUP BY name",
        "SELECT id, count(*) FROM stays WHERE pid IN (SELECT pid FROM t) GROUP BY id",
    ],
)
def test_private_groups_of_one_unit_are_refused(text: str, session: dpsql.Session) -> None:
    """By dp_explain as well; nothing is charged."""
    before = session.sql("FROM dp_budget()").fetchall()
    for asked in (text, f"FROM dp_explain($${text}$$)"):
        with pytest.raises(UnsupportedQueryError) as caught:
            session.sql(asked)
        assert {refusal.code for refusal in caught.value.refusals} == {"single_units"}
    assert session.sql("FROM dp_budget()").fetchall() == before


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("SELECT pid, count(DISTINCT pid) FROM listed GROUP BY pid", 3),
        ("SELECT pid % 10 AS k, count(DISTINCT pid) FROM t GROUP BY k", 0),
        ("SELECT other, count(DISTINCT pid) FROM t GROUP BY other", 0),
        ("SELECT n, count(DISTINCT pid) FROM (SELECT pid, count(*) AS n FROM t GROUP BY pid) GROUP BY n", 0),
        ("SELECT bed, count(*) FROM stays GROUP BY bed", 4),
        ("SELECT day, count(*) FROM stays GROUP BY day", 0),
        ("SELECT id // 10 AS k, count(*) FROM stays GROUP BY k", 0),
        ("SELECT stays.id, count(*) FROM stays JOIN t USING (pid) GROUP BY stays.id", 0),
        (
            "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (other_group = 'other') CAST(pid AS VARCHAR) AS p, "
            "count(DISTINCT pid) FROM t GROUP BY p",
            1,
        ),
    ],
)
def test_groups_that_can_be_shown_are_answered(text: str, rows: int, session: dpsql.Session) -> None:
    assert len(session.sql(text).fetchall()) == rows
