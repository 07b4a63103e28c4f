"""What bounding leaves is said beside the numbers: priced, stored and served like them, at the reader's clearance.

Numbers of people, averages, spreads and sums of both signs have histograms. Those of counts, and of sums of values from
0 on, have a number of rows left out instead (test_left_out_of_counts.py).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from html import escape

import numpy as np
import pytest

import dpsql
from dpsql.bound.aggregation import bounded_sql
from dpsql.bound.coverage import PLACES, coverage_sql, first_end, most_left
from dpsql.mechanism.gaussian_measure import GAUSSIAN
from dpsql.model.frame import NANO, NOISE_GRID_EXPONENT, Statistic
from dpsql.model.identity import frame_hash, statistic_hash
from dpsql.model.private_query import FrameQuery
from dpsql.model.statistic_kinds import COVERAGE_KINDS
from dpsql.receipts import phrases
from dpsql.release.coverage import kept_of
from dpsql.remote.wire import receipt_of as receipt_from_json
from dpsql.remote.wire import to_json
from tests.end_to_end.receipts import receipt_of
from tests.end_to_end.visits_by_word import (
    AVERAGE,
    PEOPLE,
    QUESTION,
    SIGNED,
    SUMS,
    opened,
    planned,
    sizes_of,
    top_levels,
)
from tests.noise_sources import seeded_noise, silence


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


def test_its_parts_are_the_query_to_the_nano_and_a_rise_is_the_difference(session: dpsql.Session) -> None:
    text = f"SELECT word, count(*), count(DISTINCT person), {SUMS} FROM visits GROUP BY word"
    for rho in (0.123456789, 0.7):
        before = receipt_of(session.sql(text, rho=rho, coverage=True))
        levels = top_levels(session, text, rho)
        assert sum(levels.values()) == round(rho * NANO)
        covered = [level for one, level in levels.items() if one.covered]
        assert len(covered) == 3
        assert all(level == round(rho * NANO) // 96 for level in covered)
        assert before.rho == pytest.approx(rho, abs=1e-12)
        assert before.charged_rho == pytest.approx(rho - (0.123456789 if rho > 0.2 else 0), abs=1e-12)
    again = session.sql(text, rho=0.7, coverage=True)
    lower = session.sql(text, rho=0.2, coverage=True)
    assert receipt_of(again).reused
    assert receipt_of(lower).reused
    assert [one.of for one in receipt_of(lower).coverage] == ["groups"]
    assert {one.of for one in receipt_of(lower).left_out} == {"rows", SUMS}
    # as of every statistic, a paid point serves up to the level of the whole query
    assert receipt_of(lower).coverage == receipt_of(again).coverage
    assert receipt_of(session.sql(text, rho=0.001, coverage=True)).coverage != receipt_of(again).coverage


@pytest.mark.parametrize("text", [QUESTION, PEOPLE])
def test_by_epsilon_the_whole_query_has_the_epsilon_that_is_asked_for(session: dpsql.Session, text: str) -> None:
    receipt = receipt_of(session.sql(text, epsilon=1.0, delta=1e-6, coverage=True))
    assert receipt.epsilon == 1.0
    assert receipt.delta <= 1e-6
    session.sql("CALL dp_new_version('visits')")
    without = receipt_of(session.sql(text, epsilon=1.0, delta=1e-6, coverage=False))
    # the numbers have 31/32 of the same rho, and nothing else is lost
    assert receipt.rho == pytest.approx(without.rho, rel=1e-3)
    found, plain = receipt.columns[0].sigma, without.columns[0].sigma
    assert found
    assert plain
    assert found / plain == pytest.approx((32 / 31) ** 0.5, rel=1e-3)


def test_one_more_number_is_told_by_the_coverage_that_is_there(session: dpsql.Session) -> None:
    """A statistic's coverage is its own: what is asked beside it later costs its own coverage alone."""
    session.sql(PEOPLE, rho=1.0, coverage=True)
    first = top_levels(session, PEOPLE, 1.0)
    more = PEOPLE.replace("AS n", f"AS n, {AVERAGE} AS mean")
    session.sql(more, rho=1.0, coverage=True)
    both = top_levels(session, more, 1.0)
    shared = [one for one in first if one.covered]
    assert len(shared) == 1
    # it is asked for half as much beside another one, which what is stored serves
    assert both[shared[0]] == first[shared[0]]


