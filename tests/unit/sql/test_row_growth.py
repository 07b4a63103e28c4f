"""Joins of one person's rows: what multiplies is cut, what a constraint keeps unique is not.

Rows are counted, on the SQL that a plan reads: of a unit with a thousand rows in every table.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from typing import Any

import duckdb
import pytest

import dpsql
from dpsql.cascade.reader import CURATOR
from dpsql.errors import UnsupportedQueryError
from dpsql.model.identity import frame_hash
from dpsql.model.private_query import PrivateQuery
from dpsql.operations.row_sql import SALT, with_salt
from dpsql.sql.source import join_rows, row_cut
from dpsql.sql.source.row_bounds import MOST_JOINED
from dpsql.sql.source.row_cut import most_rows
from dpsql.sql.source.row_growth import with_derived
from dpsql.sql.statements import SelectStatement, read_statement

# faults are planted in planning, in databases that the tests of this file share
pytestmark = pytest.mark.usefixtures("plans_each_time")

SECRET = bytes(range(16))
MANY = 1_000
TABLES = """
CREATE TABLE people (pid INTEGER PRIMARY KEY, born INTEGER);
CREATE TABLE stays (sid INTEGER PRIMARY KEY, pid INTEGER, day INTEGER);
CREATE TABLE visits (pid INTEGER, sid INTEGER, day INTEGER, kind VARCHAR);
CREATE TABLE marked (pid INTEGER, mark INTEGER UNIQUE);
CREATE TABLE kinds (kind VARCHAR, class VARCHAR);
CREATE TABLE meals (sid INTEGER, dish VARCHAR);
"""
ROWS = f"""
INSERT INTO people SELECT i, 1980 FROM range(5) t(i);
INSERT INTO stays SELECT i, i % 3, i % 365 FROM range(30) t(i);
INSERT INTO visits SELECT i % 3, i, i % 365, 'flu' FROM range(30) t(i);
INSERT INTO kinds VALUES ('flu', 'a'), ('flu', 'b');
INSERT INTO people VALUES (77, 1980);
INSERT INTO stays SELECT 1000 + i, 77, i % 365 FROM range({MANY}) t(i);
INSERT INTO visits SELECT 77, 1000 + i, i % 365, 'flu' FROM range({MANY}) t(i);
INSERT INTO marked SELECT 77, CASE WHEN i % 2 = 0 THEN i END FROM range({MANY}) t(i);
INSERT INTO meals SELECT 1000 + i // 100, 'soup' FROM range({MANY}) t(i);
"""
POLICY = (
    "CALL dp_unit('patient', epsilon_budget := 1e6, delta_budget := 0.1)",
    *(
        f"CALL dp_protect('{table}', coverage := FALSE, "
        "unit := 'patient', privacy_unit_column := 'pid', max_groups_contributed := 4, "
        "max_rows_per_group := 5)"
        for table in ("people", "stays", "visits", "marked")
    ),
    "CALL dp_link('meals', 'sid', coverage := FALSE, "
    "parent := 'stays.sid', max_groups_contributed := 4, max_rows_per_group := 5)",
    "CALL dp_public('kinds')",
)
PER_PERSON = "(SELECT pid, count(*) AS n FROM visits GROUP BY pid)"

# text after FROM: most rows of a unit that may come of it
NOT_CUT = {
    "visits v JOIN people p ON p.pid = v.pid": MANY,
    "people p LEFT JOIN visits v ON p.pid = v.pid": MANY,
    "meals JOIN stays USING (sid)": MANY,
    "visits v JOIN stays s ON s.pid = v.pid AND s.sid = v.sid": MANY,
    "visits v JOIN marked m ON m.pid = v.pid AND m.mark = v.sid": MANY,
    f"visits v JOIN {PER_PERSON} n ON n.pid = v.pid": MANY,
    f"{PER_PERSON} a FULL JOIN {PER_PERSON} b USING (pid) FULL JOIN {PER_PERSON} c USING (pid)": 1,
    "visits v JOIN (SELECT DISTINCT pid, day AS d FROM stays) s ON s.pid = v.pid AND s.d = v.day": MANY,
    "visits v JOIN (SELECT sid AS s, pid AS q FROM stays) s ON s.q = v.pid AND s.s = v.sid": MANY,
    "visits v JOIN kinds k ON k.kind = v.kind JOIN people p ON p.pid = v.pid": 2 * MANY,
    "visits v JOIN kinds k ON k.kind <= v.kind JOIN people p ON p.pid = v.pid": 2 * MANY,
    "visits v JOIN people p ON p.pid = v.pid JOIN stays s ON s.sid = v.sid AND s.pid = p.pid": MANY,
    "visits v SEMI JOIN stays s USING (pid)": MANY,
    # an expression of the other side is compared with a key
    "visits v LEFT JOIN stays s ON s.pid = v.pid AND s.sid = v.sid + 0": MANY,
    "people p LEFT JOIN (visits v JOIN stays s ON s.pid = v.pid AND s.sid = v.sid) ON v.pid = p.pid": MANY,
}
CUT = {
    "visits a JOIN visits b ON a.pid = b.pid": 2,
    "visits a, stays b WHERE a.pid = b.pid": 2,
    "visits a LEFT JOIN stays b ON a.pid = b.pid": 2,
    "visits a FULL JOIN stays b USING (pid)": 2,
    "visits a RIGHT JOIN stays b USING (pid)": 2,
    "meals a JOIN meals b ON a.sid = b.sid": 2,
    "people p JOIN visits v ON v.pid = p.pid JOIN stays s ON s.pid = p.pid": 2,
    "visits a JOIN visits b ON a.pid = b.pid JOIN stays c ON c.pid = a.pid": 3,
    "visits a JOIN visits b USING (pid) JOIN stays c USING (pid) JOIN visits d USING (pid)": 4,
    # a UNIQUE that may be NULL, on other columns than it is of
    "visits v JOIN marked m ON m.pid = v.pid": 2,
    # columns of a key are unique together
    "visits v JOIN (SELECT DISTINCT pid, day FROM stays) s ON s.pid = v.pid": 2,
    # what is shown of a key is not the key
    "visits v JOIN (SELECT pid, sid + 1 AS sid FROM stays) s ON s.pid = v.pid AND s.sid = v.sid": 2,
    # an expression of a key is not the key
    "visits v LEFT JOIN stays s ON s.pid = v.pid AND s.sid + 0 = v.sid": 2,
    "people p LEFT JOIN (visits v JOIN stays s ON s.pid = v.pid) ON v.pid = p.pid": 2,
    # stays are joined by their key, and the engine may join visits and them by the person first
    "meals m JOIN stays s ON s.sid = m.sid JOIN visits v ON v.sid = m.sid AND v.pid = s.pid": 2,
    # UNION ALL of keys is no key
    "visits v JOIN (SELECT pid, sid FROM stays UNION ALL SELECT pid, sid FROM stays) s "
    "ON s.pid = v.pid AND s.sid = v.sid": 2,
}  # fmt: skip


@pytest.fixture(scope="module")
def session() -> Iterator[dpsql.Session]:
    with dpsql.connect(threads=1) as session:
        session.connection.execute(TABLES + ROWS)
        for declaration in POLICY:
            session.sql(declaration)
        yield session


def plan(session: dpsql.Session, text: str) -> PrivateQuery:
    statement = read_statement(text)
    assert isinstance(statement, SelectStatement)
    query, _, _ = session._runner.plan(statement, {"rho": 0.1, "delta": 1e-9}, CURATOR)
    return query


def counting(source: str) -> str:
    return f"SELECT count(*) FROM {source}"


def rows_by_unit(connection: duckdb.DuckDBPyConnection, query: PrivateQuery) -> dict[int, int]:
    unit = query.first.frame.rows.unit_column.sql
    relation = with_salt(query.first.frame.rows_sql.relation, SECRET)
    return dict(connection.execute(f"SELECT {unit}, count(*) FROM {relation} GROUP BY 1").fetchall())


@pytest.mark.parametrize("source", NOT_CUT)
def test_rows_that_a_constraint_tells_apart_are_not_cut(session: dpsql.Session, source: str) -> None:
    query = plan(session, counting(source))
    assert query.first.frame.rows_sql.cuts == ()
    assert SALT not in query.first.frame.rows_sql.relation
    assert rows_by_unit(session.connection, query).get(77, 0) <= NOT_CUT[source]


@pytest.mark.parametrize("source", CUT)
def test_rows_that_multiply_are_cut(session: dpsql.Session, source: str) -> None:
    query = plan(session, counting(source))
    kept = most_rows(CUT[source])
    assert query.first.frame.rows_sql.cuts
    assert all(f"keeps at most {kept} rows" in sentence for sentence in query.first.frame.rows_sql.cuts)
    assert f"KEEP {kept} ROWS OF {CUT[source]}" in query.first.frame.rows.source
    # an outer join keeps rows that meet none, too
    assert rows_by_unit(session.connection, query).get(77, 0) <= 2 * MOST_JOINED


def test_the_count_sees_a_missing_cut(session: dpsql.Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(join_rows, "cut", lambda relation, *_: relation)
    source = "visits a JOIN stays b ON a.pid = b.pid"
    assert rows_by_unit(session.connection, plan(session, counting(source)))[77] == MANY * MANY


def test_nothing_grows_with_the_depth_of_subqueries(session: dpsql.Session) -> None:
    text = "(SELECT a.pid, b.day FROM visits a JOIN visits b ON a.pid = b.pid)"
    for _ in range(3):
        text = f"(SELECT a.pid, b.day FROM {text} a JOIN visits b ON a.pid = b.pid)"
    assert rows_by_unit(session.connection, plan(session, counting(f"{text} x")))[77] <= MOST_JOINED


def test_columns_that_are_compared_beside_the_unit_leave_more_rows(session: dpsql.Session) -> None:
    """A thousand rows of a person on 365 days make a few thousand pairs, and nearly a thousand of them are kept."""
    query = plan(session, counting("visits a JOIN stays b ON a.pid = b.pid AND a.day = b.day"))
    assert 'BY "day"' in query.first.frame.rows.source
    by_unit = rows_by_unit(session.connection, query)
    assert 600 < by_unit[77] <= MOST_JOINED
    # nobody who has few loses any
    assert by_unit[1] == 10


def test_every_order_in_which_the_engine_may_join_is_bounded(session: dpsql.Session) -> None:
    """Sides that are compared in another way than by the unit, before what makes their units equal is joined."""
    source = (
        "visits v JOIN people p ON p.pid = v.pid JOIN kinds k ON k.kind = v.kind "
        "JOIN visits w ON w.pid = p.pid AND w.kind = k.kind"
    )
    query = plan(session, counting(source))
    assert 'join_0."pid" = join_3."pid"' in query.first.frame.rows_sql.relation
    assert 'join_0."pid" = join_3."pid"' not in query.first.frame.rows.source
    assert rows_by_unit(session.connection, query).get(77, 0) <= 2 * MOST_JOINED


def test_columns_that_are_equal_through_others_are_compared_too() -> None:
    """The engine derives such comparisons, and joins by them before those of the text."""
    written = {(0, 1): {("a", "x")}, (1, 0): {("x", "a")}, (1, 2): {("x", "b"), ("y", "c")}, (2, 1): {("b", "x")}}
    found = with_derived(written, range(3))
    assert {pair: found[pair] for pair in written} == written
    assert found[0, 2] == {("a", "b")}
    assert found[2, 0] == {("b", "a")}
    assert len(found) == 6


def test_a_subquery_with_a_join_is_joined_as_one_side() -> None:
    """Else its tables are joined with others first, by what alone keeps nothing unique."""
    with dpsql.connect(threads=1) as session:
        session.connection.execute(
            "CREATE TABLE s (pid INTEGER, sid INTEGER, PRIMARY KEY (pid, sid));"
            "CREATE TABLE v (pid INTEGER, sid INTEGER, day INTEGER);"
            "CREATE TABLE m (pid INTEGER, sid INTEGER, day INTEGER, PRIMARY KEY (pid, sid, day));"
            "INSERT INTO s SELECT i % 1000 + 1000, i // 1000 FROM range(400000) t(i);"
            "INSERT INTO v SELECT i + 1000, i % 400, i FROM range(1000) t(i);"
            "INSERT INTO m FROM v;"
            "INSERT INTO s SELECT 77, i + 10000 FROM range(2000) t(i);"
            "INSERT INTO v SELECT 77, i, 5 FROM range(2000) t(i);"
            "INSERT INTO m SELECT 77, i, 5 FROM range(2000) t(i);"
        )
        session.sql(POLICY[0])
        for table in ("s", "v", "m"):
            session.sql(POLICY[1].replace("'people'", f"'{table}'"))
        inner = "(SELECT s.pid, s.sid, v.day FROM v JOIN s ON v.sid = s.sid AND v.pid = s.pid)"
        query = plan(session, counting(f"{inner} x JOIN m ON m.pid = x.pid AND m.sid = x.sid AND m.day = x.day"))
        relation = with_salt(query.first.frame.rows_sql.relation, SECRET)
        read = f"EXPLAIN (ANALYZE, FORMAT json) SELECT count(*) FROM {relation}"
        ((_, told),) = session.connection.execute(read).fetchall()
        made = [int(number) for number in re.findall(r'"intermediate_rows": *(\d+)', told)]
    assert query.first.frame.rows_sql.cuts == ()
    assert len(made) > 3
    assert max(made) <= 400_000


def test_too_many_tables_that_multiply_are_refused(session: dpsql.Session) -> None:
    def joined(number: int) -> str:
        others = " ".join(f"JOIN visits a{i} ON a{i}.pid = a0.pid" for i in range(1, number))
        return counting(f"visits a0 {others} WHERE a0.kind = 'flu'")

    assert "KEEP 2 ROWS OF 9" in plan(session, joined(9)).first.frame.rows.source
    with pytest.raises(UnsupportedQueryError, match="multiply the rows of a person"):
        plan(session, joined(12))


@pytest.mark.parametrize(
    ("condition", "is_cut"),
    [("w.day > v.day", False), ("w.day <> v.day", False), ("w.day > v.day AND w.sid < v.sid", True)],
)
@pytest.mark.parametrize("negated", ["", "NOT "])
def test_rows_of_a_person_are_not_compared_each_with_each(
    session: dpsql.Session, condition: str, is_cut: bool, negated: str
) -> None:
    exists = f"{negated}EXISTS (SELECT 1 FROM visits w WHERE w.pid = v.pid AND {condition})"
    query = plan(session, counting(f"visits v WHERE {exists}"))
    assert bool(query.first.frame.rows_sql.cuts) == is_cut
    deciding = query.first.frame.rows_sql.relation.partition(" JOIN ")[2].rpartition(" AS deciding")[0]
    most = f"SELECT max(n) FROM (SELECT count(*) AS n FROM {with_salt(deciding, SECRET)} GROUP BY {{}})"
    (found,) = session.connection.execute(most.format("pid" if is_cut else "key_0")).fetchall()
    assert found[0] <= (most_rows(2) if is_cut else 1)
    if not is_cut:
        exact = session.connection.execute(f"SELECT v.pid, count(*) FROM visits v WHERE {exists} GROUP BY 1").fetchall()
        assert rows_by_unit(session.connection, query) == dict(exact)


HASHES = {
    "SELECT count(*) FROM visits v JOIN people p ON p.pid = v.pid": "572e63210769197b",
    "SELECT class, count(*) FROM visits v JOIN kinds USING (kind) LEFT JOIN people p ON p.pid = v.pid GROUP BY class":
        "a86e6e1961f5540b",
    "SELECT dish, count(*) FROM meals JOIN stays USING (sid) GROUP BY dish": "bb565cc7c7d12343",
    "SELECT count(*) FROM visits v WHERE EXISTS (SELECT 1 FROM visits w WHERE w.pid = v.pid AND w.day > v.day)":
        "d90baf9f4e2da4c5",
    "SELECT n, count(*) FROM visits v JOIN (SELECT pid, count(*) AS n FROM stays GROUP BY pid) s ON s.pid = v.pid "
    "GROUP BY n": "fa46a0b79841c93c",
}  # fmt: skip


@pytest.mark.parametrize("text", HASHES)
def test_what_is_not_cut_is_found_under_the_hash_that_it_always_had(session: dpsql.Session, text: str) -> None:
    """As they were before any join was cut: state files hold releases under them."""
    assert frame_hash(plan(session, text).first.frame).startswith(HASHES[text])


def test_which_rows_are_kept_is_told_by_the_salt_alone(session: dpsql.Session) -> None:
    query = plan(session, counting("visits a JOIN visits b ON a.pid = b.pid"))

    def kept(salt: bytes) -> set[object]:
        return set(
            session.connection.execute(
                f'SELECT "sid 0" FROM {with_salt(query.first.frame.rows_sql.relation, salt)}'
            ).fetchall()
        )

    assert kept(SECRET) == kept(SECRET)
    assert kept(SECRET) != kept(bytes(16))


@pytest.mark.parametrize(
    "condition", ["""a.kind = 'dpsql_salt(''of'', "frame")'""", """a.kind = 'dpsql_salt(' AND a.kind = ', "frame")'"""]
)
def test_a_text_that_looks_like_the_place_of_the_salt_stays_what_it_is(session: dpsql.Session, condition: str) -> None:
    inner = f'(SELECT a.pid, a.kind AS "dpsql_salt(\'of\', ""frame"")" FROM visits a WHERE {condition})'
    query = plan(session, counting(f"{inner} x JOIN visits b ON b.pid = x.pid"))
    plain = plan(session, counting("visits x JOIN visits b ON b.pid = x.pid"))
    assert query.first.frame.rows_sql.relation.count(SALT) == plain.first.frame.rows_sql.relation.count(SALT)


def test_a_salt_that_is_left_out_does_not_bind(session: dpsql.Session) -> None:
    query = plan(session, counting("visits a JOIN visits b ON a.pid = b.pid"))
    assert SALT in query.first.frame.rows_sql.relation
    with pytest.raises(duckdb.Error):
        session.connection.sql(f"FROM {query.first.frame.rows_sql.relation}")


TIES = {
    "DOUBLE": "VALUES (77, 0.0::DOUBLE), (77, '-0.0'), (77, 'nan')",
    "INTERVAL": "VALUES (77, INTERVAL '30 days'), (77, INTERVAL '1 month'), (77, INTERVAL '720 hours')",
    "VARCHAR": "VALUES (77, 'a'), (77, 'A'), (77, 'b')",
    "INTEGER[]": "VALUES (77, [1]), (77, [1, NULL]), (77, NULL)",
}


@pytest.mark.parametrize("kind", TIES)
def test_only_rows_that_are_the_same_can_change_places(
    session: dpsql.Session, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Values that compare as equal and are shown as different texts; one of three is kept, whatever their order."""
    monkeypatch.setattr(row_cut, "MOST_JOINED", 1)
    connection = session.connection
    collated = " COLLATE NOCASE" if kind == "VARCHAR" else ""
    connection.execute(f"CREATE OR REPLACE TABLE told (pid INTEGER, x {kind}{collated})")
    session.sql(
        "CALL dp_protect('told', coverage := FALSE, "
        "unit := 'patient', privacy_unit_column := 'pid', max_groups_contributed := 1, "
        "max_rows_per_group := 5)"
    )
    query = plan(session, counting("told a JOIN told b ON a.pid = b.pid"))
    shown = f'SELECT CAST("x 0" AS VARCHAR) FROM {with_salt(query.first.frame.rows_sql.relation, SECRET)}'
    found = set()
    for order in ("ASC", "DESC"):
        ordered = f'SELECT * FROM ({TIES[kind]}) t(p, x) ORDER BY CAST(x AS VARCHAR) COLLATE "binary" {order}'
        connection.execute(f"DELETE FROM told; INSERT INTO told {ordered}")
        found.add(str(connection.execute(shown).fetchall()))
    assert len(found) == 1


