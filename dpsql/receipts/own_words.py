"""Sentences for a reader with a limit, who sees no amount of the unit."""

from __future__ import annotations

from dpsql.errors import BudgetError
from dpsql.receipts import target_words
from dpsql.receipts.words import Sentence

OWN_AMOUNTS = Sentence(
    "amounts that are spent are yours alone, and what is left is left of your budget_part: a reader with a rho_limit "
    "sees no amount of the unit. The curator sees all"
)
"""Note of a budget as a reader with a limit sees it, who has a part of it."""
OWN_AMOUNTS_NO_PART = Sentence(
    "amounts that are spent are yours alone, and what is left is NULL: a reader with a rho_limit sees no amount of the "
    "unit. The curator sees all, and can declare a budget_part for you"
)
"""Note of a budget as a reader with a limit sees it, who has no part of it."""
NOT_SHOWN = Sentence("not shown to a reader with a rho_limit, who has no budget_part")
"""A number of a plan that is about all of a unit's budget."""


def not_affordable(error: BudgetError) -> str:
    """Say in a plan that the most that all steps cost cannot be paid."""
    if error.remaining_rho is None:
        return "no: what is left is not shown to a reader with a rho_limit"
    return target_words.not_affordable(error.remaining_rho, error.remaining_delta)
