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
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import NoReturn, TypeVar

from sqlglot import exp

from dpsql.bound.value_counts import CELL_LATTICE_EXPONENT
from dpsql.model.estimates import Estimate, Linear, Quantile, Ratio, Spread
from dpsql.model.frame import SUM_LATTICE_BITS, Cells, Statistic
from dpsql.model.private_query import NO_BOUNDS
from dpsql.operations.dialect import to_sql
from dpsql.plan.aggregates.arguments import (
    Aggregate,
    AggregateSource,
    Bounds,
    Call,
    CallBounds,
    RefusedCallError,
    finite_sql,
    sum_of,
)
from dpsql.plan.aggregates.counts import MOST_ROWS, read_count, refuse_more_rows
from dpsql.sql.clauses import with_bounds
from dpsql.sql.intervals import Columns, interval_of

CELLS = 64
"""Equal parts of the bounds that rows of a quantile are counted in."""


def read_sum(source: AggregateSource, call: Call) -> Aggregate:
    """The sum of rows that are clamped, one by one or a unit's together."""
    statistic = _value_statistic(source, call, _checked_bounds(source, call))
    output = re.sub(r"DECIMAL\(\d+,(\d+)\)", r"DECIMAL(38,\1)", call.value_type)
    return sum_of(call, statistic, output if output.startswith("DECIMAL") else "DOUBLE")


def read_average(source: AggregateSource, call: Call) -> Aggregate:
    """The mean of rows that are clamped."""
    return Aggregate(Estimate(call.name, _average(source, call), "DOUBLE"), call.weight)


def read_spread(source: AggregateSource, call: Call) -> Aggregate:
    """A variance or standard deviation, beside the average of the same values."""
    ratio = _average(source, call)
    low, high = ratio.bounds
    middle, most = (low + high) / 2.0, ((high - low) / 2.0) ** 2
    if not representable((0.0, most)):
        _refuse_extreme(source, call)
    statistic = _squares(source, call, (low, high), middle, most)
    is_sample, is_root = call.function.endswith("samp"), call.function.startswith("stddev")
    # of n rows within the bounds the population's variance is at most this, a sample's n / (n - 1) times as much
    limit = 2.0 * most if is_sample else most
    bounds = (0.0, math.sqrt(limit) if is_root else limit)
    spread = Spread(bounds, ratio, Linear(statistic, statistic.centre), middle, is_sample, is_root)
    return Aggregate(Estimate(call.name, spread, "DOUBLE"), call.weight)


def read_quantile(source: AggregateSource, call: Call) -> Aggregate:
    """A quantile of a histogram."""
    bounds, cap = _row_bounds(source, call)
    statistic = Statistic(
        kind="histogram",
        low_steps=0,
        high_steps=cap * 2**-CELL_LATTICE_EXPONENT,
        lattice_exponent=CELL_LATTICE_EXPONENT,
        value_sql=finite_sql(to_sql(call.value), call.value_type),
        filter_sql=call.filter_sql,
        row_cap=cap,
        histogram=Cells(CELLS, *bounds),
    )
    return Aggregate(Estimate(call.name, Quantile(bounds, statistic, call.share), "DOUBLE"), call.weight)


def _average(source: AggregateSource, call: Call) -> Ratio:
    """Sum of the clamped rows by their number."""
    bounds, _ = _row_bounds(source, call)
    counted = read_count(source, replace(call, bounds=CallBounds()))
    statistic = _value_statistic(source, call, CallBounds(per_row=bounds))
    return Ratio(bounds, Linear(statistic, statistic.centre), *counted.estimate.value.linears)


def _row_bounds(source: AggregateSource, call: Call) -> tuple[Bounds, int]:
    """Bounds of a row, and most rows of one unit in a group, of what has no bounds per group."""
    per_row, cap = _checked_bounds(source, call).per_row, source.owner.rules.max_rows_per_group
    if not (per_row and cap):
        raise AssertionError("an average, spread or quantile is bounded per row, of which a unit has so many")
    return per_row, cap


def _refuse_extreme(source: AggregateSource, call: Call) -> NoReturn:
    """Refuse bounds which have, or from which follows, no usual size."""
    source.refuse(
        "bounds_invalid", call.node,
        "the bounds are too wide, too narrow, or too far from 0 for their width or for that of the group's.",
        "Shift or scale the value, as in sum(x - 1000000, …).",
    )  # fmt: skip


