"""Clearances: what a reader sees, keys included, is computed from points at or below their limit, in one cascade."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

import dpsql
from dpsql.cascade.reader import Reader
from dpsql.engine import DuckDBEngine
from dpsql.errors import AccessError, CalibrationError, DpsqlError, EngineError, PolicyError
from dpsql.release.offer import offers_of
from dpsql.sql.statements import SelectStatement, read_statement
from tests.end_to_end import shops
from tests.end_to_end.shops import BOTH, COUNT, LARGE, SMALL, TOP_K, WITH, ask, held, spent

session = shops.session


def test_nobody_is_shown_more_than_their_limit_and_asking_for_it_costs_nothing(session: dpsql.Session) -> None:
    for options in ({"rho": 0.5}, {"rho": 0.0201}, {"epsilon": 3}):
        with pytest.raises(AccessError, match="'ana' may not be shown this answer at") as raised:
            ask(session, "ana", **options)
        assert raised.value.limit_rho == 0.02
    assert spent(session) == (0, 0)
    # the policy's default is not above the limit
    assert ask(session, "ana")[1].rho == pytest.approx(0.02)
    assert ask(session, "bob")[1].rho == pytest.approx(0.5)
    with pytest.raises(AccessError, match="'eve' is not among the analysts"):
        ask(session, "eve", rho=0.7)
    session.sql("CALL dp_analyst('eve')")
    assert ask(session, "eve", rho=0.7)[1].rho == pytest.approx(0.7)


def test_points_of_two_readers_are_one_cascade(session: dpsql.Session) -> None:
    sharp, _ = ask(session, "bob")
    before = spent(session)
    coarse, receipt = ask(session, "ana")
    paid = spent(session)
    # no more rho; a threshold of its own, because she may see no key that bob's threshold has shown
    assert paid[0] == before[0]
    assert 0 < paid[1] - before[1] <= 1e-6 * 2**100
    assert receipt.charged_rho == 0
    assert receipt.charged_delta == pytest.approx(1e-6, rel=1e-2)
    assert set(sharp) >= {*LARGE}
    assert len(set(sharp) & set(SMALL)) > 20
    assert {*LARGE} <= set(coarse)
    assert len(set(coarse) & set(SMALL)) < 5
    assert all(sharp[shop] != coarse[shop] for shop in LARGE)
    # asked again, by anybody who may: stored
    assert ask(session, "ana") == (coarse, dataclasses.replace(receipt, charged_delta=0.0, reused=True))
    # bob, who may see more, sees her numbers on the keys that his level has shown, too
    more, receipt = ask(session, "bob", rho=0.02)
    assert {shop: more[shop] for shop in coarse} == coarse
    assert set(more) == set(sharp) | set(coarse)
    assert any("at rho = 0.5, which epsilon and delta cover" in note for note in receipt.notes)
    assert spent(session) == paid


def test_a_key_set_above_the_limit_would_show_what_ours_does_not(
    session: dpsql.Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The planted fault: readers see the keys of every charged point."""
    monkeypatch.setattr(Reader, "may_see", lambda *_: True)
    ask(session, "bob")
    coarse, _ = ask(session, "ana")
    assert len(set(coarse) & set(SMALL)) > 20


def test_numbers_inside_a_recentred_sum_are_of_the_readers_level(session: dpsql.Session) -> None:
    ask(session, "bob", BOTH)
    _, receipt = ask(session, "ana", BOTH)
    # each of the two statistics is served from the grid, at most a fifth below its share
    assert 0.016 < receipt.rho <= 0.02
    state = session._access.read()
    told = [level for release in state.history.releases("ana") for level, *_ in release.levels]
    assert max(told) <= 2 * 10**7
    assert held(session, "ana") == pytest.approx(receipt.rho)


