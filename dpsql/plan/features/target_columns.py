"""Columns of an answer that a target is for, and what the refusals of targets name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlglot import exp

from dpsql.model.estimates import Ratio, Value
from dpsql.model.private_query import TARGET_OPTIONS
from dpsql.operations.dialect import to_sql
from dpsql.plan.aggregates.arguments import Aggregate
from dpsql.plan.aggregates.registry import AGGREGATES
from dpsql.plan.features.defaults import MISSING
from dpsql.sql.clauses import function_name, is_aggregate_call, is_interval_call
from dpsql.sql.names import SelectItem
from dpsql.sql.source.sources import SelectText

WITHOUT_NOISE = "a target is for numbers with noise, and this column has no noise."
_SUMS = frozenset(name for kind in AGGREGATES if "per_group" in kind.bounds for name in kind.names)
"""Counts and sums, by their names."""


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
        fits = isinstance(aggregate.estimate.value, kinds) if aggregate else _may_fit(node, kinds)
        return "" if fits else other
    parts = node.walk(prune=is_aggregate_call)
    return computed if any(is_aggregate_call(part) or is_interval_call(part) for part in parts) else WITHOUT_NOISE


def is_about_numbers(node: exp.Expr) -> bool:
    """Check that a column shows something of other columns alone, as ends of their intervals; it needs no target."""
    parts = list(node.walk(prune=lambda part: is_aggregate_call(part) or is_interval_call(part)))
    return any(map(is_interval_call, parts)) and not any(map(is_aggregate_call, parts))


def _may_fit(node: exp.Expr, kinds: tuple[type[Value], ...]) -> bool:
    """Check that an aggregate, which was refused for another reason, would have a target."""
    call = node.this if isinstance(node, exp.Filter) else node
    name = function_name(call)
    if name is None:
        # these are replaced by a quantile
        return not isinstance(call, exp.Min | exp.Max)
    name = name.removeprefix("dp_")
    return name in _SUMS or (name == "avg" and Ratio in kinds)


def refuse_alone(text: SelectText, *moot: str) -> None:
    """Raise the refusals of a text without a target, and leave out those that are moot, as missing bounds are.

    Args:
        text: the query. Why it has no target was noted.
        moot: messages of other refusals to leave out.

    Raises:
        UnsupportedQueryError: always.

    """
    found = text.refusals.found
    found[:] = [one for one in found if one.code not in MISSING and one.message not in moot]
    text.refusals.raise_if_any()


def options_of_target(text: SelectText) -> str:
    """Return the options of a text that a level stands in place of, with commas and ``and`` between them."""
    return _listed([name for name in TARGET_OPTIONS if name in text.options.given])


def level_in_place(text: SelectText) -> str:
    """Return the options of a level to write in place of a target: of the highest one that the text allows, if any."""
    options, counts_epsilon = text.options, text.owner.rules.counts_epsilon
    level = "epsilon = 0.5" if counts_epsilon else "rho = 0.1"
    if options.max_rho is not None and not counts_epsilon:
        level = f"rho = {options.max_rho:.9g}"
    elif options.max_epsilon is not None:
        level = f"epsilon = {options.max_epsilon:.9g}"
    return f"OPTIONS ({level}) in place of {options_of_target(text)}"


def _listed(names: Sequence[str]) -> str:
    """Return names with commas and ``and`` between them."""
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))
