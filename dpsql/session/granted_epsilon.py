"""Refusals of texts with several parts in a unit that counts epsilon: they tell an epsilon that is granted."""

from __future__ import annotations

from dpsql.errors import BudgetError, DpsqlError
from dpsql.session.composition_plan import ComposedPlan
from dpsql.session.told_level import TWO_DIGITS, AskedLevel


def with_granted_epsilon(error: BudgetError, plan: ComposedPlan) -> DpsqlError:
    """Return a refusal with an epsilon that is granted, if a lower one of the whole text is all that is needed.

    All parts together cost at most the epsilon of the text. What is stored may allow a higher one than is told.

    Args:
        error: of the budget of a unit.
        plan: of the text.

    """
    request, left = plan.requests[error.unit], error.remaining_rho
    if request.amount != "epsilon" or request.rho is None or request.target or len(plan.requests) > 1:
        return error
    if not left or error.requested_delta > error.remaining_delta or any(one.part.options for one in plan.parts):
        return error
    most = TWO_DIGITS.level(TWO_DIGITS.place_of(left, TWO_DIGITS.place_up(left) - 1))
    return AskedLevel("epsilon", request.rho, TWO_DIGITS).refusal(error, most, [])
