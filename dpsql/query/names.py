"""Name resolution: columns get their declared names, aliases and ordinals become what they stand for.

After this step two texts that mean the same frame have the same tree, whatever quoting, case, prefixes, aliases
or ordinals they were written with.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sqlglot import exp

from dpsql.errors import SchemaError
from dpsql.query.aggregates import is_aggregate_call
from dpsql.query.clauses import Clauses
from dpsql.query.dialect import span_of, to_sql
from dpsql.query.environment import Environment, TableSchema
from dpsql.query.refusals import Refusals

INTERVAL_FUNCTIONS = ("dp_interval_low", "dp_interval_high")


@dataclass(frozen=True, slots=True)
class SelectItem:
    """One expression of the select list, resolved, with the name its column will have."""

    name: str
    expression: exp.Expr


@dataclass(frozen=True, slots=True)
class ResolvedSelect:
    """Clauses whose columns are resolved; ``keys`` are the grouping expressions as written."""

    items: tuple[SelectItem, ...]
    filters: tuple[exp.Expr, ...]
    keys: tuple[exp.Expr, ...]
    having: exp.Expr | None
    order: tuple[exp.Expr, ...]


class _Resolver:
    def __init__(self, clauses: Clauses, schema: TableSchema, environment: Environment, refusals: Refusals):
        self._schema = schema
        self._environment = environment
        self._refusals = refusals
        source = clauses.source
        self._qualifiers = {source.alias_or_name.lower()}
        self._aliases: dict[str, exp.Expr] = {
            item.alias.lower(): item.this for item in clauses.select if isinstance(item, exp.Alias)
        }

    def resolve(self, node: exp.Expr, *, alias_first: bool = False) -> exp.Expr:
        """Copy of ``node`` with columns resolved; select aliases stand for their expressions."""
        return self._transform(node.copy(), alias_first=alias_first, seen=frozenset())

    def _transform(self, root: exp.Expr, *, alias_first: bool, seen: frozenset[str]) -> exp.Expr:
        def visit(node: exp.Expr) -> exp.Expr:
            if isinstance(node, exp.Anonymous) and node.name.lower() in INTERVAL_FUNCTIONS:
                return node
            if isinstance(node, exp.Column):
                return self._column(node, alias_first=alias_first, seen=seen)
            return self._fold_clock(node)

        return _map_tree(root, visit)

    def _column(self, node: exp.Column, *, alias_first: bool, seen: frozenset[str]) -> exp.Expr:
        name = node.name
        qualified = bool(node.table)
        if isinstance(node.this, exp.Star):
            return node
        declared = self._schema.column(name)
        alias = None if qualified or name.lower() in seen else self._aliases.get(name.lower())
        if alias is not None and (alias_first or declared is None):
            return self._transform(alias.copy(), alias_first=False, seen=seen | {name.lower()})
        span = span_of(node, self._refusals.text)
        if qualified and (node.args.get("db") or node.table.lower() not in self._qualifiers):
            raise SchemaError(
                f"there is no table {node.table!r} in this query.",
                hint=f"Its one table is called {next(iter(self._qualifiers))!r}.",
                span=span,
            )
        if declared is None:
            columns = ", ".join(column.name for column in self._schema.columns)
            raise SchemaError(f"there is no column {name!r}.", hint=f"Columns are {columns}.", span=span)
        resolved = exp.column(exp.to_identifier(declared.name, quoted=True))
        resolved.this.meta.update(node.this.meta)
        return resolved

    def _fold_clock(self, node: exp.Expr) -> exp.Expr:
        now = self._environment.now
        called = node.name.lower() if isinstance(node, exp.Anonymous) and not node.expressions else ""
        if isinstance(node, exp.CurrentDate) or called == "today":
            return exp.cast(exp.Literal.string(now.date().isoformat()), "DATE", dialect="duckdb")
        if isinstance(node, exp.CurrentTimestamp) or called in ("now", "get_current_timestamp"):
            return exp.cast(exp.Literal.string(now.isoformat(sep=" ")), "TIMESTAMPTZ", dialect="duckdb")
        return node


def _map_tree(root: exp.Expr, visit: Callable[[exp.Expr], exp.Expr]) -> exp.Expr:
    """Replace nodes from the root down; what ``visit`` returns in a node's place is not visited again."""
    replaced = visit(root)
    if replaced is not root:
        return replaced
    if isinstance(root, exp.Anonymous) and root.name.lower() in INTERVAL_FUNCTIONS:
        return root
    for child in list(root.iter_expressions()):
        mapped = _map_tree(child, visit)
        if mapped is not child:
            child.replace(mapped)
    return root


