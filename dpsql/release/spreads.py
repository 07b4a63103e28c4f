"""Spreads of noisy sums, and their intervals.

With n rows, their values' sum s, and the sum q of squared distances to a number m, the variance is
q/n - ((s - m n)/n)^2.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dpsql.model.estimates import Spread

Floats = npt.NDArray[np.float64]

MISS_JOINTLY = 0.05 / 3
"""Probability with which each of three intervals misses, so that one of them does with at most 0.05."""
_LEAST_ROWS = 2.0**-20
"""Intervals of the number of rows that come closer to too few of them leave the spread open."""


def spread_value(spread: Spread, rows: Floats, total: Floats, squares: Floats, most: float) -> Floats:
    """The spread of noisy sums, above 0 and up to ``most``; NaN where noise leaves too few rows, or none, for one."""
    enough = rows > float(spread.is_sample)
    n = np.where(enough, rows, 2.0)
    variance = squares / n - (total / n - spread.middle) ** 2 + spread.offset
    scale = n / (n - 1.0) if spread.is_sample else 1.0
    # noise that exceeds it says nothing of how small it is
    known = enough & (variance > 0.0)
    return np.where(known, np.minimum(_shown(spread, variance * scale), most), np.nan)


def spread_interval(
    spread: Spread,
    rows: tuple[Floats, Floats],
    recentred: tuple[Floats, Floats],
    squares: tuple[Floats, Floats],
    most: float,
) -> tuple[Floats, Floats]:
    """An interval that covers the spread with at least 95 %, if that is the probability of three intervals together.

    *Guarantee*: where ``rows``, ``recentred`` and ``squares`` are value and half width of n, a = s - m n and q, the
    interval holds every q/n - (a/n)^2 + offset (times n/(n-1) for samples), n, a and q in intervals that hold all three
    true values.
    *Source*: Bonferroni 1936 for the three intervals. For fixed a and q the function q/n - a^2/n^2 of n rises up to
    2 a^2/q and falls from there (rises throughout where q <= 0), so on an interval of n it is largest at that n, or at
    the end next to it, and least at an end. It rises in q and falls in the size of a.
    *Assumes*: nothing of the noises' dependence.
    """
    n_low, n_high = _ends(rows)
    a_low, a_high = _ends(recentred)
    q_low, q_high = _ends(squares)
    clear = n_low > float(spread.is_sample) + _LEAST_ROWS
    least_n, most_n = np.where(clear, n_low, 2.0), np.where(clear, n_high, 2.0)
    least_a = np.where((a_low <= 0.0) & (a_high >= 0.0), 0.0, np.minimum(np.abs(a_low), np.abs(a_high)))
    most_a = np.maximum(np.abs(a_low), np.abs(a_high))
    turn = np.where(q_high > 0.0, 2.0 * least_a**2 / np.where(q_high > 0.0, q_high, 1.0), np.inf)
    best_n = np.clip(turn, least_n, most_n)
    high = q_high / best_n - (least_a / best_n) ** 2 + spread.offset
    low = np.minimum(*(q_low / n - (most_a / n) ** 2 for n in (least_n, most_n))) + spread.offset
    if spread.is_sample:
        low, high = np.maximum(low, 0.0) * most_n / (most_n - 1.0), np.maximum(high, 0.0) * least_n / (least_n - 1.0)
    return (
        np.where(clear, np.minimum(_shown(spread, low), most), 0.0),
        np.where(clear, np.minimum(_shown(spread, high), most), most),
    )


def _ends(estimate: tuple[Floats, Floats]) -> tuple[Floats, Floats]:
    value, half_width = estimate
    return value - half_width, value + half_width


def _shown(spread: Spread, variance: Floats) -> Floats:
    positive = np.maximum(variance, 0.0)
    return np.sqrt(positive) if spread.is_root else positive
