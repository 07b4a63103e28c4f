"""The norm that AUTO chooses: places of units against numpy, what one unit moves, and the public choice."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dpsql
from dpsql.bound.unit_histograms import NORM_PLACES, NORM_STEPS_PER_DOUBLING, norms_sql
from dpsql.cascade.reader import CURATOR
from dpsql.engine import DuckDBEngine
from dpsql.features import auto_norms
from dpsql.features.auto_choices import held_units
from dpsql.features.auto_histograms import MEASURE, Question, auto_sigma
from dpsql.features.auto_norms import USUAL_ROWS_PLACES, NormUse, _with_tail, chosen_norm, rounded_up, sure_norm
from dpsql.model.private_query import AutoBounds
from dpsql.release.points import noisy_places
from dpsql.sql.statements import SelectStatement, read_statement
from tests.frames import with_relation
from tests.noise_sources import seeded_noise

Floats = npt.NDArray[np.float64]
PRIVATE = NormUse(rho=0.3, groups=8, key_count=None)


@pytest.fixture
def session() -> Iterator[dpsql.Session]:
    with dpsql.connect() as opened:
        opened.connection.execute("CREATE TABLE v (u INTEGER, k INTEGER, x DOUBLE)")
        opened.sql(
            "CALL dp_protect('v', coverage := FALSE, privacy_unit_column := 'u', max_groups_contributed := 3, "
            "rho_budget := 9, delta_threshold := 0.1, delta_conversion := 1e-6)"
        )
        yield opened


def asked(session: dpsql.Session, aggregate: str) -> AutoBounds:
    statement = read_statement(
        f"SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (rho = 0.1, bounding = NORM) k, {aggregate} FROM v GROUP BY k"
    )
    assert isinstance(statement, SelectStatement)
    (found,) = session._runner.plan(statement, {}, CURATOR)[0].first.auto
    assert isinstance(found, AutoBounds)
    return found


def histogram(session: dpsql.Session, question: AutoBounds, relation: str, sql: str = "") -> npt.NDArray[np.int64]:
    frame = with_relation(question.frame, relation)
    sql = sql or norms_sql(frame, question.statistic, bytes(16))
    table = DuckDBEngine(session.connection).aggregate(sql, listed_keys=None, timeout_seconds=None).reveal()
    return Question(question).exact(table)


VALUES = ("NULL", "0", "1e308", "-1e308", "'nan'", "'inf'", "5e-324", "1", "-2", "0.75", "100", "-1e-9", "1e18", "3")
AGGREGATES = ("count(*)", "count(x) FILTER (WHERE x <> 3)", "sum(x, contribution_norm => AUTO)", "sum(x)")


def fill(session: dpsql.Session, seed: int) -> None:
    chance = random.Random(seed)
    rows = ", ".join(
        f"({chance.choice((*range(12), 'NULL'))}, {chance.choice((0, 1, 2, 3, 'NULL'))}, "
        f"{chance.choice(VALUES)}::DOUBLE)"
        for _ in range(150)
    )
    session.connection.execute(f"DELETE FROM v; INSERT INTO v VALUES {rows}")


@pytest.mark.parametrize("aggregate", AGGREGATES)
def test_a_unit_moves_the_histogram_in_one_place_by_one(session: dpsql.Session, aggregate: str) -> None:
    question = asked(session, aggregate)
    relation = question.frame.rows_sql.relation
    for seed in range(3):
        fill(session, seed)
        whole = histogram(session, question, relation)
        for unit in range(12):
            without = f"(SELECT * FROM {relation} WHERE u IS DISTINCT FROM {unit})"
            moved = whole - histogram(session, question, without)
            assert (moved.sum(), np.abs(moved).sum()) == (1, 1)


@pytest.mark.parametrize(
    ("aggregate", "table", "value"), [("count(*)", "per_group", "v"), ("sum(x)", "parts", "parts")]
)
def test_a_place_for_each_group_of_a_unit_is_found_out(
    session: dpsql.Session, aggregate: str, table: str, value: str
) -> None:
    """The planted fault: norms of single groups, of which a unit has several."""
    question = asked(session, aggregate)
    sql = norms_sql(question.frame, question.statistic, bytes(16))
    fill(session, 1)
    of_unit = f"FROM {table} GROUP BY unit)"
    assert of_unit in sql
    everything, nothing = (
        histogram(
            session,
            question,
            "",
            sql.replace(of_unit, f"FROM (FROM {table} WHERE unit {of} 5) GROUP BY unit, {value})"),
        )
        for of in ("IS NOT DISTINCT FROM", "IS DISTINCT FROM")
    )
    assert everything.sum() > 1
    assert nothing.sum() > 11


@pytest.mark.parametrize("aggregate", ["count(*)", "sum(x)"])
def test_places_are_those_of_the_norms(session: dpsql.Session, aggregate: str) -> None:
    """Against numpy: rows and sums of 400 units, from a single row to 1e12, of both signs."""
    generator = np.random.default_rng(4)
    people = generator.integers(0, 400, 6_000)
    keys, values = generator.integers(0, 40, 6_000), np.round(generator.normal(0, 10.0 ** (people % 13)), 3)
    session.connection.register("made", {"u": people, "k": keys, "x": values})
    session.connection.execute("DELETE FROM v; INSERT INTO v SELECT u, k, x FROM made")
    added = np.zeros((400, 40))
    np.add.at(added, (people, keys), 1.0 if aggregate == "count(*)" else values)
    norms = np.sqrt((added**2).sum(axis=1)) * (1.0 if aggregate == "count(*)" else 2.0**30)
    # norms this close to an end of a place would be no test
    logs = NORM_STEPS_PER_DOUBLING * np.log2(norms)
    assert (np.abs(logs - np.round(logs)) > 1e-9).sum() > 300 or aggregate == "count(*)"
    expected = np.bincount(np.minimum(np.ceil(logs - 1e-12).astype(int), NORM_PLACES - 2) + 1, minlength=NORM_PLACES)
    question = asked(session, aggregate)
    np.testing.assert_array_equal(histogram(session, question, question.frame.rows_sql.relation), expected)


def test_the_order_of_rows_changes_nothing(session: dpsql.Session) -> None:
    question = asked(session, "sum(x)")
    relation = question.frame.rows_sql.relation
    session.connection.execute(
        "INSERT INTO v SELECT hash(i) % 900, hash(i, 1) % 300, (hash(i, 2)::DOUBLE - 1e19) / 7 FROM range(200000) t(i)"
    )
    first = histogram(session, question, relation)
    for order in ("x", "x DESC", "hash(x)"):
        ordered = histogram(session, question, f"(SELECT * FROM {relation} ORDER BY {order})")
        np.testing.assert_array_equal(ordered, first)


# -- the choice, a function of a noisy histogram and of public numbers ----------------------------------------------


def of_norms(norms: Floats, sigma: float = 0.0, seed: int = 1) -> Floats:
    places = np.ceil(NORM_STEPS_PER_DOUBLING * np.log2(norms)).astype(int) + 1
    units = np.bincount(places, minlength=NORM_PLACES)
    return units + np.random.default_rng(seed).normal(0.0, sigma, NORM_PLACES)


def test_a_norm_that_everybody_has_is_the_choice() -> None:
    """Ends of places are exact: whoever has one row, or four groups of two, is not scaled down."""
    for norm in (1.0, 2.0, 4.0, 1024.0):
        assert chosen_norm(of_norms(np.full(1_000, norm), 5.0), 5.0, PRIVATE) == norm


def test_one_heavy_person_does_not_raise_the_choice() -> None:
    norms = np.append(np.full(3_000, 4.0), 1e6)
    assert chosen_norm(of_norms(norms, 10.0), 10.0, PRIVATE) == 4.0


@given(st.integers(0, 20), st.floats(1.0, 60.0))
def test_the_choice_is_the_least_of_the_stated_formula(seed: int, sigma: float) -> None:
    """Against loops over places and groups: what is lost of group r, ninefold, noise, and groups that noise hides."""
    generator = np.random.default_rng(seed)
    noisy = of_norms(np.maximum(1.0, generator.lognormal(2.0, 0.3, 20_000)), sigma, seed)
    norm = chosen_norm(noisy, sigma, NormUse(rho=0.3, groups=8, key_count=30))
    assert norm is not None
    likely = _with_tail(held_units(noisy[1:], sigma), noisy[1:], sigma)
    held = [(2.0 ** (k / 4.0), units) for k, units in enumerate(likely) if units]
    total = sum(end * units for end, units in held)
    largest = min(total * 8.0**0.5, total * 8.0**0.5 / (math.log(30) + 0.5772156649))

    def error(one: float) -> float:
        lost = sum(units * max(0.0, end - one) for end, units in held) / total
        return 30.0 * one**2 / 0.6 + math.fsum(9.0 * (lost * largest / r) ** 2 for r in range(1, 31))

    others = [norm * 2.0 ** (step / 16.0) for step in range(-32, 33)]
    # the sum of 1 / r**2 is a closed form there, to 1 %
    assert error(norm) <= 1.02 * min(error(one) for one in others)


def test_few_units_are_told_from_none_together() -> None:
    """200 people over a wide range of norms: no place holds them surely, eight neighbours do."""
    norms = np.exp2(np.linspace(2.0, 4.0, 200))
    noisy = of_norms(norms, 10.0, 3)
    norm = chosen_norm(noisy, 10.0, NormUse(rho=5.0, groups=8, key_count=None))
    assert norm is not None
    assert 4.0 <= norm <= 24.0


HEAVY: dict[str, Callable[[np.random.Generator, int], Floats]] = {
    "lognormal": lambda generator, number: 1.0 + generator.lognormal(3.0, 1.5, number),
    "Pareto": lambda generator, number: 10.0 * (1.0 + generator.pareto(2.0, number)),
}


@pytest.mark.parametrize("law", HEAVY)
@pytest.mark.parametrize("number", [3_000, 50_000])
def test_heavy_tails_are_not_cut_where_places_cease_to_be_sure(law: str, number: int) -> None:
    """The root of the squares of noise and bias, of twelve like groups, is within a third of the least on average."""
    assert _mean_excess(HEAVY[law], number) <= 1.34


def test_the_check_catches_a_tail_that_is_not_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto_norms, "_with_tail", lambda units, noisy, sigma: units)
    assert _mean_excess(HEAVY["lognormal"], 3_000) > 1.6


def _mean_excess(law: Callable[[np.random.Generator, int], Floats], number: int) -> float:
    rho, excesses = 0.5, []
    for seed in range(20):
        norms = law(np.random.default_rng(seed), number)
        sigma = auto_sigma(round(rho / 32 * 1e9), 1.0)
        chosen = chosen_norm(of_norms(norms, sigma, seed), sigma, NormUse(rho * 31 / 32, 8, 12))
        assert chosen is not None

        def error(norm: float, norms: Floats = norms) -> float:
            bias = float(np.maximum(norms - norm, 0.0).sum()) * 2.0 / 12
            return math.hypot(bias, norm / math.sqrt(2.0 * rho * 31 / 32))

        best = min(error(float(norms.max()) * 2.0 ** (-step / 4.0)) for step in range(60))
        excesses.append(error(chosen) / best)
    return float(np.mean(excesses))


def test_noise_alone_seldom_chooses_and_is_not_sure() -> None:
    source, sigma, chosen = seeded_noise(9), auto_sigma(10_000_000, 1.0), 0
    for _ in range(100):
        drawn = noisy_places(np.zeros(NORM_PLACES, dtype=np.int64), sigma, MEASURE, source)
        noisy = drawn.astype(np.float64) * 2.0**-20
        assert chosen_norm(noisy, sigma, PRIVATE) is None
        chosen += chosen_norm(noisy, sigma, NormUse(0.3, 8, None, USUAL_ROWS_PLACES)) is not None
        assert not sure_norm(noisy, sigma)
    # at most one in ten by each of some widths
    assert chosen < 50


def test_a_choice_lasts_where_most_units_of_like_norms_stand_out() -> None:
    near = of_norms(np.append(np.full(5_000, 4.0), np.full(800, 9.0)), 10.0)
    assert sure_norm(near, 10.0)
    few = of_norms(np.append(np.full(200, 4.0), np.exp2(np.linspace(0.0, 4.0, 500))), 20.0)
    assert not sure_norm(few, 20.0)


@given(st.floats(1e-9, 1e18))
def test_norms_are_rounded_up_to_three_digits(norm: float) -> None:
    rounded = rounded_up(norm)
    assert norm * (1.0 - 1e-8) <= rounded <= norm * 1.011
    assert float(f"{rounded:.3g}") == rounded == rounded_up(rounded)
