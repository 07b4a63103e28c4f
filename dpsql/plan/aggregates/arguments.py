"""One aggregate call, read from the tree, and the source that it is of: its rules, types and domains.

What an aggregate takes is checked here, once for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NoReturn

from sqlglot import exp

from dpsql.model.estimates import Estimate, Linear, NoValue, Sum
from dpsql.model.frame import Statistic
from dpsql.model.similar_names import did_you_mean
from dpsql.operations import blanks
from dpsql.operations.dialect import to_sql, unquoted
from dpsql.plan.aggregates.call_refusals import (
    cure_of_auto,
    cure_of_distinct,
    refuse_function,
    refuse_share,
    with_value,
)
from dpsql.plan.aggregates.lattice import Bounds
from dpsql.plan.aggregates.literals import NORM, any_time, read_norm, read_number, read_pair, read_weight
from dpsql.plan.aggregates.pairs import PAIRS, bounds_of_pair, refuse_pair
from dpsql.plan.aggregates.source import AggregateSource, RefusedCallError, is_number, require_no_unit, type_name
from dpsql.plan.aggregates.times import TIMES
from dpsql.sql.clauses import EXTREME, NAMED_ARGUMENTS, function_name, is_aggregate_call, without_bounds
from dpsql.sql.row_rules import check_row_expression

_ARGUMENT = "aggregate_argument"


@dataclass(frozen=True, slots=True)
class Aggregate:
    """The needs of one aggregate call: an estimate, and the weight asked for its statistics.

    ``no_value`` stands for the value of the estimate in the answer if AUTO found no bounds.
    """

    estimate: Estimate
    weight: float = 1.0
    no_value: NoValue | None = None

    @property
    def answered(self) -> Estimate:
        """Return the estimate as the answer shows it."""
        return replace(self.estimate, value=self.no_value) if self.no_value else self.estimate

    @property
    def statistics(self) -> tuple[Statistic, ...]:
        """What is noised for it beside the presence count."""
        return tuple(one.statistic for one in self.estimate.value.linears if one.statistic)


@dataclass(frozen=True, slots=True)
class CallBounds:
    """Bounds that a call names, which of the two pairs AUTO finds, and the norm over all groups of a unit.

    ``are_times`` says whether the bounds are written as dates or timestamps. ``of_pair`` are those of either value of
    an aggregate of pairs.
    """

    per_group: Bounds | None = None
    per_row: Bounds | None = None
    auto: str = ""
    norm: float | Literal["AUTO"] | None = None
    are_times: bool = False
    of_pair: tuple[Bounds, Bounds] | None = None

    def with_pair(self, form: str, pair: Bounds | None) -> CallBounds:
        """These bounds with one pair more."""
        return replace(self, per_group=pair) if form == "per_group" else replace(self, per_row=pair)


@dataclass(frozen=True, slots=True)
class Call:
    """One aggregate call, read.

    Attributes:
        node: as it stands in the text.
        function: its name, in one spelling.
        value: what is aggregated; a star for the rows themselves.
        value_type: DuckDB type of the value where the aggregate takes those of some types alone; else empty.
        distinct: whether each value counts once.
        filters: conditions of FILTER, or what stands for one, all of which a row passes; sorted by their text.
        bounds: as they are named.
        weight: share of rho over that of a call without one.
        share: of the rows below a quantile; 0 for other aggregates.
        others: values after the first, of an aggregate of pairs.

    """

    node: exp.Expr
    function: str
    value: exp.Expr
    value_type: str
    distinct: bool
    filters: tuple[exp.Expr, ...]
    bounds: CallBounds
    weight: float
    share: float
    others: tuple[exp.Expr, ...] = ()

    @property
    def name(self) -> str:
        """The call's text, for plans and receipts."""
        return unquoted(self.node)

    @property
    def adds_rows(self) -> bool:
        """Return whether the call adds up all rows, so that the total of a unit in a group may be bounded."""
        return self.function == "sum" and not self.distinct

    @property
    def extreme(self) -> str:
        """The name of the extreme of rows that a quantile stands for; empty for any other call."""
        call = self.node.this if isinstance(self.node, exp.Filter) else self.node
        return str(call.meta.get(EXTREME, ""))

    @property
    def filter_sql(self) -> str:
        """The condition of FILTER; empty without one."""
        return to_sql(exp.and_(*self.filters)) if self.filters else ""

    def of_rows_with(self, condition: exp.Expr) -> Call:
        """The call over the rows that pass one condition more, in whichever order the two were written."""
        return replace(self, filters=tuple(sorted((condition, *self.filters), key=to_sql)))


