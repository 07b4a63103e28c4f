"""Nothing of a suppressed group reaches an analyst: no key, value or unit id, by no statement and no error."""

from __future__ import annotations

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
    CalibrationError,
    DpsqlError,
    EngineError,
    PolicyError,
)
from tests.end_to_end import canary
from tests.end_to_end.canary import ANSWERED, CANARY, FAILING, REFUSED, SKETCHED, broken, holds_canary, log_text, opened

fresh = canary.session
logged = canary.logged


@pytest.fixture(scope="module")
def shared() -> Iterator[dpsql.Session]:
    with opened() as session:
        session.connection.execute("ALTER TABLE visits ADD COLUMN listed VARCHAR")
        session.sql("CALL dp_unit('patient', composition := 'zcdp')")
        session.sql("CALL dp_domain('visits', 'listed', keys := ['a', 'b', 'c', 'd', 'e', 'f', 'g', 'h', 'i'])")
        yield session


@pytest.fixture
def session(shared: dpsql.Session) -> dpsql.Session:
    """Return the canary's tables under versions that nobody has asked about."""
    for table in ("visits", "failing"):
        shared.sql(f"CALL dp_new_version('{table}')")
    return shared


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
    parts = [repr(result), result._repr_html_(), str(result.receipt), repr(result.receipt)]
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


def refusal(reader: dpsql.Analyst, text: str, kind: type[DpsqlError]) -> DpsqlError:
    """Return the error that a statement raises, with no frame of a test in its traceback but this."""
    with pytest.raises(kind) as raised:
        reader.sql(text)
    return raised.value


def test_answers_and_plans_of_an_analyst_hold_no_canary(
    session: dpsql.Session, logged: pytest.LogCaptureFixture
) -> None:
    analyst = session.as_analyst("ana")
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        for text in ANSWERED:
            plan = ask(analyst, f"FROM dp_explain($$ {text} $$)")
            answer = analyst.sql(text)
            shown = everything_about_result(answer)
            # the literal in a text of the analyst's own is no leak
            assert not holds_canary(shown.replace(text, "")), text
            assert not holds_canary(plan), text
            assert answer.receipt is not None, text
        lookups = ("FROM dp_releases()", "FROM dp_budget()", "FROM dp_tables()", "SHOW TABLES", "DESCRIBE visits")
        books = "".join(ask(analyst, text) for text in lookups)
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
        error = refusal(analyst, statement, error_type)
        assert error.__cause__ is None
        assert error.__context__ is None
        assert not holds_canary(everything_about(error))
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


def test_the_search_finds_a_key_that_is_shown() -> None:
    options = "OPTIONS (rho = 5, delta = 0.009, max_groups_contributed = 1)"
    text = f"SELECT WITH DIFFERENTIAL_PRIVACY {options} city, count(DISTINCT patient) FROM visits GROUP BY city"
    with opened() as session:
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


def broken_after_a_piece(_: object, bounded: object, *__: object, **___: object) -> Iterator[ExactTable]:
    """What a fetch can do at any moment: some exact rows are in memory, then it fails with one of them in its text."""
    shards = pa.array([0, 1], pa.uint8())
    yield ExactTable(pa.table({"shard": shards, "key_0": [f"{CANARY}_CITY", "Lund"], "units": [1, 2]}))
    raise ValueError(f"{CANARY} in {bounded}")


