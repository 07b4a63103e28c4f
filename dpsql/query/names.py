"""Name resolution: columns get their declared names, aliases and ordinals become what they stand for.

After this step two texts that mean the same frame have the same tree, whatever quoting, case, prefixes, aliases
or ordinals they were written with.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sqlglot import exp

from dpsql.errors import ParseError, SchemaError
from dpsql.query.aggregate_calls import NAMED_ARGUMENTS, is_aggregate_call, is_interval_call
from dpsql.query.clauses import Clauses, conjuncts, qualifier_of
from dpsql.query.dialect import MAX_NODES, span_of, to_sql, unquoted
from dpsql.query.environment import Column, Environment, JoinedName, TableSchema, folded
from dpsql.query.refusals import Refusals
from dpsql.query.written_sets import MOST_SETS, has_sets, written_sets


@dataclass(frozen=True, slots=True)
class SelectItem:
    """One expression of the select list, resolved, with the name its column will have."""

    name: str
    expression: exp.Expr


@dataclass(frozen=True, slots=True)
class ResolvedSelect:
    """Clauses whose columns are resolved.

    Attributes:
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
        conditions = [part for part in (self.having, self.qualify) if part is not None]
        return (*(item.expression for item in self.items), *conditions, *(term.this for term in self.order))


class _Resolver:
    def __init__(self, clauses: Clauses, schema: TableSchema, environment: Environment, refusals: Refusals):
        self._schema = schema
        self._environment = environment
        self._refusals = refusals
        self._unfolded = 0
        self._qualifiers = {qualifier_of(node) for node, _ in clauses.sources} - {""}
        self._aliases: dict[str, exp.Expr] = {
            item.alias.lower(): item.this for item in clauses.select if isinstance(item, exp.Alias)
        }

    def resolve(self, node: exp.Expr, *, alias_first: bool = False) -> exp.Expr:
        """Copy of ``node`` with columns resolved; select aliases stand for their expressions."""
        return self._transform(node.copy(), alias_first=alias_first, seen=frozenset())

    def _transform(self, root: exp.Expr, *, alias_first: bool, seen: frozenset[str]) -> exp.Expr:
        def visit(node: exp.Expr) -> exp.Expr:
            if is_interval_call(node):
                return node
            compared = node.args.get("query") or node.this if isinstance(node, exp.In | exp.Any | exp.All) else None
            if isinstance(node, exp.Query | exp.Exists) or isinstance(compared, exp.Query):
                return self._subquery(node)
            if isinstance(node, exp.Star) and not is_aggregate_call(node.parent or node):
                return self._star(node)
            if isinstance(node, exp.Column):
                return self._column(node, alias_first=alias_first, seen=seen)
            return self._fold_clock(node)

        return map_tree(root, visit, is_interval_call)

    def _subquery(self, node: exp.Expr) -> exp.Expr:
        self._refusals.add(
            "row_syntax", node, "a subquery has no private form here.",
            "In WHERE, one condition by itself may be [NOT] EXISTS or [NOT] IN; else write values out, as in "
            "x IN (1, 2).",
        )  # fmt: skip
        return exp.null()

    def _star(self, node: exp.Expr) -> exp.Expr:
        self._refusals.add("star", node, "a star would release rows.", "Name keys and aggregates.")
        return exp.null()

    def unstarred(self, item: exp.Expr) -> list[exp.Expr]:
        """The columns that a star of the select list stands for; any other item as it is."""
        star = item.this if isinstance(item, exp.Column) else item
        if not isinstance(star, exp.Star):
            return [item]
        if star.args.get("replace") or star.args.get("rename"):
            self._refusals.add("star", item, "this star has no private form.", "Name columns, or write * EXCLUDE (x).")
        qualifier = item.table.lower() if isinstance(item, exp.Column) else ""
        left_out = {folded(column.name) for column in star.args.get("except_") or ()}
        columns: list[exp.Expr] = []
        for one in self._schema.visible:
            named = qualifier in ("", one.qualifier, *(self._qualifiers if not self._schema.names else ()))
            if named and not (one.hidden and not qualifier) and folded(one.declared) not in left_out:
                column = exp.column(
                    exp.to_identifier(one.declared, quoted=True),
                    table=exp.to_identifier(one.qualifier, quoted=True) if one.qualifier else None,
                )
                column.this.update_positions(item if "end" in item.meta else star)
                columns.append(column)
        if not columns:
            self._refusals.add("star", item, "this star stands for no column.", "Name columns.")
        return columns

    def _unfold(self, alias: exp.Expr, *, seen: frozenset[str]) -> exp.Expr:
        # aliases of aliases double at every step
        self._unfolded += sum(1 for _ in alias.walk())
        if self._unfolded > MAX_NODES:
            raise ParseError("the aliases of the select list unfold to too long a query")
        unfolded = self._transform(alias.copy(), alias_first=False, seen=seen)
        # an operator that takes an alias's place must not be torn apart by its neighbours
        binds = isinstance(unfolded, exp.Binary | exp.Unary | exp.Predicate) and not isinstance(unfolded, exp.Paren)
        return exp.paren(unfolded, copy=False) if binds else unfolded

    def _column(self, node: exp.Column, *, alias_first: bool, seen: frozenset[str]) -> exp.Expr:
        name = node.name
        qualified = bool(node.table)
        if isinstance(node.this, exp.Star):
            return self._star(node)
        declared = self._declared(node)
        alias = None if qualified or name.lower() in seen else self._aliases.get(name.lower())
        if alias is not None and (alias_first or declared is None):
            return self._unfold(alias, seen=seen | {name.lower()})
        span = span_of(node, self._refusals.text)
        if qualified and (node.args.get("db") or node.table.lower() not in self._qualifiers):
            raise SchemaError(
                f"there is no table {node.table!r} in this query.",
                hint=f"Its tables are called {', '.join(map(repr, sorted(self._qualifiers)))}.",
                span=span,
            )
        if declared is None:
            columns = ", ".join(dict.fromkeys(one.declared for one in self._schema.visible))
            bounds = f"Bounds read {name} => (0, 500), with an arrow. " if name.lower() in NAMED_ARGUMENTS else ""
            raise SchemaError(f"there is no column {name!r}.", hint=f"{bounds}Columns are {columns}.", span=span)
        resolved = exp.column(exp.to_identifier(declared.name, quoted=True))
        resolved.this.meta.update(node.this.meta)
        return resolved

    def _declared(self, node: exp.Column) -> Column | None:
        """The column that a name means; of joined tables, under the name that it has in the joined rows.

        Raises:
            SchemaError: several columns have this name.

        """
        found = named_columns(self._schema, node.name, node.table)
        if len(found) > 1:
            tables = ", ".join(f"{one.qualifier}.{one.declared}".removeprefix(".") for one in found)
            raise SchemaError(
                f"column {node.name!r} is there more than once.", hint=f"Columns are {tables}.",
                span=span_of(node, self._refusals.text),
            )  # fmt: skip
        return self._schema.column(found[0].output) if found else None

    def _fold_clock(self, node: exp.Expr) -> exp.Expr:
        now = self._environment.now
        called = node.name.lower() if isinstance(node, exp.Anonymous) and not node.expressions else ""
        if isinstance(node, exp.CurrentDate) or called == "today":
            return exp.cast(exp.Literal.string(now.date().isoformat()), "DATE", dialect="duckdb")
        if isinstance(node, exp.CurrentTimestamp) or called in ("now", "get_current_timestamp"):
            return exp.cast(exp.Literal.string(now.isoformat(sep=" ")), "TIMESTAMPTZ", dialect="duckdb")
        return node


