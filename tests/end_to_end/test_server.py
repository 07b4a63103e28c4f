"""The protocol of ``dpsql serve``: every route with its statuses, limits, ranges, the curator's side, logs, TLS."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import io
import json
import logging
import re
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import trustme
from openapi_spec_validator import OpenAPIV31SpecValidator

import dpsql
from dpsql.access.queries import Queries
from dpsql.engine import DuckDBEngine
from dpsql.errors import RemoteError
from dpsql.frontends.server.application import Described, Metrics
from dpsql.frontends.server.doors import Certificate, Urls
from dpsql.frontends.server.messages import OF_AN_ANSWER
from dpsql.frontends.server.routes import AnalystRoutes, CuratorRoutes
from dpsql.frontends.server.settings import Settings
from dpsql.remote.wire import ARROW, PARQUET, receipt_of
from tests.end_to_end.prepared import with_own_state
from tests.json_rows import plain_rows
from tests.serving import QUICK, Seen, ask, door, in_background, request, token_of

QUERY = "SELECT ward, count(*) AS n FROM visits GROUP BY ward ORDER BY ward"
RHO = 0.1
BY_GET = f"/v1/result.parquet?rho={RHO}&sql={quote(QUERY)}"


@pytest.fixture(scope="module")
def prepared() -> Iterator[dpsql.Session]:
    """3,000 patients on 7 wards; ana may see rho = 0.2, bob anything, eve has a token alone."""
    with dpsql.connect() as session:
        session.connection.execute(
            "CREATE TABLE visits AS SELECT u % 3000 AS patient, u % 7 AS ward FROM range(30_000) t(u)"
        )
        session.sql(
            "CALL dp_protect('visits', coverage := FALSE, "
            "privacy_unit_column := 'patient', max_groups_contributed := 4, "
            "max_rows_per_group := 3, rho_budget := 1, delta_threshold := 1e-3, delta_conversion := 1e-6)"
        )
        session.sql("CALL dp_analyst('ana', rho_limit := 0.2)")
        session.sql("CALL dp_analyst('bob')")
        yield session


@pytest.fixture
def session(prepared: dpsql.Session) -> Iterator[dpsql.Session]:
    with with_own_state(prepared) as session:
        yield session


SETTINGS = dataclasses.replace(QUICK, ask_by_get=True, waiting=3, body_bytes=4000, statement_length=1000)


@contextlib.contextmanager
def served(session: dpsql.Session, settings: Settings) -> Iterator[Urls]:
    """A server; whatever a test does to it, no status is seen that the description lacks."""
    with in_background(session, door("ana", "bob", "eve"), door("curator"), settings) as urls:
        yield urls
        text = request(urls.curator or "", "GET", "/metrics", name="curator").body.decode()
        assert seen_statuses(text) <= described_statuses(urls)


@pytest.fixture
def urls(session: dpsql.Session) -> Iterator[Urls]:
    with served(session, SETTINGS) as urls:
        yield urls


def seen_statuses(metrics: str) -> set[tuple[str, str, int]]:
    """Method, route and status of all requests that have a route, by the server's own count."""
    pattern = r'^dpsql_requests_total{method="(\w+)",route="(/[^"]+)",status="(\d+)"}'
    found = re.findall(pattern, metrics, re.MULTILINE)
    return {(method, route, int(status)) for method, route, status in found}


def described_statuses(urls: Urls) -> set[tuple[str, str, int]]:
    """The same in the OpenAPI description."""
    document = request(urls.analysts, "GET", "/openapi.json").json
    return {
        (method.upper(), path, int(status))
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
        for status in operation["responses"]
    }


def spent(session: dpsql.Session) -> float:
    return float(session.sql("FROM dp_budget()").df()["rho_spent"][0])


