"""Coverage of one number in a receipt, and its wordings.

Those of averages, spreads and sums of both signs speak of rows that are counted, or of totals of a unit, and of values
that are cut at the bounds. The warning comes first, then number and reason.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from dpsql.receipts import coverage_words, phrases

_UNKNOWN = 1.0
"""The share of units with cut values if nothing is known of it."""
_GOOD = 0.9
"""Columns of which at least this share is left have no order: noise alone would say which is the worst."""


@dataclass(frozen=True, slots=True)
class CoverageReceipt:
    """Coverage of one number: noisy numbers on what bounding leaves, released and paid for like those of the answer.

    All numbers of all coverage of one answer, but for ``share``, are true together with probability 95 %.

    Attributes:
        of: ``groups``, ``rows``, or the aggregate that adds them up.
        unit: whose.
        share: estimate of the part that is left, over units up to ``size``; None where it is unknown.
        low, high: the ends of its interval.
        size: number of groups or rows, or amount, up to which a unit's is told apart.
        least_beyond, beyond: fewest and most units with more than that; what bounds keep of theirs is not known.
        part_beyond: least part that they have of all that there is.
        high_of_all: most that bounds keep of all that there is; 1 where nothing is known.
        advice: where ``low`` is less than 95 %, what to write for more, and what that costs.
        unknown: why nothing is known, and what to write to know more; else empty.
        measured: noun of the parts and of the size: ``groups``, ``rows``, or ``totals`` of the values of a unit, whose
            absolute values are added up if ``values`` is given. An older server leaves it empty.
        values: of an average, a spread or a sum of both signs, the noun of what bounds cut: ``values``, or ``totals``
            of a unit. Empty for others, and from an older server. If it is given, a ``share`` of None without
            ``unknown`` means that all rows are counted or have a line of their own.
        cut: how bounds change ``values`` outside of them; empty if they change none for sure.
        most_cut: largest share of the units with values that may have some of these; 1 if nothing is known.
        cut_is_hidden: whether ``most_cut`` is 1 because of noise. Else nobody measured it.
        declared: the bounds of the values of an average, if policy or types say that all values lie within them.
        high_of_sum: of an average, the most that bounds keep of what its values add up to; 1 if nothing is known.

    """

    of: str
    unit: str
    share: float | None = None
    low: float = 0.0
    high: float = 1.0
    size: float = 0.0
    least_beyond: int = 0
    beyond: int = 0
    part_beyond: float = 0.0
    high_of_all: float = 1.0
    advice: str = ""
    unknown: str = ""
    measured: str = ""
    values: str = ""
    cut: str = ""
    most_cut: float = 0.0
    cut_is_hidden: bool = False
    declared: str = ""
    high_of_sum: float = 1.0

    def __str__(self) -> str:
        if self.values:
            return _named(self, [*_parts(self), self.advice])
        if self.unknown:
            return coverage_words.COUNTED_UNKNOWN.format(of=self.of, why=self.unknown)
        kept = self.counted(phrases.between(self.low, self.high), self.unit, self.size)
        more = phrases.units_beyond(self.least_beyond, self.beyond, self.part_beyond) if self.beyond else ""
        is_told = self.high_of_all <= phrases.TOLD_HIGH
        of_all = self.counted(f"at most {phrases.at_most(self.high_of_all)}", "", None) if is_told else ""
        return "; ".join(filter(None, [kept, more, of_all, self.advice]))

    @property
    def sureness(self) -> tuple[bool, bool, bool, float]:
        """Return a key that sorts coverage, the one that says least about all units first.

        A count or a sum that lacks rows comes before an average, whose value need not be too low for that.
        """
        kept = self.low * (1.0 - self.part_beyond) if self.share is not None or not self.values else 1.0
        kept = min(kept * (1.0 - self.most_cut), self.high_of_all, self.high_of_sum)
        is_number = not self.values and (self.least_beyond > 0 or kept < _GOOD)
        return not self.unknown, not is_number, not self.least_beyond, min(kept, _GOOD)

    def wordings(self) -> Iterator[str]:
        """Yield wordings of the coverage of an average, a spread or a sum of both signs, the longest first.

        None claims more than the sentence of the receipt does.
        """
        yield _named(self, _parts(self))
        rows, cut, briefest = list(_rows_short(self)), _cut_short(self), _cut_short(self, brief=True)
        if not _warns(self):
            yield _named(self, [cut, *rows])
            short = [briefest or rows[0]]
        else:
            yield _named(self, [*rows, cut])
            yield _named(self, [*rows[:1], cut])
            yield _named(self, [*rows[:1], briefest])
            short = [*rows[:1], briefest]
            if self.least_beyond:
                nouns = self.measured.split(maxsplit=1)[0]
                short[0] = coverage_words.MAY_LACK.format(least=self.least_beyond, nouns=nouns)
        yield _named(self, short)
        yield f"{coverage_words.OF_COLUMN.format(column=coverage_words.ONE_COLUMN)}{'; '.join(filter(None, short))}"
        yield _named(self, short[:1])
        yield short[0]

    def counted(self, ends: str, unit: str, size: float | None) -> str:
        """Say which part of the column is counted, of units up to a size or of all."""
        measured = self.measured or (self.of if self.of in ("rows", "groups") else "totals")
        return phrases.counted(ends, self.of, measured, unit, size)


def _named(one: CoverageReceipt, parts: list[str]) -> str:
    """Return parts of a sentence with the columns before them."""
    return f"{coverage_words.OF_COLUMN.format(column=phrases.column_of(one.of))}{'; '.join(filter(None, parts))}"


def _warns(one: CoverageReceipt) -> bool:
    """Check that rows, or totals, are known or feared to be missing."""
    return bool(one.unknown or one.least_beyond) or one.high_of_all <= phrases.TOLD_HIGH


def _parts(one: CoverageReceipt) -> list[str]:
    """Return what is said of rows and of values, the warning first."""
    rows, cut = list(_rows(one)), list(_cut(one))
    return [*rows, *cut] if _warns(one) else [*cut, *rows]


def _nouns(one: CoverageReceipt) -> str:
    """Return the noun of what is counted."""
    if one.measured == "rows":
        return coverage_words.ITS_ROWS.format()
    return coverage_words.BY_SIZE.format(nouns=one.measured)


def _rows(one: CoverageReceipt) -> Iterator[str]:
    """Yield what is known of rows or totals; nothing if they are all counted, or have a line of their own."""
    nouns, unit = _nouns(one), f" ({one.unit})"
    if one.unknown:
        yield coverage_words.COUNTED_UNKNOWN.format(of=nouns, why=one.unknown)
    if one.share is None:
        return
    if one.high_of_all <= phrases.TOLD_HIGH:
        yield coverage_words.AT_MOST_OF_ALL.format(high=phrases.at_most(one.high_of_all), nouns=nouns)
    if one.least_beyond:
        known = {"least": one.least_beyond, "most": one.beyond, "unit": unit, "more": _more(one)}
        if one.part_beyond >= phrases.LEAST_PART:
            yield coverage_words.HAVE_PART.format(part=phrases.at_least(one.part_beyond), **known)
        else:
            yield coverage_words.PART_HIDDEN.format(**known)
        yield coverage_words.OF_OTHERS.format(ends=_ends(one), nouns=nouns)
        return
    yield _of_units(one, unit)
    if one.beyond:
        yield coverage_words.MAYBE_BEYOND.format(most=one.beyond)


def _rows_short(one: CoverageReceipt) -> Iterator[str]:
    """Yield what is known of rows or totals in fewer words."""
    if one.unknown:
        yield coverage_words.UNKNOWN_SHORT.format(nouns=_nouns(one))
    if one.share is None:
        return
    if one.high_of_all <= phrases.TOLD_HIGH:
        yield coverage_words.AT_MOST_OF_ALL.format(high=phrases.at_most(one.high_of_all), nouns=_nouns(one))
    if one.least_beyond and one.part_beyond >= phrases.LEAST_PART:
        yield coverage_words.HAVE_PART_SHORT.format(
            least=one.least_beyond, more=_more(one), part=phrases.at_least(one.part_beyond)
        )
    elif one.least_beyond:
        yield coverage_words.PART_HIDDEN_SHORT.format(least=one.least_beyond, more=_more(one))
    if not _warns(one):
        yield _of_units(one, "")


def _ends(one: CoverageReceipt) -> str:
    """Return the ends of the share of units up to the size, the upper one first if it says something."""
    if one.high > phrases.TOLD_HIGH:
        return coverage_words.LOW_OF_SHARE.format(low=phrases.at_least(one.low))
    return coverage_words.AT_MOST_AND.format(high=phrases.at_most(one.high), low=phrases.at_least(one.low))


def _of_units(one: CoverageReceipt, unit: str) -> str:
    """Say what is counted of units up to the size."""
    size = f"{one.size:,.9g}"
    if one.measured != "rows":
        up_to = coverage_words.UP_TO_TOTALS.format(size=size)
    elif one.size == 1.0:
        up_to = coverage_words.UP_TO_ROW.format()
    else:
        up_to = coverage_words.UP_TO_ROWS.format(size=size)
    return coverage_words.OF_UNITS.format(ends=_ends(one), nouns=_nouns(one), unit=unit, size=up_to)


def _more(one: CoverageReceipt) -> str:
    """Say how much units beyond the size have."""
    row, nouns = coverage_words.TOTALS_ABOVE, "totals"
    if one.measured == "rows":
        row, nouns = coverage_words.ROWS_ABOVE, _nouns(one)
    return row.format(size=f"{one.size:,.9g}", nouns=nouns)


def _cut(one: CoverageReceipt) -> Iterator[str]:
    """Yield what is known of values that bounds cut; nothing if none is cut for sure."""
    if one.high_of_sum <= phrases.TOLD_HIGH:
        yield coverage_words.SUM_OF_ALL.format(high=phrases.at_most(one.high_of_sum))
    if one.declared:
        yield coverage_words.OTHERS_CUT.format(bounds=one.declared)
    if not one.cut:
        return
    if one.most_cut < _UNKNOWN:
        yield coverage_words.MAY_CUT.format(
            share=phrases.at_most(one.most_cut),
            unit=f" ({one.unit})",
            owned=one.values.split(maxsplit=1)[0],
            nouns=one.values,
            cut=one.cut,
        )
        return
    unknown = coverage_words.UNKNOWN_CUT.format(nouns=one.values, cut=one.cut)
    yield coverage_words.NOISE_HIDES.format(unknown=unknown) if one.cut_is_hidden else unknown


def _cut_short(one: CoverageReceipt, *, brief: bool = False) -> str:
    """Say what is known of values that bounds cut in fewer words; ``brief`` leaves out the bounds."""
    if one.high_of_sum <= phrases.TOLD_HIGH:
        return coverage_words.SUM_OF_ALL.format(high=phrases.at_most(one.high_of_sum))
    if not one.cut:
        # declared bounds are no warning beside one
        is_told = one.declared and not _warns(one)
        return coverage_words.OTHERS_CUT.format(bounds=one.declared) if is_told else ""
    cut = one.cut.partition(" at ")[0] if brief else one.cut
    nouns = one.values.split(maxsplit=1)[0] if brief else one.values
    if one.most_cut < _UNKNOWN:
        return coverage_words.MAY_CUT_SHORT.format(share=phrases.at_most(one.most_cut), nouns=nouns, cut=cut)
    return coverage_words.CUT_NOT_KNOWN.format(nouns=nouns, cut=cut)
