"""Random schemas and queries: a unit's rows stay its own, whatever joins and subqueries make of them.

Of every plan the relation is read as it is, with and without a unit, and then bounded, by each formulation; what bounds
do not touch is what plain DuckDB answers to the same text. What a unit moves is held against the noise that the whole
release would have, all grouping sets of it together.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import ModuleType

import duckdb
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from dpsql.bound import aggregation
from dpsql.bound.aggregation import bounded_sql
from dpsql.bound.formulations import Formulation, chooses_groups
from dpsql.errors import QueryError
from dpsql.mechanism import calibrate
from dpsql.mechanism.measure import Level
from dpsql.model.frame import PRESENCE, Frame, Statistic
from dpsql.model.identity import statistic_hash
from dpsql.model.private_query import FrameQuery, PrivateQuery
from dpsql.model.query_kinds import GroupingSets
from dpsql.model.refusals import Refusals
from dpsql.operations.dialect import quote
from dpsql.operations.row_sql import with_salt
from dpsql.plan.features import other_group
from dpsql.release.offer import Offer
from dpsql.sql.source import join_rows, predicates, row_cut, row_growth, sources, unit_groups
from dpsql.sql.source.relation import Owner, Relation
from tests.frames import with_bounding
from tests.unit.sql import random_relations
from tests.unit.sql.random_relations import Query, Value, Writer, database, mutated
from tests.unit.sql.relation_worlds import Exact, Planned, World, as_value, fetched

# faults are planted in planning, in databases that the tests of this file share
pytestmark = pytest.mark.usefixtures("plans_each_time")

SALT = bytes(range(16))
_EXAMPLES = 9
_FAULT_EXAMPLES = 15
_SHORT = settings(
    max_examples=_EXAMPLES,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.generate,),
)
_NUMBERS = st.integers(0, 2**32 - 1)
_CUT_EXAMPLES = 4
_SINGLE_EXAMPLES = 12
_CROSSED_NUMBERS = (5, 11, 17, 98, 119, 153)
_CUT_NEAR = 107
_QUERIES = 4
Rewrite = Callable[[str], str]
Numbers = dict[tuple[Value, ...], tuple[float, ...]]


@dataclass
class Seen:
    """How many texts were asked, answered, and compared with plain DuckDB; and what there was in those answered."""

    examples: int = 0
    asked: int = 0
    answered: int = 0
    compared: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    had: Counter[str] = field(default_factory=Counter)


@pytest.fixture(scope="module")
def worlds() -> Iterator[tuple[World, World]]:
    opened = (World(composite=False), World(composite=True))
    yield opened
    for world in opened:
        world.close()


def check_example(
    worlds: tuple[World, World], number: int, seen: Seen, rewrite: Rewrite = str, *, mutants: bool = True
) -> None:
    """One database and a few queries over it."""
    chance = random.Random(number)
    world = chance.choice(worlds)
    data = database(chance, world.composite)
    units = sorted({owner for table in data.owners().values() for owner in table if owner is not None}, key=str)
    # one with many rows, more often than not
    sizes = Counter(owner for table in data.owners().values() for owner in table if owner is not None)
    removed = chance.choice([*units, *(unit for unit, _ in sizes.most_common(1) * 3)]) if units else "nobody"
    world.fill(data, removed, chance)
    views = []
    for place in range(chance.choice((0, 0, 1))):
        writer = Writer(data, chance)
        text, shown = writer.view()
        # a view is one text for both, and rows of nobody are its own
        if writer.comparable and "⟦" not in text and world.add_view(f"view{place}", text):
            views.append((f"view{place}", shown))
    look = Look(world, removed, chance, seen, rewrite)
    for _ in range(_QUERIES):
        writer = Writer(data, chance, views)
        query = writer.query()
        asked = [query, *(mutated(query, chance) for _ in range(1 if mutants else 0))]
        for one in asked:
            seen.asked += one is query
            answered = look.at(one)
            seen.answered += answered and one is query
            if not answered:
                break


class Look:
    """What is checked of the queries of one example."""

    def __init__(self, world: World, removed: Value, chance: random.Random, seen: Seen, rewrite: Rewrite) -> None:
        self._world = world
        self._removed = removed
        self._chance = chance
        self._seen = seen
        self._rewrite = rewrite
        self._answers: dict[str, Exact] = {}

    def at(self, query: Query) -> bool:
        """Check a query; whether it was answered."""
        try:
            planned = self._world.plan(query)
        except QueryError as error:
            self._seen.refused[str(error).partition("\n")[2][:90] or str(error)[:60]] += 1
            return False
        self._note(planned)
        _check_ownership(self._world, planned.query, self._removed)
        found = []
        for part in planned.parts:
            frame = part.query.frame
            before, after = self._both(part, self._world.listed(frame))
            found.append(before)
            for place, statistic in enumerate(part.query.statistics):
                values: Exact = {key: (stats[place],) for key, stats in before.items()}
                assert self._answers.setdefault(statistic_hash(statistic, frame), values) == values, (
                    "one hash, two answers"
                )
            _check_sensitivity(part, before, after)
        _check_sums(planned.query, found)
        expected: list[Numbers | None] = [None] * len(found)
        rows_sql = planned.query.first.frame.rows_sql
        if query.comparable and not query.tight and not (rows_sql.cuts or rows_sql.single):
            compared = zip(planned.parts, found, strict=True)
            expected = [_agreed(self._world, query, planned.query, part, exact) for part, exact in compared]
        self._seen.compared += any(one is not None for one in expected)
        if planned.row is not None:
            self._check_row(planned.query, planned.row, found[0], expected[0])
        return True

    def _note(self, planned: Planned) -> None:
        groups = planned.query
        kinds = {key.type for key in groups.keys}
        self._seen.had.update(
            name
            for name, there in {
                "sets": isinstance(groups, GroupingSets),
                "sums": isinstance(groups, GroupingSets) and groups.adds_up,
                "other": planned.row is not None,
                "interval": "INTERVAL" in kinds,
                "list": "INTEGER[]" in kinds,
                "public": planned.query.first.frame.public_keys is not None,
                "cut": bool(planned.query.first.frame.rows_sql.cuts),
                "single": bool(planned.query.first.frame.rows_sql.single),
                "crossed": " CROSS JOIN " in planned.query.first.frame.rows_sql.relation,
            }.items()
            if there
        )

    def _both(self, part: Offer, listed: pa.Table | None) -> tuple[Exact, Exact]:
        """The exact table, which any order of rows and any formulation makes; and that of the neighbour."""
        frame = part.query.frame
        ways = self._world.formulations if chooses_groups(frame.bounding.finer or frame) else ("groups_first",)

        def exact(connection: duckdb.DuckDBPyConnection, formulation: Formulation) -> Exact:
            sql = bounded_sql(frame, part.query.statistics, SALT, formulation=formulation)
            self._seen.had["native"] += "dpsql_keep" in sql
            return fetched(connection, self._rewrite(sql), frame, listed)

        whole = exact(self._world.full, "groups_first")
        # the same number of draws however many ways there are: with the library or without, examples are the same
        often, which, last = (self._chance.random() for _ in range(3))
        other = ways[-1] if often < 0.6 else ways[int(which * len(ways))]
        assert whole == exact(self._world.shuffled, other), f"the order of rows counts, or {other} is another way"
        return whole, exact(self._world.neighbour, ways[int(last * len(ways))])

    def _check_row(self, plan: PrivateQuery, row: Offer, groups: Exact, expected: Numbers | None) -> None:
        """The row beside some shown groups, those of the removed unit among them."""
        names = ", ".join(f"key_{i}" for i in range(len(plan.first.frame.keys)))
        sql = f"SELECT {names} FROM ({bounded_sql(plan.first.frame, plan.first.statistics, SALT)})"
        keys = self._world.full.sql(self._rewrite(sql)).to_arrow_table()
        shown = keys.filter(pa.array([self._chance.random() < 0.5 for _ in range(keys.num_rows)], pa.bool_()))
        before, after = self._both(row, shown)
        _check_sensitivity(row, before, after)
        if expected is None or any(key.type == "INTERVAL" for key in plan.first.frame.keys):
            return
        known = {tuple(map(as_value, one.values())) for one in shown.to_pylist()}
        assert known <= set(groups)
        # a count of distinct units adds up to nothing that plain DuckDB knows
        places = [i for i, one in enumerate(row.query.estimates) if "DISTINCT" not in one.name]
        sums = [math.fsum(values[i] for key, values in expected.items() if key not in known) for i in places]
        values = _values(row.query, before[()])
        assert [values[i] for i in places] == sums, "the row holds otherwise"


def _rows(connection: duckdb.DuckDBPyConnection, plan: PrivateQuery) -> list[tuple[Value, str]]:
    """The rows that the plan reads: each with its unit, and byte by byte."""
    relation = with_salt(plan.first.frame.rows_sql.relation, SALT)
    found = connection.execute(f"SELECT {plan.first.frame.rows.unit_column.sql}, * FROM {relation}").fetchall()
    return [(as_value(unit), repr(rest)) for unit, *rest in found]


def _check_ownership(world: World, plan: PrivateQuery, removed: Value) -> None:
    rows = _rows(world.full, plan)
    others = Counter(row for row in rows if row[0] is not None and row[0] != removed)
    left = Counter(row for row in _rows(world.neighbour, plan) if row[0] is not None)
    assert others == left, "rows of another unit changed"
    shuffled = Counter(row for row in _rows(world.shuffled, plan) if row[0] is not None)
    assert shuffled == Counter(row for row in rows if row[0] is not None), "the order of rows counts"


def _check_sensitivity(part: Offer, before: Exact, after: Exact) -> None:
    """A unit moves no statistic further than its frame says, nor all of them further than their noise is for."""
    frame, loss = part.query.frame, 0.0
    zeros = (0,) * len(part.query.statistics)
    for place, (statistic, serving) in enumerate(zip(part.query.statistics, part.servings, strict=True)):
        assert serving.level.statistic == statistic
        steps = [before.get(key, zeros)[place] - after.get(key, zeros)[place] for key in {**before, **after}]
        assert sum(step != 0 for step in steps) <= frame.unit_groups, "l0"
        radius = 1 if statistic == PRESENCE else statistic.radius_steps
        most = max(map(abs, steps), default=0)
        assert most <= radius * frame.finer_per_group, "linf"
        assert math.hypot(*steps) <= radius * math.sqrt(frame.unit_groups) * (1 + 1e-12), "l2"
        loss += _loss(part, statistic, serving.level.sigma, steps)
    assert loss <= sum(serving.level.rho_nano for serving in part.servings) / 1e9, "more than is paid"


def _loss(part: Offer, statistic: Statistic, sigma: float, steps: Sequence[int]) -> float:
    """What the noise of a statistic lets through of a movement, in rho: half of its square in the norm of the noise."""
    moved = [step * 2.0 ** part.query.frame.exact_exponent(statistic) for step in steps]
    squared = math.fsum(value * value for value in moved)
    histogram, keys = part.histogram, part.query.frame.key_count
    if statistic == PRESENCE and histogram.shape.correlation and keys is not None:
        shared = histogram.shape.correlation
        squared -= shared * math.fsum(moved) ** 2 / (1 + shared * keys)
    return squared / (2 * sigma**2)


def _check_sums(plan: PrivateQuery, found: Sequence[Exact]) -> None:
    """Coarser sets are sums of the finest, where they are said to be."""
    if not isinstance(plan, GroupingSets) or not plan.adds_up:
        return
    finest = plan.first.frame.keys
    for part, exact in zip(plan.parts, found, strict=True):
        places = [finest.index(key) for key in part.frame.keys]
        summed: dict[tuple[Value, ...], tuple[int, ...]] = {}
        for key, stats in found[0].items():
            group = tuple(key[place] for place in places)
            summed[group] = tuple(map(sum, zip(stats, summed.get(group, (0,) * len(stats)), strict=True)))
        if not places:
            summed.setdefault((), (0,) * len(plan.first.statistics))
        assert exact == summed, "a set is no sum of the finest"


def _agreed(world: World, query: Query, plan: PrivateQuery, part: Offer, exact: Exact) -> Numbers | None:
    """What plain DuckDB says, by the keys of the frame; None where it says nothing."""
    frame = part.query.frame
    if any(key.type == "INTERVAL" for key in frame.keys) or frame.bounding.finer is not None:
        return None
    order = _order(query, plan, frame)
    try:
        rows = world.plain.execute(query.plain_text(list(order))).fetchall()
    except (duckdb.BinderException, duckdb.OutOfRangeException, duckdb.NotImplementedException):
        return None
    listed = world.listed(frame)
    known = None if listed is None else {tuple(map(as_value, key.values())) for key in listed.to_pylist()}
    expected = {}
    for row in rows:
        key = dict(zip(order.values(), map(as_value, row), strict=False))
        group = tuple(key[place] for place in range(len(frame.keys)))
        if known is None or group in known:
            expected[group] = tuple(map(float, row[len(order) :]))
    if any(row[0] > 1000 for row in expected.values()):
        return None
    assert {key: _values(part.query, stats) for key, stats in exact.items()} == expected, (
        "plain DuckDB answers otherwise"
    )
    return expected


def _order(query: Query, plan: PrivateQuery, frame: Frame) -> Mapping[int, int]:
    """Of each key of the text that is one of the frame's, which of these it is."""
    shown = [
        int(column.sql.removeprefix('"key_').removesuffix('"'))
        for column in plan.first.finish.columns[: len(query.keys)]
    ]
    places = {plan.keys.index(key): i for i, key in enumerate(frame.keys)}
    return {text: places[key] for text, key in enumerate(shown) if key in places}


