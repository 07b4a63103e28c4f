"""A private query whose outputs name other queries: the private query without them, and what is computed around it.

In ``SELECT city, 100 * count(*) / (SELECT count(*) FROM visits) FROM visits GROUP BY city`` the inner query counts, and
the outer one divides. `lift` writes both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from sqlglot import exp

from dpsql.model.environment import folded
from dpsql.model.refusals import Refusals
from dpsql.operations.dialect import unquoted
from dpsql.operations.trees import map_tree
from dpsql.sql.clauses import conjuncts, is_aggregate_call
from dpsql.sql.column_names import column_name

IsColumn = Callable[[exp.Column], bool]
"""Checks that a name is that of a column of the rows, whatever the aliases are."""
HIDDEN = "dpsql_value_"
TEXT = "hidden_text"
"""Mark on columns with hidden names: what the text has in their place."""
_OUTPUTS = ("having", "qualify", "order")
_MOVED = "moved"
"""Mark on names that mean an output that is computed around a private query."""


def queries_in(select: exp.Select) -> Iterator[exp.Query]:
    """Yield the queries in expressions of a SELECT, without those in its sources and in other queries."""
    for name, value in select.args.items():
        if name == "with_":
            continue
        for node in value if isinstance(value, list) else [value]:
            if isinstance(node, exp.From):
                continue
            roots = [node.args.get("on")] if isinstance(node, exp.Join) else [node]
            for root in roots:
                if isinstance(root, exp.Expr):
                    yield from outermost_queries(root)


def outermost_queries(root: exp.Expr) -> Iterator[exp.Query]:
    """Yield the queries in an expression that stand in no other query."""
    if isinstance(root, exp.Subquery):
        yield from outermost_queries(root.this)
    elif isinstance(root, exp.Query):
        yield root
    else:
        for child in root.iter_expressions():
            yield from outermost_queries(child)


def outputs_of(select: exp.Select) -> list[exp.Expr]:
    """Return the select list and the clauses that are computed of groups."""
    return [*select.expressions, *(select.args[name] for name in _OUTPUTS if select.args.get(name))]


def queries_of_groups(select: exp.Select) -> list[exp.Query]:
    """Return the queries in what is computed of groups: not those in aggregates and in keys, which are of rows."""
    keys = _keys_among(select)
    return [
        query
        for root in outputs_of(select)
        if not any(root is key for key in keys)
        for query in outermost_queries(root)
        if not _is_in_aggregate(query, root)
    ]


def _is_in_aggregate(query: exp.Expr, root: exp.Expr) -> bool:
    node = query.parent
    while node is not None and node is not root.parent:
        if is_aggregate_call(node) and not isinstance(node, exp.Window):
            return True
        node = node.parent
    return False


def _keys_among(select: exp.Select) -> list[exp.Expr]:
    """Return the items of the select list that GROUP BY names, by place, alias or text."""
    group, items = select.args.get("group"), select.expressions
    if group is None:
        return []
    if group.args.get("all"):
        return [item for item in items if not any(map(is_aggregate_call, item.walk()))]
    found = []
    for term in group.expressions:
        for place, item in enumerate(items, start=1):
            is_place = isinstance(term, exp.Literal) and not term.is_string and term.name == str(place)
            is_alias = isinstance(term, exp.Column) and not term.table and folded(term.name) == folded(item.alias)
            if is_place or is_alias or term == item.unalias():
                found.append(item)
    return found


def lift(select: exp.Select, refusals: Refusals, is_column: IsColumn) -> tuple[exp.Select, exp.Select] | None:
    """Split a private query whose outputs name other queries.

    Args:
        select: the query; it is not changed.
        refusals: collects.
        is_column: finds out if a name means a column of the rows.

    Returns:
        What is computed around it, and the private query without it; the first reads the second as a subquery. Neither
        has the queries that WITH names. None if no output names another query.

    Raises:
        UnsupportedQueryError: QUALIFY names another query.

    """
    if not queries_of_groups(select):
        return None
    qualify = select.args.get("qualify")
    if qualify and qualify.find(exp.Query):
        refusals.refuse("after", qualify, "QUALIFY names another query.", "Filter in a query around this one.")
    return split_around(select.copy(), hidden_prefix(select), {}, is_column)


def hidden_prefix(select: exp.Select) -> str:
    """Return the beginning of hidden names, with which no name of the text begins."""
    prefix = HIDDEN
    while any(folded(one.name).startswith(prefix) for one in select.find_all(exp.Identifier)):
        prefix += "_"
    return prefix


def split_around(
    select: exp.Select, prefix: str, hidden: Mapping[str, exp.Expr], is_column: IsColumn
) -> tuple[exp.Select, exp.Select]:
    """Return what is computed around a private query, and the private query without it.

    Args:
        select: the query, which becomes the private one.
        prefix: begins hidden names.
        hidden: expressions that the private query shows in any case, by hidden names.
        is_column: finds out if a name means a column of the rows.

    """
    return _Lift(select, prefix, dict(hidden), is_column).split()


@dataclass
class _Lift:
    """Moves outputs that name other queries, and what reads them, out of a private query."""

    private: exp.Select
    prefix: str
    hidden: dict[str, exp.Expr]
    is_column: IsColumn
    moved: set[str] = field(default_factory=set)

    def split(self) -> tuple[exp.Select, exp.Select]:
        """Return the outer query and the private one."""
        private, outer = self.private, exp.Select()
        private.set("with_", None)
        items = list(private.expressions)
        self.moved = {folded(item.alias) for item in items if isinstance(item, exp.Alias) and item.find(exp.Query)}
        self._read_aliases()
        shown, kept = [], []
        for item in items:
            name = column_name(item)
            if self._stays_outside(item):
                shown.append(exp.alias_(self._outside(item.unalias().copy()), name, quoted=True))
            elif isinstance(item, exp.Alias):
                kept.append(item)
                shown.append(exp.column(name, quoted=True))
            else:
                shown.append(exp.alias_(self._outside(item), name, quoted=True))
        outer.set("expressions", shown)
        having = private.args.get("having")
        if having:
            inside = [one for one in conjuncts(having.this) if not self._stays_outside(one)]
            around = [self._outside(one.copy()) for one in conjuncts(having.this) if self._stays_outside(one)]
            private.set("having", exp.Having(this=exp.and_(*inside, copy=False)) if inside else None)
            if around:
                outer.set("where", exp.Where(this=exp.and_(*around, copy=False)))
        order = private.args.get("order")
        for term in order.expressions if order else ():
            term.set("this", self._outside(term.this.copy()))
        for name in ("order", "limit", "offset", "distinct"):
            outer.set(name, private.args.get(name))
            private.set(name, None)
        private.set("expressions", [*kept, *(exp.alias_(one, name, quoted=True) for name, one in self.hidden.items())])
        outer.set("from_", exp.From(this=exp.Subquery(this=private, alias=exp.TableAlias(this=exp.to_identifier("a")))))
        return outer, private

    def _read_aliases(self) -> None:
        """Mark the names that mean moved outputs, and write out aliases that hide columns in HAVING and ORDER BY.

        As in DuckDB, a column goes before an alias in the select list and in aggregates of HAVING. Elsewhere in HAVING
        it does if it is a key. An alias that is a whole term of ORDER BY goes first.
        """
        private = self.private
        aliases = {folded(item.alias): item.this for item in private.expressions if isinstance(item, exp.Alias)}
        group = private.args.get("group")
        grouped = [*group.expressions, *(item.unalias() for item in _keys_among(private))] if group else []
        keys = {folded(one.name) for one in grouped if isinstance(one, exp.Column)}

        def read(root: exp.Expr, clause: str) -> exp.Expr:
            def visit(node: exp.Expr) -> exp.Expr | None:
                if isinstance(node, exp.Query):
                    return None
                if is_aggregate_call(node) and clause == "having":
                    read(node, "")
                    return None
                if not isinstance(node, exp.Column) or node.table or folded(node.name) not in aliases:
                    return node
                name = folded(node.name)
                is_first = (clause == "having" and name not in keys) or isinstance(node.parent, exp.Ordered)
                is_column = self.is_column(node)
                if is_column and not is_first:
                    return None
                if name in self.moved:
                    node.meta[_MOVED] = True
                elif is_column:
                    return exp.paren(aliases[name])
                return None

            return map_tree(root, visit)

        items = [read(item, "") for item in private.expressions]
        for clause in ("having", "order"):
            if private.args.get(clause):
                private.set(clause, read(private.args[clause].copy(), clause))
        private.set("expressions", items)

    def _stays_outside(self, node: exp.Expr) -> bool:
        """Check that an expression names another query, or an output that does."""
        return any(isinstance(one, exp.Query) or self._is_moved(one) for one in node.walk())

    def _is_moved(self, node: exp.Expr) -> bool:
        return bool(node.meta.get(_MOVED))

    def _outside(self, root: exp.Expr) -> exp.Expr:
        """Return an expression in which the outermost parts without other queries are columns of the private query."""

        def visit(node: exp.Expr) -> exp.Expr | None:
            if isinstance(node, exp.Query) or self._is_moved(node):
                return None
            if self._stays_outside(node):
                return node
            if not any(isinstance(one, exp.Column | exp.AggFunc | exp.Anonymous | exp.Star) for one in node.walk()):
                return None
            column = exp.column(self._column(node), quoted=True)
            column.meta[TEXT] = unquoted(node)
            return column

        return map_tree(root, visit)

    def _column(self, node: exp.Expr) -> str:
        for name, one in self.hidden.items():
            if one == node:
                return name
        name = f"{self.prefix}{len(self.hidden)}"
        self.hidden[name] = node.copy()
        return name
