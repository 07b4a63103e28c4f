"""Nothing of a suppressed group reaches an analyst: no key, value or unit id, by no statement and no error."""

from __future__ import annotations

import logging
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

import dpsql
from dpsql.engine import DuckDBEngine, ExactTable
from dpsql.errors import (
    AccessError,
    CalibrationError,
    DpsqlError,
    EngineError,
    ParseError,
    PolicyError,
    QueryError,
    SchemaError,
    UnsupportedQueryError,
)

CANARY = "CANARY"
CANARY_NUMBER = 918273645
"""In the table as a key, a value, a day count and part of texts; no digits of noise repeat it by chance."""


@pytest.fixture
def session() -> Iterator[dpsql.Session]:
    """1,200 plain rows and one patient whose every value is a canary, alone in all its groups."""
    with dpsql.connect() as session:
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
        yield session


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
    ("DESCRIBE visits", QueryError),
    ("SHOW TABLES", QueryError),
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
    ("SELECT city, count(*) FROM visits WHERE regexp_matches(city, '(a+)+$') GROUP BY city", UnsupportedQueryError),
    ("SELECT count(*) FROM visits WHERE length(repeat(city, 1000000)) > 1", UnsupportedQueryError),
    ("SELECT count(*) FROM visits WHERE random() > 0.5", UnsupportedQueryError),
    ("CALL dp_unit('patient', rho_budget := 5000, delta_threshold := 0.5, delta_conversion := 0.5)", AccessError),
    ("CALL dp_protect('unprotected', coverage := FALSE, unit := 'patient', privacy_unit_column := 'n')", AccessError),
    ("CALL dp_domain('visits', 'city', keys := ['a'])", AccessError),
    ("CALL dp_public('unprotected')", AccessError),
    ("CALL dp_new_version('visits')", AccessError),
    ("FROM dp_policy()", AccessError),
    ("CALL dp_policy()", AccessError),
    ("FROM dp_query($$ CALL dp_new_version('visits') $$)", QueryError),
    ("FROM dp_query($$ FROM dp_policy() $$)", QueryError),
    ("FROM dp_explain($$ CALL dp_public('unprotected') $$)", QueryError),
    ("SELECT * FROM dp_releases() WHERE analyst <> 'ana'", QueryError),
)


def holds_canary(text: str) -> bool:
    return CANARY in text or str(CANARY_NUMBER) in text


def everything_about(error: BaseException) -> str:
    """What tools print about an error: text, repr, notes, the chain behind it, and the locals of every frame."""
    seen: list[BaseException] = []
    while error not in seen:
        seen.append(error)
        behind = error.__cause__ or error.__context__
        error = behind if behind is not None else error
    shown = [traceback.TracebackException.from_exception(e, capture_locals=True) for e in seen]
    lines = ["".join(trace.format(chain=True)) for trace in shown]
    return "\n".join([*lines, *(f"{e!r} {e} {e.args} {vars(e)}" for e in seen)])


def everything_about_result(result: dpsql.Result) -> str:
    table = result.arrow()
    parts = [str(result), repr(result), result._repr_html_(), str(result.receipt), repr(result.receipt)]
    parts.append(repr(result.layout and result.layout.ends.to_pydict()))
    parts += [repr(result.fetchall()), result.df().to_csv(), repr(result.pl().rows()), repr(table.schema.metadata)]
    for name, field in zip(table.column_names, table.schema, strict=True):
        assert not pa.types.is_dictionary(field.type)
        parts.append(f"{field!r} {field.metadata}")
        parts += [
            repr(buffer.to_pybytes()) for chunk in table.column(name).chunks for buffer in chunk.buffers() if buffer
        ]
    return "\n".join(parts)


def ask(reader: dpsql.Analyst | dpsql.Session, text: str, **options: object) -> str:
    """Everything that one statement shows its reader."""
    try:
        return everything_about_result(reader.sql(text, **options))  # type: ignore[arg-type]
    except DpsqlError as error:
        return everything_about(error)


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """Every record of every logger, DEBUG and up."""
    caplog.set_level(logging.DEBUG)
    for name in ("dpsql", "sqlglot", "filelock", "duckdb"):
        caplog.set_level(logging.DEBUG, logger=name)
    return caplog


def log_text(caplog: pytest.LogCaptureFixture) -> str:
    return "\n".join(f"{record.getMessage()} {record.args} {record.exc_info}" for record in caplog.records)


def test_answers_and_plans_of_an_analyst_hold_no_canary(
    session: dpsql.Session, logged: pytest.LogCaptureFixture
) -> None:
    analyst = session.as_analyst("ana")
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        for text in ANSWERED:
            plan = ask(analyst, f"FROM dp_explain($$ {text} $$)")
            shown = ask(analyst, text)
            # the literal in a text of the analyst's own is no leak
            assert not holds_canary(shown.replace(text, "")), text
            assert not holds_canary(plan), text
            assert analyst.sql(text).receipt is not None, text
        books = ask(analyst, "FROM dp_releases()") + ask(analyst, "FROM dp_budget()")
    assert not holds_canary(books)
    assert not holds_canary(log_text(logged))
    assert not [str(warning.message) for warning in warned]


