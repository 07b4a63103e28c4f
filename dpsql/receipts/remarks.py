"""Remarks of a receipt: the errors of the rows that LIMIT picks, and why an answer has no rows.

An answer without rows says which threshold no group passed, what it would be at a higher level, or which clause left
the groups out. All numbers are functions of policy, text, past releases and shown groups. Points of groups that are not
shown are never read. The higher level is offered as `dp_explain` would offer it, and costs nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from dpsql.cascade.reader import Reader
from dpsql.errors import DpsqlError
from dpsql.mechanism.calibrate import auto_share
from dpsql.mechanism.registry import histogram_of
from dpsql.model.private_query import FrameQuery, PrivateQuery, Request
from dpsql.model.statistic_kinds import BESIDE_KINDS
from dpsql.receipts import words
from dpsql.receipts.coverage_receipt import with_coverage
from dpsql.receipts.phrases import all_left_out, at_higher_level, listed, none_passed
from dpsql.receipts.receipt import Receipt
from dpsql.release.estimates import Floats
from dpsql.release.offer import Offer, offers_of, shown_threshold
from dpsql.release.points import ShownFrame
from dpsql.release.top_rows import (
    RowOrder,
    order_factor,
    picked_places,
    row_order,
    row_threshold,
    selected_rows,
    side_of,
    wider_of,
)
from dpsql.state import SideTable, State

OffersAt = Callable[[Request], Sequence[Offer]]
"""Build the offers of a query at another request than the one asked; raise DpsqlError if it cannot be asked."""
_ALL = slice(None)

_TIMES_EPSILON = (4.0, 2.0, 16.0)
_TIMES_RHO = (16.0, 4.0, 256.0)
"""Levels that are tried, as multiples of the level asked for. Rho grows with the square of epsilon.