EVERY_WAY_TO_READ: tuple[tuple[str, dict[str, object]], ...] = (
    ("SELECT count(*) FROM {}", {}),
    ("SELECT a.day, count(*), count(DISTINCT b.kind) FROM {} GROUP BY a.day", {}),
    ("SELECT a.day, count(*) FROM {} GROUP BY a.day", {"max_groups_contributed": 3, "bounding": "L2"}),
    ("SELECT a.day, count(*) FROM {} GROUP BY a.day", {"top_k": 3}),
    ("SELECT a.day, count(DISTINCT a.pid) FROM {} GROUP BY a.day", {"mechanism": "MISRA_GRIES", "sketch_size": 4}),
    ("SELECT a.day, count(*) FROM {} GROUP BY a.day", {"max_groups_contributed": "AUTO"}),
    ("SELECT a.day, sum(b.sid, contribution_bounds_per_group => AUTO) FROM {} GROUP BY a.day", {}),
    ("SELECT a.day, sum(b.sid, contribution_bounds_per_row => AUTO) FROM {} GROUP BY a.day", {}),
    ("SELECT a.kind, count(*) FROM {} GROUP BY a.kind", {"other_group": "other"}),
    ("SELECT a.kind, a.day, count(*) FROM {} GROUP BY ROLLUP (a.kind, a.day)", {}),
)


