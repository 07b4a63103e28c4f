"""Checks of the half widths that a query asks for in place of a level: which columns they are for.

The noise of a count, a sum or a running total follows from the level alone. The error of every other column depends on
the data, or on other numbers of the answer, so no level is found for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice

from sqlglot import exp

from dpsql.model.estimates import RunningSum, Sum, Value
from dpsql.model.frame import Statistic
from dpsql.model.refusals import refuse_combinations, that_hold
from dpsql.model.similar_names import did_you_mean
from dpsql.operations.dialect import text_literal, to_sql, unquoted
from dpsql.plan.aggregates.arguments import Aggregate
from dpsql.sql.clauses import is_aggregate_call, is_interval_call
from dpsql.sql.names import SelectItem
from dpsql.sql.source.sources import SelectText

_LEVELS = frozenset(("rho", "epsilon"))
_OF_TARGET = ("target_half_width", "confidence", "max_rho", "max_epsilon")
_BOUNDS = {
    "group_extremes": "contribution_bounds_per_group => (0, 500)",
    "row_extremes": "contribution_bounds_per_row => (0, 500)",
    "rows_norm": "contribution_norm => 14",
    "sum_norm": "contribution_norm => 14",
}
"""Arguments that say what AUTO would find, by the kind of the statistic that AUTO asks for."""
_DEPENDS = "the error of this column depends on the data, and a half width is for a count or a sum."
_COMPUTED = "a half width is for a count or a sum by itself, and this column is computed of numbers."
_MOST_REFUSED = 5
"""Names of a target that are refused one by one."""
WITHOUT_NOISE = "a half width is for a count or a sum, and this column has no noise."


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
    known |= that_hold({"a ceiling": text.options.rho_ceiling or text.owner.rules.levels.ceiling})
    refuse_combinations({"target_half_width", "a ceiling"}, known, place_of_options(text), text.refusals)
    for statistic, name in asked.items():
        call = next((node for node in select.calls if unquoted(node) == name), select.calls[0])
        things = {"target_half_width", "AUTO bounds"}
        refuse_combinations(things, things, call, text.refusals, bounds=_BOUNDS[statistic.kind])
    if not select.calls:
        return
    faults = [fault_of(item, aggregates, (Sum, RunningSum), _DEPENDS, _COMPUTED) for item in select.items]
    fit = [item.name for item, fault in zip(select.items, faults, strict=True) if not fault]
    if isinstance(target, tuple):
        _check_named(text, [name for name, _ in target], faults)
        return
    hint = _hint(text, fit)
    for item, fault in zip(select.items, faults, strict=True):
        if fault and fault != WITHOUT_NOISE:
            text.refusals.add("option", item.expression, fault, hint)
    if set(faults) == {WITHOUT_NOISE}:
        text.refusals.add("option", place_of_options(text), "no column of the answer is a count or a sum.", hint)


def place_of_options(text: SelectText) -> exp.Expr:
    """Return where refusals of the options point to."""
    return text.hint or text.clauses.select[0]


def fault_of(
    item: SelectItem, aggregates: Mapping[str, Aggregate], kinds: tuple[type[Value], ...], other: str, computed: str
) -> str:
    """Return why a column of the answer has no target; an empty text if it has one.

    Args:
        item: the column.
        aggregates: by their texts; those that were refused are missing.
        kinds: values of aggregates that have a target.
        other: the reason for any other aggregate.
        computed: the reason for what is computed of aggregates.

    """
    node = item.expression
    if is_aggregate_call(node):
        aggregate = aggregates.get(to_sql(node))
        # why an aggregate is missing was noted before
        return "" if aggregate is None or isinstance(aggregate.estimate.value, kinds) else other
    parts = node.walk(prune=is_aggregate_call)
    return computed if any(is_aggregate_call(part) or is_interval_call(part) for part in parts) else WITHOUT_NOISE


def _hint(text: SelectText, fit: Iterable[str]) -> str:
    """Return the options to write in place of one half width for all columns."""
    named = _listed([name for name in _OF_TARGET if name in text.options.given])
    listed = ", ".join(f"{text_literal(name)}: {text.options.target_half_width:.9g}" for name in dict.fromkeys(fit))
    others = f", or OPTIONS (target_half_width = {{{listed}}})" if listed else ""
    return f"Write OPTIONS (rho = 0.1) in place of {named}{others}."


def _listed(names: Sequence[str]) -> str:
    """Return names with commas and ``and`` between them."""
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _check_named(text: SelectText, names: Sequence[str], faults: Sequence[str]) -> None:
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
            text.refusals.add("option", node, message, f"Leave {name} out of target_half_width. {listed}")
