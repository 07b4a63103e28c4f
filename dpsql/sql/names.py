"""Name resolution: columns get their declared names, aliases and ordinals become what they stand for.

After this step two texts that mean the same frame have the same tree, whatever quoting, case, prefixes, aliases
or ordinals they were written with. ROLLUP, CUBE, GROUPING SETS and their mixtures are the sets that they stand for.
"""

from __future__ import annotations

import datetime as dt
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from sqlglot import exp

from dpsql.errors import ParseError, SchemaError
from dpsql.model.environment import Environment, TableSchema, folded
from dpsql.model.refusals import Refusals
from dpsql.model.similar_names import did_you_mean
from dpsql.operations.dialect import MAX_NODES, span_of, to_sql, unquoted
from dpsql.operations.trees import map_tree
from dpsql.sql.clauses import (
    GROUPING_SETS,
    NAMED_ARGUMENTS,
    Clauses,
    conjuncts,
    is_aggregate_call,
    is_interval_call,
    joined_first,
    qualifier_of,
    sources_of,
)
from dpsql.sql.column_names import column_name, distinct_names, named_columns, similar_columns
from dpsql.sql.grouping_sets import MOST_SETS, written_sets

_NOW = ("now", "get_current_timestamp")
_PARTS_OF_TIMES = (exp.Extract, exp.TimeToUnix, exp.Year)
_ALIAS_FIRST = "alias_first"
"""Mark on columns of HAVING that mean an alias before a column."""


@dataclass(frozen=True, slots=True)
class SelectItem:
    """One expression of the select list, resolved, with the name its column will have."""

    name: str
    expression: exp.Expr


@dataclass(frozen=True, slots=True)
class ResolvedSelect:
    """Clauses whose columns are resolved.

    Attributes:
        filters: what rows have to fulfil all together.
        keys: the grouping expressions as written, those of all sets.
        sets: of each grouping set, in the order of the text, which of the keys it has; without GROUPING SETS, ROLLUP
            or CUBE one set of all keys.

    """

    items: tuple[SelectItem, ...]
    filters: tuple[exp.Expr, ...]
    keys: tuple[exp.Expr, ...]
    sets: tuple[tuple[int, ...], ...]
    having: exp.Expr | None
    qualify: exp.Expr | None
    order: tuple[exp.Expr, ...]

    @property
    def outputs(self) -> tuple[exp.Expr, ...]:
        """What is computed from keys and aggregates: select list, HAVING, QUALIFY and ORDER BY."""
        conditions = filter(None, (self.having, self.qualify))
        return (*(item.expression for item in self.items), *conditions, *(term.this for term in self.order))

    @property
    def calls(self) -> list[exp.Expr]:
        """The calls of aggregates in it, each as often as it stands there."""
        nodes = (node for root in self.outputs for node in root.walk(prune=is_aggregate_call))
        return [node for node in nodes if is_aggregate_call(node)]