def named_columns(schema: TableSchema, name: str, qualifier: str) -> list[JoinedName]:
    """The columns that a name with or without its table can mean; of one table, the one that DuckDB takes."""
    if not schema.names:
        column = schema.column(name)
        return [] if column is None else [JoinedName("", column.name, column.name, False)]
    alike = [one for one in schema.names if folded(one.declared) == folded(name)]
    return [one for one in alike if (one.qualifier == qualifier.lower() if qualifier else not one.hidden)]


def map_tree(root: exp.Expr, visit: Callable[[exp.Expr], exp.Expr], is_whole: Callable[[exp.Expr], bool]) -> exp.Expr:
    """Replace nodes from the root down; neither what ``visit`` put in a node's place nor a whole is gone into."""
    replaced = visit(root)
    if replaced is not root:
        return replaced
    if is_whole(root):
        return root
    for child in list(root.iter_expressions()):
        mapped = map_tree(child, visit, is_whole)
        if mapped is not child:
            child.replace(mapped)
    return root


def resolve_names(
    clauses: Clauses, schema: TableSchema, environment: Environment, refusals: Refusals, *, inside: bool = False
) -> ResolvedSelect:
    """Resolve every name of the query against the source's schema and the select list's aliases.

    ``inside`` a subquery a star stands for all columns, and two columns may have one name.
    """
    resolver = _Resolver(clauses, schema, environment, refusals)
    select = [one for item in clauses.select for one in (resolver.unstarred(item) if inside else [item])]
    # DuckDB ends a name at the character NUL
    written = [_column_name(item).replace("\0", "") for item in select]
    if "" in written:
        raise ParseError("an alias cannot be empty", span_of(select[written.index("")], refusals.text))
    names = written if inside else _distinct_names(written)
    items = tuple(
        SelectItem(name, resolver.resolve(item.unalias() if isinstance(item, exp.Alias) else item))
        for name, item in zip(names, select, strict=True)
    )
    where = resolver.resolve(clauses.where) if clauses.where is not None else None
    keys, sets = _grouping(clauses, items, resolver, refusals, inside=inside)
    return ResolvedSelect(
        items=items,
        filters=tuple(conjuncts(where)),
        keys=keys,
        sets=sets,
        having=resolver.resolve(clauses.having) if clauses.having is not None else None,
        qualify=resolver.resolve(clauses.qualify) if clauses.qualify is not None else None,
        order=_order(clauses, items, resolver, refusals),
    )