def _values(query: FrameQuery, stats: tuple[int, ...]) -> tuple[float, ...]:
    """The numbers of a group as they would be without noise."""
    found = []
    for estimate in query.estimates:
        (linear,) = estimate.value.linears
        statistic, centre = linear.statistic, linear.centre
        if statistic is None:
            found.append(centre * stats[0])
        else:
            steps = stats[query.statistics.index(statistic)] + statistic.centre_steps * stats[0]
            found.append(steps * statistic.lattice)
    return tuple(found)


def _look(worlds: tuple[World, World], seen: Seen, number: int) -> None:
    seen.examples += 1
    check_example(worlds, number, seen)


def _check_seen(seen: Seen) -> None:
    """That answers and comparisons were no exceptions, and that all kinds of queries were among them."""
    assert seen.answered > 0.4 * seen.asked, seen.refused.most_common(5)
    assert seen.compared > 0.25 * seen.answered
    assert {"sets", "sums", "public", "other"} <= set(seen.had)


def test_rows_of_a_unit_are_its_own(worlds: tuple[World, World]) -> None:
    seen = Seen()
    settings(_SHORT)(given(number=_NUMBERS)(_look))(worlds, seen)
    _check_seen(seen)


def _few_are_kept(patch: pytest.MonkeyPatch) -> None:
    """So few that random tables, which are small, have units with more."""
    patch.setattr(row_cut, "MOST_JOINED", 5)