@dataclass(frozen=True, slots=True)
class AggregateKind:
    """An aggregate: a row of `registry.AGGREGATES`. FILTER and a weight go with all of them.

    Attributes:
        names: its names, each in one spelling.
        answers: what its value is, for the pages.
        read: from a call to statistics and value; `AggregateSource.refuse` says why there are none.
        values: what it is of; ``rows`` for a star or any value.
        bounds: which bounds of one unit's rows it has, the first those of its ``dp_`` form.
        finds_bounds: whether AUTO finds them.
        share: whether a share of the rows follows the value, or is one half.
        no_distinct: code, message and hint of the refusal of DISTINCT; empty where DISTINCT may be. Without a hint
            it is the quotient of sum and count.

    """

    names: tuple[str, ...]
    answers: str
    read: Callable[[AggregateSource, Call], Aggregate]
    values: Literal["rows", "anything", "numbers", "numbers, dates or timestamps", "truth values", "pairs of numbers"]
    bounds: tuple[str, ...] = ()
    finds_bounds: bool = False
    share: Literal["", "given", "half"] = ""
    no_distinct: tuple[str, ...] = ()

    @property
    def has_norm(self) -> bool:
        """Return whether a norm bounds all groups of a unit together, where the text asks for it."""
        return bool(self.bounds) and not self.share


TYPE_HINTS = {
    "numbers": "Cast the value, or aggregate another column.",
    "numbers, dates or timestamps": "Cast the value, or aggregate another column.",
    "truth values": "Give a condition, as in {}(x > 0).",
}
"""Hint of the refusal of other types, by what an aggregate takes."""

VALUES_OF_NUMBERS = ("numbers", "numbers, dates or timestamps")
"""Nouns of values, for aggregates whose answer is computed from the values and not from their number."""

_BOUNDED = {
    ("per_group",): "a count has no bounds per row.",
    ("per_row",): "{} is bounded per row.",
    (): "a unit counts once in a group.",
}
"""Message for bounds that an aggregate does not have, by those that it has."""


def sum_of(call: Call, statistic: Statistic, output: str) -> Aggregate:
    """The count or sum that a statistic is by itself, its centre added back."""
    return Aggregate(Estimate(call.name, Sum(Linear(statistic, statistic.centre)), output), call.weight)


def read_aggregate(node: exp.Expr, kinds: Mapping[str, AggregateKind], source: AggregateSource) -> Aggregate:
    """The aggregate that a call asks for, whose arguments are all checked before its own function reads them.

    Args:
        node: the call, with its FILTER.
        kinds: every aggregate by its names.
        source: which rows.

    Raises:
        RefusedCallError: it cannot be read; every reason is noted.

    """
    before = len(source.refusals.found)
    call = _read(node, kinds, source)
    for part in (call.value, *call.others, *call.filters):
        if isinstance(part, exp.Star):
            continue
        if any(is_aggregate_call(inner) for inner in part.walk()):
            source.refusals.add(
                "nested_aggregate", part, "an aggregate cannot stand inside an aggregate.", "Aggregate row values."
            )
        else:
            check_row_expression(part, source.refusals)
    if len(source.refusals.found) > before:
        raise RefusedCallError
    for condition in call.filters:
        # what does not bind is refused before anything is charged
        source.bind_condition(condition)
    if call.bounds.per_group:
        low, high = call.bounds.per_group
        together = min(low, source.groups * low), max(high, source.groups * high)
        call = replace(call, bounds=call.bounds.with_pair("per_group", together))
    kind = kinds[call.function]
    if kind.values in VALUES_OF_NUMBERS:
        require_no_unit(node, call.function, call.value, source)
    if kind.values in TYPE_HINTS:
        value_type = source.type_of(call.value)
        if not _takes(kind, value_type):
            refuse_type(source, node, call.function, kind.values, value_type)
        call = replace(call, value_type=value_type)
    if call.bounds.are_times != (call.value_type in TIMES) and (call.bounds.per_row or call.bounds.per_group):
        source.note_bounds(node, are_times=call.value_type in TIMES)
        raise RefusedCallError
    return kind.read(source, call)


def refuse_type(source: AggregateSource, node: exp.Expr, function: str, values: str, value_type: str) -> NoReturn:
    """Refuse values of a type that an aggregate does not take."""
    message = f"{function} takes {values}, not {type_name(value_type)}."
    source.refuse("value_type", node, message, TYPE_HINTS[values].format(function))


def _takes(kind: AggregateKind, value_type: str) -> bool:
    """Whether an aggregate is of values of a type."""
    if kind.values == "truth values":
        return value_type == "BOOLEAN"
    return is_number(value_type) or (kind.values != "numbers" and value_type in TIMES)


