"""The budget of a unit: from what the curator names to a `Unit`, and from a `Unit` back to the numbers.

A budget is named as (epsilon, delta), or as rho with two deltas. Its composition turns the one into the other. Nothing
here depends on charges: a budget is fixed by its declaration alone (docs/proofs/ledger.md).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any

from dpsql.accounting.composition import CONVERSIONS
from dpsql.errors import PolicyError
from dpsql.model.environment import folded
from dpsql.noise.kept_delta import converted_delta, kept_delta
from dpsql.operations import blanks
from dpsql.session.declarations.arguments import BUDGET, Arguments
from dpsql.session.declarations.protection import looser
from dpsql.state import (
    DELTA_UNITS_PER_ONE,
    Composition,
    ProtectedTable,
    Unit,
    amount_of,
    checked,
    delta_from_units,
    delta_units_down,
    require,
    rho_from_nano,
    rho_nano_down,
)

# The three amounts of a budget, by the names that arguments and units have for them, as a unit keeps them.
_ROUNDED: Mapping[str, Callable[[float], Any]] = {
    "rho_budget": rho_nano_down,
    "delta_threshold": delta_units_down,
    "delta_conversion": float,
}


def budgeted(
    name: str,
    epsilon: float | None,
    delta: float | None,
    composition: Composition = "gaussian",
    *,
    thresholds: bool = True,
) -> Unit:
    """Return a unit with a budget of (epsilon, delta).

    With thresholds, they get half of ``delta``, and the conversion the other half. Without, the conversion gets all of
    it but for the imprecision of draws. The rho budget is the largest that ``epsilon`` and the conversion's part allow.

    Args:
        name: of the unit.
        epsilon: above 0.
        delta: between 0 and 1.
        composition: how the releases of the unit add up.
        thresholds: whether its tables answer by private keys.

    Raises:
        PolicyError: epsilon or delta is missing or out of range.

    """
    if composition == "pure":
        return _pure(name, epsilon, delta)
    if not (epsilon and delta and epsilon > 0 and 0 < delta < 1):
        raise PolicyError("epsilon_budget must be positive and delta_budget between 0 and 1; give both")
    to_rho = CONVERSIONS[composition].rho
    if thresholds:
        converted, kept = delta / 2, delta_units_down(delta / 2)
    else:
        kept = _kept_units(delta, to_rho(epsilon, delta))
        converted = converted_delta(delta, kept / DELTA_UNITS_PER_ONE)
    rho_budget = rho_nano_down(to_rho(epsilon, converted))
    return checked(Unit(name, rho_budget, kept, converted, composition, thresholds))


def _pure(name: str, epsilon: float | None, delta: float | None) -> Unit:
    """Return a unit whose amounts are epsilons. Its delta is that of thresholds; without one it has public keys alone.

    Raises:
        PolicyError: epsilon is missing or not positive, or delta is out of range.

    """
    if not epsilon or epsilon <= 0:
        raise PolicyError("epsilon_budget must be positive")
    if delta is not None and not 0 <= delta < 1:
        raise PolicyError("delta_budget must be between 0 and 1")
    kept = delta_units_down(delta or 0.0)
    return checked(Unit(name, rho_nano_down(epsilon), kept, 0.0, "pure", thresholds=kept > 0))


def _kept_units(delta: float, rho: float) -> int:
    """Return the part of a whole delta that pays for the imprecision of draws, in units.

    Raises:
        PolicyError: it would be more than half of delta.

    """
    kept = kept_delta(delta, rho)
    if kept > delta / 2:
        raise PolicyError(
            f"delta = {delta:.3g} is below what the finite precision of the noise costs at rho = {rho:.3g}; "
            "declare a larger delta, or less epsilon or rho"
        )
    return math.floor(kept * DELTA_UNITS_PER_ONE)


@lru_cache(maxsize=1024)
def epsilon_budget(unit: Unit) -> float:
    """Return the epsilon of a unit's budget: the shortest decimal that names its rho budget, if one does.

    >>> epsilon_budget(budgeted("patient", 3.0, 1e-6)), epsilon_budget(budgeted("patient", 0.1, 1e-8, "zcdp"))
    (3.0, 0.1)
    """
    conversion = CONVERSIONS[unit.composition]
    exact = conversion.epsilon(unit.delta_conversion, rho_from_nano(unit.rho_budget))
    for digits in range(1, 13):
        step = 10.0 ** (math.floor(math.log10(exact)) - digits + 1) if exact > 0.0 else 0.0
        for told in {float(f"{exact:.{digits}g}"), float(f"{exact + step / 2:.{digits}g}")}:
            rho = conversion.rho(told, unit.delta_conversion) if told > 0.0 else 0.0
            # a rounded epsilon may name more rho than a unit can have
            if rho < rho_from_nano(unit.rho_budget + 1) and rho_nano_down(rho) == unit.rho_budget:
                return told
    return exact


def read_budget(name: str, arguments: Arguments, before: Unit | None) -> Unit:
    """Return the unit with the budget that a declaration names; what it does not name stays.

    Raises:
        PolicyError: the budget is named in both ways, or a new unit lacks a part.

    """
    arguments.require_kept(*BUDGET)
    by_epsilon = arguments.has("epsilon_budget", "delta_budget")
    by_rho = arguments.has(*_ROUNDED)
    require(
        (
            not (by_epsilon and by_rho),
            "a budget is either (epsilon_budget, delta_budget) or rho_budget with two deltas",
        ),
        (
            by_epsilon or by_rho or bool(before),
            f"a unit needs a budget: epsilon_budget := {blanks.EPSILON_BUDGET}, delta_budget := {blanks.DELTA_BUDGET}",
        ),
    )
    composition = _composition(arguments.read("composition", str), before)
    thresholds = arguments.flag("thresholds", default=before.thresholds if before else True)
    if composition == "pure" and arguments.has("thresholds"):
        raise PolicyError(
            "a unit with composition := 'pure' has thresholds if it has a delta_budget; leave thresholds out"
        )
    is_whole = arguments.has("epsilon_budget") and arguments.has("delta_budget")
    if before and not is_whole and (composition, thresholds) != (before.composition, before.thresholds):
        before = _by_other_terms(before, composition, thresholds=thresholds)
    read = _by_epsilon if by_epsilon else _by_rho
    return _keeping_no_more(before, read(name, arguments, before, composition, thresholds=thresholds))


def _keeping_no_more(before: Unit | None, after: Unit) -> Unit:
    """Return the unit after a declaration, with no more delta kept for imprecise draws unless its budget is looser.

    Without thresholds the kept part depends on how rho is named. It could rise a little while rho stays or falls. The
    conversion gets the difference, so that the whole delta stays.
    """
    if not before or after.thresholds or after.delta_threshold <= before.delta_threshold:
        return after
    if looser_budget(before, after):
        return after
    more = delta_from_units(after.delta_threshold - before.delta_threshold)
    converted = math.nextafter(after.delta_conversion + more, 0.0)
    return dataclasses.replace(after, delta_threshold=before.delta_threshold, delta_conversion=converted)


def require_its_levels(unit: Unit, tables: Iterable[ProtectedTable]) -> None:
    """Refuse tables with a level of rho whose unit counts epsilon.

    Raises:
        PolicyError: a table has one.

    """
    if amount_of(unit.composition) == "rho":
        return
    for table in tables:
        for setting in ("default_rho", "rho_window", "rho_ceiling"):
            if getattr(table, setting) is not None:
                raise PolicyError(
                    f"{setting} of table {table.table!r} is a level of rho, and unit {unit.name!r} counts epsilon "
                    f"(composition = 'pure'); leave it out, or remove it with {setting} := NULL"
                )


def unit_as_named(
    name: str,
    epsilon: float | None,
    delta: float | None,
    composition: str | None = None,
    *,
    thresholds: bool | None = None,
    known: Unit | None = None,
) -> Unit:
    """Return the unit that a front end names; what it does not name is what the known unit has.

    Args:
        name: of the unit.
        epsilon: of its budget; None, with ``delta`` None, for the budget of the known unit.
        delta: of its budget; both are given, or none.
        composition: 'gaussian', 'zcdp' or 'pure'; None for that of the known unit, or 'gaussian'.
        thresholds: whether its tables answer by private keys; None for what the known unit has, or True.
        known: the unit as it is declared. It equals the unit that is returned if all that is named agrees with it.

    Raises:
        PolicyError: a composition or a budget that no unit can have.

    """
    named = _composition(composition, known)
    kept = thresholds if thresholds is not None else known.thresholds if known else True
    if known and epsilon is None and delta is None:
        return dataclasses.replace(known, composition=named, thresholds=kept)
    return budgeted(known.name if known else name, epsilon, delta, named, thresholds=kept)


def _by_other_terms(before: Unit, composition: Composition, *, thresholds: bool) -> Unit:
    """Return the unit with the same (epsilon, delta) by other terms. If it keeps its thresholds, no delta changes."""
    epsilon = epsilon_budget(before)
    if composition == "pure":
        return _pure(before.name, epsilon, before.delta_budget)
    if thresholds and before.thresholds and before.composition != "pure":
        rho_budget = rho_nano_down(CONVERSIONS[composition].rho(epsilon, before.delta_conversion))
        return checked(dataclasses.replace(before, rho_budget=rho_budget, composition=composition))
    return budgeted(before.name, epsilon, before.delta_budget, composition, thresholds=thresholds)


def _composition(said: str | None, before: Unit | None) -> Composition:
    """Return the composition of this name. Without a name it is that of the unit before, or 'gaussian'."""
    match said and folded(said):
        case None:
            return before.composition if before else "gaussian"
        case "gaussian":
            return "gaussian"
        case "zcdp":
            return "zcdp"
        case "pure":
            return "pure"
    raise PolicyError(
        "composition takes 'gaussian' (exact; for all noise except discrete noise), 'zcdp' (for discrete noise, too; "
        "its budget is less rho) or 'pure' (epsilon with a delta of 0, for public keys)"
    )


def _by_epsilon(
    name: str, arguments: Arguments, before: Unit | None, composition: Composition, *, thresholds: bool
) -> Unit:
    epsilon, delta = arguments.read("epsilon_budget", float), arguments.read("delta_budget", float)
    if not before or (epsilon is not None and delta is not None):
        name = before.name if before else name
        return budgeted(name, epsilon, delta, composition, thresholds=thresholds)
    if epsilon is not None:
        if epsilon <= 0:
            raise PolicyError("epsilon_budget must be positive")
        rho_budget = rho_nano_down(CONVERSIONS[composition].rho(epsilon, before.delta_conversion))
        if not thresholds and rho_budget != before.rho_budget:
            return budgeted(before.name, epsilon, before.delta_budget, composition, thresholds=False)
        return checked(dataclasses.replace(before, rho_budget=rho_budget))
    if composition == "pure":
        return _pure(before.name, epsilon_budget(before), delta)
    if not (delta and 0 < delta < 1):
        raise PolicyError("delta_budget must be between 0 and 1")
    halves = not thresholds or (before.delta_threshold, before.delta_conversion) == (
        delta_units_down(delta / 2),
        delta / 2,
    )
    if delta == before.delta_budget and halves:
        return before
    return budgeted(before.name, epsilon_budget(before), delta, composition, thresholds=thresholds)


def _by_rho(
    name: str, arguments: Arguments, before: Unit | None, composition: Composition, *, thresholds: bool
) -> Unit:
    if composition == "pure" and arguments.has(*_ROUNDED):
        raise PolicyError(
            "a budget with composition := 'pure' is an epsilon; write epsilon_budget in place of rho_budget"
        )
    amounts = {part: arguments.read(part, float) for part in _ROUNDED}
    if not thresholds and amounts["delta_threshold"] is not None:
        raise PolicyError("a unit without thresholds keeps no delta for them; leave delta_threshold out")
    needed = [part for part in _ROUNDED if thresholds or part != "delta_threshold"]
    if not before and any(amounts[part] is None for part in needed):
        raise PolicyError(f"rho_budget goes with {' and '.join(part for part in needed if part != 'rho_budget')}")
    said = {part: _ROUNDED[part](amount) for part, amount in amounts.items() if amount is not None}
    if before:
        unit = dataclasses.replace(before, **said)
    else:
        unit = Unit(name, said["rho_budget"], said.get("delta_threshold", 0), said["delta_conversion"], composition)
        unit = dataclasses.replace(unit, thresholds=thresholds)
    if not thresholds and said:
        kept = _kept_units(checked(unit).delta_conversion, rho_from_nano(unit.rho_budget))
        unit = dataclasses.replace(unit, delta_threshold=kept)
    return checked(unit)


def looser_budget(before: Unit | None, after: Unit) -> list[str]:
    """Return the amounts of a budget that protect less than before, each as a text.

    Rho has another meaning in another composition, so that epsilon is compared there. Without thresholds the parts of
    delta depend on rho, so that the whole delta is compared.
    """
    if not before:
        return []
    if (before.composition, before.thresholds) == (after.composition, after.thresholds):
        if after.thresholds and after.composition != "pure":
            return looser(before, after)
        name, most, amount = f"{amount_of(after.composition)}_budget", before.rho_budget, _rho_budget
    else:
        name, most, amount = "epsilon_budget", _rho_nano(epsilon_budget(before), after), epsilon_budget
    changes = []
    if after.rho_budget > most:
        changes.append(f"{name} from {amount(before):.9g} to {amount(after):.9g}")
    if after.delta_budget > before.delta_budget:
        changes.append(f"delta_budget from {before.delta_budget:.9g} to {after.delta_budget:.9g}")
    return changes


def _rho_budget(unit: Unit) -> float:
    return rho_from_nano(unit.rho_budget)


def _rho_nano(epsilon: float, unit: Unit) -> int:
    """Return the budget of rho, in nano-rho, that an epsilon is by the terms of a unit."""
    return rho_nano_down(CONVERSIONS[unit.composition].rho(epsilon, unit.delta_conversion))
