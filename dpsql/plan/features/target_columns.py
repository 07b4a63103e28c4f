"""Columns of an answer that a target is for, and what the refusals of targets name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlglot import exp

from dpsql.model.estimates import Value
from dpsql.operations.dialect import to_sql
from dpsql.plan.aggregates.arguments import Aggregate
from dpsql.sql.clauses import is_aggregate_call, is_interval_call
from dpsql.sql.names import SelectItem
from dpsql.sql.source.sources import SelectText

WITHOUT_NOISE = "a target is for numbers with noise, and this column has no noise."
_OF_TARGETS = ("target_half_width", "target_relative_error", "at_least", "confidence", "max_rho", "max_epsilon")


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


def options_of_target(text: SelectText) -> str:
    """Return the options of a text that a level stands in place of, with commas and ``and`` between them."""
    return _listed([name for name in _OF_TARGETS if name in text.options.given])


def _listed(names: Sequence[str]) -> str:
    """Return names with commas and ``and`` between them."""
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))
