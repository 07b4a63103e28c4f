"""Values of public queries inside private rows: a query that reads public tables, or none, becomes the values it has.

``arrived <= (SELECT max(day) FROM season)`` becomes ``arrived <= DATE '2024-11-14'``. The values are public, so the
plan may depend on them. A plan with other values is another question.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from sqlglot import exp

from dpsql.model.environment import Environment, TableSchema
from dpsql.model.refusals import Refusals
from dpsql.operations.dialect import quote
from dpsql.plan.composition.outer import Source, read_outer
from dpsql.sql.statements import MOST_LISTED

_WHOLE = re.compile(r"U?(TINYINT|SMALLINT|INTEGER|BIGINT|HUGEINT)")


@dataclass(frozen=True, slots=True)
class Values:
    """Rows of a public query.

    Attributes:
        names, types: of its columns.
        rows: their values as text, as DuckDB casts them.

    """

    names: tuple[str, ...]
    types: tuple[str, ...]
    rows: tuple[tuple[str | None, ...], ...]

    @property
    def literals(self) -> list[list[exp.Expr]]:
        """The values of each row as literals."""
        return [[_literal(value, kind) for value, kind in zip(row, self.types, strict=True)] for row in self.rows]


def values_of(
    query: exp.Query,
    tables: Sequence[tuple[str, TableSchema]],
    environment: Environment,
    refusals: Refusals,
    node: exp.Expr,
) -> Values:
    """Return the rows of a query of public tables.

    Args:
        query: reads tables under the names given.
        tables: names and tables.
        environment: reads them.
        refusals: collects.
        node: where the query stands in the text.

    Raises:
        SchemaError: the query does not bind, or a table is too large to be copied.
        UnsupportedQueryError: it uses what is not on the lists, or has too many rows.

    """
    sources = [Source(name, schema.columns) for name, schema in tables]
    outer = read_outer(query, sources, environment, refusals)
    names, types = (tuple(getattr(one, name) for one in outer.columns) for name in ("name", "type"))
    texts = ", ".join(f"CAST({quote(f'c{place}')} AS VARCHAR)" for place in range(len(names)))
    columns = ", ".join(quote(f"c{place}") for place in range(len(names)))
    sql = f"SELECT {texts} FROM ({outer.sql}) AS listed({columns}) LIMIT {MOST_LISTED + 1}"
    rows = environment.schemas.public_rows(sql, [schema for _, schema in tables])
    if len(rows) > MOST_LISTED:
        refusals.refuse(
            "size",
            node,
            f"a public query inside private rows has at most {MOST_LISTED:,} rows.",
            "Join the public table, or write IN (SELECT …) as a condition by itself.",
        )
    return Values(names, types, rows)


def as_scalar(values: Values, refusals: Refusals, node: exp.Expr) -> exp.Expr:
    """Return the value of a scalar query.

    Raises:
        UnsupportedQueryError: it has several rows or columns.

    """
    if len(values.names) != 1 or len(values.rows) > 1:
        refusals.refuse(
            "row_syntax",
            node,
            "a query in place of a value has one column and at most one row.",
            "Write max(x), or LIMIT 1 after ORDER BY.",
        )
    return values.literals[0][0] if values.rows else exp.cast(exp.Null(), values.types[0], dialect="duckdb")


def as_list(values: Values, tested: exp.Expr) -> exp.Expr:
    """Return ``x IN (query)`` as a list of values."""
    listed = list(dict.fromkeys(row[0] for row in values.literals))
    return exp.In(this=tested, expressions=listed) if listed else exp.false()


def as_source(values: Values, alias: exp.TableAlias, refusals: Refusals, node: exp.Expr) -> exp.Expr:
    """Return a source as a list of rows, under its alias and the names of its columns.

    Raises:
        UnsupportedQueryError: it has no row.

    """
    if not values.rows:
        refusals.refuse("source", node, "a list of rows has at least one row.", "Leave it out, or give it a row.")
    named = list(alias.columns)
    names = [*named, *(exp.to_identifier(name, quoted=True) for name in values.names[len(named) :])]
    rows = [exp.Tuple(expressions=row) for row in values.literals]
    return exp.Values(expressions=rows, alias=exp.TableAlias(this=alias.this.copy(), columns=names))


def _literal(value: str | None, kind: str) -> exp.Expr:
    """Return a value as a literal of its type."""
    if value is None:
        return exp.Null()
    if _WHOLE.fullmatch(kind):
        number = exp.Literal.number(value.removeprefix("-"))
        return exp.Neg(this=number) if value.startswith("-") else number
    if kind == "VARCHAR":
        return exp.Literal.string(value)
    if kind == "BOOLEAN":
        return exp.Boolean(this=value == "true")
    return exp.cast(exp.Literal.string(value), kind, dialect="duckdb")
