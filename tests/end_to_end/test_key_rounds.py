"""Keys alone, selected in rounds: which keys are shown, what they cost, and what readers, crashes and rises leave."""

from __future__ import annotations

import contextlib
import itertools
import math
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import dpsql
from dpsql.accounting import gaussian
from dpsql.accounting.sparse_histogram import WeightedProfile
from dpsql.bound.aggregation import bounded_sql
from dpsql.bound.formulations import Formulation
from dpsql.cascade.reader import CURATOR
from dpsql.engine import DuckDBEngine
from dpsql.features import joint_release, key_rounds
from dpsql.mechanism.gaussian_measure import GaussianMeasure
from dpsql.mechanism.measure import NoisyHistogram
from dpsql.model.frame import NANO, PRESENCE, WEIGHT_BITS, Frame
from dpsql.model.identity import statistic_hash
from dpsql.model.query_kinds import KeysAlone
from dpsql.plan.features.key_rounds import COUNTED_KEYS, next_round
from dpsql.release import round_keys, stage
from dpsql.release.stages import Stage
from dpsql.sql.statements import SelectStatement, read_statement
from dpsql.state import ChargeItem, Ledger, Level, SideTable
from tests.end_to_end.receipts import receipt_of
from tests.end_to_end.sales_by_shop import BUDGET, DELTA, LIMITS, declare, fill, levels_of, open_session, spent, stored
from tests.noise_sources import seeded_noise

KEYS = "SELECT DISTINCT shop FROM sales"


@pytest.fixture
def session() -> Iterator[dpsql.Session]:
    with open_session() as session:
        yield session


def keys_of(answer: dpsql.Result) -> set[object]:
    found = [row[0] for row in answer.fetchall()]
    assert len(found) == len(set(found))
    return set(found)


# -- what is shown and what it costs ----------------------------------------------------------------------------------


def test_the_first_two_rounds_share_rho_and_delta_to_the_last_nano(session: dpsql.Session) -> None:
    answer = session.sql(KEYS, rho=0.123456789)
    receipt = receipt_of(answer)
    assert [round(1e9 * one.receipt.charged_rho) for one in receipt.sets] == [12345679, 111111110]
    assert round(1e9 * receipt.charged_rho) == 123456789
    assert receipt.rho == receipt.charged_rho == spent(session)
    parts = [1 / 8, 3 / 16]
    assert receipt.charged_delta == pytest.approx(DELTA * sum(parts), rel=1e-6)
    profiles = [
        WeightedProfile(
            max_groups=1, counted_groups=COUNTED_KEYS, sigma=1 / math.sqrt(2 * one.receipt.rho), aggregate_precision=0.0
        )
        for one in receipt.sets
    ]
    for profile, one, part in zip(profiles, receipt.sets, parts, strict=True):
        assert one.receipt.threshold == pytest.approx(1 + profile.own_threshold(DELTA * part), rel=1e-4)
    # both rounds together are one Gaussian release, and what thresholds cost comes on top
    assert receipt.epsilon == pytest.approx(gaussian.epsilon(DELTA / 2, math.sqrt(2 * receipt.rho), 1.0), rel=1e-6)
    assert receipt.delta == pytest.approx(DELTA * (1 / 2 + sum(parts)), rel=1e-6)
    assert (receipt.mechanism, receipt.columns, receipt.threshold) == ("gshm", (), None)


def test_a_query_by_epsilon_and_delta_keeps_both_however_many_rounds_there_are(session: dpsql.Session) -> None:
    for rounds, epsilon in enumerate((0.1, 0.2, 0.4, 0.8, 1.6), start=2):
        receipt = receipt_of(session.sql(KEYS, epsilon=epsilon, delta=1e-7))
        assert len(receipt.sets) == rounds
        assert receipt.epsilon == pytest.approx(epsilon, rel=1e-5)
        assert receipt.epsilon <= epsilon
        assert receipt.delta <= 1e-7


def test_frequent_keys_are_found_first_and_then_many_rare_ones(session: dpsql.Session) -> None:
    """One weighted round at the whole level is the twin: it finds the frequent keys, and fewer of the others.

    A minimum of units hides keys of what is stored.
    """
    answer = session.sql(KEYS, rho=2.0)
    once = session.sql(
        "SELECT shop, count(DISTINCT person) FROM sales GROUP BY shop",
        rho=2.0,
        max_groups_contributed=1,
        bounding="L2",
    )
    shops = keys_of(answer)
    assert {"big 0", "big 1", "big 2"} <= shops
    assert len(shops) > 1.5 * len(once)
    (first, second) = receipt_of(answer).sets
    assert first.receipt.threshold is not None
    assert second.receipt.threshold is not None
    assert second.receipt.threshold < first.receipt.threshold
    few = session.sql(KEYS, rho=2.0, min_privacy_units_per_group=100)
    assert receipt_of(few).reused
    assert {"big 0", "big 1", "big 2"} <= keys_of(few) < shops


