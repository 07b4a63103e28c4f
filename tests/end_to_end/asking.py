"""A process that asks private queries in children which can be killed, and the books that they leave."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]
RHO = 0.25

# For a process that is to die once a method of a class or a module has done its work.
DYING = """
import os, signal


def die_after(holder, name):
    whole = getattr(holder, name)

    def dying(*arguments, **named):
        whole(*arguments, **named)
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(holder, name, dying)
"""

# One process that has imported everything and forks a child for each query: a child can be killed, and starts at once.
ASKER = (
    DYING
    + """
import json, sys
import dpsql, dpsql.session, duckdb, pyarrow.parquet, scipy.optimize, scipy.special
from dpsql import engine
from dpsql.release import points
from dpsql.release.held_pairs import HeldPairs
from dpsql.state import Ledger, SideTable


def die_before(holder, name):
    setattr(holder, name, lambda *arguments, **named: os.kill(os.getpid(), signal.SIGKILL))


MOMENTS = {
    "planned": lambda: die_before(Ledger, "charge"),
    "charged": lambda: die_after(Ledger, "charge"),
    "aggregated": lambda: die_after(engine.DuckDBEngine, "aggregate"),
    "pairs made": lambda: die_after(HeldPairs, "_begin"),
    "drawn": lambda: die_after(points, "noisy_values"),
    "stored": lambda: die_after(SideTable, "store"),
    "thresholded": lambda: die_after(points, "shown_keys"),
}

for line in sys.stdin:
    order = json.loads(line)
    child = os.fork()
    if child == 0:
        if order["moment"]:
            MOMENTS[order["moment"]]()
        with dpsql.connect(order["database"], read_only=True) as session:
            session.sql(order["query"], **order["options"])
        os._exit(0)
    print(child, flush=True)
    print(os.waitpid(child, 0)[1], flush=True)
"""
)


class Forking:
    """A process that runs a script, which forks a child for each order and prints its number and its end."""

    def __init__(self, script: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", script], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ended(self, order: Mapping[str, object], kill_after_seconds: float | None) -> int:
        """Status of the child of an order: 0, or the signal that ended it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(order), file=self._process.stdin, flush=True)
        child = int(self._process.stdout.readline())
        if kill_after_seconds is not None:
            time.sleep(kill_after_seconds)
            # a child that has ended may be collected already
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        return int(self._process.stdout.readline())

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        assert self._process.wait(timeout=600) == 0
        self._process.stdout.close()


class Asker(Forking):
    """Runs queries in processes of their own, one at a time."""

    def __init__(self, database: Path) -> None:
        super().__init__(ASKER)
        self.database = database

    def ask(
        self, query: str, *, rho: float | None = RHO, moment: str | None = None, kill_after_seconds: float | None = None
    ) -> int:
        """Status of the process that asked: 0, or the signal that ended it."""
        options = {} if rho is None else {"rho": rho}
        order = {"database": str(self.database), "query": query, "options": options, "moment": moment}
        return self.ended(order, kill_after_seconds)


@contextlib.contextmanager
def state_file(database: Path) -> Iterator[sqlite3.Connection]:
    """Open the state file of a database."""
    with contextlib.closing(sqlite3.connect(f"{database}.dpsql")) as connection:
        yield connection


def ledger(database: Path) -> tuple[int, int, int]:
    """Nano-rho charged, delta units charged, and charges that have paid for nothing yet."""
    with state_file(database) as connection:
        rows = connection.execute("SELECT rho_nano, delta_units FROM charge").fetchall()
        (unpaid,) = connection.execute(
            "SELECT count(*) FROM charge WHERE id NOT IN (SELECT charge_id FROM closed_charge)"
        ).fetchone()
    return sum(row[0] for row in rows), sum(int(row[1]) for row in rows), unpaid


def assert_paid(database: Path) -> None:
    """Every point has closed charges of at least its level, and every release shows stored points only."""
    with state_file(database) as connection:
        charges = connection.execute(
            "SELECT statistic_hash, sum(rho_nano) FROM charge JOIN closed_charge ON charge_id = id "
            "GROUP BY statistic_hash"
        ).fetchall()
        points = dict(connection.execute("SELECT statistic_hash, max(rho_nano) FROM point GROUP BY 1").fetchall())
        shown = [json.loads(row[0]) for row in connection.execute("SELECT statistics FROM release")]
    paid = dict(charges)
    for statistic, rho_nano in points.items():
        assert paid.get(statistic, 0) >= rho_nano
    for statistics in shown:
        assert set(statistics) <= set(points)
    assert {row[0] for row in charges} <= set(points)
