"""Step 4: from a request to levels, noise scales and a threshold, by policy and text alone.

A query at rho asks statistic i for level w_i * rho (ARCHITECTURE, "statistics, not texts"). Asked by (epsilon, delta),
rho is the largest for which the stacked release of all its statistics with its threshold is (epsilon, delta)-private
by the exact analysis, and the threshold the smallest that this rho allows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from dpsql.accounting import zcdp
from dpsql.errors import CalibrationError
from dpsql.mechanism.histogram import MOST_AUTO_DRAWS, Histogram, Shares
from dpsql.mechanism.measure import FLOAT_SLACK, Grid, Level
from dpsql.mechanism.too_little import fits_window, no_room_for_imprecision, too_little
from dpsql.mechanism.window import charged_delta, grid, snapped, window_taus
from dpsql.model.frame import NANO, PRESENCE, Statistic, Window
from dpsql.model.private_query import FrameQuery, Request
from dpsql.model.statistic_kinds import BESIDE_KINDS
from dpsql.noise.kept_delta import delta_of_conversion

AUTO_PARTS = 32
"""AUTO gets one part in so many of a query's rho."""
ROOM = 1.01
"""Times that the cost of inexact draws is left out of delta, so that its rounding up is covered, too."""
# what imprecise draws add is charged by a formula that is proved up to here: docs/proofs/rounded-gaussian.md, Theorem 5
_LARGEST_DELTA = 0.5


@dataclass(frozen=True, slots=True)
class Cut:
    """A threshold.

    Attributes:
        tau: a key is shown if its noisy presence count, less the floor, exceeds 1 + tau; None where all keys are.
        delta: what is paid for it: the probability that a unit's own groups make any new key pass, at any level of the
            frame's window if it has one, rounded up; 0 where all keys are shown.

    """

    tau: float | None
    delta: float


NO_CUT = Cut(None, 0.0)


@dataclass(frozen=True, slots=True)
class Calibration:
    """Everything about the noise of a query, before any data is read.

    Attributes:
        histogram: how the presence count is noised.
        levels: one per statistic of the query, presence first.
        cut: the threshold of new keys; `NO_CUT` with public ones.
        epsilon, delta: guarantee of this query alone, exact joint analysis, both rounded up.
        auto_nano: levels in nano-rho of what AUTO chooses by, and of statistics that are not asked for because of what
            it found; 0 if the query has no AUTO.

    """

    histogram: Histogram
    levels: tuple[Level, ...]
    cut: Cut
    epsilon: float
    delta: float
    auto_nano: int = 0

    @property
    def rho_nano(self) -> int:
        """Sum of the levels."""
        return sum(level.rho_nano for level in self.levels)


def calibrate(query: FrameQuery, histogram: Histogram) -> Calibration:
    """Levels, noise and threshold of a query.

    Args:
        query: the plan.
        histogram: how its presence count is noised.

    Raises:
        CalibrationError: the request is so small that a level rounds to nothing or its noise cannot be drawn, or no
            threshold meets it.

    """
    delta = query.request.delta
    if histogram.hides and delta > _LARGEST_DELTA:
        raise CalibrationError(
            f"delta = {delta:.3g} is more than a threshold may cost; ask for at most {_LARGEST_DELTA}"
        )
    rho = query.request.rho
    if rho is None:
        return _at_epsilon(query, histogram)
    levels, auto_nano = levels_of(query, histogram, rho)
    if histogram.hides and query.frame.window:
        return _in_window(histogram, levels, query.frame.window, auto_nano)
    tau = _threshold(histogram, levels, rho, delta) if histogram.hides else None
    epsilon, total_delta = histogram.guarantee(levels, tau, delta, auto_nano)
    shown = histogram.threshold_delta(levels[0].sigma, tau)
    return Calibration(histogram, levels, Cut(tau, shown), epsilon, total_delta, auto_nano)


def cut_at(query: FrameQuery, histogram: Histogram, level: Level) -> Cut:
    """The threshold of private keys at another level than the one asked for, within the query's delta.

    Raises:
        CalibrationError: the draws at this level cost more than that.

    """
    window = query.frame.window
    if window is not None:
        return Cut(_window_tau(histogram, window, level), charged_delta(histogram, window))
    tau = _threshold(histogram, (level,), level.rho_nano / NANO, query.request.delta)
    return Cut(tau, histogram.threshold_delta(level.sigma, tau))


def auto_share(query: FrameQuery, histogram: Histogram) -> int:
    """Level in nano-rho that a query leaves for each thing that AUTO asks, whether it is drawn already or not.

    All of them together have one part in `AUTO_PARTS`.

    The statistics share the rest, so that one text at one level asks for the same points before and after.

    Raises:
        CalibrationError: the delta of a query by epsilon is less than what the precision of the noise costs.

    """
    rho = query.request.rho
    if rho is None:
        asked, target = query.request.asked_epsilon, _after_imprecision(query, histogram)
        rho = _rho_with_auto(histogram, asked, target, by_budget=query.request.by_budget)
    return part_for_auto(total_nano(query.request, rho), query)


