"""One person moves the number of rows left out by at most its cut, and a whole question by no more than its charge.

Random tables, policies and questions, each read with and without one person.
"""

from __future__ import annotations

import math
import random
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

import duckdb
import pyarrow as pa
import pytest

import dpsql
from dpsql.bound import left_out, statement
from dpsql.bound.left_out import PART_BITS, left_out_sql
from dpsql.cascade import left_out as chain
from dpsql.mechanism.gaussian_measure import GaussianHistogram
from dpsql.model.frame import KEYS_FIRST, Statistic
from dpsql.model.statistic_kinds import COVERAGE_KINDS, LEFT_OUT_KINDS
from tests.end_to_end.prepared import with_own_state
from tests.end_to_end.two_worlds import Worlds, watched
from tests.noise_sources import seeded_noise

_EXAMPLES, _MANY_EXAMPLES, _FAULT_EXAMPLES = 40, 300, 12
_ABOVE = 1.0 + 1e-9
_POLICIES = (
    "",
    ", max_groups_contributed := {groups}",
    ", max_rows_per_group := {rows}",
    ", max_groups_contributed := {groups}, max_rows_per_group := {rows}",
    ", max_groups_contributed := {groups}, max_rows_norm := {rows}",
    ", max_groups_contributed := {groups}, max_rows_per_group := {rows}, min_privacy_units_per_group := 3",
)
_COLUMNS = (
    "count(*)",
    "count(amount)",
    "count(*) FILTER (WHERE other > 0)",
    "sum(amount)",
    "sum(amount, contribution_bounds_per_row => (0, 20))",
    "sum(amount, contribution_bounds_per_group => (0, 60))",
    "count(*, contribution_bounds_per_group => (0, 2))",
)
Prepared = tuple[dpsql.Session, duckdb.DuckDBPyConnection]
Row = tuple[int | None, int | None, int, float | None]


@dataclass(frozen=True)
class Example:
    """A table, the policy, a question about it, and the person who is in one world alone."""

    rows: list[Row]
    person: int
    policy: str
    keys: str
    question: str
    levels: tuple[float, ...]


def example(chance: random.Random) -> Example:
    """Make an example of some dozen people, of whom few have most rows."""
    rows = _rows(chance)
    most = [one for one, _ in Counter(row[0] for row in rows if row[0] is not None).most_common(3)]
    person = chance.choice([*most, *most, chance.randrange(60)])
    policy = chance.choice(_POLICIES).format(groups=chance.choice((1, 2, 3, 20)), rows=chance.choice((1, 2, 3, 10)))
    bounding = chance.choice(("", "", "", "L0", "L2", "L2", "NORM"))
    public = chance.choice(("", "", "", "key", "both"))
    group = chance.choice(("key", "key", "key", "key, other", "other", ""))
    is_first = not public and bool(group) and chance.random() < 0.25
    named = {"bounding": bounding, "mechanism": "KEYS_FIRST" if is_first else ""}
    options = ", ".join(f"{name} = {value}" for name, value in named.items() if value)
    may_have = _COLUMNS if bounding != "NORM" and "norm" not in policy else _COLUMNS[:4]
    columns = [
        chance.choice(may_have),
        *(one for one in (*may_have, "count(DISTINCT person)") if chance.random() < 0.2),
    ]
    selected = ", ".join([*filter(None, [group]), *dict.fromkeys(columns)])
    written = f"WITH DIFFERENTIAL_PRIVACY OPTIONS ({options}) " if options else ""
    question = f"SELECT {written}{selected} FROM data{f' GROUP BY {group}' if group else ''}"
    rho = chance.choice((0.5, 3.0, 20.0))
    several = chance.choice(((rho, rho / 4), (rho, 1.7 * rho), (rho, rho / 8, 3 * rho)))
    levels = several if chance.random() < 0.25 else (rho,)
    return Example(rows, person, policy, public, question, levels)


