"""The rows of the queries of a text: rows of units, an answer, or public rows.

A query that groups rows of several units is a private query by itself, so its rows are an answer. `SourceReader` says
which queries these are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum

from sqlglot import exp

from dpsql.errors import SchemaError, UnsupportedQueryError
from dpsql.model.environment import Column, Environment, TableSchema, folded
from dpsql.model.refusals import Refusals
from dpsql.plan.composition.frequency_calls import is_frequency
from dpsql.sql.clauses import is_aggregate_call, sources_of
from dpsql.sql.source.relation import CurrentTables
from dpsql.sql.source.scope import PrivateInside, Scope
from dpsql.sql.source.sources import SourceReader


class Rows(Enum):
    """Kinds of the rows of a query."""

    OF_UNITS = "rows of units"
    ANSWER = "an answer"
    PUBLIC = "public"


@dataclass
class QueryRows:
    """Finds out what the rows of each query of a text are.

    The queries that WITH names are kept in scopes as they were written, because private queries read them so. `live`
    has the query of the text that stands for each.
    """

    environment: Environment
    refusals: Refusals
    live: dict[int, exp.CTE] = field(default_factory=dict)
    _kinds: dict[int, tuple[exp.Expr, Rows]] = field(default_factory=dict)
    _written: dict[int, tuple[exp.Expr, list[exp.CTE]]] = field(default_factory=dict)

    def of(self, query: exp.Expr, scope: Scope) -> Rows:
        """Return what the rows of a query or another source are.

        Raises:
            SchemaError: a table is not there for this reader.

        """
        known = self._kinds.get(id(query))
        if known is None:
            # kept with the node, so that no other node gets its id
            known = self._kinds[id(query)] = (query, self._found_kind(query, scope))
        return known[1]

    def _found_kind(self, query: exp.Expr, scope: Scope) -> Rows:
        match query:
            case exp.Subquery():
                return _together([self.of(one, scope) for one in (query.this, *_joined(query))])
            case exp.Table() if query.args.get("joins"):
                first = query.copy()
                first.set("joins", None)
                return _together([self.of(one, scope) for one in (first, *_joined(query))])
            case exp.SetOperation():
                inner = self.naming(query, scope)
                kind = _together([self.of(side, inner) for side in (query.left, query.right)])
                # only UNION makes rows of units of such rows: what is common to both sides hangs on several units
                return Rows.ANSWER if kind is Rows.OF_UNITS and not isinstance(query, exp.Union) else kind
            case exp.Select():
                inner = self.naming(query, scope)
                kind = self.of_sources(query, inner)
                is_part = kind is Rows.OF_UNITS and self._is_private_query(query, scope)
                return Rows.ANSWER if is_part else kind
            case exp.Table() if isinstance(query.this, exp.Identifier):
                return self._kind_of_table(query, scope)
            case _:
                return Rows.PUBLIC

    def of_sources(self, select: exp.Select, scope: Scope) -> Rows:
        """Return what the rows are that a SELECT reads."""
        return _together([self.of(source, scope) for source in sources_of(select)])

    def _kind_of_table(self, table: exp.Table, scope: Scope) -> Rows:
        named = scope.queries.get(folded(table.name)) if len(table.parts) == 1 else None
        if named:
            cte, outer = named
            return self.of(cte.this, outer)
        schema = self.schema(table)
        if self.environment.policy.rules(schema.canonical):
            return Rows.OF_UNITS
        if self.environment.policy.is_public(schema.canonical):
            return Rows.PUBLIC
        # a view that is refused as a source is refused as a part of its own, which says why
        return self._rows_read(exp.select("*").from_(table.copy()), Scope({}, 0)) or Rows.OF_UNITS

    def schema(self, table: exp.Table) -> TableSchema:
        """Return the table or view that a name means.

        Raises:
            SchemaError: there is none for this reader.

        """
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
            # what is refused of its items and conditions says nothing of whose its groups are
            counted = _counted(select)
            found = self._rows_read(counted.copy(), scope)
            counted.set("where", None)
            found = found or self._rows_read(counted, scope)
        if found is None:
            return bool(select.args.get("group")) or _aggregates(select)
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

    def read_value(self, value: exp.Expr, select: exp.Select, scope: Scope) -> Column | None:
        """Return the column that an expression of the rows that a query reads would be, or None of an answer.

        Raises:
            DpsqlError: it does not bind, or the rows cannot be read.

        """
        rows = select.copy()
        for name in ("with_", "group", "having", "qualify", "order", "limit", "offset", "distinct", "hint"):
            rows.set(name, None)
        rows.set("expressions", [exp.alias_(value.copy(), "value", quoted=True)])
        own = Refusals(self.refusals.text)
        found = SourceReader(CurrentTables(self.environment, own), own).query(rows, scope.deeper())
        own.raise_if_any()
        return None if isinstance(found, PrivateInside) else found.shown[0]

    def naming(self, query: exp.Expr, scope: Scope) -> Scope:
        """Return the scope of a query that may name others, which are kept as they were written."""
        with_ = query.args.get("with_")
        if not with_:
            return scope
        if id(with_) not in self._written:
            if with_.args.get("recursive"):
                self.refusals.refuse("clause", with_, "WITH RECURSIVE has no private form.", "Leave RECURSIVE out.")
            written = [cte.copy() for cte in with_.expressions]
            self._written[id(with_)] = (with_, written)
            self.live |= {id(one): cte for one, cte in zip(written, with_.expressions, strict=True)}
        return scope.naming(self._written[id(with_)][1])


def _aggregates(select: exp.Select) -> bool:
    nodes = (node for item in select.expressions for node in item.walk())
    return any(is_aggregate_call(node) or is_frequency(node) for node in nodes)


def _counted(select: exp.Select) -> exp.Select:
    """Return a SELECT that only counts the rows of its groups; a SELECT without groups stays as it is."""
    counted, group = select.copy(), select.args.get("group")
    if not group and not _aggregates(select):
        return counted
    items = {str(place): item for place, item in enumerate(select.expressions, start=1)}
    named = {folded(item.alias): item.this for item in select.expressions if isinstance(item, exp.Alias)}
    for term in list(counted.args["group"].expressions) if group else ():
        if isinstance(term, exp.Literal) and not term.is_string and term.name in items:
            term.replace(items[term.name].unalias().copy())
        elif isinstance(term, exp.Column) and not term.table and folded(term.name) in named:
            term.replace(named[folded(term.name)].copy())
    counted.set("expressions", [exp.alias_(exp.Count(this=exp.Star()), "n")])
    for name in ("having", "qualify", "order", "limit", "offset", "distinct"):
        counted.set(name, None)
    return counted


def _together(kinds: list[Rows]) -> Rows:
    """Return what rows are that are made of several sources."""
    if Rows.ANSWER in kinds:
        return Rows.ANSWER
    return Rows.OF_UNITS if Rows.OF_UNITS in kinds else Rows.PUBLIC


def _joined(query: exp.Expr) -> Iterator[exp.Expr]:
    for join in query.args.get("joins") or ():
        yield join.this
