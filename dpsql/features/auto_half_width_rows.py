"""Rows of ``dp_explain`` for a question by half widths whose bounds AUTO finds: its cap and its dearest outcome."""

from __future__ import annotations

from dpsql.cascade.reader import Reader
from dpsql.errors import BudgetError
from dpsql.features.auto_price import open_price
from dpsql.features.cap_guarantee import cap_row
from dpsql.model.frame import NANO
from dpsql.model.identity import query_hash
from dpsql.model.private_query import HalfWidths
from dpsql.model.query_kinds import AutoHalfWidths
from dpsql.receipts import level_words, target_words, words
from dpsql.receipts.plan_rows import Row
from dpsql.state import DELTA_UNITS_PER_ONE, ChargeItem, State


def settled_rows(target: HalfWidths, most_nano: int, missed: str, *, beyond: bool) -> list[Row]:
    """Return the rows of the cap once AUTO has chosen; they read and spend nothing.

    Args:
        target: the half widths.
        most_nano: the cap.
        missed: the sentence about a half width that the cap is too low for; empty if all are met.
        beyond: whether stored numbers of higher levels are shown.

    """
    return [*_cap_rows(target, most_nano, beyond=beyond), ("target", "reached", missed or "yes")]


def open_rows(query: AutoHalfWidths, dearest: tuple[int, int], state: State, reader: Reader) -> list[Row]:
    """Return the rows of the target before AUTO has chosen; they read and spend nothing.

    Args:
        query: the plan, with something left open.
        dearest: the most nano-rho and the most delta units that the answer costs beside AUTO.
        state: the state file.
        reader: who asks.

    """
    target, part = query.whole_request.target, query.first
    if target is None:
        raise AssertionError("a query by half widths has some")
    items = (*open_price(part), ChargeItem(query_hash(query), *dearest))
    try:
        state.ledger.require(part.frame.rows.unit, items, reader.name)
        affordable = "yes"
    except BudgetError as error:
        affordable = target_words.not_affordable(error)
    rho_nano, delta_units = (
        sum(amounts) for amounts in zip(*((one.rho_nano, one.delta_units) for one in items), strict=True)
    )
    return [
        ("target", "half width", level_words.half_widths(target)),
        *_cap_rows(target, query.most_nano, beyond=False),
        ("target", "dearest outcome", level_words.dearest(rho_nano / NANO, delta_units / DELTA_UNITS_PER_ONE)),
        ("target", "affordable", affordable),
    ]


def _cap_rows(target: HalfWidths, most_nano: int, *, beyond: bool) -> list[Row]:
    """Return the rows of the cap."""
    name, value = target.cap
    by_epsilon = [("target", name, f"{value:.9g}")] if name == "max_epsilon" else []
    max_rho = ("target", "max_rho", f"{most_nano / NANO:.9g}")
    return [*by_epsilon, max_rho, cap_row(target.cap, words.BOUNDS_OF_AUTO, beyond=beyond)]
