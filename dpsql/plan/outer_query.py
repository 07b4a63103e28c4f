"""A query around a private one, which computes something of its answer.

In ``SELECT city, n FROM (SELECT city, count(*) AS n FROM visits GROUP BY city) WHERE n > 10`` what is around asks
something of the answer, which costs nothing. It may use the whole of SELECT but joins, with row expressions, aggregates
and windows from the lists; it never sees a table. `split` takes the two apart. `picks_by_numbers` finds out if it picks
rows by noisy numbers.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial

from sqlglot import exp

from dpsql.errors import SchemaError
from dpsql.model.environment import Column, Environment, folded
from dpsql.model.private_query import After, OutputColumn, PrivateQuery
from dpsql.model.refusals import Refusals
from dpsql.operations.dialect import quote, span_of, to_sql
from dpsql.plan.outer_orders import sort_by_place
from dpsql.sql.around_queries import QUERY_PARTS, drop_unused, is_called_by_name, name_truths, with_needed
from dpsql.sql.clauses import is_plain_table
from dpsql.sql.outer_literals import check_outer_literals
from dpsql.sql.picked_rows import picks_numbers
from dpsql.sql.row_rules import check_node
from dpsql.sql.source.scope import PrivateInside

RESULT = "dpsql_result"
"""Name under which a query over an answer reads it."""
_MOST_READINGS = 8
_NOT_IN_ARROW = ("HUGEINT", "UUID")
"""Types that an answer has lost when it comes from Arrow: they are DOUBLE and VARCHAR there."""

_OF_NUMBERS = re.compile(r"\b(agg|window)_\d")
"""Columns of noisy numbers in the SQL of an answer."""


def read_after(
    outer: exp.Select, columns: Sequence[OutputColumn], environment: Environment, refusals: Refusals
) -> After:
    """Return an outer query as SQL that reads the answer from ``RESULT``, checked and bound.

    Raises:
        SchemaError: it does not bind.
        UnsupportedQueryError: it uses more than the answer, or what is not on the lists.

    """
    before = len(refusals.found)
    names = {RESULT, *(folded(cte.alias) for cte in outer.find_all(exp.CTE))}
    tables = list(outer.find_all(exp.Table))
    for table in tables:
        if folded(table.name) not in names or not is_plain_table(table) or len(table.parts) > 1:
            refusals.add(
                "after",
                table,
                "the text around a private query may compute with its answer alone.",
                "Join tables inside it, and ask two private queries apart.",
            )
    if len(tables) > _MOST_READINGS:
        refusals.add(
            "after", tables[_MOST_READINGS], f"an answer is read at most {_MOST_READINGS} times.", "Ask in steps."
        )
    name_truths(outer)
    for node in outer.walk():
        if isinstance(node, exp.Join) or (isinstance(node, exp.With) and node.args.get("recursive")):
            refusals.add("after", node, "an answer is not joined here.", "Join in DuckDB or pandas, afterwards.")
        elif not isinstance(node, QUERY_PARTS) and not is_called_by_name(node):
            check_node(node, refusals)
    refusals.raise_if_any(before)
    known = {folded(one.name): one.order for one in columns}
    orders = sort_by_place(outer, RESULT, known) if any(known.values()) else {}
    read = [Column(one.name, one.type, True) for one in columns]
    zones = sorted({zone for one in columns for zone in one.zone.split()})
    _restore_types(outer, columns)
    try:
        if set(zones) - {"UTC"}:
            from dpsql.plan.outer_clocks import write_clocks  # noqa: PLC0415 (few policies name a zone)

            write_clocks(outer, " ".join(zones), partial(_bound, outer, read, environment), refusals)
        sql = to_sql(outer)
        shown = environment.schemas.bind_after(RESULT, read, sql)
    except SchemaError as error:
        raise SchemaError(str(error), span=span_of(outer, refusals.text)) from None
    for select in outer.find_all(exp.Select):
        check_outer_literals(select, partial(_bound, outer, read, environment), environment, refusals)
    refusals.raise_if_any(before)
    columns = [
        OutputColumn(
            name, quote(name), kind, order=orders.get(folded(name), ()), zone=" ".join(zones) if "ZONE" in kind else ""
        )
        for name, kind in shown
    ]
    return After(sql, tuple(columns))


def _bound(
    outer: exp.Expr, columns: Sequence[Column], environment: Environment, select: exp.Select
) -> Sequence[tuple[str, str]]:
    """Return names and types of a SELECT inside an outer query, whose WITH it sees."""
    alone = select.copy()
    queries = [cte.copy() for with_ in outer.find_all(exp.With) for cte in with_.expressions]
    if queries:
        alone.set("with_", exp.With(expressions=queries))
    return environment.schemas.bind_after(RESULT, columns, to_sql(alone))


def _restore_types(outer: exp.Select, columns: Sequence[OutputColumn]) -> None:
    """Read the answer with the types that it was planned with, so that what binds to them runs with them."""
    lost = [
        exp.alias_(exp.cast(exp.column(one.name, quoted=True), one.type, dialect="duckdb"), one.name, quoted=True)
        for one in columns
        if one.type in _NOT_IN_ARROW
    ]
    for table in list(outer.find_all(exp.Table)) if lost else ():
        select = table.find_ancestor(exp.Select)
        if table.name == RESULT and select is not None and select.is_star and len(select.expressions) == 1:
            select.set("expressions", [exp.Star(replace=[one.copy() for one in lost])])


def split(tree: exp.Select, inside: PrivateInside) -> tuple[exp.Select, exp.Select] | None:
    """The private query and what stands around it; None where it does not stand in this text, as in a view."""
    if inside.node is tree or inside.node.root() is not tree.root():
        return None
    inner = with_needed(inside.node, inside.queries)
    if tree.args.get("hint") and not inner.args.get("hint"):
        inner.set("hint", tree.args["hint"].copy())
    # marked, so that it is found in the copy
    inside.node.meta["private"] = True
    outer = tree.copy()
    del inside.node.meta["private"]
    place = next(node for node in outer.find_all(exp.Select) if node.meta.get("private"))
    place.replace(exp.select("*").from_(exp.table_(RESULT, quoted=True)))
    outer.set("hint", None)
    drop_unused(outer)
    return inner, outer


def picks_by_numbers(outer: exp.Select, query: PrivateQuery) -> bool:
    """Check that a query around an answer compares or orders noisy numbers so that some of them are shown.

    Args:
        outer: reads the answer of the other query, and is not bound yet.
        query: the query inside.

    """
    finish = query.first.finish
    shown = finish.columns
    # columns of a query between both may be numbers
    of_answer = {one.name for one in query.shown} - {
        one.name for one in (() if query.after else shown) if not _OF_NUMBERS.search(one.sql)
    }
    is_ordered = bool(finish.order_by) and bool(_OF_NUMBERS.search(finish.order_by[0]))
    return picks_numbers(outer, of_answer, is_ordered=is_ordered)
