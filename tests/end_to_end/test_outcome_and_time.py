"""Whether a text is answered, and how long it takes, does not hang on one person, whatever the text.

Random hostile texts run on pairs of databases, with and without one person of many nasty rows. The outcome is the same
for all of them, in the same words. Time is processor time of the engine, not the clock's; what looks bad is measured
again and the least of it taken, so that a loaded machine fails nothing.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import pytest
from sqlglot import exp

import dpsql
from dpsql.session.runner import StatementRunner
from dpsql.sql import row_rules
from tests.hostile_texts import PERSON, Text, Writer
from tests.one_person import PERSONS, Measured, Side, Size, opened
from tests.unit.server.scripted_server import ANSWER, Ending, Server
from tests.unit.server.virtual_time import run_virtually

# faults are planted in planning, in databases that the tests of this file share
pytestmark = pytest.mark.usefixtures("plans_each_time")

SMALL = Size(rows=1_000, units=200, of_the_person=200)
CROWDED = Size(rows=1_000, units=200, of_the_person=400)
"""64 million rows of the person in a chain of three tables: some ten times what counts as slow, on any machine."""
LARGE = Size(rows=100_000, units=50_000, of_the_person=1_000)

MOST_RATIO = 3.0
"""Of what takes more than 50 ms, with the person or without."""
BEYOND_SECONDS = 0.05
MEDIAN_RATIO = 1.2
_AGAIN = 4


@dataclass
class Pairs:
    """One database without the person, and one for each kind of rows that they may have."""

    without: Side
    having: dict[str, Side]

    @classmethod
    def opened(cls, size: Size, persons: Sequence[str], timeout_seconds: float) -> Pairs:
        sides = {person: opened(size, person, timeout_seconds=timeout_seconds) for person in persons}
        return cls(opened(size, None, timeout_seconds=timeout_seconds), sides)

    def close(self) -> None:
        for side in (self.without, *self.having.values()):
            side.close()


@dataclass
class Found:
    """What was seen of many texts."""

    ratios: list[float] = field(default_factory=list)
    kinds: Counter[str] = field(default_factory=Counter)
    refused: int = 0
    faults: list[str] = field(default_factory=list)

    def note(self, text: Text, person: str, pair: tuple[Measured, Measured]) -> None:
        """Hold the two against each other."""
        without, having = pair
        if without.outcome != having.outcome:
            self.faults.append(
                f"[{person}] without: {without.outcome}\n    with: {having.outcome}\n    {text.sql} {text.options}"
            )
        elif not without.is_answer:
            self.refused += 1
        else:
            self.kinds.update(text.kinds)
            self.ratios.append(having.seconds / without.seconds)
            if is_slow(pair):
                seconds = f"{without.seconds:.3f} s without, {having.seconds:.3f} s with"
                self.faults.append(f"[{person}] {seconds}: {text.sql} {text.options}")

    def show(self) -> str:
        return f"{len(self.faults)} faults in {len(self.ratios) + self.refused} texts:\n" + "\n".join(self.faults)


def is_slow(pair: tuple[Measured, Measured]) -> bool:
    """Whether one takes much longer than the other."""
    least, most = sorted(one.seconds for one in pair)
    return most > BEYOND_SECONDS and most > MOST_RATIO * least


def with_least(
    first: tuple[Measured, Measured], again: Iterator[tuple[Measured, Measured]]
) -> tuple[Measured, Measured]:
    """A pair that looks bad, measured again until it does not: the least times of either side count."""
    best = first
    while is_slow(best) and (more := next(again, None)) is not None:
        best = (min(best[0], more[0], key=_seconds), min(best[1], more[1], key=_seconds))
    return best


def _seconds(measured: Measured) -> float:
    return measured.seconds


def read_pair(pairs: Pairs, text: Text, person: str, again: int = _AGAIN) -> tuple[Measured, Measured] | None:
    """Read a text on both sides by one plan, which is made without rows. Return None if it is refused."""
    query = pairs.without.plan(text)
    if isinstance(query, str):
        return None

    def both() -> tuple[Measured, Measured]:
        return pairs.without.read(query), pairs.having[person].read(query)

    return with_least(both(), (both() for _ in range(again)))


def ask_pair(pairs: Pairs, text: Text, person: str) -> tuple[Measured, Measured]:
    """A text asked on both sides, from its plan to its answer."""

    def both() -> tuple[Measured, Measured]:
        return pairs.without.ask(text), pairs.having[person].ask(text)

    return with_least(both(), (both() for _ in range(_AGAIN)))


@pytest.fixture(scope="module")
def small() -> Iterator[Pairs]:
    pairs = Pairs.opened(SMALL, list(PERSONS), timeout_seconds=30)
    yield pairs
    pairs.close()


@pytest.fixture(scope="module")
def crowded() -> Iterator[Pairs]:
    pairs = Pairs.opened(CROWDED, ["equal"], timeout_seconds=30)
    yield pairs
    pairs.close()


def person_of(number: int) -> str:
    return list(PERSONS)[number % len(PERSONS)]


@pytest.mark.parametrize(
    "numbers", [range(0, 210, 7), pytest.param(range(400), marks=pytest.mark.long)], ids=["few", "many"]
)
def test_random_texts_meet_rows_alike(small: Pairs, numbers: Sequence[int]) -> None:
    """On tables of 1,000 rows, and 200 of the person; one plan for both.

    The few texts are of all kinds that the many are of.
    """
    found = Found()
    for number in numbers:
        text = Writer(number).text()
        pair = read_pair(small, text, person_of(number))
        if pair is not None:
            found.note(text, person_of(number), pair)
    assert not found.faults, found.show()
    assert len(found.ratios) > 0.6 * len(numbers)
    assert statistics.median(found.ratios) < 1.6
    assert len({kind for number in numbers for kind in Writer(number).text().kinds}) == 24


def test_texts_are_asked_alike_from_plan_to_answer(small: Pairs) -> None:
    found = Found()
    for number in range(1000, 1000 + len(PERSONS)):
        text = Writer(number).text()
        found.note(text, person_of(number), ask_pair(small, text, person_of(number)))
    assert not found.faults, found.show()


SCENE = Text(
    "SELECT count(*) FROM visits a0 JOIN visits a1 ON a1.pid = a0.pid JOIN visits a2 ON a2.pid = a0.pid "
    f"WHERE a0.name = '{PERSON}' AND a2.code = 'c7'",
    {"rho": 1e-6},
    ("self_join",),
)
"""An answer where it is false, and no time left where it is true: the clock about one person."""


def test_a_chain_of_joins_about_one_person_takes_no_longer_where_it_is_true(crowded: Pairs) -> None:
    pair = read_pair(crowded, SCENE, "equal")
    assert pair is not None
    assert pair[0].outcome == pair[1].outcome == "answer"
    assert not is_slow(pair)


def faults_of(pairs: Pairs, text: Text, person: str, again: int = 0) -> list[str]:
    """Return the faults of one reading on both sides: a planted fault is too slow each time.

    A reading without a planted fault may be slow by chance: `again` says how often it is repeated then.
    """
    found = Found()
    pair = read_pair(pairs, text, person, again=again)
    assert pair is not None
    found.note(text, person, pair)
    return found.faults


def test_joins_without_their_bound_are_found(crowded: Pairs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpsql.sql.source.join_rows.cut", lambda relation, *_: relation)
    assert faults_of(crowded, SCENE, "equal")


@pytest.mark.parametrize(
    ("place", "sql"),
    [
        ("shielded", "SELECT k, count(*) AS c FROM (SELECT n - 1 AS k FROM visits) GROUP BY k"),
        ("total_condition_sql", "SELECT count(*) AS c FROM (SELECT n AS k FROM visits WHERE n * n > 3)"),
    ],
)
def test_an_expression_that_fails_on_one_row_is_found(
    small: Pairs, monkeypatch: pytest.MonkeyPatch, place: str, sql: str
) -> None:
    text = Text(sql, {"rho": 0.1}, ("groups",))
    assert faults_of(small, text, "extreme", again=_AGAIN) == []
    monkeypatch.setattr(f"dpsql.sql.source.projections.{place}", lambda sql, *_: sql)
    (fault,) = faults_of(small, text, "extreme")
    assert "without: answer" in fault
    assert "with: EngineError" in fault


def test_a_function_whose_cost_explodes_is_found(small: Pairs, monkeypatch: pytest.MonkeyPatch) -> None:
    text = Text(
        "SELECT count(*) AS c FROM visits "
        f"WHERE length(repeat(note, CASE WHEN name = '{PERSON}' THEN 100000 ELSE 0 END)) > 3",
        {"rho": 0.1},
        ("texts",),
    )
    refused = small.without.plan(text)
    assert isinstance(refused, str)
    assert "row_function" in refused
    nodes, names = row_rules.allowed_functions()
    monkeypatch.setattr(row_rules, "allowed_functions", lambda: (nodes | {exp.Repeat}, names | {"repeat"}))
    assert faults_of(small, text, "equal")


class Answering(Server):
    """The routes of a server over one of the databases; work takes no time on its virtual clock."""

    def __init__(self, session: dpsql.Session, runner: StatementRunner) -> None:
        super().__init__(Ending(0.0, ANSWER), 0.0)
        self._session = session
        self._runner = runner

    def sql(self, text: str) -> dpsql.Result:
        return self._session.sql(text)

    def as_analyst(self, name: str) -> dpsql.Analyst:  # type: ignore[override] # as a session's
        return dpsql.Analyst(self._runner, name)


TEXTS_ASKED = 5


async def asks_hostile_texts(server: Server) -> None:
    for number in range(2000, 2000 + TEXTS_ASKED):
        text = Writer(number, without=("self_join", "unit_join", "subqueries")).text()
        taken = await server.request("POST", "/v1/queries", body={"sql": text.sql, "options": text.options})
        address = taken["headers"]["location"]
        for wait in (0, 0.05, 7):
            await server.request("GET", f"{address}/result.arrow?wait={wait}")
        await server.request("GET", address)


def test_a_pair_of_servers_says_the_same_at_the_same_moments(small: Pairs) -> None:
    """Answers differ by their noise; times, statuses and all that is no answer do not."""
    seen = []
    for session in (small.without.session, small.having["extreme"].session):
        # a state that holds nothing yet, and is charged for this test alone
        access = session._access.copied()
        server = Answering(session, StatementRunner(access, session._runner.engine))
        run_virtually(asks_hostile_texts(server), server.lasts)
        access.close()
        # the names of questions are random
        lines = [
            (at, what[:6], status, body if status not in (200, 202) else "")
            for at, what, status, _, body in server.seen
        ]
        seen.append(lines)
    assert seen[0] == seen[1]
    assert {status for _, _, status, _ in seen[0]} <= {200, 202, 403, 409, 422}
    assert sum(status == 200 for _, what, status, _ in seen[0] if what.startswith("GET")) >= 1.5 * TEXTS_ASKED


@pytest.mark.long
@pytest.mark.parametrize("person", PERSONS)
def test_two_thousand_texts_have_one_outcome_and_one_time(person: str) -> None:
    """On tables of 100,000 rows, of which the person has 1,000; 400 texts for each kind of rows.

    Of ten texts one is asked from its plan to its answer, nine meet rows by one plan.
    """
    pairs = Pairs.opened(LARGE, [person], timeout_seconds=60)
    found = Found()
    for place, number in enumerate(number for number in range(2000) if person_of(number) == person):
        text = Writer(number).text()
        pair = read_pair(pairs, text, person) if place % 10 else ask_pair(pairs, text, person)
        if pair is not None:
            found.note(text, person, pair)
    pairs.close()
    assert not found.faults, found.show()
    assert len(found.ratios) > 250
    assert statistics.median(found.ratios) <= MEDIAN_RATIO
    assert min(found.kinds.values()) >= 1, found.kinds
