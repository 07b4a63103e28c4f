"""From calls of sum and avg to the bounded statistics that answer them; spreads stand on those of the average."""

from __future__ import annotations

import re

from sqlglot import exp

from dpsql.query.aggregate_arguments import ArgumentReader, Arguments
from dpsql.query.aggregate_calls import with_bounds
from dpsql.query.aggregate_source import Aggregate, AggregateSource, estimate_of, finite_sql
from dpsql.query.counts import MOST_ROWS, CountReader, refuse_more_rows
from dpsql.query.dialect import to_sql
from dpsql.query.extremes import Extremes
from dpsql.query.frame import Statistic
from dpsql.query.private_query import Estimate, Linear
from dpsql.query.sum_lattice import representable, representable_together, sum_steps


class SumReader:
    """Reads calls of sum and avg over one source."""

    def __init__(
        self, source: AggregateSource, arguments: ArgumentReader, counts: CountReader, extremes: Extremes
    ) -> None:
        self._extremes = extremes
        self._source = source
        self._rules = source.rules
        self._refusals = source.refusals
        self._arguments = arguments
        self._counts = counts

    def read(self, node: exp.Expr, arguments: Arguments, name: str) -> Aggregate | None:
        """The aggregate that a call asks for; None after noting why there is none."""
        if arguments.distinct or arguments.value is None:
            self._refusals.add(
                "aggregate", node, f"{arguments.function}(DISTINCT …) has no private form yet.",
                "Sum all values, or count distinct units.",
            )  # fmt: skip
            return None
        value_type = self._source.number_type(node, arguments.value, arguments.function)
        if value_type is None:
            return None
        average = arguments.function != "sum"
        found = self.bounds(node, arguments, name)
        if found is None:
            return None
        per_group, per_row = found
        missing = arguments.filter is not None or self._source.may_be_missing(arguments.value, value_type)
        value_sql = finite_sql(to_sql(arguments.value), value_type)
        statistic = self._sum_statistic(arguments, value_sql, per_group, per_row, missing=missing)
        output = "DOUBLE" if average or not value_type.startswith("DECIMAL") else _sum_type(value_type)
        if not average:
            return Aggregate(estimate_of(name, statistic, output), (statistic,), arguments.weight)
        counted = self._counts.read(
            node, Arguments("count", arguments.value, False, arguments.filter, None, None, None), name
        )
        if counted is None or per_row is None:
            return None
        estimate = Estimate(
            name, Linear(statistic, statistic.centre), counted.estimate.numerator, "DOUBLE", clamp=per_row
        )
        return Aggregate(estimate, (statistic, *counted.statistics), arguments.weight)

    def bounds(
        self, node: exp.Expr, arguments: Arguments, name: str
    ) -> tuple[tuple[float, float] | None, tuple[float, float] | None] | None:
        """Bounds (per group, per row) that apply: the query's, else what domains say of a row; None after a refusal."""
        average = arguments.function != "sum"
        per_group, per_row = arguments.per_group, arguments.per_row
        if average and per_group:
            self._arguments.refuse(
                node, f"{arguments.function} is bounded per row.", "Write contribution_bounds_per_row => (lo, hi)."
            )
            return None
        if arguments.auto:
            found = self._extremes.bounds(arguments, name)
            in_group = "contribution_bounds_per_group" in arguments.auto
            per_group, per_row = (found, None) if in_group else (None, found)
            if in_group and average:
                self._arguments.refuse(
                    node, "an average is bounded per row.", "Write contribution_bounds_per_row => AUTO."
                )
                return None
        if per_group is None and per_row is None:
            per_row = self._source.inferred(arguments.value)
        if per_group is None and per_row is None:
            self._refuse_unbounded_sum(node, arguments, name)
            return None
        for bounds in (per_group, per_row):
            if bounds is not None and not bounds[0] < bounds[1]:
                self._arguments.bad_bounds(node)
                return None
            if bounds is not None and not representable(bounds):
                self.refuse_extreme(node)
                return None
        if per_group is not None and per_row is not None and not representable_together(per_group, per_row):
            self.refuse_extreme(node)
            return None
        if per_group is None and self._rules.max_rows_per_group is None:
            self._refusals.add(
                "bounds_missing", node, f"{name} is bounded per row, but not how many rows one unit has in a group.",
                f"Declare max_rows_per_group := 5 in CALL dp_protect('{self._source.schema.canonical}', …)"
                + ("." if average else f", or write {with_bounds(node, '(0, 500)')}."),
            )  # fmt: skip
            return None
        if per_group is None and (self._rules.max_rows_per_group or 0) > MOST_ROWS:
            # on the lattice of so many rows a single one would be no step at all
            refuse_more_rows(node, self._refusals)
            return None
        return per_group, per_row

    def refuse_extreme(self, node: exp.Expr) -> None:
        """Note that bounds, or what follows from them, have no usual size."""
        self._refusals.add(
            "bounds_invalid", node,
            "the bounds are too wide, too narrow, or too far from 0 for their width or for that of the group's.",
            "Shift or scale the value, as in sum(x - 1000000, …).",
        )  # fmt: skip

    def _refuse_unbounded_sum(self, node: exp.Expr, arguments: Arguments, name: str) -> None:
        form = "per_group" if arguments.function == "sum" else "per_row"
        text = with_bounds(node, "(0, 500)", form)
        declarations = [
            f"CALL dp_domain('{table}', '{column}', bounds := [0, 500])"
            for table, column in self._source.undeclared(arguments.value)
        ]
        finds = arguments.function in ("sum", "avg")
        declare = f" or declare {' and '.join(declarations)}" if declarations else ""
        self._refusals.add(
            "bounds_missing", node, f"{name} has no bounds on what one unit can add to one group.",
            f"Write {text}{declare}."
            + (f" {with_bounds(node, 'AUTO', form)} spends part of rho to find them." if finds else ""),
        )  # fmt: skip

    def _sum_statistic(
        self,
        arguments: Arguments,
        value_sql: str,
        per_group: tuple[float, float] | None,
        per_row: tuple[float, float] | None,
        *,
        missing: bool,
    ) -> Statistic:
        cap = None if per_group else self._rules.max_rows_per_group
        steps = sum_steps(per_group, per_row, cap, missing=missing)
        return Statistic(
            kind="sum",
            low_steps=steps.low,
            high_steps=steps.high,
            lattice_exponent=steps.exponent,
            value_sql=value_sql,
            filter_sql=to_sql(arguments.filter) if arguments.filter is not None else "",
            row_bounds_steps=steps.row,
            group_bounds_steps=steps.group,
            row_cap=cap,
        )


def _sum_type(value_type: str) -> str:
    return re.sub(r"DECIMAL\(\d+,(\d+)\)", r"DECIMAL(38,\1)", value_type)
