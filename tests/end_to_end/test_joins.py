"""Joins with public tables: the joined rows of a unit are a function of its own rows, and are bounded as ever."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import dpsql
from dpsql.engine import DuckDBEngine
from dpsql.errors import PolicyError, SchemaError, UnsupportedQueryError
from tests.end_to_end.prepared import with_own_rows
from tests.end_to_end.receipts import of_the_text, receipt_of
from tests.noise_sources import seeded_noise, silence

TABLES = """
CREATE TABLE visits AS SELECT i AS pid, 'city ' || i % 6 AS city, i % 4 AS kind, (i % 9)::DOUBLE AS cost, i AS number
    FROM range(1200) t(i);
INSERT INTO visits VALUES (NULL, 'city 1', 1, 3, 0), (9000, NULL, NULL, 3, 1);
CREATE TABLE cities AS SELECT 'city ' || i AS name, CASE WHEN i < 2 THEN 'north' ELSE 'south' END AS region, i AS kind
    FROM range(7) t(i);
CREATE TABLE labels AS SELECT i % 3 AS kind, 'label ' || i AS label, i::DOUBLE AS weight FROM range(6) t(i);
"""
POLICY = (
    "CALL dp_unit('patient', rho_budget := 1e6, delta_threshold := 0.5, delta_conversion := 1e-6)",
    "CALL dp_protect('visits', coverage := FALSE, "
    "unit := 'patient', privacy_unit_column := 'pid', max_groups_contributed := 2, "
    "max_rows_per_group := 4)",
    "CALL dp_public('cities')",
    "CALL dp_public('labels')",
    "CALL dp_domain('visits', 'cost', bounds := [0, 10])",
    "CALL dp_domain('labels', 'weight', bounds := [0, 5])",
)
QUERIES = {
    "inner": "SELECT region, count(DISTINCT pid) AS p, sum(cost) AS s FROM visits JOIN cities ON city = name "
    "GROUP BY region",
    "left": "SELECT label, count(*) AS n FROM visits LEFT JOIN labels USING (kind) GROUP BY label",
    "multiplied": "SELECT label, count(DISTINCT pid) AS p, count(*) AS n FROM visits JOIN labels USING (kind) "
    "GROUP BY label",
    "public first": "SELECT label, count(DISTINCT pid) AS p FROM labels JOIN visits ON visits.kind = labels.kind "
    "GROUP BY label",
    "two of them": "SELECT c.region, l.label, count(*) AS n FROM visits v JOIN cities c ON v.city = c.name "
    "JOIN labels l ON l.kind = v.kind WHERE c.kind < 5 GROUP BY ALL",
    "one through another": "SELECT label, count(*) AS n FROM visits JOIN cities ON city = name "
    "JOIN labels ON labels.kind = cities.kind GROUP BY 1",
    "a public column summed": "SELECT region, sum(weight) AS w FROM visits v JOIN labels USING (kind) "
    "JOIN cities ON city = name GROUP BY region",
    "shared names": "SELECT v.kind AS a, cities.kind AS b, count(*) AS n FROM visits v "
    "JOIN cities ON v.city = cities.name GROUP BY a, b",
    "said twice": "SELECT region, count(*) AS n FROM visits v JOIN cities c ON v.city = c.name AND c.name = v.city "
    "GROUP BY region",
}


@pytest.fixture(scope="module")
def prepared() -> Iterator[dpsql.Session]:
    with dpsql.connect() as session:
        session.connection.execute(TABLES)
        for declaration in POLICY:
            session.sql(declaration)
        yield session


@pytest.fixture
def session(prepared: dpsql.Session) -> Iterator[dpsql.Session]:
    with with_own_rows(prepared, TABLES) as session:
        session._runner.noise_source = seeded_noise(5)
        yield session


def test_without_noise_a_join_is_what_duckdb_says_of_rows_with_a_unit(session: dpsql.Session) -> None:
    def readable(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        return sorted((tuple(float(v) if isinstance(v, int | float) else v for v in row) for row in rows), key=repr)

    silence(session)
    ours = {name: session.sql(text, rho=5).fetchall() for name, text in QUERIES.items()}
    session.connection.execute("DELETE FROM visits WHERE pid IS NULL")
    for name, text in QUERIES.items():
        exact = session.connection.execute(text).fetchall()
        # groups of fewer units than the threshold are hidden: a patient without a kind is one
        assert readable(ours[name]) == readable([row for row in exact if row[-1] > 5]), name


def test_rows_without_a_match_have_no_unit_or_no_partner(session: dpsql.Session) -> None:
    """LEFT JOIN from a public table keeps its unmatched rows; they are nobody's, and count in no number."""
    silence(session)
    session.connection.execute("INSERT INTO labels VALUES (99, 'label 99', 1)")
    text = "SELECT label, count(*) AS n FROM labels LEFT JOIN visits USING (kind) GROUP BY label"
    assert dict(session.sql(text, rho=5).fetchall())["label 99"] == 0