def unasked_nano(query: FrameQuery, calibration: Calibration) -> int:
    """Return the levels in nano-rho of statistics that are not asked for because of what AUTO found, added up."""
    return calibration.auto_nano - sum(level.rho_nano for level in query.auto_levels)


def part_for_auto(total_nano: int, query: FrameQuery) -> int:
    """What a level leaves for each thing that a query asks by AUTO, in nano-rho."""
    return max(1, total_nano // AUTO_PARTS // len(query.auto))


def window_guarantee(
    histogram: Histogram, levels: tuple[Level, ...], window: Window, auto_nano: int = 0
) -> tuple[float, float]:
    """(epsilon, delta) of these levels with all that a window may show up to them, both rounded up.

    *Guarantee*: docs/proofs/window.md, Theorems 1 and 2, and docs/proofs/ledger.md: whatever other levels of the grid
    up to these were asked for, what is shown costs the window's whole threshold delta beside the conversion of the sum
    of these levels to epsilon, which takes the window's delta once more.
    """
    rho = (sum(level.rho_nano for level in levels) + auto_nano) / NANO
    epsilon = histogram.measure.epsilon(window.delta, rho)
    delta = window.delta + charged_delta(histogram, window)
    return epsilon, histogram.with_imprecision(levels, epsilon, delta, with_auto=auto_nano > 0)


def independent_guarantee(
    histogram: Histogram, levels: tuple[Level, ...], rho_nano: int, threshold_delta: float, delta: float
) -> tuple[float, float]:
    """(epsilon, delta) of independent releases of one count and of sums beside it, both rounded up.

    *Guarantee*: docs/proofs/cascade.md, Theorem (independent releases), and docs/proofs/ledger.md, Theorem 2: the
    conversion of the sum of all levels to epsilon, which takes ``delta``, with the deltas of all thresholds beside it.
    """
    epsilon, delta = histogram.measure.epsilon(delta, rho_nano / NANO), histogram.measure.converted_delta(delta)
    return epsilon, histogram.with_imprecision(levels, epsilon, delta + threshold_delta, with_auto=True)


def level_of(statistic: Statistic, rho_nano: int, histogram: Histogram) -> Level:
    """A statistic at a level, with its noise.

    Raises:
        CalibrationError: the noise is wider than can be drawn.

    """
    rho, is_count = rho_nano / NANO, statistic == PRESENCE
    try:
        sigma = histogram.sigma(rho) if is_count else histogram.sum_sigma(statistic, rho)
        grid = Grid(statistic.noise_exponent, statistic.lattice_exponent, histogram.shape if is_count else None)
        histogram.measure.require(grid, sigma)
    except CalibrationError:
        amount = histogram.measure.amount
        more = "rho or epsilon" if amount == "rho" else amount
        raise CalibrationError(
            f"{amount} = {rho:.3g} for one statistic with max_groups = {histogram.unit_groups} needs more noise than "
            f"can be drawn; ask for more {more}, or let a unit have fewer groups or rows"
        ) from None
    return Level(statistic, rho_nano, sigma, histogram.measure.imprecision(histogram.draws_of((statistic,)), rho))


def whole_nano(rho: float) -> int:
    """Return a level in whole nano-rho, rounded down."""
    # the shortest decimal that names the float is what was asked for, so a whole number of nano-rho stays whole
    return math.floor(round(rho * NANO, 6))


def total_nano(request: Request, rho: float) -> int:
    """Return the level of a whole query in nano-rho, rounded down: as it was asked for, or as epsilon became rho."""
    return whole_nano(rho) if request.rho is not None else math.floor(Fraction(repr(rho)) * NANO)


def shares_of(query: FrameQuery, level_nano: int) -> list[int]:
    """Return the part of a level of each statistic, in nano-rho; the presence count is first and has the remainder."""
    others = [math.floor(weight * level_nano) for weight in query.weights[1:]]
    unasked = [math.floor(weight * level_nano) for _, weight in query.unasked]
    return [level_nano - sum(others) - sum(unasked), *others]


def levels_of(query: FrameQuery, histogram: Histogram, rho: float) -> tuple[tuple[Level, ...], int]:
    """Return the level of each statistic; and those of what AUTO chooses by, added up in nano-rho, 0 without AUTO."""
    total, auto_nano = total_nano(query.request, rho), 0
    if query.auto:
        shares = [level.share_nano for level in query.auto_levels] or [part_for_auto(total, query)] * len(query.auto)
        total -= sum(shares)
        auto_nano = sum(level.rho_nano for _, level in zip(query.auto, query.auto_levels, strict=True))
    shares = shares_of(query, total)
    # AUTO tells which statistics are left out, so the guarantee has to hold for the other case, too
    auto_nano += total - sum(shares)
    if min(shares) < 1:
        raise too_little(query.request, rho, len(shares))
    if query.frame.window is not None:
        shares[0] = snapped(query.frame.window, shares[0])
    asked = zip(query.statistics, shares, strict=True)
    return tuple(level_of(statistic, rho_nano, histogram) for statistic, rho_nano in asked), auto_nano


def _threshold(histogram: Histogram, levels: tuple[Level, ...], rho: float, delta: float) -> float:
    """Return the threshold of a query by rho. With the imprecision of the draws it costs at most its share of delta."""
    target = delta - ROOM * math.fsum(level.noise_delta for level in levels)
    if target <= 0.0:
        least = histogram.measure.imprecision(histogram.draws_of(level.statistic for level in levels), 0.0)
        raise no_room_for_imprecision("rho", rho, delta, too_large=delta > ROOM * least)
    tau = histogram.threshold(target * histogram.threshold_share, levels[0].sigma)
    if tau is None:
        raise AssertionError("a threshold is for keys that hide")
    return tau


def _window_tau(histogram: Histogram, window: Window, level: Level) -> float:
    return window_taus(histogram, window)[grid(window).index(level.rho_nano)]


def _in_window(histogram: Histogram, levels: tuple[Level, ...], window: Window, auto_nano: int) -> Calibration:
    """Threshold and price are the window's, whatever else a query asks for."""
    if not fits_window((level.noise_delta for level in levels), window):
        raise CalibrationError(
            f"delta = {window.delta:.3g} of the window is below what the finite precision of the noise costs at "
            f"rho = {levels[0].rho_nano / NANO:.3g}; ask for more delta or less rho"
        )
    tau = _window_tau(histogram, window, levels[0])
    epsilon, delta = window_guarantee(histogram, levels, window, auto_nano)
    return Calibration(histogram, levels, Cut(tau, charged_delta(histogram, window)), epsilon, delta, auto_nano)


def _at_epsilon(query: FrameQuery, histogram: Histogram) -> Calibration:
    if query.frame.window is not None:
        raise AssertionError("a window goes with rho")
    target, epsilon = _after_imprecision(query, histogram), query.request.asked_epsilon
    if query.auto:
        return _after_auto(query, histogram, target)
    beside = math.fsum(
        weight for one, weight in zip(query.statistics, query.weights, strict=True) if one.kind in BESIDE_KINDS
    )
    if query.request.by_budget:
        # what one unit moves together may be less than the levels add up to, which the budget pays for
        rho = histogram.measure.budget_rho(epsilon, target)
    else:
        rho = histogram.query_rho(epsilon, target, Shares(min(1.0, query.weights[0]), beside))
    levels, _ = levels_of(query, histogram, rho)
    tau = histogram.query_threshold(epsilon, target, levels[0].sigma, histogram.moved(levels))
    shown = histogram.threshold_delta(levels[0].sigma, tau)
    # noise and threshold were set to meet it; how much less it is to the last digit would cost a search
    return Calibration(histogram, levels, Cut(tau, shown), epsilon, query.request.delta)


def _after_auto(query: FrameQuery, histogram: Histogram, target: float) -> Calibration:
    """Noise, AUTO's included, costs half of delta where keys hide, and the threshold what is then left."""
    epsilon, delta = query.request.asked_epsilon, query.request.delta
    rho = _rho_with_auto(histogram, epsilon, target, by_budget=query.request.by_budget)
    levels, auto_nano = levels_of(query, histogram, rho)
    tau = None
    if histogram.hides:
        shown = zcdp.composed_threshold_delta(epsilon, target, rho=rho)
        tau = histogram.threshold(shown, levels[0].sigma)
    if sum(level.rho_nano for level in levels) + auto_nano > rho * NANO:
        # what it chooses by is of a higher level than this query leaves for it
        epsilon, delta = histogram.guarantee(levels, tau, delta, auto_nano)
    shown = histogram.threshold_delta(levels[0].sigma, tau)
    return Calibration(histogram, levels, Cut(tau, shown), epsilon, delta, auto_nano)


def _after_imprecision(query: FrameQuery, histogram: Histogram) -> float:
    """Return the part of delta that is left for noise and threshold, of a query by epsilon."""
    epsilon, delta = query.request.asked_epsilon, query.request.delta
    unasked = (one for one, _ in query.unasked)
    draws = histogram.draws_of((*query.statistics, *unasked)) + MOST_AUTO_DRAWS * bool(query.auto)
    target = delta - ROOM * histogram.measure.imprecision_at(draws, epsilon)
    if target <= 0.0:
        too_large = delta > ROOM * histogram.measure.imprecision_at(draws, 0.0)
        raise no_room_for_imprecision("epsilon", epsilon, delta, too_large=too_large)
    if query.request.by_budget:
        target = min(target, delta_of_conversion(epsilon, delta))
    return target


def _rho_with_auto(histogram: Histogram, epsilon: float, target: float, *, by_budget: bool) -> float:
    """Return the level of all that a query by epsilon releases; by the budget it is not rounded down once more."""
    rho = histogram.measure.budget_rho(epsilon, target / 2.0 if histogram.hides else target)
    return rho if by_budget else rho / FLOAT_SLACK
