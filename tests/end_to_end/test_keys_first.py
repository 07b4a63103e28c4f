"""Keys first, numbers second: prices, numbers, rises, keys that the rows get later, readers and crashes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

import dpsql
from dpsql.accounting import gaussian
from dpsql.cascade.reader import CURATOR, Reader
from dpsql.errors import ReleaseError
from dpsql.features import joint_release, keys_first
from dpsql.model.frame import NANO, PRESENCE
from dpsql.model.identity import frame_hash, statistic_hash
from dpsql.model.query_kinds import KeysFirst
from dpsql.release import exact as exact_module
from dpsql.release import stages
from dpsql.release.exact import Reading
from dpsql.sql.statements import SelectStatement, read_statement
from dpsql.state import ChargeItem, Ledger, SideTable, State, Tail
from tests.end_to_end.receipts import receipt_of
from tests.end_to_end.sales_by_shop import DELTA, LIMITS, declare, fill, levels_of, open_session, spent, stored
from tests.noise_sources import NoNoise, seeded_noise

PEOPLE = "SELECT shop, count(DISTINCT person) AS n FROM sales GROUP BY shop"
SUMS = (
    "SELECT shop, count(DISTINCT person) AS n, sum(cost, contribution_bounds_per_group => (0, 900)) AS paid "
    "FROM sales GROUP BY shop"
)
FIRST: dict[str, Any] = {"mechanism": "KEYS_FIRST", "max_groups_contributed": 9}


@pytest.fixture
def session() -> Iterator[dpsql.Session]:
    with open_session() as session:
        yield session


def asked(session: dpsql.Session, rho: float, text: str = PEOPLE, **options: Any) -> pd.DataFrame:
    return session.sql(text, rho=rho, **{**FIRST, **options}).df().set_index("shop")


def add_shop(session: dpsql.Session, people: int, name: str = "late") -> None:
    """So many people, none of them with more than eight shops before, buy in a new one."""
    session.connection.execute(f"INSERT INTO sales SELECT 9 * i, 0, '{name}', 5 FROM range({people}) t(i)")


# -- what is shown and what it costs ----------------------------------------------------------------------------------


def test_six_tenths_are_for_keys_to_the_last_nano(session: dpsql.Session) -> None:
    receipt = receipt_of(session.sql(PEOPLE, rho=0.123456789, **FIRST))
    assert [round(1e9 * one.receipt.charged_rho) for one in receipt.sets] == [7407408, 66666665, 49382716]
    assert [one.keys for one in receipt.sets] == [("round 1",), ("round 2",), ("numbers",)]
    assert receipt.rho == receipt.charged_rho == spent(session) == 0.123456789
    # what the thresholds of the rounds cost; numbers have none
    assert receipt.charged_delta == pytest.approx(DELTA * (1 / 8 + 3 / 16), rel=1e-6)
    assert receipt.epsilon == pytest.approx(gaussian.epsilon(DELTA / 2, math.sqrt(2 * receipt.rho), 1.0), rel=1e-6)
    assert receipt.delta == pytest.approx(DELTA * (1 / 2 + 1 / 8 + 3 / 16), rel=1e-6)
    assert (receipt.mechanism, receipt.threshold) == ("keys_first", None)
    (column,) = receipt.columns
    assert column.sigma == pytest.approx(math.hypot(math.sqrt(9 / (2 * 0.049382716)), math.sqrt(1 / 12)), rel=1e-3)


def test_a_query_by_epsilon_and_delta_keeps_both(session: dpsql.Session) -> None:
    for epsilon in (0.2, 0.8, 1.6):
        receipt = receipt_of(session.sql(SUMS, epsilon=epsilon, delta=1e-7, **FIRST))
        assert receipt.epsilon == pytest.approx(epsilon, rel=1e-5)
        assert receipt.epsilon <= epsilon
        assert receipt.delta <= 1e-7


@pytest.mark.usefixtures("as_they_are")
def test_numbers_are_of_all_rows_and_lean_neither_way(session: dpsql.Session) -> None:
    """Nobody has more than nine shops, so nothing is cut, and a frequent shop takes no weight from a rare one."""
    exact = (
        session.connection.sql(SUMS.replace(", contribution_bounds_per_group => (0, 900)", "")).df().set_index("shop")
    )
    answer = session.sql(SUMS, rho=4.0, **FIRST)
    shown = answer.df().set_index("shop")
    columns = {column.name: column.sigma for column in receipt_of(answer).columns}
    assert len(shown) > 100
    for name in ("n", "paid"):
        errors = (shown[name].astype(float) - exact[name][shown.index].astype(float)) / columns[name]
        # of a shown group's error nothing depends on its being shown: mean 0 and variance 1, at 4 standard deviations
        assert abs(errors.mean()) < 4 / math.sqrt(len(errors))
        assert abs((errors**2).mean() - 1) < 4 * math.sqrt(2 / len(errors))


def test_sums_and_means_of_a_key_that_came_later_are_of_their_own_day(session: dpsql.Session) -> None:
    """No half of them is counted by units, of which the rows of the first day had none."""
    asked(session, 1.0)
    add_shop(session, 2000)
    text = (
        "SELECT shop, sum(cost, contribution_bounds_per_group => (0, 10)) AS paid, count(*) AS n, "
        "avg(cost, contribution_bounds_per_row => (0, 10)) AS mean, "
        "count(DISTINCT person) FILTER (WHERE cost > 1) AS buyers FROM sales GROUP BY shop"
    )
    session.sql("CALL dp_protect('sales', coverage := FALSE, max_rows_per_group := 2, replace := true)")
    answer = session.sql(text, rho=4.0, **FIRST)
    late = answer.df().set_index("shop").astype(float).loc["late"]
    sigma = {column.name: column.sigma or 0.0 for column in receipt_of(answer).columns}
    for name, exact in (("paid", 10_000), ("n", 2000), ("buyers", 2000)):
        assert late[name] == pytest.approx(exact, abs=4 * sigma[name])
    assert late["mean"] == pytest.approx(5.0, abs=0.5)
    risen = asked(session, 9.0, text)["paid"].astype(float)["late"]
    assert risen == pytest.approx(10_000, abs=4 * sigma["paid"])


def test_the_plan_says_what_is_charged(session: dpsql.Session) -> None:
    for rho in (0.5, 0.3, 2.0):
        plan = session.sql(
            f"FROM dp_explain($${SUMS}$$, rho := {rho}, mechanism := 'KEYS_FIRST', max_groups_contributed := 9)"
        ).fetchall()
        price = {name: value for section, name, value in plan if section == "price"}
        receipt = receipt_of(session.sql(SUMS, rho=rho, **FIRST))
        assert float(price["rho"]) == pytest.approx(receipt.charged_rho)
        assert float(price["threshold delta"]) == pytest.approx(receipt.charged_delta)
        assert price["query hash"] == receipt.query_hash
        (rule,) = (value for section, name, value in plan if (section, name) == ("keys and numbers", "rule"))
        assert rule in receipt.notes


def test_the_same_and_less_cost_nothing_and_more_costs_the_difference(session: dpsql.Session) -> None:
    """Keys alone share the rounds, and another number is paid on the same keys."""
    first = asked(session, 0.5)
    assert asked(session, 0.5).equals(first)
    assert set(asked(session, 0.1).index) == set(first.index)
    assert receipt_of(session.sql("SELECT DISTINCT shop FROM sales", rho=0.3)).reused
    assert spent(session) == 0.5
    sums = session.sql(SUMS, rho=0.5, **FIRST)
    assert levels_of(sums)[:2] == pytest.approx([0.03, 0.27])
    assert 0 < receipt_of(sums).charged_rho < 0.2
    assert set(sums.df()["shop"]) == set(first.index)
    before = spent(session)
    assert before == pytest.approx(0.5 + receipt_of(sums).charged_rho)
    more = session.sql(PEOPLE, rho=1.5, **FIRST)
    assert levels_of(more) == pytest.approx([0.03, 0.27, 0.6, 0.6])
    assert receipt_of(more).charged_rho == pytest.approx(spent(session) - before)
    assert set(more.df()["shop"]) > set(first.index)
    assert asked(session, 0.5).loc[first.index].equals(first)


def test_more_costs_the_difference_and_a_minimum_of_units_hides_groups_by_their_noisy_number(
    session: dpsql.Session,
) -> None:
    asked(session, 0.5)
    whole = asked(session, 2.0)
    few = asked(session, 2.0, min_privacy_units_per_group=100)
    assert set(few.index) == {"big 0", "big 1", "big 2"}
    assert few.equals(whole.loc[few.index])
    assert spent(session) == pytest.approx(2.0)


def planned(session: dpsql.Session, text: str = PEOPLE) -> KeysFirst:
    statement = read_statement(text)
    assert isinstance(statement, SelectStatement)
    query, _, _ = session._runner.plan(statement, {"rho": 0.5, **FIRST}, CURATOR)
    assert isinstance(query, KeysFirst)
    return query


def test_the_policys_minimum_of_units_is_kept_by_the_rounds_alone(session: dpsql.Session) -> None:
    """Sums have no threshold that hides what appears with one more unit, so that none may appear."""
    session.sql(
        "CALL dp_protect('sales', coverage := FALSE, privacy_unit_column := 'person', default_delta := 1e-6, "
        "min_privacy_units_per_group := 5, replace := TRUE)"
    )
    numbers, keys = planned(session, SUMS).parts
    assert (numbers.frame.bounding.minimum_units, keys.frame.bounding.minimum_units) == (1, 5)
    assert numbers.request.min_units == 5


# -- keys that the rows of the first release did not have -------------------------------------------------------------


def late(
    session: dpsql.Session, rhos: Sequence[float] = (2.0, 0.5, 3.0), *, with_one_person: bool
) -> dict[float, pd.DataFrame]:
    """Return what is shown of a shop that first had one person in it or nobody, and later many."""
    if with_one_person:
        session.connection.execute("INSERT INTO sales VALUES (1999, 8, 'late', 5)")
    asked(session, 0.2, PEOPLE)
    add_shop(session, 200)
    return {rho: asked(session, rho, PEOPLE) for rho in rhos}


@pytest.mark.parametrize("with_one_person", [True, False])
def test_a_key_that_came_later_is_shown_whether_anybody_had_it_before(
    session: dpsql.Session, *, with_one_person: bool
) -> None:
    shown = late(session, with_one_person=with_one_person)
    for rho, frame in shown.items():
        # counts are those of the first release's rows, with noise
        assert abs(frame["n"]["late"]) < 5 * math.sqrt(9 / (0.4 * rho))
        assert asked(session, rho, PEOPLE).equals(frame)
    # nothing but the keys says where a row stands
    assert list(shown[2.0].index) == sorted(shown[2.0].index)


def test_left_out_it_would_tell_of_one_person(monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin shows only keys that the frame has."""
    monkeypatch.setattr(stages, "add_keys", lambda *_: None)
    found = []
    for with_one_person in (True, False):
        with open_session() as session:
            found.append("late" in late(session, [2.0], with_one_person=with_one_person)[2.0].index)
    assert found == [True, False]