@dataclass(slots=True)
class _Resolver:
    """Resolves the expressions of one query.

    Attributes:
        schema: the columns of its rows.
        clock: the moment of the question.
        refusals: collects.
        qualifiers: what its sources are called.
        aliases: those of the select list, in small letters, with what they stand for.
        select: the select list.
        unfolded: nodes that aliases have put in their places so far.

    """

    schema: TableSchema
    clock: Callable[[], dt.datetime]
    refusals: Refusals
    qualifiers: set[str]
    aliases: Mapping[str, exp.Expr]
    select: Sequence[exp.Expr]
    unfolded: int = 0

    def resolve(self, node: exp.Expr, *, alias_first: bool = False, seen: frozenset[str] = frozenset()) -> exp.Expr:
        """Copy of ``node`` with columns resolved; select aliases that were not seen stand for their expressions."""

        def visit(part: exp.Expr) -> exp.Expr | None:
            if is_interval_call(part):
                return None
            compared = part.args.get("query") or part.this if isinstance(part, exp.In | exp.Any | exp.All) else None
            if isinstance(part, exp.Query | exp.Exists) or isinstance(compared, exp.Query):
                self.refusals.add(
                    "row_syntax",
                    part,
                    "a subquery has no private form here.",
                    "In WHERE, one condition by itself may be [NOT] EXISTS or [NOT] IN; elsewhere list the "
                    "values, as in x IN (1, 2).",
                )
                return exp.null()
            star = part.this if isinstance(part, exp.Column) else part
            if isinstance(star, exp.Star) and (star is not part or not is_aggregate_call(part.parent or part)):
                from dpsql.sql.function_refusals import refuse_star  # noqa: PLC0415 — only if a text is refused

                refuse_star(part, self.select, self.refusals)
                return exp.null()
            if isinstance(part, exp.Column):
                return self._column(part, alias_first=alias_first, seen=seen)
            called = part.name.lower() if isinstance(part, exp.Anonymous) else ""
            if isinstance(part, _PARTS_OF_TIMES) or (called == "date_part" and len(part.expressions) == 2):
                from dpsql.sql.elapsed_time import elapsed_time  # noqa: PLC0415 — few queries ask for seconds or ages

                elapsed = elapsed_time(part, self.schema)
                return map_tree(elapsed, visit) if elapsed else part
            if isinstance(part, exp.CurrentDate) or (called == "today" and not part.expressions):
                return exp.cast(exp.Literal.string(self._today(part).isoformat()), "DATE", dialect="duckdb")
            if isinstance(part, exp.CurrentTimestamp) or (called in _NOW and not part.expressions):
                return exp.cast(exp.Literal.string(self.clock().isoformat(sep=" ")), "TIMESTAMPTZ", dialect="duckdb")
            return part

        resolved = map_tree(node.copy(), visit)
        if not self.schema.has_clocks:
            return resolved
        from dpsql.sql.clock import with_clock  # noqa: PLC0415 (few tables have timestamps with a zone)

        return with_clock(resolved, self.schema.columns, self.refusals)

    def _today(self, node: exp.Expr) -> dt.date:
        """Return the date of the question, in UTC or in the zone of the policy."""
        if not any(column.zone for column in self.schema.columns):
            return self.clock().date()
        from dpsql.sql.clock import date_in  # noqa: PLC0415 (few tables have timestamps with a zone)

        return date_in(self.clock(), self.schema.columns, node, self.refusals)

    def unstarred(self, item: exp.Expr) -> list[exp.Expr]:
        """The columns that a star of the select list stands for; any other item as it is."""
        star = item.this if isinstance(item, exp.Column) else item
        if not isinstance(star, exp.Star):
            return [item]
        if star.args.get("replace") or star.args.get("rename"):
            self.refusals.add("star", item, "this star has no private form.", "Name columns, or use * EXCLUDE (x).")
        qualifier = item.table.lower() if isinstance(item, exp.Column) else ""
        left_out = {folded(column.name) for column in star.args.get("except_") or ()}
        columns: list[exp.Expr] = []
        for one in self.schema.visible:
            named = qualifier in ("", one.qualifier, *(self.qualifiers if not self.schema.names else ()))
            if named and not (one.hidden and not qualifier) and folded(one.declared) not in left_out:
                column = exp.column(
                    exp.to_identifier(one.declared, quoted=True),
                    table=exp.to_identifier(one.qualifier, quoted=True) if one.qualifier else None,
                )
                column.this.update_positions(item if "end" in item.meta else star)
                columns.append(column)
        if not columns:
            self.refusals.add("star", item, "this star selects no column.", "Name columns.")
        return columns

    def _unfold(self, alias: exp.Expr, *, seen: frozenset[str]) -> exp.Expr:
        # aliases of aliases double at every step
        self.unfolded += sum(1 for _ in alias.walk())
        if self.unfolded > MAX_NODES:
            raise ParseError("the aliases of the select list unfold to too long a query")
        unfolded = self.resolve(alias, seen=seen)
        # an operator that takes an alias's place must not be torn apart by its neighbours
        binds = isinstance(unfolded, exp.Binary | exp.Unary | exp.Predicate) and not isinstance(unfolded, exp.Paren)
        return exp.paren(unfolded, copy=False) if binds else unfolded

    def _column(self, node: exp.Column, *, alias_first: bool, seen: frozenset[str]) -> exp.Expr:
        """The column that a name means, under the name that it has in the rows, or what an alias stands for.

        Raises:
            SchemaError: no column has this name, or several have it.

        """
        found, lower, text = named_columns(self.schema, node), node.name.lower(), self.refusals.text
        if len(found) > 1:
            tables = ", ".join(f"{one.qualifier}.{one.declared}".removeprefix(".") for one in found)
            raise SchemaError(
                f"column {node.name!r} is there more than once.",
                hint=f"Columns are {tables}.",
                span=span_of(node, text),
            )
        alias_first = alias_first or bool(node.meta.get(_ALIAS_FIRST))
        if not node.table and lower not in seen and lower in self.aliases and (alias_first or not found):
            return self._unfold(self.aliases[lower], seen=seen | {lower})
        if node.table and (node.args.get("db") or node.table.lower() not in self.qualifiers):
            table = ".".join(part.name for part in node.parts[:-1])
            raise SchemaError(
                f"there is no table {table!r} in this query.",
                hint=(
                    f"{did_you_mean(table, self.qualifiers)} "
                    f"Its tables are called {', '.join(map(repr, sorted(self.qualifiers)))}."
                ).lstrip(),
                span=span_of(node, text),
            )
        if not found:
            columns = ", ".join(dict.fromkeys(one.declared for one in self.schema.visible))
            if lower in NAMED_ARGUMENTS:
                given = node.parent.expression if isinstance(node.parent, exp.EQ) else None
                first = f"Write {node.name} => {unquoted(given) if given else '…'}, with an arrow."
            else:
                first = similar_columns(self.schema, node.name)
            from dpsql.sql.function_refusals import refuse_word  # noqa: PLC0415 — only if a text is refused

            refuse_word(node, self.refusals)
            raise SchemaError(
                f"there is no column {node.name!r}.",
                hint=f"{first} Columns are {columns}.".lstrip(),
                span=span_of(node, text),
            )
        resolved = exp.column(exp.to_identifier(found[0].output, quoted=True))
        resolved.this.meta.update(node.this.meta)
        if found[0].output != found[0].declared:
            resolved.this.meta["called"] = node.table, found[0].declared
        return resolved


