"""Checks of the half widths that a query asks for in place of a level: which columns they are for.

The noise of a count, a sum or a running total follows from the level alone. The error of every other column depends on
the data, or on other numbers of the answer, so no level is found for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice

from sqlglot import exp

from dpsql.model.estimates import RunningSum, Sum
from dpsql.model.frame import Statistic
from dpsql.model.refusals import refuse_combinations, that_hold
from dpsql.model.similar_names import did_you_mean
from dpsql.operations.dialect import text_literal
from dpsql.plan.aggregates.arguments import Aggregate
from dpsql.plan.features.half_width_caps import check_cap, has_ceiling
from dpsql.plan.features.relative_errors import MEASURED, goes_with_relative_error
from dpsql.plan.features.target_columns import (
    WITHOUT_NOISE,
    fault_of,
    is_about_numbers,
    level_in_place,
    place_of_options,
    refuse_alone,
)
from dpsql.sql.source.sources import SelectText

_LEVELS = frozenset(("rho", "epsilon"))
_DEPENDS = "the error of this column depends on the data, and a half width is for a count or a sum."
_COMPUTED = "a half width is for a count or a sum by itself, and this column is computed of numbers."
_MOST_REFUSED = 5
"""Names of a target that are refused one by one."""


def check_half_widths(text: SelectText, aggregates: Mapping[str, Aggregate], asked: Mapping[Statistic, str]) -> None:
    """Note a refusal for everything in a text by half widths whose noise the level does not fix.

    Args:
        text: the query.
        aggregates: by their texts; those that were refused are missing.
        asked: what AUTO would find, with the text of the aggregate that needs it.

    """
    target, select = text.options.target_half_width, text.select
    if isinstance(target, tuple) and not target:
        # its value was refused
        return
    known = text.options.given - _LEVELS | that_hold({"keys alone": select.keys and not select.calls})
    if not select.keys:
        known -= {"max_groups_contributed = AUTO"}
    known |= that_hold({"a ceiling": has_ceiling(text)})
    refuse_combinations({"target_half_width", "a ceiling"}, known, place_of_options(text), text.refusals)
    if _refuse_columns(text, aggregates):
        refuse_alone(text)
    if not text.finds_bounds and (asked or "max_groups_contributed = AUTO" in known):
        check_cap(text)


def _refuse_columns(text: SelectText, aggregates: Mapping[str, Aggregate]) -> bool:
    """Note a refusal for each column without a half width. Return whether there is one."""
    target, select, before = text.options.target_half_width, text.select, len(text.refusals.found)
    if not select.calls:
        return False
    faults = [fault_of(item, aggregates, (Sum, RunningSum), _DEPENDS, _COMPUTED) for item in select.items]
    fit = [item.name for item, fault in zip(select.items, faults, strict=True) if not fault]
    if isinstance(target, tuple):
        _check_named(text, [name for name, _ in target], faults, _in_place(text, aggregates))
        return len(text.refusals.found) > before
    hint = _hint(text, fit, _in_place(text, aggregates))
    for item, fault in zip(select.items, faults, strict=True):
        if fault and fault != WITHOUT_NOISE and not is_about_numbers(item.expression):
            text.refusals.add("option", item.expression, fault, hint)
    if set(faults) == {WITHOUT_NOISE}:
        text.refusals.add("option", place_of_options(text), "no column of the answer is a count or a sum.", hint)
    return len(text.refusals.found) > before


def _in_place(text: SelectText, aggregates: Mapping[str, Aggregate]) -> str:
    """Return the options of a relative error to write in place of half widths; an empty text if it does not fit."""
    items = [item for item in text.select.items if not is_about_numbers(item.expression)]
    faults = {fault_of(item, aggregates, MEASURED, _DEPENDS, _COMPUTED) for item in items}
    if faults - {WITHOUT_NOISE} != {""} or not goes_with_relative_error(text):
        return ""
    cap = "" if text.options.given & {"max_rho", "max_epsilon"} else ", max_rho = 0.1"
    return f"OPTIONS (target_relative_error = 0.1{cap}) in place of target_half_width"


def _hint(text: SelectText, fit: Iterable[str], in_place: str) -> str:
    """Return the options to write in place of one half width for all columns."""
    cures = [in_place] if in_place else []
    cures.append(level_in_place(text))
    if listed := ", ".join(
        f"{text_literal(name)}: {text.options.target_half_width:.9g}" for name in dict.fromkeys(fit)
    ):
        cures.append(f"OPTIONS (target_half_width = {{{listed}}})")
    return f"Write {', or '.join(cures)}."


def _check_named(text: SelectText, names: Sequence[str], faults: Sequence[str], in_place: str) -> None:
    """Note a refusal for each name of a half width that is no count or sum of the answer: for the first few."""
    of_name: dict[str, list[str]] = {}
    for item, fault in zip(text.select.items, faults, strict=True):
        of_name.setdefault(item.name.lower(), []).append(fault)
    fit = list(dict.fromkeys(item.name for item in text.select.items if not any(of_name[item.name.lower()])))
    listed = f"Counts and sums of the answer: {', '.join(fit)}." if fit else "The answer has no count and no sum."
    fields = {node.name.lower(): node for node in (text.hint or exp.Null()).find_all(exp.PropertyEQ)}
    wrong = (name for name in names if name.lower() not in of_name or any(of_name[name.lower()]))
    for name in islice(wrong, _MOST_REFUSED):
        node, found = fields.get(name.lower(), place_of_options(text)), of_name.get(name.lower())
        if found is None:
            hint = f"{did_you_mean(name, fit)} {listed}".lstrip()
            text.refusals.add("option", node, f"the answer has no column {name}.", hint)
        else:
            message = f"target_half_width names {name}: {next(filter(None, found))}"
            others = f"{listed} For all columns write {in_place}." if in_place else listed
            text.refusals.add("option", node, message, f"Leave {name} out of target_half_width. {others}")