def _rows(chance: random.Random) -> list[Row]:
    """Return rows of some dozen people, some without a person, a key or an amount."""
    keys, tail, most = chance.randint(1, 9), chance.choice((0.6, 1.0, 2.0)), chance.choice((1, 2, 5))
    rows: list[Row] = []
    for person in range(chance.randint(5, 60)):
        own = chance.sample(range(keys), chance.randint(1, keys))
        for _ in range(min(400, int(chance.paretovariate(tail) * most))):
            amount = chance.choice((None, 0.0, 1.0, 0.25, 49.9, chance.uniform(0, 50), chance.uniform(0, 50)))
            key = None if chance.random() < 0.03 else chance.choice(own)
            rows.append((person if chance.random() > 0.02 else None, key, chance.randint(0, 2), amount))
    chance.shuffle(rows)
    return rows


@dataclass
class Seen:
    """What there was in examples that were answered."""

    answered: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    moved: int = 0
    whole: int = 0
    had: Counter[str] = field(default_factory=Counter)
    largest: float = 0.0


@pytest.fixture(scope="module")
def prepared() -> Iterator[Prepared]:
    with dpsql.connect(threads=1) as session, duckdb.connect(config={"threads": "1"}) as beside:
        for connection in (session.connection, beside):
            connection.execute("CREATE TABLE data (person INTEGER, key INTEGER, other INTEGER, amount DOUBLE)")
        session.sql("CALL dp_unit('person', rho_budget := 1e6, delta_threshold := 0.5, delta_conversion := 1e-6)")
        yield session, beside


def _fill(connection: duckdb.DuckDBPyConnection, rows: list[Row]) -> None:
    columns = [list(column) for column in zip(*rows, strict=True)] or [[], [], [], []]
    types = (pa.int32(), pa.int32(), pa.int32(), pa.float64())
    made = pa.table(
        {
            name: pa.array(column, kind)
            for name, column, kind in zip(("person", "key", "other", "amount"), columns, types, strict=True)
        }
    )
    connection.execute("DELETE FROM data")
    connection.register("made", made)
    connection.execute("INSERT INTO data FROM made")
    connection.unregister("made")


def _check(prepared: Prepared, one: Example, number: int, seen: Seen) -> None:
    """Ask a question in both worlds at once."""
    session, beside = prepared
    _fill(session.connection, one.rows)
    _fill(beside, [row for row in one.rows if row[0] != one.person])
    asked = []
    with with_own_state(session) as own:
        own._runner.noise_source = seeded_noise(number)
        own.sql(f"CALL dp_protect('data', unit := 'person', privacy_unit_column := 'person'{one.policy})")
        own.sql("CALL dp_domain('data', 'amount', bounds := [0, 50])")
        if one.keys:
            own.sql("CALL dp_domain('data', 'key', keys := [0, 1, 2, 5, 77])")
        if one.keys == "both":
            own.sql("CALL dp_domain('data', 'other', keys := [0, 1])")
        try:
            for rho in one.levels:
                with watched(beside) as worlds:
                    own.sql(one.question, rho=rho, delta=1e-3)
                asked.append(worlds)
        except dpsql.DpsqlError as error:
            seen.refused[str(error)[:80]] += 1
            return
    _check_worlds(asked, seen)


def _check_worlds(asked: list[Worlds], seen: Seen) -> None:
    """Check what the questions of one example drew; each chain and all together are paid for as a whole."""
    seen.answered += 1
    for exact, without in (both for worlds in asked for both in worlds.left_out.values()):
        assert 0 <= exact - without <= 2**PART_BITS, "more than the cut"
        seen.moved += exact != without
        seen.whole += exact - without == 2**PART_BITS
    losses, levels = defaultdict[object, float](float), defaultdict[object, float](float)
    for of_chain, loss, level in (one for worlds in asked for one in worlds.losses_of_left_out()):
        losses[of_chain] += loss
        levels[of_chain] += level
    assert all(loss <= levels[one] * _ABOVE for one, loss in losses.items()), "more than its level"
    loss, charge = (math.fsum(of(worlds) for worlds in asked) for of in (attrgetter("loss"), attrgetter("charge")))
    assert loss <= charge * _ABOVE, "more than is paid"
    seen.largest = max(seen.largest, loss / charge) if charge else seen.largest
    frame, drawn = asked[-1].offers[-1].query.frame, [one for each in asked[-1].offers for one in each.drawn]
    seen.had.update(
        name
        for name, there in {
            "public": frame.public_keys is not None,
            "private": frame.has_private_keys,
            "no keys": not frame.keys,
            "weights": frame.bounding.counted_groups is not None,
            "keys first": frame.mechanism == KEYS_FIRST,
            "several columns": len(asked[0].left_out) > 1,
            "several levels": len(asked) > 1,
            "a reserve": any(not level for worlds in asked for *_, level in worlds.losses_of_left_out()),
            "unmeasured": any(one.kind in COVERAGE_KINDS for one in drawn),
        }.items()
        if there and asked[0].left_out
    )


