"""From calls of sum, avg, spreads and quantiles to the bounded statistics that answer them.

Three sums make a spread: of the rows, of their values, and of their squared distances to the middle of the bounds. The
first two are those of ``avg``, the same statistics, so that they are paid once; the third is at most the square of half
the width of the bounds, hence small, however far from 0 these are.

The lattice of a sum follows from its public bounds alone. All quantiles of one value share one histogram on a public
grid, so that one or all of them cost the same.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import NoReturn

from sqlglot import exp

from dpsql.bound.value_counts import CELL_LATTICE_EXPONENT
from dpsql.model.cells import Cells
from dpsql.model.estimates import IN_PLACE_OF, Estimate, Linear, Quantile, Ratio, Spread, ValueBounds
from dpsql.model.frame import Statistic
from dpsql.operations import blanks
from dpsql.operations.dialect import to_sql, unquoted
from dpsql.plan.aggregates.arguments import Aggregate, Call, CallBounds, sum_of
from dpsql.plan.aggregates.counts import identity_sql, read_count, refuse_more_rows
from dpsql.plan.aggregates.lattice import (
    MOST_ROWS,
    Bounds,
    around_zero,
    representable,
    representable_together,
    sum_steps,
)
from dpsql.plan.aggregates.missing_bounds import completed, found_extremes, value_bounds
from dpsql.plan.aggregates.norms import found_norm, refuse_by_norm, sum_beside_rows, sum_by_norm
from dpsql.plan.aggregates.source import FLOATING, AggregateSource, RefusedCallError, finite_sql, is_number
from dpsql.plan.aggregates.times import TIMES, seconds_sql
from dpsql.sql.clauses import called_with, with_bounds
from dpsql.sql.intervals import Columns, interval_of

_BY_AUTO = "Ask for it without grouping sets, top_k and other_group, so that AUTO finds this number"


def read_sum(source: AggregateSource, call: Call) -> Aggregate:
    """The sum of rows that are clamped, one by one or a unit's together; or of distinct values."""
    if call.distinct:
        return _sum_of_values(source, call)
    bounds = _checked_bounds(source, call)
    statistic = _value_statistic(source, call, bounds)
    if not source.recentred:
        statistic = around_zero(statistic)
    total = sum_of(call, statistic, _type_of_sum(call.value_type))
    return replace(total, estimate=replace(total.estimate, value_bounds=_bounds_of_sum(source, call, bounds)))


def _type_of_sum(value_type: str) -> str:
    """Return the type of a sum by the type of its values, as DuckDB has it: that of whole numbers is whole.

    >>> _type_of_sum("INTEGER"), _type_of_sum("BOOLEAN"), _type_of_sum("DECIMAL(9,2)"), _type_of_sum("FLOAT")
    ('HUGEINT', 'HUGEINT', 'DECIMAL(38,2)', 'DOUBLE')
    """
    if value_type in FLOATING:
        return "DOUBLE"
    return re.sub(r"DECIMAL\(\d+,(\d+)\)", r"DECIMAL(38,\1)", value_type) if "," in value_type else "HUGEINT"


def _sum_of_values(source: AggregateSource, call: Call) -> Aggregate:
    """The sum of distinct values, of which one unit brings a limited number into a group (`bound.value_counts`).

    What one unit adds is no number of its own, since others may have its values. So it is not recentred by units.
    """
    if source.by_norm:
        refuse_by_norm(source, call)
    if call.bounds.per_group or call.bounds.auto == "per_group":
        bounds_of_value = f"contribution_bounds_per_row => {blanks.pair(blanks.VALUES)}"
        text = called_with(call.node, "sum", f"DISTINCT {unquoted(call.value)}", bounds_of_value)
        source.refuse("aggregate_argument", call.node, "sum(DISTINCT x) is bounded per value.", f"Write {text}.")
    bounds, most = row_bounds(source, call), source.row_cap(call.name)
    if not most:
        raise AssertionError("a sum of distinct values needs max_rows_per_group")
    steps = sum_steps(None, bounds, most, missing=True)
    statistic = Statistic(
        kind="value_sum",
        low_steps=steps.low,
        high_steps=steps.high,
        lattice_exponent=steps.exponent,
        value_sql=identity_sql(to_sql(call.value), call.value_type),
        filter_sql=call.filter_sql,
        row_bounds_steps=steps.row,
    )
    total = sum_of(call, around_zero(statistic), _type_of_sum(call.value_type))
    found = value_bounds(source, call, "per_row", bounds, usual(source, call))
    return replace(total, estimate=replace(total.estimate, value_bounds=found))


