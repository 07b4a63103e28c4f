"""Lines below a printed answer: at most four, each of at most 100 characters. The receipt says all else.

A line has several wordings, the longest first, and is printed in the first one that fits. No wording claims more than
the receipt does.
"""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from dpsql.pictures.tables import short
from dpsql.receipts import left_out_words, phrases, screen_words, words
from dpsql.receipts.bounds_line import SINGLE_ROW, counted_parts, is_warning, with_joins, with_weights
from dpsql.receipts.coverage_lines import CoverageReceipt
from dpsql.receipts.epsilon_price import charged_epsilon
from dpsql.receipts.printed_table import PrintedTable
from dpsql.receipts.receipt import Receipt
from dpsql.receipts.sentence import Sentence

MOST_LINES = 4
MOST_CHARACTERS = 100
_HEAD = 8
"""Characters of the word that a line begins with, with the spaces after it."""
_MOST = 0.9
"""If a smaller part of the groups of people is counted, a warning about another number names that of people."""
_TOO_LOW = "too low"
"""The word that a warning begins with. Below an answer with it, all lines have one more space after their word."""


@dataclass(frozen=True, slots=True)
class Standing:
    """The budget of a unit after an answer, for one reader.

    Attributes:
        epsilon_spent, epsilon_budget: of all readers together.
        rho_spent, rho_budget: likewise.
        questions_left: how often the reader can ask this question of other data; None if it is not known.

    """

    epsilon_spent: float
    epsilon_budget: float
    rho_spent: float
    rho_budget: float
    questions_left: int | None

    def amounts(self, *, by_epsilon: bool) -> tuple[str, float, float]:
        """Return the name of a level, how much of it is spent, and how much there is."""
        if by_epsilon:
            return "epsilon", self.epsilon_spent, self.epsilon_budget
        return "rho", self.rho_spent, self.rho_budget


@dataclass(frozen=True, slots=True)
class Part:
    """One thing that is said below an answer.

    Attributes:
        head: the word that it begins with.
        wordings: its texts, the longest first.
        most: most lines that it may take.

    """

    head: str
    wordings: Sequence[str]
    most: int = 1

    def lines(self, head: int = _HEAD) -> list[str]:
        """Return the first wording that fits, in lines; or of the last wording the first clauses that do.

        Args:
            head: characters of the word that the first line begins with, with the spaces after it.

        """
        for wording in self.wordings:
            found = textwrap.wrap(
                wording,
                MOST_CHARACTERS,
                initial_indent=f"{self.head:<{head}}",
                subsequent_indent=" " * head,
                break_on_hyphens=False,
            )
            if len(found) <= self.most:
                return found
        return [phrases.clauses_within(f"{self.head:<{head}}{wording}", MOST_CHARACTERS)]


@dataclass(frozen=True, slots=True)
class _Arrangement:
    """Places of the parts: how many lines each may take, and which parts are joined to others.

    Attributes:
        first: most lines on what an answer lacks.
        bounds: most lines on what bounds keep.
        joins_notes: whether the number of notes stands in the line of the price.
        groups: whether the rule by which groups are shown has a line.
        joins_nulls: whether columns with NULL stand in the line of the error.
        others: whether coverage of other columns has a line beside that of rows left out.
        joins_whole: whether the factor of an estimate stands in the line that warns of numbers that are too low.

    """

    first: int
    bounds: int
    joins_notes: bool
    groups: bool
    joins_nulls: bool
    others: bool = True
    joins_whole: bool = False


_ARRANGEMENTS = (
    _Arrangement(2, 2, joins_notes=False, groups=True, joins_nulls=False),
    _Arrangement(2, 2, joins_notes=True, groups=True, joins_nulls=False),
    _Arrangement(2, 2, joins_notes=True, groups=False, joins_nulls=False),
    _Arrangement(2, 2, joins_notes=True, groups=False, joins_nulls=True),
    _Arrangement(2, 1, joins_notes=True, groups=False, joins_nulls=True),
    _Arrangement(1, 1, joins_notes=True, groups=False, joins_nulls=True),
    _Arrangement(1, 1, joins_notes=True, groups=False, joins_nulls=True, others=False),
    _Arrangement(1, 1, joins_notes=True, groups=False, joins_nulls=True, others=False, joins_whole=True),
)
"""In the order in which they are tried. The last one has four lines at most."""