def test_rows_of_a_unit_are_its_own_where_joins_cut_them(
    worlds: tuple[World, World], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is left of a unit is told by its own rows and the salt: not by their order, nor by rows of others."""
    _few_are_kept(monkeypatch)
    seen = Seen()
    for number in range(_CUT_NEAR, _CUT_NEAR + _CUT_EXAMPLES):
        check_example(worlds, number, seen)
    assert seen.had["cut"] > _CUT_EXAMPLES // 2


@pytest.mark.long
def test_rows_of_a_unit_are_its_own_where_joins_cut_them_over_many_examples(
    worlds: tuple[World, World], monkeypatch: pytest.MonkeyPatch, record_property: Callable[[str, object], None]
) -> None:
    _few_are_kept(monkeypatch)
    seen = Seen()
    settings(_SHORT, max_examples=1000, derandomize=False)(given(number=_NUMBERS)(_look))(worlds, seen)
    for name in ("examples", "asked", "answered", "had"):
        record_property(name, getattr(seen, name))
    assert seen.had["cut"] > 500


def test_one_row_of_each_unit_is_a_function_of_its_own_rows(
    worlds: tuple[World, World], monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the policy counts one row of a unit, a join takes one. A unit moves no more than is paid."""
    monkeypatch.setattr(join_rows, "declares_one_row", lambda rules: True)
    seen = Seen()
    for number in range(_SINGLE_EXAMPLES):
        check_example(worlds, number, seen, mutants=False)
    assert seen.had["single"] > _SINGLE_EXAMPLES / 4


def test_rows_of_a_unit_are_its_own_where_they_meet_all_public_rows(
    worlds: tuple[World, World], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(random_relations, "ORDERED_ONE_IN", 1)
    seen = Seen()
    for number in _CROSSED_NUMBERS:
        check_example(worlds, number, seen, mutants=False)
    assert seen.had["crossed"] >= len(_CROSSED_NUMBERS)


@pytest.mark.long
def test_rows_of_a_unit_are_its_own_over_many_examples(
    worlds: tuple[World, World], record_property: Callable[[str, object], None]
) -> None:
    seen = Seen()
    settings(_SHORT, max_examples=2000, derandomize=False)(given(number=_NUMBERS)(_look))(worlds, seen)
    for name in ("examples", "asked", "answered", "compared", "had"):
        record_property(name, getattr(seen, name))
    assert seen.examples >= 2000
    _check_seen(seen)
    assert {"interval", "list"} <= set(seen.had)


@dataclass(frozen=True)
class Fault:
    """A rule with a hole, and what the check says of it."""

    name: str
    seen_as: str
    near: int
    plant: Callable[[pytest.MonkeyPatch], None] = lambda patch: None
    rewrite: Rewrite = str
    needs_native: bool = False

    def __repr__(self) -> str:
        return self.name


def _joined_without_the_unit(patch: pytest.MonkeyPatch) -> None:
    for module in (join_rows, predicates, row_growth):
        patch.setattr(module, "are_one_unit", lambda left, right, equal: bool(equal))


def _grouped_without_the_unit(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Owner, "has_single_units", lambda owner, keys: True)


def _not_in_as_sql_has_it(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        predicates, "_is_as_written", lambda inner, predicate, compared: len(predicate.compared) == len(compared) == 1
    )


def _distinct_without_the_unit(patch: pytest.MonkeyPatch) -> None:
    def distinct(relation: Relation, node: object, refusals: Refusals) -> Relation:
        owner = relation.owner
        if owner is None:
            return right(relation, node, refusals)  # type: ignore[arg-type]
        names = ", ".join(quote(one.output) for one in relation.schema.visible if one.output != owner.unit)
        text = f"SELECT {names}{', ' if names else ''}min({quote(owner.unit)}) AS {quote(owner.unit)} "
        text += f"FROM {relation.schema.relation} GROUP BY {names or 'ALL'}"
        return replace(relation, schema=replace(relation.schema, relation=f"({text})"))

    right = unit_groups.distinct
    patch.setattr(sources, "distinct", distinct)


def _outer_join_names_the_kept_side(patch: pytest.MonkeyPatch) -> None:
    right = join_rows._with_equals

    def named(owner: Owner, kind: str, equal: set[tuple[str, str]]) -> Owner:
        return right(owner, "JOIN" if kind != "FULL JOIN" else kind, equal)

    patch.setattr(join_rows, "_with_equals", named)


def _spelled_as_they_come(module: ModuleType) -> Callable[[pytest.MonkeyPatch], None]:
    def plant(patch: pytest.MonkeyPatch) -> None:
        patch.setattr(module, "one_spelling", lambda value, _: value)

    return plant


def _sums_bounded_as_groups(patch: pytest.MonkeyPatch) -> None:
    """A coarser set claims what a plain GROUP BY of its keys would."""
    whole: property = vars(Frame)["unit_groups"]
    patch.setattr(Frame, "unit_groups", property(lambda frame: whole.__get__(with_bounding(frame, finer=None))))


def _less_noise_than_is_paid_for(patch: pytest.MonkeyPatch) -> None:
    def low(statistic: Statistic, rho_nano: int, sigma: float, noise_delta: float) -> Level:
        return Level(statistic, rho_nano, 0.9 * sigma, noise_delta)

    patch.setattr(calibrate, "Level", low)


FAULTS: tuple[Fault, ...] = (
    Fault("a join without the unit", "another unit", 11, _joined_without_the_unit),
    Fault("a group without the unit", "otherwise", 0, _grouped_without_the_unit),
    Fault("rows of nobody kept", "otherwise", 54, rewrite=lambda sql: sql.replace("WHERE unit IS NOT NULL ", "")),
    Fault("NOT IN as SQL has it", "otherwise", 21, _not_in_as_sql_has_it),
    Fault("DISTINCT without the unit", "another unit|otherwise", 6, _distinct_without_the_unit),
    Fault("an outer join names the kept side", "another unit", 61, _outer_join_names_the_kept_side),
    Fault("keys as they come", "order of rows|linf", 534, _spelled_as_they_come(aggregation)),
    Fault("sums bounded as groups", "l0|l2", 35, _sums_bounded_as_groups),
    Fault("less noise than is paid for", "more than is paid", 7, _less_noise_than_is_paid_for),
    Fault("the row without collations", "the row holds otherwise", 306, _spelled_as_they_come(other_group)),
    Fault(
        "NULL is never shown", "the row holds otherwise", 1038,
        rewrite=lambda sql: sql.replace('" IS NOT DISTINCT FROM listed', '" = listed'),
    ),
    Fault(
        "codes are hashed", "another way", 66,
        rewrite=lambda sql: sql.replace("hash(unit, listed_rows.key_0", "hash(unit, codes.code"), needs_native=True,
    ),
)  # fmt: skip


def _cut_by_the_order_of_rows(patch: pytest.MonkeyPatch) -> None:
    _few_are_kept(patch)
    patch.setattr(row_cut, "_order", lambda relation: "0")


def _cut_over_all_units(patch: pytest.MonkeyPatch) -> None:
    _few_are_kept(patch)
    patch.setattr(row_cut, "one_spelling", lambda value, kind: "0")


def _one_row_of_all_units(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(join_rows, "declares_one_row", lambda rules: True)
    patch.setattr(row_cut, "one_spelling", lambda value, kind: "0")


FAULTS += (
    Fault("one row of all units", "another unit", 23, _one_row_of_all_units),
    Fault("a cut by the order of rows", "order of rows", _CUT_NEAR, _cut_by_the_order_of_rows),
    Fault("a cut over all units", "another unit", 140, _cut_over_all_units),
)


@pytest.mark.parametrize("fault", FAULTS, ids=repr)
def test_the_check_catches_a_planted_fault(
    worlds: tuple[World, World], fault: Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within fewer examples than the default run has, from one that is near."""
    if fault.needs_native and "native" not in worlds[0].formulations:
        pytest.skip("the native library is not built")
    fault.plant(monkeypatch)

    def look() -> None:
        for number in range(fault.near, fault.near + _FAULT_EXAMPLES):
            check_example(worlds, number, Seen(), fault.rewrite, mutants=False)

    with pytest.raises(AssertionError, match=fault.seen_as):
        look()