def _bounds_of_sum(source: AggregateSource, call: Call, bounds: CallBounds) -> ValueBounds | None:
    """Return the bounds of the values of a sum with their origin; None if a norm that policy or text say bounds it."""
    if source.by_norm and not call.bounds.auto:
        return found_norm(source, call)
    if bounds.per_group:
        return value_bounds(source, call, "per_group", bounds.per_group, None)
    return value_bounds(source, call, "per_row", bounds.per_row, usual(source, call)) if bounds.per_row else None


def read_average(source: AggregateSource, call: Call) -> Aggregate:
    """The mean of rows that are clamped."""
    return _of_rows(source, call, _average(source, call))


def _of_rows(source: AggregateSource, call: Call, value: Ratio | Spread) -> Aggregate:
    """Return the aggregate of a mean or a spread, with the bounds of its rows."""
    row_bounds = value.average.bounds if isinstance(value, Spread) else value.bounds
    found = value_bounds(source, call, "per_row", row_bounds, usual(source, call))
    return Aggregate(Estimate(call.name, value, "DOUBLE", value_bounds=found), call.weight)


def read_spread(source: AggregateSource, call: Call) -> Aggregate:
    """A variance or standard deviation, beside the average of the same values."""
    ratio = _average(source, call)
    low, high = ratio.bounds
    middle, most = (low + high) / 2.0, ((high - low) / 2.0) ** 2
    if not representable((0.0, most)):
        refuse_extreme(source, call)
    is_sample, is_root = call.function.endswith("samp"), call.function.startswith("stddev")
    # of n rows within the bounds the population's variance is at most this, a sample's n / (n - 1) times as much
    limit = 2.0 * most if is_sample else most
    bounds = (0.0, math.sqrt(limit) if is_root else limit)
    if rows := _followed(source, ratio.denominator):
        squares = of_distances(source, call, (low, high), f"power({{}}, 2) - {most / 2.0!r}", most / 2.0, rows)
        spread = Spread(bounds, ratio, Linear(squares, 0.0), 0.0, is_sample, is_root, most / 2.0)
    else:
        squares = _squares(source, call, (low, high), most)
        spread = Spread(bounds, ratio, Linear(squares, squares.centre), middle, is_sample, is_root)
    return _of_rows(source, call, spread)


def read_quantile(source: AggregateSource, call: Call) -> Aggregate:
    """A quantile of a histogram."""
    if source.by_norm:
        refuse_by_norm(source, call)
    bounds, cap = row_bounds(source, call), source.row_cap(call.name)
    if not cap:
        raise AssertionError("a quantile needs max_rows_per_group")
    sql, are_times, extreme = to_sql(call.value), call.value_type in TIMES, call.extreme
    if extreme and call.value_type == "BOOLEAN":
        known = called_with(call.node, "bool_and" if extreme == "minimum" else "bool_or", unquoted(call.value))
        source.refuse("value_type", call.node, f"a truth value has no {extreme} here.", f"Write {known}.")
    output = call.value_type if extreme and are_times else TIMES.get(call.value_type, "DOUBLE")
    statistic = Statistic(
        kind="histogram",
        low_steps=0,
        high_steps=cap * 2**-CELL_LATTICE_EXPONENT,
        lattice_exponent=CELL_LATTICE_EXPONENT,
        value_sql=seconds_sql(sql) if are_times else finite_sql(sql, call.value_type),
        filter_sql=call.filter_sql,
        limit=cap,
        # the beginning of 1970 is not where times are close together
        histogram=Cells(*bounds, finer=False) if are_times else Cells.of(*bounds),
    )
    name = f"{call.name}{IN_PLACE_OF}{extreme[:3]}({unquoted(call.value)})" if extreme else call.name
    return Aggregate(Estimate(name, Quantile(bounds, statistic, call.share, extreme), output), call.weight)


def _average(source: AggregateSource, call: Call) -> Ratio:
    """Sum of the clamped rows by their number."""
    bounds = row_bounds(source, call)
    counted = read_count(source, replace(call, bounds=CallBounds(norm=call.bounds.norm)))
    (rows,) = counted.estimate.value.linears
    if followed := _followed(source, rows):
        low, high = bounds
        distances = of_distances(source, call, bounds, "{}", (high - low) / 2.0, followed)
        return Ratio(bounds, Linear(distances, 0.0), rows, (low + high) / 2.0)
    statistic = _value_statistic(source, call, CallBounds(per_row=bounds))
    return Ratio(bounds, Linear(statistic, statistic.centre), rows)


def _followed(source: AggregateSource, rows: Linear) -> Statistic | None:
    """The rows by which values of an average are recentred; None where both are recentred by units."""
    return rows.statistic if source.by_norm or not source.recentred else None


def of_distances(
    source: AggregateSource, call: Call, bounds: Bounds, form: str, most: float, rows: Statistic
) -> Statistic:
    """The sum of what a form makes of each row's distance to the middle of its bounds, of this size at most."""
    return beside_rows(source, call, _distance_sql(call, bounds, form), most, rows)