def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every reading of raw data from now on."""
    whole, seen = DuckDBEngine.aggregate, []

    def noted(self: DuckDBEngine, sql: str, **named: Any) -> Any:
        seen.append(sql)
        return whole(self, sql, **named)

    monkeypatch.setattr(DuckDBEngine, "aggregate", noted)
    return seen


def test_a_question_is_taken_looked_at_and_fetched_in_every_form(session: dpsql.Session, urls: Urls) -> None:
    body = {"sql": QUERY, "options": {"rho": RHO}}
    taken = request(urls.analysts, "POST", "/v1/queries", name="ana", body=body)
    assert taken.status == 202
    assert taken.json["state"] == "running"
    address = taken.headers["location"]
    assert address == f"/v1/queries/{taken.json['id']}"
    looked = request(urls.analysts, "GET", f"{address}?wait=30", name="ana").json
    assert (looked["state"], looked["rows"], looked["columns"]) == ("done", 7, ["ward", "n"])
    assert looked["receipt"]["charged_rho"] == RHO
    receipt = receipt_of(looked["receipt"])
    assert (looked["missing"], looked["kept"]) == ([*receipt.missing], [*receipt.kept])
    forms = {form: request(urls.analysts, "GET", f"{address}/result.{form}", name="ana") for form in FORMS}
    rows = plain_rows(forms["json"].json)
    assert [set(row) for row in rows] == [{"ward", "n"}] * 7
    assert pa.ipc.open_stream(forms["arrow"].body).read_all().to_pylist() == rows
    assert pq.read_table(io.BytesIO(forms["parquet"].body)).to_pylist() == rows
    for form, reply in forms.items():
        by_accept = request(urls.analysts, "GET", f"{address}/result", name="ana", headers={"Accept": FORMS[form]})
        assert (by_accept.body, by_accept.headers["content-type"]) == (reply.body, FORMS[form])
        assert reply.headers["cache-control"] == "private, no-store"
    assert looked["results"] == [f"{address}/result.{form}" for form in FORMS]
    assert spent(session) == pytest.approx(RHO)
    # the same numbers for everybody who may see them
    assert plain_rows(ask(urls.analysts, "bob", QUERY, rho=RHO).json) == rows
    assert spent(session) == pytest.approx(RHO)


FORMS = {"json": "application/json", "arrow": ARROW, "parquet": PARQUET}


@pytest.mark.parametrize(
    ("query", "rows", "parts"),
    [
        ("SELECT 1 AS x UNION ALL SELECT 2", [{"x": 1}, {"x": 2}], None),
        ("SELECT count(*) > 0 AS x FROM visits UNION ALL SELECT count(*) < 0 FROM visits WHERE ward = 3", None, 2),
    ],
)
def test_free_texts_and_texts_of_parts_come_in_every_form(
    urls: Urls, query: str, rows: list[dict[str, Any]] | None, parts: int | None
) -> None:
    body = {"sql": query, "options": {"rho": RHO} if parts else {}}
    taken = request(urls.analysts, "POST", "/v1/queries", name="ana", body=body)
    address = taken.headers["location"]
    looked = request(urls.analysts, "GET", f"{address}?wait=30", name="ana").json
    assert (looked["state"], looked["rows"], looked["columns"]) == ("done", 2, ["x"])
    found = None if looked["receipt"] is None else receipt_of(looked["receipt"])
    assert (None if found is None else len(found.sets)) == parts
    forms = {form: request(urls.analysts, "GET", f"{address}/result.{form}", name="ana").body for form in FORMS}
    shown = plain_rows(json.loads(forms["json"]))
    assert shown == (rows or [{"x": True}, {"x": False}])
    assert pa.ipc.open_stream(forms["arrow"]).read_all().to_pylist() == shown
    assert pq.read_table(io.BytesIO(forms["parquet"])).to_pylist() == shown


def test_reading_again_and_looking_first_reads_and_charges_nothing(
    session: dpsql.Session, urls: Urls, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As stock DuckDB reads a Parquet file: HEAD, the last bytes, the rest, and all of it again on a retry."""
    body = {"sql": QUERY, "options": {"rho": RHO}}
    taken = request(urls.analysts, "POST", "/v1/queries", name="ana", body=body)
    address = f"{taken.headers['location']}/result.parquet"
    whole = request(urls.analysts, "GET", address, name="ana")
    seen = reads(monkeypatch)
    head = request(urls.analysts, "HEAD", address, name="ana")
    assert (head.status, head.body, head.headers["accept-ranges"]) == (200, b"", "bytes")
    assert int(head.headers["content-length"]) == len(whole.body)
    for _ in range(2):
        for asked, part in (("bytes=-8", whole.body[-8:]), ("bytes=0-99", whole.body[:100])):
            reply = request(urls.analysts, "GET", address, name="ana", headers={"Range": asked})
            assert (reply.status, reply.body, reply.headers["etag"]) == (206, part, head.headers["etag"])
    beyond = request(urls.analysts, "GET", address, name="ana", headers={"Range": "bytes=99999-"})
    assert (beyond.status, beyond.headers["content-range"]) == (416, f"bytes */{len(whole.body)}")
    assert not seen
    assert spent(session) == pytest.approx(RHO)
    assert len(session.sql("FROM dp_releases()")) == 1