def _exact_places(session: dpsql.Session, text: str, salt: bytes) -> dict[Statistic, np.ndarray]:
    """Return units by place, for each statistic of a query that has a histogram of coverage."""
    query, _ = planned(session, text, 1.0)
    asked = tuple(one for one in query.statistics if one.kind in COVERAGE_KINDS)
    counts = {one: np.zeros(PLACES, dtype=np.int64) for one in asked}
    for number, place, units in session.connection.execute(coverage_sql(query.frame, asked, salt)).fetchall():
        counts[asked[number - 1]][place] = units
    return counts


def test_the_statement_holds_in_370_of_400_releases(session: dpsql.Session) -> None:
    """40 secrets, 10 draws each; of 400 with probability 0.95 fewer than 370 hold with probability 0.02."""
    truth, _ = sizes_of(session)
    text = f"SELECT word, {AVERAGE} AS n FROM visits GROUP BY word"
    query, _ = planned(session, text, 1.0)
    levels = {rho: np.random.default_rng(11) for rho in (0.02, 0.5)}
    held = dict.fromkeys(levels, 0)
    for number in range(40):
        salt = bytes([number, *range(15)])
        places = _exact_places(session, text, salt)
        ((asked, counts),) = ((one, counts) for one, counts in places.items() if one.kind == "rows_coverage")
        kept = _kept_rows(session, query, salt)
        assert asked.covered is not None
        most = most_left(asked.covered, query.frame)
        for rho, rng in levels.items():
            sigma = (2.0 * rho / 32) ** -0.5
            for _ in range(10):
                noisy, end = counts + rng.normal(0.0, sigma, PLACES), first_end(asked.covered)
                found = kept_of(noisy, sigma, end, most, measure=GAUSSIAN)
                held[rho] += found.share is not None and found.share.low <= kept / truth <= found.share.high
    assert min(held.values()) >= 370


def _kept_rows(session: dpsql.Session, query: FrameQuery, salt: bytes) -> float:
    presence, rows = query.statistics[:2]
    found = session.connection.execute(bounded_sql(query.frame, (presence, rows), salt)).fetchall()
    return float(sum(row[-1] * rows.lattice + rows.centre * row[-2] for row in found))


BEYOND = ("least_beyond", "most_beyond", "part_beyond", "high_of_all")


def test_a_person_with_half_of_all_rows_is_beyond_and_moves_nothing_else() -> None:
    text = f"SELECT {AVERAGE} AS n FROM visits"
    with opened() as without, opened(heavy=160_000) as with_heavy:
        exact, heavy = (
            counts
            for one in (without, with_heavy)
            for of, counts in _exact_places(one, text, bytes(16)).items()
            if of.kind == "rows_coverage"
        )
        assert sizes_of(with_heavy)[0] > 2 * sizes_of(without)[0]
        moved = heavy - exact
        assert list(np.flatnonzero(moved)) == [PLACES - 1]
        assert moved[-1] == 1
        one, other = (kept_of(counts.astype(np.float64), 0.01, 1.0, 2.0, measure=GAUSSIAN) for counts in (exact, heavy))
        assert replace(other, **{name: getattr(one, name) for name in BEYOND}) == one
        assert 0.4 * 0.2 < other.part_beyond < 0.5
        assert other.most_beyond == pytest.approx(one.most_beyond + 1)
        silence(with_heavy)
        (kept,) = receipt_of(with_heavy.sql(text, rho=40.0, coverage=True)).coverage
        assert kept.size >= 128
        assert 1 < kept.beyond < 20


def test_a_reader_is_told_what_their_clearance_allows(fresh: dpsql.Session) -> None:
    fresh.sql("CALL dp_analyst('ana', rho_limit := 0.05)")
    of_curator = receipt_of(fresh.sql(PEOPLE, rho=2.0, coverage=True))
    ana = fresh.as_analyst("ana")
    first = receipt_of(ana.sql(PEOPLE, rho=0.05, coverage=True))
    again = receipt_of(ana.sql(PEOPLE, rho=0.05, coverage=True))
    assert first.coverage == again.coverage != of_curator.coverage
    assert first.charged_rho == 0.0
    query, state = planned(fresh, PEOPLE, 2.0)
    (asked,) = (one for one in query.statistics if one.covered)
    levels = [level.rho_nano for level in state.side_table.levels(statistic_hash(asked, query.frame))]
    assert levels[0] == 2 * NANO // 32
    assert levels[-1] <= 0.05 * NANO / 32
    with pytest.raises(dpsql.AccessError):
        ana.sql(PEOPLE, rho=0.06, coverage=True)