def beside_rows(source: AggregateSource, call: Call, value_sql: str, most: float, rows: Statistic | None) -> Statistic:
    """The sum of a number of each row, of this size at most; with a norm it is scaled down as the rows are.

    Args:
        source: what the call is of.
        call: the call, with the filter of the rows.
        value_sql: the number, NULL in rows that are not counted.
        most: its largest size; the number is clamped to it.
        rows: the number of the rows, which has a norm if the source is bounded by norms.

    """
    if source.by_norm and rows:
        return sum_beside_rows(value_sql, most, rows)
    return _sum_statistic(source, call, value_sql, CallBounds(per_row=(-most, most)), missing=True)


def row_bounds(source: AggregateSource, call: Call) -> Bounds:
    """Bounds of a row, of what has no bounds per group."""
    per_row = _checked_bounds(source, call).per_row
    if not per_row:
        raise AssertionError("an average, spread or quantile is bounded per row")
    return per_row


def refuse_extreme(source: AggregateSource, call: Call) -> NoReturn:
    """Refuse bounds which have, or from which follows, no usual size."""
    source.refuse(
        "bounds_invalid",
        call.node,
        "the bounds are too wide, too narrow, or too far from 0 for their width or for that of the group's.",
        "Shift or scale the value, as in sum(x - 1000000).",
    )


def _checked_bounds(source: AggregateSource, call: Call) -> CallBounds:
    """Bounds that apply: the query's, else what domains say of a row."""
    bounds = call.bounds
    if bounds.auto:
        bounds = CallBounds().with_pair(bounds.auto, found_extremes(source, call, bounds.auto, usual(source, call)))
    elif not (bounds.per_group or bounds.per_row):
        bounds = CallBounds(per_row=usual(source, call))
    if source.finds_bounds:
        bounds = completed(source, call, bounds)
    given = [pair for pair in (bounds.per_group, bounds.per_row) if pair]
    if not given and not (source.by_norm and call.adds_rows):
        if not (call.adds_rows or source.by_norm or source.row_cap_is_known):
            # bounds of a row would not help
            _refuse_any_rows(source, call)
        _refuse_unbounded_sum(source, call)
    if not all(low < high for low, high in given):
        wrong = next(pair for pair in given if pair[0] >= pair[1])
        source.note_bounds(call.node, are_times=bounds.are_times, given=None if bounds.are_times else wrong)
        raise RefusedCallError
    if not all(map(representable, given)) or (len(given) == 2 and not representable_together(*given)):
        refuse_extreme(source, call)
    if source.by_norm:
        return bounds
    cap = None if bounds.per_group else source.row_cap(call.name)
    if not (bounds.per_group or cap):
        _refuse_any_rows(source, call)
    if cap and cap > MOST_ROWS:
        # on the lattice of so many rows a single one would be no step at all
        refuse_more_rows(source, call.node)
    return bounds


def _refuse_any_rows(source: AggregateSource, call: Call) -> NoReturn:
    """Refuse a number that is bounded per row, since one unit may have any number of rows in a group."""
    setting = f"max_rows_per_group := {blanks.MOST_ROWS}"
    hint = f"{_BY_AUTO}, or declare {source.owner.rules.declaration(source.schema.canonical, setting)}."
    analyst_hint: str | None = f"{_BY_AUTO}, or ask the curator for max_rows_per_group."
    if call.adds_rows:
        hint, analyst_hint = f"Write {with_bounds(call.node, blanks.pair(blanks.SUMS))}.", None
    elif call.function == "avg":
        value, bounds = unquoted(call.value), "contribution_bounds_per_group => "
        total = called_with(call.node, "sum", value, bounds + blanks.pair(blanks.SUMS))
        rows = called_with(call.node, "count", value, f"{bounds}(0, {blanks.MOST_ROWS})")
        hint, analyst_hint = f"Write {total} / {rows}.", None
    source.refuse(
        "bounds_missing",
        call.node,
        f"{call.name} is bounded per row, but not how many rows one unit has in a group.",
        hint,
        analyst_hint,
    )


def _columns(source: AggregateSource, domain: Callable[[str], Bounds | None]) -> Columns:
    """The columns of a source, by what is said of the values of each."""

    def is_never_null(name: str) -> bool:
        column = source.schema.column(name)
        return column is not None and not column.nullable

    return Columns(domain, is_never_null)


def _inferred(source: AggregateSource, value: exp.Expr) -> Bounds | None:
    """Bounds of a row that follow from the declared domains of its columns; None where they leave an end open."""
    found = interval_of(value, _columns(source, source.domain))
    low, high = found.floats()
    if not found.is_finite or low == high == 0.0:
        return None
    # a constant is clamped to what holds it and what a row without a value adds
    return (low, high) if low < high else (min(low, 0.0), max(high, 0.0))