def test_below_the_limit_keys_are_free_and_a_threshold_of_its_own_is_charged(session: dpsql.Session) -> None:
    ask(session, "bob")
    few, low = ask(session, "ana", rho=0.005)
    assert low.charged_delta > 0
    before = spent(session)
    same, receipt = ask(session, "ana", rho=0.02)
    # numbers at 0.02 on the keys that 0.005 has shown
    assert set(same) == set(few)
    assert same != few
    assert receipt.charged_rho == receipt.charged_delta == 0
    assert receipt.delta >= low.charged_delta
    more, own = ask(session, "ana", rho=0.02, own_threshold=True)
    assert own.charged_rho == 0
    assert own.charged_delta == pytest.approx(1e-6, rel=1e-2)
    assert set(more) >= set(few)
    assert spent(session)[0] == before[0]
    # it is part of the point now
    assert ask(session, "ana", rho=0.02)[0] == more
    assert ask(session, "ana", rho=0.02, own_threshold=True)[1].charged_delta == 0


def test_explain_names_the_price_for_its_reader(session: dpsql.Session) -> None:
    ask(session, "bob")
    for name, free in (("ana", False), ("bob", True)):
        rows = session.as_analyst(name).sql(f"FROM dp_explain($$ {COUNT} $$, rho := 0.02)").fetchall()
        price = {row[1]: float(row[2]) for row in rows if row[0] == "price" and row[1] != "query hash"}
        assert price["rho"] == 0
        assert (price["threshold delta"] == 0) is free
        assert (ask(session, name, rho=0.02)[1].charged_delta == 0) is free


def test_a_coalition_holds_the_most_of_its_members_and_over_statistics_the_sum(session: dpsql.Session) -> None:
    ask(session, "bob")
    ask(session, "ana")
    assert held(session, "ana") == pytest.approx(0.02)
    assert held(session, "bob") == held(session, "ana", "bob") == held(session) == pytest.approx(0.5)
    ask(session, "ana", "SELECT count(DISTINCT visitor) AS n FROM visits")
    assert held(session, "ana") == pytest.approx(0.04)
    assert held(session, "ana", "bob") == held(session) == pytest.approx(0.52)
    own = session.as_analyst("ana").sql("FROM dp_budget('visitor')").df()
    assert (own["held_by"][0], own["rho_held"][0]) == ("ana", pytest.approx(0.04))
    with pytest.raises(AccessError, match="curator"):
        session.as_analyst("ana").sql("FROM dp_budget('visitor', analysts := ['bob'])")


def test_where_hidden_keys_share_noise_a_lower_reader_gets_a_release_of_their_own(session: dpsql.Session) -> None:
    ask(session, "bob", TOP_K)
    before = spent(session)
    coarse, receipt = ask(session, "ana", TOP_K)
    # drawn afresh and paid in full: what is made of bob's release has keys that she may not see
    assert receipt.mechanism == "csh"
    assert spent(session)[0] - before[0] == 2 * 10**7
    assert {*LARGE} <= set(coarse)
    lower, free = ask(session, "ana", TOP_K, rho=0.01)
    assert free.charged_rho == free.charged_delta == 0
    assert set(lower) == set(coarse)
    # bob holds 0.5, which is his limit: his lower level is made of the release that he holds, and hers is not for him
    other, free = ask(session, "bob", TOP_K, rho=0.01)
    assert free.charged_rho == 0
    assert other != lower
    assert held(session, "bob") == pytest.approx(0.5)
    # who has no limit is shown what is stored
    session.sql("CALL dp_analyst('eve')")
    assert ask(session, "eve", TOP_K, rho=0.02)[0] == coarse
    assert held(session) == pytest.approx(0.52)


def test_independent_releases_add_up_to_the_limit(session: dpsql.Session) -> None:
    ask(session, "bob", TOP_K, rho=0.1)
    ask(session, "bob", TOP_K, rho=0.35)
    assert held(session, "bob") == pytest.approx(0.45)
    before = spent(session)
    for _ in range(2):
        with pytest.raises(AccessError, match="add up"):
            ask(session, "bob", TOP_K, rho=0.4)
        with pytest.raises(AccessError, match="add up"):
            ask(session, "bob", TOP_K, rho=0.2, own_threshold=True)
    assert spent(session) == before
    # what he holds, and what is made of it, is his
    assert ask(session, "bob", TOP_K, rho=0.35)[1].charged_rho == 0
    assert ask(session, "bob", TOP_K, rho=0.2)[1].charged_rho == 0
    assert held(session, "bob") == pytest.approx(0.45)


