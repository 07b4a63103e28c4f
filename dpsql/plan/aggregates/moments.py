"""From calls of covariances, correlations, lines and geometric means to the bounded sums that answer them.

Of a pair of values count the rows in which both are known. Their number and five sums answer all of these aggregates:
of the distances of either value to the middle of its bounds, of the squares of both, and of the products. A call uses
those that it needs. So calls of one pair in either order, beside each other or one after the other, pay for each sum
once. A distance is at most the radius of its bounds, and a product at most the product of both radii.

*Guarantee*, *Source*: docs/proofs/moments.md, Theorem 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NoReturn, cast

from sqlglot import exp

from dpsql.model.estimates import Estimate, GeometricMean, Linear, Moments, PairFunction, PairValue, Ratio
from dpsql.operations import blanks
from dpsql.operations.dialect import to_sql, unquoted
from dpsql.plan.aggregates.arguments import Aggregate, Call, CallBounds, refuse_type
from dpsql.plan.aggregates.counts import read_count
from dpsql.plan.aggregates.lattice import Bounds, representable
from dpsql.plan.aggregates.missing_bounds import found_extremes, found_positive, value_bounds
from dpsql.plan.aggregates.pairs import refuse_pair
from dpsql.plan.aggregates.source import FLOATING, AggregateSource, is_number, require_no_unit
from dpsql.plan.aggregates.sums import (
    beside_rows,
    clamped_sql,
    distance_sql,
    number_sql,
    refuse_extreme,
    row_bounds,
    undeclared,
    usual,
)
from dpsql.sql.clauses import called_with, with_bounds

_SQUARES: dict[str, tuple[bool, bool]] = {
    "covar_pop": (False, False),
    "covar_samp": (False, False),
    "regr_slope": (False, True),
    "regr_intercept": (False, True),
    "corr": (True, True),
    "regr_r2": (True, True),
}
"""Whether an aggregate of pairs (y, x) divides by the variance of y, and of x."""

_POSITIVE = blanks.pair((blanks.LEAST_POSITIVE, blanks.VALUES[1]))
BLANK_BOUNDS = dict.fromkeys(_SQUARES, blanks.PAIRS) | dict.fromkeys(("geomean", "geometric_mean"), _POSITIVE)
"""Blanks of the bounds of a row, by the name of the aggregate."""


def read_moments(source: AggregateSource, call: Call) -> Aggregate:
    """A covariance, a correlation, or a number of the line through pairs of values."""
    function = cast("PairFunction", call.function)
    values = _values(source, call)
    bounds = _bounds(source, call, values)
    radii = [(high - low) / 2.0 for low, high in bounds]
    largest = (radii[0] ** 2, radii[1] ** 2, radii[0] * radii[1])
    if not all(representable((0.0, most)) for most in largest):
        refuse_extreme(source, call)
    rows, counted = _known_rows(source, call, values)
    # one order of a pair, whichever the call has
    ordered = sorted(zip(values, bounds, strict=True), key=lambda one: to_sql(one[0].value))
    products = beside_rows(source, rows, _product_sql(ordered), largest[2], counted.statistic)
    y, x = (
        _side(source, one, replace(rows, value=one.value), pair, counted, has_squares=has_squares)
        for one, pair, has_squares in zip(values, bounds, _SQUARES[function], strict=True)
    )
    value = Moments(_range(function, largest[2]), function, counted, y, x, Linear(products, 0.0))
    return Aggregate(Estimate(call.name, value, "DOUBLE"), call.weight)


def _values(source: AggregateSource, call: Call) -> tuple[Call, Call]:
    """Return the call as one of each of its two values.

    Raises:
        RefusedCallError: it has not two numbers; why is noted.

    """
    if len(call.others) != 1 or isinstance(call.others[0], exp.Star):
        refuse_pair(source, call.node, call.function, ())
    found = []
    for value in (call.value, *call.others):
        require_no_unit(call.node, call.function, value, source)
        value_type = source.type_of(value)
        if not is_number(value_type):
            refuse_type(source, call.node, call.function, "numbers", value_type)
        found.append(replace(call, value=value, value_type=value_type, others=()))
    return found[0], found[1]


def _bounds(source: AggregateSource, call: Call, values: tuple[Call, Call]) -> list[Bounds]:
    """Return the bounds of both values: those that the call names, that follow from domains, or that AUTO finds."""
    given = call.bounds.of_pair or (usual(source, values[0]), usual(source, values[1]))
    missing = [value for value, pair in zip(values, given, strict=True) if not pair]
    if missing and not source.finds_bounds:
        _refuse_unbounded(source, call, missing)
    found = []
    for value, pair in zip(values, given, strict=True):
        name = f"{unquoted(value.value)} in {call.name}"
        per_row = pair or found_extremes(source, value, "per_row", name=name)
        bounds = CallBounds(per_row=per_row, norm=call.bounds.norm)
        found.append(row_bounds(source, replace(value, bounds=bounds)))
    return found


def _refuse_unbounded(source: AggregateSource, call: Call, missing: Sequence[Call]) -> NoReturn:
    """Refuse a call of which values have no bounds."""
    text = with_bounds(call.node, blanks.PAIRS, "per_row")
    columns = dict.fromkeys(column for value in missing for column in undeclared(source, value.value))
    declarations = [
        f"CALL dp_domain('{table}', '{column}', bounds := [{', '.join(blanks.VALUES)}])" for table, column in columns
    ]
    declare = f" or declare {' and '.join(declarations)}" if declarations else ""
    named = " and ".join(dict.fromkeys(unquoted(value.value) for value in missing))
    message = f"{call.name} has no bounds of {named}."
    source.refuse("bounds_missing", call.node, message, f"Write {text}{declare}.", f"Write {text}.")


def _known_rows(source: AggregateSource, call: Call, values: tuple[Call, Call]) -> tuple[Call, Linear]:
    """Return the call over the rows in which both values are known, and the number of these rows."""
    rows = replace(call, others=(), bounds=CallBounds(norm=call.bounds.norm))
    for one in dict.fromkeys((one.value, one.value_type) for one in values):
        if source.may_be_missing(*one):
            rows = rows.of_rows_with(_is_known(*one))
    (counted,) = read_count(source, replace(rows, value=exp.Star())).estimate.value.linears
    return rows, counted


def _is_known(value: exp.Expr, value_type: str) -> exp.Expr:
    """Return the condition that a value is a finite number."""
    if value_type in FLOATING:
        return exp.Anonymous(this="isfinite", expressions=[value.copy()])
    # a column is written as people write it, so that their own condition is the same
    known = value.copy() if isinstance(value, exp.Column) else exp.paren(value.copy())
    return exp.not_(exp.Is(this=known, expression=exp.null()))


def _side(
    source: AggregateSource, call: Call, rows: Call, bounds: Bounds, counted: Linear, *, has_squares: bool
) -> PairValue:
    """Return the sums of one value of the pairs.

    Args:
        source: what the call is of.
        call: the call of this value.
        rows: the call of this value over the rows with both values.
        bounds: of the value.
        counted: number of these rows.
        has_squares: whether the squares of the distances are used.

    """
    number, radius = number_sql(call.value), (bounds[1] - bounds[0]) / 2.0
    known, distance = f"case when isfinite({number}) then {{}} end", distance_sql(number, bounds)
    distances = beside_rows(source, rows, known.format(distance), radius, counted.statistic)
    squares, half = None, radius**2 / 2.0
    if has_squares:
        square = f"power({distance}, 2) - {half!r}"
        squares = Linear(beside_rows(source, rows, known.format(square), half, counted.statistic), 0.0)
    found = value_bounds(source, call, "per_row", bounds, usual(source, call))
    return PairValue(unquoted(call.value), found, Linear(distances, 0.0), squares)


def _product_sql(values: list[tuple[Call, Bounds]]) -> str:
    """Return SQL of the product of the distances of two values to the middles of their bounds."""
    numbers = [number_sql(call.value) for call, _ in values]
    known = " and ".join(f"isfinite({number})" for number in numbers)
    distances = [distance_sql(number, pair) for number, (_, pair) in zip(numbers, values, strict=True)]
    return f"case when {known} then ({distances[0]}) * ({distances[1]}) end"


def _range(function: PairFunction, most_product: float) -> tuple[float, float]:
    """Return the bounds of the answer, by the largest product of two distances."""
    match function:
        case "covar_pop":
            return -most_product, most_product
        case "covar_samp":
            # n / (n - 1) is below 2 where the number is shown
            return -2.0 * most_product, 2.0 * most_product
        case "corr":
            return -1.0, 1.0
        case "regr_r2":
            return 0.0, 1.0
        case _:
            return -math.inf, math.inf


def read_geometric_mean(source: AggregateSource, call: Call) -> Aggregate:
    """The geometric mean of clamped rows: the average of their logarithms, on the scale of the values."""
    bounds = call.bounds.per_row or usual(source, call)
    if not bounds and source.finds_bounds:
        bounds = found_positive(source, call)
    if not bounds:
        _refuse_not_positive(source, call, "bounds_missing", f"{call.name} has no bounds.")
    bounds = row_bounds(source, replace(call, bounds=replace(call.bounds, per_row=bounds)))
    if bounds[0] <= 0.0:
        message = f"{call.name} is of values above 0, and its bounds begin at {bounds[0]:.15g}."
        _refuse_not_positive(source, call, "bounds_invalid", message)
    rows = read_count(source, replace(call, bounds=CallBounds(norm=call.bounds.norm)))
    (counted,) = rows.estimate.value.linears
    ends = math.log(bounds[0]), math.log(bounds[1])
    number, middle = number_sql(call.value), (ends[0] + ends[1]) / 2.0
    value_sql = f"case when isfinite({number}) then ln({clamped_sql(number, bounds)}) - {middle!r} end"
    total = beside_rows(source, call, value_sql, (ends[1] - ends[0]) / 2.0, counted.statistic)
    mean = GeometricMean(bounds, Ratio(ends, Linear(total, 0.0), counted, middle))
    found = value_bounds(source, call, "per_row", bounds, usual(source, call))
    return Aggregate(Estimate(call.name, mean, "DOUBLE", value_bounds=found), call.weight)


def _refuse_not_positive(source: AggregateSource, call: Call, code: str, message: str) -> NoReturn:
    """Refuse a geometric mean without bounds above 0."""
    text = called_with(call.node, call.function, unquoted(call.value), f"contribution_bounds_per_row => {_POSITIVE}")
    source.refuse(code, call.node, message, f"Write {text}. Values below the lower bound count as that bound.")
