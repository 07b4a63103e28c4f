"""Attempts of an analyst to reach protected rows through texts of several parts: all are refused, free and mute."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import dpsql
from dpsql.errors import DpsqlError
from tests.end_to_end.canary import CANARY, CANARY_NUMBER, holds_canary
from tests.end_to_end.composed import WITH, spent

RHO = 0.1
COUNT = "(SELECT count(*) FROM visits)"
"""A scalar that is answered."""
TABLES = f"""
CREATE TABLE visits AS SELECT (i % 300)::INT AS patient, 'Lund' AS city, (i % 9)::INT AS cost FROM range(600) t(i);
INSERT INTO visits VALUES (77777, '{CANARY}_CITY', {CANARY_NUMBER});
CREATE TABLE unprotected AS SELECT '{CANARY}_OTHER' AS secret, {CANARY_NUMBER} AS n;
CREATE TABLE wards AS SELECT i::INT AS id, 'Ward ' || i AS name, (10 + i)::INT AS beds FROM range(5) t(i);
CREATE TABLE hidden AS SELECT {CANARY_NUMBER} AS id, '{CANARY}_HIDDEN' AS note;
CREATE TABLE replaced AS SELECT 1 AS id, 'x' AS note;
CREATE TABLE grown (id INTEGER, twice INTEGER GENERATED ALWAYS AS (id * 2) VIRTUAL);
INSERT INTO grown VALUES (1), (2);
CREATE SEQUENCE counter;
CREATE VIEW copied AS SELECT * FROM visits;
CREATE VIEW public_list AS SELECT DISTINCT city AS name, cost AS beds FROM visits;
CREATE VIEW beside AS SELECT w.name, v.cost FROM wards w, visits v;
CREATE VIEW of_public AS SELECT * FROM wards;
CREATE VIEW of_others AS SELECT * FROM unprotected;
CREATE MACRO peek() AS TABLE SELECT * FROM visits;
CREATE MACRO largest() AS (SELECT max(cost) FROM visits);
CREATE MACRO shown(x) AS x || (SELECT max(city) FROM visits);
"""
DECLARED = (
    "CALL dp_unit('patient', rho_budget := 1000, delta_threshold := 1e-2, delta_conversion := 1e-6)",
    "CALL dp_protect('visits', unit := 'patient', privacy_unit_column := 'patient', max_groups_contributed := 2, "
    "max_rows_per_group := 2, coverage := FALSE)",
    "CALL dp_domain('visits', 'cost', bounds := [0, 10])",
    *(f"CALL dp_public('{table}', readable := true)" for table in ("wards", "replaced", "grown")),
    "CALL dp_public('hidden')",
    "CALL dp_analyst('ana')",
)

ROWS = (
    "SELECT * FROM visits",
    "SELECT city FROM visits UNION ALL SELECT name FROM wards",
    "SELECT name FROM wards UNION ALL SELECT city FROM visits",
    "SELECT city, cost FROM visits UNION ALL SELECT 'n', count(*) FROM visits",
    "(SELECT city FROM visits) EXCEPT (SELECT name FROM wards)",
    "SELECT name FROM wards INTERSECT SELECT city FROM visits",
    "SELECT DISTINCT ON (city) city, cost FROM visits UNION ALL SELECT name, beds FROM wards",
    "SELECT city FROM visits ORDER BY cost DESC LIMIT 1",
    f"SELECT *, {COUNT} AS n FROM visits",
    f"SELECT city, {COUNT} AS n FROM visits ORDER BY city LIMIT 1",
    "SELECT * FROM (SELECT * FROM visits LIMIT 3) AS v, wards w",
    "SELECT w.name, v.city FROM wards w JOIN visits v ON v.cost = w.id",
    "SELECT w.name, v.city FROM wards w LEFT JOIN visits v ON true",
    "SELECT w.name FROM wards w SEMI JOIN visits v ON v.cost = w.id",
    "SELECT w.name FROM wards w ANTI JOIN visits v ON v.cost = w.id",
    "SELECT w.name, v.city FROM wards w POSITIONAL JOIN visits v",
    "SELECT w.name, v.city FROM wards w ASOF JOIN visits v ON v.cost >= w.id",
    "SELECT v.city, a.n FROM visits v JOIN (SELECT city, count(*) AS n FROM visits GROUP BY city) a ON a.city = v.city",
    "SELECT v.city, a.n FROM (SELECT city, count(*) AS n FROM visits GROUP BY city) a, visits v",
    "SELECT a.n, v.city FROM (SELECT count(*) AS n FROM visits) a, LATERAL (SELECT city FROM visits LIMIT 1) v",
    "SELECT w.name, v.city FROM wards w, LATERAL (SELECT city FROM visits WHERE cost = w.id LIMIT 1) v",
    "SELECT w.name, v.m FROM wards w, LATERAL (SELECT count(*) AS m FROM visits WHERE cost = w.id) v",
    "SELECT a.patient, a.m FROM (SELECT patient, max(cost) AS m FROM visits GROUP BY patient) a, wards",
    "SELECT patient, m FROM (SELECT patient, max(cost) AS m FROM visits GROUP BY patient) UNION ALL SELECT id, beds "
    "FROM wards",
    "SELECT w.name, a.m FROM wards w LEFT JOIN (SELECT patient, max(cost) AS m FROM visits GROUP BY patient) a ON true",
    "SELECT list(v) FROM visits v",
    "SELECT v FROM visits v, wards w",
    "SELECT unnest(list(city)) AS c FROM visits",
    "SELECT max(city) AS c FROM visits",
    "SELECT arg_max(city, cost) AS c FROM visits UNION ALL SELECT name FROM wards",
    "SELECT first(city) OVER () AS c FROM visits",
    "SELECT city, row_number() OVER (ORDER BY cost) AS r FROM visits QUALIFY r = 1",
    "VALUES ((SELECT max(city) FROM visits))",
    "SELECT * FROM (VALUES ((SELECT max(city) FROM visits))) AS t(c)",
    "SELECT * FROM wards w, (VALUES ((SELECT max(cost) FROM visits))) AS t(c)",
)
"""Rows of units, and facts about single ones, as an answer or beside one."""

SCALARS = (
    "SELECT name, (SELECT max(city) FROM visits) AS c FROM wards",
    "SELECT name, (SELECT city FROM visits LIMIT 1) AS c FROM wards",
    "SELECT name FROM wards WHERE beds < (SELECT max(cost) FROM visits)",
    "SELECT name FROM wards WHERE name IN (SELECT city FROM visits)",
    "SELECT name FROM wards WHERE beds NOT IN (SELECT cost FROM visits)",
    "SELECT name FROM wards WHERE EXISTS (SELECT 1 FROM visits WHERE cost > 1000)",
    "SELECT name FROM wards w WHERE EXISTS (SELECT 1 FROM visits v WHERE v.cost = w.beds)",
    "SELECT name FROM wards WHERE beds > ANY (SELECT cost FROM visits)",
    "SELECT name FROM wards WHERE beds > ALL (SELECT cost FROM visits)",
    "SELECT name FROM wards ORDER BY (SELECT max(cost) FROM visits)",
    "SELECT name FROM wards LIMIT (SELECT max(cost) FROM visits)",
    "SELECT name FROM wards LIMIT 1 OFFSET (SELECT min(cost) FROM visits)",
    "SELECT count(*) FROM wards GROUP BY beds > (SELECT max(cost) FROM visits)",
    "SELECT name, CASE WHEN EXISTS (SELECT 1 FROM visits WHERE cost > 1000) THEN 1 END AS c FROM wards",
    "SELECT name, (SELECT count(*) FROM visits v WHERE v.cost = w.id) AS n FROM wards w",
    "SELECT name, (SELECT count(*) FROM visits WHERE cost = beds) AS n FROM wards",
    "SELECT name, (SELECT count(*) FROM visits WHERE patient = 77777 AND cost = wards.beds) AS n FROM wards",
    f"SELECT {COUNT} + (SELECT max(cost) FROM visits) AS n",
    f"SELECT {COUNT} AS n, (SELECT max(secret) FROM unprotected) AS s",
    "SELECT city, count(*) / (SELECT max(cost) FROM visits) AS n FROM visits GROUP BY city",
    "SELECT city, count(*) AS n FROM visits GROUP BY city HAVING count(*) > (SELECT max(cost) FROM visits)",
    "SELECT city, count(*) AS n FROM visits WHERE cost > (SELECT max(cost) FROM visits) GROUP BY city",
    "SELECT city, count(*) AS n FROM visits WHERE cost = (SELECT max(n) FROM unprotected) GROUP BY city",
    "SELECT city, count(*) AS n FROM visits WHERE cost = (SELECT max(id) FROM hidden) GROUP BY city",
    "SELECT count(*) FROM visits WHERE city IN (SELECT secret FROM unprotected) OR cost = 1",
    "SELECT count(*) FROM visits v WHERE v.cost = (SELECT max(cost) FROM visits x WHERE x.patient = v.patient)",
    f"SELECT dpsql_value_0 FROM (SELECT city, count(*) * {COUNT} AS n FROM visits GROUP BY city) AS a",
    f"SELECT city, count(*) / {COUNT} AS n, dpsql_value_0 FROM visits GROUP BY city",
    f"SELECT COLUMNS(*) FROM visits, (SELECT {COUNT} AS n) AS a",
)
"""Protected rows in scalars, lists and conditions around public rows or answers."""

NAMES = (
    "WITH visits AS (SELECT * FROM visits) SELECT * FROM visits",
    "WITH wards AS (SELECT city AS name FROM visits) SELECT name FROM wards",
    'WITH "WARDS" AS (SELECT city AS name FROM visits) SELECT name FROM wards',
    'WITH wards AS (SELECT city AS name FROM visits) SELECT name FROM "Wards"',
    "WITH wards AS (SELECT * FROM visits) SELECT * FROM wards UNION ALL SELECT * FROM wards",
    "WITH a AS (SELECT * FROM wards), wards AS (SELECT * FROM visits) SELECT wards.city FROM a, wards",
    "WITH w AS (WITH wards AS (SELECT * FROM visits) SELECT * FROM wards) SELECT city FROM w",
    "WITH w AS MATERIALIZED (SELECT city FROM visits) SELECT city FROM w, wards",
    "WITH RECURSIVE r AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM r WHERE n < (SELECT max(cost) FROM visits)) FROM r",
    "WITH dpsql_part_0 AS (SELECT * FROM visits) SELECT *, (SELECT count(*) FROM visits) AS n FROM dpsql_part_0",
    f"SELECT *, {COUNT} AS n FROM dpsql_part_0",
    f"SELECT *, {COUNT} AS n FROM dpsql_rows_0",
    f"SELECT *, {COUNT} AS n FROM dpsql_public_0",
    f"SELECT *, {COUNT} AS n FROM dpsql_noisy",
    f"SELECT *, {COUNT} AS n FROM dpsql_result",
    f"SELECT *, {COUNT} AS n FROM dpsql_nothing",
    f"SELECT *, {COUNT} AS n FROM wards, dpsql_source_0",
    "SELECT * FROM wards WHERE EXISTS (SELECT 1 FROM dpsql_rows_0)",
    f"SELECT *, {COUNT} AS n FROM frame",
    f"SELECT *, {COUNT} AS n FROM tables",
    f"SELECT *, {COUNT} AS n FROM results",
    f"SELECT *, {COUNT} AS n FROM table",
    f"SELECT *, {COUNT} AS n FROM local_rows",
    f"SELECT *, {COUNT} AS n FROM unprotected",
    f"SELECT *, {COUNT} AS n FROM main.unprotected",
    f"SELECT *, {COUNT} AS n FROM memory.main.unprotected",
    f"SELECT *, {COUNT} AS n FROM memory.main.visits",
    f'SELECT *, {COUNT} AS n FROM "main"."VISITS"',
    "SELECT note FROM hidden",
    f"SELECT note, {COUNT} AS n FROM hidden",
    "SELECT name FROM wards WHERE id IN (SELECT id FROM hidden)",
    "SELECT w.name, h.note FROM wards w CROSS JOIN hidden h",
    "SELECT (SELECT note FROM hidden) AS n",
    "SELECT * FROM copied",
    "SELECT name FROM public_list",
    f"SELECT name, {COUNT} AS n FROM public_list",
    "SELECT * FROM beside",
    f"SELECT *, {COUNT} AS n FROM of_public",
    f"SELECT *, {COUNT} AS n FROM of_others",
    "SELECT * FROM replaced",
    f"SELECT note, {COUNT} AS n FROM replaced",
    "SELECT count(*) FROM visits WHERE city = (SELECT max(note) FROM replaced)",
    "SELECT rowid, name FROM wards",
    f"SELECT rowid, {COUNT} AS n FROM wards",
    f"SELECT name, {COUNT} AS n FROM wards TABLESAMPLE 50%",
    f"SELECT name, {COUNT} AS n FROM wards USING SAMPLE 1",
    f"SELECT name, {COUNT} AS n FROM wards AT (VERSION => 1)",
    "PIVOT wards ON name USING count(*)",
    "SELECT * FROM (PIVOT visits ON city USING count(*)) AS p, wards",
    "SELECT * FROM (UNPIVOT visits ON city, cost) AS p, wards",
)
"""Names that mean something else than they seem to."""

FUNCTIONS = (
    "SELECT * FROM peek()",
    f"SELECT *, {COUNT} AS n FROM peek()",
    "SELECT * FROM wards, peek()",
    f"SELECT largest() AS l, {COUNT} AS n",
    "SELECT name, largest() AS l FROM wards",
    "SELECT shown(name) AS l FROM wards",
    "SELECT count(*) FROM visits WHERE cost = (SELECT largest())",
    f"SELECT *, {COUNT} AS n FROM '{{file}}'",
    f'SELECT *, {COUNT} AS n FROM "{{file}}"',
    f"SELECT *, {COUNT} AS n FROM read_csv('{{file}}')",
    "SELECT * FROM wards, read_csv_auto('{file}')",
    "SELECT * FROM wards, read_parquet('{file}')",
    "SELECT * FROM wards, read_text('{file}')",
    "SELECT * FROM wards WHERE name IN (SELECT * FROM read_csv('{file}'))",
    "SELECT count(*) FROM visits WHERE city IN (SELECT * FROM read_csv('{file}'))",
    "SELECT (SELECT max(secret) FROM read_csv('{file}')) AS s",
    "SELECT * FROM wards, glob('{folder}/*')",
    "SELECT table_name FROM duckdb_tables()",
    f"SELECT {COUNT} AS n, * FROM duckdb_tables()",
    f"SELECT {COUNT} AS n, * FROM duckdb_tables",
    f"SELECT {COUNT} AS n, * FROM duckdb_columns() WHERE table_name = 'visits'",
    f"SELECT {COUNT} AS n, * FROM pragma_table_info('visits')",
    f"SELECT {COUNT} AS n, * FROM pragma_storage_info('visits')",
    f"SELECT {COUNT} AS n, * FROM information_schema.tables",
    f"SELECT {COUNT} AS n, * FROM sqlite_master",
    f"SELECT {COUNT} AS n, * FROM pg_catalog.pg_stats",
    f"SELECT {COUNT} AS n, * FROM query('SELECT * FROM visits')",
    f"SELECT {COUNT} AS n, * FROM query_table('visits')",
    f"SELECT {COUNT} AS n, * FROM summary((SELECT * FROM visits))",
    f"SELECT {COUNT} AS n, * FROM repeat_row(1, num_rows = 9)",
    f"SELECT {COUNT} AS n, * FROM range((SELECT max(cost) FROM visits))",
    f"SELECT {COUNT} AS n, * FROM generate_series(1, (SELECT max(cost) FROM visits))",
    f"SELECT {COUNT} AS n, * FROM generate_series(1, 10000000)",
    f"SELECT {COUNT} AS n, unnest([(SELECT max(city) FROM visits)]) AS c",
    f"SELECT {COUNT} AS n, current_setting('threads') AS s",
    f"SELECT {COUNT} AS n, getenv('HOME') AS s",
    f"SELECT {COUNT} AS n, getvariable('x') AS s",
    f"SELECT {COUNT} AS n, nextval('counter') AS s",
    f"SELECT {COUNT} AS n, currval('counter') AS s",
    f"SELECT {COUNT} AS n, random() AS s",
    f"SELECT {COUNT} AS n, now() AS s",
    f"SELECT {COUNT} AS n, current_date AS s",
    "SELECT name, current_timestamp AS s FROM wards",
    f"SELECT {COUNT} AS n, uuid() AS s",
    f"SELECT {COUNT} AS n, version() AS s",
    f"SELECT {COUNT} AS n, current_schemas(true) AS s",
    f"SELECT {COUNT} AS n, txid_current() AS s",
    f"SELECT {COUNT} AS n, error('x') AS s",
    f"SELECT {COUNT} AS n, hash(name) AS s FROM wards",
    f"SELECT {COUNT} AS n, write_log('x') AS s",
    f"SELECT {COUNT} AS n, json_serialize_sql('SELECT 1') AS s",
    f"SELECT {COUNT} AS n, icu_sort_key(name, 'de') AS s FROM wards",
    f"SELECT {COUNT} AS n, stats(name) AS s FROM wards",
    f"SELECT {COUNT} AS n, repeat(name, 1000000000) AS s FROM wards",
    f"SELECT {COUNT} AS n, list_transform([1], x -> (SELECT max(cost) FROM visits)) AS s",
)
"""Functions of tables, files, the catalog, the session, chance and side effects."""

STATEMENTS = (
    f"EXPLAIN SELECT {COUNT} AS n, name FROM wards",
    "EXPLAIN ANALYZE SELECT name FROM wards",
    f"COPY (SELECT {COUNT} AS n, name FROM wards) TO '{{file}}.out'",
    "COPY wards TO '{file}.out'",
    "ATTACH '{file}' AS other",
    f"SELECT {COUNT} AS n; DROP TABLE wards",
    f"CREATE TABLE kept AS SELECT {COUNT} AS n, name FROM wards",
    "CREATE VIEW kept AS SELECT * FROM visits",
    "INSERT INTO wards SELECT cost, city, 1 FROM visits",
    "SELECT name INTO kept FROM wards",
    "SUMMARIZE wards",
    f"DESCRIBE SELECT city, {COUNT} AS n FROM visits",
    "SHOW wards; FROM visits",
    f"FROM dp_query($$ SELECT city, {COUNT} AS n FROM visits $$)",
    "FROM dp_explain($$ SELECT name, (SELECT max(city) FROM visits) AS c FROM wards $$)",
    "SELECT * FROM wards, dp_policy()",
    f"SELECT {COUNT} AS n, * FROM dp_releases()",
    f"SELECT {COUNT} AS n, * FROM dp_cascade('visits')",
    "SELECT name, CAST(name AS INTEGER) AS c, (SELECT max(city) FROM visits) AS m FROM wards",
    f"SELECT name, (SELECT {WITH} (rho = 0.1, privacy_unit_column = cost) count(*) FROM visits) AS n FROM wards",
    f"SELECT {WITH} (rho = 0.1, max_groups_contributed = 99999999999) name, {COUNT} AS n FROM wards, visits",
)
"""Other statements, and texts inside them."""

ATTEMPTS = (*ROWS, *SCALARS, *NAMES, *FUNCTIONS, *STATEMENTS)


@pytest.fixture(scope="module")
def session() -> Iterator[dpsql.Session]:
    with dpsql.connect(threads=1) as session:
        session.connection.execute(TABLES)
        for text in DECLARED:
            session.sql(text)
        session.connection.execute("DROP TABLE replaced")
        session.connection.execute("CREATE VIEW replaced AS SELECT patient AS id, city AS note FROM visits")
        yield session


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("attacks") / "secret.csv"
    path.write_text(f"secret\n{CANARY}_FILE\n")
    return path


def _ask(session: dpsql.Session, text: str, file: Path) -> DpsqlError | dpsql.Result:
    """Ask as an analyst; return the answer or the refusal."""
    local_rows = session.connection.sql("SELECT * FROM visits").to_arrow_table()
    asked = text.replace("{file}", str(file)).replace("{folder}", str(file.parent))
    try:
        answer = session.as_analyst("ana").sql(asked, rho=None if WITH in text or "dp_" in text else RHO)
    except DpsqlError as error:
        return error
    assert local_rows.num_rows == 601
    return answer


def test_there_are_many_attempts() -> None:
    assert len(set(ATTEMPTS)) == len(ATTEMPTS) >= 150


@pytest.mark.parametrize("text", ATTEMPTS)
def test_an_attempt_is_refused_for_nothing_and_tells_nothing(session: dpsql.Session, file: Path, text: str) -> None:
    before = spent(session, "patient")
    error = _ask(session, text, file)
    assert isinstance(error, DpsqlError), error.fetchall()
    assert not isinstance(error, dpsql.errors.EngineError | dpsql.errors.ReleaseError)
    assert spent(session, "patient") == before
    assert (error.__cause__, error.__context__) == (None, None)
    assert not holds_canary(f"{error!r} {error} {error.args} {vars(error)}")


@pytest.mark.parametrize(
    "text",
    [
        "SELECT name, beds FROM wards",
        f"SELECT name, {COUNT} AS n FROM wards",
        "SELECT id, twice FROM grown",
        f"SELECT {COUNT} AS n, a.* FROM (SELECT city, count(*) AS m FROM visits GROUP BY city) AS a",
        "WITH visits AS (SELECT name FROM wards) SELECT name FROM visits",
        "WITH wards AS (SELECT city, count(*) AS n FROM visits GROUP BY city) SELECT * FROM wards",
    ],
)
def test_what_looks_alike_is_answered_without_a_private_value(session: dpsql.Session, file: Path, text: str) -> None:
    answer = _ask(session, text, file)
    assert isinstance(answer, dpsql.Result), answer
    assert not holds_canary(f"{answer.fetchall()} {answer.receipt}")


def test_the_search_finds_rows_of_a_view_that_is_taken_for_a_table(
    session: dpsql.Session, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The planted fault: nobody looks if a public name is still a table."""
    from dpsql.engine import DuckDBEngine

    monkeypatch.setattr(DuckDBEngine, "is_base_table", lambda *_: True)
    answer = _ask(session, "SELECT * FROM replaced", file)
    assert isinstance(answer, dpsql.Result)
    assert holds_canary(str(answer.fetchall()))
