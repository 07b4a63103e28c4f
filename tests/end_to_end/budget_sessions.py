"""Random adaptive sessions up to the end of a budget, through SQL: real planner, ledger and sampler.

A session has one declared budget and several readers. Its questions are of many kinds. The next question and its level
depend on the rows that were shown.
"""

from __future__ import annotations

import contextlib
import functools
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import duckdb
import pyarrow as pa

import dpsql
from dpsql.engine import DuckDBEngine
from dpsql.errors import AccessError, BudgetError, CalibrationError, UnsupportedQueryError
from dpsql.session.plan_cache import PlanCache
from dpsql.state import DELTA_UNITS_PER_ONE, NANO_PER_RHO
from tests.end_to_end.budget_accountant import MAX_GROUPS, MAX_ROWS, Account, Measured, account_of
from tests.end_to_end.prepared import with_own_state
from tests.noise_sources import seeded_noise

TABLES = """
CREATE TABLE visits AS
SELECT u AS visitor, (u * 7 + i * i) % 5 AS day, CASE WHEN i = 0 THEN 0 ELSE 1 + u % 3 END AS shop,
       (u * 13 + i) % 10 AS cost
FROM range(60) a(u), range(3) b(i)
"""


@dataclass(frozen=True)
class Budget:
    """A declared budget of a unit."""

    composition: str
    epsilon: float
    delta: float
    thresholds: bool = True

    def declare(self, session: dpsql.Session) -> None:
        """Declare the unit, its table and its analysts."""
        session.sql(
            f"CALL dp_unit('visitor', epsilon_budget := {self.epsilon}, delta_budget := {self.delta}, "
            f"composition := '{self.composition}', thresholds := {self.thresholds})"
        )
        session.sql(
            "CALL dp_protect('visits', coverage := FALSE, unit := 'visitor', privacy_unit_column := 'visitor', "
            f"max_groups_contributed := {MAX_GROUPS}, max_rows_per_group := {MAX_ROWS})"
        )
        session.sql("CALL dp_domain('visits', 'cost', bounds := [0, 10])")
        session.sql("CALL dp_domain('visits', 'day', keys := [0, 1, 2, 3, 4])")
        session.sql("CALL dp_analyst('ana')")
        session.sql(f"CALL dp_analyst('bob', rho_limit := {rho_budget(session) / 4})")


BUDGETS = (
    Budget("gaussian", 1.0, 1e-6),
    Budget("gaussian", 3.0, 1e-6),
    Budget("gaussian", 10.0, 1e-5),
    Budget("gaussian", 0.3, 1e-7),
    Budget("gaussian", 3.0, 1e-6, thresholds=False),
    Budget("gaussian", 0.1, 1e-8, thresholds=False),
    Budget("zcdp", 3.0, 1e-6),
    Budget("zcdp", 1.0, 1e-6, thresholds=False),
)
WITH = "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS"
BY_SHOP, BY_DAY = "FROM visits GROUP BY shop", "FROM visits GROUP BY day"
OF_COSTS = "FROM visits WHERE cost > 0 GROUP BY shop"
UNITS = "count(DISTINCT visitor) AS n"
PUBLIC = (
    f"SELECT day, {UNITS} {BY_DAY}",
    f"SELECT day, count(*) AS n, sum(cost) AS s, avg(cost) AS a {BY_DAY}",
    f"SELECT day, sum(sum(cost)) OVER (ORDER BY day) AS s {BY_DAY}",
    f"{WITH} (mechanism = GAUSSIAN) day, {UNITS}, sum(cost) AS s {BY_DAY}",
    f"{WITH} (max_groups_contributed = AUTO) day, {UNITS} FROM visits WHERE cost > 1 GROUP BY day",
    "SELECT day, sum(cost, contribution_bounds_per_group => AUTO) AS s FROM visits WHERE cost > 2 GROUP BY day",
    "SELECT count(*) AS n, sum(cost) AS s FROM visits",
)
PRIVATE = (
    f"SELECT shop, {UNITS} {BY_SHOP}",
    f"SELECT shop, {UNITS} FROM visits WHERE cost > 3 GROUP BY shop",
    f"SELECT shop, count(*) AS n, sum(cost) AS s {BY_SHOP}",
    f"{WITH} (top_k = 8, mechanism = CSH) shop, {UNITS} {BY_SHOP}",
    f"{WITH} (top_k = 8, mechanism = GSHM) shop, count(*) AS n, sum(cost) AS s {BY_SHOP}",
    f"{WITH} (mechanism = KEYS_FIRST) shop, {UNITS}, sum(cost) AS s {BY_SHOP}",
)
WINDOWS = (
    f"{WITH} (rho_window = [LOW, HIGH]) shop, {UNITS} {OF_COSTS}",
    f"{WITH} (rho_window = [LOW, HIGH], top_k = 8, mechanism = CSH) shop, {UNITS} {OF_COSTS}",
)
BY_TARGET = "target_relative_error"
TARGETS = (
    f"{WITH} ({BY_TARGET} = 0.3) day, count(*) AS n, avg(cost) AS a {BY_DAY}",
    f"{WITH} ({BY_TARGET} = 0.5, at_least = 0.5) shop, {UNITS}, sum(cost) AS s {BY_SHOP}",
)
SLOW = ("AUTO", "KEYS_FIRST", "GSHM", "CSH", BY_TARGET)
"""Words of questions that take two to ten times as long as others."""
DISCRETE = (f"{WITH} (mechanism = DISCRETE_CORRELATED_GAUSSIAN) day, {UNITS} {BY_DAY}",)


