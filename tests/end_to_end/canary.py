"""A table with one row that nobody may see, statements that come near it, and the search for what it holds."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

import dpsql
from dpsql.errors import (
    AccessError,
    EngineError,
    ParseError,
    QueryError,
    SchemaError,
    UnsupportedQueryError,
)

CANARY = "CANARY"
CANARY_NUMBER = 918273645
"""In the table as a key, a value, a day count and part of texts; no digits of noise repeat it by chance."""


def opened() -> dpsql.Session:
    """Open 1,200 plain rows and one patient whose every value is a canary, alone in all its groups."""
    session = dpsql.connect()
    connection = session.connection
    connection.execute(f"CREATE TYPE ward AS ENUM ('north', 'south', '{CANARY}_ENUM')")
    connection.execute(
        "CREATE TABLE visits (patient VARCHAR, city VARCHAR, ward ward, code BIGINT, cost DOUBLE, "
        "digits VARCHAR, day DATE, note BLOB, tags VARCHAR[])"
    )
    connection.execute(
        "INSERT INTO visits SELECT 'p' || u % 400, CASE WHEN u % 2 = 0 THEN 'Lund' END, "
        "CASE WHEN u % 2 = 0 THEN 'north' ELSE 'south' END, u % 4, u % 90, (u % 9)::VARCHAR, "
        "DATE '2026-01-01' + (u % 3)::INTEGER, 'x'::BLOB, ['a'] FROM range(1200) t(u)"
    )
    connection.execute(
        f"INSERT INTO visits VALUES ('{CANARY}_UNIT', '{CANARY}_CITY', '{CANARY}_ENUM', {CANARY_NUMBER}, "
        f"{CANARY_NUMBER}.25, '{CANARY}_DIGITS', DATE '2026-01-01' + {CANARY_NUMBER // 1000}, "
        f"'{CANARY}_BLOB'::BLOB, ['{CANARY}_TAG'])"
    )
    connection.execute("CREATE VIEW failing AS SELECT patient, city, CAST(digits AS INTEGER) AS code FROM visits")
    connection.execute(f"CREATE TABLE unprotected AS SELECT '{CANARY}_OTHER' AS secret, 1 AS n")
    session.sql("CALL dp_unit('patient', rho_budget := 1000, delta_threshold := 1e-2, delta_conversion := 1e-6)")
    for table in ("visits", "failing"):
        session.sql(
            f"CALL dp_protect('{table}', coverage := FALSE, unit := 'patient', privacy_unit_column := 'patient', "
            "max_groups_contributed := 4, max_rows_per_group := 5, default_rho := 0.5, default_delta := 1e-9)"
        )
    session.sql("CALL dp_domain('visits', 'cost', bounds := [0, 100])")
    return session


@pytest.fixture
def session() -> Iterator[dpsql.Session]:
    """Tables with a canary, of the test alone."""
    with opened() as session:
        yield session


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """Every record of every logger, DEBUG and up."""
    caplog.set_level(logging.DEBUG)
    for name in ("dpsql", "sqlglot", "filelock", "duckdb"):
        caplog.set_level(logging.DEBUG, logger=name)
    return caplog


def log_text(caplog: pytest.LogCaptureFixture) -> str:
    return "\n".join(f"{record.getMessage()} {record.args} {record.exc_info}" for record in caplog.records)


SKETCHED = "WITH DIFFERENTIAL_PRIVACY OPTIONS (mechanism = MISRA_GRIES, sketch_size = 5)"

ANSWERED = (
    "SELECT city, count(*) AS n FROM visits GROUP BY city",
    "SELECT ward, count(*) AS n, sum(cost), avg(cost) FROM visits GROUP BY ward",
    "SELECT code, count(DISTINCT patient) FROM visits GROUP BY code ORDER BY 2 DESC LIMIT 3",
    "SELECT coalesce(patient, ward) AS who, count(*) FROM visits GROUP BY who",
    "SELECT cost, count(*) FROM visits GROUP BY cost",
    "SELECT digits, day, count(*) FROM visits GROUP BY ALL",
    "SELECT note, count(*) FROM visits GROUP BY note",
    "SELECT tags, count(*) FROM visits GROUP BY tags",
    "SELECT upper(city) || patient AS who, count(*) FROM visits GROUP BY who",
    "SELECT CAST(digits AS INTEGER) AS d, count(*) FROM visits GROUP BY d",
    "SELECT CAST(city AS DATE) AS d, count(*) FROM visits GROUP BY d",
    f"SELECT 1 / (code - {CANARY_NUMBER // 2} * 2 - 1) AS r, count(*) FROM visits GROUP BY r",
    "SELECT CAST(code AS TINYINT) AS t, count(*) FROM visits GROUP BY t",
    "SELECT code * code * code AS third, count(*) FROM visits GROUP BY third",
    "SELECT day + CAST(code AS INTEGER) AS d, count(*) FROM visits GROUP BY d",
    "SELECT CASE WHEN code > 9 THEN ward END AS w, count(*) FROM visits GROUP BY w",
    "SELECT sum(CAST(digits AS INTEGER), contribution_bounds_per_group => (0, 5)) FROM visits",
    "SELECT sum(code, contribution_bounds_per_group => (0, 5)) FROM visits",
    "SELECT avg(1 / (cost - 5), contribution_bounds_per_row => (0, 1)) FROM visits",
    "SELECT ward, count(*) AS n FROM visits WHERE CAST(digits AS INTEGER) > 0 GROUP BY ward HAVING count(*) / 0 > 1",
    "SELECT ward, count(*) FILTER (WHERE CAST(digits AS DATE) IS NULL) AS n FROM visits GROUP BY ward",
    "SELECT ward, CAST(ward AS INTEGER) AS w, CAST(count(*) AS TINYINT) FROM visits GROUP BY ward",
    "SELECT city, count(*) FROM visits WHERE ward = 'nowhere' GROUP BY city",
    "SELECT city, count(*) FROM failing GROUP BY city",
    "SELECT CASE WHEN city = 'x' THEN 5 END AS k, count(*) FROM visits WHERE cost > 1e300 GROUP BY k",
    "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (top_k = 3) ward, count(*), sum(cost) FROM visits GROUP BY ward",
    "SELECT city, count(DISTINCT patient) AS n FROM visits GROUP BY city ORDER BY count(DISTINCT patient) DESC LIMIT 2",
    f"SELECT {SKETCHED} code, count(DISTINCT patient) FROM visits GROUP BY code",
    f"SELECT {SKETCHED} tags, upper(city) || patient AS who, count(DISTINCT patient) FROM visits GROUP BY ALL",
    f"SELECT {SKETCHED} CAST(digits AS INTEGER) AS d, count(DISTINCT patient) FROM visits GROUP BY d",
    "SELECT DISTINCT city FROM visits",
    "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (mechanism = KEYS_FIRST) tags, digits, count(*), sum(cost) FROM visits "
    "GROUP BY ALL",
    "SELECT DISTINCT CAST(digits AS INTEGER) AS d, day, note FROM visits",
    "SELECT tags, upper(city) || patient AS who FROM visits GROUP BY ALL",
)
"""Queries with a private answer, among them casts, divisions and overflows that fail on the canary's row."""

