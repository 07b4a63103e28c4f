"""Refusals of calls without a private form, of words in them, and of stars.

Each call has one refusal, with the hint of `function_hints`.

This module is imported only if a call is refused.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from fnmatch import fnmatchcase

from sqlglot import exp

from dpsql.errors import ParseError
from dpsql.model.refusals import Refusals
from dpsql.model.similar_names import did_you_mean
from dpsql.operations.dialect import PrivateDuckDB, parse_statement, text_literal, unquoted, written
from dpsql.operations.option_place import options_error
from dpsql.sql.clauses import AGGREGATE_NAMES, PRIVATE_AGGREGATES, called_with, is_aggregate_call, is_interval_call
from dpsql.sql.date_parts import DATE_PARTS
from dpsql.sql.function_hints import AGGREGATE_HINTS, LIST_OF_ROWS, OTHER_ROW, ROW_HINTS, Hint

_OF_GROUPS = (
    "It is for the select list, HAVING and ORDER BY of the private query that names the aggregate, "
    "as in count(*) AS n, dp_interval_low(n) AS low."
)
_LEAST_ALIKE = 0.8
"""A function that DuckDB has is no slip, and may look like another one."""
_NAMES_OF_ARGUMENTS = ("x", "y", "z", "w")
_TIME_LETTERS = {
    **dict.fromkeys(("YYYY", "yyyy"), "Y"), "MM": "m", **dict.fromkeys(("DD", "dd"), "d"),
    **dict.fromkeys(("HH24", "HH", "hh24"), "H"), **dict.fromkeys(("MI", "mi", "mm", "%i"), "M"),
    **dict.fromkeys(("SS", "ss", "%s"), "S"), "Month": "B", "Mon": "b", "Day": "A",
}  # fmt: skip
_TIME_PARTS = re.compile("|".join(sorted(_TIME_LETTERS, key=len, reverse=True)))
_PLACES = re.compile(r"\{\}|%[sd]")
_ATOMS = (exp.Column, exp.Literal, exp.Func, exp.Paren, exp.Boolean, exp.Null)
_VALUE = (exp.Order, exp.Distinct)
_OF_A_ROW = ("contribution_bounds_per_row", "weight")
_NAMED = (exp.Kwarg, exp.PropertyEQ)
_SHARES = (exp.Literal, exp.Array)
_QUANTILES = ("quantile", "quantile_cont", "quantile_disc", "approx_quantile")
_PERCENTILES = ("percentile_cont", "percentile_disc", "percentile", "percentile_approx", "approx_percentile")
ANSWERED_OTHERWISE = ("approx_count_distinct", "histogram", "mode", "percentile_cont", "percentile_disc")
"""Aggregates that have an answer, as other aggregates or in a query of their own."""


@functools.cache
def hint_rows() -> dict[str, Hint]:
    """Return the rows of the table by the names, patterns and numbers of arguments that they have."""
    return {name: row for row in (*AGGREGATE_HINTS, *ROW_HINTS) for name in row.names.split()}


def hint_of(name: str, arguments: int) -> Hint | None:
    """Return the row of a function, or None if the table has none.

    Args:
        name: in small letters.
        arguments: the number of arguments of the call.

    """
    rows = hint_rows()
    found = rows.get(f"{name}/{arguments}") or rows.get(name)
    return found or next((row for one, row in rows.items() if "*" in one and fnmatchcase(name, one)), None)


def _is_aggregate(name: str) -> bool:
    return name in (*AGGREGATE_NAMES, *PRIVATE_AGGREGATES) or any(name in row.names.split() for row in AGGREGATE_HINTS)


def called_name(call: exp.Expr) -> str:
    """Return the name that a function was written with, in small letters."""
    return str(call.meta.get("written") or (call.name if isinstance(call, exp.Anonymous) else call.key)).lower()


def _arguments(call: exp.Expr) -> list[exp.Expr]:
    """Return the arguments of a call in the order of the text, without ORDER BY and DISTINCT."""
    listed = list(call.expressions if isinstance(call, exp.Anonymous) else call.iter_expressions())
    places: list[int] = [
        min((part.meta["start"] for part in one.walk() if "start" in part.meta), default=0) for one in listed
    ]
    if isinstance(call, exp.Anonymous):
        places = [0] * len(listed)
    # an argument that the parser built has no place, and comes after the one before
    for at in range(1, len(places)):
        places[at] = places[at] or places[at - 1]
    found = []
    for _, argument in sorted(zip(places, listed, strict=True), key=lambda pair: pair[0]):
        value = argument
        while isinstance(value, _VALUE):
            value = value.this or value.expressions[0]
        found.append(value)
    return found


def _inner_call(call: exp.Expr) -> exp.Expr:
    """Return the function of a call that has IGNORE NULLS or WITHIN GROUP, with the ordered value as an argument."""
    ordered: list[exp.Expr] = []
    while isinstance(call, exp.IgnoreNulls | exp.RespectNulls | exp.WithinGroup | exp.Window):
        order = call.args.get("expression") if isinstance(call, exp.WithinGroup) else None
        ordered = [term.this for term in order.expressions if isinstance(term, exp.Ordered)] if order else ordered
        call = call.this
    if not ordered:
        return call
    inner = exp.Anonymous(this=called_name(call), expressions=[*(one.copy() for one in (*ordered, *_arguments(call)))])
    inner.meta["written"] = called_name(call)
    return inner


def _bounds_in(arguments: Sequence[exp.Expr]) -> tuple[str, str]:
    """Return the bounds of one value and of two that a call has, each as an argument with a comma before it."""
    named = [f", {unquoted(one)}" for one in arguments if isinstance(one, _NAMED) and one.this.name in _OF_A_ROW]
    numbers = [unquoted(one) for one in arguments]
    low, high = f", {_OF_A_ROW[0]} => (", ")"
    one_pair = f"{low}{', '.join(numbers[1:3])}{high}" if len(numbers) == 3 else ""
    two_pairs = f"{low}({', '.join(numbers[2:4])}), ({', '.join(numbers[4:6])}){high}" if len(numbers) == 6 else ""
    return ("".join(named),) * 2 if named else (one_pair, two_pairs)


def _filled(hint: str, name: str, arguments: Sequence[exp.Expr], condition: str) -> str:
    """Return a hint with the arguments and the FILTER of a call in it."""
    bounds, pair = _bounds_in(arguments)
    arguments = [one for one in arguments if not isinstance(one, _NAMED)]
    texts = [unquoted(one) for one in arguments]
    operands = [text if isinstance(one, _ATOMS) else f"({text})" for one, text in zip(arguments, texts, strict=True)]
    part = texts[0].strip("'").lower() if texts else "day"
    form = arguments[1].name if len(arguments) > 1 else ""
    joined = _joined(arguments[0].name if arguments else "", texts[1:])
    texts += _NAMES_OF_ARGUMENTS[len(texts) :]
    operands += _NAMES_OF_ARGUMENTS[len(operands) :]
    return hint.format(
        *texts,
        **{f"o{place}": one for place, one in enumerate(operands)},
        name=name,
        plain=name.removeprefix("dp_"),
        bounds=bounds,
        pair=pair,
        part=part,
        form=_time_format(form),
        joined=joined,
        filter=f" FILTER (WHERE {condition})" if condition else "",
        also=f" AND ({condition})" if condition else "",
    )


def _time_format(form: str) -> str:
    """Return the format of strftime that another database writes as YYYY-MM-DD, yyyy-MM-dd or %Y-%m-%d %i.

    >>> _time_format("YYYY-MM-DD HH24:MI")
    '%Y-%m-%d %H:%M'
    """
    found = _TIME_PARTS.sub(lambda part: f"%{_TIME_LETTERS[part[0]]}", form)
    known = re.sub(r"%[YmdHMSjybBaAp]", "", found)
    return "%Y-%m-%d" if not form or re.search(r"[A-Za-z%]", known) else found


def _joined(form: str, values: Sequence[str]) -> str:
    """Return what a text with places for values joins: the texts between the places, and the values.

    >>> _joined("{}-{}", ["city", "code"])
    "city, '-', code"
    """
    between = _PLACES.split(form)
    if len(between) != len(values) + 1:
        return ", ".join(values) or "x"
    parts = [part for pair in zip(map(text_literal, between), (*values, "''"), strict=True) for part in pair]
    return ", ".join(part for part in parts if part != "''")


def refused_call(node: exp.Expr, known: Sequence[str] = ()) -> tuple[str, str]:
    """Return message and hint of the refusal of a call.

    Args:
        node: the call, with its FILTER.
        known: names of functions, one of which may be meant.

    """
    condition = unquoted(node.expression.this) if isinstance(node, exp.Filter) else ""
    outside = node.this if isinstance(node, exp.Filter) else node
    call = _inner_call(outside)
    name, arguments = called_name(call), _arguments(call)
    if name in AGGREGATE_NAMES and isinstance(outside, exp.WithinGroup | exp.IgnoreNulls | exp.RespectNulls):
        return _refused_around(node, outside)
    if name in _PERCENTILES:
        arguments = _value_first(arguments)
        if isinstance(arguments[0], _SHARES):
            message = f"{name}() takes a share, and one value in WITHIN GROUP (ORDER BY …)."
            return message, f"Name a value, as in {called_with(node, 'quantile_cont', 'x', unquoted(arguments[0]))}."
    row = hint_of(name, sum(not isinstance(one, _NAMED) for one in arguments)) or OTHER_ROW
    hint = _filled(row.hint, name, arguments, condition)
    if row is OTHER_ROW and isinstance(call, exp.Anonymous):
        meant = meant_aggregate(call) or did_you_mean(
            name, [one for one in known if not one.startswith("dp_")], least=_LEAST_ALIKE
        )
        hint = meant or hint
    is_called = isinstance(call, exp.Anonymous) or "written" in call.meta
    return row.message.format(f"{name}()" if is_called else written(call)), hint


def _value_first(arguments: Sequence[exp.Expr]) -> list[exp.Expr]:
    """Return value and share of a percentile. One half stands for an empty list of shares, and for none."""
    shares = [one for one in arguments if isinstance(one, _SHARES)]
    values = [one for one in arguments if not isinstance(one, _SHARES)]
    half = exp.Literal.number("0.5")
    return [*values, *(half if isinstance(one, exp.Array) and not one.expressions else one for one in shares)] or [half]


def _refused_around(node: exp.Expr, group: exp.Expr) -> tuple[str, str]:
    """Return message and hint of an answered aggregate with WITHIN GROUP or IGNORE NULLS, which it does not take."""
    inner = group
    while isinstance(inner, exp.IgnoreNulls | exp.RespectNulls | exp.WithinGroup):
        inner = inner.this
    name, arguments = called_name(inner), list(map(unquoted, _arguments(inner)))
    order = group.args.get("expression") if isinstance(group, exp.WithinGroup) else None
    if len(arguments) == 1 and name in _QUANTILES:
        terms = [unquoted(term.this) for term in order.expressions] if order else []
        value = terms[0] if terms else "x"
        cure = called_with(node, name, value, *arguments)
        message = f"{name}() takes one value in WITHIN GROUP (ORDER BY …)."
        return message, f"Write {cure}." if terms else f"Name a value, as in {cure}."
    words = "WITHIN GROUP" if isinstance(group, exp.WithinGroup) else "IGNORE NULLS and RESPECT NULLS"
    return f"{name}() does not take {words}.", f"Write {called_with(node, name, *arguments)}."


def meant_aggregate(call: exp.Expr) -> str:
    """Return the question whether an aggregate was meant whose name looks like that of a call; empty if none does."""
    name = called_name(call) if isinstance(call, exp.Anonymous) else ""
    known = (*AGGREGATE_NAMES, *ANSWERED_OTHERWISE, *(PRIVATE_AGGREGATES if name.startswith("dp_") else ()))
    if not name or name in known or hint_of(name, len(call.expressions)):
        return ""
    swapped = [one for one in known if sorted(one) == sorted(name)]
    return did_you_mean(name, swapped or known, least=0.0 if swapped else _LEAST_ALIKE)


def _is_selected(node: exp.Expr) -> bool:
    """Check that a node belongs to the select list of a whole query, which is one around an answer."""
    return isinstance(node.find_ancestor(exp.Where, exp.Having, exp.Filter, exp.Group, exp.Select), exp.Select)


def _hint_of_split(node: exp.Expr) -> str:
    """Return the hint to split texts in a subquery, and to group around it; of a series to list its rows."""
    if node.find(exp.GenerateSeries):
        return LIST_OF_ROWS
    split = node.find(exp.Split)
    text, separator = (unquoted(split.this), unquoted(split.expression)) if split else ("s", "'|'")
    rows = f"SELECT unnest(string_split({text}, {separator})) AS part FROM t"
    return f"Group around a subquery, as in SELECT part, count(*) FROM ({rows}) GROUP BY part."


def refuse_row_function(node: exp.Expr, refusals: Refusals, known: Sequence[str]) -> None:
    """Note the refusal of a function in an expression over rows or groups.

    Args:
        node: the call.
        refusals: collects.
        known: names of functions, one of which may be meant.

    """
    if is_interval_call(node):
        refusals.add("row_function", node, f"{written(node)} is not allowed inside a private query.", _OF_GROUPS)
    elif isinstance(node, exp.Explode | exp.Unnest):
        refusals.add("row_function", node, "unnest() makes several rows of one.", _hint_of_split(node))
    elif (is_aggregate := isinstance(node, exp.AggFunc) or _is_aggregate(called_name(node))) and _is_selected(node):
        hint = refused_call(node, known)[1]
        refusals.add("row_function", node, f"{written(node)} has no form around an answer.", hint)
    elif is_aggregate:
        refusals.add(
            "row_function",
            node,
            f"{written(node)} cannot stand here: it aggregates rows.",
            "Filter rows with WHERE and FILTER, and groups with HAVING.",
        )
    else:
        refusals.add("row_function", node, *refused_call(node, known))


def refuse_word(word: exp.Column, refusals: Refusals) -> None:
    """Refuse a name that is no column if the call around it, or a function of this name, has a hint.

    Raises:
        ParseError: the call is OPTIONS (…).
        UnsupportedQueryError: the call has no private form.

    """
    call = word.find_ancestor(exp.Anonymous)
    if call is not None and call.name.upper() == "OPTIONS" and (error := _options_error(refusals.text)):
        raise error
    row = hint_of(called_name(call), len(call.expressions)) if call is not None else None
    is_part = row is not None and ("{part}" in row.hint or word.name.lower() in DATE_PARTS)
    if call is not None and is_part and word is call.expressions[0]:
        refusals.refuse("row_function", call, *refused_call(call))
    row = hint_rows().get(word.name.lower())
    if row and not word.table and row.example.endswith("()"):
        refusals.refuse("row_function", word, *refused_call(exp.Anonymous(this=word.name)))


def _options_error(text: str) -> ParseError | None:
    return options_error(text, PrivateDuckDB().tokenize(text), parse_statement)


def refuse_star(star: exp.Expr, select: Sequence[exp.Expr], refusals: Refusals) -> None:
    """Note why a star is refused. A window over rows and a misspelt call are noted elsewhere."""
    parts = [node for item in select for node in item.walk()]
    is_slip = star.parent is not None and meant_aggregate(star.parent)
    if is_slip or any(isinstance(node, exp.Window) for node in parts):
        return
    message = "a star would release rows."
    if any(map(is_aggregate_call, parts)):
        message = "a star has columns that are no keys, and a group has no value of these."
    refusals.add("star", star, message, "Name keys and aggregates.")
