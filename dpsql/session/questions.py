"""A question as a text names it: its SELECT, its options, and whether it names a level.

Front ends that add a level of their own, or look at a price before they ask, read texts by this.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dpsql.operations.dialect import quote, text_literal
from dpsql.session.call_arguments import asked_query
from dpsql.session.runner import Parameters
from dpsql.sql.levels import names_level
from dpsql.sql.statements import OF_TEXTS, FunctionCall, SelectStatement, read_statement

EXPLAIN, QUERY = "dp_explain", "dp_query"


@dataclass(frozen=True, slots=True)
class Question:
    """A SELECT that is to be answered, explained or described.

    Attributes:
        text: the SELECT.
        params: values for its places.
        options: those of ``dp_query(…)``, ``dp_explain(…)`` or ``dp_describe(…)``.
        function: one of these three names.
        is_call: whether the SELECT stands inside a call of the function.
        names_level: whether text or options name a level or a target.

    """

    text: str
    params: Parameters
    function: str = QUERY
    options: Mapping[str, object] = field(default_factory=dict)
    is_call: bool = False
    names_level: bool = False

    @property
    def charges(self) -> bool:
        """Return whether its answer may be charged."""
        return self.function == QUERY

    def call(self, function: str, level: Mapping[str, float]) -> str:
        """Return the text that calls a function on the question.

        Args:
            function: dp_query, dp_explain or dp_describe.
            level: options that are added.

        """
        named = "".join(f", {quote(name)} := {_written(value)}" for name, value in {**self.options, **level}.items())
        return f"FROM {function}({text_literal(self.text)}{named})"


def read_question(text: str, params: Parameters = None) -> Question | None:
    """Return the question of a text. Return None if the statement takes no level, as SHOW TABLES does.

    Args:
        text: one statement.
        params: values for ``?`` (a list) or ``$name`` (a mapping).

    Raises:
        ParseError: the text is no statement, or values and places do not match.
        PolicyError: a function that takes a query as text has other arguments.

    """
    statement = read_statement(text, params)
    if isinstance(statement, SelectStatement):
        return Question(text, params, names_level=names_level(statement.tree, {}))
    if not isinstance(statement, FunctionCall) or statement.name not in OF_TEXTS:
        return None
    inner, options = asked_query(statement)
    named = names_level(inner.tree, options)
    return Question(inner.text, statement.parameters, statement.name, options, is_call=True, names_level=named)


def _written(value: object) -> str:
    """Return the value of an option as SQL."""
    match value:
        case None:
            return "NULL"
        case bool():
            return str(value).upper()
        case str():
            return text_literal(value)
        case tuple() | list():
            return f"[{', '.join(map(_written, value))}]"
        case Mapping():
            return f"{{{', '.join(f'{text_literal(str(name))}: {_written(one)}' for name, one in value.items())}}}"
        case _:
            return repr(value)
