"""From calls of median and quantile to the bounded statistic that answers them: a histogram on a public grid.

All quantiles of one value share the histogram, so that one or all of them cost the same.
"""

from __future__ import annotations

from sqlglot import exp

from dpsql.query.aggregate_arguments import Arguments
from dpsql.query.aggregate_source import Aggregate, AggregateSource, finite_sql
from dpsql.query.dialect import to_sql
from dpsql.query.frame import Statistic
from dpsql.query.histogram_sql import CELL_LATTICE_EXPONENT
from dpsql.query.private_query import Estimate, Linear
from dpsql.query.sums import SumReader

CELLS = 64
"""Equal parts of the bounds that rows are counted in."""


class QuantileReader:
    """Reads calls of median and quantile over one source."""

    def __init__(self, source: AggregateSource, sums: SumReader) -> None:
        self._source = source
        self._sums = sums

    def read(self, node: exp.Expr, arguments: Arguments, name: str) -> Aggregate | None:
        """The aggregate that a call asks for; None after noting why there is none."""
        if arguments.distinct:
            self._source.refusals.add(
                "aggregate", node, f"{arguments.function}(DISTINCT …) has no private form yet.", "Leave DISTINCT out.",
            )  # fmt: skip
            return None
        value, cap = arguments.value, self._source.rules.max_rows_per_group
        value_type = None if value is None else self._source.number_type(node, value, arguments.function)
        found = None if value_type is None else self._sums.bounds(node, arguments, name)
        if value is None or value_type is None or found is None or found[1] is None or cap is None:
            return None
        statistic = Statistic(
            kind="histogram",
            low_steps=0,
            high_steps=cap * 2**-CELL_LATTICE_EXPONENT,
            lattice_exponent=CELL_LATTICE_EXPONENT,
            value_sql=finite_sql(to_sql(value), value_type),
            filter_sql=to_sql(arguments.filter) if arguments.filter is not None else "",
            row_cap=cap,
            cells=CELLS,
            cell_bounds=found[1],
        )
        estimate = Estimate(name, Linear(statistic, 0.0), None, "DOUBLE", clamp=found[1], quantile=arguments.quantile)
        return Aggregate(estimate, (statistic,), arguments.weight)
