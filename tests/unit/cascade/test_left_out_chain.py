"""Numbers of rows left out are a chain: together they cost its highest place, whatever is asked for in which order."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator

import pytest

import dpsql
from dpsql.cascade import left_out
from dpsql.state import State
from dpsql.state.shown_amounts import spent_as_shown
from tests.end_to_end.prepared import with_own_state
from tests.noise_sources import seeded_noise

NANO = 10**9
_LEVELS = (0.001, 0.0015, 0.004, 0.05, 0.06, 0.3, 1.0, 1.9, 2.0, 7.5)
_TEXT = "SELECT key, count(*) AS n, dp_unbounded(n) AS whole FROM hits GROUP BY key"


@pytest.fixture
def session() -> Iterator[dpsql.Session]:
    with dpsql.connect(threads=1) as session:
        session.connection.execute(
            "CREATE TABLE hits AS SELECT i % 50 AS person, i % 3 AS key FROM range(3000) rows(i)"
        )
        session.sql(
            "CALL dp_protect('hits', privacy_unit_column := 'person', epsilon_budget := 1000, delta_budget := 1e-3, "
            "max_groups_contributed := 2, max_rows_per_group := 5)"
        )
        session.sql("CALL dp_domain('hits', 'key', keys := [0, 1, 2])")
        yield session


def _chains(state: State) -> dict[str, list[tuple[int, float]]]:
    """Return place and own level, in nano-rho, of each number of each chain, in the order in which they were drawn."""
    rows = state._database.rows(
        "SELECT statistic_hash, rho_nano, sigma FROM point JOIN measured_groups ON point_id = point.id ORDER BY id"
    )
    found: dict[str, list[tuple[int, float]]] = {}
    for row in rows:
        found.setdefault(row["statistic_hash"], []).append((row["rho_nano"], NANO / (2.0 * row["sigma"] ** 2)))
    return found


def _charged(session: dpsql.Session, name: str) -> int:
    """Return what a chain was charged, in nano-rho."""
    (row,) = session._access.read()._database.rows(
        "SELECT sum(rho_nano) AS rho FROM charge WHERE statistic_hash = ?", name
    )
    return int(row["rho"])


@pytest.mark.parametrize("seed", range(2))
def test_all_numbers_together_cost_the_highest_place(session: dpsql.Session, seed: int) -> None:
    asked = random.Random(seed).choices(_LEVELS, k=9)
    for rho in asked:
        session.sql(_TEXT, rho=rho)
    ((name, numbers),) = _chains(session._access.read()).items()
    top = max(place for place, _ in numbers)
    assert _charged(session, name) == top
    assert sum(own for _, own in numbers) <= top
    assert top == max(place for place, _ in numbers if math.isclose(place, max(asked) / 32 * NANO, rel_tol=0.5))


def test_a_reserve_that_pays_too_much_is_found(session: dpsql.Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin gives each lower level all of it."""
    own = left_out._own_nano
    monkeypatch.setattr(
        left_out, "_own_nano", lambda stored, asked, top: asked if asked <= top else own(stored, asked, top)
    )
    for rho in (2.0, 1.0, 0.5, 0.25):
        session.sql(_TEXT, rho=rho)
    ((_, numbers),) = _chains(session._access.read()).items()
    assert sum(own for _, own in numbers) > max(place for place, _ in numbers)


def test_a_lower_level_is_free_and_has_a_number_of_its_own(session: dpsql.Session) -> None:
    high = session.sql(_TEXT, rho=1.0)
    low = session.sql(_TEXT, rho=0.1)
    assert low.receipt is not None
    assert high.receipt is not None
    assert low.receipt.reused
    (own,), (other,) = low.receipt.left_out, high.receipt.left_out
    assert own.found.value != other.found.value
    # what is compared with are the numbers of this answer
    assert own.found.shown == pytest.approx(sum(low.arrow().column("n").to_pylist()), abs=2.0)
    assert low.receipt.rho == pytest.approx(0.1, rel=0.03)
    again = session.sql(_TEXT, rho=0.1)
    assert again.receipt is not None
    assert again.receipt.left_out == low.receipt.left_out


def test_a_higher_level_that_is_less_than_twice_as_high_keeps_the_number(session: dpsql.Session) -> None:
    first, second, third = (session.sql(_TEXT, rho=rho).receipt for rho in (1.0, 1.9, 2.1))
    assert first is not None
    assert second is not None
    assert third is not None
    assert second.left_out == first.left_out
    assert third.left_out != first.left_out
    # nothing is paid for a number that is not drawn
    assert second.charged_rho == pytest.approx(0.9 * 31 / 32, rel=1e-6)
    assert third.charged_rho == pytest.approx(0.2 * 31 / 32 + 1.1 / 32, rel=1e-6)