def resolve_names(
    clauses: Clauses, schema: TableSchema, environment: Environment, refusals: Refusals
) -> ResolvedSelect:
    """Resolve every name of the query against the source's schema and the select list's aliases."""
    resolver = _Resolver(clauses, schema, environment, refusals)
    items = tuple(
        SelectItem(_column_name(item), resolver.resolve(item.unalias() if isinstance(item, exp.Alias) else item))
        for item in clauses.select
    )
    for item, written in zip(items, clauses.select, strict=True):
        if isinstance(item.expression, exp.Star) or (
            isinstance(item.expression, exp.Column) and isinstance(item.expression.this, exp.Star)
        ):
            refusals.add("star", written, "a star would release rows.", "Name keys and aggregates.")
    where = resolver.resolve(clauses.where) if clauses.where is not None else None
    return ResolvedSelect(
        items=items,
        filters=_conjuncts(where),
        keys=_group_keys(clauses, items, resolver, refusals),
        having=resolver.resolve(clauses.having) if clauses.having is not None else None,
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
    return item.sql(dialect="duckdb", comments=False, normalize_functions="lower")


def _conjuncts(where: exp.Expr | None) -> tuple[exp.Expr, ...]:
    if where is None:
        return ()
    where = where.unnest()
    if isinstance(where, exp.And):
        return _conjuncts(where.left) + _conjuncts(where.right)
    return (where,)


def _group_keys(
    clauses: Clauses, items: Sequence[SelectItem], resolver: _Resolver, refusals: Refusals
) -> tuple[exp.Expr, ...]:
    group = clauses.group
    if group is None:
        return ()
    if group.args.get("all"):
        return _distinct([item.expression for item in items if not _has_aggregate(item.expression)])
    keys: list[exp.Expr] = []
    for written in _flatten(group.expressions):
        if isinstance(written, exp.GroupingSets | exp.Cube | exp.Rollup):
            refusals.add(
                "group_by_form", written, "GROUPING SETS, ROLLUP and CUBE have no private form yet.",
                "Ask one GROUP BY per level.",
            )  # fmt: skip
            continue
        ordinal = _ordinal(written, items)
        if ordinal is not None:
            keys.append(ordinal.expression.copy())
        elif isinstance(written, exp.Literal) and not written.is_string:
            refusals.add(
                "group_by_form", written, f"position {written.name} is not in the select list.",
                f"Positions go from 1 to {len(items)}.",
            )  # fmt: skip
        else:
            keys.append(resolver.resolve(written).unnest())
    for key in keys:
        if _has_aggregate(key):
            refusals.add("group_by_form", key, "a group key cannot hold an aggregate.", "Group by row values.")
    return _distinct(keys)


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
    return any(
        is_aggregate_call(part) or (isinstance(part, exp.Anonymous) and part.name.lower() in INTERVAL_FUNCTIONS)
        for part in node.walk()
    )


def _order(
    clauses: Clauses, items: Sequence[SelectItem], resolver: _Resolver, refusals: Refusals
) -> tuple[exp.Expr, ...]:
    resolved: list[exp.Expr] = []
    for term in clauses.order:
        if not isinstance(term, exp.Ordered) or term.args.get("with_fill"):
            refusals.add("clause", term, "this form of ORDER BY has no private form.", "Write ORDER BY expr.")
            continue
        target = term.this
        if isinstance(target, exp.Var) and target.name.upper() == "ALL":
            resolved.extend(_ordered(term, item.expression.copy()) for item in items)
            continue
        ordinal = _ordinal(target, items)
        expression = ordinal.expression.copy() if ordinal else resolver.resolve(target, alias_first=True)
        resolved.append(_ordered(term, expression))
    return tuple(resolved)


def _ordered(term: exp.Ordered, expression: exp.Expr) -> exp.Expr:
    return exp.Ordered(this=expression, desc=term.args.get("desc"), nulls_first=term.args.get("nulls_first"))
