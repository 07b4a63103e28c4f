"""Errors of texts that are no SQL: blanks that were not filled in, OPTIONS in the wrong place, and all others."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sqlglot.errors import SqlglotError
from sqlglot.tokenizer_core import Token

from dpsql.errors import ParseError
from dpsql.operations.blanks import blanks_in
from dpsql.operations.option_place import options_error
from dpsql.operations.spans import span_at


def syntax_error(error: SqlglotError, tokens: Sequence[Token], text: str, parse: Callable[[str], object]) -> ParseError:
    """Return the error of a text that sqlglot refused.

    Args:
        error: what sqlglot says.
        tokens: of the text; none if it has no tokens.
        text: the text.
        parse: parses another text, or raises ParseError.

    """
    return blank_error(tokens, text) or options_error(text, tokens, parse) or _parse_error(error, text)


def blank_error(tokens: Sequence[Token], text: str) -> ParseError | None:
    """Return the error that names the blanks of a text. Return None if the text has none."""
    places = list(blanks_in(tokens, text))
    if not places:
        return None
    names = " and ".join(dict.fromkeys(text[start:end] for start, end in places))
    hint = "Write a value that you know in place of the words and their brackets."
    return ParseError(f"fill in {names}.", span_at(text, *places[0]), hint=hint)


def _parse_error(error: SqlglotError, text: str) -> ParseError:
    details = getattr(error, "errors", None)
    if not details:
        return ParseError("the text cannot be split into SQL tokens; is a quote left open?")
    line, column, token, description = (details[0].get(name) for name in ("line", "col", "highlight", "description"))
    span = None
    if line and column:
        # sqlglot reports the last character of the offending token.
        end = min(sum(len(row) + 1 for row in text.split("\n")[: line - 1]) + column, len(text))
        span = span_at(text, max(0, end - len(str(token or " "))), end)
    near = str(token or "").strip()
    explains = str(description or "").startswith(("Expecting", "CALL", "AT TIME", "Maximum", "an option"))
    what = f"not valid SQL near {near!r}" if near else "not valid SQL: it ends too early"
    return ParseError(f"{what}{f': {description}' if explains else ''}", span)