def test_noise_of_places_is_that_of_its_level(session: dpsql.Session) -> None:
    """65 places of 3 numbers and 6 versions: the sum of the squares of their noise is chi-squared.

    That of half the noise is not.
    """
    squares = []
    text = f"SELECT word, {AVERAGE}, {SIGNED} FROM visits GROUP BY word"
    for _ in range(6):
        session.sql("CALL dp_new_version('visits')")
        session.sql(text, rho=1.5, coverage=True)
        query, state = planned(session, text, 1.5)
        salt = state.side_table.frame_salt(frame_hash(query.frame), "person", ["main.visits"])
        for asked, exact in _exact_places(session, text, salt).items():
            name = statistic_hash(asked, query.frame)
            (level,) = state.side_table.levels(name)
            point = state.side_table.point(name, level.rho_nano)
            assert point is not None
            noise = point.values * 2.0**NOISE_GRID_EXPONENT - exact
            assert point.sigma == pytest.approx((2.0 * level.rho_nano / NANO) ** -0.5, rel=1e-9)
            squares.append(float((noise / point.sigma) @ (noise / point.sigma)))
    # 1,170 draws: a sum within 5 standard deviations, p = 1e-6; a quarter of it is 18 away
    assert len(squares) == 18
    total = sum(squares)
    assert abs(total - 1170) < 5 * (2 * 1170) ** 0.5
    assert abs(total / 4 - 1170) > 15 * (2 * 1170) ** 0.5


def test_every_door_says_it(session: dpsql.Session) -> None:
    answer = session.sql(PEOPLE, rho=1.0, coverage=True)
    assert phrases.at_least(receipt_of(answer).coverage[0].low) in str(answer)
    assert escape(str(answer.receipt)) in answer._repr_html_()
    assert "bounds  at least" in answer._repr_html_().split("<summary>")[0]
    picture = answer.plot()
    assert "bounds  at least" in picture.texts[0].get_text()

    assert receipt_from_json(json.loads(json.dumps(to_json(answer.receipt)))) == answer.receipt


def test_heavy_users_of_a_web_log_are_told_of_at_every_door() -> None:
    """2,000 visitors by a Pareto law of index 1.2: a share that is kept never hides those who have half of all rows."""
    with dpsql.connect() as session:
        # the salt is another one each time, so the share that is asserted below is far from its end with this seed
        session._runner.noise_source = seeded_noise(2)
        session.connection.execute(
            "CREATE TABLE log AS SELECT visitor, '/' || CAST((visitor + row) % 7 AS VARCHAR) AS page, 1 + row % 3 AS s "
            "FROM range(2000) v(visitor), range(3000) r(row) "
            "WHERE row < 4.3 * (pow((visitor + 0.5) / 2000, -1 / 1.2) - 1) + 1"
        )
        session.sql("CALL dp_unit('visitor', epsilon_budget := 100, delta_budget := 1e-3)")
        session.sql("CALL dp_protect('log', unit := 'visitor', privacy_unit_column := 'visitor')")
        session.sql("CALL dp_domain('log', 's', bounds := [1, 3])")
        answer = session.sql("SELECT page, avg(s) AS mean FROM log GROUP BY page", epsilon=5, delta=1e-6)
    sizes = np.minimum(np.ceil(4.3 * (((np.arange(2000) + 0.5) / 2000) ** (-1 / 1.2) - 1) + 1), 3000)
    (kept,) = receipt_of(answer).coverage
    beyond = sizes > kept.size
    assert kept.least_beyond <= beyond.sum() <= kept.beyond
    assert sizes[beyond].sum() / sizes.sum() / 5 <= kept.part_beyond <= sizes[beyond].sum() / sizes.sum()
    (sentence,) = receipt_of(answer).kept
    assert sentence.startswith(
        f"avg(s): at least {kept.least_beyond} and at most {kept.beyond} units (visitor) have more"
    )
    assert " of all, and it is unknown what part" in sentence
    assert "100 %" not in sentence
    below = " ".join(str(answer).split())
    more = f"at least {kept.least_beyond:,} units have more than {kept.size:.0f} of its rows"
    assert f"{more}, with at least {phrases.at_least(kept.part_beyond)}" in below
    assert escape(str(answer.receipt)) in answer._repr_html_()
    assert more in " ".join(answer.plot().texts[0].get_text().split())