@dataclass(frozen=True, slots=True)
class Screen:
    """Facts of which the lines below an answer are made.

    Attributes:
        receipt: of the answer.
        printed: how its table shows intervals.
        unknown: columns with NULL because their intervals say nothing, and the domains that these cover.
        standing: the unit's budget; None if it is not known here.
        receipt_at: where the reader finds the receipt.
        threshold_digits: digits of the threshold that count.
        has_others: whether the answer has numbers that are computed, beside its counts, sums and averages.
        shown: columns of the answer; None if they are not known here.

    """

    receipt: Receipt
    printed: PrintedTable
    unknown: Mapping[str, str]
    standing: Standing | None
    receipt_at: str
    threshold_digits: int = 4
    has_others: bool = False
    shown: Collection[str] | None = None

    def lines(self) -> list[str]:
        """Return the lines."""
        found: list[str] = []
        for arrangement in _ARRANGEMENTS:
            parts = list(self._parts(arrangement))
            head = _HEAD + any(part.head == _TOO_LOW for part in parts)
            found = [line for part in parts for line in part.lines(head)]
            if len(found) <= MOST_LINES:
                break
        return found

    def _parts(self, places: _Arrangement) -> Iterator[Part]:
        """Yield the parts, the most important ones first."""
        receipt, rows = self.receipt, self.printed.rows
        missed = [phrases.shortfall(note) for note in receipt.missing if phrases.says_missed(note)]
        nulls, within = list(self._nulls()), self._within()
        if receipt.nothing_shown:
            yield Part("nothing", self._sentences(receipt.nothing_shown, screen_words.NOTHING), places.first)
        if rows:
            yield from self._too_low(places)
        if missed and not receipt.nothing_shown:
            yield Part("missed", self._sentences(missed, screen_words.MISSED), places.first)
        if rows:
            if within:
                yield Part("within", left_out_words.within_wordings(within))
            if nulls and not places.joins_nulls:
                yield Part("null", nulls, places.first)
            beside = self.has_others or not self.printed.has_half_widths
            if error := self._error_beside(places) if beside else self._error():
                joins = nulls and places.joins_nulls
                yield Part("error", phrases.with_reason(error, self._also_null()) if joins else error)
            yield from self._extremes(places) if self.has_others else ()
            yield from self._bounds_parts(places)
        # a note that has a line does not count; one with the reason of NULL does if it is not printed
        count = self._unsaid(places) + sum(
            not phrases.says_missed(note) and note != within and (places.joins_nulls or not phrases.says_null(note))
            for note in receipt.notes
        )
        yield Part("price", self._price(count if places.joins_notes else 0))
        if places.groups and receipt.threshold is not None:
            rule = screen_words.GROUPS_ABOVE_LARGEST if receipt.is_relative else screen_words.GROUPS_ABOVE
            yield Part("groups", [rule.format(threshold=short(receipt.threshold, self.threshold_digits))])
        if count and not places.joins_notes:
            yield Part("notes", [screen_words.NOTES_ALONE.format(count=count, receipt_at=self.receipt_at)])

    def _extremes(self, places: _Arrangement) -> Iterator[Part]:
        """Yield which columns are quantiles in place of extremes, if there is room for a line."""
        if places.others and (found := phrases.extremes(self.receipt.notes)):
            yield Part("extreme", found)

    def _too_low(self, places: _Arrangement) -> Iterator[Part]:
        """Yield the warning that numbers are too low, and the estimate of the whole."""
        found, rows = self.receipt.all_left_out, self.printed.rows
        write = left_out_words.too_low_and_whole if places.joins_whole else left_out_words.too_low
        if not (places.others or places.joins_whole):
            write = partial(left_out_words.too_low, others=self._people_that_may_lack())
        if warnings := write(found, rows):
            yield Part(_TOO_LOW, warnings)
            if not places.joins_whole:
                is_named = self.has_others or len(self.receipt.columns) > 1
                yield Part("whole", left_out_words.whole(found, is_named=is_named))

    def _people_that_may_lack(self) -> list[str]:
        """Return the columns with numbers of people of which much may be missing."""
        lacks = any(
            one.measured == "groups" and (one.unknown or one.low < _MOST) for one in _all_coverage(self.receipt)
        )
        return [one.name for one in self.receipt.columns if one.aggregate.startswith("count(DISTINCT")] if lacks else []

    def _within(self) -> str:
        """Return the reason why truth values about a target are NULL; empty if another line says it."""
        within = [note for note in self.receipt.missing if left_out_words.says_within(note)]
        return within[0] if within and self.printed.rows and not self.receipt.is_too_low else ""

    def _bounds_parts(self, places: _Arrangement) -> Iterator[Part]:
        """Yield what bounds may leave out of counts and sums, and what they keep of other columns."""
        receipt, coverage, single = self.receipt, _all_coverage(self.receipt), self._has_single_row()
        others = list(counted_parts(coverage, self.receipt_at)) if coverage else []
        own = left_out_words.bounds(receipt.all_left_out, is_named=bool(others)) if receipt.all_left_out else []
        if receipt.is_too_low or left_out_words.says_rows_within(self._within()):
            own = []
        if not places.others:
            # at most one line is left, for the one that warns
            if receipt.is_too_low or self._unsaid(places):
                others, single = [], False
            elif others:
                own = []
        if own and (others or not single):
            yield Part("bounds", own)
        if others or single:
            known, warns = others or own, is_warning(coverage)
            found = list(with_joins(receipt.notes, known, warns=warns)) if single else known
            weighed = list(with_weights(receipt.notes, found))
            yield Part("bounds", weighed, places.bounds if single or warns or weighed != found else 1)
        elif weighed := list(with_weights(receipt.notes, [])):
            yield Part("bounds", weighed)

    def _has_single_row(self) -> bool:
        """Check that a join takes one row of each unit."""
        return SINGLE_ROW in " ".join(self.receipt.notes)

    def _unsaid(self, places: _Arrangement) -> int:
        """Return the number of other columns whose coverage has no line, but would have one if there was room."""
        coverage = _all_coverage(self.receipt)
        if places.others or not self.printed.rows:
            return 0
        is_alone = not self.receipt.all_left_out or is_warning(coverage) or self._has_single_row()
        return 0 if is_alone and not (self.receipt.is_too_low or self._within()) else len(coverage)

    def _sentences(self, sentences: Sequence[str], otherwise: Sentence) -> list[str]:
        """Return wordings of some sentences: the first one, then without its last clauses, then a fixed text."""
        first, *others = sentences
        more = f"; {screen_words.MORE.format(count=len(others), receipt_at=self.receipt_at)}" if others else ""
        clauses = first.split("; ")
        shorter = ["; ".join(clauses[:count]) for count in range(len(clauses), 0, -1)]
        return [*(f"{one}{more}" for one in shorter), otherwise.format(receipt_at=self.receipt_at)]

    def _also_null(self) -> str:
        """Return the reason of NULL in a few words."""
        unbounded = [note for note in self.receipt.missing if phrases.says_null(note)]
        return phrases.also_null(unbounded, is_unknown=bool(self.unknown))

    def _nulls(self) -> Iterator[str]:
        """Yield wordings of the reason why columns have NULL; none if no column has."""
        unbounded = [note for note in self.receipt.missing if phrases.says_null(note)]
        sentences = [words.UNKNOWN_IN.format(column=name, domain=domain) for name, domain in self.unknown.items()]
        if self.unknown and not unbounded:
            yield from sentences if len(sentences) == 1 else ()
            yield screen_words.ALL_UNKNOWN_IN.format(columns=phrases.listed(list(self.unknown)))
            yield screen_words.ALL_UNKNOWN_IN.format(columns=f"{len(sentences)} columns")
        elif unbounded:
            yield from self._sentences([*unbounded, *sentences], screen_words.NULLS)

    def _error_beside(self, places: _Arrangement) -> list[str]:
        """Return wordings of the coverage of intervals, beside numbers without one and quantiles without a line."""
        printed, known, without = self.printed, self._error(), phrases.no_interval(self.receipt.notes)
        extremes = [] if places.others else phrases.extremes(self.receipt.notes)
        if not (without or extremes):
            return known
        if not (printed.has_half_widths or printed.has_ends or printed.end_columns):
            # the widths of numbers that the answer does not show would seem to be those of numbers that it shows
            return without or extremes
        known.append(known[-1].replace(screen_words.PROBABILITY, screen_words.PROBABILITY_SHORT))
        if not extremes:
            return phrases.with_others(known, without)
        return [f"{one}; {other}" for one in extremes for other in (*known, screen_words.HOLD)]

    def _error(self) -> list[str]:
        """Return wordings of the coverage of intervals; empty if no interval is known."""
        printed = self.printed
        ends = [screen_words.HALF_WIDTHS] * printed.has_half_widths + [screen_words.ENDS] * printed.has_ends
        wordings = []
        if printed.end_columns:
            named, some = [*ends, *printed.end_columns], [*ends, screen_words.END_COLUMNS]
            wordings = [screen_words.COVER.format(intervals=phrases.listed(one)) for one in (named, some)]
        elif ends:
            verb = screen_words.COVERS if ends == [screen_words.HALF_WIDTHS] else screen_words.COVER
            wordings = [verb.format(intervals=phrases.listed(ends))]
        else:
            widths = [
                screen_words.WIDTH.format(half_width=short(column.half_width_95), column=column.name)
                for column in self.receipt.columns
                if column.half_width_95 is not None and (self.shown is None or column.name in self.shown)
            ]
            if not widths:
                return []
            shown = [", ".join(widths[:count]) for count in range(len(widths), 0, -1)]
            wordings = [screen_words.WIDTHS.format(widths=one) for one in shown]
        notes = [*self.receipt.notes, *(note for one in self.receipt.sets for note in one.receipt.notes)]
        if less := phrases.less_for(notes):
            wordings.append(screen_words.COVER.format(intervals=screen_words.ALL_INTERVALS))
            wordings = [f"{one}{end}" for one in wordings for end in (less, screen_words.LESS_FOR_SOME)]
        if not _all_coverage(self.receipt):
            if self.receipt.is_too_low:
                return [f"{one}{screen_words.NOT_LEFT_OUT}" for one in wordings]
            if not self.receipt.all_left_out:
                return wordings
        return [f"{one}{but}" for one in wordings for but in (screen_words.NOT_BOUNDS, screen_words.NOT_CUT)]

    def _price(self, count: int) -> list[str]:
        """Return wordings of the price, the spent budget, how often it can be paid again, and a count of notes."""
        receipt, standing = self.receipt, self.standing
        price = _charged(receipt) if receipt.amount == "rho" else charged_epsilon(receipt)
        sentence = screen_words.NOTES if count > 1 else screen_words.ONE_NOTE
        notes = [sentence.format(count=count, receipt_at=self.receipt_at)] * bool(count)
        shortest = price.replace(screen_words.CHARGED_FOR.format(charged="", level=""), ", for ")
        if standing is None:
            price += f"; {screen_words.FOR_EACH_UNIT.format(units=units)}" if (units := _units(receipt)) else ""
            return [*_wordings([price], notes), shortest]
        level, spent, budget = standing.amounts(by_epsilon=receipt.asked_by != "rho")
        told = {"spent": f"{spent:.3g}", "budget": f"{budget:.4g}"}
        so_far, spent_short = screen_words.SPENT.format(level=level, **told), screen_words.SPENT_SHORT.format(**told)
        left = standing.questions_left
        with_room = [] if left is None else [f"{so_far}{_room(left)}"]
        if left is not None and price.startswith(level):
            # the line says before of what the budget is
            with_room.append(f"{spent_short}{_room_short(left)}")
        extras = [*([one, *notes] for one in with_room), [so_far, *notes], notes, []]
        return [*("; ".join([price, *extra]) for extra in extras), shortest]


