"""From an aggregate call to the bounded statistics that answer it.

Three spellings, one meaning: ``sum(x, contribution_bounds_per_group => (0, 500))``, ``dp_sum(x, 0, 500)`` and, under a
policy that declares the column's domain, ``sum(x)``.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

from sqlglot import exp

from dpsql.query.aggregate_arguments import ArgumentReader, Arguments
from dpsql.query.aggregate_calls import with_bounds
from dpsql.query.dialect import to_sql, unquoted
from dpsql.query.environment import Environment, TableRules, TableSchema, types_of
from dpsql.query.intervals import Columns, interval_of
from dpsql.query.private_query import (
    COUNT_LATTICE_EXPONENT,
    Estimate,
    Linear,
    Statistic,
)
from dpsql.query.refusals import Refusals
from dpsql.query.sum_lattice import representable, representable_together, sum_steps

_NUMERIC = re.compile(r"^(U?(TINYINT|SMALLINT|INTEGER|BIGINT|HUGEINT)|FLOAT|DOUBLE|BOOLEAN|DECIMAL\(\d+,\d+\))$")
_MOST_ROWS = 10**9
"""Most rows of one unit in one group: twice as many steps of a half keep below the 2**33 steps that sums keep to."""
_FLOATING = ("FLOAT", "DOUBLE")


@dataclass(frozen=True, slots=True)
class Aggregate:
    """What one aggregate call needs: an estimate, its statistics, and the weight asked for them."""

    estimate: Estimate
    statistics: tuple[Statistic, ...]
    weight: float | None


class AggregateReader:
    """Reads aggregate calls over one source."""

    def __init__(self, schema: TableSchema, rules: TableRules, environment: Environment, refusals: Refusals) -> None:
        self._schema = schema
        self._rules = rules
        self._environment = environment
        self._refusals = refusals
        self._arguments = ArgumentReader(refusals)

    def read(self, node: exp.Expr) -> Aggregate | None:
        """The aggregate that a call asks for; None after noting why there is none."""
        arguments = self._arguments.read(node)
        if arguments is None:
            return None
        if arguments.filter is not None:
            # what does not bind is refused before anything is charged
            self._type_of(exp.cast(arguments.filter.copy(), "BOOLEAN"))
        name = unquoted(node)
        if arguments.function == "count":
            return self._count(node, arguments, name)
        return self._sum_or_average(node, arguments, name)

    def _count(self, node: exp.Expr, arguments: Arguments, name: str) -> Aggregate | None:
        condition = to_sql(arguments.filter) if arguments.filter is not None else ""
        if arguments.per_row:
            self._arguments.refuse(node, "a count has no bounds per row.", "Use contribution_bounds_per_group.")
            return None
        if arguments.distinct:
            return self._count_units(node, arguments, name, condition)
        value = ""
        if arguments.value is not None and not isinstance(arguments.value, exp.Literal):
            value_type = self._type_of(arguments.value)
            if self._may_be_missing(arguments.value, value_type):
                value = _finite(to_sql(arguments.value), value_type)
        missing = bool(condition or value)
        cap, group = self._rules.max_rows_per_group, arguments.per_group
        if group is not None:
            if not (0 <= group[0] <= group[1] and group[1] >= 1 and all(bound == int(bound) for bound in group)):
                self._arguments.bad_bounds(node)
                return None
            low, high = int(group[0]) if missing else max(int(group[0]), 1), int(group[1])
            cap = None
        elif cap is not None:
            low, high = 0 if missing else 1, cap
        else:
            self._refusals.add(
                "bounds_missing", node, f"{name} has no bound on the rows of one unit in one group.",
                f"Write {with_bounds(node, '(0, 10)')} or declare max_rows_per_group in dp_protect.",
            )  # fmt: skip
            return None
        if high > _MOST_ROWS:
            self._refusals.add(
                "bounds_invalid", node, f"one unit could add more than {_MOST_ROWS:,} rows to one group.",
                "Lower contribution_bounds_per_group, or max_rows_per_group in dp_protect.",
            )  # fmt: skip
            return None
        scale = 2**-COUNT_LATTICE_EXPONENT
        statistic = Statistic(
            kind="rows",
            low_steps=low * scale,
            high_steps=high * scale,
            lattice_exponent=COUNT_LATTICE_EXPONENT,
            value_sql=value,
            filter_sql=condition,
            group_bounds_steps=(int(group[0]) * scale, int(group[1]) * scale) if group else None,
            row_cap=cap,
        )
        if statistic.radius_steps == 0:
            # every present unit counts the same number of rows, so the presence count says it all
            return Aggregate(Estimate(name, Linear(None, statistic.centre), None, "BIGINT"), (), None)
        return Aggregate(_estimate(name, statistic, "BIGINT"), (statistic,), arguments.weight)

    def _count_units(self, node: exp.Expr, arguments: Arguments, name: str, condition: str) -> Aggregate | None:
        unit = self._schema.column(self._rules.privacy_unit_column)
        value = arguments.value.unnest() if arguments.value is not None else None
        if not isinstance(value, exp.Column) or unit is None or value.name != unit.name:
            self._refusals.add(
                "aggregate", node, "DISTINCT counts only the privacy unit yet.",
                f"Write count(DISTINCT {self._rules.privacy_unit_column}).",
            )  # fmt: skip
            return None
        if not condition:
            return Aggregate(Estimate(name, Linear(None, 1.0), None, "BIGINT"), (), None)
        scale = 2**-COUNT_LATTICE_EXPONENT
        statistic = Statistic("units", 0, scale, COUNT_LATTICE_EXPONENT, filter_sql=condition)
        return Aggregate(_estimate(name, statistic, "BIGINT"), (statistic,), arguments.weight)

    def _sum_or_average(self, node: exp.Expr, arguments: Arguments, name: str) -> Aggregate | None:
        if arguments.distinct or arguments.value is None:
            self._refusals.add(
                "aggregate", node, f"{arguments.function}(DISTINCT …) has no private form yet.",
                "Sum all values, or count distinct units.",
            )  # fmt: skip
            return None
        value_type = self._type_of(arguments.value)
        if not _NUMERIC.match(value_type):
            self._refusals.add(
                "value_type", node, f"{arguments.function} takes numbers, not {_type_name(value_type)}.",
                "Cast the value, or aggregate another column.",
            )  # fmt: skip
            return None
        average = arguments.function == "avg"
        bounds = self._sum_bounds(node, arguments, name)
        if bounds is None:
            return None
        per_group, per_row = bounds
        missing = arguments.filter is not None or self._may_be_missing(arguments.value, value_type)
        value_sql = _finite(to_sql(arguments.value), value_type)
        statistic = self._sum_statistic(arguments, value_sql, per_group, per_row, missing=missing)
        output = "DOUBLE" if average or not value_type.startswith("DECIMAL") else _sum_type(value_type)
        if not average:
            return Aggregate(_estimate(name, statistic, output), (statistic,), arguments.weight)
        counted = self._count(
            node, Arguments("count", arguments.value, False, arguments.filter, None, None, None), name
        )
        if counted is None or per_row is None:
            return None
        estimate = Estimate(
            name, Linear(statistic, statistic.centre), counted.estimate.numerator, "DOUBLE", clamp=per_row
        )
        return Aggregate(estimate, (statistic, *counted.statistics), arguments.weight)

    def _sum_bounds(
        self, node: exp.Expr, arguments: Arguments, name: str
    ) -> tuple[tuple[float, float] | None, tuple[float, float] | None] | None:
        """Bounds (per group, per row) that apply: those of the query, else the policy's domain per row."""
        average = arguments.function == "avg"
        per_group, per_row = arguments.per_group, arguments.per_row
        if average and per_group:
            self._arguments.refuse(
                node, "an average is bounded per row.", "Write contribution_bounds_per_row => (lo, hi)."
            )
            return None
        if per_group is None and per_row is None:
            per_row = self._inferred(arguments.value)
        if per_group is None and per_row is None:
            self._refuse_unbounded_sum(node, arguments, name)
            return None
        for bounds in (per_group, per_row):
            if bounds is not None and not bounds[0] < bounds[1]:
                self._arguments.bad_bounds(node)
                return None
            if bounds is not None and not representable(bounds):
                self._refuse_extreme(node)
                return None
        if per_group is not None and per_row is not None and not representable_together(per_group, per_row):
            self._refuse_extreme(node)
            return None
        if per_group is None and self._rules.max_rows_per_group is None:
            self._refusals.add(
                "bounds_missing", node, f"{name} is bounded per row, but not how many rows one unit has in a group.",
                "Declare max_rows_per_group in dp_protect"
                + ("." if average else ", or write contribution_bounds_per_group => (lo, hi)."),
            )  # fmt: skip
            return None
        return per_group, per_row

    def _refuse_extreme(self, node: exp.Expr) -> None:
        self._refusals.add(
            "bounds_invalid", node,
            "the bounds are too wide, too narrow, or too far from 0 for their width or for that of the group's.",
            "Shift or scale the value, as in sum(x - 1000000, …).",
        )  # fmt: skip

    def _inferred(self, value: exp.Expr | None) -> tuple[float, float] | None:
        """Bounds of a row that follow from the declared domains of its columns; None where they leave an end open."""
        if value is None:
            return None
        found = interval_of(value, Columns(self._domain, self._is_never_null))
        low, high = found.floats()
        if not found.is_finite or low == high == 0.0:
            return None
        # a constant is clamped to what holds it and what a row without a value adds
        return (low, high) if low < high else (min(low, 0.0), max(high, 0.0))

    def _domain(self, name: str) -> tuple[float, float] | None:
        column = self._schema.column(name)
        if column is not None and column.type == "BOOLEAN":
            return 0.0, 1.0
        return self._environment.policy.bounds(*self._schema.origin(name))

    def _is_never_null(self, name: str) -> bool:
        column = self._schema.column(name)
        return column is not None and not column.nullable

    def _refuse_unbounded_sum(self, node: exp.Expr, arguments: Arguments, name: str) -> None:
        form = "per_row" if arguments.function == "avg" else "per_group"
        text = with_bounds(node, "(0, 500)", form)
        declarations = [
            f"CALL dp_domain('{table}', '{column}', bounds := [0, 500])"
            for table, column in self._undeclared(arguments.value)
        ]
        declare = f" or declare {' and '.join(declarations)}" if declarations else ""
        self._refusals.add(
            "bounds_missing", node, f"{name} has no bounds on what one unit can add to one group.",
            f"Write {text}{declare}.",
        )  # fmt: skip

    def _undeclared(self, value: exp.Expr | None) -> tuple[tuple[str, str], ...]:
        """Table and column of each domain that is missing; none where domains of all of them would not do."""
        if value is None:
            return ()

        names = dict.fromkeys(column.name for column in value.find_all(exp.Column))
        absent = [name for name in names if self._domain(name) is None]

        def would_do(supposed: Collection[str]) -> bool:
            columns = Columns(lambda name: (1.0, 2.0) if name in supposed else self._domain(name), self._is_never_null)
            return interval_of(value, columns).is_finite

        needed = [name for name in absent if not would_do([other for other in absent if other != name])]
        origins = tuple(dict.fromkeys(self._schema.origin(name) for name in needed))
        # what a subquery computes has no table that a domain could be declared of
        return origins if would_do(needed) and all(table for table, _ in origins) else ()

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

    def _type_of(self, value: exp.Expr) -> str:
        return types_of(self._environment, self._schema.columns, [(value, to_sql(value))], self._refusals.text)[0]

    def _may_be_missing(self, value: exp.Expr, value_type: str) -> bool:
        """Whether a present unit may have no value: all but a NOT NULL column of a type without NaN."""
        column = self._schema.column(value.name) if isinstance(value, exp.Column) else None
        return column is None or column.nullable or value_type in _FLOATING


def _estimate(name: str, statistic: Statistic, output: str) -> Estimate:
    return Estimate(name, Linear(statistic, statistic.centre), None, output)


def _finite(value_sql: str, value_type: str) -> str:
    """SQL that is NULL where a floating-point value is NaN or infinite, as it is where the value is NULL."""
    return f"case when isfinite({value_sql}) then {value_sql} end" if value_type in _FLOATING else value_sql


def _sum_type(value_type: str) -> str:
    return re.sub(r"DECIMAL\(\d+,(\d+)\)", r"DECIMAL(38,\1)", value_type)


def _type_name(value_type: str) -> str:
    # an ENUM's text lists its members, which may be keys that nobody was shown
    return "ENUM" if "ENUM" in value_type else value_type
