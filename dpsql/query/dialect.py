"""DuckDB's SQL plus the private clauses, as a sqlglot dialect.

Added to the DuckDB dialect:

- ``SELECT WITH DIFFERENTIAL_PRIVACY [OPTIONS (name = value, …)] …`` (GoogleSQL's clause);
- named arguments on ``count``, ``sum`` and ``avg`` (``contribution_bounds_per_group => (lo, hi)``);
- ``CALL f(…)`` as a statement with a tree, where sqlglot keeps (and logs) opaque text.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from sqlglot import exp
from sqlglot.dialects.duckdb import DuckDB
from sqlglot.errors import SqlglotError
from sqlglot.parsers.duckdb import DuckDBParser
from sqlglot.tokenizer_core import Token, TokenType

from dpsql.errors import ParseError, Span


class DifferentialPrivacy(exp.Expression):
    """The clause ``WITH DIFFERENTIAL_PRIVACY OPTIONS (…)``; stands in the ``hint`` slot of a SELECT."""

    arg_types: ClassVar[dict[str, bool]] = {"expressions": False}


class Call(exp.Expression):
    """The statement ``CALL f(…)``; ``this`` is the function with its arguments."""

    arg_types: ClassVar[dict[str, bool]] = {"this": True}


def _one_argument_or_anonymous(node: type[exp.AggFunc], name: str) -> Callable[[list[exp.Expr]], exp.Expr]:
    def build(arguments: list[exp.Expr]) -> exp.Expr:
        if len(arguments) == 1:
            return node(this=arguments[0])
        return exp.Anonymous(this=name, expressions=arguments)

    return build


class PrivateParser(DuckDBParser):
    """DuckDB's parser with the private clauses."""

    FUNCTIONS: ClassVar[dict[str, Callable[..., Any]]] = {
        **DuckDBParser.FUNCTIONS,
        "AVG": _one_argument_or_anonymous(exp.Avg, "avg"),
        "SUM": _one_argument_or_anonymous(exp.Sum, "sum"),
    }

    def _parse_statement(self) -> exp.Expr | None:
        if self._match_text_seq("CALL"):
            function = self._parse_function(optional_parens=False)
            if function is None:
                self.raise_error("CALL needs a function, as in CALL dp_unit('patient')")
            return self.expression(Call(this=function))
        return super()._parse_statement()

    def _parse_hint(self) -> exp.Hint | None:
        if not self._match_text_seq("WITH", "DIFFERENTIAL_PRIVACY"):
            return super()._parse_hint()
        options = self._parse_wrapped_csv(self._parse_disjunction) if self._match_text_seq("OPTIONS") else []
        # sqlglot types this slot as Hint; it only ever hangs the node under the key "hint".
        return self.expression(DifferentialPrivacy(expressions=options))  # type: ignore[return-value]


class PrivateDuckDB(DuckDB):
    """DuckDB with the private clauses."""

    Parser = PrivateParser

    class Tokenizer(DuckDB.Tokenizer):
        """DuckDB's tokenizer, to which CALL is a word like any other."""

        KEYWORDS: ClassVar[dict[str, TokenType]] = {
            word: kind for word, kind in DuckDB.Tokenizer.KEYWORDS.items() if word != "CALL"
        }


def span_of(node: exp.Expr, text: str) -> Span | None:
    """Place of a node in ``text``, from the positions that the parser left on it and on its parts."""
    positions = [part.meta for part in node.walk() if part.meta.get("end") is not None]
    if not positions:
        return span_of(node.parent, text) if node.parent is not None else None
    return _span(text, min(p["start"] for p in positions), max(p["end"] for p in positions) + 1)


def _span(text: str, start: int, end: int) -> Span:
    before = text[:start]
    return Span(line=before.count("\n") + 1, column=start - (before.rfind("\n") + 1) + 1, start=start, end=end)


def parse_statement(text: str) -> exp.Expr:
    """Parse exactly one statement.

    Raises:
        ParseError: the text is no statement, is several, or is not valid; carries the place where known.

    """
    dialect = PrivateDuckDB()
    try:
        tokens: list[Token] = dialect.tokenize(text)
        statements = [tree for tree in dialect.parser().parse(tokens, text) if tree is not None]
    except SqlglotError as error:
        raise _parse_error(error, text) from None
    if len(statements) != 1:
        raise ParseError(f"expected one SQL statement, found {len(statements)}")
    return statements[0]


def _parse_error(error: SqlglotError, text: str) -> ParseError:
    details = getattr(error, "errors", None)
    if not details:
        return ParseError("the text cannot be split into SQL tokens; is a quote left open?")
    first = details[0]
    line, column = first.get("line"), first.get("col")
    span = None
    if line and column:
        # sqlglot reports the last character of the offending token.
        start = sum(len(row) + 1 for row in text.split("\n")[: line - 1]) + column - 1
        span = _span(text, min(start, len(text)), min(start + 1, len(text)))
    near = str(first.get("highlight") or "").strip()
    return ParseError(f"not valid SQL near {near!r}" if near else "not valid SQL: it ends too early", span)


def to_sql(node: exp.Expr) -> str:
    """DuckDB text of a tree, identifiers quoted, comments dropped; the only way SQL is written."""
    return node.sql(dialect=DuckDB, identify=True, comments=False, normalize_functions="lower")


def quote(identifier: str) -> str:
    """An identifier as quoted DuckDB text."""
    return '"' + identifier.replace('"', '""') + '"'
