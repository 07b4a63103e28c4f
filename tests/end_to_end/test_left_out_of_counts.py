"""Rows that bounds leave out of counts, as answers say it: what the estimate holds, and where nothing is known."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import dpsql
from dpsql.model.identity import frame_hash
from dpsql.release.left_out import LeftOut
from dpsql.state.side_table import SideTable
from tests.end_to_end.reading_rows import watch_statements
from tests.end_to_end.receipts import receipt_of
from tests.end_to_end.visits_by_word import PEOPLE, QUESTION, ROWS, SUMS, TOTAL, opened, planned, sizes_of, top_levels
from tests.noise_sources import seeded_noise, silence

WARNING = "too low  at least [0-9,]+, probably [0-9,]+ or more rows of busy people are left out"


@pytest.fixture(scope="module")
def shared() -> Iterator[dpsql.Session]:
    with opened() as session:
        yield session


@pytest.fixture
def session(shared: dpsql.Session) -> dpsql.Session:
    """Return the visits under a version that nobody has asked about."""
    shared.sql("CALL dp_new_version('visits')")
    shared._runner.noise_source = seeded_noise(7)
    return shared


@pytest.fixture
def fresh() -> Iterator[dpsql.Session]:
    with opened() as session:
        yield session


def _found(answer: dpsql.Result) -> LeftOut:
    (one,) = receipt_of(answer).left_out
    return one.found


def _first_line(answer: dpsql.Result) -> str:
    """Return the first line below the table of an answer."""
    return str(answer).strip().rpartition("\n\n")[2].splitlines()[0]


def _missing(session: dpsql.Session, cut: float) -> int:
    """Return the rows that the count of all rows leaves out, of a person at most a cut."""
    by_person = "(SELECT count(*) AS n FROM visits GROUP BY person)"
    text = f"SELECT sum(least(n - {ROWS}, {cut})) FROM {by_person} WHERE n > {ROWS}"
    ((found,),) = session.connection.execute(text).fetchall()
    return int(found)


def test_a_total_under_bounds_for_groups_says_that_it_is_too_low_and_by_how_much(session: dpsql.Session) -> None:
    """The policy is right for words, and wrong for the count of all rows: the estimate lacks what is beyond the cut."""
    truth, people = sizes_of(session)
    held = 0
    for _ in range(6):
        session.sql("CALL dp_new_version('visits')")
        answer = session.sql(TOTAL, epsilon=1.0, delta=1e-6)
        ((n, whole, low, high),) = answer.fetchall()
        found = _found(answer)
        assert low < n < 2.1 * people < 0.3 * truth
        assert found.value == pytest.approx(_missing(session, found.cut), abs=5.0 * found.sigma)
        assert whole == pytest.approx(n + found.value, rel=1e-3)
        # a cut is far below what a person lacks
        assert 6 * n < whole < high < 0.7 * truth
        held += found.least <= _missing(session, found.cut)
    # each does with probability 0.95: fewer than four of six with probability 2e-3
    assert held >= 4
    assert re.fullmatch(WARNING, _first_line(answer))
    (sentence,) = receipt_of(answer).kept
    assert f"of one unit (person) at most {found.cut:.0f} rows are counted here" in sentence


def test_the_estimate_holds_the_truth_if_nobody_lacks_more_than_the_cut(session: dpsql.Session) -> None:
    truth, _ = sizes_of(session)
    kept = truth - _missing(session, truth)
    assert kept < 0.1 * truth
    for _ in range(4):
        session.sql("CALL dp_new_version('visits')")
        answer = session.sql(TOTAL, rho=2.0)
        ((n, whole, low, high),) = answer.fetchall()
        assert _missing(session, _found(answer).cut) == truth - kept
        assert n == pytest.approx(kept, rel=0.01)
        assert abs(whole - truth) < 0.02 * truth
        assert low < truth < high


def test_a_person_with_half_of_all_rows_moves_what_is_measured_by_one_cut() -> None:
    text = "SELECT count(*) AS n FROM visits"
    found = []
    for heavy in (0, 160_000):
        with opened(heavy=heavy) as session:
            silence(session)
            answer = session.sql(text, rho=20.0, coverage=True)
            found.append(_found(answer))
            (sentence,) = receipt_of(answer).kept
            assert "what one unit has beyond that is in no number" in sentence
            assert sentence.endswith("and more beyond that cut")
    one, other = found
    assert other.cut == one.cut > 64
    assert other.shown == one.shown + ROWS
    assert other.value == one.value + one.cut


def _reads_visits(sql: str) -> bool:
    """Return whether a statement reads the rows for an answer, not a copy without rows, or to choose how to read."""
    others = ("dpsql_empty", "LIMIT 0", "approx_count_distinct")
    return '"person" AS unit' in sql and '"visits"' in sql and not any(one in sql for one in others)


def test_one_question_reads_the_rows_once(session: dpsql.Session, monkeypatch: pytest.MonkeyPatch) -> None:
    read = watch_statements(monkeypatch, _reads_visits)
    session.sql(QUESTION, rho=1.0, coverage=False)
    assert len(read) == 1
    # of numbers that are stored, what they leave out is read by itself
    session.sql(QUESTION, rho=0.9, coverage=True)
    assert len(read) == 2
    session.sql("CALL dp_new_version('visits')")
    read.clear()
    assert _found(session.sql(QUESTION, rho=1.0, coverage=True)).is_too_low
    assert len(read) == 1


def test_one_more_number_asked_for_later_costs_its_own_part_alone(session: dpsql.Session) -> None:
    """What is left out of rows is asked for half as much beside another number, and nothing is charged for it."""
    session.sql(QUESTION, rho=1.0, coverage=True)
    first = top_levels(session, QUESTION, 1.0)
    more = QUESTION.replace("count(*) AS n", "count(*) AS n, count(DISTINCT person) AS people")
    receipt = receipt_of(session.sql(more, rho=1.0, coverage=True))
    both = top_levels(session, more, 1.0)
    (rows,) = (one for one in first if one.covered)
    (groups,) = (one for one in both if one.covered and one != rows)
    assert both[rows] == first[rows]
    presence = next(one for one in first if not one.covered)
    assert receipt.charged_rho * 1e9 == pytest.approx(both[groups] + both[presence] - first[presence], abs=2)


@pytest.mark.parametrize("text", [QUESTION, PEOPLE])
def test_who_stops_between_both_releases_pays_for_each_once(
    fresh: dpsql.Session, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    """What is left out is stored after the numbers, and a histogram of coverage before them."""
    whole = SideTable.store
    stored: list[str] = []

    def failing(self: SideTable, name: str, additions: Any) -> None:
        if stored:
            raise dpsql.StateError("the disk is full")
        stored.append(name)
        whole(self, name, additions)

    with monkeypatch.context() as patch:
        patch.setattr(SideTable, "store", failing)
        with pytest.raises(dpsql.StateError):
            fresh.sql(text, rho=1.0, coverage=True)
    query, _ = planned(fresh, text, 1.0)
    assert (stored[0] == frame_hash(query.frame)) == (text == QUESTION)
    spent = fresh.sql("FROM dp_budget()").df()["rho_spent"].item()
    assert spent == 1.0
    receipt = receipt_of(fresh.sql(text, rho=1.0, coverage=True))
    assert receipt.charged_rho == 0.0
    assert fresh.sql("FROM dp_budget()").df()["rho_spent"].item() == spent
    assert bool(receipt.left_out) == (text == QUESTION)
    assert bool(receipt.coverage) == (text == PEOPLE)
    assert receipt_of(fresh.sql(text, rho=1.5, coverage=True)).charged_rho == pytest.approx(0.5, rel=0.04)


def test_heavy_users_of_a_web_log_are_told_of_under_found_bounds() -> None:
    """2,000 visitors by a Pareto law of index 1.2, whose number of pages and rows AUTO bounds."""
    with dpsql.connect() as session:
        session._runner.noise_source = seeded_noise(2)
        session.connection.execute(
            "CREATE TABLE log AS SELECT visitor, '/' || CAST((visitor + row) % 40 AS VARCHAR) AS page "
            "FROM range(2000) v(visitor), range(3000) r(row) "
            "WHERE row < 4.3 * (pow((visitor + 0.5) / 2000, -1 / 1.2) - 1) + 1"
        )
        session.sql("CALL dp_unit('visitor', epsilon_budget := 100, delta_budget := 1e-3)")
        session.sql("CALL dp_protect('log', unit := 'visitor', privacy_unit_column := 'visitor')")
        answer = session.sql("SELECT page, count(*) AS n FROM log GROUP BY page", epsilon=5, delta=1e-6)
    sizes = np.minimum(np.ceil(4.3 * (((np.arange(2000) + 0.5) / 2000) ** (-1 / 1.2) - 1) + 1), 3000)
    found = _found(answer)
    missing = sizes.sum() - found.shown
    assert missing > 0.1 * sizes.sum()
    assert _first_line(answer).startswith("too low  at least ")
    assert 0.2 * missing < found.least < missing
    assert found.shown < found.shown * found.factor < 1.05 * sizes.sum()


def test_few_people_tell_nothing(session: dpsql.Session) -> None:
    text = TOTAL.replace("FROM visits", "FROM visits WHERE person < 6")
    answer = session.sql(text, rho=0.01)
    found = _found(answer)
    assert found.could_be is None
    assert not found.is_too_low
    ((n, whole, low, high),) = answer.fetchall()
    assert round(whole) == n
    assert low < n
    assert high is None


@pytest.mark.parametrize(
    ("text", "options", "found"),
    [
        ("SELECT word, count(*) AS n FROM visits GROUP BY ROLLUP (word)", {}, 2),
        ("SELECT CAST(word AS VARCHAR) AS w, count(*) AS n FROM visits GROUP BY w", {"other_group": "rest"}, 1),
        (QUESTION, {"mechanism": "KEYS_FIRST"}, 1),
        (QUESTION, {"bounding": "L2"}, 1),
        ("SELECT word, count(*, contribution_norm => 9) AS n FROM visits GROUP BY word", {"bounding": "NORM"}, 1),
        (QUESTION, {"rho_window": (0.1, 2.0)}, 1),
        (QUESTION, {"max_groups_contributed": "AUTO"}, 1),
        (f"SELECT word, {SUMS} AS n FROM visits GROUP BY word", {}, 1),
        (f"SELECT word, count(*) AS n, {SUMS} AS s FROM visits GROUP BY word", {}, 2),
    ],
)
def test_it_stands_beside_every_kind_of_answer(
    session: dpsql.Session, text: str, options: dict[str, Any], found: int
) -> None:
    receipt = receipt_of(session.sql(text, rho=1.0, coverage=True, **options))
    assert len(receipt.all_left_out) == len(receipt.kept) == found
    assert all(one.columns in (("n",), ("s",)) for _, one in receipt.all_left_out)
    assert not receipt.coverage
    if "rho_window" not in options:
        assert receipt.rho == pytest.approx(2.0 if "other_group" in options else 1.0, rel=1e-9)
    if found > len(receipt.left_out):
        assert all(len(one.receipt.left_out) == 1 for one in receipt.sets)
        assert any(sentence.startswith("(): numbers are too low") for sentence in receipt.sections["bounds"])
    again = receipt_of(session.sql(text, rho=1.0, coverage=True, **options))
    assert again.reused
    assert again.all_left_out == receipt.all_left_out


def test_rows_are_told_from_units_by_the_whole_word(session: dpsql.Session) -> None:
    """One row of a person counts, so that both are one statistic."""
    session.connection.execute(
        "CREATE TABLE notes AS SELECT i % 3000 AS person, i + 1 AS distinct_id FROM range(30000) r(i)"
    )
    session.connection.execute("ALTER TABLE notes ALTER distinct_id SET NOT NULL")
    session.sql("CALL dp_protect('notes', unit := 'person', privacy_unit_column := 'person', max_rows_per_group := 1)")
    answer = session.sql("SELECT count(distinct_id) AS n FROM notes", rho=1.0)
    assert _found(answer).value == pytest.approx(27_000, rel=0.1)
    people = receipt_of(session.sql("SELECT count(DISTINCT person) AS n FROM notes", rho=1.0))
    assert (people.left_out, people.coverage) == ((), ())


def test_rows_that_are_gone_are_told_of_as_far_as_they_were_measured(fresh: dpsql.Session) -> None:
    """A number of rows left out serves at its own level and above. No other one is drawn from rows that are gone."""
    low = receipt_of(fresh.sql(QUESTION, rho=0.5))
    assert low.left_out
    fresh.sql(QUESTION, rho=2.0, coverage=False)
    fresh.sql("CALL dp_new_version('visits')")
    for rho in (0.5, 1.0, 2.0):
        receipt = receipt_of(fresh.sql(QUESTION, rho=rho, as_of="1"))
        assert [one.found.value for one in receipt.left_out] == [one.found.value for one in low.left_out]
        assert receipt.reused
    below = receipt_of(fresh.sql(QUESTION, rho=0.1, as_of="1"))
    assert below.reused
    assert below.left_out == ()
    (unknown,) = below.kept
    assert unknown.startswith("it is unknown what part of rows is counted: it was not measured")
