"""The guarantee and the receipt of the frames that are released for one answer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from dpsql.cascade.serving import Draw
from dpsql.mechanism.calibrate import calibrate
from dpsql.mechanism.histogram import MOST_DRAWN
from dpsql.mechanism.joint import ShownFrame, joint_guarantee
from dpsql.mechanism.registry import histogram_of
from dpsql.mechanism.window import charged_delta
from dpsql.model.frame import NANO
from dpsql.model.identity import query_hash
from dpsql.model.private_query import FrameQuery, PrivateQuery, Request
from dpsql.receipts.offer_receipt import make_receipt
from dpsql.receipts.plan_rows import Row
from dpsql.receipts.receipt import ColumnReceipt, Receipt, SetReceipt
from dpsql.release.offer import Offer, amounts_of
from dpsql.state import DELTA_UNITS_PER_ONE


def joint_guarantee_of(request: Request, offers: Sequence[Offer]) -> tuple[float, float]:
    """Return (epsilon, delta) of several frames together, both rounded up."""
    return joint_guarantee(list(map(shown_frame_of, offers)), request)


def shown_frame_of(offer: Offer) -> ShownFrame:
    """Return what a frame shows as it is served."""
    return ShownFrame(
        offer.histogram,
        sum(serving.guaranteed_nano for serving in offer.servings),
        _threshold_delta(offer),
        tuple(serving.level.statistic for serving in offer.servings),
        1 if all(serving.is_single_draw for serving in offer.servings) else MOST_DRAWN,
        offer.auto_nano,
    )


def asked_guarantee(request: Request, parts: Sequence[FrameQuery]) -> tuple[float, float]:
    """Return (epsilon, delta) of several frames together at the levels asked for, whatever is stored.

    Raises:
        CalibrationError: a level rounds to nothing, its noise cannot be drawn, or no threshold has its delta.

    """
    shown = []
    for part in parts:
        calibration = calibrate(part, histogram_of(part.frame))
        levels, delta = calibration.rho_nano, calibration.cut.delta
        shown.append(ShownFrame(calibration.histogram, levels, delta, part.statistics, 1))
    return joint_guarantee(shown, request)


def of_last_stages(offers: Sequence[Offer]) -> tuple[Offer, ...]:
    """Return the offers of distinct frames; of a frame that is released several times the last one."""
    return tuple({offer.query.frame: offer for offer in offers}.values())


def last_of_frame(offers: Sequence[Offer]) -> Offer:
    """Return the last offer of one frame; its delta covers the thresholds that are yet to be charged before it."""
    (last,) = of_last_stages(offers)
    before = amounts_of(offers)[1] - amounts_of([last])[1]
    return replace(last, delta=min(1.0, last.delta + before / DELTA_UNITS_PER_ONE)) if before else last


def own_receipts(query: PrivateQuery, offers: Sequence[Offer]) -> list[Receipt]:
    """Return the receipt of each offer, found by the hash of the whole query."""
    return [replace(make_receipt(offer), query_hash=query_hash(query)) for offer in offers]


def joint_receipt(
    query: PrivateQuery,
    base: Receipt,
    offers: Sequence[Offer],
    own: Sequence[Receipt],
    names: Sequence[tuple[str, ...]],
) -> Receipt:
    """Return the receipt of several frames together, without charges.

    Args:
        query: the plan.
        base: the receipt whose other terms hold for the answer.
        offers: how the frames are served.
        own: the receipt of each.
        names: how each is called.

    """
    levels = [level for offer in offers for level in offer.query.auto_levels]
    asked_nano = sum(offer.asked_nano for offer in offers) + sum(level.share_nano for level in levels)
    epsilon, delta = joint_guarantee_of(query.whole_request, offers)
    return replace(
        base,
        query_hash=query_hash(query),
        rho=(sum(offer.rho_nano for offer in offers) + sum(level.rho_nano for level in levels)) / NANO,
        asked_rho=asked_nano / NANO,
        epsilon=epsilon,
        delta=delta,
        sets=tuple(map(SetReceipt, names, own)),
    )


def called_keys(offers: Sequence[Offer]) -> list[tuple[str, ...]]:
    """Return the names of the keys of each frame."""
    return [offer.query.frame.called_keys for offer in offers]


def joint_rows(section: str, query: PrivateQuery, offers: Sequence[Offer], *notes: str) -> list[Row]:
    """Return the rows of a plan about several frames together."""
    epsilon, delta = joint_guarantee_of(query.whole_request, offers)
    auto_nano = sum(level.rho_nano for offer in offers for level in offer.query.auto_levels)
    return [
        (
            section,
            offers[0].histogram.measure.amount,
            f"{(sum(offer.rho_nano for offer in offers) + auto_nano) / NANO:.9g}",
        ),
        (section, "this query alone", f"epsilon = {epsilon:.6g}, delta = {delta:.6g}"),
        *((section, "rule", note) for note in notes),
    ]


def _threshold_delta(part: Offer) -> float:
    """Return the delta of the thresholds that the shown keys have passed, and of a ceiling that is paid for now."""
    if part.query.frame.window is not None:
        return charged_delta(part.histogram, part.query.frame.window)
    # keys that are selected first may be shown by another number than the count of units
    serving = next((one for one in part.servings if one.keys_from), part.presence)
    levels = {keys.rho_nano for keys in serving.keys_from}
    unseen = (
        step.delta for step in serving.priced_steps if isinstance(step, Draw) and step.level.rho_nano not in levels
    )
    return math.fsum([serving.keys_delta, *unseen])


def largest_columns(parts: Sequence[tuple[ColumnReceipt, ...]]) -> tuple[ColumnReceipt, ...]:
    """Return each column from the part in which it has the most noise."""
    return tuple(max(one, key=lambda column: column.sigma or 0.0) for one in zip(*parts, strict=True))