@pytest.mark.parametrize(("text", "error_type"), FAILING)
def test_errors_of_an_analyst_hold_no_canary(
    session: dpsql.Session, logged: pytest.LogCaptureFixture, text: str, error_type: type[DpsqlError]
) -> None:
    analyst = session.as_analyst("ana")
    for statement in (text, f"FROM dp_query($$ {text} $$)", f"FROM dp_explain($$ {text} $$)"):
        if error_type is EngineError and "dp_explain" in statement:
            continue
        with pytest.raises(error_type) as raised:
            analyst.sql(statement)
        assert raised.value.__cause__ is None
        assert raised.value.__context__ is None
        assert not holds_canary(ask(analyst, statement))
    assert not holds_canary(log_text(logged))


def test_the_search_finds_what_an_error_carries_along(session: dpsql.Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted faults: an error raised inside the handler of DuckDB's, and one that keeps its traceback."""
    text = "SELECT code, count(*) FROM failing GROUP BY code"
    connection = session.connection

    def chained(*_: object, **__: object) -> None:
        try:
            connection.execute("SELECT sum(code) FROM failing")
        except duckdb.Error:
            raise EngineError from None

    def with_locals(*_: object, **__: object) -> None:
        exact = connection.execute("SELECT min(city) FROM visits").fetchall()
        raise EngineError(f"{len(exact)} rows")

    for fault in (chained, with_locals):
        monkeypatch.setattr(DuckDBEngine, "aggregate", fault)
        assert holds_canary(ask(session, text))
        assert not holds_canary(ask(session.as_analyst("ana"), text))


def test_the_search_finds_a_key_that_is_shown(session: dpsql.Session) -> None:
    options = "OPTIONS (rho = 5, delta = 0.009, max_groups_contributed = 1)"
    text = f"SELECT WITH DIFFERENTIAL_PRIVACY {options} city, count(DISTINCT patient) FROM visits GROUP BY city"
    session.connection.execute(
        f"INSERT INTO visits (patient, city) SELECT 'q' || u, '{CANARY}_CITY' FROM range(99) t(u)"
    )
    assert holds_canary(ask(session.as_analyst("ana"), text))


BY_THRESHOLD = "SELECT city, count(*) AS n FROM visits GROUP BY city"
BY_LIST = "SELECT listed, count(DISTINCT patient) FROM visits GROUP BY listed"
BY_LIST_DISCRETE = BY_LIST.replace(
    "SELECT", "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (mechanism = DISCRETE_CORRELATED_GAUSSIAN)"
)
BY_TOP_K = "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (top_k = 3) city, count(*) AS n FROM visits GROUP BY city"
BY_SKETCH = f"SELECT {SKETCHED} city, count(DISTINCT patient) FROM visits GROUP BY city"


def broken(*_: object, **__: object) -> None:
    raise ValueError(f"{CANARY} in a message")


def broken_after_a_piece(_: object, sql: str, **__: object) -> Iterator[ExactTable]:
    """What a fetch can do at any moment: some exact rows are in memory, then it fails with one of them in its text."""
    shards = pa.array([0, 1], pa.uint8())
    yield ExactTable(pa.table({"shard": shards, "key_0": [f"{CANARY}_CITY", "Lund"], "units": [1, 2]}))
    raise ValueError(f"{CANARY} in {sql}")


@pytest.mark.parametrize(
    ("text", "place", "fault"),
    [
        (BY_THRESHOLD, "dpsql.answer.exact.align_groups", broken),
        (BY_THRESHOLD, "dpsql.answer.exact.bounded_sql", broken),
        (BY_THRESHOLD, "dpsql.engine.DuckDBEngine.aggregate", broken),
        (BY_THRESHOLD, "dpsql.mechanism.independent_gaussian.IndependentHistogram.draw", broken),
        (BY_THRESHOLD, "dpsql.answer.points.noisy_values", broken),
        (BY_THRESHOLD, "dpsql.answer.points.shown_keys", broken),
        (BY_LIST, "dpsql.mechanism.correlated_gaussian.ListedHistogram.draw", broken),
        (BY_LIST_DISCRETE, "dpsql.mechanism.discrete_correlated_gaussian.DiscreteListedHistogram.draw", broken),
        (BY_TOP_K, "dpsql.answer.exact.align_groups", broken),
        (BY_TOP_K, "dpsql.mechanism.csh.SubtractedHistogram.draw", broken),
        (BY_SKETCH, "dpsql.answer.exact.sketch_sql", broken),
        (BY_SKETCH, "dpsql.answer.exact.sketched", broken),
        (BY_SKETCH, "dpsql.answer.sketch.absorb", broken),
        (BY_SKETCH, "dpsql.engine.DuckDBEngine.stream", broken),
        (BY_SKETCH, "dpsql.engine.DuckDBEngine.stream", broken_after_a_piece),
        (BY_SKETCH, "dpsql.mechanism.csh.SubtractedHistogram.draw", broken),
    ],
    ids=lambda value: value.rpartition("dpsql.")[2] if isinstance(value, str) and value.startswith("dpsql.") else "",
)
def test_unexpected_errors_are_opaque_to_an_analyst(
    session: dpsql.Session,
    monkeypatch: pytest.MonkeyPatch,
    logged: pytest.LogCaptureFixture,
    text: str,
    place: str,
    fault: object,
) -> None:
    session.connection.execute("ALTER TABLE visits ADD COLUMN listed VARCHAR")
    session.sql("CALL dp_domain('visits', 'listed', keys := ['a', 'b', 'c', 'd', 'e', 'f', 'g', 'h', 'i'])")
    monkeypatch.setattr(place, fault)
    with pytest.raises(EngineError) as raised:
        session.as_analyst("ana").sql(text)
    assert raised.value.__cause__ is None
    assert raised.value.__context__ is None
    assert not holds_canary(ask(session.as_analyst("ana"), text))
    assert not holds_canary(log_text(logged))
    # the planted fault is what stopped the answer: the curator sees it
    with pytest.raises(ValueError, match=CANARY):
        session.sql(text)


def test_a_timeout_tells_an_analyst_nothing(session: dpsql.Session, logged: pytest.LogCaptureFixture) -> None:
    shown = ask(session.as_analyst("ana"), ANSWERED[0], timeout_seconds=1e-6)
    assert "ran out of time" in shown
    assert not holds_canary(shown + log_text(logged))


def test_raw_data_is_out_of_an_analysts_reach(session: dpsql.Session, tmp_path: Path) -> None:
    file = tmp_path / "visits.parquet"
    session.connection.execute(f"COPY visits TO '{file}'")
    frame = session.connection.execute("FROM visits").fetch_df()
    assert len(frame)
    analyst = session.as_analyst("ana")
    for text, error_type in REFUSED:
        statement = text.replace("{file}", str(file))
        with pytest.raises(error_type):
            analyst.sql(statement)
        assert not holds_canary(ask(analyst, statement))
    assert list(tmp_path.iterdir()) == [file]
    assert session.connection.execute("SELECT count(*) FROM visits").fetchone() == (1201,)
    assert analyst.sql("FROM dp_releases()").fetchall() == []
    (budget,) = analyst.sql("FROM dp_budget()").fetchall()
    assert budget[:3] == ("patient", 1000, 0)


def test_an_analyst_sees_their_own_releases_only(session: dpsql.Session) -> None:
    session.as_analyst("bob").sql(ANSWERED[0])
    session.sql(ANSWERED[1])
    assert session.as_analyst("ana").sql("FROM dp_releases()").fetchall() == []
    assert len(session.as_analyst("bob").sql("FROM dp_releases()")) == 1
    assert len(session.sql("FROM dp_releases()")) == 2


@pytest.mark.parametrize("name", ["", " ", "curator", "Curator", " CURATOR "])
def test_no_analyst_is_called_curator(session: dpsql.Session, name: str) -> None:
    with pytest.raises(PolicyError):
        session.as_analyst(name)


def reachable(value: object, depth: int = 3) -> list[object]:
    """Everything that public attributes of ours lead to."""
    found = [value]
    if depth and type(value).__module__.startswith("dpsql"):
        for name in dir(value):
            if not name.startswith("_"):
                found += reachable(getattr(value, name), depth - 1)
    return found


def test_public_attributes_of_an_analyst_lead_to_no_connection(session: dpsql.Session) -> None:
    analyst = session.as_analyst("ana")
    assert [name for name in dir(analyst) if not name.startswith("_")] == ["name", "sql"]
    assert repr(analyst) == "Analyst('ana')"
    for value in (*reachable(analyst), *reachable(analyst.sql(ANSWERED[0]))):
        assert not isinstance(value, duckdb.DuckDBPyConnection | duckdb.DuckDBPyRelation | dpsql.Session)


def test_an_impossible_request_is_refused_before_anything_is_charged(session: dpsql.Session) -> None:
    with pytest.raises(CalibrationError):
        session.as_analyst("ana").sql(ANSWERED[1], rho=1e-9)
    assert session.sql("FROM dp_budget()").fetchall()[0][2] == 0


def test_an_engine_error_carries_no_message_of_the_engine_even_for_the_curator(session: dpsql.Session) -> None:
    """Curators' errors end up in logs and tickets; DuckDB's own text would stand there with the row value."""
    with pytest.raises(EngineError) as raised:
        session.sql("SELECT code, count(*) FROM failing GROUP BY code")
    assert raised.value.__context__ is None
    assert not holds_canary("".join(traceback.format_exception(raised.value)))
