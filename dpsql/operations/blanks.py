"""Blanks: values that the reader of a cure fills in, written as ``<most rows of one unit in one group>``.

People paste cures. A number that nobody measured would cut the answers of everybody who asks the table, so a cure has
a blank in its place. Every blank of the messages is here. A text with a blank is no SQL: the parser names the blank.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence

from sqlglot.tokenizer_core import Token, TokenType

MOST_GROUPS = "<most groups of one unit>"
MOST_ROWS = "<most rows of one unit in one group>"
MOST_VALUES = "<most distinct values of one unit in one group>"
ROWS_NORM = "<norm of the rows of one unit in all groups>"
SUM_NORM = "<norm of the sums of one unit in all groups>"
VALUES = ("<lowest value>", "<highest value>")
LEAST_POSITIVE = "<lowest positive value>"
SUMS = ("<lowest sum of one unit in one group>", "<highest sum of one unit in one group>")
DAYS = ("DATE <first day in quotes>", "DATE <last day in quotes>")
LEVELS = ("<lowest rho>", "<highest rho>")
KEYS = "<every key of the column>"
LARGEST_GROUPS = "<number of the largest groups>"
EPSILON = "<epsilon of one question>"
RHO = "<most rho to spend>"
REASON = "<reason>"
HIGHEST_RHO = "<highest rho that the analyst may see>"
EPSILON_BUDGET = "<epsilon of all answers together>"
DELTA_BUDGET = "<delta of all answers together>"

_WORDS = re.compile(r"<[a-z]+(?: [a-z]+)*>")
_BEFORE = frozenset(
    (
        TokenType.EQ,
        TokenType.COLON_EQ,
        TokenType.FARROW,
        TokenType.COMMA,
        TokenType.L_PAREN,
        TokenType.L_BRACKET,
        TokenType.DATE,
    )
)
"""Tokens that stand before a blank. None of them stands before a comparison of SQL."""


def pair(ends: tuple[str, str]) -> str:
    """Return the blanks of two bounds as a pair.

    >>> pair(VALUES)
    '(<lowest value>, <highest value>)'
    """
    return f"({', '.join(ends)})"


PAIRS = f"({pair(VALUES)}, {pair(VALUES)})"
"""Bounds of both values of a pair."""


def blanks_in(tokens: Sequence[Token], text: str) -> Iterator[tuple[int, int]]:
    """Yield where each blank of a text begins and ends.

    Args:
        tokens: of the text.
        text: a text that was refused by the parser.

    """
    for before, token in itertools.pairwise(tokens):
        if token.token_type == TokenType.LT and before.token_type in _BEFORE:
            found = _WORDS.match(text, token.start)
            if found:
                yield found.span()
