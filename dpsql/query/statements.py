"""Which statement is it: a declaration, a look at the books, or a private query?"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal

from sqlglot import exp

from dpsql.errors import ParseError, Refusal, Span, UnsupportedQueryError
from dpsql.query.dialect import Call, parse_statement, require_unicode, span_at, span_of, to_sql

Scalar = str | int | float | bool | None | Decimal | dt.date | dt.datetime
Argument = Scalar | tuple["Argument", ...]

TABLE_FUNCTIONS = ("dp_policy", "dp_budget", "dp_releases", "dp_cascade", "dp_explain", "dp_describe", "dp_query")
_LARGEST_WHOLE = 2.0**63
"""A longer whole number is read as a floating-point one, as infinity if need be."""
DECLARATIONS = ("dp_unit", "dp_protect", "dp_link", "dp_domain", "dp_public", "dp_analyst", "dp_new_version")


@dataclass(frozen=True, slots=True)
class FunctionCall:
    """``CALL name(…)`` or ``FROM name(…)`` with its arguments as Python values.

    ``literals`` keeps the elements of list arguments as SQL text, for lists that are keys of any type.
    """

    name: str
    positional: tuple[Argument, ...] = ()
    named: Mapping[str, Argument] = field(default_factory=dict)
    literals: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    span: Span | None = None


@dataclass(frozen=True, slots=True)
class SelectStatement:
    """A SELECT to be answered privately: the tree and the text that its spans point into."""

    tree: exp.Select
    text: str


def read_statement(
    text: str, parameters: Sequence[Scalar] | Mapping[str, Scalar] | None = None
) -> FunctionCall | SelectStatement:
    """Parse one statement and say what it is, with the parameter values put in.

    Raises:
        ParseError: the text is not one statement, or not one of the kinds that dpsql answers.
        UnsupportedQueryError: it is UNION, EXCEPT or INTERSECT of queries.

    """
    tree = parse_statement(text)
    tree = _bind_parameters(tree, parameters, text)
    if isinstance(tree, Call):
        return _function_call(tree.this, text, DECLARATIONS + TABLE_FUNCTIONS)
    if isinstance(tree, exp.Subquery) and all(name == "this" for name, value in tree.args.items() if value):
        tree = tree.unnest()
    if isinstance(tree, exp.Select):
        source = tree.args.get("from_")
        relation = source.this if source is not None else None
        if isinstance(relation, exp.Table) and isinstance(relation.this, exp.Func):
            if not _is_bare_star(tree) or any(v for k, v in relation.args.items() if k not in ("this", "alias")):
                raise ParseError(
                    "table functions are read whole, as in FROM dp_budget('patient'); filter the result in Python",
                    span_of(relation, text),
                )
            return _function_call(relation.this, text, TABLE_FUNCTIONS)
        if not tree.expressions:
            raise ParseError("SELECT has no select list", span_of(tree, text))
        return SelectStatement(tree, text)
    if isinstance(tree, exp.SetOperation):
        refusal = Refusal(
            "clause",
            f"{type(tree).__name__.upper()} has no private form yet.",
            "Ask each query by itself and put the answers together afterwards.",
            span_of(tree.expression, text),
        )
        raise UnsupportedQueryError([refusal])
    raise ParseError(
        "only SELECT, CALL dp_…(…) and FROM dp_…(…) can be run here; "
        "use Session.connection for other SQL on your own database",
        span_at(text, len(text) - len(text.lstrip()), len(text.rstrip())),
    )


def _is_bare_star(tree: exp.Select) -> bool:
    used = {name for name, value in tree.args.items() if value}
    return used <= {"expressions", "from_"} and [type(e) for e in tree.expressions] == [exp.Star]


def _bind_parameters(tree: exp.Expr, parameters: Sequence[Scalar] | Mapping[str, Scalar] | None, text: str) -> exp.Expr:
    placeholders = [node for node in tree.find_all(exp.Placeholder, exp.Parameter) if node is not tree]
    # walk order is not text order, and anonymous parameters are numbered by their place in the text
    placeholders.sort(key=lambda node: ((span := span_of(node, text)) and span.start) or 0)
    if not isinstance(parameters, Mapping | list | tuple | None):
        raise ParseError("parameters are a list of values for ?, or a mapping of names to values for $name")
    named = dict(parameters) if isinstance(parameters, Mapping) else None
    listed = list(parameters) if parameters is not None and named is None else []
    used: set[str] = set()
    anonymous = 0
    for node in placeholders:
        # .name of an anonymous one would be "?"
        name = node.text("this")
        if not name:
            anonymous += 1
            name = str(anonymous)
        used.add(name)
        literal = _literal(_parameter_value(name, named, listed, span_of(node, text)))
        literal.meta.update(node.meta)
        node.replace(literal)
    given = set(named) if named is not None else {str(i + 1) for i in range(len(listed))}
    if given - used:
        raise ParseError(f"parameters without a place in the query: {', '.join(sorted(map(str, given - used)))}")
    return tree


def _parameter_value(
    name: str, named: Mapping[str, Scalar] | None, listed: Sequence[Scalar], span: Span | None
) -> Scalar:
    if named is not None and name in named:
        return named[name]
    if named is None and name.isdigit() and 1 <= int(name) <= len(listed):
        return listed[int(name) - 1]
    raise ParseError(f"no value was given for parameter {name!r}", span)


def _literal(value: Scalar) -> exp.Expr:
    if isinstance(value, float) and not math.isfinite(value):
        raise ParseError("a parameter must be a finite number")
    if isinstance(value, Decimal) and not value.is_finite():
        raise ParseError("a parameter must be a finite number")
    if isinstance(value, str):
        require_unicode(value)
    if isinstance(value, Decimal):
        return exp.Literal.number(str(value))
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
    name = str(function.meta.get("written") or function.key).lower()
    if name not in allowed:
        raise ParseError(f"{name}() is not one of {', '.join(allowed)}", span)
    positional: list[Argument] = []
    named: dict[str, Argument] = {}
    literals: dict[str, tuple[str, ...]] = {}
    for argument in function.expressions:
        if isinstance(argument, exp.PropertyEQ | exp.Kwarg):
            key = argument.this.name.lower()
            if key in named:
                raise ParseError(f"argument {key} of {name}() stands twice", span_of(argument, text))
            named[key] = _value(argument.expression, text)
            if isinstance(argument.expression, exp.Array):
                literals[key] = tuple(to_sql(element) for element in argument.expression.expressions)
        elif named:
            raise ParseError(f"positional arguments of {name}() come first", span_of(argument, text))
        else:
            positional.append(_value(argument, text))
    return FunctionCall(name, tuple(positional), named, literals, span)


def _value(node: exp.Expr, text: str) -> Argument:
    """Python value of a literal, a list of literals or a bare word."""
    match node:
        case exp.RawString():
            return node.name
        case exp.Literal() if node.is_string:
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
            return tuple(_value(element, text) for element in node.expressions)
        case exp.Cast(this=exp.Literal() as inner):
            return inner.name
        case exp.Column() if not node.table:
            return node.name
        case _:
            raise ParseError("an argument must be a literal or a list of literals", span_of(node, text))


def _number(digits: str) -> int | float:
    try:
        number = float(digits)
    except ValueError:
        raise ParseError(f"{digits!r} is not a number") from None
    return int(digits) if digits.isdigit() and number < _LARGEST_WHOLE else number


def literal_value(node: exp.Expr, text: str) -> Argument:
    """Python value of a literal that stands in a query clause; bare words come back as text."""
    return _value(node, text)
