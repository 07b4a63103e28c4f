"""Running totals through SQL: what they add up, what one unit moves, what they cost, and what is told of them."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import dpsql
from dpsql.accounting import gaussian
from dpsql.engine import DuckDBEngine
from dpsql.errors import CalibrationError, UnsupportedQueryError
from dpsql.mechanism import factorised_gaussian
from dpsql.mechanism import registry as choose_module
from dpsql.mechanism.registry import histogram_of
from dpsql.model.frame import PRESENCE, Statistic
from dpsql.model.identity import statistic_hash
from dpsql.noise.running_totals import FractionalSum, best_power
from tests.end_to_end.visits_by_day import (
    AGGREGATES,
    COSTS,
    ORDER,
    UNITS,
    YEAR,
    Floats,
    column,
    exact_groups,
    explained,
    fill,
    middle,
    open_session,
    options,
    planned,
    receipt_of,
    spent,
    with_interval,
)
from tests.noise_sources import NoNoise, silence

# ---------------------------------------------------------------------------------------------------------------------
# Without noise, totals are those of DuckDB's own windows over exact bounded values of every listed key.

SPANS = {"all": "", "three": "ROWS BETWEEN 2 PRECEDING AND CURRENT ROW", "own": "ROWS 0 PRECEDING"}
TOLERANCE = 1e-4
"""Of sums: their lattice has more than 2**24 steps to 80, and a total is a weighted sum of a few hundred roundings."""

KEYED = {
    "one key": (("day",), "day"),
    "last of two keys": (("clinic", "day"), "day"),
    "first of two keys": (("clinic", "day"), "clinic"),
}


def assert_same(answer: dpsql.Result, exact: Sequence[tuple[Any, ...]], keys: int) -> None:
    """An average over no rows has no exact value."""
    shown = answer.fetchall()
    assert [row[:keys] for row in shown] == [row[:keys] for row in exact]
    found, expected = (np.array([row[keys:] for row in rows], dtype=np.float64) for rows in (shown, exact))
    known = ~np.isnan(expected)
    assert known[:, :-1].all()
    np.testing.assert_allclose(found[known], expected[known], atol=TOLERANCE, rtol=0)


def totals_of(keyed: str, direction: str) -> tuple[str, str]:
    """Return the private totals of all aggregates over all spans, and the exact ones."""
    keys, along = KEYED[keyed]
    apart = "".join(f"PARTITION BY {key} " for key in keys if key != along)
    windows = {name: f"OVER ({apart}ORDER BY {along} {direction} {frame})" for name, frame in SPANS.items()}
    named = [(name, span) for name in AGGREGATES for span in SPANS]
    totals = ", ".join(f"sum({AGGREGATES[name][0]}) {windows[span]} AS {name}_{span}" for name, span in named)
    return totals, ", ".join(f"sum({name}) {windows[span]}" for name, span in named)


@pytest.mark.parametrize("keyed", KEYED)
def test_without_noise_totals_are_those_of_duckdbs_windows(keyed: str) -> None:
    """All aggregates and frames in one query, beside the groups' own values and an average.

    With two keys the list of the one that totals run along may be the first or the last in the layout of key ids.
    """
    keys, _ = KEYED[keyed]
    listed = ", ".join(keys)
    own = ", ".join(f"{private} AS {name}" for name, (private, _) in AGGREGATES.items())
    exact_own = f"{', '.join(AGGREGATES)}, cost / nullif(rows, 0)"
    with open_session(12, 5, noise=NoNoise()) as session:
        fill(session, 12, 5)
        session.connection.execute("DELETE FROM visits WHERE day IN (0, 4) OR clinic = 3 AND day > 9")
        groups = exact_groups(session, keys)
        for direction in ("", "DESC"):
            totals, exact_totals = totals_of(keyed, direction)
            answer = session.sql(
                f"SELECT {listed}, {totals}, {own}, avg(cost) AS mean FROM visits GROUP BY {listed}", rho=1.0
            )
            assert receipt_of(answer).mechanism == "factorised_gaussian"
            exact = session.connection.execute(
                f"SELECT {listed}, {exact_totals}, {exact_own} FROM {groups} ORDER BY ALL"
            )
            assert_same(answer, exact.fetchall(), len(keys))


KEY_LISTS = {
    "DATE": ("DATE '2026-03-01'", "DATE '2025-12-31'", "DATE '2026-01-15'", "DATE '1999-01-01'"),
    "INTEGER": ("10", "-3", "9", "0", "2147483647"),
    "VARCHAR": ("'b'", "'B'", "'10'", "'9'", "''", "'é'", "'zz'"),
    "BOOLEAN": ("true", "false"),
    "DECIMAL(6, 2)": ("10.5", "9.75", "-0.25", "9.7", "1000"),
}


@pytest.fixture(scope="module")
def silent() -> Iterator[dpsql.Session]:
    with dpsql.connect() as session:
        silence(session)
        session.sql("CALL dp_unit('patient', rho_budget := 100, delta_threshold := 0.1, delta_conversion := 1e-6)")
        yield session


def assert_runs_in_duckdbs_order(
    session: dpsql.Session, key_type: str, keys: Sequence[str], orders: Sequence[str]
) -> None:
    """Key i of the list has 5 * 2**i units, so a total tells which keys are in it. A refusal is no other order."""
    rows = ", ".join(f"({i}, CAST({key} AS {key_type}))" for i, key in enumerate(keys))
    session.connection.execute(
        f"CREATE OR REPLACE TABLE visits AS SELECT i * 1000 + u AS patient, k FROM (VALUES {rows}) t(i, k), "
        "LATERAL (SELECT unnest(range(5 * (1 << i))) AS u)"
    )
    session.sql(
        "CALL dp_protect('visits', coverage := FALSE, unit := 'patient', privacy_unit_column := 'patient', "
        "max_groups_contributed := 1, default_delta := 1e-6, replace := true)"
    )
    session.sql(f"CALL dp_domain('visits', 'k', keys := [{', '.join(keys)}], replace := true)")
    session.sql("CALL dp_new_version('visits')")
    for order in orders:
        exact = session.connection.execute(
            f"SELECT k, sum(count(*)) OVER (ORDER BY k {order}) FROM visits GROUP BY k ORDER BY k"
        ).fetchall()
        try:
            text = f"SELECT k, sum({UNITS}) OVER (ORDER BY k {order}) FROM visits GROUP BY k"
            assert session.sql(text, rho=1.0).fetchall() == exact, order
        except UnsupportedQueryError:
            assert "NULLS" in order


@pytest.mark.parametrize("key_type", KEY_LISTS)
def test_totals_run_in_the_order_that_duckdb_gives_the_keys(silent: dpsql.Session, key_type: str) -> None:
    assert_runs_in_duckdbs_order(silent, key_type, KEY_LISTS[key_type], ["", "DESC"])


def test_a_listed_null_comes_where_duckdb_has_it(silent: dpsql.Session) -> None:
    """Last, also under DESC, unless the text says NULLS FIRST, which may be refused but is not passed over."""
    orders = ["", "DESC", "NULLS FIRST", "DESC NULLS FIRST"]
    assert_runs_in_duckdbs_order(silent, "INTEGER", ("7", "NULL", "-7"), orders)


def test_groups_that_are_not_shown_count_in_totals() -> None:
    total = f"sum({UNITS}) OVER (ORDER BY day)"
    with open_session(20, noise=NoNoise()) as session:
        fill(session, 20, 1, 4)
        everything = session.sql(f"SELECT day, {UNITS} AS n, {total} AS t FROM visits GROUP BY day", rho=1.0).fetchall()
        asked = options(min_privacy_units_per_group=4)
        some = session.sql(f"{asked} day, {UNITS} AS n, {total} AS t FROM visits GROUP BY day", rho=1.0).fetchall()
        assert some == [row for row in everything if row[1] > 4]
        assert 0 < len(some) < 20
        largest = f"SELECT day, {total} AS t FROM visits GROUP BY day ORDER BY t DESC LIMIT 3 OFFSET 1"
        by_total = sorted(everything, key=lambda row: (-row[2], row[0]))
        assert session.sql(largest, rho=1.0).fetchall() == [(row[0], row[2]) for row in by_total[1:4]]


@pytest.mark.usefixtures("as_they_are")
@pytest.mark.parametrize("first", ["values", "totals"])
def test_where_plain_noise_is_best_totals_are_of_the_same_release_as_values(first: str) -> None:
    texts = {
        "values": f"SELECT day, {UNITS} AS n FROM visits GROUP BY day",
        "totals": f"SELECT day, sum({UNITS}) OVER (ORDER BY day ROWS 1 PRECEDING) AS n FROM visits GROUP BY day",
    }
    assert best_power(YEAR, 3, 2).sixteenths == 0
    with open_session(YEAR, max_groups=3) as session:
        fill(session, YEAR, 1)
        paid = receipt_of(session.sql(texts[first], rho=1.0))
        free = receipt_of(session.sql(texts["totals" if first == "values" else "values"], rho=1.0))
        assert (paid.charged_rho, free.charged_rho, free.reused) == (1.0, 0.0, True)
        assert paid.mechanism == free.mechanism == "gaussian"
        assert paid.query_hash == free.query_hash
        values, sums = (column(session.sql(texts[name], rho=1.0), "n") for name in ("values", "totals"))
        # each of two is rounded to a whole number, and so is their sum
        assert np.abs(values[1:] + values[:-1] - sums[1:]).max() <= 1.5
        # a total that reaches further has noise of its own, and another price
        far = receipt_of(session.sql(texts["totals"].replace("ROWS 1 PRECEDING", ""), rho=1.0))
        assert (far.mechanism, far.charged_rho) == ("factorised_gaussian", 1.0)


# ---------------------------------------------------------------------------------------------------------------------
# What one unit moves: stored points of neighbouring tables, without noise.

Place = tuple[int, int]
SENSITIVE = f"sum({UNITS}) OVER (PARTITION BY clinic ORDER BY day) AS t, count(*), {COSTS}"


@dataclass(frozen=True)
class Moved:
    """Of each statistic: the most that any of some neighbours moves what is noised, over what noise is made for."""

    largest: dict[str, float]
    plain: float

    @property
    def presence_without_correlation(self) -> float:
        """The same over the root of the number of groups times what one group moves."""
        return self.largest["presence"] * self.plain


def stored(session: dpsql.Session, text: str) -> dict[Statistic, tuple[Floats, float]]:
    """What is stored of every statistic, in its units, and the l2 norm that its noise was made for."""
    session.sql("CALL dp_new_version('visits')")
    session.sql(text, rho=1.0)
    query, state = planned(session, text, rho=1.0), session._access.read()
    assert query.first.frame.mechanism == "factorised_gaussian"
    found: dict[Statistic, tuple[Floats, float]] = {}
    for statistic in query.first.statistics:
        (level,) = state.side_table.levels(statistic_hash(statistic, query.first.frame))
        point = state.side_table.point(statistic_hash(statistic, query.first.frame), level.rho_nano)
        assert point is not None
        l2 = point.sigma * math.sqrt(2e-9 * point.rho_nano)
        if statistic != PRESENCE:
            assert l2 == pytest.approx(histogram_of(query.first.frame).sum_l2(statistic), rel=1e-9)
        found[statistic] = (np.ldexp(point.values.astype(np.float64), point.lattice_exponent), l2)
    return found


def moved(session: dpsql.Session, neighbours: Sequence[Sequence[tuple[int, int, float, int]]]) -> Moved:
    """Each neighbour is one more unit: (clinic, day, cost, rows) of its groups."""
    text = f"SELECT clinic, day, {SENSITIVE} FROM visits GROUP BY clinic, day"
    before = stored(session, text)
    largest: dict[str, float] = {statistic.kind: 0.0 for statistic in before}
    for groups in neighbours:
        rows = [f"(-1, {clinic}, {day}, {cost / count})" for clinic, day, cost, count in groups for _ in range(count)]
        session.connection.execute(f"INSERT INTO visits VALUES {', '.join(rows)}")
        after = stored(session, text)
        session.connection.execute("DELETE FROM visits WHERE patient = -1")
        for (statistic, (values, l2)), (others, _) in zip(after.items(), before.values(), strict=True):
            by = float(np.linalg.norm(values - others)) / l2
            largest[statistic.kind] = max(largest[statistic.kind], by)
    query = planned(session, text, rho=1.0)
    factorised = query.first.frame.factorised
    assert factorised is not None
    total = FractionalSum(factorised.ordering.length, factorised.sixteenths)
    most, sequences = query.first.frame.unit_groups, factorised.ordering.sequences
    plain = total.sensitivity(most, sequences) / (math.sqrt(most) * total.sensitivity(1))
    return Moved(largest, plain)


ENDS = ((-30.0, 1), (9.0, 2))
"""Cost of a group and its rows, beyond either end of the bounds."""


def at_each_end(places: Sequence[Place]) -> list[list[tuple[int, int, float, int]]]:
    """Units in these groups whose values are at an end of their bounds, or beyond: all at one, or in turn."""
    return [[(clinic, day, cost, rows) for clinic, day in places] for cost, rows in ENDS] + [in_turn(places)]


def in_turn(places: Sequence[Place]) -> list[tuple[int, int, float, int]]:
    """A unit in these groups whose values are at one end of their bounds, then at the other."""
    return [(clinic, day, *ENDS[i % 2]) for i, (clinic, day) in enumerate(places)]


def assert_is_the_sensitivity(found: Moved) -> None:
    """No neighbour is further away than noise is made for, and one is that far."""
    for kind, share in found.largest.items():
        assert share <= 1.0 + 1e-9, f"a unit moves what is noised of {kind} {share:.6f} times as far as it may"
        assert share >= 0.99, f"the worst of these units moves what is noised of {kind} {share:.6f} times as far only"


def test_a_unit_moves_what_is_noised_as_far_as_its_noise_is_made_for() -> None:
    """The first days are the worst, in one clinic; sums move as far at either end of their bounds."""
    days, most = 30, 5
    worst, *others = [[(1, day) for day in range(start, start + most)] for start in (0, 1, 25)]
    others += [[(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)], [(0, 6 * i) for i in range(most)]]
    with open_session(days, 2, max_groups=most, noise=NoNoise()) as session:
        fill(session, days, 2, 1)
        found = moved(session, [*at_each_end(worst), *(in_turn(places) for places in others)])
        assert_is_the_sensitivity(found)
        # the fault: columns are positively correlated, so the root of the number of groups is not enough
        assert found.presence_without_correlation > 1.5


@pytest.fixture
def square_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """The root of the totals is noised, whatever is best: with so few days a unit would get plain noise."""

    def root(length: int, unit_groups: int, span: int | None = None) -> FractionalSum:
        return FractionalSum(length)

    monkeypatch.setattr(factorised_gaussian, "best_power", root)
    monkeypatch.setattr(choose_module, "_WORTH_IT", math.inf)


@pytest.mark.usefixtures("square_root")
def test_no_unit_of_a_small_table_moves_more() -> None:
    """Every set of three of six groups, most of them in the first clinic; the worst is what noise is made for."""
    every = [(clinic, day) for clinic in range(2) for day in range(3)]
    with open_session(3, 2, max_groups=3, noise=NoNoise()) as session:
        chosen = (places for places in itertools.combinations(every, 3) if sum(clinic for clinic, _ in places) < 2)
        units = [[(*place, -20.0, 1) for place in places] for places in chosen]
        assert_is_the_sensitivity(moved(session, units))


@pytest.mark.usefixtures("square_root")
def test_a_unit_with_more_groups_than_a_sequence_moves_most_in_two_equal_parts() -> None:
    """Of 12 groups in two clinics of 8 days."""
    days, most = 8, 12

    def split(first: int) -> list[Place]:
        return [(0, day) for day in range(first)] + [(1, day) for day in range(most - first)]

    with open_session(days, 2, max_groups=most, noise=NoNoise()) as session:
        fill(session, days, 2, 1)
        assert_is_the_sensitivity(moved(session, [*at_each_end(split(6)), in_turn(split(4)), in_turn(split(7))]))
        # one sequence filled after the other is further from the truth than a share of one percent
        filled = moved(session, at_each_end(split(8))[:2])
        assert max(filled.largest.values()) < 0.99


# ---------------------------------------------------------------------------------------------------------------------
# Many levels

CASCADE = f"SELECT day, {with_interval(f'sum({UNITS}) OVER (ORDER BY day)')}, {UNITS} FROM visits GROUP BY day"
TWO = (
    f"SELECT day, sum({UNITS}) OVER (ORDER BY day) AS t, sum({COSTS}) OVER (ORDER BY day) AS s FROM visits GROUP BY day"
)


def refuse_to_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def reading(*_: object, **__: object) -> None:
        raise AssertionError("raw data were read")

    monkeypatch.setattr(DuckDBEngine, "aggregate", reading)


def test_levels_cost_what_the_largest_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    with open_session(60) as session:
        fill(session, 60, 1)
        answers, charged = {}, {}
        for rho in ORDER:
            price = next(
                value
                for section, name, value in explained(session, CASCADE, rho)
                if (section, name) == ("price", "rho")
            )
            answer = session.sql(CASCADE, rho=rho)
            answers[rho], charged[rho] = answer.fetchall(), receipt_of(answer).charged_rho
            assert float(price) == pytest.approx(charged[rho], rel=1e-8)
            assert receipt_of(answer).rho == pytest.approx(rho)
        assert charged == {0.05: 0.05, 0.5: 0.45, 0.2: 0.0, 1.0: 0.5}
        assert spent(session)[0] == 10**9
        refuse_to_read(monkeypatch)
        session.connection.execute("DELETE FROM visits")
        for rho in (*ORDER, 0.7, 0.01):
            again = session.sql(CASCADE, rho=rho)
            assert receipt_of(again).reused
            assert again.fetchall() == answers.get(rho, again.fetchall())
        assert spent(session)[0] == 10**9


def test_below_a_ceiling_totals_are_free_and_need_no_table() -> None:
    with open_session(60, rho_ceiling=2) as session:
        fill(session, 60, 1)
        first = receipt_of(session.sql(TWO, rho=0.1))
        # count and sum are drawn once each
        assert first.charged_rho == 4.0
        session.connection.execute("DROP TABLE visits")
        for text in (CASCADE, TWO):
            variances = []
            for rho in (*ORDER, 2.0, 0.01):
                receipt = receipt_of(session.sql(text, rho=rho))
                assert receipt.charged_rho == receipt.charged_delta == 0
                variances.append((receipt.columns[0].sigma or 0) ** 2 - 1 / 12)
            # totals of the count alone are at the level that is asked for; beside sums the count may be at a higher one
            assert text == TWO or variances[0] == pytest.approx(10 * variances[1], rel=1e-6)
        with pytest.raises(CalibrationError, match="ceiling"):
            session.sql(CASCADE, rho=2.5)


# ---------------------------------------------------------------------------------------------------------------------
# Receipt and explain

STATED_COLUMNS = f"""
    SELECT clinic, day, sum({UNITS}) OVER (PARTITION BY clinic ORDER BY day) AS units,
           sum({COSTS}) OVER (PARTITION BY clinic ORDER BY day) AS costs,
           sum(count(*)) OVER (PARTITION BY clinic ORDER BY day ROWS 6 PRECEDING) AS week,
           {UNITS} AS own, avg(cost) AS mean
    FROM visits GROUP BY clinic, day