def questions_of(budget: Budget) -> tuple[str, ...]:
    """Return the questions that a unit with a budget may answer."""
    public = PUBLIC + (DISCRETE if budget.composition == "zcdp" else ())
    return public + PRIVATE + WINDOWS + TARGETS if budget.thresholds else public + TARGETS[:1]


@dataclass(frozen=True)
class Course:
    """The course of sessions.

    Attributes:
        questions: numbers of questions that a session may ask.
        parts: levels that a session may begin with, as parts of the budget: 2 stands for half of it.
        later_parts: levels of which an answer chooses the next.
        slow: chance that a slow question which was chosen is asked.

    """

    questions: tuple[int, ...]
    parts: tuple[int, ...]
    later_parts: tuple[int, int, int, int]
    slow: float


WIDE = Course((4, 12, 12), (2, 4, 8), (2, 3, 4, 8), 1.0)
SHORT = Course((3, 3, 4), (2, 2, 3), (2, 2, 2, 3), 0.1)


def rho_budget(session: dpsql.Session) -> float:
    """Return the rho of the declared budget."""
    (unit,) = session._access.read().policy().units
    return float(unit.rho_budget / NANO_PER_RHO)


class UnchangedTables(DuckDBEngine):
    """A database whose tables never change.

    It asks its catalog each question once, and tries each query on empty tables once.
    """

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        super().__init__(connection)
        self._answers: dict[Any, Any] = {}

    def _once(self, method: Callable[..., Any], *arguments: Any) -> Any:
        question = (method.__name__, repr(arguments))
        if question not in self._answers:
            self._answers[question] = method(*arguments)
        return self._answers[question]

    def settings(self) -> Any:
        return self._once(super().settings)

    def resolve(self, parts: Sequence[str]) -> Any:
        return self._once(super().resolve, tuple(parts))

    def marks(self, tables: Sequence[str]) -> Any:
        return self._once(super().marks, tuple(tables))

    def run_empty(self, queries: Sequence[str], *, listed_keys: pa.Table | None) -> None:
        run = functools.partial(super().run_empty, listed_keys=listed_keys)
        self._once(functools.update_wrapper(run, super().run_empty), tuple(queries))


@dataclass(frozen=True)
class Declared:
    """A session with a declared budget and nothing charged, and the plans of earlier sessions."""

    budget: Budget
    session: dpsql.Session
    plans: PlanCache
    engine: UnchangedTables
    known: Mapping[str, Measured]


