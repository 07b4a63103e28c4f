"""The DB-API over a file and over a server: what tools ask, what it costs, and what is refused."""

from __future__ import annotations

import datetime as dt
import pickle
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import dpsql
from dpsql import dbapi
from dpsql.dbapi.spending import stated_price
from dpsql.engine import DuckDBEngine
from dpsql.errors import AccessError, BudgetError, ParseError, PolicyError, UnsupportedQueryError
from tests.end_to_end.prepared import with_own_state
from tests.serving import door, in_background, token_of

LEVEL = "WITH DIFFERENTIAL_PRIVACY OPTIONS (rho = 0.01)"
BY_WARD = "SELECT ward, count(*) AS n FROM visits GROUP BY ward ORDER BY ward"
ABOVE = "SELECT ward, count(*) AS n FROM visits WHERE cost > ? GROUP BY ward ORDER BY ward"
FIRST_DAY = dt.date(2026, 1, 1)


def declare(session: dpsql.Session) -> None:
    """3,000 patients on 7 wards, whose budget is rho = 1; stays have a level in the policy."""
    session.connection.execute(
        "CREATE TABLE visits AS SELECT u % 3000 AS patient, u % 7 AS ward, (u % 90)::DOUBLE AS cost, "
        "DATE '2026-01-01' + (u % 30)::INTEGER AS day FROM range(30_000) t(u)"
    )
    session.connection.execute("CREATE TABLE stays AS FROM visits")
    session.sql("CALL dp_unit('patient', rho_budget := 1, delta_threshold := 1e-3, delta_conversion := 1e-6)")
    session.sql("CALL dp_analyst('ana')")
    for table, level in (("visits", ""), ("stays", ", default_rho := 0.02")):
        session.sql(
            f"CALL dp_protect('{table}', unit := 'patient', coverage := FALSE, privacy_unit_column := 'patient', "
            f"max_groups_contributed := 4, max_rows_per_group := 3{level})"
        )
        session.sql(f"CALL dp_domain('{table}', 'cost', bounds := [0, 100])")


@pytest.fixture(scope="module")
def prepared() -> Iterator[dpsql.Session]:
    with dpsql.connect(threads=1) as session:
        declare(session)
        yield session


@pytest.fixture
def session(prepared: dpsql.Session) -> Iterator[dpsql.Session]:
    with with_own_state(prepared) as session:
        yield session


@pytest.fixture(params=["file", "server"])
def ana(request: pytest.FixtureRequest, session: dpsql.Session) -> Iterator[dbapi.Connection]:
    """A connection at rho = 0.01 that may take a tenth of the budget: by a handle, and by a server."""
    terms: dict[str, Any] = {"default_rho": 0.01, "spend_at_most": 0.1}
    if request.param == "file":
        with dbapi.Connection(session.as_analyst("ana"), **terms) as connection:
            yield connection
        return
    with (
        in_background(session, door("ana")) as urls,
        dbapi.connect(urls.analysts, token=token_of("ana"), **terms) as connection,
    ):
        yield connection


def spent(session: dpsql.Session) -> float:
    return float(session.sql("FROM dp_budget()").df()["rho_spent"][0])


def refused(connection: dbapi.Connection, text: str, params: Any = None) -> dbapi.Error:
    """Return the error of a text, which has no trace of another error."""
    with pytest.raises(dbapi.Error) as raised:
        connection.execute(text, params)
    assert raised.value.__cause__ is None
    assert raised.value.__context__ is None
    reason = raised.value.reason
    if reason is not None:
        assert (reason.__cause__, reason.__context__, reason.__traceback__) == (None, None, None)
    return raised.value


def test_the_module_is_a_db_api() -> None:
    assert (dbapi.apilevel, dbapi.threadsafety, dbapi.paramstyle) == ("2.0", 2, "qmark")
    for name in dbapi.__all__:
        assert getattr(dbapi, name) is not None
    assert issubclass(dbapi.ProgrammingError, dbapi.DatabaseError)
    assert issubclass(dbapi.DatabaseError, dbapi.Error)
    assert not issubclass(dbapi.Warning, dbapi.Error)
    assert dbapi.Date(2026, 1, 2) == dt.date(2026, 1, 2)
    ticks = dbapi.TimestampFromTicks(0)
    assert (ticks.date(), ticks.time()) == (dbapi.DateFromTicks(0), dbapi.TimeFromTicks(0))
    assert dbapi.NUMBER == "DECIMAL(9,2)"
    assert dbapi.STRING != "VARCHAR[]"
    assert "TIMESTAMP WITH TIME ZONE" == dbapi.DATETIME  # noqa: SIM300 — both ways


