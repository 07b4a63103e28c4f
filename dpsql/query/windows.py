"""Windows over the noisy result: ranks, shares, differences and totals of what is shown, computed after the noise.

They are post-processing: functions of released numbers alone. The one window that is no such thing is a running total
along a public key (``totals``), for which noise of its own may be drawn; this module tells the two apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeGuard

from sqlglot import exp

from dpsql.query.aggregate_calls import OVER_RESULT, is_aggregate_call
from dpsql.query.dialect import to_sql, written
from dpsql.query.names import ResolvedSelect
from dpsql.query.refusals import Refusals

RESULT_FUNCTIONS: dict[type[exp.Expr], str] = {
    exp.RowNumber: "row_number", exp.Rank: "rank", exp.DenseRank: "dense_rank", exp.PercentRank: "percent_rank",
    exp.CumeDist: "cume_dist", exp.Ntile: "ntile", exp.Lag: "lag", exp.Lead: "lead", exp.FirstValue: "first_value",
    exp.LastValue: "last_value", exp.NthValue: "nth_value", exp.Sum: "sum", exp.Avg: "avg", exp.Min: "min",
    exp.Max: "max", exp.Count: "count",
}  # fmt: skip
_OF_PEERS = (exp.Rank, exp.DenseRank, exp.PercentRank, exp.CumeDist)
_TOTALS = (exp.Sum, exp.Avg, exp.Min, exp.Max, exp.Count)


def is_over_result(node: exp.Expr) -> TypeGuard[exp.Window]:
    """Whether a node is a window over the noisy result."""
    return isinstance(node, exp.Window) and bool(node.meta.get(OVER_RESULT))


def mark_windows(resolved: ResolvedSelect, refusals: Refusals, *, listed: bool) -> None:
    """Mark the windows over the result, and note a refusal for those that have no form.

    Args:
        resolved: the query; its windows are marked in place.
        refusals: collects.
        listed: whether every key has a public list, so that totals may run along one.

    """
    keys = [to_sql(key) for key in resolved.keys]
    for root in resolved.outputs:
        for window in list(root.find_all(exp.Window)):
            if not (listed and is_running_total(window, keys)):
                _mark(window)
                _check(window, refusals)
    if resolved.qualify is not None and not any(
        is_over_result(node) for part in resolved.outputs for node in part.walk()
    ):
        refusals.add("window", resolved.qualify, "QUALIFY filters by windows, and there is none.", "Write HAVING.")
    if resolved.having is not None and any(is_over_result(node) for node in resolved.having.walk()):
        refusals.add("window", resolved.having, "HAVING comes before windows.", "Write QUALIFY.")


def _mark(window: exp.Window) -> None:
    window.meta[OVER_RESULT] = True
    function = window.this
    while isinstance(function, exp.Filter | exp.IgnoreNulls | exp.RespectNulls):
        function.meta[OVER_RESULT] = True
        function = function.this
    function.meta[OVER_RESULT] = True


def is_running_total(window: exp.Window, keys: Sequence[str]) -> bool:
    """Whether a window is the sum of a private aggregate along one key, for each combination of the others."""
    if not (isinstance(window.this, exp.Sum) and is_aggregate_call(window.this.this)):
        return False
    order = window.args.get("order")
    terms = order.expressions if order is not None else []
    along = to_sql(terms[0].this) if len(terms) == 1 else ""
    parts = sorted(to_sql(part) for part in window.args.get("partition_by") or [])
    frame = window.args.get("spec")
    return along in keys and parts == sorted(key for key in keys if key != along) and _reaches_back(frame)


def _reaches_back(frame: exp.Expr | None) -> bool:
    """Whether a window ends at its row, and begins at the first or a number of rows before."""
    if frame is None:
        return True
    start = frame.args.get("start")
    ends_here = frame.args.get("end") in (None, "CURRENT ROW") and not frame.args.get("exclude")
    if not ends_here or frame.args.get("start_side") != "PRECEDING":
        return False
    rows = start.name if isinstance(start, exp.Literal) and not start.is_string else ""
    return start == "UNBOUNDED" or (frame.args.get("kind") == "ROWS" and rows.isdigit())


def _check(window: exp.Window, refusals: Refusals) -> None:
    if type(window.this) not in RESULT_FUNCTIONS:
        refusals.add(
            "window", window, f"{written(window.this)} is no window over the result.",
            f"Use one of {', '.join(RESULT_FUNCTIONS.values())}, without FILTER, DISTINCT or IGNORE NULLS.",
        )  # fmt: skip
    if not all(_is_whole(number) for number in _numbers(window.this)):
        refusals.add(
            "window", window, f"{written(window.this)} takes a whole number here.", "Write ntile(4) or lag(n, 1).",
        )  # fmt: skip
    if window.args.get("alias") or str(window.args.get("over") or "OVER").upper() != "OVER":
        refusals.add("window", window, "a window is written out here.", "Write OVER (ORDER BY …).")
    frame = window.args.get("spec")
    edges = [] if frame is None else [frame.args.get("start"), frame.args.get("end")]
    if not all(edge is None or isinstance(edge, str) or _is_whole(edge) for edge in edges):
        refusals.add("window", window, "the frame of a window takes whole numbers.", "Write ROWS 6 PRECEDING.")
    inner = [node for part in parts_of(window) for node in part.find_all(exp.Window)]
    if inner:
        refusals.add("window", inner[0], "a window cannot stand inside a window.", "Ask for it in a second step.")


def _numbers(function: exp.Expr) -> list[exp.Expr]:
    """Arguments on which DuckDB fails aloud where they are no positive numbers."""
    name = "this" if isinstance(function, exp.Ntile) else "offset"
    return [number for number in [function.args.get(name)] if isinstance(number, exp.Expr)]


def _is_whole(node: exp.Expr) -> bool:
    return isinstance(node, exp.Literal) and node.name.isdigit() and int(node.name) > 0


def parts_of(window: exp.Window) -> list[exp.Expr]:
    """The expressions over the result that a window computes with."""
    order = window.args.get("order")
    arguments = [part for part in window.this.iter_expressions() if not isinstance(part, exp.Star)]
    terms = [term.this for term in (order.expressions if order is not None else [])]
    return [*arguments, *(window.args.get("partition_by") or []), *terms]


def range_terms(window: exp.Window) -> list[exp.Expr]:
    """What a window is ordered by whose frame reaches some distance away from it."""
    order, frame = window.args.get("order"), window.args.get("spec")
    edges = (
        [] if frame is None or frame.args.get("kind") != "RANGE" else [frame.args.get("start"), frame.args.get("end")]
    )
    return list(order.expressions) if order is not None and any(isinstance(edge, exp.Expr) for edge in edges) else []


def window_sql(window: exp.Window, keys: Sequence[str]) -> str:
    """SQL of a window whose parts are of the noisy table; a part that fails on a value is NULL.

    Rows that the order of a window leaves equal come in the order of their keys, which tell rows apart: what is shown
    never depends on how rows happen to lie.
    """
    for part in parts_of(window):
        if not isinstance(part, exp.Column | exp.Literal):
            part.replace(exp.Anonymous(this="TRY", expressions=[part.copy()]))
    order, frame = window.args.get("order"), window.args.get("spec")
    counts_rows = frame is not None and frame.args.get("kind") == "ROWS"
    if counts_rows or (frame is None and not isinstance(window.this, (*_OF_PEERS, *_TOTALS))):
        terms = [] if order is None else list(order.expressions)
        terms += [exp.Ordered(this=exp.column(exp.to_identifier(key, quoted=True)), nulls_first=False) for key in keys]
        window.set("order", exp.Order(expressions=terms) if terms else None)
    return to_sql(window)
