"""A linked table inside a join: its parents are joined first only where another order could multiply rows."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import dpsql
from dpsql.cascade.reader import CURATOR
from dpsql.operations.row_sql import with_salt
from dpsql.sql.source import borders, join_rows
from dpsql.sql.statements import SelectStatement, read_statement

# faults are planted in planning
pytestmark = pytest.mark.usefixtures("plans_each_time")

TABLES = """
CREATE TABLE people (pid INTEGER PRIMARY KEY, born INTEGER);
CREATE TABLE stays (sid INTEGER PRIMARY KEY, pid INTEGER, day INTEGER);
CREATE TABLE meals (meal INTEGER PRIMARY KEY, sid INTEGER, dish VARCHAR, day INTEGER);
CREATE TABLE bites (meal INTEGER, size INTEGER);
CREATE TABLE wards (ward INTEGER, floor INTEGER, pid INTEGER, PRIMARY KEY (ward, floor));
CREATE TABLE beds (ward INTEGER, floor INTEGER, dish VARCHAR);
CREATE TABLE diary (pid INTEGER, day INTEGER, PRIMARY KEY (pid, day));
CREATE TABLE dishes (dish VARCHAR PRIMARY KEY, class VARCHAR);
CREATE TABLE tastes (dish VARCHAR, born INTEGER);
CREATE TABLE rooms (stay INTEGER, room VARCHAR);
CREATE VIEW seen AS SELECT pid, day AS seen_on FROM stays;
CREATE VIEW served AS SELECT s.pid, m.dish FROM stays s, meals m WHERE s.sid = m.sid;
CREATE VIEW spread AS SELECT pid, x FROM stays JOIN (VALUES (1), (2)) listed(x) ON x = day;
INSERT INTO people SELECT i, 1980 + i % 3 FROM range(7) t(i);
INSERT INTO stays SELECT i, i % 9, i % 5 FROM range(40) t(i);
INSERT INTO meals SELECT i, CASE WHEN i % 8 > 0 THEN i % 45 END, 'dish ' || i % 4, i % 5 FROM range(300) t(i);
INSERT INTO bites SELECT i % 310, i FROM range(400) t(i);
INSERT INTO wards SELECT i // 3, i % 3, i % 9 FROM range(30) t(i);
INSERT INTO beds SELECT i % 11, i % 4, 'dish ' || i % 4 FROM range(200) t(i);
INSERT INTO dishes SELECT 'dish ' || i, 'class ' || i % 2 FROM range(3) t(i);
INSERT INTO tastes SELECT 'dish ' || i % 4, 1980 + i % 3 FROM range(12) t(i);
INSERT INTO rooms SELECT i, 'room ' || i % 3 FROM range(40) t(i);
"""
BOUNDS = "coverage := FALSE, max_groups_contributed := 4, max_rows_per_group := 5"
POLICY = (
    "CALL dp_unit('patient', epsilon_budget := 1e6, delta_budget := 0.1)",
    *(
        f"CALL dp_protect('{table}', {BOUNDS}, unit := 'patient', privacy_unit_column := 'pid')"
        for table in ("people", "stays", "wards", "seen", "served", "spread", "diary")
    ),
    f"CALL dp_link('meals', 'sid', {BOUNDS}, parent := 'stays.sid')",
    f"CALL dp_link('bites', 'meal', {BOUNDS}, parent := 'meals.meal')",
    f"CALL dp_link('beds', ['ward', 'floor'], {BOUNDS}, parent := ['wards.ward', 'wards.floor'])",
    *(f"CALL dp_public('{table}')" for table in ("dishes", "tastes", "rooms")),
)
STAYS = "meals m JOIN stays s ON s.sid = m.sid"

# text after FROM: whether a linked table stays one side
SIDES = {
    STAYS: False,
    "meals m JOIN dishes d ON d.dish = m.dish": False,
    f"{STAYS} JOIN people p ON p.pid = s.pid JOIN dishes d ON d.dish = m.dish": False,
    "bites b JOIN meals m ON m.meal = b.meal JOIN stays s ON s.sid = m.sid": False,
    "bites b JOIN meals m USING (meal)": False,
    # the lent unit is compared: a parent could be joined by it first
    "meals m JOIN people p ON p.pid = m.pid": True,
    f"{STAYS} AND s.pid = m.pid": True,
    # a public table is compared with two sides, which are compared by their units, too
    f"{STAYS} JOIN people p ON p.pid = s.pid JOIN tastes t ON t.dish = m.dish AND t.born = p.born": True,
    # a public table is compared with the key, and so with the parent, without what else tells its rows apart
    "meals m JOIN rooms r ON r.stay = m.sid": True,
    f"{STAYS} JOIN rooms r ON r.stay = s.sid": True,
    # a number that is no key is equal to the key: a parent of another unit could be joined by it first
    "bites b JOIN meals m ON b.meal = m.meal AND b.size = m.sid": True,
    "bites b JOIN meals m ON b.meal = m.meal AND b.size = m.sid JOIN stays s ON s.sid = m.sid": True,
    # a part of a key is not unique in the parent
    "beds b JOIN dishes d ON d.dish = b.dish": True,
    "meals m LEFT JOIN dishes d ON d.dish = m.dish": True,
    "stays s LEFT JOIN meals m ON s.sid = m.sid": True,
    # a view of one table is a table; the tables of another one are not joined apart
    "seen v JOIN people p ON p.pid = v.pid": False,
    "served v JOIN people p ON p.pid = v.pid": True,
    "spread v JOIN people p ON p.pid = v.pid": True,
}  # fmt: skip


@pytest.fixture(scope="module")
def session() -> Iterator[dpsql.Session]:
    with dpsql.connect(threads=1) as session:
        session.connection.execute(TABLES)
        for declaration in POLICY:
            session.sql(declaration)
        yield session


def relation(session: dpsql.Session, source: str) -> tuple[str, str]:
    """Return the SQL of the rows of a FROM clause, and the hashed text about them."""
    statement = read_statement(f"SELECT count(*) FROM {source}")
    assert isinstance(statement, SelectStatement)
    query, _, _ = session._runner.plan(statement, {"rho": 0.1, "delta": 1e-9}, CURATOR)
    frame = query.first.frame
    return with_salt(frame.rows_sql.relation, bytes(16)), frame.rows.source


@pytest.mark.parametrize("source", SIDES)
def test_parents_are_joined_first_where_they_must(
    session: dpsql.Session, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows are those of the sides that all stay together, and so is their identity."""
    text, identity = relation(session, source)
    assert ("side AS MATERIALIZED" in text) == SIDES[source]
    monkeypatch.setattr(join_rows, "is_one_side", lambda *_: True)
    monkeypatch.setattr(borders, "_is_one_table", lambda *_: False)
    together, same_identity = relation(session, source)
    assert "side AS MATERIALIZED" in together
    assert identity == same_identity
    count = "SELECT rows, count(*) FROM {} AS rows GROUP BY ALL ORDER BY ALL"
    found = [session.connection.execute(count.format(one)).fetchall() for one in (text, together)]
    assert found[0] == found[1]
    assert len(found[0]) > 5


def test_cuts_do_not_follow_from_comparisons_that_are_added(session: dpsql.Session) -> None:
    """Sides that are compared by a day alone are compared by their units, too. They are cut, and found, as ever."""
    text, identity = relation(
        session,
        "meals m JOIN stays s ON m.sid = s.sid AND m.day = s.day JOIN diary d ON d.pid = s.pid AND d.day = s.day",
    )
    assert 'join_0."pid" = join_2."pid"' in text
    assert identity.count('KEEP 31 ROWS OF 2 BY "day"') == 2
