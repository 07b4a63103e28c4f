"""What a FROM clause reads, as one relation: tables, links, joins, subqueries, WITH and views, whatever their depth.

Every part is made by a rule that keeps the invariant of ``relation``; this module only says which rule is meant, by
what stands in the text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from sqlglot import exp

from dpsql.errors import SchemaError, UnsupportedQueryError
from dpsql.model.environment import Environment, TableSchema, folded
from dpsql.model.private_query import QueryOptions
from dpsql.model.refusals import Refusals
from dpsql.operations.dialect import to_sql
from dpsql.sql.clauses import (
    Clauses,
    is_plain_table,
    joined_first,
    named_queries,
    qualifier_of,
    read_clauses,
    sources_of,
)
from dpsql.sql.names import ResolvedSelect, resolve_names
from dpsql.sql.options import read_options
from dpsql.sql.source.as_of import MOST_DEPTH, EarlierTables
from dpsql.sql.source.joins import MOST_TABLES
from dpsql.sql.source.listed_rows import listed_rows
from dpsql.sql.source.projections import called, filtered, projected, stacked
from dpsql.sql.source.relation import CurrentTables, Owner, Relation, query_of_view
from dpsql.sql.source.scope import PrivateInside, Scope
from dpsql.sql.source.seen_columns import Part
from dpsql.sql.source.sides import Conditions, joined_sides
from dpsql.sql.source.unit_groups import distinct, grouped

_MOST_SOURCES = 100
_FLAGS = "dpsql"
"""Qualifier of the columns that say which keys a row's set leaves out; resolved columns of a query have none."""


@dataclass(frozen=True, slots=True)
class SelectText:
    """A private SELECT as its text says it: its rows, its options, and its clauses with their names resolved.

    Attributes:
        clauses: its clauses as they are written.
        options: what it asks for beside them.
        hint: the options as they stand in the text, where refusals of them point to.
        relation: the rows.
        owner: whose they are.
        environment: that of the moment which ``as_of`` asks for.
        select: the clauses with their names resolved.
        refusals: collects.
        zones: time zones whose clocks it reads without naming them.
        finds_bounds: whether bounds that nobody names are left to AUTO.
        finds_mechanism: whether keys are selected first because nobody names a mechanism.
        kept: public rows of which the joins of its FROM clause keep every one, before WHERE; None without any.

    """

    clauses: Clauses
    options: QueryOptions
    hint: exp.Expr | None
    relation: Relation
    owner: Owner
    environment: Environment
    select: ResolvedSelect
    refusals: Refusals
    zones: frozenset[str] = frozenset()
    finds_bounds: bool = False
    finds_mechanism: bool = False
    kept: Relation | None = None

    @property
    def has_sets(self) -> bool:
        """Whether it groups by several sets of keys."""
        return len(self.select.sets) > 1

    @property
    def flags(self) -> tuple[exp.Column, ...]:
        """Of each key, the column that is 1 in rows of a set without it, else 0; none where there is one set."""
        keys = self.select.keys if self.has_sets else ()
        return tuple(exp.column(f"left_out_{place}", table=_FLAGS, quoted=True) for place in range(len(keys)))


def read_select(
    tree: exp.Select, keywords: Mapping[str, object], environment: Environment, refusals: Refusals
) -> SelectText | PrivateInside:
    """Read a SELECT up to its names; or the private query inside it, of whose answer all the rest is then computed.

    Args:
        tree: the SELECT.
        keywords: options given outside the text.
        environment: policy, schemas, settings and clock.
        refusals: collects.

    Raises:
        SchemaError: a table or a column is not there for this reader, or nothing of it is protected.
        UnsupportedQueryError: a source has no private form; nothing more can be said then.

    """
    _unify_names(tree, environment)
    clauses, hint = read_clauses(tree, refusals), tree.args.get("hint")
    options = read_options(hint, keywords, [mechanism.word for mechanism in environment.mechanisms], refusals)
    if options.as_of is None:
        tables = CurrentTables(environment, Refusals(refusals.text))
    else:
        tables = EarlierTables(options, tree, environment, refusals.text)
    reader = SourceReader(tables, refusals)
    relation, where = reader.read_from(tree, clauses, Scope({}, 0))
    if isinstance(relation, PrivateInside):
        return relation
    refusals.found.extend(tables.unmet.found)
    if relation.owner is None:
        raise tables.not_protected(clauses.source)
    select = resolve_names(replace(clauses, where=tuple(where)), relation.schema, tables.environment, refusals)
    text = SelectText(clauses, options, hint, relation, relation.owner, tables.environment, select, refusals)
    return replace(text, zones=frozenset(refusals.zones), kept=reader.kept)