def test_the_same_is_served_for_nothing_and_less_for_nothing_and_more_for_the_difference(
    session: dpsql.Session,
) -> None:
    first = session.sql(KEYS, rho=0.5)
    again = session.sql("SELECT shop FROM sales GROUP BY shop", rho=0.5)
    less = session.sql(KEYS, rho=0.1)
    assert receipt_of(again).reused
    assert keys_of(again) == keys_of(less) == keys_of(first)
    assert spent(session) == 0.5
    more = session.sql(KEYS, rho=1.5)
    assert levels_of(more) == pytest.approx([0.05, 0.45, 1.0])
    assert spent(session) == pytest.approx(1.5)
    assert keys_of(more) > keys_of(first)
    # a hair more would find nothing and cost a threshold
    assert receipt_of(session.sql(KEYS, rho=1.55)).reused
    assert keys_of(session.sql(KEYS, rho=1.5)) == keys_of(more)


def test_a_round_that_selects_nothing_is_followed_by_another_one(session: dpsql.Session) -> None:
    """Same rows, same list of selected keys: the number of the round tells the frames apart, so that each is paid."""
    for rho in (1e-6, 3e-6, 9e-6):
        answer = session.sql(KEYS, rho=rho)
        assert len(answer) == 0
        assert spent(session) == pytest.approx(rho)
    assert levels_of(answer) == pytest.approx([1e-7, 9e-7, 2e-6, 6e-6])


