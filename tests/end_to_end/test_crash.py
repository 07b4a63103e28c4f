"""A query that is killed at any moment leaves no release without a charge, and asking again charges nothing twice."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator

import numpy as np
import pytest

import dpsql
from dpsql.cascade.reader import CURATOR
from dpsql.mechanism.calibrate import AUTO_PARTS
from dpsql.release.offer import offers_of
from dpsql.sql.statements import SelectStatement, read_statement
from dpsql.state import Spent
from dpsql.state import ledger as ledger_module
from tests.end_to_end.asking import RHO, Asker, assert_paid, ledger


@pytest.fixture(scope="module")
def asker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asker]:
    """A table so large that a query's time spreads over its steps: plan, charge, aggregate, store, show."""
    database = tmp_path_factory.mktemp("crash") / "clinic.duckdb"
    with dpsql.connect(database) as session:
        session.connection.execute(
            "CREATE TABLE visits AS SELECT u % 10_000 AS patient, u % 97 AS ward, (u % 90)::DOUBLE AS cost "
            "FROM range(40_000) t(u)"
        )
        session.sql(
            "CALL dp_protect('visits', coverage := FALSE, "
            "privacy_unit_column := 'patient', max_groups_contributed := 4, "
            "max_rows_per_group := 3, rho_budget := 10_000, delta_threshold := 0.5, delta_conversion := 1e-6)"
        )
        session.sql("CALL dp_domain('visits', 'cost', bounds := [0, 100])")
    asker = Asker(database)
    yield asker
    asker.close()


def query(number: int) -> str:
    return f"SELECT ward, count(*) AS n, avg(cost) FROM visits WHERE cost <> {number} GROUP BY ward"


@pytest.fixture(scope="module")
def price(asker: Asker) -> tuple[int, int]:
    """Nano-rho and delta units of a fresh answer, from the plan of a query; the same for every number."""
    with dpsql.connect(asker.database, read_only=True) as session:
        statement = read_statement(query(0))
        assert isinstance(statement, SelectStatement)
        planned, state, curator = session._runner.plan(statement, {"rho": RHO}, CURATOR)
        items = [item for part in offers_of(planned.parts, state, curator) for item in part.items]
    assert sum(item.rho_nano for item in items) == RHO * 1e9
    return sum(item.rho_nano for item in items), sum(item.delta_units for item in items)


def crash_and_ask_again(
    asker: Asker,
    price: tuple[int, int],
    number: int,
    *,
    moment: str | None = None,
    kill_after_seconds: float | None = None,
) -> str:
    """Kill one query, check the books, ask again; what the killed one left: nothing, a charge, a point or all."""
    before = ledger(asker.database)
    status = asker.ask(query(number), moment=moment, kill_after_seconds=kill_after_seconds)
    assert status in {0, signal.SIGKILL}
    after_kill = ledger(asker.database)
    assert_paid(asker.database)
    charged = (after_kill[0] - before[0], after_kill[1] - before[1])
    assert charged in {(0, 0), price}
    with dpsql.connect(asker.database, read_only=True) as session:
        answer = session.sql(query(number), rho=RHO)
        again = session.sql(query(number), rho=RHO)
        assert answer.fetchall() == again.fetchall()
        assert len(answer) > 0
    rho_nano, delta_units, unpaid = ledger(asker.database)
    assert (rho_nano - before[0], delta_units - before[1], unpaid) == (*price, before[2])
    assert_paid(asker.database)
    assert answer.receipt is not None
    if charged == (0, 0):
        return "nothing"
    if after_kill[2] > before[2]:
        # The open charge pays: this answer costs nothing, but its noise is fresh.
        assert (answer.receipt.charged_rho, answer.receipt.charged_delta, answer.receipt.reused) == (0, 0, False)
        return "a charge"
    assert answer.receipt.reused
    return "a point" if status else "an answer"


@pytest.mark.parametrize(
    ("moment", "left"),
    [
        ("planned", "nothing"),
        ("charged", "a charge"),
        ("aggregated", "a charge"),
        ("drawn", "a charge"),
        ("stored", "a point"),
        ("thresholded", "a point"),
    ],
)
def test_a_crash_between_two_steps_is_paid_for_once(
    asker: Asker, price: tuple[int, int], moment: str, left: str
) -> None:
    number = -sum(map(ord, moment))
    assert crash_and_ask_again(asker, price, number, moment=moment) == left


def test_a_crash_while_auto_is_asked_is_paid_for_once(asker: Asker) -> None:
    """Killed after the charge for its histogram, then after that is stored: in all what one answer costs."""
    text = (
        "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (max_groups_contributed = AUTO) ward, count(DISTINCT patient) "
        "FROM visits WHERE cost <> -1 GROUP BY ward"
    )
    before = ledger(asker.database)
    share = int(RHO * 1e9) // AUTO_PARTS
    for moment, unpaid in (("charged", 1), ("stored", 0)):
        assert asker.ask(text, moment=moment) == signal.SIGKILL
        after = ledger(asker.database)
        assert (after[0] - before[0], after[2] - before[2]) == (share, unpaid)
    assert asker.ask(text) == 0
    after = ledger(asker.database)
    assert (after[0] - before[0], after[2] - before[2]) == (int(RHO * 1e9), 0)
    assert_paid(asker.database)


def test_a_crash_between_steps_of_a_target_is_paid_for_once(asker: Asker) -> None:
    """Killed at its first charge, then after it has stored its first and its second step: in all its last level."""
    text = (
        "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (target_relative_error = 0.2, max_rho = 1) count(*), avg(cost) "
        "FROM visits WHERE cost <> -2"
    )
    before = ledger(asker.database)
    for moment, unpaid in (("charged", 1), ("stored", 0), ("stored", 0)):
        assert asker.ask(text, rho=None, moment=moment) == signal.SIGKILL
        assert (ledger(asker.database)[2] > before[2]) is bool(unpaid)
        assert_paid(asker.database)
    with dpsql.connect(asker.database, read_only=True) as session:
        answer, again = session.sql(text), session.sql(text)
    assert again.fetchall() == answer.fetchall()
    assert answer.receipt is not None
    charged = ledger(asker.database)[0] - before[0]
    assert charged == pytest.approx(answer.receipt.rho * 1e9, abs=4)
    assert_paid(asker.database)


@pytest.mark.parametrize("kills", [5, pytest.param(50, marks=pytest.mark.long)])
def test_killed_at_random_moments_a_query_is_paid_for_once(asker: Asker, price: tuple[int, int], kills: int) -> None:
    started = time.perf_counter()
    assert asker.ask(query(1_000 * kills)) == 0
    seconds = time.perf_counter() - started
    moments = np.random.default_rng(kills)
    left: list[str] = []
    for number in range(1_000 * kills + 1, 1_000 * kills + 1 + 5 * kills):
        found = crash_and_ask_again(asker, price, number, kill_after_seconds=float(moments.uniform(0, seconds)))
        if found == "an answer":
            # too late: the query had ended, so the others get less time
            seconds *= 0.9
            continue
        if found == "nothing":
            # too early, and on a machine that is busier than at first all of them would be
            seconds *= 1.1
        left.append(found)
        # the moments mean something where some kills come before and some after the charge
        if len(left) >= kills and len(set(left)) >= 2:
            break
    assert len(left) >= kills
    assert len(set(left)) >= 2


def test_a_ledger_that_forgets_open_charges_is_caught(
    asker: Asker, price: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_module, "open_charges", lambda *_: (Spent(0, 0), []))
    with pytest.raises(AssertionError):
        crash_and_ask_again(asker, price, 777, moment="charged")
