"""What a query would be after declarations that are not made yet; spends and declares nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dpsql.engine import Engine
from dpsql.errors import ParseError
from dpsql.query.statements import DECLARATIONS, FunctionCall, SelectStatement, read_statement
from dpsql.session.books import explain_table
from dpsql.session.declare import declare
from dpsql.session.desk import Desk, StateDrawer
from dpsql.session.reader import CURATOR
from dpsql.session.result import Result


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """What a query would be.

    Attributes:
        plan: as ``FROM dp_explain(…)`` shows it.
        columns: name and DuckDB type of each column of the answer.

    """

    plan: Result
    columns: tuple[tuple[str, str], ...]


def rehearse(
    books: StateDrawer, engine: Engine, declarations: Sequence[str], text: str, options: Mapping[str, object]
) -> Rehearsal:
    """Plan a SELECT as it would be after declarations, which are carried out on a copy of the books."""
    statement = read_statement(text)
    if not isinstance(statement, SelectStatement):
        raise ParseError("only a SELECT has a plan")
    copied = books.copied()
    desk = Desk(copied, engine)
    try:
        for declaration in declarations:
            call = read_statement(declaration)
            if not isinstance(call, FunctionCall) or call.name not in DECLARATIONS:
                raise ParseError(f"only declarations are rehearsed: {', '.join(DECLARATIONS)}")
            declare(call, copied, engine)
        query, state, reader = desk.answerable(statement, options, CURATOR)
        columns = tuple((column.name, column.type) for column in query.shown)
        return Rehearsal(explain_table(query, state, reader), columns)
    finally:
        copied.close()
        desk.sandbox.close()