@pytest.mark.parametrize("options", [{}, {"own_threshold": True}])
def test_asking_again_beside_a_point_for_others_is_the_same_answer(
    session: dpsql.Session, options: dict[str, Any]
) -> None:
    ask(session, "bob", TOP_K)
    made, _ = ask(session, "bob", TOP_K, rho=0.02)
    own, _ = ask(session, "ana", TOP_K, rho=0.02, **options)
    before = spent(session)
    for _ in range(3):
        again, receipt = ask(session, "ana", TOP_K, rho=0.02, **options)
        assert (again, receipt.charged_rho, receipt.charged_delta) == (own, 0.0, 0.0)
    assert spent(session) == before
    assert ask(session, "bob", TOP_K, rho=0.02)[0] == made


def test_the_smallest_level_is_the_unit_of_account(session: dpsql.Session) -> None:
    session.sql("CALL dp_analyst('ana', rho_limit := 1e-9)")
    for rho in (0.5, 1e-9):
        ask(session, "bob", TOP_K, rho=rho)
    before = spent(session)
    # what is made of bob's release there takes no place from hers
    assert ask(session, "ana", TOP_K)[1].charged_rho == 1e-9
    assert ask(session, "bob", rho=0.1)[1].rho == 0.1
    assert ask(session, "bob", rho=1e-9)[1].rho == 1e-9
    assert spent(session)[0] == before[0] + 1 + 10**8


def test_what_is_made_of_discrete_noise_is_not_for_readers_below_it(session: dpsql.Session) -> None:
    """Discrete noise keeps its lattice under what is added: lower points tell more than their level says."""
    session.sql("CALL dp_unit('visitor', composition := 'zcdp')")
    session.sql("CALL dp_domain('visits', 'shop', keys := [0, 1, 2, 3, 4])")
    text = f"{WITH} (mechanism = DISCRETE_CORRELATED_GAUSSIAN) {COUNT.removeprefix('SELECT ')}"
    assert ask(session, "ana", text)[1].charged_rho > 0
    assert ask(session, "bob", text, rho=0.02)[1].charged_rho == 0
    ask(session, "bob", text)
    with pytest.raises(AccessError, match="discrete"):
        ask(session, "ana", text, rho=0.01)
    # who may see the counts that it is made of is told that it tells as much
    _, receipt = ask(session, "bob", text, rho=0.01)
    assert receipt.charged_rho == 0
    assert receipt.epsilon == pytest.approx(ask(session, "bob", text)[1].epsilon, rel=1e-6)
    assert any("discrete" in note and "rho = 0.5" in note for note in receipt.notes)
    assert held(session, "bob") == pytest.approx(0.5)


@pytest.mark.parametrize("text", [COUNT, TOP_K])
def test_a_refresh_is_not_for_readers_with_a_limit(session: dpsql.Session, text: str) -> None:
    """It is one more release of the same rows, beside what they hold."""
    first, _ = ask(session, "ana", text)
    before = spent(session)
    with pytest.raises(AccessError, match="curator can refresh"):
        ask(session, "ana", text, refresh=True)
    with pytest.raises(AccessError, match="curator can refresh"):
        session.as_analyst("ana").sql(f"FROM dp_explain($$ {text} $$, rho := 0.01, refresh := true)")
    assert spent(session) == before
    assert ask(session, "ana", text)[0] == first
    session.sql("CALL dp_analyst('eve')")
    assert ask(session, "eve", text, refresh=True)[1].charged_rho > 0


def test_what_a_reader_holds_already_is_served_before_what_would_add_to_it(session: dpsql.Session) -> None:
    session.sql("CALL dp_analyst('eve')")
    ask(session, "bob", TOP_K, rho=0.3)
    ask(session, "eve", TOP_K, rho=0.2, own_threshold=True)
    assert ask(session, "bob", TOP_K, rho=0.1)[1].charged_rho == 0
    assert held(session, "bob") == pytest.approx(0.3)
    assert ask(session, "bob", TOP_K, rho=0.15, own_threshold=True)[1].charged_rho == pytest.approx(0.15)


