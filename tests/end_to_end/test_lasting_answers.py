"""The same question at the same level stays the same: numbers are pinned for a reader, keys only join."""

from __future__ import annotations

import contextlib
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

import dpsql
from dpsql.cascade.reader import Reader
from dpsql.errors import AccessError
from dpsql.model.frame import PRESENCE
from dpsql.model.identity import frame_hash, statistic_hash
from dpsql.release.offer import offers_of
from dpsql.sql.statements import SelectStatement, read_statement
from dpsql.state import Additions
from tests.end_to_end.shops import BOTH, COUNT, LARGE, SMALL, TOP_K, WITH, ask, held, session, spent
from tests.noise_sources import seeded_noise

__all__ = ["session"]

OTHER = (
    f"{WITH} (other_group = 'other') CAST(shop AS VARCHAR) AS shop, count(DISTINCT visitor) AS n FROM visits "
    "GROUP BY CAST(shop AS VARCHAR)"
)
SETS = "SELECT shop, count(DISTINCT visitor) AS n FROM visits GROUP BY GROUPING SETS ((shop), ())"


@pytest.fixture(autouse=True)
def _eve(session: dpsql.Session) -> None:
    """Who has no limit is declared, too."""
    session.sql("CALL dp_analyst('eve')")


def test_a_threshold_that_others_pay_for_hides_nothing(session: dpsql.Session) -> None:
    """The scene: eve sees all groups at 0.02; ana asks the same, with a threshold of her own; eve asks again."""
    ask(session, "eve", rho=0.5)
    before, _ = ask(session, "eve", rho=0.02)
    coarse, _ = ask(session, "ana", rho=0.02)
    assert len(coarse) < len(before)
    again, receipt = ask(session, "eve", rho=0.02)
    assert again == before
    assert receipt.charged_delta == 0
    assert coarse == {shop: before[shop] for shop in coarse}


def test_a_threshold_that_others_pay_for_makes_no_rule_of_the_reader_stricter(session: dpsql.Session) -> None:
    text = f"{WITH} (min_privacy_units_per_group = 5) {COUNT.removeprefix('SELECT ')}"
    ask(session, "eve", text, rho=0.5)
    before, first = ask(session, "eve", text, rho=0.02)
    ask(session, "ana", text, rho=0.02)
    again, receipt = ask(session, "eve", text, rho=0.02)
    assert again == before
    assert (receipt.threshold, receipt.epsilon) == (first.threshold, first.epsilon)


@pytest.mark.parametrize("text", [BOTH, f"{WITH} (rho_ceiling = 2) {BOTH.removeprefix('SELECT ')}"])
def test_a_sharper_answer_changes_no_number_that_was_shown(session: dpsql.Session, text: str) -> None:
    """A count at 0.4 would serve the share that a count beside a sum has of 0.5."""
    before = {row[0]: row[1:] for row in session.sql(text, rho=0.5).fetchall()}
    for rho in (0.4, 0.45, 1.0):
        session.sql(text, rho=rho)
    after = {row[0]: row[1:] for row in session.sql(text, rho=0.5).fetchall()}
    assert {shop: after[shop] for shop in before} == before
    # another reader is not bound by what the first was shown
    assert session.as_analyst("eve").sql(text, rho=0.5).receipt is not None


def test_keys_of_sharper_answers_join_and_the_receipt_covers_them(session: dpsql.Session) -> None:
    few, first = ask(session, "eve", rho=0.02)
    many, _ = ask(session, "eve", rho=0.5)
    again, receipt = ask(session, "eve", rho=0.02)
    assert set(again) == set(many) | set(few)
    assert {shop: again[shop] for shop in few} == few
    assert receipt.epsilon > first.epsilon
    assert receipt.delta > first.delta
    assert any("at rho = 0.5, which epsilon and delta cover" in note for note in receipt.notes)
    assert held(session, "eve") == pytest.approx(0.5)
    # ana may see the level of the first answer alone
    assert set(ask(session, "ana", rho=0.02)[0]) == set(few)
    assert held(session, "ana") == pytest.approx(0.02)


def test_in_a_window_keys_of_every_level_that_the_reader_may_see_join(session: dpsql.Session) -> None:
    text = f"{WITH} (rho_window = [0.005, 1]) {COUNT.removeprefix('SELECT ')}"
    few, first = ask(session, "eve", text, rho=0.02)
    many, _ = ask(session, "eve", text, rho=0.5)
    again, receipt = ask(session, "eve", text, rho=0.02)
    assert set(again) == set(many) | set(few)
    assert {shop: again[shop] for shop in few} == few
    assert receipt.epsilon > first.epsilon
    assert receipt.delta == pytest.approx(first.delta, rel=1e-6)
    assert set(ask(session, "ana", text, rho=0.02)[0]) == set(few)