FEW = SUMS.replace("900", "5")


@pytest.fixture
def one_salt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give both histories one salt, or other groups of everybody else would be cut."""
    frame_salt = SideTable.frame_salt
    monkeypatch.setattr(SideTable, "frame_salt", lambda *of: bytes(len(frame_salt(*of))))


@dataclass(frozen=True)
class Step:
    """Two questions at one level: the person buys in a shop before the first, 200 others before the second."""

    rho: float
    persons_shop: str
    first: str
    others_shop: str
    leaves: bool
    second: str


STORY = [
    # the person is alone with a key when the frame is made, and the sum is drawn when others have it
    Step(0.05, "late 0", PEOPLE, "late 0", leaves=False, second=FEW),
    # the person is gone when others have their key
    Step(0.4, "late 1", FEW, "late 1", leaves=True, second=PEOPLE),
]


def random_story(seed: int) -> list[Step]:
    random = np.random.default_rng(seed)
    shops = [f"late {random.integers(4)}" for _ in range(6)]
    steps = []
    rhos = sorted(random.choice([0.02, 0.05, 0.1, 0.2, 0.4, 0.8], 5, replace=False))
    for shop, rho in zip(shops, rhos, strict=False):
        leaves, (first, second) = bool(random.random() < 0.3), random.choice([PEOPLE, FEW], 2)
        steps.append(Step(float(rho), shop, str(first), str(random.choice(shops)), leaves, str(second)))
    return steps


def quiet_history(story: Sequence[Step], *, with_person: bool) -> Iterator[pd.DataFrame]:
    """Answer without noise in a history of changed rows and questions, with the rows of person 5000 or not."""
    # a database of its own, beside that of the other history
    with dpsql.connect(threads=1) as session:
        fill(session)
        declare(session)
        session._runner.noise_source = NoNoise()
        for number, step in enumerate(story):
            if with_person:
                session.connection.execute("INSERT INTO sales VALUES (5000, ?, ?, 5)", [number, step.persons_shop])
            yield asked(session, step.rho, step.first)
            session.connection.execute(
                "INSERT INTO sales SELECT 1000 * ? + i, 20, ?, 5 FROM range(200) t(i)", [number, step.others_shop]
            )
            if with_person and step.leaves:
                session.connection.execute("DELETE FROM sales WHERE person = 5000")
            yield asked(session, step.rho, step.second)
        yield asked(session, 1.6, FEW)


def distances(story: Sequence[Step]) -> Iterator[float]:
    """Yield how far the numbers of an answer move with one person, over how far they may."""
    for one, other in zip(*(quiet_history(story, with_person=there) for there in (True, False)), strict=True):
        common = one.index.intersection(other.index)
        for name, most in (("n", 1.0), ("paid", 5.0)):
            if name in one:
                moved = (one[name][common].astype(float) - other[name][common].astype(float)).to_numpy()
                yield float(np.linalg.norm(moved)) / (3.0 * most)


@pytest.mark.usefixtures("one_salt")
@pytest.mark.parametrize(
    "story",
    [STORY, *(pytest.param(random_story(seed), marks=pytest.mark.long) for seed in range(4))],
    ids=["told", *(f"random {seed}" for seed in range(4))],
)
def test_one_person_moves_no_number_further_than_the_noise_allows_for(story: list[Step]) -> None:
    """Whatever keys the frame got by them, and whoever has these later; what is shown as whole numbers may round."""
    assert max(distances(story)) <= 1.1


@pytest.mark.usefixtures("one_salt")
def test_values_on_the_keys_that_a_frame_holds_would_tell_of_one_person(monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin reads sums on held keys alone, among them one that nobody but one person had: others have it later."""
    read = exact_module._on_held_keys

    def on_held_keys(reading: Reading, *given: Any) -> Any:
        return read(replace(reading, bounded=replace(reading.bounded, held_keys=True)), *given)

    monkeypatch.setattr(exact_module, "_on_held_keys", on_held_keys)
    assert any(distance > 3.0 for distance in distances(STORY))


