"""The receipt of an answer: which release it was, its price, and the size of its noise."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import Any

from dpsql.pictures.tables import short
from dpsql.receipts import left_out_words, phrases, words
from dpsql.receipts.coverage_lines import CoverageReceipt
from dpsql.release.left_out import LeftOut, LeftOutReceipt

_HIDING = ("gshm", "csh")
"""Mechanisms of private keys."""
_OF_PARTS = re.compile(r"\Apart \d+(, part \d+)*( and part \d+)?: ")
"""Begins a note on some parts of a text."""
_WEIGHTED = words.WEIGHTED.partition(",")[0]
"""Begins the note on weights of units in many groups."""


@dataclass(frozen=True, slots=True)
class ColumnReceipt:
    """The noise of one column.

    Attributes:
        name: name of the column in the result.
        aggregate: the aggregate it shows.
        bounds: public interval of what one unit adds to one group; None for averages.
        linf: most that one unit was assumed to move one group of the noised sum (after recentring).
        l2: the same over all groups of the unit, with max_groups groups.
        sigma: standard deviation of the shown value, the largest of all rows; None for averages, whose error depends on
            what is shown.
        half_width_95: half of the 95 % interval, likewise.
        lattice: step of the grid on which the noised sum lives.

    """

    name: str
    aggregate: str
    bounds: tuple[float, float] | None
    linf: float | None
    l2: float | None
    sigma: float | None
    half_width_95: float | None
    lattice: float | None


@dataclass(frozen=True, slots=True)
class SetReceipt:
    """The receipt of one grouping set, by its keys."""

    keys: tuple[str, ...]
    receipt: Receipt

    @property
    def name(self) -> str:
        """The keys as a list."""
        return ", ".join(self.keys)


@dataclass(frozen=True, slots=True)
class Receipt:
    """A record of a release, its price and its noise; a function of policy, text and past releases.

    Attributes:
        query_hash: identity of the statistics asked for.
        table, version, unit: which data, under whose budget.
        mechanism: ``gaussian``, ``correlated_gaussian`` or ``factorised_gaussian`` (public keys), ``gshm`` or ``csh``
            (private keys behind a threshold), ``discrete_correlated_gaussian`` where the noise is discrete,
            ``keys_first`` where keys are selected by releases of their own.
        rho: zCDP level of the numbers shown, whether paid now or before; where the keys beside them stem from a release
            at a higher level, notes name it. With `amount` "epsilon" it is an epsilon, as all fields called rho are.
        epsilon, delta: what numbers and keys shown guarantee together, by the exact joint analysis or, inside a window,
            from zCDP with the delta of all its thresholds.
        charged_rho, charged_delta: what this query took from the unit's budget.
        reused: whether everything was served from stored releases.
        max_groups: most groups that one unit was assumed (and made) to touch; None where it may touch any number.
        max_keys: most keys that have a count, whatever the data are (a public list, or top-k); None for any number.
        threshold: a key is shown if its noisy count of units exceeds this; None with public keys. Where max_keys bounds
            private keys: exceeds the largest group left out by more than this.
        columns: the noise per column.
        notes: rules that shaped the answer, as sentences.
        sets: of a query with several grouping sets, the receipt of each; of one with other_group that of the groups
            and that of the row, whose keys are (); of keys that are selected in rounds that of each round, by its
            number, and last that of the numbers, if there are any. What stands above is of all together, and of a
            column the largest.
        coverage: where it was asked for, what bounding leaves of what units have.
        nothing_shown: why the answer, or one of its grouping sets, has no groups, as sentences.
        asked_rho: zCDP level that was asked for; stored numbers of a higher level may serve it. None if a server of
            before does not tell it.
        asked_by: ``epsilon`` or ``rho``, by which the question asked for its level. None as for ``asked_rho``.
        most_rho: zCDP level that epsilon and delta cover if released values decided the level. That is the cap, or more
            if stored numbers of higher levels are shown. None if the text names the level.
        left_out: of each count and sum of one set of keys, how much bounds leave out of the shown groups; empty from a
            server of before.
        amount: what levels and charges are amounts of: ``rho``, or ``epsilon`` of a unit with composition = 'pure'.
            Records and JSON have it only if it is ``epsilon``. Where units of both kinds paid, it is ``rho``, and notes
            have the amounts of each.

    """

    query_hash: str
    table: str
    version: str
    unit: str
    mechanism: str
    rho: float
    epsilon: float
    delta: float
    charged_rho: float
    charged_delta: float
    reused: bool
    max_groups: int | None
    max_keys: int | None
    threshold: float | None
    columns: tuple[ColumnReceipt, ...]
    notes: tuple[str, ...]
    sets: tuple[SetReceipt, ...] = ()
    coverage: tuple[CoverageReceipt, ...] = ()
    nothing_shown: tuple[str, ...] = ()
    asked_rho: float | None = None
    asked_by: str | None = None
    most_rho: float | None = None
    left_out: tuple[LeftOutReceipt, ...] = ()
    amount: str = "rho"

    @property
    def is_relative(self) -> bool:
        """Return whether the threshold counts from the largest group left out. A list of keys leaves none out."""
        return self.max_keys is not None and self.mechanism in _HIDING

    @property
    def price(self) -> str:
        """Return the charge in words."""
        if self.reused:
            return words.NOTHING_CHARGED
        return phrases.charged_amount(self.charged_rho, self.charged_delta, self.amount)

    @property
    def sections(self) -> dict[str, tuple[str, ...]]:
        """Return all sentences of the receipt under five headings: price, privacy, keys, error, bounds."""
        found: dict[str, list[str]] = {
            "price": [self.price, *map(_set_price, self.sets)],
            "privacy": [*_privacy(self), *map(_set_level, self.sets)],
            "keys": [*self.nothing_shown, *_keys(self)],
            "error": list(map(_column_error, self.columns)),
            "bounds": list(self.kept),
        }
        for note in self.notes:
            heading = found[heading_of(note)]
            # a missed target stands first
            heading.insert(0 if phrases.says_missed(note) else len(heading), note)
        return {heading: tuple(sentences) for heading, sentences in found.items()}

    @property
    def kept(self) -> tuple[str, ...]:
        """Sentences on what bounds keep, of each grouping set, too: they stand beside the numbers everywhere."""
        rows = (f"{of_set}: " * bool(of_set) + left_out_words.sentence(one) for of_set, one in self.all_left_out)
        of_sets = (f"({one.name}): {kept}" for one in self.sets for kept in one.receipt.coverage)
        return (*rows, *map(str, self.coverage), *of_sets)

    @property
    def all_left_out(self) -> tuple[left_out_words.Named, ...]:
        """Rows left out of each number, of each grouping set, too, after its name if several have some.

        Those of a part of a text always have its name: other parts have other numbers.
        """
        with_some = [one for one in self.sets if one.receipt.left_out]
        is_named = bool(self.left_out) or len(with_some) > 1 or any(_OF_PARTS.match(f"{o.name}: ") for o in with_some)
        of_sets = ((f"({one.name})" * is_named, low) for one in with_some for low in one.receipt.left_out)
        return (*(("", one) for one in self.left_out), *of_sets)

    @property
    def is_too_low(self) -> bool:
        """Return whether it is said of any number that it is too low."""
        return any(one.found.is_too_low for _, one in self.all_left_out)

    @property
    def left_out_wordings(self) -> list[str]:
        """Wordings of what bounds leave out of counts and sums, the longest first; none if nothing is known of it."""
        if self.is_too_low:
            return [f"too low: {wording}" for wording in left_out_words.too_low(self.all_left_out)]
        return left_out_words.bounds(self.all_left_out) if self.all_left_out else []

    @property
    def too_low_columns(self) -> frozenset[str]:
        """Columns with numbers that are too low, because bounds leave out rows or amounts; in all grouping sets."""
        lows = {name for _, one in self.all_left_out if one.found.is_too_low for name in one.columns}
        others = {name for _, one in self.all_left_out if not one.found.is_too_low for name in one.columns}
        return frozenset(lows - others)

    def too_low_of(self, column: str) -> LeftOut | None:
        """Return what is left out of a column that is too low; None if its grouping sets differ, or if it is not."""
        found = [one.found for _, one in self.all_left_out if column in one.columns]
        return found[0] if len(found) == 1 and found[0].is_too_low else None

    @property
    def of_computed(self) -> Receipt:
        """Return the receipt of an answer that is computed from this one, whose columns are other numbers."""
        left_out = tuple(replace(one, columns=()) for one in self.left_out)
        sets = tuple(replace(one, receipt=one.receipt.of_computed) for one in self.sets)
        return replace(self, left_out=left_out, sets=sets)

    @property
    def missing(self) -> tuple[str, ...]:
        """Sentences on missing groups, columns that are NULL, and a missed target: they stand beside the numbers."""
        notes = dict.fromkeys([*self.notes, *(note for one in self.sets for note in one.receipt.notes)])
        return (
            *self.nothing_shown,
            *filter(phrases.says_missed, notes),
            *filter(left_out_words.says_within, notes),
            *filter(phrases.says_null, notes),
        )

    def __str__(self) -> str:
        lines = []
        for heading, sentences in self.sections.items():
            heads = [heading] + [""] * (len(sentences) - 1)
            lines += [f"{head:<9}{sentence}" for head, sentence in zip(heads, sentences, strict=False)]
        return "\n".join(lines)


def as_record(receipt: Receipt) -> dict[str, Any]:
    """Return a receipt as plain values; of amounts of rho no word says what they are."""
    return asdict(receipt, dict_factory=lambda fields: {name: value for name, value in fields if is_told(name, value)})


def is_told(name: str, value: object) -> bool:
    """Return False for the field of a receipt that records and JSON leave out: amounts are amounts of rho."""
    return (name, value) != ("amount", "rho")


def heading_of(note: str) -> str:
    """Return the heading that a note stands under.

    >>> heading_of("rows where pid is NULL are left out")
    'bounds'
    >>> heading_of("keys were selected in one round, at rho = 0.01")
    'keys'
    """
    note = _OF_PARTS.sub("", note)
    return next((heading for heading, pattern in _patterns() if pattern.fullmatch(note)), "bounds")


@cache
def _patterns() -> tuple[tuple[str, re.Pattern[str]], ...]:
    """Return what the notes of each heading look like: the rows of the table with any text as values."""
    found = []
    for heading, sentences in words.HEADINGS.items():
        rows = (re.sub(r"\\{.*?\\}", ".*", re.escape(sentence)) for sentence in sentences)
        found.append((heading, re.compile("|".join(rows))))
    return tuple(found)


def _privacy(receipt: Receipt) -> Iterator[str]:
    """Yield what was released, at which level, and the guarantee of the answer alone."""
    yield words.RELEASE.format(
        mechanism=receipt.mechanism, table=receipt.table, version=receipt.version, unit=receipt.unit
    )
    alone = words.ALONE if receipt.most_rho is None else words.ALONE_AT_MOST
    guaranteed = alone.format(epsilon=f"{receipt.epsilon:.4g}", delta=f"{receipt.delta:.3g}")
    if receipt.amount == "rho":
        yield phrases.served_at(phrases.charged_amount(receipt.rho, 0.0), receipt.rho, receipt.asked_rho)
        yield guaranteed
    else:
        # the level is the guarantee
        yield phrases.served_at(guaranteed, receipt.rho, receipt.asked_rho, receipt.amount)


def _keys(receipt: Receipt) -> Iterator[str]:
    """Yield the rules by which groups are shown."""
    if receipt.threshold is not None:
        rule = words.SHOWN_ABOVE_LARGEST if receipt.is_relative else words.SHOWN_ABOVE
        yield rule.format(threshold=short(receipt.threshold, 4))
    for one in receipt.sets:
        if one.receipt.threshold is not None:
            weighs = one.receipt.max_groups == 1 and any(note.startswith(_WEIGHTED) for note in one.receipt.notes)
            rule = words.ROUND_SELECTS if weighs else words.SET_SHOWN_ABOVE
            yield rule.format(keys=one.name, threshold=short(one.receipt.threshold, 4))


def _set_price(one: SetReceipt) -> str:
    """Return the price of one grouping set."""
    level = phrases.charged_amount(one.receipt.charged_rho, 0.0, one.receipt.amount)
    return words.SET_CHARGED.format(keys=one.name, level=level)


def _set_level(one: SetReceipt) -> str:
    """Return the level of one grouping set."""
    shown, amount = one.receipt.rho, one.receipt.amount
    level = phrases.served_at(phrases.charged_amount(shown, 0.0, amount), shown, one.receipt.asked_rho, amount)
    return words.SET_LEVEL.format(keys=one.name, level=level)


def _column_error(column: ColumnReceipt) -> str:
    """Return the error of one column."""
    if column.half_width_95 is None:
        return words.COLUMN_BY_ROW.format(column=column.name)
    return words.COLUMN_WIDTH.format(column=column.name, half_width=short(column.half_width_95))
