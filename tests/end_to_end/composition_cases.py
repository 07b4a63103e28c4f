"""Random texts of one to four private parts and public tables, over the tables of ``retail_schema``.

A *relation* is SQL of a query with the columns of its keys, and numbers ``v`` and (with width 2) ``w``. The smallest
relation is a part: one private SELECT over one protected table. Larger ones add up or join the rows of smaller ones.
A text puts relations into one statement. All texts run in plain DuckDB, and their rows have no order.

Each group has many customers, and set operations compare keys and whole numbers alone. So an answer without noise has
the rows of DuckDB, up to the last digits of averages and ratios.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

Keys = tuple[str, ...]

TABLES = ("store_sales", "web_sales", "catalog_sales", "store_returns")
TABLES_OF_KEY = {
    "store": ("store_sales", "store_returns"),
    "warehouse": ("web_sales", "catalog_sales"),
    "hour": ("store_sales", "web_sales"),
}
"""Tables that have a key, if not all have it."""
DIMENSIONS = {"item": ("brand", "price"), "store": ("state", "space"), "warehouse": ("name", "space")}
"""Public tables by the key that leads to their ``id``, with a text and a number that each has."""
KEYS_OF_DIMENSION = {"item": ("category", "brand"), "date_dim": ("year", "quarter", "month", "weekend")}
JOINS = {"item": "JOIN item i ON t.item = i.id", "date_dim": "JOIN date_dim d ON t.day = d.day"}
NEIGHBOURS = ("item", "quarter", "month", "store", "warehouse", "hour")
"""Keys that are whole numbers."""
KEYS: tuple[Keys, ...] = (
    *((key,) for key in (*NEIGHBOURS, "category", "brand", "year", "weekend")),
    *(("category", "year"), ("brand", "quarter"), ("year", "quarter"), ("weekend", "brand"), ("category", "weekend")),
)
WHOLE = (
    "count(*)",
    "count(DISTINCT t.customer)",
    "sum(t.amount)",
    "sum(t.quantity)",
    "sum(t.profit)",
    "sum(CASE WHEN t.quantity > 3 THEN t.amount ELSE 0 END)",
    "sum(CASE WHEN t.item IN (SELECT id FROM item WHERE price > 9) THEN t.quantity ELSE 0 END)",
)
"""Aggregates that are whole numbers."""
AGGREGATES = (*WHOLE, "avg(t.amount)", "avg(t.profit)")
"""Aggregates of a part that is no operand of a larger relation. Differences of averages would not be exact."""
CONDITIONS = (
    "t.quantity > 2",
    "t.amount < 70",
    "t.day >= DATE '2023-07-01'",
    "t.item IN (SELECT id FROM item WHERE brand <> 'Alto')",
    "t.item NOT IN (SELECT item FROM promotion WHERE medium = 'tv')",
    "t.day BETWEEN (SELECT min(starts) FROM promotion) AND (SELECT max(ends) FROM promotion)",
    "t.amount > (SELECT min(price) + 10 FROM item)",
    "(t.item IN (SELECT id FROM item WHERE category = 'Books') OR t.quantity IN (1, 2, 3))",
    "(t.quantity = (SELECT max(id) FROM warehouse) OR t.item NOT IN (SELECT item FROM promotion))",
    "EXISTS (SELECT 1 FROM item x WHERE x.id = t.item AND x.category <> 'Toys')",
    "NOT EXISTS (SELECT 1 FROM promotion p WHERE p.item = t.item AND p.medium = 'mail')",
)
"""Conditions of public tables and constants. Each keeps at least two fifths of the rows."""


def _expression(key: str) -> str:
    """Return a key as a column of the rows of a part."""
    aliases = {"item": "i", "date_dim": "d"}
    return next((f"{aliases[table]}.{key}" for table, keys in KEYS_OF_DIMENSION.items() if key in keys), f"t.{key}")


def random_part(rng: Random, keys: Keys, columns: tuple[str, ...]) -> str:
    """Return one private SELECT of keys, and of aggregates as ``v`` and ``w``."""
    tables = [table for table in TABLES if all(table in TABLES_OF_KEY.get(key, TABLES) for key in keys)]
    joins = [JOINS[table] for table, named in KEYS_OF_DIMENSION.items() if set(named) & set(keys)]
    named = [f"{_expression(key)} AS {key}" for key in keys]
    shown = [f"{column} AS {alias}" for column, alias in zip(columns, "vw", strict=False)]
    where = f" WHERE {rng.choice(CONDITIONS)}" if rng.random() < 0.6 else ""
    grouped = f" GROUP BY {', '.join(map(_expression, keys))}" if keys else ""
    return f"SELECT {', '.join(named + shown)} FROM {' '.join([f'{rng.choice(tables)} t', *joins])}{where}{grouped}"


def _added(rng: Random, keys: Keys, width: int, operands: list[str]) -> str:
    """Return the sums, by key, of the rows of all operands."""
    sums = ", ".join((*keys, "sum(v) AS v", f"{rng.choice(('max', 'min', 'sum'))}(w) AS w")[: len(keys) + width])
    grouped = f" GROUP BY {', '.join(keys)}" if keys else ""
    return f"SELECT {sums} FROM ({' UNION ALL '.join(operands)}) AS added{grouped}"


def _joined(rng: Random, keys: Keys, width: int, operands: list[str]) -> str:
    """Return the rows of two operands beside each other, by their keys."""
    first, second = operands
    number = rng.choice(
        ("l.v / nullif(r.v, 0)", "l.v - r.v", "coalesce(l.v, 0) + coalesce(r.v, 0)", "l.v * 100.0 / r.v")
    )
    columns = ", ".join((*keys, f"{number} AS v", "r.v AS w")[: len(keys) + width])
    kind = rng.choice(("JOIN", "LEFT JOIN", "FULL JOIN")) if keys else "CROSS JOIN"
    using = f" USING ({', '.join(keys)})" if keys else ""
    return f"SELECT {columns} FROM ({first}) AS l {kind} ({second}) AS r{using}"


def random_relation(rng: Random, keys: Keys, width: int, parts: int, aggregates: tuple[str, ...] = AGGREGATES) -> str:
    """Return a relation of a number of parts.

    Args:
        rng: source of all choices.
        keys: names of its key columns.
        width: 1 for the number ``v`` alone, 2 for ``v`` and ``w``.
        parts: private parts that it has.
        aggregates: aggregates of a relation of one part.

    Returns:
        SQL of one query.
    """
    if parts == 1:
        return random_part(rng, keys, tuple(rng.sample(aggregates, width)))
    left = rng.randint(1, parts - 1)
    operands = [random_relation(rng, keys, width, share, WHOLE) for share in (left, parts - left)]
    return rng.choice((_added, _joined))(rng, keys, width, operands)


def _relation(rng: Random) -> str:
    keys = rng.choice(((), *KEYS))
    relation = random_relation(rng, keys, rng.randint(1, 2), rng.randint(1, 4))
    return f"SELECT * FROM ({relation}) AS answer WHERE v IS NOT NULL" if rng.random() < 0.3 else relation


def _labelled(rng: Random) -> str:
    """Return a UNION ALL of parts with labels or without."""
    keys, width = rng.choice(KEYS), rng.randint(1, 2)
    operands = [random_relation(rng, keys, width, 1) for _ in range(rng.randint(2, 4))]
    if rng.random() < 0.3:
        return " UNION ALL ".join(operands)
    return " UNION ALL ".join(f"SELECT 'part {n}' AS part, * FROM ({sql}) AS p{n}" for n, sql in enumerate(operands))


def _set_operation(rng: Random) -> str:
    """Return the union, intersection or difference of keys, with one whole number or alone."""
    keys, columns = rng.choice(KEYS), rng.choice(((), ("count(*)",)))
    operands = [f"({random_part(rng, keys, columns)})" for _ in range(rng.randint(2, 3))]
    words = rng.choice(("UNION", "INTERSECT", "EXCEPT"))
    return f" {words} ".join(operands)


def _beside_dimension(rng: Random) -> str:
    """Return a public table with the numbers of its keys, zeros included or not."""
    table, (text, number) = rng.choice(list(DIMENSIONS.items()))
    relation = random_relation(rng, (table,), 2, rng.randint(1, 3))
    kind = rng.choice(("JOIN", "LEFT JOIN"))
    joined = f"FROM {table} x {kind} ({relation}) AS answer ON answer.{table} = x.id"
    if rng.random() < 0.4:
        return f"SELECT x.{text}, count(*) AS n, sum(answer.v) AS v, max(answer.w) AS w {joined} GROUP BY x.{text}"
    return f"SELECT x.id, x.{text}, coalesce(answer.v, 0) AS v, answer.w / x.{number} AS w {joined}"


def _scalars(rng: Random) -> str:
    """Return one row of scalars: beside each other, as a ratio, or by CASE."""
    one, two, three = (f"({random_relation(rng, (), 1, 1)})" for _ in range(3))
    form = rng.choice(
        (
            "SELECT {one} AS a, {two} AS b, {three} AS c",
            "SELECT {one} * 100.0 / {two} AS percent",
            "SELECT CASE WHEN {one} > 700 THEN {two} ELSE {three} END AS chosen, {one} AS n",
            "SELECT name, {one} / space AS v FROM warehouse WHERE space > 1000",
            "SELECT nr, nr * {one} + {two} AS v FROM (SELECT unnest(generate_series(1, 3)) AS nr) AS step",
        )
    )
    return form.format(one=one, two=two, three=three)


def _read_twice(rng: Random) -> str:
    """Return a CTE that is read twice: shares of a total, rows above an average, or a group beside the next one."""
    neighbours = rng.random() < 0.5
    keys = (rng.choice(NEIGHBOURS),) if neighbours else rng.choice(KEYS)
    sql = f"WITH answer AS ({random_relation(rng, keys, 2, rng.randint(1, 3))}) "
    if neighbours:
        key = keys[0]
        kind = rng.choice(("JOIN", "LEFT JOIN"))
        return f"{sql}SELECT a.{key}, a.v, b.v - a.v AS growth FROM answer a {kind} answer b ON b.{key} = a.{key} + 1"
    if rng.random() < 0.5:
        return f"{sql}SELECT {', '.join(keys)}, v * 100.0 / (SELECT sum(v) FROM answer) AS share FROM answer"
    return f"{sql}SELECT {', '.join(keys)}, v, w FROM answer WHERE v > (SELECT 0.913 * avg(v) FROM answer)"


def _share_of_another(rng: Random) -> str:
    """Return a part beside a scalar part: in its select list, or in HAVING."""
    keys = rng.choice(KEYS)
    part, total = random_part(rng, keys, ("count(*)",)), random_part(rng, (), (rng.choice(WHOLE),))
    if rng.random() < 0.5:
        return part.replace("count(*) AS v", f"count(*) AS v, count(*) * 100.0 / ({total}) AS share", 1)
    return f"{part} HAVING count(*) > (SELECT 0.037 * count(*) FROM store_returns)"


FORMS: tuple[Callable[[Random], str], ...] = (
    _relation,
    _labelled,
    _set_operation,
    _beside_dimension,
    _scalars,
    _read_twice,
    _share_of_another,
)
"""Forms of a text."""


def random_composition(rng: Random) -> str:
    """Return a random text of one to four private parts.

    Args:
        rng: source of all choices: equal seeds give equal texts.

    Returns:
        SQL of one statement, which runs in plain DuckDB.
    """
    return rng.choice(FORMS)(rng)