@dataclass(frozen=True)
class Ended:
    """A session that ended.

    Attributes:
        budget: as it was declared.
        account: what was drawn.
        charged: rho and delta by the ledger.
        refused: whether a question was refused for lack of budget.
        answers: texts of the questions that were answered.

    """

    budget: Budget
    account: Account
    charged: tuple[float, float]
    refused: bool
    answers: tuple[str, ...]


@contextlib.contextmanager
def declared(prepared: dpsql.Session, budget: Budget, known: Mapping[str, Measured]) -> Iterator[Declared]:
    """Declare a budget in a copy of a session's state."""
    with with_own_state(prepared) as session:
        budget.declare(session)
        yield Declared(budget, session, PlanCache(), UnchangedTables(session.connection), known)


def run_session(place: Declared, seed: int, course: Course = WIDE, first: str | None = None) -> Ended:
    """Ask questions, of which the first may be given; end earlier where the budget refuses once or twice."""
    with with_own_state(place.session) as session:
        session._runner._plans, session._runner.engine = place.plans, place.engine
        session._runner.noise_source = seeded_noise(seed)
        asking = _Asking(session, place.budget, random.Random(seed), course)
        asking.text = first or asking.text
        for _ in range(asking.choose.choice(course.questions)):
            if asking.refusals < asking.most_refusals:
                asking.ask()
        spent = session._access.read().ledger.spent("visitor")
        charged = (spent.rho_nano / NANO_PER_RHO, spent.delta_units / DELTA_UNITS_PER_ONE)
        account = account_of(session, place.known)
        return Ended(place.budget, account, charged, asking.refusals > 0, tuple(asking.answers))


class _Asking:
    """Analysts who choose each question by what they were shown."""

    def __init__(self, session: dpsql.Session, budget: Budget, choose: random.Random, course: Course) -> None:
        self.session, self.choose, self.course = session, choose, course
        self.rho, self.delta = rho_budget(session), budget.delta
        self.part = choose.choice(course.parts)
        self.delta_part = choose.choice((2.5, 6.0, 40.0))
        every = questions_of(budget)
        # without thresholds private keys are refused, whatever is left
        self.questions = choose.choice((every, PUBLIC, PRIVATE)) if budget.thresholds else every + PRIVATE[:1]
        self.text = self._other()
        self.answers: list[str] = []
        self.refusals, self.most_refusals = 0, choose.choice((1, 2, 2))

    def ask(self) -> None:
        """Ask one question, and choose the next one by its answer."""
        text = self.text.replace("LOW", f"{self.rho / 64:.3g}").replace("HIGH", f"{self.rho / 2:.3g}")
        level, delta = self.rho / self.part, self.delta / self.delta_part
        names = ("ana", "bob") if self.part > 4 else ("ana",)
        ask = self.choose.choice([self.session.sql, *(self.session.as_analyst(name).sql for name in names)])
        options: dict[str, Any] = {"max_rho" if BY_TARGET in text else "rho": level, "delta": delta}
        try:
            answer = ask(text, **options).fetchall()
        except BudgetError:
            self.refusals += 1
            self.part = max(20, 4 * self.part)
            return
        except (AccessError, CalibrationError, UnsupportedQueryError):
            self.text = self._other()
            return
        self.answers.append(self.text)
        self._adapt(answer)

    def _adapt(self, rows: list[tuple[Any, ...]]) -> None:
        """Raise the last question if its last number is odd. Else choose another one, and a level by the number.

        After a refusal levels stay low, so that little of the budget is left.
        """
        number = int(rows[-1][-1] or 0) if rows else self.choose.randrange(4)
        if number % 2 and 1 < self.part < 20:
            self.part //= 2
        else:
            self.text = self._other()
            self.part = self.part if self.refusals else self.course.later_parts[number // 2 % 4]

    def _other(self) -> str:
        """Choose a question."""
        while True:
            text = self.choose.choice(self.questions)
            if self.choose.random() < self.course.slow or not any(word in text for word in SLOW):
                return text
