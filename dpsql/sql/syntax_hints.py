"""Refusals of operators and elements of lists in expressions over rows.

This module is imported only if a text is refused.
"""

from __future__ import annotations

import re

from sqlglot import exp

from dpsql.operations.dialect import text_literal, unquoted, written
from dpsql.sql.clauses import ReleasedList

_PLACE = re.compile(r"\[(-?\d+)\]$")
_NO_GLOB = re.compile(r"[\[\]\\%_]")
_PART = "Show all of it, and take the part from the answer. Of a text, substr(x, 1, 1) is the first letter."
_LISTED = "Use columns, literals, comparisons, arithmetic, CASE and the listed functions."


def refused_syntax(node: exp.Expr) -> tuple[str, str]:
    """Return message and hint of the refusal of a node that is no function."""
    # the text of a part may be of a column that the query does not name
    named = "a part […] of a value" if isinstance(node, exp.Bracket) else written(node)
    message = f"{named} is not allowed inside a private query."
    value = unquoted(node.this) if isinstance(node.this, exp.Expr) else ""
    if isinstance(node, exp.SimilarTo):
        return message, f"Use regexp_full_match({value}, {unquoted(node.expression)}) in its place."
    if isinstance(node, exp.Glob) and not _NO_GLOB.search(node.expression.name):
        pattern = node.expression.name.replace("*", "%").replace("?", "_")
        return message, f"Use {value} LIKE {text_literal(pattern)} in its place."
    place = _PLACE.search(unquoted(node)) if isinstance(node, exp.Bracket) else None
    if place is None:
        return message, _PART if isinstance(node, exp.Bracket) else _LISTED
    listed = node.this.find(ReleasedList)
    if listed is not None:
        return _refused_quantile(listed.expressions, int(place[1]))
    if isinstance(node.this, exp.Split):
        text, separator = unquoted(node.this.this), unquoted(node.this.expression)
        return "a row has no lists here.", f"Use split_part({text}, {separator}, {place[1]}) in its place."
    return message, _PART


def _refused_quantile(quantiles: list[exp.Expr], place: int) -> tuple[str, str]:
    """Return message and hint for one element of a list of quantiles."""
    message = "an element of a list of quantiles is not taken here."
    chosen = quantiles[place - 1 if place > 0 else place] if 0 < abs(place) <= len(quantiles) else quantiles[0]
    return message, f"Use {unquoted(chosen)}: all quantiles of one value cost as much as one."


def cure_of_literal(node: exp.Expr) -> str:
    """Return the hint to write the format of strftime after the time; empty for any other node."""
    form = node.this.unnest() if isinstance(node, exp.TimeToStr) else None
    while isinstance(form, exp.Cast):
        form = form.this
    if not isinstance(form, exp.Literal) or not form.is_string or "%" not in form.name:
        return ""
    return f"Write strftime({unquoted(node.args['format'])}, {text_literal(form.name)})."
