"""From calls of count, bool_or and bool_and to the bounded statistics that answer them.

These are rows, distinct units and distinct values. Whether any unit has a row that decides a truth value is read from
a noisy number of such units: the statistic of ``count(DISTINCT unit) FILTER (WHERE …)``, the same, so that both are
paid once.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NoReturn

from sqlglot import exp

from dpsql.model.estimates import UNITS, AnyUnit, Estimate, Linear, Sum
from dpsql.model.frame import COUNT_LATTICE_EXPONENT, Statistic
from dpsql.operations import blanks
from dpsql.operations.dialect import to_sql
from dpsql.plan.aggregates.arguments import Aggregate, Call, sum_of
from dpsql.plan.aggregates.lattice import MOST_ROWS, around_zero
from dpsql.plan.aggregates.norms import refuse_by_norm, rows_by_norm
from dpsql.plan.aggregates.source import FLOATING, AggregateSource, RefusedCallError, finite_sql, type_name
from dpsql.sql.clauses import with_bounds, without_bounds
from dpsql.sql.row_types import is_scalar

_SCALE = 2**-COUNT_LATTICE_EXPONENT


def refuse_more_rows(source: AggregateSource, node: exp.Expr) -> NoReturn:
    """Refuse that a unit may have more than ``MOST_ROWS`` rows in one group, or in all that make the other group."""
    source.refuse(
        "bounds_invalid",
        node,
        f"one unit could add more than {MOST_ROWS:,} rows to one group.",
        "Lower contribution_bounds_per_group, or max_rows_per_group in dp_protect.",
        "Lower contribution_bounds_per_group.",
    )


def read_count(source: AggregateSource, call: Call) -> Aggregate:
    """Rows, or those with a value; or distinct units or values."""
    if call.distinct:
        return _count_distinct(source, call)
    value = ""
    if not isinstance(call.value, exp.Star | exp.Literal):
        value_type = source.type_of(call.value)
        if source.may_be_missing(call.value, value_type):
            value = finite_sql(to_sql(call.value), value_type)
    missing = bool(call.filter_sql or value)
    group = call.bounds.per_group
    if source.by_norm and not group:
        return sum_of(call, rows_by_norm(source, call, value, None), "BIGINT")
    if group:
        if not (0 <= group[0] <= group[1] and group[1] >= 1 and all(bound == int(bound) for bound in group)):
            source.note_bounds(call.node, given=group)
            raise RefusedCallError
        low, high, cap = int(group[0]) if missing else max(int(group[0]), 1), int(group[1]), None
    elif (cap := source.row_cap(call.name)) is not None:
        low, high = 0 if missing else 1, cap
    else:
        _refuse_unbounded(source, call, "rows of one unit in one group", blanks.MOST_ROWS)
    if high > MOST_ROWS:
        refuse_more_rows(source, call.node)
    if source.by_norm:
        return sum_of(call, rows_by_norm(source, call, value, (low, high)), "BIGINT")
    statistic = Statistic(
        kind="rows",
        low_steps=low * _SCALE,
        high_steps=high * _SCALE,
        lattice_exponent=COUNT_LATTICE_EXPONENT,
        value_sql=value,
        filter_sql=call.filter_sql,
        group_bounds_steps=(int(group[0]) * _SCALE, int(group[1]) * _SCALE) if group else None,
        limit=cap,
    )
    if not source.recentred:
        statistic = around_zero(statistic)
    if statistic.radius_steps == 0:
        # every present unit counts the same number of rows, so the presence count says it all
        return Aggregate(Estimate(call.name, Sum(Linear(None, statistic.centre)), "BIGINT", counts_rows=True))
    return sum_of(call, statistic, "BIGINT")


def read_count_if(source: AggregateSource, call: Call) -> Aggregate:
    """Rows with a condition."""
    source.bind_condition(call.value)
    return read_count(source, replace(call.of_rows_with(call.value), value=exp.Star()))


def units_with(condition: str, source: AggregateSource) -> Statistic:
    """The number of units with a row that passes a condition."""
    low = 0 if source.recentred else -_SCALE
    return Statistic("units", low, _SCALE, COUNT_LATTICE_EXPONENT, filter_sql=condition)


def _count_distinct(source: AggregateSource, call: Call) -> Aggregate:
    value, owner, condition = call.value.unnest(), source.owner, call.filter_sql
    if not isinstance(value, exp.Column) or value.name not in owner.names_unit:
        return _count_values(source, call)
    if call.bounds.per_group or call.bounds.norm:
        hint = f"Write {without_bounds(call.node)}."
        source.refuse("aggregate_argument", call.node, "a unit counts once in a group.", hint)
    if value.name in owner.sometimes:
        # an outer join left it out of some rows
        known = f"{to_sql(value)} IS NOT NULL"
        condition = f"({condition}) AND {known}" if condition else known
    if not condition:
        return Aggregate(Estimate(call.name, UNITS, "BIGINT"))
    return sum_of(call, units_with(condition, source), "BIGINT")


def _count_values(source: AggregateSource, call: Call) -> Aggregate:
    """Distinct values, of which one unit adds at most so many to a group (`bound.value_counts`)."""
    if source.by_norm:
        refuse_by_norm(source, call)
    if isinstance(call.value, exp.Star | exp.Literal):
        source.refuse("aggregate_argument", call.node, "DISTINCT takes a value.", "Count the values of a column.")
    value_type = source.type_of(call.value)
    if not is_scalar(value_type):
        source.refuse(
            "value_type",
            call.node,
            f"distinct values of type {type_name(value_type)} cannot be counted.",
            "Count numbers, texts, booleans, dates or timestamps, or cast the value to VARCHAR.",
        )
    low, most = call.bounds.per_group or (0, source.row_cap(call.name))
    if most is None:
        _refuse_unbounded(source, call, "values that one unit adds to one group", blanks.MOST_VALUES)
    if low != 0 or not 1 <= most <= MOST_ROWS or most != int(most):
        source.refuse(
            "bounds_invalid",
            call.node,
            "a unit adds from 0 to a whole number of distinct values to a group.",
            f"Write contribution_bounds_per_group => (0, {blanks.MOST_VALUES}).",
        )
    statistic = Statistic(
        kind="values",
        low_steps=0,
        high_steps=int(most) * _SCALE,
        lattice_exponent=COUNT_LATTICE_EXPONENT,
        value_sql=identity_sql(to_sql(call.value), value_type),
        filter_sql=call.filter_sql,
    )
    return sum_of(call, statistic if source.recentred else around_zero(statistic), "BIGINT")


def _refuse_unbounded(source: AggregateSource, call: Call, what: str, most: str) -> NoReturn:
    source.refuse(
        "bounds_missing",
        call.node,
        f"{call.name} has no bound on the {what}.",
        f"Write {with_bounds(call.node, f'(0, {most})')}.",
    )


def identity_sql(value_sql: str, value_type: str) -> str:
    """SQL of which equal values have equal bytes, so that their hash does not depend on which row came first."""
    if value_type == "VARCHAR":
        # a column may have a collation of its own
        return f"encode({value_sql})"
    # -0.0 + 0 is 0.0
    return finite_sql(f"({value_sql} + 0)", value_type) if value_type in FLOATING else value_sql


def read_any_unit(source: AggregateSource, call: Call) -> Aggregate:
    """Whether any unit has a row that decides a truth value."""
    is_or = call.function == "bool_or"
    decides = call.value if is_or else exp.not_(call.value)
    statistic = units_with(call.of_rows_with(decides).filter_sql, source)
    estimate = Estimate(call.name, AnyUnit(Linear(statistic, statistic.centre), truth=is_or), "BOOLEAN")
    return Aggregate(estimate, call.weight)
