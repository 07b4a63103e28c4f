"""One aggregate call, read from the tree: which function, of what, with which FILTER, bounds and weight."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from sqlglot import exp

from dpsql.errors import ParseError
from dpsql.query.aggregate_calls import NAMED_ARGUMENTS, QUANTILES, function_name, is_aggregate_call
from dpsql.query.allowed import check_row_expression
from dpsql.query.dialect import to_sql, written
from dpsql.query.refusals import Refusals
from dpsql.query.statements import literal_value


@dataclass(frozen=True, slots=True)
class Arguments:
    """One aggregate call, read: its function, argument, FILTER, bounds, weight, and which bounds AUTO finds."""

    function: str
    value: exp.Expr | None
    distinct: bool
    filter: exp.Expr | None
    per_group: tuple[float, float] | None
    per_row: tuple[float, float] | None
    weight: float | None
    auto: frozenset[str] = frozenset()
    quantile: float | None = None


class ArgumentReader:
    """Reads the arguments of aggregate calls, in all spellings.

    Bounds are read as those of what one unit adds to so many groups together: from one to all of them.
    """

    def __init__(self, refusals: Refusals, groups: int = 1) -> None:
        self._refusals = refusals
        self._groups = groups

    def read(self, node: exp.Expr) -> Arguments | None:
        """What a call says; None after noting why it cannot be read."""
        before = len(self._refusals.found)
        arguments = self._arguments(node)
        if arguments is not None:
            self._check_expressions(arguments)
            if arguments.per_group is not None:
                low, high = arguments.per_group
                both = min(low, self._groups * low), max(high, self._groups * high)
                arguments = replace(arguments, per_group=both)
        return arguments if len(self._refusals.found) == before else None

    def bad_bounds(self, node: exp.Expr) -> None:
        """Note that bounds are not what bounds are."""
        self._refusals.add("bounds_invalid", node, "bounds are two finite numbers, the lower first.", "Write (0, 500).")

    def refuse(self, node: exp.Expr, message: str, hint: str) -> None:
        """Note an argument that the aggregate does not take."""
        self._refusals.add("aggregate_argument", node, message, hint)

    def _arguments(self, node: exp.Expr) -> Arguments | None:
        condition = None
        call = node
        if isinstance(call, exp.Filter):
            condition, call = call.expression.this, call.this
        function = function_name(call)
        if function is None:
            self._refuse_function(node, call)
            return None
        positional, named, auto = self._split(call)
        distinct = bool(positional) and isinstance(positional[0], exp.Distinct)
        if distinct:
            positional = [part.unnest() for part in positional[0].expressions if part is not None] + positional[1:]
        if positional and isinstance(positional[0], exp.Order):
            self.refuse(node, "ORDER BY inside an aggregate changes nothing here.", "Leave it out.")
            return None
        per_group, per_row = (
            named.get("contribution_bounds_per_group"),
            named.get("contribution_bounds_per_row"),
        )
        if function.startswith("dp_"):
            function = function.removeprefix("dp_")
            if function != "count":
                if len(positional) != 3 or per_group or per_row or auto:
                    self.refuse(
                        node,
                        f"dp_{function} takes a value and two bounds.",
                        f"Write dp_{function}(x, 0, 500).",
                    )
                    return None
                bounds = self._pair(node, positional[1:])
                per_group, per_row = (bounds, None) if function == "sum" else (None, bounds)
                positional = positional[:1]
        quantile = self._quantile(node, function, positional)
        if function in QUANTILES:
            positional = positional[:1]
        if len(positional) > 1 or (function != "count" and (not positional or isinstance(positional[0], exp.Star))):
            self.refuse(node, f"{function} takes one value.", f"Write {function}(x).")
            return None
        value = positional[0] if positional and not isinstance(positional[0], exp.Star) else None
        if function == "count_if":
            if distinct:
                self.refuse(node, "count_if counts rows.", "Leave DISTINCT out.")
                return None
            function, value, condition = "count", None, _both(value, condition)
        weight = named.get("weight")
        if auto and (function not in ("sum", "avg") or len(auto) == 2 or per_group or per_row):
            self.refuse(
                node, "AUTO finds the bounds of one sum or average, per group or per row.",
                "Write sum(x, contribution_bounds_per_group => AUTO).",
            )  # fmt: skip
            return None
        share = weight[0] if weight else None
        return Arguments(function, value, distinct, condition, per_group, per_row, share, frozenset(auto), quantile)

    def _refuse_function(self, node: exp.Expr, call: exp.Expr) -> None:
        hint = "Use count, sum or avg, with FILTER and over a GROUP BY."
        if isinstance(call, exp.Min | exp.Max):
            hint = f"One row decides it; ask for quantile_cont(x, {0.01 if isinstance(call, exp.Min) else 0.99})."
        name = "a window or ordered set" if isinstance(call, exp.Window | exp.WithinGroup) else written(call)
        self._refusals.add("aggregate", node, f"{name} has no private form yet.", hint)

    def _quantile(self, node: exp.Expr, function: str, positional: Sequence[exp.Expr]) -> float | None:
        """The share of rows below a quantile; None for other functions, and after noting that it is none."""
        if function not in QUANTILES:
            return None
        if function == "median" and len(positional) == 1:
            return 0.5
        wanted = function != "median" and len(positional) == 2
        share = _number(positional[1], self._refusals.text) if wanted else None
        if share is not None and 0.0 < share < 1.0:
            return share
        self.refuse(
            node, f"{function} takes a value{'' if function == 'median' else ' and a share between 0 and 1'}.",
            f"Write {'median(x)' if function == 'median' else f'{function}(x, 0.25)'}.",
        )  # fmt: skip
        return None

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
                self.refuse(
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
                self.bad_bounds(argument)
        return positional, named, auto

    def _weight_pair(self, argument: exp.Expr) -> tuple[float, float] | None:
        weight = _number(argument.expression, self._refusals.text)
        if weight is None or not 1e-3 <= weight <= 1e3:
            self.refuse(argument, "weight is a number from 0.001 to 1000.", "Write weight => 2.")
            return None
        return weight, weight

    def _pair(self, node: exp.Expr, parts: Sequence[exp.Expr]) -> tuple[float, float] | None:
        numbers = [_number(part, self._refusals.text) for part in parts]
        if len(numbers) == 2 and numbers[0] is not None and numbers[1] is not None:
            return numbers[0], numbers[1]
        self.bad_bounds(node)
        return None

    def _check_expressions(self, arguments: Arguments) -> None:
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


def _both(condition: exp.Expr | None, other: exp.Expr | None) -> exp.Expr | None:
    """Two conditions as one, in whichever order they were written."""
    parts = sorted((part for part in (condition, other) if part is not None), key=to_sql)
    return exp.and_(*parts) if len(parts) > 1 else parts[0]


def _number(node: exp.Expr, text: str) -> float | None:
    """The finite number that a literal stands for."""
    try:
        value = literal_value(node, text)
    except ParseError:
        return None
    number = float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
    return number if math.isfinite(number) else None
