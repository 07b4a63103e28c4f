"""Which nodes of a tree are aggregate calls, of ours or any other."""

from __future__ import annotations

from sqlglot import exp

from dpsql.query.dialect import unquoted

PRIVATE_AGGREGATES = ("dp_count", "dp_sum", "dp_avg")
NAMED_ARGUMENTS = ("contribution_bounds_per_group", "contribution_bounds_per_row", "weight")
_NAMES: dict[type[exp.Expr], str] = {
    exp.Count: "count", exp.CountIf: "count_if", exp.Sum: "sum", exp.Avg: "avg", exp.VariancePop: "var_pop",
    exp.Variance: "var_samp", exp.StddevPop: "stddev_pop", exp.StddevSamp: "stddev_samp", exp.Stddev: "stddev_samp",
}  # fmt: skip
QUANTILES = ("median", "quantile", "quantile_cont", "quantile_disc", "approx_quantile")
SPREADS = ("var_pop", "var_samp", "stddev_pop", "stddev_samp")
_ANONYMOUS = frozenset((*_NAMES.values(), *QUANTILES, *PRIVATE_AGGREGATES))
INTERVAL_FUNCTIONS = ("dp_interval_low", "dp_interval_high")


OVER_RESULT = "over_result"
"""Mark on windows, and on their functions, that are computed over the noisy result and aggregate no rows."""


def is_aggregate_call(node: exp.Expr) -> bool:
    """Whether a node is an aggregate of rows, of ours or any other."""
    if node.meta.get(OVER_RESULT):
        return False
    if isinstance(node, exp.Anonymous):
        return node.name.lower() in _ANONYMOUS
    return isinstance(
        node, exp.AggFunc | exp.Filter | exp.Window | exp.WithinGroup | exp.IgnoreNulls | exp.RespectNulls
    )


def is_interval_call(node: exp.Expr) -> bool:
    """Whether a node asks for an end of an aggregate's interval."""
    return isinstance(node, exp.Anonymous) and node.name.lower() in INTERVAL_FUNCTIONS


def function_name(call: exp.Expr) -> str | None:
    """The aggregate of ours that a call asks for, in small letters; None for any other."""
    if isinstance(call, exp.Anonymous):
        name = call.name.lower()
        return name if name in _ANONYMOUS else None
    return _NAMES.get(type(call))


def with_bounds(node: exp.Expr, bounds: str, form: str = "per_group") -> str:
    """The call as it would read with bounds: the words to add, exactly."""
    call = node.this if isinstance(node, exp.Filter) else node
    text = unquoted(call)
    return f"{text[:-1] if text != 'count()' else 'count(*'}, contribution_bounds_{form} => {bounds})"
