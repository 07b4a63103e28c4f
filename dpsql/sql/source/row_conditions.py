"""Subqueries in WHERE, as a text says them: which rows ``[NOT] EXISTS`` and ``[NOT] IN`` keep (``predicates``)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from sqlglot import exp

from dpsql.model.environment import TableSchema
from dpsql.sql.clauses import Clauses, is_aggregate_call, qualifier_of, read_clauses
from dpsql.sql.names import resolve_names
from dpsql.sql.source.predicates import Predicate, compared_columns, restricted, split_conditions, take_predicates
from dpsql.sql.source.projections import filtered
from dpsql.sql.source.relation import Relation
from dpsql.sql.source.scope import Scope, named_by
from dpsql.sql.source.sides import Conditions
from dpsql.sql.source.sources import PrivateInside, SourceReader


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
    restriction = _Restriction(reader, qualifier_of(clauses.source), scope)
    for predicate in predicates:
        found = restriction.restricted(relation, predicate)
        if isinstance(found, PrivateInside):
            return found, ()
        relation = found
    return relation, where


@dataclass(frozen=True, slots=True)
class _Restriction:
    """Reads predicates over the rows of one FROM clause, whose first source has this qualifier."""

    reader: SourceReader
    qualifier: str
    scope: Scope

    def restricted(self, outer: Relation, predicate: Predicate) -> Relation | PrivateInside:
        """Return the rows that one predicate keeps."""
        reader, query, named = self.reader, predicate.query, named_by(outer.schema, self.qualifier)
        has_groups = not isinstance(query, exp.Select) or any(
            query.args.get(name) for name in ("group", "having", "distinct", "qualify", "limit", "offset")
        )
        if has_groups and not predicate.compared:
            reader.refusals.refuse(
                "source", query, "EXISTS takes a subquery of rows, without groups or LIMIT.", "Leave them out."
            )
        has_groups |= any(is_aggregate_call(node) for item in query.expressions for node in item.walk())
        if isinstance(query, exp.Select) and not has_groups:
            return self._correlated(outer, named, predicate, query)
        inner = reader.query(query, self.scope.deeper())
        if isinstance(inner, PrivateInside):
            return inner
        compared = compared_columns(predicate, inner.shown, named, reader.refusals)
        return restricted(outer, inner, compared, predicate, reader.tables.environment, reader.refusals)

    def _correlated(
        self, outer: Relation, named: TableSchema, predicate: Predicate, query: exp.Select
    ) -> Relation | PrivateInside:
        """Return the rows that a predicate keeps whose WHERE may compare its rows with the row outside."""
        reader, environment = self.reader, self.reader.tables.environment
        clauses = read_clauses(query, reader.refusals, inside=True)
        inner, where = reader.read_from(query, clauses, self.scope.deeper())
        if isinstance(inner, PrivateInside):
            return inner
        # only now does the subquery's own FROM say which names are its own
        schema = named_by(inner.schema, qualifier_of(clauses.source))
        own, compared = split_conditions(where, schema, named, reader.refusals)
        select = clauses.select if predicate.compared else ()
        clauses = replace(clauses, where=own, select=select, order=())
        resolved = resolve_names(clauses, schema, environment, reader.refusals)
        inner = filtered(inner, resolved.filters, environment, reader.refusals)
        if predicate.compared:
            names = [item.expression.name for item in resolved.items if isinstance(item.expression, exp.Column)]
            known = [column for column in map(schema.column, names) if column]
            if len(known) != len(resolved.items):
                reader.refusals.refuse(
                    "row_syntax",
                    predicate.node,
                    "IN takes columns of the subquery here.",
                    "Compute them in a subquery of its FROM.",
                )
            compared = (*compared_columns(predicate, known, named, reader.refusals), *compared)
        return restricted(outer, inner, compared, predicate, environment, reader.refusals)
