"""Which statement is it: a declaration, a look at what is stored, or a private query?

And is it small enough? Beyond the limits here planning it would take minutes, and so would DuckDB to plan what comes of
it. Every limit is one of the text; none depends on rows, or on how fast a machine is.
"""

from __future__ import annotations

import datetime as dt
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal

from sqlglot import exp

from dpsql.errors import ParseError, Span
from dpsql.model.frame import Statistic
from dpsql.model.refusals import Refusals
from dpsql.model.similar_names import did_you_mean
from dpsql.model.statistic_kinds import APART_KINDS
from dpsql.operations.dialect import Call, parse_statement, require_unicode, span_of, to_sql
from dpsql.operations.spans import span_at
from dpsql.sql.show import ShowStatement, read_show

Scalar = str | int | float | bool | None | Decimal | dt.date | dt.datetime
Argument = Scalar | tuple["Argument", ...] | Mapping[str, "Argument"]

TABLE_FUNCTIONS = (
    "dp_policy",
    "dp_tables",
    "dp_budget",
    "dp_releases",
    "dp_cascade",
    "dp_check",
    "dp_explain",
    "dp_describe",
    "dp_query",
)
_LARGEST_WHOLE = 2.0**63
"""A longer whole number is read as a floating-point one, as infinity if need be."""
OF_TEXTS = ("dp_explain", "dp_describe", "dp_query")
"""The table functions that take a query as text."""
FOR_ANALYSTS = ("dp_query", "dp_explain", "dp_describe", "dp_tables", "dp_budget", "dp_releases")
"""The table functions that an analyst may call."""
DECLARATIONS = (
    "dp_unit",
    "dp_protect",
    "dp_unprotect",
    "dp_link",
    "dp_domain",
    "dp_public",
    "dp_analyst",
    "dp_new_version",
    "dp_accept_state",
)


@dataclass(frozen=True, slots=True)
class FunctionCall:
    """``CALL name(…)`` or ``FROM name(…)`` with its arguments as Python values.

    ``literals`` keeps the elements of list arguments as SQL text, for lists that are keys of any type.
    ``parameters`` are values for the places of the text inside dp_explain, dp_describe or dp_query.
    """

    name: str
    positional: tuple[Argument, ...] = ()
    named: Mapping[str, Argument] = field(default_factory=dict)
    literals: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    span: Span | None = None
    parameters: Sequence[Scalar] | Mapping[str, Scalar] | None = None


@dataclass(frozen=True, slots=True)
class SelectStatement:
    """A SELECT to be answered privately.

    Attributes:
        tree: with the values of parameters put in.
        text: what its spans point into.
        parameters: SQL of these values, in the order of their places in the text; of a part of a text also its SQL.
        is_part: whether it is a part of a text, or a text with values in place of public queries.

    """

    tree: exp.Query
    text: str
    parameters: tuple[str, ...] = ()
    is_part: bool = False


def read_statement(
    text: str, parameters: Sequence[Scalar] | Mapping[str, Scalar] | None = None
) -> FunctionCall | SelectStatement | ShowStatement:
    """Parse one statement and say what it is, with the parameter values put in.

    Values for dp_explain, dp_describe and dp_query go into the text inside, if the call itself has no place for them.

    Raises:
        ParseError: the text is not one statement, or not one of the kinds that dpsql answers.
    """
    tree = parse_statement(text)
    values: tuple[str, ...] = ()
    if parameters is not None or tree.find(exp.Placeholder, exp.Parameter):
        if _has_places_inside(tree) and isinstance(call := read_statement(text), FunctionCall):
            return replace(call, parameters=parameters)
        values = _bind_parameters(tree, parameters, text)
    if isinstance(tree, Call):
        return _function_call(tree.this, text, DECLARATIONS + TABLE_FUNCTIONS)
    if isinstance(tree, exp.Subquery) and all(name == "this" for name, value in tree.args.items() if value):
        tree = tree.unnest()
    if isinstance(tree, exp.Select):
        source = tree.args.get("from_")
        relation = source.this if source else None
        if isinstance(relation, exp.Table) and isinstance(relation.this, exp.Func):
            if not _is_bare_star(tree) or any(v for k, v in relation.args.items() if k not in ("this", "alias")):
                raise ParseError(
                    "table functions are read whole, as in FROM dp_budget('patient'); filter the result in Python",
                    span_of(relation, text),
                )
            return _function_call(relation.this, text, TABLE_FUNCTIONS)
        if not tree.expressions:
            raise ParseError("SELECT has no select list", span_of(tree, text))
        return SelectStatement(tree, text, values)
    if isinstance(tree, exp.SetOperation):
        return SelectStatement(tree, text, values)
    if shown := read_show(tree, text):
        return shown
    raise ParseError(
        "this statement cannot be run here.",
        span_at(text, len(text) - len(text.lstrip()), len(text.rstrip())),
        hint="Write SELECT, CALL dp_…(…) or FROM dp_…(…); other SQL on your own database goes to Session.connection.",
        analyst_hint="Write SELECT … FROM a table that SHOW TABLES lists.",
    )