def usual(source: AggregateSource, call: Call) -> Bounds | None:
    """Return the bounds of a row that follow from its columns; None if they have no usual size, as AUTO finds others.

    Nobody declared them where they are those of public rows, as in ``avg(year + 1e9)``.
    """
    bounds = None if call.value_type in TIMES else _inferred(source, call.value)
    return bounds if bounds and representable(bounds) else None


def undeclared(source: AggregateSource, value: exp.Expr) -> tuple[tuple[str, str], ...]:
    """Return table and column of each domain that is missing; nothing if they cannot be declared, or would not do."""
    names = dict.fromkeys(column.name for column in value.find_all(exp.Column))
    absent = [name for name in names if not source.domain(name)]

    def would_do(supposed: Collection[str]) -> bool:
        columns = _columns(source, lambda name: (1.0, 2.0) if name in supposed else source.domain(name))
        return interval_of(value, columns).is_finite

    needed = [name for name in absent if not would_do([other for other in absent if other != name])]
    origins = tuple(dict.fromkeys(source.schema.origin(name) for name in needed))
    # bounds are declared of numbers alone, and not of what a subquery computes, which has no table
    columns = [source.schema.column(name) for name in needed]
    have_bounds = all(column is not None and is_number(column.type) for column in columns)
    return origins if have_bounds and would_do(needed) and all(table for table, _ in origins) else ()


def _refuse_unbounded_sum(source: AggregateSource, call: Call) -> NoReturn:
    form = "per_group" if call.adds_rows else "per_row"
    if call.value_type in TIMES:
        text = with_bounds(call.node, blanks.pair(blanks.DAYS), form)
        source.refuse("bounds_missing", call.node, f"{call.name} has no bounds.", f"Write {text}.")
    text = with_bounds(call.node, blanks.pair(blanks.SUMS if form == "per_group" else blanks.VALUES), form)
    declarations = [
        f"CALL dp_domain('{table}', '{column}', bounds := [{', '.join(blanks.VALUES)}])"
        for table, column in undeclared(source, call.value)
    ]
    declare = f" or declare {' and '.join(declarations)}" if declarations else ""
    source.refuse(
        "bounds_missing",
        call.node,
        f"{call.name} has no bounds on what one unit can add to one group.",
        f"Write {text}{declare}.",
        f"Write {text}.",
    )


def _value_statistic(source: AggregateSource, call: Call, bounds: CallBounds) -> Statistic:
    """The sum of the clamped values."""
    missing = bool(call.filters) or source.may_be_missing(call.value, call.value_type)
    if source.by_norm:
        return sum_by_norm(source, call, bounds, missing=missing)
    return _sum_statistic(source, call, finite_sql(to_sql(call.value), call.value_type), bounds, missing=missing)


def _squares(source: AggregateSource, call: Call, bounds: Bounds, most: float) -> Statistic:
    """The sum of squared distances of the clamped rows to the middle."""
    value_sql = _distance_sql(call, bounds, "power({}, 2)")
    return _sum_statistic(source, call, value_sql, CallBounds(per_row=(0.0, most)), missing=True)


def _distance_sql(call: Call, bounds: Bounds, form: str) -> str:
    """What a form makes of the distance of a clamped row to the middle of its bounds."""
    number = number_sql(call.value)
    # least and greatest skip NULLs, so a row without a value is left out first
    return f"case when isfinite({number}) then {form.format(distance_sql(number, bounds))} end"


def number_sql(value: exp.Expr) -> str:
    """SQL of a value as a DOUBLE."""
    return f"cast({to_sql(value)} as double)"


def clamped_sql(number: str, bounds: Bounds) -> str:
    """SQL of a number that is not NULL, clamped to bounds."""
    low, high = bounds
    return f"greatest(least({number}, {high!r}), {low!r})"


def distance_sql(number: str, bounds: Bounds) -> str:
    """SQL of the distance of a clamped number to the middle of its bounds."""
    return f"{clamped_sql(number, bounds)} - {(bounds[0] + bounds[1]) / 2.0!r}"


def _sum_statistic(
    source: AggregateSource, call: Call, value_sql: str, bounds: CallBounds, *, missing: bool
) -> Statistic:
    cap = None if bounds.per_group else source.row_cap(call.name)
    steps = sum_steps(bounds.per_group, bounds.per_row, cap, missing=missing)
    return Statistic(
        kind="sum",
        low_steps=steps.low,
        high_steps=steps.high,
        lattice_exponent=steps.exponent,
        value_sql=value_sql,
        filter_sql=call.filter_sql,
        row_bounds_steps=steps.row,
        group_bounds_steps=steps.group,
        limit=cap,
    )
