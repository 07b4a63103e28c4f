"""From calls of variance and standard deviation to the bounded statistics that answer them.

Three sums make a spread: of the rows, of their values, and of their squared distances to the middle of the bounds. The
first two are those of ``avg``, the same statistics, so that they are paid once; the third is at most the square of half
the width of the bounds, hence small, however far from 0 these are.
"""

from __future__ import annotations

import math
from dataclasses import replace

from sqlglot import exp

from dpsql.query.aggregate_arguments import Arguments
from dpsql.query.aggregate_source import Aggregate, AggregateSource
from dpsql.query.dialect import to_sql
from dpsql.query.frame import Statistic
from dpsql.query.private_query import Linear, Spread
from dpsql.query.sum_lattice import representable, sum_steps
from dpsql.query.sums import SumReader


class SpreadReader:
    """Reads calls of variance and standard deviation over one source."""

    def __init__(self, source: AggregateSource, sums: SumReader) -> None:
        self._source = source
        self._sums = sums

    def read(self, node: exp.Expr, arguments: Arguments, name: str) -> Aggregate | None:
        """The aggregate that a call asks for; None after noting why there is none."""
        average = self._sums.read(node, arguments, name)
        if average is None or average.estimate.clamp is None or arguments.value is None:
            return None
        low, high = average.estimate.clamp
        middle, most = (low + high) / 2.0, ((high - low) / 2.0) ** 2
        if not representable((0.0, most)):
            self._sums.refuse_extreme(node)
            return None
        statistic = self._squares(arguments, (low, high), middle, most)
        is_sample, is_root = arguments.function.endswith("samp"), arguments.function.startswith("stddev")
        # of n rows within the bounds the population's variance is at most this, a sample's n / (n - 1) times as much
        limit = 2.0 * most if is_sample else most
        estimate = replace(
            average.estimate,
            clamp=(0.0, math.sqrt(limit) if is_root else limit),
            spread=Spread(Linear(statistic, statistic.centre), middle, is_sample, is_root),
        )
        return Aggregate(estimate, (*average.statistics, statistic), average.weight)

    def _squares(self, arguments: Arguments, bounds: tuple[float, float], middle: float, most: float) -> Statistic:
        """The sum of squared distances of the clamped rows to the middle."""
        number = f"cast({to_sql(arguments.value or exp.null())} as double)"
        clamped = f"greatest(least({number}, {bounds[1]!r}), {bounds[0]!r})"
        cap = self._source.rules.max_rows_per_group
        steps = sum_steps(None, (0.0, most), cap, missing=True)
        return Statistic(
            kind="sum",
            low_steps=steps.low,
            high_steps=steps.high,
            lattice_exponent=steps.exponent,
            # least and greatest skip NULLs, so a row without a value is left out first
            value_sql=f"case when isfinite({number}) then power({clamped} - {middle!r}, 2) end",
            filter_sql=to_sql(arguments.filter) if arguments.filter is not None else "",
            row_bounds_steps=steps.row,
            row_cap=cap,
        )