def test_keys_come_later_more_than_once(session: dpsql.Session) -> None:
    asked(session, 0.1)
    for number, rho in enumerate((1.0, 3.0)):
        add_shop(session, 300, f"late {number}")
        assert {f"late {i}" for i in range(number + 1)} <= set(asked(session, rho).index)
    frame = planned(session).first.frame
    side = session._access.read().side_table
    keys = side.frame_keys(frame_hash(frame))
    assert keys is not None
    for level in side.levels(statistic_hash(PRESENCE, frame)):
        point = side.point(statistic_hash(PRESENCE, frame), level.rho_nano)
        assert point is not None
        assert len(point.values) == level.value_count == keys.num_rows


def test_a_frame_of_no_rows_gets_keys(session: dpsql.Session) -> None:
    session.connection.execute("CREATE OR REPLACE TABLE kept AS FROM sales")
    session.connection.execute("DELETE FROM sales")
    assert asked(session, 0.5).empty
    session.connection.execute("INSERT INTO sales FROM kept")
    assert {"big 0", "big 1", "big 2"} <= set(asked(session, 2.0).index)


def test_keys_are_not_stored_beside_what_another_process_released(session: dpsql.Session) -> None:
    asked(session, 0.2)
    frame = planned(session).first.frame
    side: SideTable = session._access.read().side_table
    name, statistic = frame_hash(frame), statistic_hash(PRESENCE, frame)
    held = side.frame_keys(name)
    assert held is not None
    more = held.slice(0, 1).set_column(0, "key_0", [["late"]])
    one = np.zeros(1, np.int64)
    for count, tails in (
        (held.num_rows - 1, [Tail(statistic, 80_000_000, one)]),
        (held.num_rows, []),
        (held.num_rows, [Tail(statistic, 70_000_000, one)]),
        (held.num_rows, [Tail(statistic, 80_000_000, np.zeros(2, np.int64))]),
    ):
        with pytest.raises(ReleaseError):
            side.add_keys(name, count, more, tails)
    assert side.frame_keys(name) == held
    side.add_keys(name, held.num_rows, more, [Tail(statistic, 80_000_000, one)])


