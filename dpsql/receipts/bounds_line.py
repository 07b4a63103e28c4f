"""The line below an answer on what bounds keep: the parts that are counted, with joins and the weights of people.

Weights concern quantiles and averages whose rows of a unit AUTO bounds.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from dpsql.receipts import coverage_words, left_out_words, phrases, screen_words, words
from dpsql.receipts.coverage_lines import CoverageReceipt

SINGLE_ROW = words.SINGLE_ROW.partition(" (")[0]
"""Beginning of a note about a join that takes one row of each unit from some tables."""
_WORD = r"[a-z]{2,20}"
_WEIGHTS = re.compile(r".+ (is|are) (of at most [\d,]+ rows? of .+): .+ weigh no more")


def counted_parts(coverage: Sequence[CoverageReceipt], receipt_at: str) -> Iterator[str]:
    """Yield wordings of the part that is counted, the worst column first.

    Args:
        coverage: of all columns that have some.
        receipt_at: where the reader finds the receipt.

    """
    worst, *others = sorted(coverage, key=lambda one: one.sureness)
    more = f"; {screen_words.MORE.format(count=len(others), receipt_at=receipt_at)}" if others else ""
    if worst.values:
        if others:
            yield "; ".join(map(_whole, (worst, *others)))
        for wording in worst.wordings():
            yield f"{wording}{more}"
            yield wording
        return
    if worst.unknown:
        see = coverage_words.SEE.format(receipt_at=receipt_at)
        yield f"{_whole(worst)}{more}"
        yield f"{coverage_words.UNKNOWN.format(of=worst.of, why=see)}{more}"
        yield coverage_words.UNKNOWN.format(of=coverage_words.ONE_COLUMN, why=see)
        return
    kept = list(map(_whole, (worst, *others)))
    if others:
        yield "; ".join(kept)
    yield f"{kept[0]}{more}"
    yield kept[0]
    for shorter in (_kept(worst, ""), _kept_short(worst)):
        for theirs in (coverage_words.THEIRS, coverage_words.THEIRS_UNTOLD, coverage_words.THEIRS_SHORT):
            yield "; ".join([shorter, *_beyond(worst, theirs)])
    yield "; ".join([_kept_short(worst), *_beyond(worst, "", "")])
    short_of = coverage_words.UP_TO_SIZE.format(low=phrases.at_least(worst.low), size=f"{worst.size:,.9g}")
    yield "; ".join([short_of if worst.beyond else _kept_short(worst), *_beyond(worst, "", "")])


def _whole(coverage: CoverageReceipt) -> str:
    """Say which part of one column is counted, and how many units have more."""
    if coverage.values:
        return next(coverage.wordings())
    if coverage.unknown:
        return coverage_words.UNKNOWN.format(of=coverage.of, why=coverage.unknown)
    return "; ".join([_kept(coverage), *_beyond(coverage)])


def _kept(coverage: CoverageReceipt, unit: str | None = None) -> str:
    """Say which part of one column is counted; an empty unit is left out."""
    has_high = not coverage.beyond and coverage.high <= phrases.TOLD_HIGH
    ends = coverage_words.ENDS_OF_SHARE if has_high else coverage_words.LOW_OF_SHARE
    told = ends.format(low=phrases.at_least(coverage.low), high=phrases.at_most(coverage.high))
    return coverage.counted(told, coverage.unit if unit is None else unit, coverage.size if coverage.beyond else None)


def _kept_short(coverage: CoverageReceipt) -> str:
    """Say which part of one column is counted, without its name."""
    name = coverage_words.OF_COLUMN.format(column=phrases.column_of(coverage.of))
    no_name = coverage_words.OF_COLUMN.format(column=coverage_words.ONE_COLUMN)
    return _kept(coverage, "").replace(name, no_name, 1)


def _beyond(
    coverage: CoverageReceipt, known: str = coverage_words.THEIRS, unknown: str = coverage_words.THEIRS_UNKNOWN
) -> Iterator[str]:
    """Say how many units have more than the size that the kept part is about, if noise does not hide them.

    Args:
        coverage: of one column.
        known: row for the part of all that these units have.
        unknown: row for a part that is not known.

    """
    if coverage.least_beyond:
        theirs = known if coverage.part_beyond >= phrases.LEAST_PART else unknown
        part = theirs.format(part=phrases.at_least(coverage.part_beyond))
        yield f"{coverage_words.MORE_THAN_THAT.format(count=coverage.least_beyond)}{part}"


def is_warning(coverage: Sequence[CoverageReceipt]) -> bool:
    """Check that something is known or feared to be missing."""
    return any(one.least_beyond or one.unknown or one.cut for one in coverage)


def with_joins(notes: Sequence[str], wordings: Sequence[str], *, warns: bool) -> Iterator[str]:
    """Yield wordings of the line of bounds that also say which rows a join may leave out.

    >>> notes = [words.SINGLE_ROW.format(unit="person", tables="main.people")]
    >>> list(with_joins(notes, ["at least 97 % of rows are counted"], warns=False))[1]
    'only 1 row of a unit joins from main.people (the rest is unknown); at least 97 % of rows are counted'

    Args:
        notes: the notes of a receipt, at least one of them about such a join.
        wordings: wordings of the part that bounds keep; empty if nothing is known of it.
        warns: the wordings warn that bounds leave out much. Then they come first, and are shortened for nothing else.

    """
    single = [note for note in notes if note.startswith(SINGLE_ROW)]
    tables = phrases.listed([note.partition(" from ")[2].partition(";")[0] for note in single])
    short = f"only 1 row of a unit joins from {tables}"
    leads = ["; ".join(single), f"{short} (the rest is unknown)", short]
    if warns:
        yield from (f"{wordings[0]}; {lead}" for lead in leads)
        yield from wordings
    yield from (f"{lead}; {one}" for one in wordings for lead in leads)
    yield from leads


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
    note = next((one for one in notes if _WEIGHTS.fullmatch(one)), None)
    if note is None:
        yield from wordings
        return
    found = _WEIGHTS.fullmatch(note)
    most = found.group(2) if found else ""
    own = dict.fromkeys((note, note.rpartition(": ")[0], f"numbers are {most}"))
    for wording in wordings:
        yield from (f"{one}; {wording}" for one in own)
    yield from own