@pytest.mark.parametrize(
    ("text", "place", "fault"),
    [
        (BY_THRESHOLD, "dpsql.release.exact.align_groups", broken),
        (BY_THRESHOLD, "dpsql.bound.statement.bounded_sql", broken),
        (BY_THRESHOLD, "dpsql.engine.DuckDBEngine.aggregate", broken),
        (BY_THRESHOLD, "dpsql.mechanism.independent_gaussian.IndependentHistogram.draw", broken),
        (BY_THRESHOLD, "dpsql.release.points.noisy_values", broken),
        (BY_THRESHOLD, "dpsql.release.points.shown_keys", broken),
        (BY_LIST, "dpsql.mechanism.correlated_gaussian.ListedHistogram.draw", broken),
        (BY_LIST_DISCRETE, "dpsql.mechanism.discrete_correlated_gaussian.DiscreteListedHistogram.draw", broken),
        (BY_TOP_K, "dpsql.release.exact.align_groups", broken),
        (BY_TOP_K, "dpsql.mechanism.csh.SubtractedHistogram.draw", broken),
        (BY_SKETCH, "dpsql.bound.statement.sketch_sql", broken),
        (BY_SKETCH, "dpsql.release.exact.sketched", broken),
        (BY_SKETCH, "dpsql.release.sketch.absorb", broken),
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
    monkeypatch.setattr(place, fault)
    error = refusal(session.as_analyst("ana"), text, EngineError)
    assert error.__cause__ is None
    assert error.__context__ is None
    assert not holds_canary(everything_about(error))
    assert not holds_canary(log_text(logged))
    # the planted fault is what stopped the answer: the curator sees it
    with pytest.raises(ValueError, match=CANARY):
        session.sql(text)


def test_a_timeout_tells_an_analyst_nothing(session: dpsql.Session, logged: pytest.LogCaptureFixture) -> None:
    shown = ask(session.as_analyst("ana"), ANSWERED[0], timeout_seconds=1e-6)
    assert "ran out of time" in shown
    assert not holds_canary(shown + log_text(logged))


def test_raw_data_is_out_of_an_analysts_reach(fresh: dpsql.Session, tmp_path: Path) -> None:
    file = tmp_path / "visits.parquet"
    fresh.connection.execute(f"COPY visits TO '{file}'")
    frame = fresh.connection.execute("FROM visits").fetch_df()
    assert len(frame)
    analyst = fresh.as_analyst("ana")
    for text, error_type in REFUSED:
        statement = text.replace("{file}", str(file))
        assert not holds_canary(everything_about(refusal(analyst, statement, error_type)))
    assert list(tmp_path.iterdir()) == [file]
    assert fresh.connection.execute("SELECT count(*) FROM visits").fetchone() == (1201,)
    assert analyst.sql("FROM dp_releases()").fetchall() == []
    (budget,) = analyst.sql("FROM dp_budget()").arrow().to_pylist()
    assert (budget["unit"], budget["rho_budget"], budget["rho_spent"]) == ("patient", 1000, 0)


def test_an_analyst_sees_their_own_releases_only(fresh: dpsql.Session) -> None:
    fresh.as_analyst("bob").sql(ANSWERED[0])
    fresh.sql(ANSWERED[1])
    assert fresh.as_analyst("ana").sql("FROM dp_releases()").fetchall() == []
    assert len(fresh.as_analyst("bob").sql("FROM dp_releases()")) == 1
    assert len(fresh.sql("FROM dp_releases()")) == 2


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
    assert [name for name in dir(analyst) if not name.startswith("_")] == ["execute", "name", "sql"]
    assert repr(analyst) == "Analyst('ana')"
    for value in (*reachable(analyst), *reachable(analyst.sql(ANSWERED[0]))):
        assert not isinstance(value, duckdb.DuckDBPyConnection | duckdb.DuckDBPyRelation | dpsql.Session)


def test_an_impossible_request_is_refused_before_anything_is_charged(session: dpsql.Session) -> None:
    before = session.sql("FROM dp_budget()").fetchall()
    with pytest.raises(CalibrationError):
        session.as_analyst("ana").sql(ANSWERED[1], rho=1e-9)
    assert session.sql("FROM dp_budget()").fetchall() == before


def test_an_engine_error_carries_no_message_of_the_engine_even_for_the_curator(session: dpsql.Session) -> None:
    """Curators' errors end up in logs and tickets; DuckDB's own text would stand there with the row value."""
    with pytest.raises(EngineError) as raised:
        session.sql("SELECT code, count(*) FROM failing GROUP BY code")
    assert raised.value.__context__ is None
    assert not holds_canary("".join(traceback.format_exception(raised.value)))