def head_width(lines: Sequence[str]) -> int:
    """Return the characters of the word that lines below an answer begin with, with the spaces after it."""
    return _HEAD + any(line.startswith(_TOO_LOW) for line in lines)


def _room(left: int) -> str:
    """Say how often a question can be asked again of other data."""
    if not left:
        return screen_words.NO_ROOM
    return screen_words.ROOM_FOR_ONE if left == 1 else screen_words.ROOM.format(count=left)


def _room_short(left: int) -> str:
    """Say it in fewer words."""
    return screen_words.ROOM_SHORT.format(count=left) if left > 1 else _room(left)


def _charged(receipt: Receipt) -> str:
    """Return the price in the words of the question: epsilon if it asked by epsilon, else rho."""
    guaranteed = screen_words.GUARANTEE.format(epsilon=f"{receipt.epsilon:.4g}", delta=f"{receipt.delta:.3g}")
    rho = receipt.rho if receipt.most_rho is None else receipt.most_rho
    level = phrases.charged_amount(rho, 0.0) if receipt.asked_by == "rho" else guaranteed
    if receipt.most_rho is not None:
        level = screen_words.AT_MOST.format(level=level)
    if receipt.reused:
        return screen_words.STORED.format(level=level)
    charged = phrases.charged_amount(receipt.charged_rho, receipt.charged_delta)
    if phrases.is_level(receipt.charged_rho, rho):
        return charged if receipt.asked_by == "rho" else guaranteed
    return screen_words.CHARGED_FOR.format(charged=charged, level=level)


def _units(receipt: Receipt) -> str:
    """Return the units whose budgets paid; an empty text if it is one."""
    begin = words.OF_UNIT.partition("{")[0]
    return phrases.listed(receipt.unit.split(", ")) if any(note.startswith(begin) for note in receipt.notes) else ""


def _all_coverage(receipt: Receipt) -> list[CoverageReceipt]:
    """Return the coverage of an answer and of its grouping sets."""
    return [*receipt.coverage, *(kept for one in receipt.sets for kept in one.receipt.coverage)]


def _wordings(mains: Sequence[str], extras: Sequence[str]) -> list[str]:
    """Return each main text with all extras; and last the shortest main text alone."""
    return [*("; ".join([main, *extras]) for main in mains), *mains[-1:]]
