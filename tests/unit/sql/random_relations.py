"""Random small databases of several tables, and random SQL over them: joins, subqueries, WITH, views, grouping sets.

A text has places ``⟦ours|plain⟧`` where plain DuckDB needs other words to mean the same: there rows without an owner
are left out by hand, and NOT IN over protected rows is spelled out.
"""

from __future__ import annotations

import itertools
import math
import random
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

Value = int | float | str | None
Row = tuple[Value, ...]

UNITS: dict[str, tuple[Value, ...]] = {
    "INTEGER": (1, 2, 3, 4),
    "VARCHAR": ("p", "P", "it's", ""),
    "DOUBLE": (1.0, 2.5, -0.0, 0.0, math.nan),
    "DATE": ("2020-01-01", "2020-01-02", "1999-12-31"),
}
_TEXTS: tuple[Value, ...] = ("a", "A", "b", "a", None)
_WHOLE: tuple[Value, ...] = (0, 1, 2, 3, -1, None)
_EXACT: tuple[Value, ...] = (0.0, -0.0, 0.5, 1.75, -2.25, math.nan, None)
_SPANS: tuple[Value, ...] = ("30 days", "1 month", "-1 month", "24 hours", "1 day", None)
_LISTS: tuple[Value, ...] = ("[]", "[1]", "[1, NULL]", "[NULL]", None)
LISTED: dict[str, tuple[Value, ...]] = {"d": (0, 1, 2), "e": ("a", "b")}
"""Columns with public lists, where a table has them."""
COLLATED = "VARCHAR COLLATE NOCASE"
_ODD = (COLLATED, "INTERVAL", "INTEGER[]")
_ROUNDED: tuple[Value, ...] = (0.1, 0.7, 1e16, -1e16, 3e-5, -0.0, math.nan, math.inf, None)
_MARK = re.compile(r"⟦([^|⟦⟧]*)\|([^|⟦⟧]*)⟧")


@dataclass(frozen=True)
class Table:
    """Columns by name and type; where rows lead: a column of their own, or a parent's key."""

    name: str
    columns: tuple[tuple[str, str], ...]
    rows: tuple[Row, ...]
    unit: str = ""
    parent: str = ""
    link: tuple[str, ...] = ()
    unique: tuple[str, ...] = ()
    required: bool = False

    @property
    def is_public(self) -> bool:
        return not self.unit and not self.parent

    def place(self, column: str) -> int:
        return [name for name, _ in self.columns].index(column)

    def declaration(self, *, lent: tuple[str, str] | None = None, keyed: bool = True) -> str:
        """CREATE TABLE; ``lent`` is one more column; ``keyed`` says whether constraints and collations are there."""
        parts = [f"{name} {kind}" for name, kind in (*self.columns, *([lent] if lent else []))]
        if not keyed:
            # what compares texts privately compares their bytes
            parts = [part.replace(COLLATED, "VARCHAR") for part in parts]
        if keyed and self.unique:
            parts.append(f"{'PRIMARY KEY' if self.required else 'UNIQUE'} ({', '.join(self.unique)})")
        return f"CREATE OR REPLACE TABLE {self.name} ({', '.join(parts)})"


@dataclass(frozen=True)
class Database:
    """Tables by name, views as texts, and the type of units."""

    tables: Mapping[str, Table]
    unit_type: str
    exact: bool

    def owners(self) -> dict[str, list[Value]]:
        """Per table the unit of every row, in one spelling; None for rows of nobody."""
        found: dict[str, list[Value]] = {}
        for table in self.tables.values():
            if table.unit:
                found[table.name] = [spelled(row[table.place(table.unit)]) for row in table.rows]
            elif table.parent:
                parent = self.tables[table.parent]
                keys = [tuple(row[parent.place(name)] for name in parent.unique) for row in parent.rows]
                by_key = dict(
                    zip(map(tuple, ([spelled(v) for v in key] for key in keys)), found[parent.name], strict=True)
                )
                links = [tuple(spelled(row[table.place(name)]) for name in table.link) for row in table.rows]
                found[table.name] = [None if None in link else by_key.get(link) for link in links]
        return found

    def without(self, unit: Value) -> Database:
        """The neighbour that lacks all rows of a unit; of None, those of nobody."""
        owners = self.owners()
        tables = {
            name: table
            if table.is_public
            else _with_rows(table, [row for row, owner in zip(table.rows, owners[name], strict=True) if owner != unit])
            for name, table in self.tables.items()
        }
        return Database(tables, self.unit_type, self.exact)

    def shuffled(self, chance: random.Random) -> Database:
        tables = {
            name: _with_rows(table, chance.sample(table.rows, len(table.rows))) for name, table in self.tables.items()
        }
        return Database(tables, self.unit_type, self.exact)