def _read(node: exp.Expr, kinds: Mapping[str, AggregateKind], source: AggregateSource) -> Call:
    conditions, call = ((node.expression.this,), node.this) if isinstance(node, exp.Filter) else ((), node)
    called = function_name(call)
    if called is None:
        refuse_function(node, call, source)
    function = called.removeprefix("dp_")
    kind = kinds[function]
    positional, named = _split(call, source)
    weight = read_weight(named.pop("weight"), source) if "weight" in named else 1.0
    norm = read_norm(named.pop(NORM), function, source, has_norm=kind.has_norm) if NORM in named else None
    bounds = replace(_bounds(node, function, kind, named, source) if named else CallBounds(), norm=norm)
    distinct = bool(positional) and isinstance(positional[0], exp.Distinct)
    if distinct:
        positional = [part.unnest() for part in positional[0].expressions if part is not None] + positional[1:]
    if positional and isinstance(positional[0], exp.Order):
        source.refuse(_ARGUMENT, node, "ORDER BY inside an aggregate changes nothing here.", "Leave it out.")
    if called != function and kind.values in VALUES_OF_NUMBERS:
        given, positional = _split_dp_call(node, called, kind, positional, source, has_named=bool(named))
        bounds = replace(bounds.with_pair(kind.bounds[0], read_pair(node, given, source)), are_times=any_time(given))
    share = _share(node, function, kind, positional, source) if kind.share else 0.0
    values, others = (positional[:1], ()) if kind.share else (positional, tuple(positional[1:]))
    value = values[0] if values else exp.Star()
    if len(values) > 1 + (kind.values == PAIRS) or (isinstance(value, exp.Star) and kind.values != "rows"):
        if kind.values == PAIRS:
            refuse_pair(source, node, function, values)
        source.refuse(_ARGUMENT, node, f"{function} takes one value.", with_value(node, function, values))
    if distinct and kind.no_distinct:
        code, message, hint = kind.no_distinct
        source.refusals.add(code, node, message.format(function), hint or cure_of_distinct(node, value))
    return Call(node, function, value, "", distinct, conditions, bounds, weight, share, others)


def _split_dp_call(
    node: exp.Expr,
    called: str,
    kind: AggregateKind,
    positional: Sequence[exp.Expr],
    source: AggregateSource,
    *,
    has_named: bool,
) -> tuple[Sequence[exp.Expr], list[exp.Expr]]:
    """Return the bounds of a call like dp_sum(x, low, high), and the arguments before them."""
    shares = ["0.25"] if kind.share == "given" else []
    before = 1 + len(shares)
    if len(positional) != before + 2 or has_named:
        bounds = blanks.SUMS if called == "dp_sum" else blanks.VALUES
        takes = f"{called} takes a value{', a share' if shares else ''} and two bounds."
        source.refuse(_ARGUMENT, node, takes, with_value(node, called, positional, *shares, *bounds))
    return positional[before:], list(positional[:before])


def _split(call: exp.Expr, source: AggregateSource) -> tuple[list[exp.Expr], dict[str, exp.Expr]]:
    """Positional arguments, and named ones by their names."""
    listed = [] if isinstance(call, exp.Anonymous) or call.this is None else [call.this]
    positional: list[exp.Expr] = []
    named: dict[str, exp.Expr] = {}
    for argument in [*listed, *call.expressions]:
        name = argument.this.name.lower() if isinstance(argument, exp.Kwarg | exp.PropertyEQ) else ""
        if not name:
            positional.append(argument)
        elif name not in NAMED_ARGUMENTS or name in named:
            similar = "" if name in named else did_you_mean(name, NAMED_ARGUMENTS)
            source.refusals.add(
                _ARGUMENT,
                argument,
                f"argument {name} is unknown or doubled.",
                f"{similar} Known are {', '.join(NAMED_ARGUMENTS)}.".lstrip(),
            )
        else:
            named[name] = argument
    return positional, named


def _bounds(
    node: exp.Expr, function: str, kind: AggregateKind, named: Mapping[str, exp.Expr], source: AggregateSource
) -> CallBounds:
    """The named bounds; notes those that the aggregate does not have."""
    found = CallBounds()
    for name, argument in named.items():
        form, given = name.removeprefix("contribution_bounds_"), argument.expression
        if isinstance(given, exp.Var) and given.name == "AUTO":
            found = replace(found, auto=form)
        elif kind.values == PAIRS:
            found = replace(found, of_pair=bounds_of_pair(argument, function, source))
        elif isinstance(given, exp.Tuple | exp.Array):
            are_times = any_time(given.expressions)
            pair = read_pair(argument, given.expressions, source)
            found = replace(found.with_pair(form, pair), are_times=are_times or found.are_times)
        else:
            source.note_bounds(argument)
    absent = [name for name in named if not name.endswith(kind.bounds)]
    plain = without_bounds(node)
    needs_bounds = kind.values == PAIRS or "geomean" in kind.names
    cure = f"Write {plain}, and leave its bounds to AUTO." if kind.bounds and not needs_bounds else f"Write {plain}."
    if found.auto and (not kind.finds_bounds or len(named) > 1):
        message = "AUTO finds the bounds of one sum or average, per group or per row."
        source.refusals.add(_ARGUMENT, node, message, cure_of_auto(source, node, function) if needs_bounds else cure)
    elif found.auto and absent:
        source.refusals.add(_ARGUMENT, node, "an average is bounded per row.", cure)
    elif absent:
        source.refusals.add(_ARGUMENT, node, _BOUNDED[kind.bounds].format(function), cure)
    return found


def _share(
    node: exp.Expr, function: str, kind: AggregateKind, positional: Sequence[exp.Expr], source: AggregateSource
) -> float:
    """The share of rows below a quantile; 0 after noting that it is none."""
    is_half = kind.share == "half"
    written = [read_number(part, source.refusals.text) for part in positional[1:]]
    shares = [0.5, *written] if is_half else written
    if positional and len(shares) == 1 and 0.0 < shares[0] < 1.0:
        return shares[0]
    refuse_share(source, node, function, positional, is_half=is_half)
    return 0.0