def test_tools_look_around_for_nothing(session: dpsql.Session, ana: dbapi.Connection) -> None:
    cursor = ana.cursor()
    assert sorted(cursor.execute("SHOW TABLES;").fetchall()) == [("stays",), ("visits",)]
    columns = {row[0]: row[1] for row in cursor.execute("DESCRIBE visits")}
    assert columns == {"patient": "BIGINT", "ward": "BIGINT", "cost": "DOUBLE", "day": "DATE"}
    assert cursor.execute("SELECT 1").fetchall() == [(1,)]
    assert cursor.execute("-- a tool\nselect version();").fetchone() == (f"dpsql {dpsql.__version__}",)
    assert cursor.execute("SELECT current_schema()").fetchone() == ("main",)
    plan = {(row[0], row[1]): row[2] for row in cursor.execute(f"EXPLAIN {ABOVE}", [3])}
    assert plan["price", "rho"] == "0.01"
    assert plan["frame", "filter"] == '"cost" > 3'
    described = cursor.execute(f"FROM dp_describe($$ {ABOVE} $$)", [3]).fetchall()
    assert described == [("ward", "BIGINT"), ("n", "BIGINT")]
    ana.commit()
    ana.rollback()
    assert spent(session) == 0


def test_rows_come_one_after_the_other(ana: dbapi.Connection) -> None:
    cursor = ana.cursor()
    assert (cursor.description, cursor.rowcount, cursor.arraysize) == (None, -1, 1)
    cursor.execute(BY_WARD)
    assert cursor.rowcount == 7
    assert cursor.description is not None
    assert [one[:2] for one in cursor.description] == [("ward", "BIGINT"), ("n", "BIGINT")]
    assert {len(one) for one in cursor.description} == {7}
    assert cursor.description[0][1] == dbapi.NUMBER
    rows = [cursor.fetchone(), *cursor.fetchmany(), *cursor.fetchmany(2), next(cursor), *cursor.fetchall()]
    assert [row[0] for row in rows if row] == list(range(7))
    assert (cursor.fetchone(), cursor.fetchmany(3), cursor.fetchall(), list(cursor)) == (None, [], [], [])
    assert cursor.result is not None
    assert cursor.result.receipt is not None
    assert cursor.result.receipt.charged_rho == 0.01
    cursor.setinputsizes([1])
    cursor.setoutputsize(1, 0)
    with pytest.raises(dbapi.NotSupportedError, match="executemany"):
        cursor.executemany(ABOVE, [[1], [2]])


QUESTIONS: tuple[tuple[str, Any], ...] = (
    ("SELECT ward, count(*) AS n FROM visits WHERE day >= ? GROUP BY ward", [FIRST_DAY + dt.timedelta(10)]),
    ("SELECT ward, avg(cost) AS c FROM visits WHERE ward IN (?, ?) GROUP BY ward ORDER BY c DESC LIMIT 1", (1, 2)),
    ("SELECT ward, count(*) AS n FROM visits WHERE cost < $most GROUP BY ward", {"most": 50}),
    ("SELECT ward, count(*) AS n FROM visits WHERE ward < ? GROUP BY ward", [np.int64(3)]),
    ("FROM dp_query($$ SELECT ward, count(*) AS n FROM visits WHERE cost < ? GROUP BY ward $$, rho := 0.01)", [50]),
)


def test_pandas_reads_with_and_without_parameters(session: dpsql.Session, ana: dbapi.Connection) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "pandas only supports SQLAlchemy", UserWarning)
        frame = pd.read_sql(BY_WARD, ana)
        assert list(frame.columns) == ["ward", "n"]
        assert 10_000 < frame["n"].sum() < 30_000
        for text, params in QUESTIONS:
            frame = pd.read_sql(text, ana, params=params)
            level: dict[str, Any] = {} if "rho :=" in text else {"rho": 0.01}
            local = session.as_analyst("ana").sql(text, [3] if "ward <" in text else params, **level)
            assert frame.to_dict("list") == local.df().to_dict("list")
            assert local.receipt is not None
            assert local.receipt.charged_rho == 0