def test_a_name_in_another_case_is_the_same_analyst(session: dpsql.Session) -> None:
    with pytest.raises(AccessError, match="'ana'"):
        ask(session, "Ana", rho=0.5)
    ask(session, "ANA")
    assert held(session, "ana") == pytest.approx(0.02)
    session.sql("CALL dp_analyst(' Ana ', rho_limit := 0.03, replace := true)")
    declared = [row[1:] for row in session.sql("FROM dp_policy()").fetchall() if row[0] == "analyst"]
    assert declared[0] == ("ana", "rho_limit", "0.03")
    assert held(session, "ANA") == pytest.approx(0.02)
    # what somebody was shown before they had a limit counts, too
    session.sql("CALL dp_analyst(' Eve')")
    ask(session, "eVe ", TOP_K, rho=0.2)
    session.sql("CALL dp_analyst('eve', rho_limit := 0.25)")
    with pytest.raises(AccessError, match="add up"):
        ask(session, "eve", TOP_K, rho=0.1, own_threshold=True)
    # letters beyond A to Z are what they are
    session.sql("CALL dp_analyst('straße', rho_limit := 0.1)")
    session.sql("CALL dp_analyst('strasse', rho_limit := 0.5)")
    with pytest.raises(AccessError):
        ask(session, "straße", rho=0.2)


def test_what_is_made_of_a_release_takes_no_level_from_others(session: dpsql.Session) -> None:
    ask(session, "bob", TOP_K)
    made, _ = ask(session, "bob", TOP_K, rho=0.02)
    own, receipt = ask(session, "ana", TOP_K, rho=0.02)
    assert own != made
    assert (receipt.rho, receipt.charged_rho) == (0.02, 0.02)
    assert ask(session, "bob", TOP_K, rho=0.02)[0] == made
    assert ask(session, "ana", TOP_K, rho=0.02)[0] == own


def test_in_a_window_every_reader_has_a_threshold_that_is_paid(session: dpsql.Session) -> None:
    session.sql(
        "CALL dp_protect('visits', coverage := FALSE, "
        "default_rho := 0.5, max_groups_contributed := 1, default_delta := 1e-6, "
        "rho_window := [0.01, 1])"
    )
    _, first = ask(session, "bob")
    assert first.charged_delta > 0
    coarse, receipt = ask(session, "ana")
    assert receipt.charged_rho == receipt.charged_delta == 0
    assert {*LARGE} <= set(coarse)
    assert len(set(coarse) & set(SMALL)) < 5
    # epsilon has no place on the grid: another frame, without a window
    assert ask(session, "bob", epsilon=0.2)[1].query_hash != first.query_hash


def test_lowering_a_limit_holds_from_the_next_question(session: dpsql.Session) -> None:
    ask(session, "bob")
    session.sql("CALL dp_analyst('bob', rho_limit := 0.1)")
    with pytest.raises(AccessError):
        ask(session, "bob", rho=0.5)
    assert held(session, "bob") == pytest.approx(0.5)
    session.sql("CALL dp_analyst('bob')")
    with pytest.raises(AccessError):
        ask(session, "bob", rho=0.5)
    with pytest.raises(PolicyError, match=r"rho_limit from 0\.1 to none.*replace := true"):
        session.sql("CALL dp_analyst('bob', rho_limit := NULL)")
    session.sql("CALL dp_analyst('bob', rho_limit := NULL, replace := true)")
    assert ask(session, "bob", rho=0.5)[1].charged_rho == 0
    policy = session.sql("FROM dp_policy()").fetchall()
    assert [row[1:] for row in policy if row[0] == "analyst"] == [
        ("ana", "rho_limit", "0.02"),
        ("bob", "rho_limit", "any level"),
    ]


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda s: s.sql("CALL dp_analyst('curator', rho_limit := 1)"), PolicyError),
        (lambda s: s.sql("CALL dp_analyst('ana', rho_limit := 0)"), PolicyError),
        (lambda s: s.sql("CALL dp_analyst('ana', rho_limit := -1)"), PolicyError),
        (lambda s: s.sql("CALL dp_analyst('ana', rho_limit := NULL)"), PolicyError),
        (lambda s: s.sql("CALL dp_analyst('Curator')"), PolicyError),
        (lambda s: s.sql("CALL dp_analyst('ana', limit := 1)"), PolicyError),
        (lambda s: s.as_analyst("ana").sql("CALL dp_analyst('ana', rho_limit := 9)"), AccessError),
        (lambda s: s.sql("FROM dp_budget(analysts := 'ana')"), PolicyError),
        (lambda s: s.sql("FROM dp_budget(who := ['ana'])"), PolicyError),
        (lambda s: s.sql("FROM dp_budget('visitor', 'ana')"), PolicyError),
    ],
)
def test_wrong_declarations_are_refused(
    session: dpsql.Session, call: Callable[[dpsql.Session], object], error: type[DpsqlError]
) -> None:
    before = session.sql("FROM dp_policy()").fetchall()
    with pytest.raises(error):
        call(session)
    assert session.sql("FROM dp_policy()").fetchall() == before