FAILING = (
    ("SELECT code, count(*) FROM failing GROUP BY code", EngineError),
    (f"SELECT {SKETCHED} code, count(DISTINCT patient) FROM failing GROUP BY code", EngineError),
    ("SELECT DISTINCT code FROM failing", EngineError),
    ("SELECT ward + 1 AS w, count(*) FROM visits GROUP BY w", QueryError),
    ("SELECT sum(ward, contribution_bounds_per_group => (0, 1)) FROM visits", QueryError),
    ("SELECT abs(ward) AS w, count(*) FROM visits GROUP BY w", QueryError),
    ("SELECT ward > 3 AS w, count(*) FROM visits GROUP BY w", QueryError),
    ("SELECT coalesce(ward, 5) AS w, count(*) FROM visits GROUP BY w", QueryError),
    ("SELECT ward, count(*) AS n FROM visits GROUP BY ward HAVING ward + 1 > 2", QueryError),
    ("SELECT sum(cost), error(city) FROM visits GROUP BY city", UnsupportedQueryError),
    ("SELECT city, max(cost), list(patient), min_by(city, cost) FROM visits GROUP BY city", UnsupportedQueryError),
    ("SELECT missing, count(*) FROM visits GROUP BY missing", SchemaError),
    ("SELECT city, cost FROM visits GROUP BY city", UnsupportedQueryError),
    ("SELECT count(*) FROM visits WHERE", ParseError),
)