def _has_places_inside(tree: exp.Expr) -> bool:
    """Check that a statement is a call that takes a query as text, without a place for parameters of its own."""
    source = tree.args.get("from_") if isinstance(tree, exp.Select) else None
    function = tree.this if isinstance(tree, Call) else source and source.this.this
    if not isinstance(function, exp.Func) or _called_name(function) not in OF_TEXTS:
        return False
    return tree.find(exp.Placeholder, exp.Parameter) is None


def _called_name(function: exp.Expr) -> str:
    """Return the name of a function as it is called, in small letters."""
    return str(function.meta.get("written") or function.key).lower()


def _is_bare_star(tree: exp.Select) -> bool:
    used = {name for name, value in tree.args.items() if value}
    return used <= {"expressions", "from_"} and [type(e) for e in tree.expressions] == [exp.Star]


def _bind_parameters(
    tree: exp.Expr, parameters: Sequence[Scalar] | Mapping[str, Scalar] | None, text: str
) -> tuple[str, ...]:
    """Put the values of parameters in their places; returns them as SQL, in this order."""
    placeholders = [node for node in tree.find_all(exp.Placeholder, exp.Parameter) if node is not tree]
    # walk order is not text order, and anonymous parameters are numbered by their place in the text
    placeholders.sort(key=lambda node: ((span := span_of(node, text)) and span.start) or 0)
    match parameters:
        case Mapping():
            given = dict(parameters)
        case list() | tuple():
            given = {str(place): value for place, value in enumerate(parameters, start=1)}
        case None:
            given = {}
        case _:
            raise ParseError("parameters are a list of values for ?, or a mapping of names to values for $name")
    # .name of an anonymous one would be "?"
    anonymous = map(str, itertools.count(1))
    names = [node.text("this") or next(anonymous) for node in placeholders]
    literals: list[exp.Expr] = []
    for name, node in zip(names, placeholders, strict=True):
        if name not in given:
            raise ParseError(f"no value was given for parameter {name!r}", span_of(node, text))
        literals.append(literal := _literal(given[name]))
        literal.meta.update(node.meta)
        node.replace(literal)
    unused = given.keys() - set(names)
    if unused:
        raise ParseError(f"parameters without a place in the query: {', '.join(sorted(map(str, unused)))}")
    return tuple(map(to_sql, literals))


def _literal(value: Scalar) -> exp.Expr:
    if isinstance(value, float | Decimal):
        # a Decimal may be finite where the float next to it is not
        if not (value.is_finite() if isinstance(value, Decimal) else math.isfinite(value)):
            raise ParseError("a parameter must be a finite number")
        return exp.Literal.number(str(value)) if isinstance(value, Decimal) else exp.convert(value)
    if isinstance(value, str):
        require_unicode(value)
    if isinstance(value, dt.datetime):
        kind = "TIMESTAMPTZ" if value.tzinfo else "TIMESTAMP"
        return exp.cast(exp.Literal.string(value.isoformat(sep=" ")), kind, dialect="duckdb")
    if isinstance(value, dt.date):
        return exp.cast(exp.Literal.string(value.isoformat()), "DATE", dialect="duckdb")
    if not isinstance(value, str | int | float | bool | None):
        raise ParseError(f"a parameter of type {type(value).__name__} cannot be used")
    return exp.convert(value)


def _function_call(function: exp.Expr, text: str, allowed: tuple[str, ...]) -> FunctionCall:
    span = span_of(function, text)
    name = _called_name(function)
    if name not in allowed:
        of_analysts = [one for one in FOR_ANALYSTS if one in allowed]
        hints = (f"{did_you_mean(name, known)} There are {', '.join(known)}." for known in (allowed, of_analysts))
        hint, analyst_hint = map(str.lstrip, hints)
        raise ParseError(f"there is no function {name}() here.", span, hint=hint, analyst_hint=analyst_hint)
    positional: list[Argument] = []
    named: dict[str, Argument] = {}
    literals: dict[str, tuple[str, ...]] = {}
    for argument in function.expressions:
        if isinstance(argument, exp.PropertyEQ | exp.Kwarg):
            key = argument.this.name.lower()
            if key in named:
                raise ParseError(f"argument {key} of {name}() is given twice", span_of(argument, text))
            named[key] = literal_value(argument.expression, text)
            if isinstance(argument.expression, exp.Array):
                literals[key] = tuple(to_sql(element) for element in argument.expression.expressions)
        elif _is_equation(argument):
            call = f"{name}({', '.join(map(_as_argument, function.expressions))})"
            raise ParseError(
                f"a named argument of {name}() is given with :=.",
                span_of(argument, text),
                hint=f"Write {'CALL' if name in DECLARATIONS else 'FROM'} {call}.",
            )
        elif named:
            raise ParseError(f"positional arguments of {name}() come first", span_of(argument, text))
        else:
            positional.append(literal_value(argument, text))
    return FunctionCall(name, tuple(positional), named, literals, span)


