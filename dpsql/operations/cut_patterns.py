"""Searches with patterns, written so that each reads all of a text once at least, and no more than its beginning.

A text is cut before it is searched. Before the pattern stands one that matches nowhere. RE2 would otherwise skip a text
in which it finds no first character of a match, or stop at its beginning, and a search with a match would take ten
times as long as one without. ``benchmarks/pattern_times.py`` measures it.
"""

from __future__ import annotations

from sqlglot import exp

MAX_SEARCHED = 1_000
"""Characters of a text that a pattern is matched with."""

NEVER = r"(?:\b\B.)"
"""Matches nowhere: no place is both a border of a word and none. RE2 knows that no character belongs to it, so that a
pattern beside it is one-pass if it is alone."""

FLAGS: dict[type[exp.Expr], str] = {
    exp.RegexpLike: "flag",
    exp.RegexpFullMatch: "options",
    exp.RegexpExtract: "parameters",
    exp.RegexpReplace: "modifiers",
}
"""Calls with a pattern, and the argument that holds their flags."""


def flags_of(node: exp.Expr) -> str:
    """Return the flags of a call with a pattern, as they are written."""
    flags = node.args.get(FLAGS[type(node)])
    return flags.name if flags else ""


def cut_search(node: exp.Expr) -> exp.Expr:
    """Return a call whose text is cut and whose pattern reads all of it; the node changes."""
    written = f"(?:{node.expression.name})"
    if isinstance(node, exp.RegexpFullMatch):
        node = exp.RegexpLike(this=node.this, expression=node.expression, flag=node.args.get("options"))
        written = f"^{written}$"
    node.set("this", exp.Left(this=node.this, expression=exp.Literal.number(MAX_SEARCHED)))
    node.set("expression", exp.Literal.string(f"{NEVER}|{written}"))
    return node