def test_an_address_that_asks_is_charged_by_get_once_and_by_head_never(session: dpsql.Session, urls: Urls) -> None:
    head = request(urls.analysts, "HEAD", BY_GET, name="ana")
    assert (head.status, head.headers["allow"]) == (405, "GET")
    assert spent(session) == 0
    first = request(urls.analysts, "GET", BY_GET, name="ana", headers={"Range": "bytes=0-1"})
    assert (first.status, first.body) == (206, b"PA")
    assert spent(session) == pytest.approx(RHO)
    assert request(urls.analysts, "HEAD", BY_GET, name="ana").status == 200
    whole = request(urls.analysts, "GET", BY_GET, name="ana")
    assert len(pq.read_table(io.BytesIO(whole.body))) == 7
    assert request(urls.analysts, "GET", BY_GET, name="ana").body == whole.body
    assert spent(session) == pytest.approx(RHO)
    assert len(session.sql("FROM dp_releases()")) == 1
    # somebody else's reading is a question of their own, for nothing
    assert request(urls.analysts, "HEAD", BY_GET, name="bob").status == 405
    assert request(urls.analysts, "GET", BY_GET, name="bob").status == 200
    assert spent(session) == pytest.approx(RHO)
    twice = request(urls.analysts, "GET", f"{BY_GET}&rho=0.2", name="ana")
    assert (twice.status, twice.json["detail"]) == (400, "an option is in the address twice")


def test_unless_the_curator_says_so_no_address_asks(session: dpsql.Session) -> None:
    with in_background(session, door("ana")) as urls:
        assert request(urls.analysts, "GET", BY_GET, name="ana").status == 404
    assert spent(session) == 0


def test_a_head_that_waits_for_an_answer_asks_nothing(session: dpsql.Session, urls: Urls) -> None:
    taken = request(urls.analysts, "POST", "/v1/queries", name="ana", body={"sql": QUERY, "options": {"rho": RHO}})
    address = f"{taken.headers['location']}/result.parquet"
    heads = [request(urls.analysts, "HEAD", address, name="ana") for _ in range(3)]
    assert {head.status for head in heads} == {200}
    assert len(session.sql("FROM dp_releases()")) == 1


