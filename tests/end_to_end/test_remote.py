"""A remote session is an analyst's: the same answers, receipts and errors; what stands in between says so."""

from __future__ import annotations

import dataclasses
import datetime as dt
import inspect
import threading
import time
from collections.abc import Iterator
from decimal import Decimal

import pytest

import dpsql
from dpsql.engine import DuckDBEngine, connection
from dpsql.errors import AccessError, ParseError, PolicyError, RemoteError, UnsupportedQueryError
from dpsql.frontends.server.doors import Urls
from tests.end_to_end.prepared import with_own_state
from tests.serving import QUICK, door, in_background, token_of

QUERY = "SELECT ward, count(*) AS n, avg(cost) AS cost FROM visits WHERE cost > $least GROUP BY ward ORDER BY ward"


@pytest.fixture(scope="module")
def prepared() -> Iterator[dpsql.Session]:
    with dpsql.connect() as session:
        session.connection.execute(
            "CREATE TABLE visits AS SELECT u % 3000 AS patient, u % 7 AS ward, (u % 90)::DOUBLE AS cost, "
            "DATE '2026-01-01' + (u % 30)::INTEGER AS day FROM range(30_000) t(u)"
        )
        session.sql(
            "CALL dp_protect('visits', coverage := FALSE, "
            "privacy_unit_column := 'patient', max_groups_contributed := 4, "
            "max_rows_per_group := 3, rho_budget := 10, delta_threshold := 1e-3, delta_conversion := 1e-6)"
        )
        session.sql("CALL dp_domain('visits', 'cost', bounds := [0, 100])")
        session.sql("CALL dp_analyst('ana', rho_limit := 1)")
        yield session


@pytest.fixture
def session(prepared: dpsql.Session) -> Iterator[dpsql.Session]:
    with with_own_state(prepared) as session:
        yield session


@pytest.fixture
def urls(session: dpsql.Session) -> Iterator[Urls]:
    with in_background(session, door("ana")) as urls:
        yield urls


@pytest.fixture
def ana(urls: Urls) -> dpsql.remote.RemoteAnalyst:
    return dpsql.remote.connect(urls.analysts, token=token_of("ana"))


def test_the_same_numbers_and_receipt_as_in_the_curators_process(
    session: dpsql.Session, ana: dpsql.remote.RemoteAnalyst
) -> None:
    assert ana.name == "ana"
    first = ana.sql(QUERY, {"least": 3}, rho=0.1)
    assert first.receipt is not None
    assert first.receipt.charged_rho == 0.1
    for statement in (QUERY, f"FROM dp_query($$ {QUERY.replace('$least', '3')} $$, rho := 0.1)"):
        params = {"least": 3} if "$least" in statement else None
        options = {"rho": 0.1} if params else {}
        local, remote = (reader.sql(statement, params, **options) for reader in (session.as_analyst("ana"), ana))
        assert remote.arrow().equals(local.arrow())
        assert remote.arrow().schema.equals(local.arrow().schema, check_metadata=True)
        assert remote.receipt == local.receipt
        # what is spent of the budget does not travel
        assert str(remote).splitlines() == [line.partition("; spent so far")[0] for line in str(local).splitlines()]
        assert remote.df().equals(local.df())
        assert list(remote) == [remote.fetchone(), *remote.fetchmany(2), *remote.fetchall()] == local.fetchall()
    for statement in ("FROM dp_budget()", "FROM dp_releases()"):
        assert ana.sql(statement).columns == session.as_analyst("ana").sql(statement).columns


PARTS = (
    "SELECT 'cheap' AS c, count(*) AS n FROM visits WHERE cost < $most UNION ALL SELECT $name, count(*) FROM visits",
    "SELECT m.month, n FROM months m LEFT JOIN (SELECT month(day) AS month, count(*) AS n FROM visits "
    "WHERE cost < $most GROUP BY month) v ON v.month = m.month WHERE $name <> 'none'",
)
FREE = ("SELECT month FROM months WHERE month < 3", "SELECT 1 AS x UNION ALL SELECT 2")


