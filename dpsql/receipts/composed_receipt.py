"""The receipt of an answer that is computed from several private queries."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

from dpsql.model.top_rows import AROUND
from dpsql.pictures.tables import short
from dpsql.receipts import words
from dpsql.receipts.phrases import listed
from dpsql.receipts.receipt import ColumnReceipt, Receipt, SetReceipt
from dpsql.release.left_out import LeftOutReceipt

_LONGEST = 160


@dataclass(frozen=True, slots=True)
class ReleasedPart:
    """A private query with its receipt.

    Attributes:
        text: the query.
        receipt: its receipt, with its price.
        unit: whose budget paid.
        numbers: released numbers that its rows are compared with, each with the query of it.

    """

    text: str
    receipt: Receipt
    unit: str
    numbers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class UnitTerms:
    """The guarantee of all private queries of a unit together.

    Attributes:
        epsilon, delta: both rounded up.
        rho_twice: the rho that the levels of the queries have in common.

    """

    epsilon: float
    delta: float
    rho_twice: float = 0.0


def _with_marks(own: Sequence[Receipt]) -> list[Receipt]:
    """Return receipts of parts in which a column that is too low in one of them has its mark in all its rows.

    A row does not say which part it is of, and a number that may be higher is a lower end, too.
    """
    lows = frozenset[str]().union(*(one.too_low_columns for one in own))

    def marked(one: LeftOutReceipt) -> LeftOutReceipt:
        if one.found.is_too_low:
            return one
        return replace(one, columns=tuple(name for name in one.columns if name not in lows))

    return [replace(one, left_out=tuple(map(marked, one.left_out))) for one in own]


def composed_receipt(
    parts: Sequence[ReleasedPart], terms: Mapping[str, UnitTerms], query_hash: str, passed: Collection[str]
) -> Receipt:
    """Return the receipt of several private queries of one text.

    Amounts and guarantees are the largest ones of all units; of units that count rho and others that count epsilon,
    amounts are those of the former. A note has those of each, if there are several.

    Args:
        parts: at least two, in the order of the text.
        terms: guarantees by units.
        query_hash: identity of all of them together.
        passed: columns of the answer that show numbers of parts as they are.

    """
    own = _with_marks([part.receipt for part in parts])
    by_unit = {unit: [part.receipt for part in parts if part.unit == unit] for unit in terms}
    amounts = {unit: receipts[0].amount for unit, receipts in by_unit.items()}
    amount = min(amounts.values(), key=lambda one: one != "rho")
    # amounts of another kind have no place beside these; notes have them
    counted = {unit: receipts for unit, receipts in by_unit.items() if amounts[unit] == amount}
    rho = max(sum(one.rho for one in receipts) - terms[unit].rho_twice for unit, receipts in counted.items())

    def most(level: Callable[[Receipt], float]) -> float:
        return max(sum(map(level, receipts)) for receipts in counted.values())

    names = [f"part {number}" for number in range(1, len(parts) + 1)]
    return replace(
        own[0],
        query_hash=query_hash,
        table=", ".join(dict.fromkeys(one.table for one in own)),
        version=", ".join(dict.fromkeys(one.version for one in own)),
        unit=", ".join(terms),
        mechanism=", ".join(dict.fromkeys(name for one in own for name in one.mechanism.split(", "))),
        rho=rho,
        asked_rho=most(lambda one: one.asked_rho or 0.0),
        most_rho=None if all(one.most_rho is None for one in own) else most(lambda one: one.most_rho or one.rho),
        epsilon=max(one.epsilon for one in terms.values()),
        delta=max(one.delta for one in terms.values()),
        charged_rho=most(lambda one: one.charged_rho),
        charged_delta=most(lambda one: one.charged_delta),
        amount=amount,
        reused=all(one.reused for one in own),
        max_groups=None,
        max_keys=None,
        threshold=None,
        columns=_columns(names, own, passed),
        notes=(*_notes(parts, terms), *([words.LARGEST_OF_PARTS] if _differ(own, passed) else [])),
        sets=tuple(one for name, receipt in zip(names, own, strict=True) for one in _sets(name, receipt)),
        coverage=(),
        left_out=(),
        nothing_shown=tuple(
            f"{name}: {sentence}" for name, one in zip(names, own, strict=True) for sentence in one.nothing_shown
        ),
    )


def renamed(receipt: Receipt, passing: Mapping[str, Sequence[str]], hidden: Mapping[str, str]) -> Receipt:
    """Return the receipt of a private query, with its columns as they are called in what is computed from it.

    Args:
        receipt: of the private query.
        passing: its columns that pass through as they are, each with all its names there.
        hidden: texts of its columns with hidden names.

    """
    return replace(
        receipt,
        columns=tuple(
            replace(one, name=name)
            for one in receipt.columns
            for name in passing.get(one.name, (hidden.get(one.name, one.name),))
        ),
        left_out=tuple(
            replace(one, columns=tuple(name for column in one.columns for name in passing.get(column, ())))
            for one in receipt.left_out
        ),
        sets=tuple(replace(one, receipt=renamed(one.receipt, passing, hidden)) for one in receipt.sets),
    )


def _columns(names: Sequence[str], own: Sequence[Receipt], passed: Collection[str]) -> tuple[ColumnReceipt, ...]:
    """Return the columns of all parts, with the part where several have a column of the name.

    Of a column of the answer, in which numbers of several parts stand, the largest error is returned.

    Args:
        names: of the parts.
        own: their receipts.
        passed: columns of the answer that show numbers of parts as they are.

    """
    names_shown = [column.name for one in own for column in one.columns]
    found: dict[str, ColumnReceipt] = {}
    for name, one in zip(names, own, strict=True):
        for column in one.columns:
            key = (
                column.name
                if column.name in passed or names_shown.count(column.name) == 1
                else f"{column.name} of {name}"
            )
            before = found.get(key)
            if before is None or (column.half_width_95 or 0.0) > (before.half_width_95 or 0.0):
                found[key] = replace(column, name=key)
    return tuple(found.values())


def _differ(own: Sequence[Receipt], passed: Collection[str]) -> bool:
    """Check that numbers of several parts stand in one column of the answer, with different errors."""
    widths: dict[str, set[float | None]] = {name: set() for name in passed}
    for one in own:
        for column in one.columns:
            widths.get(column.name, set()).add(column.half_width_95)
    return any(len(found) > 1 for found in widths.values())


def _sets(name: str, receipt: Receipt) -> list[SetReceipt]:
    """Return the receipt of a part, and those of its grouping sets."""
    inner = [SetReceipt((f"{name}, {one.name or 'all rows'}",), one.receipt) for one in receipt.sets]
    return [SetReceipt((name,), replace(receipt, sets=())), *inner]


def _notes(parts: Sequence[ReleasedPart], terms: Mapping[str, UnitTerms]) -> list[str]:
    """Return the notes of all parts, and which part is which."""
    found = [words.PART_IS.format(number=number, text=_cut(part.text)) for number, part in enumerate(parts, start=1)]
    found += [
        words.COMPARED_WITH.format(number=number, value=value, text=_cut(text))
        for number, part in enumerate(parts, start=1)
        for text, value in part.numbers
    ]
    if len(terms) > 1:
        found += [
            _of_unit(unit, one, [part.receipt for part in parts if part.unit == unit]) for unit, one in terms.items()
        ]
    places: dict[str, list[int]] = {}
    for number, part in enumerate(parts, start=1):
        for note in dict.fromkeys(part.receipt.notes):
            places.setdefault(note, []).append(number)
    return list(dict.fromkeys([*found, *(_of_parts(note, of, len(parts)) for note, of in places.items())]))


def _of_unit(unit: str, terms: UnitTerms, receipts: Sequence[Receipt]) -> str:
    """Return the note on what one of several units paid, and what the answer guarantees it."""
    charged = f"{receipts[0].amount} {short(sum(one.charged_rho for one in receipts), 6)}"
    epsilon, delta = f"{terms.epsilon:.4g}", f"{terms.delta:.3g}"
    return words.OF_UNIT.format(unit=unit, level=charged, epsilon=epsilon, delta=delta)


def _of_parts(note: str, places: Sequence[int], count: int) -> str:
    """Return a note with the parts that it is about, if it speaks of rules that others do not have."""
    if len(places) == count or not any(rule.fullmatch(note) for rule in _rules()):
        return note
    return words.OF_PARTS.format(parts=listed([f"part {place}" for place in places]), note=note)


@cache
def _rules() -> tuple[re.Pattern[str], ...]:
    """Return what notes on rules look like that seem to contradict each other if parts have different ones."""
    rules = (
        words.WITHOUT_UNIT,
        words.COUNTS_IN,
        words.ROWS_SCALED,
        words.KEYS_OF_RELEASE,
        words.KEYS_OF_OTHERS,
        words.LATTICE_SEEN,
    )
    return tuple(re.compile(re.sub(r"\\{.*?\\}", ".*", re.escape(rule))) for rule in rules)


def with_outer_notes(
    receipt: Receipt, computed: Sequence[str], frequencies: Sequence[str], *, leaves_out: bool, picks: bool
) -> Receipt:
    """Return the receipt with notes on the outer statement.

    Args:
        receipt: of all private queries.
        computed: columns of the answer that are computed from numbers.
        frequencies: columns of the answer with mode or histogram, which are computed from counts.
        leaves_out: whether a group that an answer does not show seems to be missing.
        picks: whether noisy numbers decide which rows are shown.

    """
    without = [*computed, *(name for name in frequencies if name not in computed)]
    notes = [words.NO_INTERVAL.format(columns=listed(without))] if without else []
    if picks:
        notes.append(words.PICKED.format(clause=AROUND))
    if (leaves_out or frequencies) and any(map(_hides_groups, (receipt, *(one.receipt for one in receipt.sets)))):
        hidden = words.HIDDEN_VALUES.format(columns=listed(frequencies)) if frequencies else words.HIDDEN_GROUPS
        notes.insert(0, hidden)
    return replace(receipt, notes=(*notes, *receipt.notes))


def _hides_groups(receipt: Receipt) -> bool:
    """Check that groups may be missing from an answer: its keys pass a threshold, or have passed one before."""
    return receipt.threshold is not None or words.LEANS_UP in receipt.notes


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 2]} …"
