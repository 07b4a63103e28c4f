"""The benchmark of counts within 10 %: what its methods pay and return, and that its claims can fail."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks import accuracy_first as bench
from benchmarks.accuracy_methods import GRID, METHODS, SMALLEST, Attempt, Budget, Rule, by_choice, doubled, reduced
from dpsql.mechanism import chosen_counts

TRIALS = 12
SIZE = 16_000


@pytest.fixture(scope="module")
def table() -> bench.Table:
    return bench.measure(0.75, bench.PAPER, TRIALS, sizes=(SIZE,))


def test_every_method_returns_counts_that_are_mostly_right(table: bench.Table) -> None:
    assert table.keys() == METHODS.keys()
    means = {name: row[SIZE].mean for name, row in table.items()}
    assert means["all keys at one level"] < means["doubling"] < means["Brownian noise reduction"]
    assert means["Brownian noise reduction"] < means["two releases"] < 80
    assert all(row[SIZE].precision > 0.9 for row in table.values())


def test_methods_return_about_the_known_figures(table: bench.Table) -> None:
    place = bench.SIZES.index(SIZE)
    for name, figures in bench.KNOWN.items():
        one = table[name][SIZE]
        if name == "two releases":
            assert one.mean > figures[place] - 4 * one.error - 1.0
        else:
            assert one.mean == pytest.approx(figures[place], abs=4 * one.error + 1.0), name


def test_other_compositions_leave_the_larger_budgets() -> None:
    assert [round(budget.squared, 4) for budget in bench.OTHER_BUDGETS] == [3.0786, 3.4156]
    assert [round(budget.choice, 6) for budget in bench.OTHER_BUDGETS] == [0.0025, 0.003927]


def test_doubling_pays_for_every_release() -> None:
    # of 1,500 the first release has 15 standard deviations, and the second and third 21 and 30
    found = doubled(np.full(500, 1500.0), np.full(500, 1.0), np.random.default_rng(3))
    assert found.accepted.all()
    assert set(np.rint(found.paid / SMALLEST)) == {3.0, 7.0}
    none = doubled(np.zeros(3), np.array([SMALLEST, 3.1 * SMALLEST, 1.0]), np.random.default_rng(3))
    assert not none.accepted.any()
    assert np.rint(none.paid / SMALLEST).tolist() == [1, 3, 8191]


def test_noise_reduction_pays_for_the_last_parameter() -> None:
    left = np.array([0.5, 1.0, 2.0])
    sure = reduced(np.full(3, 1e6), left, np.random.default_rng(3))
    assert sure.accepted.all()
    assert sure.paid.tolist() == [SMALLEST] * 3
    none = reduced(np.zeros(3), left, np.random.default_rng(3))
    assert not none.accepted.any()
    assert none.paid.tolist() == left.tolist()


def test_paths_have_the_variance_of_their_parameter() -> None:
    """If no rule stops it, the last value is the count with noise of variance 1/r."""
    found = reduced(np.full(4000, 5.0), np.full(4000, 0.25), np.random.default_rng(4), needed=1e9)
    assert found.estimates.mean() == pytest.approx(5.0, abs=0.13)
    assert found.estimates.std() == pytest.approx(2.0, rel=0.05)
    assert GRID == 1000


def test_a_trial_ends_where_no_step_fits() -> None:
    asked: list[int] = []

    def costly(true: np.ndarray, left: np.ndarray, _: np.random.Generator) -> Attempt:
        asked.append(len(true))
        return Attempt(true, np.ones(len(true), dtype=bool), np.full(len(true), 0.4))

    true = np.tile(np.arange(100.0, 0.0, -1.0), (5, 1))
    found = by_choice(true, Budget("", 1.0, 0.1), np.random.default_rng(1), costly)
    assert asked == [5, 5]
    assert found.counts.tolist() == found.right.tolist() == [2] * 5
    nothing = by_choice(true, Budget("", 0.1, 0.1), np.random.default_rng(1), costly)
    assert nothing.counts.tolist() == [0] * 5
    assert nothing.precision.tolist() == [1] * 5


def test_claims_fail_where_figures_differ() -> None:
    good = {
        name: {
            size: bench.Summary(mean, 2.0, 0.97, 0.01, 100)
            for size, mean in zip(bench.SIZES, bench.KNOWN.get(name, 5 * (1.0,)), strict=True)
        }
        for name in METHODS
    }
    assert bench.failures(good) == []
    ours = "two releases"
    first = {name: row[8_000] for name, row in good.items()}
    for name, worse in (
        ("doubling", replace(first["doubling"], mean=20.0)),
        ("Brownian noise reduction", replace(first["Brownian noise reduction"], mean=18.0)),
        (ours, replace(first[ours], mean=25.0)),
        (ours, replace(first[ours], precision=0.95)),
    ):
        assert len(bench.failures(good | {name: good[name] | {8_000: worse}})) == 1
    more = good | {ours: good[ours] | {8_000: replace(first[ours], mean=40.0)}}
    assert bench.failures(more) == []
    little_less = {64_000: bench.Summary(218.0, 0.1, 0.97, 0.01, 100)}
    assert bench.failures(good | {ours: good[ours] | little_less}) == []


def test_rules_are_compared_with_the_best_of_each_table() -> None:
    def one(mean: float, precision: float) -> bench.Summary:
        return bench.Summary(mean, 1.0, precision, 0.1, 10)

    found = [[one(10.0, 0.9), one(5.0, 1.0)], [one(8.0, 1.0), one(16.0, 0.8)]]
    assert bench.of_best(found) == [(0.75, 0.5, 0.9), (0.75, 0.5, 0.8)]
    assert len(bench.Case(size=100).results([Rule(), Rule(margin=0.5)], 2)) == 2


def test_each_constant_of_a_rule_changes_the_results_and_the_library_keeps_its_own() -> None:
    before = chosen_counts.MARGIN, chosen_counts.ROOM
    rules = [Rule(), Rule(first_part=2), Rule(margin=5.0), Rule(room=1.5)]
    means = [one.mean for one in bench.Case(size=SIZE).results(rules, 5)]
    assert all(mean < means[0] - 2.0 for mean in means[1:])
    assert before == (chosen_counts.MARGIN, chosen_counts.ROOM)
