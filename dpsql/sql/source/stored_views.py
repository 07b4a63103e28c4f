"""Parts of a view as a person writes them: DuckDB stores some as calls that it made of them.

It stores ``count(*)`` as ``count_star()``, ``x IN (SELECT …)`` as ``x = ANY(SELECT …)``, and ``INTERVAL 3 DAY`` as
``to_days(CAST(trunc(CAST(3 AS DOUBLE)) AS INTEGER))``.
"""

from __future__ import annotations

from sqlglot import exp

from dpsql.operations.dialect import parse_statement, text_literal

_UNITS = (
    "milliseconds", "seconds", "minutes", "hours", "days", "weeks", "months", "quarters", "years", "decades",
)  # fmt: skip
_CALLS = {f"to_{unit}": unit.upper() for unit in _UNITS}


def restore_calls(query: exp.Query) -> None:
    """Put what was written in the place of calls that DuckDB made of it."""
    for node in list(query.find_all(exp.Anonymous, exp.ToDays, exp.Cast, exp.EQ)):
        written = _written(node)
        if written:
            node.replace(written)


def _written(node: exp.Expr) -> exp.Expr | None:
    """Return what a person wrote for a node, or None if it is what was written."""
    if isinstance(node, exp.Cast):
        return _interval(node)
    if isinstance(node, exp.EQ):
        return _in(node)
    if isinstance(node, exp.ToDays):
        return _units(node.this, "DAYS")
    name, arguments = node.name.lower(), node.expressions
    if name == "count_star" and not arguments:
        return exp.Count(this=exp.Star(), big_int=True)
    return _units(arguments[0], _CALLS[name]) if name in _CALLS and len(arguments) == 1 else None


def _in(comparison: exp.EQ) -> exp.Expr | None:
    """Return ``x IN (SELECT …)`` for a comparison with any row of a subquery."""
    left, right = comparison.left.unnest(), comparison.right
    if not isinstance(right, exp.Any) or not isinstance(right.this, exp.Subquery):
        return None
    if isinstance(left, exp.Anonymous) and left.name.lower() == "row":
        left = exp.Tuple(expressions=left.expressions)
    return exp.In(this=left, query=right.this)


def _interval(cast: exp.Cast) -> exp.Expr | None:
    """Return ``INTERVAL '2 hours'`` for a cast of a text to it."""
    if not cast.to.is_type("interval") or not isinstance(cast.this, exp.Literal) or not cast.this.is_string:
        return None
    found = parse_statement(f"SELECT INTERVAL {text_literal(cast.this.name)}").find(exp.Interval)
    return found.copy() if found else None


def _units(argument: exp.Expr, unit: str) -> exp.Expr | None:
    """Return an INTERVAL of a number of units, which stands inside casts; None if it is no literal.

    A number with a fraction is what a person wrote only if DuckDB cuts the fraction off, as it does for an INTERVAL.
    """
    value, is_cut = argument, False
    while isinstance(value, exp.Cast | exp.Trunc | exp.Paren):
        is_cut |= isinstance(value, exp.Trunc)
        value = value.this
    sign = "-" if isinstance(value, exp.Neg) else ""
    number = value.this if sign else value
    if value is argument or not isinstance(number, exp.Literal) or not (is_cut or number.name.isdigit()):
        return None
    return exp.Interval(this=exp.Literal.string(f"{sign}{number.name}"), unit=exp.var(unit))
