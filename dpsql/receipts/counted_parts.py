"""Wordings of the line below an answer on the parts of its columns that are counted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dpsql.receipts import phrases, words
from dpsql.receipts.coverage_lines import CoverageReceipt


def counted_parts(coverage: Sequence[CoverageReceipt], receipt_at: str) -> Iterator[str]:
    """Yield wordings of the part that is counted, the worst column first.

    Args:
        coverage: of all columns that have some.
        receipt_at: where the reader finds the receipt.

    """
    worst, *others = sorted(coverage, key=lambda one: one.sureness)
    more = f"; {words.MORE.format(count=len(others), receipt_at=receipt_at)}" if others else ""
    if worst.values:
        if others:
            yield "; ".join(map(_whole, (worst, *others)))
        for wording in worst.wordings():
            yield f"{wording}{more}"
            yield wording
        return
    if worst.unknown:
        yield f"{words.UNKNOWN.format(of=worst.of, why=worst.unknown)}{more}"
        yield f"{words.UNKNOWN.format(of=worst.of, why=words.SEE.format(receipt_at=receipt_at))}{more}"
        yield words.UNKNOWN.format(of=words.ONE_COLUMN, why=words.SEE.format(receipt_at=receipt_at))
        return
    kept = list(map(_whole, (worst, *others)))
    if others:
        yield "; ".join(kept)
    yield f"{kept[0]}{more}"
    yield kept[0]
    for shorter in (_kept(worst, ""), _kept_short(worst)):
        for theirs in (words.THEIRS, words.THEIRS_UNTOLD, words.THEIRS_SHORT):
            yield "; ".join([shorter, *_beyond(worst, theirs)])
    yield "; ".join([_kept_short(worst), *_beyond(worst, "", "")])
    short_of = words.UP_TO_SIZE.format(low=phrases.at_least(worst.low), size=f"{worst.size:,.9g}")
    yield "; ".join([short_of if worst.beyond else _kept_short(worst), *_beyond(worst, "", "")])


def _whole(coverage: CoverageReceipt) -> str:
    """Say which part of one column is counted, and how many units have more."""
    if coverage.values:
        return next(coverage.wordings())
    if coverage.unknown:
        return words.UNKNOWN.format(of=coverage.of, why=coverage.unknown)
    return "; ".join([_kept(coverage), *_beyond(coverage)])


def _kept(coverage: CoverageReceipt, unit: str | None = None) -> str:
    """Say which part of one column is counted; an empty unit is left out."""
    unit = coverage.unit if unit is None else unit
    low = phrases.at_least(coverage.low)
    if coverage.beyond:
        return coverage.counted(words.LOW_OF_SHARE.format(low=low), unit, coverage.size)
    if coverage.high <= phrases.TOLD_HIGH:
        return coverage.counted(words.ENDS_OF_SHARE.format(low=low, high=phrases.at_most(coverage.high)), unit, None)
    return coverage.counted(words.LOW_OF_SHARE.format(low=low), unit, None)


def _kept_short(coverage: CoverageReceipt) -> str:
    """Say which part of one column is counted, without its name."""
    name, no_name = (words.OF_COLUMN.format(column=one) for one in (phrases.column_of(coverage.of), words.ONE_COLUMN))
    return _kept(coverage, "").replace(name, no_name, 1)


def _beyond(coverage: CoverageReceipt, known: str = words.THEIRS, unknown: str = words.THEIRS_UNKNOWN) -> Iterator[str]:
    """Say how many units have more than the size that the kept part is about, if noise does not hide them.

    Args:
        coverage: of one column.
        known: row for the part of all that these units have.
        unknown: row for a part that is not known.

    """
    if coverage.least_beyond:
        theirs = known if coverage.part_beyond >= phrases.LEAST_PART else unknown
        part = theirs.format(part=phrases.at_least(coverage.part_beyond))
        yield f"{words.MORE_THAN_THAT.format(count=coverage.least_beyond)}{part}"


def is_warning(coverage: Sequence[CoverageReceipt]) -> bool:
    """Check that something is known or feared to be missing."""
    return any(one.least_beyond or one.unknown or one.cut for one in coverage)