def test_one_patient_moves_no_more_than_is_declared(session: dpsql.Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many rows a public table makes of theirs; both readings keep the same groups of everybody."""
    silence(session)
    monkeypatch.setattr("dpsql.state.side_table.os.urandom", bytes)
    session.connection.execute("INSERT INTO labels SELECT 1, 'label ' || i % 40, i % 5 FROM range(900) t(i)")
    text = (
        "SELECT label, count(DISTINCT pid) AS p, count(*) AS n, sum(weight) AS s "
        "FROM visits JOIN labels USING (kind) GROUP BY label"
    )
    whole = {row[0]: row[1:] for row in session.sql(text, rho=1).fetchall()}
    session.connection.execute("DELETE FROM visits WHERE pid = 1")
    less = {row[0]: row[1:] for row in session.sql(text, rho=1, refresh=True).fetchall()}
    moved = np.array([np.subtract(whole[label], less[label]) for label in whole if label in less])
    assert np.count_nonzero(moved[:, 0]) <= 2
    assert np.abs(moved[:, 0]).max() == 1
    assert np.abs(moved[:, 1]).max() <= 4
    assert np.abs(moved[:, 2]).max() <= 20


def test_public_versions_are_part_of_the_answer(session: dpsql.Session) -> None:
    text = QUERIES["inner"]
    first = receipt_of(session.sql(text, rho=0.5))
    session.sql("CALL dp_new_version('labels')")
    assert receipt_of(session.sql(text, rho=0.5)).charged_rho == 0
    session.sql("CALL dp_new_version('cities', version := 'b')")
    second = receipt_of(session.sql(text, rho=0.5))
    assert second.charged_rho == pytest.approx(0.5)
    assert second.query_hash != first.query_hash
    assert session.sql("FROM dp_releases()").df()["versions"].tolist()[-1] == "main.visits @ 1, main.cities @ b"


COUNTED = "label, count(*) AS n FROM"
SAME = (
    f"SELECT {COUNTED} visits JOIN labels ON visits.kind = labels.kind WHERE visits.kind < 2 GROUP BY label",
    f"SELECT {COUNTED} main.visits AS a INNER JOIN main.labels AS b ON (b.kind = a.kind) WHERE a.kind < 2 GROUP BY 1",
    f"SELECT {COUNTED} visits JOIN labels USING (kind) WHERE kind < 2 GROUP BY ALL",
)


def test_other_words_for_a_join_are_the_same_statistic(session: dpsql.Session, monkeypatch: pytest.MonkeyPatch) -> None:
    first = session.sql(f"SELECT {COUNTED} visits v JOIN labels l USING (kind) WHERE v.kind < 2 GROUP BY 1", rho=1)

    def reading(*_: object, **__: object) -> None:
        raise AssertionError("raw data were read")

    monkeypatch.setattr(DuckDBEngine, "aggregate", reading)
    monkeypatch.setattr(DuckDBEngine, "transaction", reading)
    for text in SAME:
        assert session.sql(text, rho=1).fetchall() == first.fetchall()
    with pytest.raises(AssertionError, match="raw data"):
        session.sql(SAME[2].replace("JOIN", "LEFT JOIN"), rho=1)


def test_public_keys_of_a_public_table(session: dpsql.Session) -> None:
    session.sql("CALL dp_domain('cities', 'region', keys := ['north', 'south', 'west'])")
    joined = "FROM visits JOIN cities ON city = name GROUP BY"
    answer = session.sql(f"SELECT region, count(*) AS n {joined} region", rho=1)
    assert sorted(row[0] for row in answer.fetchall()) == ["north", "south", "west"]
    totals = session.sql(f"SELECT region, sum(count(*)) OVER (ORDER BY region) AS t {joined} region", rho=1)
    assert len(totals) == 3
    bucketed = session.sql(f"SELECT left(region, 1) AS r, count(*) AS n {joined} r", rho=1, buckets="region")
    assert sorted(row[0] for row in bucketed.fetchall()) == ["n", "s", "w"]


def test_a_linked_table_joins_public_ones(session: dpsql.Session) -> None:
    silence(session)
    session.connection.execute("CREATE TABLE stays (number INTEGER PRIMARY KEY, pid INTEGER)")
    session.connection.execute("INSERT INTO stays SELECT i, i // 2 FROM range(800) t(i)")
    session.connection.execute(
        "CREATE TABLE meals AS SELECT (i % 900)::INTEGER AS number, i % 3 AS kind FROM range(2000) t(i)"
    )
    session.sql("CALL dp_protect('stays', coverage := FALSE, unit := 'patient', privacy_unit_column := 'pid')")
    session.sql(
        "CALL dp_link('meals', 'number', coverage := FALSE, parent := 'stays.number', max_groups_contributed := 6)"
    )
    text = "SELECT label, count(DISTINCT pid) AS p FROM meals JOIN labels USING (kind) GROUP BY label"
    exact = text.replace("meals", "meals JOIN stays USING (number)")
    assert sorted(session.sql(text, rho=5).fetchall()) == sorted(session.connection.execute(exact).fetchall())


def test_receipts_and_prices_do_not_depend_on_rows(prepared: dpsql.Session, session: dpsql.Session) -> None:
    text = QUERIES["two of them"]
    full = (of_the_text(session.sql(text, rho=0.5)), session.sql(f"FROM dp_explain($$ {text} $$, rho := 1)").fetchall())
    with with_own_rows(prepared, f"{TABLES} DELETE FROM visits") as empty:
        nothing = empty.sql(text, rho=0.5)
        assert (of_the_text(nothing), empty.sql(f"FROM dp_explain($$ {text} $$, rho := 1)").fetchall()) == full


def test_columns_are_told_apart_whatever_they_are_called(session: dpsql.Session) -> None:
    """Names in several tables get a number; a column may have such a name already, and the unit's may be shared."""
    silence(session)
    session.connection.execute('ALTER TABLE visits ADD COLUMN "KIND 0" INTEGER')
    session.connection.execute('UPDATE visits SET "KIND 0" = number % 5')
    session.connection.execute("ALTER TABLE labels ADD COLUMN pid INTEGER")
    session.connection.execute("UPDATE labels SET pid = 7")
    for key in ('"kind 0"', "v.kind", "l.kind", "l.pid"):
        text = (
            f"SELECT {key} AS k, count(DISTINCT v.pid) AS n FROM visits v JOIN labels l ON v.kind = l.kind GROUP BY k"
        )
        exact = text.replace("GROUP BY", "WHERE v.pid IS NOT NULL GROUP BY")
        assert sorted(session.sql(text, rho=5).fetchall()) == sorted(session.connection.execute(exact).fetchall())


def test_a_public_column_is_never_taken_for_the_unit(session: dpsql.Session) -> None:
    """One unit with 50 rows; a public table with the name that the unit's column has in joined rows."""
    silence(session)
    for name in ("pid 1", "PID 1"):
        session.connection.execute("CREATE OR REPLACE TABLE lone AS SELECT 7 AS pid, i AS num FROM range(50) t(i)")
        session.connection.execute(
            f'CREATE OR REPLACE TABLE pub AS SELECT 7 AS pid, i AS "{name}", i AS num FROM range(900) t(i)'
        )
        session.sql(
            "CALL dp_protect('lone', coverage := FALSE, "
            "unit := 'patient', privacy_unit_column := 'pid', max_rows_per_group := 4)"
        )
        session.sql("CALL dp_public('pub', public_by_decision := 'numbers that nobody has')")
        for joined in ("pub JOIN lone ON pub.num = lone.num", "pub JOIN lone ON pub.pid = lone.pid"):
            assert session.sql(f"SELECT count(*) AS n FROM {joined}", rho=5, refresh=True).fetchall() == [(4,)]
            units = f"SELECT count(DISTINCT lone.pid) AS n FROM {joined}"
            assert session.sql(units, rho=5, refresh=True).fetchall() == [(1,)]
            given = session.sql(units, rho=1, privacy_unit_column="pid")
            assert given.fetchall() == [(1,)]


def test_how_many_rows_public_tables_make_of_one_is_bounded_by_public_data(session: dpsql.Session) -> None:
    """Otherwise how long a query takes, or whether it fails, would tell of one row."""
    session.connection.execute("CREATE TABLE many AS SELECT 1::BIGINT AS kind, i AS w FROM range(3000) t(i)")
    session.sql("CALL dp_public('many')")
    before = session.sql("FROM dp_budget()").fetchall()
    for text in (
        "SELECT count(*) FROM visits v JOIN many a ON v.kind = a.kind",
        "SELECT count(*) FROM many a JOIN visits v ON v.kind = a.kind",
        "SELECT count(*) FROM visits v JOIN labels a ON v.kind = a.kind JOIN many b ON a.kind = b.kind",
        "SELECT count(*) FROM visits v, many a, many b WHERE v.kind = a.w AND a.kind = b.kind",
    ):
        with pytest.raises(UnsupportedQueryError, match="rows of one protected row"):
            session.sql(text, rho=1)
    assert len(session.sql("SELECT count(*) FROM visits v JOIN many a ON v.number = a.w", rho=1)) == 1
    thirteen = " ".join(f"JOIN cities c{i} ON v.city = c{i}.name" for i in range(12))
    with pytest.raises(UnsupportedQueryError, match="at most 12 tables"):
        session.sql(f"SELECT count(*) FROM visits v {thirteen}", rho=1)
    assert len(session.sql("FROM dp_releases()")) == 1
    assert before != session.sql("FROM dp_budget()").fetchall()


def test_a_public_table_may_be_met_by_what_one_table_alone_compares(session: dpsql.Session) -> None:
    """The engine may join a private table to it before what the other compares: one row would make thousands there."""
    session.connection.execute("CREATE TABLE prices AS SELECT i AS kind, i % 2 AS day FROM range(4000) t(i)")
    session.sql("CALL dp_public('prices')")
    pairs = "visits a JOIN visits b ON b.pid = a.pid"
    for joined in (
        "visits a JOIN prices k ON k.kind = a.kind LEFT JOIN visits b ON b.number = k.day AND b.pid = a.pid",
        f"{pairs} LEFT JOIN prices k ON k.kind = a.kind AND b.number = k.day",
    ):
        with pytest.raises(UnsupportedQueryError, match="2,000 rows of one protected row"):
            session.sql(f"SELECT count(*) FROM {joined}", rho=1)
    # in an inner join what one table alone compares is enough, and the rest is a filter
    both = (f"{pairs} JOIN prices k ON k.kind = a.kind {word} b.number = k.day" for word in ("AND", "WHERE"))
    assert len({receipt_of(session.sql(f"SELECT count(*) FROM {one}", rho=1)).query_hash for one in both}) == 1
    one = f"SELECT count(*) FROM {pairs} JOIN prices k ON k.kind = a.kind AND a.number = k.day"
    assert len(session.sql(one, rho=1)) == 1
    # visits and names agree because both agree with numbers, and the engine knows
    session.connection.execute("CREATE TABLE numbers AS SELECT i AS x, i AS y FROM range(4000) t(i)")
    session.connection.execute("CREATE TABLE names AS SELECT 1::BIGINT AS x, i AS y FROM range(4000) t(i)")
    for name in ("numbers", "names"):
        session.sql(f"CALL dp_public('{name}')")
    derived = "visits a JOIN numbers n ON n.x = a.kind JOIN names m ON m.x = n.x AND m.y = n.y"
    with pytest.raises(UnsupportedQueryError, match="4,000 rows of one protected row"):
        session.sql(f"SELECT count(*) FROM {derived}", rho=1)
    # what is met through another public table alone
    session.connection.execute("CREATE TABLE days AS SELECT i AS day, 0::BIGINT AS year FROM range(4000) t(i)")
    session.connection.execute("CREATE TABLE years AS SELECT i AS year FROM range(3) t(i)")
    for name in ("days", "years"):
        session.sql(f"CALL dp_public('{name}')")
    chain = "visits a JOIN days d ON d.day = a.kind JOIN years y ON y.year = d.year"
    assert len(session.sql(f"SELECT count(*) FROM {chain}", rho=1)) == 1
    with pytest.raises(UnsupportedQueryError, match="4,000 rows of one protected row"):
        session.sql(f"SELECT count(*) FROM {chain.replace('JOIN y', 'LEFT JOIN y')} AND y.year = a.number", rho=1)
    apart = (
        "SELECT count(*) FROM (SELECT a.pid, day FROM visits a JOIN prices k ON k.kind = a.kind) s "
        "JOIN visits b ON b.number = s.day AND b.pid = s.pid"
    )
    assert len(session.sql(apart, rho=1)) == 1


def test_a_public_name_that_became_a_view_is_refused(session: dpsql.Session) -> None:
    session.connection.execute("DROP TABLE labels")
    session.connection.execute("CREATE VIEW labels AS SELECT kind, 'x' AS label, pid::DOUBLE AS weight FROM visits")
    with pytest.raises(PolicyError, match="view"):
        session.sql("CALL dp_new_version('labels')")
    with pytest.raises(SchemaError, match="view"):
        session.sql("SELECT count(*) FROM visits JOIN labels USING (kind)", rho=1)


def test_a_protected_table_that_lost_its_unit_is_named(session: dpsql.Session) -> None:
    session.connection.execute("ALTER TABLE visits RENAME COLUMN pid TO uid")
    with pytest.raises(SchemaError, match="lost its privacy unit column 'pid'"):
        session.sql("SELECT count(*) FROM visits JOIN labels USING (kind)", rho=1)


@pytest.mark.parametrize("joined", ["", " JOIN cities ON city = name"])
def test_columns_that_cannot_be_compared_cost_nothing(session: dpsql.Session, joined: str) -> None:
    """Two collations: found on empty tables, before the charge."""
    session.connection.execute("ALTER TABLE visits ADD COLUMN one VARCHAR COLLATE NOCASE")
    session.connection.execute("ALTER TABLE visits ADD COLUMN two VARCHAR COLLATE NOACCENT")
    before = session.sql("FROM dp_budget()").fetchall()
    with pytest.raises(SchemaError, match="cannot compute"):
        session.sql(f"SELECT count(*) FROM visits{joined} WHERE one = two", rho=1)
    assert session.sql("FROM dp_budget()").fetchall() == before


def test_a_column_in_on_of_a_table_of_another_schema_is_not_there(session: dpsql.Session) -> None:
    with pytest.raises(SchemaError, match=r"nope\.visits\.city is not there"):
        session.sql("SELECT count(*) FROM visits JOIN cities ON nope.visits.city = cities.name", rho=1)


def test_public_rows_are_counted_once_for_a_version(session: dpsql.Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every plan asks how many rows of a public table agree: a constraint says one, else a pass over the table does."""
    counted: list[str] = []
    right = DuckDBEngine._count_matches

    def noted(engine: DuckDBEngine, schema: Any, columns: Any) -> int:
        counted.append(schema.canonical)
        return right(engine, schema, columns)

    monkeypatch.setattr(DuckDBEngine, "_count_matches", noted)
    session.connection.execute("CREATE TABLE keyed (kind BIGINT PRIMARY KEY, word VARCHAR)")
    session.sql("CALL dp_public('keyed')")
    session.sql("SELECT count(*) FROM visits JOIN keyed USING (kind)", rho=0.1)
    session.sql("SELECT count(*) FROM visits JOIN (SELECT DISTINCT kind FROM labels) l USING (kind)", rho=0.1)
    assert counted == []
    text = "SELECT count(*) FROM visits JOIN labels USING (kind)"
    for _ in range(3):
        session.sql(text, rho=0.1)
    assert counted == ["main.labels"]
    session.sql("CALL dp_new_version('labels')")
    session.sql(text, rho=0.1)
    assert counted == ["main.labels"] * 2
    # more rows are another table, though nobody said so
    session.connection.execute("INSERT INTO labels SELECT 1, 'more', 1 FROM range(2000)")
    with pytest.raises(UnsupportedQueryError, match="rows of one protected row"):
        session.sql(text, rho=0.1)
    assert counted == ["main.labels"] * 3


def test_what_a_join_cuts_is_said_in_plan_and_receipt(
    prepared: dpsql.Session, session: dpsql.Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In words that follow from the text: neither the salt nor its place in the SQL is in them, nor in a hash."""
    monkeypatch.setattr("dpsql.state.side_table.os.urandom", lambda count: b"\xab" * count)
    text = "SELECT count(*) FROM visits a JOIN visits b ON a.pid = b.pid"
    explain = f"FROM dp_explain($$ {text} $$, rho := 0.1)"
    before = session.sql(explain).fetchall()
    # its bounds say that a unit has several rows, so the unit alone is no key
    sentence = "of one unit a join keeps at most 31 rows of main.visits; which ones is chosen by a secret hash"
    assert any(sentence in row for row in before)
    receipt = receipt_of(session.sql(text, rho=0.1))
    assert sentence in receipt.notes
    after = session.sql(explain).fetchall()
    assert not any(word in str((before, after, receipt)) for word in ("abababab", "dpsql_salt"))
    session.connection.execute("INSERT INTO visits SELECT 7, 'city 1', 1, 3, 0 FROM range(500)")
    assert session.sql(explain).fetchall() == after
    with with_own_rows(prepared, TABLES) as other:
        assert other.sql(explain).fetchall() == before
        assert receipt_of(other.sql(text, rho=0.1)).query_hash == receipt.query_hash


def test_a_key_that_is_declared_leaves_a_join_whole(session: dpsql.Session) -> None:
    """A constraint that comes or goes makes another text of it, with a hash of its own."""
    session.connection.execute("CREATE TABLE people AS SELECT i AS pid, i % 3 AS kind FROM range(1200) t(i)")
    session.sql(
        "CALL dp_protect('people', coverage := FALSE, "
        "unit := 'patient', privacy_unit_column := 'pid', max_groups_contributed := 2)"
    )
    text = "SELECT count(*) FROM visits v JOIN people p ON p.pid = v.pid"
    first = receipt_of(session.sql(text, rho=0.1))
    session.connection.execute("ALTER TABLE people ADD PRIMARY KEY (pid)")
    second = receipt_of(session.sql(text, rho=0.1))
    assert [any("a join keeps" in note for note in receipt.notes) for receipt in (first, second)] == [True, False]
    assert first.query_hash != second.query_hash


def test_receipts_and_refusals_call_joined_columns_as_the_text_does(session: dpsql.Session) -> None:
    source = "FROM visits v JOIN labels l ON v.kind = l.kind JOIN visits w ON v.pid = w.pid"
    text = f"SELECT v.city, sum(w.cost), median(w.cost) {source} GROUP BY ROLLUP (v.city)"
    receipt = receipt_of(session.sql(text, rho=5))
    assert [column.aggregate for column in receipt.columns] == ["sum(w.cost)", "median(w.cost)"]
    assert [set_.keys for set_ in receipt.sets] == [("v.city",), ()]
    assert "rows where v.pid is NULL are left out" in receipt.notes
    shown = f"{receipt} {session.sql(f'FROM dp_explain($${text}$$, rho := 5)').fetchall()}"
    with pytest.raises(UnsupportedQueryError) as caught:
        session.sql(f"SELECT v.city, sum(w.number), w.kind + 1 {source} GROUP BY ROLLUP (v.city)", rho=5)
    assert all(name in str(caught.value) for name in ("sum(w.number, ", "column w.kind "))
    for named in (shown, str(caught.value)):
        assert not any(
            f"{name} {place}" in named for name in ("city", "cost", "pid", "kind", "number") for place in "02"
        )