@pytest.fixture(params=[8, pytest.param(20, marks=pytest.mark.long)], ids=["short series", "whole series"])
def longest_series(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Return the number of rounds from which on a series grows no further; short ones have few."""
    assert (key_rounds._LEFT_BEHIND, key_rounds._MOST_ROUNDS) == (20, 11)
    monkeypatch.setattr(key_rounds, "_LEFT_BEHIND", request.param)
    monkeypatch.setattr(key_rounds, "_MOST_ROUNDS", request.param // 2 + 1)
    return key_rounds._MOST_ROUNDS


def test_small_questions_of_others_take_nothing_from_large_ones(session: dpsql.Session, longest_series: int) -> None:
    """They stay as they were answered; a series of rounds on all rows begins beside them, for what is left of rho."""
    alone = len(session.sql(KEYS, rho=2.0, refresh=True))
    before = spent(session)
    session.sql(KEYS, rho=1e-8, refresh=True)
    small = [1e-8 * 1.1**step for step in range(2 * longest_series - 2)]
    for rho in small:
        session.sql(KEYS, rho=rho)
    assert spent(session) - before < 1e-5
    large = session.sql(KEYS, rho=2.0)
    assert spent(session) - before == pytest.approx(2.0, abs=1e-9)
    assert levels_of(large) == pytest.approx([0.2, 1.8], rel=1e-4)
    assert len(large) > 0.9 * alone
    # nobody pays again, and whoever asks in between is served the one or the other
    for rho in (*small[:: longest_series - 2], 1e-3, 2.0):
        session.sql(KEYS, rho=rho)
        assert spent(session) - before == pytest.approx(2.0, abs=1e-9)


def test_a_series_that_ended_after_its_first_round_is_no_burden(
    session: dpsql.Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who asks the same again goes on with it; who asks for much more begins with a tenth of their own."""

    def fails(*_: object) -> None:
        raise RuntimeError("out of time")

    with monkeypatch.context() as patch:
        patch.setattr(key_rounds, "selected_keys", fails)
        with pytest.raises(RuntimeError):
            session.sql(KEYS, rho=1e-4)
    assert spent(session) == pytest.approx(1e-5)
    large = session.sql(KEYS, rho=0.5)
    assert levels_of(large) == pytest.approx([0.049999, 0.449991], abs=1e-8)
    assert spent(session) == pytest.approx(0.5)
    session.sql(KEYS, rho=1e-5)
    assert spent(session) == pytest.approx(0.5)


def test_a_series_of_many_rounds_grows_no_further(session: dpsql.Session, longest_series: int) -> None:
    """Who asks for less than twice as much is served what there is; for more, a new series begins."""
    for step in range(longest_series + 3):
        answer = session.sql(KEYS, rho=0.01 * 1.1**step)
    assert len(levels_of(answer)) == longest_series
    assert spent(session) == pytest.approx(0.01 * 1.1 ** (longest_series - 2), abs=1e-8)
    last = spent(session)
    large = session.sql(KEYS, rho=3 * last)
    assert levels_of(large) == pytest.approx([0.2 * last, 1.8 * last], abs=1e-8)
    assert spent(session) == pytest.approx(3 * last, abs=1e-8)


def test_rounds_are_found_again_beside_other_questions(session: dpsql.Session) -> None:
    """A query with weights and the same bounds has a frame of its own, which raises no round."""
    before = keys_of(session.sql(KEYS, rho=0.2))
    session.sql(
        "SELECT shop, count(DISTINCT person) FROM sales GROUP BY shop",
        rho=4.0,
        max_groups_contributed=32,
        bounding="L2",
    )
    answer = session.sql(KEYS, rho=0.2)
    assert receipt_of(answer).reused
    assert keys_of(answer) == before


def test_the_plan_says_what_is_charged(session: dpsql.Session) -> None:
    for rho in (0.5, 0.3, 2.0):
        plan = session.sql(f"FROM dp_explain($$SELECT DISTINCT shop FROM sales$$, rho := {rho})").fetchall()
        price = {name: float(value) for section, name, value in plan if section == "price" and name != "query hash"}
        receipt = receipt_of(session.sql(KEYS, rho=rho))
        assert price["rho"] == pytest.approx(receipt.charged_rho)
        assert price["threshold delta"] == pytest.approx(receipt.charged_delta)
        numbers = [value for section, name, value in plan if (section, name) == ("round", "number")]
        assert numbers == [str(i) for i in range(1, len(receipt.sets) + 1)]


def test_a_refresh_selects_anew(session: dpsql.Session) -> None:
    session.sql(KEYS, rho=0.5)
    session.connection.execute("INSERT INTO sales SELECT i, 1, 'new', 1 FROM range(1000) t(i)")
    assert "new" not in keys_of(session.sql(KEYS, rho=0.5))
    fresh = session.sql(KEYS, rho=0.5, refresh=True)
    assert "new" in keys_of(fresh)
    assert spent(session) == pytest.approx(1.0)
    assert keys_of(session.sql(KEYS, rho=0.5)) == keys_of(fresh)
    assert spent(session) == pytest.approx(1.0)


# -- readers, budgets, crashes ----------------------------------------------------------------------------------------


def test_a_reader_is_shown_no_more_than_their_limit_and_pays_nothing_below_what_is_stored(
    session: dpsql.Session,
) -> None:
    """Whole rounds as long as they fit, and of the next one a point at what is left."""
    session.sql(KEYS, rho=1.0)
    shown: dict[float, set[object]] = {}
    for limit, expected in ((0.05, [0.05]), (0.1, [0.1]), (0.4, [0.1, 0.3]), (0.9, [0.1, 0.8])):
        name = f"reader {limit}"
        session.sql(f"CALL dp_analyst('{name}', rho_limit := {limit})")
        answer = session.as_analyst(name).sql(KEYS, rho=limit)
        assert levels_of(answer) == pytest.approx(expected)
        assert receipt_of(answer).charged_rho == 0
        shown[limit] = keys_of(answer)
        # once more, and for less: nothing is added to what they hold
        assert keys_of(session.as_analyst(name).sql(KEYS, rho=limit)) == shown[limit]
        assert sum(levels_of(session.as_analyst(name).sql(KEYS, rho=limit / 2))) <= limit
        with pytest.raises(dpsql.AccessError):
            session.as_analyst(name).sql(KEYS, rho=limit * 1.01)
    assert spent(session) == 1.0
    assert shown[0.05] < shown[0.9]


def asked_again_after_a_lower_point(session: dpsql.Session) -> tuple[dpsql.Result, dpsql.Result]:
    """An answer before and after a reader with a limit is shown a lower point, whose threshold lets every key pass."""
    whole = session.sql(KEYS, rho=1.0)
    session.sql("CALL dp_analyst('ana', rho_limit := 0.08, replace := true)")

    lowered = GaussianMeasure.lowered

    def raised(*of: Any) -> NoisyHistogram:
        made = lowered(*of)
        return replace(made, values=made.values + 2**40)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GaussianMeasure, "lowered", raised)
        assert receipt_of(session.as_analyst("ana").sql(KEYS, rho=0.08)).charged_delta > 0
    return whole, session.sql(KEYS, rho=1.0)


