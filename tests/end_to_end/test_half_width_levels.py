"""The level of a question by half widths: no column is wider than asked, and at one nano-rho less some column is."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import cast

import pytest

import dpsql
from dpsql.cascade.reader import CURATOR
from dpsql.errors import CalibrationError
from dpsql.features import half_width
from dpsql.features.kinds import kind_of
from dpsql.model.frame import NANO
from dpsql.model.private_query import PrivateQuery
from dpsql.sql.statements import SelectStatement, read_statement
from tests.end_to_end.prepared import with_own_state
from tests.end_to_end.receipts import receipt_of

NORMAL = {0.9: 1.6448536269514722, 0.95: 1.959963984540054, 0.99: 2.5758293035489004}
"""Half widths of the normal law with deviation 1, by confidence."""
ROUNDING = 1.0 + 1e-12

TABLES = """
CREATE TABLE visits AS
SELECT u AS patient, (u + i) % 3 AS city, (u * 7 + i) % 6 AS day, u % 11 AS shop, (u * 13 + i) % 100 AS cost,
       i % 4 AS number, 5.5 - u % 11 AS change
FROM range(400) a(u), range(3) b(i)
"""
DECLARED = (
    "dp_unit('patient', rho_budget := 1e9, delta_threshold := 0.4, delta_conversion := 1e-6)",
    "dp_protect('visits', unit := 'patient', privacy_unit_column := 'patient', max_groups_contributed := 3, "
    "max_rows_per_group := 4, coverage := FALSE)",
    "dp_domain('visits', 'city', keys := [0, 1, 2])",
    "dp_domain('visits', 'day', keys := [0, 1, 2, 3, 4, 5])",
    "dp_domain('visits', 'cost', bounds := [0, 100])",
    "dp_domain('visits', 'number', bounds := [0, 3])",
)

COLUMNS = {
    "count(*)": 1.0,
    "count(DISTINCT patient)": 1.0,
    "count(cost)": 1.0,
    "sum(cost)": 100.0,
    "sum(number)": 3.0,
    "sum(change, contribution_bounds_per_group => (-8, 16))": 10.0,
}
"""Columns that a question may ask for, each with the size of its half widths."""
NORMED = {
    "count(*, contribution_norm => 5)": 1.0,
    "sum(cost, contribution_norm => 300)": 100.0,
    "sum(number, contribution_norm => 0.7)": 1.0,
}
RUNNING = {"sum(sum(cost)) OVER (ORDER BY day)": 100.0, "sum(count(*)) OVER (ORDER BY day)": 1.0}


@dataclass(frozen=True)
class Form:
    """A form of questions.

    Attributes:
        options: text of the options, without coverage.
        keys: keys of the answer.
        columns: columns that go with these, each with the size of its half widths.
        grouped: text of GROUP BY, if it is not that of the keys.
        may_cover: whether coverage may be measured.

    """

    options: str
    keys: str
    columns: dict[str, float]
    grouped: str = ""
    may_cover: bool = True


FORMS = {
    "gaussian": Form("mechanism = GAUSSIAN", "city", COLUMNS),
    "correlated": Form("mechanism = CORRELATED_GAUSSIAN", "city, day", COLUMNS),
    "gshm": Form("mechanism = GSHM", "shop", COLUMNS),
    "csh": Form("mechanism = CSH, top_k = 8", "shop", COLUMNS, may_cover=False),
    "running totals": Form("mechanism = FACTORISED_GAUSSIAN", "day", RUNNING),
    "weights": Form("bounding = L2", "shop", COLUMNS),
    "norm": Form("bounding = NORM", "city", NORMED),
    "window": Form("rho_window = [0.000001, 1000]", "shop", COLUMNS),
    "rollup": Form("", "city, day", COLUMNS, "ROLLUP (city, day)", may_cover=False),
    "private sets": Form("", "city, shop", COLUMNS, "GROUPING SETS ((city), (shop))"),
    "one group": Form("", "", COLUMNS),
}


@dataclass(frozen=True)
class Question:
    """A random question, with its half widths and their confidence."""

    text: str
    target: float | dict[str, float]
    confidence: float

    @classmethod
    def of(cls, form: Form, choose: random.Random) -> Question:
        """Choose one to four columns, a filter, half widths and whether coverage is measured."""
        chosen = choose.sample([*form.columns], min(choose.randint(1, 4), len(form.columns)))
        sizes = {f"c{place}": form.columns[column] for place, column in enumerate(chosen)}
        shown = [f"{column} AS c{place}" for place, column in enumerate(chosen)]
        options = [form.options] if form.options else []
        if form.may_cover and choose.random() < 0.3:
            options.append("coverage = TRUE")
        hint = f" WITH DIFFERENTIAL_PRIVACY OPTIONS ({', '.join(options)})" if options else ""
        filters = choose.choice(("", " WHERE cost > 7", " WHERE number < 3 AND change > 0"))
        grouped = f" GROUP BY {form.grouped or form.keys}" if form.keys else ""
        keys = [form.keys] if form.keys else []
        text = f"SELECT{hint} {', '.join([*keys, *shown])} FROM visits{filters}{grouped}"
        widths = {name: float(f"{size * 10 ** choose.uniform(0.5, 3):.4g}") for name, size in sizes.items()}
        kept = choose.sample(sorted(widths), choose.randint(1, len(widths)))
        target = {name: widths[name] for name in kept} if choose.random() < 0.7 else max(widths.values())
        return cls(text, target, choose.choice((0.9, 0.95, 0.99)))

    def most(self, name: str) -> float | None:
        """Return the half width asked for of a column."""
        return self.target.get(name) if isinstance(self.target, dict) else self.target

    def is_too_wide(self, columns: tuple[dpsql.ColumnReceipt, ...]) -> bool:
        """Check whether a column is wider than asked."""
        return any(
            NORMAL[self.confidence] * one.sigma > most
            for one in columns
            if one.sigma is not None and (most := self.most(one.name)) is not None
        )

    def planned(self, session: dpsql.Session, level: Mapping[str, object] | None = None) -> PrivateQuery:
        """Return the plan at the level of the half widths, or at another level."""
        options = level or {"target_half_width": self.target, "confidence": self.confidence}
        statement = cast("SelectStatement", read_statement(self.text))
        return session._runner.plan(statement, options, CURATOR)[0]


def level_of(query: PrivateQuery) -> int:
    """Return the level of a plan in nano-rho."""
    return round((query.whole_request.rho or 0.0) * NANO)


def has_smallest_level(question: Question, query: PrivateQuery) -> bool:
    """Check that the level is enough, and that one nano-rho less is not."""
    kind, nano = kind_of(query), level_of(query)
    if question.is_too_wide(kind.columns(query)):
        return False
    try:
        below = kind.at(query, (nano - 1) / NANO)
        return question.is_too_wide(kind_of(below).columns(below))
    except CalibrationError:
        # noise of that size cannot be drawn
        return True


@pytest.fixture(scope="module")
def session() -> Iterator[dpsql.Session]:
    with dpsql.connect(threads=1) as session:
        session.connection.execute(TABLES)
        for call in DECLARED:
            session.sql(f"CALL {call}")
        yield session


def questions(form: str, count: int) -> list[Question]:
    choose = random.Random(form)
    return [Question.of(FORMS[form], choose) for _ in range(count)]


@pytest.mark.parametrize("count", [6, pytest.param(20, marks=pytest.mark.long)])
@pytest.mark.parametrize("form", FORMS)
def test_a_level_is_enough_and_one_nano_rho_less_is_not(session: dpsql.Session, form: str, count: int) -> None:
    """Search some questions of each form.

    The count of units has the highest level of its window that is not above its share, so its noise falls by steps.
    The smallest level is then the first one of a step, or the one that another column needs.
    """
    for question in questions(form, count):
        assert has_smallest_level(question, question.planned(session)), question


@pytest.mark.parametrize("form", FORMS)
def test_receipts_have_the_half_widths_of_the_search(session: dpsql.Session, form: str) -> None:
    question = questions(form, 1)[0]
    with with_own_state(session) as own:
        asked = own.sql(question.text, target_half_width=question.target, confidence=question.confidence)
        found = receipt_of(asked)
    nano = level_of(question.planned(session))
    assert round(found.charged_rho * NANO) <= nano
    assert not question.is_too_wide(found.columns)
    for one in found.columns:
        if one.half_width_95 is not None and (most := question.most(one.name)) is not None:
            assert one.half_width_95 * NORMAL[question.confidence] / NORMAL[0.95] <= most * ROUNDING
    # the same text by rho, planned without any search
    below = question.planned(session, {"rho": (nano - 1) / NANO})
    assert question.is_too_wide(kind_of(below).columns(below))


smallest_level = half_width.smallest_level


def one_too_many(is_enough: Callable[[int], bool], guess: int) -> int:
    """Return the level above the smallest one."""
    return smallest_level(is_enough, guess) + 1


def one_too_few(is_enough: Callable[[int], bool], guess: int) -> int:
    """Return the level below the smallest one."""
    return smallest_level(is_enough, guess) - 1


def three_digits(is_enough: Callable[[int], bool], guess: int) -> int:
    """Return the smallest level, rounded up to three digits."""
    nano = smallest_level(is_enough, guess)
    step: int = 10 ** max(0, len(str(nano)) - 3)
    return -(-nano // step) * step


@pytest.mark.parametrize("fault", [one_too_many, one_too_few, three_digits])
def test_a_search_that_stops_early_is_caught(
    session: dpsql.Session, monkeypatch: pytest.MonkeyPatch, fault: Callable[[Callable[[int], bool], int], int]
) -> None:
    monkeypatch.setattr(half_width, "smallest_level", fault)
    for form in ("gaussian", "csh"):
        found = [has_smallest_level(question, question.planned(session)) for question in questions(form, 4)]
        assert not any(found)


@pytest.mark.parametrize("more", [12, pytest.param(83, marks=pytest.mark.long)])
def test_as_many_more_questions_succeed_as_the_plan_says(session: dpsql.Session, more: int) -> None:
    text = "SELECT city, count(*) AS n FROM visits WHERE cost <> {} GROUP BY city"

    def told(place: dpsql.Session) -> dict[str, str]:
        plan = place.sql(f"FROM dp_explain($${text.format(200)}$$, target_half_width := 50)").fetchall()
        return {name: value for section, name, value in plan if section == "target"}

    price = float(told(session)["rho"])
    with dpsql.connect(threads=1) as own:
        own.connection.execute(TABLES)
        own.sql(
            f"CALL dp_unit('patient', rho_budget := {(more + 1.5) * price}, "
            "delta_threshold := 1e-6, delta_conversion := 1e-6)"
        )
        for call in DECLARED[1:3]:
            own.sql(f"CALL {call}")
        own.sql(text.format(0), target_half_width=50)
        assert int(told(own)["questions left"]) == more
        for cost in range(1, more + 1):
            assert receipt_of(own.sql(text.format(cost), target_half_width=50)).charged_rho == pytest.approx(price)
        assert int(told(own)["questions left"]) == 0
        with pytest.raises(dpsql.BudgetError):
            own.sql(text.format(more + 1), target_half_width=50)
