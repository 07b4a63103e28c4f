"""Every raw-data probe of the attack list through HTTP: refused as in the curator's process, and nothing else is said.

The probes are those of canary.py, with a canary in every column; here everything that a reply holds is searched
(status, headers, body), and everything that is logged.
"""

from __future__ import annotations

import dataclasses
import socket
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

import dpsql
from dpsql.engine import DuckDBEngine
from dpsql.errors import DpsqlError, EngineError
from dpsql.frontends.server.doors import Urls
from dpsql.remote.wire import ARROW, JSON, PARQUET, error_of
from tests.end_to_end import canary
from tests.end_to_end.canary import ANSWERED, FAILING, REFUSED, broken, holds_canary
from tests.serving import QUICK, ask, door, in_background, request, token_of

session = canary.session
logged = canary.logged

RAW_ADDRESSES = (
    "/v1/queries",
    "/v1/releases",
    "/v1/policy",
    "/v1/cascade",
    "/metrics",
    "/v1/result.parquet?sql=FROM%20visits",
    "/v1/queries/../releases",
    "/v1/queries/%2e%2e/releases",
    "//v1/releases",
    "/v1/queries/x/result.duckdb",
    "/static",
    "/docs",
    "/debug",
    "/.dpsql",
    "/visits",
    "/v1/tables/visits",
)


@pytest.fixture
def urls(session: dpsql.Session) -> Iterator[Urls]:
    session.sql("CALL dp_analyst('ana')")
    # what fails is told at its deadline
    settings = dataclasses.replace(QUICK, timeout_seconds=2.0)
    with in_background(session, door("ana"), door("curator"), settings) as urls:
        yield urls


@pytest.fixture
def patient_urls(session: dpsql.Session) -> Iterator[Urls]:
    """A server that gives a busy machine its time; nothing that is asked of it fails."""
    session.sql("CALL dp_analyst('ana')")
    with in_background(session, door("ana"), door("curator")) as urls:
        yield urls


def refused_locally(session: dpsql.Session, text: str) -> DpsqlError:
    with pytest.raises(DpsqlError) as local:
        session.as_analyst("ana").sql(text)
    return local.value


def test_every_probe_is_refused_with_the_words_of_the_curators_process(
    session: dpsql.Session, urls: Urls, patient_urls: Urls, tmp_path: Path, logged: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "visits.parquet"
    session.connection.execute(f"COPY visits TO '{file}'")
    for place, (text, error_type) in enumerate((*REFUSED, *FAILING)):
        statement = text.replace("{file}", str(file))
        # to be told of a failure takes until its deadline; a refusal may take its time
        server = urls if error_type is EngineError else patient_urls
        reply = ask(server.analysts, "ana", statement)
        assert 400 <= reply.status < 500, statement
        remote = error_of(reply.json)
        assert isinstance(remote, error_type)
        assert not holds_canary(reply.everything)
        if place % 4 == 0:
            local = refused_locally(session, statement)
            assert (type(remote), str(remote), vars(remote)) == (type(local), str(local), vars(local))
    assert list(tmp_path.iterdir()) == [file]
    assert session.connection.execute("SELECT count(*) FROM visits").fetchone() == (1201,)
    assert not holds_canary(canary.log_text(logged))


def test_answers_plans_and_books_hold_no_canary(
    session: dpsql.Session, patient_urls: Urls, logged: pytest.LogCaptureFixture
) -> None:
    for text in ANSWERED[:4]:
        for statement, accept in (
            (text, JSON),
            (text, PARQUET),
            (text, ARROW),
            (f"FROM dp_explain($$ {text} $$)", JSON),
        ):
            reply = request(
                patient_urls.analysts,
                "POST",
                "/v1/queries?wait=60",
                name="ana",
                body={"sql": statement},
                headers={"Accept": accept},
            )
            assert reply.status == 200
            assert not holds_canary(reply.everything)
    for books in ("FROM dp_releases()", "FROM dp_budget()"):
        assert not holds_canary(ask(patient_urls.analysts, "ana", books).everything)
    shown = [request(patient_urls.curator or "", "GET", path, name="curator") for path in ("/metrics", "/v1/queries")]
    assert not any(holds_canary(reply.everything) for reply in shown)
    assert not holds_canary(canary.log_text(logged))


def test_other_addresses_lead_nowhere(session: dpsql.Session, urls: Urls) -> None:
    for path in RAW_ADDRESSES:
        for method in ("GET", "HEAD"):
            reply = request(urls.analysts, method, path, name="ana")
            assert reply.status in (404, 405), path
            assert not holds_canary(reply.everything)
    assert session.sql("FROM dp_budget()").df()["rho_spent"][0] == 0


def test_no_reply_sends_a_reader_elsewhere(urls: Urls) -> None:
    """A redirect would go where the Host header says, and to http where a proxy speaks TLS."""
    for path in ("/v1/me/", "/v1/queries/", "/metrics/"):
        for url in (urls.analysts, urls.curator or ""):
            reply = request(url, "GET", path, name="ana", headers={"Host": "evil.example"})
            assert reply.status == 404
            assert "evil" not in reply.everything


def test_a_body_of_two_lengths_is_refused_and_ends_the_connection(urls: Urls) -> None:
    """Else what a proxy takes for the rest of the first request would be the beginning of the next reader's."""
    token = f"Authorization: Bearer {token_of('ana')}"
    second = f"GET /v1/me HTTP/1.1\r\nHost: x\r\n{token}\r\n\r\n"
    address = urlsplit(urls.analysts)
    for path in ("/v1/queries", "/nowhere"):
        first = f"POST {path} HTTP/1.1\r\nHost: x\r\n{token}\r\nTransfer-Encoding: chunked\r\n"
        with socket.create_connection((str(address.hostname), address.port or 0), 60) as line:
            line.sendall(f"{first}Content-Length: {5 + len(second)}\r\n\r\n0\r\n\r\n{second}".encode())
            replies = b"".join(iter(lambda: line.recv(65536), b""))
        assert replies.startswith(b"HTTP/1.1 400 ")
        assert replies.count(b"HTTP/1.1") == 1


def test_a_method_that_a_stranger_makes_up_is_no_counter(urls: Urls) -> None:
    assert request(urls.analysts, "MADEUP", "/v1/me").status == 405
    assert "MADEUP" not in request(urls.curator or "", "GET", "/metrics", name="curator").everything


@pytest.mark.parametrize(
    "options",
    [
        {"analyst": "curator"},
        {"reader": "curator"},
        {"desk": 1},
        {"entropy": 0},
        {"seed": 1},
        {"noise": False},
        {"privacy_unit_column": "city; DROP TABLE visits"},
        {"as_of": "x'; --"},
        {"rho": 1e999},
        {"rho": -1},
    ],
)
def test_options_are_those_of_a_query(session: dpsql.Session, patient_urls: Urls, options: dict[str, object]) -> None:
    if options == {"rho": 1e999}:
        options = {"rho": {"double": "inf"}}
    reply = ask(patient_urls.analysts, "ana", ANSWERED[0], **options)
    assert reply.status in (400, 422)
    assert session.sql("FROM dp_budget()").df()["rho_spent"][0] == 0


def test_an_unexpected_error_is_opaque(
    session: dpsql.Session, urls: Urls, monkeypatch: pytest.MonkeyPatch, logged: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(DuckDBEngine, "aggregate", broken)
    reply = ask(urls.analysts, "ana", ANSWERED[0])
    assert (reply.status, reply.json["error"]) == (410, "EngineError")
    assert not holds_canary(reply.everything + canary.log_text(logged))