def test_a_lower_point_that_shows_more_keys_changes_no_round(session: dpsql.Session) -> None:
    whole, again = asked_again_after_a_lower_point(session)
    assert receipt_of(again).charged_rho == 0
    assert levels_of(again) == levels_of(whole)
    assert keys_of(again) > keys_of(whole)
    assert spent(session) == 1.0


def test_rounds_that_follow_from_all_keys_that_are_shown_would_be_paid_again(
    session: dpsql.Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The twin leaves out what any threshold has shown: one that is paid later makes another next round."""
    selected = round_keys.selected_keys

    def shown_by_any(frame: Frame, level: Level, side_table: SideTable) -> pa.Table:
        levels = side_table.levels(statistic_hash(PRESENCE, frame))
        tables = [selected(frame, one, side_table) for one in levels if one.tau is not None]
        return pa.concat_tables(tables).group_by(frame.key_columns).aggregate([])

    monkeypatch.setattr(key_rounds, "selected_keys", shown_by_any)
    _, again = asked_again_after_a_lower_point(session)
    assert receipt_of(again).charged_rho > 0


def test_a_reader_with_a_limit_comes_first(session: dpsql.Session) -> None:
    session.sql("CALL dp_analyst('ana', rho_limit := 0.2, replace := true)")
    first = session.as_analyst("ana").sql(KEYS, rho=0.2)
    whole = session.sql(KEYS, rho=1.0)
    assert levels_of(whole) == pytest.approx([0.02, 0.18, 0.8])
    assert spent(session) == 1.0
    assert keys_of(session.as_analyst("ana").sql(KEYS, rho=0.2)) == keys_of(first)


def test_without_room_for_all_rounds_or_a_receipt_nothing_is_charged(
    session: dpsql.Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> tuple[float, float]:
        raise dpsql.CalibrationError("no guarantee")

    with pytest.raises(dpsql.BudgetError):
        session.sql(KEYS, rho=BUDGET * 1.05)
    assert spent(session) == 0
    monkeypatch.setattr(joint_release, "joint_guarantee_of", fails)
    with pytest.raises(dpsql.CalibrationError):
        session.sql(KEYS)
    assert spent(session) == 0


def test_a_crash_between_two_rounds_is_paid_once(session: dpsql.Session, monkeypatch: pytest.MonkeyPatch) -> None:
    charge = Ledger.charge
    charged: list[object] = []

    def once(self: Ledger, unit: str, items: tuple[ChargeItem, ...], analyst: str, *plan: int | None) -> object:
        if charged:
            raise dpsql.EngineError
        charged.append(items)
        return charge(self, unit, items, analyst, *plan)

    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "charge", once)
        with pytest.raises(dpsql.EngineError):
            session.sql(KEYS, rho=0.5)
    assert spent(session) == pytest.approx(0.05)
    answer = session.sql(KEYS, rho=0.5)
    assert levels_of(answer) == pytest.approx([0.05, 0.45])
    assert receipt_of(answer).charged_rho == pytest.approx(0.45)
    assert spent(session) == pytest.approx(0.5)


@pytest.mark.parametrize(("owner", "step"), [(Stage, "prepared"), (stage, "read_exact")])
def test_without_the_lock_a_round_is_still_drawn_once(
    session: dpsql.Session, monkeypatch: pytest.MonkeyPatch, owner: Any, step: str
) -> None:
    """Somebody asks before the round is planned, which would then rise, or after its rows are read."""
    whole, meanwhile, planned = getattr(owner, step), [0.1], itertools.count()
    monkeypatch.setattr(session._access.read().locks, "exclusive", lambda *_: contextlib.nullcontext())

    def ask_once() -> None:
        if meanwhile:
            session.sql(KEYS, rho=meanwhile.pop())

    def slow(*arguments: Any) -> object:
        # both rounds are planned before the first one is
        if owner is Stage and next(planned) < 2:
            return whole(*arguments)
        if owner is Stage:
            ask_once()
        found = whole(*arguments)
        ask_once()
        return found

    monkeypatch.setattr(owner, step, slow)
    with pytest.raises(dpsql.ReleaseError, match=r"^the frame was released by another process meanwhile; ask again$"):
        session.sql(KEYS, rho=0.5)
    # the round is the other's, and what is left goes to the next ones
    assert levels_of(session.sql(KEYS, rho=0.5)) == pytest.approx([0.01, 0.09, 0.4])


def test_sessions_that_ask_at_once_pay_the_most_that_is_asked(tmp_path: Path) -> None:
    """Each round is planned and drawn under one lock of the state file, so that none is drawn at two levels."""
    with dpsql.connect(tmp_path / "shop.duckdb") as first, dpsql.connect(tmp_path / "shop.duckdb") as second:
        fill(first)
        declare(first)
        asked = [(session, rho) for rho in (0.1, 0.5, 0.2) for session in (first, second)]
        answers: list[dpsql.Result] = []
        threads = [
            threading.Thread(target=lambda s=session, rho=rho: answers.append(s.sql(KEYS, rho=rho)))
            for session, rho in asked
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(answers) == len(asked)
        assert spent(first) == pytest.approx(0.5)
        tops = stored(first, "SELECT statistic_hash AS name, max(rho_nano) AS level FROM point GROUP BY name")
        assert sum(level for _, level in tops) == 500_000_000


# -- histories --------------------------------------------------------------------------------------------------------

RHOS = (1e-7, 0.002, 0.01, 0.05, 0.1, 0.29, 0.3, 0.5, 1.0, 1.2, 1.21, 3.0)


def complaints(seed: int, questions: int = 30) -> Iterator[str]:
    """Yield what is wrong after each question of a random history: prices, tops of rounds, or what a reader holds."""
    random = np.random.default_rng(seed)
    with open_session(seeded_noise(seed)) as session:
        tops: dict[str, int] = {}
        most = 0.0
        for _ in range(questions):
            name, rho = str(random.choice(list(LIMITS))), float(random.choice(RHOS))
            limit = LIMITS[name]
            if limit is not None and rho > limit:
                continue
            before, asks = spent(session), session.sql if limit is None else session.as_analyst(name).sql
            plan = asks(f"FROM dp_explain($$SELECT DISTINCT shop FROM sales$$, rho := {rho})").fetchall()
            (price,) = (float(value) for section, what, value in plan if (section, what) == ("price", "rho"))
            receipt = receipt_of(asks(KEYS, rho=rho, delta=float(random.choice([1e-6, 1e-5]))))
            if not math.isclose(price, receipt.charged_rho, abs_tol=1e-9):
                yield f"{name} was told {price} and charged {receipt.charged_rho}"
            if not math.isclose(before + receipt.charged_rho, spent(session), abs_tol=1e-9):
                yield f"{name} was charged {receipt.charged_rho} of {spent(session) - before}"
            most = max(most, rho)
            if not most / 1.06 < spent(session) <= most + 1e-9:
                yield f"{spent(session)} is spent where {most} was asked for at most"
            points = stored(session, "SELECT statistic_hash AS name, max(rho_nano) AS level FROM point GROUP BY name")
            yield from (f"round {one} rose" for one, level in points if tops.setdefault(one, level) != level)
            served = "SELECT statistic_hash AS name, max(served_rho) AS level FROM pin WHERE analyst = ? GROUP BY name"
            held = stored(session, served, name)
            if limit is not None and sum(level for _, level in held) > round(limit * 1e9):
                yield f"{name} holds {sum(level for _, level in held) / 1e9} of {limit}"


@pytest.mark.parametrize(
    ("seed", "questions"), [(1, 20), *(pytest.param(seed, 30, marks=pytest.mark.long) for seed in range(1, 20))]
)
def test_a_history_costs_the_most_that_was_asked_for_and_readers_keep_to_their_limits(
    seed: int, questions: int
) -> None:
    assert list(complaints(seed, questions)) == []


def test_the_check_finds_rounds_that_are_each_shown_up_to_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    of_reader = key_rounds.KeyRounds._round

    def with_whole_limit(self: key_rounds.KeyRounds, *of: Any) -> key_rounds.Round:
        one = of_reader(self, *of)
        query = replace(one.query, request=one.query.request.at(self.total_nano / NANO))
        return replace(one, query=query, reader=self.reader)

    monkeypatch.setattr(key_rounds.KeyRounds, "_round", with_whole_limit)
    assert next(itertools.chain.from_iterable(complaints(seed) for seed in (1, 2)), None)


# -- what one unit moves ----------------------------------------------------------------------------------------------


def later_frame(session: dpsql.Session, text: str = KEYS) -> Frame:
    statement = read_statement(text)
    assert isinstance(statement, SelectStatement)
    query, _, _ = session._runner.plan(statement, {}, CURATOR)
    assert isinstance(query, KeysAlone)
    return next_round(query.first.frame, 1, "fixed")


def weights(
    session: dpsql.Session, frame: Frame, selected: pa.Table, formulation: Formulation = "groups_first"
) -> dict[object, float]:
    sql = bounded_sql(frame, (PRESENCE,), bytes(16), formulation=formulation)
    table = DuckDBEngine(session.connection).aggregate(sql, listed_keys=selected, timeout_seconds=None).reveal()
    units = table.column("units").to_pylist()
    return {key: n / 2**WEIGHT_BITS for key, n in zip(table.column("key_0").to_pylist(), units, strict=True)}


@pytest.mark.parametrize("formulation", ["groups_first", "rows_first"])
def test_a_unit_moves_the_keys_that_are_left_by_norm_one_and_no_further(
    session: dpsql.Session, formulation: Formulation
) -> None:
    """Whatever was selected before; a weight over all keys of a unit, the selected ones too, would fall short of it."""
    random, frame = np.random.default_rng(2), later_frame(session)
    norms = []
    for _ in range(12):
        mine = int(random.integers(1, 90))
        session.connection.execute("DELETE FROM sales WHERE person = 0")
        session.connection.execute(
            "INSERT INTO sales SELECT 0, 0, CASE i WHEN 0 THEN NULL WHEN 1 THEN 'big 0' ELSE 'mine ' || i END, 1 "
            "FROM range($1) t(i), range(2)",
            [mine],
        )
        shops = ["big 0", "big 1", None, *(f"mine {i}" for i in range(2, 90))]
        chosen = pa.table({"key_0": pa.array([one for one in shops if random.random() < 0.3], pa.string())})
        with_unit = weights(session, frame, chosen, formulation)
        session.connection.execute("DELETE FROM sales WHERE person = 0")
        without = weights(session, frame, chosen, formulation)
        assert not set(with_unit) & set(chosen.column("key_0").to_pylist())
        moved = [with_unit.get(key, 0.0) - without.get(key, 0.0) for key in with_unit | without]
        norms.append(math.sqrt(math.fsum(one**2 for one in moved)))
    assert max(norms) <= 1.0
    assert min(one for one in norms if one) > 0.9999


def test_keys_of_every_spelling_are_left_out(session: dpsql.Session) -> None:
    """What a round selected is what the next one does not see, whatever its type."""
    session.connection.execute(
        "CREATE OR REPLACE TABLE odd AS SELECT i % 500 AS person, "
        "CASE i % 3 WHEN 0 THEN 'nan'::DOUBLE WHEN 1 THEN -0.0 ELSE 0.0 "
        "END AS f, [i % 2, NULL] AS l, INTERVAL (30 * (i % 2)) DAY AS span, (i % 2)::HUGEINT * 10::HUGEINT^30 AS h, "
        "TIMESTAMP '2024-01-01 00:00:00.5' + INTERVAL (i % 3) HOUR AS t, nullif('a', ['a', 'b'][1 + i % 2]) AS n, "
        "DATE '5000-01-01' + INTERVAL (9000 * (i % 2)) YEAR AS d, (i % 2 = 0) AS b, (i % 3)::DECIMAL(20, 3) / 7 AS m "
        "FROM range(6000) t(i)"
    )
    session.sql(
        "CALL dp_protect('odd', coverage := FALSE, "
        "privacy_unit_column := 'person', separate_people := true, rho_budget := 1000, "
        "delta_threshold := 1e-2, "
        f"delta_conversion := 1e-6, default_rho := 5, default_delta := {DELTA})"
    )
    found = round_keys.selected_keys
    for name in ("f", "l", "span", "h", "t", "n", "d", "b", "m"):
        expected = session.connection.execute(f"SELECT count(*) FROM (SELECT DISTINCT {name} FROM odd)").fetchone()
        selected: list[int] = []

        def counted(*arguments: object, selected: list[int] = selected) -> pa.Table:
            keys = found(*arguments)  # type: ignore[arg-type]  # as it is called
            selected.append(keys.num_rows)
            return keys

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(key_rounds, "selected_keys", counted)
            session.sql(f"SELECT DISTINCT {name} FROM odd")
            # both rounds are stored, and what each selected is read
            answer = session.sql(f"SELECT DISTINCT {name} FROM odd")
        assert expected is not None
        assert len(answer) == expected[0]
        # all of them in the first round, hence none in the second
        assert selected[0] == expected[0]
        assert set(selected) == {expected[0], 0}