def _look(prepared: Prepared, first: int, examples: int) -> Seen:
    seen = Seen()
    for number in range(first, first + examples):
        _check(prepared, example(random.Random(number)), number, seen)
    return seen


def _check_seen(seen: Seen, examples: int) -> None:
    """Check that examples were answered, that all kinds were among them, and that the person moved what was drawn."""
    assert seen.answered > 0.9 * examples, seen.refused
    kinds = {"public", "private", "no keys", "weights", "keys first", "unmeasured"}
    assert seen.had.keys() == {*kinds, "several columns", "several levels", "a reserve"}
    assert seen.whole > examples / 2
    assert seen.largest > 0.99


def test_one_person_moves_rows_left_out_by_at_most_the_cut(prepared: Prepared) -> None:
    _check_seen(_look(prepared, 0, _EXAMPLES), _EXAMPLES)


@pytest.mark.long
def test_one_person_moves_rows_left_out_by_at_most_the_cut_in_many_tables(
    prepared: Prepared, record_property: Callable[[str, object], None]
) -> None:
    seen = _look(prepared, 1_000, _MANY_EXAMPLES)
    for name in ("answered", "moved", "whole", "had", "largest"):
        record_property(name, getattr(seen, name))
    _check_seen(seen, _MANY_EXAMPLES)


def _parts_of_half_the_size(patch: pytest.MonkeyPatch) -> None:
    """Let a unit count with up to twice the cut."""
    patch.setattr(left_out, "PART_BITS", PART_BITS + 1)


def _less_noise(patch: pytest.MonkeyPatch) -> None:
    """Let the noise of rows left out be a tenth smaller than what is paid for."""
    sum_sigma = GaussianHistogram.sum_sigma

    def low(histogram: GaussianHistogram, statistic: Statistic, rho: float) -> float:
        return sum_sigma(histogram, statistic, rho) * (0.9 if statistic.kind in LEFT_OUT_KINDS else 1.0)

    patch.setattr(GaussianHistogram, "sum_sigma", low)


def _cut_of_all(patch: pytest.MonkeyPatch) -> None:
    """Cut what all units together lack at a hundred times the cut, and no unit by itself."""

    def uncut(*of: Any, **named: Any) -> str:
        text = left_out_sql(*of, **named)
        return re.sub(r"least\((greatest\(.*?, 0\)(?: // \d+::HUGEINT)?), \d+\)", r"\1", text)

    patch.setattr(statement, "left_out_sql", uncut)


def _whole_rise(patch: pytest.MonkeyPatch) -> None:
    """Let the first number of a chain take what is reserved for later ones."""
    patch.setattr(chain, "_OF_RISE", 8)


@pytest.mark.parametrize(
    ("plant", "seen_as"),
    [
        (_parts_of_half_the_size, "more than the cut"),
        (_cut_of_all, "more than the cut"),
        (_less_noise, "more than its level"),
        (_whole_rise, "more than its level"),
    ],
)
def test_a_planted_fault_is_caught(
    prepared: Prepared, plant: Callable[[pytest.MonkeyPatch], None], seen_as: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    with pytest.raises(AssertionError, match=seen_as):
        _look(prepared, 0, _FAULT_EXAMPLES)
