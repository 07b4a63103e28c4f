"""Declarations of public keys that a refused query lacks, for the curator to paste."""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp

from dpsql.operations.dialect import text_literal
from dpsql.plan.aggregates.source import is_number
from dpsql.sql.source.sources import SelectText

_EXAMPLES = {
    "VARCHAR": "'a', 'b'",
    "BOOLEAN": "true, false",
    "DATE": "'2026-01-01', '2026-01-02'",
    "TIMESTAMP": "'2026-01-01 00:00:00', '2026-01-02 00:00:00'",
}
"""Keys that stand for those of a column of this type, where it has no numbers."""


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
        examples = _EXAMPLES.get(column.type, "1, 2" if is_number(column.type) else "") if column else ""
        if not table or not examples:
            return "Leave"
        calls.append(f"CALL dp_domain({text_literal(table)}, {text_literal(name)}, keys := [{examples}])")
    return f"Declare {' and '.join(calls)}, or leave"