def resolve_names(
    clauses: Clauses, schema: TableSchema, environment: Environment, refusals: Refusals
) -> ResolvedSelect:
    """Resolve every name of the query against the source's schema and the select list's aliases.

    In a subquery a star stands for all columns, and two columns may have one name.
    """
    qualifiers = {qualifier_of(node) for node, _ in clauses.sources} - {""}
    if len(clauses.sources) > 1 or clauses.inside:
        inside = (inner for node, _ in clauses.sources if (inner := joined_first(node)))
        qualifiers |= {qualifier_of(source) for inner in inside for source in sources_of(inner)}
    aliases = {item.alias.lower(): item.this for item in clauses.select if isinstance(item, exp.Alias)}
    resolver = _Resolver(schema, environment.clock, refusals, qualifiers, aliases, clauses.select)
    select = [one for item in clauses.select for one in (resolver.unstarred(item) if clauses.inside else [item])]
    # DuckDB ends a name at the character NUL
    written = [column_name(item).replace("\0", "") for item in select]
    if "" in written:
        raise ParseError("an alias cannot be empty", span_of(select[written.index("")], refusals.text))
    names = written if clauses.inside else distinct_names(written)
    items = tuple(
        SelectItem(name, resolver.resolve(item.unalias() if isinstance(item, exp.Alias) else item))
        for name, item in zip(names, select, strict=True)
    )
    filters = tuple(part for condition in clauses.where for part in conjuncts(resolver.resolve(condition)))
    keys, sets = _grouping(clauses, items, resolver)
    return ResolvedSelect(
        items=items,
        filters=filters,
        keys=keys,
        sets=sets,
        having=_having(clauses.having, keys, resolver) if clauses.having else None,
        qualify=resolver.resolve(clauses.qualify) if clauses.qualify else None,
        order=_order(clauses, items, resolver) if clauses.order else (),
    )


def _having(condition: exp.Expr, keys: Sequence[exp.Expr], resolver: _Resolver) -> exp.Expr:
    """Return HAVING with its names resolved.

    Outside aggregates, a name that is both an alias and a column means the column only if it is a key.
    """
    grouped = {key.name for key in keys if isinstance(key, exp.Column)}

    def visit(part: exp.Expr) -> exp.Expr | None:
        if is_aggregate_call(part):
            return None
        if isinstance(part, exp.Column):
            found = named_columns(resolver.schema, part)
            part.meta[_ALIAS_FIRST] = not any(one.output in grouped for one in found)
            return None
        return part

    return resolver.resolve(map_tree(condition.copy(), visit))


