"""The table of sentences about rows that clauses pick by their noisy numbers.

Each row has named placeholders and an example of their values, as in `words.py`.
"""

from __future__ import annotations

from dpsql.receipts.sentence import Sentence

LIMIT_WIDENS = Sentence(
    "the rows of LIMIT have the {side|largest} noisy numbers; so their intervals are wider than that of a group named "
    "before"
)
LIMIT_WIDENED = Sentence(
    "LIMIT picks the {side|largest} noisy numbers: for that, intervals of {columns|n} are {factor:.3g|1.55} times as "
    "wide"
)
NEAR_THRESHOLD = Sentence(
    "counts near the threshold of {threshold:.3g|31.4} are shown if their noise is large: for that, intervals of "
    "{columns|n} are up to {factor:.3g|2.31} times as wide"
)
PICKED = Sentence(
    "{clause|HAVING} picks rows by noisy numbers; an interval holds for a group named before, and less often for these "
    "rows"
)
LESS_FOR = Sentence(", less for rows that {clause|HAVING} picks")
LESS_FOR_SOME = Sentence(", less for picked rows")
"""Both of the probability in the line below a printed answer."""
ALL_INTERVALS = Sentence("intervals")
RANKED = Sentence(
    "a window orders groups by noisy numbers; an interval holds for a group named before, and less often for one "
    "picked by its place"
)
ASKED_OF_ONE = Sentence("the half widths that were asked for hold for a group named before, not for the rows of LIMIT")
OF_ROWS = (LIMIT_WIDENS, LIMIT_WIDENED, NEAR_THRESHOLD, PICKED, RANKED, ASKED_OF_ONE)
"""Sentences of receipts, in the order of this table."""