def test_grouping_sets_that_add_up_say_why_nothing_is_known(session: dpsql.Session) -> None:
    with opened() as listed:
        listed.sql(f"CALL dp_domain('visits', 'word', keys := {list(range(40))})")
        receipt = receipt_of(listed.sql("SELECT word, count(*) AS n FROM visits GROUP BY ROLLUP (word)", rho=1.0))
    (sentence,) = receipt.kept
    assert sentence.endswith("ask about each set by itself")
    # sets that are bounded by themselves hold together, by wider ends than each alone
    sets = receipt_of(session.sql(f"SELECT word, {AVERAGE} AS n FROM visits GROUP BY ROLLUP (word)", rho=4.0)).sets
    (alone,) = receipt_of(session.sql(f"SELECT {AVERAGE} AS n FROM visits", rho=2.0)).coverage
    (together,) = next(one.receipt.coverage for one in sets if not one.keys)
    assert together.share == pytest.approx(alone.share, rel=0.05)
    assert together.high - together.low > 1.05 * (alone.high - alone.low)


@pytest.mark.parametrize(
    ("text", "options", "found"),
    [
        (f"SELECT word, {AVERAGE} AS n FROM visits GROUP BY ROLLUP (word)", {}, 0),
        (f"SELECT CAST(word AS VARCHAR) AS w, {SIGNED} AS n FROM visits GROUP BY w", {"other_group": "rest"}, 1),
        (PEOPLE, {"mechanism": "KEYS_FIRST"}, 1),
        (PEOPLE, {"bounding": "L2"}, 1),
        (f"SELECT word, {SIGNED} AS n FROM visits GROUP BY word", {"bounding": "L2"}, 1),
        (PEOPLE, {"rho_window": (0.1, 2.0)}, 1),
        (PEOPLE, {"max_groups_contributed": "AUTO"}, 1),
        (f"SELECT word, {AVERAGE} AS n FROM visits GROUP BY word", {}, 1),
        ("SELECT stddev_pop(cost, contribution_bounds_per_row => (0, 5)) AS n FROM visits", {}, 1),
        (PEOPLE, {}, 1),
        (f"SELECT word, count(*) AS n, {AVERAGE} AS mean FROM visits GROUP BY word", {}, 1),
    ],
)
def test_it_stands_beside_every_kind_of_answer(
    session: dpsql.Session, text: str, options: dict[str, object], found: int
) -> None:
    receipt = receipt_of(session.sql(text, rho=1.0, coverage=True, **options))  # type: ignore[arg-type]
    assert len(receipt.coverage) == found
    if "rho_window" not in options:
        assert receipt.rho == pytest.approx(2.0 if "other_group" in options else 1.0, rel=1e-9)
    if not found:
        assert all(len(one.receipt.coverage) == 1 for one in receipt.sets)
        assert any(sentence.startswith("(): avg(cost") for sentence in receipt.sections["bounds"])
    again = session.sql(text, rho=1.0, coverage=True, **options)  # type: ignore[arg-type]
    assert receipt_of(again).reused
    assert receipt_of(again).coverage == receipt.coverage


def test_what_nothing_can_leave_out_has_none(session: dpsql.Session) -> None:
    told = "SELECT count(DISTINCT person) AS n, dp_unbounded(n) AS whole FROM visits"
    for text in (told, f"{told} WHERE word = 1"):
        answer = session.sql(text, rho=1.0, coverage=True)
        assert receipt_of(answer).kept == ()
        ((n, whole),) = answer.fetchall()
        assert round(whole) == n


def test_a_version_whose_rows_are_gone_says_that_it_is_not_known(fresh: dpsql.Session) -> None:
    before = fresh.sql(QUESTION, rho=1.0, coverage=False)
    fresh.sql("CALL dp_new_version('visits')")
    told = QUESTION.replace("AS n", "AS n, dp_unbounded(n) AS whole")
    answer = fresh.sql(told, rho=1.0, as_of="1")
    assert receipt_of(answer).reused
    (unknown,) = receipt_of(answer).kept
    assert unknown.startswith("it is unknown what part of rows is counted: it was not measured")
    assert all(whole is None for _, _, whole in answer.fetchall())
    assert [row[:2] for row in answer.fetchall()] == before.fetchall()