def _with_rows(table: Table, rows: Sequence[Row]) -> Table:
    return Table(
        table.name, table.columns, tuple(rows), table.unit, table.parent, table.link, table.unique, table.required
    )


def _computed(condition: str, beside: str) -> str:
    """Return some comparisons with an expression of one side, chosen by the text and not by chance."""
    one, other = condition.split(" = ")
    if zlib.crc32(f"{condition} {beside}".encode()) % 3 == 0:
        return condition
    form = {"n": "{} // 2", "d": "{} // 2", "city": "lower({})", "r": "lower({})"}.get(one.split(".")[-1], "{}")
    return f"{form.format(one)} = {other}"


ORDERED_ONE_IN = 4
"""Of so many equalities of an inner join with public rows one is an inequality."""


def _ordered(condition: str, left: Source, right: Source, word: str) -> str:
    """Return some equalities of inner joins with public rows as ``<=``, chosen by the text and not by chance."""
    meets_public = word in ("JOIN", "INNER") and not (left.private and right.private)
    is_chosen = meets_public and zlib.crc32(f"{left.sql} {condition}".encode()) % ORDERED_ONE_IN == 0
    return condition.replace(" = ", " <= ") if is_chosen else condition


def _in_parentheses(sql: str) -> str:
    """Return some joins in parentheses, chosen by the text and not by chance."""
    return f"({sql})" if " JOIN " in sql and ", " not in sql and zlib.crc32(sql.encode()) % 3 == 0 else sql


def spelled(value: Value) -> Value:
    """A value in one spelling of all that are equal."""
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else value + 0.0
    return value


def database(chance: random.Random, composite: bool) -> Database:
    """Tables whose columns share names, with NULLs, duplicates and keys that lead nowhere."""
    unit = chance.choice(list(UNITS))
    exact = chance.random() < 0.75
    ids: tuple[Value, ...] = (*UNITS[unit], None)
    kinds: dict[str, tuple[str, tuple[Value, ...]]] = {
        "pid": (unit, ids),
        "z": (unit, ids),
        "k": ("INTEGER", (1, 2, 3, 4, 1, 2, None)),
        "k2": ("VARCHAR", ("s", "S", "t", None)),
        "m": ("BIGINT", (1, 2, 3, 4, 5, None)),
        "city": ("VARCHAR", _TEXTS),
        "n": ("INTEGER", _WHOLE),
        "x": ("DOUBLE", _EXACT if exact else _ROUNDED),
        "r": ("VARCHAR", _TEXTS),
        "c": (COLLATED, ("a", "A", "b", "B", None)),
        "d": ("INTEGER", (*LISTED["d"], 9, None)),
        "e": ("VARCHAR", (*LISTED["e"], "A", None)),
        "span": ("INTERVAL", _SPANS),
        "l": ("INTEGER[]", _LISTS),
    }

    def table(name: str, columns: str, most: int, **rest: object) -> Table:
        names = columns.split()
        if chance.random() < 0.3:
            chance.shuffle(names)
        unique: tuple[str, ...] = rest.get("unique", ())  # type: ignore[assignment]
        required = bool(unique) and chance.random() < 0.5
        rows: list[Row] = []
        keys: set[tuple[Value, ...]] = set()
        for _ in range(chance.randrange(3, most + 4)):
            row = tuple(chance.choice(kinds[name][1]) for name in names)
            key = tuple(spelled(row[names.index(name)]) for name in unique)
            if unique and (key in keys or (required and None in key)):
                continue
            keys.add(key if None not in key else (object(),))  # type: ignore[arg-type]
            rows += [row] * (1 if unique or chance.random() < 0.8 else 2)
        return Table(name, tuple((n, kinds[n][0]) for n in names), tuple(rows), required=required, **rest)  # type: ignore[arg-type]

    key = ("k", "k2") if composite else ("k",)
    tables = [
        table("visits", "pid city n x z d e c span", 9, unit="pid"),
        table("stays", "k k2 pid city n z d e l", 9, unit="pid", unique=key),
        table("meals", "m k k2 city n x d c", 9, parent="stays", link=key, unique=("m",)),
        table("bites", "m n city z", 8, parent="meals", link=("m",)),
        table("people", "pid city n", 6, unit="pid", unique=("pid",)),
        table("notes", "pid n x z", 8, unit="pid"),
        table("cities", "city n r c", 6),
        table("ids", "pid n r", 6),
    ]
    return Database({one.name: one for one in tables}, unit, exact)


