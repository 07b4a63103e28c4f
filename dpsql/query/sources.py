"""What a FROM clause reads, as one relation: tables, links, joins, subqueries, WITH and views, whatever their depth.

Every part is made by a rule that keeps the invariant of ``relation``; this module only says which rule is meant.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from sqlglot import exp

from dpsql.errors import DpsqlError, SchemaError, UnsupportedQueryError
from dpsql.query.after import PrivateInside
from dpsql.query.aggregate_calls import is_aggregate_call
from dpsql.query.clauses import (
    Clauses,
    QueryOptions,
    is_plain_table,
    named_queries,
    qualifier_of,
    read_clauses,
)  # fmt: skip
from dpsql.query.dialect import parse_statement, quote, span_of
from dpsql.query.environment import Environment, JoinedName, TableSchema, folded
from dpsql.query.joined_rows import joined
from dpsql.query.joins import MOST_TABLES, Part, read_joins
from dpsql.query.levels import read_version
from dpsql.query.names import resolve_names
from dpsql.query.predicates import (
    Predicate,
    compared_columns,
    restricted,
    split_conditions,
    take_predicates,
)  # fmt: skip
from dpsql.query.projections import called, filtered, projected, stacked
from dpsql.query.refusals import Refusals
from dpsql.query.relation import Owner, Relation
from dpsql.query.unit_groups import are_of_one_unit, distinct, grouped
from dpsql.query.written_sets import has_sets

_MOST_SOURCES = 32
_MOST_DEPTH = 8


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


class SourceReader:
    """Reads the sources of one statement."""

    def __init__(
        self, environment: Environment, options: QueryOptions, hint: exp.Expr | None, refusals: Refusals
    ) -> None:
        self._environment = environment
        self._options = options
        self._hint = hint
        self._refusals = refusals
        self._read = 0

    def read(self, clauses: Clauses) -> tuple[Clauses, Relation, Owner]:
        """What the statement reads, and whose it is; the clauses without what of WHERE became part of it.

        Raises:
            SchemaError: a table or a column is not there for this reader, or nothing of it is protected.
            UnsupportedQueryError: a source has no private form; nothing more can be said then.

        """
        clauses, relation = self._from(clauses, _Scope({}, 0))
        if relation.owner is None:
            raise self._not_protected(clauses.source)
        return clauses, relation, relation.owner

    def _from(self, clauses: Clauses, scope: _Scope) -> tuple[Clauses, Relation]:
        scope = scope.naming(clauses.ctes)
        parts = self._parts(clauses, scope)
        if len(parts) == 1:
            relation = parts[0].relation
        else:
            clauses, joins = read_joins(clauses, parts, self._refusals.text, self._refusals)
            own = tuple(
                replace(part, relation=self._own_rows(part, step.own))
                for part, step in zip(joins.parts, joins.steps, strict=True)
            )
            relation = joined(replace(joins, parts=own), self._environment, self._refusals)
        predicates, where = take_predicates(clauses.where)
        for predicate in predicates:
            relation = self._restricted(relation, predicate, qualifier_of(clauses.source), scope)
        return replace(clauses, where=where), relation

    def _parts(self, clauses: Clauses, scope: _Scope) -> list[Part]:
        parts: list[Part] = []
        for node, join in clauses.sources:
            if len(parts) == MOST_TABLES:
                self._refusals.refuse(
                    "source", node, f"a query joins at most {MOST_TABLES} tables.",
                    "Let the curator put public ones together.",
                )  # fmt: skip
            qualifier = qualifier_of(node)
            if qualifier and qualifier in {part.qualifier for part in parts}:
                self._refusals.refuse("source", node, "two tables have one name.", "Give each an alias of its own.")
            relation = self._relation(node, scope, alone=len(clauses.sources) == 1)
            names = node.args["alias"].args.get("columns") if node.args.get("alias") else None
            parts.append(Part(node, qualifier, called(relation, qualifier, names or (), self._refusals.text), join))
        return parts

    def _own_rows(self, part: Part, conditions: tuple[exp.Expr, ...]) -> Relation:
        if not conditions:
            return part.relation
        schema = part.relation.schema
        named = replace(schema, names=_qualified(schema, part.qualifier))
        # the conditions are resolved as those of a query over this part alone
        tree = exp.select("*").from_(part.node.copy()).where(*conditions)
        clauses = read_clauses(tree, {}, self._refusals, inside=True)
        resolved = resolve_names(clauses, named, self._environment, self._refusals, inside=True)
        return filtered(part.relation, resolved.filters, self._environment, self._refusals)

    def _relation(self, node: exp.Expr, scope: _Scope, *, alone: bool = False) -> Relation:
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
        if named is not None:
            cte, outer = named
            inner = self._query(cte.this, _Scope(outer.queries, scope.depth + 1))
            names = cte.args["alias"].args.get("columns") or ()
            return called(inner, "", names, self._refusals.text)
        return self._table(node, scope, alone=alone)

    def _table(self, node: exp.Table, scope: _Scope, *, alone: bool) -> Relation:
        environment, policy = self._environment, self._environment.policy
        schema = environment.schemas.resolve([part.name for part in node.parts])
        rules = None if schema is None else policy.rules(schema.canonical)
        if schema is not None and rules is not None:
            return self._protected(schema, rules.privacy_unit_column)
        if schema is None:
            raise self._not_protected(node)
        if not policy.is_public(schema.canonical):
            view = environment.schemas.view_text(schema)
            if view is None:
                raise self._not_protected(node)
            return self._view(view, node, scope)
        if alone and not scope.depth:
            raise self._not_protected(node)
        if not environment.schemas.is_base_table(schema):
            raise SchemaError(
                f"the public table {schema.canonical!r} is a view now.", hint="A view may reach a protected table.",
                span=span_of(node, self._refusals.text),
            )  # fmt: skip
        version = self._public_version(schema)
        if version != policy.current_version(schema.canonical):
            schema = replace(schema, relation="")
        return Relation(schema, None, _identity(schema, version), ((schema.canonical, version),), is_table=True)

    def _protected(self, schema: TableSchema, unit_name: str) -> Relation:
        rules = self._environment.policy.rules(schema.canonical)
        unit = schema.column(unit_name)
        if rules is None or unit is None:
            raise SchemaError(
                f"the protected table has lost its privacy unit column {unit_name!r}.",
                hint="The curator repeats CALL dp_protect(…) with the column's new name.",
            )
        version = read_version(self._options, rules, schema, self._environment, self._hint, self._refusals)
        if version != rules.version:
            schema = replace(schema, relation="")
        steps = "".join(
            f" -> {_identity_text(step.parent, step.version)} ({', '.join(map(quote, step.columns))}) = "
            f"({', '.join(map(quote, step.parent_columns))})"
            for step in rules.links
        )
        identity = f"({_identity(schema, version)}{steps})" if steps else _identity(schema, version)
        reads = ((schema.canonical, version), *((step.parent, step.version) for step in rules.links))
        owner = Owner(replace(rules, version=version), unit.name, frozenset({unit.name}), frozenset(), schema.paths)
        return Relation(schema, owner, identity, reads, is_table=True)

    def _public_version(self, schema: TableSchema) -> str:
        """The current version; with ``as_of`` a date, the one of that date."""
        policy, as_of = self._environment.policy, self._options.as_of
        current = policy.current_version(schema.canonical)
        if as_of is None or not _is_date(as_of):
            return current
        return policy.version_at(schema.canonical, as_of) or current

    def _view(self, text: str, node: exp.Table, scope: _Scope) -> Relation:
        """A view as the subquery that it is; refusals speak of the place where it is named."""
        try:
            create = parse_statement(text)
        except DpsqlError:
            raise self._not_protected(node) from None
        query = create.args.get("expression")
        if not isinstance(create, exp.Create) or not isinstance(query, exp.Query):
            raise self._not_protected(node)
        for part in query.walk():
            part.meta.clear()
            if next(part.iter_expressions(), None) is None:
                part.update_positions(node.this)
        names = create.this.expressions if isinstance(create.this, exp.Schema) else ()
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
            raise self._not_protected(node) from None
        return called(relation, qualifier_of(node), names, self._refusals.text)

    def _query(self, query: exp.Query, scope: _Scope) -> Relation:
        if scope.depth > _MOST_DEPTH:
            self._refusals.refuse(
                "source", query, f"subqueries and views are nested at most {_MOST_DEPTH} deep.",
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
        return self._union(query, scope)

    def _union(self, query: exp.Union, scope: _Scope) -> Relation:
        before = len(self._refusals.found)
        inner = scope.naming(named_queries(query, self._refusals)).deeper()
        self._refusals.raise_if_any(before)
        parts = [self._query(side, inner) for side in (query.left, query.right)]
        relation = stacked(parts, query, self._refusals)
        return distinct(relation, query, self._refusals) if query.args.get("distinct") else relation

    def _select(self, tree: exp.Select, scope: _Scope) -> Relation:
        if tree.args.get("hint") is not None:
            raise self._private(tree, scope)
        before = len(self._refusals.found)
        clauses = read_clauses(tree, {}, self._refusals, inside=True)
        self._refusals.raise_if_any(before)
        clauses, relation = self._from(clauses, scope)
        if relation.owner is not None and clauses.group is not None and has_sets(clauses.group):
            raise self._private(tree, scope)
        resolved = resolve_names(clauses, relation.schema, self._environment, self._refusals, inside=True)
        self._refusals.raise_if_any(before)
        has_groups = clauses.group is not None or any(
            is_aggregate_call(node) for root in resolved.outputs for node in root.walk()
        )
        if has_groups or resolved.having is not None:
            if not are_of_one_unit(resolved.keys, relation.owner):
                raise self._private(tree, scope)
            relation = grouped(resolved, relation, self._environment, self._refusals)
        else:
            relation = projected(resolved.items, resolved.filters, relation, self._environment, self._refusals)
        return distinct(relation, tree, self._refusals) if clauses.distinct else relation

    def _private(self, tree: exp.Select, scope: _Scope) -> PrivateInside:
        return PrivateInside(tree, {name: cte for name, (cte, _) in scope.queries.items()})

    def _restricted(self, outer: Relation, predicate: Predicate, qualifier: str, scope: _Scope) -> Relation:
        query = predicate.query
        named = replace(outer.schema, names=outer.schema.names or _qualified(outer.schema, qualifier))
        plain = isinstance(query, exp.Select) and not any(
            query.args.get(name) for name in ("group", "having", "distinct", "qualify", "limit", "offset")
        )
        if not plain and not predicate.compared:
            self._refusals.refuse(
                "source", query, "EXISTS takes a subquery of rows, without groups or LIMIT.", "Leave them out.",
            )  # fmt: skip
        if not plain or any(is_aggregate_call(node) for item in query.expressions for node in item.walk()):
            inner = self._query(query, scope.deeper())
            columns = [inner.schema.column(one.output) for one in inner.schema.visible]
            compared = compared_columns(
                predicate, [column for column in columns if column is not None], named, self._refusals
            )
            return restricted(outer, inner, compared, predicate, self._environment, self._refusals)
        return self._correlated(outer, named, predicate, scope)

    def _correlated(self, outer: Relation, named: TableSchema, predicate: Predicate, scope: _Scope) -> Relation:
        """A predicate over rows, whose WHERE may compare them with the row outside."""
        before = len(self._refusals.found)
        clauses = read_clauses(predicate.query, {}, self._refusals, inside=True)  # type: ignore[arg-type]
        self._refusals.raise_if_any(before)
        clauses, inner = self._from(clauses, scope.deeper())
        # only now does the subquery's own FROM say which names are its own
        own_names = inner.schema.names or _qualified(inner.schema, qualifier_of(clauses.source))
        own, compared = split_conditions(clauses.where, replace(inner.schema, names=own_names), named, self._refusals)
        select = clauses.select if predicate.compared else ()
        clauses = replace(clauses, where=own, select=select, order=())
        schema = replace(inner.schema, names=own_names)
        resolved = resolve_names(clauses, schema, self._environment, self._refusals, inside=True)
        inner = filtered(inner, resolved.filters, self._environment, self._refusals)
        if predicate.compared:
            shown = [item.expression for item in resolved.items]
            columns = [schema.column(node.name) if isinstance(node, exp.Column) else None for node in shown]
            if any(column is None for column in columns):
                self._refusals.refuse(
                    "row_syntax", predicate.node, "IN takes columns of the subquery here.",
                    "Compute them in a subquery of its FROM.",
                )  # fmt: skip
            found = [column for column in columns if column is not None]
            compared = (*compared_columns(predicate, found, named, self._refusals), *compared)
        return restricted(outer, inner, compared, predicate, self._environment, self._refusals)

    def _not_protected(self, node: exp.Expr) -> SchemaError:
        if not isinstance(node, exp.Table):
            return SchemaError(
                "nothing of what is read here is protected.", span=span_of(node, self._refusals.text),
                hint="Public tables need no dpsql.",
            )  # fmt: skip
        parts = [part.name for part in node.parts]
        schema = self._environment.schemas.resolve(parts)
        public = schema is not None and self._environment.policy.is_public(schema.canonical)
        return SchemaError(
            f"table {'.'.join(parts)!r} is "
            + ("public, not protected." if public else "not protected, so it cannot be queried."),
            hint="" if public else f"The curator declares it with CALL dp_protect('{'.'.join(parts)}', …).",
            span=span_of(node, self._refusals.text),
        )


def _qualified(schema: TableSchema, qualifier: str) -> tuple[JoinedName, ...]:
    return tuple(JoinedName(qualifier, one.declared, one.output, one.hidden) for one in schema.visible)


def _identity(schema: TableSchema, version: str) -> str:
    return _identity_text(schema.canonical, version)


def _identity_text(canonical: str, version: str) -> str:
    return f"{quote(canonical)}@{quote(version)}"


def _is_date(text: str) -> bool:
    try:
        dt.datetime.fromisoformat(text)
    except ValueError:
        return False
    return True
