"""One line of dbt's log for each private model: what its answer lacks, or else what bounds may leave out of it.

The price is in dbt's own line of the model, and everything else is in the receipt.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from dpsql.session import CoverageReceipt, Receipt, at_least, says_missed, shortfall

MOST_CHARACTERS = 95
"""Longest text, so that a line of the log has at most 120 characters with the time and the name of the adapter."""

_MORE = "; see its receipt"
_CLAUSE_ENDS = re.compile(r"(?=; )|(?=: )")


def log_line(model: str, receipt: Receipt) -> str:
    """Return the longest wording that fits; a model's name is cut if no wording fits.

    Args:
        model: its name.
        receipt: of its answer.

    """
    wordings = list(_wordings(receipt))
    for wording in wordings:
        line = f"{model}: {wording}"
        if len(line) <= MOST_CHARACTERS:
            return line
    shortest = wordings[-1]
    return f"{model[: MOST_CHARACTERS - len(shortest) - 3]}…: {shortest}"


def _wordings(receipt: Receipt) -> Iterator[str]:
    """Yield what is said of an answer, the longest wording first."""
    if receipt.is_too_low and not receipt.nothing_shown:
        yield from _of_left_out(receipt)
        return
    if receipt.missing:
        first = receipt.missing[0]
        if says_missed(first):
            yield first
            yield from _of_target(shortfall(first))
        yield from _shortened(first)
        yield "no complete answer; see its receipt"
        return
    coverage = [*receipt.coverage, *(kept for one in receipt.sets for kept in one.receipt.coverage)]
    warns = any(one.least_beyond or one.unknown or one.cut for one in coverage)
    if receipt.left_out_wordings and not warns:
        yield from _of_left_out(receipt)
    elif coverage:
        worst = min(coverage, key=_sureness)
        yield from _of_column(worst) if worst.values else _of_bounds(worst)
    else:
        yield f"{receipt.mechanism}{_MORE}"


def _shortened(sentence: str) -> Iterator[str]:
    """Yield a sentence, and then its beginnings, each up to the end of a clause.

    >>> list(_shortened("no count passed the threshold of 8 units: all are small; coarser keys help"))[1:]
    ['no count passed the threshold of 8 units: all are small; see its receipt', \
'no count passed the threshold of 8 units; see its receipt']
    """
    yield sentence
    for end in reversed([found.start() for found in _CLAUSE_ENDS.finditer(sentence)]):
        yield f"{sentence[:end]}{_MORE}"


def _of_target(missed: str) -> Iterator[str]:
    """Yield how far a target is missed, and then without the reason.

    >>> list(_of_target("3 of 5 rows are within 10 %; the question allows no higher level"))[1:]
    ['missed: 3 of 5 rows are within 10 %; see its receipt', 'missed: 3 of 5 rows are within 10 %']
    """
    yield f"missed: {missed}"
    how_far = f"missed: {missed.partition('; ')[0]}"
    yield f"{how_far}{_MORE}"
    yield how_far


def _of_left_out(receipt: Receipt) -> Iterator[str]:
    """Yield wordings of what bounds leave out of counts and sums."""
    for wording in receipt.left_out_wordings:
        yield f"{wording}{_MORE}"
        yield wording
    yield f"too low{_MORE}" if receipt.is_too_low else f"bounds may leave something out{_MORE}"


def _of_bounds(worst: CoverageReceipt) -> Iterator[str]:
    """Yield wordings of the counted part of one number, with the units that surely have more."""
    if worst.unknown:
        yield f"it is unknown what part of {worst.of} is counted{_MORE}"
        yield f"it is unknown what part is counted{_MORE}"
        return
    size, low = worst.size if worst.beyond else None, f"at least {at_least(worst.low)}"
    count = worst.least_beyond
    beyond = f"; at least {count:,} units have more" if count else ""
    kept = worst.counted(low, "", size)
    yield f"{worst.counted(low, worst.unit, size)}{beyond}{_MORE}"
    yield f"{kept}{beyond}{_MORE}"
    yield f"{kept}{beyond}"
    unnamed = kept[kept.index(low) :]
    if " its " not in unnamed:
        yield f"{unnamed}{beyond}"
        yield f"{unnamed.replace(' per unit', '')}{beyond}"
    fewer = f"; at least {count:,} have more" if count else ""
    if size and worst.measured in ("rows", "groups"):
        noun = worst.measured.removesuffix("s") if size == 1.0 else worst.measured
        yield f"{low} is counted for units with up to {size:,.9g} {noun}{fewer}"
    else:
        yield f"{low}{f' of totals up to {size:,.9g}' if size else ''} is counted{fewer}"
    yield f"bounds leave something out{_MORE}"


def _of_column(worst: CoverageReceipt) -> Iterator[str]:
    """Yield wordings of what is counted and cut of an average, a spread or a sum of both signs."""
    for wording in worst.wordings():
        yield f"{wording}{_MORE}"
        yield wording
    yield f"bounds leave something out{_MORE}"


def _sureness(coverage: CoverageReceipt) -> tuple[bool, float]:
    """Return a key that sorts coverage, the one that says least about all units first."""
    is_known, *_, kept = coverage.sureness
    return is_known, kept