def test_of_independent_releases_those_join_that_a_reader_holds(session: dpsql.Session) -> None:
    few, _ = ask(session, "bob", TOP_K, rho=0.05)
    ask(session, "eve", TOP_K, rho=0.48)
    # eve's release would take bob above his limit, so he is shown none of its keys
    assert ask(session, "bob", TOP_K, rho=0.05)[0] == few
    assert held(session, "bob") == pytest.approx(0.05)
    more, _ = ask(session, "bob", TOP_K, rho=0.3)
    again, receipt = ask(session, "bob", TOP_K, rho=0.05)
    assert set(again) == set(more) | set(few)
    assert {shop: again[shop] for shop in few} == few
    assert held(session, "bob") == pytest.approx(0.35)
    assert any("at rho = 0.3 more" in note for note in receipt.notes)


def test_when_a_limit_is_lowered_keys_go_and_numbers_stay(session: dpsql.Session) -> None:
    """Documented in docs/cascade.md."""
    ask(session, "ana", rho=0.02)
    ask(session, "bob", rho=0.5)
    before, _ = ask(session, "bob", rho=0.02)
    session.sql("CALL dp_analyst('bob', rho_limit := 0.02)")
    after, _ = ask(session, "bob", rho=0.02)
    assert set(after) < set(before)
    assert {*LARGE} <= set(after)
    assert after == {shop: before[shop] for shop in after}
    session.sql("CALL dp_analyst('bob', rho_limit := 0.5, replace := true)")
    assert ask(session, "bob", rho=0.02)[0] == before


def test_limit_and_having_follow_the_keys_that_are_shown(session: dpsql.Session) -> None:
    last = f"{COUNT} HAVING n < 200 ORDER BY n LIMIT 3"
    before, _ = ask(session, "eve", last, rho=0.02)
    ask(session, "eve", rho=0.5)
    after, _ = ask(session, "eve", last, rho=0.02)
    assert set(after) <= {*SMALL}
    assert len(after) == 3
    assert after != before
    whole, _ = ask(session, "eve", rho=0.02)
    assert sorted(whole.values())[:3] == sorted(after.values())


def test_another_set_of_groups_has_another_other_group_at_its_price(session: dpsql.Session) -> None:
    def asked(text: str, rho: float) -> tuple[dict[str, int], float]:
        answer = session.sql(text, rho=rho)
        assert answer.receipt is not None
        return dict(answer.fetchall()), answer.receipt.charged_rho

    first, _ = asked(OTHER, 0.02)
    assert asked(OTHER, 0.02) == (first, 0.0)
    asked(OTHER.replace("other_group = 'other'", "max_groups_contributed = 1"), 0.5)
    more, charged = asked(OTHER, 0.02)
    # the groups are free, and the row of those that are still hidden is a release of its own
    assert charged == pytest.approx(0.02)
    assert len(more) > len(first)
    assert more["other"] < first["other"]
    assert {shop: n for shop, n in first.items() if shop != "other"}.items() <= more.items()


def test_grouping_sets_are_pinned_set_by_set(session: dpsql.Session) -> None:
    before = session.sql(SETS, rho=0.1).fetchall()
    for rho in (0.5, 0.3):
        session.sql(SETS, rho=rho)
    after = session.sql(SETS, rho=0.1).fetchall()
    assert set(before) < set(after)


def test_counts_with_discrete_noise_stay_when_others_are_told_more(session: dpsql.Session) -> None:
    """What was made of the top of its time tells nothing of a later one: not refused, nor said to tell more."""
    session.sql("CALL dp_unit('visitor', composition := 'zcdp')")
    session.sql("CALL dp_domain('visits', 'shop', keys := [0, 1, 2, 3, 4])")
    text = f"{WITH} (mechanism = DISCRETE_CORRELATED_GAUSSIAN) {COUNT.removeprefix('SELECT ')}"
    levels = {"bob": (0.4, 0.05), "eve": (0.4, 0.05)}
    before = {(name, rho): ask(session, name, text, rho=rho) for name, rhos in levels.items() for rho in rhos}
    session.sql(text, rho=1)
    for (name, rho), (rows, receipt) in before.items():
        again = ask(session, name, text, rho=rho)
        assert (again[0], again[1].epsilon) == (rows, receipt.epsilon)
        assert held(session, name) == pytest.approx(0.4)
    # another level is another question, which is made of the top of now
    with pytest.raises(AccessError, match="stored at rho = 1;"):
        ask(session, "bob", text, rho=0.1)
    ask(session, "eve", text, rho=0.1)
    assert held(session, "eve") == pytest.approx(1)
    # who may see less than what an answer was made of is not shown it any more
    session.sql("CALL dp_analyst('bob', rho_limit := 0.2)")
    with pytest.raises(AccessError, match="discrete"):
        ask(session, "bob", text, rho=0.05)


