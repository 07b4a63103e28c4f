"""What a FROM clause reads, as one relation: tables, links, joins, subqueries, WITH and views, whatever their depth.

Every part is made by a rule that keeps the invariant of ``relation``; this module only says which rule is meant, by
what stands in the text.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from sqlglot import exp

from dpsql.errors import SchemaError, UnsupportedQueryError
from dpsql.model.environment import Environment, JoinedName, TableSchema, folded
from dpsql.model.refusals import Refusals
from dpsql.operations.dialect import to_sql
from dpsql.sql.clauses import (
    Clauses,
    SelectClauses,
    SubqueryClauses,
    is_aggregate_call,
    is_plain_table,
    named_queries,
    qualifier_of,
    read_subquery,
)  # fmt: skip
from dpsql.sql.names import resolve_names
from dpsql.sql.source.as_of import MOST_DEPTH, EarlierTables
from dpsql.sql.source.join_rows import joined
from dpsql.sql.source.joins import MOST_TABLES, Joins, Part, read_joins
from dpsql.sql.source.predicates import (
    Predicate,
    compared_columns,
    restricted,
    split_conditions,
    take_predicates,
)  # fmt: skip
from dpsql.sql.source.projections import called, filtered, projected, stacked
from dpsql.sql.source.relation import CurrentTables, Owner, Relation, query_of_view
from dpsql.sql.source.row_cut import early_filters
from dpsql.sql.source.row_growth import growth
from dpsql.sql.source.unit_groups import distinct, grouped

Conditions = Sequence[exp.Expr]
"""What has to hold all together."""

_MOST_SOURCES = 32


@dataclass(frozen=True, slots=True)
class _Scope:
    """The names that WITH gives to queries, each with the scope that it is read in; and how deep it all is."""

    queries: Mapping[str, tuple[exp.CTE, _Scope]]
    depth: int

    def deeper(self) -> _Scope:
        """The scope of a query inside this one."""
        return _Scope(self.queries, self.depth + 1)

    def naming(self, ctes: Iterable[exp.CTE]) -> _Scope:
        """The scope of a query that names others, each of which sees those before it."""
        queries = dict(self.queries)
        for cte in ctes:
            queries[folded(cte.alias)] = (cte, _Scope(dict(queries), self.depth))
        return _Scope(queries, self.depth)


@dataclass(frozen=True, slots=True)
class Sources:
    """What a statement reads.

    Attributes:
        clauses: what is left of its own.
        relation: the rows.
        owner: whose they are.
        environment: that of the moment which ``as_of`` asks for.

    """

    clauses: Clauses
    relation: Relation
    owner: Owner
    environment: Environment


@dataclass(frozen=True, slots=True)
class PrivateInside:
    """A subquery that groups rows of several units, which is a private query by itself.

    Attributes:
        node: its SELECT.
        queries: the queries that WITH names where it stands.

    """

    node: exp.Select
    queries: Mapping[str, exp.CTE]


def read_sources(
    statement: exp.Expr, clauses: Clauses, environment: Environment, refusals: Refusals
) -> Sources | PrivateInside:
    """What a statement reads; or the private query inside it, of whose answer all the rest is then computed.

    Raises:
        SchemaError: a table or a column is not there for this reader, or nothing of it is protected.
        UnsupportedQueryError: a source has no private form; nothing more can be said then.

    """
    if clauses.options.as_of is None:
        tables = CurrentTables(environment, refusals.text)
    else:
        tables = EarlierTables(clauses.options, statement, environment, refusals.text)
    relation, where = _SourceReader(tables, refusals).read_from(clauses, _Scope({}, 0))
    if isinstance(relation, PrivateInside):
        return relation
    refusals.found.extend(tables.unmet.found)
    if relation.owner is None:
        raise tables.not_protected(clauses.source)
    return Sources(replace(clauses, where=tuple(where)), relation, relation.owner, tables.environment)


class _SourceReader:
    """Reads the sources of one statement; where one of them is a private query, this query is what is read of all."""

    def __init__(self, tables: CurrentTables, refusals: Refusals) -> None:
        self._tables = tables
        self._environment = tables.environment
        self._refusals = refusals
        self._read = 0

    def read_from(self, clauses: SelectClauses, scope: _Scope) -> tuple[Relation | PrivateInside, Conditions]:
        """The rows that a FROM clause reads, without those that subqueries in WHERE drop; and what is left of WHERE."""
        if clauses.ctes:
            scope = scope.naming(clauses.ctes)
        parts = self._parts(clauses, scope)
        if isinstance(parts, PrivateInside):
            return parts, ()
        relation, where = (parts[0].relation, clauses.where) if len(parts) == 1 else self._joined(parts, clauses.where)
        if any(condition.find(exp.Query) for condition in where):
            predicates, where = take_predicates(where)
            for predicate in predicates:
                found = self._restricted(relation, predicate, qualifier_of(clauses.source), scope)
                if isinstance(found, PrivateInside):
                    return found, ()
                relation = found
        return relation, where

    def _joined(self, parts: Sequence[Part], where: Conditions) -> tuple[Relation, Conditions]:
        where, joins = read_joins(where, parts, self._refusals)
        joins = self._with_own_rows(joins, dict(enumerate(step.own for step in joins.steps)))
        where, early = early_filters(where, joins, growth(joins).places)
        return joined(self._with_own_rows(joins, early), self._environment, self._refusals), where

    def _with_own_rows(self, joins: Joins, conditions: Mapping[int, Conditions]) -> Joins:
        """The joins with those rows of their sides that pass conditions of these sides alone."""
        parts = list(joins.parts)
        for place, own in conditions.items():
            if own:
                part = parts[place]
                # they are resolved as those of a query over this part alone
                clauses = SubqueryClauses(((part.node, None),), where=tuple(own))
                schema = _named(part.relation.schema, part.qualifier)
                filters = resolve_names(clauses, schema, self._environment, self._refusals).filters
                rows = filtered(part.relation, filters, self._environment, self._refusals)
                parts[place] = replace(part, relation=rows)
        return replace(joins, parts=tuple(parts))

    def _parts(self, clauses: SelectClauses, scope: _Scope) -> list[Part] | PrivateInside:
        parts: list[Part] = []
        alone = len(clauses.sources) == 1 and not scope.depth
        for node, join in clauses.sources:
            if len(parts) == MOST_TABLES:
                self._refusals.refuse(
                    "source", node, f"a query joins at most {MOST_TABLES} tables.",
                    "Let the curator put public ones together.",
                )  # fmt: skip
            qualifier = qualifier_of(node)
            if qualifier and qualifier in {part.qualifier for part in parts}:
                self._refusals.refuse("source", node, "two tables have one name.", "Give each an alias of its own.")
            relation = self._relation(node, scope, alone=alone)
            if isinstance(relation, PrivateInside):
                return relation
            names = node.args["alias"].args.get("columns") if node.args.get("alias") else None
            if names or relation.schema.names:
                relation = called(relation, qualifier, names or (), self._refusals.text)
            parts.append(Part(node, qualifier, relation, join))
        return parts

    def _relation(self, node: exp.Expr, scope: _Scope, *, alone: bool) -> Relation | PrivateInside:
        if isinstance(node, exp.Subquery) and not node.args.get("joins") and isinstance(node.this, exp.Query):
            return self._query(node.this, scope.deeper())
        if not is_plain_table(node) or not isinstance(node, exp.Table):
            self._refusals.refuse(
                "source", node, "a source is a table, a view, or a subquery.", "Write FROM t JOIN u ON t.x = u.y.",
            )  # fmt: skip
        self._read += 1
        if self._read > _MOST_SOURCES:
            self._refusals.refuse(
                "source", node, f"a query reads at most {_MOST_SOURCES} sources, each as often as it is named.",
                "Let the curator put public ones together.",
            )  # fmt: skip
        named = scope.queries.get(folded(node.name)) if len(node.parts) == 1 else None
        if named:
            cte, outer = named
            inner = self._query(cte.this, _Scope(outer.queries, scope.depth + 1))
            if isinstance(inner, PrivateInside):
                return inner
            return called(inner, "", cte.args["alias"].args.get("columns") or (), self._refusals.text)
        tables, policy = self._tables, self._environment.policy
        schema = tables.schema([part.name for part in node.parts])
        if not schema:
            raise tables.not_protected(node)
        rules = policy.rules(schema.canonical)
        if rules:
            return tables.protected(schema, rules, alone=alone)
        if not policy.is_public(schema.canonical):
            return self._view(schema, node, scope)
        if alone:
            raise tables.not_protected(node)
        return tables.public(schema, node)

    def _view(self, schema: TableSchema, node: exp.Table, scope: _Scope) -> Relation | PrivateInside:
        """A view as the subquery that it is; refusals speak of the place where it is named."""
        view = query_of_view(schema, self._environment)
        if not view:
            raise self._tables.not_protected(node)
        query, names = view
        for part in query.walk():
            part.meta.clear()
            if next(part.iter_expressions(), None) is None:
                part.update_positions(node.this)
        earlier = list(self._refusals.found)
        try:
            relation = self._query(query, _Scope({}, scope.depth + 1))
        except UnsupportedQueryError:
            # nor is the view's own text, which may quote values
            codes = dict.fromkeys(refusal.code for refusal in self._refusals.found if refusal not in earlier)
            self._refusals.found = earlier
            for code in codes:
                self._refusals.add(
                    code, node, "this view reads its tables in a way that has no private form.",
                    "The curator sees why by asking its text as a subquery.",
                )  # fmt: skip
            self._refusals.raise_if_any()
            raise
        except SchemaError:
            # names of tables that nobody declared are not told
            raise self._tables.not_protected(node) from None
        if isinstance(relation, PrivateInside):
            return relation
        return called(relation, qualifier_of(node), names, self._refusals.text)

    def _query(self, query: exp.Query, scope: _Scope) -> Relation | PrivateInside:
        if scope.depth > MOST_DEPTH:
            self._refusals.refuse(
                "source", query, f"subqueries and views are nested at most {MOST_DEPTH} deep.",
                "Let the curator put some of them into a table.",
            )  # fmt: skip
        if isinstance(query, exp.Subquery) and not query.args.get("joins") and isinstance(query.this, exp.Query):
            return self._query(query.this, scope)
        if isinstance(query, exp.Select):
            return self._select(query, scope)
        if not isinstance(query, exp.Union) or any(
            value for name, value in query.args.items() if name not in ("this", "expression", "distinct", "with_")
        ):
            self._refusals.refuse(
                "source", query, "this kind of subquery has no private form.",
                "Use SELECT, and UNION ALL between them.",
            )  # fmt: skip
        before = len(self._refusals.found)
        inner = scope.naming(named_queries(query, self._refusals)).deeper()
        self._refusals.raise_if_any(before)
        sides = []
        for side in (query.left, query.right):
            rows = self._query(side, inner)
            if isinstance(rows, PrivateInside):
                return rows
            sides.append(rows)
        relation = stacked(sides, query, self._refusals)
        return distinct(relation, query, self._refusals) if query.args.get("distinct") else relation

    def _select(self, tree: exp.Select, scope: _Scope) -> Relation | PrivateInside:
        private = PrivateInside(tree, {name: cte for name, (cte, _) in scope.queries.items()})
        if tree.args.get("hint") is not None:
            return private
        before = len(self._refusals.found)
        clauses = read_subquery(tree, self._refusals)
        relation, where = self.read_from(clauses, scope)
        if isinstance(relation, PrivateInside):
            return relation
        owner = relation.owner
        if owner and clauses.has_sets:
            return private
        resolved = resolve_names(
            replace(clauses, where=tuple(where)), relation.schema, self._environment, self._refusals
        )
        self._refusals.raise_if_any(before)
        has_groups = clauses.group or resolved.having
        if has_groups or any(is_aggregate_call(node) for root in resolved.outputs for node in root.walk()):
            if owner and not owner.has_single_units(map(to_sql, resolved.keys)):
                return private
            relation = grouped(resolved, relation, self._environment, self._refusals)
        else:
            relation = projected(resolved.items, resolved.filters, relation, self._environment, self._refusals)
        return distinct(relation, tree, self._refusals) if clauses.distinct else relation

    def _restricted(
        self, outer: Relation, predicate: Predicate, qualifier: str, scope: _Scope
    ) -> Relation | PrivateInside:
        query, named = predicate.query, _named(outer.schema, qualifier)
        has_groups = not isinstance(query, exp.Select) or any(
            query.args.get(name) for name in ("group", "having", "distinct", "qualify", "limit", "offset")
        )
        if has_groups and not predicate.compared:
            self._refusals.refuse(
                "source", query, "EXISTS takes a subquery of rows, without groups or LIMIT.", "Leave them out.",
            )  # fmt: skip
        has_groups |= any(is_aggregate_call(node) for item in query.expressions for node in item.walk())
        if isinstance(query, exp.Select) and not has_groups:
            return self._correlated(outer, named, predicate, query, scope)
        inner = self._query(query, scope.deeper())
        if isinstance(inner, PrivateInside):
            return inner
        compared = compared_columns(predicate, inner.shown, named, self._refusals)
        return restricted(outer, inner, compared, predicate, self._environment, self._refusals)

    def _correlated(
        self, outer: Relation, named: TableSchema, predicate: Predicate, query: exp.Select, scope: _Scope
    ) -> Relation | PrivateInside:
        """A predicate over rows, whose WHERE may compare them with the row outside."""
        clauses = read_subquery(query, self._refusals)
        inner, where = self.read_from(clauses, scope.deeper())
        if isinstance(inner, PrivateInside):
            return inner
        # only now does the subquery's own FROM say which names are its own
        schema = _named(inner.schema, qualifier_of(clauses.source))
        own, compared = split_conditions(where, schema, named, self._refusals)
        select = clauses.select if predicate.compared else ()
        clauses = replace(clauses, where=own, select=select, order=())
        resolved = resolve_names(clauses, schema, self._environment, self._refusals)
        inner = filtered(inner, resolved.filters, self._environment, self._refusals)
        if predicate.compared:
            names = [item.expression.name for item in resolved.items if isinstance(item.expression, exp.Column)]
            known = [column for column in map(schema.column, names) if column]
            if len(known) != len(resolved.items):
                self._refusals.refuse(
                    "row_syntax", predicate.node, "IN takes columns of the subquery here.",
                    "Compute them in a subquery of its FROM.",
                )  # fmt: skip
            compared = (*compared_columns(predicate, known, named, self._refusals), *compared)
        return restricted(outer, inner, compared, predicate, self._environment, self._refusals)


def _named(schema: TableSchema, qualifier: str) -> TableSchema:
    """The columns of a source, each under the name of its table."""
    names = (JoinedName(qualifier, one.declared, one.output, one.hidden) for one in schema.visible)
    return replace(schema, names=schema.names or tuple(names))
