"""Where a question by relative error stops: killed at any moment and asked again, it costs its last level once."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

import dpsql
from dpsql.cascade import servings
from dpsql.state import Charged, ChargeItem, Ledger
from dpsql.state.database import Database
from tests.end_to_end.prepared import with_declarations, with_own_state
from tests.end_to_end.receipts import receipt_of
from tests.noise_sources import seeded_noise

TABLES = """
CREATE TABLE visits AS SELECT i AS patient, i % 3 AS ward, i % 2 AS doctor, 2 + i % 7 AS cost FROM range(60) t(i);
"""
DECLARED = (
    "CALL dp_protect('visits', privacy_unit_column := 'patient', max_groups_contributed := 1, max_rows_per_group := 1, "
    "coverage := FALSE, rho_budget := 100, delta_threshold := 1e-3, delta_conversion := 1e-6)",
    "CALL dp_domain('visits', 'ward', keys := [0, 1, 2])",
    "CALL dp_domain('visits', 'cost', bounds := [0, 10])",
)
UNIT = "visits"
COUNTS = "max_rho = 20) ward, count(*) AS n FROM visits GROUP BY ward"
BY_DOCTOR = "max_rho = 20) doctor, count(*) AS n FROM visits GROUP BY doctor"
WITH_AUTO = "max_rho = 5) sum(cost, contribution_bounds_per_row => AUTO) AS total FROM visits"
QUESTION = "e3fa5f4ae808989c9803ed55d539f004f9cb3d267b930cf231b44d8c66d8bc7f"
"""What the state file calls the question of `test_a_stop_is_of_reader_version_and_rule`."""


class KilledError(BaseException):
    """The end of a process: nothing that runs later handles it."""


@pytest.fixture(scope="module")
def declared() -> Iterator[dpsql.Session]:
    with with_declarations(TABLES, DECLARED) as session:
        yield session


@pytest.fixture
def clinic(declared: dpsql.Session) -> Iterator[dpsql.Session]:
    with with_own_state(declared) as session:
        session._runner.noise_source = seeded_noise(3)
        yield session


def asked(question: str, error: float = 0.1) -> str:
    return f"SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (target_relative_error = {error}, {question}"


def spent(session: dpsql.Session) -> float:
    return session._access.read().ledger.spent(UNIT).rho_nano / 1e9


def plan(session: dpsql.Session, text: str) -> dict[str, str]:
    """Return the rows of a plan about its target, by name, and the most that it costs."""
    rows = session.sql(f"FROM dp_explain($$ {text} $$)").fetchall()
    return {name: value for section, name, value in rows if section == "target" or (section, name) == ("price", "rho")}


@contextmanager
def killed_after(writes: int) -> Iterator[list[int]]:
    """End the process after some durable writes, and count them."""
    whole, done = Database.write, [0]

    @contextmanager
    def counted(self: Database) -> Iterator[object]:
        with whole(self) as connection:
            yield connection
        done[0] += 1
        if done[0] == writes:
            raise KilledError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Database, "write", counted)
        yield done


def assert_ends_as_paid(session: dpsql.Session, text: str) -> None:
    """Ask again after a kill: nothing is paid twice, and the answer stays as it is."""
    answer = session.sql(text)
    again = session.sql(text)
    assert again.fetchall() == answer.fetchall()
    assert receipt_of(again).charged_rho == 0.0
    assert receipt_of(again).notes == receipt_of(answer).notes
    assert spent(session) == pytest.approx(receipt_of(answer).rho, abs=2e-9)


@pytest.mark.parametrize(("question", "every"), [(COUNTS, 1), (BY_DOCTOR, 3), (WITH_AUTO, 5)])
def test_a_question_killed_after_any_write_costs_its_last_level(
    declared: dpsql.Session, question: str, every: int
) -> None:
    text, killed = asked(question), True
    kills = 1 - every
    while killed:
        kills += every
        with with_own_state(declared) as session:
            session._runner.noise_source = seeded_noise(5)
            try:
                with killed_after(kills):
                    session.sql(text)
                killed = False
            except KilledError:
                assert_ends_as_paid(session, text)
    assert kills > 6


def test_what_a_killed_process_was_charged_is_used_up_first(clinic: dpsql.Session) -> None:
    """A first step below the charge of a killed process would close it, and the next one would be charged again."""
    paid = 2**29 / 1e9
    with pytest.raises(KilledError), killed_after(2):
        clinic.sql("SELECT ward, count(*) AS n FROM visits GROUP BY ward", rho=paid)
    assert spent(clinic) == paid
    text = asked(COUNTS, 0.3)
    assert plan(clinic, text)["first level"] == f"rho = {paid:.9g}"
    receipt = receipt_of(clinic.sql(text))
    assert (receipt.rho, receipt.charged_rho, receipt.reused) == (paid, 0.0, False)
    assert_ends_as_paid(clinic, text)


def take_all_after(monkeypatch: pytest.MonkeyPatch, charges: int) -> None:
    """Let others use the whole budget after some charges."""
    whole, done = Ledger.charge, [0]

    def charge(self: Ledger, unit: str, items: Sequence[ChargeItem], analyst: str, *plan: int | None) -> Charged:
        charged = whole(self, unit, items, analyst, *plan)
        done[0] += 1
        if done[0] == charges:
            whole(self, unit, [ChargeItem("others", self.left(unit, None).rho_nano, 0)], "others")
        return charged

    monkeypatch.setattr(Ledger, "charge", charge)


@pytest.mark.parametrize(
    ("ending", "question", "steps"),
    [
        ("the question allows no higher level", "max_rho = 1e-4) ward, count(*) AS n FROM visits GROUP BY ward", ""),
        ("others used the budget meanwhile, so that no further step could be paid", COUNTS, "2 steps"),
        ("no higher level can be drawn of these numbers", COUNTS, "3 steps"),
    ],
)
def test_a_missed_target_is_told_first_and_stays(
    clinic: dpsql.Session, ending: str, question: str, steps: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if steps == "2 steps":
        take_all_after(monkeypatch, 2)
    if steps == "3 steps":
        monkeypatch.setattr(servings, "MOST_RISES", 3)
    text = asked(question)
    answer = clinic.sql(text)
    receipt = receipt_of(answer)
    (missed,) = receipt.missing
    assert missed.startswith("the target is not reached: ")
    assert f"; {ending}; this is after " in missed
    assert steps in missed
    assert receipt.sections["error"][0] == missed
    assert str(receipt).count("not reached") == 1
    assert missed in answer._repr_html_()
    again = clinic.sql(text)
    assert again.fetchall() == answer.fetchall()
    assert receipt_of(again).notes == receipt.notes
    assert (receipt_of(again).charged_rho, receipt_of(again).reused) == (0.0, True)
    assert plan(clinic, text)["stopped"].startswith(f"at rho = {receipt.rho:.9g}, after ")
    assert plan(clinic, text)["rho"] == "0"


def test_numbers_that_cannot_rise_answer_as_they_are_held(
    clinic: dpsql.Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    clinic.sql("SELECT ward, count(*) AS n FROM visits GROUP BY ward", rho=0.1)
    monkeypatch.setattr(servings, "MOST_RISES", 1)
    text = asked(COUNTS)
    assert plan(clinic, text)["affordable"] == "yes"
    receipt = receipt_of(clinic.sql(text))
    assert "after 1 step, at rho = 0.0" in receipt.missing[0]
    assert "; no higher level can be drawn of these numbers; this is after 1 step" in receipt.missing[0]
    assert (receipt.charged_rho, receipt.reused) == (0.0, True)


def test_a_stop_is_of_reader_version_and_rule(clinic: dpsql.Session) -> None:
    """The order and the names of columns, and what is done with the answer, change neither numbers nor price."""
    for name in ("ana", "bea"):
        clinic.sql(f"CALL dp_analyst('{name}')")
    ana, bea = clinic.as_analyst("ana"), clinic.as_analyst("bea")
    head = "ward, count(*) AS n, sum(cost) AS total FROM visits GROUP BY ward"
    text = asked(f"max_rho = 20) {head}", 0.3)
    first = ana.sql(text)
    level = receipt_of(first).rho
    # another name of the question would forget where it stopped
    assert clinic._access.read().history.stop(QUESTION, "ana")
    # what others buy and are answered changes nothing for ana
    clinic.sql(f"SELECT {head}", rho=19)
    above = receipt_of(bea.sql(text))
    assert (above.rho, above.charged_rho) == (19, 0.0)
    tail = " HAVING count(*) <> -1 ORDER BY 3 LIMIT 3"
    other = asked(f"max_rho = 20.0) count(*), sum(cost) AS s, ward AS w FROM visits GROUP BY ward{tail}", 0.3)
    for reader, asking in ((ana, text), (clinic.as_analyst("ANA"), text), (ana, other)):
        again = reader.sql(asking)
        assert (receipt_of(again).charged_rho, receipt_of(again).rho) == (0.0, level)
        assert sorted(again.df().sum()) == sorted(first.df().sum())
    for options in ("max_rho = 20, at_least = 0.5", "max_rho = 19.5", "max_rho = 20, confidence = 0.99"):
        changed = receipt_of(ana.sql(asked(f"{options}) {head}", 0.3)))
        assert (changed.charged_rho, changed.rho) == (0.0, 19)
    # rows that are drawn anew have steps of their own
    renewed = receipt_of(ana.sql(asked(f"max_rho = 20, refresh = TRUE) {head}", 0.3)))
    clinic.sql("CALL dp_new_version('visits')")
    version = receipt_of(ana.sql(text))
    for receipt in (renewed, version):
        assert receipt.charged_rho == pytest.approx(receipt.rho, abs=2e-9)
        assert 0 < receipt.rho < 19


def test_sessions_that_ask_at_once_see_one_answer_and_pay_once(tmp_path: Path) -> None:
    with dpsql.connect(tmp_path / "shop.duckdb") as first, dpsql.connect(tmp_path / "shop.duckdb") as second:
        first.connection.execute(TABLES)
        for statement in DECLARED:
            first.sql(statement)
        for seed, session in enumerate((first, second)):
            session._runner.noise_source = seeded_noise(seed)
        text, start = asked(COUNTS), threading.Barrier(4)

        def ask(session: dpsql.Session) -> dpsql.Result:
            start.wait()
            return session.sql(text)

        with ThreadPoolExecutor(4) as pool:
            answers = list(pool.map(ask, (first, second, first, second)))
        receipts = [receipt_of(answer) for answer in answers]
        assert all(answer.fetchall() == answers[0].fetchall() for answer in answers)
        assert len({(receipt.rho, receipt.notes) for receipt in receipts}) == 1
        assert sorted(receipt.charged_rho > 0 for receipt in receipts) == [False, False, False, True]
        assert spent(first) == pytest.approx(receipts[0].rho, abs=2e-9)


def test_weights_of_conditions_are_part_of_a_question(clinic: dpsql.Session) -> None:
    """A stop of other weights would answer at levels that nobody has drawn."""
    text = asked(f"{COUNTS} HAVING sum(cost, weight => WEIGHT) > -1e9 ORDER BY ward", 0.3)
    for weight in ("1", "100"):
        before = spent(clinic)
        answer = clinic.sql(text.replace("WEIGHT", weight))
        assert 0 < spent(clinic) - before == pytest.approx(receipt_of(answer).charged_rho, abs=1e-9)
        assert len(answer.fetchall()) == 3
