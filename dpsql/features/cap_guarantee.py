"""Guarantees of answers whose level follows from released numbers: those of the cap that was fixed before.

The level that was charged is accounting. As a guarantee it would be false, because released numbers chose it. The cap
is fixed before the first release, and no outcome exceeds it (docs/proofs/target.md, Theorems 2 and 3).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dpsql.accounting import zcdp
from dpsql.cascade.reader import Reader
from dpsql.errors import BudgetError
from dpsql.mechanism.calibrate import calibrate, shares_of, window_guarantee
from dpsql.mechanism.histogram import MOST_AUTO_DRAWS, MOST_DRAWN, Histogram
from dpsql.mechanism.measure import FLOAT_SLACK, Level
from dpsql.model.frame import NANO
from dpsql.model.identity import in_question
from dpsql.model.private_query import FrameQuery
from dpsql.receipts import level_words, target_words, words
from dpsql.receipts.offer_receipt import make_receipt
from dpsql.receipts.plan_rows import Row
from dpsql.receipts.receipt import Receipt
from dpsql.release.chosen_levels import chosen_levels
from dpsql.release.offer import Offer
from dpsql.state import ChargeItem, State

_LARGEST_DELTA = 1.0 - 2.0**-20
"""A guarantee with more delta says nothing."""


def guarantee_of_cap(
    part: FrameQuery, histogram: Histogram, levels: Sequence[Level], most_nano: int
) -> tuple[float, float]:
    """Return (epsilon, delta) of all that a question may release up to its cap, both rounded up.

    *Guarantee*: docs/proofs/target.md, Theorems 2 and 3.

    Args:
        part: the question's only part, with the histograms of AUTO.
        histogram: how its presence count is noised.
        levels: its statistics at any level.
        most_nano: the cap.

    """
    return _guarantee_at(part, histogram, levels, most_nano + _beside(part))


def with_guarantee_of_cap(offer: Offer, most_nano: int, state: State) -> Offer:
    """Return an offer with the guarantee of a cap, and of what stored points show beyond it."""
    levels, covered = [serving.level for serving in offer.servings], covered_nano(offer, most_nano, state)
    epsilon, delta = _guarantee_at(offer.query, offer.histogram, levels, covered)
    return replace(offer, epsilon=epsilon, delta=delta, chosen_nano=0)


def covered_nano(offer: Offer, most_nano: int, state: State) -> int:
    """Return the level that covers all outcomes of a question, in nano-rho: its cap, and more if stored points show it.

    Each statistic counts with its part of the cap, or with the level of the stored points that its numbers and keys
    stem from, if that is higher.
    """
    by_auto = sum(level.share_nano for level in offer.query.auto_levels)
    asked = map(in_question, offer.query.statistics)
    shares = dict(zip(asked, shares_of(offer.query, most_nano - by_auto), strict=True))
    # what is asked of bounds may have no serving
    parts = {one.pin.statistic_hash: shares[in_question(one.level.statistic)] for one in offer.servings}
    shown = chosen_levels(offer.servings, offer.query.frame, state)
    beyond = sum(max(0, level - parts.get(statistic, 0)) for statistic, level in shown.items())
    return most_nano + _beside(offer.query) + beyond


def _guarantee_at(
    part: FrameQuery, histogram: Histogram, levels: Sequence[Level], rho_nano: int
) -> tuple[float, float]:
    """Return (epsilon, delta) of all that a question may release up to a level.

    At each level thresholds cost at most the question's delta, and the noise gets as much again.
    """
    delta, window = part.request.delta, part.frame.window
    if histogram.hides and window:
        others = max(0, rho_nano - sum(level.rho_nano for level in levels))
        return window_guarantee(histogram, tuple(levels), window, others)
    if not (histogram.hides or part.auto):
        # all steps together have the distance of one release at the level, which a question that names it has
        named = calibrate(replace(part, request=part.request.at(rho_nano / NANO)), histogram)
        return named.epsilon, named.delta
    thresholds = delta if histogram.hides else 0.0
    together = min(delta + thresholds, _LARGEST_DELTA)
    epsilon = zcdp.composed_epsilon(together, rho=rho_nano / NANO * FLOAT_SLACK, threshold_delta=thresholds)
    statistics = (*part.statistics, *(one for one, _ in part.unasked))
    draws = MOST_DRAWN * (histogram.draws_of(statistics) + MOST_AUTO_DRAWS)
    return epsilon, min(1.0, (together + histogram.measure.imprecision_at(draws, epsilon)) * (1.0 + 2.0**-51))


def _beside(part: FrameQuery) -> int:
    """Return the level beyond the cap at which stored points chose for AUTO, in nano-rho."""
    return sum(max(0, one.rho_nano - one.share_nano) for one in part.auto_levels)


def is_beyond(offer: Offer, most_nano: int, state: State) -> bool:
    """Return whether an answer shows stored numbers of higher levels than those of its cap."""
    return covered_nano(offer, most_nano, state) > most_nano


def cap_row(cap: tuple[str, float], source: str, *, beyond: bool = False) -> Row:
    """Return the row of a plan that says which level its epsilon is stated for.

    Args:
        cap: name and value of its option.
        source: released values that decide the level.
        beyond: whether stored numbers of higher levels are shown.

    """
    return ("target", "guarantee", _sentence(cap, source, beyond=beyond))


def affordable_row(part: FrameQuery, items: Sequence[ChargeItem], state: State, reader: Reader) -> Row:
    """Return the row of a plan that says whether the most that a question costs can be paid."""
    try:
        state.ledger.require(part.frame.rows.unit, items, reader.name)
    except BudgetError as error:
        return ("target", "affordable", target_words.not_affordable(error))
    return ("target", "affordable", "yes")


def receipt_of_cap(offer: Offer, most_nano: int, cap: tuple[str, float], source: str, state: State) -> Receipt:
    """Return the receipt of an offer with the guarantee of a cap, before its price is known.

    Args:
        offer: with this guarantee.
        most_nano: the cap.
        cap: name and value of its option.
        source: released values that decide the level.
        state: the state file.

    """
    receipt, covered = make_receipt(offer), covered_nano(offer, most_nano, state)
    notes = (*receipt.notes, _sentence(cap, source, beyond=covered > most_nano))
    asked_by = "epsilon" if cap[0] == "max_epsilon" else "rho"
    return replace(receipt, most_rho=covered / NANO, notes=notes, asked_by=asked_by)


def _sentence(cap: tuple[str, float], source: str, *, beyond: bool) -> str:
    """Return the sentence that says which level epsilon is stated for, and that rho and price are no guarantee."""
    of_cap = words.COVERS_CAP if beyond else words.IS_CAP
    return words.EPSILON_OF_CAP.format(of_cap=of_cap.format(cap=level_words.option(*cap)), source=source)
