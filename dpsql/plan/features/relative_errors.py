"""Checks of a relative error that a query asks for in place of a level: which columns and options it goes with.

A relative error is for counts, sums and averages by themselves. Their intervals shrink as the level rises, and the
released numbers tell when they are narrow enough.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet

from dpsql.model.combinations import COMBINATIONS
from dpsql.model.environment import things_without
from dpsql.model.estimates import Ratio, RunningSum, Sum
from dpsql.model.private_query import QueryOptions
from dpsql.model.query_kinds import RelativeError
from dpsql.model.refusals import Refusals, refuse_combinations, that_hold
from dpsql.plan.aggregates.arguments import Aggregate
from dpsql.plan.features.target_columns import (
    WITHOUT_NOISE,
    fault_of,
    is_about_numbers,
    level_in_place,
    options_of_target,
    place_of_options,
    refuse_alone,
)
from dpsql.sql.source.sources import SelectText

MEASURED = (Sum, RunningSum, Ratio)
"""Values that have a relative error."""
_OTHER = "a relative error is for a count, a sum or an average."
_COMPUTED = "a relative error is for a count, a sum or an average by itself, and this column is computed of numbers."
_WITHOUT_MOST = next(one.message for one in COMBINATIONS if one.beside == ("no max_rho",))
"""Message of the refusal of a relative error without the highest level that it may take."""
_USUAL_SHARE = 0.9
"""The share of groups that are within the target, if the query names none."""


def check_relative_error(
    text: SelectText, aggregates: Mapping[str, Aggregate], *, has_private_keys: bool = False
) -> None:
    """Note a refusal for everything in a text by a relative error that does not go with it.

    Args:
        text: the query.
        aggregates: by their texts; those that were refused are missing.
        has_private_keys: whether its keys have no public list.

    """
    if text.owner.rules.counts_epsilon:
        # the option was refused with the level
        return
    before = len(text.refusals.found)
    if text.options.method and has_private_keys:
        # whatever these keys lack beside
        known = {"method = CORRELATED", "private keys"}
        refuse_combinations({"method = CORRELATED"}, known, place_of_options(text), text.refusals)
    # options that do not go together were refused before, without a place if they stand beside the text
    _refuse_beside(text, _known(text) - {"rho", "epsilon", "target_half_width"}, text.refusals)
    fits = not text.select.calls or _refuse_columns(text, aggregates)
    if len(text.refusals.found) > before:
        refuse_alone(text, *(() if fits else (_WITHOUT_MOST,)))


def _refuse_columns(text: SelectText, aggregates: Mapping[str, Aggregate]) -> bool:
    """Note a refusal for each column without a relative error. Return whether a column has one."""
    write = f"rite {level_in_place(text)}."
    items = [item for item in text.select.items if not is_about_numbers(item.expression)]
    faults = [fault_of(item, aggregates, MEASURED, _OTHER, _COMPUTED) for item in items]
    fits = "" in faults
    for item, fault in zip(items, faults, strict=True):
        if fault and fault != WITHOUT_NOISE:
            text.refusals.add("option", item.expression, fault, f"Leave it out, or w{write}" if fits else f"W{write}")
    if set(faults) == {WITHOUT_NOISE}:
        message = "no column of the answer is a count, a sum or an average."
        text.refusals.add("option", place_of_options(text), message, f"W{write}")
    return fits


def goes_with_relative_error(text: SelectText) -> bool:
    """Check that a text by half widths may ask by a relative error in place of them."""
    if text.owner.rules.counts_epsilon:
        return False
    known = (_known(text) - {"target_half_width"}) | {"target_relative_error"}
    return not _refuse_beside(text, known, Refusals(""))


def _known(text: SelectText) -> frozenset[str]:
    """Return what a text has that a relative error may not go with."""
    select, options = text.select, text.options
    window, most = options.rho_window, options.max_rho
    asked = options.given | things_without(options.mechanism, text.environment.mechanisms)
    return asked | that_hold(
        {
            "keys alone": select.keys and not select.calls,
            "GROUPING SETS": text.has_sets,
            "a ceiling": options.rho_ceiling or text.owner.rules.levels.ceiling,
            "a window without max_rho": window
            and (options.max_epsilon or (most and not window[0] <= most <= window[1])),
        }
    )


def _refuse_beside(text: SelectText, known: AbstractSet[str], refusals: Refusals) -> bool:
    """Note a refusal for each thing that a relative error does not go with; return whether there is one."""
    window, given = text.options.rho_window or (0.0, 0.0), options_of_target(text)
    most = text.options.max_rho or window[1]
    low, high, place = min(window[0], most), max(window[1], most), place_of_options(text)
    return refuse_combinations(
        {"target_relative_error"}, known, place, refusals, given=given, low=low, high=high, most=most
    )


def relative_error(options: QueryOptions, error: float) -> RelativeError:
    """Return the relative error that options ask for."""
    return RelativeError(error, options.at_least or _USUAL_SHARE, options.confidence or 0.95)


def cap_of(options: QueryOptions) -> tuple[str, float]:
    """Return the option that says the highest level of a relative error, and its value.

    >>> cap_of(QueryOptions(max_epsilon=2.0))
    ('max_epsilon', 2.0)
    """
    if options.max_rho is None and options.max_epsilon is not None:
        return "max_epsilon", options.max_epsilon
    # a text with neither is refused
    return "max_rho", options.max_rho or 0.0
