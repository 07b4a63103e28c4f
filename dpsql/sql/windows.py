"""Windows over the noisy result: ranks, shares, differences and totals of what is shown, computed after the noise.

They are post-processing: functions of released numbers alone. The one window that is no such thing is a running total
along a public key (``totals``), for which noise of its own may be drawn; this module tells the two apart.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from sqlglot import exp

from dpsql.model.refusals import Refusals
from dpsql.operations.dialect import to_sql, written
from dpsql.sql.clauses import OVER_RESULT, is_aggregate_call, is_over_result
from dpsql.sql.names import ResolvedSelect

RESULT_FUNCTIONS: dict[type[exp.Expr], str] = {
    exp.RowNumber: "row_number",
    exp.Rank: "rank",
    exp.DenseRank: "dense_rank",
    exp.PercentRank: "percent_rank",
    exp.CumeDist: "cume_dist",
    exp.Ntile: "ntile",
    exp.Lag: "lag",
    exp.Lead: "lead",
    exp.FirstValue: "first_value",
    exp.LastValue: "last_value",
    exp.NthValue: "nth_value",
    exp.Sum: "sum",
    exp.Avg: "avg",
    exp.Min: "min",
    exp.Max: "max",
    exp.Count: "count",
}
_OF_PEERS = (exp.Rank, exp.DenseRank, exp.PercentRank, exp.CumeDist)
_TOTALS = (exp.Sum, exp.Avg, exp.Min, exp.Max, exp.Count)


def mark_windows(resolved: ResolvedSelect, refusals: Refusals, along: Collection[str]) -> None:
    """Mark the windows over the result, and note a refusal for those that have no form.

    Args:
        resolved: the query; its windows are marked in place.
        refusals: collects.
        along: keys along which totals may run, by their texts; none if a key has no public list.

    Raises:
        UnsupportedQueryError: the windows are over rows; nothing more can be said then.

    """
    _refuse_over_rows(resolved, refusals)
    keys = [to_sql(key) for key in resolved.keys]
    for root in resolved.outputs:
        for window in list(root.find_all(exp.Window)):
            if not is_running_total(window, keys, along):
                _mark(window)
                _check(window, refusals)
    if resolved.qualify and not any(is_over_result(node) for part in resolved.outputs for node in part.walk()):
        refusals.add(
            "window", resolved.qualify, "QUALIFY filters by windows, and there is none.", "Use HAVING instead."
        )
    if resolved.having and any(is_over_result(node) for node in resolved.having.walk()):
        refusals.add("window", resolved.having, "HAVING comes before windows.", "Use QUALIFY instead.")


def _refuse_over_rows(resolved: ResolvedSelect, refusals: Refusals) -> None:
    """Refuse the windows of a query that neither groups nor aggregates: they would be over rows of several units."""
    windows = [call for call in resolved.calls if isinstance(call, exp.Window)]
    inside = (node for window in windows for part in parts_of(window) for node in part.walk())
    if resolved.keys or not windows or len(windows) < len(resolved.calls) or any(map(is_aggregate_call, inside)):
        return
    for window in windows:
        refusals.add(
            "window",
            window,
            f"{written(window.this)} OVER (…) is a window over rows, of which there is no private form.",
            "Use windows beside GROUP BY, over the answer. For one row of each privacy unit, group a subquery by the "
            "unit, with min or max.",
        )
    refusals.raise_if_any()


def _mark(window: exp.Window) -> None:
    window.meta[OVER_RESULT] = True
    function = window.this
    while isinstance(function, exp.Filter | exp.IgnoreNulls | exp.RespectNulls):
        function.meta[OVER_RESULT] = True
        function = function.this
    function.meta[OVER_RESULT] = True


def is_running_total(window: exp.Window, keys: Sequence[str], along: Collection[str]) -> bool:
    """Check if a window is the sum of a private aggregate along one key, for each combination of the others.

    Args:
        window: any window.
        keys: those of the query, by their texts.
        along: those of them along which totals may run.

    """
    if not (isinstance(window.this, exp.Sum) and is_aggregate_call(window.this.this)):
        return False
    terms = order_terms(window)
    axis = to_sql(terms[0].this) if len(terms) == 1 else ""
    parts = sorted(to_sql(part) for part in window.args.get("partition_by") or [])
    return (
        axis in along and parts == sorted(key for key in keys if key != axis) and _reaches_back(window.args.get("spec"))
    )


def _reaches_back(frame: exp.Expr | None) -> bool:
    """Whether a window ends at its row, and begins at the first or a number of rows before."""
    if not frame:
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
            "window",
            window,
            f"{written(window.this)} is no window over the result.",
            f"Use one of {', '.join(RESULT_FUNCTIONS.values())}, without FILTER, DISTINCT or IGNORE NULLS.",
        )
    if not all(_is_whole(number) for number in _numbers(window.this)):
        refusals.add(
            "window", window, f"{written(window.this)} takes a whole number here.", "Give a literal, as in ntile(4)."
        )
    if window.args.get("alias") or str(window.args.get("over") or "OVER").upper() != "OVER":
        refusals.add(
            "window", window, "a window is written out here.", "Put what the window says after OVER, in parentheses."
        )
    if not all(_is_whole(edge) for edge in _distances(_frame(window))):
        refusals.add(
            "window", window, "the frame of a window takes whole numbers.", "Give them, as in ROWS 6 PRECEDING."
        )
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
    arguments = [part for part in window.this.iter_expressions() if not isinstance(part, exp.Star)]
    return [*arguments, *(window.args.get("partition_by") or []), *(term.this for term in order_terms(window))]


def range_terms(window: exp.Window) -> list[exp.Expr]:
    """What a window is ordered by whose frame reaches some distance away from it."""
    frame = _frame(window)
    return order_terms(window) if frame.args.get("kind") == "RANGE" and _distances(frame) else []


def order_terms(window: exp.Window) -> list[exp.Expr]:
    """Return the terms that a window is ordered by."""
    return [term for order in [window.args.get("order")] if order for term in order.expressions]


def _frame(window: exp.Window) -> exp.WindowSpec:
    """The frame of a window; one that says nothing where none is written."""
    return window.args.get("spec") or exp.WindowSpec()


def _distances(frame: exp.WindowSpec) -> list[exp.Expr]:
    """How far a frame reaches, where this is neither UNBOUNDED nor CURRENT ROW."""
    return [edge for edge in (frame.args.get("start"), frame.args.get("end")) if isinstance(edge, exp.Expr)]


def window_sql(window: exp.Window, keys: Sequence[str]) -> str:
    """SQL of a window whose parts are of the noisy table; a part that fails on a value is NULL.

    Rows that the order of a window leaves equal come in the order of their keys, which tell rows apart: what is shown
    never depends on how rows happen to lie.
    """
    for part in parts_of(window):
        if not isinstance(part, exp.Column | exp.Literal):
            part.replace(exp.Anonymous(this="TRY", expressions=[part.copy()]))
    frame = window.args.get("spec")
    no_frame_counts = not frame and not isinstance(window.this, (*_OF_PEERS, *_TOTALS))
    if no_frame_counts or _frame(window).args.get("kind") == "ROWS":
        terms = order_terms(window)
        terms += [exp.Ordered(this=exp.column(exp.to_identifier(key, quoted=True)), nulls_first=False) for key in keys]
        window.set("order", exp.Order(expressions=terms) if terms else None)
    return to_sql(window)
