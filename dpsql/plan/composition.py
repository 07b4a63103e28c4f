"""A text that is computed from several answers and public tables: it is taken apart into them, and one outer statement.

A *part* is a maximal private subquery: it is planned, charged and released as if it was asked alone. The outer
statement reads released numbers and public rows alone, so it is post-processing. `compose` finds out of each query what
its rows are: rows of units, an answer, or public.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum

from sqlglot import exp

from dpsql.errors import SchemaError, UnsupportedQueryError
from dpsql.model.environment import Environment, TableSchema, folded
from dpsql.model.refusals import Refusals
from dpsql.operations.dialect import to_sql
from dpsql.plan.lifted import lift, queries_in
from dpsql.plan.outer_query import needed_queries
from dpsql.sql.clauses import is_aggregate_call, is_plain_table, sources_of
from dpsql.sql.source.relation import CurrentTables
from dpsql.sql.source.scope import PrivateInside, Scope
from dpsql.sql.source.sources import SourceReader
from dpsql.sql.statements import SelectStatement

MOST_PARTS = 20
"""Most private subqueries of a text."""
_PART, _PUBLIC = "dpsql_part_", "dpsql_public_"


class Rows(Enum):
    """What the rows of a query are."""

    OF_UNITS = "rows of units"
    ANSWER = "an answer"
    PUBLIC = "public"


@dataclass(frozen=True, slots=True)
class Part:
    """A private subquery of a text.

    Attributes:
        name: under which the outer statement reads its answer.
        tree: its SELECT, with the queries of WITH that it reads.

    """

    name: str
    tree: exp.Select


@dataclass(frozen=True, slots=True)
class PublicTable:
    """A public table that the outer statement reads.

    Attributes:
        name: under which it is read.
        schema: the table.

    """

    name: str
    schema: TableSchema


@dataclass(frozen=True, slots=True)
class Composition:
    """A text taken apart.

    Attributes:
        parts: its private subqueries, each once, in the order of the text.
        tables: the public tables that are read beside them.
        outer: the outer statement, which reads both by their names.
        hint: the options of the whole text as they are written; None if there are none.

    """

    parts: tuple[Part, ...]
    tables: tuple[PublicTable, ...]
    outer: exp.Query
    hint: exp.Expr | None


def compose(statement: SelectStatement, environment: Environment) -> Composition | None:
    """Take a text apart into private subqueries and one outer statement.

    Args:
        statement: the text.
        environment: policy, schemas and clock.

    Returns:
        The composition, or None if the whole text is one private query.

    Raises:
        SchemaError: a table is not there for this reader.
        UnsupportedQueryError: the text cannot be taken apart.

    """
    composer = _Composer(environment, Refusals(statement.text))
    # so that every query has a parent, in which it can be replaced
    whole = exp.Subquery(this=statement.tree.copy())
    root: exp.Query = whole.this
    hint = root.args.get("hint")
    root.set("hint", None)
    if composer.release(root, Scope({}, 0)) is Rows.OF_UNITS:
        return None
    outer: exp.Query = whole.this
    composer.drop_unread(outer)
    return Composition(tuple(composer.parts.values()), tuple(composer.tables.values()), outer, hint)


@dataclass
class _Composer:
    """Replaces private subqueries of a text by readings of their answers.

    The queries that WITH names are kept in scopes as they were written, because parts read them so. `live` has the
    query of the text that stands for each.
    """

    environment: Environment
    refusals: Refusals
    parts: dict[str, Part] = field(default_factory=dict)
    tables: dict[str, PublicTable] = field(default_factory=dict)
    _live: dict[int, exp.CTE] = field(default_factory=dict)
    _kinds: dict[int, tuple[exp.Expr, Rows]] = field(default_factory=dict)
    _written: dict[int, tuple[exp.Expr, list[exp.CTE]]] = field(default_factory=dict)
    _released: set[int] = field(default_factory=set)
    _read: set[int] = field(default_factory=set)

    # --- what the rows of a query are

    def _kind(self, query: exp.Expr, scope: Scope) -> Rows:
        """Return what the rows of a source are."""
        known = self._kinds.get(id(query))
        if known is None:
            # kept with the node, so that no other node gets its id
            known = self._kinds[id(query)] = (query, self._found_kind(query, scope))
        return known[1]

    def _found_kind(self, query: exp.Expr, scope: Scope) -> Rows:
        match query:
            case exp.Subquery():
                return _together([self._kind(one, scope) for one in (query.this, *_joined(query))])
            case exp.Table() if query.args.get("joins"):
                first = query.copy()
                first.set("joins", None)
                return _together([self._kind(one, scope) for one in (first, *_joined(query))])
            case exp.SetOperation():
                inner = self._naming(query, scope)
                return _together([self._kind(side, inner) for side in (query.left, query.right)])
            case exp.Select():
                inner = self._naming(query, scope)
                kind = self._kind_of_sources(query, inner)
                is_part = kind is Rows.OF_UNITS and self._is_private_query(query, scope)
                return Rows.ANSWER if is_part else kind
            case exp.Table() if isinstance(query.this, exp.Identifier):
                return self._kind_of_table(query, scope)
            case _:
                return Rows.PUBLIC

    def _kind_of_sources(self, select: exp.Select, scope: Scope) -> Rows:
        return _together([self._kind(source, scope) for source in sources_of(select)])

    def _kind_of_table(self, table: exp.Table, scope: Scope) -> Rows:
        named = scope.queries.get(folded(table.name)) if len(table.parts) == 1 else None
        if named:
            cte, outer = named
            return self._kind(cte.this, outer)
        schema, tables = self._schema(table), CurrentTables(self.environment, Refusals(self.refusals.text))
        if self.environment.policy.rules(schema.canonical):
            return Rows.OF_UNITS
        if self.environment.policy.is_public(schema.canonical):
            return Rows.PUBLIC
        found = self._rows_read(exp.select("*").from_(table.copy()), Scope({}, 0))
        if found is None:
            raise tables.not_protected(table)
        return found

    def _schema(self, table: exp.Table) -> TableSchema:
        tables = CurrentTables(self.environment, Refusals(self.refusals.text))
        schema = tables.schema([part.name for part in table.parts])
        if not schema:
            raise tables.not_protected(table)
        return schema

    def _is_private_query(self, select: exp.Select, scope: Scope) -> bool:
        """Check that a query of rows of units is private by itself: its groups have rows of several units."""
        if select.args.get("hint") is not None:
            return True
        found = self._rows_read(select.copy(), scope)
        if found is None:
            return bool(select.args.get("group")) or any(
                is_aggregate_call(node) for item in select.expressions for node in item.walk()
            )
        return found is Rows.ANSWER

    def _rows_read(self, query: exp.Select, scope: Scope) -> Rows | None:
        """Return what the rows of a subquery are as a source of rows. Return None if it is refused as such."""
        quiet = Refusals(self.refusals.text)
        try:
            found = SourceReader(CurrentTables(self.environment, quiet), quiet).query(query, scope.deeper())
        except (SchemaError, UnsupportedQueryError):
            return None
        if isinstance(found, PrivateInside):
            return Rows.ANSWER
        return Rows.OF_UNITS if found.owner else Rows.PUBLIC

    def _naming(self, query: exp.Expr, scope: Scope) -> Scope:
        """Return the scope of a query that may name others, which are kept as they were written."""
        with_ = query.args.get("with_")
        if not with_:
            return scope
        if id(with_) not in self._written:
            if with_.args.get("recursive"):
                self.refusals.refuse("clause", with_, "WITH RECURSIVE has no private form.", "Leave RECURSIVE out.")
            written = [cte.copy() for cte in with_.expressions]
            self._written[id(with_)] = (with_, written)
            self._live |= {id(one): cte for one, cte in zip(written, with_.expressions, strict=True)}
        return scope.naming(self._written[id(with_)][1])

    # --- replacing

    def release(self, query: exp.Expr, scope: Scope) -> Rows:
        """Rewrite a query whose rows are released, or read by the outer statement; return what they are."""
        match query:
            case exp.Subquery() if isinstance(query.this, exp.Query):
                return self.release(query.this, scope)
            case exp.SetOperation():
                inner = self._naming(query, scope)
                sides = [self.release(side, inner) for side in (query.left, query.right)]
                return Rows.PUBLIC if set(sides) == {Rows.PUBLIC} else Rows.ANSWER
            case exp.Select():
                return self._release_select(query, scope)
            case _:
                self.refusals.refuse("source", query, "this kind of query has no private form.", "Use SELECT.")

    def _release_select(self, select: exp.Select, scope: Scope) -> Rows:
        inner = self._naming(select, scope)
        kind = self._kind_of_sources(select, inner)
        if kind is Rows.OF_UNITS:
            lifted = lift(select, self.refusals)
            if lifted is None:
                self._add_part(select, scope)
                return Rows.OF_UNITS
            outer, private = lifted
            # both may read the queries that WITH names
            outer.set("with_", select.args.get("with_"))
            select.replace(outer)
            self._add_part(private, inner)
            self._release_inside(outer, inner)
            return Rows.ANSWER
        if select.args.get("hint"):
            self.refusals.refuse(
                "option",
                select.args["hint"],
                "this query is computed from answers, and its options would be nobody's.",
                "Write OPTIONS in the first SELECT of the text for all parts, or in a private query inside.",
            )
        found = [kind]
        for source in sources_of(select):
            self._release_source(source, inner)
        found += self._release_inside(select, inner)
        return Rows.PUBLIC if set(found) == {Rows.PUBLIC} else Rows.ANSWER

    def _release_inside(self, select: exp.Select, scope: Scope) -> list[Rows]:
        """Rewrite the queries in expressions of a SELECT."""
        names = {qualifier for source in sources_of(select) if (qualifier := folded(source.alias_or_name))}
        found = []
        for query in list(queries_in(select)):
            inner = query
            before = len(self.parts)
            found.append(self.release(inner, scope))
            for part in list(self.parts.values())[before:]:
                self._refuse_correlated(part, names)
        return found

    def _release_source(self, source: exp.Expr, scope: Scope) -> None:
        for join in source.args.get("joins") or ():
            self._release_source(join.this, scope)
        if isinstance(source, exp.Subquery):
            if isinstance(source.this, exp.Query):
                self.release(source.this, scope)
            else:
                self._release_source(source.this, scope)
        elif isinstance(source, exp.Table) and isinstance(source.this, exp.Identifier):
            self._release_table(source, scope)
        elif not isinstance(source, exp.Values):
            self.refusals.refuse(
                "source",
                source,
                "a source beside an answer is an answer, a public table, or a list of values.",
                "Write VALUES, or let the curator put the rows into a public table.",
            )

    def _release_table(self, table: exp.Table, scope: Scope) -> None:
        if not is_plain_table(table):
            self.refusals.refuse("source", table, "a table is read whole here.", "Leave out what follows its name.")
        named = scope.queries.get(folded(table.name)) if len(table.parts) == 1 else None
        if named:
            cte, outer = named
            self._read.add(id(self._live[id(cte)]))
            if id(cte) not in self._released:
                self._released.add(id(cte))
                self.release(self._live[id(cte)].this, outer)
            return
        schema = self._schema(table)
        if not self.environment.schemas.is_base_table(schema):
            self.refusals.refuse(
                "source",
                table,
                "a view is not read beside an answer: it may reach a protected table.",
                "Read its public base tables.",
            )
        if not self.environment.policy.is_readable(schema.canonical):
            self.refusals.add(
                "after",
                table,
                "the rows of this public table may be joined with private rows, and are not shown.",
                f"Write CALL dp_public('{table.name}', readable := true).",
                "Ask the curator to make the table readable.",
            )
            self.refusals.raise_if_any()
        known = self.tables.setdefault(schema.canonical, PublicTable(f"{_PUBLIC}{len(self.tables)}", schema))
        alias = table.args.get("alias") or exp.TableAlias(this=exp.to_identifier(table.name, quoted=True))
        table.replace(exp.Table(this=exp.to_identifier(known.name, quoted=True), alias=alias))

    def _add_part(self, select: exp.Select, scope: Scope) -> None:
        """Replace a private query by a reading of its answer."""
        tree = select.copy()
        queries = {name: cte for name, (cte, _) in scope.queries.items()}
        needed = needed_queries(tree, queries)
        if needed:
            own = tree.args.get("with_") or exp.With(expressions=[])
            tree.set("with_", exp.With(expressions=[*needed, *own.expressions]))
        key = to_sql(tree)
        part = self.parts.get(key)
        if part is None:
            if len(self.parts) == MOST_PARTS:
                self.refusals.refuse(
                    "size", select, f"a text has at most {MOST_PARTS} private queries.", "Ask some of them apart."
                )
            part = self.parts[key] = Part(f"{_PART}{len(self.parts)}", tree)
        reading = exp.select("*").from_(exp.table_(part.name, quoted=True))
        select.replace(reading)

    def _refuse_correlated(self, part: Part, names: set[str]) -> None:
        """Refuse a private query that reads columns of the query around it."""
        own = {folded(source.alias_or_name) for one in part.tree.find_all(exp.Select) for source in sources_of(one)}
        for column in part.tree.find_all(exp.Column):
            if column.table and folded(column.table) in names - own:
                self.refusals.refuse(
                    "after",
                    column,
                    "a private query reads a column of the query around it, and is answered once for all its rows.",
                    "Group it by that column, and join both answers.",
                )

    def drop_unread(self, outer: exp.Expr) -> None:
        """Leave out the queries of WITH that the outer statement does not read."""
        for with_ in list(outer.find_all(exp.With)):
            for cte in list(with_.expressions):
                if id(cte) not in self._read:
                    cte.pop()
            if not with_.expressions:
                with_.pop()


def _together(kinds: list[Rows]) -> Rows:
    """Return what rows are that are made of several sources."""
    if Rows.ANSWER in kinds:
        return Rows.ANSWER
    return Rows.OF_UNITS if Rows.OF_UNITS in kinds else Rows.PUBLIC


def _joined(query: exp.Expr) -> Iterator[exp.Expr]:
    for join in query.args.get("joins") or ():
        yield join.this
