"""Delete one unit: each sum of pairs moves by no more than its radius, and equals the sum of clamped products."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest

from dpsql.model.estimates import Moments
from tests.unit.bound.exact_runs import Laboratory
from tests.unit.bound.planted_faults import FAULTS, Fault
from tests.unit.bound.query_descriptions import Case, Field, Query, Value, column
from tests.unit.bound.test_bounding import check_case

X, Y = (-3.0, 8.0), (100.0, 101.0)
FUNCTIONS = ("covar_pop", "covar_samp", "corr", "regr_slope", "regr_intercept", "regr_r2")
FIELDS = (
    Field("pid", "INTEGER"),
    Field("k", "INTEGER"),
    Field("x", "DOUBLE"),
    Field("y", "DECIMAL(9,2)"),
)


@dataclass(frozen=True)
class PairQuery(Query):
    """A query with aggregates of pairs, as their texts."""

    texts: tuple[str, ...] = ()

    def sql(self, table: str, unit: str) -> str:
        listed = f"{', ' * bool(self.keys)}{', '.join(self.texts)} FROM {table}"
        return super().sql(table, unit).replace(f" FROM {table}", listed, 1)


@pytest.fixture(scope="module")
def laboratory() -> Iterator[Laboratory]:
    opened = Laboratory()
    yield opened
    opened.close()


def random_case(seed: int) -> Case:
    """A random table of seven people, with heavy ones, extreme values, NULL, NaN and infinity, and a query of pairs."""
    chance = random.Random(seed)
    rows: list[tuple[Value, ...]] = []
    for _ in range(chance.randrange(5, 40)):
        person = chance.choice((None, 1, 1, 1, 2, 3, 4, 5, 6))
        x = chance.choice((None, "nan", "inf", 1e30, -3.0, 8.0, 8.0, chance.uniform(*X), 0.0))
        y = chance.choice((None, 0.0, 100.0, 101.0, 101.0, 250.0, round(chance.uniform(*Y), 2)))
        rows.append((person, chance.randrange(4), x, y))
    rows += [(1, 0, 8.0, 101.0)] * chance.randrange(8)
    named = "contribution_bounds_per_row => "
    texts = []
    for function in chance.sample(FUNCTIONS, chance.randrange(1, 4)):
        pair = (f"x, y, {named}({X}, {Y})", f"y, x, {named}({Y}, {X})", f"x, x, {named}({X}, {X})")
        texts.append(f"{function}({chance.choice(pair)}){chance.choice(('', '', ' FILTER (WHERE k > 0)'))}")
    if chance.random() < 0.5:
        texts.append(f"geomean(y, {named}({Y[0]}, {Y[1]}))")
    query = PairQuery(
        keys=(column(FIELDS[1]),) if chance.random() < 0.8 else (),
        aggregates=(),
        max_groups=chance.randrange(1, 4),
        row_cap=chance.choice((1, 2, 5)),
        bounding=chance.choice(("", "", "L2", "NORM")),
        option_in_text=True,
        texts=tuple(dict.fromkeys(texts)),
    )
    if query.bounding == "NORM":
        query = replace(query, most_rows=chance.choice((1, 4, 9)))
    return Case(FIELDS, tuple(rows), query, chance.choice((1, 1, 2, 3)))


def check(laboratory: Laboratory, seed: int) -> None:
    with laboratory.run(random_case(seed)) as run:
        check_case(laboratory, run)


@pytest.mark.parametrize("seed", range(6))
def test_a_unit_moves_no_sum_by_more_than_its_radius(laboratory: Laboratory, seed: int) -> None:
    check(laboratory, seed)


@pytest.mark.parametrize("fault", [one for one in FAULTS if one.name in ("bounding off", "row cap ignored")], ids=repr)
def test_the_check_catches_a_planted_fault(
    laboratory: Laboratory, fault: Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    def look() -> None:
        for seed in (4, 7, 11, 0):
            with laboratory.run(random_case(seed)) as run, monkeypatch.context() as planted:
                fault.plant(planted)
                check_case(laboratory, run, fault.rewrite)

    with pytest.raises(AssertionError, match=fault.seen_as):
        look()


def test_a_product_is_that_of_clamped_distances(laboratory: Laboratory) -> None:
    """Without limits of groups and rows the sums are those of plain Python, up to the rounding of rows."""
    for seed in range(2):
        case = random_case(seed)
        texts = ("covar_pop(x, y, contribution_bounds_per_row => ((-3, 8), (100, 101)))",)
        query = PairQuery((column(FIELDS[1]),), (), max_groups=4, row_cap=50, option_in_text=True, texts=texts)
        with laboratory.run(replace(case, query=query)) as run:
            exact = laboratory.exact(run)
            (estimate,) = run.query.first.estimates
            assert isinstance(estimate.value, Moments)
            statistic = estimate.value.products.statistic
            assert statistic
            place = run.query.first.statistics.index(statistic)
            assert statistic.radius == pytest.approx(50 * 5.5 * 0.5)
            for (group,), sums in exact.items():
                expected = math.fsum(_product(row) for row in case.rows if row[0] is not None and row[1] == group)
                assert sums[place] * statistic.lattice == pytest.approx(expected, abs=1e-4)


def _product(row: tuple[Value, ...]) -> float:
    """Return the product of the clamped distances of a row; 0 if it has no pair."""
    numbers = [float(one) for one in row[2:4] if one is not None]
    if len(numbers) < 2 or not all(map(math.isfinite, numbers)):
        return 0.0
    x, y = (max(low, min(one, high)) for one, (low, high) in zip(numbers, (X, Y), strict=True))
    return (x - sum(X) / 2.0) * (y - sum(Y) / 2.0)


@pytest.mark.long
def test_a_unit_moves_no_sum_by_more_than_its_radius_over_many_cases(laboratory: Laboratory) -> None:
    for seed in range(100, 600):
        check(laboratory, seed)
