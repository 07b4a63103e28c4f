"""Four databases of one policy, for random examples: what a plan reads of them, and what it makes of that."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import duckdb
import pyarrow as pa

import dpsql
from dpsql.assets import native_library
from dpsql.bound.aggregation import LISTED_KEYS
from dpsql.bound.formulations import Formulation
from dpsql.cascade.reader import CURATOR, Reader
from dpsql.engine import DuckDBEngine
from dpsql.model.environment import TableSchema
from dpsql.model.frame import Frame
from dpsql.model.private_query import PrivateQuery, Request
from dpsql.model.query_kinds import WithOtherGroup
from dpsql.plan.environment.policy_view import SchemaView
from dpsql.release.offer import Offer, offers_of
from dpsql.sql.statements import SelectStatement, read_statement
from dpsql.state import State
from tests.unit.sql.random_relations import LISTED, Database, Query, Row, Value, database, spelled

Exact = dict[tuple[Value, ...], tuple[int, ...]]


@dataclass(frozen=True)
class Planned:
    """A plan and how it would be served: each set of keys, and the row of the groups that are not shown."""

    query: PrivateQuery
    parts: tuple[Offer, ...]
    row: Offer | None


def _row(plan: PrivateQuery, state: State, reader: Reader) -> Offer | None:
    if not isinstance(plan, WithOtherGroup):
        return None
    (row,) = offers_of([replace(plan.row, request=Request(0.5, None, 1e-3))], state, reader)
    return row


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

    def find(self, canonical: str, *, views: bool = False) -> TableSchema | None:
        look = lambda: DuckDBEngine.find(self, canonical, views=views)  # noqa: E731
        return self._once(look, "find", canonical, views)  # type: ignore[no-any-return]

    def unique_columns(self, schema: TableSchema) -> tuple[tuple[str, ...], ...]:
        look = lambda: DuckDBEngine.unique_columns(self, schema)  # noqa: E731
        return self._once(look, "unique", schema.catalog_name)  # type: ignore[no-any-return]

    def is_base_table(self, schema: TableSchema) -> bool:
        return self._once(lambda: DuckDBEngine.is_base_table(self, schema), "base", schema.catalog_name)  # type: ignore[no-any-return]


class World:
    """One policy over tables that are made anew for every example, in four databases of one name.

    ``full`` has all rows, ``neighbour`` lacks a unit's, ``shuffled`` has another order, ``plain`` none of nobody's.
    """

    def __init__(self, *, composite: bool) -> None:
        unsigned: dict[str, str | bool | int | float | list[str]] = {"allow_unsigned_extensions": True}
        self.session = dpsql.connect(threads=1, allow_unsigned_extensions=True)
        self.full = self.session.connection
        self.neighbour, self.shuffled, self.plain = (duckdb.connect(config=unsigned) for _ in range(3))
        library = native_library()
        loaded = [DuckDBEngine(one, library).has_native for one in (self.full, self.neighbour, self.shuffled)]
        native: tuple[Formulation, ...] = ("native",) if all(loaded) else ()
        self.formulations: tuple[Formulation, ...] = ("groups_first", "rows_first", *native)
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
        self.session._runner.engine = self.engine
        for statement in (
            "CALL dp_unit('u', rho_budget := 1e9, delta_threshold := 0.5, delta_conversion := 1e-6)",
            *(
                f"CALL dp_protect('{table}', coverage := FALSE, unit := 'u', privacy_unit_column := 'pid', {caps})"
                for table in ("visits", "stays", "people")
            ),
            f"CALL dp_link('meals', {link}, coverage := FALSE, parent := {key}, {caps})",
            f"CALL dp_link('bites', 'm', coverage := FALSE, parent := 'meals.m', {caps})",
            f"CALL dp_link('notes', 'pid', coverage := FALSE, parent := 'people.pid', {caps})",
            *(
                f"CALL dp_domain('{table}', '{column}', keys := {list(values)})"
                for table in ("visits", "stays")
                for column, values in LISTED.items()
            ),
            "CALL dp_public('cities')",
            "CALL dp_public('ids', public_by_decision := 'numbers that nobody has')",
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

    def plan(self, query: Query) -> Planned:
        """The plan, on frames of which nothing is stored, and how it would be served."""
        statement = read_statement(query.private_text)
        assert isinstance(statement, SelectStatement)
        options: dict[str, object] = {"rho": 0.5, "delta": 1e-3}
        if query.keys:
            # as many as the native aggregate keeps, which are more than a unit has
            options["max_groups_contributed"] = 2 if query.tight else 64
        if query.other:
            options["other_group"] = "other"
        plan, state, reader = self.session._runner.plan(statement, options, CURATOR)
        return Planned(plan, offers_of(plan.parts, state, reader), _row(plan, state, reader))

    def listed(self, frame: Frame) -> pa.Table | None:
        """The public keys by which a frame's units are bounded."""
        frame = frame.bounding.finer or frame
        if frame.public_keys is None:
            return None
        runner = self.session._runner
        view = SchemaView(runner.access.read().policy(), self.engine, runner.sandbox)
        return view.public_key_table(frame.public_keys, [key.type for key in frame.keys])


def _insert(connection: duckdb.DuckDBPyConnection, table: str, rows: tuple[Row, ...]) -> None:
    if rows:
        listed = ", ".join(f"({', '.join(map(_literal, row))})" for row in rows)
        connection.execute(f"INSERT INTO {table} VALUES {listed}")


def _literal(value: Value) -> str:
    return "NULL" if value is None else "'" + str(value).replace("'", "''") + "'"


def fetched(connection: duckdb.DuckDBPyConnection, sql: str, frame: Frame, listed: pa.Table | None) -> Exact:
    """The rows of an exact table by their keys."""
    spans = [f"key_{i}" for i, key in enumerate(frame.keys) if key.type == "INTERVAL"]
    if spans:
        # Python holds a month to be 30 days
        texts = ", ".join(f"CAST({name} AS VARCHAR) AS {name}" for name in spans)
        sql = f"SELECT * REPLACE ({texts}) FROM ({sql})"
    if listed is not None:
        connection.register(LISTED_KEYS, listed)
    try:
        rows = connection.execute(sql).fetchall()
    finally:
        if listed is not None:
            connection.unregister(LISTED_KEYS)
    width = len(frame.keys)
    found = {
        tuple(as_value(value) for value in row[:width]): tuple(int(value) for value in row[width:]) for row in rows
    }
    assert len(found) == len(rows), "a key stands twice"
    return found


def as_value(value: object) -> Value:
    return spelled(value if isinstance(value, int | float | str) or value is None else str(value))
