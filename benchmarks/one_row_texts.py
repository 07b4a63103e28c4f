"""Two databases that differ in one row of one person, and random texts whose numbers of rows that row moves.

The person has other rows too, so that the one row can be the first of a group, of a join, or of an answer. A text reads
one of the tables in which the databases differ, or leaves the row of the others out. Which rows it reads is said by an
edge: none but the one row, or as many as some part of dpsql or DuckDB compares with a number that is known.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import duckdb

import dpsql

KINDS = ("plain", "subquery", "cte", "join", "links", "keys first", "AUTO", "coverage")
_PERSON = 900_000_000
_NAME = "Ms Canary"
_SHIFT = 10**9
_UNIT = "CALL dp_unit('person', rho_budget := 1000, delta_threshold := 0.5, delta_conversion := 1e-6)"
_OF_UNIT = "unit := 'person', privacy_unit_column := 'pid', "
_BOUNDS = "coverage := FALSE, max_groups_contributed := 3, max_rows_per_group := 4"
DECLARED = (
    _UNIT,
    *(f"CALL dp_protect('{table}', {_OF_UNIT}{_BOUNDS})" for table in ("visits", "events", "stays", "people")),
    f"CALL dp_link('items', 'visit', parent := 'visits.id', {_BOUNDS})",
)
"""Statements that declare the tables."""


class _Sizes(NamedTuple):
    rows: int
    units: int
    keys: int
    pairs: int


@dataclass(frozen=True)
class Scale:
    """Sizes of the tables.

    Attributes:
        rows: of the largest tables, with the one row.

    """

    rows: int

    @property
    def units(self) -> int:
        """Units of the others: an odd number, so that with the person half of all have too many groups."""
        units = (self.rows - 4) // 5
        return units - (units % 2 == 0)

    @property
    def half(self) -> int:
        """A round number of rows, at which rows were once read again."""
        return self.rows // 2

    def tables(self, *, has_row: bool) -> Iterator[str]:
        """Yield statements that make the tables, with the one row or without it."""
        units, others = self.units, self.rows - 4
        yield (
            "CREATE TABLE visits (id BIGINT PRIMARY KEY, pid BIGINT, ward INTEGER, trio INTEGER, half INTEGER, "
            "name VARCHAR, n INTEGER, cost DOUBLE)"
        )
        yield (
            f"INSERT INTO visits SELECT i + 1, i % {units}, (i * 7 + i // {units} * 11) % 60, i // {units} % 3, "
            f"i // {units} % (CASE WHEN i % {units} % 2 = 0 THEN 4 ELSE 3 END), 'name ' || i % 700, i % 50, "
            f"i % 99 + 0.5 FROM range({others}) t(i)"
        )
        yield f"INSERT INTO visits SELECT {self.rows} + i, {_PERSON}, i, i, i, 'name 7', 7, 7.0 FROM range(3) t(i)"
        yield (
            f"CREATE TABLE events AS SELECT i + 1 AS id, CAST(hash(i) % {units} AS BIGINT) AS pid, "
            f"CAST(hash(i + {_SHIFT}) % {units} AS BIGINT) AS doc, CAST(hash(i + {2 * _SHIFT}) % 2 AS INTEGER) AS two, "
            "CAST(i % 60 AS INTEGER) AS ward, 'name ' || i % 700 AS name, CAST(i % 50 AS INTEGER) AS n "
            f"FROM range({self.rows - 1}) t(i)"
        )
        yield (
            f"CREATE TABLE stays AS SELECT i + 1 AS id, i * 7 % {units} AS pid, CAST(i % 60 AS INTEGER) AS ward, "
            f"'name ' || i % 700 AS name, CAST(i % 30 AS INTEGER) AS days FROM range({self.rows // 4}) t(i)"
        )
        yield f"INSERT INTO stays VALUES ({self.rows}, {_PERSON}, 7, 'name 7', 7)"
        yield "CREATE TABLE people (pid BIGINT PRIMARY KEY, age INTEGER, region VARCHAR)"
        yield f"INSERT INTO people SELECT i, i % 90, 'region ' || i % 9 FROM range({units}) t(i)"
        yield f"INSERT INTO people VALUES ({_PERSON}, 77, 'region 7')"
        yield (
            f"CREATE TABLE items AS SELECT i * 11 % {others} + 1 AS visit, i + 1 AS id, "
            "CAST(i % 20 AS INTEGER) AS amount, 'label ' || i % 100 AS label "
            f"FROM range({self.rows // 2 + 1}) t(i)"
        )
        yield "INSERT INTO items VALUES (0, 0, 7, 'label 7')"
        if has_row:
            yield f"INSERT INTO visits VALUES (0, {_PERSON}, 7, 3, 3, '{_NAME}', 7, 7.0)"
            yield f"INSERT INTO events VALUES (0, {_PERSON}, {_PERSON}, 0, 7, '{_NAME}', 7)"
            yield f"INSERT INTO stays VALUES (0, {_PERSON}, 7, '{_NAME}', 7)"


@dataclass(frozen=True)
class Text:
    """A text with its options, its kind, and the edge on which its rows lie."""

    sql: str
    kind: str
    edge: str
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Edge:
    """Rows that a text reads of a table.

    Attributes:
        name: what the number of rows is about.
        where: the condition, with ``t`` for the table.
        table: which table.
        key: the key for which this is an edge; none if any key serves.

    """

    name: str
    where: str
    table: str = "visits"
    key: str = ""


def _found(
    connections: Sequence[duckdb.DuckDBPyConnection], key: str, turns: Callable[[_Sizes], bool], most: int
) -> int:
    """Return how many events of others there are where one row more turns a comparison of sizes, as DuckDB tells them.

    Without such a place nearby, return where the comparison turns with more rows.
    """

    def holds(connection: duckdb.DuckDBPyConnection, rows: int) -> bool:
        found = connection.execute(
            f"SELECT count(*), approx_count_distinct(pid), approx_count_distinct({key}), "
            f"approx_count_distinct(hash(pid, {key})) FROM events WHERE id <= {rows}"
        ).fetchall()
        return turns(_Sizes(*found[0]))

    low, high = 1, most
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(connections[0], middle) else (middle, high)
    near = range(max(1, low - 8), low + 9)
    return next((rows for rows in near if holds(connections[0], rows) != holds(connections[1], rows)), low)


def edges(scale: Scale, connections: Sequence[duckdb.DuckDBPyConnection]) -> list[Edge]:
    """Return the edges; numbers of rows that depend on approximate sizes are looked for in both databases."""
    half, most = scale.half, scale.half
    rows_of_a_pair = _found(connections, "two", lambda found: found.rows >= 1.5 * found.pairs, most)
    rows_of_a_key = _found(connections, "doc", lambda found: 2 * found.keys <= found.rows, most)
    # a state of the aggregate in C has 80 bytes with four groups, and 112 with a flag of each
    small = _found(connections, "ward", lambda found: 80 * found.units <= 64 * found.rows, most)
    large = _found(connections, "ward", lambda found: 112 * found.units <= 64 * found.rows, most)
    return [
        Edge("no row", f"t.name = '{_NAME}'"),
        *(Edge(f"{rows:,} rows", f"t.id <= {rows}") for rows in (half - 1, half - 2, half)),
        Edge("all rows", "t.ward >= 0"),
        Edge("most groups of a unit", "t.ward >= 0", key="trio"),
        Edge("units with many groups", "t.ward >= 0", key="half"),
        Edge("rows of a pair", f"t.id <= {rows_of_a_pair}", "events", "two"),
        Edge("rows of a key", f"t.id <= {rows_of_a_key}", "events", "doc"),
        *(Edge("size of states", f"t.id <= {rows}", "events", "ward") for rows in (small, large)),
        Edge(f"{half - 1:,} rows", f"t.id <= {half - 1}", "events", "doc"),
        Edge("no row", f"t.name = '{_NAME}'", "events", "two"),
    ]


class Writer:
    """Writes the random texts on some edges: the same number makes the same text."""

    def __init__(self, known: Sequence[Edge]) -> None:
        self._edges = known

    def text(self, number: int) -> Text:
        """Return a text; kinds take turns, and so do the edges of a kind."""
        chance = random.Random(number)
        kind = KINDS[number % len(KINDS)]
        fitting = self._order(kind)
        edge = fitting[number // len(KINDS) % len(fitting)]
        key = edge.key or chance.choice(
            ["ward", "ward", "name", "trio", "half", ""] if kind != "keys first" else ["ward", "name"]
        )
        rest = chance.choice(("", "", " AND t.n >= 0", " AND t.n + 1 > 0", " AND t.ward + t.n < 1000"))
        source, where = _source(kind, edge, chance, edge.where + rest)
        if kind == "join" and edge.name == "no row":
            source, where = _sides(is_second=number >= len(KINDS))
        aggregate, options = _asked(kind, chance)
        key = f"t.{key}" if key else ""
        with_key, grouped = (f"{key} AS k, ", f" GROUP BY {key}") if key else ("", "")
        sql = f"SELECT {with_key}{aggregate} FROM {source}{where}{grouped}"
        if kind == "cte":
            body = f"SELECT * FROM {edge.table} t WHERE {edge.where}{rest}"
            sql = f"WITH t AS ({body}) SELECT {with_key}{aggregate} FROM t{grouped}"
        return Text(sql, kind, edge.name, {"delta": 1e-9, **options})

    def _order(self, kind: str) -> list[Edge]:
        """Return the edges of a kind: the first two, which every kind has, and then the others in a random order."""
        first, others = self._edges[:2], [edge for edge in self._edges[2:] if _fits(kind, edge)]
        random.Random(kind).shuffle(others)
        return [*first, *others]


def _fits(kind: str, edge: Edge) -> bool:
    """Return whether texts of a kind can read the rows of an edge."""
    return edge.table == "visits" or kind not in ("join", "links")


def _source(kind: str, edge: Edge, chance: random.Random, where: str) -> tuple[str, str]:
    """Return what follows FROM, and the condition of the text."""
    table, condition = edge.table, f" WHERE {where}"
    if kind == "subquery":
        return f"(SELECT * FROM {table} t WHERE {where}) t", ""
    if kind == "links":
        # an item meets one visit, so that items tell how many rows there are
        return "items i JOIN visits t ON i.visit = t.id", condition.replace("t.id <=", "i.id <=")
    if kind == "join":
        return "visits t JOIN people p ON p.pid = t.pid", condition
    if kind == "plain" and edge.name == "no row" and table == "visits" and chance.random() < 0.5:
        inner = f"SELECT 1 FROM stays s WHERE s.pid = t.pid AND s.name = '{_NAME}'"
        return "visits t", f" WHERE t.id > 0 AND EXISTS ({inner})"
    return f"{table} t", condition


def _sides(*, is_second: bool) -> tuple[str, str]:
    """Return a join of two cut sides, of which one lacks the one row, and the other has what both databases have."""
    left, right = "visits t", "stays s"
    few, rest = ("t", "s") if is_second else ("s", "t")
    return f"{left} JOIN {right} ON s.pid = t.pid", f" WHERE {few}.name = '{_NAME}' AND {rest}.id > 0"


def _asked(kind: str, chance: random.Random) -> tuple[str, Mapping[str, Any]]:
    """Return the aggregates and options of a text."""
    rows = chance.choice(("count(*) AS c", "count(DISTINCT t.pid) AS c", "count(*) AS c, count(DISTINCT t.pid) AS d"))
    if kind == "keys first":
        return rows, {"rho": 0.01, "mechanism": "KEYS_FIRST"}
    if kind == "AUTO":
        return f"sum(t.n) AS s{chance.choice(('', ', count(*) AS c'))}", {"rho": 0.01}
    if kind == "coverage":
        return rows, {"rho": 1e-6, "coverage": True}
    return rows, {"rho": 1e-6}


def opened(scale: Scale, *, has_row: bool, state: str | None = None) -> dpsql.Session:
    """Open one of the databases, with what is declared."""
    session = dpsql.connect(state=state, threads=1, allow_unsigned_extensions=True)
    for statement in scale.tables(has_row=has_row):
        session.connection.execute(statement)
    for statement in DECLARED:
        session.sql(statement)
    return session
