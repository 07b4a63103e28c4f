"""Columns of an outer statement that pass through it as they are, and the ends of their intervals beside them.

A number that no expression, DISTINCT or GROUP BY changes keeps the interval that its answer gave it. `trace` finds out
which columns these are. `with_ends` writes the statement once more, with both ends of each after its own columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from sqlglot import exp

from dpsql.model.environment import folded
from dpsql.sql.clauses import is_aggregate_call, sources_of

LOW, HIGH = "dpsql_low_", "dpsql_high_"
"""Begin the names of columns with the ends of intervals, before the place of the number."""
_SOURCE = "dpsql_source_"


@dataclass(frozen=True, slots=True)
class Origin:
    """A number of an answer.

    Attributes:
        part: under which the outer statement reads the answer.
        column: the place of the number in it.

    """

    part: str
    column: int


@dataclass(frozen=True, slots=True)
class Output:
    """A column of a query.

    Attributes:
        name: how it is called.
        origins: the numbers that pass through it, of each side of UNION ALL; none if it is computed.
        is_key: whether it is a key of an answer, a column of a public table, or a constant.

    """

    name: str
    origins: frozenset[Origin] = frozenset()
    is_key: bool = False


Outputs = Mapping[str, Sequence[Output]]
"""The columns of answers and public tables, by the names under which the statement reads them."""


def trace(outer: exp.Query, known: Outputs) -> list[Output] | None:
    """Return the columns of an outer statement with what passes through. Return None if a star hides which these are.

    Args:
        outer: the statement.
        known: the columns of what it reads.

    """
    try:
        return _Tracer(dict(known)).outputs(outer, {})
    except _UnknownError:
        return None


def with_ends(outer: exp.Query, known: Outputs) -> exp.Query | None:
    """Return an outer statement that shows, after its columns, both ends of each number that passes through.

    The rows of an answer have the ends of the number at a place as ``LOW`` and ``HIGH`` with the place.

    Args:
        outer: the statement, which is not changed.
        known: the columns of what it reads.

    Returns:
        The statement, or None if no number passes through.

    """
    whole = exp.Subquery(this=outer.copy())
    if not _name_sources(whole):
        return None
    tracer = _Tracer(dict(known))
    try:
        tracer.write_stars(whole.this)
        shown = tracer.outputs(whole.this, {})
        wanted = [place for place, one in enumerate(shown) if one.origins]
        if not wanted:
            return None
        tracer.widen(whole.this, {}, wanted)
    except _UnknownError:
        return None
    query: exp.Query = whole.this
    return query


def _name_sources(whole: exp.Expr) -> bool:
    """Name the subqueries of FROM that have no name, in place; return False if the text calls them as DuckDB does."""
    names = {folded(one.name) for one in whole.find_all(exp.Identifier)}
    if any(name.startswith("unnamed_subquery") for name in names):
        return False
    prefix = _SOURCE
    while any(name.startswith(prefix) for name in names):
        prefix += "_"
    sources = [source for select in whole.find_all(exp.Select) for source in sources_of(select)]
    unnamed = [one for one in sources if isinstance(one, exp.Subquery) and not one.alias]
    for number, source in enumerate(unnamed):
        if isinstance(source.this, exp.Query):
            source.set("alias", exp.TableAlias(this=exp.to_identifier(f"{prefix}{number}")))
    return True


class _UnknownError(Exception):
    """The columns of a query are not known."""


@dataclass
class _Tracer:
    """Follows columns from answers through the queries of one statement."""

    known: dict[str, Sequence[Output]]
    _widened: dict[int, tuple[exp.Expr, set[int]]] = field(default_factory=dict)

    # --- which columns pass through

    def outputs(self, query: exp.Expr, named: Mapping[str, exp.CTE]) -> list[Output]:
        """Return the columns of a query."""
        named = _naming(query, named)
        match query:
            case exp.Subquery() if isinstance(query.this, exp.Query):
                return self.outputs(query.this, named)
            case exp.SetOperation():
                left, right = self.outputs(query.left, named), self.outputs(query.right, named)
                if len(left) != len(right) or query.args.get("by_name"):
                    raise _UnknownError
                is_all = isinstance(query, exp.Union) and not query.args.get("distinct")
                return [_merged(a, b, is_all=is_all) for a, b in zip(left, right, strict=True)]
            case exp.Select():
                return self._of_select(query, named)
        raise _UnknownError

    def _of_select(self, select: exp.Select, named: Mapping[str, exp.CTE]) -> list[Output]:
        sources = self._sources(select, named)
        changes = bool(select.args.get("group") or select.args.get("distinct") or _aggregates(select))
        found: list[Output] = []
        for item in select.expressions:
            if _is_star(item):
                found += self._of_star(item, select, sources)
                continue
            column, name = item.unalias(), item.alias_or_name
            if isinstance(column, exp.Subquery):
                found.append(self._of_scalar(column, name, named))
                continue
            named_so = self._candidates(column, sources) if isinstance(column, exp.Column) else []
            if len(named_so) == 1:
                found.append(replace(named_so[0][1], name=name))
            else:
                # USING makes one column of two
                is_key = all(one.is_key for _, one, _ in named_so) if named_so else _is_constant(column)
                found.append(Output(name, is_key=is_key))
        return [replace(one, origins=frozenset()) if changes else one for one in found]

    def _of_scalar(self, query: exp.Subquery, name: str, named: Mapping[str, exp.CTE]) -> Output:
        """Return the column of a query in place of a value."""
        try:
            shown = self.outputs(query, named)
        except _UnknownError:
            return Output(name)
        return replace(shown[0], name=name) if len(shown) == 1 else Output(name)

    def _of_star(
        self, item: exp.Expr, select: exp.Select, sources: Sequence[tuple[str, list[Output] | None]]
    ) -> list[Output]:
        star = item.this if isinstance(item, exp.Column) else item
        merges = any(join.args.get("using") or join.args.get("method") for join in select.args.get("joins") or ())
        filters = any(str(join.args.get("kind") or "") in ("SEMI", "ANTI") for join in select.args.get("joins") or ())
        if any(star.args.get(name) for name in ("except_", "replace", "rename")) or (
            isinstance(item, exp.Star) and (merges or filters)
        ):
            raise _UnknownError
        wanted = folded(item.table) if isinstance(item, exp.Column) else None
        found: list[Output] = []
        for qualifier, outputs in sources:
            if wanted in (None, qualifier):
                if outputs is None:
                    raise _UnknownError
                found += outputs
        return found

    def _sources(self, select: exp.Select, named: Mapping[str, exp.CTE]) -> list[tuple[str, list[Output] | None]]:
        """Return the sources of a SELECT by their qualifiers, each with its columns; None if these are not known."""
        return [(folded(source.alias_or_name), self._of_source(source, named)) for source in sources_of(select)]

    def _of_source(self, source: exp.Expr, named: Mapping[str, exp.CTE]) -> list[Output] | None:
        try:
            if isinstance(source, exp.Table) and not source.args.get("joins"):
                cte = named.get(folded(source.name))
                found = self._of_cte(cte, named) if cte else list(self.known[source.name])
            elif isinstance(source, exp.Subquery) and not source.args.get("joins"):
                found = self.outputs(source, named)
            else:
                return None
        except (_UnknownError, KeyError):
            return None
        return _called(found, source.args.get("alias"))

    def _of_cte(self, cte: exp.CTE, named: Mapping[str, exp.CTE]) -> list[Output]:
        return _called(self.outputs(cte.this, _before(cte, named)), cte.args.get("alias"))

    def _candidates(
        self, column: exp.Column, sources: Sequence[tuple[str, list[Output] | None]]
    ) -> list[tuple[int, Output, int]]:
        """Return the columns of sources that a name may mean, with the places of the source and of the column there."""
        return [
            (number, output, place)
            for number, (qualifier, outputs) in enumerate(sources)
            if not column.table or folded(column.table) == qualifier
            for place, output in enumerate(outputs or ())
            if folded(output.name) == folded(column.name)
        ]

    # --- the statement with ends

    def write_stars(self, query: exp.Expr) -> None:
        """Write out the stars of a statement, in place: what is read gets more columns."""
        for select in list(query.find_all(exp.Select)):
            named = _visible(select)
            if not any(map(_is_star, select.expressions)):
                continue
            sources, items = self._sources(select, named), list[exp.Expr]()
            for item in select.expressions:
                if not _is_star(item):
                    items.append(item)
                    continue
                self._of_star(item, select, sources)
                for qualifier, outputs in sources:
                    if not isinstance(item, exp.Column) or folded(item.table) == qualifier:
                        names = [one.name for one in outputs or ()]
                        if len(set(map(folded, names))) < len(names) or not qualifier:
                            raise _UnknownError
                        items += [exp.column(name, table=qualifier, quoted=True) for name in names]
            select.set("expressions", items)

    def widen(self, query: exp.Expr, named: Mapping[str, exp.CTE], wanted: Sequence[int]) -> None:
        """Add the ends of the columns at some places after the columns of a query, in place."""
        named = _naming(query, named)
        match query:
            case exp.Subquery():
                self.widen(query.this, named, wanted)
            case exp.SetOperation():
                self.widen(query.left, named, wanted)
                self.widen(query.right, named, wanted)
            case exp.Select():
                self._widen_select(query, named, wanted)

    def _widen_select(self, select: exp.Select, named: Mapping[str, exp.CTE], wanted: Sequence[int]) -> None:
        # kept with the node, so that no other node gets its id
        _, already = self._widened.setdefault(id(select), (select, set()))
        listed, sources = sources_of(select), self._sources(select, named)
        items = [item for item in select.expressions if not item.alias_or_name.startswith((LOW, HIGH))]
        for place in wanted:
            if place in already:
                continue
            already.add(place)
            column = items[place].unalias()
            found = self._candidates(column, sources) if isinstance(column, exp.Column) else []
            ends: list[exp.Expr] = [exp.cast(exp.Null(), "DOUBLE"), exp.cast(exp.Null(), "DOUBLE")]
            if isinstance(column, exp.Subquery) and self._of_scalar(column, "", named).origins:
                ends = [self._end_of_scalar(column, named, end) for end in (LOW, HIGH)]
            elif len(found) == 1 and found[0][1].origins:
                number, _, inner = found[0]
                self._widen_source(listed[number], named, inner)
                ends = [exp.column(f"{end}{inner}", table=sources[number][0], quoted=True) for end in (LOW, HIGH)]
            named_ends = [
                exp.alias_(one, f"{end}{place}", quoted=True) for one, end in zip(ends, (LOW, HIGH), strict=True)
            ]
            select.set("expressions", [*select.expressions, *named_ends])

    def _end_of_scalar(self, query: exp.Subquery, named: Mapping[str, exp.CTE], end: str) -> exp.Expr:
        """Return an end of the interval of a query in place of a value, as such a query."""
        inner = query.copy()
        inner.set("alias", exp.TableAlias(this=exp.to_identifier("dpsql_number")))
        self.widen(inner.this, named, [0])
        return exp.Subquery(this=exp.select(exp.column(f"{end}0", quoted=True)).from_(inner))

    def _widen_source(self, source: exp.Expr, named: Mapping[str, exp.CTE], place: int) -> None:
        cte = named.get(folded(source.name)) if isinstance(source, exp.Table) else None
        if cte:
            self.widen(cte.this, _before(cte, named), [place])
        elif isinstance(source, exp.Subquery):
            self.widen(source, named, [place])


def _is_star(item: exp.Expr) -> bool:
    """Check that an item of a select list is a star, of all sources or of one."""
    return isinstance(item, exp.Star) or (isinstance(item, exp.Column) and isinstance(item.this, exp.Star))


def _naming(query: exp.Expr, named: Mapping[str, exp.CTE]) -> Mapping[str, exp.CTE]:
    """Return the queries of WITH that a query sees, with those that it names."""
    with_ = query.args.get("with_")
    return {**named, **{folded(cte.alias): cte for cte in with_.expressions}} if with_ else named


def _before(cte: exp.CTE, named: Mapping[str, exp.CTE]) -> Mapping[str, exp.CTE]:
    """Return the queries of WITH that one of them sees: those that are named before it."""
    listed = list(named.items())
    place = next(place for place, (_, one) in enumerate(listed) if one is cte)
    return dict(listed[:place])


def _visible(select: exp.Select) -> Mapping[str, exp.CTE]:
    """Return the queries of WITH that a SELECT of a statement sees, with its own."""
    around: list[exp.Expr] = []
    inside: exp.Expr | None = select
    named: dict[str, exp.CTE] = {}
    while inside is not None:
        around.append(inside)
        inside = inside.parent
    for place, node in reversed(list(enumerate(around))):
        for cte in node.args["with_"].expressions if node.args.get("with_") else ():
            if place and any(one is cte for one in around[:place]):
                break
            named[folded(cte.alias)] = cte
    return named


def _called(outputs: Sequence[Output], alias: exp.Expr | None) -> list[Output]:
    """Return columns under the names that an alias gives them."""
    names = [one.name for one in alias.args.get("columns") or ()] if alias else []
    return [replace(one, name=name) for one, name in zip(outputs, names, strict=False)] + list(outputs[len(names) :])


def _merged(left: Output, right: Output, *, is_all: bool) -> Output:
    """Return a column of UNION, INTERSECT or EXCEPT."""
    origins = left.origins | right.origins if is_all else frozenset[Origin]()
    return Output(left.name, origins, left.is_key and right.is_key)


def _is_constant(item: exp.Expr) -> bool:
    """Check that an expression reads no column."""
    return not any(
        isinstance(node, exp.Column | exp.Query | exp.Star) or is_aggregate_call(node) for node in item.walk()
    )


def _aggregates(select: exp.Select) -> bool:
    """Check that a SELECT aggregates rows."""
    return any(
        is_aggregate_call(node) and not isinstance(node, exp.Window) and not isinstance(node.parent, exp.Window)
        for item in select.expressions
        for node in item.walk(prune=lambda node: isinstance(node, exp.Query))
    )