def _column_name(item: exp.Expr) -> str:
    """Name of a result column: the alias, the column's own name, or DuckDB's name for a bare ``count(*)``."""
    if isinstance(item, exp.Alias):
        return str(item.alias)
    if isinstance(item, exp.Column):
        return str(item.name)
    if isinstance(item, exp.Count) and isinstance(item.this, exp.Star) and not item.expressions:
        return "count_star()"
    return unquoted(item)


def _distinct_names(names: Sequence[str]) -> list[str]:
    """Column names made distinct as DuckDB does for a table: the second ``n`` is ``n_1``."""
    distinct: list[str] = []
    for name in names:
        taken = {other.lower() for other in distinct}
        candidates = (name if i == 0 else f"{name}_{i}" for i in range(len(names)))
        distinct.append(next(candidate for candidate in candidates if candidate.lower() not in taken))
    return distinct


def _grouping(
    clauses: Clauses, items: Sequence[SelectItem], resolver: _Resolver, refusals: Refusals, *, inside: bool
) -> tuple[tuple[exp.Expr, ...], tuple[tuple[int, ...], ...]]:
    """The grouping expressions, and which of them each grouping set has."""
    group = clauses.group
    if group is None:
        return (), ((),)
    for name, value in group.args.items():
        if value and name not in ("expressions", "all"):
            form = value[0] if isinstance(value, list) else value
            _refuse_group_form(form if isinstance(form, exp.Expr) else group, refusals, inside=inside)
    sets = None if inside or not has_sets(group) else written_sets(group)
    if sets is None:
        keys = _group_keys(group, items, resolver, refusals, inside=inside)
        return keys, (tuple(range(len(keys))),)
    nodes = {id(node): node for one in sets for node in one}
    found = {place: _group_key(node, items, resolver, refusals) for place, node in nodes.items()}
    keys = _without_aggregates([key for key in found.values() if key is not None], refusals)
    places = {to_sql(key): place for place, key in enumerate(keys)}
    texts = [[to_sql(key) for key in map(found.get, map(id, one)) if key is not None] for one in sets]
    return keys, tuple(tuple(sorted({places[text] for text in one if text in places})) for one in texts)


