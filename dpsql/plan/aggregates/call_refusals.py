"""Refusals of aggregate calls: functions without a private form, and arguments that a function does not take."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

from sqlglot import exp

from dpsql.operations import blanks
from dpsql.operations.dialect import unquoted
from dpsql.plan.aggregates.literals import read_number
from dpsql.plan.aggregates.source import AggregateSource, is_number, require_no_unit
from dpsql.plan.aggregates.times import TIMES
from dpsql.sql.clauses import called_with, with_bounds
from dpsql.sql.row_rules import function_names

_ARGUMENT = "aggregate_argument"
_PAIRS = ("corr", "covar_pop", "covar_samp", "regr_slope", "regr_intercept", "regr_r2")
_OF_POSITIVES = ("geomean", "geometric_mean")


def refuse_function(node: exp.Expr, call: exp.Expr, source: AggregateSource) -> NoReturn:
    """Refuse a function that has no private form.

    Args:
        node: the call, with its FILTER.
        call: the call without it.
        source: which rows.

    """
    from dpsql.sql.function_refusals import refused_call  # noqa: PLC0415 — only if a call is refused

    message, hint = refused_call(node, function_names())
    if isinstance(call, exp.Min | exp.Max):
        require_no_unit(node, call.key, call.this, source)
        value, kind = unquoted(call.this), _type_of_column(call.this, source)
        if kind in TIMES and "contribution_bounds" not in hint:
            share = "0.01" if isinstance(call, exp.Min) else "0.99"
            bounds = f"contribution_bounds_per_row => {blanks.pair(blanks.DAYS)}"
            hint = f"Write {called_with(node, 'quantile_cont', value, share, bounds)}."
        elif kind and not is_number(kind) and kind not in TIMES:
            hint = f"Write {value}, {called_with(node, 'count', '*')} with GROUP BY {value}."
    source.refuse("aggregate", node, message, hint)


def _type_of_column(value: exp.Expr, source: AggregateSource) -> str:
    """Return the type of a value that is a column; empty of any other."""
    column = source.schema.column(value.name) if isinstance(value, exp.Column) else None
    return column.type if column else ""


def with_value(node: exp.Expr, function: str, values: Sequence[exp.Expr], *others: str) -> str:
    """Return the hint to call a function with the first of some values and with other arguments.

    Args:
        node: the call as it stands in the text, with its FILTER.
        function: the function to call.
        values: the values that were given.
        others: arguments after the value.

    """
    if values and not isinstance(values[0], exp.Star):
        return f"Write {called_with(node, function, unquoted(values[0]), *others)}."
    return f"Name a value, as in {called_with(node, function, 'x', *others)}."


def refuse_share(
    source: AggregateSource, node: exp.Expr, function: str, positional: Sequence[exp.Expr], *, is_half: bool
) -> None:
    """Note why the arguments of a quantile are no value and share.

    Args:
        source: which rows.
        node: the call, with its FILTER.
        function: its name.
        positional: its arguments without names.
        is_half: whether it is a median, which takes no share.

    """
    first, *others = positional or [exp.Star()]
    shares = () if is_half else ("0.25",)
    message = f"{function} takes a value{'' if is_half else ' and a share between 0 and 1'}."
    hint = with_value(node, function, positional, *shares)
    if others and isinstance(others[0], exp.Array):
        message = f"{function} takes a share, or a list of shares that is not empty."
    elif not is_half and isinstance(first, exp.Array | exp.Literal):
        is_share = isinstance(first, exp.Array) or 0.0 < read_number(first, source.refusals.text) < 1.0
        given = unquoted(first) if is_share else "0.25"
        message = f"{function} takes the value first, and then a share between 0 and 1."
        swapped = bool(others) and not isinstance(others[0], exp.Literal)
        source.refuse(_ARGUMENT, node, message, with_value(node, function, others if swapped else (), given))
    source.refusals.add(_ARGUMENT, node, message, hint)


def cure_of_auto(source: AggregateSource, node: exp.Expr, function: str) -> str:
    """Return the hint to name the bounds of a call that leaves them to AUTO, which finds none for its function."""
    call = node.this if isinstance(node, exp.Filter) else node
    value = next(iter(call.expressions), None) or call.this
    ends = blanks.pair(blanks.VALUES)
    if function in _PAIRS:
        ends = blanks.PAIRS
    elif function in _OF_POSITIVES:
        ends = blanks.pair((blanks.LEAST_POSITIVE, blanks.VALUES[1]))
    elif _type_of_column(value, source) in TIMES:
        ends = blanks.pair(blanks.DAYS)
    return f"Write {with_bounds(node, ends, 'per_row')}."


def cure_of_distinct(node: exp.Expr, value: exp.Expr) -> str:
    """Return the hint to write the average of distinct values as a quotient."""
    distinct = f"DISTINCT {unquoted(value)}"
    return f"Write {called_with(node, 'sum', distinct)} / {called_with(node, 'count', distinct)}."