REFUSED = (
    ("SELECT * FROM visits", UnsupportedQueryError),
    ("SELECT visits.* FROM visits", UnsupportedQueryError),
    ("FROM visits", UnsupportedQueryError),
    ("TABLE visits", QueryError),
    ("SELECT city FROM visits", UnsupportedQueryError),
    ("SELECT DISTINCT ON (city) city, cost FROM visits", UnsupportedQueryError),
    ("SELECT count(*) FROM visits, unprotected", SchemaError),
    ("SELECT count(*) FROM visits JOIN unprotected ON true", SchemaError),
    ("SELECT * FROM (SELECT * FROM visits)", UnsupportedQueryError),
    ("WITH v AS (SELECT * FROM visits) SELECT * FROM v", UnsupportedQueryError),
    ("WITH v AS (SELECT max(cost) AS x FROM visits) SELECT x, count(*) FROM v GROUP BY x", UnsupportedQueryError),
    ("SELECT count(*) FROM (SELECT * FROM visits UNION ALL SELECT * FROM unprotected)", SchemaError),
    ("WITH v AS (FROM visits LIMIT 1) SELECT city, count(*) FROM v GROUP BY city", UnsupportedQueryError),
    ("SELECT count(*) FROM visits UNION ALL SELECT n FROM unprotected", QueryError),
    ("SELECT count(*) FROM visits WHERE cost > (SELECT max(n) FROM unprotected)", UnsupportedQueryError),
    ("SELECT count(*), (SELECT secret FROM unprotected) FROM visits", UnsupportedQueryError),
    ("SELECT count(*) FROM visits WHERE EXISTS (FROM unprotected)", SchemaError),
    ("SELECT count(*) FROM visits USING SAMPLE 1", QueryError),
    ("SELECT count(*) OVER () FROM visits", UnsupportedQueryError),
    ("SELECT secret, count(*) FROM unprotected GROUP BY secret", SchemaError),
    ("SELECT count(*) FROM duckdb_tables()", QueryError),
    ("FROM duckdb_tables()", QueryError),
    ("FROM pragma_storage_info('visits')", QueryError),
    ("SELECT count(*) FROM duckdb_columns", QueryError),
    ("SELECT count(*) FROM information_schema.tables", QueryError),
    ("SELECT count(*) FROM sqlite_master", QueryError),
    ("SELECT count(*) FROM read_csv('{file}')", QueryError),
    ("SELECT count(*) FROM read_parquet('{file}')", QueryError),
    ("SELECT count(*) FROM '{file}'", QueryError),
    ('SELECT count(*) FROM "{file}"', QueryError),
    ("SELECT count(*) FROM frame", SchemaError),
    ("SELECT count(*) FROM dpsql_public_keys", SchemaError),
    ("SELECT count(*) FROM dpsql_noisy", SchemaError),
    ("ATTACH '{file}' AS other", QueryError),
    ("COPY visits TO '{file}.out'", QueryError),
    ("COPY (SELECT 1) TO '{file}.out'", QueryError),
    ("EXPORT DATABASE '{file}.out'", QueryError),
    ("SET threads = 1", QueryError),
    ("RESET threads", QueryError),
    ("PRAGMA database_list", QueryError),
    ("EXPLAIN SELECT count(*) FROM visits", QueryError),
    ("EXPLAIN ANALYZE SELECT count(*) FROM visits", QueryError),
    ("SUMMARIZE visits", QueryError),
    ("DESCRIBE unprotected", SchemaError),
    ("DESCRIBE SELECT * FROM visits", QueryError),
    ("SHOW ALL TABLES", QueryError),
    ("CREATE TABLE copied AS FROM visits", QueryError),
    ("CREATE VIEW copied AS FROM visits", QueryError),
    ("CREATE MACRO f() AS TABLE FROM visits", QueryError),
    ("INSERT INTO visits (patient) VALUES ('x')", QueryError),
    ("UPDATE visits SET city = 'x'", QueryError),
    ("DELETE FROM visits", QueryError),
    ("DROP TABLE visits", QueryError),
    ("PIVOT visits ON city USING count(*)", QueryError),
    ("LOAD httpfs", QueryError),
    ("USE memory", QueryError),
    ("SELECT count(*) FROM visits; DROP TABLE visits", QueryError),
    ("SELECT getenv('HOME'), count(*) FROM visits", UnsupportedQueryError),
    ("SELECT current_setting('threads') AS s, count(*) FROM visits GROUP BY s", UnsupportedQueryError),
    ("SELECT city, count(*) FROM visits WHERE city ~ '[ab]*a[ab]{20}c' GROUP BY 1", UnsupportedQueryError),
    ("SELECT count(*) FROM visits WHERE length(repeat(city, 1000000)) > 1", UnsupportedQueryError),
    ("SELECT count(*) FROM visits WHERE random() > 0.5", UnsupportedQueryError),
    ("CALL dp_unit('patient', rho_budget := 5000, delta_threshold := 0.5, delta_conversion := 0.5)", AccessError),
    ("CALL dp_protect('unprotected', coverage := FALSE, unit := 'patient', privacy_unit_column := 'n')", AccessError),
    ("CALL dp_domain('visits', 'city', keys := ['a'])", AccessError),
    ("CALL dp_public('unprotected')", AccessError),
    ("CALL dp_new_version('visits')", AccessError),
    ("FROM dp_policy()", AccessError),
    ("CALL dp_policy()", AccessError),
    ("FROM dp_check('visits')", AccessError),
    ("FROM dp_query($$ CALL dp_new_version('visits') $$)", QueryError),
    ("FROM dp_query($$ FROM dp_policy() $$)", QueryError),
    ("FROM dp_explain($$ CALL dp_public('unprotected') $$)", QueryError),
    ("SELECT * FROM dp_releases() WHERE analyst <> 'ana'", QueryError),
)


def holds_canary(text: str) -> bool:
    return CANARY in text or str(CANARY_NUMBER) in text


def broken(*_: object, **__: object) -> None:
    raise ValueError(f"{CANARY} in a message")