def test_a_reader_with_a_limit_has_a_chain_of_their_own(session: dpsql.Session) -> None:
    session.sql("CALL dp_analyst('ana', rho_limit := 1.0)")
    session.sql(_TEXT, rho=5.0)
    ana = session.as_analyst("ana")
    answer = ana.sql(_TEXT, rho=0.5)
    assert answer.receipt is not None
    assert answer.receipt.charged_rho == pytest.approx(0.5 / 32, rel=1e-6)
    again = ana.sql(_TEXT, rho=0.5)
    assert again.receipt is not None
    assert again.receipt.reused
    assert len(_chains(session._access.read())) == 2


def test_many_lower_levels_end_without_a_number_and_without_an_error(session: dpsql.Session) -> None:
    session.sql(_TEXT, rho=3.0)
    found = [session.sql(_TEXT, rho=2.0 * 0.7**step).receipt for step in range(left_out.MOST_RESERVED + 3)]
    assert all(one is not None and one.reused for one in found)
    assert found[-1] is not None
    assert not found[-1].left_out
    (line,) = found[-1].coverage
    assert "other levels" in line.unknown


def test_two_readers_whose_names_differ_in_an_accent_letter_have_two_chains(session: dpsql.Session) -> None:
    """Names are alike in either case of A to Z alone, for chains as for limits."""
    session.sql("CALL dp_analyst('Änne', rho_limit := 3.0)")
    session.sql("CALL dp_analyst('änne', rho_limit := 0.3)")
    session.as_analyst("Änne").sql(_TEXT, rho=2.0)
    answer = session.as_analyst("änne").sql(_TEXT, rho=0.2)
    assert answer.receipt is not None
    assert answer.receipt.charged_rho == pytest.approx(0.2 / 32, rel=1e-6)
    assert len(_chains(session._access.read())) == 2


def test_a_target_without_a_number_is_answered_and_calls_no_cell_within(
    session: dpsql.Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(left_out, "MOST_RESERVED", 0)
    session.sql(_TEXT, rho=3.0)
    text = _TEXT.replace("dp_unbounded", "dp_within_target")
    for _ in range(2):
        answer = session.sql(text, target_relative_error=0.3, max_rho=0.9, delta=1e-5)
        assert answer.receipt is not None
        assert not answer.receipt.left_out
        # 1,000 rows in each group, of which about 170 count
        assert answer.arrow().column("whole").to_pylist() == [None] * 3


def test_who_sees_released_numbers_again_sees_what_was_said_of_them(session: dpsql.Session) -> None:
    """With people beside it the count has a lower level, and is served as it was shown."""
    alone = session.sql("SELECT key, count(*) AS n FROM hits GROUP BY key", rho=1.0)
    text = "SELECT key, count(*) AS n, count(DISTINCT person) AS people FROM hits GROUP BY key"
    beside, lower = session.sql(text, rho=1.0), session.sql(_TEXT, rho=0.05)
    assert [row[:2] for row in beside] == alone.fetchall()
    before, again, other = ([one.found for one in answer.receipt.left_out] for answer in (alone, beside, lower))  # type: ignore[union-attr]
    assert again == before
    assert other != before
    assert beside.receipt.rho > 1.0, "the receipt has the level of the number that it shows"  # type: ignore[union-attr]


def test_what_others_may_have_spent_does_not_tell_whether_a_target_drew_a_number(session: dpsql.Session) -> None:
    """Whether it draws one follows from the level at which its steps ended, which a reader with a limit may not see."""
    session.sql("CALL dp_analyst('ana', rho_limit := 0.5)")
    drawn, shown = set(), set()
    for seed in range(10):
        with with_own_state(session) as own:
            own._runner.noise_source = seeded_noise(seed)
            own.sql(_TEXT, rho=0.26)
            own.sql(_TEXT, target_relative_error=0.1, max_rho=8.0, delta=1e-5)
            state = own._access.read()
            drawn.add(sum(map(len, _chains(state).values())))
            (unit,) = {one.name for one in state.policy().units}
            with state._database.read() as connection:
                shown.add(spent_as_shown(connection, unit, "ana").rho_nano)
    assert len(drawn) > 1
    assert len(shown) == 1
