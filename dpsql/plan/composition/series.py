"""Series and lists of literals as rows: unnest, generate_series and range, with ends that are small literals."""

from __future__ import annotations

from sqlglot import exp

_MOST = 10_000
"""The largest end of a series."""


def is_series(node: exp.Expr) -> bool:
    """Check that a node makes rows of a series or a list: unnest, generate_series or range with small literals."""
    match node:
        case exp.Unnest() | exp.Explode():
            return all(map(_is_small_list, node.expressions or [node.this]))
        case exp.Table(this=exp.GenerateSeries() as series):
            return _is_small_list(series)
    return False


def _is_small_list(node: exp.Expr) -> bool:
    match node:
        case exp.Array():
            return all(not one.find(exp.Column, exp.Query) for one in node.expressions)
        case exp.GenerateSeries():
            ends = [node.args.get(name) for name in ("start", "end", "step")]
            numbers = [_whole(one) for one in ends if one is not None]
            return all(one is not None and abs(one) <= _MOST for one in numbers)
    return False


def _whole(node: exp.Expr) -> int | None:
    sign = -1 if isinstance(node, exp.Neg) else 1
    number = node.this if isinstance(node, exp.Neg) else node
    is_whole = isinstance(number, exp.Literal) and not number.is_string and number.name.isdigit()
    return sign * int(number.name[:9]) if is_whole else None