def _group_keys(
    group: exp.Group, items: Sequence[SelectItem], resolver: _Resolver, refusals: Refusals, *, inside: bool
) -> tuple[exp.Expr, ...]:
    if group.args.get("all"):
        return _distinct([item.expression for item in items if not _has_aggregate(item.expression)])
    found: list[exp.Expr | None] = []
    for written in _flatten(group.expressions):
        if isinstance(written, exp.GroupingSets | exp.Cube | exp.Rollup):
            _refuse_group_form(written, refusals, inside=inside)
            continue
        found.append(_group_key(written, items, resolver, refusals))
    return _without_aggregates([key for key in found if key is not None], refusals)


def _group_key(
    written: exp.Expr, items: Sequence[SelectItem], resolver: _Resolver, refusals: Refusals
) -> exp.Expr | None:
    ordinal = _ordinal(written, items)
    if ordinal is not None:
        return ordinal.expression.copy()
    if isinstance(written, exp.Literal) and not written.is_string:
        refusals.add(
            "group_by_form", written, f"position {written.name} is not in the select list.",
            f"Positions go from 1 to {len(items)}.",
        )  # fmt: skip
        return None
    return resolver.resolve(written).unnest()


def _without_aggregates(keys: Sequence[exp.Expr], refusals: Refusals) -> tuple[exp.Expr, ...]:
    for key in keys:
        if _has_aggregate(key):
            refusals.add("group_by_form", key, "a group key cannot hold an aggregate.", "Group by row values.")
    return _distinct([key for key in keys if not _has_aggregate(key)])


def _refuse_group_form(node: exp.Expr, refusals: Refusals, *, inside: bool) -> None:
    if isinstance(node, exp.GroupingSets | exp.Cube | exp.Rollup) and node.expressions:
        message = "a subquery has one set of keys." if inside else f"more than {MOST_SETS} grouping sets are too many."
        refusals.add("group_by_form", node, message, "Write one GROUP BY there." if inside else "Ask for fewer.")
        return
    refusals.add(
        "group_by_form", node, "this form of GROUP BY is none of DuckDB's.", "Write GROUP BY ROLLUP (a, b), or CUBE.",
    )  # fmt: skip


def _flatten(expressions: Sequence[exp.Expr]) -> list[exp.Expr]:
    return [
        part
        for expression in expressions
        for part in (expression.expressions if isinstance(expression, exp.Tuple) else [expression])
    ]


def _ordinal(node: exp.Expr, items: Sequence[SelectItem]) -> SelectItem | None:
    if isinstance(node, exp.Literal) and not node.is_string and node.name.isdigit():
        position = int(node.name)
        if 1 <= position <= len(items):
            return items[position - 1]
    return None


def _distinct(keys: Sequence[exp.Expr]) -> tuple[exp.Expr, ...]:
    by_text = {to_sql(key): key for key in keys}
    return tuple(by_text.values())


def _has_aggregate(node: exp.Expr) -> bool:
    return any(is_aggregate_call(part) or is_interval_call(part) for part in node.walk())


def _order(
    clauses: Clauses, items: Sequence[SelectItem], resolver: _Resolver, refusals: Refusals
) -> tuple[exp.Expr, ...]:
    resolved: list[exp.Expr] = []
    for term in clauses.order:
        if not isinstance(term, exp.Ordered) or term.args.get("with_fill"):
            refusals.add("order_by_form", term, "this form of ORDER BY has no private form.", "Write ORDER BY expr.")
            continue
        target = term.this
        if isinstance(target, exp.Var) and target.name.upper() == "ALL":
            resolved.extend(_ordered(term, item.expression.copy()) for item in items)
            continue
        ordinal = _ordinal(target, items)
        constant = target.this if isinstance(target, exp.Neg) else target
        if ordinal is None and isinstance(constant, exp.Literal):
            refusals.add(
                "order_by_form", term, f"{to_sql(target)} is no position in the select list.",
                f"Positions go from 1 to {len(items)}.",
            )  # fmt: skip
            continue
        expression = ordinal.expression.copy() if ordinal else resolver.resolve(target, alias_first=True)
        resolved.append(_ordered(term, expression))
    return tuple(resolved)


def _ordered(term: exp.Ordered, expression: exp.Expr) -> exp.Expr:
    return exp.Ordered(this=expression, desc=term.args.get("desc"), nulls_first=term.args.get("nulls_first"))
