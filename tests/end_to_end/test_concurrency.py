"""Threads and processes that ask together are charged once, see the same numbers and never overspend."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import dpsql
from dpsql.engine import DuckDBEngine
from dpsql.errors import BudgetError

ROOT = Path(__file__).parents[2]
QUERY = "SELECT ward, count(*) AS n, sum(cost) AS s FROM visits GROUP BY ward"
RHO, ALLOWED = 0.1, 5

# One process that has imported everything and forks, for each line, a child for each list of queries.
ASK = """
import json, os, sys
import dpsql, dpsql.session, duckdb, pyarrow.parquet, scipy.optimize, scipy.special
from dpsql.errors import BudgetError


def ask_all(database, rho, name, queries, telling, begun):
    with dpsql.connect(database, read_only=True) as session:
        analyst = session.as_analyst(name)
        os.write(telling, b"ready")
        os.read(begun, 1)
        for query in queries:
            try:
                answer = analyst.sql(query, rho=rho)
            except BudgetError:
                yield None
            else:
                yield [answer.fetchall(), answer.receipt.charged_rho, answer.receipt.charged_delta]


for line in sys.stdin:
    order = json.loads(line)
    children = []
    for number, queries in enumerate(order["queries"]):
        told, telling = os.pipe()
        begun, begin = os.pipe()
        if os.fork() == 0:
            answers = list(ask_all(order["database"], order["rho"], f"analyst {number}", queries, telling, begun))
            with open(f"{order['database']}.{number}", "w") as file:
                json.dump(answers, file)
            os._exit(0)
        # a child that dies before it is ready then ends the pipe
        os.close(telling)
        os.close(begun)
        children.append((told, begin))
    for told, _ in children:
        assert os.read(told, 5) == b"ready"
    for _, begin in children:
        os.write(begin, b".")
    print(all(os.wait()[1] == 0 for _ in children), flush=True)
