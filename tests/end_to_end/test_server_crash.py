"""A server that is killed while it answers leaves no release without a charge, and asking again pays nothing twice."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import dpsql
from dpsql.access.tokens import hash_of
from tests.end_to_end.asking import DYING, ROOT, assert_paid, ledger
from tests.serving import ask, token_of

RHO = 0.25
QUESTIONS = 3
MOMENTS = ("charged", "stored")

# One process that has imported everything and forks a server for each round.
MOTHER = (
    DYING
    + """
import json, sys
from dpsql.frontends import cli
from dpsql.frontends.server import running
from dpsql.state import Ledger, SideTable


MOMENTS = {
    "charged": lambda: die_after(Ledger, "charge"),
    "stored": lambda: die_after(SideTable, "store"),
}

for line in sys.stdin:
    order = json.loads(line)
    told, telling = os.pipe()
    child = os.fork()
    if child == 0:
        # its number is printed before anything that it prints itself
        os.read(told, 1)
        if order["moment"]:
            MOMENTS[order["moment"]]()
        os._exit(cli.main(["serve", *order["arguments"]]))
    print(child, flush=True)
    os.write(telling, b".")
    os.close(telling)
    os.close(told)
    print(os.waitpid(child, 0)[1], flush=True)
"""
)


class Mother:
    """Starts servers, one at a time."""

    def __init__(self, database: Path, tokens: Path) -> None:
        self.database = database
        self._arguments = [
            str(database),
            "--listen",
            "127.0.0.1:0",
            "--analysts",
            str(tokens),
            "--first-answer",
            "0.01",
        ]
        self._process = subprocess.Popen(
            [sys.executable, "-c", MOTHER],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def start(self, moment: str | None = None) -> tuple[int, str]:
        """Process and address of a new server."""
        assert self._process.stdin is not None
        print(json.dumps({"arguments": self._arguments, "moment": moment}), file=self._process.stdin, flush=True)
        child = int(self._line())
        return child, self._line().removeprefix("analysts: ")

    def ended(self) -> int:
        """How it ended: 0, or the signal."""
        return int(self._line())

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        assert self._process.wait(timeout=600) == 0
        self._process.stdout.close()


@pytest.fixture(scope="module")
def mother(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mother]:
    folder = tmp_path_factory.mktemp("server_crash")
    database, tokens = folder / "clinic.duckdb", folder / "tokens"
    with dpsql.connect(database) as session:
        session.connection.execute(
            "CREATE TABLE visits AS SELECT u % 20_000 AS patient, u % 199 AS ward, (u % 90)::DOUBLE AS cost "
            "FROM range(100_000) t(u)"
        )
        session.sql(
            "CALL dp_protect('visits', coverage := FALSE, "
            "privacy_unit_column := 'patient', max_groups_contributed := 4, "
            "max_rows_per_group := 3, rho_budget := 10_000, delta_threshold := 0.5, delta_conversion := 1e-6)"
        )
        for i in range(QUESTIONS):
            session.sql(f"CALL dp_analyst('analyst_{i}')")
    tokens.write_text("".join(f"analyst_{i} {hash_of(token_of(f'analyst_{i}'))}\n" for i in range(QUESTIONS)))
    tokens.chmod(0o600)
    mother = Mother(database, tokens)
    yield mother
    mother.close()


def statement(round_number: int, i: int) -> str:
    return f"SELECT ward, count(*) AS n FROM visits WHERE cost <> {10 * round_number + i} GROUP BY ward"


def ask_all(url: str, round_number: int) -> list[threading.Thread]:
    """One question of each analyst, all under way; a server that dies is no error."""

    def work(i: int) -> None:
        with contextlib.suppress(OSError, http.client.HTTPException):
            ask(url, f"analyst_{i}", statement(round_number, i), rho=RHO)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(QUESTIONS)]
    for thread in threads:
        thread.start()
    return threads


def assert_asking_again_pays_what_is_missing(mother: Mother, rounds: range, before: int) -> None:
    child, url = mother.start()
    for round_number in rounds:
        for i in range(QUESTIONS):
            reply = ask(url, f"analyst_{i}", statement(round_number, i), rho=RHO)
            assert (reply.status, len(reply.json["rows"]) > 190) == (200, True)
    os.kill(child, signal.SIGTERM)
    assert mother.ended() == 0
    rho_nano, _, unpaid = ledger(mother.database)
    assert unpaid == 0
    assert rho_nano - before == len(rounds) * QUESTIONS * round(RHO * 1e9)
    assert_paid(mother.database)


def test_killed_at_each_moment_of_an_answer(mother: Mother) -> None:
    before = ledger(mother.database)[0]
    for round_number, moment in enumerate(MOMENTS):
        _, url = mother.start(moment)
        for thread in ask_all(url, round_number):
            thread.join()
        assert mother.ended() == signal.SIGKILL
        assert_paid(mother.database)
    assert_asking_again_pays_what_is_missing(mother, range(len(MOMENTS)), before)


@pytest.mark.long
def test_killed_in_mid_query_twenty_times(mother: Mother) -> None:
    before = ledger(mother.database)[0]
    draw = random.Random(20)
    for round_number in range(100, 120):
        child, url = mother.start()
        threads = ask_all(url, round_number)
        time.sleep(draw.uniform(0.02, 0.6))
        os.kill(child, signal.SIGKILL)
        for thread in threads:
            thread.join()
        assert mother.ended() == signal.SIGKILL
        assert_paid(mother.database)
    assert_asking_again_pays_what_is_missing(mother, range(100, 120), before)