def ours(text: str) -> str:
    """The text that is asked privately."""
    return _MARK.sub(r"\1", text)


def plain(text: str) -> str:
    """The text that means the same to DuckDB, on tables without rows of nobody."""
    return _MARK.sub(r"\2", text)


@dataclass
class Shown:
    """A column that an expression may use: how it is written, its name and type."""

    sql: str
    name: str
    kind: str


@dataclass
class Source:
    """What stands in FROM: its columns, and what of them tells whose a row is.

    ``unit`` is a column that holds the unit; ``present`` one that is not NULL in rows of anybody, where that is known.
    """

    sql: str
    columns: list[Shown]
    private: bool
    unit: str = ""
    present: str = ""
    linked: bool = False
    keys: tuple[tuple[str, ...], ...] = ()
    conditions: list[str] = field(default_factory=list)


class Writer:
    """Writes random queries over a database; ``comparable`` turns false where plain DuckDB reads a text otherwise."""

    def __init__(self, data: Database, chance: random.Random, views: Sequence[tuple[str, Source]] = ()) -> None:
        self.data = data
        self.chance = chance
        self.comparable = data.exact
        self._views = list(views)
        self._named: list[list[tuple[str, Source]]] = []
        self._aliases = 0

    def _is(self, probability: float) -> bool:
        return self.chance.random() < probability

    def _alias(self) -> str:
        self._aliases += 1
        return f"{self.chance.choice(('t', 'T', 'visits', 'q'))}{self._aliases}"

    def view(self) -> tuple[str, Source]:
        """A subquery that can be made a view: its text, and what it shows."""
        return self.subquery(2)

    # --- sources -----------------------------------------------------------------------------------------------

    def _table(self, name: str) -> Source:
        table = self.data.tables[name]
        alias = self._alias() if self._is(0.7) else ""
        qualifier = alias or f"{name}"
        if not alias:
            alias = f"{name}_{self._aliases}"
            self._aliases += 1
            qualifier = alias
        columns = [Shown(f"{qualifier}.{n}", n, k) for n, k in table.columns]
        linked = bool(table.parent)
        if linked:
            columns.append(Shown(f"{qualifier}.pid", "pid", self.data.unit_type))
        unit = f"{qualifier}.pid" if not table.is_public else ""
        present = unit if not linked else f"{qualifier}.{table.link[0]}"
        keys = [table.link] if linked else []
        keys += [table.unique] if table.unique else []
        return Source(
            f"{name} {alias}",
            columns,
            not table.is_public,
            unit,
            present,
            linked,
            tuple(tuple(f"{qualifier}.{n}" for n in key) for key in keys),
        )

    def _source(self, depth: int) -> Source:
        chance = self.chance.random()
        named = [one for scope in self._named for one in scope]
        if depth > 0 and chance < 0.28:
            text, inner = self.subquery(depth - 1)
            return self._called(f"({text})", inner)
        if named and chance < 0.5:
            name, inner = self.chance.choice(named)
            return self._called(name, inner)
        if self._views and chance < 0.6:
            name, inner = self.chance.choice(self._views)
            return self._called(name, inner)
        names = ("visits", "stays", "meals", "bites", "people", "notes", "visits", "stays", "meals", "cities", "ids")
        return self._table(self.chance.choice(names))

    def _called(self, text: str, inner: Source) -> Source:
        alias = self._alias()
        names = [column.name for column in inner.columns]
        shown = ""
        if self._is(0.15):
            given = self.chance.sample(
                ["c0", "c1", "n", "city", "pid", "c5"], min(len(names), self.chance.randrange(1, 4))
            )
            if len(set(given + names[len(given) :])) == len(names):
                names = given + names[len(given) :]
                shown = f" ({', '.join(given)})"
        renamed = dict(zip([column.name for column in inner.columns], names, strict=True))
        columns = [Shown(f"{alias}.{n}", n, c.kind) for n, c in zip(names, inner.columns, strict=True)]

        def outer(name: str) -> str:
            return f"{alias}.{renamed[name]}" if name in renamed else ""

        keys = tuple(tuple(map(outer, key)) for key in inner.keys)
        return Source(
            f"{text} AS {alias}{shown}",
            columns,
            inner.private,
            outer(inner.unit),
            outer(inner.present),
            False,
            tuple(key for key in keys if all(key)),
        )

    # --- joins -------------------------------------------------------------------------------------------------

    def _from(self, depth: int) -> Source:
        source = self._source(depth)
        for _ in range(self.chance.choice((0, 0, 1, 1, 2))):
            left = replace(source, sql=_in_parentheses(source.sql))
            source = self._joined(left, self._source(depth - 1))
        return source

    def _pairs(self, left: Source, right: Source) -> list[tuple[str, str]]:
        """Columns to compare: what tells whose rows they are, more often than not."""
        kinds = {column.sql: column.kind for column in (*left.columns, *right.columns)}
        alike = [
            (one.sql, other.sql)
            for one in left.columns
            for other in right.columns
            if one.kind == other.kind and (one.name == other.name or self._is(0.3))
        ]
        pairs = [self.chance.choice(alike)] if alike and (self._is(0.3) or not (left.private and right.private)) else []
        if left.private and right.private:
            matching = [
                tuple(zip(one, other, strict=True))
                for one in left.keys
                for other in right.keys
                if len(one) == len(other)
                and [a.split(".")[1] for a in one] == [b.split(".")[1] for b in other]
                and all(kinds.get(a) == kinds.get(b) for a, b in zip(one, other, strict=True))
            ]
            if matching and self._is(0.5):
                pairs += self.chance.choice(matching)
            elif left.unit and right.unit and kinds.get(left.unit) == kinds.get(right.unit) and self._is(0.8):
                pairs.append((left.unit, right.unit))
        if not pairs and alike:
            pairs = [self.chance.choice(alike)]
        self.chance.shuffle(pairs)
        return pairs

    def _joined(self, left: Source, right: Source) -> Source:
        kind = self.chance.choice(
            (
                "JOIN",
                "INNER JOIN",
                "JOIN",
                "LEFT JOIN",
                "LEFT OUTER JOIN",
                "RIGHT JOIN",
                "FULL JOIN",
                "SEMI JOIN",
                "ANTI JOIN",
            )
        )
        word = kind.split()[0]
        keeps_right = word not in ("SEMI", "ANTI")
        names = {column.name for column in left.columns}
        common = [column.name for column in right.columns if column.name in names]
        once = [name for name in common if sum(column.name == name for column in left.columns) == 1]
        way = self.chance.random()
        pairs = self._pairs(left, right)
        conditions = list(left.conditions)
        merged: list[str] = []
        if way < 0.2 and once:
            wanted = [n for n in once if n == "pid" and left.private and right.private] or [self.chance.choice(once)]
            if self._is(0.2):
                wanted = list(dict.fromkeys([*wanted, self.chance.choice(once)]))
            sql = f"{left.sql} {kind} {right.sql} USING ({', '.join(wanted)})"
            merged = wanted
        elif way < 0.28 and once and len(once) == len(common):
            sql = f"{left.sql} NATURAL {kind} {right.sql}"
            merged = common
            # what a link lends is no column of the table to plain DuckDB
            self.comparable = self.comparable and not (left.linked or right.linked)
        elif way < 0.4 and word in ("JOIN", "INNER") and pairs and " JOIN " not in left.sql:
            sql = f"{left.sql}, {right.sql}"
            conditions += [f"{one} = {other}" for one, other in pairs]
        else:
            on = [f"{one} = {other}" if self._is(0.5) else f"{other} = {one}" for one, other in pairs]
            on = [_ordered(_computed(one, left.sql), left, right, word) for one in on]
            if self._is(0.15) and word in ("JOIN", "INNER"):
                on.append(self.condition([*left.columns, *right.columns]))
            elif self._is(0.25) and word in ("LEFT", "SEMI", "ANTI"):
                on.append(self.condition(right.columns))
            sql = f"{left.sql} {kind} {right.sql} ON {' AND '.join(on) or 'true'}"
        columns = [*left.columns, *(right.columns if keeps_right else [])]
        if merged and self._is(0.7):
            # the name alone means both
            kinds = {column.name: column.kind for column in right.columns}
            columns = [column for column in columns if column.name not in merged]
            columns += [Shown(name, name, kinds[name]) for name in merged]
        joined = Source(sql, columns, left.private or right.private, conditions=conditions)
        joined.linked = left.linked or right.linked
        joined.keys = left.keys + (right.keys if keeps_right else ())
        sides = {"RIGHT": (right, left), "FULL": (left, right)}.get(word, (left, right))
        if word == "FULL" and left.private and right.private:
            joined.unit = f"coalesce({left.unit}, {right.unit})" if left.unit and right.unit else ""
            joined.present = f"coalesce({left.present}, {right.present})" if left.present and right.present else ""
        elif not keeps_right:
            joined.unit, joined.present = left.unit, left.present
        else:
            first = next((side for side in sides if side.private), sides[0])
            joined.unit, joined.present = first.unit, first.present
        if joined.private and not joined.present and word not in ("JOIN", "INNER", "SEMI", "ANTI"):
            self.comparable = False
        return joined

    # --- expressions -------------------------------------------------------------------------------------------

    def _of_kind(self, columns: Sequence[Shown], *kinds: str) -> list[str]:
        return [column.sql for column in columns if column.kind in kinds]

    def condition(self, columns: Sequence[Shown]) -> str:
        """A condition over one row."""
        column = self.chance.choice(list(columns))
        sql = column.sql
        if column.kind in ("INTEGER", "BIGINT", "HUGEINT", "DOUBLE"):
            options = [f"{sql} > 1", f"{sql} > 0", f"{sql} IS NOT NULL", f"{sql} + 1 <> 2", f"{sql} IN (0, 1, 2)"]
        elif column.kind == "VARCHAR":
            options = [f"{sql} <> 'a'", f"lower({sql}) = 'a'", f"{sql} IS NULL", f"{sql} || 'x' LIKE '_x'"]
        elif column.kind == "BOOLEAN":
            options = [sql, f"NOT {sql}"]
        else:
            options = [f"{sql} IS NOT NULL", f"{sql} IS NULL"]
        one = self.chance.choice(options)
        return one if self._is(0.8) else f"({one} OR {self.condition(columns)})"

    def _value(self, columns: Sequence[Shown]) -> tuple[str, str]:
        """An expression over one row, and its type."""
        column = self.chance.choice(list(columns))
        sql, kind = column.sql, column.kind
        if kind == "INTEGER":
            return self.chance.choice(
                ((f"{sql} + 1", kind), (f"{sql} % 2", kind), (f"coalesce({sql}, 7)", kind), (f"{sql} > 1", "BOOLEAN"))
            )
        if kind == "VARCHAR":
            return self.chance.choice(
                ((f"lower({sql})", kind), (f"{sql} || 'x'", kind), (f"CASE WHEN {sql} > 'a' THEN {sql} END", kind))
            )
        if kind == "DOUBLE":
            return (f"{sql} * 2", kind)
        return (f"{sql} IS NULL", "BOOLEAN")

    # --- predicates --------------------------------------------------------------------------------------------

    def _predicate(self, outer: Source, depth: int) -> str:
        inner = self._from(0) if self._is(0.2) else self._source(depth - 1 if self._is(0.5) else 0)
        pairs = self._pairs(outer, inner)
        if not pairs:
            return self.condition(outer.columns)
        where = list(inner.conditions)
        negated = "NOT " if self._is(0.6) else ""
        if self._is(0.3):
            where.append(self.condition(inner.columns))
        first, *rest = pairs
        if self._is(0.4):
            where += [f"{one} = {other}" for one, other in pairs]
            if self._is(0.3):
                alike = [(a, b) for a in outer.columns for b in inner.columns if a.kind == b.kind == "INTEGER"]
                if alike:
                    one, other = self.chance.choice(alike)
                    where.append(f"{one.sql} {self.chance.choice(('<', '<>', '>='))} {other.sql}")
            return f"{negated}EXISTS (SELECT 1 FROM {inner.sql} WHERE {' AND '.join(where)})"
        where += [f"{one} = {other}" for one, other in rest]
        known = f"⟦|{first[0]} IS NOT NULL AND ⟧" if negated else ""
        if negated and not inner.private and not rest:
            # of one public column it is what SQL says
            known = ""
        elif negated:
            where.append(f"⟦true|{first[1]} IS NOT NULL⟧")
        filtered = f" WHERE {' AND '.join(where)}" if where else ""
        return f"{known}{first[0]} {negated}IN (SELECT {first[1]} FROM {inner.sql}{filtered})"

    # --- queries -----------------------------------------------------------------------------------------------

    def _where(self, source: Source, depth: int) -> str:
        parts = list(source.conditions)
        if self._is(0.2):
            parts.append(self.condition(source.columns))
        if depth > 0 and self._is(0.45):
            parts.append(self._predicate(source, depth))
        self.chance.shuffle(parts)
        owned = f"{source.present} IS NOT NULL" if source.private and source.present else "true"
        if parts:
            return f" WHERE {' AND '.join(parts)}⟦| AND {owned}⟧"
        return f"⟦| WHERE {owned}⟧"

    def subquery(self, depth: int) -> tuple[str, Source]:
        """The text of a SELECT or UNION, and what it shows."""
        if depth > 0 and self._is(0.12):
            return self._union(depth)
        source = self._from(depth)
        if self._is(0.35):
            return self._groups(source, depth)
        return self._rows(source, depth)

    def _rows(self, source: Source, depth: int) -> tuple[str, Source]:
        where = self._where(source, depth)
        if self._is(0.2) and len({column.name for column in source.columns}) == len(source.columns):
            star = Source("", [Shown(c.name, c.name, c.kind) for c in source.columns], source.private)
            names = {column.sql: column.name for column in source.columns}
            star.unit, star.present = names.get(source.unit, ""), names.get(source.present, "")
            star.keys = tuple(tuple(names.get(s, "") for s in key) for key in source.keys)
            star.keys = tuple(key for key in star.keys if all(key))
            if " JOIN " in source.sql or ", " in source.sql:
                self.comparable = self.comparable and not source.linked
            return f"SELECT {self._distinct(source, True)}* FROM {source.sql}{where}", star
        items: dict[str, tuple[str, str]] = {}
        for column in self.chance.sample(source.columns, min(len(source.columns), self.chance.randrange(1, 5))):
            items.setdefault(column.name, (column.sql, column.kind))
        if source.unit and self._is(0.75):
            items.setdefault("pid", (source.unit, self.data.unit_type))
        for key in source.keys:
            for sql in key if self._is(0.4) else ():
                kind = next((c.kind for c in source.columns if c.sql == sql), "")
                if kind:
                    items.setdefault(sql.split(".")[1], (sql, kind))
        if self._is(0.4):
            items.setdefault(self.chance.choice(("v", "n", "city")), self._value(source.columns))
        shows_unit = any(sql == source.unit for sql, _ in items.values())
        text = ", ".join(f"{sql} AS {name}" for name, (sql, _) in items.items())
        distinct = self._distinct(source, shows_unit)
        return f"SELECT {distinct}{text} FROM {source.sql}{where}", self._outcome(source, items)

    def _distinct(self, source: Source, shows_unit: bool) -> str:
        return "DISTINCT " if self._is(0.2 if shows_unit or not source.private else 0.1) else ""

    def _outcome(self, source: Source, items: Mapping[str, tuple[str, str]]) -> Source:
        names = {sql: name for name, (sql, _) in reversed(list(items.items()))}
        shown = Source("", [Shown(name, name, kind) for name, (_, kind) in items.items()], source.private)
        shown.unit, shown.present = names.get(source.unit, ""), names.get(source.present, "")
        shown.present = shown.present or shown.unit
        keys = [tuple(names.get(sql, "") for sql in key) for key in source.keys]
        # a path is followed by its names here
        shown.keys = tuple(key for key in keys if all(key))
        return shown

    def _groups(self, source: Source, depth: int) -> tuple[str, Source]:
        where = self._where(source, depth)
        keys: dict[str, tuple[str, str]] = {}
        paths = [key for key in source.keys if all(any(c.sql == s for c in source.columns) for s in key)]
        kinds = {column.sql: column.kind for column in source.columns}
        if source.private and paths and self._is(0.25):
            for sql in self.chance.choice(paths):
                keys.setdefault(sql.split(".")[1], (sql, kinds[sql]))
        elif source.private and source.unit and self._is(0.75):
            keys["pid"] = (source.unit, self.data.unit_type)
        if self._is(0.4):
            column = self.chance.choice(source.columns)
            keys.setdefault(column.name, (column.sql, column.kind))
        if self._is(0.15):
            keys.setdefault("g", self._value(source.columns))
        if not keys:
            column = self.chance.choice(source.columns)
            keys[column.name] = (column.sql, column.kind)
        items = dict(keys)
        for i in range(self.chance.randrange(1, 4)):
            items[f"v{i}" if self._is(0.8) else ("n" if "n" not in items else f"w{i}")] = self._aggregate(
                source.columns
            )
        text = ", ".join(f"{sql} AS {name}" for name, (sql, _) in items.items())
        having = f" HAVING {self._aggregate(source.columns, counts=True)[0]} > 1" if self._is(0.2) else ""
        grouping = ", ".join(sql for sql, _ in keys.values()) if self._is(0.7) else "ALL"
        grouped = f"SELECT {text} FROM {source.sql}{where} GROUP BY {grouping}{having}"
        outcome = self._outcome(source, items)
        return grouped, outcome

    def _aggregate(self, columns: Sequence[Shown], *, counts: bool = False) -> tuple[str, str]:
        column = self.chance.choice(list(columns))
        whole = self._of_kind(columns, "INTEGER")
        numbers = self._of_kind(columns, "DOUBLE", "INTEGER")
        options = [("count(*)", "BIGINT"), (f"count({column.sql})", "BIGINT")]
        options.append((f"count(DISTINCT {column.sql})", "BIGINT"))
        if not counts:
            options.append((f"{self.chance.choice(('min', 'max'))}({column.sql})", column.kind))
            options.append((f"count_if({self.condition(columns)})", "HUGEINT"))
            options += [(f"sum({sql})", "HUGEINT") for sql in whole[:1]]
            options += [(f"avg({sql})", "DOUBLE") for sql in whole[:1]]
            options += [(f"sum({sql})", "DOUBLE") for sql in numbers[:1] if sql not in whole]
            options.append((f"{self.chance.choice(('bool_or', 'bool_and'))}({self.condition(columns)})", "BOOLEAN"))
        text, kind = self.chance.choice(options)
        return (f"{text} FILTER (WHERE {self.condition(columns)})" if self._is(0.2) else text), kind

    def _union(self, depth: int) -> tuple[str, Source]:
        left, shown = self._rows(self._from(depth - 1), depth - 1)
        for _ in range(6):
            right, other = self._rows(self._from(depth - 1), depth - 1)
            if [c.kind for c in other.columns] == [c.kind for c in shown.columns] and other.private == shown.private:
                break
        else:
            right, other = left, shown
        if other.unit != shown.unit:
            shown.unit = ""
        if other.present != shown.present:
            shown.present = ""
        shown.keys = tuple(key for key in shown.keys if key in other.keys)
        return f"{left} UNION {'ALL ' if self._is(0.6) else ''}{right}", shown

    def _near_a_border(self) -> Query:
        """A small query of a kind whose rule has a border close by: with the unit, or just without it."""
        one, other, third = (self.chance.choice(("visits", "stays", "notes")) for _ in range(3))
        some = self.chance.choice((", a.pid", ", a.pid AS city", "", ""))
        unit = self.chance.choice(("pid", "pid", "pid", "z"))
        owned, kind = "a.pid IS NOT NULL", self.chance.choice(("LEFT", "RIGHT", "FULL", "INNER"))
        body, number = self.chance.choice(
            (
                (f"FROM (SELECT a.n{some}, count(*) AS v FROM {one} a⟦| WHERE {owned}⟧ GROUP BY ALL) AS t", "v"),
                (f"FROM (SELECT DISTINCT a.n AS v{some} FROM {one} a⟦| WHERE {owned}⟧) AS t", "v"),
                (
                    f"FROM {one} a WHERE ⟦|{owned} AND ⟧a.pid NOT IN (SELECT b.{unit} FROM {other} b "
                    f"WHERE b.n > 0⟦| AND b.{unit} IS NOT NULL⟧)",
                    "a.n",
                ),
                (
                    f"FROM {one} a {kind} JOIN {other} b ON a.pid = b.pid AND a.z = b.pid JOIN {third} c "
                    f"ON c.pid = a.{self.chance.choice(('z', 'z', 'pid'))}⟦| WHERE {owned} AND b.pid IS NOT NULL⟧",
                    "c.n",
                ),
                (f"FROM {one} a JOIN {other} b ON a.{unit} = b.pid⟦| WHERE {owned}⟧", "b.n"),
            )
        )
        comparable = (self.comparable and kind == "INNER") or " b ON a.pid" not in body
        return Query("", body, (), "", number, self._is(0.3), comparable and self.data.exact)

    def query(self) -> Query:
        """A whole query: with counts, sums and keys of its own."""
        if self._is(0.4):
            return self._near_a_border()
        self._named.append([])
        ctes: list[str] = []
        for _ in range(self.chance.choice((0, 0, 0, 0, 1, 2))):
            text, inner = self.subquery(1)
            name = self.chance.choice(("w", "cities", "visits", "u")) + str(len(ctes) or "")
            ctes.append(f"{name} AS ({text})")
            self._named[-1].append((name, inner))
        listed = self._is(0.2)
        source = self._joined_by_unit() if listed else self._from(2)
        where = self._where(source, 2)
        keys: dict[str, str] = {}
        columns = [column for column in source.columns if column.name in LISTED] if listed else source.columns
        for _ in range(2 if listed else self.chance.choice((0, 0, 1, 1, 2))):
            odd = [column for column in columns if column.kind in _ODD]
            column = self.chance.choice(odd if odd and self._is(0.3) else columns)
            sql, kind = (column.sql, column.kind) if listed or self._is(0.8) else self._value(source.columns)
            keys.setdefault(sql, kind)
        self._named.pop()
        numbers = self._of_kind(source.columns, "INTEGER", "DOUBLE", "BIGINT")
        sets = self._sets(list(keys)) if keys and self._is(0.8 if listed else 0.2) else ""
        return Query(
            f"WITH {', '.join(ctes)} " if ctes else "",
            f"FROM {source.sql}{where}",
            tuple(keys),
            # of public keys sets add up where no unit is counted
            source.unit if "coalesce" not in source.unit and not (sets and self._is(0.5)) else "",
            self.chance.choice(numbers) if numbers else "",
            self._is(0.3),
            self.comparable,
            sets,
            not sets and not listed and bool({"VARCHAR", COLLATED} & set(keys.values())) and self._is(0.8),
        )

    def _joined_by_unit(self) -> Source:
        """Rows with public keys, and more than one for a unit, more often than not."""
        left = self._table(self.chance.choice(("visits", "stays")))
        if self._is(0.4):
            return left
        right = self._table(self.chance.choice(("visits", "notes", "people")))
        joined = Source(
            f"{left.sql} JOIN {right.sql} ON {left.unit} = {right.unit}", [*left.columns, *right.columns], True
        )
        joined.unit, joined.present, joined.linked = left.unit, left.present, left.linked or right.linked
        return joined

    def _sets(self, keys: list[str]) -> str:
        """What GROUP BY says of several sets of keys."""
        listed = ", ".join(keys)
        word = self.chance.choice(("ROLLUP", "CUBE", "GROUPING SETS"))
        if word != "GROUPING SETS":
            return f"{word} ({listed})"
        subsets = [", ".join(one) for size in range(len(keys) + 1) for one in itertools.combinations(keys, size)]
        chosen = self.chance.choices(subsets, k=self.chance.randrange(1, 5))
        return f"GROUPING SETS ({', '.join(f'({one})' for one in dict.fromkeys([listed, *chosen]))})"