"""


@pytest.fixture(scope="module")
def asker() -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-c", ASK], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process
        process.communicate(timeout=600)
        assert process.returncode == 0


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """A budget of rho = 0.5 and of threshold delta for a hundred queries: five queries at rho = 0.1."""
    path = tmp_path / "clinic.duckdb"
    with dpsql.connect(path) as session:
        session.connection.execute(
            "CREATE TABLE visits AS SELECT u % 3000 AS patient, u % 7 AS ward, (u % 90)::DOUBLE AS cost "
            "FROM range(30_000) t(u)"
        )
        session.sql(
            "CALL dp_protect('visits', coverage := FALSE, "
            "privacy_unit_column := 'patient', max_groups_contributed := 4, "
            f"max_rows_per_group := 3, rho_budget := {RHO * ALLOWED}, delta_threshold := 1e-3, "
            "delta_conversion := 1e-6)"
        )
        session.sql("CALL dp_domain('visits', 'cost', bounds := [0, 100])")
    return path


def different(number: int) -> str:
    return f"SELECT ward, count(*) AS n, sum(cost) AS s FROM visits WHERE cost <> {number} GROUP BY ward"


def ask_in_threads(session: dpsql.Session, queries: Sequence[str]) -> list[list[Any] | None]:
    start = threading.Barrier(len(queries))

    def ask(query: str) -> list[Any] | None:
        start.wait()
        try:
            answer = session.sql(query, rho=RHO)
        except BudgetError:
            return None
        assert answer.receipt is not None
        return [answer.fetchall(), answer.receipt.charged_rho, answer.receipt.charged_delta]

    with ThreadPoolExecutor(len(queries)) as pool:
        return list(pool.map(ask, queries))


def ask_in_processes(
    asker: subprocess.Popen[str], database: Path, queries: Sequence[Sequence[str]]
) -> list[list[Any] | None]:
    """Return answers of one process, and one analyst, for each list of queries; all are connected before one asks."""
    assert asker.stdin is not None
    assert asker.stdout is not None
    print(json.dumps({"database": str(database), "rho": RHO, "queries": queries}), file=asker.stdin, flush=True)
    assert asker.stdout.readline() == "True\n"
    files = [Path(f"{database}.{number}") for number in range(len(queries))]
    return [answer for file in files for answer in json.loads(file.read_text(encoding="utf-8"))]


def charged(database: Path) -> float:
    with contextlib.closing(sqlite3.connect(f"{database}.dpsql")) as connection:
        return float(connection.execute("SELECT coalesce(sum(rho_nano), 0) FROM charge").fetchone()[0]) / 1e9


def assert_charged_once(answers: Sequence[list[Any] | None]) -> None:
    shown = [answer for answer in answers if answer is not None]
    assert len(shown) == len(answers)
    assert all(answer[0] == shown[0][0] for answer in shown)
    assert sorted(answer[1] for answer in shown) == [0] * (len(shown) - 1) + [RHO]
    assert sum(answer[2] > 0 for answer in shown) == 1


@pytest.mark.parametrize("threads", [6, pytest.param(32, marks=pytest.mark.long)])
def test_threads_that_ask_the_same_are_charged_once(database: Path, threads: int) -> None:
    with dpsql.connect(database) as session:
        assert_charged_once(ask_in_threads(session, [QUERY] * threads))
    assert charged(database) == pytest.approx(RHO)


def test_threads_share_a_state_in_memory() -> None:
    with dpsql.connect() as session:
        session.connection.execute(
            "CREATE TABLE visits AS SELECT u AS patient, u % 3 AS ward, 1.0 AS cost FROM range(999) t(u)"
        )
        session.sql(
            "CALL dp_protect('visits', coverage := FALSE, "
            "privacy_unit_column := 'patient', max_groups_contributed := 1, "
            "max_rows_per_group := 1, rho_budget := 1, delta_threshold := 1e-3, delta_conversion := 1e-6)"
        )
        session.sql("CALL dp_domain('visits', 'cost', bounds := [0, 2])")
        assert_charged_once(ask_in_threads(session, [QUERY] * 6))


def test_processes_that_ask_the_same_are_charged_once(asker: subprocess.Popen[str], database: Path) -> None:
    assert_charged_once(json.loads(json.dumps(ask_in_processes(asker, database, [[QUERY]] * 3))))
    assert charged(database) == pytest.approx(RHO)


@pytest.mark.parametrize("threads", [8, pytest.param(32, marks=pytest.mark.long)])
def test_threads_that_ask_differently_never_overspend(database: Path, threads: int) -> None:
    with dpsql.connect(database) as session:
        answers = ask_in_threads(session, [different(number) for number in range(threads)])
    assert sum(answer is not None for answer in answers) == ALLOWED
    assert charged(database) == pytest.approx(RHO * ALLOWED)


def test_processes_that_ask_differently_never_overspend(asker: subprocess.Popen[str], database: Path) -> None:
    with dpsql.connect(database) as session:
        # of five answers that the budget pays for these may have one, two and four
        for number, part in enumerate((0.2, 0.4, 0.9)):
            session.sql(f"CALL dp_analyst('Analyst {number}', budget_part := {part})")
    answers = ask_in_processes(asker, database, [[different(10 * p + i) for i in range(3)] for p in range(3)])
    granted = [sum(answer is not None for answer in answers[3 * p : 3 * p + 3]) for p in range(3)]
    assert granted[0] <= 1
    assert granted[1] <= 2
    assert sum(granted) == ALLOWED
    assert charged(database) == pytest.approx(RHO * ALLOWED)


def test_without_its_lock_the_check_fails(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted fault: the test above would see releases of a frame that are not serialised."""
    together = threading.Barrier(4)
    whole = DuckDBEngine.aggregate

    def slow(self: DuckDBEngine, *arguments: Any, **named: Any) -> object:
        with contextlib.suppress(threading.BrokenBarrierError):
            together.wait(timeout=60)
        return whole(self, *arguments, **named)

    with dpsql.connect(database) as session:
        state = session._access.read()
        monkeypatch.setattr(state.locks, "exclusive", lambda _: contextlib.nullcontext())
        monkeypatch.setattr(DuckDBEngine, "aggregate", slow)
        with pytest.raises((AssertionError, dpsql.DpsqlError)):
            assert_charged_once(ask_in_threads(session, [QUERY] * 4))


def contents(database: Path) -> dict[str, list[tuple[Any, ...]]]:
    with contextlib.closing(sqlite3.connect(f"{database}.dpsql")) as connection:
        tables = [row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return {table: connection.execute(f"SELECT * FROM {table}").fetchall() for table in tables}


def test_a_refused_query_reads_and_writes_nothing(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with dpsql.connect(database) as session:
        session.sql(QUERY, rho=RHO)
        before = contents(database)
        reads: list[object] = []
        monkeypatch.setattr(DuckDBEngine, "aggregate", lambda *arguments, **_: reads.append(arguments))
        # a rise asks for what it adds
        for query, rho in ((different(1), RHO * ALLOWED), (QUERY, RHO * (ALLOWED + 1))):
            with pytest.raises(BudgetError) as refused:
                session.sql(query, rho=rho)
            assert refused.value.unit == "visits"
            assert refused.value.requested_rho == pytest.approx(RHO * ALLOWED)
            assert refused.value.remaining_rho == pytest.approx(RHO * (ALLOWED - 1))
        with pytest.raises(BudgetError) as refused:
            session.sql(different(1), rho=RHO, delta=0.01)
        assert refused.value.requested_delta > refused.value.remaining_delta
        assert contents(database) == before
        assert session.sql(QUERY, rho=RHO).receipt is not None
        assert not reads


def test_what_is_stored_is_served_without_reading_raw_data(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with dpsql.connect(database) as session:
        first = session.sql(QUERY, rho=RHO).fetchall()
        reads: list[object] = []
        monkeypatch.setattr(DuckDBEngine, "aggregate", lambda *arguments, **_: reads.append(arguments))
        assert session.sql(QUERY, rho=RHO).fetchall() == first
        assert not reads
