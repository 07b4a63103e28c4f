"""Rows that LIMIT and other clauses pick of the groups of an answer by their noisy numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlglot import exp

from dpsql.model.top_rows import WINDOW, TopRows
from dpsql.operations.dialect import to_sql
from dpsql.sql.clauses import is_aggregate_call, is_interval_call, is_over_result
from dpsql.sql.source.sources import SelectText
from dpsql.sql.windows import order_terms


def picked_rows(
    text: SelectText, ordering: Sequence[exp.Expr], numbers: Mapping[str, int]
) -> tuple[TopRows | None, str]:
    """Return the rows that one number picks, or what picks rows by numbers in another way."""
    top = _top_rows(text, ordering, numbers)
    return top, "" if top else _picks(text)


def _top_rows(text: SelectText, ordering: Sequence[exp.Expr], numbers: Mapping[str, int]) -> TopRows | None:
    """Return the rows that LIMIT picks by one number alone; None where it picks none, or by anything else.

    Args:
        text: the query.
        ordering: the terms of ORDER BY that are no constants.
        numbers: of the aggregates by their texts.

    """
    limit, select = text.clauses.limit, text.select
    first, *others = [to_sql(term.this) for term in ordering] or [""]
    keys = {to_sql(key) for key in select.keys}
    # rows of several sets, or of the other groups, stand between those of one release
    mixed = text.has_sets or text.options.other_group is not None
    if limit is None or mixed or select.having or select.qualify:
        return None
    if first not in numbers or not keys.issuperset(others):
        return None
    term = ordering[0]
    is_largest, nulls_first = bool(term.args.get("desc")), bool(term.args.get("nulls_first"))
    return TopRows(numbers[first], is_largest, nulls_first, limit, text.clauses.offset or 0)


def _picks(text: SelectText) -> str:
    """Return the clause of a query that picks rows by their numbers; an empty text if none does."""
    select, limit = text.select, text.clauses.limit
    if select.having and _has_number(select.having):
        return "HAVING"
    if select.qualify and _has_number(select.qualify):
        return "QUALIFY"
    if (limit is not None or text.clauses.offset) and _orders_by_number(text):
        return "OFFSET" if limit is None else "LIMIT"
    windows = (node for item in select.items for node in item.expression.walk() if is_over_result(node))
    return WINDOW if any(_has_number(term.this) for one in windows for term in order_terms(one)) else ""


def _orders_by_number(text: SelectText) -> bool:
    """Check that ORDER BY has a number before the keys alone tell all rows apart."""
    keys, told = {to_sql(key) for key in text.select.keys}, set[str]()
    for term in text.select.order:
        if _has_number(term):
            return True
        told.add(to_sql(term.this))
        if keys <= told and not text.has_sets:
            return False
    return False


def _has_number(node: exp.Expr) -> bool:
    return any(is_aggregate_call(one) or is_interval_call(one) for one in node.walk())
