"""Rows that bounds leave out, through SQL: said first, priced with the numbers, and drawn once for whom it is shown to.

The table is a small web log. Some visitors have most hits, so numbers under the named bounds are much too low.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

import dpsql
from dpsql.release import left_out_stage
from dpsql.release.left_out import LeftOut
from tests.end_to_end.prepared import with_own_state
from tests.end_to_end.receipts import receipt_of
from tests.noise_sources import seeded_noise

VISITORS, PAGES, GROUPS, ROWS = 3_000, 6, 2, 2
BY_PAGE = "SELECT page, count(*) AS n FROM hits GROUP BY page ORDER BY page"
WITH_WHOLE = (
    "SELECT page, count(*) AS n, dp_unbounded(n) AS whole, dp_unbounded_low(n) AS low, dp_unbounded_high(n) AS high "
    "FROM hits GROUP BY page ORDER BY page"
)
OWN = 7 / 8
"""Part of its level that the first number of a chain has for its noise; the rest is for later ones at lower levels."""
NUMBER = re.compile(r"[\d,.]+")
"""Whatever a line calls 3,800 or 1.31."""


@pytest.fixture(scope="module")
def prepared() -> Iterator[dpsql.Session]:
    with dpsql.connect(threads=1) as session:
        session.connection.execute(
            "CREATE TABLE hits AS SELECT visitor, 'page ' || hash(visitor, i) % ? AS page, 1e0 + i % 3 AS seconds, "
            "bit_length(bin(visitor)) AS site "
            "FROM range(?) v(visitor), range(90) r(i) "
            "WHERE i < CASE WHEN visitor % 10 = 0 THEN 30 + visitor % 60 ELSE 2 END",
            [PAGES, VISITORS],
        )
        session.sql("CALL dp_unit('visitor', rho_budget := 1000, delta_threshold := 0.1, delta_conversion := 1e-6)")
        session.sql(
            "CALL dp_protect('hits', unit := 'visitor', privacy_unit_column := 'visitor', default_delta := 1e-6, "
            f"max_groups_contributed := {GROUPS}, max_rows_per_group := {ROWS})"
        )
        session.sql("CALL dp_domain('hits', 'seconds', bounds := [0, 5])")
        yield session


@pytest.fixture
def session(prepared: dpsql.Session) -> Iterator[dpsql.Session]:
    with with_own_state(prepared) as session:
        session._runner.noise_source = seeded_noise(7)
        yield session


def _lines(answer: dpsql.Result) -> list[str]:
    """Return the lines below the table of an answer."""
    return str(answer).strip().rpartition("\n\n")[2].splitlines()


def _found(answer: dpsql.Result) -> LeftOut:
    (one,) = receipt_of(answer).left_out
    return one.found


def _spent(session: dpsql.Session) -> float:
    return float(session.sql("FROM dp_budget()").df()["rho_spent"].item())


def _true(session: dpsql.Session) -> dict[str, int]:
    return dict(session.connection.sql("SELECT page, count(*) FROM hits GROUP BY page").fetchall())


def test_an_answer_that_is_too_low_says_so_first(session: dpsql.Session) -> None:
    true, answer = _true(session), session.sql(BY_PAGE, rho=0.5)
    found, shown = _found(answer), dict(answer.fetchall())
    first, second, *others = _lines(answer)
    missing = sum(true.values()) - sum(shown.values())
    assert first.startswith("too low  at least ")
    assert first.endswith(" rows of busy visitors are left out")
    least, about = (float(one.replace(",", "")) for one in NUMBER.findall(first))
    assert 0.5 * missing < least < missing
    assert about == pytest.approx(missing, rel=0.25)
    assert second.startswith("whole    about ")
    factor = float(NUMBER.findall(second)[0])
    assert factor == pytest.approx(found.factor, rel=0.05)
    assert factor == pytest.approx(sum(true.values()) / sum(shown.values()), rel=0.2)
    assert not any(line.startswith(("bounds", "too low", "whole")) for line in others)
    # the first cells of the printed table
    assert all(re.search(rf"{page} +│ +≥ {shown[page]:,} ± ", str(answer)) for page in true)


def test_the_estimate_of_each_group_is_between_its_ends(session: dpsql.Session) -> None:
    true, answer = _true(session), session.sql(WITH_WHOLE, rho=0.5)
    factor = _found(answer).factor
    for page, n, whole, low, high in answer.fetchall():
        assert low < n < whole < high
        # the number that is estimated from is not rounded
        assert whole == pytest.approx(n * factor, rel=1e-3)
        assert low < true[page] < high
        assert abs(whole - true[page]) < 0.4 * (true[page] - n)


def test_it_costs_a_part_in_32_of_the_question_and_nothing_more(session: dpsql.Session) -> None:
    answer = session.sql(BY_PAGE, rho=0.5)
    found = _found(answer)
    assert receipt_of(answer).charged_rho == _spent(session) == 0.5
    assert found.cut / found.sigma == pytest.approx((2.0 * OWN * 0.5 / 32) ** 0.5, rel=1e-6)
    with with_own_state(session) as plain:
        plain.sql("CALL dp_new_version('hits')")
        alone = plain.sql(BY_PAGE, rho=0.5 * 31 / 32, coverage=False)
        assert not receipt_of(alone).left_out
        # the numbers are as precise as they are at their 31 parts without it
        assert receipt_of(alone).columns[0].sigma == pytest.approx(receipt_of(answer).columns[0].sigma, rel=1e-6)


def test_two_columns_share_the_part(session: dpsql.Session) -> None:
    answer = session.sql("SELECT page, count(*) AS n, sum(seconds) AS s FROM hits GROUP BY page", rho=0.5)
    receipts = {one.columns: one.found for one in receipt_of(answer).left_out}
    assert receipts.keys() == {("n",), ("s",)}
    assert all(one.cut / one.sigma == pytest.approx((OWN * 0.5 / 32) ** 0.5, rel=1e-6) for one in receipts.values())
    assert receipt_of(answer).charged_rho == 0.5


def test_a_stored_number_serves_until_twice_its_level_is_asked_for(session: dpsql.Session) -> None:
    first = session.sql(BY_PAGE, rho=0.2)
    again = session.sql(BY_PAGE, rho=0.2)
    assert receipt_of(again).charged_rho == 0.0
    assert again.fetchall() == first.fetchall()
    assert _found(again) == _found(first)
    assert _lines(again)[:2] == _lines(first)[:2]
    # one at a lower level belongs to other numbers: it is drawn, and what was charged before pays for it
    lower = session.sql(BY_PAGE, rho=0.05)
    assert receipt_of(lower).charged_rho == 0.0
    of_lower = _found(lower)
    assert of_lower.value != _found(first).value
    assert of_lower.cut / of_lower.sigma == pytest.approx((2.0 * 0.05 / 16 / 32) ** 0.5, rel=1e-3)
    assert _found(session.sql(BY_PAGE, rho=0.05)) == of_lower
    between = session.sql(BY_PAGE, rho=0.35)
    # the numbers rise, and the number of rows left out does not
    assert receipt_of(between).charged_rho == pytest.approx(0.15 * 31 / 32, rel=1e-6)
    assert _found(between).value == _found(first).value
    doubled = session.sql(BY_PAGE, rho=0.8)
    # 0.35 of numbers and 0.2 of rows left out were paid
    assert receipt_of(doubled).charged_rho == pytest.approx(0.8 - 0.35 * 31 / 32 - 0.2 / 32, rel=1e-6)
    assert _spent(session) == pytest.approx(0.8, rel=1e-9)
    own = _found(doubled)
    assert own.value != _found(first).value
    assert own.cut / own.sigma == pytest.approx((2.0 * OWN * 0.6 / 32) ** 0.5, rel=1e-6)
    # the same question at the lower level is the same answer for good
    assert _found(session.sql(BY_PAGE, rho=0.2)) == _found(first)


def test_a_reader_with_a_limit_is_shown_a_number_of_their_own(session: dpsql.Session) -> None:
    session.sql("CALL dp_analyst('ana', rho_limit := 0.3)")
    session.sql("CALL dp_analyst('bob')")
    of_curator = _found(session.sql(BY_PAGE, rho=0.5))
    ana, bob = session.as_analyst("ana"), session.as_analyst("bob")
    before = _spent(session)
    first = ana.sql(BY_PAGE, rho=0.2)
    # the counts are derived from stored ones, and the number of rows left out is drawn for her
    assert receipt_of(first).charged_rho == pytest.approx(0.2 / 32, rel=1e-6)
    assert _spent(session) == pytest.approx(before + 0.2 / 32, rel=1e-6)
    own = _found(first)
    assert own.value != of_curator.value
    assert own.cut / own.sigma == pytest.approx((2.0 * OWN * 0.2 / 32) ** 0.5, rel=1e-6)
    again = ana.sql(BY_PAGE, rho=0.2)
    assert receipt_of(again).charged_rho == 0.0
    assert _found(again) == own
    assert _found(ana.sql(BY_PAGE, rho=0.3)).value == own.value
    # who has no limit is served what is stored
    assert _found(bob.sql(BY_PAGE, rho=0.6)).value == of_curator.value
    held = ana.sql("FROM dp_budget('visitor')").df()["rho_held"].item()
    assert held <= 0.3 * (1 + 1e-9)


_WITH = "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS"
KINDS: dict[str, str] = {
    "private keys": BY_PAGE,
    "public keys": BY_PAGE,
    "no keys": "SELECT count(*) AS n FROM hits",
    "keys first": BY_PAGE.replace("SELECT", f"{_WITH} (mechanism = KEYS_FIRST)", 1),
    "norm": BY_PAGE.replace("SELECT", f"{_WITH} (bounding = NORM)", 1).replace("*", "*, contribution_norm => 3"),
}


def _declare(session: dpsql.Session, kind: str) -> None:
    if kind == "public keys":
        session.sql("CALL dp_domain('hits', 'page', keys := ['page 0', 'page 1', 'page 2', 'nowhere'])")


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_said_of_each_kind_of_keys(session: dpsql.Session, kind: str) -> None:
    _declare(session, kind)
    answer, true = session.sql(KINDS[kind], rho=0.5), _true(session)
    assert _lines(answer)[0].startswith("too low  at least ")
    rows, found = answer.fetchall(), _found(answer)
    whole = sum(true.values()) if kind == "no keys" else sum(true.get(row[0], 0) for row in rows)
    missing = whole - sum(row[-1] for row in rows)
    # of some visitors more than the cut is left out
    assert 0.4 * missing < found.value < 1.25 * missing
    assert found.groups == len(rows)


@pytest.mark.parametrize("kind", KINDS)
def test_who_is_stopped_before_it_is_drawn_pays_once(
    session: dpsql.Session, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*of: Any, **named: Any) -> Any:
        raise dpsql.EngineError("stopped", withheld=False)

    _declare(session, kind)
    question = KINDS[kind]
    with monkeypatch.context() as patch:
        patch.setattr(left_out_stage, "read_left_out", stopped)
        with pytest.raises(dpsql.EngineError):
            session.sql(question, rho=0.5)
    spent = _spent(session)
    assert spent == 0.5
    answer = session.sql(question, rho=0.5)
    assert receipt_of(answer).charged_rho == 0.0
    assert _spent(session) == spent
    assert _found(answer).is_too_low
    assert _found(session.sql(question, rho=0.5)) == _found(answer)


def test_each_grouping_set_has_its_own(session: dpsql.Session) -> None:
    text = "SELECT page, count(*) AS n FROM hits GROUP BY GROUPING SETS ((page), ())"
    answer = session.sql(text, rho=1.0)
    assert receipt_of(answer).charged_rho == _spent(session) == pytest.approx(1.0)
    assert _lines(answer)[0].startswith("too low  ")
    again = session.sql(text, rho=1.0)
    assert receipt_of(again).charged_rho == 0.0
    assert _lines(again)[0] == _lines(answer)[0]


def test_a_target_is_not_met_by_numbers_that_lack_rows(session: dpsql.Session) -> None:
    text = (
        "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (target_relative_error = 0.1, max_epsilon = 2, delta = 1e-6) "
        "page, count(*) AS n, dp_within_target(n) AS is_within FROM hits GROUP BY page"
    )
    answer = session.sql(text)
    assert [row[-1] for row in answer.fetchall()] == [None] * PAGES
    found = _found(answer)
    # the level at which the numbers alone are within the target is low, and so is that of the rows left out
    assert found.cut == 1.0
    assert receipt_of(answer).charged_rho < 0.05


def test_what_a_target_calls_within_it_is(session: dpsql.Session) -> None:
    """Sites have twice the visitors of the one before; the largest are within the target long before the smallest."""
    session.sql("CALL dp_protect('hits', max_groups_contributed := 1, max_rows_per_group := 90)")
    text = (
        "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (target_relative_error = 0.2, max_epsilon = 8, delta = 1e-6) "
        "site, count(*) AS n, dp_within_target(n) AS is_within FROM hits GROUP BY site"
    )
    true = dict(session.connection.sql("SELECT site, count(*) FROM hits GROUP BY site").fetchall())
    rows = session.sql(text).fetchall()
    assert [is_within for *_, is_within in rows if is_within is False] == []
    called = [(site, n) for site, n, is_within in rows if is_within]
    assert 2 <= len(called) <= len(rows)
    assert all(abs(n - true[site]) <= 0.2 * true[site] for site, n in called)


def test_nothing_is_said_to_be_left_out_where_bounds_are_wide(session: dpsql.Session) -> None:
    session.sql(f"CALL dp_protect('hits', max_groups_contributed := {PAGES}, max_rows_per_group := 40)")
    answer = session.sql(BY_PAGE, rho=2.0)
    assert not any(line.startswith(("too low", "whole")) for line in _lines(answer))
    (bounds,) = (line for line in _lines(answer) if line.startswith("bounds"))
    assert re.match("bounds +no (clear )?sign that rows are left out; up to ", bounds)
    assert "≥" not in str(answer)
