"""Every aggregate that has a private form: one row each.

To add one is to add a row here, or a file with rows and its line; its name goes into `operations.dialect`, where texts
are parsed. A value of a new kind has a node in `model.estimates` and a function in `answer.estimates`.
"""

from __future__ import annotations

from collections.abc import Mapping

from dpsql.plan.aggregates.arguments import AggregateKind
from dpsql.plan.aggregates.counts import read_any_unit, read_count, read_count_if
from dpsql.plan.aggregates.moments import read_geometric_mean, read_moments
from dpsql.plan.aggregates.pairs import PAIRS
from dpsql.plan.aggregates.sums import read_average, read_quantile, read_spread, read_sum

_ONLY_ROWS = ("aggregate_argument", "{} counts rows.", "Leave DISTINCT out.")
_AS_QUOTIENT = ("aggregate", "{}(DISTINCT …) has no private form yet.", "")
_NO_DISTINCT = ("aggregate", "{}(DISTINCT …) has no private form yet.", "Leave DISTINCT out.")
AGGREGATES = (
    AggregateKind(("count",), "rows; or distinct units or values", read_count, "rows", ("per_group",)),
    AggregateKind(
        ("count_if",), "rows with a condition", read_count_if, "anything", ("per_group",), no_distinct=_ONLY_ROWS
    ),
    AggregateKind(
        ("sum",),
        "sum of clamped rows, of units' clamped sums, or of distinct values",
        read_sum,
        "numbers",
        ("per_group", "per_row"),
        finds_bounds=True,
    ),
    AggregateKind(
        ("avg",),
        "mean of clamped rows",
        read_average,
        "numbers",
        ("per_row",),
        finds_bounds=True,
        no_distinct=_AS_QUOTIENT,
    ),
    AggregateKind(
        ("var_pop", "var_samp"),
        "variance of clamped rows",
        read_spread,
        "numbers",
        ("per_row",),
        no_distinct=_NO_DISTINCT,
    ),
    AggregateKind(
        ("stddev_pop", "stddev_samp"),
        "standard deviation of clamped rows",
        read_spread,
        "numbers",
        ("per_row",),
        no_distinct=_NO_DISTINCT,
    ),
    AggregateKind(
        ("geomean", "geometric_mean"),
        "geometric mean of clamped rows above 0",
        read_geometric_mean,
        "numbers",
        ("per_row",),
        no_distinct=_NO_DISTINCT,
    ),
    AggregateKind(
        ("covar_pop", "covar_samp"),
        "covariance of the clamped pairs (y, x)",
        read_moments,
        PAIRS,
        ("per_row",),
        no_distinct=_NO_DISTINCT,
    ),
    AggregateKind(
        ("corr",),
        "correlation of the clamped pairs (y, x)",
        read_moments,
        PAIRS,
        ("per_row",),
        no_distinct=_NO_DISTINCT,
    ),
    AggregateKind(
        ("regr_slope", "regr_intercept", "regr_r2"),
        "slope, intercept and squared correlation of the line through the clamped pairs (y, x)",
        read_moments,
        PAIRS,
        ("per_row",),
        no_distinct=_NO_DISTINCT,
    ),
    AggregateKind(
        ("median",),
        "value below which half of the clamped rows are",
        read_quantile,
        "numbers, dates or timestamps",
        ("per_row",),
        share="half",
        no_distinct=_NO_DISTINCT,
    ),
    AggregateKind(
        ("quantile", "quantile_cont", "quantile_disc", "approx_quantile"),
        "value below which a share of the clamped rows is",
        read_quantile,
        "numbers, dates or timestamps",
        ("per_row",),
        share="given",
        no_distinct=_NO_DISTINCT,
    ),
    AggregateKind(
        ("bool_or",),
        "TRUE where the noise cannot explain the number of units with a true row, else NULL",
        read_any_unit,
        "truth values",
    ),
    AggregateKind(
        ("bool_and",),
        "FALSE where it cannot explain that of units with a false row, else NULL",
        read_any_unit,
        "truth values",
    ),
)

BY_NAME: Mapping[str, AggregateKind] = {name: kind for kind in AGGREGATES for name in kind.names}