"""


def test_the_receipt_states_the_largest_error_of_a_column() -> None:
    """From norms, radii and levels alone: a sum has noise of its own, and its centre times that of the units' count."""
    days, max_groups = 50, 4
    with open_session(days, 3, max_groups=max_groups) as session:
        query, receipt = planned(session, STATED_COLUMNS, rho=0.8), receipt_of(session.sql(STATED_COLUMNS, rho=0.8))
    total = best_power(days, max_groups)
    share = dict(zip(((one.kind, one.interval) for one in query.first.statistics), query.first.weights, strict=True))

    def noise(radius: float, rho: float) -> float:
        return radius * total.sensitivity(max_groups, 3) / math.sqrt(2 * rho)

    units = noise(1, 0.8 * share["presence", (1, 1)])
    costs = math.hypot(noise(12.5, 0.8 * share["sum", (-20, 5)]), 7.5 * units)
    rows = math.hypot(noise(0.5, 0.8 * share["rows", (1, 2)]), 1.5 * units)
    rounding = 1 / math.sqrt(12)
    expected = {
        "units": math.hypot(units * total.total_norms().max(), rounding),
        "costs": costs * total.total_norms().max(),
        "week": math.hypot(rows * total.total_norms(7).max(), rounding),
        "own": math.hypot(units * total.value_norms().max(), rounding),
        "mean": None,
    }
    for stated in receipt.columns:
        assert stated.sigma == (
            None if expected[stated.name] is None else pytest.approx(expected[stated.name], rel=1e-6)
        )
    assert any("differ by row" in note for note in receipt.notes)
    assert any("partial sums" in note for note in receipt.notes)


