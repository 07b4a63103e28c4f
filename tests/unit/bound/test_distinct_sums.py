"""sum(DISTINCT x) over random tables: it equals a plain reference, and one unit moves it by at most its radius."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from dpsql.bound import value_counts
from dpsql.model.frame import Statistic
from tests.unit.bound.exact_runs import Laboratory, Rewrite, Run, is_unit, movements, totals, unchanged
from tests.unit.bound.planted_faults import every_value
from tests.unit.bound.query_descriptions import Aggregate, Case, column, is_null
from tests.unit.bound.random_cases import BOUNDS, cases

_SETTINGS = settings(
    max_examples=12,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.generate,),
)


@pytest.fixture(scope="module")
def laboratory() -> Iterator[Laboratory]:
    opened = Laboratory()
    yield opened
    opened.close()


@st.composite
def sums(draw: st.DrawFn) -> Case:
    """A table, and a query with a sum of distinct values, beside a count of them and a sum of rows."""
    case = draw(cases())
    whole, text = case.fields[4:6]
    condition = draw(st.none() | st.just(is_null(column(text))))
    number = draw(st.sampled_from(case.fields[3:5]))
    bounds = draw(st.sampled_from(BOUNDS))
    value = column(number)
    aggregates = (
        Aggregate("value_sum", value, condition, per_row=bounds),
        Aggregate("values", value, condition),
        Aggregate("sum", column(whole), per_row=bounds),
    )
    query = replace(case.query, aggregates=aggregates, row_cap=draw(st.sampled_from((1, 2, 5))))
    return replace(case, query=query)


def _check(laboratory: Laboratory, run: Run, rewrite: Rewrite = unchanged) -> None:
    before = laboratory.exact(run, rewrite=rewrite)
    if run.case.removed is not None:
        after = laboratory.exact(run, without=is_unit(run.case, run.case.removed), rewrite=rewrite)
        for moved, claim in zip(movements(before, after, len(run.claims)), run.claims, strict=True):
            assert moved.linf <= claim.linf, "linf"
            assert moved.l2 <= claim.l2 * (1 + 1e-12), "l2"


def _check_against_reference(laboratory: Laboratory, case: Case) -> None:
    with laboratory.run(case) as run:
        _check(laboratory, run)
        assert totals(run, laboratory.exact(run)) == laboratory.reference(run)


@settings(_SETTINGS)
@given(case=sums())
def test_one_unit_moves_a_sum_by_at_most_its_radius(laboratory: Laboratory, case: Case) -> None:
    _check_against_reference(laboratory, case)


@pytest.mark.long
@settings(_SETTINGS, max_examples=2000, derandomize=False)
@given(case=sums())
def test_one_unit_moves_a_sum_by_at_most_its_radius_over_many_cases(laboratory: Laboratory, case: Case) -> None:
    _check_against_reference(laboratory, case)


def _without_clamps(patch: pytest.MonkeyPatch) -> None:
    """Add values up as they are."""
    steps = value_counts.row_steps

    def unclamped(value: str, statistic: Statistic) -> str:
        return steps(value, replace(statistic, row_bounds_steps=None))

    patch.setattr(value_counts, "row_steps", unclamped)


def _of_rows(sql: str) -> str:
    """Let a value count as often as units have it."""
    return re.sub(r"sum\((CAST\(CASE .*?)\) AS n FROM \(SELECT DISTINCT ", r"sum(\1) AS n FROM (SELECT ", sql)


@pytest.mark.parametrize(
    ("plant", "rewrite"),
    [(_without_clamps, unchanged), (lambda patch: None, every_value)],
    ids=["values are not clamped", "every value of a unit counts"],
)
def test_a_planted_fault_is_seen(
    laboratory: Laboratory,
    plant: Callable[[pytest.MonkeyPatch], None],
    rewrite: Rewrite,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    @settings(_SETTINGS, max_examples=60, derandomize=False)
    @seed(3)
    @given(case=sums())
    def look(case: Case) -> None:
        with laboratory.run(case) as run, monkeypatch.context() as planted:
            plant(planted)
            _check(laboratory, run, rewrite)

    with pytest.raises(AssertionError, match="linf"):
        look()


def test_a_value_that_counts_once_for_each_unit_is_seen(laboratory: Laboratory) -> None:
    @settings(_SETTINGS, max_examples=60, derandomize=False)
    @seed(3)
    @given(case=sums())
    def look(case: Case) -> None:
        with laboratory.run(case) as run:
            assert totals(run, laboratory.exact(run, rewrite=_of_rows)) == laboratory.reference(run), "another sum"

    with pytest.raises(AssertionError, match="another sum"):
        look()
