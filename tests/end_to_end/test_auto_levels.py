"""AUTO at several levels, for several readers: its histograms rise, fall and are tried again like any statistic.

What is sure is paid once and chosen by ever after; what is not is drawn again by who asks for more, for the difference.
Whoever was answered keeps their answer, whatever others asked before or after. The rule is in docs/proofs/auto.md.
"""

from __future__ import annotations

import math
import random
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

import dpsql
from dpsql.cascade.reader import CURATOR
from dpsql.engine.transaction import DuckDBTransaction
from dpsql.features.auto_choices import EXTREMES_L2
from dpsql.features.auto_histograms import Question, questions
from dpsql.mechanism.gaussian_measure import GaussianMeasure
from dpsql.mechanism.window import free_level
from dpsql.model.private_query import PrivateQuery
from dpsql.release import points, stage
from dpsql.sql.statements import SelectStatement, read_statement
from dpsql.state import Additions, Ledger, Point, SideTable
from dpsql.state.table_definitions import OLD_CHOICES
from tests.end_to_end.receipts import receipt_of
from tests.noise_sources import seeded_noise

GROUPED = (
    "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (delta = 1e-6, max_groups_contributed = AUTO) "
    "k, count(DISTINCT u) AS n FROM t GROUP BY k"
)
SUMMED = (
    "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (delta = 1e-6, max_groups_contributed = 4) "
    "k, sum(x, contribution_bounds_per_group => AUTO) AS s FROM t GROUP BY k"
)
TINY, SENSIBLE = 1e-5, 0.32
LIMITS = {"ana": 1.6, "bea": 0.64, "cleo": 1.44}
"""Of which AUTO may choose by 1/32: 0.05, 0.02 and 0.045."""


def opened(path: str | Path = ":memory:") -> dpsql.Session:
    """1,200 units in 1 to 8 of 20 groups, with values from 0 to 100; ana, bea and cleo have limits."""
    session = dpsql.connect(path)
    session.connection.execute(
        "CREATE TABLE t AS SELECT u, (hash(u, i) % 20)::INTEGER AS k, (hash(i, u) % 1000) / 10.0 AS x "
        "FROM range(1200) r(u), range(8) s(i) WHERE i <= u % 8"
    )
    session.sql("CALL dp_unit('unit', rho_budget := 30, delta_threshold := 1e-3, delta_conversion := 1e-6)")
    session.sql(
        "CALL dp_protect('t', coverage := FALSE, unit := 'unit', privacy_unit_column := 'u', max_rows_per_group := 2)"
    )
    for name, limit in LIMITS.items():
        session.sql(f"CALL dp_analyst('{name}', rho_limit := {limit})")
    session._runner.noise_source = seeded_noise(4)
    return session


@pytest.fixture
def fresh() -> Iterator[dpsql.Session]:
    with opened() as made:
        yield made


@pytest.fixture(scope="module")
def shared() -> Iterator[dpsql.Session]:
    with opened() as made:
        made.sql("CALL dp_unit('unit', rho_budget := 900, delta_threshold := 0.1, replace := TRUE)")
        yield made


@pytest.fixture
def session(shared: dpsql.Session) -> dpsql.Session:
    """Return the table under a version that nobody has asked about."""
    shared.sql("CALL dp_new_version('t')")
    shared._runner.noise_source = seeded_noise(4)
    return shared


def ask(session: dpsql.Session, sql: str, rho: float, reader: str = CURATOR) -> dpsql.Result:
    door = session if reader == CURATOR else session.as_analyst(reader)
    return door.sql(sql, rho=rho)


def planned(session: dpsql.Session, sql: str, rho: float = SENSIBLE, reader: str = CURATOR) -> PrivateQuery:
    statement = read_statement(sql)
    assert isinstance(statement, SelectStatement)
    return session._runner.plan(statement, {"rho": rho}, reader)[0]


def question(session: dpsql.Session, sql: str) -> Question:
    """The one thing that a text leaves to AUTO."""
    ((only, _),) = questions(planned(session, sql).first)
    return only


