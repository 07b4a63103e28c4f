"""OPTIONS in the wrong place of a text: where they go, as the text with them in their place."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Sequence

from sqlglot.tokenizer_core import Token, TokenType

from dpsql.errors import ParseError
from dpsql.operations.spans import span_at

_CLAUSE = "WITH DIFFERENTIAL_PRIVACY"
_APART = re.compile(r"(?<=WITH )DIFFERENTIAL\s+PRIVACY(?=\s)", re.IGNORECASE)
_BEGINS = re.compile(r"\s*WITH\s+DIFFERENTIAL_PRIVACY\b", re.IGNORECASE)


def options_error(text: str, tokens: Sequence[Token], parse: Callable[[str], object]) -> ParseError | None:
    """Return the error of a text whose OPTIONS are in the wrong place. Return None if they are not.

    Args:
        text: a text that was refused.
        tokens: of the text; none if it has no tokens.
        parse: parses a text, or raises ParseError.

    """
    if apart := _APART.search(text):
        joined = f"{text[: apart.start()]}DIFFERENTIAL_PRIVACY{text[apart.end() :]}"
        with contextlib.suppress(ParseError):
            parse(joined)
            message = "DIFFERENTIAL_PRIVACY is one word."
            return ParseError(message, span_at(text, *apart.span()), hint=f"Write {joined}.")
    found = _moved_options(tokens, text)
    if not found:
        return None
    start, end, moved = found
    hint = f"Write {moved}."
    try:
        parse(moved)
    except ParseError:
        # something else is wrong with the text, too
        hint = "Their place is between SELECT and the select list."
    return ParseError("OPTIONS (…) follow SELECT WITH DIFFERENTIAL_PRIVACY.", span_at(text, start, end), hint=hint)


def _moved_options(tokens: Sequence[Token], text: str) -> tuple[int, int, str] | None:
    """Return the place of OPTIONS that do not follow SELECT, and the text with them behind its SELECT.

    Args:
        tokens: of the text.
        text: a text that was refused.

    Returns:
        Beginning and end of the clause, and the text that is meant; None if no options are in a wrong place.

    """
    words = [token.text.upper() for token in tokens]
    place = next((place for place in range(len(words)) if _is_misplaced(words, place)), None)
    if place is None:
        return None
    has_options = words[place] == "OPTIONS"
    last = _closing(tokens, place + 1) if has_options else place
    first = place - (2 if has_options else 1) if words[max(place - 2, 0) : place].count("WITH") else place
    start, end = tokens[first].start, tokens[last].end + 1
    options = f"{text[tokens[place].start : end]} " if has_options else ""
    left = _outer_select([token for at, token in enumerate(tokens) if not first <= at <= last])
    if left is None:
        return None
    head, tail = _without(text[:left], start, end), text[left:]
    if start >= left:
        tail = _without(tail, start - left, end - left)
    if has := _BEGINS.match(tail):
        tail = tail[has.end() :]
    return start, end, f"{head} {_CLAUSE} {options}{tail.lstrip()}".strip().rstrip(";")


def _is_misplaced(words: Sequence[str], place: int) -> bool:
    """Check that a word begins options, or is the clause without options, where it does not follow SELECT."""
    if words[place] == "OPTIONS" and words[place + 1 : place + 2] == ["("]:
        return list(words[max(place - 3, 0) : place]) != ["SELECT", "WITH", "DIFFERENTIAL_PRIVACY"]
    is_clause = words[place] == "DIFFERENTIAL_PRIVACY" and words[place + 1 : place + 2] != ["OPTIONS"]
    return is_clause and list(words[max(place - 2, 0) : place]) != ["SELECT", "WITH"]


def _closing(tokens: Sequence[Token], opening: int) -> int:
    """Return the place of the parenthesis that closes one, or the last place."""
    depth = 0
    for place in range(opening, len(tokens)):
        kind = tokens[place].token_type
        depth += (kind == TokenType.L_PAREN) - (kind == TokenType.R_PAREN)
        if not depth:
            return place
    return len(tokens) - 1


def _outer_select(tokens: Sequence[Token]) -> int | None:
    """Return where the first SELECT outside of parentheses ends."""
    depth = 0
    for token in tokens:
        depth += (token.token_type == TokenType.L_PAREN) - (token.token_type == TokenType.R_PAREN)
        if not depth and token.token_type == TokenType.SELECT:
            return int(token.end) + 1
    return None


def _without(text: str, start: int, end: int) -> str:
    """Return a text without a range of letters and the space before it."""
    return text if start >= len(text) else (text[:start].rstrip() + text[end:]).lstrip()
