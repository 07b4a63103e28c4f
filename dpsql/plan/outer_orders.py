"""ORDER BY around a private query, on columns whose values have a declared order.

`sort_by_place` follows such columns from the answer through the SELECTs around it. Where one of them is computed with,
or passes through a UNION, its values are texts and sorted by letters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlglot import exp

from dpsql.model.environment import folded
from dpsql.plan.finish import place_in
from dpsql.sql.windows import order_terms

Orders = Mapping[str, tuple[str, ...]]
"""The columns of a source by their folded names, each with its declared order; empty if it has none."""


def sort_by_place(outer: exp.Select, answer: str, orders: Orders) -> Orders:
    """Sort an outer query, in place, by the declared orders of the columns of the answer; return those it shows.

    Args:
        outer: the query around the private one.
        answer: the name under which it reads the answer.
        orders: of the columns of the answer.

    """
    return _columns_of(outer, {folded(answer): orders})


def _columns_of(query: exp.Expr, known: Mapping[str, Orders]) -> Orders:
    """Sort a query in place, and return the orders of its columns."""
    if isinstance(query, exp.Subquery):
        return _columns_of(query.this, known)
    if isinstance(query, exp.Union):
        _columns_of(query.this, known)
        _columns_of(query.expression, known)
        return {}
    if not isinstance(query, exp.Select) or not query.args.get("from_"):
        return {}
    named = dict(known)
    for cte in (query.args.get("with_") or exp.With(expressions=[])).expressions:
        shown = _columns_of(cte.this, named)
        named[folded(cte.alias)] = {} if cte.args["alias"].columns else shown
    source = query.args["from_"].this
    if isinstance(source, exp.Table):
        read = named.get(folded(source.name), {})
    else:
        read = _columns_of(source, named)
    if source.alias_column_names:
        read = {}
    scope = _Scope(read, query)
    scope.sort()
    return scope.shown


@dataclass(frozen=True, slots=True)
class _Scope:
    """A SELECT and the columns of the one source that it reads.

    Attributes:
        read: the columns of the source.
        select: the SELECT.

    """

    read: Orders
    select: exp.Select

    @property
    def shown(self) -> Orders:
        """The columns of the SELECT; nothing if a star leaves some out or changes them."""
        shown: dict[str, tuple[str, ...]] = {}
        for item in self.select.expressions:
            if isinstance(item, exp.Star):
                if any(item.args.get(name) for name in ("except_", "replace", "rename")):
                    return {}
                shown |= self.read
            else:
                shown[folded(item.alias_or_name)] = self._order(item.unalias())
        return shown

    def sort(self) -> None:
        """Sort by places in ORDER BY and in the windows of this SELECT."""
        for window in self.select.find_all(exp.Window):
            if window.parent_select is self.select:
                self._sort(order_terms(window), {})
        order = self.select.args.get("order")
        if order:
            aliases = {folded(one.alias): one.this for one in self.select.expressions if isinstance(one, exp.Alias)}
            positions = self._positions()
            (first, *_) = order.expressions
            if isinstance(first.this, exp.Var) and any(map(self._order, positions.values())):
                # ORDER BY ALL
                order.set("expressions", [_with_this(first, exp.Literal.number(place)) for place in positions])
            self._sort(order.expressions, aliases | positions)

    def _sort(self, terms: Sequence[exp.Expr], aliases: Mapping[str, exp.Expr]) -> None:
        """Sort terms by the places of the columns that they name, by alias or position too."""
        for term in terms:
            node = term.this
            is_alias = isinstance(node, exp.Column) and not node.table
            is_position = isinstance(node, exp.Literal) and not node.is_string
            meant = aliases.get(folded(node.name), node) if is_alias or is_position else node
            if members := self._order(meant):
                place = place_in(members, meant)
                # of a column that rows are grouped by, which GROUP BY ALL does not see inside a call
                term.set("this", exp.Min(this=place) if self.select.args.get("group") else place)

    def _order(self, node: exp.Expr) -> tuple[str, ...]:
        return self.read.get(folded(node.name), ()) if isinstance(node, exp.Column) else ()

    def _positions(self) -> dict[str, exp.Expr]:
        """Return the expression behind each position of the select list; nothing after a star of other columns."""
        listed: list[exp.Expr] = []
        for item in self.select.expressions:
            if isinstance(item, exp.Star):
                listed += [exp.column(name, quoted=True) for name in self.read]
            else:
                listed.append(item.unalias())
        is_whole = all(not isinstance(item, exp.Star) or self.shown for item in self.select.expressions)
        return {str(place): node for place, node in enumerate(listed, start=1)} if is_whole else {}


def _with_this(term: exp.Expr, node: exp.Expr) -> exp.Expr:
    """Return a term of ORDER BY with another expression, in the same direction."""
    term = term.copy()
    term.set("this", node)
    return term
