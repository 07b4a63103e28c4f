"""Queries over a private answer: what stands around a private GROUP BY in one text is computed of its noisy result.

``SELECT city, n FROM (SELECT city, count(*) AS n FROM visits GROUP BY city) WHERE n > 10`` asks one private query, and
then something of the answer alone: post-processing, which costs nothing. What is around may use the whole of SELECT but
joins, with row expressions, aggregates and windows from the lists; it never sees a table.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp

from dpsql.errors import SchemaError
from dpsql.query.allowed import check_node
from dpsql.query.clauses import is_plain_table
from dpsql.query.dialect import quote, span_of, to_sql
from dpsql.query.environment import Column, Environment, folded
from dpsql.query.inner_query import RESULT, tables_of
from dpsql.query.private_query import After, OutputColumn
from dpsql.query.refusals import Refusals
from dpsql.query.windows import RESULT_FUNCTIONS

_MOST_READINGS = 8
_QUERY_PARTS: tuple[type, ...] = (
    exp.Select, exp.From, exp.Where, exp.Group, exp.Having, exp.Qualify, exp.Order, exp.Ordered, exp.Limit, exp.Offset,
    exp.Subquery, exp.With, exp.CTE, exp.Table, exp.TableAlias, exp.Alias, exp.Star, exp.Distinct, exp.Window,
    exp.WindowSpec, exp.Filter, exp.Union, *RESULT_FUNCTIONS,
)  # fmt: skip

_NOT_IN_ARROW = ("HUGEINT", "UUID")
"""Types that an answer has lost when it comes from Arrow: they are DOUBLE and VARCHAR there."""


def read_after(
    outer: exp.Select, columns: Sequence[OutputColumn], environment: Environment, refusals: Refusals
) -> After:
    """What is computed of the answer, as SQL that reads ``RESULT``; checked and bound.

    Raises:
        SchemaError: it does not bind.
        UnsupportedQueryError: it uses more than the answer, or what is not on the lists.

    """
    before = len(refusals.found)
    names = {RESULT, *(folded(cte.alias) for cte in outer.find_all(exp.CTE))}
    tables = tables_of(outer)
    for table in tables:
        if folded(table.name) not in names or not is_plain_table(table) or len(table.parts) > 1:
            refusals.add(
                "after", table, "around a private query stands what is computed of its answer alone.",
                "Join tables inside it, and ask two private queries apart.",
            )  # fmt: skip
    if len(tables) > _MOST_READINGS:
        refusals.add(
            "after", tables[_MOST_READINGS], f"an answer is read at most {_MOST_READINGS} times.", "Ask in steps.",
        )  # fmt: skip
    for node in outer.walk():
        if isinstance(node, exp.Join) or (isinstance(node, exp.With) and node.args.get("recursive")):
            refusals.add("after", node, "an answer is not joined here.", "Join in DuckDB or pandas, afterwards.")
        elif not isinstance(node, _QUERY_PARTS) and not _is_median(node):
            check_node(node, refusals)
    refusals.raise_if_any(before)
    _restore_types(outer, columns)
    sql = to_sql(outer)
    try:
        shown = environment.schemas.bind_after(RESULT, [Column(one.name, one.type, True) for one in columns], sql)
    except SchemaError as error:
        raise SchemaError(str(error), span=span_of(outer, refusals.text)) from None
    return After(sql, tuple(OutputColumn(name, quote(name), kind) for name, kind in shown))


def _is_median(node: exp.Expr) -> bool:
    """Whether a node is a call of median(), which is parsed as a call by name."""
    return isinstance(node, exp.Anonymous) and node.name.lower() == "median" and len(node.expressions) == 1


def _restore_types(outer: exp.Select, columns: Sequence[OutputColumn]) -> None:
    """Read the answer with the types that it was planned with, so that what binds to them runs with them."""
    lost = [
        exp.alias_(exp.cast(exp.column(one.name, quoted=True), one.type, dialect="duckdb"), one.name, quoted=True)
        for one in columns
        if one.type in _NOT_IN_ARROW
    ]
    for table in tables_of(outer) if lost else ():
        select = table.find_ancestor(exp.Select)
        if table.name == RESULT and select is not None and select.is_star and len(select.expressions) == 1:
            select.set("expressions", [exp.Star(replace=[one.copy() for one in lost])])