def _checked_bounds(source: AggregateSource, call: Call) -> CallBounds:
    """Bounds that apply: the query's, else what domains say of a row."""
    bounds, cap = call.bounds, source.owner.rules.max_rows_per_group
    if bounds.auto:
        bounds = CallBounds().with_pair(bounds.auto, _found_bounds(source, call))
    elif not (bounds.per_group or bounds.per_row):
        bounds = CallBounds(per_row=_inferred(source, call.value))
    given = [pair for pair in (bounds.per_group, bounds.per_row) if pair]
    if not given:
        _refuse_unbounded_sum(source, call)
    if not all(low < high for low, high in given):
        source.note_bounds(call.node)
        raise RefusedCallError
    if not all(map(representable, given)) or (len(given) == 2 and not representable_together(*given)):
        _refuse_extreme(source, call)
    if not (bounds.per_group or cap):
        average = call.function != "sum"
        source.refuse(
            "bounds_missing", call.node,
            f"{call.name} is bounded per row, but not how many rows one unit has in a group.",
            f"Declare max_rows_per_group := 5 in CALL dp_protect('{source.schema.canonical}', …)"
            + ("." if average else f", or write {with_bounds(call.node, '(0, 500)')}."),
        )  # fmt: skip
    if not bounds.per_group and cap and cap > MOST_ROWS:
        # on the lattice of so many rows a single one would be no step at all
        refuse_more_rows(source, call.node)
    return bounds


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


def _undeclared(source: AggregateSource, value: exp.Expr) -> tuple[tuple[str, str], ...]:
    """Table and column of each domain that is missing; none where domains of all of them would not do."""
    names = dict.fromkeys(column.name for column in value.find_all(exp.Column))
    absent = [name for name in names if not source.domain(name)]

    def would_do(supposed: Collection[str]) -> bool:
        columns = _columns(source, lambda name: (1.0, 2.0) if name in supposed else source.domain(name))
        return interval_of(value, columns).is_finite

    needed = [name for name in absent if not would_do([other for other in absent if other != name])]
    origins = tuple(dict.fromkeys(source.schema.origin(name) for name in needed))
    # what a subquery computes has no table that a domain could be declared of
    return origins if would_do(needed) and all(table for table, _ in origins) else ()


def _found_bounds(source: AggregateSource, call: Call) -> Bounds:
    """What AUTO found, or stands for it before it is asked; notes what it is asked."""
    asked = Statistic(
        kind="group_extremes" if call.bounds.auto == "per_group" else "row_extremes",
        low_steps=1,
        high_steps=1,
        lattice_exponent=0,
        value_sql=finite_sql(to_sql(call.value), call.value_type),
        filter_sql=call.filter_sql,
    )
    source.asked.setdefault(asked, call.name)
    return source.found_bounds.get(asked, NO_BOUNDS)


def _refuse_unbounded_sum(source: AggregateSource, call: Call) -> NoReturn:
    form = "per_group" if call.function == "sum" else "per_row"
    text = with_bounds(call.node, "(0, 500)", form)
    declarations = [
        f"CALL dp_domain('{table}', '{column}', bounds := [0, 500])"
        for table, column in _undeclared(source, call.value)
    ]
    finds = call.function in ("sum", "avg")
    declare = f" or declare {' and '.join(declarations)}" if declarations else ""
    source.refuse(
        "bounds_missing", call.node, f"{call.name} has no bounds on what one unit can add to one group.",
        f"Write {text}{declare}."
        + (f" {with_bounds(call.node, 'AUTO', form)} spends part of rho to find them." if finds else ""),
    )  # fmt: skip


def _value_statistic(source: AggregateSource, call: Call, bounds: CallBounds) -> Statistic:
    """The sum of the clamped values."""
    missing = bool(call.filters) or source.may_be_missing(call.value, call.value_type)
    return _sum_statistic(source, call, finite_sql(to_sql(call.value), call.value_type), bounds, missing=missing)


