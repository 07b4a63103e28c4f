"""A text that is computed from several answers and public tables: it is taken apart into them, and one outer statement.

A *part* is a maximal private subquery: it is planned, charged and released as if it was asked alone. The outer
statement reads released numbers and public rows alone, so it is post-processing. `compose` finds out of each query what
its rows are: rows of units, an answer, or public.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from sqlglot import exp

from dpsql.model.environment import Environment, TableSchema, folded
from dpsql.model.refusals import Refusals
from dpsql.operations.dialect import to_sql
from dpsql.plan.composition.frequencies import Counts, Frequencies, with_frequencies
from dpsql.plan.composition.kinds import QueryRows, Rows
from dpsql.plan.composition.lift import lift, queries_in
from dpsql.plan.composition.public_values import Values, values_of
from dpsql.plan.composition.scalars import Filling, Scalar, filled
from dpsql.plan.composition.series import is_series
from dpsql.plan.composition.value_facts import ValueFacts
from dpsql.plan.composition.values_inside import put_values
from dpsql.sql.around_queries import drop_unused, with_needed
from dpsql.sql.clauses import is_plain_table, sources_of
from dpsql.sql.source.scope import Scope
from dpsql.sql.statements import SelectStatement

MOST_PARTS = 20
"""Most private subqueries of a text."""
_PART, _PUBLIC, _SCALAR = "dpsql_part_", "dpsql_public_", "dpsql_scalar_"


@dataclass(frozen=True, slots=True)
class Part:
    """A private subquery of a text.

    Attributes:
        name: under which the outer statement reads its answer.
        tree: its SELECT, with the queries of WITH that it reads.
        sql: its text without options.
        given: its options as text; empty if it has none.
        waits: the numbers that its rows are compared with, which are answers of parts before it.
        is_inside: whether it is inside an expression of another query.

    """

    name: str
    tree: exp.Query
    sql: str
    given: str = ""
    waits: tuple[Scalar, ...] = ()
    is_inside: bool = False

    @classmethod
    def of(cls, name: str, tree: exp.Query) -> Part:
        """Return a private query under a name; the tree is not changed."""
        bare, given = tree.copy(), list[str]()
        for select in bare.find_all(exp.Select):
            if hint := select.args.get("hint"):
                given += [
                    f"{one.this.name} = {to_sql(one.expression)}" if isinstance(one, exp.EQ) else to_sql(one)
                    for one in hint.expressions
                ]
                given.append(";")
                select.set("hint", None)
        return cls(name, tree, to_sql(bare), ", ".join(given))

    def filled(self, fillings: Mapping[str, Filling]) -> Part:
        """Return the part with values for the numbers that it waits for, by their names."""
        part = Part.of(self.name, filled(self.tree, fillings))
        # the identity of a number is no part of the text
        marks = ", ".join(f"{name}: {one.identity}" for name, one in fillings.items())
        return replace(part, given=f"{part.given} {marks}", waits=self.waits)

    @property
    def options(self) -> frozenset[str]:
        """Names of the options that its text gives."""
        hint = self.tree.args.get("hint")
        given = hint.expressions if hint is not None else ()
        return frozenset(option.this.name.lower() for option in given if isinstance(option, exp.EQ))


@dataclass(frozen=True, slots=True)
class CountedValues:
    """Values that a part counts for mode and histogram, which must have public keys.

    Attributes:
        part: the name of the part.
        counts: what it counts.
        alone: the query that counts these values by themselves.

    """

    part: str
    counts: Counts
    alone: Part


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
        counted: the values that parts count for mode and histogram.
        frequencies: names of the columns with mode and histogram.

    """

    parts: tuple[Part, ...]
    tables: tuple[PublicTable, ...]
    outer: exp.Query
    hint: exp.Expr | None
    counted: tuple[CountedValues, ...] = ()
    frequencies: tuple[str, ...] = ()


