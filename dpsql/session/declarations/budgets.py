"""CALL dp_unit, and the budget of a unit that a table has to itself."""

from __future__ import annotations

from dataclasses import replace

from dpsql.accounting import zcdp
from dpsql.errors import PolicyError
from dpsql.query.statements import FunctionCall
from dpsql.session.declarations.arguments import BUDGET, Arguments, Books
from dpsql.session.declarations.looser import looser_unit, require_no_looser
from dpsql.state import Unit, delta_units_down, rho_from_nano, rho_nano_down


def declare_unit(call: FunctionCall, books: Books) -> str:
    """Declare a privacy unit, or change what is named of its budget."""
    arguments = Arguments(call, 1)
    name = arguments.names[0].strip()
    before = books.read().policy().unit(name)
    unit = budget(name, arguments, before)
    require_no_looser(f"unit {unit.name}", looser_unit(before, unit), replace=arguments.flag("replace"))
    books.write().declare_unit(unit)
    return f"unit {unit.name} has its budget"


def budgeted(name: str, epsilon: float | None, delta: float | None) -> Unit:
    """A unit with a budget of (epsilon, delta).

    ``delta`` is halved between thresholds and conversion, and the rho budget is the largest that ``epsilon`` and the
    conversion half allow (optimal zCDP conversion).

    Raises:
        PolicyError: one of them is missing or out of range.

    """
    if epsilon is None or delta is None or not (epsilon > 0 and 0 < delta < 1):
        raise PolicyError("epsilon_budget must be positive and delta_budget between 0 and 1; give both")
    return Unit(name, rho_nano_down(zcdp.rho(epsilon, delta / 2)), delta_units_down(delta / 2), delta / 2)


def budget(name: str, arguments: Arguments, before: Unit | None) -> Unit:
    """A unit's budget, as rho and two deltas or as (epsilon, delta); what is not named stays.

    Raises:
        PolicyError: it is said in both ways, or a new unit lacks a part.

    """
    arguments.require_kept(*BUDGET)
    by_epsilon = arguments.has("epsilon_budget", "delta_budget")
    by_rho = arguments.has("rho_budget", "delta_threshold", "delta_conversion")
    if by_epsilon and by_rho:
        raise PolicyError("a budget is either (epsilon_budget, delta_budget) or rho_budget with two deltas")
    if by_epsilon:
        return _by_epsilon(name, arguments, before)
    if by_rho:
        return _by_rho(name, arguments, before)
    if before is None:
        raise PolicyError("a unit needs a budget: epsilon_budget := 3, delta_budget := 1e-6")
    return before


def _by_epsilon(name: str, arguments: Arguments, before: Unit | None) -> Unit:
    epsilon, delta = arguments.number("epsilon_budget"), arguments.number("delta_budget")
    if before is None or (epsilon is not None and delta is not None):
        return budgeted(name if before is None else before.name, epsilon, delta)
    if epsilon is not None:
        if epsilon <= 0:
            raise PolicyError("epsilon_budget must be positive")
        return replace(before, rho_budget=rho_nano_down(zcdp.rho(epsilon, before.delta_conversion)))
    if delta is None or not 0 < delta < 1:
        raise PolicyError("delta_budget must be between 0 and 1")
    halves = before.delta_threshold == delta_units_down(delta / 2)
    if halves and before.delta_conversion == delta / 2:
        return before
    return budgeted(before.name, zcdp.epsilon(before.delta_conversion, rho_from_nano(before.rho_budget)), delta)


def _by_rho(name: str, arguments: Arguments, before: Unit | None) -> Unit:
    rho, threshold = arguments.number("rho_budget"), arguments.number("delta_threshold")
    conversion = arguments.number("delta_conversion")
    if before is None:
        if rho is None or threshold is None or conversion is None:
            raise PolicyError("rho_budget goes with delta_threshold and delta_conversion")
        return Unit(name, rho_nano_down(rho), delta_units_down(threshold), conversion)
    return Unit(
        before.name,
        before.rho_budget if rho is None else rho_nano_down(rho),
        before.delta_threshold if threshold is None else delta_units_down(threshold),
        before.delta_conversion if conversion is None else conversion,
    )