def test_the_row_of_the_other_groups_has_no_number_without_bounds(session: dpsql.Session) -> None:
    text = (
        "SELECT CAST(word AS VARCHAR) AS w, count(*) AS n, dp_unbounded(n) AS whole FROM visits "
        "WHERE word < 4 OR person < 3 GROUP BY w"
    )
    rows = {w: whole for w, _, whole in session.sql(text, rho=1.0, other_group="rest").fetchall()}
    assert rows.pop("rest") is None
    assert all(whole > 0 for whole in rows.values())


@pytest.mark.parametrize(
    "call",
    [
        "count(*, contribution_bounds_per_group => (7, 9))",
        "sum(cost, contribution_bounds_per_group => (5, 50))",
        "sum(cost, contribution_bounds_per_row => (1, 4))",
    ],
)
def test_bounds_that_add_to_values_have_no_share(session: dpsql.Session, call: str) -> None:
    """A line says so, and names bounds that have a share."""
    answer = session.sql(f"SELECT word, {call} AS n FROM visits GROUP BY word", rho=1.0)
    unknown, groups = receipt_of(answer).coverage
    assert ((unknown.of, unknown.share), groups.of) == ((call, None), "groups")
    told = unknown.unknown.partition("write ")[2]
    assert (told.partition(" => ")[0], told[-2:]) == (call.partition(", ")[2].partition(" => ")[0], call[-3:-1])
    measured = session.sql(f"SELECT word, {call.partition(', ')[0]}, {told}) AS n FROM visits GROUP BY word", rho=1.0)
    assert ([one.columns for one in receipt_of(measured).left_out], receipt_of(measured).coverage) == ([("n",)], ())
    with pytest.raises(dpsql.UnsupportedQueryError, match="begin at 0 or below"):
        session.sql(f"SELECT word, {call} AS n, dp_unbounded(n) FROM visits GROUP BY word", rho=1.0)


def test_bounds_that_auto_finds_above_0_are_told_of(fresh: dpsql.Session) -> None:
    """Nearly everybody has two rows, and a few have half of the sum: nothing else would tell that it is missing."""
    fresh.connection.execute(
        "CREATE TABLE bills AS SELECT p, 300 AS paid FROM range(4000) u(p), range(CASE WHEN p < 20 THEN 400 ELSE 2 END)"
    )
    fresh.sql("CALL dp_protect('bills', unit := 'person', privacy_unit_column := 'p')")
    answer = fresh.sql("SELECT sum(paid) AS s, median(paid) AS m FROM bills", rho=1.0)
    assert answer.df().s[0] < 0.7 * 300 * (20 * 400 + 3980 * 2)
    (line,) = receipt_of(answer).kept
    assert line == (
        "it is unknown what part of sum(paid) is counted: its bounds begin above 0, and raise smaller values; write "
        "contribution_bounds_per_group => (0, 1024)"
    )


def test_where_rows_are_cut_before_they_are_grouped_nothing_is_measured(session: dpsql.Session) -> None:
    text = "SELECT count(*) AS n{} FROM visits a JOIN visits b USING (person)"
    receipt = receipt_of(session.sql(text.format(""), rho=1.0))
    assert ["a join keeps a limited number of rows" in sentence for sentence in receipt.kept] == [True]
    with pytest.raises(dpsql.UnsupportedQueryError, match="cut the rows of a unit"):
        session.sql(text.format(", dp_unbounded(n)"), rho=1.0)


def test_rows_that_are_gone_are_told_of_as_far_as_they_were_measured(fresh: dpsql.Session) -> None:
    low = receipt_of(fresh.sql(PEOPLE, rho=0.5))
    assert low.coverage
    fresh.sql(PEOPLE, rho=2.0, coverage=False)
    fresh.sql("CALL dp_new_version('visits')")
    for rho in (0.5, 1.0, 2.0):
        receipt = receipt_of(fresh.sql(PEOPLE, rho=rho, as_of="1"))
        assert receipt.coverage == low.coverage
        assert receipt.reused


def test_public_keys_leave_coverage_its_share(fresh: dpsql.Session) -> None:
    fresh.sql(f"CALL dp_domain('visits', 'word', keys := {list(range(40))})")
    fresh.sql(QUESTION, rho=0.32)
    levels = top_levels(fresh, QUESTION, 0.32)
    assert [level for one, level in levels.items() if one.covered] == [10_000_000]
    assert sum(levels.values()) == 320_000_000
