"""Declarations of public keys that a refused query lacks, for the curator to paste."""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp

from dpsql.operations import blanks
from dpsql.operations.dialect import text_literal
from dpsql.plan.aggregates.source import is_number
from dpsql.sql.source.sources import SelectText

_LISTED = ("VARCHAR", "BOOLEAN", "DATE", "TIMESTAMP")
"""Types whose keys can be listed, beside those of numbers."""


def declare_or_leave(text: SelectText, keys: Sequence[exp.Expr]) -> str:
    """Return the beginning of a hint to leave an option out, or to declare the public keys that it needs.

    Args:
        text: the query.
        keys: the keys without a public list. Nothing is declared if one of them is no column of a table.

    """
    schema, calls = text.relation.schema, []
    for node in keys:
        column = schema.column(node.name) if isinstance(node, exp.Column) else None
        table, name = schema.origin(node.name) if column else ("", "")
        if not column or not table or not (column.type in _LISTED or is_number(column.type)):
            return "Leave"
        listed = "true, false" if column.type == "BOOLEAN" else blanks.KEYS
        calls.append(f"CALL dp_domain({text_literal(table)}, {text_literal(name)}, keys := [{listed}])")
    return f"Declare {' and '.join(calls)}, or leave"
