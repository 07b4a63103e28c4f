"""Arguments of the functions that a reader calls: the SELECT inside dp_query, the unit of dp_budget."""

from __future__ import annotations

from collections.abc import Mapping

from dpsql.errors import ParseError, PolicyError, Span
from dpsql.sql.show import ShowStatement, ShowTables
from dpsql.sql.statements import FunctionCall, SelectStatement, read_statement

_ARGUMENTS = {
    "dp_budget": ("unit", "at most the name of one unit, and analysts := ['ana', 'bob']"),
    "dp_cascade": ("query_hash", "at most one query hash"),
}
"""The argument that a function may be given, first or by its name (the shell's way), and what it takes in words."""


def asked_query(call: FunctionCall) -> tuple[SelectStatement, Mapping[str, object]]:
    """Return the SELECT inside ``dp_query($$…$$, rho := 0.1)``, dp_explain or dp_describe, and its options."""
    if len(call.positional) != 1 or not isinstance(call.positional[0], str):
        raise PolicyError(f"{call.name} takes the query as text: FROM {call.name}($$ SELECT … $$, rho := 0.1)")
    inner = read_statement(call.positional[0], call.parameters)
    if not isinstance(inner, SelectStatement):
        raise _no_select(inner, call.span)
    return inner, call.named


def _no_select(inner: FunctionCall | ShowStatement, span: Span | None) -> ParseError:
    """Return the refusal of a text inside dp_query, dp_explain or dp_describe that is no SELECT."""
    match inner:
        case FunctionCall():
            hint = f"{inner.name}() is a statement of its own."
        case ShowTables():
            hint = "SHOW TABLES is a statement of its own; FROM dp_tables() lists the tables with their columns."
        case _:
            hint = "DESCRIBE is a statement of its own; FROM dp_tables() lists the tables with their columns."
    return ParseError("dp_query, dp_explain and dp_describe take a SELECT.", span, hint=hint)


def wanted(call: FunctionCall, named: Mapping[str, object]) -> tuple[str, ...]:
    """Return the one text that a function may be given, first or by its name, or nothing if it is left out.

    Raises:
        PolicyError: there are other arguments.

    """
    name, _ = _ARGUMENTS.get(call.name, ("", ""))
    given = (*call.positional, *named.values())
    texts = tuple(value for value in given if isinstance(value, str))
    if set(named) - {name} or len(texts) < len(given) or len(given) > bool(name):
        raise misused(call)
    return texts


def misused(call: FunctionCall) -> PolicyError:
    """Return the refusal of a function's arguments, which says what it takes."""
    _, takes = _ARGUMENTS.get(call.name, ("", "no argument"))
    return PolicyError(f"{call.name} takes {takes}")