@pytest.mark.parametrize(("text", "options"), EVERY_WAY_TO_READ)
def test_whatever_reads_the_rows_has_a_salt(
    session: dpsql.Session, text: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of every SQL that reaches the database: none holds its place, and those that read rows hold a salt."""
    seen: list[str] = []
    for name in ("rows", "table", "pieces"):
        right = getattr(dpsql.engine.connection._LocalCursor, name)

        def noted(cursor: object, sql: str, *rest: object, right: Callable[..., object] = right) -> object:
            seen.append(sql)
            return right(cursor, sql, *rest)

        monkeypatch.setattr(dpsql.engine.connection._LocalCursor, name, noted)
    joined = "visits a JOIN visits b ON a.pid = b.pid"
    # what AUTO finds of four patients may be nothing; it was read all the same
    with contextlib.suppress(dpsql.ReleaseError):
        session.sql(text.format(joined), rho=1, delta=1e-3, **options).fetchall()
    reading = [sql for sql in seen if "visits" in sql and "SELECT" in sql and "row_number() OVER (PARTITION" in sql]
    assert reading
    assert not [sql for sql in seen if "dpsql_salt" in sql]


@pytest.mark.parametrize(
    ("joined", "where", "early"),
    [
        ("JOIN", "a.kind = 'rare' AND b.day < 30", 2),
        ("JOIN", "a.kind = 'rare' AND b.day < a.day", 1),
        ("JOIN", "(a.kind = 'rare' OR b.day < 30)", 0),
        ("LEFT JOIN", "a.kind = 'rare' AND b.day IS NULL", 1),
        ("FULL JOIN", "a.kind = 'rare' AND b.day < 30", 0),
    ],
)
def test_rows_that_where_drops_do_not_take_the_place_of_others(
    session: dpsql.Session, joined: str, where: str, early: int
) -> None:
    query = plan(session, counting(f"visits a {joined} stays b ON a.pid = b.pid WHERE {where}"))
    assert query.first.frame.rows.source.count("ROWS OF 2 FROM (FROM") == early
    assert len(query.first.frame.rows.filters) + early == len(where.split(" AND "))


def test_a_rare_row_of_a_person_with_many_is_found(session: dpsql.Session) -> None:
    session.connection.execute("CREATE OR REPLACE TABLE told AS SELECT 77 AS pid, i AS x FROM range(5000) t(i)")
    session.sql(
        "CALL dp_protect('told', coverage := FALSE, "
        "unit := 'patient', privacy_unit_column := 'pid', max_groups_contributed := 1, "
        "max_rows_per_group := 5)"
    )
    query = plan(session, counting("told a, told b WHERE a.pid = b.pid AND a.x = 4711 AND b.x = 815"))
    assert rows_by_unit(session.connection, query) == {77: 1}
