"""The receipt of an answer that is computed from several private queries."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from dpsql.pictures.tables import short
from dpsql.receipts import words
from dpsql.receipts.phrases import listed
from dpsql.receipts.receipt import ColumnReceipt, Receipt, SetReceipt

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
    """The guarantee of all private queries of a unit together."""

    epsilon: float
    delta: float


def composed_receipt(
    parts: Sequence[ReleasedPart], terms: Mapping[str, UnitTerms], query_hash: str, passed: Collection[str]
) -> Receipt:
    """Return the receipt of several private queries of one text.

    Amounts and guarantees are those of the unit that pays most. A note has those of each, if there are several.

    Args:
        parts: at least two, in the order of the text.
        terms: guarantees by units.
        query_hash: identity of all of them together.
        passed: columns of the answer that show numbers of parts as they are.

    """
    own = [part.receipt for part in parts]
    by_unit = {unit: [part.receipt for part in parts if part.unit == unit] for unit in terms}

    def most(amount: Callable[[Receipt], float]) -> float:
        return max(sum(map(amount, receipts)) for receipts in by_unit.values())

    dearest = max(terms.values(), key=lambda one: one.epsilon)
    names = [f"part {number}" for number in range(1, len(parts) + 1)]
    return replace(
        own[0],
        query_hash=query_hash,
        table=", ".join(dict.fromkeys(one.table for one in own)),
        version=", ".join(dict.fromkeys(one.version for one in own)),
        unit=", ".join(terms),
        mechanism=", ".join(dict.fromkeys(one.mechanism for one in own)),
        rho=most(lambda one: one.rho),
        asked_rho=most(lambda one: one.asked_rho or 0.0),
        most_rho=None if all(one.most_rho is None for one in own) else most(lambda one: one.most_rho or one.rho),
        epsilon=dearest.epsilon,
        delta=dearest.delta,
        charged_rho=most(lambda one: one.charged_rho),
        charged_delta=most(lambda one: one.charged_delta),
        reused=all(one.reused for one in own),
        max_groups=None,
        max_keys=None,
        threshold=None,
        columns=_columns(names, own, passed),
        notes=tuple(_notes(parts, terms)),
        sets=tuple(one for name, receipt in zip(names, own, strict=True) for one in _sets(name, receipt)),
        coverage=(),
        left_out=(),
        nothing_shown=tuple(
            f"{name}: {sentence}" for name, one in zip(names, own, strict=True) for sentence in one.nothing_shown
        ),
    )


def renamed(receipt: Receipt, passing: Mapping[str, str]) -> Receipt:
    """Return the receipt of a private query, with its columns as they are called in what is computed from it.

    Args:
        receipt: of the private query.
        passing: its columns that pass through as they are, each with what it is called.

    """
    return replace(
        receipt,
        columns=tuple(replace(one, name=passing.get(one.name, one.name)) for one in receipt.columns),
        left_out=tuple(
            replace(one, columns=tuple(passing[name] for name in one.columns if name in passing))
            for one in receipt.left_out
        ),
        sets=tuple(replace(one, receipt=renamed(one.receipt, passing)) for one in receipt.sets),
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


def _sets(name: str, receipt: Receipt) -> list[SetReceipt]:
    """Return the receipt of a part, and those of its grouping sets."""
    inner = [SetReceipt((f"{name}: {one.name}",), one.receipt) for one in receipt.sets]
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
            words.OF_UNIT.format(
                unit=unit,
                rho=short(sum(part.receipt.charged_rho for part in parts if part.unit == unit), 6),
                epsilon=f"{one.epsilon:.4g}",
                delta=f"{one.delta:.3g}",
            )
            for unit, one in terms.items()
        ]
    return list(dict.fromkeys([*found, *(note for part in parts for note in part.receipt.notes)]))


def with_outer_notes(receipt: Receipt, computed: Sequence[str], *, leaves_out: bool) -> Receipt:
    """Return the receipt with notes on the outer statement.

    Args:
        receipt: of all private queries.
        computed: columns of the answer that are computed from numbers.
        leaves_out: whether a group that an answer does not show seems to be missing.

    """
    notes = [words.NO_INTERVAL.format(columns=listed(computed))] if computed else []
    thresholds = [receipt.threshold, *(one.receipt.threshold for one in receipt.sets)]
    if leaves_out and any(threshold is not None for threshold in thresholds):
        notes.insert(0, words.HIDDEN_GROUPS)
    return replace(receipt, notes=(*notes, *receipt.notes))


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 2]} …"
