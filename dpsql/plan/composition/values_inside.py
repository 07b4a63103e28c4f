"""Public queries inside a private query: scalars, lists of IN, EXISTS and lists of rows become values.

A condition ``x IN (SELECT …)`` or EXISTS that stands by itself in WHERE stays a join, as it is without this.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field

from sqlglot import exp

from dpsql.errors import SchemaError
from dpsql.model.environment import folded
from dpsql.model.refusals import Refusals
from dpsql.plan.composition.exists_tests import as_test
from dpsql.plan.composition.kinds import QueryRows, Rows
from dpsql.plan.composition.lift import queries_in, queries_of_groups
from dpsql.plan.composition.public_values import Values, as_list, as_scalar, as_source
from dpsql.plan.composition.scalars import Scalar
from dpsql.plan.composition.series import is_series
from dpsql.sql.around_queries import with_needed
from dpsql.sql.clauses import conjuncts, sources_of
from dpsql.sql.source.scope import Scope

Read = Callable[[exp.Query], Values]
"""Returns the rows of a public query that stands by itself."""
Wait = Callable[[exp.Query], Scalar]
"""Returns a private query of one number, which stands by itself, as something that rows wait for."""


@dataclass(frozen=True, slots=True)
class Put:
    """Changes that were made to a private query.

    Attributes:
        has_values: whether values of public queries were.
        waits: the private queries of one number that its rows wait for.

    """

    has_values: bool
    waits: tuple[Scalar, ...]


def put_values(tree: exp.Select, rows: QueryRows, read: Read, wait: Wait) -> Put:
    """Put values in place of public queries in a private query, and lists in place of private numbers, in place.

    Args:
        tree: the private query, with all queries of WITH that it reads.
        rows: says what the rows of queries are.
        read: returns the rows of a public query.
        wait: returns a private query of one number as something that rows wait for.

    Raises:
        SchemaError: a table is too large to be copied.
        UnsupportedQueryError: a public query has too many rows, or rows are compared with a list of private answers.

    """
    # a fresh tree has scopes of its own
    inside = _Inside(QueryRows(rows.environment, rows.refusals), rows.refusals, read, wait)
    whole = exp.Subquery(this=tree)
    inside.visit(tree, Scope({}, 0), is_whole=True)
    tree.pop()
    del whole
    return Put(inside.is_changed, tuple(inside.waits.values()))


@dataclass
class _Inside:
    """Walks a private query, and the queries of rows inside it."""

    rows: QueryRows
    refusals: Refusals
    read: Read
    wait: Wait
    is_changed: bool = False
    waits: dict[str, Scalar] = field(default_factory=dict)
    _lists: int = 0

    def visit(self, query: exp.Expr, scope: Scope, *, is_whole: bool = False) -> None:
        """Put values into a query of rows of units; ``is_whole`` if it is the private query itself."""
        match query:
            case exp.Subquery() if isinstance(query.this, exp.Query):
                self.visit(query.this, scope)
            case exp.SetOperation():
                inner = self.rows.naming(query, scope)
                self._visit_named(query, inner)
                self.visit(query.left, inner)
                self.visit(query.right, inner)
            case exp.Select():
                inner = self.rows.naming(query, scope)
                self._visit_named(query, inner)
                for source in sources_of(query):
                    self._visit_source(source, inner)
                self._visit_expressions(query, inner, is_whole=is_whole)

    def _visit_named(self, query: exp.Expr, inner: Scope) -> None:
        """Put values into the queries that WITH names; public lists among them become lists of values."""
        with_ = query.args.get("with_")
        for cte in with_.expressions if with_ else ():
            written, outer = inner.queries[folded(cte.alias)]
            if self.rows.of(written.this, outer) is Rows.OF_UNITS:
                self.visit(cte.this, outer)
            elif _is_constant(cte.this):
                columns = cte.args["alias"].columns
                cte.set("this", exp.select("*").from_(self._list(cte.this, exp.TableAlias(columns=columns))))
                cte.args["alias"].set("columns", None)

    def _visit_source(self, source: exp.Expr, scope: Scope) -> None:
        alias = source.args.get("alias")
        if is_series(source):
            bare = source.copy()
            bare.set("alias", None)
            source.replace(self._list(exp.select("*").from_(bare), alias))
        elif isinstance(source, exp.Subquery) and isinstance(source.this, exp.Query):
            if _is_constant(source.this):
                source.replace(self._list(source.this, alias))
            elif self.rows.of(source.this, scope) is Rows.OF_UNITS:
                self.visit(source.this, scope)

    def _list(self, query: exp.Query, alias: exp.TableAlias | None) -> exp.Expr:
        """Return the rows of a query that reads no table, as a list of values."""
        self.is_changed = True
        self._lists += 1
        named = alias.copy() if alias else exp.TableAlias()
        if not named.this:
            named.set("this", exp.to_identifier(f"dpsql_list_{self._lists}"))
        return as_source(self.read(query), named, self.refusals, query)

    def _visit_expressions(self, select: exp.Select, scope: Scope, *, is_whole: bool) -> None:
        outputs = set(map(id, queries_of_groups(select))) if is_whole else set()
        where = select.args.get("where")
        alone = {id(_tested(one)) for one in conjuncts(where.this)} if where else set()
        for query in list(queries_in(select)):
            kind = self.rows.of(query, scope)
            if kind is Rows.PUBLIC:
                if id(query) not in alone:
                    self._replace(query, scope)
            elif kind is Rows.OF_UNITS:
                self.visit(query, scope)
            elif id(query) not in outputs:
                self._wait_for(query, select, scope)

    def _wait_for(self, query: exp.Query, select: exp.Select, scope: Scope) -> None:
        """Let the rows of a SELECT wait for a private number."""
        place = _whole_place(query)
        if isinstance(place.parent, exp.In | exp.Exists | exp.Any | exp.All):
            self.refusals.refuse(
                "after",
                query,
                "private rows are compared with a list of private answers.",
                "Ask for the list first, and write its values. A query of one number may stand here.",
            )
        scalar = self.wait(with_needed(query, scope.named))
        place.replace(scalar.column)
        if scalar.name not in {source.alias for source in sources_of(select)}:
            select.append("joins", scalar.join)
        self.waits[scalar.name] = scalar

    def _replace(self, query: exp.Query, scope: Scope) -> None:
        """Put the values of a public query in its place; a query that reads columns around it stays."""
        if isinstance(query.parent, exp.Exists) and (test := as_test(query)):
            # the list has no NULL, and EXISTS is never NULL
            query.parent.replace(exp.Coalesce(this=test, expressions=[exp.false()]))
            query = test.args["query"].this
        place = _whole_place(query)
        tree = with_needed(query, scope.named)
        with contextlib.suppress(SchemaError):
            values = self.read(tree)
            around = place.parent
            match around:
                case exp.In() if around.args.get("query") is place:
                    around.replace(as_list(values, around.this.copy()))
                case exp.Exists():
                    around.replace(exp.Boolean(this=bool(values.rows)))
                case exp.Any() | exp.All():
                    return
                case _:
                    place.replace(as_scalar(values, self.refusals, query))
            self.is_changed = True


def _whole_place(query: exp.Expr) -> exp.Expr:
    """Return a query with the parentheses around it."""
    return _whole_place(query.parent) if isinstance(query.parent, exp.Subquery) else query


def _is_constant(query: exp.Expr) -> bool:
    """Check that a query reads no table."""
    return not any(isinstance(table.this, exp.Identifier) for table in query.find_all(exp.Table))


def _tested(condition: exp.Expr) -> exp.Expr | None:
    """Return the query of ``x [NOT] IN (query)`` or ``[NOT] EXISTS (query)``."""
    test = condition.this if isinstance(condition, exp.Not) else condition
    test = test.unnest()
    query = test.args.get("query") if isinstance(test, exp.In) else test.this if isinstance(test, exp.Exists) else None
    return query.unnest() if isinstance(query, exp.Expr) else None
