"""Columns that the text of a join computes: ``t.started::DATE = w.day`` compares an expression of one side.

The expression becomes a column of its side, which no query can name. So whatever holds for columns that are compared
holds for it: its values are counted where public rows match, and rows are cut by them. It is no column of a table:
nothing keeps it unique, and it never leads to a unit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sqlglot import exp

from dpsql.model.environment import Column, Environment, TableSchema, types_of
from dpsql.model.refusals import Refusals
from dpsql.operations.dialect import quote, to_sql, written
from dpsql.operations.row_sql import shielded, without_statistics
from dpsql.sql.clauses import Clauses
from dpsql.sql.names import resolve_names
from dpsql.sql.row_types import check_expressions, uses_of
from dpsql.sql.source.borders import bordered, hides_joins
from dpsql.sql.source.relation import Relation, fresh

_NULL_OF_NULL = (
    exp.Column, exp.Identifier, exp.Literal, exp.Paren, exp.Cast, exp.TryCast, exp.DataType, exp.DataTypeParam, exp.Var,
    exp.Neg, exp.Add, exp.Sub, exp.Mul, exp.Div, exp.IntDiv, exp.Mod, exp.Interval, exp.DateTrunc, exp.TimestampTrunc,
    exp.Extract, exp.Date, exp.Year, exp.Quarter, exp.Month, exp.Week, exp.Day, exp.Lower, exp.Upper, exp.Trim, exp.Abs,
    exp.Floor, exp.Ceil, exp.Round, exp.DPipe,
)  # fmt: skip
"""Parts of expressions that are NULL if a column in them is."""


def with_computed(
    node: exp.Expr,
    sources: Sequence[tuple[exp.Expr, exp.Join | None]],
    schema: TableSchema,
    relation: Relation,
    environment: Environment,
    refusals: Refusals,
) -> tuple[Relation, Column]:
    """Return rows with one more column, which an expression computes and no query can name, and this column.

    Args:
        node: the expression, as it is written.
        sources: the sources of the rows, with the names that the expression uses.
        schema: the columns of the rows under the names of their tables.
        relation: the rows.
        environment: binds the type.
        refusals: collects.

    Raises:
        SchemaError: the expression does not bind.
        UnsupportedQueryError: the expression is not one of those that are safe on private rows.

    """
    clauses = Clauses(tuple(sources), select=(node,), inside=True)
    (item,) = resolve_names(clauses, schema, environment, refusals).items
    return with_column(item.expression, schema, relation, environment, refusals)


def with_column(
    expression: exp.Expr, schema: TableSchema, relation: Relation, environment: Environment, refusals: Refusals
) -> tuple[Relation, Column]:
    """Return what ``with_computed`` does for an expression whose names are resolved."""
    columns = relation.schema.columns
    check_expressions([expression], columns, environment, refusals)
    sql, text = to_sql(expression), written(expression)
    (kind,) = types_of(environment, columns, [(expression, sql)], refusals.text)
    # a name that DuckDB cannot cut short, and that a sentence about rows can show
    name = fresh(text if text.isprintable() else "computed", [column.name for column in columns])
    column = Column(name, kind, True, ("", name), uses=uses_of(sql, columns))
    rows = relation.schema.relation
    rows = bordered(rows) if hides_joins(relation, environment) else rows
    listed = f"{shielded(sql, relation.unit_sql, relation.schema.types)} AS {quote(name)}"
    text = f"(SELECT *, {listed} FROM {without_statistics(rows, [sql])})" if rows else ""
    extended = replace(relation.schema, relation=text, columns=(*columns, column), names=schema.names)
    identity = f"(SELECT *, {sql} AS {quote(name)} FROM {relation.identity})"
    return replace(relation, schema=extended, identity=identity, is_table=False), column


def without_computed(relation: Relation, schema: TableSchema) -> Relation:
    """Return rows with the columns and names that they had before others were computed."""
    listed = ", ".join(quote(column.name) for column in schema.columns)
    text = relation.schema.relation
    text = f"(SELECT {listed} FROM {text})" if text else ""
    return replace(relation, schema=replace(relation.schema, relation=text, columns=schema.columns, names=schema.names))


def is_computable(node: exp.Expr) -> bool:
    """Check that a part of a comparison is computed of columns."""
    return not isinstance(node, exp.Column) and not node.find(exp.Query) and node.find(exp.Column) is not None


def is_null_of_nulls(node: exp.Expr) -> bool:
    """Check that an expression is NULL on a row of NULLs, as an outer join adds them."""
    return all(isinstance(part, _NULL_OF_NULL) for part in node.walk())