def test_texts_of_parts_and_public_tables_are_those_of_the_curators_process(
    session: dpsql.Session, ana: dpsql.remote.RemoteAnalyst
) -> None:
    session.connection.execute("CREATE OR REPLACE TABLE months AS SELECT i AS month FROM range(1, 13) r(i)")
    session.sql("CALL dp_public('months', readable := true)")
    for statement, sets in zip(PARTS, (2, 0), strict=True):
        ana.sql(statement, {"most": 50, "name": "all"}, rho=0.1)
        readers = (session.as_analyst("ana"), ana)
        local, remote = (reader.sql(statement, {"most": 50, "name": "all"}, rho=0.1) for reader in readers)
        assert remote.fetchall() == local.fetchall()
        assert remote.receipt is not None
        assert len(remote.receipt.sets) == sets
        assert remote.receipt == local.receipt
        assert str(remote).splitlines() == [line.partition("; spent so far")[0] for line in str(local).splitlines()]
    before = session.sql("FROM dp_budget()").fetchall()
    for statement in FREE:
        local, remote = (reader.sql(statement) for reader in (session.as_analyst("ana"), ana))
        assert (remote.receipt, remote.fetchall()) == (None, local.fetchall())
        assert str(remote) == str(local)
    assert session.sql("FROM dp_budget()").fetchall() == before


def test_sql_takes_what_an_analysts_takes() -> None:
    remote, local = (inspect.signature(kind.sql).parameters for kind in (dpsql.remote.RemoteAnalyst, dpsql.Analyst))
    assert [(one.name, one.kind, one.default) for one in remote.values()] == [
        (one.name, one.kind, one.default) for one in local.values()
    ]


@pytest.mark.parametrize(
    ("condition", "params"),
    [
        ("cost > ?", [3]),
        ("cost > ?", [Decimal("3.5")]),
        ("day < ?", [dt.date(2026, 1, 20)]),
        ("day < ?", [dt.datetime(2026, 1, 20, 12)]),
        ("cost > $x AND ward < $y", {"x": 1.5, "y": 6}),
    ],
)
def test_parameters_arrive_with_their_types(
    session: dpsql.Session, ana: dpsql.remote.RemoteAnalyst, condition: str, params: list[object] | dict[str, object]
) -> None:
    text = f"SELECT ward, count(*) AS n FROM visits WHERE {condition} GROUP BY ward"
    remote = ana.sql(text, params, rho=0.1)
    local = session.as_analyst("ana").sql(text, params, rho=0.1)  # type: ignore[arg-type]
    assert (remote.arrow(), True) == (local.arrow(), local.receipt is not None and local.receipt.reused)


def test_errors_arrive_with_their_place(session: dpsql.Session, ana: dpsql.remote.RemoteAnalyst) -> None:
    with pytest.raises(UnsupportedQueryError) as remote:
        ana.sql("SELECT *, max(cost)\nFROM visits GROUP BY ward", rho=0.1)
    with pytest.raises(UnsupportedQueryError) as local:
        session.as_analyst("ana").sql("SELECT *, max(cost)\nFROM visits GROUP BY ward", rho=0.1)
    assert remote.value.refusals == local.value.refusals
    assert len(remote.value.refusals) > 1
    with pytest.raises(ParseError) as parsed:
        ana.sql("SELECT count(*) FROM visits WHERE")
    assert parsed.value.span is not None
    session.sql("CALL dp_analyst('ana', rho_limit := NULL, replace := true)")
    with pytest.raises(dpsql.BudgetError) as budget:
        ana.sql(QUERY, {"least": 1}, rho=11)
    assert (budget.value.unit, budget.value.requested_rho, budget.value.analyst) == ("visits", 11, None)
    # a part that is declared while the server runs
    session.sql("CALL dp_analyst('ana', budget_part := 0.3)")
    with pytest.raises(dpsql.BudgetError) as part:
        ana.sql(QUERY, {"least": 1}, rho=4)
    with pytest.raises(dpsql.BudgetError) as same:
        session.as_analyst("ana").sql(QUERY, {"least": 1}, rho=4)
    assert (part.value.analyst, part.value.remaining_rho, str(part.value)) == ("ana", 3, str(same.value))
    assert ana.sql("FROM dp_budget()").df()["budget_part"].item() == 0.3


@pytest.mark.parametrize("timeout_seconds", [0, -1, float("nan"), float("inf"), "x"])
def test_what_makes_no_sense_is_refused_before_it_is_sent(
    ana: dpsql.remote.RemoteAnalyst, timeout_seconds: float
) -> None:
    with pytest.raises(PolicyError, match="timeout_seconds"):
        ana.sql(QUERY, timeout_seconds=timeout_seconds)
    with pytest.raises(PolicyError, match="bytes"):
        ana.sql(QUERY, [b"x"])
    with pytest.raises(ParseError):
        ana.sql(3)  # type: ignore[arg-type]