def _grouping(
    clauses: Clauses, items: Sequence[SelectItem], resolver: _Resolver
) -> tuple[tuple[exp.Expr, ...], tuple[tuple[int, ...], ...]]:
    """The grouping expressions, and which of them each grouping set has."""
    group, refusals, inside = clauses.group, resolver.refusals, clauses.inside
    if not group:
        return (), ((),)
    for name, value in group.args.items():
        if value and name != "expressions" and (name != "all" or group.expressions):
            form = value[0] if isinstance(value, list) else value
            _refuse_group_form(form if isinstance(form, exp.Expr) else group, refusals, inside=inside)
    sets = written_sets(group) if clauses.has_sets and not inside else None
    if sets is None and group.args.get("all"):
        listed = [item.expression for item in items if not _has_aggregate(item.expression)]
        different = tuple({to_sql(key): key for key in listed}.values())
        return different, (tuple(range(len(different))),)
    if sets is None:
        terms = (part.expressions if isinstance(part, exp.Tuple) else [part] for part in group.expressions)
        sets = [tuple(itertools.chain.from_iterable(terms))]
    keys: dict[str, exp.Expr] = {}
    texts: dict[int, str] = {}
    # a term that stands in several sets is read once
    for place, node in {id(node): node for one in sets for node in one}.items():
        key = _group_key(node, items, resolver, inside=inside)
        if key and _has_aggregate(key):
            refusals.add("group_by_form", key, "a group key cannot hold an aggregate.", "Group by row values.")
        elif key:
            # of keys that are alike the first one says where, and the last one which
            texts[place] = to_sql(key)
            keys[texts[place]] = key
    places = {text: place for place, text in enumerate(keys)}
    held = ({places[texts[id(node)]] for node in one if id(node) in texts} for one in sets)
    return tuple(keys.values()), tuple(tuple(sorted(one)) for one in held)


def _group_key(written: exp.Expr, items: Sequence[SelectItem], resolver: _Resolver, *, inside: bool) -> exp.Expr | None:
    """What a term of GROUP BY stands for; None of what is refused."""
    if isinstance(written, GROUPING_SETS):
        _refuse_group_form(written, resolver.refusals, inside=inside)
        return None
    ordinal = _ordinal(written, items)
    if not ordinal and isinstance(written, exp.Literal) and not written.is_string:
        resolver.refusals.add(
            "group_by_form",
            written,
            f"position {written.name} is not in the select list.",
            f"Positions go from 1 to {len(items)}.",
        )
        return None
    return ordinal.expression.copy() if ordinal else resolver.resolve(written).unnest()


def _refuse_group_form(node: exp.Expr, refusals: Refusals, *, inside: bool) -> None:
    if isinstance(node, GROUPING_SETS) and node.expressions:
        message = "a subquery has one set of keys." if inside else f"more than {MOST_SETS} grouping sets are too many."
        refusals.add("group_by_form", node, message, "Use one GROUP BY there." if inside else "Ask for fewer.")
        return
    refusals.add(
        "group_by_form", node, "this form of GROUP BY is none of DuckDB's.", "Use GROUP BY ROLLUP (a, b), or CUBE."
    )


def _ordinal(node: exp.Expr, items: Sequence[SelectItem]) -> SelectItem | None:
    is_number = isinstance(node, exp.Literal) and not node.is_string and node.name.isdigit()
    position = int(node.name) if is_number else 0
    return items[position - 1] if 1 <= position <= len(items) else None


def _has_aggregate(node: exp.Expr) -> bool:
    return any(is_aggregate_call(part) or is_interval_call(part) for part in node.walk())


def _order(clauses: Clauses, items: Sequence[SelectItem], resolver: _Resolver) -> tuple[exp.Expr, ...]:
    resolved: list[exp.Expr] = []
    for term in clauses.order:
        target, found, refusals = term.this, list[exp.Expr](), resolver.refusals
        constant = target.this if isinstance(target, exp.Neg) else target
        if not isinstance(term, exp.Ordered) or term.args.get("with_fill"):
            refusals.add(
                "order_by_form",
                term,
                "this form of ORDER BY has no private form.",
                "Sort by a column or an expression.",
            )
        elif isinstance(target, exp.Var) and target.name.upper() == "ALL":
            found = [item.expression.copy() for item in items]
        elif ordinal := _ordinal(target, items):
            found = [ordinal.expression.copy()]
        elif isinstance(constant, exp.Literal):
            refusals.add(
                "order_by_form",
                term,
                f"{to_sql(target)} is no position in the select list.",
                f"Positions go from 1 to {len(items)}.",
            )
        else:
            found = [resolver.resolve(target, alias_first=True)]
        resolved += [exp.Ordered(**{**term.args, "this": expression}) for expression in found]
    return tuple(resolved)
