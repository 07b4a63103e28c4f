"""Random schemas and queries: a unit's rows stay its own, whatever joins and subqueries make of them.

Of every plan the relation is read as it is, with and without a unit, and then bounded; what bounds do not touch is what
plain DuckDB answers to the same text.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import duckdb
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import dpsql
from dpsql.engine import DuckDBEngine
from dpsql.errors import QueryError
from dpsql.query import joined_rows, predicates, sources, unit_groups
from dpsql.query.bound import bounded_sql
from dpsql.query.dialect import quote
from dpsql.query.environment import Column, TableSchema
from dpsql.query.frame import Statistic
from dpsql.query.private_query import PrivateQuery
from dpsql.query.refusals import Refusals
from dpsql.query.relation import Owner, Relation
from dpsql.query.statements import SelectStatement, read_statement
from dpsql.session.reader import CURATOR
from tests.unit.query.random_relations import Database, Query, Row, Value, Writer, database, mutated, spelled

SALT = bytes(range(16))
_EXAMPLES = 25
_SHORT = settings(
    max_examples=_EXAMPLES,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.generate,),
)
_QUERIES = 4
Exact = dict[tuple[Value, ...], tuple[int, ...]]
Rewrite = Callable[[str], str]


@dataclass
class Seen:
    """How many texts were asked, answered, and compared with plain DuckDB."""

    asked: int = 0
    answered: int = 0
    compared: int = 0
    refused: Counter[str] = field(default_factory=Counter)


class _Remembering(DuckDBEngine):
    """The engine, which looks things up in the catalog once for every example: most of what a plan takes."""

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        super().__init__(connection)
        self.known: dict[tuple[object, ...], Any] = {}

    def _once(self, look: Callable[[], Any], *what: object) -> Any:
        if what not in self.known:
            self.known[what] = look()
        return self.known[what]

    def settings(self) -> tuple[tuple[str, str], ...]:
        return self._once(super().settings, "settings")  # type: ignore[no-any-return]

    def resolve(self, parts: Sequence[str]) -> TableSchema | None:
        return self._once(lambda: DuckDBEngine.resolve(self, parts), "resolve", *parts)  # type: ignore[no-any-return]

    def find(self, canonical: str) -> TableSchema | None:
        return self._once(lambda: DuckDBEngine.find(self, canonical), "find", canonical)  # type: ignore[no-any-return]

    def is_unique(self, schema: TableSchema, columns: Sequence[str]) -> bool:
        look = lambda: DuckDBEngine.is_unique(self, schema, columns)  # noqa: E731
        return self._once(look, "unique", schema.catalog_name, tuple(columns))  # type: ignore[no-any-return]

    def is_base_table(self, schema: TableSchema) -> bool:
        return self._once(lambda: DuckDBEngine.is_base_table(self, schema), "base", schema.catalog_name)  # type: ignore[no-any-return]


class World:
    """One policy over tables that are made anew for every example, in four databases of one name.

    ``full`` has all rows, ``neighbour`` lacks a unit's, ``shuffled`` has another order, ``plain`` none of nobody's.
    """

    def __init__(self, *, composite: bool) -> None:
        self.session = dpsql.connect(threads=1)
        self.full = self.session.connection
        self.neighbour, self.shuffled, self.plain = (duckdb.connect() for _ in range(3))
        self.neighbour.execute("SET threads = 1")
        self.shuffled.execute("SET threads = 2")
        self.plain.execute("SET threads = 1")
        self.composite = composite
        self.views: list[str] = []
        for one in database(random.Random(1), composite).tables.values():
            self.full.execute(one.declaration())
        caps = "max_groups_contributed := 90000, max_rows_per_group := 100000"
        link, key = ("['k', 'k2']", "['stays.k', 'stays.k2']") if composite else ("'k'", "'stays.k'")
        self.engine = _Remembering(self.full)
        self.session._desk.engine = self.engine
        for statement in (
            "CALL dp_unit('u', rho_budget := 1e9, delta_threshold := 0.5, delta_conversion := 1e-6)",
            *(
                f"CALL dp_protect('{table}', unit := 'u', privacy_unit_column := 'pid', {caps})"
                for table in ("visits", "stays", "people")
            ),
            f"CALL dp_link('meals', {link}, parent := {key}, {caps})",
            f"CALL dp_link('bites', 'm', parent := 'meals.m', {caps})",
            f"CALL dp_link('notes', 'pid', parent := 'people.pid', {caps})",
            "CALL dp_public('cities')",
            "CALL dp_public('ids')",
        ):
            self.session.sql(statement)

    def close(self) -> None:
        self.session.close()
        for connection in (self.neighbour, self.shuffled, self.plain):
            connection.close()

    def fill(self, data: Database, removed: Value, chance: random.Random) -> None:
        """The example's tables."""
        self.engine.known.clear()
        for view in self.views:
            for connection in (self.full, self.neighbour, self.shuffled, self.plain):
                connection.execute(f"DROP VIEW IF EXISTS {view}")
        self.views = []
        for connection, held in (
            (self.full, data),
            (self.neighbour, data.without(removed)),
            (self.shuffled, data.shuffled(chance)),
        ):
            for table in held.tables.values():
                connection.execute(table.declaration())
                _insert(connection, table.name, table.rows)
        owned = data.without(None)
        owners = owned.owners()
        for table in owned.tables.values():
            lent = ("pid", data.unit_type) if table.parent and table.name != "notes" else None
            self.plain.execute(table.declaration(lent=lent, keyed=False))
            rows = table.rows
            if lent:
                units = [math.nan if owner == "NaN" else owner for owner in owners[table.name]]
                rows = tuple((*row, unit) for row, unit in zip(rows, units, strict=True))
            _insert(self.plain, table.name, rows)

    def add_view(self, name: str, text: str) -> bool:
        try:
            for connection in (self.full, self.neighbour, self.shuffled, self.plain):
                connection.execute(f"CREATE VIEW {name} AS {text}")
        except duckdb.Error:
            self.full.execute(f"DROP VIEW IF EXISTS {name}")
            return False
        self.views.append(name)
        self.engine.known.clear()
        return True

    def plan(self, query: Query) -> PrivateQuery:
        statement = read_statement(query.private_text)
        assert isinstance(statement, SelectStatement)
        options = {"rho": 0.5, "delta": 1e-3} | ({"max_groups_contributed": 2} if query.tight and query.keys else {})
        return self.session._desk.plan(statement, options, CURATOR)[0]