@pytest.mark.parametrize("max_groups", [1, 4])
def test_epsilon_is_that_of_one_gaussian_release(max_groups: int) -> None:
    """All statistics together are one Gaussian mechanism with mu = sqrt(2 rho); sums are rounded, which is nothing."""
    with open_session(50, 3, max_groups=max_groups) as session:
        for rho in (0.01, 0.5, 3.0):
            receipt = receipt_of(session.sql(STATED_COLUMNS, rho=rho))
            assert receipt.mechanism == "factorised_gaussian"
            assert receipt.delta == pytest.approx(1e-6, rel=1e-6)
            assert receipt.epsilon == pytest.approx(gaussian.epsilon(1e-6, math.sqrt(2 * rho), 1.0), rel=1e-3)
            asked = receipt_of(session.sql(STATED_COLUMNS, epsilon=2 * receipt.epsilon))
            assert gaussian.epsilon(1e-6, math.sqrt(2 * asked.rho), 1.0) == pytest.approx(2 * receipt.epsilon, rel=1e-3)
            assert gaussian.epsilon(1e-6, math.sqrt(2 * asked.rho), 1.0) <= 2 * receipt.epsilon


@pytest.mark.parametrize("aggregate", [UNITS, COSTS], ids=["units", "costs"])
def test_explain_states_the_price_the_error_and_what_was_not_chosen(aggregate: str) -> None:
    total, rho = f"SELECT day, sum({aggregate}) OVER (ORDER BY day) AS t FROM visits GROUP BY day", 0.4
    with open_session(YEAR) as session:
        rows = {(section, name): value for section, name, value in explained(session, total, rho)}
        receipt = receipt_of(session.sql(total, rho=rho))
        (stated,) = receipt.columns
        other = receipt_of(session.sql(f"{options(mechanism='GAUSSIAN')} {total.removeprefix('SELECT ')}", rho=rho))
    assert "partial sums" in rows["mechanism", "name"]
    assert float(rows["price", "rho"]) == receipt.charged_rho == rho
    assert f"sigma = {stated.sigma:.9g}," in rows["expected error", "t"]
    ((name, not_chosen),) = [(name, value) for (section, name), value in rows.items() if section == "not chosen"]
    assert other.mechanism == "gaussian"
    assert name.startswith("Gaussian noise on every public key")
    # with or without the rounding of counts to whole numbers
    told = float(not_chosen.partition("= ")[2].partition(",")[0])
    assert told == pytest.approx(other.columns[0].sigma, rel=1e-3)