def test_a_level_in_the_text_comes_first_then_the_connection_then_the_policy(session: dpsql.Session) -> None:
    stays, analyst = BY_WARD.replace("visits", "stays"), session.as_analyst("ana")
    with_level = stays.replace("SELECT", "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (rho = 0.003)")
    levels = []
    for connection, text in (
        (dbapi.Connection(analyst, default_epsilon=0.1, spend_at_most=0.5), with_level),
        (dbapi.Connection(analyst, default_rho=0.004, spend_at_most=0.5), stays),
        (dbapi.Connection(analyst), stays),
    ):
        result = connection.execute(text).result
        assert result is not None
        assert result.receipt is not None
        levels.append(result.receipt.rho)
    assert levels == [0.003, 0.004, 0.02]
    assert "privacy_level_missing" in str(refused(dbapi.Connection(analyst), BY_WARD))
    inside = f"FROM dp_query($$ {with_level} $$)"
    result = dbapi.Connection(analyst, default_epsilon=0.1, spend_at_most=0.5).execute(inside).result
    assert result is not None
    assert result.receipt is not None
    assert (result.receipt.rho, result.receipt.reused) == (0.003, True)


def test_the_cap_refuses_before_a_charge_and_passes_stored_answers(
    session: dpsql.Session, ana: dbapi.Connection
) -> None:
    dearer = BY_WARD.replace("SELECT", "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (rho = 0.09)")
    for most in range(3):
        ana.execute(ABOVE, [most])
    assert spent(session) == pytest.approx(0.03)
    for text in (dearer, f"FROM dp_query($${BY_WARD}$$, rho := 0.09)", f"FROM ({dearer}) WHERE n > 3"):
        error = refused(ana, text)
        assert isinstance(error, dbapi.OperationalError)
        assert isinstance(error.reason, BudgetError)
        assert error.reason.remaining_rho == pytest.approx(0.07)
        assert error.reason.requested_rho == pytest.approx(0.09)
        assert "spend_at_most = 0.1" in str(error)
    assert spent(session) == pytest.approx(0.03)
    # exactly the cap
    ana.execute(BY_WARD.replace("SELECT", "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (rho = 0.07)"))
    assert isinstance(refused(ana, ABOVE, [50]).reason, BudgetError)
    for most in range(3):
        ana.execute(ABOVE, [most])
    ana.execute(BY_WARD)
    assert spent(session) == pytest.approx(0.1)


def test_the_cap_counts_thresholds_texts_of_parts_and_what_others_paid(session: dpsql.Session) -> None:
    analyst = session.as_analyst("ana")
    capped = dbapi.Connection(analyst, default_rho=1e-4, spend_at_most=0.02)
    analyst.sql(BY_WARD, rho=0.5)
    together = f"{BY_WARD.partition('ORDER')[0]} UNION ALL {ABOVE.partition('ORDER')[0]}"
    capped.execute(together, [1])
    price = capped._asking.cap
    assert price is not None
    assert 0 < price._spent["patient"].level < 2e-4
    # one threshold takes more than the rest of this share of the delta
    wide = ABOVE.replace("SELECT", "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (delta = 1.5e-5)")
    capped.execute(wide, [2])
    error = refused(capped, wide, [3])
    assert isinstance(error.reason, BudgetError)
    assert error.reason.requested_delta == pytest.approx(1.5e-5)


OPTIONS = "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS"
KINDS = (
    "SELECT ward, count(*) AS n FROM visits GROUP BY GROUPING SETS ((ward), ())",
    f"{OPTIONS} (rho = 0.02, other_group = 'rest') ward::VARCHAR AS w, count(*) AS n FROM visits GROUP BY w",
    f"{OPTIONS} (target_relative_error = 0.2, max_rho = 0.1) ward, count(*) AS n FROM visits GROUP BY ward",
    f"{OPTIONS} (rho = 0.03, max_groups_contributed = AUTO) ward, count(*) AS n FROM visits GROUP BY ward",
    "SELECT ward, n / sum(n) OVER () AS share FROM (SELECT ward, count(*) AS n FROM visits WHERE cost < 9 GROUP BY 1)",
    "SELECT count(*) AS n FROM visits UNION ALL SELECT count(*) FROM stays",
)


