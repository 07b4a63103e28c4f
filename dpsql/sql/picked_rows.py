"""Rows of an outer query that noisy numbers pick: by a condition, an extreme, or LIMIT after an order."""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Set as AbstractSet

from sqlglot import exp

from dpsql.model.environment import folded

_CLAUSES = ("where", "having", "qualify")
_EXTREMES = (exp.Max, exp.Min, exp.ArgMax, exp.ArgMin)


def picks_numbers(outer: exp.Query, of_answers: Collection[str], *, is_ordered: bool = False) -> bool:
    """Check that a query around answers compares or orders noisy numbers so that some of them are shown.

    Args:
        outer: the query.
        of_answers: names of numbers in the answers that it reads.
        is_ordered: whether the answer that it reads is ordered by a number.

    """
    numbers = _with_aliases(outer, {folded(name) for name in of_answers})
    return any(_select_picks(select, numbers, is_ordered=is_ordered) for select in outer.find_all(exp.Select))


def _with_aliases(outer: exp.Query, numbers: set[str]) -> set[str]:
    """Return names of numbers with those that a query gives to what it computes of them."""
    named = {folded(column.name) for alias in outer.find_all(exp.TableAlias) for column in alias.columns}
    found, aliases = numbers | named, list(outer.find_all(exp.Alias))
    while more := {folded(one.alias) for one in aliases if _reads(one.this, found)} - found:
        found |= more
    return found


def _select_picks(select: exp.Select, numbers: AbstractSet[str], *, is_ordered: bool) -> bool:
    """Check that one SELECT picks rows by numbers.

    Args:
        select: the outer query, or one inside it.
        numbers: names of numbers.
        is_ordered: whether the answer that it reads is ordered by a number.

    """
    conditions = [select.args[name] for name in _CLAUSES if select.args.get(name)]
    conditions += [join.args["on"] for join in select.args.get("joins") or () if join.args.get("on")]
    extremes = [node for root in select.expressions for node in root.find_all(*_EXTREMES)]
    firsts = [node for root in select.expressions for node in root.find_all(exp.First, exp.Last)]
    orders = [order for node in firsts for order in node.find_all(exp.Order)]
    if any(_reads(node, numbers) for node in [*conditions, *extremes, *orders]):
        return True
    if not select.args.get("limit") and not select.args.get("offset"):
        return False
    order = select.args.get("order")
    if order is None:
        return is_ordered
    return any(_orders_by_number(term.this, select, numbers) for term in order.expressions)


def _orders_by_number(term: exp.Expr, select: exp.Select, numbers: AbstractSet[str]) -> bool:
    """Check that a term of ORDER BY is a number, or may be one that it names by its position."""
    if not isinstance(term, exp.Literal):
        return _reads(term, numbers)
    place = int(term.this) - 1 if term.is_int else 0
    named = select.expressions[place : place + 1]
    return select.is_star or any(_reads(one, numbers) for one in named)


def _reads(node: exp.Expr, numbers: AbstractSet[str]) -> bool:
    """Check that an expression reads a number, or all columns of an answer that has numbers."""
    return any(folded(one.name) in numbers or one.name.lower() == "all" for one in node.find_all(exp.Column))