def compose(statement: SelectStatement, environment: Environment) -> Composition | Part | None:
    """Take a text apart into private subqueries and one outer statement.

    Args:
        statement: the text.
        environment: policy, schemas and clock.

    Returns:
        The composition; a single part if the text is one private query once public queries in it have become values;
        or None if it is one private query as it stands.

    Raises:
        SchemaError: a table is not there for this reader.
        UnsupportedQueryError: the text cannot be taken apart.

    """
    refusals = Refusals(statement.text)
    composer = _Composer(environment, refusals, QueryRows(environment, refusals))
    # so that every query has a parent, in which it can be replaced
    whole = exp.Subquery(this=statement.tree.copy())
    root: exp.Query = whole.this
    hint = root.args.get("hint")
    root.set("hint", None)
    kind = composer.release(root, Scope({}, 0))
    if kind is Rows.OF_UNITS and len(composer.parts) == 1:
        (part,) = composer.parts.values()
        part.tree.set("hint", hint)
        return part if composer.has_values else None
    outer: exp.Query = whole.this
    composer.drop_unread(outer)
    parts, tables = tuple(composer.parts.values()), tuple(composer.tables.values())
    return Composition(parts, tables, outer, hint, tuple(composer.counted), tuple(composer.frequencies))


@dataclass
class _Composer:
    """Replaces private subqueries of a text by readings of their answers."""

    environment: Environment
    refusals: Refusals
    rows: QueryRows
    parts: dict[tuple[str, str], Part] = field(default_factory=dict)
    tables: dict[str, PublicTable] = field(default_factory=dict)
    scalars: dict[tuple[str, str], Scalar] = field(default_factory=dict)
    has_values: bool = False
    counted: list[CountedValues] = field(default_factory=list)
    frequencies: list[str] = field(default_factory=list)
    _released: set[int] = field(default_factory=set)
    _read: set[int] = field(default_factory=set)

    # --- replacing

    def release(self, query: exp.Expr, scope: Scope) -> Rows:
        """Rewrite a query whose rows are released, or read by the outer statement; return what they are."""
        match query:
            case exp.Subquery() if isinstance(query.this, exp.Query):
                return self.release(query.this, scope)
            case exp.SetOperation():
                inner = self.rows.naming(query, scope)
                sides = [self.release(side, inner) for side in (query.left, query.right)]
                return Rows.PUBLIC if set(sides) == {Rows.PUBLIC} else Rows.ANSWER
            case exp.Select():
                return self._release_select(query, scope)
        self.refusals.refuse("source", query, "this kind of query has no private form.", "Use SELECT.")
        raise AssertionError("a refusal was just added")

    def _release_select(self, select: exp.Select, scope: Scope) -> Rows:
        inner = self.rows.naming(select, scope)
        kind = self.rows.of_sources(select, inner)
        if kind is Rows.OF_UNITS:
            return self._release_private(select, scope, inner)
        if select.args.get("hint"):
            self.refusals.refuse(
                "option",
                select.args["hint"],
                "this query is computed from answers, and its options would be nobody's.",
                "Write OPTIONS in the first SELECT of the text for all parts, or in a private query inside.",
            )
        found: list[Rows] = [kind]
        for source in sources_of(select):
            self._release_source(source, inner)
        found += self._release_inside(select, inner)
        return Rows.PUBLIC if set(found) == {Rows.PUBLIC} else Rows.ANSWER

    def _release_private(self, select: exp.Select, scope: Scope, inner: Scope) -> Rows:
        """Replace a query of rows of units by a reading of its answer, and by what is computed around it."""
        facts = ValueFacts(self.rows, select, inner)
        if counted := with_frequencies(select, self.refusals, facts):
            return self._release_frequencies(select, counted, inner)
        tree = with_needed(select, scope.named)
        put = put_values(tree, self.rows, self._public, self._wait)
        self.has_values |= put.has_values
        lifted = lift(tree, self.refusals, facts.is_column)
        if lifted is None:
            self._add_part(tree, select, put.waits)
            return Rows.OF_UNITS
        outer, private = lifted
        private.set("with_", tree.args.get("with_"))
        drop_unused(private)
        # what stands around it may read the queries that WITH names
        outer.set("with_", select.args.get("with_"))
        select.replace(outer)
        self._add_part(private, private, put.waits)
        self._release_inside(outer, inner)
        return Rows.ANSWER

    def _release_frequencies(self, select: exp.Select, found: Frequencies, inner: Scope) -> Rows:
        """Replace a query with mode or histogram by what is computed of counts, and release these."""
        found.put_options(select.args.get("hint"), self.refusals)
        # what is around them may read the queries that WITH names
        found.outer.set("with_", select.args.get("with_"))
        select.replace(found.outer)
        self.frequencies += found.names
        for query in found.private:
            self._release_private(query, inner, inner)
        for query, counts, alone in found.counts:
            place = query.parent or query
            self._release_private(query, inner, inner)
            if not counts.ends:
                name = place.this.find(exp.Table).name
                self.counted.append(CountedValues(name, counts, Part.of("", with_needed(alone, inner.named))))
        self._release_inside(found.outer, inner)
        return Rows.ANSWER

    def _public(self, query: exp.Query) -> Values:
        """Return the rows of a public query that stands by itself."""
        whole = exp.Subquery(this=query.copy())
        inner = _Composer(self.environment, self.refusals, QueryRows(self.environment, self.refusals))
        inner.release(whole.this, Scope({}, 0))
        inner.drop_unread(whole.this)
        tables = [(one.name, one.schema) for one in inner.tables.values()]
        return values_of(whole.this, tables, self.environment, self.refusals, query)

    def _wait(self, query: exp.Query) -> Scalar:
        """Return a query of one number, which stands by itself, as something that rows of a part wait for."""
        asked = Part.of("", query)
        # of two levels of one number, each is a number of its own
        key = (asked.sql, asked.given)
        if key not in self.scalars:
            whole, before = exp.Subquery(this=query.copy()), len(self.parts)
            self.release(whole.this, Scope({}, 0))
            self._mark_inside(before)
            self.drop_unread(whole.this)
            self.scalars[key] = Scalar(f"{_SCALAR}{len(self.scalars)}", asked.sql, whole.this, query)
        return self.scalars[key]

    def _release_inside(self, select: exp.Select, scope: Scope) -> list[Rows]:
        """Rewrite the queries in expressions of a SELECT."""
        names = {qualifier for source in sources_of(select) if (qualifier := folded(source.alias_or_name))}
        found = []
        for query in list(queries_in(select)):
            before = len(self.parts)
            found.append(self.release(query, scope))
            self._mark_inside(before)
            for part in list(self.parts.values())[before:]:
                self._refuse_correlated(part, names)
        return found

    def _mark_inside(self, before: int) -> None:
        """Mark the parts that were added after the first ones."""
        for key, part in list(self.parts.items())[before:]:
            self.parts[key] = replace(part, is_inside=True)

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
        elif not isinstance(source, exp.Values) and not is_series(source):
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
            self._read.add(id(self.rows.live[id(cte)]))
            if id(cte) not in self._released:
                self._released.add(id(cte))
                self.release(self.rows.live[id(cte)].this, outer)
            return
        schema = self.rows.schema(table)
        if self.environment.policy.rules(schema.canonical):
            self.refusals.refuse(
                "after",
                table,
                "rows of a protected table are joined with an answer.",
                "Group these rows in a query of their own, and join both answers.",
            )
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

    def _add_part(self, tree: exp.Select, place: exp.Expr, waits: tuple[Scalar, ...]) -> None:
        """Put a reading of the answer of a private query in a place of the text."""
        part = replace(Part.of(f"{_PART}{len(self.parts)}", tree.copy()), waits=waits)
        key = (part.sql, part.given)
        if key not in self.parts:
            if len(self.parts) == MOST_PARTS:
                self.refusals.refuse(
                    "size", place, f"a text has at most {MOST_PARTS} private queries.", "Ask some of them apart."
                )
            self.parts[key] = part
        place.replace(exp.select("*").from_(exp.table_(self.parts[key].name, quoted=True)))

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
