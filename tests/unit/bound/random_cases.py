"""Random tables and queries of the supported surface, with units that have many rows and many groups on purpose."""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from dataclasses import replace
from decimal import Decimal

from hypothesis import strategies as st

from tests.unit.bound.query_descriptions import (
    Aggregate,
    Bounds,
    Case,
    Expression,
    Field,
    Query,
    Value,
    above,
    as_integer,
    column,
    either,
    is_null,
    is_text,
    lowered,
    only_where,
    or_else,
    ratio,
    remainder,
    size,
    square,
    truth,
)

VALUES: dict[str, tuple[Value, ...]] = {
    "INTEGER": (0, 1, 2, 3, 5, -1, 7, 100, 2**31 - 1, -(2**31)),
    "BIGINT": (0, 1, 2, -3, 12, 2**31, 2**63 - 1, -(2**63)),
    "HUGEINT": (0, 1, -2, 7, 2**127 - 1, -(2**127)),
    "DOUBLE": (0.0, -0.0, 0.5, 1.75, -2.25, 0.1, 5e-324, 1e16, 1e308, -1e308, math.nan, math.inf, -math.inf),
    "FLOAT": (0.0, 0.5, -3.25, 2.0**120, math.nan),
    "DECIMAL(10,2)": tuple(map(Decimal, ("0.00", "0.01", "1.25", "-7.50", "99999999.99"))),
    "DECIMAL(38,0)": tuple(map(Decimal, ("0", "3", "-1", "9" * 38))),
    "BOOLEAN": (True, False),
    "VARCHAR": ("a", "A", "b", "", "12", "-3", "abc", "99999999999", "it's"),
}
NUMERIC = ("INTEGER", "BIGINT", "HUGEINT", "DOUBLE", "FLOAT", "DECIMAL(10,2)", "DECIMAL(38,0)", "BOOLEAN")
KEY_TYPES = ("INTEGER", "BIGINT", "VARCHAR", "BOOLEAN", "DOUBLE")
BOUNDS: tuple[Bounds, ...] = (
    (0, 10),
    (-5, 5),
    (1, 4),
    (0, 500),
    (-100, -1),
    (0.5, 2.25),
    (0, 1_000_000),
    (-3, 8),
    (0.1, 0.7),
)
_DOMAIN: Bounds = (-3, 8)
NAMES = ("unit", "key_0", "x_1", "rows", "source", "f_1", "Mixed Case", 'quo"te', "v_1", "stat_1", "raw", "hash")


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """A table and a query; one of its units is to be deleted."""
    fields = _fields(draw)
    query = _query(draw, fields)
    heavy = draw(st.sampled_from((2, 1, 3, 0)), label="heavy units")
    light = draw(st.integers(0, 12), label="light rows")
    chance = random.Random(draw(st.integers(0, 2**32 - 1), label="seed"))
    rows = _rows(fields, heavy, light, chance)
    sizes = Counter(row[0] for row in rows if row[0] is not None)
    present = sorted(sizes, key=lambda unit: (-sizes[unit], str(unit)))
    removed = draw(st.sampled_from((*present[:1] * 5, *present))) if present else None
    return Case(fields, tuple(rows), query, removed)


@st.composite
def truth_cases(draw: st.DrawFn) -> Case:
    """A table, and a query with bool_or and bool_and alone."""
    case = draw(cases())
    conditions = _conditions(*case.fields[3:])
    truths = conditions.filter(lambda condition: condition.type == "BOOLEAN")
    one = st.builds(
        Aggregate, st.just("units"), condition=st.none() | conditions, counted_if=truths, decided_by=st.booleans()
    )
    return replace(case, query=replace(case.query, aggregates=_distinct(draw(st.lists(one, min_size=1, max_size=3)))))


def _fields(draw: st.DrawFn) -> tuple[Field, ...]:
    names = draw(st.permutations(NAMES))
    unit = Field("pid", draw(st.sampled_from(("INTEGER", "VARCHAR", "BIGINT"))), draw(st.booleans()))
    types = [
        draw(st.sampled_from(KEY_TYPES)),
        draw(st.sampled_from(KEY_TYPES)),
        draw(st.sampled_from(NUMERIC)),
        draw(st.sampled_from(("INTEGER", "BIGINT"))),
        "VARCHAR",
    ]
    return (unit, *(Field(name, kind, draw(st.booleans())) for name, kind in zip(names, types, strict=False)))


def _query(draw: st.DrawFn, fields: tuple[Field, ...]) -> Query:
    _, key, other_key, number, whole, text = fields
    condition = _conditions(number, whole, text)
    plain = ((column(key),), (column(key), column(other_key)))
    computed = (
        (remainder(whole, 5),),
        (lowered(text), column(key)),
        (as_integer(text),),
        (only_where(above(column(whole), 1), column(key)),),
    )
    keys = draw(st.sampled_from(((), *plain, *plain, *computed)))
    row_cap = draw(st.sampled_from((None, 1, 2, 3, 5)), label="row cap")
    divisor = number if number.type in ("INTEGER", "BIGINT", "HUGEINT", "DOUBLE") else whole
    rare = only_where(draw(st.sampled_from((above(column(whole), 1), is_null(column(text))))), column(number))
    values = (
        column(number),
        column(number),
        column(whole),
        as_integer(text),
        square(whole),
        ratio(whole, divisor),
        rare,
    )
    one = st.sampled_from(values).flatmap(lambda value: _aggregate(value, condition, row_cap))
    texts = st.sampled_from((column(text), lowered(text)))
    one |= st.builds(Aggregate, st.just("values"), texts, st.none() | condition, st.sampled_from(((0, 1), (0, 2))))
    if row_cap is not None:
        one |= _by_domain(whole, condition)
    aggregates = [draw(one) for _ in range(draw(st.sampled_from((1, 2, 3, 4))))]
    max_groups = draw(st.integers(1, 4)) if keys else 1
    option = draw(st.booleans()) if keys else False
    where = tuple(draw(st.lists(condition, max_size=draw(st.sampled_from((0, 1, 2))))))
    public = _public_keys(draw, keys) if keys in plain else None
    domains = ((whole.name, _DOMAIN),)
    return Query(keys, _distinct(aggregates), where, max_groups, row_cap, option, public, domains)


