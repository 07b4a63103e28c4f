"""Literals of a query around answers that cannot be cast to the types of the columns that the query reads.

Such a query fails after its private queries are paid for. So each SELECT of it is checked before, as
`dpsql.sql.literals` checks the rows of a private query.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sqlglot import exp

from dpsql.errors import SchemaError
from dpsql.model.environment import Column, Environment, folded
from dpsql.model.refusals import Refusals
from dpsql.operations.dialect import to_sql
from dpsql.operations.trees import map_tree
from dpsql.sql.around_queries import is_called_by_name
from dpsql.sql.clauses import sources_of
from dpsql.sql.literals import as_truth, check_literals

Bind = Callable[[exp.Select], Sequence[tuple[str, str]]]
_COMPUTED = "dpsql_computed_"


def check_outer_literals(select: exp.Select, bind: Bind, environment: Environment, refusals: Refusals) -> None:
    """Note a refusal for literals of one SELECT that cannot be cast to the types of the columns that it reads.

    Args:
        select: the outer query, or a SELECT inside it.
        bind: returns names and types of a SELECT that stands in the outer query.
        environment: computes on a row of NULLs.
        refusals: collects.

    """
    filters = [one.this for name in ("where", "having", "qualify") if (one := select.args.get(name))]
    joined = [one for join in select.args.get("joins") or () if (one := join.args.get("on"))]
    others = [one for name in ("group", "order") if (one := select.args.get(name))]
    roots = [*select.expressions, *others, *map(as_truth, (*filters, *joined))]
    if not any(root.find(exp.Literal, exp.RawString) for root in roots):
        return
    read = _columns_of(sources_of(select), bind)
    computed: list[Column] = []
    plain = [_with_values(_without_tables(root), bind, computed) for root in roots]
    plain = [root for root in plain if not root.find(exp.Query)]
    inside = [part for root in plain for node in root.walk() if _aggregates(node) for part in node.iter_expressions()]
    above = [_with_aggregates(root, [*read, *computed], computed, environment) for root in plain]
    check_literals([*above, *inside], [*read, *computed], environment, refusals)


def _columns_of(sources: Sequence[exp.Expr], bind: Bind) -> list[Column]:
    """Return the columns of some sources, without those that have one name and several types."""
    kinds: dict[str, set[str]] = {}
    names: dict[str, str] = {}
    for source in sources:
        try:
            found = bind(exp.select("*").from_(source.copy()))
        except SchemaError:
            # a query that WITH names inside another one is not known here
            continue
        for name, kind in found:
            kinds.setdefault(folded(name), set()).add(kind)
            names.setdefault(folded(name), name)
    return [Column(names[name], found.pop(), True) for name, found in kinds.items() if len(found) == 1]


def _with_values(root: exp.Expr, bind: Bind, computed: list[Column]) -> exp.Expr:
    """Return an expression with columns in place of the queries that are values; add these columns to ``computed``."""

    def visit(node: exp.Expr) -> exp.Expr | None:
        if isinstance(node, exp.In | exp.Exists | exp.Any | exp.All):
            return None
        if not isinstance(node, exp.Subquery) or not isinstance(node.this, exp.Query):
            return node
        try:
            ((_, kind),) = bind(exp.select("*").from_(node.copy()))
        except (SchemaError, ValueError):
            # it reads a column of the rows around it
            return None
        return _column(kind, computed)

    return map_tree(root, visit)


def _with_aggregates(
    root: exp.Expr, columns: Sequence[Column], computed: list[Column], environment: Environment
) -> exp.Expr:
    """Return an expression with columns in place of its aggregates and windows; add these columns to ``computed``."""

    def visit(node: exp.Expr) -> exp.Expr:
        if not _aggregates(node):
            return node
        try:
            (kind,) = environment.schemas.describe(columns, [to_sql(node)])
        except SchemaError:
            return node
        return _column(kind, computed)

    return map_tree(root.copy(), visit)


def _column(kind: str, computed: list[Column]) -> exp.Column:
    computed.append(Column(f"{_COMPUTED}{len(computed)}", kind, True))
    return exp.column(computed[-1].name, quoted=True)


def _aggregates(node: exp.Expr) -> bool:
    return isinstance(node, exp.AggFunc | exp.Window | exp.Filter) or is_called_by_name(node)


def _without_tables(root: exp.Expr) -> exp.Expr:
    """Return an expression whose columns do not name the table that they are of."""
    copied = root.copy()
    for column in copied.find_all(exp.Column):
        column.set("table", None)
    return copied
