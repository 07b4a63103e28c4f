"""What a FROM clause reads, as one relation: tables, links, joins, subqueries, WITH and views, whatever their depth.

Every part is made by a rule that keeps the invariant of ``relation``; this module only says which rule is meant.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from sqlglot import exp

from dpsql.errors import DpsqlError, SchemaError, UnsupportedQueryError
from dpsql.query.aggregate_calls import is_aggregate_call
from dpsql.query.as_of import MOST_DEPTH, read_as_of
from dpsql.query.clauses import Clauses, is_plain_table, named_queries, qualifier_of, read_clauses
from dpsql.query.dialect import parse_statement, quote, span_of
from dpsql.query.early_filters import early_filters
from dpsql.query.environment import Environment, JoinedName, TableRules, TableSchema, folded
from dpsql.query.inner_query import PrivateInside
from dpsql.query.joined_rows import joined
from dpsql.query.joins import MOST_TABLES, Joins, Part, read_joins
from dpsql.query.names import resolve_names
from dpsql.query.options import QueryOptions
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
from dpsql.query.row_growth import growth
from dpsql.query.unit_groups import are_of_one_unit, distinct, grouped
from dpsql.query.written_sets import has_sets

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


def read_sources(
    statement: exp.Expr, clauses: Clauses, environment: Environment, refusals: Refusals
) -> Sources | PrivateInside:
    """What a statement reads; or the private query inside it, of whose answer all the rest is then computed.

    Raises:
        SchemaError: a table or a column is not there for this reader, or nothing of it is protected.
        UnsupportedQueryError: a source has no private form; nothing more can be said then.

    """
    return _SourceReader(statement, clauses.options, environment, refusals).read(clauses)


class _SourceReader:
    """Reads the sources of one statement."""

    def __init__(
        self, statement: exp.Expr, options: QueryOptions, environment: Environment, refusals: Refusals
    ) -> None:
        self._as_of = None if options.as_of is None else read_as_of(options.as_of, statement, environment)
        moment = None if self._as_of is None else self._as_of.moment
        if moment is not None and moment < environment.now:
            environment = replace(environment, schemas=environment.schemas.lists_at(moment))
        self.environment = environment
        self._refusals = refusals
        self._hint = statement.args.get("hint")
        self._refresh = bool(options.refresh)
        self._read = 0
        self._constraints: dict[str, tuple[tuple[str, ...], ...]] = {}
        self._unmet: dict[tuple[str, str], None] = {}

    def read(self, clauses: Clauses) -> Sources | PrivateInside:
        """What the statement reads."""
        found = self._from(clauses, _Scope({}, 0))
        if isinstance(found, PrivateInside):
            return found
        clauses, relation = found
        for message, cure in self._unmet:
            self._refusals.add("option", self._hint, message, cure)
        if relation.owner is None:
            raise self._not_protected(clauses.source)
        return Sources(clauses, relation, relation.owner, self.environment)

    def _from(self, clauses: Clauses, scope: _Scope) -> tuple[Clauses, Relation] | PrivateInside:
        scope = scope.naming(clauses.ctes)
        parts = self._parts(clauses, scope)
        if isinstance(parts, PrivateInside):
            return parts
        if len(parts) == 1:
            relation = parts[0].relation
        else:
            clauses, joins = read_joins(clauses, parts, self._refusals.text, self._refusals)
            own = tuple(
                replace(part, relation=self._own_rows(part, step.own))
                for part, step in zip(joins.parts, joins.steps, strict=True)
            )
            clauses, joins = self._filtered_early(clauses, replace(joins, parts=own))
            relation = joined(joins, self.environment, self._refusals)
        predicates, where = take_predicates(clauses.where)
        for predicate in predicates:
            found = self._restricted(relation, predicate, qualifier_of(clauses.source), scope)
            if isinstance(found, PrivateInside):
                return found
            relation = found
        return replace(clauses, where=where), relation

    def _filtered_early(self, clauses: Clauses, joins: Joins) -> tuple[Clauses, Joins]:
        """The sides that a join cuts, without the rows that WHERE drops anyway."""
        where, early = early_filters(clauses.where, joins, growth(joins).places)
        parts = tuple(
            replace(part, relation=self._own_rows(part, tuple(early.get(place, ()))))
            for place, part in enumerate(joins.parts)
        )
        return replace(clauses, where=where), replace(joins, parts=parts)

    def _parts(self, clauses: Clauses, scope: _Scope) -> list[Part] | PrivateInside:
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
            if isinstance(relation, PrivateInside):
                return relation
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
        resolved = resolve_names(clauses, named, self.environment, self._refusals, inside=True)
        return filtered(part.relation, resolved.filters, self.environment, self._refusals)

    def _relation(self, node: exp.Expr, scope: _Scope, *, alone: bool = False) -> Relation | PrivateInside:
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
            if isinstance(inner, PrivateInside):
                return inner
            names = cte.args["alias"].args.get("columns") or ()
            return called(inner, "", names, self._refusals.text)
        return self._table(node, scope, alone=alone)

    def _table(self, node: exp.Table, scope: _Scope, *, alone: bool) -> Relation | PrivateInside:
        environment, policy = self.environment, self.environment.policy
        schema = self._schema([part.name for part in node.parts])
        rules = None if schema is None else policy.rules(schema.canonical)
        if schema is not None and rules is not None:
            return self._protected(schema, rules, alone=alone and not scope.depth)
        if schema is None:
            raise self._not_protected(node)
        if not policy.is_public(schema.canonical):
            view = environment.schemas.view_text(schema)
            if view is None:
                raise self._not_protected(node)
            return self._view(view, node, scope)
        if alone and not scope.depth:
            raise self._not_protected(node)
        if schema.relation and not environment.schemas.is_base_table(schema):
            raise SchemaError(
                f"the public table {schema.canonical!r} is a view now.", hint="A view may reach a protected table.",
                span=span_of(node, self._refusals.text),
            )  # fmt: skip
        version = self._version(schema.canonical, is_named=False)
        unique, reads = self._unique(schema, alone=alone and not scope.depth), ((schema.canonical, version),)
        return Relation(schema, None, _identity(*reads[0]), reads, is_table=True, unique=unique)

    def _schema(self, parts: Sequence[str]) -> TableSchema | None:
        """What a name means; without rows where it, or a parent of it, is asked for in an earlier version."""
        schemas, policy = self.environment.schemas, self.environment.policy
        table = None if self._as_of is None else schemas.identify(parts)
        if table is None:
            return schemas.resolve(parts)
        rules = policy.rules(table)
        named = [(table, rules is not None)] if rules is not None or policy.is_public(table) else []
        parents = [] if rules is None else [(step.parent, False) for step in rules.links]
        if all(
            self._version(one, is_named=is_named) == policy.current_version(one) for one, is_named in named + parents
        ):
            return schemas.resolve(parts)
        return schemas.earlier(parts, self._version(table, is_named=rules is not None))

    def _protected(self, schema: TableSchema, rules: TableRules, *, alone: bool) -> Relation:
        unit = schema.column(rules.privacy_unit_column)
        if unit is None:
            raise SchemaError(
                f"the protected table has lost its privacy unit column {rules.privacy_unit_column!r}.",
                hint="The curator repeats CALL dp_protect(…) with the column's new name.",
            )
        unique = self._unique(schema, alone=alone)
        version = self._version(schema.canonical, is_named=True)
        links = tuple(replace(step, version=self._version(step.parent, is_named=False)) for step in rules.links)
        steps = "".join(
            f" -> {_identity(step.parent, step.version)} ({', '.join(map(quote, step.columns))}) = "
            f"({', '.join(map(quote, step.parent_columns))})"
            for step in links
        )
        identity = _identity(schema.canonical, version)
        reads = ((schema.canonical, version), *((step.parent, step.version) for step in links))
        owner = Owner(
            replace(rules, version=version, links=links), unit.name, frozenset({unit.name}), frozenset(), schema.paths
        )
        identity = f"({identity}{steps})" if steps else identity
        return Relation(schema, owner, identity, reads, is_table=True, unique=unique)

    def _unique(self, schema: TableSchema, *, alone: bool) -> frozenset[frozenset[str]]:
        """What constraints keep unique; of a table that is joined with nothing, nobody asks."""
        if alone:
            return frozenset()
        if schema.canonical not in self._constraints:
            self._constraints[schema.canonical] = self.environment.schemas.unique_columns(schema)
        found = []
        for names in self._constraints[schema.canonical]:
            columns = [schema.column(name) for name in names]
            found += [frozenset(column.name for column in columns if column is not None)] if all(columns) else []
        return frozenset(found)

    def _version(self, table: str, *, is_named: bool) -> str:
        """The version in which a table is read: the current one without ``as_of``."""
        current = self.environment.policy.current_version(table)
        if self._as_of is None:
            return current
        version = self._as_of.version(table, self.environment.policy.versions(table), is_named=is_named)
        # said in the end: what is refused inside a view is said of the view
        if version is None:
            self._unmet[
                f"as_of names no version of {table}, and no time at which it had one.",
                f"Leave as_of out for version {current}, or write what dp_releases shows under versions.",
            ] = None
        elif version != current and self._refresh:
            self._unmet["an earlier version cannot be refreshed: its rows are gone.", "Leave refresh or as_of out."] = (
                None
            )
        return version or current

    def _view(self, text: str, node: exp.Table, scope: _Scope) -> Relation | PrivateInside:
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
        return self._union(query, scope)

    def _union(self, query: exp.Union, scope: _Scope) -> Relation | PrivateInside:
        before = len(self._refusals.found)
        inner = scope.naming(named_queries(query, self._refusals)).deeper()
        self._refusals.raise_if_any(before)
        parts = list[Relation]()
        for side in (query.left, query.right):
            part = self._query(side, inner)
            if isinstance(part, PrivateInside):
                return part
            parts.append(part)
        relation = stacked(parts, query, self._refusals)
        return distinct(relation, query, self._refusals) if query.args.get("distinct") else relation

    def _select(self, tree: exp.Select, scope: _Scope) -> Relation | PrivateInside:
        private = PrivateInside(tree, {name: cte for name, (cte, _) in scope.queries.items()})
        if tree.args.get("hint") is not None:
            return private
        before = len(self._refusals.found)
        clauses = read_clauses(tree, {}, self._refusals, inside=True)
        self._refusals.raise_if_any(before)
        found = self._from(clauses, scope)
        if isinstance(found, PrivateInside):
            return found
        clauses, relation = found
        if relation.owner is not None and clauses.group is not None and has_sets(clauses.group):
            return private
        resolved = resolve_names(clauses, relation.schema, self.environment, self._refusals, inside=True)
        self._refusals.raise_if_any(before)
        has_groups = clauses.group is not None or any(
            is_aggregate_call(node) for root in resolved.outputs for node in root.walk()
        )
        if has_groups or resolved.having is not None:
            if not are_of_one_unit(resolved.keys, relation.owner):
                return private
            relation = grouped(resolved, relation, self.environment, self._refusals)
        else:
            relation = projected(resolved.items, resolved.filters, relation, self.environment, self._refusals)
        return distinct(relation, tree, self._refusals) if clauses.distinct else relation

    def _restricted(
        self, outer: Relation, predicate: Predicate, qualifier: str, scope: _Scope
    ) -> Relation | PrivateInside:
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
            if isinstance(inner, PrivateInside):
                return inner
            columns = [inner.schema.column(one.output) for one in inner.schema.visible]
            compared = compared_columns(
                predicate, [column for column in columns if column is not None], named, self._refusals
            )
            return restricted(outer, inner, compared, predicate, self.environment, self._refusals)
        return self._correlated(outer, named, predicate, scope)

    def _correlated(
        self, outer: Relation, named: TableSchema, predicate: Predicate, scope: _Scope
    ) -> Relation | PrivateInside:
        """A predicate over rows, whose WHERE may compare them with the row outside."""
        before = len(self._refusals.found)
        clauses = read_clauses(predicate.query, {}, self._refusals, inside=True)  # type: ignore[arg-type]
        self._refusals.raise_if_any(before)
        found = self._from(clauses, scope.deeper())
        if isinstance(found, PrivateInside):
            return found
        clauses, inner = found
        # only now does the subquery's own FROM say which names are its own
        own_names = inner.schema.names or _qualified(inner.schema, qualifier_of(clauses.source))
        own, compared = split_conditions(clauses.where, replace(inner.schema, names=own_names), named, self._refusals)
        select = clauses.select if predicate.compared else ()
        clauses = replace(clauses, where=own, select=select, order=())
        schema = replace(inner.schema, names=own_names)
        resolved = resolve_names(clauses, schema, self.environment, self._refusals, inside=True)
        inner = filtered(inner, resolved.filters, self.environment, self._refusals)
        if predicate.compared:
            shown = [item.expression for item in resolved.items]
            columns = [schema.column(node.name) if isinstance(node, exp.Column) else None for node in shown]
            if any(column is None for column in columns):
                self._refusals.refuse(
                    "row_syntax", predicate.node, "IN takes columns of the subquery here.",
                    "Compute them in a subquery of its FROM.",
                )  # fmt: skip
            known = [column for column in columns if column is not None]
            compared = (*compared_columns(predicate, known, named, self._refusals), *compared)
        return restricted(outer, inner, compared, predicate, self.environment, self._refusals)

    def _not_protected(self, node: exp.Expr) -> SchemaError:
        if not isinstance(node, exp.Table):
            return SchemaError(
                "nothing of what is read here is protected.", span=span_of(node, self._refusals.text),
                hint="Public tables need no dpsql.",
            )  # fmt: skip
        parts = [part.name for part in node.parts]
        schema = self.environment.schemas.resolve(parts)
        public = schema is not None and self.environment.policy.is_public(schema.canonical)
        return SchemaError(
            f"table {'.'.join(parts)!r} is "
            + ("public, not protected." if public else "not protected, so it cannot be queried."),
            hint="" if public else f"The curator declares it with CALL dp_protect('{'.'.join(parts)}', …).",
            span=span_of(node, self._refusals.text),
        )


def _qualified(schema: TableSchema, qualifier: str) -> tuple[JoinedName, ...]:
    return tuple(JoinedName(qualifier, one.declared, one.output, one.hidden) for one in schema.visible)


def _identity(canonical: str, version: str) -> str:
    return f"{quote(canonical)}@{quote(version)}"