def _insert(connection: duckdb.DuckDBPyConnection, table: str, rows: tuple[Row, ...]) -> None:
    if rows:
        listed = ", ".join(f"({', '.join(map(_literal, row))})" for row in rows)
        connection.execute(f"INSERT INTO {table} VALUES {listed}")


def _literal(value: Value) -> str:
    return "NULL" if value is None else "'" + str(value).replace("'", "''") + "'"


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
    answers: dict[str, Exact] = {}
    for _ in range(_QUERIES):
        writer = Writer(data, chance, views)
        query = writer.query()
        asked = [query, *(mutated(query, chance) for _ in range(1 if mutants else 0))]
        for one in asked:
            seen.asked += one is query
            answered = _check_query(world, one, removed, answers, seen, rewrite)
            seen.answered += answered and one is query
            if not answered:
                break


def _check_query(
    world: World, query: Query, removed: Value, answers: dict[str, Exact], seen: Seen, rewrite: Rewrite
) -> bool:
    try:
        plan = world.plan(query)
    except QueryError as error:
        seen.refused[str(error).partition("\n")[2][:90] or str(error)[:60]] += 1
        return False
    _check_ownership(world, plan, removed)
    sql = rewrite(bounded_sql(plan.frame, plan.statistics, SALT))
    exact = _exact(world.full, sql, plan)
    assert exact == _exact(world.shuffled, sql, plan), "the order of rows counts"
    _check_sensitivity(plan, exact, _exact(world.neighbour, sql, plan))
    for place, statistic in enumerate(plan.statistics):
        values: Exact = {key: (stats[place],) for key, stats in exact.items()}
        assert answers.setdefault(statistic.hash_in(plan.frame), values) == values, "one hash, two answers"
    if query.comparable and not query.tight:
        _check_agreement(world, query, plan, exact, seen)
    return True


def _rows(connection: duckdb.DuckDBPyConnection, plan: PrivateQuery) -> list[tuple[Value, str]]:
    """The rows that the plan reads: each with its unit, and byte by byte."""
    found = connection.execute(f"SELECT {plan.frame.unit_column.sql}, * FROM {plan.frame.relation}").fetchall()
    return [(_unit(unit), repr(rest)) for unit, *rest in found]


def _unit(value: object) -> Value:
    return spelled(value if isinstance(value, int | float | str) or value is None else str(value))


def _check_ownership(world: World, plan: PrivateQuery, removed: Value) -> None:
    rows = _rows(world.full, plan)
    others = Counter(row for row in rows if row[0] is not None and row[0] != removed)
    left = Counter(row for row in _rows(world.neighbour, plan) if row[0] is not None)
    assert others == left, "rows of another unit changed"
    shuffled = Counter(row for row in _rows(world.shuffled, plan) if row[0] is not None)
    assert shuffled == Counter(row for row in rows if row[0] is not None), "the order of rows counts"


def _exact(connection: duckdb.DuckDBPyConnection, sql: str, plan: PrivateQuery) -> Exact:
    rows = connection.execute(sql).fetchall()
    width = len(plan.frame.keys)
    found = {tuple(_unit(value) for value in row[:width]): tuple(int(value) for value in row[width:]) for row in rows}
    assert len(found) == len(rows), "a key stands twice"
    return found


