"""From calls of count to the bounded statistics that answer them: rows, distinct units, distinct values."""

from __future__ import annotations

from sqlglot import exp

from dpsql.query.aggregate_arguments import ArgumentReader, Arguments
from dpsql.query.aggregate_calls import with_bounds
from dpsql.query.aggregate_source import FLOATING, Aggregate, AggregateSource, estimate_of, finite_sql, type_name
from dpsql.query.dialect import to_sql
from dpsql.query.frame import COUNT_LATTICE_EXPONENT, Statistic
from dpsql.query.private_query import Estimate, Linear
from dpsql.query.refusals import Refusals
from dpsql.query.row_rules import is_scalar

MOST_ROWS = 10**9
"""Most rows of one unit in one group: twice as many steps of a half keep below the 2**33 steps that sums keep to."""


def refuse_more_rows(node: exp.Expr, refusals: Refusals) -> None:
    """Note that a unit may have more than ``MOST_ROWS`` rows in one group, or in all that make the other group."""
    refusals.add(
        "bounds_invalid", node, f"one unit could add more than {MOST_ROWS:,} rows to one group.",
        "Lower contribution_bounds_per_group, or max_rows_per_group in dp_protect.",
    )  # fmt: skip


class CountReader:
    """Reads calls of count over one source."""

    def __init__(self, source: AggregateSource, arguments: ArgumentReader) -> None:
        self._source = source
        self._rules = source.rules
        self._refusals = source.refusals
        self._arguments = arguments

    def read(self, node: exp.Expr, arguments: Arguments, name: str) -> Aggregate | None:
        """The aggregate that a call asks for; None after noting why there is none."""
        condition = to_sql(arguments.filter) if arguments.filter is not None else ""
        if arguments.per_row:
            self._arguments.refuse(node, "a count has no bounds per row.", "Use contribution_bounds_per_group.")
            return None
        if arguments.distinct:
            return self._count_distinct(node, arguments, name, condition)
        value = ""
        if arguments.value is not None and not isinstance(arguments.value, exp.Literal):
            value_type = self._source.type_of(arguments.value)
            if self._source.may_be_missing(arguments.value, value_type):
                value = finite_sql(to_sql(arguments.value), value_type)
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
        if high > MOST_ROWS:
            refuse_more_rows(node, self._refusals)
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
        return Aggregate(estimate_of(name, statistic, "BIGINT"), (statistic,), arguments.weight)

    def _count_distinct(self, node: exp.Expr, arguments: Arguments, name: str, condition: str) -> Aggregate | None:
        value, owner = arguments.value.unnest() if arguments.value is not None else None, self._source.owner
        if not isinstance(value, exp.Column) or value.name not in owner.names_unit:
            return self._count_values(node, arguments, name, condition)
        if arguments.per_group:
            self._arguments.refuse(node, "a unit counts once in a group.", "Leave the bounds out.")
            return None
        if value.name in owner.sometimes:
            # an outer join left it out of some rows
            known = f"{to_sql(value)} IS NOT NULL"
            condition = f"({condition}) AND {known}" if condition else known
        if not condition:
            return Aggregate(Estimate(name, Linear(None, 1.0), None, "BIGINT"), (), None)
        scale = 2**-COUNT_LATTICE_EXPONENT
        statistic = Statistic("units", 0, scale, COUNT_LATTICE_EXPONENT, filter_sql=condition)
        return Aggregate(estimate_of(name, statistic, "BIGINT"), (statistic,), arguments.weight)

    def _count_values(self, node: exp.Expr, arguments: Arguments, name: str, condition: str) -> Aggregate | None:
        """Distinct values, of which one unit adds at most so many to a group (`distinct_sql`)."""
        if arguments.value is None or isinstance(arguments.value, exp.Literal):
            self._arguments.refuse(node, "DISTINCT takes a value.", "Write count(DISTINCT x).")
            return None
        value_type = self._source.type_of(arguments.value)
        if not is_scalar(value_type):
            self._refusals.add(
                "value_type", node, f"distinct values of type {type_name(value_type)} cannot be counted.",
                "Count numbers, texts, booleans, dates or timestamps, or cast the value to VARCHAR.",
            )  # fmt: skip
            return None
        low, most = arguments.per_group or (0, self._rules.max_rows_per_group)
        if most is None:
            self._refusals.add(
                "bounds_missing", node, f"{name} has no bound on the values that one unit adds to one group.",
                f"Write {with_bounds(node, '(0, 10)')} or declare max_rows_per_group in dp_protect.",
            )  # fmt: skip
            return None
        if low != 0 or not 1 <= most <= MOST_ROWS or most != int(most):
            self._refusals.add(
                "bounds_invalid", node, "a unit adds from 0 to a whole number of distinct values to a group.",
                "Write contribution_bounds_per_group => (0, 10).",
            )  # fmt: skip
            return None
        statistic = Statistic(
            kind="values",
            low_steps=0,
            high_steps=int(most) * 2**-COUNT_LATTICE_EXPONENT,
            lattice_exponent=COUNT_LATTICE_EXPONENT,
            value_sql=_identity_sql(to_sql(arguments.value), value_type),
            filter_sql=condition,
        )
        return Aggregate(estimate_of(name, statistic, "BIGINT"), (statistic,), arguments.weight)


def _identity_sql(value_sql: str, value_type: str) -> str:
    """SQL of which equal values have equal bytes, so that their hash does not depend on which row came first."""
    if value_type == "VARCHAR":
        # a column may have a collation of its own
        return f"encode({value_sql})"
    # -0.0 + 0 is 0.0
    return finite_sql(f"({value_sql} + 0)", value_type) if value_type in FLOATING else value_sql
