"""Subqueries in WHERE, as a text says them: which rows ``[NOT] EXISTS`` and ``[NOT] IN`` keep (``predicates``)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

from sqlglot import exp

from dpsql.model.environment import Column, TableSchema
from dpsql.model.refusals import Refusals
from dpsql.operations.dialect import written
from dpsql.sql.clauses import Clauses, is_aggregate_call, qualifier_of, read_clauses
from dpsql.sql.names import resolve_names
from dpsql.sql.source.computed_columns import is_computable, with_column, with_computed, without_computed
from dpsql.sql.source.predicates import Predicate, compared_columns, restricted, split_conditions, take_predicates
from dpsql.sql.source.projections import filtered
from dpsql.sql.source.relation import CurrentTables, Relation
from dpsql.sql.source.scope import PrivateInside, Scope, named_by
from dpsql.sql.source.sides import Conditions


class SourceReader(Protocol):
    """Reads the sources of a statement (``sources``)."""

    @property
    def tables(self) -> CurrentTables:
        """The tables that the statement reads."""

    @property
    def refusals(self) -> Refusals:
        """Collects refusals."""

    def query(self, query: exp.Query, scope: Scope) -> Relation | PrivateInside:
        """Return the rows of a subquery, or the private query inside it."""

    def read_from(
        self, tree: exp.Select, clauses: Clauses, scope: Scope
    ) -> tuple[Relation | PrivateInside, Conditions]:
        """Return the rows that a FROM clause reads, and what is left of WHERE."""


def restrict_rows(
    reader: SourceReader, relation: Relation, clauses: Clauses, scope: Scope
) -> tuple[Relation | PrivateInside, Conditions]:
    """Return the rows that subqueries in WHERE keep, and what is left of WHERE.

    Args:
        reader: reads the subqueries.
        relation: the rows of the FROM clause.
        clauses: the clauses around the subqueries.
        scope: names that the subqueries can read.

    """
    predicates, where = take_predicates(clauses.where)
    if relation.is_table and predicates:
        relation = replace(relation, unique=reader.tables.unique(relation.schema))
    for predicate in predicates:
        found = _Restriction(reader, clauses, scope, relation).restricted(predicate)
        if isinstance(found, PrivateInside):
            return found, ()
        changed = len(found.schema.columns) > len(relation.schema.columns)
        relation = without_computed(found, relation.schema) if changed else found
    return relation, where


@dataclass(slots=True)
class _Restriction:
    """Reads a predicate over the rows of a FROM clause.

    Attributes:
        reader: reads subqueries.
        clauses: the clauses around the predicate.
        scope: names that subqueries can read.
        outer: the rows, with columns that stand for expressions so far.

    """

    reader: SourceReader
    clauses: Clauses
    scope: Scope
    outer: Relation

    def restricted(self, predicate: Predicate) -> Relation | PrivateInside:
        """Return the rows that the predicate keeps."""
        reader, query = self.reader, predicate.query
        has_groups = not isinstance(query, exp.Select) or any(
            query.args.get(name) for name in ("group", "having", "distinct", "qualify", "limit", "offset")
        )
        if has_groups and not predicate.compared:
            reader.refusals.refuse(
                "source", query, "EXISTS takes a subquery of rows, without groups or LIMIT.", "Leave them out."
            )
        computed = {id(node): self._of_outer(node) for node in predicate.compared if is_computable(node)}
        predicate = replace(predicate, computed=computed) if computed else predicate
        has_groups |= any(is_aggregate_call(node) for item in query.expressions for node in item.walk())
        if isinstance(query, exp.Select) and not has_groups:
            return self._correlated(predicate, query)
        inner = reader.query(query, self.scope.deeper())
        if isinstance(inner, PrivateInside):
            return inner
        compared = compared_columns(predicate, inner.shown, self._named, reader.refusals)
        return restricted(self.outer, inner, compared, predicate, reader.tables.environment, reader.refusals)

    @property
    def _named(self) -> TableSchema:
        return named_by(self.outer.schema, qualifier_of(self.clauses.source))

    def _of_outer(self, node: exp.Expr) -> Column:
        """Return the column that stands for an expression of the row outside."""
        environment, refusals = self.reader.tables.environment, self.reader.refusals
        self.outer, column = with_computed(node, self.clauses.sources, self._named, self.outer, environment, refusals)
        return column

    def _correlated(self, predicate: Predicate, query: exp.Select) -> Relation | PrivateInside:
        """Return the rows that a predicate keeps whose WHERE may compare its rows with the row outside."""
        reader, environment, refusals = self.reader, self.reader.tables.environment, self.reader.refusals
        clauses = read_clauses(query, refusals, inside=True)
        inner, where = reader.read_from(query, clauses, self.scope.deeper())
        if isinstance(inner, PrivateInside):
            return inner
        # only now does the subquery's own FROM say which names are its own
        schema = named_by(inner.schema, qualifier_of(clauses.source))
        rows = [inner]

        def compute(node: exp.Expr, is_inner: bool) -> Column | None:
            if not is_computable(node):
                return None
            if not is_inner:
                return self._of_outer(node)
            rows[0], column = with_computed(node, clauses.sources, schema, rows[0], environment, refusals)
            return column

        own, compared = split_conditions(where, schema, self._named, compute, refusals)
        select = clauses.select if predicate.compared else ()
        resolved = resolve_names(replace(clauses, where=own, select=select, order=()), schema, environment, refusals)
        inner = filtered(rows[0], resolved.filters, environment, refusals)
        if predicate.compared:
            known = []
            for item in resolved.items:
                column = schema.column(item.expression.name) if isinstance(item.expression, exp.Column) else None
                if is_computable(item.expression):
                    inner, column = with_column(item.expression, schema, inner, environment, refusals)
                if not column:
                    refusals.refuse(
                        "row_syntax",
                        predicate.node,
                        f"IN takes what is computed of the subquery's rows, and {written(item.expression)} names no "
                        "column of them.",
                        "Compare with a list of values, as in x IN (1, 2).",
                    )
                known.append(column)
            compared = (*compared_columns(predicate, known, self._named, refusals), *compared)
        return restricted(self.outer, inner, compared, predicate, environment, refusals)