def test_a_full_queue_is_waited_for(session: dpsql.Session) -> None:
    settings = dataclasses.replace(QUICK, waiting=1)
    with in_background(session, door("ana"), settings=settings) as urls:
        ana = dpsql.remote.connect(urls.analysts, token=token_of("ana"))
        answers: list[int] = []
        threads = [
            threading.Thread(target=lambda: answers.append(len(ana.sql(QUERY, {"least": 2}, rho=0.1))))
            for _ in range(3)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert answers == [7] * 3


def test_a_question_without_an_answer_is_waited_for_and_is_one_error_with_one_sentence(
    session: dpsql.Session, ana: dpsql.remote.RemoteAnalyst, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is there no sooner than the deadline, whichever of the two it was; and asking again pays nothing."""
    told = set()
    # a busy machine may not come to the charge in the first of these times
    for seconds, limit in ((0.0, 0.5), (60.0, 0.5), (60.0, 5.0), (60.0, 20.0)):

        def failing(_: DuckDBEngine, __: str, *, seconds: float = seconds, **___: object) -> None:
            stop = connection._STOP.get()
            assert stop is not None
            stop.wait(seconds)
            raise ValueError("CANARY")

        began = time.monotonic()
        monkeypatch.setattr(DuckDBEngine, "aggregate", failing)
        with pytest.raises(dpsql.EngineError) as raised:
            ana.sql(QUERY, {"least": 5}, rho=0.1, timeout_seconds=limit)
        assert time.monotonic() - began >= limit
        told.add(str(raised.value))
        if seconds and session.sql("FROM dp_budget()").df()["rho_spent"][0]:
            break
    monkeypatch.undo()
    assert told == {str(dpsql.EngineError.unanswered())}
    answer = ana.sql(QUERY, {"least": 5}, rho=0.1)
    assert answer.receipt is not None
    assert answer.receipt.charged_rho == 0


def test_an_interrupt_at_the_keyboard_cancels(
    session: dpsql.Session, ana: dpsql.remote.RemoteAnalyst, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, str]] = []
    whole = ana._transport.request

    def interrupted(method: str, path: str, **named: object) -> object:
        asked.append((method, path))
        if method == "GET":
            raise KeyboardInterrupt
        return whole(method, path, **named)  # type: ignore[arg-type]

    free = threading.Event()
    aggregate = DuckDBEngine.aggregate

    def held(self: DuckDBEngine, sql: str, **named: object) -> object:
        free.wait(30)
        return aggregate(self, sql, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(DuckDBEngine, "aggregate", held)
    monkeypatch.setattr(ana._transport, "request", interrupted)
    with pytest.raises(KeyboardInterrupt):
        ana.sql(QUERY, {"least": 4}, rho=0.1)
    free.set()
    assert [method for method, _ in asked] == ["POST", "GET", "DELETE"]
    assert asked[2][1] == asked[1][1].partition("/result")[0]


def test_a_server_that_is_gone_or_is_none_says_so(session: dpsql.Session) -> None:
    with in_background(session, door("ana"), door("curator")) as urls:
        ana = dpsql.remote.connect(urls.analysts, token=token_of("ana"))
        with pytest.raises(AccessError, match="token"):
            dpsql.remote.connect(urls.analysts, token=token_of("other"))
        with pytest.raises(RemoteError):
            dpsql.remote.connect(urls.curator or "", token=token_of("curator"))
    with pytest.raises(RemoteError, match="pays nothing twice"):
        ana.sql(QUERY)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "stats.example",
        "ftp://stats.example",
        "http://",
        "https://a:b@stats.example",
        "https://x/?y",
        "http://x:99999",
    ],
)
def test_an_address_is_one_of_a_server(url: str) -> None:
    with pytest.raises(RemoteError, match="looks like"):
        dpsql.remote.connect(url, token=token_of("ana"))


@pytest.mark.parametrize("token", ["", "a\r\nX: y", "ü"])
def test_a_token_is_one_line(token: str) -> None:
    with pytest.raises(RemoteError, match="a token is"):
        dpsql.remote.connect("https://stats.example", token=token)


def test_a_token_is_not_sent_in_the_clear() -> None:
    with pytest.raises(RemoteError, match="use https"):
        dpsql.remote.connect("http://stats.example:8642", token=token_of("ana"))


@pytest.mark.parametrize("ca_file", ["", "nowhere.pem", __file__])
def test_certificates_that_cannot_be_read_are_refused_and_no_others_trusted(ca_file: str) -> None:
    with pytest.raises(dpsql.RemoteError, match="ca_file"):
        dpsql.remote.connect("https://stats.example:1", token="abc", ca_file=ca_file)  # noqa: S106 — no server, no token