# ---------------------------------------------------------------------------------------------------------------------
# Nothing but the numbers depends on the data.


def everything_told(session: dpsql.Session) -> tuple[list[object], Floats]:
    """Plans, prices, receipts and books of some levels; and the error of each number, given what is exact."""
    told: list[object] = []
    found = []
    shown = ", ".join(
        with_interval(f"sum({aggregate}) OVER (PARTITION BY clinic ORDER BY day)", name)
        for name, aggregate in {"t": UNITS, "s": "sum(cost)"}.items()
    )
    text = f"SELECT clinic, day, {shown} FROM visits GROUP BY clinic, day"
    window = "OVER (PARTITION BY clinic ORDER BY day)"
    exact = session.connection.execute(
        f"SELECT sum(units) {window} AS t, sum(cost) {window} AS s "
        f"FROM {exact_groups(session, ('clinic', 'day'))} ORDER BY clinic, day"
    ).fetchnumpy()
    for asked in ("rho := 0.1", "rho := 1.0", "epsilon := 9.0"):
        told += session.sql(f"FROM dp_explain($$ {text} $$, {asked})").fetchall()
    for rho in (0.1, 1.0, 0.3):
        answer = session.sql(text, rho=rho)
        told += [dataclasses.asdict(receipt_of(answer)), spent(session), len(answer)]
        for name in ("t", "s"):
            found.append(middle(answer, name) - exact[name])
            found.append(column(answer, f"{name}_high") - column(answer, f"{name}_low"))
    return told, np.array(found)


@pytest.mark.usefixtures("as_they_are")
def test_an_empty_table_has_the_same_receipts_prices_and_errors() -> None:
    told, found = [], []
    for per_group in (0, 4):
        with open_session(40, 3, max_groups=2) as session:
            fill(session, 40, 3, per_group)
            one, error = everything_told(session)
            told.append(one)
            found.append(error)
    assert told[0] == told[1]
    # at the same seed, but for the roundings of sums to their lattice
    np.testing.assert_allclose(found[0], found[1], atol=TOLERANCE, rtol=0)
    assert np.abs(found[0]).max() > 1.0
