"""Kills, moves of the whole folder and read-only copies: no state file is named that has all of its charges."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import dpsql
from dpsql.errors import StateError
from tests.end_to_end.asking import DYING, Forking, ledger

# One process that has imported everything and forks a child for each order: it asks new questions until it is killed.
CHARGER = (
    DYING
    + """
import datetime, itertools, json, sys
import dpsql, dpsql.session, duckdb, pyarrow.parquet, scipy.optimize, scipy.special
from dpsql.state import Ledger
from dpsql.state.age import Age
from dpsql.state.database import Database


def stamp_first(ledger, *arguments):
    ((last,),) = [row.values() for row in ledger._database.rows("SELECT max(id) AS last FROM charge")]
    ledger._age.require()
    ledger._age.tell(last + 1, datetime.datetime.now(datetime.UTC))
    os.kill(os.getpid(), signal.SIGKILL)


MOMENTS = {
    "": lambda: None,
    "between": lambda: setattr(Age, "tell", lambda *arguments: os.kill(os.getpid(), signal.SIGKILL)),
    "paired": lambda: setattr(Age, "_write", lambda *arguments: os.kill(os.getpid(), signal.SIGKILL)),
    "stamp first": lambda: setattr(Ledger, "charge", stamp_first),
}

for line in sys.stdin:
    order = json.loads(line)
    child = os.fork()
    if child == 0:
        MOMENTS[order["moment"]]()
        with dpsql.connect(order["database"], read_only=order["read_only"]) as session:
            for number in itertools.count(order["first"]):
                session.sql(f"SELECT count(*) FROM visits WHERE ward < {number}")
    print(child, flush=True)
    print(os.waitpid(child, 0)[1], flush=True)
"""
)


class Charger(Forking):
    """Runs processes that charge until they are killed, one at a time."""

    def __init__(self) -> None:
        super().__init__(CHARGER)

    def charge(
        self, database: Path, first: int, *, read_only: bool = False, moment: str = "", seconds: float | None = None
    ) -> None:
        """Ask questions from ``first`` on until a moment kills the process, or until ``seconds`` are over."""
        order = {"database": str(database), "first": first, "read_only": read_only, "moment": moment}
        assert self.ended(order, seconds) == signal.SIGKILL


@pytest.fixture(scope="module")
def charger() -> Iterator[Charger]:
    charger = Charger()
    yield charger
    charger.close()


@pytest.fixture
def clinic(tmp_path: Path) -> Path:
    """Return a database with a policy and no charge."""
    (tmp_path / "clinic").mkdir()
    database = tmp_path / "clinic" / "clinic.duckdb"
    with dpsql.connect(database) as session:
        session.connection.execute("CREATE TABLE visits AS SELECT i AS patient, i % 3 AS ward FROM range(300) t(i)")
        session.sql(
            "CALL dp_protect('visits', coverage := FALSE, privacy_unit_column := 'patient', max_groups_contributed := "
            "1, max_rows_per_group := 1, default_rho := 0.01, rho_budget := 10_000, delta_threshold := 0.5, "
            "delta_conversion := 1e-6)"
        )
    return database


def ask(database: Path, number: int, *, read_only: bool = False) -> None:
    """Ask a question that is charged."""
    with dpsql.connect(database, read_only=read_only) as session:
        answer = session.sql(f"SELECT count(*) FROM visits WHERE ward < {number}")
    assert answer.receipt is not None
    assert not answer.receipt.reused


def in_new_folder(database: Path, number: int, *, keeps: bool) -> Path:
    """Copy or move the whole folder of a database, with what a killed process left; return the new path."""
    folder = database.parents[1] / f"folder {number}"
    if keeps:
        shutil.copytree(database.parent, folder)
    else:
        database.parent.rename(folder)
    return folder / database.name


def read_only_copy(database: Path, number: int) -> None:
    """Ask of a copy whose database nobody may write, and remove it."""
    copy = in_new_folder(database, number, keeps=True)
    copy.chmod(0o400)
    ask(copy, number, read_only=True)
    shutil.rmtree(copy.parent)


@pytest.mark.parametrize("kills", [20, pytest.param(200, marks=pytest.mark.long)])
def test_no_alarm_after_kills_moves_and_copies(charger: Charger, clinic: Path, kills: int) -> None:
    draws = np.random.default_rng(kills)
    database, killed_late, longest = clinic, 0, 0.5
    for kill in range(kills):
        first = 10_000 * (kill + 1)
        before = ledger(database)[0]
        charger.charge(database, first, read_only=kill % 4 == 3, seconds=float(draws.uniform(0.05, longest)))
        has_charged = ledger(database)[0] > before
        killed_late += has_charged
        # on a machine that is busier all kills would come before a charge
        longest *= 0.95 if has_charged else 1.3
        match int(draws.integers(4)):
            case 0:
                database = in_new_folder(database, kill, keeps=False)
            case 1:
                copied = in_new_folder(database, kill, keeps=True)
                shutil.rmtree(database.parent)
                database = copied
            case 2:
                read_only_copy(database, first + 9_000)
            case _:
                pass
        ask(database, first + 9_001, read_only=bool(draws.integers(2)))
    # the kills mean something where they come while charges are written
    assert killed_late >= kills // 4


@pytest.mark.parametrize(("moment", "read_only"), [("between", False), ("between", True), ("paired", False)])
def test_a_kill_between_both_writes_is_no_alarm(charger: Charger, clinic: Path, moment: str, read_only: bool) -> None:
    for number in (1, 2):
        charger.charge(clinic, number, moment=moment if number == 1 else "between", read_only=read_only)
        ask(clinic, 100 + number)


@pytest.mark.parametrize("read_only", [False, True])
def test_a_stamp_before_its_charge_is_caught(charger: Charger, clinic: Path, read_only: bool) -> None:
    ask(clinic, 1)
    charger.charge(clinic, 2, moment="stamp first", read_only=read_only)
    with pytest.raises(StateError, match="an old copy"):
        ask(clinic, 3)