# -- readers, budgets, crashes ----------------------------------------------------------------------------------------

RHOS = (0.002, 0.01, 0.05, 0.1, 0.29, 0.3, 0.5, 1.0, 1.2, 1.21, 3.0)


def complaints(seed: int, questions: int = 20) -> Iterator[str]:
    """Yield what is wrong after each question of a random history: prices, or what a reader holds."""
    random = np.random.default_rng(seed)
    with open_session(seeded_noise(seed)) as session:
        for number in range(questions):
            name, rho = str(random.choice(list(LIMITS))), float(random.choice(RHOS))
            limit = LIMITS[name]
            if limit is not None and rho > limit:
                continue
            if number % 7 == 6:
                add_shop(session, 300, f"late {number}")
            before, asks = spent(session), session.sql if limit is None else session.as_analyst(name).sql
            text = str(random.choice([PEOPLE, SUMS]))
            told = asks(
                f"FROM dp_explain($${text}$$, rho := {rho}, mechanism := 'KEYS_FIRST', max_groups_contributed := 9)"
            ).fetchall()
            (price,) = (float(value) for section, what, value in told if (section, what) == ("price", "rho"))
            receipt = receipt_of(asks(text, rho=rho, **FIRST))
            if not math.isclose(price, receipt.charged_rho, abs_tol=1e-9):
                yield f"{name} was told {price} and charged {receipt.charged_rho}"
            if not math.isclose(before + receipt.charged_rho, spent(session), abs_tol=1e-9):
                yield f"{name} was charged {receipt.charged_rho} of {spent(session) - before}"
            served = "SELECT statistic_hash AS name, max(served_rho) AS level FROM pin WHERE analyst = ? GROUP BY name"
            sums = statistic_hash(planned(session, SUMS).first.statistics[-1], planned(session).first.frame)
            held = sum(level for one, level in stored(session, served, name) if one != sums)
            if limit is not None and held > round(limit * NANO):
                yield f"{name} holds {held / NANO} of {limit}"