def _public_keys(draw: st.DrawFn, keys: tuple[Expression, ...]) -> tuple[tuple[Value, ...], ...] | None:
    """Public lists of every key column, as their product; None (private keys) more often than not."""
    if draw(st.integers(0, 2)):
        return None
    lists = [draw(st.lists(st.sampled_from(VALUES[key.type]), min_size=1, max_size=5, unique_by=str)) for key in keys]
    return tuple(itertools.product(*lists))


def _distinct(aggregates: list[Aggregate]) -> tuple[Aggregate, ...]:
    return tuple({aggregate.sql("pid"): aggregate for aggregate in aggregates}.values())


def _conditions(number: Field, whole: Field, text: Field) -> st.SearchStrategy[Expression]:
    simple = (
        above(column(number), 1),
        above(column(whole), 0),
        is_null(column(text)),
        is_text(text, "a"),
        above(as_integer(text), -5),
        is_null(as_integer(text)),
        above(square(whole), 3),
        truth(whole),
    )
    one = st.sampled_from(simple)
    return one | st.builds(either, st.sampled_from(simple[:-1]), st.sampled_from(simple[:-1]))


def _aggregate(
    value: Expression, condition: st.SearchStrategy[Expression], row_cap: int | None
) -> st.SearchStrategy[Aggregate]:
    filters = st.none() | condition
    spelling = st.booleans()
    bounds = st.sampled_from(BOUNDS)
    counts = st.sampled_from(((0, 3), (1, 2), (2, 5), (0, 1)))
    summed = value if value.type != "BOOLEAN" else replace(value, sql=f"({value.sql})")
    units = st.builds(Aggregate, st.just("units"), condition=filters, private_spelling=spelling)
    counted = st.builds(
        Aggregate, st.just("rows"), st.none() | st.just(value), filters, counts, private_spelling=spelling
    )
    listed = st.builds(
        Aggregate,
        st.just("values"),
        st.just(value),
        filters,
        st.sampled_from(((0, 1), (0, 2), (0, 3))),
        private_spelling=spelling,
    )
    by_group = st.builds(Aggregate, st.just("sum"), st.just(summed), filters, bounds, private_spelling=spelling)
    by_both = st.builds(Aggregate, st.just("sum"), st.just(summed), filters, bounds, bounds)
    counted_if = st.builds(Aggregate, st.just("rows"), st.none(), filters, counts, counted_if=condition)
    if row_cap is None:
        return st.one_of(units, counted, counted_if, listed, by_group, by_both)
    capped = st.builds(Aggregate, st.just("rows"), st.none() | st.just(value), filters, private_spelling=spelling)
    by_row = st.builds(Aggregate, st.just("sum"), st.just(summed), filters, st.none(), bounds)
    average = st.builds(
        Aggregate, st.just("avg"), st.just(summed), filters, st.none(), bounds, private_spelling=spelling
    )
    spread = st.builds(Aggregate, st.sampled_from(("var_pop", "stddev")), st.just(summed), filters, st.none(), bounds)
    listed |= st.builds(Aggregate, st.just("values"), st.just(value), filters, private_spelling=spelling)
    added = st.builds(Aggregate, st.just("value_sum"), st.just(summed), filters, st.none(), bounds)
    return st.one_of(
        units, counted, counted_if, listed, added, by_group, by_both, capped, capped, by_row, by_row, average, spread
    )


def _by_domain(whole: Field, condition: st.SearchStrategy[Expression]) -> st.SearchStrategy[Aggregate]:
    """Sums and averages whose bounds follow from the declared domain, which the rows break."""
    low, high = _DOMAIN
    values = (
        (column(whole), _DOMAIN),
        (or_else(column(whole), 20), (low, 20)),
        (size(whole), (0, high)),
        (square(whole), (0, high * high)),
        (or_else(square(whole), -1), (-1, high * high)),
        (only_where(above(column(whole), 1), or_else(size(whole), 3)), (0, high)),
    )
    return st.builds(
        lambda kind, value, where: Aggregate(kind, value[0], where, per_row=value[1], inferred=True),
        st.sampled_from(("sum", "avg", "var_pop")),
        st.sampled_from(values),
        st.none() | condition,
    )


def _rows(fields: tuple[Field, ...], heavy: int, light: int, chance: random.Random) -> list[tuple[Value, ...]]:
    ids: list[Value] = [1, 2, 3, 4, 5] if fields[0].type != "VARCHAR" else ["p", "P", "q", "it's", ""]
    if not fields[0].required:
        ids.append(None)
    rows = [_row(fields, chance.choice(ids), chance) for _ in range(light)]
    for unit in chance.sample(ids, min(heavy, len(ids))):
        rows += [_row(fields, unit, chance) for _ in range(chance.randrange(8, 20))]
        # a block of equal rows: one group with more rows than any cap
        rows += [_row(fields, unit, chance)] * chance.randrange(6, 14)
    chance.shuffle(rows)
    return rows


def _row(fields: tuple[Field, ...], unit: Value, chance: random.Random) -> tuple[Value, ...]:
    values: list[Value] = [unit]
    for field in fields[1:]:
        missing = not field.required and chance.random() < 0.15
        values.append(None if missing else chance.choice(VALUES[field.type]))
    return tuple(values)