def slow(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Raw data are read for as long as the event is not set."""
    free = threading.Event()
    whole = DuckDBEngine.aggregate

    def held(self: DuckDBEngine, sql: str, **named: Any) -> Any:
        free.wait(30)
        return whole(self, sql, **named)

    monkeypatch.setattr(DuckDBEngine, "aggregate", held)
    return free


def test_an_answer_that_is_not_there_is_asked_for_again(urls: Urls, monkeypatch: pytest.MonkeyPatch) -> None:
    free = slow(monkeypatch)
    body = {"sql": QUERY, "options": {"rho": RHO}}
    taken = request(urls.analysts, "POST", "/v1/queries?wait=0.05", name="ana", body=body)
    address = taken.headers["location"]
    assert taken.status == 202
    assert request(urls.analysts, "GET", f"{address}/result?wait=0.05", name="ana").status == 202
    assert request(urls.analysts, "GET", address, name="ana").json == {"id": taken.json["id"], "state": "running"}
    free.set()
    assert request(urls.analysts, "GET", f"{address}/result", name="ana").status == 200


def test_a_cancelled_question_keeps_its_charge_which_pays_for_asking_again(
    session: dpsql.Session, urls: Urls, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = slow(monkeypatch)
    taken = request(urls.analysts, "POST", "/v1/queries", name="ana", body={"sql": QUERY, "options": {"rho": RHO}})
    address = taken.headers["location"]
    while not spent(session):
        time.sleep(0.005)
    cancelled = request(urls.analysts, "DELETE", address, name="ana")
    assert (cancelled.status, cancelled.json["state"]) == (200, "cancelled")
    assert "a charge that was made stays" in cancelled.json["problem"]["detail"]
    assert request(urls.analysts, "GET", f"{address}/result", name="ana").status == 410
    assert request(urls.analysts, "DELETE", address, name="ana").status == 409
    free.set()
    # interrupted before it drew: nothing was released, and the charge is open
    again = ask(urls.analysts, "ana", QUERY, rho=RHO)
    assert again.status == 200
    assert spent(session) == pytest.approx(RHO)


def test_a_time_limit_is_the_same_error_as_for_a_handle_in_the_curators_process(
    session: dpsql.Session, urls: Urls, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow(monkeypatch).set()
    monkeypatch.setattr(DuckDBEngine, "aggregate", endless)
    body = {"sql": QUERY, "options": {"rho": RHO}, "timeout_seconds": 0.2}
    late = request(urls.analysts, "POST", "/v1/queries?wait=30", name="ana", body=body)
    assert (late.status, late.json["error"]) == (410, "EngineError")
    monkeypatch.undo()
    with pytest.raises(dpsql.EngineError) as local:
        session.as_analyst("ana").sql(QUERY, rho=RHO, timeout_seconds=1e-6)
    assert late.json["detail"] == str(local.value)


def test_a_failure_is_told_at_the_deadline_and_asking_again_uses_its_charge_up(
    session: dpsql.Session, urls: Urls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DuckDBEngine, "aggregate", lambda *_, **__: 1 / 0)
    body: dict[str, object] = {"sql": QUERY, "options": {"rho": RHO}}
    # a busy machine may not come to the charge in time
    for seconds in (0.7, 5.0, 20.0):
        began = time.monotonic()
        asked = {**body, "timeout_seconds": seconds}
        failed = request(urls.analysts, "POST", "/v1/queries?wait=60", name="ana", body=asked)
        assert time.monotonic() - began >= seconds
        assert (failed.status, failed.json["detail"]) == (410, str(dpsql.EngineError.unanswered()))
        if spent(session):
            break
    assert spent(session) == pytest.approx(RHO)
    *_, shown = request(urls.curator or "", "GET", "/v1/queries", name="curator").json
    assert (shown["state"], shown["error"]) == ("failed", "EngineError")
    monkeypatch.undo()
    again = request(urls.analysts, "POST", "/v1/queries?wait=30", name="ana", body={**body, "timeout_seconds": 60})
    assert (again.status, len(again.json["rows"])) == (200, 7)
    assert spent(session) == pytest.approx(RHO)


def test_a_file_that_never_comes_is_gone_at_its_deadline(
    session: dpsql.Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DuckDBEngine, "aggregate", lambda *_, **__: 1 / 0)
    # a busy machine may not come to the charge in time
    for seconds in (0.3, 2.0, 10.0):
        settings = dataclasses.replace(SETTINGS, timeout_seconds=seconds)
        with in_background(session, door("ana"), settings=settings) as urls:
            for _ in range(2):
                began = time.monotonic()
                gone = request(urls.analysts, "GET", BY_GET, name="ana", headers={"Range": "bytes=0-1"})
                assert time.monotonic() - began >= seconds
                assert (gone.status, gone.json["detail"]) == (410, str(dpsql.EngineError.unanswered()))
        if spent(session):
            break
    assert spent(session) == pytest.approx(RHO)


def endless(self: DuckDBEngine, _: str, **named: Any) -> Any:
    sql = "SELECT sum(sqrt(i)) AS s FROM range(100_000_000_000) t(i)"
    return self._run(lambda cursor: cursor.table(sql), None, named["timeout_seconds"])


def test_a_name_that_only_looks_alike_is_not_declared(session: dpsql.Session) -> None:
    """The Kelvin sign is a k in small letters, and not for the policy: a reader that it does not find has no limit."""
    session.sql("CALL dp_analyst('\u212a', rho_limit := 0.01)")
    with in_background(session, door("k")) as urls:
        assert ask(urls.analysts, "k", QUERY, rho=0.3).status == 403


def test_nobody_reaches_a_question_of_somebody_else(urls: Urls) -> None:
    taken = request(urls.analysts, "POST", "/v1/queries", name="ana", body={"sql": QUERY, "options": {"rho": RHO}})
    address = taken.headers["location"]
    unknown = request(urls.analysts, "GET", "/v1/queries/unknown", name="bob")
    for method, path in (("GET", address), ("GET", f"{address}/result"), ("DELETE", address)):
        reply = request(urls.analysts, method, path, name="bob")
        assert (reply.status, reply.body) == (404, unknown.body)
    assert request(urls.analysts, "GET", f"{address}/result", name="ana").status == 200


def test_without_a_known_token_nothing_is_answered(session: dpsql.Session, urls: Urls) -> None:
    secured = [route for route in described(session) if route.secured]
    assert len(secured) == 8
    for route in secured:
        path = route.path.format(query_id="x", form="json")
        for headers in (
            {},
            {"Authorization": ""},
            {"Authorization": "Bearer"},
            {"Authorization": "Bearer x"},
            {"Authorization": f"Basic {token_of('ana')}"},
            {"Authorization": f"Bearer {token_of('curator')}"},
            {"Authorization": "Bearer \xff"},
        ):
            reply = request(urls.analysts, route.method, path, headers=headers, body={"sql": QUERY})
            assert (reply.status, reply.headers["www-authenticate"]) == (401, "Bearer")
            assert reply.json["error"] == "AccessError"
    for path in ("/metrics", "/v1/queries", "/v1/releases", "/v1/budget", "/v1/policy"):
        assert request(urls.curator or "", "GET", path, name="ana").status == 401
    assert spent(session) == 0


def test_a_clearance_is_the_policys_and_a_token_alone_is_none(session: dpsql.Session, urls: Urls) -> None:
    above = ask(urls.analysts, "ana", QUERY, rho=0.3).json
    assert (above["requested_rho"], above["limit_rho"]) == (0.3, 0.2)
    assert above["detail"].startswith("'ana' may not be shown this answer at rho = 0.3")
    refused = ask(urls.analysts, "eve", QUERY, rho=0.01)
    assert (refused.status, refused.json["error"]) == (403, "AccessError")
    assert spent(session) == 0
    session.sql("CALL dp_analyst('EVE', rho_limit := 0.01)")
    assert ask(urls.analysts, "eve", QUERY, rho=0.02).status == 403
    assert ask(urls.analysts, "eve", QUERY, rho=0.01).status == 200


BAD: tuple[tuple[int, object, dict[str, str]], ...] = (
    (400, b"", {}),
    (400, b"{", {}),
    (400, b"\xff\xfe", {}),
    (400, b"[" * 3000, {}),
    (400, b'{"sql": NaN}', {}),
    (400, [], {}),
    (400, {}, {}),
    (400, {"sql": 1}, {}),
    (400, {"sql": " "}, {}),
    (400, {"sql": QUERY, "more": 1}, {}),
    (400, {"sql": QUERY, "params": 1}, {}),
    (400, {"sql": QUERY, "params": [{}]}, {}),
    (400, {"sql": QUERY, "params": [{"date": "x"}]}, {}),
    (400, {"sql": QUERY, "options": []}, {}),
    (400, {"sql": QUERY, "options": {"rho": {}}}, {}),
    (400, {"sql": QUERY, "options": {"text": "x"}}, {}),
    (400, {"sql": QUERY, "options": {"self": "x"}}, {}),
    (400, {"sql": QUERY, "options": {"timeout_seconds": 3}}, {}),
    (400, {"sql": QUERY, "options": {"a b": 3}}, {}),
    (400, {"sql": QUERY, "timeout_seconds": 0}, {}),
    (400, {"sql": QUERY, "timeout_seconds": True}, {}),
    (400, {"sql": QUERY, "timeout_seconds": "1"}, {}),
    (406, {"sql": QUERY}, {"Accept": "text/html"}),
    (413, b"x" * 5000, {}),
    (413, {"sql": "SELECT " + "1" * 2000}, {}),
    (415, {"sql": QUERY}, {"Content-Type": "text/plain"}),
    (415, {"sql": QUERY}, {"Content-Type": ""}),
    (422, {"sql": QUERY, "options": {"no_option": 3}}, {}),
)


def test_what_is_no_question_is_refused_and_charges_nothing(session: dpsql.Session, urls: Urls) -> None:
    for status, body, headers in BAD:
        reply = request(urls.analysts, "POST", "/v1/queries?wait=30", name="ana", body=body, headers=headers)
        assert reply.status == status, (body, reply.everything)
        assert reply.headers["content-type"] == "application/problem+json"
        assert set(reply.json) >= {"type", "title", "status", "error", "detail"}
    reply = request(urls.analysts, "POST", "/v1/queries?wait=x", name="ana", body={"sql": QUERY})
    assert reply.status == 400
    assert request(urls.analysts, "GET", "/v1/queries/x/result.csv", name="ana").status == 404
    assert request(urls.analysts, "PUT", "/v1/queries", name="ana").status == 405
    assert request(urls.analysts, "GET", "/v2", name="ana").status == 404
    assert spent(session) == 0
    assert len(session.sql("FROM dp_releases()")) == 0


def test_a_question_that_does_not_arrive_is_not_waited_for(session: dpsql.Session) -> None:
    with served(session, dataclasses.replace(SETTINGS, body_seconds=3.0)) as urls:
        parts = urlsplit(urls.analysts)
        with socket.create_connection((parts.hostname, parts.port or 0), timeout=20) as connection:
            connection.sendall(
                f"POST /v1/queries HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token_of('ana')}\r\n"
                "Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{".encode()
            )
            assert connection.recv(1000).startswith(b"HTTP/1.1 408")


@pytest.mark.parametrize(
    "begun",
    [
        "",
        "GET /v1/me HTTP/1.1\r\nHost: x\r\nX-Long: ",
        "GET /v1/me HTTP/1.1\r\nHost: x\r\n\r\nGET /v1/me HTTP/1.1\r\nX-Long: ",
        "POST /nowhere HTTP/1.1\r\nHost: x\r\nContent-Length: 999999\r\n\r\n",
    ],
    ids=["nothing", "headers", "headers of a second request", "a body that nobody reads"],
)
def test_a_connection_that_sends_a_byte_now_and_then_is_closed(session: dpsql.Session, begun: str) -> None:
    """Headers and bodies that never end would hold as many connections as a stranger likes."""
    settings = dataclasses.replace(QUICK, body_seconds=0.4)
    with in_background(session, door("ana"), settings=settings) as urls:
        parts = urlsplit(urls.analysts)
        began = time.monotonic()
        with socket.create_connection((parts.hostname, parts.port or 0), timeout=20) as connection:
            connection.sendall(begun.encode())
            # reset or broken pipe: the other side is gone
            with contextlib.suppress(ConnectionError):
                while time.monotonic() - began < 30:
                    time.sleep(0.05)
                    connection.sendall(b"x")
        # a loop may wake early, by the resolution of its clock
        assert 0.35 <= time.monotonic() - began < 30


def test_too_many_questions_at_a_time_are_told_to_come_again(urls: Urls, monkeypatch: pytest.MonkeyPatch) -> None:
    free = slow(monkeypatch)
    body = {"sql": QUERY, "options": {"rho": RHO}}
    statuses = [request(urls.analysts, "POST", "/v1/queries", name="ana", body=body).status for _ in range(4)]
    assert statuses == [202, 202, 202, 429]
    assert request(urls.analysts, "POST", "/v1/queries", name="bob", body=body).status == 202
    free.set()


def test_the_curator_sees_what_analysts_do_not(session: dpsql.Session, urls: Urls) -> None:
    curator = urls.curator
    assert curator is not None
    ask(urls.analysts, "ana", QUERY, rho=RHO)
    ask(urls.analysts, "bob", "SELECT * FROM visits")
    metrics = request(curator, "GET", "/metrics", name="curator")
    text = metrics.body.decode()
    assert metrics.headers["content-type"].startswith("text/plain")
    for line in (
        'dpsql_queries_total{analyst="ana",outcome="done"} 1.0',
        'dpsql_queries_total{analyst="bob",outcome="failed"} 1.0',
        'dpsql_requests_total{method="POST",route="/v1/queries",status="200"} 1.0',
        'dpsql_answer_rows_total{analyst="ana"} 7.0',
        'dpsql_charged_rho_total{analyst="ana"} 0.1',
        'dpsql_rho_left{unit="visits"} 0.9',
        'dpsql_table_rows{table="main.visits"} 30000.0',
        'dpsql_waiting{state="working"} 0.0',
        'dpsql_query_seconds_count{analyst="ana"} 1.0',
    ):
        assert line in text
    shown = request(curator, "GET", "/v1/queries", name="curator").json
    assert [(one["analyst"], one["state"], one["rows"], one["error"]) for one in shown] == [
        ("ana", "done", 7, None),
        ("bob", "failed", None, "UnsupportedQueryError"),
    ]
    # what takes no time takes none by a coarse clock
    assert shown[0]["seconds_worked"] > 0
    assert shown[1]["seconds_worked"] >= 0
    assert "SELECT" not in json.dumps(shown)
    releases = request(curator, "GET", "/v1/releases", name="curator").json["rows"]
    assert [release["analyst"] for release in releases] == ["ana"]
    budget = request(curator, "GET", "/v1/budget", name="curator").json["rows"]
    assert budget[0]["rho_spent"] == pytest.approx(RHO)
    policy = request(curator, "GET", "/v1/policy", name="curator").json["rows"]
    assert {row["kind"] for row in policy} >= {"unit", "analyst"}
    assert request(curator, "GET", "/health").status == 200
    assert "/metrics" in request(curator, "GET", "/openapi.json").json["paths"]
    for path in ("/metrics", "/v1/queries", "/v1/releases", "/v1/budget", "/v1/policy"):
        assert request(urls.analysts, "GET", path, name="ana").status in (404, 405)
        assert request(urls.analysts, "GET", path, name="curator").status in (404, 405)


def described(session: dpsql.Session, *, curator: bool = False) -> tuple[Described, ...]:
    """The table of routes, as a server makes it."""

    async def made() -> tuple[Described, ...]:
        metrics = Metrics()
        queries = Queries(session, SETTINGS, metrics)
        if curator:
            return CuratorRoutes(session, queries, metrics, door("curator").tokens).routes
        return AnalystRoutes(queries, door("ana").tokens, SETTINGS).routes

    return asyncio.run(made())


def test_a_status_that_is_not_described_is_found(urls: Urls) -> None:
    """The planted fault of the fixture's check."""
    planted = 'dpsql_requests_total{method="GET",route="/v1/me",status="418"} 1.0'
    assert seen_statuses(planted) - described_statuses(urls) == {("GET", "/v1/me", 418)}


@pytest.mark.parametrize("curator", [False, True])
def test_the_description_is_valid_and_names_every_route(session: dpsql.Session, urls: Urls, curator: bool) -> None:
    url = urls.curator if curator else urls.analysts
    document = request(url or "", "GET", "/openapi.json").json
    OpenAPIV31SpecValidator(document).validate()
    routes = {(route.method.lower(), route.path) for route in described(session, curator=curator)}
    shown = {(method, path) for path, methods in document["paths"].items() for method in methods if method != "head"}
    assert shown == routes


def test_every_error_of_an_answer_is_described(urls: Urls) -> None:
    known = described_statuses(urls)
    for route in ("/v1/queries/{query_id}/result", "/v1/queries/{query_id}/result.{form}", "/v1/result.{form}"):
        assert {("GET", route, status) for status in OF_AN_ANSWER} <= known
    assert {("POST", "/v1/queries", status) for status in OF_AN_ANSWER} <= known


def test_the_log_holds_no_literal_and_no_token(
    session: dpsql.Session, urls: Urls, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    for name in ("dpsql", "dpsql.server", "sqlglot", "filelock", "uvicorn.error", "asyncio"):
        caplog.set_level(logging.DEBUG, logger=name)
    secret = "Ms_" + "Canary"
    sql = f"SELECT ward, count(*) FROM visits WHERE CAST(patient AS VARCHAR) = '{secret}' GROUP BY ward"
    ask(urls.analysts, "ana", sql, rho=RHO)
    ask(urls.analysts, "ana", f"SELECT '{secret}' FROM visits")
    ask(urls.analysts, "ana", f"SELECT '{secret}")
    request(urls.analysts, "GET", f"/v1/result.json?sql={quote(sql)}", name="ana")
    request(urls.analysts, "GET", f"/v1/{secret}?x={secret}", name="ana")
    request(urls.analysts, "GET", "/v1/me", headers={"Authorization": f"Bearer {secret}"})
    text = "\n".join(
        f"{record.name} {record.getMessage()} {record.args} {record.exc_info}" for record in caplog.records
    )
    assert "POST /v1/queries 200 ana" in text
    assert "GET /v1/me 401 -" in text
    assert secret not in text
    assert "secret-of" not in text


def test_what_the_server_trips_over_says_nothing(
    session: dpsql.Session, urls: Urls, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> bytes:
        raise ValueError("CANARY")

    taken = request(urls.analysts, "POST", "/v1/queries", name="ana", body={"sql": QUERY, "options": {"rho": RHO}})
    monkeypatch.setattr("dpsql.frontends.server.messages.encode", broken)
    reply = request(urls.analysts, "GET", f"{taken.headers['location']}/result", name="ana")
    assert (reply.status, reply.json["error"]) == (500, "EngineError")
    assert "CANARY" not in reply.everything + caplog.text
    assert "ValueError" in caplog.text


def test_releases_bear_the_time_of_their_question(
    session: dpsql.Session, urls: Urls, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time of their end would tell their reader, to the microsecond, how long the rows took."""
    whole = DuckDBEngine.aggregate

    entered: list[float] = []

    def late(self: DuckDBEngine, sql: str, **named: Any) -> Any:
        entered.append(time.time())
        time.sleep(1.01)
        return whole(self, sql, **named)

    monkeypatch.setattr(DuckDBEngine, "aggregate", late)
    ask(urls.analysts, "ana", QUERY, rho=RHO)
    ((at, *_),) = session.as_analyst("ana").sql("FROM dp_releases()").fetchall()
    assert entered[0] - 60 < at.timestamp() <= entered[0]
    assert at.microsecond == 0


def test_tls_keeps_the_line_private(session: dpsql.Session, tmp_path: Path) -> None:
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    chain, key, trusted = tmp_path / "chain.pem", tmp_path / "key.pem", tmp_path / "ca.pem"
    issued.private_key_pem.write_to_path(key)
    for part in issued.cert_chain_pems:
        part.write_to_path(chain, append=True)
    authority.cert_pem.write_to_path(trusted)
    with in_background(session, door("ana"), certificate=Certificate(chain, key)) as urls:
        assert urls.analysts.startswith("https://127.0.0.1:")
        with dpsql.remote.connect(urls.analysts, token=token_of("ana"), ca_file=trusted) as ana:
            assert len(ana.sql(QUERY, rho=RHO)) == 7
        with pytest.raises(RemoteError, match="no answer"):
            dpsql.remote.connect(urls.analysts, token=token_of("ana"))
        with pytest.raises(RemoteError):
            dpsql.remote.connect(urls.analysts.replace("https", "http"), token=token_of("ana"))
    with (
        pytest.raises(dpsql.PolicyError, match="certificate"),
        in_background(session, door("ana"), certificate=Certificate(key, chain)),
    ):
        pass


def test_a_stop_lets_an_answer_finish_and_takes_no_more(
    session: dpsql.Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = slow(monkeypatch)
    replies: list[Seen] = []
    with in_background(session, door("ana"), settings=dataclasses.replace(QUICK, grace_seconds=20)) as urls:
        asking = threading.Thread(target=lambda: replies.append(ask(urls.analysts, "ana", QUERY, rho=RHO)))
        asking.start()
        while not spent(session):
            time.sleep(0.005)
        timer = threading.Timer(0.3, free.set)
        timer.start()
    asking.join()
    timer.join()
    assert (replies[0].status, len(replies[0].json["rows"])) == (200, 7)


def test_an_address_in_use_is_refused(session: dpsql.Session) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        held = dataclasses.replace(door("ana").address, port=taken.getsockname()[1])
        with (
            pytest.raises(dpsql.PolicyError, match="cannot be listened on"),
            in_background(session, dataclasses.replace(door("ana"), address=held)),
        ):
            pass