def _is_equation(argument: exp.Expr) -> bool:
    """Check that a named argument is written with = in place of :=."""
    return isinstance(argument, exp.EQ) and isinstance(argument.this, exp.Column)


def _as_argument(argument: exp.Expr) -> str:
    """Return the SQL of an argument, with := after its name if it has one."""
    if _is_equation(argument) or isinstance(argument, exp.PropertyEQ | exp.Kwarg):
        return f"{argument.this.name} := {to_sql(argument.expression)}"
    return to_sql(argument)


def literal_value(node: exp.Expr, text: str) -> Argument:
    """Python value of a literal, a list of literals or a bare word."""
    match node:
        case exp.RawString() | exp.Literal(is_string=True) | exp.Column(table=""):
            return node.name
        case exp.Literal():
            return _number(node.name)
        case exp.Boolean():
            return bool(node.this)
        case exp.Null():
            return None
        case exp.Neg(this=exp.Literal() as inner) if not inner.is_string:
            return -_number(inner.name)
        case exp.Array() | exp.Tuple():
            return tuple(literal_value(element, text) for element in node.expressions)
        case exp.Cast(this=exp.Literal() as inner):
            return inner.name
        case exp.Struct():
            return _fields(node, text)
        case _:
            raise ParseError("an argument must be a literal or a list of literals", span_of(node, text))


def _fields(node: exp.Struct, text: str) -> Mapping[str, Argument]:
    """Return the fields of a struct by their names.

    Raises:
        ParseError: a field has no name, the name of another field, or no literal.

    """
    fields: dict[str, Argument] = {}
    for one in node.expressions:
        if not isinstance(one, exp.PropertyEQ):
            raise ParseError("a struct names its fields, as in {'visits': 50, 'cost': 5000}", span_of(one, text))
        if one.name in fields:
            raise ParseError(f"field {one.name} is given twice in a struct", span_of(one, text))
        fields[one.name] = literal_value(one.expression, text)
    return fields


def _number(digits: str) -> int | float:
    try:
        number = float(digits)
    except ValueError:
        raise ParseError(f"{digits!r} is not a number") from None
    return int(digits) if digits.isdigit() and number < _LARGEST_WHOLE else number


MOST_LISTED = 2_000
"""Most values in one list of IN."""
MOST_NODES = 20_000
"""Most columns, literals, calls and operators in a statement."""
MOST_TYPED_NODES = 20_000
"""Most of them in all parts that are given a type, where a part counts again in each part around it."""
MOST_STATISTICS = 200
"""Most statistics beside the presence count: each is a column of the bounded query."""
MOST_APART = 10
"""Most of them that are read from rows of their own: quantiles of different values, and distinct values."""
_ELSEWHERE = "Let the curator put them into a public table, and join it or write IN (SELECT …)."


def check_size(tree: exp.Expr, refusals: Refusals) -> None:
    """Refuse a statement that is too large to be planned.

    Raises:
        UnsupportedQueryError: it has too many parts; nothing else is said then.

    """
    for count, node in enumerate(tree.walk(), start=1):
        if isinstance(node, exp.In) and len(node.expressions) > MOST_LISTED:
            refusals.refuse(
                "size",
                node,
                f"a list of IN has at most {MOST_LISTED:,} values, and this one {len(node.expressions):,}.",
                _ELSEWHERE,
            )
        if count > MOST_NODES:
            refusals.refuse(
                "size", tree, f"a query has at most {MOST_NODES:,} columns, literals, calls and operators.", _ELSEWHERE
            )


def check_statistics(statistics: Sequence[Statistic], node: exp.Expr, refusals: Refusals) -> None:
    """Refuse more statistics than one bounded query can have.

    Raises:
        UnsupportedQueryError: there are too many.

    """
    if len(statistics) - 1 > MOST_STATISTICS:
        refusals.refuse(
            "size",
            node,
            f"a query has at most {MOST_STATISTICS} different statistics, and this one {len(statistics) - 1:,}.",
            "Ask for some of them in a query of their own, of the same rows and groups.",
        )
    apart = [one for one in statistics if one.kind in APART_KINDS]
    if len(apart) > MOST_APART:
        refusals.refuse(
            "size",
            node,
            f"a query has quantiles of different values and counts or sums of distinct values at most "
            f"{MOST_APART} together, and this one {len(apart)}.",
            "Ask for some of them in a query of their own, of the same rows and groups; all quantiles of one value "
            "count once.",
        )