def _squares(source: AggregateSource, call: Call, bounds: Bounds, middle: float, most: float) -> Statistic:
    """The sum of squared distances of the clamped rows to the middle."""
    number = f"cast({to_sql(call.value)} as double)"
    clamped = f"greatest(least({number}, {bounds[1]!r}), {bounds[0]!r})"
    # least and greatest skip NULLs, so a row without a value is left out first
    value_sql = f"case when isfinite({number}) then power({clamped} - {middle!r}, 2) end"
    return _sum_statistic(source, call, value_sql, CallBounds(per_row=(0.0, most)), missing=True)


def _sum_statistic(
    source: AggregateSource, call: Call, value_sql: str, bounds: CallBounds, *, missing: bool
) -> Statistic:
    cap = None if bounds.per_group else source.owner.rules.max_rows_per_group
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
        row_cap=cap,
    )


_Number = TypeVar("_Number", int, float)

_LARGEST_BOUND = 2.0**100
_MOST_ROW_BITS = 8


@dataclass(frozen=True, slots=True)
class SumSteps:
    """The lattice of a sum and its public bounds on it, in steps.

    Attributes:
        exponent: a step is 2**exponent.
        low, high: the final interval: what one unit can add to one group, all rules applied.
        row: clamp of each row; None where only the unit's total is clamped.
        group: clamp of the unit's total; None where its rows are clamped and capped.

    """

    exponent: int
    low: int
    high: int
    row: tuple[int, int] | None
    group: tuple[int, int] | None


def representable(bounds: Bounds) -> bool:
    """Whether bounds have a usual size, and a usual distance from 0 for their width."""
    low, high = bounds
    largest = max(abs(low), abs(high))
    return low < high and largest <= _LARGEST_BOUND and high - low >= largest * 2.0**-20 and high - low >= 2.0**-60


def representable_together(per_group: Bounds, per_row: Bounds) -> bool:
    """Whether rows, counted on the lattice of their group's total, have steps that floating point counts exactly."""
    return max(abs(per_row[0]), abs(per_row[1])) <= (per_group[1] - per_group[0]) * 2.0**28


def sum_steps(per_group: Bounds | None, per_row: Bounds | None, row_cap: int | None, *, missing: bool) -> SumSteps:
    """Lattice and bounds of a sum.

    The lattice follows the final interval. Were it to follow the bounds of a row, those far from 0 for their width
    would be many more steps away from 0 than they span, and noise and totals would leave what can be drawn and held.
    Rows are rounded one by one, so where several are added it is finer, by up to 2**8. No unit moves a group by more
    than 2**33 steps, and no bound is 2**53 steps from 0.

    Args:
        per_group: clamp of a unit's total in a group; representable.
        per_row: clamp of a row; representable, and together with ``per_group``.
        row_cap: most rows of one unit that count in one group; applies where there is no ``per_group``.
        missing: whether a unit that is present may have no value, which adds 0.

    Raises:
        ValueError: there are no bounds at all.

    """
    bounds = per_group or per_row
    if bounds is None:
        raise ValueError("a sum needs bounds")
    cap = 1 if per_group else row_cap or 1
    low, high = _widened(*bounds, cap, missing=missing)
    finer = SUM_LATTICE_BITS + min(_MOST_ROW_BITS, (cap - 1).bit_length())
    # frexp's mantissa is in [1/2, 1), so this is floor(log2(width)), with no logarithm to be rounded
    exponent = math.frexp(high - low)[1] - 1 - finer
    row = _in_steps(per_row, exponent) if per_row else None
    group = _in_steps(per_group, exponent) if per_group else None
    low_steps, high_steps = _widened(*_in_steps(bounds, exponent), cap, missing=missing)
    return SumSteps(exponent, low_steps, high_steps, row, group)


def _widened(low: _Number, high: _Number, cap: int, *, missing: bool) -> tuple[_Number, _Number]:
    """What one to ``cap`` rows within bounds add up to, and 0 where a unit may have no value."""
    low, high = min(low, cap * low), max(high, cap * high)
    return (min(low, 0), max(high, 0)) if missing else (low, high)


def _in_steps(bounds: Bounds, exponent: int) -> tuple[int, int]:
    """Bounds in lattice steps, each rounded to the nearest."""
    step = Fraction(2) ** exponent
    return round(Fraction(bounds[0]) / step), round(Fraction(bounds[1]) / step)
