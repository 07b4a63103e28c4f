"""Delete one unit: the exact bounded aggregates move by no more than the receipt says, and equal a plain reference."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings

from tests.unit.bound.exact_runs import ExactTable, Laboratory, Rewrite, Run, is_unit, movements, totals, unchanged
from tests.unit.bound.planted_faults import FAULTS, Fault
from tests.unit.bound.query_descriptions import Case
from tests.unit.bound.random_cases import cases, truth_cases

_SHORT = settings(
    max_examples=15,
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


def check_case(laboratory: Laboratory, run: Run, rewrite: Rewrite = unchanged) -> ExactTable:
    """The check that every claim below rests on: deleting a unit, and deleting the rows that have none."""
    before = laboratory.exact(run, rewrite=rewrite)
    assert before == laboratory.exact(run, without=is_unit(run.case, None), rewrite=rewrite), "NULL units count"
    if run.case.removed is not None:
        after = laboratory.exact(run, without=is_unit(run.case, run.case.removed), rewrite=rewrite)
        for moved, claim in zip(movements(before, after, len(run.claims)), run.claims, strict=True):
            assert moved.l0 <= run.max_groups, "l0"
            assert moved.linf <= claim.linf, "linf"
            assert moved.l2 <= claim.l2 * (1 + 1e-12), "l2"
    return before


def _check_against_both(laboratory: Laboratory, case: Case) -> None:
    with laboratory.run(case) as run:
        exact = check_case(laboratory, run)
        assert totals(run, exact) == laboratory.reference(run)


def _check_answer(laboratory: Laboratory, run: Run) -> None:
    receipt = laboratory.answer(run).receipt
    assert receipt is not None
    assert (receipt.columns, receipt.mechanism) == (run.receipt.columns, run.receipt.mechanism)


@settings(_SHORT, max_examples=8)
@given(case=cases() | truth_cases())
def test_an_answer_has_the_receipt_that_the_checks_read(laboratory: Laboratory, case: Case) -> None:
    with laboratory.run(case) as run:
        _check_answer(laboratory, run)


@settings(_SHORT)
@given(case=cases())
def test_a_unit_moves_no_more_than_the_receipt_says(laboratory: Laboratory, case: Case) -> None:
    _check_against_both(laboratory, case)


@settings(_SHORT, max_examples=10)
@given(case=truth_cases())
def test_a_unit_moves_the_units_behind_a_truth_value_by_one(laboratory: Laboratory, case: Case) -> None:
    _check_against_both(laboratory, case)


@pytest.mark.long
@settings(max_examples=5000, suppress_health_check=list(HealthCheck))
@given(case=cases() | truth_cases())
def test_a_unit_moves_no_more_than_the_receipt_says_over_many_cases(laboratory: Laboratory, case: Case) -> None:
    with laboratory.run(case) as run:
        _check_answer(laboratory, run)
    _check_against_both(laboratory, case)


@pytest.mark.parametrize("fault", FAULTS, ids=repr)
def test_the_check_catches_a_planted_fault(
    laboratory: Laboratory, fault: Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert 1 <= _examples_until_caught(laboratory, fault, monkeypatch) <= 200


def _examples_until_caught(laboratory: Laboratory, fault: Fault, patch: pytest.MonkeyPatch) -> int:
    tried = 0

    @settings(_SHORT, max_examples=200, derandomize=False)
    @seed(fault.seed)
    @given(case=cases())
    def look(case: Case) -> None:
        nonlocal tried
        tried += 1
        with laboratory.run(case) as run, patch.context() as planted:
            fault.plant(planted)
            check_case(laboratory, run, fault.rewrite)

    with pytest.raises(AssertionError, match=fault.seen_as):
        look()
    return tried
