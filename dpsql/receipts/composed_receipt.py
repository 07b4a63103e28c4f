"""The receipt of an answer that is computed from several private queries."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from dpsql.pictures.tables import short
from dpsql.receipts import words
from dpsql.receipts.receipt import ColumnReceipt, Receipt, SetReceipt

_LONGEST = 160


@dataclass(frozen=True, slots=True)
class ReleasedPart:
    """A private query with its receipt.

    Attributes:
        text: the query.
        receipt: its receipt, with its price.
        unit: whose budget paid.

    """

    text: str
    receipt: Receipt
    unit: str


@dataclass(frozen=True, slots=True)
class UnitTerms:
    """The guarantee of all private queries of a unit together."""

    epsilon: float
    delta: float


def composed_receipt(parts: Sequence[ReleasedPart], terms: Mapping[str, UnitTerms], query_hash: str) -> Receipt:
    """Return the receipt of several private queries of one text.

    Amounts and guarantees are those of the unit that pays most. A note has those of each, if there are several.

    Args:
        parts: at least two, in the order of the text.
        terms: guarantees by units.
        query_hash: identity of all of them together.

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
        columns=_columns(names, own),
        notes=tuple(_notes(parts, terms)),
        sets=tuple(one for name, receipt in zip(names, own, strict=True) for one in _sets(name, receipt)),
        coverage=(),
        left_out=(),
        nothing_shown=tuple(
            f"{name}: {sentence}" for name, one in zip(names, own, strict=True) for sentence in one.nothing_shown
        ),
    )


def _columns(names: Sequence[str], own: Sequence[Receipt]) -> tuple[ColumnReceipt, ...]:
    """Return the columns of all parts, with the part where several have a column of the name."""
    listed = [column.name for one in own for column in one.columns]
    return tuple(
        column if listed.count(column.name) == 1 else replace(column, name=f"{column.name} of {name}")
        for name, one in zip(names, own, strict=True)
        for column in one.columns
    )


def _sets(name: str, receipt: Receipt) -> list[SetReceipt]:
    """Return the receipt of a part, and those of its grouping sets."""
    computed = receipt.of_computed
    inner = [SetReceipt((f"{name}: {one.name}",), one.receipt) for one in computed.sets]
    return [SetReceipt((name,), replace(computed, sets=())), *inner]


def _notes(parts: Sequence[ReleasedPart], terms: Mapping[str, UnitTerms]) -> list[str]:
    """Return the notes of all parts, and which part is which."""
    found = [words.PART_IS.format(number=number, text=_cut(part.text)) for number, part in enumerate(parts, start=1)]
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
    notes = [note for part in parts for note in part.receipt.notes]
    return list(dict.fromkeys([*found, words.COMPUTED_OF_PARTS, *notes]))


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 2]} …"
