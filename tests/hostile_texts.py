"""Random texts that somebody writes who wants to see by a clock, or by an error, whether one person is in the data.

A text is a source (joins of several kinds, subqueries, groups of each unit, EXISTS and IN), a condition (about one
person, or one that fails or costs much on some rows), keys, aggregates and options. Most of them are answered; what is
refused is refused for its text.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

NUMBERS, TEXTS, TIMES = "numbers", "texts", "times"

COLUMNS: Mapping[str, Mapping[str, str]] = {
    "visits": {
        "name": TEXTS, "note": TEXTS, "code": TEXTS, "ward": NUMBERS, "n": NUMBERS, "small": NUMBERS, "big": NUMBERS,
        "cost": NUMBERS, "fee": NUMBERS, "day": TIMES, "seen": TIMES,
    },
    "stays": {"ward": NUMBERS, "code": TEXTS, "days": NUMBERS, "began": TIMES, "note": TEXTS},
    "items": {"code": TEXTS, "amount": NUMBERS, "label": TEXTS},
    "wards": {"ward": NUMBERS, "title": TEXTS, "region": TEXTS},
    "codes": {"code": TEXTS, "kind": TEXTS, "weight": NUMBERS},
}  # fmt: skip
"""Columns that expressions are made of, by table; the unit, the link and the flag stand in templates."""

PERSON = "Ms Canary"


@dataclass(frozen=True)
class Text:
    """One text with its options, and what it is made of."""

    sql: str
    options: Mapping[str, object]
    kinds: tuple[str, ...]


@dataclass(frozen=True)
class _Source:
    """What stands in FROM, and the columns by kind that the rest of the text may use."""

    sql: str
    columns: Mapping[str, str]
    kind: str

    @property
    def unit(self) -> str:
        """The column that tells units apart."""
        first = {
            "self_join": "a0",
            "unit_join": "v",
            "link": "v",
            "groups": "g",
            "subqueries": "x",
            "exists": "v",
            "union": "u",
        }
        return f"{first.get(self.kind, 't')}.pid"

    def of(self, kind: str) -> list[str]:
        return [name for name, its in self.columns.items() if its == kind]


class Writer:
    """Writes texts; the same number writes the same text."""

    def __init__(self, number: int, *, without: Sequence[str] = ()) -> None:
        self._chance = random.Random(number)
        # without a draw, so that the other texts stay what they were
        self._asks_keys_alone = number % 4 == 0
        self._without = frozenset(without)

    def text(self) -> Text:
        """One text."""
        source = self._one("source")
        condition, kind = self._condition(source)
        options, frame_kind = self._options()
        return self._outer(source, condition, (source.kind, kind), options, frame_kind)

    def _pick(self, *choices: str) -> str:
        return self._chance.choice(choices)

    def _one(self, _: str) -> _Source:
        made = {
            "table": self._table, "self_join": self._self_join, "unit_join": self._unit_join, "public": self._public,
            "link": self._link, "groups": self._groups, "subqueries": self._subqueries, "exists": self._exists,
            "union": self._union,
        }  # fmt: skip
        kinds = [kind for kind in made if kind not in self._without]
        return made[self._chance.choice(kinds)]()

    # sources

    @staticmethod
    def _named(table: str, alias: str) -> dict[str, str]:
        return {f"{alias}.{name}": kind for name, kind in COLUMNS[table].items()}

    def _table(self) -> _Source:
        table = self._pick("visits", "visits", "stays", "items")
        return _Source(f"{table} t", self._named(table, "t"), "table")

    def _self_join(self) -> _Source:
        copies = self._chance.choice((2, 2, 3, 4, 6))
        table = self._pick("visits", "stays")
        more = self._pick("", "", " AND a{i}.ward = a0.ward", " AND a{i}.code = a0.code")
        joined = "".join(f" JOIN {table} a{i} ON a{i}.pid = a0.pid{more.format(i=i)}" for i in range(1, copies))
        columns = self._named(table, "a0") | self._named(table, f"a{copies - 1}")
        return _Source(f"{table} a0{joined}", columns, "self_join")

    def _unit_join(self) -> _Source:
        kind = self._pick("JOIN", "LEFT JOIN", "FULL JOIN", "RIGHT JOIN", "SEMI JOIN", "ANTI JOIN")
        more = self._pick("", " AND v.ward = s.ward", " AND v.code = s.code", " AND v.day = s.began")
        columns = self._named("visits", "v")
        if kind not in ("SEMI JOIN", "ANTI JOIN"):
            columns |= self._named("stays", "s")
        return _Source(f"visits v {kind} stays s ON v.pid = s.pid{more}", columns, "unit_join")

    def _public(self) -> _Source:
        table = self._pick("visits", "stays")
        kind = self._pick("JOIN", "LEFT JOIN", "SEMI JOIN", "ANTI JOIN")
        columns, left = self._named(table, "t"), f"{table} t"
        if self._chance.random() < 0.4:
            expression = self._pick("code", "lower(code)", "substring(code, 1, 2)", "concat(code, '')")
            left = f"(SELECT *, {expression} AS made FROM {table}) t"
            joined, added = f"{kind} codes c ON c.code = t.made", self._named("codes", "c")
        else:
            joined, added = f"{kind} wards c ON c.ward = t.ward", self._named("wards", "c")
        if kind not in ("SEMI JOIN", "ANTI JOIN"):
            columns |= added
            if self._chance.random() < 0.3 and "c.region" in columns:
                joined += " JOIN regions r ON r.region = c.region"
        return _Source(f"{left} {joined}", columns, "public")

    def _link(self) -> _Source:
        kind = self._pick("JOIN", "LEFT JOIN")
        columns = self._named("items", "i") | self._named("visits", "v")
        text = f"items i {kind} visits v ON i.visit = v.id"
        if self._chance.random() < 0.3:
            text += " JOIN codes c ON c.code = i.code"
            columns |= self._named("codes", "c")
        return _Source(text, columns, "link")

    def _groups(self) -> _Source:
        table = self._pick("visits", "stays")
        inner = _Source("", self._named(table, "t"), "")
        number, text, time = (self._expression(inner, kind) for kind in (NUMBERS, TEXTS, TIMES))
        also = self._pick("", "", ", t.ward", ", t.code")
        having = self._pick("", "", f" HAVING count(*) > {self._pick('2', '900')}", f" HAVING max({number}) > 3")
        condition = self._pick("", f" WHERE {self._predicate(inner)}")
        text = (
            f"(SELECT t.pid{also}, count(*) AS a, max({text}) AS b, {self._pick('sum', 'avg', 'min')}({number}) AS c, "
            f"max({time}) AS d, count(DISTINCT {text}) AS e FROM {table} t{condition} GROUP BY t.pid{also}{having}) g"
        )
        return _Source(text, {"g.a": NUMBERS, "g.b": TEXTS, "g.c": NUMBERS, "g.d": TIMES, "g.e": NUMBERS}, "groups")

    def _subqueries(self) -> _Source:
        def part(name: str) -> str:
            table = self._pick("visits", "stays")
            inner = _Source("", self._named(table, "t"), "")
            shown = f"t.pid, {self._expression(inner, NUMBERS)} AS a, {self._expression(inner, TEXTS)} AS b"
            distinct = self._pick("", "", "DISTINCT ")
            return f"(SELECT {distinct}{shown} FROM {table} t WHERE {self._predicate(inner)}) {name}"

        joined = self._pick(" AND x.b = y.b", " AND x.a = y.a")
        if "self_join" not in self._without and self._chance.random() < 0.3:
            joined = ""
        kind = self._pick("JOIN", "LEFT JOIN", "SEMI JOIN")
        columns = {"x.a": NUMBERS, "x.b": TEXTS}
        return _Source(f"{part('x')} {kind} {part('y')} ON x.pid = y.pid{joined}", columns, "subqueries")

    def _exists(self) -> _Source:
        return _Source("visits v", self._named("visits", "v"), "exists")

    def _union(self) -> _Source:
        kind = self._pick("UNION ALL", "UNION")
        first, second = (
            f"SELECT pid, {name} AS a, code AS b, {time} AS d FROM {table}"
            for table, name, time in (("visits", "n", "day"), ("stays", "days", "began"))
        )
        return _Source(f"({first} {kind} {second}) u", {"u.a": NUMBERS, "u.b": TEXTS, "u.d": TIMES}, "union")

    # expressions and conditions

    def _expression(self, source: _Source, kind: str, depth: int = 0) -> str:
        names = source.of(kind) or [{NUMBERS: "7", TEXTS: "'seven'", TIMES: "DATE '2026-01-07'"}[kind]]
        one, two = self._chance.choice(names), self._chance.choice(names)
        if depth < 3 and self._chance.random() < 0.4:
            one = self._expression(source, kind, depth + 1)
        if self._chance.random() < 0.35:
            return one
        text = self._chance.choice(source.of(TEXTS) or ["'12'"])
        if kind == TEXTS:
            return self._pick(
                f"lower({one})", f"upper({one})", f"trim({one})", f"concat({one}, {two})", f"{one} || {two}",
                f"substring({one}, 2, 40)", f"left({one}, 3)", f"right({one}, 2)", f"reverse({one})",
                f"split_part({one}, 'a', 2)", f"split_part({one}, {two}, 1)", f"coalesce({one}, {two})",
                f"CAST({self._chance.choice(source.of(NUMBERS) or ['7'])} AS VARCHAR)", f"nullif({one}, {two})",
                f"CASE WHEN {one} < {two} THEN {one} ELSE 'other' END",
            )  # fmt: skip
        if kind == TIMES:
            return self._pick(
                f"{one} + INTERVAL 1 MONTH", f"date_trunc('month', {one})", f"last_day({one})",
                f"greatest({one}, {two})", f"CAST({text} AS DATE)", f"CAST({one} AS TIMESTAMP)",
            )  # fmt: skip
        times = source.of(TIMES)
        more = [f"year({self._chance.choice(times)})", f"date_diff('day', {times[0]}, {times[-1]})"] if times else []
        return self._pick(
            f"{one} + {two}", f"{one} * {two}", f"{one} - {two}", f"{one} / {two}", f"{one} // {two}",
            f"{one} % {two}", f"abs({one})", f"-{one}", f"round({one}, 1)", f"sqrt({one})", f"ln({one})",
            f"power({one}, 3)", f"exp({one})", f"CAST({text} AS INTEGER)", f"CAST({text} AS DOUBLE)", f"length({text})",
            f"strpos({text}, 'zz')", f"CAST({one} AS TINYINT)", f"CAST({one} AS BIGINT)", f"coalesce({one}, {two})",
            f"CASE WHEN {one} = 0 THEN 1 / {two} ELSE {one} END", f"greatest({one}, {two})", *more,
        )  # fmt: skip

    def _predicate(self, source: _Source) -> str:
        """One that holds of one person, of some rows, or fails on some."""
        texts, numbers, times = source.of(TEXTS), source.of(NUMBERS), source.of(TIMES)
        found = []
        if texts:
            text = self._chance.choice(texts)
            found += [
                f"{text} = '{PERSON}'", f"{text} LIKE '%ana%'", f"contains({text}, 'zz')", f"length({text}) > 100",
                f"{self._expression(source, TEXTS)} <> 'x'", f"{text} IN ('{PERSON}', 'c7', 'c8')",
                f"{self._expression(source, TEXTS)} < {self._expression(source, TEXTS)}",
                f"CAST({text} AS INTEGER) > 3", f"starts_with({text}, 'Ms')", f"{text} ILIKE 'MS%y%'",
            ]  # fmt: skip
        if numbers:
            number = self._chance.choice(numbers)
            found += [
                f"{number} = 77", f"{number} > 10", f"{number} BETWEEN 3 AND 40", f"{number} IS NULL",
                f"{self._expression(source, NUMBERS)} > {self._expression(source, NUMBERS)}",
                f"1 / ({number} - 77) > 0", f"{number} IN ({', '.join(map(str, range(60)))})",
            ]  # fmt: skip
        if times:
            time = self._chance.choice(times)
            found += [f"{time} > DATE '2030-01-01'", f"{self._expression(source, TIMES)} < {time}"]
        one = self._chance.choice(found)
        drawn = self._chance.random()
        if drawn < 0.15:
            return f"({one} OR {self._chance.choice(found)})"
        if drawn < 0.25:
            return f"NOT ({one})"
        return one

    def _inside(self) -> str:
        """EXISTS and IN, with further comparisons."""
        inner = self._named("stays", "s")
        of_unit = f"s.pid = v.pid AND {self._predicate(_Source('', inner, ''))}"
        of_both = self._pick("s.ward < v.ward", "s.began > v.day", "s.code <> v.code", "length(s.note) > v.n")
        with_more = f"s.pid = v.pid AND {of_both}"
        return self._pick(
            f"EXISTS (FROM stays s WHERE {of_unit})",
            f"NOT EXISTS (FROM stays s WHERE {of_unit})",
            f"EXISTS (FROM stays s WHERE {with_more})",
            f"NOT EXISTS (FROM stays s WHERE {with_more})",
            f"EXISTS (FROM visits w WHERE w.pid = v.pid AND w.n {self._pick('<', '>', '<>')} v.n)",
            "v.pid IN (SELECT s.pid FROM stays s WHERE s.days > 3)",
            f"v.pid NOT IN (SELECT s.pid FROM stays s WHERE s.note = '{PERSON}')",
            "v.ward IN (SELECT s.ward FROM stays s WHERE s.pid = v.pid)",
            f"v.ward NOT IN (SELECT s.ward FROM stays s WHERE s.pid = v.pid AND {of_both})",
            "EXISTS (FROM codes c WHERE c.code = v.code AND c.weight > v.n)",
            "v.code IN (SELECT c.code FROM codes c WHERE c.kind < v.name)",
            "NOT EXISTS (FROM wards c WHERE c.ward = v.ward AND c.title > v.note)",
            "v.pid IN (SELECT pid FROM visits GROUP BY pid HAVING count(*) > 500)",
        )

    def _condition(self, source: _Source) -> tuple[str, str]:
        if source.kind == "exists":
            first = self._inside()
            return (f"{first} AND {self._predicate(source)}" if self._chance.random() < 0.5 else first), "inside"
        drawn = self._chance.random()
        if drawn < 0.25:
            return "", "all"
        if drawn < 0.7:
            return self._predicate(source), "one"
        return f"{self._predicate(source)} AND {self._predicate(source)}", "two"

    # the statement around

    def _options(self) -> tuple[dict[str, object], str]:
        kind = self._pick("plain", "plain", "plain", "auto", "top_k", "other", "l2", "sketch", "bounds")
        options: dict[str, object] = {"rho": self._chance.choice((1e-3, 0.02, 1.0))}
        match kind:
            case "auto":
                options["max_groups_contributed"] = "AUTO"
            case "top_k":
                options["top_k"] = self._chance.choice((3, 50))
            case "other":
                options["other_group"] = "other"
            case "l2":
                options["bounding"] = "L2"
            case "sketch":
                options |= {"mechanism": "MISRA_GRIES", "sketch_size": self._chance.choice((4, 200))}
        return options, kind

    def _aggregate(self, source: _Source, frame_kind: str) -> str:
        number, text = self._expression(source, NUMBERS), self._expression(source, TEXTS)
        if frame_kind == "bounds":
            return self._pick(
                f"sum({number}, contribution_bounds_per_group => AUTO)",
                f"avg({number}, contribution_bounds_per_row => AUTO)",
            )
        if frame_kind == "sketch":
            return f"count(DISTINCT {source.unit})"
        bounds = "contribution_bounds_per_row => (0, 100)"
        simple = (
            "count(*)", f"count({text})", f"sum({number}, contribution_bounds_per_group => (-5, 500))",
            f"avg({number}, {bounds})", f"count(*) FILTER (WHERE {self._predicate(source)})", f"count_if({number} > 3)",
            f"count(DISTINCT {text}, contribution_bounds_per_group => (0, {self._pick('1', '4')}))",
        )  # fmt: skip
        wide = (f"median({number}, {bounds})", f"quantile_cont({number}, 0.9, {bounds})", f"stddev({number}, {bounds})")
        return self._pick(*simple, *(wide if frame_kind == "plain" else ()))

    def _keys(self, source: _Source, frame_kind: str) -> list[str]:
        if self._chance.random() < 0.12 and frame_kind in ("plain", "bounds", "l2"):
            return []
        if self._chance.random() < 0.15:
            # wide ones: many columns, and long texts
            count = self._chance.randint(4, 9)
            return [self._expression(source, self._pick(*sorted(set(source.columns.values())))) for _ in range(count)]
        kinds = [kind for kind in (NUMBERS, TEXTS, TIMES) if source.of(kind)]
        return [self._expression(source, self._pick(*kinds)) for _ in range(self._chance.choice((1, 1, 2)))]

    def _outer(
        self, source: _Source, condition: str, kinds: tuple[str, ...], options: dict[str, object], frame_kind: str
    ) -> Text:
        keys = self._keys(source, frame_kind)
        aggregates = [self._aggregate(source, frame_kind) for _ in range(self._chance.choice((1, 1, 2)))]
        shown = [
            *(f"{key} AS k{i}" for i, key in enumerate(keys)),
            *(f"{one} AS x{i}" for i, one in enumerate(aggregates)),
        ]
        grouped = ", ".join(f"k{i}" for i in range(len(keys)))
        sets = ""
        if len(keys) > 1 and frame_kind == "plain" and self._chance.random() < 0.4:
            sets = self._pick("ROLLUP", "CUBE") if len(keys) < 4 else "ROLLUP"
            grouped = f"{sets} ({grouped})"
        sql = f"SELECT {', '.join(shown)} FROM {source.sql}"
        sql += f" WHERE {condition}" if condition else ""
        sql += f" GROUP BY {grouped}" if keys else ""
        sql += self._pick("", "", " ORDER BY x0 DESC LIMIT 5", " HAVING x0 > 3" if keys else "")
        if self._asks_keys_alone and keys and not sets and frame_kind == "plain":
            frame_kind, where = "keys", f" WHERE {condition}" if condition else ""
            sql = f"SELECT DISTINCT {', '.join(shown[: len(keys)])} FROM {source.sql}{where} LIMIT 5"
        return Text(sql, options, (*kinds, frame_kind, *([sets] if sets else []), *(["wide"] if len(keys) > 3 else [])))
