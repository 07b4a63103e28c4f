"""Another accountant, dp-accounting, finds no more than the declared budget in random adaptive sessions.

Each history is checked alone, and together with all others of its declaration. The second check is needed, because
answers decide which history an analyst follows. So a budget pays for the largest rho and for the largest delta of
thresholds that any history reaches (docs/proofs/ledger.md, Theorem 2).
"""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pytest

import dpsql
from dpsql.accounting.composition import CONVERSIONS, gaussian_rho
from dpsql.state import DELTA_UNITS_PER_ONE, NANO_PER_RHO, Spent, charges, delta_units_down, ledger
from tests.end_to_end.budget_accountant import Account, Measured, composed_delta, gaussian_delta, measured, zcdp_delta
from tests.end_to_end.budget_sessions import (
    BUDGETS,
    SHORT,
    TABLES,
    WIDE,
    Budget,
    Course,
    Ended,
    declared,
    questions_of,
    run_session,
)

ROUNDING = 1e-4
"""Relative excess that the grid of Renyi orders may cause. Each planted fault exceeds its budget by more than 0.3."""
_DISCRETIZATION = 1e-3

declared_amounts = charges.budget_of


@dataclass(frozen=True)
class Sessions:
    """Runs sessions of any budget on the same tables."""

    prepared: dpsql.Session
    known: Mapping[str, Measured]

    def __call__(self, budget: Budget, seeds: range, course: Course = WIDE) -> list[Ended]:
        """Run one session for each seed. Each question of the budget begins one of them, as far as they go."""
        with declared(self.prepared, budget, self.known) as place:
            firsts = itertools.chain(questions_of(budget), itertools.repeat(None))
            return [run_session(place, seed, course, first) for seed, first in zip(seeds, firsts, strict=False)]


@pytest.fixture(scope="module")
def sessions() -> Iterator[Sessions]:
    with dpsql.connect(threads=1) as session, measured() as points:
        session.connection.execute(TABLES)
        yield Sessions(session, points)


def part_of_budget(budget: Budget, account: Account) -> float:
    """Return delta at the declared epsilon, as a part of the declared delta."""
    converted = {"gaussian": gaussian_delta, "zcdp": zcdp_delta}[budget.composition]
    return (converted(budget.epsilon, account.distance) + account.thresholds) / budget.delta


def most_of_all(ended: Sequence[Ended]) -> Account:
    """Return the account of the largest distance and of the largest thresholds of several histories."""
    accounts = [one.account for one in ended]
    return Account((max(one.distance for one in accounts),), max(one.thresholds for one in accounts))


def largest_part(ended: Sequence[Ended]) -> float:
    """Return the largest part of their common budget that histories use, each alone or all together."""
    accounts = [*(one.account for one in ended), most_of_all(ended)]
    return max(part_of_budget(ended[0].budget, account) for account in accounts)


def check(ended: Sequence[Ended]) -> None:
    """Check that no history of one declaration, nor all together, exceeds what was charged or the budget.

    At least half of the histories end in a refusal for lack of budget.
    """
    for one in ended:
        # less than was charged would be a gap in the accountant's own table
        assert 0.999 * one.charged[0] <= one.account.distance / 2.0 <= one.charged[0] * (1.0 + 1e-9)
        assert one.account.thresholds <= one.charged[1] * (1.0 + 1e-6)
    assert largest_part(ended) <= 1.0 + ROUNDING
    assert 2 * sum(one.refused for one in ended) >= len(ended)


@pytest.mark.parametrize("place", range(len(BUDGETS)))
def test_no_history_of_two_hundred_costs_more_than_its_budget(sessions: Sessions, place: int) -> None:
    ended = sessions(BUDGETS[place], range(25 * place, 25 * place + 200 // len(BUDGETS)), SHORT)
    check(ended)
    assert {text for one in ended for text in one.answers} == set(questions_of(BUDGETS[place]))


@pytest.mark.long
@pytest.mark.parametrize("budget", BUDGETS)
def test_no_history_of_a_thousand_costs_more(sessions: Sessions, budget: Budget) -> None:
    check(sessions(budget, range(200, 200 + 1000 // len(BUDGETS))))


def test_releases_composed_one_by_one_cost_the_same(sessions: Sessions) -> None:
    """Gaussian releases add up to one of their whole distance; numerical composition does not use this fact."""
    budget = BUDGETS[4]
    (ended,) = sessions(budget, range(1))
    assert len(ended.account.distances) > 1
    delta = composed_delta(budget.epsilon, ended.account.distances, _DISCRETIZATION)
    assert delta == pytest.approx(gaussian_delta(budget.epsilon, ended.account.distance), rel=0.01)


# Planted faults: rules by history for the amounts of a budget.


def better_of_two_filters(connection: sqlite3.Connection, unit: str) -> Spent:
    """Return the budget by the composition that leaves more, whatever the unit declares."""
    budget = declared_amounts(connection, unit)
    epsilon, converted = declared_budget(connection, unit)[:2]
    rhos = [round(one.rho(epsilon, converted) * NANO_PER_RHO) for one in CONVERSIONS.values()]
    return Spent(max(rhos), budget.delta_units)


def sums_in_place_of_caps(connection: sqlite3.Connection, unit: str) -> Spent:
    """Return a budget that refuses nothing before the sum of all charges has passed the declared one."""
    budget, spent = declared_amounts(connection, unit), charges.read_spent(connection, unit)
    return Spent(budget.rho_nano + (spent.rho_nano < budget.rho_nano) * budget.rho_nano, budget.delta_units)


def delta_moved_by_history(connection: sqlite3.Connection, unit: str) -> Spent:
    """Return a budget in which noise may use the delta that thresholds left, and the other way round."""
    epsilon, _, whole = declared_budget(connection, unit)
    spent = charges.read_spent(connection, unit)
    rest = whole - spent.delta_units / DELTA_UNITS_PER_ONE
    used = gaussian_delta(epsilon, 2.0 * spent.rho_nano / NANO_PER_RHO)
    rho = gaussian_rho(epsilon, rest) if rest > 0.0 else 0.0
    return Spent(int(rho * NANO_PER_RHO), delta_units_down(max(0.0, whole - used)))


def declared_budget(connection: sqlite3.Connection, unit: str) -> tuple[float, float, float]:
    """Return epsilon, delta of the conversion and the whole delta of a unit."""
    row = connection.execute(
        "SELECT rho_budget, delta_conversion, delta_threshold, composition FROM unit WHERE name = ?", (unit,)
    ).fetchone()
    epsilon = CONVERSIONS[row[3]].epsilon(row[1], row[0] / NANO_PER_RHO)
    return epsilon, row[1], row[1] + int(row[2]) / DELTA_UNITS_PER_ONE


@pytest.mark.parametrize(
    ("fault", "budget"),
    [
        (better_of_two_filters, BUDGETS[7]),
        (sums_in_place_of_caps, BUDGETS[4]),
        (delta_moved_by_history, BUDGETS[1]),
    ],
)
def test_budgets_by_history_are_caught(
    sessions: Sessions,
    monkeypatch: pytest.MonkeyPatch,
    fault: Callable[[sqlite3.Connection, str], Spent],
    budget: Budget,
) -> None:
    monkeypatch.setattr(ledger, "budget_of", fault)
    assert largest_part(sessions(budget, range(6))) > 1.3