@pytest.mark.parametrize(
    ("seed", "questions"), [(1, 14), *(pytest.param(seed, 20, marks=pytest.mark.long) for seed in range(1, 12))]
)
def test_in_a_history_prices_are_those_told_and_readers_keep_to_their_limits(seed: int, questions: int) -> None:
    """Beside the sums, whose level adds to that of the counts in every query that has both."""
    assert list(complaints(seed, questions)) == []


def test_the_check_finds_a_limit_that_is_not_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    of = keys_first.KeysAndNumbers.of.__func__  # type: ignore[attr-defined]

    def unshared(cls: type, query: KeysFirst, state: State, reader: Reader) -> keys_first.KeysAndNumbers:
        parts: keys_first.KeysAndNumbers = of(cls, query, state, reader)
        numbers = parts.numbers
        rho = 2.5 * (numbers.request.rho or 0.0)
        return replace(
            parts,
            reader=reader,
            numbers=replace(numbers, request=numbers.request.at(rho)),
            rounds=replace(parts.rounds, reader=reader),
        )

    monkeypatch.setattr(keys_first.KeysAndNumbers, "of", classmethod(unshared))
    assert any("holds" in one for one in complaints(5))


def test_without_room_for_all_or_a_receipt_nothing_is_charged(
    session: dpsql.Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> tuple[float, float]:
        raise dpsql.CalibrationError("no guarantee")

    with pytest.raises(dpsql.BudgetError):
        session.sql(PEOPLE, rho=21.0, **FIRST)
    assert spent(session) == 0
    monkeypatch.setattr(joint_release, "joint_guarantee_of", fails)
    with pytest.raises(dpsql.CalibrationError):
        session.sql(PEOPLE, **FIRST)
    assert spent(session) == 0


def test_a_crash_between_keys_and_numbers_is_paid_once(session: dpsql.Session, monkeypatch: pytest.MonkeyPatch) -> None:
    charge, charged = Ledger.charge, list[object]()

    def twice(self: Ledger, unit: str, items: tuple[ChargeItem, ...], analyst: str, *plan: int | None) -> object:
        if len(charged) == 2:
            raise dpsql.EngineError
        charged.append(items)
        return charge(self, unit, items, analyst, *plan)

    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "charge", twice)
        with pytest.raises(dpsql.EngineError):
            session.sql(PEOPLE, rho=0.5, **FIRST)
    assert spent(session) == pytest.approx(0.3)
    assert receipt_of(session.sql(PEOPLE, rho=0.5, **FIRST)).charged_rho == pytest.approx(0.2)
    assert spent(session) == pytest.approx(0.5)


def test_pandas_asks_the_same(session: dpsql.Session) -> None:
    frame = session.connection.sql("FROM sales").df()
    expected = receipt_of(session.sql(PEOPLE, rho=0.5, **FIRST))
    buyers = dpsql.unit("buyers", column="person", epsilon_budget=50, delta_budget=1e-3)
    shown = frame.dp.groupby(
        "shop", unit=buyers, rho=0.5, delta=DELTA, max_groups=9, mechanism="KEYS_FIRST"
    ).nunique_units()
    told = shown.attrs["dpsql"]
    assert (told["mechanism"], told["charged_rho"], told["epsilon"]) == (
        "keys_first",
        0.5,
        pytest.approx(expected.epsilon),
    )
    assert {"big 0", "big 1", "big 2"} <= set(shown.index)