def _check_sensitivity(plan: PrivateQuery, before: Exact, after: Exact) -> None:
    groups = plan.frame.unit_groups
    zeros = (0,) * len(plan.statistics)
    for place, statistic in enumerate(plan.statistics):
        steps = [before.get(key, zeros)[place] - after.get(key, zeros)[place] for key in {**before, **after}]
        assert sum(step != 0 for step in steps) <= groups, "l0"
        assert max(map(abs, steps), default=0) <= statistic.radius_steps or statistic.kind == "presence", "linf"
        assert max(map(abs, steps), default=0) <= 1 or statistic.kind != "presence", "linf"
        radius = max(statistic.radius_steps, 1)
        assert math.hypot(*steps) <= radius * math.sqrt(groups) * (1 + 1e-12), "l2"


def _check_agreement(world: World, query: Query, plan: PrivateQuery, exact: Exact, seen: Seen) -> None:
    try:
        rows = world.plain.execute(query.plain_text).fetchall()
    except (duckdb.BinderException, duckdb.OutOfRangeException, duckdb.NotImplementedException):
        return
    width = len(query.keys)
    expected = {tuple(_unit(value) for value in row[:width]): tuple(map(float, row[width:])) for row in rows}
    if any(row[0] > 1000 for row in expected.values()):
        return
    seen.compared += 1
    places = [int(column.sql.removeprefix('"key_').removesuffix('"')) for column in plan.finish.columns[:width]]
    found = {}
    for key, stats in exact.items():
        values = []
        for estimate in plan.estimates:
            statistic = estimate.numerator.statistic
            values.append(_value(statistic, stats, plan, estimate.numerator.centre))
        found[tuple(key[place] for place in places)] = tuple(values)
    assert found == expected, "plain DuckDB answers otherwise"


def _value(statistic: Statistic | None, stats: tuple[int, ...], plan: PrivateQuery, centre: float) -> float:
    if statistic is None:
        return centre * stats[0]
    steps = stats[plan.statistics.index(statistic)] + statistic.centre_steps * stats[0]
    return steps * statistic.lattice


@settings(_SHORT)
@given(number=st.integers(0, 2**32 - 1))
def _look(worlds: tuple[World, World], seen: Seen, number: int) -> None:
    check_example(worlds, number, seen)


def test_rows_of_a_unit_are_its_own(worlds: tuple[World, World]) -> None:
    seen = Seen()
    _look(worlds, seen)
    assert seen.answered > 0.4 * seen.asked, seen.refused.most_common(5)
    assert seen.compared > 0.25 * seen.answered


@pytest.mark.long
def test_rows_of_a_unit_are_its_own_over_many_examples(worlds: tuple[World, World]) -> None:
    seen = Seen()
    settings(_SHORT, max_examples=2000, derandomize=False)(_look)(worlds, seen)
    assert seen.answered > 0.4 * seen.asked
    assert seen.compared > 0.25 * seen.answered


@dataclass(frozen=True)
class Fault:
    """A rule with a hole, and what the check says of it."""

    name: str
    seen_as: str
    plant: Callable[[pytest.MonkeyPatch], None] = lambda patch: None
    rewrite: Rewrite = str

    def __repr__(self) -> str:
        return self.name


def _joined_without_the_unit(patch: pytest.MonkeyPatch) -> None:
    for module in (joined_rows, predicates):
        patch.setattr(module, "are_one_unit", lambda left, right, equal: bool(equal))


def _grouped_without_the_unit(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(unit_groups, "_leads_to_unit", lambda keys, owner: True)


def _not_in_as_sql_has_it(patch: pytest.MonkeyPatch) -> None:
    kept = predicates._kept

    def native(
        outer: str, inner: str, compared: tuple[predicates.Comparison, ...], *, negated: bool, known: tuple[Column, ...]
    ) -> str:
        if known and len(compared) == 1:
            return predicates._not_in(outer, inner, compared[0])
        return kept(outer, inner, compared, negated=negated, known=known)

    patch.setattr(predicates, "_kept", native)


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
    right = joined_rows._with_equals

    def named(owner: Owner, kind: str, equal: set[tuple[str, str]]) -> Owner:
        return right(owner, "JOIN" if kind != "FULL JOIN" else kind, equal)

    patch.setattr(joined_rows, "_with_equals", named)


FAULTS = (
    Fault("a join without the unit", "another unit", _joined_without_the_unit),
    Fault("a group without the unit", "otherwise", _grouped_without_the_unit),
    Fault("rows of nobody kept", "otherwise", rewrite=lambda sql: sql.replace("WHERE unit IS NOT NULL ", "")),
    Fault("NOT IN as SQL has it", "otherwise", _not_in_as_sql_has_it),
    Fault("DISTINCT without the unit", "another unit|otherwise", _distinct_without_the_unit),
    Fault("an outer join names the kept side", "another unit", _outer_join_names_the_kept_side),
)


@pytest.mark.parametrize("fault", FAULTS, ids=repr)
def test_the_check_catches_a_planted_fault(
    worlds: tuple[World, World], fault: Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within as many examples as the default run has; of the same ones every time."""
    fault.plant(monkeypatch)

    def look() -> None:
        for number in range(_EXAMPLES):
            check_example(worlds, number, Seen(), fault.rewrite, mutants=False)

    with pytest.raises(AssertionError, match=fault.seen_as):
        look()
