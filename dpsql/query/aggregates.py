"""From an aggregate call to the bounded statistics that answer it.

Three spellings, one meaning: ``sum(x, contribution_bounds_per_group => (0, 500))``, ``dp_sum(x, 0, 500)`` and, under a
policy that declares the column's domain, ``sum(x)``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from sqlglot import exp

from dpsql.errors import ParseError
from dpsql.query.aggregate_calls import NAMED_ARGUMENTS, function_name, is_aggregate_call, with_bounds
from dpsql.query.allowed import check_row_expression
from dpsql.query.dialect import to_sql, unquoted, written
from dpsql.query.environment import Environment, TableRules, TableSchema, types_of
from dpsql.query.private_query import (
    COUNT_LATTICE_EXPONENT,
    Estimate,
    Linear,
    Statistic,
    ToldBounds,
)
from dpsql.query.refusals import Refusals
from dpsql.query.statements import literal_value
from dpsql.query.sum_lattice import representable, representable_together, sum_steps

_NUMERIC = re.compile(r"^(U?(TINYINT|SMALLINT|INTEGER|BIGINT|HUGEINT)|FLOAT|DOUBLE|BOOLEAN|DECIMAL\(\d+,\d+\))$")
_MOST_ROWS = 10**9
"""Most rows of one unit in one group: twice as many steps of a half keep below the 2**33 steps that sums keep to."""
_FLOATING = ("FLOAT", "DOUBLE")


@dataclass(frozen=True, slots=True)
class _Arguments:
    """One aggregate call, read: its function, argument, FILTER, bounds and weight."""

    function: str
    value: exp.Expr | None
    distinct: bool
    filter: exp.Expr | None
    per_group: tuple[float, float] | None
    per_row: tuple[float, float] | None
    weight: float | None
    auto: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Aggregate:
    """What one aggregate call needs: an estimate, its statistics, and the weight asked for them."""

    estimate: Estimate
    statistics: tuple[Statistic, ...]
    weight: float | None


class AggregateReader:
    """Reads aggregate calls over one source."""

    def __init__(
        self,
        schema: TableSchema,
        rules: TableRules,
        environment: Environment,
        refusals: Refusals,
        told: ToldBounds | None = None,
    ) -> None:
        self._told = told or {}
        self.asked_extremes: dict[Statistic, str] = {}
        self._schema = schema
        self._rules = rules
        self._environment = environment
        self._refusals = refusals

    def read(self, node: exp.Expr) -> Aggregate | None:
        """The aggregate that a call asks for; None after noting why there is none."""
        before = len(self._refusals.found)
        arguments = self._arguments(node)
        if arguments is not None:
            self._check_expressions(arguments)
        if arguments is None or len(self._refusals.found) > before:
            return None
        if arguments.filter is not None:
            # what does not bind is refused before anything is charged
            self._type_of(exp.cast(arguments.filter.copy(), "BOOLEAN"))
        name = unquoted(node)
        if arguments.function == "count":
            return self._count(node, arguments, name)
        return self._sum_or_average(node, arguments, name)

    def _arguments(self, node: exp.Expr) -> _Arguments | None:
        condition = None
        call = node
        if isinstance(call, exp.Filter):
            condition, call = call.expression.this, call.this
        function = function_name(call)
        if function is None:
            window = isinstance(call, exp.Window | exp.WithinGroup)
            self._refusals.add(
                "aggregate", node, f"{'a window or ordered set' if window else written(call)} has no private form yet.",
                "Write count(*) FILTER (WHERE …)." if isinstance(call, exp.CountIf)
                else "Use count, sum or avg, with FILTER and over a GROUP BY.",
            )  # fmt: skip
            return None
        positional, named, auto = self._split(call)
        distinct = bool(positional) and isinstance(positional[0], exp.Distinct)
        if distinct:
            positional = [part.unnest() for part in positional[0].expressions] + positional[1:]
        if positional and isinstance(positional[0], exp.Order):
            self._refuse_argument(node, "ORDER BY inside an aggregate changes nothing here.", "Leave it out.")
            return None
        per_group, per_row = (
            named.get("contribution_bounds_per_group"),
            named.get("contribution_bounds_per_row"),
        )
        if function.startswith("dp_"):
            function = function.removeprefix("dp_")
            if function != "count":
                if len(positional) != 3 or per_group or per_row or auto:
                    self._refuse_argument(
                        node,
                        f"dp_{function} takes a value and two bounds.",
                        f"Write dp_{function}(x, 0, 500).",
                    )
                    return None
                bounds = self._pair(node, positional[1:])
                per_group, per_row = (bounds, None) if function == "sum" else (None, bounds)
                positional = positional[:1]
        if len(positional) > 1 or (function != "count" and (not positional or isinstance(positional[0], exp.Star))):
            self._refuse_argument(node, f"{function} takes one value.", f"Write {function}(x).")
            return None
        value = positional[0] if positional and not isinstance(positional[0], exp.Star) else None
        weight = named.get("weight")
        if auto and (function == "count" or len(auto) == 2 or per_group or per_row):
            self._refuse_argument(
                node, "AUTO finds the bounds of one sum or average, per group or per row.",
                "Write sum(x, contribution_bounds_per_group => AUTO).",
            )  # fmt: skip
            return None
        asked = weight[0] if weight else None
        return _Arguments(function, value, distinct, condition, per_group, per_row, asked, frozenset(auto))

    def _split(self, call: exp.Expr) -> tuple[list[exp.Expr], dict[str, tuple[float, float] | None], set[str]]:
        listed = [] if isinstance(call, exp.Anonymous) or call.this is None else [call.this]
        positional: list[exp.Expr] = []
        named: dict[str, tuple[float, float] | None] = {}
        auto: set[str] = set()
        for argument in [*listed, *call.expressions]:
            if not isinstance(argument, exp.Kwarg | exp.PropertyEQ):
                positional.append(argument)
                continue
            name = argument.this.name.lower()
            if name not in NAMED_ARGUMENTS or name in named:
                self._refuse_argument(
                    argument, f"argument {name} is unknown or doubled.", f"Known are {', '.join(NAMED_ARGUMENTS)}."
                )
            elif name == "weight":
                named[name] = self._weight_pair(argument)
            elif isinstance(argument.expression, exp.Var) and argument.expression.name == "AUTO":
                named[name] = None
                auto.add(name)
            elif isinstance(argument.expression, exp.Tuple | exp.Array):
                named[name] = self._pair(argument, argument.expression.expressions)
            else:
                self._bad_bounds(argument)
        return positional, named, auto

    def _weight_pair(self, argument: exp.Expr) -> tuple[float, float] | None:
        weight = _number(argument.expression, self._refusals.text)
        if weight is None or not 1e-3 <= weight <= 1e3:
            self._refuse_argument(argument, "weight is a number from 0.001 to 1000.", "Write weight => 2.")
            return None
        return weight, weight

    def _pair(self, node: exp.Expr, parts: Sequence[exp.Expr]) -> tuple[float, float] | None:
        numbers = [_number(part, self._refusals.text) for part in parts]
        if len(numbers) == 2 and numbers[0] is not None and numbers[1] is not None:
            return numbers[0], numbers[1]
        self._bad_bounds(node)
        return None

    def _bad_bounds(self, node: exp.Expr) -> None:
        self._refusals.add("bounds_invalid", node, "bounds are two finite numbers, the lower first.", "Write (0, 500).")

    def _refuse_argument(self, node: exp.Expr, message: str, hint: str) -> None:
        self._refusals.add("aggregate_argument", node, message, hint)

    def _check_expressions(self, arguments: _Arguments) -> None:
        for part in (arguments.value, arguments.filter):
            if part is None:
                continue
            if any(is_aggregate_call(inner) for inner in part.walk()):
                self._refusals.add(
                    "nested_aggregate", part, "an aggregate cannot stand inside an aggregate.",
                    "Aggregate row values.",
                )  # fmt: skip
            else:
                check_row_expression(part, self._refusals)

    def _count(self, node: exp.Expr, arguments: _Arguments, name: str) -> Aggregate | None:
        condition = to_sql(arguments.filter) if arguments.filter is not None else ""
        if arguments.per_row:
            self._refuse_argument(node, "a count has no bounds per row.", "Use contribution_bounds_per_group.")
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
                self._bad_bounds(node)
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

    def _count_units(self, node: exp.Expr, arguments: _Arguments, name: str, condition: str) -> Aggregate | None:
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

    def _sum_or_average(self, node: exp.Expr, arguments: _Arguments, name: str) -> Aggregate | None:
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
            node, _Arguments("count", arguments.value, False, arguments.filter, None, None, None), name
        )
        if counted is None or per_row is None:
            return None
        estimate = Estimate(
            name, Linear(statistic, statistic.centre), counted.estimate.numerator, "DOUBLE", clamp=per_row
        )
        return Aggregate(estimate, (statistic, *counted.statistics), arguments.weight)

    def _sum_bounds(
        self, node: exp.Expr, arguments: _Arguments, name: str
    ) -> tuple[tuple[float, float] | None, tuple[float, float] | None] | None:
        """Bounds (per group, per row) that apply: those of the query, else the policy's domain per row."""
        average = arguments.function == "avg"
        per_group, per_row = arguments.per_group, arguments.per_row
        if average and per_group:
            self._refuse_argument(
                node, "an average is bounded per row.", "Write contribution_bounds_per_row => (lo, hi)."
            )
            return None
        if arguments.auto:
            found = self._auto_bounds(arguments, name)
            in_group = "contribution_bounds_per_group" in arguments.auto
            per_group, per_row = (found, None) if in_group else (None, found)
            if in_group and average:
                self._refuse_argument(
                    node, "an average is bounded per row.", "Write contribution_bounds_per_row => AUTO."
                )
                return None
        if per_group is None and per_row is None and isinstance(arguments.value, exp.Column):
            per_row = self._environment.policy.bounds(*self._schema.origin(arguments.value.name))
        if per_group is None and per_row is None:
            self._refuse_unbounded_sum(node, arguments, name)
            return None
        for bounds in (per_group, per_row):
            if bounds is not None and not bounds[0] < bounds[1]:
                self._bad_bounds(node)
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
                f"Declare max_rows_per_group := 5 in CALL dp_protect('{self._schema.canonical}', …)"
                + ("." if average else f", or write {with_bounds(node, '(0, 500)')}."),
            )  # fmt: skip
            return None
        return per_group, per_row

    def _auto_bounds(self, arguments: _Arguments, name: str) -> tuple[float, float]:
        """What AUTO found, or stands for it before it is told anything."""
        if arguments.value is None:
            raise AssertionError("sums have a value")
        kind = "group_extremes" if "contribution_bounds_per_group" in arguments.auto else "row_extremes"
        asked = Statistic(
            kind=kind,  # type: ignore[arg-type]
            low_steps=1,
            high_steps=1,
            lattice_exponent=0,
            value_sql=_finite(to_sql(arguments.value), self._type_of(arguments.value)),
            filter_sql=to_sql(arguments.filter) if arguments.filter is not None else "",
        )
        self.asked_extremes.setdefault(asked, name)
        return self._told[asked][0] if asked in self._told else (-1.0, 1.0)

    def _refuse_extreme(self, node: exp.Expr) -> None:
        self._refusals.add(
            "bounds_invalid", node,
            "the bounds are too wide, too narrow, or too far from 0 for their width or for that of the group's.",
            "Shift or scale the value, as in sum(x - 1000000, …).",
        )  # fmt: skip

    def _refuse_unbounded_sum(self, node: exp.Expr, arguments: _Arguments, name: str) -> None:
        column = arguments.value.name if isinstance(arguments.value, exp.Column) else ""
        declare = (
            f" or declare CALL dp_domain('{self._schema.canonical}', '{column}', bounds := [0, 500])" if column else ""
        )
        form = "per_row" if arguments.function == "avg" else "per_group"
        text = with_bounds(node, "(0, 500)", form)
        self._refusals.add(
            "bounds_missing", node, f"{name} has no bounds on what one unit can add to one group.",
            f"Write {text}{declare}. {with_bounds(node, 'AUTO', form)} spends part of rho to find them.",
        )  # fmt: skip

    def _sum_statistic(
        self,
        arguments: _Arguments,
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


def _number(node: exp.Expr, text: str) -> float | None:
    """The finite number that a literal stands for."""
    try:
        value = literal_value(node, text)
    except ParseError:
        return None
    number = float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
    return number if math.isfinite(number) else None


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
