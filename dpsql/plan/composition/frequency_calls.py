"""Calls of mode and histogram, keys beside them, and the query of counts that a refusal advises."""

from __future__ import annotations

import re

from sqlglot import exp

from dpsql.model.environment import folded
from dpsql.sql.clauses import is_aggregate_call, is_interval_call

_OPTIONS = re.compile(
    r"\bSELECT\s+(WITH\s+DIFFERENTIAL_PRIVACY(?:\s+OPTIONS\s*\((?:[^()]|\([^()]*\))*\))?)", re.IGNORECASE
)


def is_frequency(node: exp.Expr) -> bool:
    """Check that a node is a call of mode or histogram, without its FILTER."""
    if isinstance(node, exp.Anonymous):
        return node.name.lower() == "histogram" and len(node.expressions) in (1, 2)
    return isinstance(node, exp.Mode) and node.args.get("deterministic") is None


def value_of(call: exp.Expr) -> exp.Expr:
    """Return what a call of mode or histogram counts."""
    value: exp.Expr = call.expressions[0] if isinstance(call, exp.Anonymous) else call.this
    return value


def with_options(query: str, text: str) -> str:
    """Return a query with the options of the text that it comes from."""
    found = _OPTIONS.search(text)
    return query.replace("SELECT ", f"SELECT {found[1]} ", 1) if found else query


def is_of_rows(root: exp.Expr) -> bool:
    """Check that an expression has an aggregate of rows, or asks for the interval of one."""
    return any(is_aggregate_call(node) or is_interval_call(node) for node in root.walk())


def is_computed(item: exp.Expr) -> bool:
    """Check that an item is no key of GROUP BY ALL: it has an aggregate, or a query."""
    return is_of_rows(item) or item.find(exp.Query) is not None


def reads_counts(item: exp.Expr) -> bool:
    """Check that an item is no key of GROUP BY ALL, before queries are put in the place of mode and histogram."""
    return is_computed(item) or any(map(is_frequency, item.walk()))


def terms(term: exp.Expr) -> list[exp.Expr]:
    """Return the keys that a term of GROUP BY has: several if they are in parentheses."""
    return list(term.expressions) if isinstance(term, exp.Tuple) else [term.unnest()]


def written(term: exp.Expr, select: exp.Select) -> exp.Expr:
    """Return a term of GROUP BY as an expression if it is a place in the select list, and else as it is."""
    is_place = isinstance(term, exp.Literal) and term.is_int and 0 < int(term.name) <= len(select.expressions)
    return select.expressions[int(term.name) - 1].unalias() if is_place else term


def grouped(select: exp.Select, value: exp.Expr, condition: exp.Expr | None) -> exp.Select:
    """Return the query that counts the rows of each group and value."""
    counted = select.copy()
    group, items = select.args.get("group"), select.expressions
    listed = [one for term in group.expressions for one in terms(term)] if group else []
    aliases = {folded(item.alias): item for item in items if isinstance(item, exp.Alias) and not reads_counts(item)}
    keys = [written(term, select) for term in listed]
    if group and group.args.get("all"):
        keys = [item for item in items if not reads_counts(item)]
    shown = [
        aliases.get(folded(key.name), key) if isinstance(key, exp.Column) and not key.table else key for key in keys
    ]
    for name in ("having", "qualify", "order", "limit", "offset", "distinct", "hint"):
        counted.set(name, None)
    if condition:
        counted.where(condition.copy(), copy=False)
    counted.set("expressions", [*(one.copy() for one in shown), value.copy(), exp.Count(this=exp.Star())])
    counted.set(
        "group",
        exp.Group(
            expressions=[
                *(one.unalias().copy() if isinstance(one, exp.Alias) else one.copy() for one in keys),
                value.copy(),
            ]
        ),
    )
    return counted
