"""Sentences about the weights of people in quantiles and averages whose rows of a unit AUTO bounds."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from dpsql.receipts import left_out_words, phrases

_WORD = r"[a-z]{2,20}"
_NOTE = re.compile(r".+ (is|are) (of at most [\d,]+ rows? of .+): .+ weigh no more")


def weights(columns: Sequence[str], rows: int, unit: str, *, has_groups: bool) -> str:
    """Say of how many rows of a unit some columns are.

    >>> weights(["median(stay)"], 1, "patient", has_groups=True)
    'median(stay) is of at most 1 row of a patient in a group: patients with more weigh no more'
    >>> weights(["median(a)", "avg(b)"], 1200, "visits", has_groups=False)
    'median(a) and avg(b) are of at most 1,200 rows of a unit (visits): units (visits) with more weigh no more'

    Args:
        columns: the aggregates.
        rows: most rows of a unit that count.
        unit: name of the privacy unit.
        has_groups: whether these are rows in one group.

    """
    is_word = re.fullmatch(_WORD, unit) and not unit.endswith("s")
    one = f"{'an' if unit[0] in 'aeio' else 'a'} {unit}" if is_word else f"a unit ({unit})"
    units = left_out_words.plural(unit) if is_word else f"units ({unit})"
    verb, noun = "is" if len(columns) == 1 else "are", "row" if rows == 1 else "rows"
    where = " in a group" * has_groups
    return (
        f"{phrases.listed(columns)} {verb} of at most {rows:,} {noun} of {one}{where}: {units} with more weigh no more"
    )


def with_weights(notes: Sequence[str], wordings: Sequence[str]) -> Iterator[str]:
    """Yield wordings of the line of bounds, each with the weights of people before it, if a note says them.

    >>> notes = [weights(["median(stay)"], 1, "patient", has_groups=True)]
    >>> list(with_weights(notes, ["at least 97 % of groups are counted"]))[1:3]
    ['median(stay) is of at most 1 row of a patient in a group; at least 97 % of groups are counted', \
'numbers are of at most 1 row of a patient in a group; at least 97 % of groups are counted']

    Args:
        notes: of the receipt.
        wordings: of the line without weights; empty if there is none.

    """
    note = next((one for one in notes if _NOTE.fullmatch(one)), None)
    if note is None:
        yield from wordings
        return
    found = _NOTE.fullmatch(note)
    most = found.group(2) if found else ""
    own = dict.fromkeys((note, note.rpartition(": ")[0], f"numbers are {most}"))
    for wording in wordings:
        yield from (f"{one}; {wording}" for one in own)
    yield from own
