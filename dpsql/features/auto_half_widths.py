"""Questions by half widths whose bounds AUTO finds: the level follows from these bounds, up to a cap.

AUTO is asked first, for one part in 32 of the cap. The bounds that it finds fix the noise of every level. So the
smallest level with the half widths is found as it is for named bounds (`half_width.py`). If the cap is too low for
them, the question is answered at the cap, and the receipt says which half width it has.

The cap is fixed before the first release, and the level follows from released values. So the guarantee of the answer
alone is that of the cap (docs/proofs/target.md, Theorem 2).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

from dpsql.cascade.reader import Reader
from dpsql.errors import CalibrationError
from dpsql.features.auto_histograms import MEASURE
from dpsql.features.auto_price import (
    OpenTerms,
    answer_delta_units,
    asked_nano,
    has_unknown_bounds,
    may_come,
    open_price,
)
from dpsql.features.cap_guarantee import (
    affordable_row,
    cap_row,
    guarantee_of_cap,
    is_beyond,
    receipt_of_cap,
    with_guarantee_of_cap,
)
from dpsql.features.half_width import TargetQuery, up
from dpsql.features.query_kind import QueryKind
from dpsql.features.target_levels import cap_nano, level_of_text, require_room
from dpsql.mechanism.calibrate import Calibration, calibrate, levels_of
from dpsql.mechanism.measure import miss_of
from dpsql.mechanism.registry import histogram_of
from dpsql.model.frame import NANO
from dpsql.model.half_widths import HalfWidths
from dpsql.model.identity import query_hash
from dpsql.model.private_query import FrameQuery
from dpsql.model.query_kinds import AutoHalfWidths
from dpsql.receipts import level_words, words
from dpsql.receipts.offer_receipt import make_receipt
from dpsql.receipts.plan_rows import Row, offer_rows, price_rows
from dpsql.receipts.receipt import ColumnReceipt, Receipt
from dpsql.release.offer import Offer, with_caps
from dpsql.release.stages import Stage
from dpsql.state import DELTA_UNITS_PER_ONE, ChargeItem, State, delta_units_up

_ROUNDING = 1.0 + 1e-9
"""A half width that exceeds its target by a smaller factor does so by a rounding of floats."""


class AutoHalfWidthsKind(QueryKind[AutoHalfWidths]):
    """Queries by half widths whose bounds AUTO finds."""

    def stages(self, query: AutoHalfWidths, state: State, reader: Reader) -> Iterator[Stage]:
        """Yield the only frame, with the guarantee of the cap."""
        yield Stage(query.parts, reader, served=partial(_up_to_cap, query, state, reader))

    def receipt(self, query: AutoHalfWidths, offers: Sequence[Offer], state: State) -> Receipt:
        """Return the receipt with the guarantee of the cap, and with a half width that the cap is too low for."""
        (offer,) = offers
        receipt = receipt_of_cap(offer, query.most_nano, _target(query).cap, words.BOUNDS_OF_AUTO, state)
        return replace(receipt, notes=(*receipt.notes, *_missed(query, receipt.columns)))

    def rows(self, query: AutoHalfWidths, state: State, reader: Reader) -> list[Row]:
        """Return the rows of the cap, those of the frame, and its price."""
        (offer,) = self.offers(query, state, reader)
        missed = next(_missed(query, make_receipt(offer).columns), "yes")
        beyond = is_beyond(offer, query.most_nano, state)
        return [
            *_cap_rows(query, beyond=beyond),
            ("target", "reached", missed),
            *offer_rows(offer),
            *price_rows(query, [offer]),
        ]

    def guarantee(self, query: AutoHalfWidths) -> tuple[float, float]:
        """Return the guarantee of the cap."""
        calibration = calibrate(query.first, histogram_of(query.first.frame))
        return guarantee_of_cap(query.first, calibration.histogram, calibration.levels, query.most_nano)

    def capped(self, query: AutoHalfWidths) -> AutoHalfWidths:
        """Return the query at its cap."""
        target, request = _target(query), query.first.request
        asked = replace(request, rho=target.max_rho, epsilon=target.max_epsilon)
        nano = cap_nano(replace(query.first, request=asked))
        require_room(query.first, nano, target.cap)
        return replace(query.at(nano / NANO), most_nano=nano)

    def asked_cap(self, query: AutoHalfWidths) -> tuple[str, float]:
        """Return the option that says the cap, and its value."""
        return _target(query).cap

    def open_rows(self, query: AutoHalfWidths, _least: FrameQuery, state: State, reader: Reader) -> list[Row]:
        """Return the rows of the cap before AUTO has chosen."""
        part, target = query.first, _target(query)
        items = (*open_price(part), ChargeItem(query_hash(query), *self._dearest(query, state, reader)))
        rho_nano, delta_units = sum(one.rho_nano for one in items), sum(one.delta_units for one in items)
        dearest = level_words.dearest(rho_nano / NANO, delta_units / DELTA_UNITS_PER_ONE)
        return [
            ("target", "half width", level_words.half_widths(target)),
            *_cap_rows(query, beyond=False),
            ("target", "dearest outcome", dearest),
            affordable_row(part, items, state, reader),
        ]

    def open_terms(self, query: AutoHalfWidths, first: Calibration, state: State, reader: Reader) -> OpenTerms:
        """Return the terms of the cap, with the price of the dearest outcome."""
        epsilon, delta = guarantee_of_cap(query.first, first.histogram, first.levels, query.most_nano)
        return OpenTerms(epsilon, delta, query.most_nano, *self._dearest(query, state, reader))

    def price_after_auto(self, query: AutoHalfWidths, _state: State, reader: Reader) -> tuple[int, int]:
        """Return the price at the level of the half widths, or at the cap if bounds are not known."""
        is_known = not has_unknown_bounds(query.first)
        asked = _target_query(query).up_to(query.most_nano).first if is_known else query.first
        calibration = calibrate(asked, histogram_of(asked.frame))
        reader.require(asked_nano(asked, calibration))
        return calibration.rho_nano, _most_delta_units(asked, calibration)

    def _dearest(self, query: AutoHalfWidths, state: State, reader: Reader) -> tuple[int, int]:
        """Return the most nano-rho and the most delta units that the answer costs beside AUTO."""
        least, *larger = may_come(query.first)
        options = (replace(query, parts=(option,)) for option in (least, *larger[-1:]))
        prices = [self.price_after_auto(option, state, reader) for option in options]
        most_nano = max(rho for rho, _ in prices)
        if has_unknown_bounds(query.first):
            # other bounds may divide the cap otherwise, and a window rounds each part of it
            most_nano = query.most_nano - sum(level.share_nano for level in query.first.auto_levels)
        return most_nano, max(delta for _, delta in prices)


KIND = AutoHalfWidthsKind()


def _target(query: AutoHalfWidths) -> HalfWidths:
    target = query.whole_request.target
    if target is None:
        raise AssertionError("a query by half widths has some")
    return target


def _target_query(query: AutoHalfWidths) -> TargetQuery:
    return TargetQuery(KIND, query, _target(query))


def _cap(query: AutoHalfWidths) -> str:
    """Return the cap as it is written in a query."""
    return level_words.option(*_target(query).cap)


def _up_to_cap(query: AutoHalfWidths, state: State, reader: Reader, offer: Offer) -> Offer:
    """Return an offer with the guarantee of the cap, whose charges store it.

    Raises:
        AccessError: the level and what AUTO chose by are together more than the reader may be shown.

    """
    reader.require(offer.asked_nano + sum(level.rho_nano for level in query.first.auto_levels))
    levels, _ = levels_of(query.first, offer.histogram, query.most_nano / NANO)
    return with_caps(with_guarantee_of_cap(offer, query.most_nano, state), levels)


def _most_delta_units(part: FrameQuery, calibration: Calibration) -> int:
    """Return the most delta units that a level up to that of a calibration costs.

    Draws are less precise at a higher level. A threshold takes what they leave of the question's delta, so that both
    together cost at most this delta at each level, and a unit for each of them that is rounded up.
    """
    units = answer_delta_units(calibration)
    if not calibration.histogram.hides or part.frame.window:
        return units
    return max(units, delta_units_up(part.request.delta) + len(calibration.levels) + 1)


def _missed(query: AutoHalfWidths, columns: Sequence[ColumnReceipt]) -> Iterator[str]:
    """Yield the sentence that a half width is missed at the cap; none if all are met."""
    target, part = _target(query), query.first
    quantile = MEASURE.quantile(miss_of(target.confidence) / 2.0)
    asked = [(one.name, one.sigma, target.of(one.name)) for one in columns]
    wide = [
        (quantile * sigma / most, name, most)
        for name, sigma, most in asked
        if sigma is not None and most is not None and quantile * sigma > most * _ROUNDING
    ]
    if not wide:
        return
    excess, name, most = max(wide)
    enough = None
    with contextlib.suppress(CalibrationError):
        # of some half widths no level can be drawn
        shares = sum(level.share_nano for level in part.auto_levels)
        nano = _target_query(query).smallest_nano()
        enough = up(level_of_text(part, nano - shares) / NANO)
    shown = level_words.wider(name, up(excess * most), most)
    yield words.NOT_REACHED.format(shown=shown, why=level_words.why_wider(_cap(query), enough))


def _cap_rows(query: AutoHalfWidths, *, beyond: bool) -> list[Row]:
    """Return the rows of the cap."""
    name, value = cap = _target(query).cap
    by_epsilon = [("target", name, f"{value:.9g}")] if name == "max_epsilon" else []
    max_rho = ("target", "max_rho", f"{query.most_nano / NANO:.9g}")
    return [*by_epsilon, max_rho, cap_row(cap, words.BOUNDS_OF_AUTO, beyond=beyond)]