@dataclass(frozen=True)
class Query:
    """A query in parts: its aggregates are written tightly bounded, or so that no bound matters.

    Attributes:
        sets: what GROUP BY says of several sets of the keys; empty where there is one.
        other: whether a row for the groups that are not shown is asked for.

    """

    ctes: str
    body: str
    keys: tuple[str, ...]
    unit: str
    number: str
    tight: bool
    comparable: bool
    sets: str = ""
    other: bool = False

    @property
    def private_text(self) -> str:
        rows, values = ("(0, 2)", "(-1, 2)") if self.tight else ("(0, 100000)", "(-4096, 4096)")
        aggregates = [f"count(*, contribution_bounds_per_group => {rows})"]
        if self.unit:
            aggregates.append(f"count(DISTINCT {self.unit})")
        if self.number:
            aggregates.append(f"sum({self.number}, contribution_bounds_per_group => {values})")
        return ours(self._with(aggregates, self.keys, self.sets))

    def plain_text(self, places: Sequence[int]) -> str:
        """What plain DuckDB is asked for one set of keys."""
        aggregates = ["count(*)"]
        if self.unit:
            aggregates.append(f"count(DISTINCT {self.unit})")
        if self.number:
            finite = f"CASE WHEN isfinite(CAST({self.number} AS DOUBLE)) THEN {self.number} END"
            aggregates.append(f"coalesce(sum({finite}), 0)")
        return plain(self._with(aggregates, [self.keys[place] for place in places]))

    def _with(self, aggregates: Sequence[str], keys: Sequence[str], sets: str = "") -> str:
        grouping = f" GROUP BY {sets or ', '.join(keys)}" if keys else ""
        return f"{self.ctes}SELECT {', '.join([*keys, *aggregates])} {self.body}{grouping}"


_MUTATIONS = (
    ("LEFT JOIN", "JOIN"),
    (" JOIN ", " LEFT JOIN "),
    ("RIGHT JOIN", "FULL JOIN"),
    ("SEMI", "ANTI"),
    ("> 1", "> 0"),
    ("NOT EXISTS", "EXISTS"),
    ("UNION ALL", "UNION"),
    ("DISTINCT ", ""),
    (" NOT IN ", " IN "),
    ("min(", "max("),
    (".n", ".k"),
    (".pid", ".z"),
    ("count(*) AS", "count(1) AS"),
    ("sum(", "avg("),
    ("city", "r"),
    ("stays", "visits"),
)


def mutated(query: Query, chance: random.Random) -> Query:
    """A query that says nearly the same."""
    found, replacement = chance.choice([one for one in _MUTATIONS if one[0] in query.body] or [("", "")])
    if not found:
        return query
    parts = query.body.split(found)
    place = chance.randrange(1, len(parts))
    body = found.join(parts[:place]) + replacement + found.join(parts[place:])
    # only the private answers of mutants are looked at
    return replace(query, body=body, comparable=False)