The last one is for a level whose multiples are stored, and have shown nothing.
"""
_LOWER = 0.95
"""A threshold at a higher level is told of if it is less than this part of the present one."""


def threshold_reason(
    offers: Sequence[Offer], request: Request, offers_at: OffersAt, state: State, own: slice = _ALL
) -> str:
    """Return why no group of these frames is shown.

    Args:
        offers: how the frames are served, whose groups one answer shows: one frame, or one for each round of keys.
        request: of all of them together.
        offers_at: all frames of the query at another request.
        state: the state file.
        own: which of these are the frames of ``offers``.

    """
    first = offers[0]
    unit, minimum = first.query.frame.rows.unit, first.query.request.min_units
    thresholds = sorted({one for offer in offers for one in _thresholds(offer)}, reverse=True)
    if not thresholds:
        return words.BELOW_MINIMUM.format(minimum=minimum, unit=unit) if minimum > 1 else words.NO_LISTED_KEY
    passed = none_passed(unit, thresholds, is_relative=first.query.frame.bounding.sparsity is not None)
    for higher in _higher(request):
        # what cannot be asked is no cure
        with contextlib.suppress(DpsqlError):
            found = offers_at(higher)
            if not _is_payable(found, state):
                continue
            new = [one for offer in found[own] for one in _due_thresholds(offer)]
            if new and min(new) < _LOWER * thresholds[-1]:
                is_open = not all(level.is_sure for offer in found for level in offer.query.auto_levels)
                told = at_higher_level(
                    _level(higher), min(new), is_open=is_open, of_several=len(thresholds) > 1 or len(new) > 1
                )
                return f"{passed}; {told}"
    return f"{passed}; {words.OTHER_KEYS}"


def with_remarks(
    offer: Offer, receipt: Receipt, found: ShownFrame, side_table: SideTable, reason: Callable[[], str]
) -> Receipt:
    """Return a receipt with what bounds keep where that is asked for, and why no group is shown where none is.

    Args:
        offer: how the only frame was served.
        receipt: with its price.
        found: its values and shown groups.
        side_table: where points are stored.
        reason: says why no group is shown.

    """
    is_covered = any(statistic.kind in BESIDE_KINDS for statistic in offer.query.statistics)
    if is_covered or offer.query.request.coverage is not None:
        receipt = with_coverage(receipt, offer, found, side_table)
    if offer.query.finish.top:
        receipt = with_picked_rows(receipt, offer, found)
    return receipt if len(found.shown) else replace(receipt, nothing_shown=(reason(),))


def frame_reason(offer: Offer, state: State, reader: Reader) -> str:
    """Return why no group of a frame that is asked for alone is shown."""

    def at(request: Request) -> Sequence[Offer]:
        return offers_of([asked_at(offer.query, request)], state, reader)

    return threshold_reason([offer], offer.query.request, at, state)


def asked_at(query: FrameQuery, request: Request) -> FrameQuery:
    """Return the query at another request, with the bounds that AUTO has chosen for it.

    A histogram of AUTO that is not sure would be drawn again, and might choose other bounds.
    """
    asked = replace(query, request=request)
    if not query.auto_levels:
        return asked
    share = auto_share(asked, histogram_of(query.frame))
    levels = (
        replace(
            one,
            share_nano=share,
            rho_nano=one.rho_nano if one.is_sure else max(one.rho_nano, share),
            # of one that is not sure no histogram is stored at that level
            is_stored=one.is_sure or one.rho_nano >= share,
        )
        for one in query.auto_levels
    )
    return replace(asked, auto_levels=tuple(levels))


def reasons_of_sets(empty: Sequence[tuple[Sequence[str], str]], *, are_all: bool) -> tuple[str, ...]:
    """Return the sentences about grouping sets without groups, each with the sets that it is about.

    Args:
        empty: keys of each such set, and why it has no groups.
        are_all: whether the query has no other sets; then a sentence that holds for all names none.

    """
    by_sentence: dict[str, list[Sequence[str]]] = {}
    for keys, sentence in empty:
        by_sentence.setdefault(sentence, []).append(keys)
    if are_all and len(by_sentence) == 1:
        return tuple(by_sentence)
    named = {sentence: listed([f"({', '.join(keys)})" for keys in sets]) for sentence, sets in by_sentence.items()}
    return tuple(words.OF_SETS.format(sets=sets, sentence=sentence) for sentence, sets in named.items())


def with_clauses(receipt: Receipt, query: PrivateQuery, groups: int, rows: int) -> Receipt:
    """Return the receipt of an answer without rows, with the clauses that left out the groups.

    Args:
        receipt: of the answer; it says already if no group was shown.
        query: the plan.
        groups: number of groups that the private answer shows.
        rows: number of rows that its own clauses left.

    """
    if receipt.nothing_shown or not groups:
        return receipt
    if rows:
        return replace(receipt, nothing_shown=(all_left_out(["the outer query"], rows, "row"),))
    finish = query.first.finish
    clauses = {
        "HAVING": bool(finish.having),
        "QUALIFY": bool(finish.qualify),
        "OFFSET": bool(finish.offset),
        "LIMIT 0": finish.limit == 0,
    }
    named = [clause for clause, is_there in clauses.items() if is_there]
    return replace(receipt, nothing_shown=(all_left_out(named, groups, "group"),))


def _thresholds(offer: Offer) -> Iterator[float]:
    """Yield the thresholds that a group of an offer may pass: its own, or those of stored releases that show keys."""
    return _shown_thresholds(offer, {offer.presence.tau, *(keys.tau for keys in offer.presence.keys_from)})


def _due_thresholds(offer: Offer) -> Iterator[float]:
    """Yield the thresholds of an offer that are not stored yet."""
    return _shown_thresholds(offer, [step.tau for step in offer.presence.priced_steps])


def _shown_thresholds(offer: Offer, taus: Iterable[float | None]) -> Iterator[float]:
    """Yield the thresholds on the number of units that are shown for some taus."""
    for tau in taus:
        threshold = None if tau is None else shown_threshold(offer.query.frame, tau, offer.query.request.min_units)
        if threshold is not None:
            yield threshold


def _higher(request: Request) -> Iterator[Request]:
    """Yield requests at higher levels, in the order in which they are tried."""
    if request.rho is None:
        for times in _TIMES_EPSILON:
            yield replace(request, epsilon=float(f"{times * request.asked_epsilon:.6g}"))
    else:
        for times in _TIMES_RHO:
            yield replace(request, rho=float(f"{times * request.rho:.6g}"))


def _level(request: Request) -> str:
    """Return a level as it is written in OPTIONS."""
    return f"epsilon = {request.epsilon:.9g}" if request.rho is None else f"{request.amount} = {request.rho:.9g}"


def _is_payable(offers: Sequence[Offer], state: State) -> bool:
    """Check that the whole budget of the unit, as declared, reaches the level of all offers together."""
    unit = state.policy().unit(offers[0].query.frame.rows.unit)
    nano = sum(offer.asked_nano + sum(one.share_nano for one in offer.query.auto_levels) for offer in offers)
    return unit is not None and nano <= unit.rho_budget


_MUCH = 1.01
"""Factors that exceed that of the order by no more are not named."""


def with_picked_rows(receipt: Receipt, offer: Offer, found: ShownFrame) -> Receipt:
    """Return a receipt with the errors of the rows that LIMIT picks.

    Args:
        receipt: of an answer; its errors are those of groups that are named beforehand.
        offer: how its numbers are served; all of it is stored.
        found: its values and shown groups.

    """
    query, order = offer.query, row_order(offer.query)
    if order is None:
        return receipt
    rows, (threshold, _) = selected_rows(offer, found), row_threshold(offer)
    estimates = {one.name: query.estimates[one.estimate] for one in query.finish.columns if one.estimate is not None}
    factors = {name: order_factor(order, estimate, rows) for name, estimate in estimates.items()}
    side = side_of(order.top)
    general = words.LIMIT_WIDENS.format(side=side)
    notes = [note for note in receipt.notes if note != general]
    for factor in sorted({factor for factor in factors.values() if factor > 1.0}):
        widened = [name for name, own in factors.items() if own == factor]
        notes.append(words.LIMIT_WIDENED.format(side=side, columns=listed(widened), factor=factor))
    if query.request.target and max(factors.values(), default=1.0) > 1.0:
        notes.append(words.ASKED_OF_ONE)
    may_be_rows = _may_be_rows(order, found)
    most = {
        name: np.max(_of_groups(wider_of(order, one, rows), found)[may_be_rows], initial=1.0)
        for name, one in estimates.items()
    }
    if nearer := [name for name, factor in most.items() if factor > _MUCH * factors[name]]:
        told = {"columns": listed(nearer), "factor": max(most.values()), "threshold": threshold or 0.0}
        notes.append(words.NEAR_THRESHOLD.format(**told))
    columns = tuple(
        one
        if one.half_width_95 is None
        else replace(one, half_width_95=None if one.name in nearer else one.half_width_95 * factors[one.name])
        for one in receipt.columns
    )
    return replace(receipt, notes=tuple(notes), columns=columns)


def _may_be_rows(order: RowOrder, found: ShownFrame) -> npt.NDArray[np.bool_]:
    """Return which shown groups are picked, or have the number of one that is: keys decide between these."""
    scores = order.scores(found.values, found.among)
    picked = scores[picked_places(order, found.values, found.among, np.arange(len(scores)))]
    may_be: npt.NDArray[np.bool_] = (scores >= picked.min(initial=np.inf)) & (scores <= picked.max(initial=-np.inf))
    return may_be


def _of_groups(factor: float | Floats, found: ShownFrame) -> Floats:
    """Return a factor for each shown group."""
    return np.broadcast_to(factor, (len(found.shown),)) if np.ndim(factor) == 0 else np.asarray(factor)[found.among]