def charged(session: dpsql.Session, sql: str) -> int:
    """Nano-rho that the ledger has for the histogram of a text."""
    state, name = session._access.read(), question(session, sql).statistic_hash
    with state._database.read() as connection:
        rows = connection.execute("SELECT rho_nano FROM charge WHERE statistic_hash = ?", (name,)).fetchall()
    return sum(row[0] for row in rows)


def levels(session: dpsql.Session, sql: str) -> list[int]:
    """Stored levels of the histogram of a text, highest first."""
    table = session._access.read().side_table
    return [one.rho_nano for one in table.levels(question(session, sql).statistic_hash)]


def share(rho: float) -> int:
    return round(rho * 1e9) // 32


def asked_at(answer: dpsql.Result) -> float:
    """The level that the receipt states of AUTO."""
    (note,) = (note for note in receipt_of(answer).notes if note.startswith("AUTO"))
    return float(note.partition("at rho = ")[2].partition(",")[0].partition(";")[0])


def test_a_tiny_question_that_came_first_spoils_nothing(session: dpsql.Session) -> None:
    first = ask(session, GROUPED, TINY, "ana")
    assert receipt_of(first).max_groups == 1
    assert charged(session, GROUPED) == share(TINY) == 312
    good = ask(session, GROUPED, SENSIBLE)
    assert 4 <= (receipt_of(good).max_groups or 0) <= 8
    # the difference alone: what AUTO costs in all is what its highest level costs
    assert charged(session, GROUPED) == share(SENSIBLE) == 10_000_000
    assert round(receipt_of(good).charged_rho * 1e9) == 320_000_000 - 312
    assert len(good) == 20


def test_bounds_that_were_not_found_are_looked_for_again(session: dpsql.Session) -> None:
    for rho in (TINY, TINY):
        assert {row[-1] for row in ask(session, SUMMED, rho).fetchall()} <= {None}
        assert charged(session, SUMMED) == share(TINY)
    answer = ask(session, SUMMED, SENSIBLE)
    assert charged(session, SUMMED) == share(SENSIBLE)
    (column,) = (column for column in receipt_of(answer).columns if column.name == "s")
    assert column.bounds is not None
    assert column.bounds[1] >= 64.0
    # who was refused is answered now, for nothing that AUTO would cost
    ask(session, SUMMED, TINY)
    assert charged(session, SUMMED) == share(SENSIBLE)


@pytest.mark.parametrize("sql", [GROUPED, SUMMED], ids=["groups", "bounds"])
def test_a_reader_below_the_level_is_answered_from_a_point_at_what_their_limit_leaves(
    session: dpsql.Session, sql: str
) -> None:
    ask(session, sql, 2.0)
    before = charged(session, sql)
    for rho in (0.04, 0.05, 0.002):
        answer = ask(session, sql, rho, "ana")
        assert asked_at(answer) == free_level(50_000_000) / 1e9 <= LIMITS["ana"] / 32
        assert len(answer) > 0
    assert charged(session, sql) == before == share(2.0)
    assert levels(session, sql) == [share(2.0), free_level(50_000_000)]


def test_whom_it_is_shown_holds_the_level_that_the_receipt_states(fresh: dpsql.Session) -> None:
    ask(fresh, GROUPED, 2.0)
    answer = ask(fresh, GROUPED, 0.04, "ana")
    held = fresh.sql("FROM dp_budget('unit', analysts := ['ana'])").df().rho_held[0]
    assert (
        held == pytest.approx(receipt_of(answer).rho) == pytest.approx(free_level(38_750_000) / 1e9 + asked_at(answer))
    )


def test_what_is_sure_is_chosen_by_at_every_level_and_pays_nothing_more(session: dpsql.Session) -> None:
    chosen = receipt_of(ask(session, GROUPED, 0.16)).max_groups
    for rho in (SENSIBLE, 0.64, 0.01):
        receipt = receipt_of(ask(session, GROUPED, rho))
        assert receipt.max_groups == chosen
        assert any("paid once" in note for note in receipt.notes)
    assert charged(session, GROUPED) == share(0.16)
    assert levels(session, GROUPED) == [share(0.16)]