def test_nothing_raw_is_read_for_a_threshold_of_its_own(
    session: dpsql.Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask(session, "bob")

    def reading(*_: object, **__: object) -> None:
        raise AssertionError("raw data were read")

    monkeypatch.setattr(DuckDBEngine, "aggregate", reading)
    assert ask(session, "ana")[1].charged_delta > 0


def test_an_interrupted_threshold_is_paid_once(session: dpsql.Session, monkeypatch: pytest.MonkeyPatch) -> None:
    ask(session, "bob")
    table = session._access.read().side_table
    with monkeypatch.context() as patch:
        patch.setattr(type(table), "store", lambda *_, **__: 1 / 0)
        with pytest.raises(EngineError):
            ask(session, "ana")
    paid = spent(session)
    assert ask(session, "ana")[1].charged_delta == 0
    assert spent(session) == paid


def test_a_delta_too_small_for_the_draws_is_refused_before_the_charge(session: dpsql.Session) -> None:
    ask(session, "bob")
    before = spent(session)
    with pytest.raises(CalibrationError):
        ask(session, "ana", delta=1e-60)
    assert spent(session) == before


def test_what_a_limit_allows_is_explained_and_answered() -> None:
    """Keys and numbers by AUTO share a level by epsilon, which is below that of numbers alone."""
    with dpsql.connect(threads=1) as opened:
        opened.connection.execute("CREATE TABLE t AS SELECT u, u % 3 AS shop FROM range(100) r(u)")
        opened.sql("CALL dp_unit('person', rho_budget := 9, delta_threshold := 1e-3, delta_conversion := 1e-6)")
        opened.sql("CALL dp_protect('t', unit := 'person', privacy_unit_column := 'u')")
        opened.sql("CALL dp_analyst('ana', rho_limit := 0.5)")
        analyst, text = opened.as_analyst("ana"), "SELECT shop, count(*) AS n FROM t GROUP BY shop"
        assert len(analyst.sql(f"FROM dp_explain($${text}$$, epsilon := 5, delta := 1e-6)")) > 5
        analyst.sql(text, epsilon=5, delta=1e-6)


def test_a_half_width_is_served_no_level_above_the_limit(session: dpsql.Session) -> None:
    """The lowest level that is no wider may be above the limit: then the level below it serves."""
    total = "SELECT count(DISTINCT visitor) AS n FROM visits"
    session.sql(total, rho=0.5)
    session.sql("CALL dp_analyst('ana', rho_limit := 0.0199)")
    answer = session.as_analyst("ana").sql(total, target_half_width=9.9)
    assert answer.receipt is not None
    # 9.9 takes rho = 0.01966, and the next level of the grid is 0.02
    assert answer.receipt.rho == pytest.approx(0.018)
    assert held(session, "ana") == pytest.approx(0.018)


def test_a_lowered_limit_takes_keys_of_other_releases_away(session: dpsql.Session) -> None:
    """Releases whose hidden keys share noise add up: keys of another one are shown up to the limit alone."""
    for rho in (0.1, 0.35):
        ask(session, "bob", TOP_K, rho=rho)

    def levels() -> list[int]:
        statement = read_statement(TOP_K)
        assert isinstance(statement, SelectStatement)
        query, state, reader = session._runner.plan(statement, {"rho": 0.35}, "bob")
        (offer,) = offers_of(query.parts, state, reader)
        return [keys.rho_nano for keys in offer.presence.keys_from]

    assert levels() == [350_000_000, 100_000_000]
    session.sql("CALL dp_analyst('bob', rho_limit := 0.44)")
    assert levels() == [350_000_000]