def test_a_new_version_and_a_refresh_begin_anew(session: dpsql.Session) -> None:
    first, _ = ask(session, "eve", rho=0.02)
    assert ask(session, "eve", rho=0.02, refresh=True)[0] != first
    refreshed, _ = ask(session, "eve", rho=0.02)
    assert refreshed != first
    session.sql("CALL dp_new_version('visits')")
    assert ask(session, "eve", rho=0.02)[0] != refreshed


def test_the_case_of_a_name_is_the_same_reader(session: dpsql.Session) -> None:
    ask(session, "eve", BOTH, rho=0.5)
    before, _ = ask(session, "eve", BOTH, rho=0.1)
    ask(session, "bob", rho=0.09)
    ask(session, "EVE", rho=1.0)
    assert ask(session, "Eve", BOTH, rho=0.1)[0].items() >= before.items()


def presence_hash(session: dpsql.Session, text: str) -> tuple[str, str]:
    statement = read_statement(text)
    assert isinstance(statement, SelectStatement)
    query, state, reader = session._runner.plan(statement, {"rho": 0.5}, "eve")
    (part,) = offers_of(query.parts, state, Reader(reader.name))
    return statistic_hash(PRESENCE, part.query.frame), frame_hash(part.query.frame)


def test_points_off_the_grid_in_files_of_earlier_formats_serve_their_level(session: dpsql.Session) -> None:
    top, _ = ask(session, "eve", rho=0.5)
    table = session._access.read().side_table
    statistic, frame = presence_hash(session, COUNT)
    drawn = table.point(statistic, 5 * 10**8)
    assert drawn is not None
    old = replace(
        drawn,
        rho_nano=33 * 10**7,
        values=drawn.values + 2**20,
        tau=None,
        threshold_delta_units=0,
        source_rho_nano=5 * 10**8,
    )
    table.store(frame, Additions(None, (old,), ()))
    before = spent(session)
    for rho in (0.33, 0.34):
        shown, receipt = ask(session, "eve", rho=rho)
        assert shown == {shop: n + 1 for shop, n in top.items()}
        assert receipt.rho == 0.33
    assert ask(session, "eve", rho=0.32)[1].rho == 0.3
    assert spent(session) == before


def test_a_threshold_is_not_charged_where_a_file_of_an_earlier_format_has_too_many_points(
    session: dpsql.Session,
) -> None:
    ask(session, "bob", rho=0.5)
    table = session._access.read().side_table
    statistic, frame = presence_hash(session, COUNT)
    drawn = table.point(statistic, 5 * 10**8)
    assert drawn is not None
    made = [
        replace(drawn, rho_nano=rho_nano, tau=None, threshold_delta_units=0, source_rho_nano=5 * 10**8)
        for rho_nano in range(10**8 + 1, 10**8 + 170)
    ]
    table.store(frame, Additions(None, made, ()))
    before = spent(session)
    with pytest.raises(dpsql.errors.CalibrationError, match="too many levels"):
        ask(session, "ana", rho=0.02)
    assert spent(session) == before
    assert ask(session, "bob", rho=0.02)[1].charged_rho == 0


def test_pins_and_what_is_made_of_releases_are_written_once(tmp_path: Path) -> None:
    with dpsql.connect(tmp_path / "shop.db") as session:
        session.connection.execute("CREATE TABLE visits AS SELECT i AS visitor, i % 3 AS shop FROM range(900) t(i)")
        session.sql(
            "CALL dp_protect('visits', coverage := FALSE, "
            "privacy_unit_column := 'visitor', max_groups_contributed := 1, "
            "rho_budget := 10, delta_threshold := 0.1, delta_conversion := 1e-6, default_delta := 1e-6)"
        )
        session._runner.noise_source = seeded_noise(3)
        for rho in (0.5, 0.1, 0.1):
            session.sql(TOP_K, rho=rho)
    with contextlib.closing(sqlite3.connect(tmp_path / "shop.db.dpsql")) as file:
        assert file.execute("SELECT count(*) FROM pin").fetchone() == (2,)
        assert file.execute("SELECT rho_nano, release_rho FROM lowered_point").fetchall() == [(10**8, 5 * 10**8)]
        for statement in ("DELETE FROM pin", "UPDATE pin SET served_rho = 1", "DELETE FROM lowered_point"):
            with pytest.raises(sqlite3.IntegrityError, match="never changed"):
                file.execute(statement)


def test_a_ceiling_is_paid_for_each_statistic_as_its_plan_says(session: dpsql.Session) -> None:
    text = f"{WITH} (rho_ceiling = 2) {BOTH.removeprefix('SELECT ')}"
    plan = session.sql(f"FROM dp_explain($$ {text} $$, rho := 0.1)").fetchall()
    assert ("price", "rho", "4") in plan
    answer = session.sql(text, rho=0.1)
    assert answer.receipt is not None
    assert answer.receipt.charged_rho == 4
