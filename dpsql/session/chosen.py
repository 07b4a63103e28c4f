"""A plan with nothing left open, and what was charged before it was known."""

from __future__ import annotations

from dataclasses import dataclass, field

from dpsql.cascade.reader import Reader
from dpsql.model.private_query import PrivateQuery
from dpsql.state import Charged


@dataclass(frozen=True, slots=True)
class Chosen:
    """A plan as AUTO chose it.

    Attributes:
        query: the plan.
        reader: who asks, with their clearance; who is charged for in the state file.
        auto_charge: what was charged for the histograms that AUTO chose by; part of the receipt.
        first_charge: what was charged for a first round of key selection, which the plan rests on; likewise.
        has_first_round: whether such a round was drawn for this question.

    """

    query: PrivateQuery
    reader: Reader
    auto_charge: Charged = field(default_factory=Charged)
    first_charge: Charged = field(default_factory=Charged)
    has_first_round: bool = False
