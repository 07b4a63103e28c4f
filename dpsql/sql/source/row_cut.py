"""Rows of one unit that meet in a join: so few of each side that no more than ``MOST_JOINED`` come of them.

*Guarantee*: which rows of a unit are left is a function of the multiset of its own rows and of the frame's salt; rows
without a unit are left out. Of sides that are cut for the same ``degree`` k, with the same keys, at most k are
multiplied with each other, and make at most ``MOST_JOINED`` rows of a unit.
*Proof*: rows are ordered within their unit, by a hash and then by what tells them apart, so that rows which change
places are the same. With n_i(x) rows of side i that have the key x, sum over x of n_i(x)**k <= MOST_JOINED; rows that
are joined agree on the key, so by Hölder's inequality sum over x of n_1(x) … n_k(x) <= MOST_JOINED. ∎

Of a person with many rows a join keeps some; so that those are among them which the query is about, rows of one side
that WHERE would drop are dropped before (``early_filters``). Nothing else changes: the rows that are left are those of
that one side which pass.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from sqlglot import exp

from dpsql.model.environment import Column
from dpsql.operations.dialect import quote
from dpsql.operations.row_sql import SALT, one_spelling
from dpsql.sql.source.joins import FULL, INNER, RIGHT, Joins
from dpsql.sql.source.relation import Relation, fresh
from dpsql.sql.source.row_bounds import MOST_JOINED
from dpsql.sql.source.seen_columns import columns_named, own_columns

_ORDERED = re.compile(r"U?(TINYINT|SMALLINT|INTEGER|BIGINT|HUGEINT)|BOOLEAN|DECIMAL\(\d+,\d+\)|DATE|TIMESTAMP.*|UUID")
"""Types of which values that are equal are the same."""


def most_rows(degree: int) -> int:
    """Most rows of a unit, of each of so many sides, of which no more than ``MOST_JOINED`` are made.

    >>> [most_rows(degree) for degree in (2, 3, 4, 5, 6, 7, 9, 10)]
    [31, 10, 5, 3, 3, 2, 2, 1]
    """
    most = 1
    while (most + 1) ** degree <= MOST_JOINED:
        most += 1
    return most


def cut(relation: Relation, degree: int, keys: Sequence[str] = ()) -> Relation:
    """The rows that are left of every unit where so many sides are multiplied that agree on these columns."""
    owner = relation.owner
    if not owner:
        raise AssertionError("rows of nobody are not cut")
    most, schema = most_rows(degree), relation.schema
    named = {column.name: column for column in schema.columns}
    unit = one_spelling(quote(owner.unit), named[owner.unit].type)
    listed = ", ".join(quote(column.name) for column in schema.columns)
    place, order = quote(fresh("place", named)), _order(relation)
    agreed = ", ".join([unit, *(one_spelling(quote(key), named[key].type) for key in keys)])
    text = _first_rows(relation, agreed, place, most)
    if keys:
        made = quote(fresh("made", named))
        total = f"sum({_power(place, degree)} - {_power(f'({place} - 1)', degree)})"
        window = f"PARTITION BY {unit} ORDER BY {place} ASC, {order} ROWS UNBOUNDED PRECEDING"
        text = (
            f"SELECT * FROM (SELECT *, {total} OVER ({window}) AS {made} FROM ({text})) WHERE {made} <= {MOST_JOINED}"
        )
    by = f" BY {', '.join(map(quote, keys))}" if keys else ""
    return replace(
        relation,
        schema=replace(schema, relation=f"(SELECT {listed} FROM ({text}))" if schema.relation else ""),
        identity=f"(KEEP {most} ROWS OF {degree}{by} FROM {relation.identity})",
        is_table=False,
        cuts=tuple(dict.fromkeys((*relation.cuts, _sentence(relation, most, keys)))),
    )


def single_row(relation: Relation) -> Relation:
    """Return one row of every unit, which a secret hash chooses.

    The unit is unique in these rows, so they multiply no others.
    """
    owner = relation.owner
    if not owner:
        raise AssertionError("rows of nobody are not cut")
    schema = relation.schema
    named = {column.name: column for column in schema.columns}
    unit = one_spelling(quote(owner.unit), named[owner.unit].type)
    listed = ", ".join(quote(column.name) for column in schema.columns)
    text = _first_rows(relation, unit, quote(fresh("place", named)), 1)
    tables = ", ".join(dict.fromkeys(table for table, _ in relation.reads))
    return replace(
        relation,
        schema=replace(schema, relation=f"(SELECT {listed} FROM ({text}))" if schema.relation else ""),
        identity=f"(KEEP 1 ROW FROM {relation.identity})",
        is_table=False,
        unique=relation.unique | {frozenset({owner.unit})},
        single=tuple(dict.fromkeys((*relation.single, tables))),
    )


def _first_rows(relation: Relation, agreed: str, place: str, most: int) -> str:
    """Return SQL of the first rows among those that agree on some columns, in the order of a secret hash."""
    text = (
        f"SELECT *, row_number() OVER (PARTITION BY {agreed} ORDER BY {_order(relation)}) AS {place} "
        f"FROM {relation.schema.relation} WHERE {relation.unit_sql} IS NOT NULL"
    )
    return f"SELECT * FROM ({text}) WHERE {place} <= {most}"


def _sentence(relation: Relation, most: int, keys: Sequence[str]) -> str:
    """Say how many rows a join keeps, and the constraint of a table with which it may keep all of them.

    A table with several rows of a unit by its bounds cannot have the unit alone as its key.
    """
    tables = ", ".join(dict.fromkeys(table for table, _ in relation.reads))
    called = ", ".join(map(relation.schema.called, keys))
    agreed = f" that agree on {called}, and {MOST_JOINED:,} in all," if keys else ""
    compared = dict.fromkeys([relation.owner.unit if relation.owner else "", *keys])
    has_key = relation.is_table and (bool(keys) or _may_have_one_row(relation))
    unless = f", unless PRIMARY KEY ({', '.join(compared)}) is declared for them" if has_key else ""
    kept = f"of one unit a join keeps at most {most} rows{agreed} of {tables}{unless}"
    return f"{kept}; which ones is chosen by a secret hash"


def _may_have_one_row(relation: Relation) -> bool:
    """Return whether neither the policy nor another key says that a unit has several rows."""
    rules = relation.owner.rules if relation.owner else None
    return not relation.unique and (
        rules is None or max(rules.max_groups or 1, rules.max_rows_per_group or 1, rules.max_rows_norm or 1) == 1
    )


def _power(sql: str, exponent: int) -> str:
    return " * ".join([sql] * exponent)


def _order(relation: Relation) -> str:
    """By a hash of a row, then by what tells rows apart: in an order of which only equal rows can change places."""
    columns = _telling(relation)
    hashed = ", ".join(
        dict.fromkeys(
            [quote(relation.owner.unit if relation.owner else ""), *(quote(column.name) for column in columns)]
        )
    )
    # hashing the hash again makes every subset of a unit's rows equally likely
    return ", ".join([f"hash(hash({hashed}, {SALT})) ASC", *map(_ascending, columns)])


def _telling(relation: Relation) -> list[Column]:
    """Columns of which the values tell any two rows apart: a key of the table, or all."""
    columns = {column.name: column for column in relation.schema.columns}
    for names in sorted(relation.unique, key=lambda names: (len(names), sorted(names))):
        key = [columns[name] for name in sorted(names)]
        if all(not column.nullable and _ORDERED.fullmatch(column.type) for column in key):
            return key
    return list(columns.values())


def _ascending(column: Column) -> str:
    name = quote(column.name)
    if _ORDERED.fullmatch(column.type):
        return f"{name} ASC NULLS LAST"
    # 0 and -0, or 30 days and a month, are equal and are shown as other texts
    text = name if column.type == "VARCHAR" else f"CAST({name} AS VARCHAR)"
    return f'{text} COLLATE "binary" ASC NULLS LAST'


def early_filters(
    where: Sequence[exp.Expr], joins: Joins, places: Collection[int]
) -> tuple[Sequence[exp.Expr], Mapping[int, Sequence[exp.Expr]]]:
    """What is left of WHERE, and of some sides the conditions that are about their own rows alone.

    Args:
        where: conditions that hold all together, without what joins the sides.
        joins: the sides.
        places: of those whose rows are cut.

    """
    # where a join may leave the side out, a condition is about what is there then
    kept = not any(step.kind in (RIGHT, FULL) for step in joins.steps)
    always = {place for place in places if kept and joins.steps[place].kind in ("", INNER)}
    placed = [(condition, _only_place(condition, joins)) for condition in where]
    early = {place: [one for one, held in placed if held == place] for _, place in placed if place in always}
    return [condition for condition, place in placed if place not in always], early


def _only_place(condition: exp.Expr, joins: Joins) -> int:
    """The one side whose columns a condition names; -1 where it names others, or asks a subquery."""
    places = {-1} if condition.find(exp.Query) else set[int]()
    for column in own_columns(condition):
        found = {seen.place for seen in columns_named(joins.columns, column.name, column.table)}
        places |= found if len(found) == 1 and not column.args.get("db") else {-1}
    return places.pop() if len(places) == 1 else -1