def test_the_cap_counts_what_the_ledger_does(session: dpsql.Session) -> None:
    capped = dbapi.Connection(session.as_analyst("ana"), default_rho=0.01, spend_at_most=0.9)
    counted = capped._asking.cap
    assert counted is not None
    for text in KINDS:
        before = spent(session)
        capped.execute(text)
        assert spent(session) > before, text
        assert float(counted._spent["patient"].level) == pytest.approx(spent(session), abs=2e-9), text


def test_a_charge_of_a_question_without_an_answer_stays_counted(
    session: dpsql.Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: object, **__: object) -> None:
        raise ValueError("CANARY")

    capped = dbapi.Connection(session.as_analyst("ana"), default_rho=0.04, spend_at_most=0.1)
    monkeypatch.setattr(DuckDBEngine, "aggregate", failing)
    error = refused(capped, ABOVE, [7])
    assert str(error) == str(dpsql.EngineError.unanswered())
    monkeypatch.undo()
    capped.execute(ABOVE, [8])
    assert isinstance(refused(capped, ABOVE, [9]).reason, BudgetError)
    assert spent(session) == pytest.approx(0.08)


def test_threads_share_a_cap(session: dpsql.Session) -> None:
    capped = dbapi.Connection(session.as_analyst("ana"), default_rho=0.02, spend_at_most=0.05)
    outcomes: list[bool] = []

    def work(most: int) -> None:
        try:
            capped.execute(ABOVE, [most])
        except dbapi.OperationalError:
            outcomes.append(False)
        else:
            outcomes.append(True)

    threads = [threading.Thread(target=work, args=(most,)) for most in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == [False, False, True, True]
    assert spent(session) == pytest.approx(0.04)


REFUSED: tuple[tuple[str, Any, type[dbapi.Error], type[dpsql.DpsqlError], str], ...] = (
    (
        "SELECT ward,\nmax(cost) FROM visits GROUP BY ward",
        None,
        dbapi.ProgrammingError,
        UnsupportedQueryError,
        "line 2",
    ),
    ("SELECT * FROM visits LIMIT 3", None, dbapi.ProgrammingError, UnsupportedQueryError, "line 1"),
    (ABOVE, None, dbapi.ProgrammingError, ParseError, "no value was given"),
    (ABOVE, [1, 2], dbapi.ProgrammingError, ParseError, "without a place"),
    (ABOVE, [[1]], dbapi.ProgrammingError, ParseError, "type list"),
    ("SELECT count(*) FROM patients", None, dbapi.ProgrammingError, dpsql.SchemaError, "patients"),
    ("DELETE FROM visits", None, dbapi.ProgrammingError, ParseError, "SHOW TABLES"),
    (f"EXPLAIN ANALYZE {BY_WARD}", None, dbapi.ProgrammingError, PolicyError, "EXPLAIN"),
    ("EXPLAIN SHOW TABLES", None, dbapi.ProgrammingError, PolicyError, "EXPLAIN"),
    ("CALL dp_unprotect('visits')", None, dbapi.OperationalError, AccessError, "curator"),
)


def test_refusals_have_reason_and_place_and_cost_nothing(session: dpsql.Session, ana: dbapi.Connection) -> None:
    for text, params, kind, reason, part in REFUSED:
        error = refused(ana, text, params)
        assert (type(error), type(error.reason)) == (kind, reason), text
        assert part in str(error)
        assert str(error) == str(error.reason)
        assert "Session.connection" not in str(error)
    error = refused(ana, REFUSED[0][0])
    assert isinstance(error.reason, UnsupportedQueryError)
    assert error.reason.refusals[0].code == "aggregate"
    assert str(pickle.loads(pickle.dumps(error)).reason) == str(error)  # noqa: S301 — our own bytes
    assert spent(session) == 0
    # a place behind a parameter is that of the text which was asked
    wrong = "SELECT ward, count(*) AS n FROM visits WHERE cost > ? AND max(cost) > 1 GROUP BY ward"
    with_place = refused(ana, wrong, [123456789])
    assert f"column {wrong.index('max') + 1}" in str(with_place)


def test_what_is_closed_is_refused(session: dpsql.Session) -> None:
    connection = dbapi.Connection(session.as_analyst("ana"))
    cursor = connection.cursor()
    with pytest.raises(dbapi.InterfaceError, match="execute first"):
        cursor.fetchall()
    with connection.cursor() as closed:
        pass
    for step in (closed.fetchone, lambda: closed.execute("SELECT 1"), lambda: next(closed)):
        with pytest.raises(dbapi.InterfaceError, match="cursor was closed"):
            step()
    connection.close()
    connection.close()
    for step in (connection.cursor, connection.commit, connection.rollback, lambda: cursor.execute("SELECT 1")):
        with pytest.raises(dbapi.InterfaceError, match="connection was closed"):
            step()


def test_a_file_is_opened_for_an_analyst_and_closed_with_the_connection(tmp_path: Path) -> None:
    path = tmp_path / "clinic.duckdb"
    with dpsql.connect(path, threads=1) as session:
        declare(session)
    with dbapi.connect(path, analyst="ana", default_epsilon=0.3, spend_at_most=0.1, threads=1) as connection:
        rows = connection.execute(BY_WARD).fetchall()
        assert len(rows) == 7
    with dpsql.connect(path, threads=1) as session:
        assert session.as_analyst("ana").execute(BY_WARD, epsilon=0.3).fetchall() == rows
        assert session.execute("SELECT 1 AS one").description == [("one", "INTEGER", *(None,) * 5)]
        # this process has the file open with other settings
        with pytest.raises(dbapi.OperationalError, match="cannot be opened") as raised:
            dbapi.connect(path, analyst="ana")
        assert raised.value.__context__ is None
    (tmp_path / "text.duckdb").write_text("secret of Ana " * 1000)
    with pytest.raises(dbapi.OperationalError, match="cannot be opened"):
        dbapi.connect(tmp_path / "text.duckdb", analyst="ana")
    with pytest.raises(dbapi.ProgrammingError, match="no database file"):
        dbapi.connect(tmp_path / "other.duckdb", analyst="ana")
    assert not (tmp_path / "other.duckdb").exists()


@pytest.mark.parametrize(
    ("place", "named", "part"),
    [
        (__file__, {}, "analyst="),
        (__file__, {"analyst": "ana", "token": "x"}, "token"),
        (__file__, {"analyst": "ana", "plain_http": True}, "for a server"),
        ("https://stats.example", {}, "token"),
        ("https://stats.example", {"token": "x", "analyst": "ana"}, "leave analyst out"),
        ("https://stats.example", {"token": "x", "state": "y"}, "ca_file"),
    ],
)
def test_connect_says_what_is_missing(place: str, named: dict[str, Any], part: str) -> None:
    with pytest.raises(dbapi.ProgrammingError, match=part):
        dbapi.connect(place, **named)


@pytest.mark.parametrize(
    ("named", "part"),
    [
        ({"default_epsilon": 1}, "needs spend_at_most"),
        ({"default_rho": 1}, "needs spend_at_most"),
        ({"default_epsilon": 1, "default_rho": 1, "spend_at_most": 1}, "one of them"),
        ({"default_epsilon": -1, "spend_at_most": 1}, "positive"),
        ({"spend_at_most": 1.5}, "share"),
        ({"spend_at_most": 0}, "share"),
    ],
)
def test_a_level_needs_a_cap(session: dpsql.Session, named: dict[str, Any], part: str) -> None:
    with pytest.raises(PolicyError, match=part):
        dbapi.Connection(session.as_analyst("ana"), **named)


def test_a_plan_without_a_price_is_no_free_question(session: dpsql.Session) -> None:
    """A planted fault: a plan whose words changed must not pass as free."""
    with pytest.raises(PolicyError, match="cannot be checked"):
        stated_price(session.sql("SELECT 'frame' AS section, 'keys' AS name, 'ward' AS value"))
