"""Rows that a query lists itself, as in ``JOIN (VALUES (0, 'Ulm'), (1, 'Bonn')) t(id, city)``: they are public."""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp

from dpsql.errors import SchemaError
from dpsql.model.environment import Column, Environment, TableSchema
from dpsql.model.refusals import Refusals
from dpsql.operations.dialect import span_of, to_sql
from dpsql.sql.row_rules import check_node
from dpsql.sql.source.relation import Relation
from dpsql.sql.statements import MOST_LISTED

IDENTITY = "identity"
"""Mark on a list whose identity is another one than its values."""
_ONE_ROW = (Column("nothing", "INTEGER", True),)
"""The columns of the empty table that the list is bound beside."""
_LARGEST_BOUND = 2.0**53
"""Larger whole numbers are not all floating-point numbers."""


def listed_rows(node: exp.Values, environment: Environment, refusals: Refusals) -> Relation:
    """Return the rows of VALUES as a public relation, whose numbers are bounded by themselves.

    Args:
        node: the list. Its alias is read elsewhere.
        environment: binds types in a database without rows.
        refusals: collects.

    Raises:
        UnsupportedQueryError: a value is no literal, or literals of one column are of several kinds.
        SchemaError: the list does not bind.

    """
    rows = [row.expressions if isinstance(row, exp.Tuple) else [row] for row in node.expressions]
    _check_size(node, rows, refusals)
    before = len(refusals.found)
    columns = list(zip(*rows, strict=True))
    for column in columns:
        _check_column(column, refusals)
    refusals.raise_if_any(before)
    values = tuple(value for row in rows for value in row)
    sql = tuple(map(to_sql, values))
    for place in environment.schemas.failed_conversions((), sql):
        refusals.add("literal", values[place], f"{sql[place]} cannot be read.", "Give a value of its type.")
    listed = ", ".join(f"({', '.join(map(to_sql, row))})" for row in rows)
    relation = f"(VALUES {listed})"
    if len(refusals.found) == before and environment.schemas.failed_conversions((), (f"(SELECT 1 FROM {relation})",)):
        refusals.add("literal", node, "the numbers of a column of VALUES have no type together.", "Cast each of them.")
    refusals.raise_if_any(before)
    try:
        bound = environment.schemas.bind_after("nothing", _ONE_ROW, f"SELECT * FROM {relation}")
    except SchemaError as error:
        raise SchemaError(str(error), span=span_of(node, refusals.text)) from None
    schema = TableSchema(
        canonical="",
        relation=relation,
        columns=tuple(
            Column(name, kind, True, ("", name), _bounds(column))
            for (name, kind), column in zip(bound, columns, strict=True)
        ),
        catalog_name=("", "", ""),
    )
    return Relation(schema, None, node.meta.get(IDENTITY, relation), ())


def _check_size(node: exp.Values, rows: Sequence[Sequence[exp.Expr]], refusals: Refusals) -> None:
    """Refuse lists that are too long, rows of different lengths, and other clauses than an alias.

    Raises:
        UnsupportedQueryError: the list is refused.

    """
    if len(rows) > MOST_LISTED:
        refusals.refuse(
            "size",
            node,
            f"VALUES has at most {MOST_LISTED:,} rows, and this one {len(rows):,}.",
            "Let the curator put them into a public table, and join it.",
        )
    if any(part for name, part in node.args.items() if name not in ("expressions", "alias")):
        refusals.refuse("source", node, "VALUES has an alias here, and nothing else.", "Use VALUES (1, 'a'), (2, 'b').")
    if len({len(row) for row in rows}) != 1:
        refusals.refuse("source", node, "rows of VALUES have one number of values.", "Use NULL for a missing value.")


def _check_column(column: Sequence[exp.Expr], refusals: Refusals) -> None:
    """Note a refusal for each value that is no literal, and for the first one of another kind than the others."""
    kinds: dict[str, exp.Expr] = {}
    for value in column:
        kind = _kind(value)
        if not kind:
            refusals.add("row_syntax", value, "VALUES takes literals here.", "Use values, as in VALUES (1, 'a').")
        elif isinstance(value, exp.Cast):
            check_node(value, refusals)
        if kind and kind != "null":
            kinds.setdefault(kind, value)
    if len(kinds) > 1:
        refusals.add(
            "row_syntax",
            list(kinds.values())[1],
            f"a column of VALUES has {' and '.join(kinds)} values.",
            "Use values of one kind, as in VALUES (1, 'a'), (2, 'b').",
        )


def _kind(value: exp.Expr) -> str:
    """Return the kind of a literal: null, number, text, boolean or the type of its cast; empty for anything else."""
    match value:
        case exp.Null():
            return "null"
        case exp.Boolean():
            return "boolean"
        case exp.RawString() | exp.Literal(is_string=True):
            return "text"
        case exp.Literal() | exp.Neg(this=exp.Literal(is_string=False)):
            return "number"
        case exp.Cast(this=exp.Literal() | exp.RawString() | exp.Null()):
            return to_sql(value.to)
        case _:
            return ""


def _bounds(column: Sequence[exp.Expr]) -> tuple[float, float] | None:
    """Return the least and the largest of a column of numbers; None if it has others, or none, or too large ones."""
    known = [value for value in column if not isinstance(value, exp.Null)]
    if not known or any(_kind(value) != "number" for value in known):
        return None
    numbers = [float(to_sql(value).replace(" ", "")) for value in known]
    return (min(numbers), max(numbers)) if max(map(abs, numbers)) <= _LARGEST_BOUND else None