@dataclass(slots=True)
class SourceReader:
    """Reads the sources of one statement; where one of them is a private query, this query is what is read of all.

    Attributes:
        tables: the tables that it can read.
        refusals: collects.
        read: number of sources so far.
        kept: public rows that the joins of the FROM clause keep, if no subquery of WHERE drops some.

    """

    tables: CurrentTables
    refusals: Refusals
    read: int = 0
    kept: Relation | None = None

    def read_from(
        self, tree: exp.Select, clauses: Clauses, scope: Scope
    ) -> tuple[Relation | PrivateInside, Conditions]:
        """The rows that a FROM clause reads, without those that subqueries in WHERE drop; and what is left of WHERE."""
        if tree.args.get("with_") or len(clauses.sources) > 1:
            scope = scope.naming(tree.args["with_"].expressions) if tree.args.get("with_") else scope
            if isinstance(clauses.sources[-1][0], exp.Unnest):
                return self._read_split(clauses, scope)
        parts = self._parts(clauses, scope)
        if isinstance(parts, PrivateInside):
            return parts, ()
        where: Conditions
        relation, where = parts[0].relation, clauses.where
        if len(parts) > 1:
            relation, where, kept = joined_sides(parts, where, self.tables.environment, self.refusals)
            # queries inside are read before
            self.kept = None if scope.depth else kept
        if any(condition.find(exp.Query) for condition in where):
            from dpsql.sql.source.row_conditions import restrict_rows  # noqa: PLC0415 — few queries need it

            self.kept = None
            return restrict_rows(self, relation, replace(clauses, where=tuple(where)), scope)
        return relation, where

    def _read_split(self, clauses: Clauses, scope: Scope) -> tuple[Relation | PrivateInside, Conditions]:
        """Return the rows of a source, each as often as a text of it has parts, and the conditions of WHERE."""
        from dpsql.sql.source.split_texts import split_source  # noqa: PLC0415 — few queries split texts

        *before, (call, join) = clauses.sources
        if len(before) > 1 or (join and any(join.args.get(name) for name in ("side", "on", "using", "method"))):
            self.refusals.refuse(
                "source",
                call,
                "unnest() follows one table or subquery, and a comma.",
                "Join the others in a subquery: FROM (SELECT * FROM t) q, unnest(string_split(s, '|')) AS p(part).",
            )
        clauses = replace(clauses, sources=tuple(before))
        parts = self._parts(clauses, scope)
        if isinstance(parts, PrivateInside):
            return parts, ()
        relation = split_source(parts[0].relation, call, clauses, self.tables.environment, self.refusals)
        return relation, clauses.where

    def _parts(self, clauses: Clauses, scope: Scope) -> list[Part] | PrivateInside:
        parts, taken = list[Part](), set[str]()
        alone = len(clauses.sources) == 1 and not scope.depth
        for node, join in clauses.sources:
            if len(parts) == MOST_TABLES:
                self.refusals.refuse(
                    "source",
                    node,
                    f"a query joins at most {MOST_TABLES} tables.",
                    "Let the curator put public ones together.",
                )
            qualifier, inner = qualifier_of(node), joined_first(node) if isinstance(node, exp.Subquery) else None
            qualifiers = {qualifier_of(one) for one in sources_of(inner)} if inner else {qualifier}
            if not taken.isdisjoint(qualifiers - {""}):
                self.refusals.refuse("source", node, "two tables have one name.", "Give each an alias of its own.")
            taken |= qualifiers
            relation = self._joined_first(inner, scope) if inner else self._relation(node, scope, alone=alone)
            if isinstance(relation, PrivateInside):
                return relation
            if inner:
                parts.append(Part(node, "", relation, join))
                continue
            names = node.args["alias"].args.get("columns") if node.args.get("alias") else None
            if names or relation.schema.names:
                relation = called(relation, qualifier, names or (), self.refusals.text)
            parts.append(Part(node, qualifier, relation, join))
        return parts

    def _joined_first(self, select: exp.Select, scope: Scope) -> Relation | PrivateInside:
        """Return the rows of joins that stood in parentheses, whose tables keep their names."""
        if scope.depth > MOST_DEPTH:
            self._refuse_depth(select)
        clauses = read_clauses(select, self.refusals, inside=True)
        relation, where = self.read_from(select, clauses, scope.deeper())
        if isinstance(relation, PrivateInside):
            return relation
        clauses = replace(clauses, select=(), where=tuple(where))
        resolved = resolve_names(clauses, relation.schema, self.tables.environment, self.refusals)
        return filtered(relation, resolved.filters, self.tables.environment, self.refusals)

    def _relation(self, node: exp.Expr, scope: Scope, *, alone: bool) -> Relation | PrivateInside:
        if isinstance(node, exp.Subquery) and not node.args.get("joins") and isinstance(node.this, exp.Query):
            return self.query(node.this, scope.deeper())
        if isinstance(node, exp.Values):
            return listed_rows(node, self.tables.environment, self.refusals)
        if not is_plain_table(node) or not isinstance(node, exp.Table):
            from dpsql.sql.function_hints import LIST_OF_ROWS  # noqa: PLC0415 — only if a text is refused

            hint = LIST_OF_ROWS if node.find(exp.GenerateSeries) else "Join tables with JOIN … ON."
            self.refusals.refuse("source", node, "a source is a table, a view, or a subquery.", hint)
        self.read += 1
        if self.read > _MOST_SOURCES:
            self.refusals.refuse(
                "source",
                node,
                f"a query reads at most {_MOST_SOURCES} sources, each as often as it is named.",
                "Let the curator put public ones together.",
            )
        named = scope.queries.get(folded(node.name)) if len(node.parts) == 1 else None
        if named:
            cte, outer = named
            inner = self.query(cte.this, Scope(outer.queries, scope.depth + 1))
            if isinstance(inner, PrivateInside):
                return inner
            return called(inner, "", cte.args["alias"].args.get("columns") or (), self.refusals.text)
        tables, policy = self.tables, self.tables.environment.policy
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

    def _view(self, schema: TableSchema, node: exp.Table, scope: Scope) -> Relation | PrivateInside:
        """A view as the subquery that it is; refusals speak of the place where it is named."""
        view = query_of_view(schema, self.tables.environment)
        if not view:
            stands_alone = len(list(node.root().find_all(exp.Table))) < 2
            is_lookup = not stands_alone and self.tables.environment.schemas.is_base_table(schema)
            raise self.tables.not_protected(node, is_lookup=is_lookup)
        from dpsql.sql.source.stored_views import restore_calls  # noqa: PLC0415 — few queries read views

        query, names = view
        restore_calls(query)
        for part in query.walk():
            part.meta.clear()
            if next(part.iter_expressions(), None) is None:
                part.update_positions(node.this)
        _unify_names(query, self.tables.environment)
        earlier = list(self.refusals.found)
        try:
            relation = self.query(query, Scope({}, scope.depth + 1))
        except UnsupportedQueryError:
            # nor is the view's own text, which may quote values
            codes = dict.fromkeys(refusal.code for refusal in self.refusals.found if refusal not in earlier)
            self.refusals.found = earlier
            for code in codes:
                self.refusals.add(
                    code,
                    node,
                    "this view reads its tables in a way that has no private form.",
                    "The curator sees why by asking the text that duckdb_views() shows for it as a subquery.",
                )
            self.refusals.raise_if_any()
            raise
        except SchemaError:
            # names of tables that nobody declared are not told
            raise self.tables.not_protected(node) from None
        if isinstance(relation, PrivateInside):
            return relation
        return called(relation, qualifier_of(node), names, self.refusals.text)

    def query(self, query: exp.Query, scope: Scope) -> Relation | PrivateInside:
        """Return the rows of a subquery, or the private query inside it."""
        if scope.depth > MOST_DEPTH:
            self._refuse_depth(query)
        if isinstance(query, exp.Subquery) and not query.args.get("joins") and isinstance(query.this, exp.Query):
            return self.query(query.this, scope)
        if isinstance(query, exp.Select):
            return self._select(query, scope)
        if not isinstance(query, exp.Union) or any(
            value for name, value in query.args.items() if name not in ("this", "expression", "distinct", "with_")
        ):
            self.refusals.refuse(
                "source", query, "this kind of subquery has no private form.", "Use SELECT, and UNION ALL between them."
            )
        before = len(self.refusals.found)
        inner = scope.naming(named_queries(query, self.refusals))
        self.refusals.raise_if_any(before)
        sides = []
        for side in (query.left, query.right):
            # a UNION b UNION c is one list, although it is parsed as (a UNION b) UNION c
            rows = self.query(side, inner if isinstance(side, exp.Union) else inner.deeper())
            if isinstance(rows, PrivateInside):
                return rows
            sides.append(rows)
        relation = stacked(sides, query, self.tables.environment, self.refusals)
        return distinct(relation, query, self.refusals) if query.args.get("distinct") else relation

    def _refuse_depth(self, query: exp.Query) -> None:
        self.refusals.refuse(
            "source",
            query,
            f"subqueries and views are nested at most {MOST_DEPTH} deep.",
            "Let the curator put some of them into a table.",
        )

    def _select(self, tree: exp.Select, scope: Scope) -> Relation | PrivateInside:
        private = PrivateInside(tree, scope.named)
        if tree.args.get("hint") is not None:
            return private
        before = len(self.refusals.found)
        clauses = read_clauses(tree, self.refusals, inside=True)
        relation, where = self.read_from(tree, clauses, scope)
        if isinstance(relation, PrivateInside):
            return relation
        if any(isinstance(item.unalias(), exp.Explode) for item in clauses.select):
            from dpsql.sql.source.split_texts import split_items  # noqa: PLC0415 — few queries split texts

            relation, clauses = split_items(relation, clauses, self.tables.environment, self.refusals)
        owner = relation.owner
        if owner and clauses.has_sets:
            return private
        resolved = resolve_names(
            replace(clauses, where=tuple(where)), relation.schema, self.tables.environment, self.refusals
        )
        self.refusals.raise_if_any(before)
        if clauses.group or resolved.having or resolved.calls:
            if owner and not owner.has_single_units(map(to_sql, resolved.keys)):
                return private
            relation = grouped(resolved, relation, self.tables.environment, self.refusals)
        else:
            relation = projected(resolved.items, resolved.filters, relation, self.tables.environment, self.refusals)
        return distinct(relation, tree, self.refusals) if tree.args.get("distinct") else relation


def _unify_names(query: exp.Query, environment: Environment) -> None:
    """Leave out parentheses around tables, and write columns with the name of their table alone."""
    nodes = list(query.find_all(exp.Subquery, exp.Join, exp.Column))
    if any(_may_hold_joins(node) for node in nodes if not isinstance(node, exp.Column)):
        from dpsql.sql.source.parentheses import flatten_parentheses  # noqa: PLC0415 — few queries need it

        flatten_parentheses(query)
    qualified = [node for node in nodes if isinstance(node, exp.Column) and node.args.get("db")]
    if qualified:
        from dpsql.sql.source.qualified_names import shorten_qualifiers  # noqa: PLC0415 — few queries need it

        shorten_qualifiers(qualified, environment)


def _may_hold_joins(node: exp.Expr) -> bool:
    """Check that a part of FROM may be a parenthesis around tables, or joins before a condition of another one."""
    if isinstance(node, exp.Join):
        return bool(node.this.args.get("joins"))
    return isinstance(node, exp.Subquery) and not isinstance(node.this, exp.Select)
