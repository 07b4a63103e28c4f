"""32 clients of 8 analysts on loopback: no overspend, no 5xx, one answer for one question; p95 is printed."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import random
import sqlite3
import statistics
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import dpsql
from dpsql.frontends.server.settings import Settings
from dpsql.remote.wire import ARROW, result_of
from tests.end_to_end.asking import assert_paid
from tests.serving import door, in_background, request

CLIENTS, BUDGET = 32, 0.2
LIMITS = {f"analyst_{i}": None if i % 2 else 0.03 for i in range(8)}
LEVELS = (0.01, 0.02, 0.05)


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "clinic.duckdb"
    with dpsql.connect(path) as session:
        session.connection.execute(
            "CREATE TABLE visits AS SELECT u % 3000 AS patient, u % 7 AS ward, u % 90 AS cost FROM range(30_000) t(u)"
        )
        session.sql(
            "CALL dp_protect('visits', coverage := FALSE, "
            "privacy_unit_column := 'patient', max_groups_contributed := 4, "
            f"max_rows_per_group := 3, rho_budget := {BUDGET}, delta_threshold := 1e-2, delta_conversion := 1e-6)"
        )
        for name, limit in LIMITS.items():
            session.sql(f"CALL dp_analyst('{name}'{'' if limit is None else f', rho_limit := {limit}'})")
    return path


def statement(number: int) -> str:
    return f"SELECT ward, count(*) AS n FROM visits WHERE cost <> {number} GROUP BY ward ORDER BY ward"


@dataclasses.dataclass
class Tally:
    """What all clients saw."""

    lock: threading.Lock = dataclasses.field(default_factory=threading.Lock)
    seconds: list[float] = dataclasses.field(default_factory=list)
    statuses: collections.Counter[int] = dataclasses.field(default_factory=collections.Counter)
    answers: dict[tuple[int, float], set[str]] = dataclasses.field(default_factory=lambda: collections.defaultdict(set))


def client(url: str, seed: int, requests: int, tally: Tally) -> None:
    draw = random.Random(seed)
    name = list(LIMITS)[seed % len(LIMITS)]
    for _ in range(requests):
        number, rho = draw.randrange(8), draw.choice(LEVELS)
        kind = draw.random()
        if kind < 0.8:
            text, options = statement(number), {"rho": rho}
        elif kind < 0.9:
            text, options = draw.choice(["FROM dp_budget()", "FROM dp_releases()"]), {}
        else:
            text, options = "SELECT * FROM visits", {}
        began = time.monotonic()
        body = {"sql": text, "options": options}
        reply = request(url, "POST", "/v1/queries?wait=60", name=name, body=body, headers={"Accept": ARROW})
        with tally.lock:
            tally.seconds.append(time.monotonic() - began)
            tally.statuses[reply.status] += 1
            if kind < 0.8 and reply.status == 200:
                result, limit = result_of(reply.body), LIMITS[name]
                assert result.receipt is not None
                assert limit is None or result.receipt.rho <= limit * (1 + 1e-9)
                # a question is served from a sharper point where there is one that its reader may see
                tally.answers[number, result.receipt.rho].add(str(result.fetchall()))


@pytest.mark.parametrize("requests", [2, pytest.param(200, marks=pytest.mark.long)])
def test_many_clients_never_overspend(database: Path, requests: int, capsys: pytest.CaptureFixture[str]) -> None:
    tally = Tally()
    settings = Settings(first_answer_seconds=0.05)
    with (
        dpsql.connect(database, read_only=True) as session,
        in_background(session, door(*LIMITS), settings=settings) as urls,
    ):
        failed: list[BaseException] = []

        def work(seed: int) -> None:
            try:
                client(urls.analysts, seed, requests, tally)
            except BaseException as error:
                failed.append(error)

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(CLIENTS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failed
    with capsys.disabled():
        p50, p95 = (statistics.quantiles(tally.seconds, n=20)[i] for i in (9, 18))
        sys.stdout.write(
            f"\n{CLIENTS} clients: {len(tally.seconds)} requests, p50 {p50 * 1e3:.0f} ms, "
            f"p95 {p95 * 1e3:.0f} ms, {dict(sorted(tally.statuses.items()))}\n"
        )
    # 409: over budget; 403: above the clearance; 422: no private answer
    assert set(tally.statuses) <= {200, 403, 409, 422}
    assert set(tally.statuses) >= {200, 403, 409, 422}
    assert_books_hold(database, tally)


def assert_books_hold(database: Path, tally: Tally) -> None:
    """The ledger, added up anew, is within the budget and pays for every point; each question has one answer."""
    with contextlib.closing(sqlite3.connect(f"{database}.dpsql")) as connection:
        charges: list[tuple[Any, ...]] = connection.execute("SELECT rho_nano, delta_units FROM charge").fetchall()
    assert 0 < sum(rho for rho, _ in charges) <= round(BUDGET * 1e9)
    assert sum(int(delta) for _, delta in charges) <= 2**100 // 100
    assert_paid(database)
    assert tally.answers
    assert all(len(shown) == 1 for shown in tally.answers.values())