def undecided_first(session: dpsql.Session) -> None:
    before = {reader: ask(session, GROUPED, TINY, reader) for reader in (CURATOR, "ana")}
    assert any("another" in note for note in receipt_of(before["ana"]).notes)
    chosen = receipt_of(ask(session, GROUPED, SENSIBLE)).max_groups
    for reader, answer in before.items():
        again = ask(session, GROUPED, TINY, reader)
        assert (receipt_of(again).max_groups, receipt_of(again).charged_rho) == (1, 0.0)
        assert again.fetchall() == answer.fetchall()
    # asked for the first time now, or at another level: what is sure by now
    assert receipt_of(ask(session, GROUPED, TINY, "cleo")).max_groups == chosen
    assert receipt_of(ask(session, GROUPED, 2 * TINY, "ana")).max_groups == chosen
    assert charged(session, GROUPED) == share(SENSIBLE)


def test_who_was_answered_before_it_was_sure_keeps_the_answer(session: dpsql.Session) -> None:
    """Undecided first: at that level, for that reader, and for nobody else."""
    undecided_first(session)


def test_the_check_catches_a_choice_that_is_not_kept(session: dpsql.Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage, "Additions", lambda **named: Additions(**(named | {"choices": ()})))
    with pytest.raises(AssertionError):
        undecided_first(session)


def test_what_is_free_fixes_no_choice_for_others() -> None:
    """A histogram that is not sure, lowered for a reader below it: what others choose by is the same as without."""
    stored = []
    for with_bea in (False, True):
        with opened() as session:
            ask(session, GROUPED, 0.005)
            session.sql("CALL dp_analyst('bea', rho_limit := 0.0032)")
            if with_bea:
                ask(session, GROUPED, 0.0001, "bea")
                assert levels(session, GROUPED) == [share(0.005), free_level(100_000)]
            session._runner.noise_source = seeded_noise(9)
            receipt = receipt_of(ask(session, GROUPED, SENSIBLE))
            stored.append((receipt.max_groups, levels(session, GROUPED)[0], asked_at(ask(session, GROUPED, 0.02))))
    assert stored[0] == stored[1] == (stored[0][0], share(SENSIBLE), 0.01)


@pytest.mark.parametrize(
    "asked",
    [
        [("ana", 0.0004), (CURATOR, 0.0008), ("bea", 0.0004), ("ana", 0.05), (CURATOR, 2.5), ("bea", 0.02)],
        [("ana", 0.0004), ("bea", 0.0008), (CURATOR, 2.5), ("bea", 0.002), ("ana", 0.05), (CURATOR, 0.0004)],
        [(CURATOR, 2.5), ("bea", 0.0004), ("ana", 0.0004), (CURATOR, 0.0004), ("ana", 0.04)],
    ],
    ids=["sure at what all may see", "sure above the limits", "high first"],
)
def test_readers_interleaved_each_keep_what_they_were_shown(
    session: dpsql.Session, asked: list[tuple[str, float]]
) -> None:
    answers = [(reader, rho, ask(session, GROUPED, rho, reader)) for reader, rho in asked]
    spent = charged(session, GROUPED)
    for reader, rho, answer in answers[::-1]:
        again = ask(session, GROUPED, rho, reader)
        assert shown(again) == shown(answer)
        assert receipt_of(again).charged_rho == 0.0
    assert charged(session, GROUPED) == spent == max(levels(session, GROUPED))


