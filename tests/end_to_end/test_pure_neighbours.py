"""One person moves what a pure unit stores by no more than is charged, in the l1 norm.

Random texts over random tables, each asked without noise in two databases that differ in all rows of one person. The
noise of a statistic has an epsilon for each step of its values. So the distance of two stored vectors in steps, times
this epsilon, is the most by which the probabilities of any outcome differ.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest

import dpsql
from dpsql.mechanism.laplace import LaplaceHistogram, step_epsilon
from dpsql.mechanism.measure import Grid
from dpsql.model.frame import NANO, Statistic
from dpsql.release import stage
from dpsql.release.offer import Offer
from dpsql.state import Charged
from tests.deterministic_entropy import seeded_system
from tests.end_to_end.prepared import with_own_state
from tests.noise_sources import NoNoise

_EXAMPLES, _MANY_EXAMPLES, _FAULT_EXAMPLES = 60, 300, 20
_ABOVE = 1.0 + 1e-9
_COLUMNS = (
    "count(*)",
    "count(amount)",
    "count(DISTINCT person)",
    "count(*) FILTER (WHERE other > 0)",
    "sum(amount)",
    "sum(amount, weight => 3)",
    "sum(amount, contribution_bounds_per_row => (-5, 20))",
    "sum(amount, contribution_bounds_per_group => (10, 60))",
    "count(*, contribution_bounds_per_group => (0, 2))",
    "avg(amount)",
    "avg(amount) FILTER (WHERE other = 1)",
    "bool_or(amount > 40)",
)
_GROUPS = ("", "key", "key", "other", "key, other")
_FILTERS = ("", "", " WHERE amount < 30", " WHERE other <> 1 AND amount IS NOT NULL")
Row = tuple[int | None, int | None, int, float | None]


@dataclass(frozen=True)
class Example:
    """A table, a policy, questions about it with their epsilons, and the person who is in one world alone."""

    rows: list[Row]
    person: int
    policy: str
    questions: list[tuple[str, float]]


def example(chance: random.Random) -> Example:
    """Make an example of some dozen people, of whom few have most rows."""
    rows: list[Row] = []
    for person in range(chance.randint(3, 30)):
        own = chance.sample(range(9), chance.randint(1, 9))
        for _ in range(min(60, int(chance.paretovariate(0.8) * 2))):
            amount = chance.choice((None, 0.0, 50.0, -3.0, 99.0, chance.uniform(0, 50)))
            key = None if chance.random() < 0.03 else chance.choice(own)
            rows.append((person if chance.random() > 0.02 else None, key, chance.randint(0, 2), amount))
    most = [one for one, _ in Counter(row[0] for row in rows if row[0] is not None).most_common(3)]
    groups, limit = chance.choice((1, 2, 3, 20)), chance.choice((1, 2, 3, 10))
    policy = f"max_groups_contributed := {groups}, max_rows_per_group := {limit}"
    return Example(rows, chance.choice(most), policy, [_question(chance) for _ in range(chance.choice((1, 1, 1, 2)))])


def _question(chance: random.Random) -> tuple[str, float]:
    if chance.random() < 0.1:
        parts = [_select(chance, "") for _ in range(2)]
        return " UNION ALL ".join(parts), chance.choice((0.5, 2.0))
    return _select(chance, chance.choice(_GROUPS)), chance.choice((0.1, 1.0, 7.0))


def _select(chance: random.Random, groups: str) -> str:
    numbers = chance.sample(_COLUMNS, chance.choice((1, 1, 2, 3)) if groups else 1)
    end = f" GROUP BY {groups}" if groups else ""
    return f"SELECT {', '.join(filter(None, [groups, *numbers]))} FROM data{chance.choice(_FILTERS)}{end}"


@dataclass
class Seen:
    """Numbers of examples, and the largest loss over its charge."""

    answered: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    had: Counter[str] = field(default_factory=Counter)
    largest: float = 0.0


@dataclass
class World:
    """What questions stored without noise: values in steps and the epsilon of a step, by statistic and level."""

    stored: dict[tuple[str, int], tuple[npt.NDArray[np.float64], float]] = field(default_factory=dict)
    kinds: set[str] = field(default_factory=set)
    charged: float = 0.0


@pytest.fixture(scope="module")
def prepared() -> Iterator[dpsql.Session]:
    with dpsql.connect(threads=1) as session:
        session.connection.execute("CREATE TABLE data (person INTEGER, key INTEGER, other INTEGER, amount DOUBLE)")
        session.sql("CALL dp_unit('person', epsilon_budget := 1000, composition := 'pure')")
        yield session


def _fill(connection: duckdb.DuckDBPyConnection, rows: list[Row]) -> None:
    types = (pa.int32(), pa.int32(), pa.int32(), pa.float64())
    columns = [list(column) for column in zip(*rows, strict=True)] or [[], [], [], []]
    arrays = [pa.array(column, kind) for column, kind in zip(columns, types, strict=True)]
    made = pa.table(dict(zip(("person", "key", "other", "amount"), arrays, strict=True)))
    connection.execute("DELETE FROM data")
    connection.register("made", made)
    connection.execute("INSERT INTO data FROM made")
    connection.unregister("made")


def _asked(session: dpsql.Session, one: Example, rows: list[Row]) -> World:
    """Ask the questions of an example in one world; the secrets of both are the same."""
    _fill(session.connection, rows)
    world, offers = World(), list[Offer]()
    charge_offers = stage.charge_offers

    def charging(offered: Sequence[Offer], *of: Any) -> Charged:
        offers.extend(offered)
        return charge_offers(offered, *of)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stage, "charge_offers", charging)
        for question, epsilon in one.questions:
            session.sql(question, epsilon=epsilon)
    state = session._access.read()
    for offer in offers:
        for serving in (serving for serving in offer.servings if serving.is_drawn):
            statistic, nano = serving.level.statistic, serving.level.rho_nano
            name = serving.pin.statistic_hash
            point = state.side_table.point(name, nano, serving.pin.release_rho_nano)
            assert point is not None
            grid = Grid(statistic.noise_exponent, statistic.lattice_exponent)
            world.stored[name, nano] = point.values / 2.0**grid.shift, float(step_epsilon(grid, serving.level.sigma))
            world.kinds.add(statistic.kind)
    world.charged = state.ledger.spent("person").rho_nano / NANO
    return world


def _check(prepared: dpsql.Session, number: int, seen: Seen) -> None:
    one = example(random.Random(number))
    with with_own_state(prepared) as policy:
        policy.sql(f"CALL dp_protect('data', unit := 'person', privacy_unit_column := 'person', {one.policy})")
        policy.sql("CALL dp_domain('data', 'amount', bounds := [0, 50])")
        policy.sql("CALL dp_domain('data', 'key', keys := [0, 1, 2, 5, 77])")
        policy.sql("CALL dp_domain('data', 'other', keys := [0, 1])")
        worlds = []
        try:
            for rows in (one.rows, [row for row in one.rows if row[0] != one.person]):
                with with_own_state(policy) as own, seeded_system(number):
                    own._runner.noise_source = NoNoise()
                    worlds.append(_asked(own, one, rows))
        except dpsql.DpsqlError as error:
            seen.refused[str(error)[:200]] += 1
            return
    with_all, without = worlds
    assert with_all.stored.keys() == without.stored.keys(), "what is drawn depends on rows"
    assert with_all.charged == without.charged, "a price depends on rows"
    loss = math.fsum(
        float(np.abs(values - without.stored[name][0]).sum()) * epsilon
        for name, (values, epsilon) in with_all.stored.items()
    )
    assert loss <= with_all.charged * _ABOVE, "more than is paid"
    seen.answered += 1
    seen.largest = max(seen.largest, loss / with_all.charged)
    seen.had.update(with_all.kinds)
    seen.had.update(["several questions"] * (len(one.questions) > 1))


def _look(prepared: dpsql.Session, first: int, examples: int) -> Seen:
    seen = Seen()
    for number in range(first, first + examples):
        _check(prepared, number, seen)
    return seen


@pytest.mark.parametrize("examples", [_EXAMPLES, pytest.param(_MANY_EXAMPLES, marks=pytest.mark.long)])
def test_one_person_moves_what_is_stored_by_at_most_the_charge(prepared: dpsql.Session, examples: int) -> None:
    seen = _look(prepared, examples, examples)
    assert seen.answered > 0.9 * examples, seen.refused
    assert seen.had.keys() == {"presence", "units", "rows", "sum", "several questions"}
    assert seen.largest > 0.99


def _less_noise(patch: pytest.MonkeyPatch) -> None:
    """Let noise be a tenth smaller than what is paid for."""
    sum_sigma = LaplaceHistogram.sum_sigma

    def low(histogram: LaplaceHistogram, statistic: Statistic, rho: float) -> float:
        return sum_sigma(histogram, statistic, rho) * 0.9

    patch.setattr(LaplaceHistogram, "sum_sigma", low)


def _of_one_group(patch: pytest.MonkeyPatch) -> None:
    """Let noise be for one group of a unit."""

    def of_one(histogram: LaplaceHistogram, statistic: Statistic, rho: float) -> float:
        one = LaplaceHistogram(name="laplace", unit_groups=1, draws=0, sum_draws=0)
        return sum_sigma(one, statistic, rho)

    sum_sigma = LaplaceHistogram.sum_sigma
    patch.setattr(LaplaceHistogram, "sum_sigma", of_one)


@pytest.mark.parametrize("plant", [_less_noise, _of_one_group])
def test_a_planted_fault_is_caught(prepared: dpsql.Session, plant: object, monkeypatch: pytest.MonkeyPatch) -> None:
    assert callable(plant)
    plant(monkeypatch)
    with pytest.raises(AssertionError, match="more than is paid"):
        _look(prepared, _EXAMPLES, _FAULT_EXAMPLES)
