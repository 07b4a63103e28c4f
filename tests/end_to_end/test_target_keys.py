"""Private keys and AUTO in questions by relative error: thresholds of one window, and one share of the cap."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

import dpsql
from dpsql.cascade.reader import CURATOR
from dpsql.features import target
from dpsql.mechanism import calibrate
from dpsql.mechanism.histogram import Histogram
from dpsql.mechanism.window import grid
from dpsql.model.frame import NANO, PRESENCE, Frame, Window
from dpsql.model.identity import statistic_hash
from dpsql.receipts import words
from dpsql.release.points import ShownFrame, shown_frame
from dpsql.sql.statements import SelectStatement, read_statement
from tests.end_to_end.prepared import with_declarations, with_own_state
from tests.end_to_end.receipts import receipt_of
from tests.noise_sources import seeded_noise

TARGET = "target_relative_error = 0.2, at_least = 0.8, max_rho = 0.5"
WINDOW = Window(15_259, NANO, 1e-6)
"""The window of every cap above 1/16 and up to 1."""
TEXT = (
    "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS ({options}, delta = 1e-6) {columns} FROM visits GROUP BY ALL ORDER BY ALL"
)
UNITS = TEXT.format(options=TARGET, columns="doctor, count(DISTINCT patient) AS n")
FORMS = {
    "units": (TARGET, "doctor, count(DISTINCT patient) AS n"),
    "counts, sums and averages": (TARGET, "doctor, count(*) AS n, sum(cost) AS total, avg(cost) AS mean"),
    "several keys": (TARGET, "doctor, ward, count(*) AS n"),
    "L2": (f"{TARGET}, bounding = L2", "doctor, count(*) AS n"),
    "a norm by AUTO": (f"{TARGET}, bounding = NORM", "doctor, count(*) AS n"),
    "bounds by AUTO": (TARGET, "doctor, sum(age) AS ages"),
    "groups and bounds by AUTO": (f"{TARGET}, max_groups_contributed = AUTO", "doctor, sum(age) AS ages"),
}


@pytest.fixture(scope="module")
def prepared() -> Iterator[dpsql.Session]:
    """Return a table with seven large doctors, three of 90 patients, and 30 of one patient each."""
    with dpsql.connect(threads=1) as session:
        session.connection.execute(
            "CREATE TABLE visits AS SELECT i // 2 AS patient, (i // 2) % 7 AS doctor, i % 3 AS ward, i % 90 AS cost, "
            "i % 80 AS age FROM range(6_000) t(i) "
            "UNION ALL SELECT 10_000 + i, 7 + i // 90, 0, 1, 40 FROM range(270) t(i) "
            "UNION ALL SELECT 20_000 + i, 100 + i, 0, 1, 40 FROM range(30) t(i)"
        )
        session.sql(
            "CALL dp_protect('visits', privacy_unit_column := 'patient', coverage := FALSE, max_rows_per_group := 2, "
            "max_groups_contributed := 2, rho_budget := 4, delta_threshold := 0.1, delta_conversion := 1e-6)"
        )
        session.sql("CALL dp_domain('visits', 'cost', bounds := [0, 100])")
        session.connection.execute("CREATE TABLE bare AS FROM visits")
        session.sql("CALL dp_protect('bare', unit := 'visits', privacy_unit_column := 'patient', coverage := FALSE)")
        session.sql("CALL dp_domain('bare', 'ward', keys := [0, 1, 2])")
        yield session


@pytest.fixture
def session(prepared: dpsql.Session) -> Iterator[dpsql.Session]:
    with with_own_state(prepared) as own:
        own._runner.noise_source = seeded_noise(1)
        yield own


def frame_of(session: dpsql.Session, text: str) -> Frame:
    statement = read_statement(text)
    assert isinstance(statement, SelectStatement)
    return session._runner.plan(statement, {}, CURATOR)[0].first.frame


def plan_of(session: dpsql.Session, text: str) -> dict[tuple[str, str], str]:
    return {(section, name): value for section, name, value in session.sql(f"FROM dp_explain($${text}$$)").fetchall()}


@pytest.mark.parametrize("form", FORMS)
def test_thresholds_are_paid_once_and_all_steps_cost_the_last(session: dpsql.Session, form: str) -> None:
    options, columns = FORMS[form]
    text = TEXT.format(options=options, columns=columns)
    answer = session.sql(text)
    receipt, releases = receipt_of(answer), session.sql("FROM dp_releases()").df()
    assert len(releases) > 3
    assert (receipt.mechanism, receipt.rho < 0.5) == ("gshm", True)
    # later steps add what their draws' imprecision costs, and nothing else
    assert 0.5e-6 < releases.charged_delta[0] < receipt.charged_delta + 1e-20 <= 1e-6
    assert releases.charged_delta[1:].max() < 1e-20
    charged = {round(one * NANO) for one in (releases.charged_rho.sum(), receipt.charged_rho, receipt.rho)}
    assert len(charged) == 1
    frame = frame_of(session, text)
    assert frame.window == WINDOW
    stored = session._access.read().side_table.levels(statistic_hash(PRESENCE, frame))
    assert {one.rho_nano for one in stored} <= set(grid(WINDOW))
    again = session.sql(text)
    assert (again.fetchall(), receipt_of(again).charged_rho) == (answer.fetchall(), 0.0)


def test_caps_up_to_one_power_of_16_share_a_frame(session: dpsql.Session) -> None:
    """A lower cap starts where a higher one ended, for nothing, whatever minimum it asks for."""
    first = receipt_of(session.sql(UNITS.replace("0.2", "0.1").replace("0.5", "0.9")))
    assert first.charged_delta > 0.5e-6
    lower = receipt_of(session.sql(UNITS.replace("0.5", "0.07")))
    fewer = receipt_of(session.sql(UNITS.replace("delta", "min_privacy_units_per_group = 20, delta")))
    assert [(one.charged_rho, one.charged_delta, one.rho) for one in (lower, fewer)] == [(0.0, 0.0, first.rho)] * 2
    assert lower.threshold is not None
    assert fewer.threshold == lower.threshold + 19.0
    # below 1/16 the window has another top, and is paid for by itself
    assert receipt_of(session.sql(UNITS.replace("0.5", "0.06"))).charged_delta > 0.5e-6


@pytest.mark.parametrize(("window", "is_used"), [("[0.01, 1]", True), ("[0.001, 0.1]", False)])
def test_a_policys_window_is_used_if_it_holds_the_cap(session: dpsql.Session, window: str, is_used: bool) -> None:
    session.sql(
        "CALL dp_protect('visits', privacy_unit_column := 'patient', coverage := FALSE, max_rows_per_group := 2, "
        f"max_groups_contributed := 2, rho_window := {window}, replace := TRUE)"
    )
    own = Window(NANO // 100, NANO, 1e-6)
    assert frame_of(session, UNITS).window == (own if is_used else WINDOW)
    bought = receipt_of(session.sql(UNITS.replace(TARGET, "rho = 0.08")))
    receipt = receipt_of(session.sql(UNITS))
    # a question by rho in that window has paid for its thresholds
    assert (receipt.charged_delta < 1e-20, receipt.rho == bought.rho) == (is_used, is_used)


def test_small_groups_that_others_paid_for_are_counted(session: dpsql.Session) -> None:
    """Nothing is paid for once more, and the answer starts with what is shown already."""
    bought = session.sql(UNITS.replace("0.2", "0.05").replace("0.8", "1"))
    assert len(bought.fetchall()) == 10
    answer = session.sql(UNITS)
    assert len(answer.fetchall()) == 10
    assert receipt_of(answer).charged_rho == 0.0
    assert words.SHOWN_BY_OTHERS in (receipt_of(answer).notes)


@pytest.mark.parametrize("keys", ["doctor", "ward"])
def test_nothing_named_has_one_threshold_and_auto_is_paid_once(session: dpsql.Session, keys: str) -> None:
    is_private = keys == "doctor"
    text = TEXT.format(options=TARGET, columns=f"{keys}, count(*) AS n").replace("visits", "bare")
    plan = plan_of(session, text)
    assert plan["target", "affordable"] == "yes"
    assert plan["price", "rho"] == "0.5, or less where an answer is stored"
    assert (("target", "window") in plan) == is_private
    answer = session.sql(text)
    receipt, releases = receipt_of(answer), session.sql("FROM dp_releases()").df()
    assert receipt.mechanism == ("gshm" if is_private else "gaussian")
    assert releases.charged_rho[0] > 0.5 / 32 > releases.charged_rho[1:].max()
    assert round(releases.charged_rho.sum() * NANO) == round(receipt.rho * NANO)
    assert (releases.charged_delta > 1e-9).sum() == is_private
    # a question at the level that would have been enough has AUTO's choice for nothing
    found = next(found for note in receipt.notes if (found := re.search(r"a question at rho = (\S+) would", note)))
    assert float(found[1]) <= 1.01 * (receipt.rho - 0.5 / 32) * 32 / 31
    again = session.sql(text)
    assert (again.fetchall(), receipt_of(again).charged_rho) == (answer.fetchall(), 0.0)


def test_a_budget_for_auto_alone_is_refused_before_its_charge(session: dpsql.Session) -> None:
    """A window may have no level at the cap, but which one is the highest below it is for AUTO to decide."""
    session.sql("CALL dp_unit('visits', rho_budget := 0.49, delta_threshold := 0.1, replace := TRUE)")
    text = UNITS.replace("delta", "max_groups_contributed = AUTO, delta")
    with pytest.raises(dpsql.BudgetError, match=r"rho = 0\.5 "):
        session.sql(text)
    assert plan_of(session, text)["target", "affordable"].startswith("no: rho = 0.49 ")
    assert session.sql("FROM dp_budget()").df().rho_spent.item() == 0.0


@pytest.mark.parametrize("rho", [1e-9, 1e-6])
def test_caps_too_small_for_any_key_are_walked_to_their_end(session: dpsql.Session, rho: float) -> None:
    answer = session.sql(UNITS.replace("0.5", f"{rho}"))
    receipt = receipt_of(answer)
    assert answer.fetchall() == []
    assert receipt.rho <= rho
    (reason,) = receipt.nothing_shown
    # one threshold, and a cure that is accepted
    assert reason.startswith("no noisy count passed the threshold of ")
    found = re.search(r"; at (max_rho = \S+) it would be ([0-9,.]+); ", reason)
    assert found
    higher = receipt_of(session.sql(UNITS.replace("max_rho = 0.5", found[1])))
    assert higher.threshold == pytest.approx(float(found[2].replace(",", "")), rel=1e-3)


@pytest.mark.parametrize("is_broken", [False, True])
def test_units_alone_are_shown_no_more_often_than_the_delta_says(
    monkeypatch: pytest.MonkeyPatch, *, is_broken: bool
) -> None:
    """Each of 2,000 units is alone in a group, and all steps up to the cap are taken.

    40 are shown in the mean if the window's delta is all used, and more than 68 once in 30,000 seeds.
    """

    def taus_of_each_level(histogram: Histogram, window: Window) -> tuple[float, ...]:
        taus = (histogram.threshold(window.delta, histogram.sigma(level / NANO)) for level in grid(window))
        return tuple(tau for tau in taus if tau is not None)

    seen: set[int] = set()

    def noted(*given: Any, **named: Any) -> ShownFrame:
        found = shown_frame(*given, **named)
        seen.update(found.shown.tolist())
        return found

    monkeypatch.setattr(target, "shown_frame", noted)
    if is_broken:
        monkeypatch.setattr(calibrate, "window_taus", taus_of_each_level)
    table = "CREATE TABLE visits AS SELECT i AS patient, i AS doctor FROM range(2_000) t(i)"
    declared = (
        "CALL dp_protect('visits', privacy_unit_column := 'patient', coverage := FALSE, max_rows_per_group := 1, "
        "max_groups_contributed := 1, rho_budget := 4, delta_threshold := 0.1, delta_conversion := 1e-6)"
    )
    with with_declarations(table, [declared]) as session:
        session._runner.noise_source = seeded_noise(2)
        receipt = receipt_of(session.sql(UNITS.replace("1e-6", "0.02")))
    assert any("the target is not reached" in note for note in receipt.notes)
    assert receipt.charged_delta <= 0.02
    assert (len(seen) > 136) if is_broken else (len(seen) <= 68)