def test_a_level_in_the_same_step_of_the_grid_draws_nothing_again(session: dpsql.Session) -> None:
    """Else who asks one nano-rho more each time would use up the draws that a histogram may be an average of."""
    ask(session, GROUPED, TINY)
    top = share(TINY)
    step = next(level for level in range(top, 2 * top) if free_level(level) > free_level(top))
    for nano in (top + 1, (top + step) // 2, step - 1):
        ask(session, GROUPED, nano * 32 / 1e9)
    assert levels(session, GROUPED) == [top]
    ask(session, GROUPED, step * 32 / 1e9)
    assert levels(session, GROUPED) == [step, top]
    assert charged(session, GROUPED) == step


def test_free_points_are_few_however_many_readers_ask(session: dpsql.Session) -> None:
    ask(session, GROUPED, 2.9)
    limits = range(10_000_000, 80_000_000, 14_000_000)
    for number, limit in enumerate(limits):
        session.sql(f"CALL dp_analyst('r{number}', rho_limit := {32 * limit / 1e9})")
        ask(session, GROUPED, 0.005, f"r{number}")
    made = levels(session, GROUPED)[1:]
    assert set(made) == {free_level(limit) for limit in limits}
    assert len(made) <= math.ceil(4 * math.log2(80 / 10)) + 1


def test_a_new_version_asks_anew(session: dpsql.Session) -> None:
    ask(session, GROUPED, TINY)
    session.sql("CALL dp_new_version('t')")
    assert levels(session, GROUPED) == []
    receipt = receipt_of(ask(session, GROUPED, SENSIBLE))
    assert (receipt.max_groups or 0) >= 4
    assert charged(session, GROUPED) == share(SENSIBLE)


@pytest.mark.parametrize(
    ("sql", "rho", "reader", "words"),
    [
        (GROUPED, SENSIBLE, CURATOR, "to be drawn again at rho = 0.01, of which 0.009999688 is not paid yet"),
        (GROUPED, 0.0005, "bea", "to be drawn again at rho = 1.5625e-05, of which 1.5313e-05 is not paid yet"),
        pytest.param(SUMMED, 2.0, CURATOR, "at rho = 0.04, a part of rho; it is paid once", marks=pytest.mark.long),
        (SUMMED, 0.0005, "ana", "at rho = 0.04, a part of rho; it is paid once"),
    ],
)
def test_the_plan_says_what_the_run_charges(
    session: dpsql.Session, sql: str, rho: float, reader: str, words: str
) -> None:
    ask(session, GROUPED, TINY)
    ask(session, SUMMED, 1.28)
    door = session if reader == CURATOR else session.as_analyst(reader)
    plan = door.sql(f"FROM dp_explain($${sql}$$, rho := {rho})").fetchall()
    (price,) = (value for section, name, value in plan if (section, name) == ("price", "rho"))
    assert any(words in value for _, _, value in plan)
    cost = receipt_of(ask(session, sql, rho, reader)).charged_rho
    quoted, _, or_less = price.partition(", or less")
    assert cost == pytest.approx(float(quoted), rel=1e-8) or (or_less and cost < float(quoted))


def test_the_plan_makes_no_point_and_says_that_one_is_to_be_made(session: dpsql.Session) -> None:
    ask(session, GROUPED, 2.0)
    plan = session.as_analyst("bea").sql(f"FROM dp_explain($${GROUPED}$$, rho := 0.01)").fetchall()
    assert any("to be made of a stored one, at rho = " in value and "for nothing" in value for _, _, value in plan)
    assert levels(session, GROUPED) == [share(2.0)]


def test_plans_and_prices_follow_from_released_points_alone() -> None:
    """Two databases with one past and other rows now: what is asked again, explained or lowered is the same."""
    outcomes = []
    for emptied in (False, True):
        with opened() as session:
            ask(session, GROUPED, 2.0)
            ask(session, SUMMED, 2.0)
            if emptied:
                session.connection.execute("DELETE FROM t")
            session._runner.noise_source = seeded_noise(8)
            found: list[object] = []
            for sql in (GROUPED, SUMMED):
                for reader in ("ana", "bea"):
                    frame = planned(session, sql, 0.01, reader).first.frame
                    found.append((frame.bounding.max_groups, is_stored(session, sql, reader)))
                    found.append(session.as_analyst(reader).sql(f"FROM dp_explain($${sql}$$, rho := 0.01)").fetchall())
            outcomes.append(found)
    assert outcomes[0] == outcomes[1]


def is_stored(session: dpsql.Session, sql: str, reader: str) -> bool:
    return not planned(session, sql, 0.01, reader).first.is_open


@pytest.mark.parametrize("sql", [GROUPED, SUMMED], ids=["groups", "bounds"])
def test_what_a_reader_is_shown_is_read_from_points_at_or_below_what_their_limit_leaves(
    session: dpsql.Session, sql: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once the point at the part of their limit is made, no point above it is looked at, in plan, refusal or answer."""
    ask(session, sql, 2.0)
    first = ask(session, sql, 0.02, "bea")
    name, point, read = question(session, sql).statistic_hash, SideTable.point, list[int]()

    def watched(self: SideTable, statistic_hash: str, rho_nano: int, *release: int) -> Point | None:
        if statistic_hash == name:
            read.append(rho_nano)
        return point(self, statistic_hash, rho_nano, *release)

    monkeypatch.setattr(SideTable, "point", watched)
    for rho in (0.02, 0.01):
        ask(session, sql, rho, "bea")
    assert ask(session, sql, 0.02, "bea").fetchall() == first.fetchall()
    assert set(read) == {free_level(20_000_000)}


def crash(*_: Any, **__: Any) -> Any:
    raise RuntimeError("killed")


LATE = ("read", "drawn")
MOMENTS: dict[str, tuple[Any, str]] = {
    "charged": (DuckDBTransaction, "make_pairs"),
    "read": (points, "noisy_places"),
    "drawn": (GaussianMeasure, "risen"),
    "averaged": (SideTable, "store"),
}


@pytest.mark.parametrize(
    "moment", ["charged", "averaged", *(pytest.param(one, marks=pytest.mark.long) for one in LATE)]
)
def test_a_rise_that_was_charged_and_not_stored_is_used_up(
    fresh: dpsql.Session, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask(fresh, GROUPED, TINY)
    with monkeypatch.context() as broken:
        broken.setattr(*MOMENTS[moment], crash)
        with pytest.raises((RuntimeError, dpsql.DpsqlError)):
            ask(fresh, GROUPED, SENSIBLE)
    assert levels(fresh, GROUPED) == [share(TINY)]
    assert charged(fresh, GROUPED) == share(SENSIBLE)
    answer = ask(fresh, GROUPED, SENSIBLE)
    assert charged(fresh, GROUPED) == share(SENSIBLE)
    assert round(receipt_of(answer).charged_rho * 1e9) == 310_000_000
    assert (receipt_of(answer).max_groups or 0) >= 4
    assert not open_charges(fresh)


def open_charges(session: dpsql.Session) -> int:
    with session._access.read()._database.read() as connection:
        row = connection.execute(
            "SELECT count(*) FROM charge WHERE id NOT IN (SELECT charge_id FROM closed_charge)"
        ).fetchone()
    return int(row[0])


def test_a_charge_that_was_made_for_it_counts_towards_what_is_left(
    fresh: dpsql.Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The budget is just enough for one question; a crash after AUTO's charge does not make it too little."""
    fresh.sql("CALL dp_unit('unit', rho_budget := 0.32, delta_threshold := 1e-3, delta_conversion := 1e-6)")
    with monkeypatch.context() as broken:
        broken.setattr(points, "noisy_places", crash)
        with pytest.raises(RuntimeError):
            ask(fresh, GROUPED, SENSIBLE)
    assert charged(fresh, GROUPED) == share(SENSIBLE)
    receipt = receipt_of(ask(fresh, GROUPED, SENSIBLE))
    assert round(receipt.charged_rho * 1e9) == 310_000_000


def test_what_could_not_be_paid_after_a_rise_is_refused_before_it(fresh: dpsql.Session) -> None:
    ask(fresh, GROUPED, TINY)
    fresh.sql("CALL dp_unit('unit', rho_budget := 0.3, delta_threshold := 1e-3, delta_conversion := 1e-6)")
    with pytest.raises(dpsql.BudgetError):
        ask(fresh, GROUPED, SENSIBLE)
    assert charged(fresh, GROUPED) == share(TINY)


def test_what_is_free_needs_no_budget(fresh: dpsql.Session) -> None:
    """Where a reader's point is made of stored ones and their answer, too, an empty budget refuses nothing."""
    fresh.sql("CALL dp_domain('t', 'k', keys := [0, 1, 2, 3])")
    ask(fresh, GROUPED, 2.0)
    chosen = receipt_of(ask(fresh, GROUPED, 2.0)).max_groups
    fresh.sql("CALL dp_unit('unit', rho_budget := 2, delta_threshold := 1e-3, delta_conversion := 1e-6)")
    receipt = receipt_of(ask(fresh, GROUPED, 0.02))
    assert (receipt.max_groups, receipt.charged_rho) == (chosen, 0.0)
    # which number AUTO chose for others is not for a reader with a limit, and so is what is stored for it
    with pytest.raises(dpsql.BudgetError, match="not shown to a reader with a rho_limit"):
        ask(fresh, GROUPED, 0.02, "bea")


def test_a_crash_between_its_histogram_and_the_answer_costs_nothing_twice(
    session: dpsql.Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask(session, GROUPED, TINY)
    charge, calls = Ledger.charge, list[int]()

    def second_fails(self: Ledger, *arguments: Any) -> Any:
        calls.append(1)
        return charge(self, *arguments) if len(calls) == 1 else crash()

    with monkeypatch.context() as broken:
        broken.setattr(Ledger, "charge", second_fails)
        with pytest.raises(RuntimeError):
            ask(session, GROUPED, SENSIBLE)
    assert levels(session, GROUPED) == [share(SENSIBLE), share(TINY)]
    receipt = receipt_of(ask(session, GROUPED, SENSIBLE))
    assert round(receipt.charged_rho * 1e9) == 310_000_000
    assert charged(session, GROUPED) == share(SENSIBLE)


def test_two_answers_to_one_question_at_one_moment_are_not_both_shown(
    session: dpsql.Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a question is answered by an unsure histogram, another session of its reader gets a sure one's answer."""
    ask(session, GROUPED, 2 * TINY)
    rows = GROUPED.replace(" AS n", " AS n, count(*)")
    charge, inside = Ledger.charge, list[dpsql.Result]()

    def others_first(self: Ledger, *arguments: Any) -> Any:
        if not inside:
            monkeypatch.setattr(Ledger, "charge", charge)
            ask(session, GROUPED, SENSIBLE)
            inside.append(ask(session, rows, TINY, "ana"))
        return charge(self, *arguments)

    monkeypatch.setattr(Ledger, "charge", others_first)
    with pytest.raises(dpsql.ReleaseError, match="ask again"):
        ask(session, rows, TINY, "ana")
    assert ask(session, rows, TINY, "ana").fetchall() == inside[0].fetchall()


def test_an_old_state_file_keeps_what_its_answers_used(tmp_path: Path) -> None:
    """Before choices were kept one histogram chose for all levels; who was answered by it keeps it there."""
    path = tmp_path / "old.duckdb"
    with opened(path) as session:
        first = ask(session, GROUPED, TINY, "ana").fetchall()
    with closing(sqlite3.connect(f"{path}.dpsql")) as connection, connection:
        connection.execute("DROP TRIGGER auto_choice_no_delete")
        connection.execute("DELETE FROM auto_choice")
        connection.execute(OLD_CHOICES)
        kept = connection.execute("SELECT analyst, share_low, share_high, rho_nano FROM auto_choice").fetchall()
    assert kept == [("ana", 1, 2 * ((10_000 - 312) // 31), 312)]
    with dpsql.connect(path) as session:
        good = receipt_of(ask(session, GROUPED, SENSIBLE)).max_groups or 0
        assert good >= 4
        assert charged(session, GROUPED) == share(SENSIBLE)
        again = ask(session, GROUPED, TINY, "ana")
        assert (again.fetchall(), receipt_of(again).charged_rho) == (first, 0.0)
        # others, and much higher levels, were never answered by it
        assert receipt_of(ask(session, GROUPED, TINY, "cleo")).max_groups == good
        assert receipt_of(ask(session, GROUPED, 10 * TINY, "ana")).max_groups == good


def _law(session: dpsql.Session) -> dict[str, float]:
    """p-values of the stored histograms of nobody: of one that rose, one that was lowered, and their difference."""
    session.sql("CALL dp_analyst('low', rho_limit := 0.00224)")
    top, low = 100_000, free_level(70_000)
    scores: dict[str, list[Any]] = {"risen": [], "lowered": [], "difference": []}
    for i in range(2):
        sql = SUMMED.replace("GROUP BY", f"WHERE k <> {i} AND u < 0 GROUP BY")
        name = question(session, sql).statistic_hash
        for rho, reader in ((0.0016, CURATOR), (0.0032, CURATOR), (7e-5, "low")):
            assert {row[-1] for row in ask(session, sql, rho, reader).fetchall()} <= {None}
        table = session._access.read().side_table
        assert [one.rho_nano for one in table.levels(name)] == [top, low, 50_000]
        high, below = (table.point(name, rho_nano) for rho_nano in (top, low))
        assert high is not None
        assert below is not None
        variances = [EXTREMES_L2**2 / (2.0 * rho_nano / 1e9) for rho_nano in (top, low)]
        values = [high.values * 2.0**-20, below.values * 2.0**-20]
        scores["risen"].append(values[0] / math.sqrt(variances[0]))
        scores["lowered"].append(values[1] / math.sqrt(variances[1]))
        scores["difference"].append((values[1] - values[0]) / math.sqrt(variances[1] - variances[0]))
    found = {}
    for kind, parts in scores.items():
        all_of = np.concatenate(parts)
        squares, law = float(np.sum(all_of**2)), stats.chi2(len(all_of))
        found[kind] = 2.0 * min(float(law.cdf(squares)), float(law.sf(squares)))
    return found


@pytest.mark.statistical
def test_what_rose_and_what_was_lowered_has_the_noise_of_its_level(session: dpsql.Session) -> None:
    # each fails with probability 1e-4 per seed
    assert min(_law(session).values()) > 1e-4


@pytest.mark.statistical
@pytest.mark.parametrize("fault", ["no average", "no noise"])
def test_the_check_catches_a_wrong_step(session: dpsql.Session, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if fault == "no average":
        monkeypatch.setattr(GaussianMeasure, "risen", lambda _, held, fresh: fresh.noisy)
        assert _law(session)["risen"] < 1e-7
    else:
        monkeypatch.setattr(GaussianMeasure, "lowered", lambda _, grid, high, *of: high.noisy)
        assert _law(session)["lowered"] < 1e-7


ASKED = (TINY, 3e-4, 0.005, 0.02, 0.045, SENSIBLE, 2.0)


def history(steps: int, seed: int) -> None:
    """Random questions of four readers; charges against a model, and every question asked again."""
    chance, kept, paid = random.Random(seed), dict[tuple[str, str, float], tuple[object, ...]](), dict[str, int]()
    with opened() as session:
        session.sql(
            "CALL dp_unit('unit', rho_budget := 900, delta_threshold := 0.1, delta_conversion := 1e-6, replace := true)"
        )
        for _ in range(steps):
            if chance.random() < 0.04:
                session.sql("CALL dp_new_version('t')")
                kept.clear()
                paid.clear()
            sql, reader = chance.choice((GROUPED, SUMMED)), chance.choice((CURATOR, *LIMITS))
            rho = chance.choice([one for one in ASKED if one <= LIMITS.get(reader, 2.0)])
            due = expected_due(session, sql, reader, rho, new=(reader, sql, rho) not in kept)
            answer = ask(session, sql, rho, reader)
            assert kept.setdefault((reader, sql, rho), shown(answer)) == shown(answer)
            paid[sql] = paid.get(sql, 0) + due
            assert charged(session, sql) == paid[sql]
        for (reader, sql, rho), before in kept.items():
            again = ask(session, sql, rho, reader)
            assert shown(again) == before
            assert receipt_of(again).charged_rho == 0.0
        assert {sql: charged(session, sql) for sql in paid} == paid


def shown(answer: dpsql.Result) -> tuple[object, ...]:
    receipt = receipt_of(answer)
    return (receipt.query_hash, receipt.max_groups, asked_at(answer))


def expected_due(session: dpsql.Session, sql: str, reader: str, rho: float, *, new: bool) -> int:
    """Nano-rho that AUTO costs now: by the rule in words, from the stored levels."""
    stored, asked = levels(session, sql), share(rho)
    if not stored:
        return asked
    table, limit = session._access.read().side_table, LIMITS.get(reader)
    is_top_seen = limit is None or stored[0] <= share(limit)
    only = question(session, sql)
    is_step = int(4 * math.log2(asked) + 1e-9) > int(4 * math.log2(stored[0]) + 1e-9)
    if new and is_top_seen and is_step and not only.is_sure(table, stored[0]):
        return asked - stored[0]
    return 0


@pytest.mark.parametrize(("steps", "seed"), [(12, 1), pytest.param(300, 2, marks=pytest.mark.long)])
def test_random_histories_cost_what_the_rule_says_and_change_no_answer(steps: int, seed: int) -> None:
    history(steps, seed)
