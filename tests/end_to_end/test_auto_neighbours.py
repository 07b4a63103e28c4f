"""Of questions that name no bound, one person moves all that is drawn by no more than the question is charged.

Random tables, each read with and without one person: AUTO's histograms, the rounds of key selection, and the numbers,
whatever was chosen by them.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import duckdb
import pyarrow as pa
import pytest

import dpsql
from dpsql.features import auto_histograms
from dpsql.features.auto_choices import binned
from dpsql.release.number_threshold import threshold_of
from tests.end_to_end.prepared import with_own_state
from tests.end_to_end.two_worlds import watched
from tests.noise_sources import seeded_noise

_EXAMPLES, _MANY_EXAMPLES = 40, 300
_ABOVE = 1.0 + 1e-9
_COLUMNS = (*["count(DISTINCT person)"] * 6, "count(*)", "sum(amount)", "avg(amount)")
_KINDS = ("equal", "equal", "equal", "tail", "few", "heavy")
Prepared = tuple[dpsql.Session, duckdb.DuckDBPyConnection]
Row = tuple[int | None, int, float | None]


@dataclass
class Seen:
    """What there was in examples that were answered."""

    answered: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    steps: Counter[str] = field(default_factory=Counter)
    largest: float = 0.0


def _rows(chance: random.Random, people: int) -> list[Row]:
    """Return rows of people whose keys are equally popular or not, and of whom some have most rows."""
    kind, rows = chance.choice(_KINDS), list[Row]()
    keys = chance.randint(2, 5) if kind == "few" else chance.choice((20, 60))
    weights = [1.0 if kind in ("equal", "few") else (i + 1) ** -1.3 for i in range(keys)]
    for person in range(people):
        count = int(chance.paretovariate(1.0) * 2) if kind == "heavy" else chance.randint(3, 12)
        drawn = chance.sample(range(keys), 6) if kind == "equal" else chance.choices(range(keys), weights, k=count)
        for key in drawn[:300]:
            amount = chance.choice((None, 0.0, chance.uniform(-5, 5), chance.uniform(0, 50)))
            rows.append((person if chance.random() > 0.02 else None, key, amount))
    return rows


@pytest.fixture(scope="module")
def prepared() -> Iterator[Prepared]:
    with dpsql.connect(threads=1) as session, duckdb.connect(config={"threads": "1"}) as beside:
        session.sql("CALL dp_unit('person', rho_budget := 1e6, delta_threshold := 0.5, delta_conversion := 1e-6)")
        session.connection.execute("CREATE TABLE data (person INTEGER, key INTEGER, amount DOUBLE)")
        yield session, beside


def _fill(connection: duckdb.DuckDBPyConnection, rows: list[Row]) -> None:
    types = (pa.int32(), pa.int32(), pa.float64())
    columns = [pa.array(list(column), kind) for column, kind in zip(zip(*rows, strict=True), types, strict=True)]
    made = pa.table(columns, ["person", "key", "amount"])
    connection.register("made", made)
    connection.execute("CREATE OR REPLACE TABLE data AS FROM made")
    connection.unregister("made")


def _check(prepared: Prepared, number: int, seen: Seen) -> None:
    """Ask one or two questions in both worlds at once."""
    session, beside = prepared
    chance = random.Random(number)
    people = chance.choice((30, 100, 200))
    rows = _rows(chance, people)
    most = Counter(row[0] for row in rows if row[0] is not None).most_common(2)
    person = chance.choice([most[0][0], most[1][0], chance.randrange(people)])
    _fill(session.connection, rows)
    _fill(beside, [row for row in rows if row[0] != person])
    columns = dict.fromkeys([chance.choice(_COLUMNS), *(one for one in _COLUMNS[6:] if chance.random() < 0.15)])
    if chance.random() < 0.15:
        columns = {"median(amount)": None}
    question = f"SELECT key, {', '.join(columns)} FROM data GROUP BY key"
    rho = chance.choice((0.1, 0.3, 2.0))
    with with_own_state(session) as own, watched(beside) as worlds:
        own._runner.noise_source = seeded_noise(number)
        own.sql("CALL dp_protect('data', unit := 'person', privacy_unit_column := 'person')")
        try:
            for level in (rho, 2.0 * rho)[: chance.choice((1, 1, 1, 2))]:
                own.sql(question, rho=level, delta=1e-3)
        except dpsql.DpsqlError as error:
            seen.refused[str(error)[:80]] += 1
            return
    seen.answered += 1
    assert worlds.loss <= worlds.charge * _ABOVE, "more than is paid"
    assert all(loss <= level * _ABOVE for loss, level in worlds.auto_losses), "more than is paid"
    seen.largest = max(seen.largest, worlds.loss / worlds.charge)
    rounds = sum(bool(offer.query.frame.rows.outside) for offer in worlds.offers)
    shows_more = threshold_of(worlds.offers[-1]) is not None
    step = "one threshold" if shows_more else ("no rounds", "one round", "several rounds")[min(rounds, 2)]
    seen.steps[step] += 1


def _look(prepared: Prepared, first: int, examples: int) -> Seen:
    seen = Seen()
    for number in range(first, first + examples):
        _check(prepared, number, seen)
    return seen


def _check_seen(seen: Seen, examples: int) -> None:
    """Check that examples were answered, by each way of finding keys, and that the person moved what was drawn."""
    assert seen.answered > 0.8 * examples, seen.refused
    assert seen.steps.keys() >= {"one threshold", "no rounds", "several rounds"}, seen.steps
    assert seen.largest > 0.8


def test_one_person_moves_what_is_drawn_by_at_most_the_charge(prepared: Prepared) -> None:
    _check_seen(_look(prepared, 0, _EXAMPLES), _EXAMPLES)


@pytest.mark.long
def test_one_person_moves_what_is_drawn_by_at_most_the_charge_in_many_tables(
    prepared: Prepared, record_property: Callable[[str, object], None]
) -> None:
    seen = _look(prepared, 1_000, _MANY_EXAMPLES)
    for name in ("answered", "steps", "largest"):
        record_property(name, getattr(seen, name))
    _check_seen(seen, _MANY_EXAMPLES)


def test_a_unit_that_counts_twice_is_caught(prepared: Prepared, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto_histograms, "binned", lambda groups, units, ends: binned(groups, 2 * units, ends))
    with pytest.raises(AssertionError, match="more than is paid"):
        _look(prepared, 0, 8)
