"""Other spellings of aggregates that have a private form, as a SELECT that names these forms.

Only a SELECT that was refused comes here. Subqueries are not touched. A column keeps the name that it has in the text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal, InvalidOperation

from sqlglot import exp

from dpsql.model.estimates import EXTREMES
from dpsql.operations.dialect import to_sql
from dpsql.operations.trees import map_tree
from dpsql.plan.looked_up_columns import looked_up_tables
from dpsql.sql.clauses import EXTREME, ReleasedList, is_aggregate_call
from dpsql.sql.column_names import column_name
from dpsql.sql.source.sources import SelectText

_SHARES: dict[type[exp.Expr], str] = {exp.PercentileCont: "quantile_cont", exp.PercentileDisc: "quantile_disc"}
_QUANTILES = ("quantile", "quantile_cont", "quantile_disc", "approx_quantile")
_EXTREMES: dict[type[exp.Expr], str] = {exp.Min: "minimum", exp.Max: "maximum"}
_ANSWERED = ("expressions", "having", "qualify", "order")
_PLACE = ("line", "col", "start", "end")
_Form = Callable[[exp.Expr], exp.Expr]
"""Puts the FILTER of a call around another call."""


def respelled(select: exp.Select, text: SelectText) -> exp.Select | None:
    """Return a SELECT in which aggregates have the names of their private forms, or None if they have them already.

    Args:
        select: a SELECT of rows, as it is written.
        text: the query. Its options say if min and max of rows are answered by quantiles.

    """
    keys, with_extremes = {_plain(key) for key in _keys(select)}, text.options.extremes is not None
    tables = looked_up_tables(text, select, list(_keys(select))) if select.find(exp.AnyValue) else frozenset()
    more_keys: list[exp.Expr] = []

    def visit(node: exp.Expr) -> exp.Expr | None:
        if isinstance(node, exp.Query | exp.Window):
            return None
        if (column := _any_column(node)) and column.table.lower() in tables:
            more_keys.append(column.copy())
            return column.copy()
        return _private_form(node, keys, with_extremes=with_extremes) or node

    answered = select.copy()
    for name in _ANSWERED:
        part = answered.args.get(name)
        if isinstance(part, list):
            answered.set(name, [_named(item, map_tree(item.copy(), visit)) for item in part])
        elif part is not None:
            answered.set(name, map_tree(part, visit))
    group = answered.args.get("group")
    if more_keys and group and not group.args.get("all"):
        group.set("expressions", [*group.expressions, *dict.fromkeys(more_keys)])
    return None if answered == select else answered


def _private_form(node: exp.Expr, keys: set[str], *, with_extremes: bool) -> exp.Expr | None:
    """Return the private form of an aggregate with another name, or None for any other node."""
    call, form = _unfiltered(node)
    match call:
        case exp.WithinGroup():
            return _percentile(call, form)
        case exp.ApproxDistinct() | exp.Min() | exp.Max() | exp.IgnoreNulls() if _value_of(call) is None:
            return None
        case exp.ApproxDistinct():
            value = call.this if isinstance(call.this, exp.Distinct) else exp.Distinct(expressions=[call.this])
            return form(_placed(exp.Count(this=value.copy()), call))
        case exp.Anonymous(expressions=[value, exp.Array() as shares, *others]) if _is_quantile(call):
            return _listed(call.name.lower(), value, shares, others, call, form)
        case exp.IgnoreNulls(this=exp.AnyValue()) if call is not node:
            # no key has a FILTER, so it is refused as it is written
            return node.copy()
        case exp.IgnoreNulls(this=exp.AnyValue()) if _is_of_keys(call.this.this, keys):
            key: exp.Expr = call.this.this.copy()
            return key
        case exp.Min() | exp.Max() if with_extremes and isinstance(call.args.get("count"), exp.Kwarg | None):
            return form(_quantile_of_extreme(call))
    return None


def _any_column(node: exp.Expr) -> exp.Column | None:
    """Return the column of which a call takes any value, or None for any other node."""
    call = node.this if isinstance(node, exp.IgnoreNulls) else None
    value = call.this if isinstance(call, exp.AnyValue) else None
    return value if isinstance(value, exp.Column) else None


def _value_of(call: exp.Expr) -> exp.Expr | None:
    """Return the first argument of a call, or None if it has none."""
    inner = call.this if isinstance(call, exp.IgnoreNulls) else call
    value: exp.Expr | None = inner.this
    return value


def _unfiltered(node: exp.Expr) -> tuple[exp.Expr, _Form]:
    """Return the call inside a FILTER, and what puts the FILTER around another call."""
    if not isinstance(node, exp.Filter):
        return node, lambda call: call
    return node.this, lambda call: exp.Filter(this=call, expression=node.expression.copy())


def _quantile_of_extreme(call: exp.Expr) -> exp.Expr:
    """Return the quantile that stands for a minimum or maximum of rows, with the bounds that the call names."""
    extreme, named = _EXTREMES[type(call)], [part for part in (call.args.get("count"), *call.expressions) if part]
    quantile = _placed(_called("quantile_cont", call.this, exp.Literal.number(EXTREMES[extreme]), *named), call)
    quantile.meta[EXTREME] = extreme
    return quantile


def _is_quantile(call: exp.Anonymous) -> bool:
    return call.name.lower().removeprefix("dp_") in _QUANTILES


def _percentile(group: exp.WithinGroup, form: _Form) -> exp.Expr | None:
    """Return the quantile that a percentile WITHIN GROUP is; None if the call has another form."""
    # WITHIN GROUP () has no order
    call, terms = group.this, group.expression.expressions if group.expression else []
    function = _SHARES.get(type(call), "")
    parts = [call.this, call.args.get("expression")] if function else list(call.expressions)
    if isinstance(call, exp.Anonymous) and _is_quantile(call):
        function = call.name.lower()
    if not function or len(terms) != 1 or not parts:
        return None
    share, *others = (part for part in parts if part is not None)
    if terms[0].args.get("desc"):
        share = _from_the_top(share)
    if isinstance(share, exp.Array):
        return _listed(function, terms[0].this, share, others, call, form)
    return form(_placed(_called(function, terms[0].this, share, *others), call))


def _from_the_top(share: exp.Expr) -> exp.Expr:
    """Return the share, or the list of shares, that is counted from the largest value."""
    if isinstance(share, exp.Array):
        return exp.Array(expressions=[_from_the_top(one) for one in share.expressions])
    try:
        return exp.Literal.number(str(1 - Decimal(share.name)))
    except InvalidOperation:
        return share


def _listed(
    function: str, value: exp.Expr, shares: exp.Array, others: Sequence[exp.Expr], call: exp.Expr, form: _Form
) -> exp.Expr | None:
    """Return the list of the quantiles of one value, NULL if a group has no rows; None of an empty list."""
    calls = [form(_placed(_called(function, value, share, *others), call)) for share in shares.expressions]
    if not calls:
        return None
    return exp.case().when(exp.not_(exp.Is(this=calls[0], expression=exp.null())), ReleasedList(expressions=calls))


def _called(function: str, *arguments: exp.Expr) -> exp.Anonymous:
    return exp.Anonymous(this=function, expressions=[one.copy() for one in arguments])


def _placed(call: exp.Expr, instead_of: exp.Expr) -> exp.Expr:
    """Return a call with the place in the text of the call that it replaces."""
    call.meta.update({name: instead_of.meta[name] for name in _PLACE if name in instead_of.meta})
    return call


def _named(item: exp.Expr, found: exp.Expr) -> exp.Expr:
    """Return an item of the select list under the name that it has in the text; any other part as it is."""
    if isinstance(item, exp.Alias | exp.Ordered) or found == item:
        return found
    return exp.alias_(found, column_name(item), quoted=True)


def _keys(select: exp.Select) -> Iterator[exp.Expr]:
    """Yield the expressions that a SELECT groups by, as they stand in the text and as its aliases say."""
    group, items = select.args.get("group"), select.expressions
    if group is None:
        return
    aliases = {item.alias.lower(): item.this for item in items if isinstance(item, exp.Alias)}
    if group.args.get("all"):
        plain = (item.unalias() for item in items)
        yield from (item for item in plain if not any(map(is_aggregate_call, item.walk())))
    for term in group.expressions:
        yield term
        if isinstance(term, exp.Literal) and term.is_int and 0 < int(term.name) <= len(items):
            yield items[int(term.name) - 1].unalias()
        if isinstance(term, exp.Column) and not term.table and term.name.lower() in aliases:
            yield aliases[term.name.lower()]


def _is_of_keys(value: exp.Expr, keys: set[str]) -> bool:
    """Return whether a group has one value of an expression: each of its columns is inside a key."""
    if _plain(value) in keys:
        return True
    if isinstance(value, exp.Column | exp.Query) or is_aggregate_call(value):
        return False
    parts = [part for part in value.iter_expressions() if part.find(exp.Column, exp.Query, exp.AggFunc)]
    return bool(parts) and all(_is_of_keys(part, keys) for part in parts)


def _plain(node: exp.Expr) -> str:
    """Return the text of an expression whose columns have no table."""
    copied = node.copy()
    for column in copied.find_all(exp.Column):
        column.set("table", None)
    return to_sql(copied).lower()
